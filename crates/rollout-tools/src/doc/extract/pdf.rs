//! PDF: a section for each page.

use super::{ExtractError, Sections};

pub(super) fn read(bytes: &[u8], sections: &mut Sections<'_>) -> Result<(), ExtractError> {
    let pages = pdf_extract::extract_text_from_mem_by_pages(bytes).map_err(ExtractError::malformed)?;
    if pages.iter().all(|page| page.trim().is_empty()) {
        let message = format!("none of its {} pages has text; they may be pictures", pages.len());
        return Err(ExtractError::Malformed(message));
    }
    for (nth, page) in pages.iter().enumerate() {
        sections.push(&format!("page {}", nth + 1), &tidy(page))?;
    }
    Ok(())
}

/// Without the blank lines that stand for distances.
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
