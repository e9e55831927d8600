//! What the fake knows: apps, files, images and sandboxes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rollout_sandbox::ExitStatus;
use serde_json::json;
use tokio::sync::watch;
use tonic::Status;

use super::{
    build::Build,
    exec::{Exec, variables},
    messages::{
        Definition, FAILURE, GenericResult, HandleMetadata, INIT_FAILURE, INTERNAL_FAILURE, MountFile,
        OUT_OF_MEMORY, RouterAccess, SUCCESS, SandboxCreate, SandboxCreated, SandboxInfo, SandboxList,
        SandboxListAnswer, TIMEOUT, Tag,
    },
};
use crate::{
    clouds::{
        fake::FakeSandbox,
        faults::CloudFaults,
        machine::{CloudHost, CloudMachine, MachineLimits},
    },
    piped::{Piped, exit_code},
};

/// The sandboxes on a page of a list. Small, so that tests need several.
const PAGE: usize = 5;

/// The lifetime of tokens.
const TOKEN: Duration = Duration::from_secs(1200);

/// The fake.
pub(super) struct ModalState {
    /// The address of the API, and of the router of all machines.
    pub(super) url: String,
    pub(super) host: CloudHost,
    pub(super) faults: CloudFaults,
    pub(super) token: String,
    count: AtomicU64,
    known: Mutex<Known>,
}

/// What clients created.
#[derive(Default)]
pub(super) struct Known {
    /// By environment and name.
    pub(super) apps: BTreeMap<(String, String), String>,
    /// By their SHA-256.
    pub(super) files: HashMap<String, Vec<u8>>,
    /// The MD5 of announced files, and their contents.
    pub(super) blobs: HashMap<String, (String, Option<Vec<u8>>)>,
    pub(super) mounts: HashMap<String, Vec<MountFile>>,
    pub(super) builds: HashMap<String, Arc<Build>>,
    /// The names of variables, by the names of secrets.
    pub(super) secrets: BTreeMap<String, Vec<String>>,
    sandboxes: BTreeMap<String, Arc<Sandbox>>,
}

/// A sandbox.
pub(super) struct Sandbox {
    pub(super) id: String,
    pub(super) task_id: String,
    pub(super) app_id: String,
    name: Option<String>,
    created_at: f64,
    pub(super) tags: Mutex<Vec<Tag>>,
    /// What the router asks of clients.
    jwt: String,
    pub(super) token: String,
    machine: Mutex<Option<CloudMachine>>,
    execs: Mutex<HashMap<String, Arc<Exec>>>,
    result: watch::Sender<Option<GenericResult>>,
}

impl Sandbox {
    /// The machine, while the sandbox runs.
    pub(super) fn machine(&self) -> Option<CloudMachine> {
        lock(&self.machine).clone()
    }

    pub(super) fn exec(&self, id: &str) -> Option<Arc<Exec>> {
        lock(&self.execs).get(id).cloned()
    }

    pub(super) fn add_exec(&self, id: String, exec: Arc<Exec>) {
        lock(&self.execs).insert(id, exec);
    }

    /// How it ended; `None` while it runs.
    pub(super) fn result(&self) -> Option<GenericResult> {
        self.result.borrow().clone()
    }

    /// Waits for the end for some time.
    pub(super) async fn wait(&self, time: Duration) -> Option<GenericResult> {
        let mut result = self.result.subscribe();
        let ended = tokio::time::timeout(time, result.wait_for(Option::is_some)).await;
        ended.ok()?.ok()?.clone()
    }

    /// Ends it. Only the first end counts.
    pub(super) async fn end(&self, status: i32, exception: &str, exitcode: i32) {
        let result = GenericResult { status, exception: exception.to_owned(), exitcode };
        // Before the machine ends: the end of the first process would otherwise count.
        self.result.send_if_modified(|end| {
            let is_first = end.is_none();
            end.get_or_insert(result);
            is_first
        });
        lock(&self.execs).clear();
        let machine = lock(&self.machine).take();
        if let Some(machine) = machine {
            machine.kill().await;
        }
    }

    pub(super) fn access(&self, url: &str) -> RouterAccess {
        RouterAccess { jwt: self.jwt.clone(), url: url.to_owned() }
    }

    pub(super) fn metadata(&self) -> HandleMetadata {
        HandleMetadata { result: self.result(), app_id: self.app_id.clone() }
    }
}

impl ModalState {
    pub(super) fn new(host: CloudHost, url: String) -> Self {
        Self {
            url,
            host,
            faults: CloudFaults::default(),
            token: jwt("user"),
            count: AtomicU64::new(0),
            known: Mutex::default(),
        }
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// A new id with a prefix.
    pub(super) fn id(&self, prefix: &str) -> String {
        format!("{prefix}-{:024}", self.count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The sandboxes that run.
    fn live(&self) -> Vec<Arc<Sandbox>> {
        self.known().sandboxes.values().filter(|sandbox| sandbox.result().is_none()).cloned().collect()
    }

    pub(super) fn live_count(&self) -> usize {
        self.live().len()
    }

    /// The sandboxes that run, for tests.
    pub(super) fn listed(&self) -> Vec<FakeSandbox> {
        let listed = self.live().into_iter().map(|sandbox| {
            let labels =
                lock(&sandbox.tags).iter().map(|tag| (tag.name.clone(), tag.value.clone())).collect();
            FakeSandbox { id: sandbox.id.clone(), labels }
        });
        listed.collect()
    }

    pub(super) fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>, Status> {
        let missing = || Status::not_found(format!("Sandbox {id} was not found"));
        self.known().sandboxes.get(id).cloned().ok_or_else(missing)
    }

    pub(super) fn sandbox_of_task(&self, task_id: &str) -> Result<Arc<Sandbox>, Status> {
        let known = self.known();
        let found = known.sandboxes.values().find(|sandbox| sandbox.task_id == task_id);
        found.cloned().ok_or_else(|| Status::not_found(format!("Task {task_id} was not found")))
    }

    /// Whether a router accepts a token.
    pub(super) fn is_router_token(&self, jwt: &str) -> bool {
        self.known().sandboxes.values().any(|sandbox| sandbox.jwt == jwt)
    }

    /// Creates a sandbox, and returns before its first process has started.
    pub(super) async fn create(self: &Arc<Self>, request: SandboxCreate) -> Result<SandboxCreated, Status> {
        let definition = request.definition.unwrap_or_default();
        self.check(&request.app_id, &definition)?;
        let id = self.id("sb");
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sandbox = Arc::new(Sandbox {
            task_id: format!("{}V", self.id("ta")),
            app_id: request.app_id,
            name: definition.name.clone(),
            created_at: since.as_secs_f64(),
            tags: Mutex::new(request.tags),
            jwt: jwt(&id),
            token: format!("st-{id}"),
            id: id.clone(),
            machine: Mutex::default(),
            execs: Mutex::default(),
            result: watch::Sender::new(None),
        });
        self.known().sandboxes.insert(id.clone(), Arc::clone(&sandbox));
        let env = variables(HashMap::new(), request.secret_sources);
        if let Err(reason) = self.boot(&sandbox, definition, &env).await {
            sandbox.end(INIT_FAILURE, &reason, 0).await;
        }
        Ok(SandboxCreated {
            sandbox_id: id,
            task_id: sandbox.task_id.clone(),
            metadata: Some(sandbox.metadata()),
            access: Some(sandbox.access(&self.url)),
            sandbox_token: sandbox.token.clone(),
        })
    }

    /// Refuses what Modal refuses.
    fn check(&self, app_id: &str, definition: &Definition) -> Result<(), Status> {
        let known = self.known();
        if !known.apps.values().any(|app| app == app_id) {
            return Err(Status::not_found(format!("App {app_id} was not found")));
        }
        if !(1..=24 * 3600).contains(&definition.timeout_secs) {
            return Err(Status::invalid_argument("timeout must be between 1 second and 24 hours"));
        }
        let resources = definition.resources.unwrap_or_default();
        for (request, most) in
            [(resources.milli_cpu, resources.milli_cpu_max), (resources.memory_mb, resources.memory_mb_max)]
        {
            if most != 0 && most < request {
                return Err(Status::invalid_argument("a limit is lower than its request"));
            }
        }
        let is_taken = |sandbox: &&Arc<Sandbox>| {
            sandbox.app_id == app_id && sandbox.name == definition.name && sandbox.result().is_none()
        };
        if definition.name.is_some() && known.sandboxes.values().any(|sandbox| is_taken(&sandbox)) {
            return Err(Status::already_exists("a Sandbox with this name is running"));
        }
        Ok(())
    }

    /// Starts the machine and the first process.
    async fn boot(
        &self,
        sandbox: &Arc<Sandbox>,
        definition: Definition,
        env: &[(String, String)],
    ) -> Result<(), String> {
        let image = self.host.image(&definition.image_id).ok_or("the image does not exist")?;
        let resources = definition.resources.unwrap_or_default();
        let limit = |most: u32, unit: u64| (most > 0).then(|| u64::from(most) * unit);
        let limits = MachineLimits {
            cpus_millis: limit(resources.milli_cpu_max, 1),
            memory_bytes: limit(resources.memory_mb_max, 1 << 20),
            no_network: definition.network_access.is_some_and(|access| access.kind == 2),
        };
        let machine = self.host.boot(&sandbox.id, image, limits).await?;
        let command = match definition.entrypoint_args.is_empty() {
            true => vec!["sleep".to_owned(), "infinity".to_owned()],
            false => definition.entrypoint_args,
        };
        let started = machine.exec(command, env, definition.workdir.as_deref(), None, false).await;
        let piped = started.map_err(|(_, message)| message)?;
        *lock(&sandbox.machine) = Some(machine);
        let lifetime = Duration::from_secs(definition.timeout_secs.into());
        tokio::spawn(attend(Arc::clone(sandbox), piped, lifetime));
        Ok(())
    }

    /// A page of sandboxes, the newest first.
    pub(super) fn page(&self, request: &SandboxList) -> SandboxListAnswer {
        let known = self.known();
        let mut found: Vec<&Arc<Sandbox>> = known
            .sandboxes
            .values()
            .filter(|sandbox| request.app_id.is_empty() || sandbox.app_id == request.app_id)
            .filter(|sandbox| request.include_finished || sandbox.result().is_none())
            .filter(|sandbox| {
                request.before_timestamp == 0.0 || sandbox.created_at < request.before_timestamp
            })
            .filter(|sandbox| request.tags.iter().all(|tag| lock(&sandbox.tags).contains(tag)))
            .collect();
        found.sort_by(|a, b| b.created_at.total_cmp(&a.created_at));
        let sandboxes = found.into_iter().take(PAGE).map(|sandbox| SandboxInfo {
            id: sandbox.id.clone(),
            created_at: sandbox.created_at,
            app_id: sandbox.app_id.clone(),
            tags: lock(&sandbox.tags).clone(),
            metadata: Some(sandbox.metadata()),
        });
        SandboxListAnswer { sandboxes: sandboxes.collect() }
    }

    /// Ends a sandbox as a failure of its machine does.
    pub(super) async fn fail(&self, id: &str) {
        if let Ok(sandbox) = self.sandbox(id) {
            sandbox.end(INTERNAL_FAILURE, "the machine failed", 0).await;
        }
    }
}

/// Ends a sandbox with its first process, or with its lifetime.
async fn attend(sandbox: Arc<Sandbox>, mut piped: Piped, lifetime: Duration) {
    // The outputs are not kept; a full pipe would stop the process.
    for pipe in [piped.stdout, piped.stderr] {
        tokio::spawn(async move {
            let mut pipe = pipe;
            let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
        });
    }
    let mut ended = sandbox.result.subscribe();
    let (status, exception, code) = tokio::select! {
        exit = piped.process.wait() => match exit {
            Ok(exit) if exit.oom_killed && matches!(exit.status, ExitStatus::Signal(_)) => (OUT_OF_MEMORY, "", 137),
            Ok(exit) => match exit_code(exit.status) {
                0 => (SUCCESS, "", 0),
                code => (FAILURE, "", code),
            },
            Err(_) => (INTERNAL_FAILURE, "the machine failed", 0),
        },
        () = tokio::time::sleep(lifetime) => (TIMEOUT, "", 0),
        _ = async { drop(ended.wait_for(Option::is_some).await) } => return,
    };
    sandbox.end(status, exception, code).await;
}

/// A token without a signature.
fn jwt(subject: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let end = (now + TOKEN).as_secs();
    format!("{}.{}.signature", part(json!({"alg": "none"})), part(json!({"sub": subject, "exp": end})))
}

/// Locks a value. A test that failed elsewhere does not matter.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
