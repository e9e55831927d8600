//! The files of a trial: listed, opened without leaving the job, and read in pages.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use rollout_record::layout::open_below;

/// The most files of a trial that are listed.
const MAX_FILES: usize = 1_000;

/// The deepest directory that is listed.
const MAX_DEPTH: usize = 12;

/// The size of a page of a file.
pub(crate) const PAGE_BYTES: u64 = 128 * 1024;

/// How many bytes at the end of an output are shown beside a conversation.
const TAIL_BYTES: u64 = 16 * 1024;

/// A file of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrialFile {
    /// The names from the directory of the trial to the file.
    pub(crate) path: Vec<String>,
    pub(crate) bytes: u64,
}

/// The regular files in a directory and below, by name. Links are not followed. Names that are not UTF-8 are left out.
pub(crate) fn list(dir: &Path) -> Vec<TrialFile> {
    let mut files = Vec::new();
    visit(dir, &mut Vec::new(), &mut files);
    files
}

fn visit(dir: &Path, path: &mut Vec<String>, files: &mut Vec<TrialFile>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut entries: Vec<_> = entries.filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (Ok(name), Ok(metadata)) = (entry.file_name().into_string(), entry.metadata()) else { continue };
        path.push(name);
        if files.len() >= MAX_FILES {
            return;
        } else if metadata.is_file() {
            files.push(TrialFile { path: path.clone(), bytes: metadata.len() });
        } else if metadata.is_dir() && path.len() < MAX_DEPTH {
            visit(&entry.path(), path, files);
        }
        path.pop();
    }
}

/// A page of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextPage {
    pub(crate) text: String,
    /// The number of pages.
    pub(crate) pages: usize,
    pub(crate) bytes: u64,
}

/// Reads a page of a file, counted from 1. Pages begin and end with lines, if lines are not too long.
pub(crate) fn page(job: &Path, path: &Path, page: usize) -> io::Result<TextPage> {
    let mut file = open_below(job, path)?;
    let bytes = file.metadata()?.len();
    let pages = bytes.div_ceil(PAGE_BYTES).max(1) as usize;
    let start = (page.max(1) as u64 - 1) * PAGE_BYTES;
    let from = line_start(&mut file, start)?;
    let to = line_start(&mut file, (start + PAGE_BYTES).min(bytes))?;
    Ok(TextPage { text: text(&mut file, from, to.saturating_sub(from))?, pages, bytes })
}

/// The start of the first line at an offset or after it; the offset itself if that line is too long.
fn line_start(file: &mut File, offset: u64) -> io::Result<u64> {
    if offset == 0 {
        return Ok(0);
    }
    file.seek(SeekFrom::Start(offset - 1))?;
    let mut bytes = Vec::new();
    file.take(PAGE_BYTES / 2).read_to_end(&mut bytes)?;
    let end = bytes.iter().position(|byte| *byte == b'\n');
    Ok(end.map_or(offset, |end| offset + end as u64))
}

fn text(file: &mut File, from: u64, length: u64) -> io::Result<String> {
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The end of a file, from the start of a line, and whether something is before it. None if the file is missing, empty
/// or outside of the job.
pub(crate) fn tail(job: &Path, path: &Path) -> Option<(String, bool)> {
    let mut file = open_below(job, path).ok()?;
    let bytes = file.metadata().ok()?.len();
    let start = bytes.saturating_sub(TAIL_BYTES);
    let from = line_start(&mut file, start).ok()?;
    let text = text(&mut file, from, bytes - from).ok()?;
    (!text.trim().is_empty()).then_some((text, from > 0))
}

/// The kind of an image, by its first bytes. The extension is not trusted.
pub(crate) fn image_kind(bytes: &[u8]) -> Option<&'static str> {
    const KINDS: [(&[u8], &str); 4] =
        [(b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp")];
    let found = KINDS.iter().find(|(start, _)| bytes.starts_with(start)).map(|(_, kind)| *kind);
    found.filter(|kind| *kind != "webp" || bytes.get(8..12) == Some(b"WEBP"))
}

/// The kind of the image in a file; None for other files.
pub(crate) fn image_in(job: &Path, path: &Path) -> Option<&'static str> {
    let mut start = Vec::new();
    open_below(job, path).ok()?.take(16).read_to_end(&mut start).ok()?;
    image_kind(&start)
}

/// The path of a file of a trial.
pub(crate) fn join(dir: &Path, path: &[String]) -> PathBuf {
    path.iter().fold(dir.to_owned(), |dir, name| dir.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_cover_every_line_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.txt");
        let lines: Vec<String> = (0..40_000).map(|number| format!("line {number} é")).collect();
        let whole = lines.join("\n");
        fs::write(&path, &whole).unwrap();
        let first = page(dir.path(), &path, 1).unwrap();
        assert!(first.pages > 3 && first.text.ends_with('\n'));
        let all: String =
            (1..=first.pages).map(|number| page(dir.path(), &path, number).unwrap().text).collect();
        assert_eq!(all, whole);
    }

    #[test]
    fn a_file_without_lines_has_pages_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.txt");
        let whole = "x".repeat(PAGE_BYTES as usize * 2 + 10);
        fs::write(&path, &whole).unwrap();
        let all: String = (1..=3).map(|number| page(dir.path(), &path, number).unwrap().text).collect();
        assert_eq!(all, whole);
    }

    #[test]
    fn links_are_neither_listed_nor_opened_outside_of_the_job() {
        let dir = tempfile::tempdir().unwrap();
        let (job, outside) = (dir.path().join("job"), dir.path().join("secret"));
        fs::create_dir(&job).unwrap();
        fs::write(&outside, "secret").unwrap();
        fs::write(job.join("own"), "own").unwrap();
        std::os::unix::fs::symlink(&outside, job.join("link")).unwrap();
        assert_eq!(list(&job), [TrialFile { path: vec!["own".to_owned()], bytes: 3 }]);
        assert!(page(&job, &job.join("link"), 1).is_err());
        assert_eq!(tail(&job, &job.join("link")), None);
        assert_eq!(tail(&job, &job.join("own")), Some(("own".to_owned(), false)));
    }

    #[test]
    fn images_are_known_by_their_content() {
        assert_eq!(image_kind(b"\x89PNG\r\n\x1a\n..."), Some("png"));
        assert_eq!(image_kind(b"RIFF....WAVE"), None);
        assert_eq!(image_kind(b"<svg onload=alert(1)>"), None);
    }
}
