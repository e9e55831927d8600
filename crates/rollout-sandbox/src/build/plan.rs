//! Plans the stages of a parsed Dockerfile: expands every variable and makes every path absolute.
//!
//! Nothing runs here. A `RUN` cannot change the meaning of a later instruction, so a whole stage can be planned
//! once the configuration of its base image is known. The plan determines the cache key.

use super::error::ImageBuildError;
use super::expand::{ExpandError, Expander, set, value_of};
use super::parse::{CommandLine, Dockerfile, Flag, Instruction, Kind, Location, RunCommand, Source, parse};
use super::run_mount::{RunMount, parse_mount};
use super::settings::{healthcheck, ports};
use super::stages::{Base, copy_origin, global_args, platform_args};
use crate::image::ImageConfig;

/// A stage that is ready to run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// The configuration at the end of the stage.
    pub(crate) config: ImageConfig,
    /// The arguments at the end of the stage, which stages that continue it inherit.
    pub(crate) args: Vec<(String, String)>,
}

/// One instruction and its effect.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) at: Location,
    pub(crate) action: Action,
}

/// The effect of an instruction on the file system.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// No effect: the instruction only changes the configuration, or how a container is started.
    Nothing,
    /// Creates directories. New ones belong to `owner`.
    MakeDirs {
        paths: Vec<String>,
        owner: Option<String>,
    },
    Run(Run),
    Copy(Copy),
}

/// A command to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) command: Invocation,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
    pub(crate) user: Option<String>,
    pub(crate) mounts: Vec<RunMount>,
}

/// How a command is started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Invocation {
    Argv(Vec<String>),
    /// A text that starts with `#!`, executed as a file.
    Script(String),
}

/// Files to copy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) from: Origin,
    pub(crate) sources: Vec<String>,
    pub(crate) inline: Vec<Inline>,
    /// Files to download.
    pub(crate) urls: Vec<String>,
    /// The hash that a download must have.
    pub(crate) checksum: Option<String>,
    pub(crate) target: String,
    /// Whether the target is written as a directory.
    pub(crate) into_dir: bool,
    pub(crate) chmod: Option<u32>,
    pub(crate) chown: Option<String>,
    /// Whether archives are unpacked.
    pub(crate) extract: bool,
}

/// Where the sources of a copy are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Context,
    Other(Base),
}

/// A file whose content is in the Dockerfile.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inline {
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Action {
    /// The stages and images whose files an action uses, in order.
    pub(crate) fn origins(&self) -> Vec<&Base> {
        let origin = |origin| match origin {
            &Origin::Context => None,
            Origin::Other(base) => Some(base),
        };
        match self {
            Action::Copy(copy) => origin(&copy.from).into_iter().collect(),
            Action::Run(run) => run.mounts.iter().filter_map(|mount| origin(mount.origin()?)).collect(),
            Action::Nothing | Action::MakeDirs { .. } => Vec::new(),
        }
    }
}

/// Plans a stage on a base image with the given configuration, and the arguments of the stage that it continues.
pub(crate) fn plan(
    dockerfile: &Dockerfile,
    index: usize,
    base: &ImageConfig,
    args: &[(String, String)],
) -> Result<Plan, ImageBuildError> {
    let mut config = base.clone();
    let triggers = std::mem::take(&mut config.on_build);
    let stage = &dockerfile.stages[index];
    let mut planner = Planner {
        dockerfile,
        index,
        globals: global_args(dockerfile)?,
        args: args.to_vec(),
        own_cmd: false,
        config,
    };
    let mut steps = Vec::new();
    let mut add = |planner: &mut Planner<'_>, at: &Location, kind: &Kind| {
        let action = planner.action(at, kind)?;
        steps.push(Step { at: at.clone(), action });
        Ok::<_, ImageBuildError>(())
    };
    for trigger in &triggers {
        for instruction in triggered(&stage.at, trigger)? {
            add(&mut planner, &instruction.at, &instruction.kind)?;
        }
    }
    for Instruction { at, kind } in &stage.instructions {
        add(&mut planner, at, kind)?;
    }
    Ok(Plan { steps, config: planner.config, args: planner.args })
}

/// The instruction of an `ONBUILD` of the base image.
fn triggered(at: &Location, text: &str) -> Result<Vec<Instruction>, ImageBuildError> {
    let at = Location { line: at.line, text: format!("ONBUILD {text}") };
    let failed = |error| match error {
        ImageBuildError::Syntax { message, .. } => ImageBuildError::Syntax { at: at.clone(), message },
        other => other,
    };
    let stages = parse(&format!("FROM scratch\n{text}\n")).map_err(failed)?.stages;
    let instructions = stages.into_iter().flat_map(|stage| stage.instructions);
    Ok(instructions.map(|Instruction { kind, .. }| Instruction { at: at.clone(), kind }).collect())
}

/// The state that the instructions of a stage build up.
struct Planner<'a> {
    dockerfile: &'a Dockerfile,
    index: usize,
    globals: Vec<(String, String)>,
    args: Vec<(String, String)>,
    /// Whether this stage has a `CMD`.
    own_cmd: bool,
    config: ImageConfig,
}

impl Planner<'_> {
    fn action(&mut self, at: &Location, kind: &Kind) -> Result<Action, ImageBuildError> {
        match kind {
            Kind::NoEffect => {}
            Kind::Cmd(line) => {
                self.config.cmd = self.command_line(line);
                self.own_cmd = true;
            }
            Kind::Entrypoint(line) => {
                self.config.entrypoint = self.command_line(line);
                // The base's arguments are for the base's program.
                if !self.own_cmd {
                    self.config.cmd.clear();
                }
            }
            Kind::Expose(words) => {
                let words = self.words(at, words)?;
                self.config.exposed_ports.extend(ports(at, &words)?);
            }
            Kind::Healthcheck { flags, command } => {
                self.config.healthcheck = Some(healthcheck(at, flags, command.as_ref())?);
            }
            Kind::Stopsignal(signal) => self.config.stop_signal = Some(self.word(at, signal)?),
            Kind::Onbuild(text) => self.config.on_build.push(text.clone()),
            Kind::Arg(arguments) => {
                for word in self.split(arguments) {
                    let (name, default) = match word.split_once('=') {
                        Some((name, default)) => (name.to_owned(), Some(self.word(at, default)?)),
                        None => (word, None),
                    };
                    let value = default
                        .or_else(|| value_of(&self.globals, &name))
                        .or_else(|| value_of(&platform_args(), &name));
                    if let Some(value) = value {
                        set(&mut self.args, name, value);
                    }
                }
            }
            Kind::Env(arguments) => {
                for (name, value) in self.pairs(at, arguments)? {
                    // Of an argument and a variable with one name, the later one holds.
                    self.args.retain(|(known, _)| *known != name);
                    set(&mut self.config.env, name, value);
                }
            }
            Kind::Label(arguments) => self.config.labels.extend(self.pairs(at, arguments)?),
            Kind::Shell(shell) => self.config.shell.clone_from(shell),
            Kind::User(user) => {
                let user = self.word(at, user)?;
                if user.is_empty() {
                    return Err(ImageBuildError::Syntax {
                        at: at.clone(),
                        message: "the user is empty".to_owned(),
                    });
                }
                self.config.user = Some(user);
            }
            Kind::Workdir(path) => {
                self.config.workdir = self.absolute(&self.word(at, path)?);
                return Ok(Action::MakeDirs {
                    paths: vec![self.config.workdir.clone()],
                    owner: self.config.user.clone(),
                });
            }
            Kind::Volume(paths) => {
                let paths = paths
                    .iter()
                    .map(|path| self.word(at, path))
                    .collect::<Result<Vec<_>, ImageBuildError>>()?;
                self.config.volumes.extend(paths.iter().cloned());
                let paths = paths.iter().map(|path| self.absolute(path)).collect();
                return Ok(Action::MakeDirs { paths, owner: None });
            }
            Kind::Run { flags, command } => return self.run(at, flags, command).map(Action::Run),
            Kind::Copy { add, flags, sources, target } => {
                return self.copy(at, *add, flags, sources, target).map(Action::Copy);
            }
        }
        Ok(Action::Nothing)
    }

    fn run(&self, at: &Location, flags: &[Flag], command: &RunCommand) -> Result<Run, ImageBuildError> {
        let mut mounts = Vec::new();
        for flag in flags {
            let value = self.word(at, flag.value.as_deref().unwrap_or_default())?;
            match (flag.name.as_str(), value.as_str()) {
                ("mount", value) => {
                    let stages = &self.dockerfile.stages[..self.index];
                    let mount = parse_mount(at, value, stages, |path| self.absolute(path))?;
                    mounts.extend(mount);
                }
                ("network", "default") | ("security", "sandbox") => {}
                ("network", _) => {
                    return Err(ImageBuildError::Unsupported {
                        at: at.clone(),
                        what: format!("RUN --network={value}"),
                        instead: "remove the flag; a build has the network of its environment".to_owned(),
                    });
                }
                _ => return Err(unknown_flag(at, "RUN", flag)),
            }
        }
        let shell = |line: &str| {
            let mut argv = self.config.shell.clone();
            argv.push(line.to_owned());
            Invocation::Argv(argv)
        };
        let command = match command {
            RunCommand::Exec(argv) => Invocation::Argv(argv.clone()),
            RunCommand::Shell(line) => shell(line),
            RunCommand::Script(text) if text.starts_with("#!") => Invocation::Script(text.clone()),
            RunCommand::Script(text) => shell(text),
        };
        let mut env = self.config.env.clone();
        for (name, value) in &self.args {
            set(&mut env, name.clone(), value.clone());
        }
        Ok(Run { command, env, cwd: self.config.workdir.clone(), user: self.config.user.clone(), mounts })
    }

    fn command_line(&self, line: &CommandLine) -> Vec<String> {
        match line {
            CommandLine::Exec(list) => list.clone(),
            CommandLine::Shell(text) => [self.config.shell.as_slice(), std::slice::from_ref(text)].concat(),
        }
    }

    /// Expands every word of a line.
    fn words(&self, at: &Location, text: &str) -> Result<Vec<String>, ImageBuildError> {
        self.split(text).iter().map(|word| self.word(at, word)).collect()
    }

    fn copy(
        &self,
        at: &Location,
        add: bool,
        flags: &[Flag],
        sources: &[Source],
        target: &str,
    ) -> Result<Copy, ImageBuildError> {
        let keyword = if add { "ADD" } else { "COPY" };
        let (mut chmod, mut chown, mut checksum) = (None, None, None);
        for flag in flags {
            let value = self.word(at, flag.value.as_deref().unwrap_or_default())?;
            match flag.name.as_str() {
                "from" if !add => {}
                "chown" => chown = Some(value),
                "chmod" => chmod = Some(octal_mode(at, &value)?),
                "checksum" if add => checksum = Some(value),
                // `--link` only affects Docker's cache, not the result.
                "link" => {}
                _ => return Err(unknown_flag(at, keyword, flag)),
            }
        }
        let from = copy_origin(self.dockerfile, self.index, flags).map_or(Origin::Context, Origin::Other);
        let (mut paths, mut inline, mut urls) = (Vec::new(), Vec::new(), Vec::new());
        for source in sources {
            match source {
                Source::Path(path) => {
                    let path = self.word(at, path)?;
                    match add && is_remote(&path) {
                        true if is_download(&path) => urls.push(path),
                        true => {
                            return Err(ImageBuildError::Unsupported {
                                at: at.clone(),
                                what: format!("ADD of {path}"),
                                instead: "fetch it with RUN, or put it next to the Dockerfile".to_owned(),
                            });
                        }
                        false => paths.push(path),
                    }
                }
                Source::Inline { name, text, expand } => inline.push(Inline {
                    name: file_name(at, name)?,
                    text: if *expand { self.body(at, text)? } else { text.clone() },
                }),
            }
        }
        if from != Origin::Context && !inline.is_empty() {
            let message = "a here-document cannot be combined with --from".to_owned();
            return Err(ImageBuildError::Syntax { at: at.clone(), message });
        }
        let target = self.word(at, target)?;
        let into_dir = target.is_empty()
            || target.ends_with('/')
            || target.split('/').next_back().is_some_and(|last| last == "." || last == "..");
        if !into_dir && paths.len() + inline.len() + urls.len() > 1 {
            let message = "with more than one source, the target must end with a slash".to_owned();
            return Err(ImageBuildError::Syntax { at: at.clone(), message });
        }
        Ok(Copy {
            from,
            sources: paths,
            inline,
            urls,
            checksum,
            target: self.absolute(&target),
            into_dir,
            chmod,
            chown,
            extract: add,
        })
    }

    fn absolute(&self, path: &str) -> String {
        normalise(&if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("{}/{path}", self.config.workdir)
        })
    }

    fn lookup(&self, name: &str) -> Option<String> {
        value_of(&self.args, name).or_else(|| value_of(&self.config.env, name))
    }

    fn word(&self, at: &Location, text: &str) -> Result<String, ImageBuildError> {
        let lookup = |name: &str| self.lookup(name);
        Expander::new(self.dockerfile.escape, &lookup).word(text).map_err(|error| syntax(at, &error))
    }

    fn body(&self, at: &Location, text: &str) -> Result<String, ImageBuildError> {
        let lookup = |name: &str| self.lookup(name);
        Expander::new(self.dockerfile.escape, &lookup).body(text).map_err(|error| syntax(at, &error))
    }

    fn split(&self, text: &str) -> Vec<String> {
        Expander::new(self.dockerfile.escape, &|_| None).split(text)
    }

    /// Expands pairs with the values from before the instruction, so that `ENV a=1 b=$a` uses the old `a`.
    fn pairs(&self, at: &Location, text: &str) -> Result<Vec<(String, String)>, ImageBuildError> {
        let lookup = |name: &str| self.lookup(name);
        let expander = Expander::new(self.dockerfile.escape, &lookup);
        let expand = || {
            expander
                .pairs(text)?
                .into_iter()
                .map(|(name, value)| Ok((expander.word(&name)?, expander.word(&value)?)))
                .collect::<Result<Vec<_>, ExpandError>>()
        };
        expand().map_err(|error| syntax(at, &error))
    }
}

fn is_remote(source: &str) -> bool {
    ["http://", "https://", "git://", "ssh://", "git@"].iter().any(|scheme| source.starts_with(scheme))
}

/// Whether a remote source is one file, not a repository.
fn is_download(source: &str) -> bool {
    let path = source.split(['#', '?']).next().unwrap_or_default();
    source.starts_with("http") && !path.ends_with(".git")
}

/// Checks that the delimiter of a here-document is a plain file name, not a path.
fn file_name(at: &Location, name: &str) -> Result<String, ImageBuildError> {
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        let message = format!("`{name}` cannot be the file name of a here-document; use a plain word");
        return Err(ImageBuildError::Syntax { at: at.clone(), message });
    }
    Ok(name.to_owned())
}

fn octal_mode(at: &Location, value: &str) -> Result<u32, ImageBuildError> {
    u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o7777).ok_or_else(|| {
        ImageBuildError::Unsupported {
            at: at.clone(),
            what: format!("--chmod={value}"),
            instead: "write the mode as an octal number such as 755".to_owned(),
        }
    })
}

pub(crate) fn unknown_flag(at: &Location, keyword: &str, flag: &Flag) -> ImageBuildError {
    ImageBuildError::Unsupported {
        at: at.clone(),
        what: format!("{keyword} --{}", flag.name),
        instead: "remove the flag".to_owned(),
    }
}

pub(crate) fn syntax(at: &Location, error: &ExpandError) -> ImageBuildError {
    ImageBuildError::Syntax { at: at.clone(), message: error.to_string() }
}

/// Resolves `.`, `..` and repeated slashes of an absolute path without reading the file system.
pub(crate) fn normalise(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests;
