//! Pushes files to a dataset on the Hugging Face Hub, or on a server with the same protocol.
//!
//! Files are hashed first and then streamed from disk, so the memory usage does not depend on their size. Files that
//! the repository already has are not sent again, so an interrupted push can be repeated.
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
mod connection;
mod error;
mod files;
mod large;
mod name;
mod push;

pub use client::Hub;
pub use connection::{HubConnection, HubConnectionError, MAX_HUB_ANSWER};
pub use error::HubError;
pub use files::{FileError, PushFile};
pub use name::{RepoName, RepoNameError};
pub use push::{Push, PushProgress, Pushed};

/// The public hub.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
