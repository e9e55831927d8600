//! Plain text: paragraphs, collected into sections of a suitable length.

use super::{ExtractError, SECTION_CHARS, Sections};

/// The longest title taken from a first line.
const TITLE_CHARS: usize = 60;

pub(super) fn read(text: &str, sections: &mut Sections<'_>) -> Result<(), ExtractError> {
    let (mut gathered, mut chars) = (String::new(), 0);
    for paragraph in text.split("\n\n") {
        let paragraph = paragraph.trim_matches('\n');
        if paragraph.trim().is_empty() {
            continue;
        }
        let more = paragraph.chars().count() + 2;
        if chars > 0 && chars + more > SECTION_CHARS {
            flush(&mut gathered, sections)?;
            chars = 0;
        }
        if chars > 0 {
            gathered.push_str("\n\n");
        }
        gathered.push_str(paragraph);
        chars += more;
    }
    flush(&mut gathered, sections)
}

fn flush(gathered: &mut String, sections: &mut Sections<'_>) -> Result<(), ExtractError> {
    let title = first_line(gathered);
    sections.push(&title, gathered)?;
    gathered.clear();
    Ok(())
}

/// The first line of a text, shortened.
pub(super) fn first_line(text: &str) -> String {
    let line = text.trim_start().lines().next().unwrap_or_default().trim();
    match line.char_indices().nth(TITLE_CHARS) {
        Some((end, _)) => format!("{}…", line[..end].trim_end()),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::{DocumentFormat, ExtractLimits, extract};

    #[test]
    fn paragraphs_are_collected_and_long_ones_are_split() {
        let text = format!("One.\n\nTwo.\n\n{}\n\nLast.", "word ".repeat(1000));
        let found = extract(DocumentFormat::Text, Cursor::new(text), &ExtractLimits::default()).unwrap();
        let shape: Vec<_> = found.iter().map(|section| (&section.title[..4], section.text.len())).collect();
        assert_eq!(shape, [("One.", 10), ("word", 2999), ("word", 1999), ("Last", 5)]);
    }
}
