//! Versions that a task does not pin, so that its images change without a change of the task.

use std::{fs, path::Path};

use rollout::{name::TaskName, task::load_task};

/// Lists what is not pinned in the Dockerfiles, the compose files and the task.toml of a task.
pub(super) fn of_task(dir: &Path) -> Vec<String> {
    let mut found = in_file(&dir.join("environment/Dockerfile"), "");
    found.extend(in_file(&dir.join("tests/Dockerfile"), "tests/Dockerfile: "));
    // The name has no effect. A task that cannot be read was reported when it was run.
    let Some((task, _)) = TaskName::new("task").ok().and_then(|name| load_task(dir, name).ok()) else {
        return found;
    };
    let tests = task.config.verifier_own_environment.as_ref();
    let named = [
        ("environment", task.config.docker_image.as_deref()),
        ("verifier.environment", tests.and_then(|own| own.docker_image.as_deref())),
    ];
    for (table, image) in named {
        if let Some(image) = image.filter(|image| !is_pinned(image)) {
            found.push(format!("{table}.docker_image {image} has no version"));
        }
    }
    for (file, compose) in
        [("docker-compose.yaml", &task.compose), ("tests/docker-compose.yaml", &task.tests_compose)]
    {
        for service in compose.iter().flat_map(|compose| &compose.services) {
            let at = format!("{file}, service {}: ", service.name);
            match &service.build {
                Some(build) => match &build.options.inline {
                    Some(text) => found.extend(unpinned(text).into_iter().map(|text| at.clone() + &text)),
                    None => {
                        let name = build.options.dockerfile.as_deref().unwrap_or("Dockerfile");
                        let path = build.context.join(name);
                        let is_known = ["environment/Dockerfile", "tests/Dockerfile"].iter().any(|known| {
                            let known = dir.join(known).canonicalize();
                            known.is_ok_and(|known| path.canonicalize().is_ok_and(|path| path == known))
                        });
                        if !is_known {
                            found.extend(in_file(&path, &at));
                        }
                    }
                },
                None => {
                    if let Some(image) = service.image.as_deref().filter(|image| !is_pinned(image)) {
                        found.push(format!("{at}image {image} has no version"));
                    }
                }
            }
        }
    }
    found
}

/// What a Dockerfile, which may be missing, does not pin, each with this text before it.
fn in_file(path: &Path, before: &str) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    unpinned(&text).into_iter().map(|found| format!("{before}{found}")).collect()
}

/// Lists what is not pinned in the text of a Dockerfile.
fn unpinned(dockerfile: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut stages: Vec<String> = Vec::new();
    for line in instructions(dockerfile) {
        let mut words = line.split_whitespace();
        let instruction = words.next().unwrap_or_default().to_ascii_uppercase();
        match instruction.as_str() {
            "FROM" => {
                let mut words = words.filter(|word| !word.starts_with("--"));
                let image = words.next().unwrap_or_default();
                if !stages.iter().any(|stage| stage == image) && !is_pinned(image) {
                    found.push(format!("FROM {image} has no version"));
                }
                if let (Some(word), Some(stage)) = (words.next(), words.next())
                    && word.eq_ignore_ascii_case("as")
                {
                    stages.push(stage.to_owned());
                }
            }
            "RUN" => found.extend(packages(&line)),
            _ => {}
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The instructions, with continued lines joined and without comments.
fn instructions(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut whole = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        match line.strip_suffix('\\') {
            Some(part) => {
                whole.push_str(part);
                whole.push(' ');
            }
            None => {
                whole.push_str(line);
                lines.push(std::mem::take(&mut whole));
            }
        }
    }
    lines.push(whole);
    lines.retain(|line| !line.is_empty());
    lines
}

/// Whether an image has a digest, a tag other than `latest`, or a variable.
fn is_pinned(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or(image);
    image == "scratch"
        || image.contains(['@', '$'])
        || name.split_once(':').is_some_and(|(_, tag)| !tag.is_empty() && tag != "latest")
}

/// Packages of pip and npm without a version. Those of a distribution follow the version of the image.
fn packages(run: &str) -> Vec<String> {
    let mut found = Vec::new();
    for command in run.split(['&', ';', '|']) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let Some(place) = words.iter().position(|word| matches!(*word, "install" | "add" | "i")) else {
            continue;
        };
        let before = &words[..place];
        let tool = |names: &[&str]| {
            before.iter().any(|word| names.iter().any(|name| word.rsplit('/').next() == Some(name)))
        };
        let is_pip = tool(&["pip", "pip3", "uv"]);
        let is_npm = !is_pip && tool(&["npm", "pnpm", "yarn"]);
        if !is_pip && !is_npm {
            continue;
        }
        let mut rest = words[place + 1..].iter();
        while let Some(word) = rest.next() {
            let package = word.trim_matches(['"', '\'']);
            // Files of requirements, indexes and the like have a value of their own.
            if [
                "-r",
                "-c",
                "-i",
                "-e",
                "--index-url",
                "--extra-index-url",
                "--requirement",
                "--target",
                "-t",
                "--prefix",
            ]
            .contains(&package)
            {
                rest.next();
                continue;
            }
            let is_local = package.starts_with(['-', '.', '/', '$']) || package.contains("://");
            let is_fixed = match is_pip {
                true => package.contains(['=', '<', '~', '@']),
                false => package.trim_start_matches('@').contains('@'),
            };
            if !package.is_empty() && !is_local && !is_fixed {
                let tool = if is_pip { "pip" } else { "npm" };
                found.push(format!("{tool} install {package} has no version"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_and_packages_without_a_version_are_found() {
        let text = "# FROM ignored\nFROM python AS base\nFROM base\nFROM --platform=linux/amd64 ubuntu:latest\n\
            FROM ubuntu:24.04\nFROM host:5000/image\nFROM alpine@sha256:abc\nFROM ${IMAGE}\n\
            RUN apt-get update && apt-get install -y curl && pip install -r requirements.txt numpy==2.0 'pandas' \\\n    \
            # a comment\n    scipy~=1.2\nRUN npm install -g typescript @scope/tool@1.2 && uv pip install ./local rich\n";
        assert_eq!(
            unpinned(text),
            [
                "FROM host:5000/image has no version",
                "FROM python has no version",
                "FROM ubuntu:latest has no version",
                "npm install typescript has no version",
                "pip install pandas has no version",
                "pip install rich has no version",
            ]
        );
    }
}
