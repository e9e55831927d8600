//! Prepares images for pods: the guest's and those of Dockerfiles are pushed to the registry, once per content.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::OnceCell;

use super::{
    registry::{ImageFacts, NotRead, Registries},
    settings::{ImageBuilder, PodNetwork, Settings},
};
use crate::{
    docker::{Credentials, TaskContext, TaskImageBuilder},
    environment::{EnvironmentError, ImageRequest},
    host::HostPaths,
};

/// The images of a job.
pub(super) struct ClusterImages {
    registry: String,
    registries: Registries,
    place: HostPaths,
    builder: OnceCell<TaskImageBuilder>,
    guest: OnceCell<String>,
    /// The configurations of prepared images, by reference.
    facts: Mutex<HashMap<String, ImageFacts>>,
    /// The images that were built without cache for this job.
    forced: Mutex<HashSet<String>>,
}

impl ClusterImages {
    pub(super) async fn new(settings: &Settings, place: &HostPaths) -> Self {
        let credentials = Credentials::load(&place.docker).await;
        let registry = settings.registry.trim_end_matches('/').to_owned();
        Self {
            registries: Registries::new(&settings.insecure_registries, &registry, credentials),
            registry,
            place: place.clone(),
            builder: OnceCell::new(),
            guest: OnceCell::new(),
            facts: Mutex::default(),
            forced: Mutex::default(),
        }
    }

    /// The image of the guest. It is pushed once.
    pub(super) async fn guest(&self) -> Result<&str, EnvironmentError> {
        let guest = self.guest.get_or_try_init(|| self.registries.push_guest(&self.registry));
        guest.await.map(String::as_str)
    }

    /// What is known of a prepared image.
    pub(super) fn facts(&self, reference: &str) -> Option<ImageFacts> {
        lock(&self.facts).get(reference).cloned()
    }

    /// Prepares the image of a task, and returns its reference.
    pub(super) async fn prepare(
        &self,
        request: ImageRequest<'_>,
        settings: &Settings,
    ) -> Result<String, EnvironmentError> {
        match request.docker_image {
            Some(image) if !request.force_build => self.named(image, settings).await,
            _ => self.built(request, settings).await,
        }
    }

    /// An image that the cluster pulls. Its configuration is needed here, because the guest runs as root, and commands
    /// as the user of the image.
    async fn named(&self, image: &str, settings: &Settings) -> Result<String, EnvironmentError> {
        match self.registries.read(image).await {
            Ok((reference, facts)) => Ok(self.remember(reference, facts)),
            Err(NotRead::Missing(why)) => Err(EnvironmentError::NoImage(why)),
            Err(NotRead::Unreachable(_)) if settings.user.is_some() => {
                let facts = ImageFacts { workdir: "/".to_owned(), ..ImageFacts::default() };
                Ok(self.remember(image.to_owned(), facts))
            }
            Err(NotRead::Unreachable(why)) => Err(EnvironmentError::Pull(format!(
                "cannot read the configuration of an image from its registry: {why}; log in to the registry, or set \
                 provider_config.user if only the cluster can reach it"
            ))),
        }
    }

    /// An image that is built from a Dockerfile, unless the registry has one of the same content.
    async fn built(
        &self,
        request: ImageRequest<'_>,
        settings: &Settings,
    ) -> Result<String, EnvironmentError> {
        let context = TaskContext::open(request).await?;
        let image = format!("{}/rollout-task:{}", self.registry, context.hash());
        let force = request.force_build && lock(&self.forced).insert(image.clone());
        // A machine without an engine can use what another one has pushed.
        if force || !self.registries.has(&image).await {
            let ImageBuilder::Docker = settings.builder;
            let network = (settings.network == PodNetwork::Host).then(|| "host".to_owned());
            let builder = self.builder(network).await?;
            builder.push(request, context, &image).await?;
        }
        match self.registries.read(&image).await {
            Ok((reference, facts)) => Ok(self.remember(reference, facts)),
            Err(NotRead::Missing(why) | NotRead::Unreachable(why)) => Err(EnvironmentError::Pull(format!(
                "the image of the task was pushed, but cannot be read: {why}"
            ))),
        }
    }

    fn remember(&self, reference: String, facts: ImageFacts) -> String {
        lock(&self.facts).insert(reference.clone(), facts);
        reference
    }

    async fn builder(&self, network: Option<String>) -> Result<&TaskImageBuilder, EnvironmentError> {
        let HostPaths { docker, state_dir, .. } = &self.place;
        let connected =
            self.builder.get_or_try_init(|| TaskImageBuilder::connect(docker, state_dir, network));
        connected.await.map_err(|error| {
            EnvironmentError::Start(format!(
                "a Dockerfile needs a Docker engine to be built, also for kubernetes: {error}"
            ))
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
