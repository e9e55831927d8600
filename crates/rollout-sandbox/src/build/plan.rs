//! Plans the stages of a parsed Dockerfile: expands every variable and makes every path absolute.
//!
//! Nothing runs here. A `RUN` cannot change the meaning of a later instruction, so a whole stage can be planned
//! once the configuration of its base image is known. The plan determines the cache key.

use super::error::ImageBuildError;
use super::expand::{ExpandError, Expander, set, value_of};
use super::parse::{Dockerfile, Flag, Kind, Location, RunCommand, Source};
use super::stages::{Base, copy_origin, global_args, platform_args};
use crate::image::ImageConfig;

/// A stage that is ready to run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// The configuration at the end of the stage.
    pub(crate) config: ImageConfig,
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
    /// The directories of cache and tmpfs mounts, which are ordinary directories here.
    pub(crate) mounts: Vec<String>,
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

/// Plans a stage on a base image with the given configuration.
pub(crate) fn plan(
    dockerfile: &Dockerfile,
    index: usize,
    base: &ImageConfig,
) -> Result<Plan, ImageBuildError> {
    let mut planner = Planner {
        dockerfile,
        index,
        globals: global_args(dockerfile)?,
        args: Vec::new(),
        config: base.clone(),
    };
    let mut steps = Vec::new();
    for instruction in &dockerfile.stages[index].instructions {
        let action = planner.action(&instruction.at, &instruction.kind)?;
        steps.push(Step { at: instruction.at.clone(), action });
    }
    Ok(Plan { steps, config: planner.config })
}

/// The state that the instructions of a stage build up.
struct Planner<'a> {
    dockerfile: &'a Dockerfile,
    index: usize,
    globals: Vec<(String, String)>,
    args: Vec<(String, String)>,
    config: ImageConfig,
}

impl Planner<'_> {
    fn action(&mut self, at: &Location, kind: &Kind) -> Result<Action, ImageBuildError> {
        match kind {
            Kind::NoEffect => {}
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
                    .map(|path| Ok(self.absolute(&self.word(at, path)?)))
                    .collect::<Result<_, ImageBuildError>>()?;
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
                ("mount", value) => mounts.push(self.mount(at, value)?),
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
            if value_of(&env, name).is_none() {
                env.push((name.clone(), value.clone()));
            }
        }
        Ok(Run { command, env, cwd: self.config.workdir.clone(), user: self.config.user.clone(), mounts })
    }

    /// Parses `--mount` and returns the directory that must exist for it.
    fn mount(&self, at: &Location, value: &str) -> Result<String, ImageBuildError> {
        let field = |names: &[&str]| {
            value
                .split(',')
                .filter_map(|field| field.split_once('='))
                .find(|(name, _)| names.contains(name))
                .map(|(_, value)| value)
        };
        let kind = field(&["type"]).unwrap_or("bind");
        if !matches!(kind, "cache" | "tmpfs") {
            return Err(ImageBuildError::Unsupported {
                at: at.clone(),
                what: format!("RUN --mount=type={kind}"),
                instead: "bring the files in with COPY".to_owned(),
            });
        }
        match field(&["target", "dst", "destination"]) {
            Some(target) => Ok(self.absolute(target)),
            None => {
                let message = "the mount has no target=".to_owned();
                Err(ImageBuildError::Syntax { at: at.clone(), message })
            }
        }
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
        let (mut chmod, mut chown) = (None, None);
        for flag in flags {
            let value = self.word(at, flag.value.as_deref().unwrap_or_default())?;
            match flag.name.as_str() {
                "from" if !add => {}
                "chown" => chown = Some(value),
                "chmod" => chmod = Some(octal_mode(at, &value)?),
                // `--link` only affects Docker's cache, not the result.
                "link" => {}
                _ => return Err(unknown_flag(at, keyword, flag)),
            }
        }
        let from = copy_origin(self.dockerfile, self.index, flags).map_or(Origin::Context, Origin::Other);
        let (mut paths, mut inline) = (Vec::new(), Vec::new());
        for source in sources {
            match source {
                Source::Path(path) => {
                    let path = self.word(at, path)?;
                    if add && is_remote(&path) {
                        return Err(ImageBuildError::Unsupported {
                            at: at.clone(),
                            what: format!("ADD of {path}"),
                            instead: "fetch it with RUN, or put it next to the Dockerfile".to_owned(),
                        });
                    }
                    paths.push(path);
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
        if !into_dir && paths.len() + inline.len() > 1 {
            let message = "with more than one source, the target must end with a slash".to_owned();
            return Err(ImageBuildError::Syntax { at: at.clone(), message });
        }
        Ok(Copy {
            from,
            sources: paths,
            inline,
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
        value_of(&self.config.env, name).or_else(|| value_of(&self.args, name))
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
mod tests {
    use super::*;
    use crate::build::parse::parse;
    use crate::build::stages::{bases, docker_arch};

    fn base() -> ImageConfig {
        ImageConfig {
            env: vec![("PATH".to_owned(), "/bin".to_owned())],
            workdir: "/".to_owned(),
            user: None,
            shell: vec!["/bin/sh".to_owned(), "-c".to_owned()],
            labels: Default::default(),
        }
    }

    fn last_stage(text: &str) -> Result<Plan, ImageBuildError> {
        let dockerfile = parse(text)?;
        bases(&dockerfile)?;
        plan(&dockerfile, dockerfile.stages.len() - 1, &base())
    }

    /// The actions of the last stage, one per line, in readable form.
    fn actions(text: &str) -> String {
        let plan = match last_stage(text) {
            Ok(plan) => plan,
            Err(error) => return error.to_string(),
        };
        let line = |step: &Step| match &step.action {
            Action::Nothing => "nothing".to_owned(),
            Action::MakeDirs { paths, owner } => format!("mkdir {paths:?} owner {owner:?}"),
            Action::Run(run) => {
                let env: Vec<_> = run.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!("run {:?} in {} as {:?} with {env:?}{:?}", run.command, run.cwd, run.user, run.mounts)
            }
            Action::Copy(copy) => {
                let Copy { from, sources, inline, target, into_dir, chmod, chown, extract } = copy;
                format!(
                    "copy {from:?} {sources:?} {inline:?} to {target} dir {into_dir} {chmod:?} {chown:?} {extract}"
                )
            }
        };
        plan.steps.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_configuration_follows_the_instructions() {
        let plan = last_stage(
            "FROM x\nENV A=1 B=\"two words\"\nENV A=2 C=$A-$B\nENV D old form $A\nWORKDIR /srv\nWORKDIR app/../lib\n\
             USER $D\nUSER nobody\nSHELL [\"/bin/bash\", \"-ec\"]\nLABEL v=\"$A\" w=x\nCMD [\"x\"]\nEXPOSE 80\n",
        )
        .unwrap();
        let env: Vec<_> = plan.config.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(env, ["PATH=/bin", "A=2", "B=two words", "C=1-two words", "D=old form 2"]);
        assert_eq!(plan.config.workdir, "/srv/lib");
        assert_eq!(plan.config.user.as_deref(), Some("nobody"));
        assert_eq!(plan.config.shell, ["/bin/bash", "-ec"]);
        assert_eq!(plan.config.labels.get("v").map(String::as_str), Some("2"));
    }

    #[test]
    fn a_run_sees_the_arguments_in_scope_but_the_image_does_not() {
        let text = "ARG G=global\nARG UNUSED=1\nFROM x\nRUN a\nARG G\nARG A=1 B=$A PATH=lost\nENV A=env\nARG NONE\nRUN b $A\n";
        insta::assert_snapshot!(actions(text), @r#"
        run Argv(["/bin/sh", "-c", "a"]) in / as None with ["PATH=/bin"][]
        nothing
        nothing
        nothing
        nothing
        run Argv(["/bin/sh", "-c", "b $A"]) in / as None with ["PATH=/bin", "A=env", "G=global", "B=1"][]
        "#);
        assert_eq!(last_stage(text).unwrap().config.env.len(), 2);
    }

    #[test]
    fn the_forms_of_run() {
        insta::assert_snapshot!(actions(
            "FROM x\nWORKDIR /w\nUSER u:g\nSHELL [\"bash\", \"-c\"]\nRUN [\"echo\", \"$A\"]\nRUN <<E\none\nE\n\
             RUN <<E\n#!/usr/bin/python3\nE\nRUN --mount=type=cache,target=cache --mount=type=tmpfs,dst=/t x\n"
        ), @r##"
        mkdir ["/w"] owner None
        nothing
        nothing
        run Argv(["echo", "$A"]) in /w as Some("u:g") with ["PATH=/bin"][]
        run Argv(["bash", "-c", "one\n"]) in /w as Some("u:g") with ["PATH=/bin"][]
        run Script("#!/usr/bin/python3\n") in /w as Some("u:g") with ["PATH=/bin"][]
        run Argv(["bash", "-c", "x"]) in /w as Some("u:g") with ["PATH=/bin"]["/w/cache", "/t"]
        "##);
    }

    #[test]
    fn the_forms_of_copy() {
        insta::assert_snapshot!(actions(
            "FROM a AS one\nFROM x\nARG D=dir\nWORKDIR /w\nCOPY a.txt .\nCOPY a b $D/\nCOPY [\"a b\", \"/c d\"]\nADD x.tar.gz /x\n\
             COPY --from=one --chmod=0755 --chown=$D:g /bin/x /bin/\nCOPY --from=0 a b\nCOPY --from=img:1 --link a b\n\
             COPY <<E <<'F' /etc/\nv $D\nE\nv $D\nF\n"
        ), @r#"
        nothing
        mkdir ["/w"] owner None
        copy Context ["a.txt"] [] to /w dir true None None false
        copy Context ["a", "b"] [] to /w/dir dir true None None false
        copy Context ["a b"] [] to /c d dir false None None false
        copy Context ["x.tar.gz"] [] to /x dir false None None true
        copy Other(Stage(0)) ["/bin/x"] [] to /bin dir true Some(493) Some("dir:g") false
        copy Other(Stage(0)) ["a"] [] to /w/b dir false None None false
        copy Other(Image("img:1")) ["a"] [] to /w/b dir false None None false
        copy Context [] [Inline { name: "E", text: "v dir\n" }, Inline { name: "F", text: "v $D\n" }] to /etc dir true None None false
        "#);
    }

    #[test]
    fn unsupported_instructions_are_reported_with_their_line_and_advice() {
        let all = [
            "FROM x\nADD https://example.com/a /a\n",
            "FROM x\nRUN --mount=type=secret,id=s cat /run/secrets/s\n",
            "FROM x\nRUN --mount=target=/a ls\n",
            "FROM x\nRUN --mount=type=cache ls\n",
            "FROM x\nRUN --network=none ls\n",
            "FROM x\nRUN --security=insecure ls\n",
            "FROM x\nCOPY --parents a b\n",
            "FROM x\nCOPY --chmod=u+x a b\n",
            "FROM x\nCOPY a b c\n",
            "FROM x\nCOPY --from=y <<E /e\nE\n",
            "FROM x\nCOPY <<\"/tmp/victim\" /t/\n/tmp/victim\n",
            "FROM x\nCOPY <<../../victim /t/\n../../victim\n",
            "FROM x\nCOPY <<\"..\" /t/\n..\n",
            "FROM x\nADD <<a/b /t\na/b\n",
            "FROM x\nENV A\n",
            "FROM x\nENV A=\"b\n",
            "FROM --platform=windows/mips x\n",
            "FROM ${NOTHING}\n",
            "FROM x\nUSER $NOTHING\n",
        ]
        .map(actions)
        .join("\n")
        .replace(docker_arch(), "ARCH");
        insta::assert_snapshot!(all, @r#"
        Dockerfile line 2 `ADD https://example.com/a /a`: ADD of https://example.com/a is not supported; fetch it with RUN, or put it next to the Dockerfile
        Dockerfile line 2 `RUN --mount=type=secret,id=s cat /run/secrets/s`: RUN --mount=type=secret is not supported; bring the files in with COPY
        Dockerfile line 2 `RUN --mount=target=/a ls`: RUN --mount=type=bind is not supported; bring the files in with COPY
        Dockerfile line 2 `RUN --mount=type=cache ls`: the mount has no target=
        Dockerfile line 2 `RUN --network=none ls`: RUN --network=none is not supported; remove the flag; a build has the network of its environment
        Dockerfile line 2 `RUN --security=insecure ls`: RUN --security is not supported; remove the flag
        Dockerfile line 2 `COPY --parents a b`: COPY --parents is not supported; remove the flag
        Dockerfile line 2 `COPY --chmod=u+x a b`: --chmod=u+x is not supported; write the mode as an octal number such as 755
        Dockerfile line 2 `COPY a b c`: with more than one source, the target must end with a slash
        Dockerfile line 2 `COPY --from=y <<E /e`: a here-document cannot be combined with --from
        Dockerfile line 2 `COPY <<"/tmp/victim" /t/`: `/tmp/victim` cannot be the file name of a here-document; use a plain word
        Dockerfile line 2 `COPY <<../../victim /t/`: `../../victim` cannot be the file name of a here-document; use a plain word
        Dockerfile line 2 `COPY <<".." /t/`: `..` cannot be the file name of a here-document; use a plain word
        Dockerfile line 2 `ADD <<a/b /t`: `a/b` cannot be the file name of a here-document; use a plain word
        Dockerfile line 2 `ENV A`: `A` is not of the form key=value
        Dockerfile line 2 `ENV A="b`: a " quote is not closed
        Dockerfile line 1 `FROM --platform=windows/mips x`: the platform windows/mips is not supported; this machine runs linux/ARCH
        Dockerfile line 1 `FROM ${NOTHING}`: `${NOTHING}` is empty after its variables are replaced
        Dockerfile line 2 `USER $NOTHING`: the user is empty
        "#);
    }
}
