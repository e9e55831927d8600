//! PDF: one section for each page.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pdf_extract::{Document, PlainTextOutput, output_doc_page};

use super::{ExtractError, Sections};

pub(super) fn read(bytes: &[u8], sections: &mut Sections<'_>) -> Result<(), ExtractError> {
    let mut document = Document::load_mem(bytes).map_err(ExtractError::malformed)?;
    if document.is_encrypted() && document.decrypt("").is_err() {
        return Err(ExtractError::malformed("it is protected by a password"));
    }
    let pages = document.get_pages();
    let (mut has_text, mut unread) = (false, 0);
    for (nth, number) in pages.keys().enumerate() {
        let page = text(&document, *number).unwrap_or_else(|| {
            unread += 1;
            String::new()
        });
        has_text |= !page.trim().is_empty();
        sections.push(&format!("page {}", nth + 1), &tidy(&page))?;
    }
    match (has_text, unread) {
        (true, _) => Ok(()),
        (false, 0) => {
            let message = format!("none of its {} pages has text; they may be pictures", pages.len());
            Err(ExtractError::Malformed(message))
        }
        (false, _) => Err(ExtractError::malformed("it is damaged or uses fonts that are not supported")),
    }
}

/// The text of a page.
fn text(document: &Document, number: u32) -> Option<String> {
    let placed = || {
        let mut text = String::new();
        output_doc_page(document, &mut PlainTextOutput::new(&mut text), number).ok()?;
        Some(text)
    };
    // This reader supports the encodings of Chinese fonts that are not embedded, but does not find the ends of
    // words.
    let plain = || {
        let text: String = document.extract_text_chunks(&[number]).into_iter().flatten().collect();
        (!text.trim().is_empty()).then_some(text)
    };
    // The first reader panics on unknown content, which must not lose the other pages.
    let guarded = |read: &dyn Fn() -> Option<String>| catch_unwind(AssertUnwindSafe(read)).ok().flatten();
    guarded(&placed).or_else(|| guarded(&plain))
}

/// Removes the blank lines that represent vertical space.
fn tidy(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut blanks = 0;
    for line in page.lines().map(str::trim_end) {
        blanks = if line.trim().is_empty() { blanks + 1 } else { 0 };
        if blanks < 2 {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}
