//! `rollout note`: tags and comments of trials.

use std::io::{self, Write as _};

use jiff::Timestamp;
use rollout::{
    name::TrialId,
    record::{
        layout::JobDir,
        notes::{JobNotes, NewNote, NoteTag, NotesError, TrialNotes},
        saved::SavedJob,
    },
    text::chain,
};
use serde::Serialize;

use super::{
    trial_path::{self, TrialPathError},
    warnings,
};
use crate::{
    args::Note,
    exit::{Exit, Failure, hinted},
    report::{
        text::{BOLD, DIM, ODD, count, paint, printable, wrap},
        width,
    },
};

/// How many trials are printed after a note was added to them.
const PRINTED: usize = 10;

/// Adds a note to trials, or prints their notes.
pub(crate) fn run(args: &Note) -> Result<Exit, Failure> {
    let is_new = args.comment.is_some() || !args.tag.is_empty() || !args.untag.is_empty();
    let is_job = JobDir::new(&args.trial).journal().is_file();
    let (job, trials) = match is_job && !is_new {
        true => {
            let job = SavedJob::open(&args.trial)?;
            let trials = job.ids().map(|(_, id)| id).collect();
            (job, trials)
        }
        false => {
            let (job, found) = trial_path::find_all(&args.trial).map_err(hinted(TrialPathError::hint))?;
            (job, found.into_iter().map(|(_, id)| id).collect::<Vec<_>>())
        }
    };
    let dir = JobDir::new(job.path());
    if is_new {
        let note = NewNote::new(args.comment.as_deref(), args.tag.clone(), args.untag.clone());
        let added = note.and_then(|note| note.add(&dir, &trials, Timestamp::now()));
        added.map_err(hinted(NotesError::hint))?;
    }
    let notes = JobNotes::read(&dir).map_err(hinted(NotesError::hint))?;
    let most = if is_new { PRINTED } else { usize::MAX };
    print(&notes, &trials, args.json, most)?;
    Ok(Exit::Success)
}

/// Reads the notes of a job for a command that can do without them: if they are damaged, it is reported as a warning.
pub(super) fn notes_or_warning(job: &SavedJob) -> JobNotes {
    JobNotes::read(&JobDir::new(job.path())).unwrap_or_else(|error| {
        let line = warnings::line("notes", &chain(&error));
        // Nothing else can be done if stderr is closed.
        let _ = writeln!(anstream::stderr().lock(), "{line}");
        JobNotes::default()
    })
}

/// The notes of a trial, for programs.
#[derive(Serialize)]
struct NoteObject<'n> {
    trial: String,
    #[serde(flatten)]
    notes: &'n TrialNotes,
}

fn print(notes: &JobNotes, trials: &[TrialId], is_json: bool, most: usize) -> io::Result<()> {
    let empty = TrialNotes::default();
    let noted: Vec<_> = trials
        .iter()
        .filter_map(|trial| match notes.of(trial) {
            // A trial whose last tag was removed is printed, so that the user sees it.
            None if most < usize::MAX => Some((trial, &empty)),
            of => of.map(|of| (trial, of)),
        })
        .collect();
    let mut out = anstream::stdout().lock();
    for (trial, notes) in noted.iter().take(if is_json { usize::MAX } else { most }) {
        if is_json {
            serde_json::to_writer(&mut out, &NoteObject { trial: trial.to_string(), notes })?;
            writeln!(out)?;
        } else {
            let name = trial.to_string();
            let tags: usize = notes.tags.iter().map(|tag| tag.as_str().chars().count() + 1).sum();
            let gap = if name.chars().count() + 2 + tags > width() { "\n  " } else { "  " };
            write!(out, "{}", paint(BOLD, &name))?;
            match notes.tags.is_empty() {
                true => writeln!(out)?,
                false => writeln!(out, "{gap}{}", tag_list(&notes.tags))?,
            }
            for line in comment_lines(notes, width()) {
                writeln!(out, "  {line}")?;
            }
        }
    }
    if !is_json && noted.len() > most {
        writeln!(
            out,
            "{}",
            paint(DIM, &format!("and {}", count((noted.len() - most) as u64, "other trial")))
        )?;
    }
    if !is_json && noted.is_empty() {
        let what = if trials.len() == 1 { "the trial has no notes" } else { "no trial has notes" };
        writeln!(out, "{}", paint(DIM, what))?;
    }
    out.flush()
}

/// The tags of a trial in one text.
pub(super) fn tag_list<'t>(tags: impl IntoIterator<Item = &'t NoteTag>) -> String {
    let tags: Vec<String> = tags.into_iter().map(|tag| paint(ODD, tag.as_str())).collect();
    tags.join(" ")
}

/// The comments on a trial, each with its time, in lines that fit beside an indent of two.
pub(super) fn comment_lines(notes: &TrialNotes, width: usize) -> Vec<String> {
    const TIME: usize = "2026-01-02 03:04  ".len();
    let mut lines = Vec::new();
    for comment in &notes.comments {
        let time = comment.at.strftime("%Y-%m-%d %H:%M").to_string();
        let texts =
            comment.text.lines().flat_map(|line| wrap(&printable(line), width.saturating_sub(TIME + 2)));
        for (number, text) in texts.enumerate() {
            let before = if number == 0 { paint(DIM, &time) } else { " ".repeat(TIME - 2) };
            lines.push(format!("{before}  {text}"));
        }
    }
    lines
}
