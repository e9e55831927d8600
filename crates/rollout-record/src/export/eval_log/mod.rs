//! The eval log: an experiment and its episodes as plain JSON files, for leaderboards and score matrices.
//!
//! ```text
//! <directory>/
//! ├── experiment_record.json                    what all episodes share: agent, benchmark, provenance
//! └── episodes/<trajectory_id>/
//!     └── episode_record.json                   outcome, usage and trajectory of one episode
//! ```
//!
//! Records are written with the names of the eval log specification. The newer names of its implementation are also
//! read, and so are records without newer fields. Unknown fields are kept, except `_type`, which names a class of
//! another program. The functions block, so call them where blocking is allowed.
//!
//! ```
//! use rollout::export::eval_log::{EvalLog, experiment_id};
//!
//! # let log = |text: &str| serde_json::from_str::<EvalLog>(text).unwrap();
//! # let log = log(r#"{"experiment": {"experiment_id": "602c86b88de8b08f", "experiment_name": "my_exp",
//! #     "timestamp": 0, "framework_version": "1", "agent": {"agent_id": "", "config_type": "A", "config": {},
//! #     "framework_version": "1"}, "benchmark_name": "b", "benchmark_subset": {"name": "b", "n_tasks": 1}}}"#);
//! let dir = tempfile::tempdir()?;
//! log.save(dir.path())?;
//! assert_eq!(EvalLog::load(dir.path())?, log);
//! assert_eq!(experiment_id("my_exp", "/tmp/out"), log.experiment.experiment_id);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod dialect;
mod episode;
mod experiment;
mod files;
mod recipe;
mod records;
mod steps;
mod unknown;
mod write;

pub use dialect::{INVESTIGATION, RecordDialect};
pub use episode::{EpisodeRecord, Findings, UsageSummary, Verifier};
pub use experiment::{AgentInfo, BenchmarkSubset, ExperimentRecord, InvestigatorLlmConfig};
pub use files::{Episodes, EvalLog, EvalLogError};
pub use recipe::{
    ExampleVersion, QuestionVersion, TaskVersion, agent_id, experiment_id, github_permalink, llm_model,
    success, tool_names,
};
pub use steps::Steps;
pub use write::{DIRECTORY, LiveLog, complete};
pub use write::{EvalLogOptions, write};
