//! Classifies an engine's errors: the kind of an [`EnvironmentError`], and advice for the user.

use bollard::errors::Error;

use crate::{environment::EnvironmentError, trouble::is_network_trouble};

/// Messages of engines when a registry cannot be reached or sends an invalid answer.
const REGISTRY_TROUBLE: [&str; 18] = [
    "dial tcp",
    "i/o timeout",
    "no such host",
    "server misbehaving",
    "connection refused",
    "connection reset",
    "network is unreachable",
    "no route to host",
    "TLS handshake timeout",
    "Client.Timeout exceeded",
    "context deadline exceeded",
    "unexpected EOF",
    ": EOF",
    "500 Internal Server Error",
    "502 Bad Gateway",
    "503 Service Unavailable",
    "504 Gateway",
    "toomanyrequests",
];

/// Messages of engines when they, or their components, are stopping or starting.
const ENGINE_TROUBLE: [&str; 7] = [
    "context canceled",
    "transport is closing",
    "client connection is closing",
    "code = Unavailable",
    "containerd.sock",
    "daemon is shutting down",
    "server closed",
];

/// The number of output lines that an error quotes.
const QUOTED_LINES: usize = 10;

/// The engine's own message, without that of the client library.
pub(super) fn words(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        Error::DockerStreamError { error } => error.trim().to_owned(),
        Error::RequestTimeoutError => "it did not answer in time".to_owned(),
        error => {
            // The outer errors of the client only say that there was an error; the innermost one contains the
            // cause.
            let mut cause: &dyn std::error::Error = error;
            while let Some(deeper) = cause.source() {
                cause = deeper;
            }
            cause.to_string()
        }
    }
}

fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// Whether the requested object does not exist.
pub(super) fn is_missing(error: &Error) -> bool {
    status(error) == Some(404)
}

/// Whether the answer has a value that is not in the engine's API. While a container ends, Podman reports the state
/// `stopped`, which Docker does not have.
pub(super) fn is_unreadable(error: &Error) -> bool {
    matches!(error, Error::JsonDataError { .. } | Error::JsonSerdeError { .. })
}

/// Whether the request conflicts with something, such as a container that uses an image.
pub(super) fn is_conflict(error: &Error) -> bool {
    status(error) == Some(409)
}

/// Whether the container is already being removed.
pub(super) fn is_in_removal(error: &Error) -> bool {
    status(error) == Some(409) && words(error).contains("already in progress")
}

/// Whether the engine, or a component of it, does not answer.
pub(super) fn is_engine_away(error: &Error) -> bool {
    match error {
        Error::DockerResponseServerError { .. } | Error::DockerStreamError { .. } => {
            let words = words(error);
            ENGINE_TROUBLE.iter().any(|trouble| words.contains(trouble))
        }
        _ => true,
    }
}

/// The message for an engine that does not answer.
pub(super) fn away(what: &str, error: &Error) -> String {
    format!("the engine did not answer the request to {what}: {}", words(error))
}

fn is_disk_full(words: &str) -> bool {
    words.contains("no space left on device") || words.contains("disk quota exceeded")
}

const DISK_FULL: &str = "the engine's disk is full; `docker system df` shows what uses the space, `rollout clean --images` removes the images made by Rollout, and `rollout clean --cache` its build cache; in a job, `provider_config.prune_build_cache_after_sec` limits the build cache";

/// The prefixes of BuildKit's messages.
const PREAMBLES: [&str; 4] = [
    "failed to solve with frontend dockerfile.v0: ",
    "failed to create LLB definition: ",
    "failed to solve: ",
    "failed to compute cache key: ",
];

/// The error for a failed build. `output` is the end of its log, `file` the path of the whole log.
pub(super) fn build(error: &Error, output: &str, file: &str) -> EnvironmentError {
    let mut words = words(error);
    let copies_nothing = words.contains("failed to compute cache key") && words.ends_with("not found");
    for preamble in PREAMBLES {
        words = words.strip_prefix(preamble).unwrap_or(&words).to_owned();
    }
    let lines: Vec<&str> = output.lines().collect();
    let last = lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n");
    let quoted = if last.is_empty() { last } else { format!("\nlast lines of {file}:\n{last}") };
    if is_failed_run(&words) {
        // The output explains more than the command, so it is first: many displays show only one line.
        let text = match last_output(output) {
            Some(line) => format!("{line}\n{words}{quoted}"),
            None => format!("{words}{quoted}"),
        };
        return if is_network_trouble(output) {
            EnvironmentError::BuildNetwork(text)
        } else if is_disk_full(output) {
            EnvironmentError::Build(format!("{DISK_FULL}: {text}"))
        } else {
            EnvironmentError::Build(text)
        };
    }
    if is_engine_away(error) {
        return EnvironmentError::Start(away("build the image", error));
    }
    if is_disk_full(&words) {
        return EnvironmentError::Build(format!("{DISK_FULL}: {words}"));
    }
    if copies_nothing {
        return EnvironmentError::Build(format!(
            "{words}; COPY and ADD can only use files in environment/ that .dockerignore does not exclude{quoted}"
        ));
    }
    if REGISTRY_TROUBLE.iter().any(|trouble| words.contains(trouble)) {
        return EnvironmentError::BuildNetwork(format!(
            "{} cannot be fetched: {words}",
            image(&words, output)
        ));
    }
    if is_refused_image(&words) {
        let image = image(&words, output);
        let copies = output.contains("--from=") || image.ends_with("COPY --from");
        let place = if copies { "FROM and COPY --from" } else { "FROM" };
        return EnvironmentError::Build(format!(
            "{image} is not available: {words}. Check its name in {place}; `docker login` gives access to private images"
        ));
    }
    EnvironmentError::Build(format!("{words}{quoted}"))
}

/// The last line that a command of the Dockerfile printed, from the end of the log.
fn last_output(log: &str) -> Option<&str> {
    const OF_BUILDERS: [&str; 9] = [
        "ERROR: ",
        "DONE",
        "CACHED",
        "WARN: ",
        "[",
        "Step ",
        "--->",
        "Removing intermediate container",
        "STEP ",
    ];
    log.lines().rev().find_map(|line| {
        let line = line.trim();
        let is_number =
            |word: &str| word.strip_prefix('#').is_some_and(|number| number.parse::<u32>().is_ok());
        let line = match line.split_once(' ') {
            Some((word, rest)) if is_number(word) => rest.trim(),
            _ => line,
        };
        (!line.is_empty() && !OF_BUILDERS.iter().any(|start| line.starts_with(start))).then_some(line)
    })
}

/// The image that a build could not fetch: the one that `COPY --from` names, or the base image that it had reached.
fn image(words: &str, output: &str) -> String {
    let copied = output.lines().rev().find_map(|line| {
        let (_, image) = line.split_once("COPY --from=").or_else(|| line.split_once("copy --from="))?;
        image.split_whitespace().next()
    });
    let copied = copied.filter(|image| words.contains(image.split([':', '@']).next().unwrap_or(image)));
    // BuildKit does not log the instruction. It looks up base images before it loads anything.
    let loaded = || words.strip_prefix("failed to load cache key: ")?.split(": ").next();
    match copied.or_else(loaded) {
        Some(image) => format!("the image {image} of COPY --from"),
        None => base_image(words, output),
    }
}

/// The base image that a build had reached, from the end of its log. BuildKit looks up several images at the same time,
/// so the one that the error names comes first.
fn base_image(words: &str, output: &str) -> String {
    let images = || {
        output.lines().rev().filter_map(|line| {
            let (_, image) = line.split_once(" : FROM ").or_else(|| line.split_once("load metadata for "))?;
            image.split_whitespace().find(|word| !word.starts_with("--"))
        })
    };
    let image = images().find(|image| words.contains(image)).or_else(|| images().next());
    image.map_or_else(|| "a base image".to_owned(), |image| format!("the base image {image}"))
}

/// Whether a command in the Dockerfile failed, whose text and output can contain any words.
fn is_failed_run(words: &str) -> bool {
    words.contains("returned a non-zero code")
        || words.contains("executor failed running") && words.contains("exit code:")
        || words.contains("did not complete successfully: exit code")
        || words.contains("while running runtime: exit status")
}

fn is_refused_image(words: &str) -> bool {
    const REFUSED: [&str; 11] = [
        "pull access denied",
        "manifest unknown",
        "repository does not exist",
        "insufficient_scope",
        "no matching manifest",
        "unauthorized",
        "401 Unauthorized",
        "403 Forbidden",
        "no basic auth credentials",
        "access to the resource is denied",
        "invalid reference format",
    ];
    // BuildKit's only message for an unknown image.
    words.ends_with(": not found") || REFUSED.iter().any(|refused| words.contains(refused))
}

/// The error for a failed pull.
pub(super) fn pull(image: &str, error: &Error) -> EnvironmentError {
    let words = words(error);
    let transport =
        !matches!(error, Error::DockerResponseServerError { .. } | Error::DockerStreamError { .. });
    if transport || is_engine_away(error) {
        return EnvironmentError::Pull(away(&format!("pull {image}"), error));
    }
    if is_disk_full(&words) {
        return EnvironmentError::Pull(format!("cannot pull {image}: {DISK_FULL}"));
    }
    if REGISTRY_TROUBLE.iter().any(|trouble| words.contains(trouble)) {
        return EnvironmentError::Pull(format!("cannot pull {image}: {words}"));
    }
    if is_refused_image(&words) || matches!(status(error), Some(400..=499)) {
        return EnvironmentError::NoImage(format!(
            "cannot pull {image}: {words}. Check environment.docker_image in task.toml; `docker login` gives \
             access to private images"
        ));
    }
    EnvironmentError::Pull(format!("cannot pull {image}: {words}"))
}

/// The error for a container that cannot be created or started.
pub(super) fn start(error: &Error) -> EnvironmentError {
    if is_engine_away(error) {
        return EnvironmentError::Start(away("start a container", error));
    }
    let words = words(error);
    if words.contains("Range of CPUs") || words.contains("inimum memory limit") {
        return EnvironmentError::Resources(words);
    }
    if let Some(next) = setting_to_change(&words) {
        return EnvironmentError::Refused(format!("the container does not start: {words}; {next}"));
    }
    // The engine rejects the request itself, which is the same in every attempt.
    if status(error) == Some(400) {
        return EnvironmentError::Refused(format!("the container does not start: {words}"));
    }
    let next = if words.contains("address pool") || words.contains("no available IPv4 addresses") {
        "; the network has no free address; `docker network prune` frees the addresses of unused networks"
    } else if words.contains("port is already allocated") {
        "; another container uses the port"
    } else if is_disk_full(&words) {
        return EnvironmentError::Start(format!("the container does not start: {words}; {DISK_FULL}"));
    } else {
        ""
    };
    EnvironmentError::Start(format!("the container does not start: {words}{next}"))
}

/// Advice on a setting that prevents containers from starting, chosen by the engine's message.
fn setting_to_change(words: &str) -> Option<&'static str> {
    if words.contains("unknown or invalid runtime") || words.contains("nknown runtime") {
        Some("`docker info` lists the engine's runtimes; change provider_config.runtime")
    } else if words.contains("exec format error") {
        Some(
            "the image and the engine have different platforms; set provider_config.platform to the engine's",
        )
    } else if words.contains("network") && words.contains("not found") {
        Some("create it with `docker network create`, or change provider_config.network")
    } else if words.contains("could not select device driver") || words.contains("nvidia") {
        Some("provider_config.gpus needs the NVIDIA Container Toolkit on the engine's machine")
    } else if words.contains("mount") && words.contains("does not exist") {
        Some("the source of each bind mount in provider_config.mounts must exist on the engine's machine")
    } else {
        None
    }
}

/// Whether an engine rejected a storage limit, which its file system may not support.
pub(super) fn is_storage_refusal(error: &Error) -> bool {
    let words = words(error);
    words.contains("storage-opt") || words.contains("--storage-opt") || words.contains("pquota")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status_code: u16, message: &str) -> Error {
        Error::DockerResponseServerError { status_code, message: message.to_owned() }
    }

    fn stream(error: &str) -> Error {
        Error::DockerStreamError { error: error.to_owned() }
    }

    fn broken() -> Error {
        Error::IOError { err: std::io::Error::from(std::io::ErrorKind::ConnectionRefused) }
    }

    fn kind(error: &EnvironmentError) -> &'static str {
        match error {
            EnvironmentError::Build(_) => "build",
            EnvironmentError::BuildNetwork(_) => "build network",
            EnvironmentError::Pull(_) => "pull",
            EnvironmentError::NoImage(_) => "no image",
            EnvironmentError::Start(_) => "start",
            EnvironmentError::Refused(_) => "refused",
            EnvironmentError::Resources(_) => "resources",
            EnvironmentError::Command(_) => "command",
            EnvironmentError::Lost(_) => "lost",
            EnvironmentError::Ended(_) => "ended",
            EnvironmentError::TimeOver(_) => "time over",
            EnvironmentError::Teardown(_) => "teardown",
            EnvironmentError::DiskFull(_) => "disk full",
        }
    }

    #[test]
    fn failed_builds_are_classified() {
        let failed = "The command '/bin/sh -c apt-get update' returned a non-zero code: 100";
        for (error, output, expected) in [
            (response(400, "dockerfile parse error line 2: unknown instruction: RUNN"), "", "build"),
            (stream("dockerfile parse error line 2: unknown instruction: RUNN"), "", "build"),
            (stream(failed), "E: broken", "build"),
            (stream(failed), "Temporary failure resolving 'packages.example'", "build network"),
            (
                stream("executor failed running [/bin/sh -c curl x: connection refused]: exit code: 7"),
                "",
                "build",
            ),
            (stream("process \"/bin/sh -c x\" did not complete successfully: exit code: 1"), "", "build"),
            (stream("pull access denied for no/such, repository does not exist"), "", "build"),
            (stream("manifest for debian:nope not found: manifest unknown"), "", "build"),
            (stream("failed to compute cache key: \"/missing\" not found: not found"), "", "build"),
            (stream("Get \"https://r/v2/\": dial tcp: lookup r: no such host"), "", "build network"),
            (stream("write /x: no space left on device"), "", "build"),
            (stream("rpc error: code = Unavailable desc = transport is closing"), "", "start"),
            (stream("context canceled"), "", "start"),
            (broken(), "", "start"),
        ] {
            assert_eq!(kind(&build(&error, output, "build.txt")), expected, "{error:?}");
        }
    }

    #[test]
    fn a_failed_run_is_quoted_with_the_end_of_the_log() {
        let error = stream("The command '/bin/sh -c exit 7' returned a non-zero code: 7");
        let messages = build(&error, "no such luck", "environment/build.txt").to_string();
        insta::assert_snapshot!(messages, @"
        no such luck
        The command '/bin/sh -c exit 7' returned a non-zero code: 7
        last lines of environment/build.txt:
        no such luck
        ");
    }

    #[test]
    fn the_last_output_is_not_a_line_of_the_builder() {
        let classic = "Step 2/3 : RUN apt-get install x\n ---> Running in 0123\nE: Unable to locate package x\nRemoving intermediate container 0123\n";
        assert_eq!(last_output(classic), Some("E: Unable to locate package x"));
        let buildkit = "#5 [2/3] RUN false\n#5 it broke\n#5 ERROR: exit code: 1\n";
        assert_eq!(last_output(buildkit), Some("it broke"));
        assert_eq!(last_output("#5 [2/3] RUN false\n#5 ERROR: exit code: 1\n"), None);
    }

    #[test]
    fn a_missing_base_image_is_reported() {
        let missing = stream("failed to solve: docker.io/library/nope:1: not found");
        let classic = "Step 1/4 : FROM --platform=linux/amd64 nope:1 AS base";
        let buildkit = "#3 [internal] load metadata for docker.io/library/nope:1\n#3 ERROR: not found";
        let unreachable = stream("Get \"http://r/v2/\": dial tcp: no such host");
        let copied = stream("failed to compute cache key: \"/missing\" not found: not found");
        let messages = [(&missing, classic), (&missing, buildkit), (&unreachable, classic), (&copied, "")]
            .map(|(error, output)| build(error, output, "build.txt").to_string());
        insta::assert_snapshot!(messages.join("\n"), @r#"
        the base image nope:1 is not available: docker.io/library/nope:1: not found. Check its name in FROM; `docker login` gives access to private images
        the base image docker.io/library/nope:1 is not available: docker.io/library/nope:1: not found. Check its name in FROM; `docker login` gives access to private images
        the base image nope:1 cannot be fetched: Get "http://r/v2/": dial tcp: no such host
        "/missing" not found: not found; COPY and ADD can only use files in environment/ that .dockerignore does not exclude
        "#);
    }

    #[test]
    fn a_missing_image_of_copy_is_reported_and_not_the_base_image() {
        let refused = stream("pull access denied for nope, repository does not exist");
        let classic = "Step 1/2 : FROM test\n ---> 0123\nStep 2/2 : COPY --from=nope:1 /x /x";
        let unreachable = stream("Get \"http://r/v2/nope/manifests/1\": dial tcp: no such host");
        // The base image is the one that is missing, although another one is copied from later.
        let other = "Step 1/3 : FROM nope\nStep 2/3 : COPY --from=tools:2 /x /x";
        let missing = stream("failed to solve: docker.io/library/nope:1: not found");
        let buildkit = "#2 [internal] load metadata for docker.io/library/nope:1\n\
                        #3 [internal] load metadata for docker.io/library/test:latest";
        let copied = stream("failed to load cache key: 127.0.0.1:5000/nope:1: not found");
        let found = "#2 [internal] load metadata for docker.io/library/test:latest";
        let messages = [
            (&refused, classic),
            (&unreachable, classic),
            (&refused, other),
            (&missing, buildkit),
            (&copied, found),
        ]
        .map(|(error, output)| build(error, output, "build.txt").to_string());
        insta::assert_snapshot!(messages.join("\n"), @r#"
        the image nope:1 of COPY --from is not available: pull access denied for nope, repository does not exist. Check its name in FROM and COPY --from; `docker login` gives access to private images
        the image nope:1 of COPY --from cannot be fetched: Get "http://r/v2/nope/manifests/1": dial tcp: no such host
        the base image nope is not available: pull access denied for nope, repository does not exist. Check its name in FROM and COPY --from; `docker login` gives access to private images
        the base image docker.io/library/nope:1 is not available: docker.io/library/nope:1: not found. Check its name in FROM; `docker login` gives access to private images
        the image 127.0.0.1:5000/nope:1 of COPY --from is not available: failed to load cache key: 127.0.0.1:5000/nope:1: not found. Check its name in FROM and COPY --from; `docker login` gives access to private images
        "#);
    }

    #[test]
    fn failed_pulls_are_classified() {
        for (error, expected) in [
            (response(404, "manifest for x:1 not found: manifest unknown: manifest unknown"), "no image"),
            (response(404, "pull access denied for x, repository does not exist"), "no image"),
            (
                response(500, "Get \"https://r/v2/\": unauthorized: incorrect username or password"),
                "no image",
            ),
            (
                response(500, "Get \"https://r/v2/\": dial tcp 127.0.0.1:1: connect: connection refused"),
                "pull",
            ),
            (stream("received unexpected HTTP status: 503 Service Unavailable"), "pull"),
            (stream("no matching manifest for linux/arm64 in the manifest list entries"), "no image"),
            (stream("failed to register layer: no space left on device"), "pull"),
            (response(400, "invalid reference format"), "no image"),
            (response(500, "Head \"http://r/v2/x/manifests/1\": no basic auth credentials"), "no image"),
            (broken(), "pull"),
        ] {
            assert_eq!(kind(&pull("x:1", &error)), expected, "{error:?}");
        }
    }

    #[test]
    fn a_container_that_does_not_start_reports_the_engines_message_and_advice() {
        let messages: Vec<String> = [
            response(400, "unknown or invalid runtime name: kata"),
            response(500, "OCI runtime create failed: exec /.rollout/guest: exec format error"),
            response(404, "network lab not found"),
            response(400, "invalid mount config for type \"bind\": bind source path does not exist: /none"),
            response(500, "could not select device driver \"\" with capabilities: [[gpu]]"),
            response(400, "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available"),
            broken(),
        ]
        .iter()
        .map(|error| {
            let error = start(error);
            format!("{}: {error}", kind(&error))
        })
        .collect();
        insta::assert_snapshot!(messages.join("\n"), @r#"
        refused: the container does not start: unknown or invalid runtime name: kata; `docker info` lists the engine's runtimes; change provider_config.runtime
        refused: the container does not start: OCI runtime create failed: exec /.rollout/guest: exec format error; the image and the engine have different platforms; set provider_config.platform to the engine's
        refused: the container does not start: network lab not found; create it with `docker network create`, or change provider_config.network
        refused: the container does not start: invalid mount config for type "bind": bind source path does not exist: /none; the source of each bind mount in provider_config.mounts must exist on the engine's machine
        refused: the container does not start: could not select device driver "" with capabilities: [[gpu]]; provider_config.gpus needs the NVIDIA Container Toolkit on the engine's machine
        resources: Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available
        start: the engine did not answer the request to start a container: connection refused
        "#);
    }
}
