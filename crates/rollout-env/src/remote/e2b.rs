//! The E2B backend: a sandbox per trial, from a template that E2B builds from the steps of a Dockerfile.
//!
//! E2B's agent inside a sandbox starts the guest, and a process for each connection to it.

mod access;
mod api;
mod envd;
mod settings;
mod steps;
mod template;

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, OpenOptions},
    io::Write as _,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use reqwest::Method;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::json;

pub(crate) use self::settings::Settings;
use self::{
    access::Access,
    api::{Api, encoded},
    envd::Envd,
    settings::SandboxNetwork,
    template::Template,
};
use super::{
    Backend, CloudConnectError, CloudError, CloudImage, CloudSandbox, ImageSource, KEPT, KEY, MANAGED,
    PlaceSettings, Remote, SandboxEnd, SandboxPlan, SandboxSize, SandboxState, Wanted,
};
use crate::{
    environment::Demand,
    guest::{DialError, GuestStream},
    host::HostPaths,
};

/// The name of the provider in job files.
const VENDOR: &str = "e2b";

/// The tag of the guest's process.
const GUEST: &str = "rollout-guest";

/// The least memory of a sandbox, and the step between two sizes.
const LEAST_MEMORY: u64 = 512;
const MEMORY_STEP: u64 = 128;

/// The sandboxes of one page of a list.
const PAGE: u32 = 100;

/// Connects with the settings of a job.
pub(crate) async fn connect(settings: Settings, place: &HostPaths) -> Result<Remote, CloudConnectError> {
    let (times, user) = (settings.times(), settings.user.clone());
    let no_network = settings.network == SandboxNetwork::None;
    let shared = Arc::new(Shared::new(settings, place)?);
    let open = || -> Box<dyn Backend> { Box::new(E2b::new(&shared)) };
    Remote::start(VENDOR, &place.state_dir, times, user, no_network, open).await
}

/// A place in the user's account; `None` without credentials.
pub(super) fn account(
    host: &HostPaths,
    place: &PlaceSettings,
) -> Option<Result<Box<dyn Backend>, CloudConnectError>> {
    match Shared::new(Settings::of_place(place), host) {
        Ok(shared) => Some(Ok(Box::new(E2b::new(&Arc::new(shared))))),
        Err(CloudConnectError::NoCredentials { .. }) => None,
        Err(error) => Some(Err(error)),
    }
}

/// What all clients of a job share.
struct Shared {
    settings: Settings,
    access: Access,
    /// The ids of sandboxes that are kept for the user: labels cannot be changed.
    kept: PathBuf,
}

impl Shared {
    fn new(settings: Settings, place: &HostPaths) -> Result<Self, CloudConnectError> {
        let access = Access::find(&place.clouds, settings.domain.as_deref())?;
        Ok(Self { settings, access, kept: place.state_dir.join("clouds").join("e2b-kept") })
    }
}

/// A client of E2B.
struct E2b {
    shared: Arc<Shared>,
    api: Api,
    /// What is known of sandboxes to which there was a connection.
    known: Mutex<HashMap<String, Known>>,
}

/// What is known of a sandbox.
#[derive(Clone)]
struct Known {
    token: Option<SecretString>,
    domain: Option<String>,
    /// Whether its guest has answered. One that has not may not have been started.
    has_answered: Arc<AtomicBool>,
}

/// A sandbox in an answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sandbox {
    #[serde(rename = "sandboxID")]
    id: String,
    #[serde(default)]
    state: Option<String>,
    #[serde(default)]
    metadata: Option<HashMap<String, String>>,
    #[serde(default, deserialize_with = "secret")]
    envd_access_token: Option<SecretString>,
    #[serde(default)]
    domain: Option<String>,
}

impl E2b {
    fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), api: Api::new(shared.access.clone()), known: Mutex::default() }
    }

    /// The size of sandboxes whose task asks for nothing, and of the machines that build.
    fn default_size(&self) -> SandboxSize {
        let settings = &self.shared.settings;
        let cpus = (settings.default_cpus * 1000.0).ceil() as u64;
        rounded(cpus, settings.default_memory.0)
    }

    /// The sandboxes with a label.
    async fn labelled(&self, label: &str, value: &str) -> Result<Vec<Sandbox>, CloudError> {
        let filter = encoded(&format!("{}={}", encoded(label), encoded(value)));
        let mut found = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let mut path = format!("/v2/sandboxes?metadata={filter}&state=running%2Cpaused&limit={PAGE}");
            if let Some(token) = &next {
                path += &format!("&nextToken={}", encoded(token));
            }
            let (page, token): (Vec<Sandbox>, _) = self.api.page(&path).await?;
            found.extend(page);
            match token {
                Some(token) => next = Some(token),
                None => return Ok(found),
            }
        }
    }

    async fn sandbox(&self, id: &str) -> Result<Sandbox, CloudError> {
        self.api.get(&format!("/sandboxes/{}", encoded(id))).await
    }

    fn kept(&self) -> BTreeSet<String> {
        let text = fs::read_to_string(&self.shared.kept).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// What is needed to reach a sandbox.
    async fn known(&self, id: &str) -> Result<Known, CloudError> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(id) {
            return Ok(known.clone());
        }
        let Sandbox { envd_access_token: token, domain, .. } = self.sandbox(id).await?;
        let known = Known { token, domain, has_answered: Arc::default() };
        Ok(lock().entry(id.to_owned()).or_insert(known).clone())
    }

    fn envd(&self, id: &str, known: &Known) -> Envd {
        let access = &self.shared.access;
        let url = access.sandboxes.clone().unwrap_or_else(|| {
            let domain = known.domain.as_deref().unwrap_or(&access.domain);
            format!("https://{}-{id}.{domain}", envd::PORT)
        });
        Envd { client: self.api.client().clone(), url, sandbox: id.to_owned(), token: known.token.clone() }
    }

    /// Starts the guest, if it has never answered and does not run, and connects to it.
    async fn open(envd: Envd, known: &Known, plan: &SandboxPlan) -> Result<Option<GuestStream>, String> {
        if !envd.has_process(GUEST).await? {
            if known.has_answered.load(Ordering::Relaxed) {
                return Ok(None);
            }
            envd.start(&plan.guest_command(None), Some(GUEST), false).await?;
        }
        let (pid, events) = envd.start(&plan.connect_command(), None, true).await?;
        let has_answered = Arc::clone(&known.has_answered);
        Ok(Some(envd.stream(pid, events, move || has_answered.store(true, Ordering::Relaxed))))
    }
}

fn secret<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<SecretString>, D::Error> {
    Ok(Option::<String>::deserialize(value)?.map(SecretString::from))
}

/// Rounds up to whole CPUs, and to steps of memory.
fn rounded(cpu_millis: u64, memory: u64) -> SandboxSize {
    let mib = memory.div_ceil(1 << 20).max(LEAST_MEMORY);
    SandboxSize {
        cpu_millis: cpu_millis.div_ceil(1000).max(1) * 1000,
        memory_mib: mib.div_ceil(MEMORY_STEP) * MEMORY_STEP,
        storage_mib: None,
    }
}

/// Splits the reference of an image into the template and its build.
fn template_of(reference: &str) -> Template {
    let (name, build) = reference.split_once('@').unwrap_or((reference, ""));
    Template { name: name.to_owned(), build: build.to_owned() }
}

#[async_trait]
impl Backend for E2b {
    fn description(&self) -> String {
        self.shared.access.domain.clone()
    }

    fn place(&self) -> PlaceSettings {
        PlaceSettings::from_iter([("domain".to_owned(), json!(self.shared.access.domain))])
    }

    async fn check(&self) -> Result<(), CloudError> {
        let (_, _): (Vec<Sandbox>, _) = self.api.page("/v2/sandboxes?limit=1").await?;
        Ok(())
    }

    fn refusal(&self, demand: Demand) -> Option<String> {
        match demand {
            Demand::NoNetwork | Demand::Allowlist => None,
            Demand::NetworkChanges => {
                Some("the e2b provider does not support a different network in a single phase".to_owned())
            }
            demand => Some(format!("E2B has no {demand}")),
        }
    }

    fn size(&self, wanted: Wanted) -> Result<SandboxSize, String> {
        if wanted.gpus > 0 {
            return Err("E2B has no GPUs".to_owned());
        }
        let settings = &self.shared.settings;
        let default = self.default_size();
        let cpus = wanted.cpus.map_or(default.cpu_millis, |cpus| cpus.millis);
        let memory = wanted.memory.map_or(default.memory_mib << 20, |memory| memory.0);
        if cpus as f64 > settings.max_cpus * 1000.0 {
            return Err(format!(
                "the task needs {} CPUs, but a sandbox has at most {}; if your plan allows more, raise `max_cpus`",
                cpus as f64 / 1000.0,
                settings.max_cpus
            ));
        }
        if memory > settings.max_memory.0 {
            return Err(format!(
                "the task needs {} MiB of memory, but a sandbox has at most {} MiB; if your plan allows more, raise \
                 `max_memory`",
                memory >> 20,
                settings.max_memory.0 >> 20
            ));
        }
        Ok(rounded(cpus, memory))
    }

    fn price(&self, size: SandboxSize) -> f64 {
        let settings = &self.shared.settings;
        let hour = size.cpu_millis as f64 / 1000.0 * settings.cpu_hour
            + size.memory_mib as f64 / 1024.0 * settings.gib_hour;
        hour / 3600.0
    }

    fn max_lifetime(&self) -> Duration {
        self.shared.settings.max_lifetime
    }

    fn shell_command(&self, id: &str) -> String {
        format!("e2b sandbox connect {id}")
    }

    async fn image(&self, source: &ImageSource) -> Result<CloudImage, CloudError> {
        let template = template::of_source(&self.api, source, self.default_size()).await?;
        Ok(CloudImage { reference: format!("{}@{}", template.name, template.build) })
    }

    async fn sized_image(&self, image: &CloudImage, size: SandboxSize) -> Result<String, CloudError> {
        let base = template_of(&image.reference);
        if size == self.default_size() {
            return Ok(base.name);
        }
        Ok(template::sized(&self.api, &base, size).await?.name)
    }

    async fn create(&self, plan: &SandboxPlan) -> Result<String, CloudError> {
        let body = json!({
            "templateID": plan.image,
            "timeout": plan.lifetime.as_secs().max(1),
            "autoPause": false,
            "allow_internet_access": !plan.no_network,
            "metadata": plan.labels,
        });
        match self.api.post::<Sandbox>("/v2/sandboxes", &body, Some(plan.key())).await {
            Ok(sandbox) => Ok(sandbox.id),
            Err(CloudError::Refused(text)) if text.to_lowercase().contains("timeout") => {
                Err(CloudError::Refused(format!(
                    "{text}; your plan limits the lifetime of sandboxes: set `max_lifetime_sec` to this limit, such as 3600"
                )))
            }
            // The template, not the sandbox, does not exist.
            Err(CloudError::Missing(text)) => Err(CloudError::Refused(text)),
            Err(error) => Err(error),
        }
    }

    async fn find(&self, key: &str) -> Result<Option<String>, CloudError> {
        Ok(self.labelled(KEY, key).await?.into_iter().next().map(|sandbox| sandbox.id))
    }

    async fn state(&self, id: &str) -> Result<SandboxState, CloudError> {
        let state = self.sandbox(id).await?.state;
        Ok(match state.as_deref() {
            Some("paused") => SandboxState::Ended(SandboxEnd::Outside("it was paused".to_owned())),
            _ => SandboxState::Running,
        })
    }

    async fn dial(&self, id: &str, plan: &SandboxPlan) -> Result<GuestStream, DialError> {
        let gone = || DialError::Gone(format!("the sandbox {id} no longer exists"));
        let known = match self.known(id).await {
            Ok(known) => known,
            Err(CloudError::Missing(_)) => return Err(gone()),
            Err(error) => return Err(DialError::Temporary(error.to_string())),
        };
        match Self::open(self.envd(id, &known), &known, plan).await {
            Ok(Some(stream)) => Ok(stream),
            Ok(None) => Err(DialError::Gone(format!("the guest of the sandbox {id} has ended"))),
            // The proxy in front of sandboxes does not say for certain that one has ended.
            Err(text) => match self.sandbox(id).await {
                Err(CloudError::Missing(_)) => Err(gone()),
                _ => Err(DialError::Temporary(text)),
            },
        }
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        match self.api.tell(Method::DELETE, &format!("/sandboxes/{}", encoded(id)), None).await {
            Err(CloudError::Missing(_)) => Ok(()),
            answer => answer,
        }
    }

    async fn list(&self) -> Result<Vec<CloudSandbox>, CloudError> {
        let kept = self.kept();
        let listed = self.labelled(MANAGED, "true").await?.into_iter().map(|sandbox| {
            let mut labels = sandbox.metadata.unwrap_or_default();
            if kept.contains(&sandbox.id) {
                labels.insert(KEPT.to_owned(), "true".to_owned());
            }
            CloudSandbox { id: sandbox.id, labels }
        });
        Ok(listed.collect())
    }

    async fn keep(&self, id: &str) -> Result<(), CloudError> {
        let path = &self.shared.kept;
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
            let mut file = OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{id}")
        });
        written.map_err(|error| CloudError::Refused(format!("cannot write {}: {error}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up() {
        let size = rounded(200, 64 << 20);
        assert_eq!((size.cpu_millis, size.memory_mib), (1000, 512));
        let size = rounded(2500, (1 << 30) + 1);
        assert_eq!((size.cpu_millis, size.memory_mib), (3000, 1152));
    }

    #[test]
    fn a_reference_names_the_template_and_its_build() {
        let template = template_of("rollout-abc@b-1");
        assert_eq!((template.name.as_str(), template.build.as_str()), ("rollout-abc", "b-1"));
    }
}
