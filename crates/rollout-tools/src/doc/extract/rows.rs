//! Tables: blocks of rows, each with the header of the table.

use super::{ExtractError, SECTION_CHARS, Sections};

/// Longer headers, in characters, are not repeated but get their own section.
const LONGEST_HEADER: usize = SECTION_CHARS / 4;

pub(super) fn read(text: &str, sections: &mut Sections<'_>) -> Result<(), ExtractError> {
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(delimiter(text))
        .flexible(true)
        .has_headers(false)
        .from_reader(text.as_bytes());
    let mut blocks = Blocks::new("", sections);
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(ExtractError::malformed)? {
        blocks.row(record.iter())?;
    }
    blocks.end()
}

/// The delimiter of the values: the most frequent one in the first line.
fn delimiter(text: &str) -> u8 {
    let first = text.lines().next().unwrap_or_default();
    let count = |mark: &u8| first.bytes().filter(|byte| byte == mark).count();
    // Of equally frequent delimiters the last one is used.
    b";\t,".iter().copied().max_by_key(count).unwrap_or(b',')
}

/// Collects rows into sections of a suitable length.
pub(super) struct Blocks<'a, 'b> {
    name: &'a str,
    sections: &'a mut Sections<'b>,
    /// The first line of every block.
    header: Option<String>,
    header_chars: usize,
    block: String,
    chars: usize,
    /// The numbers of the first and last row of the block.
    rows: (usize, usize),
}

impl<'a, 'b> Blocks<'a, 'b> {
    /// Collects the rows of the table with this name.
    pub(super) fn new(name: &'a str, sections: &'a mut Sections<'b>) -> Self {
        Self { name, sections, header: None, header_chars: 0, block: String::new(), chars: 0, rows: (1, 0) }
    }

    /// Adds a row. The first one is the header.
    pub(super) fn row<T: AsRef<str>>(&mut self, cells: impl Iterator<Item = T>) -> Result<(), ExtractError> {
        let mut line = String::new();
        for (nth, cell) in cells.enumerate() {
            line.push_str(if nth > 0 { " | " } else { "" });
            line.extend(cell.as_ref().trim().chars().map(|c| if c == '\n' { ' ' } else { c }));
        }
        if self.header.is_none() {
            return self.first(line);
        }
        let chars = line.chars().count() + 1;
        if self.chars > 0 && self.chars + self.header_chars + chars > SECTION_CHARS {
            self.flush()?;
        }
        self.rows.1 += 1;
        self.chars += chars;
        self.block.push_str(&line);
        self.block.push('\n');
        Ok(())
    }

    fn first(&mut self, header: String) -> Result<(), ExtractError> {
        let chars = header.chars().count();
        if chars > LONGEST_HEADER {
            self.sections.push(&self.titled("header"), &header)?;
            self.header = Some(String::new());
        } else {
            (self.header, self.header_chars) = (Some(header), chars);
        }
        Ok(())
    }

    fn titled(&self, part: &str) -> String {
        if self.name.is_empty() { part.to_owned() } else { format!("{} ({part})", self.name) }
    }

    /// Adds the remaining rows.
    pub(super) fn end(mut self) -> Result<(), ExtractError> {
        match self.rows {
            (1, 0) => {
                let header = self.header.unwrap_or_default();
                self.sections.push(if header.is_empty() { "" } else { self.name }, &header)
            }
            (first, last) if first <= last => self.flush(),
            _ => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), ExtractError> {
        let (first, last) = self.rows;
        let rows = if first == last { format!("row {first}") } else { format!("rows {first}–{last}") };
        let title = self.titled(&rows);
        let text = format!("{}\n{}", self.header.as_deref().unwrap_or_default(), self.block);
        self.sections.push(&title, &text)?;
        self.block.clear();
        self.chars = 0;
        self.rows.0 = last + 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::{DocumentFormat, DocumentSection, ExtractLimits, extract};

    fn read(text: &str) -> Vec<DocumentSection> {
        extract(DocumentFormat::Csv, Cursor::new(text), &ExtractLimits::default()).unwrap()
    }

    #[test]
    fn every_block_of_rows_has_the_header() {
        let mut text = "city,people\n".to_owned();
        text.extend((0..400).map(|n| format!("\"town, {n}\",{n}\n")));
        let found = read(&text);
        assert!(found.len() > 1 && found.iter().all(|part| part.text.starts_with("city | people\ntown, ")));
        let titles: Vec<_> = found.iter().map(|part| part.title.as_str()).collect();
        insta::assert_snapshot!(titles.join(", "), @"rows 1–200, rows 201–386, rows 387–400");
    }

    #[test]
    fn values_may_have_other_delimiters() {
        assert_eq!(read("a;b\n1,5;2\n")[0].text, "a | b\n1,5 | 2");
        assert_eq!(read("a\tb\n1\t2\n")[0].text, "a | b\n1 | 2");
    }

    #[test]
    fn a_long_header_is_used_once() {
        let header = "x".repeat(1 << 18);
        let found = read(&format!("{header}\n{}", "a\n".repeat(1 << 18)));
        let (of_header, rows): (Vec<_>, Vec<_>) =
            found.iter().partition(|part| part.title.starts_with("header"));
        assert_eq!(of_header.iter().map(|part| part.text.len()).sum::<usize>(), header.len());
        assert!(rows[0].title == "rows 1–1500" && rows[0].text.starts_with("a\na\n"), "{}", rows[0].title);
    }

    #[test]
    fn an_endless_line_is_cut_and_counted() {
        let found = read(&format!("h\n{}", "x".repeat(1 << 20)));
        assert!(found.iter().all(|part| part.text.chars().count() <= super::SECTION_CHARS));
        let limits = ExtractLimits { text_bytes: 1 << 19, ..ExtractLimits::default() };
        let endless = Cursor::new("x".repeat(1 << 20));
        assert!(extract(DocumentFormat::Csv, endless, &limits).is_err());
    }
}
