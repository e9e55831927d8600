//! The images of native environments: this machine's own system, files, or those of registries.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use bollard::auth::DockerCredentials;
use rollout_sandbox::{
    Image, SandboxEngine,
    build::{BaseImageError, BaseImages},
    oci::{ImageSource, PullError, PullProgress, RegistryImages, RegistryLogin, RegistryOptions, full_name},
};
use tokio::sync::Mutex;

use super::mapping::{ImageMapping, MappedImage};
use crate::{
    docker::{Engine, credentials::Credentials},
    environment::EnvironmentError,
    host::DockerAccess,
};
use rollout_core::text::chain;

/// The name of the image without files.
const SCRATCH: &str = "scratch";

/// Finds images.
pub(super) struct NativeImages {
    engine: SandboxEngine,
    mapping: ImageMapping,
    registry: RegistryImages,
    docker: DockerAccess,
    /// The images of a local Docker engine that were imported, by their names.
    from_docker: Mutex<HashMap<String, Image>>,
}

impl NativeImages {
    /// `mapping` names what stands for images, `registries` how others are pulled.
    pub(super) fn new(
        engine: &SandboxEngine,
        mapping: ImageMapping,
        registries: RegistryOptions,
        docker: DockerAccess,
    ) -> Self {
        let registry = RegistryImages::new(engine.clone(), registries);
        Self { engine: engine.clone(), mapping, registry, docker, from_docker: Mutex::default() }
    }

    /// Whether a reference can be an image at all. No registry is asked.
    pub(super) fn check(&self, reference: &str) -> Result<(), String> {
        match self.mapping.find(reference) {
            Some(mapped) => match mapped.path() {
                Some(path) if !path.exists() => {
                    Err(format!("`images` maps {reference} to {}, which does not exist", path.display()))
                }
                _ => Ok(()),
            },
            None if reference == SCRATCH => Ok(()),
            None => full_name(reference).map(drop).map_err(|error| chain(&error)),
        }
    }

    async fn mapped(&self, image: &MappedImage) -> Result<Image, BaseImageError> {
        match image {
            MappedImage::Host => self.engine.host_image().await.map_err(BaseImageError::Host),
            MappedImage::Source(source) => Ok(self.registry.import(source).await?),
            MappedImage::Docker(name) => self.import_from_docker(name).await,
        }
    }

    /// Imports an image of the local Docker engine.
    async fn import_from_docker(&self, name: &str) -> Result<Image, BaseImageError> {
        // One at a time: the first import serves all that wait for it.
        let mut known = self.from_docker.lock().await;
        if let Some(image) = known.get(name) {
            return Ok(image.clone());
        }
        let failed =
            |error: io::Error| PullError::Import { path: format!("docker:{name}").into(), source: error };
        let engine =
            Engine::connect(&self.docker).await.map_err(|error| failed(io::Error::other(chain(&error))))?;
        let archive = self.engine.temporary_path();
        engine.save_image(name, &archive).await.map_err(failed)?;
        let imported = self.registry.import(&ImageSource::Archive(archive.clone())).await;
        // What cannot be removed now is removed with the engine's directory.
        let _ = tokio::fs::remove_file(&archive).await;
        let image = imported?;
        known.insert(name.to_owned(), image.clone());
        Ok(image)
    }

    /// Finds an image, or pulls it. What is pulled is written to `log`.
    pub(super) async fn image(&self, reference: &str, log: &Path) -> Result<Image, BaseImageError> {
        if let Some(mapped) = self.mapping.find(reference) {
            return self.mapped(mapped).await;
        }
        if reference == SCRATCH {
            return Ok(self.registry.scratch().await?);
        }
        if let Some(image) = self.registry.find(reference).await? {
            return Ok(image);
        }
        let credentials = Credentials::load(&self.docker).await;
        let mut logins = HashMap::new();
        for host in self.registry.hosts(reference)? {
            if let Some(login) = credentials.of_host(&host).await.and_then(login) {
                logins.insert(host, login);
            }
        }
        let log = log.to_owned();
        let report = move |progress: PullProgress| write_progress(&log, reference, progress);
        Ok(self.registry.pull(reference, &logins, &report).await?)
    }

    /// These images for a build that writes to `log`.
    pub(super) fn for_build(&self, log: PathBuf) -> BuildImages<'_> {
        BuildImages { images: self, log }
    }
}

/// The images of one build.
pub(super) struct BuildImages<'a> {
    images: &'a NativeImages,
    log: PathBuf,
}

impl BaseImages for BuildImages<'_> {
    async fn resolve(&self, reference: &str) -> Result<Image, BaseImageError> {
        self.images.image(reference, &self.log).await
    }
}

/// What a registry is sent for a user's credentials.
fn login(known: DockerCredentials) -> Option<RegistryLogin> {
    let password = known.username.zip(known.password);
    let identity = known.identitytoken.map(RegistryLogin::Identity);
    let password = password.map(|(user, password)| RegistryLogin::Password { user, password });
    known.registrytoken.map(RegistryLogin::Token).or(identity).or(password)
}

/// Adds a line to the log, which the display shows while an image is prepared.
fn write_progress(log: &Path, reference: &str, progress: PullProgress) {
    let PullProgress { layers, of, received, bytes } = progress;
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    let line = format!(
        "Pulling {reference}: {layers} of {of} layers, {:.1} of {:.1} MiB\n",
        mib(received),
        mib(bytes)
    );
    // A missing line loses nothing but the line.
    let written = log
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| File::options().create(true).append(true).open(log)?.write_all(line.as_bytes()));
    if let Err(error) = written {
        tracing::debug!(%error, "cannot write the progress of a pull");
    }
}

/// The failure of a trial whose image was not found, with what to do.
pub(super) fn failure(reference: &str, error: &BaseImageError) -> EnvironmentError {
    let text = format!("{}; {}", chain(error), hint(reference));
    match is_temporary(error) {
        true => EnvironmentError::Pull(text),
        false => EnvironmentError::NoImage(text),
    }
}

/// Whether another try may find the image.
pub(super) fn is_temporary(error: &BaseImageError) -> bool {
    match error {
        BaseImageError::Pull(pull) => !pull.is_permanent(),
        BaseImageError::Host(_) => true,
        BaseImageError::Unmapped { .. } => false,
    }
}

/// What to do about an image that cannot be pulled.
pub(super) fn hint(reference: &str) -> String {
    format!(
        "`docker login` gives access to private images; to use this machine's own system as that image, write under \
         environment.provider_config: images: {{\"{reference}\": host}}"
    )
}
