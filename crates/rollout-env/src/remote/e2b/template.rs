//! Templates: what E2B calls images. Their CPUs and memory belong to them.

use std::{
    collections::HashMap,
    io::Write as _,
    path::Path,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use reqwest::{Body, Method};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::time::sleep;
use tokio_util::io::ReaderStream;

use super::{
    super::{CloudError, ImageSource, SandboxSize, desk::patiently},
    api::{Api, unanswered},
    steps::{Recipe, StepFiles, TemplateStep},
};

/// How long to wait for a call of a build that has begun.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long an upload may take.
const UPLOAD: Duration = Duration::from_secs(3600);

/// The first and the longest pause between two questions about a build.
const POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The lines of the log that are part of an error.
const LAST_LINES: usize = 30;

/// The step of the base image, in E2B's words.
const BASE_STEP: &str = "base";

/// Templates that this process builds. Jobs of the same content wait for each other.
static BUILDING: LazyLock<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>> =
    LazyLock::new(Mutex::default);

/// A template that can be used.
pub(super) struct Template {
    pub(super) name: String,
    /// The build, which changes when it is built again.
    pub(super) build: String,
}

#[derive(Deserialize)]
struct Alias {
    #[serde(rename = "templateID")]
    template_id: String,
}

#[derive(Deserialize)]
struct Builds {
    #[serde(default)]
    builds: Vec<Build>,
}

#[derive(Deserialize)]
struct Build {
    #[serde(rename = "buildID")]
    build_id: String,
    status: String,
}

#[derive(Deserialize)]
struct Requested {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
}

#[derive(Deserialize)]
struct Upload {
    present: bool,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    headers: HashMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    status: String,
    #[serde(default)]
    reason: Option<Reason>,
    #[serde(default)]
    log_entries: Vec<LogEntry>,
}

#[derive(Deserialize)]
struct Reason {
    message: String,
    #[serde(default)]
    step: Option<String>,
}

#[derive(Deserialize)]
struct LogEntry {
    message: String,
}

/// Finds the template of a task, or builds it.
pub(super) async fn of_source(
    api: &Api,
    source: &ImageSource,
    size: SandboxSize,
) -> Result<Template, CloudError> {
    let name = format!("rollout-{}", source.key);
    let _turn = turn(&name).await;
    let known = find(api, &name).await?;
    if let Some(Known { ready: Some(build), .. }) = known.as_ref().filter(|_| !source.force) {
        return Ok(Template { name, build: build.clone() });
    }
    let recipe = Recipe::of(source).await?;
    let from = json!({"fromImage": recipe.from});
    let log = Log { path: Some(&source.log), lines: Vec::new() };
    let mut job = BuildJob { api, name: &name, size, is_new: known.is_none(), log };
    let build = job.run(from, &recipe.steps, source.force).await.map_err(|failure| match failure {
        Failure::Call(error) => error,
        Failure::Build { step, text } if step.as_deref() == Some(BASE_STEP) && source.image.is_some() => {
            CloudError::NoImage(format!("{} cannot be used: {text}", recipe.from))
        }
        Failure::Build { step, text } => {
            let at = step
                .and_then(|step| recipe.steps.get(step.parse::<usize>().ok()?.checked_sub(1)?)?.at.clone());
            CloudError::Build(match at {
                Some(at) => format!("{at}: {text}"),
                None => text,
            })
        }
    })?;
    Ok(Template { name, build })
}

/// The template of another size with the same content.
pub(super) async fn sized(api: &Api, base: &Template, size: SandboxSize) -> Result<Template, CloudError> {
    let build: String = base.build.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
    let name =
        format!("{}-{}c-{}m-{}", base.name, size.cpu_millis / 1000, size.memory_mib, build.to_lowercase());
    let _turn = turn(&name).await;
    let known = find(api, &name).await?;
    if let Some(Known { ready: Some(build), .. }) = known {
        return Ok(Template { name, build });
    }
    let log = Log { path: None, lines: Vec::new() };
    let mut job = BuildJob { api, name: &name, size, is_new: known.is_none(), log };
    let built = job.run(json!({"fromTemplate": base.name}), &[], false).await;
    let build = built.map_err(|failure| match failure {
        Failure::Call(error) => error,
        Failure::Build { text, .. } => {
            CloudError::Build(format!("E2B cannot build the template in another size: {text}"))
        }
    })?;
    Ok(Template { name, build })
}

/// Waits until no other job of this process builds the same.
async fn turn(name: &str) -> tokio::sync::OwnedMutexGuard<()> {
    let lock = {
        let mut building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(building.entry(name.to_owned()).or_default())
    };
    lock.lock_owned().await
}

/// A template that exists.
struct Known {
    ready: Option<String>,
}

/// Finds a template, and waits for a build of it that runs.
async fn find(api: &Api, name: &str) -> Result<Option<Known>, CloudError> {
    let id = match api.get::<Alias>(&format!("/templates/aliases/{name}")).await {
        Ok(alias) => alias.template_id,
        Err(CloudError::Missing(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let found: Builds = match api.get(&format!("/templates/{id}")).await {
        Ok(found) => found,
        Err(CloudError::Missing(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    if let Some(build) = found.builds.iter().find(|build| build.status == "ready") {
        return Ok(Some(Known { ready: Some(build.build_id.clone()) }));
    }
    let mut ready = None;
    if let Some(build) = found.builds.into_iter().find(|build| build.status == "building") {
        // Another process builds it. If that fails, it is built again, for the log.
        let mut log = Log { path: None, lines: Vec::new() };
        let waited = wait(api, &id, &build.build_id, &mut log).await;
        ready = waited.is_ok().then_some(build.build_id);
    }
    Ok(Some(Known { ready }))
}

/// Why there is no template.
enum Failure {
    Call(CloudError),
    /// The step that failed, and the end of the output.
    Build {
        step: Option<String>,
        text: String,
    },
}

impl From<CloudError> for Failure {
    fn from(error: CloudError) -> Self {
        Self::Call(error)
    }
}

/// A build.
struct BuildJob<'a> {
    api: &'a Api,
    name: &'a str,
    size: SandboxSize,
    /// Whether there was no template of this name.
    is_new: bool,
    log: Log<'a>,
}

impl BuildJob<'_> {
    /// Builds, and returns the id of the build.
    async fn run(&mut self, mut body: Json, steps: &[TemplateStep], force: bool) -> Result<String, Failure> {
        let wanted = json!({
            "name": self.name,
            "cpuCount": self.size.cpu_millis.div_ceil(1000),
            "memoryMB": self.size.memory_mib,
        });
        let Requested { template_id: id, build_id } = self.api.post("/v3/templates", &wanted, None).await?;
        let mut cancel = CancelBuild { api: self.api, template: self.is_new.then(|| id.clone()) };
        for files in steps.iter().filter_map(|step| step.files.as_ref()) {
            patiently(UPLOAD, || upload(self.api, &id, files)).await?;
        }
        body["steps"] = steps.iter().map(|step| step.json(force)).collect();
        body["force"] = force.into();
        let path = format!("/v2/templates/{id}/builds/{build_id}");
        patiently(PATIENCE, || self.api.tell(Method::POST, &path, Some(&body))).await?;
        let waited = wait(self.api, &id, &build_id, &mut self.log).await;
        // It has ended, one way or the other.
        cancel.template = None;
        waited.map(|()| build_id)
    }
}

/// Stops a build that is not waited for any more, by deleting its template. E2B has no other way.
struct CancelBuild<'a> {
    api: &'a Api,
    template: Option<String>,
}

impl Drop for CancelBuild<'_> {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.template.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        let api = Api::new(self.api.access.clone());
        runtime.spawn(async move {
            let path = format!("/templates/{id}");
            if let Err(error) = api.tell(Method::DELETE, &path, None).await {
                tracing::debug!(%error, template = id, "a template of a stopped build was not deleted");
            }
        });
    }
}

/// Uploads the files of a step, unless E2B has them.
async fn upload(api: &Api, template: &str, files: &StepFiles) -> Result<(), CloudError> {
    let place: Upload = api.get(&format!("/templates/{template}/files/{}", files.hash)).await?;
    let Some(url) = place.url.filter(|_| !place.present) else { return Ok(()) };
    let unreadable =
        |error: std::io::Error| CloudError::Refused(format!("cannot read packed files: {error}"));
    let file = tokio::fs::File::from_std(files.archive.reopen().map_err(unreadable)?);
    let length = file.metadata().await.map_err(unreadable)?.len();
    // The address is signed, so the request has no key.
    let mut request = api.client().put(url).timeout(UPLOAD).header("Content-Length", length);
    for (name, value) in place.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("content-length"))
    {
        request = request.header(name, value);
    }
    let body = Body::wrap_stream(ReaderStream::new(file));
    let answer = request.body(body).send().await.map_err(|error| unanswered(&error.without_url()))?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status if status.is_server_error() => Err(CloudError::Busy {
            text: format!("the upload was answered with {status}"),
            retry_after: None,
        }),
        status => Err(CloudError::Refused(format!("the upload was answered with {status}"))),
    }
}

/// Waits for the end of a build.
async fn wait(api: &Api, template: &str, build: &str, log: &mut Log<'_>) -> Result<(), Failure> {
    let mut pause = POLL.0;
    let mut offset = 0;
    loop {
        let path = format!("/templates/{template}/builds/{build}/status?logsOffset={offset}");
        let status: Status = patiently(PATIENCE, || api.get(&path)).await?;
        offset += status.log_entries.len();
        let has_more = !status.log_entries.is_empty();
        log.add(status.log_entries);
        match status.status.as_str() {
            // The last answer may not have all of the log.
            "ready" | "error" if has_more => continue,
            "ready" => return Ok(()),
            "error" => {
                let Reason { message, step } =
                    status.reason.unwrap_or(Reason { message: "the build failed".to_owned(), step: None });
                let text = match log.end() {
                    end if end.is_empty() => message,
                    end => format!("{message}\n{end}"),
                };
                return Err(Failure::Build { step, text });
            }
            _ => {}
        }
        sleep(pause).await;
        pause = (pause * 2).min(POLL.1);
    }
}

/// The log of a build.
struct Log<'a> {
    path: Option<&'a Path>,
    /// The last lines.
    lines: Vec<String>,
}

impl Log<'_> {
    fn add(&mut self, entries: Vec<LogEntry>) {
        if entries.is_empty() {
            return;
        }
        let lines: Vec<String> =
            entries.into_iter().map(|entry| entry.message.trim_end().to_owned()).collect();
        if let Some(path) = self.path {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let written = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| {
                let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
                file.write_all(text.as_bytes())
            });
            if let Err(error) = written {
                tracing::debug!(%error, "cannot write the log of a build");
            }
        }
        self.lines.extend(lines);
        let more = self.lines.len().saturating_sub(LAST_LINES);
        self.lines.drain(..more);
    }

    fn end(&self) -> String {
        self.lines.join("\n")
    }
}
