//! Sandboxes of Modal: a client for its gRPC API.
//!
//! Images are built by Modal from the commands of a Dockerfile, and once more with the guest. The first process of a sandbox is the guest, and a
//! connection to it is the standard streams of a command that Modal runs in the sandbox. Everything uses the second
//! generation of sandboxes, the default of Modal's own client since 1.6.

mod access;
mod blob;
mod build;
mod client;
mod context;
mod failure;
mod messages;
mod router;
mod settings;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use secrecy::SecretString;
use tokio::sync::OnceCell;
use tonic::Code;

pub(crate) use self::settings::Settings;
use self::{
    access::{Access, HINT},
    client::{Call, Client},
    messages::{
        AppGetOrCreateRequest, AppGetOrCreateResponse, BaseImage, CREATE_IF_MISSING, Empty,
        EnvironmentGetOrCreateRequest, EnvironmentGetOrCreateResponse, GenericResult, Image, NetworkAccess,
        NetworkKind, Resources, ResultStatus, RouterAccess, Sandbox, SandboxCreateRequest,
        SandboxCreateResponse, SandboxGetTaskIdResponse, SandboxListRequest, SandboxListResponse,
        SandboxRequest, SandboxTagsGetResponse, SandboxTagsSetRequest, SandboxWaitRequest,
        SandboxWaitResponse, SchedulerPlacement, labels, tags,
    },
    router::Router,
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

const NAME: &str = "modal";

/// The longest life of a sandbox.
const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The smallest part of a core, and the smallest memory.
const CPU_STEP: u64 = 125;
const LEAST_MEMORY: u64 = 128;

/// The size of sandboxes of tasks without limits: that of tasks which do not mention them.
const DEFAULT_CPU: u64 = 1000;
const DEFAULT_MEMORY: u64 = 2048;

/// Checks the credentials and connects a job.
pub(crate) async fn connect(settings: Settings, place: &HostPaths) -> Result<Remote, CloudConnectError> {
    let access = Access::find(&place.clouds).map_err(|error| invalid(&error))?;
    let access = access.ok_or(CloudConnectError::NoCredentials { vendor: NAME, hint: HINT })?;
    let (times, user, no_network) = (settings.times(), settings.user.clone(), settings.no_network);
    let (access, settings, known) = (Arc::new(access), Arc::new(settings), Arc::default());
    let open = || -> Box<dyn Backend> {
        Box::new(Modal::new(Arc::clone(&access), Arc::clone(&settings), Arc::clone(&known)))
    };
    Remote::start(NAME, &place.state_dir, times, user, no_network, open).await
}

/// A place in the account of the user; `None` without credentials.
pub(super) fn account(
    host: &HostPaths,
    place: &PlaceSettings,
) -> Option<Result<Box<dyn Backend>, CloudConnectError>> {
    match Access::find(&host.clouds) {
        Ok(None) => None,
        Ok(Some(access)) => {
            let modal = Modal::new(Arc::new(access), Arc::new(Settings::of_place(place)), Arc::default());
            Some(Ok(Box::new(modal)))
        }
        Err(error) => Some(Err(invalid(&error))),
    }
}

fn invalid(error: &access::AccessError) -> CloudConnectError {
    CloudConnectError::Unauthorized { vendor: NAME, reason: error.to_string() }
}

/// A client for the sandboxes of an app.
struct Modal {
    client: Client,
    settings: Arc<Settings>,
    /// The environment of the account; empty for its default.
    environment: String,
    app: OnceCell<String>,
    builder_version: OnceCell<String>,
    known: Arc<Known>,
    /// The routers of sandboxes. A connection belongs to the runtime that opened it.
    routers: Mutex<HashMap<String, Router>>,
}

/// What the creation of a sandbox returned, for all clients of a job.
#[derive(Default)]
struct Known(Mutex<HashMap<String, Created>>);

#[derive(Clone)]
struct Created {
    task_id: String,
    token: Option<SecretString>,
    /// For the first connection. Later ones ask for a new one.
    access: Option<RouterAccess>,
}

impl Known {
    fn token(&self, id: &str) -> Option<SecretString> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id)?.token.clone()
    }

    fn task_id(&self, id: &str) -> Option<String> {
        let task_id = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id)?.task_id.clone();
        Some(task_id).filter(|task_id| !task_id.is_empty())
    }

    fn take_access(&self, id: &str) -> Option<RouterAccess> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(id)?.access.take()
    }
}

impl Modal {
    fn new(access: Arc<Access>, settings: Arc<Settings>, known: Arc<Known>) -> Self {
        let environment = settings.environment.clone().or_else(|| access.environment.clone());
        Self {
            client: Client::new(access),
            settings,
            environment: environment.unwrap_or_default(),
            app: OnceCell::new(),
            builder_version: OnceCell::new(),
            known,
            routers: Mutex::default(),
        }
    }

    /// The id of the app, which is created if it does not exist.
    async fn app(&self) -> Result<&str, CloudError> {
        let app = self.app.get_or_try_init(|| self.find_app(CREATE_IF_MISSING)).await?;
        Ok(app)
    }

    async fn find_app(&self, creation: i32) -> Result<String, CloudError> {
        let request = AppGetOrCreateRequest {
            app_name: self.settings.app.clone(),
            environment_name: self.environment.clone(),
            object_creation_type: creation,
        };
        let call = Call::plain("/modal.client.ModalClient/AppGetOrCreate");
        let app: AppGetOrCreateResponse = self.client.call(&call, request).await?;
        Ok(app.app_id)
    }

    /// The version of the builder that the environment of the account uses.
    async fn builder_version(&self) -> Result<&str, CloudError> {
        let find = async {
            let request = EnvironmentGetOrCreateRequest { deployment_name: self.environment.clone() };
            let call = Call::plain("/modal.client.ModalClient/EnvironmentGetOrCreate");
            let found: EnvironmentGetOrCreateResponse = self.client.call(&call, request).await?;
            let settings = found.metadata.unwrap_or_default().settings.unwrap_or_default();
            Ok(settings.image_builder_version)
        };
        let version: Result<&String, CloudError> = self.builder_version.get_or_try_init(|| find).await;
        version.map(String::as_str)
    }

    /// The sandboxes with a label, as far as they run.
    async fn listed(&self, label: (&str, &str)) -> Result<Vec<CloudSandbox>, CloudError> {
        let app_id = match self.app.get() {
            Some(app) => app.clone(),
            None => match self.find_app(0).await {
                Ok(app) => app,
                Err(CloudError::Missing(_)) => return Ok(Vec::new()),
                Err(error) => return Err(error),
            },
        };
        let label = HashMap::from([(label.0.to_owned(), label.1.to_owned())]);
        let call = Call::signed("/modal.client.ModalClient/SandboxListV2", None);
        let (mut found, mut seen, mut before_timestamp) = (Vec::new(), HashSet::new(), 0.0);
        loop {
            let request = SandboxListRequest { app_id: app_id.clone(), before_timestamp, tags: tags(&label) };
            let page: SandboxListResponse = self.client.call(&call, request).await?;
            let Some(last) = page.sandboxes.last() else { return Ok(found) };
            before_timestamp = last.created_at;
            let count = found.len();
            for sandbox in page.sandboxes {
                if seen.insert(sandbox.id.clone()) {
                    found.push(CloudSandbox { id: sandbox.id, labels: labels(sandbox.tags) });
                }
            }
            // Also ends if the server repeats itself.
            if found.len() == count {
                return Ok(found);
            }
        }
    }

    /// How a sandbox ended; `None` while it runs.
    async fn result(&self, id: &str) -> Result<Option<SandboxEnd>, CloudError> {
        let token = self.known.token(id);
        let call = Call::signed("/modal.client.ModalClient/SandboxWaitV2", token.as_ref());
        let request = SandboxWaitRequest { sandbox_id: id.to_owned(), timeout: 0.0 };
        let answer: SandboxWaitResponse = self.client.call(&call, request).await?;
        Ok(answer.result.as_ref().and_then(end))
    }

    /// The router of a sandbox.
    async fn router(&self, id: &str) -> Result<Router, CloudError> {
        let kept = self.routers.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        if let Some(router) = kept {
            return Ok(router);
        }
        let token = self.known.token(id);
        let request = SandboxRequest { sandbox_id: id.to_owned() };
        let task_id = match self.known.task_id(id) {
            Some(task_id) => task_id,
            None => {
                let call = Call::signed("/modal.client.ModalClient/SandboxGetTaskIdV2", token.as_ref());
                let answer: SandboxGetTaskIdResponse = self.client.call(&call, request.clone()).await?;
                let waiting = || CloudError::Busy {
                    text: format!("the sandbox {id} has no machine yet"),
                    retry_after: None,
                };
                answer.task_id.filter(|id| !id.is_empty()).ok_or_else(waiting)?
            }
        };
        let access = match self.known.take_access(id) {
            Some(access) => access,
            None => {
                let path = "/modal.client.ModalClient/SandboxGetCommandRouterAccess";
                self.client.call(&Call::signed(path, token.as_ref()), request).await?
            }
        };
        let router = Router::connect(access, task_id, self.client.is_plain()).await;
        let router = router.map_err(|text| CloudError::Busy { text, retry_after: None })?;
        self.routers.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), router.clone());
        Ok(router)
    }

    fn forget_router(&self, id: &str) {
        self.routers.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Why a sandbox cannot be reached.
    async fn unreachable(&self, id: &str, error: &CloudError) -> DialError {
        match self.result(id).await {
            Ok(Some(end)) => DialError::Gone(format!("the sandbox has ended: {end:?}")),
            Err(CloudError::Missing(text)) => DialError::Gone(text),
            _ => DialError::Temporary(error.to_string()),
        }
    }

    fn definition(&self, plan: &SandboxPlan) -> Sandbox {
        let (cpu, memory) = (count(plan.size.cpu_millis), count(plan.size.memory_mib));
        let network = if plan.no_network { NetworkKind::Blocked } else { NetworkKind::Open };
        let regions = self.settings.regions.clone();
        // Without a directory: the guest starts in that of the image, and so do commands.
        Sandbox {
            entrypoint_args: plan.guest_command(None),
            image_id: plan.image.clone(),
            // Without the maxima, the size would be a request and not a limit.
            resources: Some(Resources {
                memory_mb: memory,
                milli_cpu: cpu,
                memory_mb_max: memory,
                milli_cpu_max: cpu,
            }),
            timeout_secs: count(plan.lifetime.as_secs().max(1)),
            scheduler_placement: (!regions.is_empty()).then_some(SchedulerPlacement { regions }),
            network_access: Some(NetworkAccess { kind: network.into() }),
            cloud_provider_str: self.settings.cloud.clone().unwrap_or_default(),
            runtime: self.settings.runtime.map(|runtime| runtime.as_str().to_owned()),
            name: Some(plan.name.clone()),
        }
    }
}

fn count(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// How a sandbox ended; `None` while it runs.
fn end(result: &GenericResult) -> Option<SandboxEnd> {
    let reason = |text: &str| match result.exception.as_str() {
        "" => text.to_owned(),
        exception => format!("{text}: {exception}"),
    };
    Some(match result.status() {
        ResultStatus::Unspecified => return None,
        ResultStatus::Success | ResultStatus::Failure => {
            SandboxEnd::Exited(reason(&format!("its first process ended with {}", result.exitcode)))
        }
        ResultStatus::Timeout => SandboxEnd::Lifetime,
        ResultStatus::MemoryEviction | ResultStatus::MemoryThrashing | ResultStatus::OutOfMemory => {
            SandboxEnd::OutOfMemory
        }
        ResultStatus::Terminated => SandboxEnd::Outside(reason("it was terminated")),
        ResultStatus::InitFailure => SandboxEnd::Outside(reason("Modal could not start it")),
        ResultStatus::InternalFailure => SandboxEnd::Outside(reason("Modal had an internal error")),
        ResultStatus::IdleTimeout => SandboxEnd::Outside(reason("Modal ended it because it was idle")),
    })
}

#[async_trait]
impl Backend for Modal {
    fn description(&self) -> String {
        let environment = match self.environment.as_str() {
            "" => "the default environment".to_owned(),
            name => format!("the environment {name}"),
        };
        format!("app {} in {environment}", self.settings.app)
    }

    fn place(&self) -> PlaceSettings {
        let environment = Some(&self.environment).filter(|name| !name.is_empty());
        let environment = environment.map(|name| ("environment".to_owned(), name.as_str().into()));
        [("app".to_owned(), self.settings.app.as_str().into())].into_iter().chain(environment).collect()
    }

    async fn check(&self) -> Result<(), CloudError> {
        self.client.check().await
    }

    fn refusal(&self, demand: Demand) -> Option<String> {
        match demand {
            Demand::NoNetwork | Demand::Allowlist => None,
            Demand::Gpus => Some("sandboxes at modal have no GPUs".to_owned()),
            Demand::NetworkChanges => Some(
                "the network of a sandbox at modal cannot be changed while it runs; use `environment.type: docker`"
                    .to_owned(),
            ),
            // The provider refuses them for all clouds.
            Demand::Compose | Demand::Privileged | Demand::ImageStartup => None,
        }
    }

    fn size(&self, wanted: Wanted) -> Result<SandboxSize, String> {
        if wanted.gpus > 0 {
            return Err("sandboxes at modal have no GPUs".to_owned());
        }
        let cpu = wanted.cpus.map_or(DEFAULT_CPU, |cpus| cpus.millis);
        let memory = wanted.memory.map_or(DEFAULT_MEMORY, |memory| memory.0.div_ceil(1 << 20));
        Ok(SandboxSize {
            cpu_millis: cpu.next_multiple_of(CPU_STEP).max(CPU_STEP),
            memory_mib: memory.max(LEAST_MEMORY),
            storage_mib: None,
        })
    }

    fn price(&self, size: SandboxSize) -> f64 {
        let cpu = size.cpu_millis as f64 / 1000.0 * self.settings.cpu_hour;
        let memory = size.memory_mib as f64 / 1024.0 * self.settings.gib_hour;
        (cpu + memory) / 3600.0
    }

    fn max_lifetime(&self) -> Duration {
        MAX_LIFETIME
    }

    fn shell_command(&self, id: &str) -> String {
        format!("modal shell {id}")
    }

    async fn image(&self, source: &ImageSource) -> Result<CloudImage, CloudError> {
        let app_id = self.app().await?;
        let builder_version = self.builder_version().await?;
        let registry = match &self.settings.registry_secret {
            Some(name) => Some(build::registry(&self.client, name, &self.environment, source).await?),
            None => None,
        };
        let (context_mount_id, left_out) = context::upload(&self.client, app_id, source).await?;
        for path in left_out {
            let note = format!("not in the build at Modal, which accepts only files: {path}\n");
            build::write_log(&source.log, &note).await;
        }
        let (log, dockerfile) = (source.log.as_path(), source.task_dockerfile());
        let image = Image {
            dockerfile_commands: build::task_commands(source),
            context_mount_id,
            image_registry_config: registry,
            base_images: Vec::new(),
        };
        let of_registry = source.context.is_none();
        let order = build::Order { app_id, builder_version, image, force: source.force, log, of_registry };
        let image_id = build::build(&self.client, order).await?;
        // In a build of its own, so that the guest is not among the files that a task copies.
        let image = Image {
            dockerfile_commands: build::guest_commands(dockerfile),
            context_mount_id: context::upload_guest(&self.client, app_id).await?,
            image_registry_config: None,
            base_images: vec![BaseImage { image_id, docker_tag: "base".to_owned() }],
        };
        let order = build::Order { app_id, builder_version, image, force: false, log, of_registry: false };
        Ok(CloudImage { reference: build::build(&self.client, order).await? })
    }

    async fn create(&self, plan: &SandboxPlan) -> Result<String, CloudError> {
        let request = SandboxCreateRequest {
            app_id: self.app().await?.to_owned(),
            definition: Some(self.definition(plan)),
            tags: tags(&plan.labels),
        };
        let path = "/modal.client.ModalClient/SandboxCreateV2";
        let call = Call::signed(path, None).keyed(plan.key());
        let created: SandboxCreateResponse = self.client.call(&call, request).await?;
        let access = Created {
            task_id: created.task_id,
            token: Some(created.sandbox_token).filter(|token| !token.is_empty()).map(SecretString::from),
            access: created.command_router_access,
        };
        let id = created.sandbox_id;
        self.known.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), access);
        Ok(id)
    }

    async fn find(&self, key: &str) -> Result<Option<String>, CloudError> {
        Ok(self.listed((KEY, key)).await?.pop().map(|sandbox| sandbox.id))
    }

    async fn state(&self, id: &str) -> Result<SandboxState, CloudError> {
        if let Some(end) = self.result(id).await? {
            return Ok(SandboxState::Ended(end));
        }
        // Modal returns a sandbox before its machine has started it.
        match self.router(id).await {
            Ok(_) => Ok(SandboxState::Running),
            Err(error) => Ok(SandboxState::Starting(error.to_string())),
        }
    }

    async fn dial(&self, id: &str, plan: &SandboxPlan) -> Result<GuestStream, DialError> {
        let mut is_repeated = false;
        loop {
            let router = match self.router(id).await {
                Ok(router) => router,
                Err(error) => return Err(self.unreachable(id, &error).await),
            };
            let status = match router.start(plan.connect_command()).await {
                Ok(stream) => return Ok(stream),
                Err(status) => status,
            };
            self.forget_router(id);
            // The access to a router ends earlier than a sandbox.
            if status.code() != Code::Unauthenticated || is_repeated {
                return Err(self.unreachable(id, &self.client.failure("TaskExecStart", &status)).await);
            }
            is_repeated = true;
        }
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        let token = self.known.token(id);
        let call = Call::signed("/modal.client.ModalClient/SandboxTerminateV2", token.as_ref());
        let _: Empty = self.client.call(&call, SandboxRequest { sandbox_id: id.to_owned() }).await?;
        self.known.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        self.forget_router(id);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<CloudSandbox>, CloudError> {
        self.listed((MANAGED, "true")).await
    }

    async fn keep(&self, id: &str) -> Result<(), CloudError> {
        let token = self.known.token(id);
        let call = Call::signed("/modal.client.ModalClient/SandboxTagsGetV2", token.as_ref());
        let answer: SandboxTagsGetResponse =
            self.client.call(&call, SandboxRequest { sandbox_id: id.to_owned() }).await?;
        let mut labels = labels(answer.tags);
        labels.insert(KEPT.to_owned(), "true".to_owned());
        let request = SandboxTagsSetRequest { sandbox_id: id.to_owned(), tags: tags(&labels) };
        let call = Call::signed("/modal.client.ModalClient/SandboxTagsSetV2", token.as_ref());
        let _: Empty = self.client.call(&call, request).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rollout_core::quantity::{Bytes, Cpus};

    use super::*;

    fn modal() -> Modal {
        let access = Access {
            servers: vec!["http://127.0.0.1:1".to_owned()],
            token_id: "ak".to_owned(),
            token_secret: "as".into(),
            environment: None,
        };
        Modal::new(Arc::new(access), Arc::new(Settings::of_place(&PlaceSettings::new())), Arc::default())
    }

    #[test]
    fn sizes_are_rounded_up() {
        let modal = modal();
        let size = |cpus: Option<u64>, memory: Option<u64>| {
            let wanted = Wanted {
                cpus: cpus.map(|millis| Cpus { millis }),
                memory: memory.map(Bytes),
                ..Wanted::default()
            };
            let size = modal.size(wanted).unwrap();
            (size.cpu_millis, size.memory_mib)
        };
        assert_eq!(size(None, None), (1000, 2048));
        assert_eq!(size(Some(1), Some(1)), (125, 128));
        assert_eq!(size(Some(2001), Some((4 << 30) + 1)), (2125, 4097));
        assert!(modal.size(Wanted { gpus: 1, ..Wanted::default() }).is_err());
    }

    #[test]
    fn the_price_is_that_of_the_size() {
        let modal = modal();
        let size = modal.size(Wanted::default()).unwrap();
        assert!((modal.price(size) - (0.000_039_42 + 2.0 * 0.000_006_67)).abs() < 1e-12);
    }

    #[test]
    fn the_end_of_a_sandbox_is_explained() {
        let of = |status: ResultStatus, exception: &str, exitcode| {
            let exception = exception.to_owned();
            end(&GenericResult { status: status.into(), exception, exitcode })
        };
        assert_eq!(of(ResultStatus::Unspecified, "", 0), None);
        assert_eq!(of(ResultStatus::Timeout, "", 0), Some(SandboxEnd::Lifetime));
        assert_eq!(of(ResultStatus::OutOfMemory, "", 137), Some(SandboxEnd::OutOfMemory));
        let exited = SandboxEnd::Exited("its first process ended with 1".to_owned());
        assert_eq!(of(ResultStatus::Failure, "", 1), Some(exited));
        let outside = SandboxEnd::Outside("Modal could not start it: no such image".to_owned());
        assert_eq!(of(ResultStatus::InitFailure, "no such image", 0), Some(outside));
    }
}
