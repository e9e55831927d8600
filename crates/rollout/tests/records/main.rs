//! Records of results: files of other tools, as these tools write and read them.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod eval_log;
mod python_json;
