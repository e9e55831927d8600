//! Datasets on a hub: files pushed to a repository of the Hugging Face Hub, or of a server that speaks its protocol.
//!
//! Files are hashed first and then streamed from the disk, so memory does not grow with them. What the repository has
//! already is not sent again: a push that was cut off is repeated, and ends where it would have ended.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use rollout::hub::{DEFAULT_ENDPOINT, Hub, Push};
//!
//! let hub = Hub::new(DEFAULT_ENDPOINT, std::env::var("HF_TOKEN")?)?;
//! let push = Push::directory("username/experiment-results".parse()?, "out").await?;
//! let pushed = hub.push(&push.private(true), &mut |_| {}).await?;
//! println!("{}", pushed.url);
//! # Ok(())
//! # }
//! ```

mod card;
mod client;
mod commit;
mod error;
mod files;
mod large;
mod name;
mod push;

pub use client::Hub;
pub use error::HubError;
pub use files::{FileError, PushFile};
pub use name::{RepoName, RepoNameError};
pub use push::{Push, PushProgress, Pushed};

/// The public hub.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
