//! What a preset comes to in an environment: where the agent's files go, its commands, and its scripts.

use std::time::Duration;

use crate::{
    config::{LogFormat, PresetConfig, PresetInstall},
    packages::{PackageError, Packages, Part, PythonSpec},
};

/// How long a registry may take to name the latest version of an agent.
const VERSION_TIMEOUT: Duration = Duration::from_secs(60);

/// Where the files of an agent are put.
pub(crate) const DIR: &str = "/opt/rollout/agent";

/// The script that finds the versions of Python that an image has: a line with version and path for each.
pub(crate) const FIND_PYTHON: &str = r#"for python in python3 python3.10 python3.11 python3.12 python3.13 python3.14; do
  "$python" -c 'import os, sys; print("python", "%d.%d" % sys.version_info[:2], os.path.realpath(sys.executable))'
done 2> /dev/null
exit 0
"#;

/// The Python of an image that runs the packages of a preset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImagePython {
    pub(crate) version: String,
    pub(crate) path: String,
}

impl ImagePython {
    /// The best one of those that [`FIND_PYTHON`] printed. The error says which there are.
    pub(crate) fn choose(wanted: &[String], printed: &str) -> Result<Self, String> {
        let found: Vec<(&str, &str)> = printed
            .lines()
            .filter_map(|line| line.strip_prefix("python ")?.split_once(' '))
            .filter(|(_, path)| path.starts_with('/'))
            .collect();
        let of = |version: &String| found.iter().find(|(other, _)| other == version);
        match wanted.iter().find_map(of) {
            Some((version, path)) => Ok(Self { version: (*version).to_owned(), path: (*path).to_owned() }),
            None => {
                let mut versions: Vec<&str> = found.iter().map(|(version, _)| *version).collect();
                // An image may have one version at several paths.
                versions.sort_unstable();
                versions.dedup();
                let has = if versions.is_empty() { "no Python".to_owned() } else { versions.join(", ") };
                Err(format!("it needs Python {} in the image, but the image has {has}", wanted.join(" or ")))
            }
        }
    }

    /// The files that make the agent's directory a virtual environment of this Python: its settings, and the target of
    /// `venv/bin/python`.
    pub(crate) fn settings(&self) -> String {
        let home = self.path.rsplit_once('/').map_or("/", |(home, _)| home);
        format!("home = {home}\ninclude-system-site-packages = false\nversion = {}\n", self.version)
    }
}

/// A package of npm, as a preset names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NpmSpec {
    pub(crate) package: String,
    pub(crate) version: String,
}

impl NpmSpec {
    /// Reads `name` or `name@version` of a preset.
    pub(crate) fn new(spec: &str, version: &str) -> Self {
        let spec = fill(spec, version);
        let scope = usize::from(spec.starts_with('@'));
        match spec[scope..].split_once('@') {
            Some((name, own)) => {
                Self { package: format!("{}{name}", &spec[..scope]), version: own.to_owned() }
            }
            None => Self { package: spec, version: version.to_owned() },
        }
    }
}

/// What the files of an agent depend on in an image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Platform<'a> {
    /// The npm package for it.
    pub(crate) npm: Option<&'a NpmSpec>,
    /// Whether programs for glibc do not run.
    pub(crate) musl: bool,
    /// The version of its Python, if the agent needs one.
    pub(crate) python: Option<&'a str>,
}

/// The files of an agent for an image, fetched where they are not there yet.
pub(crate) async fn parts(
    packages: &Packages,
    install: &PresetInstall,
    version: &str,
    platform: Platform<'_>,
) -> Result<Vec<Part>, PackageError> {
    let mut parts = Vec::new();
    if let Some(NpmSpec { package, version }) = platform.npm {
        parts.push(packages.npm(package, version, install.node.as_deref()).await?);
    }
    if let Some(node) = &install.node {
        parts.push(packages.node(node).await?);
    }
    if let Some(python) = platform.python.filter(|_| !install.pip.is_empty()) {
        let requirements = &requirements(install, version);
        let (built, any_python) = (&*install.pip_build, install.any_python);
        let spec = PythonSpec { requirements, built, any_python, python, musl: platform.musl };
        parts.push(packages.python(spec).await?);
    }
    Ok(parts)
}

/// Fetches an agent before it is needed, for images with glibc or musl and, if it needs Python, this version of it.
/// Returns the version that was fetched.
pub async fn fetch_agent(
    packages: &Packages,
    preset: &PresetConfig,
    version: &str,
    python: Option<&str>,
    musl: bool,
) -> Result<String, PackageError> {
    let install = &preset.install;
    let version = wanted_version(packages, install, version).await?;
    let npm = if musl { install.npm_musl.as_ref() } else { install.npm.as_ref() };
    let npm = npm.map(|spec| NpmSpec::new(spec, &version));
    let python = python.or(install.python.first().map(String::as_str));
    parts(packages, install, &version, Platform { npm: npm.as_ref(), musl, python }).await?;
    Ok(version)
}

/// The version that was asked for, or the latest where a registry knows it.
pub(crate) async fn wanted_version(
    packages: &Packages,
    install: &PresetInstall,
    version: &str,
) -> Result<String, PackageError> {
    let (package, latest) = match (&install.npm, versioned_package(&install.pip)) {
        _ if version != "latest" => return Ok(version.to_owned()),
        (None, None) => return Ok(version.to_owned()),
        (Some(npm), _) => {
            let package = NpmSpec::new(npm, "latest").package;
            let latest = tokio::time::timeout(VERSION_TIMEOUT, packages.npm_latest(&package)).await;
            (package, latest)
        }
        (None, Some(package)) => {
            let latest = tokio::time::timeout(VERSION_TIMEOUT, packages.pypi_latest(package)).await;
            (package.to_owned(), latest)
        }
    };
    latest.unwrap_or(Err(PackageError::VersionTimeout { package, seconds: VERSION_TIMEOUT.as_secs() }))
}

/// The Python package whose requirement has the agent's version.
fn versioned_package(requirements: &[String]) -> Option<&str> {
    let requirement = requirements.iter().find(|text| text.contains("{version}"))?.trim_start();
    let end = requirement.find([' ', '<', '>', '=', '!', '~', ';', '[', '(', '@']);
    end.map(|end| &requirement[..end]).filter(|name| !name.is_empty())
}

/// Fills in what depends on the version and the processor.
pub(crate) fn fill(text: &str, version: &str) -> String {
    text.replace("{version}", version)
        .replace("{arch}", crate::packages::arch())
        .replace("{cpu}", std::env::consts::ARCH)
}

/// The requirements of the Python packages.
pub(crate) fn requirements(install: &PresetInstall, version: &str) -> Vec<String> {
    install.pip.iter().map(|text| fill(text, version)).collect()
}

/// The commands of an agent, each with the content of its file.
pub(crate) fn commands(
    install: &PresetInstall,
    package: Option<&str>,
    version: &str,
) -> Vec<(String, String)> {
    let content = |target: &str| match (package, target.split_once(':')) {
        (None, Some((module, function))) => format!(
            "#!{DIR}/venv/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        ),
        (None, None) => format!("#!/bin/sh\nexec {target} \"$@\"\n"),
        (Some(package), _) => {
            let node = install.node.as_ref().map(|_| format!("{DIR}/node/bin/node ")).unwrap_or_default();
            format!("#!/bin/sh\nexec {node}{DIR}/node_modules/{package}/{} \"$@\"\n", fill(target, version))
        }
    };
    install.bin.iter().map(|(name, target)| (format!("{DIR}/bin/{name}"), content(target))).collect()
}

/// What every script of a preset starts with.
fn prelude(version: &str) -> String {
    format!(
        "export PATH=\"{DIR}/bin:$PATH\" HOME=\"${{HOME:-$(echo ~)}}\" ROLLOUT_AGENT_VERSION={}\n",
        quote(version)
    )
}

/// The script that installs the agent after its files are in place, and checks its version.
pub(crate) fn install_script(install: &PresetInstall, version: &str) -> String {
    let mut script = prelude(version);
    if let Some(own) = &install.script {
        script.push_str(&format!("set -e\n{}\nset +e\n", own.trim_end()));
    }
    if let Some(check) = &install.check {
        let expected = if version == "latest" { "*".to_owned() } else { format!("*{}*", quote(version)) };
        script.push_str(&format!(
            "found=$({check} < /dev/null 2>&1) || {{ echo \"{check} failed: $found\" >&2; exit 1; }}\n\
             echo \"$found\"\n\
             case $found in {expected}) ;; *) echo \"expected version {version}, found $found\" >&2; exit 1 ;; esac\n"
        ));
    }
    script
}

/// The script that lets the agent attempt the task.
pub(crate) fn execute_script(preset: &PresetConfig, version: &str) -> String {
    let servers = match preset.mcp {
        Some(_) => format!("export ROLLOUT_MCP_SERVERS={}\n", super::MCP_SERVERS),
        None => String::new(),
    };
    let began = match own_log_files(preset) {
        Some(_) => format!("rm -rf {0}\ntouch {0}\n", super::BEGAN),
        None => String::new(),
    };
    format!("{}{began}{servers}{}", prelude(version), preset.execute)
}

/// What [`skills_script`] prints in the end.
pub(crate) const SKILLS_COPIED: &str = "copied";

/// The script that copies the skills of a task to where the agent looks for them.
pub(crate) fn skills_script(source: &str, target: &str) -> String {
    let source = quote(source);
    format!(
        "export HOME=\"${{HOME:-$(echo ~)}}\"\nmkdir -p {target} && cp -R {source}/. {target}/ && echo {SKILLS_COPIED}\nexit 0\n"
    )
}

/// The files of the agent's own log that are read, as a pattern of the shell.
fn own_log_files(preset: &PresetConfig) -> Option<&'static str> {
    preset.trajectory.and_then(LogFormat::files)
}

/// The script that copies the agent's own logs to where they are collected, and puts together those that Rollout reads;
/// none if it has no others.
pub(crate) fn logs_script(preset: &PresetConfig) -> Option<String> {
    let read = own_log_files(preset);
    if preset.logs.is_empty() && read.is_none() {
        return None;
    }
    let mut script = "export HOME=\"${HOME:-$(echo ~)}\"\nshopt -s nullglob\n".to_owned();
    for path in &preset.logs {
        script.push_str(&format!("for found in {path}; do cp -R \"$found\" /logs/agent/; done\n"));
    }
    if let Some(files) = read {
        script.push_str(&own_log_script(files, super::BEGAN, super::OWN_LOG));
    }
    script.push_str("exit 0\n");
    Some(script)
}

/// Puts the files of an own log together that are not older than the file `began`. A pipe would never end.
fn own_log_script(files: &str, began: &str, target: &str) -> String {
    let most = super::own_log::MAX_LOG_BYTES;
    format!(
        "rm -rf {target}\nfor found in {files}; do\n  \
         if [ -f \"$found\" ] && [ ! {began} -nt \"$found\" ]; then cat \"$found\"; echo; fi\n\
         done | head -c {most} > {target}\n"
    )
}

/// The script that removes what [`logs_script`] put together, before the work of the agent is graded; none if that is
/// nothing.
pub(crate) fn forget_script(preset: &PresetConfig) -> Option<String> {
    own_log_files(preset).map(|_| format!("rm -rf {} {}\n", super::OWN_LOG, super::BEGAN))
}

/// Asks what the script of an agent started to end. Only these processes have the variable: the script sets it itself.
pub(crate) const ASK_TO_END: &str = r#"for process in /proc/[0-9]*; do
  while IFS= read -r -d '' variable; do
    case $variable in ROLLOUT_AGENT_VERSION=*) kill -TERM "${process#/proc/}"; break ;; esac
  done < "$process/environ"
done 2> /dev/null
exit 0
"#;

/// A text as one word of a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::preset;

    #[test]
    fn a_package_may_have_a_version_of_its_own() {
        let spec = |text| NpmSpec::new(text, "1.2.3");
        let arch = crate::packages::arch();
        assert_eq!(spec("a"), NpmSpec { package: "a".to_owned(), version: "1.2.3".to_owned() });
        let platform = NpmSpec { package: "@o/c".to_owned(), version: format!("1.2.3-linux-{arch}") };
        assert_eq!(spec("@o/c@{version}-linux-{arch}"), platform);
        assert_eq!(spec("@o/c-{arch}").package, format!("@o/c-{arch}"));
    }

    #[test]
    fn the_package_with_the_version_of_an_agent_is_found_in_any_form_of_requirement() {
        for (requirement, name) in [
            ("foo=={version}", Some("foo")),
            ("foo=={version} ; python_version<'3.13'", Some("foo")),
            ("foo~={version}", Some("foo")),
            (" foo[extra] >= {version}", Some("foo")),
            ("foo @ https://example.com/foo-{version}.whl", Some("foo")),
            ("=={version}", None),
            ("foo==1", None),
        ] {
            assert_eq!(
                versioned_package(&["other".to_owned(), requirement.to_owned()]),
                name,
                "{requirement}"
            );
        }
    }

    #[test]
    fn the_best_python_of_an_image_is_chosen_and_a_missing_one_is_explained() {
        let wanted = ["3.12", "3.11"].map(str::to_owned);
        let printed = "python 3.11 /usr/bin/python3.11\npython 3.9 /usr/bin/python3.9\nsomething else\n";
        let chosen = ImagePython::choose(&wanted, printed).unwrap();
        assert_eq!((chosen.version.as_str(), chosen.path.as_str()), ("3.11", "/usr/bin/python3.11"));
        assert_eq!(
            ImagePython::choose(&wanted, "python 3.9 /usr/bin/python3.9\npython 3.9 /opt/python3.9")
                .unwrap_err(),
            "it needs Python 3.12 or 3.11 in the image, but the image has 3.9"
        );
        assert_eq!(
            ImagePython::choose(&wanted, "").unwrap_err(),
            "it needs Python 3.12 or 3.11 in the image, but the image has no Python"
        );
    }

    #[test]
    fn the_installed_version_is_checked() {
        let codex = preset("codex").unwrap();
        insta::assert_snapshot!(install_script(&codex.install, "0.166.0"), @r#"
        export PATH="/opt/rollout/agent/bin:$PATH" HOME="${HOME:-$(echo ~)}" ROLLOUT_AGENT_VERSION='0.166.0'
        found=$(codex --version < /dev/null 2>&1) || { echo "codex --version failed: $found" >&2; exit 1; }
        echo "$found"
        case $found in *'0.166.0'*) ;; *) echo "expected version 0.166.0, found $found" >&2; exit 1 ;; esac
        "#);
    }

    #[test]
    fn skills_are_copied_from_a_path_of_the_task_to_one_of_the_preset() {
        insta::assert_snapshot!(skills_script("/srv/it's", "~/.agent/skills"), @r#"
        export HOME="${HOME:-$(echo ~)}"
        mkdir -p ~/.agent/skills && cp -R '/srv/it'\''s'/. ~/.agent/skills/ && echo copied
        exit 0
        "#);
    }

    #[test]
    fn commands_are_programs_scripts_of_node_and_functions_of_python() {
        let of = |name: &str, package| commands(&preset(name).unwrap().install, package, "1").remove(0).1;
        insta::assert_snapshot!(of("claude-code", Some("@a/claude")), @r#"
        #!/bin/sh
        exec /opt/rollout/agent/node_modules/@a/claude/claude "$@"
        "#);
        insta::assert_snapshot!(of("gemini-cli", Some("@google/gemini-cli")), @r#"
        #!/bin/sh
        exec /opt/rollout/agent/node/bin/node /opt/rollout/agent/node_modules/@google/gemini-cli/bundle/gemini.js "$@"
        "#);
        insta::assert_snapshot!(of("aider", None), @r"
        #!/opt/rollout/agent/venv/bin/python
        import sys
        from aider.main import main
        sys.exit(main())
        ");
    }

    #[test]
    fn of_an_own_log_only_the_files_of_this_step_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let script = own_log_script(&path("*.jsonl"), &path("began"), &path("target"));
        let gather = || {
            let status = std::process::Command::new("bash").args(["-c", &script]).status().unwrap();
            assert!(status.success(), "{status}");
            std::fs::read_to_string(path("target")).unwrap()
        };
        let at = |name: &str, seconds: u64| {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            let file = std::fs::File::create(path(name)).unwrap();
            std::io::Write::write_all(&mut &file, name.as_bytes()).unwrap();
            file.set_modified(time).unwrap();
        };
        at("a.jsonl", 1_000);
        at("b.jsonl", 2_000);
        at("c.jsonl", 3_000);
        let made = std::process::Command::new("mkfifo").arg(path("d.jsonl")).status().unwrap();
        assert!(made.success(), "{made}");
        assert_eq!(gather(), "a.jsonl\nb.jsonl\nc.jsonl\n", "nothing says when the agent started");
        at("began", 2_000);
        assert_eq!(gather(), "b.jsonl\nc.jsonl\n");
    }

    #[test]
    fn the_start_of_an_agent_is_noted_if_its_files_are_read() {
        let marks = |name: &str| execute_script(&preset(name).unwrap(), "1").contains(crate::agent::BEGAN);
        assert!(marks("copilot") && !marks("codex"));
    }
}
