//! Reads one task directory: checks the required files, and reports all problems.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, FileType},
    io::{self, Read},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use super::{Task, TaskFiles, TaskProblem, shown};
use crate::config::{Diagnostic, Problems, StepConfig, TaskConfig, load_task_config};
use rollout_core::name::TaskName;
use rollout_env::compose::{ComposeFile, ComposeSource};

/// A larger task.toml is a mistake or an attack.
const MAX_CONFIG_BYTES: u64 = 1024 * 1024;

/// The names of a compose file.
const COMPOSE_FILES: [&str; 2] = ["docker-compose.yaml", "docker-compose.yml"];

/// How much of an instruction is read to check that it is not empty.
const INSTRUCTION_PROBE_BYTES: u64 = 64 * 1024;

/// How a pointer of Git LFS starts, and its possible sizes. Its hash and size follow.
const LFS_POINTER_START: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";
const LFS_POINTER_BYTES: std::ops::Range<u64> = 120..1024;

/// A directory with thousands of invalid links would otherwise fill every result.json of its trials.
const MAX_PROBLEMS: usize = 20;

/// Reads a task directory.
///
/// The task's files are checked without running any, and all problems are reported at once. The second value has
/// warnings about task.toml.
pub fn load_task(dir: &Path, name: TaskName) -> Result<(Task, Vec<Diagnostic>), TaskProblem> {
    let entries = list(dir).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            TaskProblem::NotFound(format!("the directory {} does not exist", shown(dir)))
        }
        io::ErrorKind::NotADirectory => TaskProblem::NotFound(format!("{} is not a directory", shown(dir))),
        _ => TaskProblem::Invalid(format!("cannot read {}: {error}", shown(dir))),
    })?;
    let has_config = find(&entries, "task.toml").is_some();
    let mut reader = Reader { dir, entries, canonical: None, problems: Vec::new(), more: 0 };
    let config = reader.config();
    let steps = match &config {
        Some(Ok((config, _))) => config.steps.as_slice(),
        _ => &[],
    };
    let tests = reader.tree("tests").unwrap_or_default();
    let mut has_solution = reader.solution("solution");
    let in_image = match &config {
        Some(Ok((config, _))) => has_tests_in_image(config, &tests),
        _ => false,
    };
    if steps.is_empty() {
        reader.instruction("instruction.md");
        if !in_image || find(&tests, "test.sh").is_some() {
            reader.tests("tests", &tests);
        }
    } else {
        let separate = match &config {
            Some(Ok((config, _))) => steps.iter().filter(|step| config.is_step_separate(step)).collect(),
            _ => Vec::new(),
        };
        has_solution |= reader.steps(steps, &separate, in_image || find(&tests, "test.sh").is_some());
    }
    let environment = reader.tree("environment").unwrap_or_default();
    let compose = reader.compose("environment", &environment);
    let tests_compose = reader.compose("tests", &tests);
    let files = TaskFiles {
        dockerfile: find(&environment, "Dockerfile").is_some(),
        startup: has_startup(&dir.join("environment")),
        tests_dockerfile: find(&tests, "Dockerfile").is_some(),
        // Without an image that may have them, missing tests are a problem of the task.
        tests_only_in_image: find(&tests, "test.sh").is_none() && lacks_tests(dir, steps),
        trajectory: match steps.first() {
            Some(first) => Some(dir.join("steps").join(&first.name).join("trajectory.json"))
                .filter(|path| path.is_file()),
            None => find(&reader.entries, "trajectory.json").map(|_| dir.join("trajectory.json")),
        },
    };
    match config {
        Some(Ok((config, warnings))) if reader.problems.is_empty() => {
            let dir = dir.to_owned();
            let (context, tests) = (dir.join("environment"), dir.join("tests"));
            let is_harbor = config.is_made_for_harbor;
            let task = Task {
                name,
                dir,
                context,
                tests,
                config,
                git_commit_id: None,
                url: None,
                has_solution,
                has_config,
                is_harbor,
                files,
                compose,
                tests_compose,
            };
            Ok((task, warnings))
        }
        Some(Err(problems)) => Err(TaskProblem::Invalid(reader.summary(Some(&problems)))),
        _ => Err(TaskProblem::Invalid(reader.summary(None))),
    }
}

/// Whether a directory has entries of a task, complete or not.
pub(super) fn looks_like_task(dir: &Path) -> bool {
    ["instruction.md", "task.toml", "tests", "environment", "solution", "steps"]
        .iter()
        .any(|name| fs::symlink_metadata(dir.join(name)).is_ok())
}

type Entries = Vec<(OsString, FileType)>;

/// The name of the compose file of a directory.
fn compose_name(entries: &Entries) -> Option<&'static str> {
    COMPOSE_FILES.into_iter().find(|name| find(entries, name).is_some())
}

/// The compose file of a directory of a task.
pub(crate) fn compose_file(dir: &Path) -> Option<PathBuf> {
    COMPOSE_FILES.into_iter().map(|name| dir.join(name)).find(|path| path.is_file())
}

fn list(dir: &Path) -> io::Result<Entries> {
    fs::read_dir(dir)?
        .map(|entry| entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?))))
        .collect()
}

fn find(entries: &Entries, name: &str) -> Option<FileType> {
    entries.iter().find(|(entry, _)| entry == OsStr::new(name)).map(|(_, kind)| *kind)
}

/// Collects the problems of one task directory.
struct Reader<'a> {
    dir: &'a Path,
    entries: Entries,
    /// The directory without symbolic links; resolved only if a link must be checked.
    canonical: Option<PathBuf>,
    problems: Vec<String>,
    /// How many problems are not in the list.
    more: usize,
}

/// Whether a task without tests/test.sh needs it.
fn lacks_tests(dir: &Path, steps: &[StepConfig]) -> bool {
    let has_own = |step: &StepConfig| dir.join("steps").join(&step.name).join("tests/test.sh").is_file();
    steps.is_empty() || !steps.iter().all(has_own)
}

/// Whether the image of the tests has them, so that the task need not if the rules of Harbor apply.
fn has_tests_in_image(config: &TaskConfig, tests: &Entries) -> bool {
    let has_image = config.tests_image().is_some() || find(tests, "Dockerfile").is_some();
    config.is_separate() && has_image
}

impl Reader<'_> {
    fn instruction(&mut self, path: &str) {
        let Ok(metadata) = fs::symlink_metadata(self.dir.join(path)) else {
            return self.problem(format!("{path} is missing"));
        };
        if !self.is_file(Path::new(path), metadata.file_type()) {
            return;
        }
        match read_at_most(&self.dir.join(path), INSTRUCTION_PROBE_BYTES) {
            Ok(text) if text.trim_ascii().is_empty() => self.problem(format!("{path} is empty")),
            Ok(_) => {}
            Err(error) => self.problem(format!("cannot read {path}: {error}")),
        }
    }

    /// Checks test.sh in a directory with these entries.
    fn tests(&mut self, dir: &str, entries: &Entries) {
        let invalid = find(&self.entries, "tests").is_some_and(|kind| !kind.is_dir());
        match find(entries, "test.sh") {
            Some(kind) => {
                self.is_file(&Path::new(dir).join("test.sh"), kind);
            }
            None if invalid => {}
            None => self.problem(format!("{dir}/test.sh is missing")),
        }
    }

    /// Whether a directory has a solution.
    fn solution(&mut self, dir: &str) -> bool {
        let script = self.tree(dir).and_then(|entries| find(&entries, "solve.sh"));
        script.is_some_and(|kind| self.is_file(&Path::new(dir).join("solve.sh"), kind))
    }

    /// Checks the directories of steps. Returns whether each has a solution.
    fn steps(&mut self, steps: &[StepConfig], separate: &[&StepConfig], has_shared_tests: bool) -> bool {
        let mut solved = true;
        for step in steps {
            let dir = format!("steps/{}", step.name);
            if !fs::symlink_metadata(self.dir.join(&dir)).is_ok_and(|found| found.is_dir()) {
                self.problem(format!("`steps`: {dir} is missing, or not a directory"));
                continue;
            }
            self.instruction(&format!("{dir}/instruction.md"));
            let tests = self.tree(&format!("{dir}/tests")).unwrap_or_default();
            let own = step.verifier_own_environment.as_ref();
            let has_image =
                own.is_some_and(|own| own.docker_image.is_some()) || find(&tests, "Dockerfile").is_some();
            let in_image = has_image && separate.contains(&step);
            if !has_shared_tests && !in_image || find(&tests, "test.sh").is_some() {
                self.tests(&format!("{dir}/tests"), &tests);
            }
            self.tree(&format!("{dir}/workdir"));
            solved &= self.solution(&format!("{dir}/solution"));
        }
        solved
    }

    /// The compose file of a directory. Its variables are expanded when a job is planned.
    fn compose(&mut self, dir: &str, entries: &Entries) -> Option<Arc<ComposeFile>> {
        let name = compose_name(entries)?;
        let kind = find(entries, name)?;
        if !self.is_file(&Path::new(dir).join(name), kind) {
            return None;
        }
        let file = self.dir.join(dir).join(name);
        match ComposeFile::load(&ComposeSource { file: &file, task_dir: self.dir, vars: None }) {
            Ok(compose) => Some(Arc::new(compose)),
            Err(problems) => {
                self.problem(problems.render(false));
                None
            }
        }
    }

    /// The content of task.toml, if it can be read.
    fn config(&mut self) -> Option<Result<(TaskConfig, Vec<Diagnostic>), Problems>> {
        let path = self.dir.join("task.toml");
        let text = match find(&self.entries, "task.toml") {
            None => String::new(),
            Some(kind) => {
                if !self.is_file(Path::new("task.toml"), kind) {
                    return None;
                }
                read_config(&path).map_err(|problem| self.problem(problem)).ok()?
            }
        };
        Some(load_task_config(&path, &text))
    }

    /// Checks everything below one of the task's directories. Returns its entries, or none if it is missing or invalid.
    fn tree(&mut self, name: &str) -> Option<Entries> {
        let kind = fs::symlink_metadata(self.dir.join(name)).ok()?.file_type();
        if !kind.is_dir() {
            // A symbolic link is rejected even if it stays inside: the directory is copied as a whole, without the
            // target of the link.
            self.problem(format!("{name} must be a directory"));
            return None;
        }
        let mut own = None;
        let mut pending = vec![PathBuf::from(name)];
        while let Some(relative) = pending.pop() {
            let entries = match list(&self.dir.join(&relative)) {
                Ok(entries) => entries,
                Err(error) => {
                    self.problem(format!("cannot read {}: {error}", shown(&relative)));
                    continue;
                }
            };
            for (entry, kind) in &entries {
                let path = || relative.join(entry);
                if kind.is_dir() {
                    pending.push(path());
                } else if kind.is_symlink() {
                    self.link_stays_inside(&path());
                } else if !kind.is_file() {
                    self.problem(format!("{} is neither a file nor a directory", shown(&path())));
                } else if is_lfs_pointer(&self.dir.join(path())) {
                    self.problem(format!(
                        "{} is only a pointer of Git LFS; run `git lfs pull` in a clone of the repository, and use the \
                         directory of the clone",
                        shown(&path())
                    ));
                }
            }
            own.get_or_insert(entries);
        }
        own
    }

    /// Whether a path is a regular file, or a symbolic link to one inside the task.
    fn is_file(&mut self, relative: &Path, kind: FileType) -> bool {
        if kind.is_symlink() && !self.link_stays_inside(relative) {
            return false;
        }
        let good =
            kind.is_file() || fs::metadata(self.dir.join(relative)).is_ok_and(|target| target.is_file());
        if !good {
            self.problem(format!("{} must be a regular file", shown(relative)));
        }
        good
    }

    fn link_stays_inside(&mut self, relative: &Path) -> bool {
        let inside = match fs::canonicalize(self.dir.join(relative)) {
            Ok(target) => self.canonical_dir().is_some_and(|dir| target.starts_with(dir)),
            // The target does not exist, so only the text of the link can be checked.
            Err(_) => fs::read_link(self.dir.join(relative))
                .is_ok_and(|target| stays_inside(relative.parent().unwrap_or(Path::new("")), &target)),
        };
        if !inside {
            self.problem(format!("{} is a symbolic link to outside of the task", shown(relative)));
        }
        inside
    }

    fn canonical_dir(&mut self) -> Option<&Path> {
        if self.canonical.is_none() {
            self.canonical = fs::canonicalize(self.dir).ok();
        }
        self.canonical.as_deref()
    }

    fn problem(&mut self, text: impl Into<String>) {
        let text = text.into();
        if self.problems.len() == MAX_PROBLEMS {
            self.more += 1;
        } else if !self.problems.contains(&text) {
            // An invalid link is reported only once, even if it is also a required file.
            self.problems.push(text);
        }
    }

    fn summary(&self, config: Option<&Problems>) -> String {
        let mut lines = Vec::new();
        if !self.problems.is_empty() {
            lines.push(format!("{} is not a complete task:", shown(self.dir)));
        }
        lines.extend(self.problems.iter().map(|problem| format!("- {problem}")));
        if self.more > 0 {
            lines.push(format!("- and {} more", self.more));
        }
        lines.extend(config.map(|problems| problems.render(false)));
        lines.join("\n")
    }
}

/// Whether a link's target, relative to a directory of the task, stays inside the task.
fn stays_inside(from: &Path, target: &Path) -> bool {
    let mut depth = from.components().count();
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return false,
            },
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

/// Whether the last stage of the Dockerfile in a directory has an entrypoint or a health check.
pub(super) fn has_startup(dir: &Path) -> bool {
    let Ok(dockerfile) = read_at_most(&dir.join("Dockerfile"), MAX_CONFIG_BYTES) else { return false };
    let text = String::from_utf8_lossy(&dockerfile).to_uppercase();
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.fold(false, |found, words| match words.as_slice() {
        ["FROM", ..] | ["ENTRYPOINT", "[]"] | ["HEALTHCHECK", "NONE"] => false,
        ["ENTRYPOINT" | "HEALTHCHECK", ..] => true,
        _ => found,
    })
}

/// Whether a file has the place of another one that Git LFS did not fetch. A task with it would run with wrong data.
fn is_lfs_pointer(file: &Path) -> bool {
    let Ok(metadata) = fs::symlink_metadata(file) else { return false };
    LFS_POINTER_BYTES.contains(&metadata.len())
        && read_at_most(file, LFS_POINTER_START.len() as u64).is_ok_and(|start| start == LFS_POINTER_START)
}

fn read_at_most(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_config(path: &Path) -> Result<String, String> {
    let bytes = read_at_most(path, MAX_CONFIG_BYTES + 1)
        .map_err(|error| format!("cannot read task.toml: {error}"))?;
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        return Err("task.toml is larger than 1 MiB".to_owned());
    }
    String::from_utf8(bytes)
        .map_err(|error| format!("task.toml is not UTF-8: invalid byte {}", error.utf8_error().valid_up_to()))
}
