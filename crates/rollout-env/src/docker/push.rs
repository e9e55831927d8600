//! Builds the images of tasks on an engine, and pushes them to a registry.

use std::path::Path;

use bollard::{
    auth::DockerCredentials,
    query_parameters::{PushImageOptions, TagImageOptions},
};
use futures_util::StreamExt as _;

use super::{Engine, EngineError, Settings, build::BuildLog, failure, images::Images};
use crate::{environment::EnvironmentError, host::DockerAccess};

#[cfg(feature = "kubernetes")]
use super::images::OpenedContext;
#[cfg(feature = "fly")]
use super::images::{ArchiveBuild, ArchiveContent, BuiltConfig};
#[cfg(feature = "kubernetes")]
use crate::environment::ImageRequest;

/// Builds images on an engine for use elsewhere.
pub(crate) struct TaskImageBuilder {
    engine: Engine,
    images: Images,
    settings: Settings,
}

/// A task's Dockerfile with its context.
#[cfg(feature = "kubernetes")]
pub(crate) struct TaskContext(OpenedContext);

#[cfg(feature = "kubernetes")]
impl TaskContext {
    /// Reads a task's Dockerfile and its context, for which no engine is needed.
    pub(crate) async fn open(request: ImageRequest<'_>) -> Result<Self, EnvironmentError> {
        Images::open(request, &Settings::for_builds(None)).await.map(Self)
    }

    /// The hash of everything that is built.
    pub(crate) fn hash(&self) -> &str {
        &self.0.hash
    }
}

impl TaskImageBuilder {
    /// Finds the engine. Builds use a network of it, if one is named.
    pub(crate) async fn connect(
        place: &DockerAccess,
        state_dir: &Path,
        network: Option<String>,
    ) -> Result<Self, EngineError> {
        let engine = Engine::connect(place).await?;
        let images = Images::new(engine.clone(), state_dir);
        Ok(Self { engine, images, settings: Settings::for_builds(network) })
    }

    /// Builds a context, unless the engine has built the same content before, and pushes it under a reference.
    #[cfg(feature = "kubernetes")]
    pub(crate) async fn push(
        &self,
        request: ImageRequest<'_>,
        context: TaskContext,
        reference: &str,
    ) -> Result<(), EnvironmentError> {
        let mut log = BuildLog::new(request.log);
        let pushed = async {
            let name = self.images.build_plain(request, &self.settings, context.0, &mut log).await?;
            log.write(&format!("pushing {reference}\n")).await;
            let credentials = self.images.credentials().await.of_image(reference).await;
            self.push_as(&name, reference, credentials).await
        };
        let pushed = pushed.await;
        log.finish().await;
        pushed
    }

    /// Builds the archive of a task, then the archive that `finish` makes of the name and the configuration of the
    /// result, and pushes that one under a reference with these credentials.
    #[cfg(feature = "fly")]
    pub(crate) async fn push_archive(
        &self,
        archive: ArchiveBuild<'_>,
        finish: impl FnOnce(String, BuiltConfig) -> ArchiveContent,
        log: &Path,
        reference: &str,
        credentials: DockerCredentials,
    ) -> Result<(), EnvironmentError> {
        let mut log = BuildLog::new(log);
        let pushed = async {
            let ArchiveBuild { key, platform, no_cache, .. } = archive;
            let task = format!("{key}-task");
            let archive = ArchiveBuild { key: &task, ..archive };
            let name = self.images.build_archive(archive, &self.settings, &mut log).await?;
            let config = self.images.built_config(&name).await?;
            let content = finish(name, config);
            let archive = ArchiveBuild { key, content, platform, no_cache };
            let name = self.images.build_archive(archive, &self.settings, &mut log).await?;
            log.write(&format!("pushing {reference}\n")).await;
            self.push_as(&name, reference, Some(credentials)).await
        };
        let pushed = pushed.await;
        log.finish().await;
        pushed
    }

    async fn push_as(
        &self,
        name: &str,
        reference: &str,
        credentials: Option<DockerCredentials>,
    ) -> Result<(), EnvironmentError> {
        let failed = |words: String| {
            EnvironmentError::Pull(format!(
                "the engine cannot push the image of the task to {reference}: {words}"
            ))
        };
        let (repository, tag) = reference.rsplit_once(':').unwrap_or((reference, "latest"));
        let options = TagImageOptions { repo: Some(repository.to_owned()), tag: Some(tag.to_owned()) };
        let tagged = self.engine.api().tag_image(name, Some(options)).await;
        tagged.map_err(|error| failed(failure::words(&error)))?;
        let options = PushImageOptions { tag: Some(tag.to_owned()), ..PushImageOptions::default() };
        let api = self.engine.patient_api();
        let mut news = std::pin::pin!(api.push_image(repository, Some(options), credentials));
        while let Some(item) = news.next().await {
            let info = item.map_err(|error| failed(failure::words(&error)))?;
            if let Some(error) = info.error_detail.and_then(|detail| detail.message) {
                return Err(failed(error));
            }
        }
        Ok(())
    }
}
