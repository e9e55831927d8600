//! Prepares the image of a task: builds or pulls it, then adds the guest.

use std::{
    collections::{HashMap, HashSet},
    fs::TryLockError,
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bollard::{
    body_full,
    errors::Error,
    models::{ContainerCreateBody, ImageInspect},
    query_parameters::{CreateImageOptions, UploadToContainerOptions},
};
use futures_util::StreamExt as _;
use rollout_core::text::chain;
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

use super::{
    Engine,
    build::{self, BuildLog, ImageBuild, Pulls},
    commit::Commit,
    context::BuildContext,
    credentials::Credentials,
    failure, names,
    settings::Settings,
    startup,
};
use crate::{
    blocking::blocking,
    compose::BuildOptions,
    environment::{EnvironmentError, ImageRequest, Origin},
    guest,
};

/// Images built from a task's Dockerfile.
pub(super) const BUILDS: &str = "rollout-build";
/// Images with the guest.
pub(super) const ENVIRONMENTS: &str = "rollout-env";
/// Images of environments after an agent's installation.
pub(super) const SNAPSHOTS: &str = "rollout-snapshot";

/// The path of the log in the trial's directory.
const LOG_FILE: &str = "environment/build.txt";

/// The interval of attempts to take a lock that another process holds.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// Prepares images on an engine.
pub(super) struct Images {
    engine: Engine,
    locks: PathBuf,
    credentials: OnceCell<Credentials>,
    /// The images that were built without cache for this job.
    forced: Mutex<HashSet<String>>,
    /// The images whose build without cache was started for this job.
    started: Mutex<HashSet<String>>,
    /// The built images below environments, by the environment's reference.
    builds: Mutex<HashMap<String, String>>,
}

/// A Dockerfile with its context, and the hash of both.
pub(super) struct OpenedContext {
    context: BuildContext,
    pub(super) hash: String,
    options: BuildOptions,
    platform: String,
}

/// The bytes of an archive.
#[cfg(feature = "fly")]
pub(crate) type ArchiveContent = futures_util::stream::BoxStream<'static, io::Result<bytes::Bytes>>;

/// What an image gives to the commands in it.
#[cfg(feature = "fly")]
#[derive(Debug, Default)]
pub(crate) struct BuiltConfig {
    /// As `NAME=value`.
    pub(crate) env: Vec<String>,
    pub(crate) workdir: String,
    pub(crate) user: String,
}

/// A tar archive with a Dockerfile.
#[cfg(feature = "fly")]
pub(crate) struct ArchiveBuild<'a> {
    /// Identifies the content.
    pub(crate) key: &'a str,
    pub(crate) content: ArchiveContent,
    pub(crate) platform: &'a str,
    pub(crate) no_cache: bool,
}

/// An image that exists on the engine.
struct Base {
    id: String,
    name: String,
}

impl Images {
    pub(super) fn new(engine: Engine, state_dir: &Path) -> Self {
        let locks = state_dir.join("docker-locks");
        Self {
            engine,
            locks,
            credentials: OnceCell::new(),
            forced: Mutex::default(),
            started: Mutex::default(),
            builds: Mutex::default(),
        }
    }

    /// Prepares the image of a task, and returns its reference.
    pub(super) async fn prepare(
        &self,
        request: ImageRequest<'_>,
        settings: &Settings,
    ) -> Result<String, EnvironmentError> {
        let mut log = BuildLog::new(request.log);
        let base = match &request.docker_image {
            Some(image) if !request.force_build => {
                let fetched = self.fetch(image, settings, &mut log).await;
                fetched.map_err(|error| with_dockerfile(error, request.context))
            }
            _ => self.build(request, settings, &mut log).await,
        };
        log.finish().await;
        let base = base?;
        let reference = self.with_guest(&base, settings, request.origin).await?;
        if base.name.starts_with(BUILDS) {
            let mut builds = self.builds.lock().unwrap_or_else(PoisonError::into_inner);
            builds.insert(reference.clone(), base.name);
        }
        Ok(reference)
    }

    /// Builds an opened context without a guest, and returns its name on the engine.
    #[cfg(feature = "kubernetes")]
    pub(super) async fn build_plain(
        &self,
        request: ImageRequest<'_>,
        settings: &Settings,
        opened: OpenedContext,
        log: &mut BuildLog,
    ) -> Result<String, EnvironmentError> {
        Ok(self.build_opened(request, settings, opened, log).await?.name)
    }

    /// Builds an archive that has its own Dockerfile, unless it was built before, and returns its name on the engine.
    #[cfg(feature = "fly")]
    pub(super) async fn build_archive(
        &self,
        archive: ArchiveBuild<'_>,
        settings: &Settings,
        log: &mut BuildLog,
    ) -> Result<String, EnvironmentError> {
        let tag = format!("{BUILDS}:{}", archive.key);
        let _lock = self.lock(&format!("build-{}", archive.key)).await?;
        if !archive.no_cache && self.find(&tag).await?.is_some() {
            return Ok(tag);
        }
        let order = ImageBuild {
            dockerfile: "Dockerfile".to_owned(),
            archive: archive.content,
            tag: tag.clone(),
            args: Vec::new(),
            target: None,
            platform: archive.platform.to_owned(),
            no_cache: archive.no_cache,
            network: settings.network.clone().filter(|network| network == "host"),
            labels: self.engine.inner.owner.image_labels("build", Origin { job: "", trial: "" }),
            credentials: self.credentials().await.all().await,
        };
        let builder = settings.builder.unwrap_or(self.engine.inner.builder);
        build::build(self.engine.patient_api(), builder, order, log)
            .await
            .map_err(|error| failure::build(&error, &log.tail(), LOG_FILE))?;
        Ok(tag)
    }

    /// The configuration of an image on the engine.
    #[cfg(feature = "fly")]
    pub(super) async fn built_config(&self, name: &str) -> Result<BuiltConfig, EnvironmentError> {
        let config = self.find(name).await?.and_then(|found| found.config).unwrap_or_default();
        Ok(BuiltConfig {
            env: config.env.unwrap_or_default(),
            workdir: config.working_dir.unwrap_or_default(),
            user: config.user.unwrap_or_default(),
        })
    }

    /// The images that were made for an environment: that with the guest, and the one below if it was built.
    pub(super) fn chain(&self, reference: &str) -> Vec<String> {
        let builds = self.builds.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::once(reference.to_owned()).chain(builds.get(reference).cloned()).collect()
    }

    /// Forgets the images of an environment, which were removed. A build without cache is not repeated.
    pub(super) fn forget(&self, reference: &str) {
        self.builds.lock().unwrap_or_else(PoisonError::into_inner).remove(reference);
    }

    /// Finds an image, or pulls it.
    async fn fetch(
        &self,
        image: &str,
        settings: &Settings,
        log: &mut BuildLog,
    ) -> Result<Base, EnvironmentError> {
        let image = names::with_tag(image);
        let facts = self.engine.facts();
        let wanted = settings.platform.clone().unwrap_or_else(|| format!("{}/{}", facts.os, facts.arch));
        let found = self.inspect(&image).await.map_err(|error| failure::pull(&image, &error))?;
        let fits = |found: &ImageInspect| names::same_platform(&platform(found), &wanted);
        if let Some(found) = found.as_ref().filter(|found| fits(found)) {
            return Ok(Base { id: id(found), name: image });
        }
        let pulled = self.pull(&image, settings, log).await;
        let foreign = |found: &ImageInspect| {
            EnvironmentError::NoImage(format!(
                "{image} is for {}, but the requested platform is {wanted}: name an image for that platform, or set \
                 provider_config.platform to the image's",
                platform(found)
            ))
        };
        match (pulled, &found) {
            (Err(EnvironmentError::NoImage(_)), Some(found)) => return Err(foreign(found)),
            (Err(error), _) => return Err(error),
            (Ok(()), _) => {}
        }
        match self.inspect(&image).await.map_err(|error| failure::pull(&image, &error))? {
            Some(found) if fits(&found) => Ok(Base { id: id(&found), name: image }),
            Some(found) => Err(foreign(&found)),
            None => Err(EnvironmentError::Pull(format!("{image} was removed after it was pulled"))),
        }
    }

    async fn pull(
        &self,
        image: &str,
        settings: &Settings,
        log: &mut BuildLog,
    ) -> Result<(), EnvironmentError> {
        log.write(&format!("pulling {image}\n")).await;
        let credentials = self.credentials().await.of_image(image).await;
        let options = CreateImageOptions {
            from_image: Some(image.to_owned()),
            platform: settings.platform.clone().unwrap_or_default(),
            ..CreateImageOptions::default()
        };
        let api = self.engine.patient_api();
        let mut news = std::pin::pin!(api.create_image(Some(options), None, credentials));
        let mut pulls = Pulls::default();
        while let Some(item) = news.next().await {
            match item {
                Ok(info) => log.write(&pulls.news(&info)).await,
                Err(error) => {
                    log.write(&format!("{}\n", failure::words(&error))).await;
                    return Err(failure::pull(image, &error));
                }
            }
        }
        Ok(())
    }

    /// Reads a task's Dockerfile and its context.
    pub(super) async fn open(
        request: ImageRequest<'_>,
        settings: &Settings,
    ) -> Result<OpenedContext, EnvironmentError> {
        let dir = request.context.to_owned();
        let options = request.build.cloned().unwrap_or_default();
        let file = options.dockerfile.clone().unwrap_or_else(|| "Dockerfile".to_owned());
        let dockerfile = dir.join(&file);
        let platform = settings.platform.clone().unwrap_or_default();
        let missing = request.no_dockerfile(&dockerfile);
        let read = blocking(move || {
            let context = match &options.inline {
                Some(text) => BuildContext::open_inline(&dir, text),
                None if !dockerfile.exists() => return Ok(Err(missing)),
                None => BuildContext::open(&dir, &file),
            };
            let context = context.map_err(io::Error::other)?;
            let hash = context.hash(&platform, &options)?;
            Ok(Ok(OpenedContext { context, hash, options, platform }))
        });
        read.await.map_err(|error| {
            EnvironmentError::Build(format!("cannot read the build context: {}", chain(&error)))
        })?
    }

    /// Builds a task's Dockerfile, unless the same content was built before.
    async fn build(
        &self,
        request: ImageRequest<'_>,
        settings: &Settings,
        log: &mut BuildLog,
    ) -> Result<Base, EnvironmentError> {
        let opened = Self::open(request, settings).await?;
        self.build_opened(request, settings, opened, log).await
    }

    async fn build_opened(
        &self,
        request: ImageRequest<'_>,
        settings: &Settings,
        opened: OpenedContext,
        log: &mut BuildLog,
    ) -> Result<Base, EnvironmentError> {
        let OpenedContext { context, hash, options, platform } = opened;
        let tag = format!("{BUILDS}:{hash}");
        let force = request.force_build && !self.was_forced(&tag);
        if !force && let Some(found) = self.find(&tag).await? {
            return Ok(Base { id: id(&found), name: tag });
        }
        let _lock = self.lock(&format!("build-{hash}")).await?;
        let force = request.force_build && !self.was_forced(&tag);
        if !force && let Some(found) = self.find(&tag).await? {
            return Ok(Base { id: id(&found), name: tag });
        }
        let order = ImageBuild {
            dockerfile: context.dockerfile.clone(),
            archive: context.archive().boxed(),
            tag: tag.clone(),
            args: options.args,
            target: options.target,
            platform,
            // After a network failure, the next attempt continues where this one ended.
            no_cache: request.force_build && self.is_first_build(&tag),
            // Also a job that keeps agents off the network has to download what tasks need, so only `host`
            // applies to builds.
            network: settings.network.clone().filter(|network| network == "host"),
            labels: self.engine.inner.owner.image_labels("build", request.origin),
            credentials: self.credentials().await.all().await,
        };
        let builder = settings.builder.unwrap_or(self.engine.inner.builder);
        let built = build::build(self.engine.patient_api(), builder, order, log).await;
        if let Err(error) = built {
            return Err(failure::build(&error, &log.tail(), LOG_FILE));
        }
        let Some(found) = self.find(&tag).await? else {
            // An engine that stops during a build closes the stream as if it were complete.
            return Err(EnvironmentError::Start(
                "the build ended without an image and without an error; the engine may have been stopped"
                    .to_owned(),
            ));
        };
        if request.force_build {
            self.forced.lock().unwrap_or_else(PoisonError::into_inner).insert(tag.clone());
        }
        Ok(Base { id: id(&found), name: tag })
    }

    /// Whether no build of an image without cache was started for this job. Notes that one is.
    fn is_first_build(&self, tag: &str) -> bool {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).insert(tag.to_owned())
    }

    fn was_forced(&self, tag: &str) -> bool {
        self.forced.lock().unwrap_or_else(PoisonError::into_inner).contains(tag)
    }

    /// Adds the guest to an image, once per image and version of the guest.
    async fn with_guest(
        &self,
        base: &Base,
        settings: &Settings,
        origin: Origin<'_>,
    ) -> Result<String, EnvironmentError> {
        // Images of several platforms can have the same identifier.
        let platform = settings.platform.as_deref().unwrap_or_default();
        let mut hasher = Sha256::new();
        hasher.update(base.id.as_bytes());
        hasher.update(Sha256::digest(guest::PROGRAM));
        hasher.update(platform.as_bytes());
        // Images made before lack the labels.
        hasher.update(startup::ENTRYPOINT);
        hasher.update(startup::COMMAND);
        let hash = rollout_core::text::hex(&hasher.finalize())[..32].to_owned();
        let reference = format!("{ENVIRONMENTS}:{hash}");
        if self.find(&reference).await?.is_some() {
            return Ok(reference);
        }
        let _lock = self.lock(&format!("env-{hash}")).await?;
        if self.find(&reference).await?.is_some() {
            return Ok(reference);
        }
        self.add_guest(base, &hash, platform, origin).await.map_err(|error| {
            match failure::start(&error) {
                EnvironmentError::Start(_) if failure::is_missing(&error) => {
                    EnvironmentError::Start(format!("{} was removed during the preparation", base.name))
                }
                error => error,
            }
        })?;
        Ok(reference)
    }

    async fn add_guest(
        &self,
        base: &Base,
        hash: &str,
        platform: &str,
        origin: Origin<'_>,
    ) -> Result<(), Error> {
        let name = names::container("image");
        let config = self.inspect(&base.id).await?.and_then(|found| found.config);
        let config = config.unwrap_or_default();
        let (entrypoint, command) = (config.entrypoint.unwrap_or_default(), config.cmd.unwrap_or_default());
        let body = ContainerCreateBody {
            image: Some(base.id.clone()),
            entrypoint: Some(vec![guest::PROGRAM_PATH.to_owned()]),
            cmd: Some(Vec::new()),
            labels: Some(self.engine.inner.owner.labels(origin)),
            network_disabled: Some(true),
            ..ContainerCreateBody::default()
        };
        let container = self.engine.inner.reaper.create(&name, platform, body).await?;
        upload_guest(&self.engine, &name).await?;
        let mut labels = self.engine.inner.owner.committed_labels("env", origin);
        labels.insert(startup::ENTRYPOINT.to_owned(), startup::label(&entrypoint));
        labels.insert(startup::COMMAND.to_owned(), startup::label(&command));
        let commit = Commit {
            container: &name,
            repository: ENVIRONMENTS,
            tag: hash,
            user: None,
            labels,
            pause: false,
        };
        self.engine.commit(commit).await?;
        container.remove().await
    }

    async fn find(&self, reference: &str) -> Result<Option<ImageInspect>, EnvironmentError> {
        self.inspect(reference)
            .await
            .map_err(|error| EnvironmentError::Start(failure::away("look for an image", &error)))
    }

    pub(super) async fn inspect(&self, reference: &str) -> Result<Option<ImageInspect>, Error> {
        match self.engine.api().inspect_image(reference).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if failure::is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn credentials(&self) -> &Credentials {
        self.credentials.get_or_init(|| Credentials::load(&self.engine.inner.place)).await
    }

    /// Waits until no other process or trial prepares the same image. The lock is released when the file is
    /// closed.
    async fn lock(&self, name: &str) -> Result<std::fs::File, EnvironmentError> {
        let (dir, path) = (self.locks.clone(), self.locks.join(name));
        let opened = blocking(move || {
            std::fs::create_dir_all(&dir)?;
            std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path)
        });
        let failed = |error: io::Error| {
            let place = self.locks.display();
            EnvironmentError::Start(format!("cannot lock a file in {place}: {error}"))
        };
        let file = opened.await.map_err(failed)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_POLL).await,
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }
}

/// Adds that the image could be built instead.
fn with_dockerfile(error: EnvironmentError, context: &Path) -> EnvironmentError {
    let hint = |text: String| {
        format!("{text}. The task also has environment/Dockerfile: `environment.force_build: true` builds it")
    };
    match error {
        error if !context.join("Dockerfile").is_file() => error,
        EnvironmentError::Pull(text) => EnvironmentError::Pull(hint(text)),
        EnvironmentError::NoImage(text) => EnvironmentError::NoImage(hint(text)),
        error => error,
    }
}

fn id(image: &ImageInspect) -> String {
    image.id.clone().unwrap_or_default()
}

fn platform(image: &ImageInspect) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let platform = format!("{}/{}", part(&image.os), part(&image.architecture));
    match part(&image.variant) {
        variant if variant.is_empty() => platform,
        variant => format!("{platform}/{variant}"),
    }
}

/// Writes the guest to a container that has not started.
pub(super) async fn upload_guest(engine: &Engine, container: &str) -> Result<(), Error> {
    let target = UploadToContainerOptions { path: "/".to_owned(), ..UploadToContainerOptions::default() };
    let archive = guest_archive().map_err(|err| Error::IOError { err })?;
    engine.patient_api().upload_to_container(container, Some(target), body_full(archive.into())).await
}

fn guest_archive() -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::with_capacity(guest::PROGRAM.len() + 4096));
    let path = Path::new(guest::PROGRAM_PATH.trim_start_matches('/'));
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(0);
    header.set_entry_type(tar::EntryType::Directory);
    archive.append_data(&mut header, path.parent().unwrap_or(path), io::empty())?;
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(guest::PROGRAM.len() as u64);
    archive.append_data(&mut header, path, guest::PROGRAM)?;
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_pull_says_that_the_task_has_a_dockerfile() {
        let dir = tempfile::tempdir().unwrap();
        let failures = || {
            [
                EnvironmentError::NoImage("x:1 is not available".to_owned()),
                EnvironmentError::Pull("x:1 cannot be pulled".to_owned()),
                EnvironmentError::Start("the engine is away".to_owned()),
            ]
        };
        let shown = |error| with_dockerfile(error, dir.path()).to_string();
        let without: Vec<String> = failures().map(shown).into();
        assert!(without.iter().all(|text| !text.contains("force_build")), "{without:?}");
        std::fs::write(dir.path().join("Dockerfile"), "FROM test\n").unwrap();
        let hint = ". The task also has environment/Dockerfile: `environment.force_build: true` builds it";
        let [absent, pull, start] = failures().map(shown);
        assert_eq!([absent, pull], [format!("{}{hint}", without[0]), format!("{}{hint}", without[1])]);
        assert_eq!(start, without[2], "a build would fail too");
    }
}
