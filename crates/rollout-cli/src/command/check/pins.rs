//! Versions that a Dockerfile does not pin, so that the image changes without a change of the task.

/// Lists what is not pinned in the text of a Dockerfile.
pub(super) fn unpinned(dockerfile: &str) -> Vec<String> {
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
