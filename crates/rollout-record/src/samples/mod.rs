//! Training samples from the turns of rollouts.
//!
//! A turn becomes part of the sample before it if its prompt begins with exactly the tokens of that sample; the tokens
//! that are new in the prompt were said by others, and the loss is not to see them. If anything before was changed, as by
//! a template that drops old thoughts, the turn begins a sample of its own. So no token is trained on in a context
//! other than that in which it was sampled, and few are repeated.
//!
//! Samples come from a `State` (`State::samples`) or, one row at a time, from saved outputs that have the column `trajectory`:
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
//! Reading and writing block; a service does them on threads of their own.

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
    saved::{TrialSampleError, group_member, trial_samples},
};
pub use rollout_core::sample::{Sample, SampleError, SampledTurn};
