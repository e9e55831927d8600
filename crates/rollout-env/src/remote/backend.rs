//! What a cloud must offer: a thin client of its protocol. Everything else is the same for all clouds.

use std::{collections::HashMap, fmt, time::Duration};

use async_trait::async_trait;

use super::{image::ImageSource, used_places::PlaceSettings};
use crate::{
    environment::Demand,
    guest::{DialError, GuestStream},
};
use rollout_core::quantity::{Bytes, Cpus};

/// A client of a vendor. Each call is one attempt; the caller retries.
#[async_trait]
pub(crate) trait Backend: Send + Sync + 'static {
    /// The region and the account, for messages. Never a key.
    fn description(&self) -> String;

    /// The settings of `provider_config` that choose where in the account the sandboxes are, with the values in use. Empty
    /// if [`list`](Backend::list) returns those of the whole account.
    fn place(&self) -> PlaceSettings {
        PlaceSettings::new()
    }

    /// Checks that the vendor accepts the credentials.
    async fn check(&self) -> Result<(), CloudError>;

    /// Why the vendor cannot meet a demand of a task; `None` if it can.
    fn refusal(&self, demand: Demand) -> Option<String>;

    /// Rounds up to a size that the vendor sells. An error says what is too large.
    fn size(&self, wanted: Wanted) -> Result<SandboxSize, String>;

    /// The price of a sandbox of a size, in US dollars per second.
    fn price(&self, size: SandboxSize) -> f64;

    /// The longest life of a sandbox that the vendor accepts.
    fn max_lifetime(&self) -> Duration;

    /// The time between two creations that the vendor's limit on requests allows.
    fn creation_interval(&self) -> Duration {
        Duration::ZERO
    }

    /// How a user opens a shell in a sandbox with the vendor's own program.
    fn shell_command(&self, id: &str) -> String;

    /// Builds or fetches an image that has the guest. The same content gives the same image, which is built once.
    async fn image(&self, source: &ImageSource) -> Result<CloudImage, CloudError>;

    /// The image for sandboxes of a size, where the size belongs to the image.
    async fn sized_image(&self, image: &CloudImage, size: SandboxSize) -> Result<String, CloudError> {
        let _ = size;
        Ok(image.reference.clone())
    }

    /// Creates a sandbox in which the guest is started, and returns its id. It has the labels from its creation on, and
    /// the vendor ends it after its lifetime.
    async fn create(&self, plan: &SandboxPlan) -> Result<String, CloudError>;

    /// Finds the sandbox of a creation whose answer was lost, by the label [`KEY`].
    async fn find(&self, key: &str) -> Result<Option<String>, CloudError>;

    /// The state of a sandbox.
    async fn state(&self, id: &str) -> Result<SandboxState, CloudError>;

    /// Opens a connection to the guest in a sandbox.
    async fn dial(&self, id: &str, plan: &SandboxPlan) -> Result<GuestStream, DialError>;

    /// Deletes a sandbox. A missing one is not an error.
    async fn delete(&self, id: &str) -> Result<(), CloudError>;

    /// All sandboxes that Rollout created in the account.
    async fn list(&self) -> Result<Vec<CloudSandbox>, CloudError>;

    /// Marks a sandbox as kept for the user, with the label [`KEPT`].
    async fn keep(&self, id: &str) -> Result<(), CloudError>;

    /// Takes the network of a running sandbox away, or gives it back.
    async fn set_network(&self, id: &str, connected: bool) -> Result<(), CloudError> {
        let _ = (id, connected);
        Err(CloudError::Refused("the network of a running sandbox cannot be changed".to_owned()))
    }
}

/// The label of everything that Rollout creates, with the value `true`.
pub(crate) const MANAGED: &str = "rollout";

/// The label that identifies one creation.
pub(crate) const KEY: &str = "rollout-key";

/// The label of a sandbox that is kept for the user, with the value `true`.
pub(crate) const KEPT: &str = "rollout-kept";

/// What a task asks for. `None` means no limit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted {
    pub(crate) cpus: Option<Cpus>,
    pub(crate) memory: Option<Bytes>,
    pub(crate) storage: Option<Bytes>,
    pub(crate) gpus: u64,
}

/// A size that a vendor sells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SandboxSize {
    pub(crate) cpu_millis: u64,
    pub(crate) memory_mib: u64,
    /// `None` if the vendor has one size of disk.
    pub(crate) storage_mib: Option<u64>,
}

impl fmt::Display for SandboxSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |mib: u64| mib as f64 / 1024.0;
        let cpus = self.cpu_millis as f64 / 1000.0;
        let noun = if self.cpu_millis == 1000 { "CPU" } else { "CPUs" };
        write!(f, "{cpus} {noun}, {} GiB of memory", gib(self.memory_mib))?;
        self.storage_mib.map_or(Ok(()), |mib| write!(f, ", {} GiB of disk", gib(mib)))
    }
}

/// An image of a vendor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CloudImage {
    /// Identifies it for the vendor.
    pub(crate) reference: String,
}

/// A sandbox to create.
#[derive(Debug, Clone)]
pub(crate) struct SandboxPlan {
    /// A readable name: lower-case letters, digits and hyphens, at most 40 characters, different for each sandbox.
    pub(crate) name: String,
    /// The image for its size.
    pub(crate) image: String,
    pub(crate) size: SandboxSize,
    /// The vendor ends the sandbox after this time, whatever happens.
    pub(crate) lifetime: Duration,
    /// How long the guest lives without a connection.
    pub(crate) grace: Duration,
    pub(crate) no_network: bool,
    /// All labels, with [`MANAGED`] and [`KEY`]. Values have at most 200 printable ASCII characters.
    pub(crate) labels: HashMap<String, String>,
    /// The secret that the guest asks of connections over the network.
    pub(crate) token: secrecy::SecretString,
}

impl SandboxPlan {
    /// The name of the guest's session, and the value of the label [`KEY`].
    pub(crate) fn key(&self) -> &str {
        self.labels.get(KEY).map(String::as_str).unwrap_or_default()
    }

    /// The command that starts the guest as root. With a port it also listens for connections over the network.
    pub(crate) fn guest_command(&self, port: Option<u16>) -> Vec<String> {
        let mut command = vec![
            crate::guest::PROGRAM_PATH.to_owned(),
            "host".to_owned(),
            self.key().to_owned(),
            self.grace.as_secs().max(1).to_string(),
        ];
        command.extend(port.map(|port| port.to_string()));
        command
    }

    /// The command that connects its standard streams to the guest.
    pub(crate) fn connect_command(&self) -> Vec<String> {
        [crate::guest::PROGRAM_PATH, "connect", self.key()].map(str::to_owned).to_vec()
    }
}

/// The state of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SandboxState {
    /// It is being started; the text says what it waits for.
    Starting(String),
    /// It runs.
    Running,
    /// It has ended.
    Ended(SandboxEnd),
}

/// Why a sandbox has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SandboxEnd {
    /// Its lifetime was over.
    Lifetime,
    /// Its processes used up its memory.
    OutOfMemory,
    /// Its own first process ended.
    Exited(String),
    /// The vendor, or another program, ended it.
    Outside(String),
}

/// A sandbox in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CloudSandbox {
    pub(crate) id: String,
    pub(crate) labels: HashMap<String, String>,
}

/// Why a vendor did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum CloudError {
    /// It has too much to do, or a fault of its own; nothing has happened. `retry_after` is its hint.
    #[error("{text}")]
    Busy { text: String, retry_after: Option<Duration> },
    /// No answer arrived: it may have happened.
    #[error("{0}")]
    Unanswered(String),
    /// The credentials are missing or invalid.
    #[error("{0}")]
    Unauthorized(String),
    /// The account's quota is used up. It is free again when other sandboxes end.
    #[error("{0}")]
    Quota(String),
    /// It refuses; another attempt would give the same answer.
    #[error("{0}")]
    Refused(String),
    /// A Dockerfile cannot be built; the text has the end of the output.
    #[error("{0}")]
    Build(String),
    /// The image does not exist, or the vendor may not pull it.
    #[error("{0}")]
    NoImage(String),
    /// The sandbox does not exist.
    #[error("{0}")]
    Missing(String),
}

/// How long an answer asks to wait.
#[cfg(any(feature = "e2b", feature = "fly"))]
pub(crate) fn retry_after(headers: &reqwest::header::HeaderMap) -> Option<Duration> {
    let value = headers.get(reqwest::header::RETRY_AFTER)?.to_str().ok()?;
    rollout_core::parse_retry_after(value, jiff::Timestamp::now())
}
