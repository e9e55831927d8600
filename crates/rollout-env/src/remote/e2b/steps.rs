//! The steps of a template: a Dockerfile in the words of E2B.
//!
//! E2B knows commands, which bash runs, and copies. Its own users, directories and variables differ from those of
//! Dockerfiles: a missing user is created, and a variable cannot use another. So all commands start as root, and change
//! to their user, directory and variables themselves, with the help of the guest, which is copied first.

use std::{
    io::{self, Write as _},
    path::Path,
};

use flate2::{Compression, write::GzEncoder};
use rollout_core::text::{chain, hex};
use rollout_sandbox::build::{
    Location, Outline, OutlineAction, OutlineCommand, OutlineCopy, UNKNOWN_VARIABLE, outline,
};
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

use super::super::{
    CloudError, ImageSource,
    image::{DESCRIPTION, append_added},
};
use crate::{blocking::blocking, guest::PROGRAM_PATH};

/// Variables of the build, of bash and of E2B, which are not the image's.
const NOT_THE_IMAGES: [&str; 11] = [
    "_",
    "OLDPWD",
    "USER",
    "LOGNAME",
    "MAIL",
    "SHELL",
    "TERM",
    "E2B_SANDBOX",
    "E2B_SANDBOX_ID",
    "E2B_TEMPLATE_ID",
    "E2B_EVENTS_ADDRESS",
];

/// What a template is made of.
pub(super) struct Recipe {
    pub(super) from: String,
    pub(super) steps: Vec<TemplateStep>,
}

/// One step.
pub(super) struct TemplateStep {
    /// The instruction; `None` if it is ours.
    pub(super) at: Option<Location>,
    pub(super) kind: &'static str,
    pub(super) args: Vec<String>,
    pub(super) files: Option<StepFiles>,
}

/// The files of a copy.
pub(super) struct StepFiles {
    pub(super) hash: String,
    /// A compressed tar archive.
    pub(super) archive: NamedTempFile,
}

impl TemplateStep {
    /// The step in the form of the API.
    pub(super) fn json(&self, force: bool) -> Json {
        let mut step = json!({"type": self.kind, "args": self.args, "force": force});
        if let Some(files) = &self.files {
            step["filesHash"] = files.hash.as_str().into();
        }
        step
    }
}

impl Recipe {
    /// Translates what a task is built from.
    pub(super) async fn of(source: &ImageSource) -> Result<Self, CloudError> {
        let image = source.image.clone();
        let dir = source.context.as_ref().map(|context| context.dir().to_owned());
        let translated = blocking(move || {
            Ok(match (image, dir) {
                (Some(image), _) => Self::of_image(image),
                (None, Some(dir)) => Self::of_dockerfile(&dir),
                (None, None) => {
                    Err(CloudError::Refused("there is neither an image nor a Dockerfile".to_owned()))
                }
            })
        });
        translated.await.map_err(|error| CloudError::Build(error.to_string()))?
    }

    fn of_image(image: String) -> Result<Self, CloudError> {
        let outline =
            Outline { base: image, steps: Vec::new(), env: Vec::new(), workdir: "/".to_owned(), user: None };
        Self::of_outline(outline)
    }

    fn of_dockerfile(dir: &Path) -> Result<Self, CloudError> {
        let outline = outline(dir, &dir.join("Dockerfile"));
        Self::of_outline(outline.map_err(|error| CloudError::Build(chain(&error)))?)
    }

    fn of_outline(outline: Outline) -> Result<Self, CloudError> {
        let failed = |error: io::Error| CloudError::Build(format!("cannot pack files: {error}"));
        let mut steps = vec![TemplateStep {
            at: None,
            kind: "COPY",
            args: vec![".rollout".to_owned(), "/.rollout".to_owned(), "0:0".to_owned()],
            files: Some(packed(write_guest).map_err(failed)?),
        }];
        // Nothing runs after the last step of the task, which may have removed every shell.
        let user = outline.user.as_deref().unwrap_or("0:0");
        let mut describe = vec!["/usr/bin/env".to_owned()];
        describe.extend(NOT_THE_IMAGES.iter().flat_map(|name| ["-u".to_owned(), (*name).to_owned()]));
        describe.extend([PROGRAM_PATH, "describe", DESCRIPTION, &outline.workdir, user].map(str::to_owned));
        steps.push(run(None, script(&outline.env, "/", &describe)));
        for step in outline.steps {
            let at = Some(step.at);
            match step.action {
                OutlineAction::MakeDirs { paths, owner } => {
                    steps.push(run(at, make_dirs(&paths, owner.as_deref())));
                }
                OutlineAction::Run { command, env, cwd, user } => {
                    steps.push(run(at, command_line(&command, &env, &cwd, user.as_deref())));
                }
                OutlineAction::Copy(copy) => {
                    let files =
                        packed(|writer| copy.pack(writer).map_err(|error| io::Error::other(chain(&error))));
                    let files = files.map_err(failed)?;
                    steps.push(TemplateStep { at, kind: "COPY", args: copy_args(&copy), files: Some(files) });
                }
            }
        }
        Ok(Self { from: outline.base, steps })
    }
}

fn run(at: Option<Location>, command: String) -> TemplateStep {
    TemplateStep { at, kind: "RUN", args: vec![command, "root".to_owned()], files: None }
}

/// The source, the target, the owner and the mode.
fn copy_args(copy: &OutlineCopy) -> Vec<String> {
    let owner = match copy.owner.as_deref() {
        None => "0:0".to_owned(),
        // A number alone is also the group, as Docker does it.
        Some(owner) if owner.contains(':') => owner.to_owned(),
        Some(owner) => format!("{owner}:{owner}"),
    };
    let mut args = vec![copy.name(), copy.target.clone(), owner];
    args.extend(copy.mode.map(|mode| format!("{mode:o}")));
    args
}

/// Creates directories. Only new ones get the owner.
fn make_dirs(paths: &[String], owner: Option<&str>) -> String {
    let mut lines = vec!["set -e".to_owned()];
    for path in paths {
        let path = quoted(path);
        lines.push(match owner.filter(|owner| !["0", "root", "0:0", "root:root"].contains(owner)) {
            // The user may not exist; then the directory stays root's, and the trial reports it.
            Some(owner) => format!(
                "[ -d {path} ] || {{ mkdir -p {path}; chown {owner} {path} 2> /dev/null || true; }}",
                owner = quoted(owner)
            ),
            None => format!("mkdir -p {path}"),
        });
    }
    lines.join("\n")
}

/// A command of the task.
fn command_line(command: &OutlineCommand, env: &[(String, String)], cwd: &str, user: Option<&str>) -> String {
    let mut prepared = String::new();
    let mut argv = match command {
        OutlineCommand::Argv(argv) => argv.clone(),
        OutlineCommand::Script(text) => {
            let path = "/tmp/.rollout-script";
            prepared = format!("printf %s {} > {path} && chmod 755 {path} && ", quoted(text));
            vec![path.to_owned()]
        }
    };
    if let Some(user) = user {
        let mut switched = vec![PROGRAM_PATH.to_owned(), "run".to_owned(), user.to_owned()];
        switched.append(&mut argv);
        argv = switched;
    }
    prepared + &script(env, cwd, &argv)
}

/// Starts a program with variables in a directory.
fn script(env: &[(String, String)], cwd: &str, argv: &[String]) -> String {
    let mut text = format!("cd {}", quoted(cwd));
    if !env.is_empty() {
        // All values are expanded before the first is set.
        let pairs: Vec<String> =
            env.iter().map(|(name, value)| format!("{name}={}", expandable(value))).collect();
        text += &format!(" && export {}", pairs.join(" "));
    }
    let argv: Vec<String> = argv.iter().map(|argument| quoted(argument)).collect();
    text + " && exec " + &argv.join(" ")
}

/// A word for bash.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A word for bash in which only variables of the base image are expanded.
fn expandable(value: &str) -> String {
    let (open, close) = UNKNOWN_VARIABLE;
    let mut out = String::from("\"");
    for c in value.chars() {
        match c {
            c if c == open => out.push_str("${"),
            c if c == close => out.push('}'),
            '"' | '\\' | '$' | '`' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out + "\""
}

/// Packs and compresses files.
fn packed(pack: impl FnOnce(&mut GzEncoder<&mut NamedTempFile>) -> io::Result<()>) -> io::Result<StepFiles> {
    let mut archive = NamedTempFile::new()?;
    let mut encoder = GzEncoder::new(&mut archive, Compression::fast());
    pack(&mut encoder)?;
    encoder.finish()?.flush()?;
    let mut hasher = Sha256::new();
    io::copy(&mut archive.reopen()?, &mut HashWriter(&mut hasher))?;
    Ok(StepFiles { hash: hex(&hasher.finalize()), archive })
}

struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the guest, and the directory of the description.
fn write_guest(writer: &mut GzEncoder<&mut NamedTempFile>) -> io::Result<()> {
    let mut archive = tar::Builder::new(writer);
    append_added(&mut archive)?;
    archive.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_their_variables_directory_and_user() {
        let env =
            [("PATH".to_owned(), "/x:\u{1}PATH\u{2}".to_owned()), ("A".to_owned(), "it's \"$5\"".to_owned())];
        let argv = OutlineCommand::Argv(["/bin/sh", "-c", "echo 'hi'"].map(str::to_owned).to_vec());
        assert_eq!(
            command_line(&argv, &env, "/app", Some("daemon")),
            r#"cd '/app' && export PATH="/x:${PATH}" A="it's \"\$5\"" && exec '/.rollout/guest' 'run' 'daemon' '/bin/sh' '-c' 'echo '\''hi'\'''"#
        );
        assert_eq!(command_line(&argv, &[], "/", None), r"cd '/' && exec '/bin/sh' '-c' 'echo '\''hi'\'''");
    }

    #[test]
    fn only_new_directories_get_an_owner() {
        assert_eq!(make_dirs(&["/a b".to_owned()], None), "set -e\nmkdir -p '/a b'");
        assert!(make_dirs(&["/a".to_owned()], Some("7")).contains("chown '7' '/a'"));
    }

    #[test]
    fn archives_of_the_same_content_have_the_same_hash() {
        let of = || packed(write_guest).unwrap().hash;
        assert_eq!(of(), of());
    }
}
