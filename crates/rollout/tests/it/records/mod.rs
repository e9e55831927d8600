//! Records of results: files of other tools, as these tools write and read them.

mod eval_log;
mod python_json;
