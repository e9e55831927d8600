//! Training samples from the turns of rollouts.
//!
//! A turn is appended to the previous sample if its prompt starts with exactly the tokens of that sample. The new
//! tokens of the prompt come from tools or users and are masked in the loss. If any earlier token was changed, for
//! example by a chat template that drops old reasoning, the turn starts a new sample. So each token is trained on only
//! in the context in which it was sampled, and few tokens are repeated.
//!
//! Samples come from a `State` (`State::samples`), or from saved rows with the column `trajectory`:
//!
//! ```
//! use rollout::model::samples::SampleReader;
//!
//! let outputs = r#"{"example_id": 7, "task": "math", "reward": 1.0, "trajectory": [
//!     {"trajectory_id": "a3f9", "advantage": 0.5, "tokens":
//!         {"prompt_ids": [1, 2], "completion_ids": [3], "completion_logprobs": [-0.1]}},
//!     {"trajectory_id": "a3f9", "advantage": 0.5, "tokens":
//!         {"prompt_ids": [1, 2, 3, 4], "completion_ids": [5], "completion_logprobs": [-0.2]}}]}"#;
//! let line = outputs.replace('\n', "");
//! for sample in SampleReader::new(line.as_bytes()) {
//!     let sample = sample?;
//!     assert_eq!(sample.token_ids, [1, 2, 3, 4, 5]);
//!     assert_eq!(sample.loss_mask, [0, 0, 1, 0, 1]);
//!     sample.write_jsonl(&mut std::io::sink())?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading and writing block; a service should run them on separate threads.

#[cfg(feature = "parquet")]
mod parquet;
mod read;
mod saved;

#[cfg(feature = "parquet")]
pub(crate) use self::parquet::write_column;
#[cfg(feature = "parquet")]
pub use self::parquet::{ParquetWriteError, ParquetWriter};
pub use self::{
    read::{ReadError, SampleReader},
    saved::{TrialSampleError, exclusion_cause, group_member, trial_samples},
};
pub use rollout_core::sample::{Sample, SampleError, SampledTurn};
