//! The services of a compose file, beside the agent's environment.
//!
//! Each service is an environment of its own, with the guest as its first process, which runs the program of the
//! service. So services end with Rollout, however it ends, and commands and files reach them as they reach the agent's
//! environment. All environments are there before the first program starts.

mod files;
mod hosts;
mod program;

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::future::{join_all, try_join_all};
use indexmap::IndexMap;

use self::{
    files::{MountAction, MountPlan},
    program::{Program, ProgramEnd, ProgramSpec},
};
use super::{
    calls::required,
    context::TrialContext,
    failure::Failure,
    healthcheck::{self, ServiceCheck},
    network,
    rented::RentedEnvironment,
};
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{
    CopyMode, Environment, EnvironmentSpec, GroupRequest, ImageHealthcheck, ImageRequest, ImageStartup,
    Origin, PreparedImage, ServiceGroup,
    blocking::blocking,
    compose::{
        ComposeFile, ComposeNetwork, ComposeService, ContainerSettings, DependencyCondition,
        HealthcheckSource, MAIN_SERVICE, ServiceHealthcheck,
    },
    log::create_log_files,
};

/// The network of services that name none.
const DEFAULT_NETWORK: &str = "default";

/// The time that all services may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a program without a health check is watched for an early end.
const EARLY_END: Duration = Duration::from_millis(300);

/// The engine's defaults of health checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
const CHECK_RETRIES: u64 = 3;

/// The services of one environment; none for a task without a compose file.
#[derive(Default)]
pub(super) struct Services {
    compose: Option<Arc<ComposeFile>>,
    group: Option<Box<dyn ServiceGroup>>,
    others: Vec<RunningService>,
    main: ContainerSettings,
    mounts: MountPlan,
    /// Whether the files that services mount are in their environments already.
    is_restored: bool,
    /// Whether `main` is also in networks of another group, where services may have the same names.
    is_joined: bool,
}

/// A service with its environment.
struct RunningService {
    name: String,
    environment: Arc<RentedEnvironment>,
    env: Vec<(String, String)>,
    check: Option<ImageHealthcheck>,
    program: Option<Program>,
    is_healthy: bool,
}

impl RunningService {
    /// Stops its program.
    async fn stop(self) -> Result<RentedEnvironment, String> {
        if let Some(program) = self.program {
            program.stop().await;
        }
        Arc::into_inner(self.environment).ok_or_else(|| format!("the service {} is still in use", self.name))
    }
}

/// Where the environments of services come from.
#[derive(Clone, Copy)]
pub(super) enum ServiceSource<'a> {
    /// Images of services.
    Images(&'a ServiceImages),
    /// Environments that an earlier trial preserved, by service. Processes were not kept, and files are not copied again.
    Preserved(&'a IndexMap<String, String>),
}

/// Variables of a program.
type Variables = [(String, String)];

/// The images of services, by name.
pub(super) type ServiceImages = Vec<(String, PreparedImage)>;

/// Whether services of a file share or keep files in volumes, which are not part of their environments.
pub(super) fn has_volumes(compose: &ComposeFile) -> bool {
    !MountPlan::new(compose).volumes(compose).is_empty()
}

/// Prepares the images of all services but `main`.
pub(super) async fn prepare(
    context: &TrialContext<'_>,
    compose: &ComposeFile,
) -> Result<ServiceImages, Failure> {
    let trial = context.trial;
    let (id, log) = (trial.id.to_string(), trial.dir.build_log());
    let prepared = compose.sidecars().map(async |service| {
        let build = service.build.as_ref();
        let request = ImageRequest {
            origin: Origin { job: &trial.job_name, trial: &id },
            context: build.map_or(context.task.context.as_path(), |build| build.context.as_path()),
            docker_image: service.image.as_deref().filter(|_| build.is_none()),
            build: build.map(|build| &build.options),
            force_build: trial.config.environment.force_build && build.is_some(),
            log: &log,
        };
        let image = trial.provider.prepare(request).await;
        let image = image.map_err(|error| {
            let failure = Failure::environment(Phase::Image, &error);
            failure.about(&format!("the image of the service {}", service.name))
        })?;
        Ok((service.name.clone(), image))
    });
    try_join_all(prepared).await
}

impl Services {
    /// Creates networks, volumes, and the environments of all services but `main`. No program runs yet.
    pub(super) async fn create(
        context: &TrialContext<'_>,
        compose: &Arc<ComposeFile>,
        source: ServiceSource<'_>,
        name: &str,
    ) -> Result<Self, Failure> {
        let failed = |error| Failure::environment(Phase::Start, &error);
        let trial = context.trial;
        let id = trial.id.to_string();
        let origin = Origin { job: &trial.job_name, trial: &id };
        let mounts = MountPlan::new(compose);
        let default = ComposeNetwork { name: DEFAULT_NETWORK.to_owned(), internal: false };
        let mut networks = compose.networks.clone();
        if networks.iter().all(|network| network.name != DEFAULT_NETWORK) {
            networks.push(default);
        }
        let internal = network::is_restricted(context);
        let volumes = mounts.volumes(compose);
        let request = GroupRequest { origin, name, networks: &networks, volumes: &volumes, internal };
        let group = trial.provider.create_group(request).await.map_err(failed)?;
        let main = compose.main().map_or_else(
            || settings(&*group, &main_alone(), &mounts),
            |service| settings(&*group, service, &mounts),
        );
        let created = compose.sidecars().map(async |service| {
            let image = match source {
                ServiceSource::Images(images) => {
                    images.iter().find(|(name, _)| *name == service.name).map(|(_, image)| image.clone())
                }
                // Its settings are those of the preserved container.
                ServiceSource::Preserved(_) => Some(PreparedImage { reference: String::new() }),
            };
            let Some(image) = image else {
                let message = format!("the image of the service {} is missing", service.name);
                return Err(Failure::new(ErrorType::InternalError, message));
            };
            let container = settings(&*group, service, &mounts);
            let name = format!("{name}-{}", service.name);
            let spec = EnvironmentSpec {
                cpus: container.cpu_millis.map(|millis| rollout_core::quantity::Cpus { millis }),
                memory: container.memory_bytes.map(rollout_core::quantity::Bytes),
                workdir: container.working_dir.as_deref(),
                container: Some(&container),
                ..EnvironmentSpec::new(origin, &image, &name)
            };
            let created = match source {
                ServiceSource::Images(_) => context.rent(spec).await,
                ServiceSource::Preserved(places) => {
                    let place = places.get(&service.name).map(String::as_str).unwrap_or_default();
                    context.rent_from(place, spec).await
                }
            };
            let environment = created.map_err(|error| {
                Failure::environment(Phase::Start, &error).about(&format!("the service {}", service.name))
            })?;
            let env = service.environment.iter().map(|(key, value)| (key.clone(), value.value.clone()));
            let check = check(&service.healthcheck, environment.startup().healthcheck);
            Ok(RunningService {
                name: service.name.clone(),
                environment: Arc::new(environment),
                env: env.collect(),
                check,
                program: None,
                is_healthy: false,
            })
        });
        let others = try_join_all(created).await?;
        let is_restored = matches!(source, ServiceSource::Preserved(_));
        Ok(Self {
            compose: Some(Arc::clone(compose)),
            group: Some(group),
            others,
            main,
            mounts,
            is_restored,
            is_joined: false,
        })
    }

    /// The settings of the agent's environment, if there is a compose file.
    pub(super) fn main_settings(&self) -> Option<&ContainerSettings> {
        self.group.as_ref().map(|_| &self.main)
    }

    /// The provider's names of the networks of the agent's environment.
    pub(super) fn main_networks(&self) -> Vec<String> {
        self.main.networks.iter().map(|(network, _)| network.clone()).collect()
    }

    /// Lets the environment of `main`, which is not created yet, also join networks of another group.
    pub(super) fn join(&mut self, networks: &[String]) {
        self.main.networks.extend(networks.iter().map(|network| (network.clone(), Vec::new())));
        self.is_joined |= !networks.is_empty();
    }

    /// The environment of another service, with its variables.
    pub(super) fn service(&self, name: &str) -> Option<(&dyn Environment, &Variables)> {
        let service = self.others.iter().find(|service| service.name == name)?;
        Some((&**service.environment, &service.env))
    }

    /// Copies files, and starts the programs in order. Returns when all are ready.
    pub(super) async fn start(
        &mut self,
        context: &TrialContext<'_>,
        main: &dyn Environment,
        logs: &Path,
    ) -> Result<(), Failure> {
        let Some(compose) = self.compose.clone() else { return Ok(()) };
        self.connect(context, main, &compose).await?;
        if !self.is_restored {
            self.copy_files(main, &compose).await?;
        }
        let started = tokio::time::timeout(START_TIMEOUT, async {
            for service in compose.sidecars() {
                for dependency in &service.depends_on {
                    self.wait_for(context, &dependency.service, dependency.condition).await?;
                }
                self.start_program(context, service, logs).await?;
            }
            for dependency in compose.main().iter().flat_map(|main| &main.depends_on) {
                self.wait_for(context, &dependency.service, dependency.condition).await?;
            }
            let names: Vec<String> = self.others.iter().map(|service| service.name.clone()).collect();
            for name in names {
                self.wait_for(context, &name, DependencyCondition::Healthy).await?;
            }
            self.watch_early_ends(&compose).await
        });
        started.await.unwrap_or_else(|_| {
            let seconds = START_TIMEOUT.as_secs();
            let message =
                format!("the services of docker-compose.yaml were not ready after {seconds} seconds");
            Err(Failure::new(ErrorType::EnvironmentStartFailed, message))
        })
    }

    /// Copies the files of the task that services mount.
    async fn copy_files(&self, main: &dyn Environment, compose: &ComposeFile) -> Result<(), Failure> {
        let others = self.others.iter().map(|service| (service.name.as_str(), &**service.environment));
        for (name, environment) in std::iter::once((MAIN_SERVICE, main)).chain(others) {
            for (source, target) in self.mounts.copies(compose, name) {
                copy(environment, source, target).await?;
            }
        }
        Ok(())
    }

    /// Gives every environment the network outside, and the names of the others.
    async fn connect(
        &self,
        context: &TrialContext<'_>,
        main: &dyn Environment,
        compose: &ComposeFile,
    ) -> Result<(), Failure> {
        let Some(group) = &self.group else { return Ok(()) };
        if group.is_internal() && network::is_public(context) {
            self.set_network(main, true, Phase::Start).await?;
        }
        let all = group.needs_hosts();
        if !all && !self.is_joined {
            return Ok(());
        }
        // Only `main` has other names in reach, and which of its addresses is found here is not known.
        let main_if_all = all.then_some((MAIN_SERVICE, main));
        let mut lines = String::new();
        let others = || self.others.iter().map(|service| (service.name.as_str(), &**service.environment));
        for (name, environment) in others().chain(main_if_all) {
            let Some(address) = required(Phase::Start, environment.address()).await? else { continue };
            let service = compose.services.iter().find(|service| service.name == name);
            let aliases = service.iter().flat_map(|service| &service.networks).flat_map(|(_, names)| names);
            let names: Vec<&str> = std::iter::once(name).chain(aliases.map(String::as_str)).collect();
            lines += &format!("{address}\t{}\n", names.join(" "));
        }
        for (_, environment) in others().filter(|_| all).chain([(MAIN_SERVICE, main)]) {
            hosts::append(environment, &lines).await?;
        }
        Ok(())
    }

    /// Gives the network outside to all environments that have one, or takes it away.
    pub(super) async fn set_network(
        &self,
        main: &dyn Environment,
        connected: bool,
        phase: Phase,
    ) -> Result<(), Failure> {
        let Some(compose) = &self.compose else { return Ok(()) };
        let reaches_outside = |name: &str| {
            let service = compose.services.iter().find(|service| service.name == name);
            service.is_none_or(|service| {
                service.networks.iter().any(|(network, _)| {
                    compose.networks.iter().all(|known| known.name != *network || !known.internal)
                })
            })
        };
        let others = self.others.iter().map(|service| (service.name.as_str(), &**service.environment));
        for (name, environment) in others.chain([(MAIN_SERVICE, main)]) {
            if reaches_outside(name) {
                required(phase, environment.set_network(connected)).await?;
            }
        }
        Ok(())
    }

    async fn start_program(
        &mut self,
        context: &TrialContext<'_>,
        service: &ComposeService,
        logs: &Path,
    ) -> Result<(), Failure> {
        let Some(running) = self.others.iter_mut().find(|running| running.name == service.name) else {
            return Ok(());
        };
        let argv = argv(service, running.environment.startup());
        if argv.is_empty() {
            let message = format!("the service {} has no command, and neither has its image", service.name);
            return Err(Failure::new(ErrorType::EnvironmentStartFailed, message));
        }
        let dir = logs.join(&service.name);
        let output = blocking(move || create_log_files(&dir)).await.map_err(|error| {
            let message = format!("cannot write the output of the service {}: {error}", service.name);
            Failure::new(ErrorType::InternalError, message)
        })?;
        let spec = ProgramSpec { argv, env: running.env.clone(), restart: service.restart };
        let environment = Arc::clone(&running.environment);
        running.program = Some(Program::start(environment, spec, output, &context.trial.redactor));
        Ok(())
    }

    /// Waits until a service is ready.
    async fn wait_for(
        &mut self,
        context: &TrialContext<'_>,
        name: &str,
        condition: DependencyCondition,
    ) -> Result<(), Failure> {
        let Some(service) = self.others.iter_mut().find(|service| service.name == name) else {
            return Ok(());
        };
        let Some(program) = &service.program else { return Ok(()) };
        match (condition, &service.check) {
            (DependencyCondition::Started, _) => Ok(()),
            (DependencyCondition::Completed, _) => match program.wait().await {
                ProgramEnd::Success => Ok(()),
                ProgramEnd::Failure(how) => Err(ended(name, program, &how)),
            },
            (DependencyCondition::Healthy, Some(check)) if !service.is_healthy => {
                let check = ServiceCheck { name, check, env: &service.env };
                let healthy = healthcheck::wait_for_service(context, &**service.environment, check);
                tokio::select! {
                    healthy = healthy => healthy.map_err(|failure| failure.quoting(&program.last_lines()))?,
                    end = program.wait() => match end {
                        ProgramEnd::Failure(how) => return Err(ended(name, program, &how)),
                        // A program may leave others behind, as a daemon does.
                        ProgramEnd::Success => {
                            let healthy = healthcheck::wait_for_service(context, &**service.environment, check);
                            healthy.await.map_err(|failure| failure.quoting(&program.last_lines()))?;
                        }
                    },
                }
                service.is_healthy = true;
                Ok(())
            }
            (DependencyCondition::Healthy, _) => Ok(()),
        }
    }

    /// Fails if a program without a health check ends with an error at once.
    async fn watch_early_ends(&self, compose: &ComposeFile) -> Result<(), Failure> {
        let watched: Vec<(&RunningService, &Program)> =
            self.others.iter().filter_map(|service| Some((service, service.program.as_ref()?))).collect();
        if watched.iter().any(|(service, program)| service.check.is_none() && program.end().is_none()) {
            let ends = watched.iter().map(|(_, program)| Box::pin(program.wait()));
            let _ = tokio::time::timeout(EARLY_END, futures_util::future::select_all(ends)).await;
        }
        for (service, program) in watched {
            let file = compose.services.iter().find(|known| known.name == service.name);
            let is_interactive = file.is_some_and(|file| file.is_interactive);
            if let (Some(ProgramEnd::Failure(how)), false) = (program.end(), is_interactive) {
                return Err(ended(&service.name, program, &how));
            }
        }
        Ok(())
    }

    /// Services whose programs failed, one sentence each.
    pub(super) fn notes(&self) -> Vec<String> {
        let failed = self.others.iter().filter_map(|service| match service.program.as_ref()?.end()? {
            ProgramEnd::Failure(how) => Some(format!("the service {} {how} during the trial", service.name)),
            ProgramEnd::Success => None,
        });
        failed.collect()
    }

    /// Stops all programs, and removes environments, networks and volumes. Returns what could not be removed.
    pub(super) async fn remove(self) -> Vec<String> {
        let removals = self.others.into_iter().map(async |service| {
            let environment = service.stop().await?;
            super::teardown::remove(environment).await
        });
        let ended = join_all(removals).await;
        let mut problems: Vec<String> = ended.into_iter().filter_map(Result::err).collect();
        if let Some(group) = self.group {
            problems.extend(group.remove().await.err().map(|error| error.to_string()));
        }
        problems
    }

    /// Stops all programs, and preserves environments, networks and volumes. Returns the places of the environments by
    /// service, and what could not be preserved.
    pub(super) async fn preserve(self) -> (IndexMap<String, String>, Vec<String>) {
        let kept = self.others.into_iter().map(async |service| {
            let name = service.name.clone();
            let environment = service.stop().await?;
            Ok((name, super::teardown::preserve(environment).await?))
        });
        let (mut places, mut problems) = (IndexMap::new(), Vec::new());
        for kept in join_all(kept).await {
            match kept {
                Ok((name, Some(place))) => _ = places.insert(name, place),
                Ok((_, None)) => {}
                Err(problem) => problems.push(problem),
            }
        }
        if let Some(group) = self.group {
            group.release();
        }
        (places, problems)
    }
}

/// The program of a service, from the file and its image.
pub(super) fn argv(service: &ComposeService, image: ImageStartup) -> Vec<String> {
    let ImageStartup { entrypoint, command, .. } = image;
    // An entrypoint of the file also replaces the command of the image.
    match (&service.entrypoint, &service.command) {
        (Some(entrypoint), own) => entrypoint.iter().chain(own.iter().flatten()).cloned().collect(),
        (None, Some(own)) => entrypoint.iter().chain(own).cloned().collect(),
        (None, None) => entrypoint.into_iter().chain(command).collect(),
    }
}

/// The health check of a service, from the file and its image.
pub(super) fn check(source: &HealthcheckSource, image: Option<ImageHealthcheck>) -> Option<ImageHealthcheck> {
    let ServiceHealthcheck { argv, interval, timeout, start_period, retries } = match source {
        HealthcheckSource::Image => return image,
        HealthcheckSource::Disabled => return None,
        HealthcheckSource::File(check) => check.clone(),
    };
    let image = image.unwrap_or(ImageHealthcheck {
        argv: Vec::new(),
        interval: CHECK_INTERVAL,
        timeout: CHECK_INTERVAL,
        start_period: Duration::ZERO,
        retries: CHECK_RETRIES,
    });
    let check = ImageHealthcheck {
        argv: argv.unwrap_or(image.argv),
        interval: interval.unwrap_or(image.interval),
        timeout: timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(image.timeout),
        start_period: start_period.unwrap_or(image.start_period),
        retries: retries.filter(|retries| *retries > 0).unwrap_or(image.retries),
    };
    Some(check).filter(|check| !check.argv.is_empty())
}

/// The service `main` of a file that does not name it.
fn main_alone() -> ComposeService {
    ComposeService {
        name: MAIN_SERVICE.to_owned(),
        image: None,
        build: None,
        command: None,
        entrypoint: None,
        environment: Vec::new(),
        networks: vec![(DEFAULT_NETWORK.to_owned(), Vec::new())],
        depends_on: Vec::new(),
        healthcheck: HealthcheckSource::Image,
        mounts: Vec::new(),
        restart: rollout_env::compose::RestartPolicy::Never,
        is_interactive: false,
        container: ContainerSettings::default(),
    }
}

/// The settings of a container, with the provider's names of networks and volumes.
fn settings(group: &dyn ServiceGroup, service: &ComposeService, mounts: &MountPlan) -> ContainerSettings {
    let networks = service.networks.iter().map(|(network, aliases)| {
        let names = std::iter::once(&service.name).chain(aliases).cloned().collect();
        (group.full_name(network), names)
    });
    let volumes = service.mounts.iter().filter_map(|mount| match mounts.action(mount) {
        MountAction::Volume(volume) => {
            Some((group.full_name(&volume), mount.target.clone(), mount.read_only))
        }
        MountAction::Copy(_) => None,
    });
    ContainerSettings {
        networks: networks.collect(),
        volumes: volumes.collect(),
        ..service.container.clone()
    }
}

/// Copies files of the task to a service. A missing source is an empty directory, as for an engine.
async fn copy(environment: &dyn Environment, source: &Path, target: &str) -> Result<(), Failure> {
    if source.exists() {
        let mode = if source.is_file() { CopyMode::Replace } else { CopyMode::Merge };
        required(Phase::Start, environment.copy_to(source, target, mode)).await
    } else {
        required(Phase::Start, environment.make_dirs(&[target], false)).await
    }
}

fn ended(name: &str, program: &Program, how: &str) -> Failure {
    let message = format!("the service {name} {how} while it started{}", program.last_lines());
    Failure::new(ErrorType::EnvironmentStartFailed, message)
}
