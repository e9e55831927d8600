//! `rollout logs`: the output of a trial, also while it runs, and its conversation.

mod filter;

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read as _, Write},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use rollout::{
    live,
    model::{Message, Messages},
    record::layout::{JobDir, TrialDir, open_below},
};

use self::filter::Filter;
use super::trial_path::{self, FoundTrial, TrialPathError};
use crate::{
    args::{LogPhase, Logs},
    exit::{Exit, Failure, hinted},
    report::{
        quoted,
        text::{BOLD, DIM, paint, printable},
    },
};

/// How often a followed file is read.
const POLL: Duration = Duration::from_millis(200);

/// How often a followed conversation is read. All of it is read each time.
const CONVERSATION_POLL: Duration = Duration::from_secs(1);

/// How much is read at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Prints the output or the conversation of a trial.
pub(crate) fn run(args: &Logs) -> Result<Exit, Failure> {
    let mut found = trial_path::find(&args.trial).map_err(hinted(TrialPathError::hint))?;
    if args.conversation {
        return conversation(args, found);
    }
    let mut outputs = Outputs::new(&found, args.phase);
    let mut is_running = is_unfinished(&mut found)?;
    let mut printed = outputs.copy(&found, is_running)?;
    let mut is_hinted = false;
    while args.follow && is_running {
        // The commands of a model are in its conversation. It may take minutes until anything else is printed.
        if !printed && !is_hinted && has_messages(&found) {
            is_hinted = true;
            hint_at_messages(args)?;
        }
        thread::sleep(POLL);
        is_running = is_unfinished(&mut found)?;
        if !is_running {
            // The result has the order of the steps.
            found.update()?;
        }
        // The last copy has what was written before the end.
        printed |= outputs.copy(&found, is_running)?;
    }
    if !printed {
        let what = match args.phase {
            LogPhase::Build => "the build of its image",
            LogPhase::Install => "its install script",
            LogPhase::Agent => "its agent",
            LogPhase::Verifier => "its tests",
        };
        let note = format!("{} has no output of {what}", found.id);
        writeln!(anstream::stderr().lock(), "{}", paint(DIM, &note))?;
        if !is_hinted && has_messages(&found) {
            hint_at_messages(args)?;
        }
    }
    Ok(Exit::Success)
}

/// Whether a conversation of the trial is recorded.
fn has_messages(found: &FoundTrial) -> bool {
    messages(found).is_ok_and(|messages| !messages.is_empty())
}

fn hint_at_messages(args: &Logs) -> io::Result<()> {
    let follow = if args.follow { " -f" } else { "" };
    let command = format!("rollout logs {} --conversation{follow}", quoted(&args.trial));
    writeln!(anstream::stderr().lock(), "{}", paint(DIM, &format!("`{command}` prints its messages")))
}

/// Whether the trial may still write output: it runs, or waits for its turn in a running job.
fn is_unfinished(found: &mut FoundTrial) -> Result<bool, Failure> {
    if !found.job.is_running() {
        return Ok(false);
    }
    let dir = JobDir::new(found.job.path()).trial(&found.id);
    match found.is_example() {
        // It has no directory, so its result is only in the journal.
        true => {
            found.update()?;
            Ok(found.job.trial(found.index)?.is_none())
        }
        false => Ok(!dir.result().exists()),
    }
}

/// The output files of a phase, and how far each was printed.
struct Outputs {
    job: PathBuf,
    phase: LogPhase,
    /// In the order in which they are printed.
    files: Vec<OutputFile>,
    filters: [Filter; 2],
    is_terminal: bool,
}

/// A file that may appear later, and may be replaced by that of the next try.
struct OutputFile {
    path: PathBuf,
    is_stderr: bool,
    open: Option<File>,
}

impl Outputs {
    fn new(found: &FoundTrial, phase: LogPhase) -> Self {
        Self {
            job: found.job.path().to_owned(),
            phase,
            files: Vec::new(),
            filters: Default::default(),
            is_terminal: io::stdout().is_terminal(),
        }
    }

    /// Prints what is new: files of standard output to stdout, and of standard error to stderr. Returns whether there was
    /// anything.
    fn copy(&mut self, found: &FoundTrial, is_running: bool) -> Result<bool, Failure> {
        for (path, is_stderr) in self.paths(found, is_running)? {
            if self.files.iter().all(|file| file.path != path) {
                self.files.push(OutputFile { path, is_stderr, open: None });
            }
        }
        let mut printed = false;
        for file in &mut self.files {
            let filter = self.is_terminal.then_some(&mut self.filters[usize::from(file.is_stderr)]);
            printed |= match file.is_stderr {
                false => file.copy(&self.job, filter, &mut io::stdout().lock())?,
                true => file.copy(&self.job, filter, &mut io::stderr().lock())?,
            };
        }
        Ok(printed)
    }

    /// The files of the phase that are known now: those of the current run while the trial runs, even if it has an
    /// earlier result.
    fn paths(&self, found: &FoundTrial, is_running: bool) -> Result<Vec<(PathBuf, bool)>, Failure> {
        let own = JobDir::new(found.job.path()).trial(&found.id);
        let dir = if is_running || own.result().exists() { own } else { own.of_last_result() };
        if let LogPhase::Build = self.phase {
            return Ok(vec![(dir.build_log(), false)]);
        }
        let finished = if is_running { None } else { found.job.trial(found.index)? };
        let steps = finished.map_or_else(|| dir.steps_so_far(), |trial| dir.steps(&trial.result));
        let output = |step: &TrialDir| match self.phase {
            LogPhase::Install => step.setup(),
            LogPhase::Verifier => step.verifier(),
            LogPhase::Agent | LogPhase::Build => step.command(),
        };
        let both = |dir: PathBuf| [(dir.join("stdout.txt"), false), (dir.join("stderr.txt"), true)];
        Ok(steps.iter().map(output).flat_map(both).collect())
    }
}

impl OutputFile {
    fn copy(
        &mut self,
        job: &Path,
        mut filter: Option<&mut Filter>,
        out: &mut impl Write,
    ) -> io::Result<bool> {
        // Looked for before the rest of the old file is read: nothing is written to that one any more.
        let next = self.next(job);
        let mut printed = false;
        if let Some(file) = &mut self.open {
            printed |= copy(file, filter.as_deref_mut(), out)?;
        }
        if let Some(mut next) = next {
            printed |= copy(&mut next, filter, out)?;
            self.open = Some(next);
        }
        Ok(printed)
    }

    /// The file, if it is not the open one. A failed try is moved away, and the next one has its own file. An older file
    /// is of an earlier run, which is restored when a rerun is interrupted.
    fn next(&self, job: &Path) -> Option<File> {
        if let Some(file) = &self.open {
            let (open, now) = (file.metadata().ok()?, self.path.metadata().ok()?);
            let is_same = (open.dev(), open.ino()) == (now.dev(), now.ino());
            if is_same || now.modified().ok()? < open.modified().ok()? {
                return None;
            }
        }
        open_below(job, &self.path).ok()
    }
}

/// Copies the rest of a file. On a terminal, control sequences are removed.
fn copy(file: &mut File, mut filter: Option<&mut Filter>, out: &mut impl Write) -> io::Result<bool> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut copied = false;
    loop {
        let length = file.read(&mut chunk)?;
        if length == 0 {
            out.flush()?;
            return Ok(copied);
        }
        copied = true;
        match &mut filter {
            Some(filter) => out.write_all(&filter.apply(&chunk[..length]))?,
            None => out.write_all(&chunk[..length])?,
        }
    }
}

/// Prints the messages of a trial, and new ones until it ends if that is asked for.
fn conversation(args: &Logs, mut found: FoundTrial) -> Result<Exit, Failure> {
    let mut printed = 0;
    loop {
        let is_over = !is_unfinished(&mut found)?;
        if is_over {
            // The result may be newer than what was read of the job.
            found = trial_path::find(&args.trial).map_err(hinted(TrialPathError::hint))?;
        }
        let messages = messages(&found)?;
        print(messages.get(printed..).unwrap_or_default())?;
        // For a moment at the end, the messages so far are gone and the result is not there yet.
        printed = printed.max(messages.len());
        if is_over || !args.follow {
            break;
        }
        thread::sleep(CONVERSATION_POLL);
    }
    if printed > 0 {
        return Ok(Exit::Success);
    }
    let failure = Failure::from(format!("no conversation of {} is recorded", found.id));
    Err(failure.hint(Some("only models, and agents behind the model gateway, have conversations")))
}

/// The messages of a finished trial, or those so far.
pub(super) fn messages(found: &FoundTrial) -> Result<Messages, Failure> {
    match found.job.trial(found.index)? {
        Some(trial) => {
            let conversation = found.job.conversation(&trial)?;
            Ok(conversation.iter().flat_map(|conversation| conversation.messages()).cloned().collect())
        }
        None => Ok(live::messages_so_far(found.job.path(), &TrialDir::new(found.dir()))?),
    }
}

fn print(messages: &[Arc<Message>]) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    for message in messages {
        writeln!(out, "{}", paint(BOLD, &printable(message.role.as_str())))?;
        let text = message.text();
        for line in text.lines() {
            writeln!(out, "  {}", printable(line))?;
        }
        for call in &message.tool_calls {
            let (name, arguments) = (printable(&call.name), printable(&call.arguments));
            writeln!(out, "  {} {name}({arguments})", paint(DIM, "call"))?;
        }
        writeln!(out)?;
    }
    out.flush()
}
