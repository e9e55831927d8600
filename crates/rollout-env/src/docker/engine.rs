//! A connection to an engine: Docker, or Podman with the same API.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bollard::{API_DEFAULT_VERSION, Docker as Api, models::SystemInfo};
use futures_util::{StreamExt as _, future::BoxFuture};
use tokio::io::AsyncWriteExt as _;

use super::{
    endpoint::{self, Endpoint},
    failure::words,
    owner::Owner,
    raw,
    reaper::ReaperThread,
    settings::Builder,
};
use crate::host::DockerAccess;

/// The timeout for connecting to an address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The timeout for an engine to describe itself. A busy one takes seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout for the start of an answer to any call.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// The timeout for calls that work for long without output: building, pulling, committing.
const LONG_CALL_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The first API version with BuildKit, that of Docker 18.09.
const FIRST_API_WITH_BUILDKIT: (usize, usize) = (1, 39);

/// Why an engine cannot be used, or why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No address answers.
    #[error("no Docker engine answers{}", tried.iter().map(|(at, why)| format!("\n  {at}: {why}")).collect::<String>())]
    Absent {
        /// Each address, and why it does not answer.
        tried: Vec<(String, String)>,
    },
    /// The engine is reached over ssh, which is not supported.
    #[error("{from} is an ssh address ({target}), which Rollout does not support")]
    Ssh {
        /// The setting with the address.
        from: String,
        /// The remote machine.
        target: String,
    },
    /// An address in an unknown form.
    #[error("{from} is {address:?}; expected unix:///path or tcp://host:port")]
    Address {
        /// The setting with the address.
        from: String,
        /// The address.
        address: String,
    },
    /// The context does not exist.
    #[error("there is no docker context {0:?}")]
    UnknownContext(String),
    /// A file of the docker command's configuration cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// An engine answers, but cannot run containers of tasks.
    #[error("the engine at {at} cannot be used: {why}")]
    Unusable {
        /// Its address.
        at: String,
        /// The reason.
        why: String,
    },
    /// A call failed.
    #[error("the engine could not {what}: {words}")]
    Call {
        /// The call.
        what: &'static str,
        /// The engine's message.
        words: String,
    },
}

impl EngineError {
    /// Advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Absent { .. } => Some(
                "start the engine, or set DOCKER_HOST to its address; the native environment (`type: native`) needs no engine",
            ),
            Self::Ssh { .. } => Some(
                "forward its socket with `ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock <host>` and set \
                 DOCKER_HOST=unix:///tmp/docker.sock",
            ),
            Self::Address { .. } => None,
            Self::UnknownContext(_) => Some("`docker context ls` lists them"),
            Self::File { .. } => None,
            Self::Unusable { .. } => Some("write `type: native`, which needs no engine"),
            Self::Call { .. } => None,
        }
    }

    /// Whether no engine was found, so that a job without a provider runs natively.
    pub fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::Absent { .. } | Self::Ssh { .. } | Self::Address { .. } | Self::UnknownContext(_)
        )
    }

    /// Whether an engine was configured: a configured address is the only one that is tried.
    pub fn is_unexpected(&self) -> bool {
        !matches!(self, Self::Absent { tried } if tried.len() > 1)
    }

    /// Converts the error of a call.
    pub(super) fn call(what: &'static str) -> impl FnOnce(bollard::errors::Error) -> Self {
        move |error| Self::Call { what, words: words(&error) }
    }
}

/// An engine's description of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFacts {
    /// Its address.
    pub address: String,
    /// `docker` or `podman`.
    pub name: &'static str,
    /// Its version.
    pub version: String,
    /// The API version used with it.
    pub api_version: String,
    /// Its storage driver for images and containers.
    pub storage_driver: String,
    /// The file system below, if reported.
    pub backing_filesystem: Option<String>,
    /// Its cgroup version.
    pub cgroup_version: String,
    /// The operating system of its containers.
    pub os: String,
    /// Their architecture, in the naming of images.
    pub arch: String,
    /// The number of its processors.
    pub cpus: u64,
    /// The bytes of its memory.
    pub memory: u64,
    /// The directory with all its data.
    pub root_dir: PathBuf,
    /// The disk of that directory, if it is on this machine.
    pub disk: Option<Disk>,
}

/// The usage of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Free bytes.
    pub free: u64,
    /// Total bytes.
    pub total: u64,
}

impl Disk {
    /// Whether one or two builds may fill it.
    pub fn is_low(self) -> bool {
        const LEAST_FREE: u64 = 5 << 30;
        self.free < LEAST_FREE || self.free < self.total / 20
    }
}

/// The limits that an engine can enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) cpus: bool,
    pub(super) memory: bool,
    pub(super) pids: bool,
}

/// A connection to an engine. Copies share it.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) api: Api,
    pub(super) endpoint: Endpoint,
    pub(super) facts: EngineFacts,
    pub(super) limits: Limits,
    pub(super) runtimes: Vec<String>,
    pub(super) builder: Builder,
    pub(super) owner: Owner,
    pub(super) place: DockerAccess,
    pub(super) reaper: ReaperThread,
}

impl Engine {
    /// Finds an engine that answers.
    pub fn connect(place: &DockerAccess) -> BoxFuture<'_, Result<Self, EngineError>> {
        Box::pin(async move {
            let wanted = place.clone();
            let candidates = tokio::task::spawn_blocking(move || endpoint::candidates(&wanted))
                .await
                .expect("the search for endpoints does not panic")?;
            let mut tried = Vec::new();
            for endpoint in candidates {
                match open(&endpoint).await {
                    Ok(api) => return Self::describe(api, endpoint, place).await,
                    Err(why) => tried.push((endpoint.to_string(), why)),
                }
            }
            Err(EngineError::Absent { tried })
        })
    }

    /// Writes an image as an archive to a new file.
    pub(crate) async fn save_image(&self, name: &str, path: &Path) -> io::Result<()> {
        let mut content = self.api().export_image(name);
        let mut file = tokio::fs::File::create_new(path).await?;
        while let Some(bytes) = content.next().await {
            file.write_all(&bytes.map_err(io::Error::other)?).await?;
        }
        file.flush().await
    }

    /// Asks an engine for its description.
    async fn describe(api: Api, endpoint: Endpoint, place: &DockerAccess) -> Result<Self, EngineError> {
        let answers = async { tokio::try_join!(api.version(), api.info()) };
        let (version, info) = match tokio::time::timeout(ANSWER_TIMEOUT, answers).await {
            Ok(answers) => answers.map_err(EngineError::call("describe itself"))?,
            Err(_) => {
                let why = format!("it took more than {} seconds to answer", ANSWER_TIMEOUT.as_secs());
                return Err(EngineError::Absent { tried: vec![(endpoint.to_string(), why)] });
            }
        };
        let components = version.components.unwrap_or_default();
        let podman = components.iter().any(|component| component.name.starts_with("Podman"));
        let facts = EngineFacts {
            address: endpoint.to_string(),
            name: if podman { "podman" } else { "docker" },
            version: version.version.unwrap_or_default(),
            api_version: api.client_version().to_string(),
            storage_driver: info.driver.clone().unwrap_or_default(),
            backing_filesystem: status(&info, "Backing Filesystem"),
            cgroup_version: info.cgroup_version.map(|version| version.to_string()).unwrap_or_default(),
            os: version.os.unwrap_or_default(),
            arch: version.arch.unwrap_or_default(),
            cpus: info.ncpu.and_then(|count| count.try_into().ok()).unwrap_or(0),
            memory: info.mem_total.and_then(|bytes| bytes.try_into().ok()).unwrap_or(0),
            root_dir: info.docker_root_dir.clone().unwrap_or_default().into(),
            disk: disk(&info).await,
        };
        let unusable = |why: String| EngineError::Unusable { at: endpoint.to_string(), why };
        if facts.os != "linux" {
            return Err(unusable(format!("its containers run {}, but tasks need linux", facts.os)));
        }
        if facts.arch != own_arch() {
            return Err(unusable(format!(
                "it runs on {}, but this build of Rollout supports only containers for {}",
                facts.arch,
                own_arch()
            )));
        }
        let limits = Limits {
            cpus: info.cpu_cfs_quota.unwrap_or(false),
            memory: info.memory_limit.unwrap_or(false),
            pids: info.pids_limit.unwrap_or(false),
        };
        let builder = if podman { Builder::Classic } else { builder(&api, &endpoint).await };
        let reaper = ReaperThread::start(&api)
            .map_err(|error| unusable(format!("cannot start a thread for it: {error}")))?;
        let inner = Inner {
            reaper,
            api,
            endpoint,
            facts,
            limits,
            runtimes: info.runtimes.unwrap_or_default().into_keys().collect(),
            builder,
            owner: Owner::current(),
            place: place.clone(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The engine's description of itself.
    pub fn facts(&self) -> &EngineFacts {
        &self.inner.facts
    }

    pub(super) fn api(&self) -> &Api {
        &self.inner.api
    }

    /// The same connection, with a longer timeout.
    pub(super) fn patient_api(&self) -> Api {
        self.inner.api.clone().with_timeout(LONG_CALL_TIMEOUT)
    }

    pub(super) fn is_podman(&self) -> bool {
        self.inner.facts.name == "podman"
    }
}

/// Opens an address; an error explains why it does not answer.
async fn open(endpoint: &Endpoint) -> Result<Api, String> {
    let seconds = CALL_TIMEOUT.as_secs();
    let api = match endpoint {
        Endpoint::Unix(path) => {
            let reached = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::UnixStream::connect(path)).await;
            reached.map_err(|_| "it does not accept connections".to_owned())?.map_err(|error| match error
                .kind()
            {
                io::ErrorKind::NotFound => "there is no such socket".to_owned(),
                io::ErrorKind::ConnectionRefused => "no engine listens on this socket".to_owned(),
                io::ErrorKind::PermissionDenied => {
                    "permission denied; members of its group may use it".to_owned()
                }
                _ => error.to_string(),
            })?;
            Api::connect_with_unix(&path.to_string_lossy(), seconds, API_DEFAULT_VERSION)
        }
        Endpoint::Tcp(address) => Api::connect_with_http(address, seconds, API_DEFAULT_VERSION),
        Endpoint::Tls(address, dir) => {
            let [key, certificate, authority] = ["key.pem", "cert.pem", "ca.pem"].map(|name| dir.join(name));
            Api::connect_with_ssl(address, &key, &certificate, &authority, seconds, API_DEFAULT_VERSION)
        }
    };
    let api = api.map_err(|error| words(&error))?.with_request_modifier(raw::url_safe_credentials);
    let negotiated = match tokio::time::timeout(ANSWER_TIMEOUT, api.negotiate_version()).await {
        Ok(negotiated) => negotiated.map_err(|error| words(&error))?,
        Err(_) => return Err(format!("no answer within {} seconds", ANSWER_TIMEOUT.as_secs())),
    };
    Ok(negotiated)
}

/// The builder to use with an engine. If an engine with BuildKit reports a preference, it is used; many report
/// none and support both.
async fn builder(api: &Api, endpoint: &Endpoint) -> Builder {
    let version = api.client_version();
    let preferred = raw::preferred_builder(endpoint).await;
    choose_builder((version.major_version, version.minor_version), preferred.as_deref())
}

fn choose_builder(api_version: (usize, usize), preferred: Option<&str>) -> Builder {
    match preferred {
        Some("1") => Builder::Classic,
        Some("2") => Builder::BuildKit,
        _ if api_version >= FIRST_API_WITH_BUILDKIT => Builder::BuildKit,
        _ => Builder::Classic,
    }
}

/// The architecture of this program, in the naming of images.
fn own_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

fn status(info: &SystemInfo, key: &str) -> Option<String> {
    let mut rows = info.driver_status.iter().flatten();
    let row = rows.find(|row| row.first().is_some_and(|name| name == key))?;
    row.get(1).cloned()
}

/// The disk of an engine that runs on this machine, and not in a virtual machine on it.
async fn disk(info: &SystemInfo) -> Option<Disk> {
    let root = info.docker_root_dir.clone()?;
    let kernel = rustix::system::uname();
    if info.kernel_version.as_deref() != kernel.release().to_str().ok() {
        return None;
    }
    let stat = tokio::task::spawn_blocking(move || rustix::fs::statvfs(&root)).await.ok()?.ok()?;
    let block = stat.f_frsize;
    Some(Disk { free: stat.f_bavail.saturating_mul(block), total: stat.f_blocks.saturating_mul(block) })
}

/// The free bytes of the disk of a directory. Blocks.
pub(super) fn free_bytes(dir: &std::path::Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_builder_is_buildkit_unless_the_engine_is_too_old_or_prefers_another() {
        assert_eq!(choose_builder((1, 41), None), Builder::BuildKit);
        assert_eq!(choose_builder((1, 38), None), Builder::Classic);
        assert_eq!(choose_builder((1, 47), Some("1")), Builder::Classic);
        assert_eq!(choose_builder((1, 47), Some("2")), Builder::BuildKit);
    }

    #[test]
    fn a_disk_is_low_below_five_gibibytes_or_five_percent() {
        let disk = |free: u64, total: u64| Disk { free: free << 30, total: total << 30 }.is_low();
        assert!(disk(4, 50));
        assert!(disk(20, 500));
        assert!(!disk(6, 50));
    }

    #[test]
    fn an_absent_engine_is_reported_with_every_address_that_was_tried() {
        let tried = vec![
            ("unix:///var/run/docker.sock".to_owned(), "there is no such socket".to_owned()),
            ("unix:///run/podman/podman.sock".to_owned(), "permission denied".to_owned()),
        ];
        insta::assert_snapshot!(EngineError::Absent { tried }, @"
        no Docker engine answers
          unix:///var/run/docker.sock: there is no such socket
          unix:///run/podman/podman.sock: permission denied
        ");
    }
}
