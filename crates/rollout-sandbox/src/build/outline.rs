//! The steps of a Dockerfile in a form for builders of other machines, which know commands and files and nothing else.

use std::{collections::BTreeSet, io::Write, path::Path, sync::Arc};

use super::{
    ImageBuildError, Location,
    context::{Context, ContextArchive, CopyFailure, Selected},
    plan::{self, Action, Copy, Inline, Invocation, Origin, Run},
    read,
    stages::{self, Base},
};
use crate::image::ImageConfig;

/// Surrounds the name of a variable that only the base image may define, in values of [`Outline`].
pub const UNKNOWN_VARIABLE: (char, char) = ('\u{1}', '\u{2}');

/// What a Dockerfile of one stage does, with all variables expanded that it defines itself.
#[derive(Debug)]
pub struct Outline {
    /// The base image.
    pub base: String,
    /// The steps that change files, in order.
    pub steps: Vec<OutlineStep>,
    /// The variables that the Dockerfile sets for containers.
    pub env: Vec<(String, String)>,
    /// The directory in which containers start; `/` if the Dockerfile sets none.
    pub workdir: String,
    /// The user of containers, if the Dockerfile names one.
    pub user: Option<String>,
}

/// One step.
#[derive(Debug)]
pub struct OutlineStep {
    /// The instruction.
    pub at: Location,
    /// What it does.
    pub action: OutlineAction,
}

/// What a step does.
#[derive(Debug)]
pub enum OutlineAction {
    /// Creates directories. New ones belong to `owner`, or to root.
    MakeDirs {
        /// Absolute paths.
        paths: Vec<String>,
        /// The owner.
        owner: Option<String>,
    },
    /// Runs a command.
    Run {
        /// The program and its arguments. Of a script, only the script's own.
        command: OutlineCommand,
        /// The variables that the Dockerfile sets.
        env: Vec<(String, String)>,
        /// The directory.
        cwd: String,
        /// The user, or root.
        user: Option<String>,
    },
    /// Copies a file or a directory.
    Copy(OutlineCopy),
}

/// How a command is started.
#[derive(Debug)]
pub enum OutlineCommand {
    /// The program and its arguments.
    Argv(Vec<String>),
    /// A text that starts with `#!`, executed as a file.
    Script(String),
}

/// A file, or the content of a directory, to copy.
#[derive(Debug)]
pub struct OutlineCopy {
    /// The target: a directory if it ends with a slash, otherwise a file, unless a directory has this name.
    pub target: String,
    /// The owner, as `user`, `user:group` or numbers; root if absent.
    pub owner: Option<String>,
    /// The mode of all copied files.
    pub mode: Option<u32>,
    source: CopySource,
}

#[derive(Debug)]
enum CopySource {
    Selected { context: Arc<Context>, selected: Selected },
    Inline(Inline),
}

impl OutlineCopy {
    /// The name of the file or directory in the archive.
    pub fn name(&self) -> String {
        match &self.source {
            CopySource::Selected { selected, .. } if selected.name.is_empty() => "context".to_owned(),
            CopySource::Selected { selected, .. } => selected.name.to_string_lossy().into_owned(),
            CopySource::Inline(inline) => inline.name.clone(),
        }
    }

    /// Writes a tar archive with the file, or with the directory. Blocks.
    pub fn pack(&self, writer: impl Write) -> Result<(), CopyFailure> {
        let mut archive = ContextArchive::new(writer);
        let name = self.name();
        let path = Path::new(&name);
        match &self.source {
            CopySource::Selected { context, selected } => context.pack(selected, &mut archive, path)?,
            CopySource::Inline(inline) => {
                let size = inline.text.len() as u64;
                let added =
                    archive.add(tar::EntryType::Regular, 0o644, path, inline.text.as_bytes(), (0, size));
                added.map_err(CopyFailure::io(path))?;
            }
        }
        archive.finish().map_err(CopyFailure::io(path))
    }
}

/// Reads a Dockerfile of one stage. Blocks.
pub fn outline(context: &Path, dockerfile: &Path) -> Result<Outline, ImageBuildError> {
    let (text, dockerfile, context) = read(context, dockerfile)?;
    let bases = stages::bases(&dockerfile)?;
    let needed = stages::needed_stages(&dockerfile, &bases);
    let (&last, earlier) = needed.split_last().expect("the last stage is needed");
    if let Some(stage) = earlier.last() {
        let at = dockerfile.stages[*stage].at.clone();
        let what = "a Dockerfile with several stages".to_owned();
        let instead = "put the steps into one stage, or name a built image as `docker_image`".to_owned();
        return Err(ImageBuildError::Unsupported { at, what, instead });
    }
    let Base::Image(base) = &bases[last] else {
        let at = dockerfile.stages[last].at.clone();
        let what = "an image without a base".to_owned();
        let instead = "start from an image".to_owned();
        return Err(ImageBuildError::Unsupported { at, what, instead });
    };
    let unknown = undefined_names(&text);
    let env = unknown.iter().map(|name| (name.clone(), marked(name))).collect();
    let config = ImageConfig { env, ..ImageConfig::default() };
    let planned = plan::plan(&dockerfile, last, &config, &[])?;
    let own = |env: Vec<(String, String)>| -> Vec<(String, String)> {
        env.into_iter().filter(|(name, value)| *value != marked(name)).collect()
    };
    let mut steps = Vec::new();
    for step in planned.steps {
        let at = step.at;
        match step.action {
            Action::Nothing => {}
            Action::MakeDirs { paths, owner } => {
                for path in &paths {
                    known(&at, path)?;
                }
                steps.push(OutlineStep { at, action: OutlineAction::MakeDirs { paths, owner } });
            }
            Action::Run(Run { command, env, cwd, user, mounts }) => {
                if !mounts.is_empty() {
                    let what = "RUN --mount".to_owned();
                    let instead = "copy the files with COPY".to_owned();
                    return Err(ImageBuildError::Unsupported { at, what, instead });
                }
                let command = match command {
                    Invocation::Argv(argv) => OutlineCommand::Argv(argv),
                    Invocation::Script(text) => OutlineCommand::Script(text),
                };
                let action = OutlineAction::Run { command, env: own(env), cwd, user };
                steps.push(OutlineStep { at, action });
            }
            Action::Copy(copy) => {
                for copy in copies(&at, &context, copy)? {
                    steps.push(OutlineStep { at: at.clone(), action: OutlineAction::Copy(copy) });
                }
            }
        }
    }
    let config = planned.config;
    Ok(Outline {
        base: base.clone(),
        steps,
        env: own(config.env),
        workdir: if config.workdir.is_empty() { "/".to_owned() } else { config.workdir },
        user: config.user,
    })
}

/// A copy for each source.
fn copies(at: &Location, context: &Arc<Context>, copy: Copy) -> Result<Vec<OutlineCopy>, ImageBuildError> {
    let unsupported = |what: &str, instead: &str| ImageBuildError::Unsupported {
        at: at.clone(),
        what: what.to_owned(),
        instead: instead.to_owned(),
    };
    if copy.from != Origin::Context {
        return Err(unsupported("COPY --from", "put the files next to the Dockerfile"));
    }
    if !copy.urls.is_empty() {
        return Err(unsupported("ADD of a remote file", "fetch it with RUN"));
    }
    known(at, &copy.target)?;
    let mut sources = Vec::new();
    for source in &copy.sources {
        known(at, source)?;
        let found = context.select(source);
        let found = found.map_err(|source| ImageBuildError::FilesFailed { at: at.clone(), source })?;
        for selected in found {
            if copy.extract && !selected.is_dir && is_archive(&selected.name.to_string_lossy()) {
                return Err(unsupported("ADD of an archive", "copy it with COPY, and unpack it with RUN"));
            }
            sources.push(CopySource::Selected { context: Arc::clone(context), selected });
        }
    }
    sources.extend(copy.inline.into_iter().map(CopySource::Inline));
    if !copy.into_dir && sources.len() > 1 {
        let source = CopyFailure::SeveralIntoFile;
        return Err(ImageBuildError::FilesFailed { at: at.clone(), source });
    }
    let target = match copy.target.as_str() {
        "/" => "/".to_owned(),
        target if copy.into_dir => format!("{target}/"),
        target => target.to_owned(),
    };
    let (owner, mode) = (copy.chown, copy.chmod);
    Ok(sources
        .into_iter()
        .map(|source| OutlineCopy { target: target.clone(), owner: owner.clone(), mode, source })
        .collect())
}

fn is_archive(name: &str) -> bool {
    [".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tar.zst"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Refuses a path with a variable that the Dockerfile does not define.
fn known(at: &Location, path: &str) -> Result<(), ImageBuildError> {
    if !path.contains(UNKNOWN_VARIABLE.0) {
        return Ok(());
    }
    Err(ImageBuildError::Unsupported {
        at: at.clone(),
        what: "a path with a variable of the base image".to_owned(),
        instead: "define the variable in the Dockerfile".to_owned(),
    })
}

fn marked(name: &str) -> String {
    format!("{}{name}{}", UNKNOWN_VARIABLE.0, UNKNOWN_VARIABLE.1)
}

/// The names of variables in a Dockerfile. A name that has a default somewhere is left out: it is expanded here.
fn undefined_names(text: &str) -> BTreeSet<String> {
    let (mut plain, mut other) = (BTreeSet::new(), BTreeSet::new());
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for part in text.split('$').skip(1) {
        let (braced, rest) = match part.strip_prefix('{') {
            Some(rest) => (true, rest),
            None => (false, part),
        };
        let name: String = rest.chars().take_while(|c| is_name(*c)).collect();
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        if braced && !rest[name.len()..].starts_with('}') {
            other.insert(name);
        } else {
            plain.insert(name);
        }
    }
    &plain - &other
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A context with the directory `src` and a Dockerfile.
    fn context(text: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("src")).unwrap();
        fs::write(dir.path().join("src/a.txt"), "a").unwrap();
        fs::write(dir.path().join("Dockerfile"), text).unwrap();
        dir
    }

    fn outlined(dir: &Path) -> Result<Outline, ImageBuildError> {
        outline(dir, &dir.join("Dockerfile"))
    }

    #[test]
    fn steps_have_absolute_paths_and_only_the_variables_of_the_dockerfile() {
        let text =
            "FROM base\nARG V=1\nENV PATH=/x:$PATH A=$V\nWORKDIR app\nCOPY src sub/\nUSER u\nRUN make\n";
        let dir = context(text);
        let outline = outlined(dir.path()).unwrap();
        assert_eq!((outline.base.as_str(), outline.workdir.as_str()), ("base", "/app"));
        assert_eq!(outline.user.as_deref(), Some("u"));
        let path = ("PATH".to_owned(), "/x:\u{1}PATH\u{2}".to_owned());
        assert_eq!(outline.env, [path.clone(), ("A".to_owned(), "1".to_owned())]);
        let [dirs, copy, run] = &outline.steps[..] else { panic!("{outline:?}") };
        assert!(matches!(&dirs.action, OutlineAction::MakeDirs { paths, .. } if paths == &["/app"]));
        let OutlineAction::Copy(copy) = &copy.action else { panic!("{copy:?}") };
        assert_eq!((copy.name().as_str(), copy.target.as_str()), ("src", "/app/sub/"));
        let mut packed = Vec::new();
        copy.pack(&mut packed).unwrap();
        let OutlineAction::Run { env, cwd, user, .. } = &run.action else { panic!("{run:?}") };
        assert_eq!((cwd.as_str(), user.as_deref()), ("/app", Some("u")));
        assert!(env.contains(&path) && env.contains(&("V".to_owned(), "1".to_owned())), "{env:?}");
    }

    #[test]
    fn what_cannot_be_outlined_is_refused() {
        for (text, words) in [
            ("FROM a AS one\nFROM b\nCOPY --from=one /x /x\n", "several stages"),
            ("FROM b\nCOPY --from=other /x /x\n", "COPY --from"),
            ("FROM b\nADD http://example.com/x /x\n", "remote file"),
            ("FROM b\nCOPY src $HOME/x\n", "variable of the base image"),
        ] {
            let error = outlined(context(text).path()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
