//! The kubernetes provider: one pod per trial, on any cluster.
//!
//! The [guest](super::guest) is the first process of the pod's container, and everything that happens in it goes through
//! one session, which survives lost connections. The cluster's API only creates, watches and deletes pods, and opens
//! connections to the guest.

mod access;
mod clerk;
mod dial;
mod environment;
mod expiry;
mod images;
mod names;
mod network;
mod owner;
mod pod;
mod probe;
mod registry;
mod settings;
mod state;
mod sweep;
mod terminal;
mod watcher;

use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, watch},
    time::Instant,
};

pub use access::ClusterError;
pub use settings::ClusterChoice;
pub(super) use settings::Settings;
pub use sweep::{ClusterPod, ClusterPodState};

use self::{
    clerk::Clerk,
    environment::{NewPod, RunningPod},
    images::ClusterImages,
    pod::PodPlan,
    probe::PolicyProbe,
    settings::PodNetwork,
    sweep::Sweep,
};
use crate::{
    dockerfile::check_dockerfile,
    environment::{
        Demand, Environment, EnvironmentError, EnvironmentOffer, EnvironmentSpec, Facts, ImageProblem,
        ImageRequest, PreparedImage, Provider, ResourceLimits, with_reasons,
    },
    host::{HostPaths, KubernetesAccess},
    preparations::Preparations,
};

/// A cluster that answers.
pub struct Cluster {
    client: Client,
    namespace: String,
    /// Its address and version.
    address: String,
    version: String,
    /// The name of this run.
    run: String,
    /// The command that deletes what is left in this namespace.
    clean_command: String,
    /// `None` if the cluster is only inspected.
    clerk: Option<Clerk>,
}

impl Cluster {
    /// Connects to a cluster, to inspect it.
    pub fn connect<'a>(
        access: &'a KubernetesAccess,
        choice: &'a ClusterChoice,
    ) -> BoxFuture<'a, Result<Self, ClusterError>> {
        Box::pin(async move {
            let settings = Settings::of_user(choice).map_err(ClusterError::Config)?;
            Self::open(&settings, access, false).await
        })
    }

    async fn open(settings: &Settings, access: &KubernetesAccess, works: bool) -> Result<Self, ClusterError> {
        let config = access::config(settings, access).await?;
        let (client, version) = access::connect(&config).await?;
        let namespace = settings.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let run = names::random();
        let clean_command = names::clean_command(settings.context.as_deref(), settings.namespace.as_deref());
        let address = config.cluster_url.to_string();
        let clerk = match works {
            true => {
                let names = (namespace.clone(), run.clone(), clean_command.clone());
                let started = Clerk::start(config, names, settings.grace);
                Some(started.map_err(|error| {
                    ClusterError::Config(format!("cannot start a thread for the cluster: {error}"))
                })?)
            }
            false => None,
        };
        Ok(Self { client, namespace, address, version, run, clean_command, clerk })
    }

    /// The version of its API server.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The address of its API server.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The namespace that is used.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// All pods that Rollout created in the namespace.
    pub fn rollout_pods(&self) -> BoxFuture<'_, Result<Vec<ClusterPod>, ClusterError>> {
        Box::pin(async move { self.sweeper().pods().await })
    }

    /// Deletes what dead runs left in the namespace, and returns the pods. A dry run only returns them.
    pub fn sweep(&self, dry_run: bool) -> BoxFuture<'_, Result<Vec<ClusterPod>, ClusterError>> {
        Box::pin(async move { self.sweeper().run(dry_run).await })
    }

    /// Deletes a pod by its name. A missing pod is not an error.
    pub fn remove_pod<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), ClusterError>> {
        Box::pin(async move { self.sweeper().remove(name).await })
    }

    fn sweeper(&self) -> Sweep {
        Sweep::new(&self.client, &self.namespace)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn events(&self) -> Api<Event> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn clerk(&self) -> Result<&Clerk, EnvironmentError> {
        self.clerk.as_ref().ok_or_else(|| EnvironmentError::Start("the cluster is only inspected".to_owned()))
    }
}

/// Creates pods on a cluster.
pub(super) struct Kubernetes {
    cluster: Arc<Cluster>,
    settings: Settings,
    images: ClusterImages,
    prepared: Preparations,
    /// The owner of the policy of pods without a network, if there is one.
    policy: Mutex<Option<Value>>,
    probe: PolicyProbe,
}

impl Kubernetes {
    /// Finds the cluster, and deletes leftovers of dead runs.
    pub(crate) async fn start(settings: Settings, place: &HostPaths) -> Result<Self, ClusterError> {
        let cluster = Cluster::open(&settings, &place.kubernetes, true).await?;
        match cluster.sweep(false).await {
            Ok(swept) if !swept.is_empty() => {
                tracing::info!(pods = swept.len(), "deleted leftovers of dead runs")
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot delete leftovers of dead runs"),
        }
        Ok(Self {
            cluster: Arc::new(cluster),
            images: ClusterImages::new(&settings, place).await,
            settings,
            prepared: Preparations::default(),
            policy: Mutex::default(),
            probe: PolicyProbe::default(),
        })
    }

    /// Why the network of a pod cannot be restricted.
    fn no_policy(&self, demand: Demand) -> Option<String> {
        if self.settings.network == PodNetwork::Host {
            return Some(format!("`network: host` excludes {demand}"));
        }
        (!self.settings.network_policy).then(|| {
            format!(
                "{demand} need a cluster that enforces NetworkPolicy; if yours does, set \
                 `provider_config.network_policy: true`"
            )
        })
    }
}

#[async_trait]
impl Provider for Kubernetes {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    fn description(&self) -> String {
        let cluster = &self.cluster;
        format!(
            "kubernetes {}, namespace {}, network {}",
            cluster.version,
            cluster.namespace,
            self.settings.network.as_str()
        )
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "the limit on processes is not enforced: Kubernetes has no setting for it in pods; set `podPidsLimit` on \
             the nodes"
                .to_owned(),
            "installations of agents are not stored: kubernetes has no snapshots".to_owned(),
        ];
        if self.settings.network == PodNetwork::None && !self.settings.network_policy {
            notes.push(
                "`network: none` is a NetworkPolicy, which only some clusters enforce; if yours does, set \
                 `provider_config.network_policy: true`"
                    .to_owned(),
            );
        }
        notes
    }

    fn check_image(&self, context: &Path, docker_image: Option<&str>) -> Result<(), ImageProblem> {
        if docker_image.is_some() { Ok(()) } else { check_dockerfile(context) }
    }

    fn refusal(&self, demand: Demand) -> Option<String> {
        match demand {
            Demand::Gpus | Demand::ImageStartup => None,
            Demand::NoNetwork | Demand::Allowlist | Demand::NetworkChanges => self.no_policy(demand),
            Demand::Compose | Demand::Privileged => {
                Some(format!("the kubernetes provider does not support {demand}"))
            }
        }
    }

    fn offer(&self, ResourceLimits { cpus, memory, .. }: ResourceLimits) -> Result<EnvironmentOffer, String> {
        let requests = self.settings.requests(cpus, memory);
        Ok(EnvironmentOffer {
            size: None,
            hourly_cost: self.settings.prices.of(requests, Duration::from_secs(3600)),
        })
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        let work = async {
            let reference = self.images.prepare(request, &self.settings).await?;
            Ok(PreparedImage { reference })
        };
        self.prepared.once(request, work).await
    }

    async fn create(&self, spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        if spec.container.is_some() {
            let reason = "the kubernetes provider does not support docker-compose files";
            return Err(EnvironmentError::Refused(reason.to_owned()));
        }
        let until = Instant::now() + self.settings.start_timeout;
        let clerk = self.cluster.clerk()?;
        let guest_image = self.images.guest().await?;
        let facts = self.images.facts(&spec.image.reference).unwrap_or_default();
        let user = self.settings.user.clone().or(facts.user);
        let owner = clerk.owner().await?;
        let name = names::pod(spec.name);
        let plan = PodPlan {
            settings: &self.settings,
            spec: &spec,
            name: &name,
            run: &self.cluster.run,
            owner: Some(owner.clone()),
            guest_image,
            user: user.as_deref(),
        };
        let has_network = plan.has_network();
        // The network of a pod can also be taken away later.
        if !has_network || self.settings.network_policy {
            let mut policy = self.policy.lock().await;
            if policy.as_ref() != Some(&owner) {
                network::isolate_run(&self.cluster, owner.clone()).await?;
                *policy = Some(owner);
            }
        }
        let pod = plan.pod().map_err(EnvironmentError::Refused)?;
        let workdir = spec.workdir.map_or_else(|| facts.workdir.clone(), str::to_owned);
        let new = NewPod {
            name: name.clone(),
            workdir: if workdir.is_empty() { "/".to_owned() } else { workdir },
            startup: facts.startup,
            facts: Facts {
                network: if spec.no_network { "none" } else { self.settings.network.as_str() }.to_owned(),
                enforced: json!({
                    "cpus": spec.cpus.is_some(),
                    "memory": spec.memory.is_some(),
                    "pids": false,
                    "storage": spec.storage.is_some(),
                }),
            },
            prices: self.settings.prices,
            requests: self.settings.requests(spec.cpus, spec.memory),
            grace: self.settings.grace,
            user,
        };
        let (sender, reasons) = watch::channel(String::new());
        let (owned, view) = with_reasons(clerk.create(pod, until, sender), reasons, spec.waits).await?;
        let cluster = Arc::clone(&self.cluster);
        let pod = RunningPod::start(cluster, new, owned, view, until, spec.waits).await?;
        if self.settings.network_policy && !has_network {
            self.probe.check(&pod).await?;
        }
        Ok(Box::new(pod))
    }

    async fn snapshot(&self, _key: &str) -> Result<Option<PreparedImage>, EnvironmentError> {
        Ok(None)
    }

    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        Ok(Box::new(RunningPod::reopen(Arc::clone(&self.cluster), place).await?))
    }
}
