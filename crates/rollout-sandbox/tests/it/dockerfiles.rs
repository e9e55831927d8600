//! Builds the same Dockerfiles with Docker's two builders and with this engine, and compares the images: files, modes,
//! owners, links, attributes, configuration.
//!
//! The cases are in `dockerfiles/*.txt`. Each has a name, a script that makes the context, and a Dockerfile. `builders:`
//! names Docker's builders that understand it, where not both do or where the older one differs; with `none`, the files
//! are written out.

mod case;
mod docker;
mod tree;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use rollout_sandbox::{
    Image, ImageConfig, Network, SandboxEngine, SandboxLimits,
    build::{BaseImageError, BaseImages, BuildRequest, LogSink, build},
    oci::{ImageSource, RegistryImages, RegistryOptions},
};
use serde_json::{Value, json};

use self::{
    case::{Builder, Case},
    docker::Docker,
    tree::Tree,
};
use crate::common::engine;

/// Cases that are built at the same time.
const WORKERS: usize = 3;

/// The image that most cases are based on.
const BASE: &str = r"FROM busybox
RUN busybox mkdir -p /etc /tmp /root /home/app /srv/real /srv/tree/deep /bin && busybox --install -s /bin
RUN chmod 1777 /tmp && printf 'root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001:app:/home/app:/bin/sh\n' > /etc/passwd
RUN printf 'root:x:0:\napp:x:1001:\nstaff:x:50:app\n' > /etc/group && chown 1000:1001 /home/app
RUN echo old > /srv/real/file && chmod 750 /srv/real && chown 5:6 /srv/real && ln -s real /srv/link
RUN echo deep > /srv/tree/deep/file
ADD capable.tar /srv/
";

#[tokio::test(flavor = "multi_thread")]
async fn stages_are_built_as_docker_builds_them() {
    compare("stages", include_str!("dockerfiles/stages.txt")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_as_docker_runs_them() {
    compare("run", include_str!("dockerfiles/run.txt")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_copied_as_docker_copies_them() {
    compare("copy", include_str!("dockerfiles/copy.txt")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_added_as_docker_adds_them() {
    compare("add", include_str!("dockerfiles/add.txt")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_configured_as_docker_configures_them() {
    compare("config", include_str!("dockerfiles/config.txt")).await;
}

/// The images of the cases.
struct Images {
    store: RegistryImages,
    base: Image,
}

impl BaseImages for Images {
    async fn resolve(&self, reference: &str) -> Result<Image, BaseImageError> {
        match reference {
            "scratch" => Ok(self.store.scratch().await?),
            "base" => Ok(self.base.clone()),
            other => Err(BaseImageError::Unmapped { reference: other.to_owned() }),
        }
    }
}

/// Everything that cases share.
struct Comparison {
    dir: PathBuf,
    docker: Docker,
    engine: SandboxEngine,
    images: Images,
    base: Tree,
}

async fn compare(theme: &str, text: &str) {
    let place = tempfile::tempdir().unwrap();
    let docker = Docker::new(place.path(), theme);
    let port = docker::serve_files();
    let base = place.path().join("base");
    fs::create_dir(&base).unwrap();
    fs::write(base.join("Dockerfile"), BASE).unwrap();
    fs::write(base.join("capable.tar"), tree::archive_with_capabilities()).unwrap();
    let archive = docker.save_base(&base);
    let engine = engine(&place.path().join("state")).await;
    let store = RegistryImages::new(engine.clone(), RegistryOptions::default());
    let base = store.import(&ImageSource::Archive(archive)).await.unwrap();
    let comparison = Arc::new(Comparison {
        dir: place.path().join("cases"),
        base: Tree::of_docker(&docker.export(&docker.base)),
        docker,
        engine,
        images: Images { store, base },
    });
    let cases = Arc::new(Mutex::new(case::parse(text, port)));
    let problems = Arc::new(Mutex::new(Vec::new()));
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (comparison, cases, problems) = (comparison.clone(), cases.clone(), problems.clone());
            let runtime = tokio::runtime::Handle::current();
            tokio::task::spawn_blocking(move || {
                loop {
                    let Some((number, case)) = cases.lock().unwrap().pop() else { break };
                    let found = comparison.differences(&case, number, &runtime);
                    let name = &case.name;
                    problems
                        .lock()
                        .unwrap()
                        .extend(found.into_iter().map(|found| format!("{name}: {found}")));
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    let problems = problems.lock().unwrap();
    assert!(problems.is_empty(), "{} differences\n{}", problems.len(), problems.join("\n"));
}

impl Comparison {
    fn differences(&self, case: &Case, number: usize, runtime: &tokio::runtime::Handle) -> Vec<String> {
        let context = self.dir.join(number.to_string());
        case.write(&context);
        let native = match runtime.block_on(self.build(&context)) {
            Ok(image) => image,
            Err(error) => return vec![error],
        };
        let config = config(native.config());
        let files = tree::of_image(&native, &context.with_extension("mount"));
        if let Some(expected) = &case.expected {
            return tree::written_out(&files, &self.base, expected);
        }
        let mut problems = Vec::new();
        let mut newest: Option<(Tree, Value)> = None;
        // The newer builder first: it decides where the two differ.
        for builder in [Builder::BuildKit, Builder::Classic] {
            if !case.builders.contains(&builder) {
                continue;
            }
            let tag = match self.docker.build(&context, builder, number) {
                Ok(tag) => tag,
                Err(error) => {
                    problems.push(format!("{builder:?} fails: {error}"));
                    continue;
                }
            };
            let theirs = (Tree::of_docker(&self.docker.export(&tag)), self.docker.config(&tag));
            self.docker.remove(&tag);
            match &newest {
                None => {
                    let volumes = &native.config().volumes;
                    problems.extend(files.differences(&theirs.0, volumes, "native", &format!("{builder:?}")));
                    problems.extend(config_differences(&config, &theirs.1, &format!("{builder:?}")));
                    newest = Some(theirs);
                }
                Some((tree, config)) => {
                    let found = tree.differences(&theirs.0, &Default::default(), "BuildKit", "Classic");
                    problems.extend(found);
                    problems.extend(config_differences(config, &theirs.1, "Classic"));
                }
            }
        }
        problems
    }

    async fn build(&self, context: &Path) -> Result<Image, String> {
        let log = context.with_extension("log");
        let request = BuildRequest {
            context,
            dockerfile: &context.join("Dockerfile"),
            no_cache: None,
            network: Network::Host,
            limits: SandboxLimits::default(),
            log: LogSink::append(&log).unwrap(),
        };
        let built = build(&self.engine, request, &self.images).await;
        built.map(|built| built.image).map_err(|error| {
            let mut text = format!("native fails: {error}");
            let mut cause = std::error::Error::source(&error);
            while let Some(next) = cause {
                text = format!("{text}: {next}");
                cause = next.source();
            }
            text
        })
    }
}

/// A configuration in the form of Docker's.
fn config(config: &ImageConfig) -> Value {
    let set = |names: &std::collections::BTreeSet<String>| -> BTreeMap<String, Value> {
        names.iter().map(|name| (name.clone(), json!({}))).collect()
    };
    docker::normalised(json!({
        "Env": config.env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
        "User": config.user,
        "WorkingDir": config.workdir,
        "Entrypoint": config.entrypoint,
        "Cmd": config.cmd,
        "Labels": config.labels,
        "ExposedPorts": set(&config.exposed_ports),
        "Volumes": set(&config.volumes),
        "Healthcheck": config.healthcheck,
        "StopSignal": config.stop_signal,
        "OnBuild": config.on_build,
        "Shell": config.shell,
    }))
}

fn config_differences(ours: &Value, theirs: &Value, whose: &str) -> Vec<String> {
    let keys = docker::KEYS.iter().filter(|key| ours[**key] != theirs[**key]);
    keys.map(|key| format!("{key} is {} instead of {whose}'s {}", ours[*key], theirs[*key])).collect()
}
