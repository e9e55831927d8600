//! Cloud sandboxes: one provider for all vendors.
//!
//! A vendor offers little: images, creation with labels and a lifetime, a byte stream to the [guest](super::guest),
//! deletion, a list. Its `Backend` is a client for that. Retries, idempotent creation, sessions that survive lost
//! connections, the deletion of leftovers and the cost are the same for all, and are here.

mod backend;
#[cfg(feature = "daytona")]
pub(crate) mod daytona;
mod desk;
#[cfg(feature = "e2b")]
pub(crate) mod e2b;
#[cfg(feature = "fly")]
pub(crate) mod fly;
mod image;
#[cfg(feature = "modal")]
pub(crate) mod modal;
mod place;
mod settings;
mod sweep;
mod used_places;

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use secrecy::SecretString;
use serde_json::json;
use tokio::{
    sync::{Mutex, OnceCell},
    time::Instant,
};

pub use sweep::{CloudAccount, CloudLeftover, CloudLeftoverState};

pub(crate) use self::{
    backend::{
        Backend, CloudError, CloudImage, CloudSandbox, KEPT, KEY, MANAGED, SandboxEnd, SandboxPlan,
        SandboxSize, SandboxState, Wanted,
    },
    image::{AddedFile, ImageSource, added_archive, added_files},
    settings::CloudTimes,
    used_places::PlaceSettings,
};
use self::{
    desk::{CLEAN_COMMAND, Desk, patiently, unhurried},
    place::RemoteSandbox,
    used_places::{record, recorded},
};
use crate::{
    docker::Owner,
    dockerfile::check_dockerfile,
    environment::{
        Demand, Environment, EnvironmentError, EnvironmentOffer, EnvironmentSpec, Facts, ImageProblem,
        ImageRequest, Origin, PreparedImage, Provider, ResourceLimits, StartReport,
    },
    host::HostPaths,
    preparations::Preparations,
};

/// How long to wait for a vendor that has no time to prepare an image.
const IMAGE_PATIENCE: Duration = Duration::from_secs(120);

/// How long to wait for a vendor that does not answer when a job starts.
const CHECK_PATIENCE: Duration = Duration::from_secs(30);

/// The client of an account, or why it cannot be used.
type OpenedBackend = Result<Box<dyn Backend>, CloudConnectError>;

/// Opens a place in the user's account at a vendor. `None` without credentials.
type OpenAccount = fn(&HostPaths, &PlaceSettings) -> Option<OpenedBackend>;

/// The vendors of this build.
const VENDORS: &[(&str, OpenAccount)] = &[
    #[cfg(feature = "daytona")]
    ("daytona", daytona::account),
    #[cfg(feature = "e2b")]
    ("e2b", e2b::account),
    #[cfg(feature = "fly")]
    ("fly", fly::account),
    #[cfg(feature = "modal")]
    ("modal", modal::account),
];

/// The accounts for which there are credentials on this machine, to list and delete what Rollout left in them: the
/// default place of each, and the places that jobs of this machine have used.
pub async fn accounts(place: &HostPaths) -> Vec<Result<CloudAccount, CloudConnectError>> {
    let mut accounts = Vec::new();
    for (name, open) in VENDORS {
        for (backend, file) in places(place, name, *open) {
            accounts.push(match backend {
                Ok(backend) => CloudAccount::open(name, backend, file).await,
                Err(error) => Err(error),
            });
        }
    }
    accounts
}

/// The places of an account, each once, with the files that record them.
fn places(place: &HostPaths, vendor: &str, open: OpenAccount) -> Vec<(OpenedBackend, Option<PathBuf>)> {
    let used = recorded(&place.state_dir, vendor).into_iter().map(|(settings, file)| (settings, Some(file)));
    let mut seen = Vec::new();
    let mut places = Vec::new();
    for (settings, file) in [(PlaceSettings::new(), None)].into_iter().chain(used) {
        match open(place, &settings) {
            None => break,
            Some(Ok(backend)) if seen.contains(&backend.place()) => {}
            Some(Ok(backend)) => {
                seen.push(backend.place());
                places.push((Ok(backend), file));
            }
            // The credentials are the same for all.
            Some(Err(error)) => {
                places.push((Err(error), file));
                break;
            }
        }
    }
    places
}

/// Why a cloud cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CloudConnectError {
    /// The credentials are missing or invalid.
    #[error("{vendor} does not accept the credentials: {reason}")]
    Unauthorized {
        /// The vendor's name.
        vendor: &'static str,
        /// The reason, without the credentials.
        reason: String,
    },
    /// There are no credentials.
    #[error("there are no credentials for {vendor}")]
    NoCredentials {
        /// The vendor's name.
        vendor: &'static str,
        /// The variables and files that were looked at.
        hint: &'static str,
    },
    /// The vendor cannot be reached, or does not answer.
    #[error("{vendor} cannot be reached: {reason}")]
    Unreachable {
        /// The vendor's name.
        vendor: &'static str,
        /// The reason.
        reason: String,
    },
}

impl CloudConnectError {
    /// Advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoCredentials { hint, .. } => Some(hint),
            Self::Unauthorized { .. } => Some("check the key, and that it belongs to the account you mean"),
            Self::Unreachable { .. } => None,
        }
    }
}

/// A cloud that answers, with its sandboxes.
struct Cloud {
    /// The name of the provider in job files.
    name: &'static str,
    backend: Box<dyn Backend>,
    desk: Desk,
}

/// The image for one size, prepared by the first trial that needs it.
type SizedImage = Arc<OnceCell<String>>;

/// Creates sandboxes in a cloud.
pub(crate) struct Remote {
    cloud: Arc<Cloud>,
    times: CloudTimes,
    /// The user of all scripts, if not the image's.
    user: Option<String>,
    no_network: bool,
    prepared: Preparations,
    images: Mutex<HashMap<String, CloudImage>>,
    sized: Mutex<HashMap<(String, SandboxSize), SizedImage>>,
}

impl Remote {
    /// Checks the credentials, and deletes what dead runs of this machine left. `open` creates a client; it is called
    /// twice, because clients belong to the runtime that uses them.
    pub(crate) async fn start(
        name: &'static str,
        state_dir: &Path,
        times: CloudTimes,
        user: Option<String>,
        no_network: bool,
        open: impl Fn() -> Box<dyn Backend>,
    ) -> Result<Self, CloudConnectError> {
        let backend = open();
        check(name, &*backend).await?;
        if let Err(error) = record(state_dir, name, &backend.place()) {
            tracing::warn!(%error, "cannot record where sandboxes are created, so `{CLEAN_COMMAND}` may not find them");
        }
        match sweep::sweep(&*backend).await {
            Ok(swept) => {
                if swept.deleted > 0 {
                    tracing::info!(sandboxes = swept.deleted, "deleted leftovers of dead runs");
                }
                for (id, error) in swept.left {
                    tracing::warn!(sandbox = id, %error, "cannot delete a leftover of a dead run");
                }
            }
            Err(error) => tracing::warn!(%error, "cannot delete leftovers of dead runs"),
        }
        let unreachable =
            |error: io::Error| CloudConnectError::Unreachable { vendor: name, reason: error.to_string() };
        let desk = Desk::start(|| open()).map_err(unreachable)?;
        Ok(Self {
            cloud: Arc::new(Cloud { name, backend, desk }),
            times,
            user,
            no_network,
            prepared: Preparations::default(),
            images: Mutex::default(),
            sized: Mutex::default(),
        })
    }

    async fn image_of(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        let source = ImageSource::open(request).await?;
        let image = unhurried(IMAGE_PATIENCE, || self.cloud.backend.image(&source)).await;
        let image = image.map_err(image_failure)?;
        let reference = image.reference.clone();
        self.images.lock().await.insert(reference.clone(), image);
        Ok(PreparedImage { reference })
    }

    /// The image for a size. It is prepared once.
    async fn sized(&self, reference: &str, size: SandboxSize) -> Result<String, EnvironmentError> {
        let images = self.images.lock().await;
        let image = images.get(reference).cloned();
        drop(images);
        let image = image
            .ok_or_else(|| EnvironmentError::Start(format!("the image {reference} was not prepared")))?;
        let mut sized = self.sized.lock().await;
        let cell = Arc::clone(sized.entry((reference.to_owned(), size)).or_default());
        drop(sized);
        // The first serves all that wait for the same; others are prepared meanwhile.
        let prepare = || unhurried(IMAGE_PATIENCE, || self.cloud.backend.sized_image(&image, size));
        cell.get_or_try_init(prepare).await.cloned().map_err(image_failure)
    }

    /// The lifetime of a sandbox that is needed for this time.
    fn lifetime(&self, needed: Option<Duration>) -> Duration {
        self.times.lifetime_for(needed, self.cloud.backend.max_lifetime())
    }

    fn plan(&self, spec: &EnvironmentSpec<'_>, size: SandboxSize, image: String) -> io::Result<SandboxPlan> {
        let key = random_hex()?;
        let mut labels: HashMap<String, String> = Owner::current()
            .labels(Origin { job: spec.origin.job, trial: spec.origin.trial })
            .into_iter()
            .map(|(name, value)| (name.replace('.', "-"), label_value(&value)))
            .collect();
        labels.insert(MANAGED.to_owned(), "true".to_owned());
        labels.insert(KEY.to_owned(), key.clone());
        Ok(SandboxPlan {
            name: sandbox_name(spec.name, &key),
            image,
            size,
            lifetime: self.lifetime(spec.time),
            grace: self.times.grace,
            no_network: spec.no_network || self.no_network,
            labels,
            token: SecretString::from(random_hex()?),
        })
    }
}

async fn check(vendor: &'static str, backend: &dyn Backend) -> Result<(), CloudConnectError> {
    match patiently(CHECK_PATIENCE, || backend.check()).await {
        Ok(()) => Ok(()),
        Err(CloudError::Unauthorized(reason)) => Err(CloudConnectError::Unauthorized { vendor, reason }),
        Err(error) => Err(CloudConnectError::Unreachable { vendor, reason: error.to_string() }),
    }
}

/// What a failed preparation means for a trial.
fn image_failure(error: CloudError) -> EnvironmentError {
    match error {
        CloudError::Build(text) => EnvironmentError::of_build(text),
        CloudError::NoImage(text) => EnvironmentError::NoImage(text),
        CloudError::Busy { text, .. } | CloudError::Unanswered(text) | CloudError::Quota(text) => {
            EnvironmentError::Pull(format!("the vendor cannot prepare the image: {text}"))
        }
        CloudError::Unauthorized(text) | CloudError::Refused(text) | CloudError::Missing(text) => {
            EnvironmentError::Refused(text)
        }
    }
}

#[async_trait]
impl Provider for Remote {
    fn name(&self) -> &'static str {
        self.cloud.name
    }

    fn description(&self) -> String {
        format!("{}, {}", self.cloud.name, self.cloud.backend.description())
    }

    fn notes(&self) -> Vec<String> {
        let name = self.cloud.name;
        let mut notes = vec![
            format!("the limit on processes is not enforced: {name} has no setting for it"),
            format!("installations of agents are not stored: {name} has no snapshots here"),
            "CPUs and memory of tasks are rounded up to a size that the vendor offers".to_owned(),
        ];
        notes.push(
            "an agent that kills every process ends its sandbox, unless the kernel of the vendor permits process \
             namespaces"
                .to_owned(),
        );
        notes.push(format!("terminals are opened with the program of {name}, not with `rollout attach`"));
        notes.extend(self.cloud.backend.refusal(Demand::NoNetwork));
        let most = self.cloud.backend.max_lifetime();
        if self.times.lifetime.is_some_and(|lifetime| lifetime > most) {
            notes.push(format!(
                "`lifetime_sec` has no effect above {} seconds, the limit of {name}",
                most.as_secs()
            ));
        }
        notes
    }

    fn check_image(&self, context: &Path, docker_image: Option<&str>) -> Result<(), ImageProblem> {
        if docker_image.is_some() { Ok(()) } else { check_dockerfile(context) }
    }

    fn refusal(&self, demand: Demand) -> Option<String> {
        match demand {
            Demand::Compose | Demand::Privileged | Demand::ImageStartup => {
                Some(format!("{} does not support {demand}; use `environment.type: docker`", self.cloud.name))
            }
            demand => self.cloud.backend.refusal(demand),
        }
    }

    fn offer(
        &self,
        ResourceLimits { cpus, memory, storage }: ResourceLimits,
    ) -> Result<EnvironmentOffer, String> {
        let backend = &self.cloud.backend;
        let size = backend.size(Wanted { cpus, memory, storage, gpus: 0 })?;
        Ok(EnvironmentOffer { size: Some(size.to_string()), hourly_cost: backend.price(size) * 3600.0 })
    }

    fn time_limit(&self, needed: Option<Duration>) -> Option<(Duration, String)> {
        let (lifetime, most) = (self.lifetime(needed), self.cloud.backend.max_lifetime());
        if needed.is_some_and(|needed| needed <= lifetime) {
            return None;
        }
        let name = self.cloud.name;
        let reason = match (self.times.lifetime, lifetime == most) {
            (_, true) => format!("{name} does not allow a longer lifetime"),
            (Some(_), false) => "`lifetime_sec` in provider_config sets this lifetime".to_owned(),
            (None, false) => "`lifetime_sec` in provider_config can set a longer lifetime".to_owned(),
        };
        Some((lifetime, reason))
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        self.prepared.once(request, self.image_of(request)).await
    }

    async fn create(&self, spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        if spec.container.is_some() {
            let reason = format!("{} does not support docker-compose files", self.cloud.name);
            return Err(EnvironmentError::Refused(reason));
        }
        let until = Instant::now() + self.times.start_timeout;
        let wanted = Wanted { cpus: spec.cpus, memory: spec.memory, storage: spec.storage, gpus: spec.gpus };
        let size = self.cloud.backend.size(wanted).map_err(EnvironmentError::Resources)?;
        let image = self.sized(&spec.image.reference, size).await?;
        let plan = self.plan(&spec, size, image).map_err(|error| {
            EnvironmentError::Start(format!("cannot create the secrets of a sandbox: {error}"))
        })?;
        let facts = Facts {
            network: if plan.no_network { "none" } else { "open" }.to_owned(),
            enforced: json!({
                "cpus": true,
                "memory": true,
                "pids": false,
                "storage": size.storage_mib.is_some(),
            }),
        };
        let plan = Arc::new(plan);
        let owned = self.cloud.desk.create(Arc::clone(&plan), until, spec.waits).await?;
        // From now on it is paid for, whether it starts or not.
        let mut bill =
            StartBill { price: self.cloud.backend.price(size), since: Instant::now(), report: spec.waits };
        let cloud = Arc::clone(&self.cloud);
        let (user, workdir) = (self.user.clone(), spec.workdir);
        let environment =
            RemoteSandbox::start(cloud, owned, plan, (user, workdir), facts, until, spec.waits).await?;
        if let Some(workdir) = workdir {
            environment.make_dirs(&[workdir], false).await?;
        }
        bill.report = None;
        Ok(Box::new(environment))
    }

    async fn snapshot(&self, _key: &str) -> Result<Option<PreparedImage>, EnvironmentError> {
        Ok(None)
    }

    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        Ok(Box::new(RemoteSandbox::reopen(Arc::clone(&self.cloud), place).await?))
    }

    async fn settle(&self) -> Vec<String> {
        self.cloud.desk.settle().await
    }
}

/// Reports the cost of a sandbox that does not start, also if its trial is cancelled.
struct StartBill<'a> {
    /// Dollars per second.
    price: f64,
    since: Instant,
    report: Option<&'a dyn StartReport>,
}

impl Drop for StartBill<'_> {
    fn drop(&mut self) {
        if let Some(report) = self.report {
            report.failed_start_cost(self.price * self.since.elapsed().as_secs_f64());
        }
    }
}

/// A name for a sandbox: what vendors accept, and different for each.
fn sandbox_name(name: &str, key: &str) -> String {
    let mut text: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(24)
        .collect();
    while text.contains("--") {
        text = text.replace("--", "-");
    }
    format!("r-{}-{}", text.trim_matches('-'), &key[..10])
}

/// A value that every vendor accepts in a label.
fn label_value(value: &str) -> String {
    value.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).take(200).collect()
}

/// A secret, or an identifier that is different each time.
fn random_hex() -> io::Result<String> {
    use std::io::Read as _;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(rollout_core::text::hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "modal")]
    #[tokio::test]
    async fn the_places_that_jobs_have_used_are_cleaned_each_once() {
        use crate::host::{CloudAccess, DockerAccess, KubernetesAccess};
        let state = tempfile::tempdir().unwrap();
        let host = |variables: &[&str]| HostPaths {
            state_dir: state.path().to_owned(),
            helper: PathBuf::new(),
            docker: DockerAccess::default(),
            kubernetes: KubernetesAccess::default(),
            clouds: CloudAccess::from_variables(|name| variables.contains(&name).then(|| "x".into())),
        };
        let logged_in = host(&["MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"]);
        let place = |value: serde_json::Value| value.as_object().unwrap().clone();
        for used in [json!({"app": "rollout"}), json!({"app": "team", "environment": "dev"})] {
            record(state.path(), "modal", &place(used)).unwrap();
        }
        let found: Vec<String> = places(&logged_in, "modal", modal::account)
            .into_iter()
            .map(|(backend, _)| backend.unwrap().description())
            .collect();
        assert_eq!(found, ["app rollout in the default environment", "app team in the environment dev"]);
        assert!(places(&host(&[]), "modal", modal::account).is_empty());
    }

    #[test]
    fn names_are_what_vendors_accept() {
        let name = sandbox_name("Task__With Ünusual--Name-that-is-long-1", "0123456789abcdef");
        assert_eq!(name, "r-task-with-nusual-name-0123456789");
        assert!(name.len() <= 40);
    }

    #[test]
    fn labels_have_printable_characters_only() {
        assert_eq!(label_value("job\nwith é"), "job?with ?");
        assert_eq!(label_value(&"x".repeat(300)).len(), 200);
    }
}
