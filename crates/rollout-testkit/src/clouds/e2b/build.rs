//! Templates, and builds of their steps in native sandboxes.

use std::{
    io,
    path::Path,
    sync::{Arc, PoisonError},
};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use super::{E2bState, Inner};
use crate::clouds::{
    machine::BuildFailure,
    server::{Answer, bytes_answer, json_answer},
};

/// The most lines of a log in one answer.
const LOG_PAGE: usize = 100;

/// A template.
pub(super) struct Template {
    pub(super) id: String,
    name: String,
    builds: Vec<Build>,
}

/// A build of a template.
pub(super) struct Build {
    pub(super) id: String,
    pub(super) cpus: u64,
    pub(super) memory_mib: u64,
    status: Status,
    log: Vec<String>,
    task: Option<AbortHandle>,
}

/// The state of a build.
pub(super) enum Status {
    Waiting,
    Building,
    Ready,
    Failed { message: String, step: String },
}

impl Template {
    /// The last build that succeeded.
    pub(super) fn ready(&self) -> Option<&Build> {
        self.builds.iter().rev().find(|build| matches!(build.status, Status::Ready))
    }

    /// The CPUs and the memory in MiB of its sandboxes.
    pub(super) fn size(&self) -> Option<(u64, u64)> {
        self.ready().map(|build| (build.cpus, build.memory_mib))
    }

    /// The template with its builds, the newest first.
    pub(super) fn json(&self) -> Value {
        let build = |build: &Build| json!({"buildID": build.id, "status": build.status.word()});
        json!({
            "templateID": self.id,
            "public": false,
            "aliases": [self.name],
            "names": [self.name],
            "builds": self.builds.iter().rev().map(build).collect::<Vec<_>>(),
        })
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Inner {
    /// Finds a template by its id or name.
    pub(super) fn template(&self, name: &str) -> Option<&Template> {
        self.templates.get(name).or_else(|| self.templates.values().find(|template| template.name == name))
    }

    /// Removes a template, which stops its builds.
    pub(super) fn remove_template(&mut self, name: &str) -> bool {
        let id = self.template(name).map(|template| template.id.clone());
        id.and_then(|id| self.templates.remove(&id)).is_some()
    }

    fn build(&mut self, template: &str, build: &str) -> Option<&mut Build> {
        self.templates.get_mut(template)?.builds.iter_mut().find(|found| found.id == build)
    }
}

/// Makes a template, or a new build of one.
pub(super) fn request(state: &E2bState, body: &Value) -> Answer {
    let name = body["name"].as_str().unwrap_or_default().to_owned();
    let build = Build {
        id: state.id("b"),
        cpus: body["cpuCount"].as_u64().unwrap_or(2),
        memory_mib: body["memoryMB"].as_u64().unwrap_or(1024),
        status: Status::Waiting,
        log: Vec::new(),
        task: None,
    };
    let mut inner = state.lock();
    let known = inner.template(&name).map(|template| template.id.clone());
    let id = known.unwrap_or_else(|| state.id("t"));
    let answer = json!({
        "templateID": id, "buildID": build.id, "public": false, "names": [name], "aliases": [name], "tags": [],
    });
    let template = Template { id: id.clone(), name, builds: Vec::new() };
    inner.templates.entry(id).or_insert(template).builds.push(build);
    json_answer(202, &answer)
}

/// Starts a build.
pub(super) fn start(state: &Arc<E2bState>, template: &str, build: &str, body: Value) -> Answer {
    let mut inner = state.lock();
    let Some(found) = inner.build(template, build) else {
        return json_answer(404, &json!({"code": 404, "message": "Build not found"}));
    };
    // A repeated request starts nothing.
    if matches!(found.status, Status::Waiting) {
        found.status = Status::Building;
        let (of, id) = (template.to_owned(), build.to_owned());
        let task = tokio::spawn(run(Arc::clone(state), of, id, body));
        found.task = Some(task.abort_handle());
    }
    bytes_answer(202, "text/plain", "")
}

/// The state of a build, with a part of its log.
pub(super) fn status(state: &E2bState, template: &str, build: &str, offset: usize) -> Option<Value> {
    let mut inner = state.lock();
    let found = inner.build(template, build)?;
    let entry = |line: &String| json!({"timestamp": "2026-11-01T00:00:00Z", "message": line, "level": "info", "step": "1"});
    let mut status = json!({
        "templateID": template,
        "buildID": build,
        "status": found.status.word(),
        "logs": [],
        "logEntries": found.log.iter().skip(offset).take(LOG_PAGE).map(entry).collect::<Vec<_>>(),
    });
    if let Status::Failed { message, step } = &found.status {
        status["reason"] = json!({"message": message, "step": step, "logEntries": []});
    }
    Some(status)
}

async fn run(state: Arc<E2bState>, template: String, build: String, body: Value) {
    let built = steps(&state, &build, &body).await;
    let mut inner = state.lock();
    let Some(found) = inner.build(&template, &build) else { return };
    let (log, status) = match built {
        Ok(log) => (log, Status::Ready),
        Err((failure, step)) => (failure.log, Status::Failed { message: failure.message, step }),
    };
    found.log = log.lines().map(str::to_owned).collect();
    found.status = status;
    // It has ended.
    found.task = None;
}

/// Builds, and returns the log, or the failure with its step.
async fn steps(state: &E2bState, build: &str, body: &Value) -> Result<String, (BuildFailure, String)> {
    let base = |message: String| (BuildFailure { log: String::new(), message }, "base".to_owned());
    if let Some(name) = body["fromTemplate"].as_str() {
        let image = state.lock().template(name).and_then(Template::ready).map(|build| build.id.clone());
        let image = image.and_then(|build| state.host.image(&build));
        state.host.add_image(build, image.ok_or_else(|| base(format!("template '{name}' not found")))?);
        return Ok(String::new());
    }
    let scratch = state.host.scratch().map_err(|error| base(error.to_string()))?;
    let context = scratch.path().join("context");
    std::fs::create_dir(&context).map_err(|error| base(error.to_string()))?;
    let mut lines = vec![format!("FROM {}", body["fromImage"].as_str().unwrap_or("e2bdev/base"))];
    // The step of each line of the Dockerfile.
    let mut numbers = vec!["base".to_owned()];
    if body["force"] == true {
        // A step of its own, which is in no cache.
        lines.push(format!("RUN {}", json!(["/bin/bash", "-c", format!(": {build}")])));
        numbers.push("base".to_owned());
    }
    let mut user = "root".to_owned();
    for (number, step) in body["steps"].as_array().into_iter().flatten().enumerate() {
        let number = (number + 1).to_string();
        let written = instruction(state, &context, step, &mut user);
        let written =
            written.map_err(|message| (BuildFailure { log: String::new(), message }, number.clone()))?;
        for line in written {
            lines.push(line);
            numbers.push(number.clone());
        }
    }
    let written = std::fs::write(context.join("Dockerfile"), lines.join("\n") + "\n");
    written.map_err(|error| base(error.to_string()))?;
    state.host.build(build, &context).await.map_err(|failure| {
        let line = failure.message.split_once("line ").and_then(|(_, rest)| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<usize>().ok()
        });
        let step = line.and_then(|line| numbers.get(line.checked_sub(1)?)).cloned();
        (failure, step.unwrap_or_else(|| "base".to_owned()))
    })
}

/// A step as instructions of a Dockerfile.
fn instruction(
    state: &E2bState,
    context: &Path,
    step: &Value,
    user: &mut String,
) -> Result<Vec<String>, String> {
    let args: Vec<&str> = step["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let list = |words: &[&str]| json!(words).to_string();
    Ok(match (step["type"].as_str().unwrap_or_default(), &args[..]) {
        ("RUN", [command, rest @ ..]) => vec![
            format!("USER {}", rest.first().copied().unwrap_or(user)),
            format!("RUN {}", list(&["/bin/bash", "-l", "-c", command])),
            format!("USER {user}"),
        ],
        ("COPY", [source, target, rest @ ..]) => {
            let hash = step["filesHash"].as_str().ok_or("COPY requires files hash to be set")?;
            let archive = state.lock().files.get(hash).cloned().ok_or("the files were not uploaded")?;
            unpack(archive, &context.join(hash))
                .map_err(|error| format!("failed to extract files: {error}"))?;
            let owner = rest.first().filter(|owner| !owner.is_empty()).copied().unwrap_or(user);
            let mode = rest.get(1).filter(|mode| !mode.is_empty());
            let mode = mode.map(|mode| format!(" --chmod={mode}")).unwrap_or_default();
            vec![format!("COPY --chown={owner}{mode} {}", list(&[&format!("{hash}/{source}"), target]))]
        }
        ("ENV", pairs) => {
            let pairs = pairs.chunks_exact(2);
            pairs.map(|pair| format!("ENV {}={}", pair[0], json!(pair[1]))).collect()
        }
        ("WORKDIR", [path, ..]) => vec![format!("WORKDIR {path}")],
        ("USER", [name, ..]) => {
            (*name).clone_into(user);
            vec![format!("USER {name}")]
        }
        (kind, _) => return Err(format!("unknown step {kind}")),
    })
}

fn unpack(archive: Bytes, target: &Path) -> io::Result<()> {
    if target.exists() {
        return Ok(());
    }
    std::fs::create_dir(target)?;
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&archive[..]));
    archive.set_preserve_permissions(true);
    archive.unpack(target)
}

/// Unlocks a mutex whatever happened to its last owner.
pub(super) fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
