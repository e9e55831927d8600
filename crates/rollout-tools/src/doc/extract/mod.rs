//! Extracts the text of a document, in sections.
//!
//! Documents may be hostile. Every reader counts its input and output against [`ExtractLimits`]; what the
//! underlying libraries do not let us count is limited by a separate process, see
//! `DocumentFormat::needs_a_process`.

mod archive;
mod docx;
mod html;
mod markdown;
mod pdf;
mod plain;
mod rows;
mod xlsx;

use std::io::{Read, Seek};

use serde::{Deserialize, Serialize};

use crate::helper::{Failure, Work};

/// Longer sections are split, in characters. The model is shown at most 4000 characters of a tool's result, and
/// a section must fit with its title.
pub(super) const SECTION_CHARS: usize = 3000;

/// Text up to this size, in bytes, is cheap to read whatever its content. Most documents are smaller, and
/// starting a process takes longer than reading them.
const SMALL: u64 = 64 << 10;

/// The format of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DocumentFormat {
    /// Plain text.
    Text,
    /// Markdown.
    Markdown,
    /// A web page.
    Html,
    /// Rows of values, separated by commas, semicolons or tabs.
    Csv,
    /// A PDF.
    Pdf,
    /// A word processor document.
    Docx,
    /// A spreadsheet workbook.
    Xlsx,
}

/// Extensions of text files without a format of their own.
const TEXT: &[&str] = &[
    "bib",
    "c",
    "cc",
    "cfg",
    "conf",
    "cpp",
    "css",
    "go",
    "h",
    "hpp",
    "ini",
    "java",
    "js",
    "json",
    "jsonl",
    "log",
    "lua",
    "org",
    "php",
    "pl",
    "properties",
    "py",
    "r",
    "rb",
    "rs",
    "rst",
    "scala",
    "sh",
    "sql",
    "srt",
    "tex",
    "text",
    "toml",
    "ts",
    "txt",
    "vtt",
    "xml",
    "yaml",
    "yml",
];

impl DocumentFormat {
    /// The format of a file by its name; text if the extension is unknown.
    pub(crate) fn of(name: &str) -> Self {
        Self::known(name).unwrap_or(Self::Text)
    }

    /// The format of a file by its name, if the extension is known or missing.
    pub(crate) fn known(name: &str) -> Option<Self> {
        let Some((_, ending)) = name.rsplit_once('.') else { return Some(Self::Text) };
        Some(match ending.to_ascii_lowercase().as_str() {
            "md" | "markdown" => Self::Markdown,
            "htm" | "html" | "xhtml" => Self::Html,
            "csv" | "tsv" => Self::Csv,
            "pdf" => Self::Pdf,
            "docx" => Self::Docx,
            "xlsx" | "xlsm" => Self::Xlsx,
            ending if TEXT.contains(&ending) => Self::Text,
            _ => return None,
        })
    }

    /// Whether a document of this size could crash its reader, use up memory or take long, so that it needs a
    /// separate process.
    pub(crate) fn needs_a_process(self, bytes: u64) -> bool {
        matches!(self, Self::Pdf | Self::Docx | Self::Xlsx) || bytes > SMALL
    }
}

/// The limits of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtractLimits {
    /// The most bytes of the file.
    pub file_bytes: u64,
    /// The most bytes of its text.
    pub text_bytes: usize,
    /// The most sections.
    pub sections: usize,
    /// The most bytes of its unpacked parts, for an archive.
    pub unpacked_bytes: u64,
    /// The most parts, for an archive.
    pub entries: usize,
}

impl Default for ExtractLimits {
    fn default() -> Self {
        Self {
            file_bytes: 64 << 20,
            text_bytes: 16 << 20,
            sections: 20_000,
            unpacked_bytes: 256 << 20,
            entries: 10_000,
        }
    }
}

/// A request to the helper for the text of a document.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Extraction {
    pub(crate) format: DocumentFormat,
    pub(crate) limits: ExtractLimits,
}

impl Work for Extraction {
    const NAME: &'static str = "extract";
}

/// A section of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentSection {
    /// Its title, with the titles of its parent sections.
    pub title: String,
    /// Its text.
    pub text: String,
}

/// Why the text of a document could not be extracted.
#[derive(Debug, thiserror::Error)]
pub enum ExtractError {
    /// The file is too large.
    #[error("the document is larger than {} MiB", .0 >> 20)]
    File(u64),
    /// The text is too large.
    #[error("the document contains more than {} MiB of text", .0 >> 20)]
    Text(usize),
    /// The document has too many sections.
    #[error("the document has more than {0} sections")]
    Sections(usize),
    /// The unpacked content is too large.
    #[error("the document unpacks to more than {} MiB", .0 >> 20)]
    Unpacked(u64),
    /// The document has too many parts.
    #[error("the document is an archive of more than {0} files")]
    Entries(usize),
    /// The document is malformed.
    #[error("the document cannot be read: {0}")]
    Malformed(String),
}

impl ExtractError {
    fn malformed(cause: impl std::fmt::Display) -> Self {
        Self::Malformed(cause.to_string())
    }
}

impl From<ExtractError> for Failure {
    fn from(error: ExtractError) -> Self {
        match error {
            ExtractError::Malformed(_) => Self::Failed(error.to_string()),
            _ => Self::Refused(error.to_string()),
        }
    }
}

/// Extracts the text of a document.
pub fn extract(
    format: DocumentFormat,
    input: impl Read + Seek,
    limits: &ExtractLimits,
) -> Result<Vec<DocumentSection>, ExtractError> {
    let mut sections = Sections { limits, found: Vec::new(), bytes: 0 };
    match format {
        DocumentFormat::Text => plain::read(&text(input, limits)?, &mut sections)?,
        DocumentFormat::Markdown => markdown::read(&text(input, limits)?, &mut sections)?,
        DocumentFormat::Html => html::read(&text(input, limits)?, &mut sections)?,
        DocumentFormat::Csv => rows::read(&text(input, limits)?, &mut sections)?,
        DocumentFormat::Pdf => pdf::read(&bytes(input, limits)?, &mut sections)?,
        DocumentFormat::Docx => docx::read(&bytes(input, limits)?, &mut sections)?,
        DocumentFormat::Xlsx => xlsx::read(&bytes(input, limits)?, &mut sections)?,
    }
    Ok(sections.found)
}

/// Collects sections within the limits.
struct Sections<'a> {
    limits: &'a ExtractLimits,
    found: Vec<DocumentSection>,
    bytes: usize,
}

impl Sections<'_> {
    /// Adds a section, split into several if it is long. A section without text is added if it has a title.
    fn push(&mut self, title: &str, text: &str) -> Result<(), ExtractError> {
        let text = text.trim();
        if text.is_empty() {
            return if title.is_empty() { Ok(()) } else { self.add(title.to_owned(), String::new()) };
        }
        for (nth, piece) in pieces(text, SECTION_CHARS).enumerate() {
            let title = if nth == 0 { title.to_owned() } else { format!("{title} ({})", nth + 1) };
            self.add(title, piece.to_owned())?;
        }
        Ok(())
    }

    fn add(&mut self, title: String, text: String) -> Result<(), ExtractError> {
        self.bytes += title.len() + text.len();
        if self.bytes > self.limits.text_bytes {
            return Err(ExtractError::Text(self.limits.text_bytes));
        }
        if self.found.len() == self.limits.sections {
            return Err(ExtractError::Sections(self.limits.sections));
        }
        self.found.push(DocumentSection { title, text });
        Ok(())
    }
}

/// Splits a text at the end of a paragraph, line or word into pieces of at most `most` characters.
pub(crate) fn pieces(text: &str, most: usize) -> impl Iterator<Item = &str> {
    let mut rest = text.trim();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((end, _)) = rest.char_indices().nth(most) else { return Some(std::mem::take(&mut rest)) };
        let window = &rest[..end];
        let cut = ["\n\n", "\n", " "].iter().find_map(|mark| window.rfind(mark).filter(|at| *at >= end / 2));
        let (piece, after) = rest.split_at(cut.unwrap_or(end));
        rest = after.trim_start();
        Some(piece.trim_end())
    })
}

fn bytes(input: impl Read, limits: &ExtractLimits) -> Result<Vec<u8>, ExtractError> {
    let mut bytes = Vec::new();
    input
        .take(limits.file_bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(ExtractError::malformed)?;
    if bytes.len() as u64 > limits.file_bytes {
        return Err(ExtractError::File(limits.file_bytes));
    }
    Ok(bytes)
}

/// Decodes the text of a file: UTF-16 with a byte order mark, otherwise UTF-8 with invalid bytes replaced.
fn text(input: impl Read, limits: &ExtractLimits) -> Result<String, ExtractError> {
    let bytes = bytes(input, limits)?;
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units: Vec<_> = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]])).collect();
        String::from_utf16_lossy(&units)
    };
    let text = match bytes.as_slice() {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest).into_owned(),
        bytes if bytes.contains(&0) => return Err(ExtractError::malformed("it is not text")),
        _ => String::from_utf8(bytes)
            .unwrap_or_else(|wrong| String::from_utf8_lossy(wrong.as_bytes()).into_owned()),
    };
    Ok(text.replace("\r\n", "\n").replace('\r', "\n"))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    fn sections(format: DocumentFormat, bytes: &[u8]) -> Vec<(String, String)> {
        let found = extract(format, Cursor::new(bytes), &ExtractLimits::default()).unwrap();
        found.into_iter().map(|section| (section.title, section.text)).collect()
    }

    #[test]
    fn text_is_read_in_every_usual_encoding() {
        let utf16: Vec<u8> = "\u{feff}巴黎".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for bytes in ["巴黎".as_bytes(), "\u{feff}巴黎".as_bytes(), &utf16] {
            assert_eq!(sections(DocumentFormat::Text, bytes), [("巴黎".to_owned(), "巴黎".to_owned())]);
        }
        assert_eq!(sections(DocumentFormat::Text, b"caf\xe9")[0].1, "caf\u{fffd}");
    }

    #[test]
    fn binary_files_are_rejected_as_text() {
        let error = extract(DocumentFormat::Text, Cursor::new(b"\x7fELF\0\0"), &ExtractLimits::default())
            .unwrap_err();
        assert_eq!(error.to_string(), "the document cannot be read: it is not text");
    }

    #[test]
    fn each_limit_is_reported_when_it_is_exceeded() {
        let limits = ExtractLimits {
            file_bytes: 1 << 20,
            text_bytes: 1 << 19,
            sections: 3,
            ..ExtractLimits::default()
        };
        let fails = |bytes: &[u8]| {
            extract(DocumentFormat::Markdown, Cursor::new(bytes), &limits).unwrap_err().to_string()
        };
        assert_eq!(fails(&vec![b'a'; (1 << 20) + 1]), "the document is larger than 1 MiB");
        assert_eq!(fails(b"# a\n# b\n# c\n# d\n"), "the document has more than 3 sections");
        let limits = ExtractLimits { text_bytes: 1 << 20, ..ExtractLimits::default() };
        let long = vec![b'a'; 1 << 21];
        let error = extract(DocumentFormat::Text, Cursor::new(long), &limits).unwrap_err();
        assert_eq!(error.to_string(), "the document contains more than 1 MiB of text");
    }

    #[test]
    fn formats_are_detected_by_extension() {
        for (name, format) in [
            ("a.MD", Some(DocumentFormat::Markdown)),
            ("a.b.tsv", Some(DocumentFormat::Csv)),
            ("README", Some(DocumentFormat::Text)),
            ("x.py", Some(DocumentFormat::Text)),
            ("x.png", None),
        ] {
            assert_eq!(DocumentFormat::known(name), format, "{name}");
        }
        assert_eq!(DocumentFormat::of("x.png"), DocumentFormat::Text);
    }

    proptest! {
        #[test]
        fn cutting_loses_nothing_but_white_space(text in "[a 巴\n]{0,200}", most in 1_usize..20) {
            let pieces: Vec<_> = pieces(&text, most).collect();
            let solid = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(solid(&pieces.concat()), solid(&text));
            prop_assert!(pieces.iter().all(|piece| piece.chars().count() <= most && !piece.is_empty()));
        }

        #[test]
        fn no_bytes_make_a_reader_of_text_fail(bytes in proptest::collection::vec(1_u8.., 0..300)) {
            for format in [DocumentFormat::Text, DocumentFormat::Markdown, DocumentFormat::Csv] {
                extract(format, Cursor::new(&bytes), &ExtractLimits::default()).unwrap();
            }
        }
    }
}
