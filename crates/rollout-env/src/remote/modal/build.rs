//! Builds images at Modal, from the commands of a Dockerfile.

use std::path::Path;

use tokio::io::AsyncWriteExt as _;
use tonic::Status;

use super::{
    super::{CloudError, ImageSource, image::DESCRIPTION},
    client::{Call, Client},
    messages::{
        GenericResult, Image, ImageGetOrCreateRequest, ImageGetOrCreateResponse, ImageJoinStreamingRequest,
        ImageJoinStreamingResponse, ImageRegistryConfig, ResultStatus, SecretGetOrCreateRequest,
        SecretGetOrCreateResponse,
    },
};
use crate::guest::PROGRAM_PATH;

/// How long the server keeps a stream of a build open, in seconds.
const WINDOW: f32 = 55.0;

/// The lost streams of a build that are accepted in a row.
const LOSSES: u32 = 5;

/// The end of the output in an error.
const TAIL: usize = 2000;

/// The kinds of credentials that a secret may have, with their numbers and the variables that make them.
const REGISTRY_KINDS: [(i32, &[&str]); 4] = [
    (1, &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"]),
    (1, &["AWS_ROLE_ARN", "AWS_REGION"]),
    (2, &["SERVICE_ACCOUNT_JSON"]),
    (4, &["REGISTRY_USERNAME", "REGISTRY_PASSWORD"]),
];

/// An image to build.
pub(super) struct Order<'a> {
    pub(super) app_id: &'a str,
    pub(super) builder_version: &'a str,
    pub(super) image: Image,
    pub(super) force: bool,
    /// The file to which the output is added.
    pub(super) log: &'a Path,
    /// Whether nothing is built but an image of a registry.
    pub(super) of_registry: bool,
}

/// Builds an image, or finds it, and returns its id.
pub(super) async fn build(client: &Client, order: Order<'_>) -> Result<String, CloudError> {
    let request = ImageGetOrCreateRequest {
        image: Some(order.image),
        app_id: order.app_id.to_owned(),
        force_build: order.force,
        builder_version: order.builder_version.to_owned(),
    };
    let call = Call::plain("/modal.client.ModalClient/ImageGetOrCreate");
    let answer: ImageGetOrCreateResponse = client.call(&call, request).await?;
    let id = answer.image_id;
    let mut output = String::new();
    let result = match answer.result.filter(is_final) {
        Some(result) => result,
        None => join(client, &id, order.log, &mut output).await?,
    };
    match result.status() {
        ResultStatus::Success => Ok(id),
        _ => Err(build_failure(&id, &result, &output, order.of_registry)),
    }
}

/// The commands that build the image of a task.
pub(super) fn task_commands(source: &ImageSource) -> Vec<String> {
    source.task_dockerfile().split('\n').map(str::to_owned).collect()
}

/// The commands that add the guest to the image `base`, which `dockerfile` describes.
pub(super) fn guest_commands(dockerfile: &str) -> Vec<String> {
    let mut commands = vec!["FROM base".to_owned()];
    let mut describe = vec![PROGRAM_PATH, "describe", DESCRIPTION];
    // A user that does not exist could not run the guest; the trial reports it.
    if let Some(user) = last_user(dockerfile) {
        commands.push("USER 0".to_owned());
        describe.extend(["", user]);
    }
    let quoted: Vec<String> = describe.iter().map(|part| format!("\"{part}\"")).collect();
    commands.extend([
        "COPY .rollout/ /.rollout/".to_owned(),
        format!("RUN [{}]", quoted.join(", ")),
        "USER 0".to_owned(),
        "ENTRYPOINT []".to_owned(),
        "CMD []".to_owned(),
    ]);
    commands
}

/// The user that a Dockerfile names last, if it is a plain name.
fn last_user(dockerfile: &str) -> Option<&str> {
    let words = |line: &'_ str| {
        let (word, rest) = line.trim().split_once(char::is_whitespace)?;
        Some((word.to_ascii_lowercase(), rest.trim().len()))
    };
    let mut user = None;
    for line in dockerfile.lines() {
        let Some((word, length)) = words(line) else { continue };
        let line = line.trim();
        match word.as_str() {
            "from" => user = None,
            "user" => user = Some(&line[line.len() - length..]),
            _ => {}
        }
    }
    let is_plain = |user: &&str| user.chars().all(|c| c.is_ascii_alphanumeric() || "_.:-".contains(c));
    user.filter(is_plain).filter(|user| !user.is_empty())
}

fn is_final(result: &GenericResult) -> bool {
    result.status() != ResultStatus::Unspecified
}

/// Waits for the end of a build.
async fn join(
    client: &Client,
    id: &str,
    log: &Path,
    output: &mut String,
) -> Result<GenericResult, CloudError> {
    let mut last_entry_id = String::new();
    let mut losses = 0;
    loop {
        let request = ImageJoinStreamingRequest {
            image_id: id.to_owned(),
            timeout: WINDOW,
            last_entry_id: last_entry_id.clone(),
        };
        match follow(client, request, &mut last_entry_id, log, output).await {
            Ok(Some(result)) => return Ok(result),
            Ok(None) => losses = 0,
            Err(error @ (CloudError::Unanswered(_) | CloudError::Busy { .. })) if losses < LOSSES => {
                tracing::debug!(%error, image = id, "the output of a build was lost");
                losses += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Follows a build until its end, or until the server closes the stream.
async fn follow(
    client: &Client,
    request: ImageJoinStreamingRequest,
    last_entry_id: &mut String,
    log: &Path,
    output: &mut String,
) -> Result<Option<GenericResult>, CloudError> {
    let path = "/modal.client.ModalClient/ImageJoinStreaming";
    let lost = |status: Status| client.failure(path, &status);
    let mut stream = client.stream(path, request).await?;
    let mut result = None;
    // More output may follow the result.
    while let Some(ImageJoinStreamingResponse { result: end, task_logs, entry_id }) =
        stream.message().await.map_err(lost)?
    {
        if !entry_id.is_empty() {
            *last_entry_id = entry_id;
        }
        let text: String = task_logs.into_iter().map(|part| part.data).collect();
        write_log(log, &text).await;
        output.push_str(&text);
        keep_tail(output);
        result = end.filter(is_final).or(result);
    }
    Ok(result)
}

/// Adds a text to the log of a build.
pub(super) async fn write_log(log: &Path, text: &str) {
    if text.is_empty() {
        return;
    }
    let write = async {
        if let Some(dir) = log.parent() {
            tokio::fs::create_dir_all(dir).await?;
        }
        let mut file = tokio::fs::OpenOptions::new().create(true).append(true).open(log).await?;
        file.write_all(text.as_bytes()).await?;
        file.flush().await
    };
    if let Err(error) = write.await {
        tracing::warn!(path = %log.display(), %error, "cannot write the log of a build");
    }
}

/// Keeps the end of a text that grows.
fn keep_tail(text: &mut String) {
    if text.len() > 2 * TAIL {
        let mut start = text.len() - TAIL;
        while !text.is_char_boundary(start) {
            start += 1;
        }
        text.drain(..start);
    }
}

/// What a build that failed means. `of_registry`: only the image that a task names was built upon.
fn build_failure(id: &str, result: &GenericResult, output: &str, of_registry: bool) -> CloudError {
    let mut text = format!("{}\n{}", output.trim_end(), result.exception);
    text = text.trim().to_owned();
    if text.is_empty() {
        text = format!("Modal gives no reason; see `modal image logs {id}`");
    }
    match result.status() {
        ResultStatus::Terminated | ResultStatus::InternalFailure => {
            CloudError::Busy { text: format!("the build was ended by Modal: {text}"), retry_after: None }
        }
        ResultStatus::Timeout => {
            CloudError::Build(format!("the build took longer than Modal allows: {text}"))
        }
        _ if of_registry && is_missing(&text) => CloudError::NoImage(text),
        _ => CloudError::Build(text),
    }
}

/// Whether an output is that of a registry that does not have an image.
fn is_missing(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["manifest unknown", "name unknown", "not found", "pull access denied", "unauthorized", "does not exist"]
        .iter()
        .any(|words| text.contains(words))
}

/// Finds the secret with which base images are pulled.
pub(super) async fn registry(
    client: &Client,
    name: &str,
    environment: &str,
    source: &ImageSource,
) -> Result<ImageRegistryConfig, CloudError> {
    if stages(source.task_dockerfile()) > 1 {
        let text = "Modal uses `registry_secret` only for Dockerfiles with a single FROM";
        return Err(CloudError::Refused(text.to_owned()));
    }
    let request = SecretGetOrCreateRequest {
        deployment_name: name.to_owned(),
        environment_name: environment.to_owned(),
    };
    let call = Call::plain("/modal.client.ModalClient/SecretGetOrCreate");
    let found: Result<SecretGetOrCreateResponse, CloudError> = client.call(&call, request).await;
    let secret = found.map_err(|error| match error {
        CloudError::Missing(_) => {
            CloudError::Refused(format!("the account has no secret `{name}`, which `registry_secret` names"))
        }
        error => error,
    })?;
    let keys = secret.metadata.unwrap_or_default().keys;
    let kind = registry_kind(&keys).ok_or_else(|| {
        CloudError::Refused(format!(
            "the secret `{name}` needs REGISTRY_USERNAME and REGISTRY_PASSWORD, or the keys of one cloud"
        ))
    })?;
    Ok(ImageRegistryConfig { registry_auth_type: kind, secret_id: secret.secret_id })
}

/// The kind of credentials that a secret has; `None` if it is not one.
fn registry_kind(keys: &[String]) -> Option<i32> {
    let has = |name: &&str| keys.iter().any(|key| key == name);
    let mut kinds: Vec<i32> =
        REGISTRY_KINDS.iter().filter(|(_, names)| names.iter().all(has)).map(|(kind, _)| *kind).collect();
    kinds.dedup();
    match kinds.as_slice() {
        [kind] => Some(*kind),
        _ => None,
    }
}

/// The number of stages, as far as the starts of lines show it.
fn stages(dockerfile: &str) -> usize {
    let is_from = |line: &&str| {
        line.trim_start().get(..5).is_some_and(|word| word.trim_end().eq_ignore_ascii_case("from"))
    };
    dockerfile.lines().filter(is_from).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_one_kind_of_credentials() {
        let kind =
            |keys: &[&str]| registry_kind(&keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>());
        assert_eq!(kind(&["REGISTRY_USERNAME", "REGISTRY_PASSWORD", "OTHER"]), Some(4));
        assert_eq!(kind(&["SERVICE_ACCOUNT_JSON"]), Some(2));
        let aws = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ROLE_ARN"];
        assert_eq!(kind(&aws), Some(1));
        assert_eq!(kind(&["REGISTRY_USERNAME"]), None);
        assert_eq!(kind(&["SERVICE_ACCOUNT_JSON", "REGISTRY_USERNAME", "REGISTRY_PASSWORD"]), None);
    }

    #[test]
    fn the_guest_is_added_as_root_and_describes_the_user_of_the_image() {
        let run = |dockerfile: &str| guest_commands(dockerfile).join("\n");
        assert_eq!(
            run("FROM a\nUSER some\nFROM b\nRUN user x\n"),
            "FROM base\nCOPY .rollout/ /.rollout/\n\
             RUN [\"/.rollout/guest\", \"describe\", \"/.rollout/image/description.json\"]\n\
             USER 0\nENTRYPOINT []\nCMD []"
        );
        let named = run("FROM a\n user  1000:some \n");
        assert!(named.contains("USER 0\nCOPY") && named.contains(r#", "", "1000:some"]"#), "{named}");
        assert_eq!(last_user("FROM a\nUSER $NAME\n"), None);
    }

    #[test]
    fn stages_are_counted() {
        assert_eq!(stages("# from x\nFROM a\nRUN echo from\n"), 1);
        assert_eq!(stages("FROM a AS b\n  from\tc\n"), 2);
        assert_eq!(stages("fromage\n"), 0);
    }

    #[test]
    fn the_reason_of_a_failure_decides_what_happens_next() {
        let of = |status: ResultStatus, exception: &str, of_registry| {
            let result =
                GenericResult { status: status.into(), exception: exception.to_owned(), exitcode: 0 };
            format!("{:?}", build_failure("im-1", &result, "step 1\n", of_registry))
        };
        assert!(of(ResultStatus::Terminated, "", true).starts_with("Busy"));
        assert!(of(ResultStatus::Failure, "manifest unknown", true).starts_with("NoImage"));
        assert!(of(ResultStatus::Failure, "sh: foo: not found", false).starts_with("Build"));
        assert_eq!(of(ResultStatus::Failure, "exit 1", false), r#"Build("step 1\nexit 1")"#);
    }

    #[test]
    fn the_end_of_a_long_output_is_kept() {
        let mut text = "é".repeat(3 * TAIL);
        keep_tail(&mut text);
        assert!(text.len() <= TAIL && text.len() > TAIL - 2);
    }
}
