//! Tags and comments that people give to trials.
//!
//! They are lines of `notes.jsonl` in the job directory. A line is never changed: a tag is removed by another line. They
//! belong to the name of a trial, so they stay when the trial runs again and when the job grows.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rollout_core::{
    moment,
    name::TrialId,
    text::{cut, is_invisible},
};
use serde::{Deserialize, Serialize};

use crate::layout::{JobDir, open_below};

/// The maximum length of a comment.
pub const MAX_COMMENT_CHARS: usize = 10_000;

/// The maximum length of a tag.
pub const MAX_TAG_CHARS: usize = 40;

/// The maximum number of tags in one note.
const MAX_TAGS: usize = 20;

/// The maximum size of the file, which is read into memory.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Why notes cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NotesError {
    /// A text is not a valid tag.
    #[error("invalid tag {0:?}")]
    Tag(String),
    /// A note has too many tags.
    #[error("a note can have at most {MAX_TAGS} tags")]
    TooManyTags,
    /// A comment is too long.
    #[error("a comment can have at most {MAX_COMMENT_CHARS} characters, and this one has {0}")]
    CommentTooLong(usize),
    /// A note has neither a comment nor a tag.
    #[error("the note is empty")]
    Empty,
    /// The file is too large.
    #[error("{} is larger than {} MiB", .0.display(), MAX_FILE_BYTES >> 20)]
    TooLarge(PathBuf),
    /// A line is not a note.
    #[error("line {line} of {} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl NotesError {
    /// Returns advice for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Tag(_) => Some(format!(
                "a tag has up to {MAX_TAG_CHARS} letters, digits and the characters - _ . :, and begins with a letter or a digit"
            )),
            Self::Empty => Some("write a comment, or add or remove a tag".to_owned()),
            Self::Damaged { path, line, .. } => Some(format!(
                "restore {0} from a copy, or remove the line with `sed -i {line}d {0}`",
                path.display()
            )),
            Self::TooManyTags
            | Self::CommentTooLong(_)
            | Self::TooLarge(_)
            | Self::Read { .. }
            | Self::Write { .. } => None,
        }
    }

    /// Whether the note itself is invalid, and not the file.
    pub fn is_of_note(&self) -> bool {
        matches!(self, Self::Tag(_) | Self::TooManyTags | Self::CommentTooLong(_) | Self::Empty)
    }
}

/// A tag of a trial, such as `broken`. It can be a part of a file name and of a URL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct NoteTag(String);

impl NoteTag {
    /// Checks a text, and creates a tag. White space around it is ignored.
    pub fn new(text: &str) -> Result<Self, NotesError> {
        let text = text.trim();
        let is_valid = text.starts_with(char::is_alphanumeric)
            && text.chars().count() <= MAX_TAG_CHARS
            && text.chars().all(|c| (c.is_alphanumeric() || "-_.:".contains(c)) && !is_invisible(c));
        if is_valid { Ok(Self(text.to_owned())) } else { Err(NotesError::Tag(cut(text, MAX_TAG_CHARS))) }
    }

    /// The tag as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NoteTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl std::str::FromStr for NoteTag {
    type Err = NotesError;

    fn from_str(text: &str) -> Result<Self, NotesError> {
        Self::new(text)
    }
}

/// A note to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNote {
    comment: Option<String>,
    tags: Vec<NoteTag>,
    untags: Vec<NoteTag>,
}

impl NewNote {
    /// Checks a note: an optional comment, tags to add, and tags to remove.
    pub fn new(comment: Option<&str>, tags: Vec<NoteTag>, untags: Vec<NoteTag>) -> Result<Self, NotesError> {
        let comment = comment.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
        if let Some(length) = comment.as_ref().map(|text| text.chars().count())
            && length > MAX_COMMENT_CHARS
        {
            return Err(NotesError::CommentTooLong(length));
        }
        if tags.len() + untags.len() > MAX_TAGS {
            return Err(NotesError::TooManyTags);
        }
        match comment.is_none() && tags.is_empty() && untags.is_empty() {
            true => Err(NotesError::Empty),
            false => Ok(Self { comment, tags, untags }),
        }
    }

    /// Appends the note for each of the trials, and syncs the file. All lines are written, or none. Blocks.
    pub fn add(&self, job: &JobDir, trials: &[TrialId], at: Timestamp) -> Result<(), NotesError> {
        let texts = |tags: &[NoteTag]| tags.iter().map(|tag| tag.0.clone()).collect();
        let mut lines = Vec::new();
        for trial in trials {
            let line = NoteLine {
                at,
                trial: trial.to_string(),
                comment: self.comment.clone(),
                tags: texts(&self.tags),
                untags: texts(&self.untags),
            };
            serde_json::to_writer(&mut lines, &line).expect("a note is plain data with string keys");
            lines.push(b'\n');
        }
        append(&job.notes(), &lines)
    }
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct NoteLine {
    #[serde(with = "moment")]
    at: Timestamp,
    trial: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    untags: Vec<String>,
}

fn append(path: &Path, lines: &[u8]) -> Result<(), NotesError> {
    let failed = |source| NotesError::Write { path: path.to_owned(), source };
    let is_new = match path.symlink_metadata() {
        Ok(entry) if entry.is_file() => false,
        // A job of another machine may have a link here that leads out of its directory.
        Ok(_) => return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))),
        Err(_) => true,
    };
    let mut options = OpenOptions::new();
    let mut file = options.create(true).append(true).read(true).open(path).map_err(failed)?;
    // Held until the file is closed, so that two notes are not mixed.
    file.lock().map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if length + lines.len() as u64 > MAX_FILE_BYTES {
        return Err(NotesError::TooLarge(path.to_owned()));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    let whole = whole_length(&bytes) as u64;
    if whole < length {
        // A crash has left a part of a line, which was never reported as written.
        file.set_len(whole).map_err(failed)?;
    }
    let written = file.write_all(lines).and_then(|()| file.sync_data());
    if let Err(source) = written {
        // If this fails too, the next note removes the rest.
        let _ = file.set_len(whole);
        return Err(failed(source));
    }
    if is_new && let Some(dir) = path.parent() {
        // Without this, the new directory entry may be lost with the power.
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
    }
    Ok(())
}

/// The length without a last line that was not written to its end.
fn whole_length(bytes: &[u8]) -> usize {
    let last_start = |end: usize| bytes[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let whole = last_start(bytes.len());
    if whole == 0 {
        return 0;
    }
    let start = last_start(whole - 1);
    let is_note = serde_json::from_slice::<NoteLine>(&bytes[start..whole]).is_ok();
    if is_note { whole } else { start }
}

/// A comment on a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TrialComment {
    /// When it was written.
    #[serde(with = "moment")]
    pub at: Timestamp,
    /// The text.
    pub text: String,
}

/// The notes of one trial.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TrialNotes {
    /// Its tags, in alphabetical order.
    pub tags: BTreeSet<NoteTag>,
    /// The comments, in the order in which they were written.
    pub comments: Vec<TrialComment>,
}

/// The notes of a job.
#[derive(Debug, Clone, Default)]
pub struct JobNotes {
    trials: HashMap<String, TrialNotes>,
}

impl JobNotes {
    /// Reads the notes of a job; none if there is no file. Blocks.
    pub fn read(job: &JobDir) -> Result<Self, NotesError> {
        let path = job.notes();
        let failed = |source| NotesError::Read { path: path.clone(), source };
        let file = match open_below(job.path(), &path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(failed(source)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(NotesError::TooLarge(path));
        }
        let mut notes = Self::default();
        let whole = &bytes[..whole_length(&bytes)];
        for (number, line) in whole.split_inclusive(|byte| *byte == b'\n').enumerate() {
            match serde_json::from_slice(line) {
                Ok(line) => notes.apply(line),
                Err(source) => return Err(NotesError::Damaged { path, line: number + 1, source }),
            }
        }
        Ok(notes)
    }

    fn apply(&mut self, line: NoteLine) {
        let trial = self.trials.entry(line.trial).or_default();
        // The file may be of another machine, so it is checked again.
        trial.tags.extend(line.tags.iter().filter_map(|tag| NoteTag::new(tag).ok()));
        for tag in &line.untags {
            trial.tags.retain(|known| known.as_str() != tag);
        }
        let comment = line.comment.filter(|text| !text.trim().is_empty());
        trial
            .comments
            .extend(comment.map(|text| TrialComment { at: line.at, text: cut(&text, MAX_COMMENT_CHARS) }));
    }

    /// The notes of a trial; None if it has none.
    pub fn of(&self, trial: &TrialId) -> Option<&TrialNotes> {
        if self.trials.is_empty() {
            return None;
        }
        self.of_name(&trial.to_string())
    }

    /// The notes of a trial by its name, which is `<agent>/<dataset>/<task>__<attempt>`; None if it has none.
    pub fn of_name(&self, trial: &str) -> Option<&TrialNotes> {
        self.trials.get(trial).filter(|notes| **notes != TrialNotes::default())
    }

    /// The tags of a trial.
    pub fn tags(&self, trial: &TrialId) -> impl Iterator<Item = &NoteTag> {
        self.of(trial).into_iter().flat_map(|notes| &notes.tags)
    }

    /// All trials with notes, by name.
    pub fn trials(&self) -> impl Iterator<Item = (&str, &TrialNotes)> {
        let noted = self.trials.iter().filter(|(_, notes)| **notes != TrialNotes::default());
        noted.map(|(trial, notes)| (trial.as_str(), notes))
    }
}

/// The trials that statistics leave out, by their tags.
#[derive(Debug, Clone, Default)]
pub struct TagExclusion {
    tags: Vec<NoteTag>,
    notes: JobNotes,
}

impl TagExclusion {
    /// Reads the notes of a job, unless no tag is excluded. Blocks.
    pub fn read(job: &JobDir, tags: &[NoteTag]) -> Result<Self, NotesError> {
        match tags {
            [] => Ok(Self::default()),
            _ => Ok(Self::new(tags, JobNotes::read(job)?)),
        }
    }

    /// Leaves out the trials that have one of the tags.
    pub fn new(tags: &[NoteTag], notes: JobNotes) -> Self {
        Self { tags: tags.to_vec(), notes }
    }

    /// The tags.
    pub fn tags(&self) -> &[NoteTag] {
        &self.tags
    }

    /// Whether a trial is left out.
    pub fn excludes(&self, trial: &TrialId) -> bool {
        !self.tags.is_empty() && self.notes.tags(trial).any(|tag| self.tags.contains(tag))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rollout_core::name::{AgentName, DatasetName, TaskName};

    use super::*;

    fn trial(attempt: u32) -> TrialId {
        TrialId {
            agent: AgentName::new("agent").unwrap(),
            dataset: DatasetName::new("set").unwrap(),
            task: TaskName::new("task").unwrap(),
            attempt,
        }
    }

    fn tags(texts: &[&str]) -> Vec<NoteTag> {
        texts.iter().map(|text| NoteTag::new(text).unwrap()).collect()
    }

    fn note(comment: Option<&str>, add: &[&str], remove: &[&str]) -> NewNote {
        NewNote::new(comment, tags(add), tags(remove)).unwrap()
    }

    #[test]
    fn tags_and_comments_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let job = JobDir::new(dir.path());
        assert!(JobNotes::read(&job).unwrap().of(&trial(1)).is_none());
        let at = Timestamp::UNIX_EPOCH;
        note(Some(" the task\nis broken "), &["broken", "v2"], &[])
            .add(&job, &[trial(1), trial(2)], at)
            .unwrap();
        note(None, &[], &["broken"]).add(&job, &[trial(2)], at).unwrap();
        note(Some("again"), &[], &[]).add(&job, &[trial(1)], at).unwrap();
        let notes = JobNotes::read(&job).unwrap();
        let texts = |attempt| {
            let notes = notes.of(&trial(attempt)).unwrap();
            notes.comments.iter().map(|comment| comment.text.clone()).collect::<Vec<_>>()
        };
        assert_eq!(texts(1), ["the task\nis broken", "again"]);
        assert_eq!(notes.tags(&trial(2)).map(NoteTag::as_str).collect::<Vec<_>>(), ["v2"]);
        assert_eq!(notes.trials().count(), 2);
        let excluded = TagExclusion::new(&tags(&["broken"]), notes);
        assert_eq!([1, 2, 3].map(|attempt| excluded.excludes(&trial(attempt))), [true, false, false]);
        assert!(!TagExclusion::default().excludes(&trial(1)));
    }

    #[test]
    fn a_note_is_limited_and_a_tag_is_a_word() {
        for text in ["broken", "v2.1", "needs:review", "日本", "a-b_c"] {
            assert_eq!(NoteTag::new(text).unwrap().as_str(), text);
        }
        for text in ["", " ", "-x", "a b", "a/b", "..", "<b>", "a\u{202e}", "a\n", &"x".repeat(41)] {
            assert!(NoteTag::new(text).is_err() || text.trim() != text, "{text:?}");
        }
        assert!(matches!(NewNote::new(Some(" \n"), vec![], vec![]), Err(NotesError::Empty)));
        let long = "é".repeat(MAX_COMMENT_CHARS + 1);
        assert!(matches!(NewNote::new(Some(&long), vec![], vec![]), Err(NotesError::CommentTooLong(_))));
        let many = vec![tags(&["x"]).remove(0); MAX_TAGS + 1];
        assert!(matches!(NewNote::new(None, many, vec![]), Err(NotesError::TooManyTags)));
    }

    #[test]
    fn a_line_torn_at_any_byte_is_cut_off_by_the_next_note() {
        let dir = tempfile::tempdir().unwrap();
        let job = JobDir::new(dir.path());
        let at = Timestamp::UNIX_EPOCH;
        note(Some("first"), &[], &[]).add(&job, &[trial(1)], at).unwrap();
        let whole = fs::read(job.notes()).unwrap();
        note(Some("second"), &[], &[]).add(&job, &[trial(1)], at).unwrap();
        let full = fs::read(job.notes()).unwrap();
        let damaged = [&whole[..], b"\0\0\0\n"].concat();
        let cuts = (whole.len()..full.len()).map(|cut| full[..cut].to_vec());
        for torn in cuts.chain([damaged]) {
            fs::write(job.notes(), &torn).unwrap();
            assert_eq!(JobNotes::read(&job).unwrap().of(&trial(1)).unwrap().comments.len(), 1);
            note(Some("second"), &[], &[]).add(&job, &[trial(1)], at).unwrap();
            assert_eq!(fs::read(job.notes()).unwrap(), full);
        }
        let text = [&whole[..], b"nonsense\n", &whole[..]].concat();
        fs::write(job.notes(), text).unwrap();
        assert!(matches!(JobNotes::read(&job), Err(NotesError::Damaged { line: 2, .. })));
    }

    #[test]
    fn notes_of_several_processes_are_not_mixed() {
        let dir = tempfile::tempdir().unwrap();
        let job = JobDir::new(dir.path());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let long = "x".repeat(MAX_COMMENT_CHARS);
                        note(Some(&long), &[], &[]).add(&job, &[trial(1)], Timestamp::UNIX_EPOCH).unwrap();
                    }
                });
            }
        });
        assert_eq!(JobNotes::read(&job).unwrap().of(&trial(1)).unwrap().comments.len(), 40);
    }

    #[test]
    fn a_file_of_another_machine_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let (job, outside) = (dir.path().join("job"), dir.path().join("outside"));
        fs::create_dir(&job).unwrap();
        fs::write(&outside, "mine\n").unwrap();
        let job = JobDir::new(job);
        std::os::unix::fs::symlink(&outside, job.notes()).unwrap();
        assert!(note(Some("x"), &[], &[]).add(&job, &[trial(1)], Timestamp::UNIX_EPOCH).is_err());
        assert!(JobNotes::read(&job).is_err());
        assert_eq!(fs::read_to_string(&outside).unwrap(), "mine\n");
        fs::remove_file(job.notes()).unwrap();
        let line = r#"{"at":"1970-01-01T00:00:00Z","trial":"agent/set/task__1","tags":["<script>","ok"]}"#;
        fs::write(job.notes(), format!("{line}\n")).unwrap();
        let notes = JobNotes::read(&job).unwrap();
        assert_eq!(notes.tags(&trial(1)).map(NoteTag::as_str).collect::<Vec<_>>(), ["ok"]);
    }
}
