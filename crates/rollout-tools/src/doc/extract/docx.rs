//! Word processor documents: one section for each heading.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Cursor};

use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use zip::ZipArchive;
use zip::result::ZipError;

use super::markdown::Outline;
use super::{ExtractError, Sections, archive, plain};

/// The deepest level of a heading.
const DEEPEST: usize = 9;

pub(super) fn read(bytes: &[u8], sections: &mut Sections<'_>) -> Result<(), ExtractError> {
    let mut archive = archive::open(bytes, sections.limits)?;
    let styles = match part(&mut archive, "word/styles.xml")? {
        Some(styles) => heading_styles(styles)?,
        None => HashMap::new(),
    };
    let text = part(&mut archive, "word/document.xml")?
        .ok_or_else(|| ExtractError::malformed("it has no word/document.xml"))?;
    let mut body = Body::new(sections, styles);
    body.read(text)?;
    body.flush()
}

fn part<'a, 'b>(
    archive: &'a mut ZipArchive<Cursor<&'b [u8]>>,
    name: &str,
) -> Result<Option<impl BufRead + use<'a, 'b>>, ExtractError> {
    match archive.by_name(name) {
        Ok(part) => Ok(Some(BufReader::new(part))),
        Err(ZipError::FileNotFound) => Ok(None),
        Err(error) => Err(ExtractError::malformed(error)),
    }
}

/// The heading levels of styles, by style id. Names are the same in every language, ids are not.
fn heading_styles(styles: impl BufRead) -> Result<HashMap<String, usize>, ExtractError> {
    let mut levels = HashMap::new();
    let mut style = None;
    events(styles, |event| {
        let (Event::Start(element) | Event::Empty(element)) = event else { return Ok(()) };
        match element.local_name().as_ref() {
            "style" => style = attribute(element, "styleId"),
            "name" => {
                let name = attribute(element, "val").unwrap_or_default();
                if let (Some(style), Some(level)) = (&style, named_level(&name)) {
                    levels.insert(style.clone(), level);
                }
            }
            "outlineLvl" => {
                if let (Some(style), Some(level)) = (&style, outline_level(element)) {
                    levels.insert(style.clone(), level);
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(levels)
}

fn named_level(name: &str) -> Option<usize> {
    let name = name.to_lowercase().replace(' ', "");
    let level = match name.strip_prefix("heading") {
        Some(level) => level.parse().ok()?,
        None => usize::from(name == "title"),
    };
    (1..=DEEPEST).contains(&level).then_some(level)
}

fn outline_level(element: &BytesStart<'_>) -> Option<usize> {
    // Level nine marks text that is not a heading.
    attribute(element, "val")?.parse().ok().filter(|level| *level < DEEPEST).map(|level: usize| level + 1)
}

/// The text read so far.
struct Body<'a, 'b> {
    sections: &'a mut Sections<'b>,
    styles: HashMap<String, usize>,
    outline: Outline,
    title: String,
    text: String,
    paragraph: Paragraph,
    /// The nesting depth of tables, and the current row and cell of the outermost one.
    tables: usize,
    row: Vec<String>,
    cell: String,
    /// The nesting depth of elements that repeat the text of another element.
    copies: usize,
    in_text: bool,
}

#[derive(Default)]
struct Paragraph {
    text: String,
    level: Option<usize>,
    is_item: bool,
}

impl<'a, 'b> Body<'a, 'b> {
    fn new(sections: &'a mut Sections<'b>, styles: HashMap<String, usize>) -> Self {
        Self {
            sections,
            styles,
            outline: Outline::default(),
            title: String::new(),
            text: String::new(),
            paragraph: Paragraph::default(),
            tables: 0,
            row: Vec::new(),
            cell: String::new(),
            copies: 0,
            in_text: false,
        }
    }

    fn read(&mut self, text: impl BufRead) -> Result<(), ExtractError> {
        events(text, |event| match event {
            Event::Start(element) => {
                self.start(element);
                Ok(())
            }
            Event::Empty(element) => {
                self.start(element);
                self.end(element.local_name().as_ref())
            }
            Event::End(element) => self.end(element.local_name().as_ref()),
            Event::Text(text) if self.is_said() => {
                self.paragraph.text.push_str(&text.xml10_content());
                Ok(())
            }
            Event::GeneralRef(reference) if self.is_said() => {
                self.paragraph.text.push_str(&resolve(reference));
                Ok(())
            }
            _ => Ok(()),
        })
    }

    fn is_said(&self) -> bool {
        self.in_text && self.copies == 0
    }

    fn start(&mut self, element: &BytesStart<'_>) {
        match element.local_name().as_ref() {
            "Fallback" => self.copies += 1,
            _ if self.copies > 0 => {}
            "t" => self.in_text = true,
            "tab" if !self.paragraph.text.is_empty() => self.paragraph.text.push('\t'),
            "br" | "cr" => self.paragraph.text.push('\n'),
            "noBreakHyphen" => self.paragraph.text.push('-'),
            "numPr" => self.paragraph.is_item = true,
            "outlineLvl" => self.paragraph.level = outline_level(element),
            "pStyle" => {
                let style = attribute(element, "val").unwrap_or_default();
                self.paragraph.level = self.styles.get(&style).copied().or_else(|| named_level(&style));
            }
            "tbl" => self.tables += 1,
            _ => {}
        }
    }

    fn end(&mut self, name: &str) -> Result<(), ExtractError> {
        match name {
            "Fallback" => self.copies = self.copies.saturating_sub(1),
            _ if self.copies > 0 => {}
            "t" => self.in_text = false,
            "p" => return self.end_paragraph(),
            "tc" if self.tables == 1 => self.row.push(std::mem::take(&mut self.cell)),
            "tr" if self.tables == 1 => {
                let row = std::mem::take(&mut self.row);
                self.text.push_str(&row.join(" | "));
                self.text.push('\n');
            }
            "tbl" => {
                self.tables = self.tables.saturating_sub(1);
                self.text.push('\n');
            }
            _ => {}
        }
        Ok(())
    }

    fn end_paragraph(&mut self) -> Result<(), ExtractError> {
        let Paragraph { text, level, is_item } = std::mem::take(&mut self.paragraph);
        let said = text.trim();
        if said.is_empty() {
            return Ok(());
        }
        if self.tables > 0 {
            self.cell.push_str(if self.cell.is_empty() { "" } else { " " });
            self.cell.push_str(&said.replace('\n', " "));
        } else if let Some(level) = level {
            self.flush()?;
            self.title = self.outline.enter(level, &said.replace('\n', " "));
        } else {
            self.text.push_str(if is_item { "- " } else { "" });
            self.text.push_str(said);
            self.text.push_str(if is_item { "\n" } else { "\n\n" });
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ExtractError> {
        let text = std::mem::take(&mut self.text);
        if self.title.is_empty() {
            plain::read(&text, self.sections)
        } else {
            self.sections.push(&self.title, &text)
        }
    }
}

/// Visits each event of a document. Entities of the document are never expanded, so they cannot grow.
fn events(
    input: impl BufRead,
    mut each: impl FnMut(&Event<'_>) -> Result<(), ExtractError>,
) -> Result<(), ExtractError> {
    let mut reader = Reader::from_reader(input);
    let mut buffer = Vec::new();
    loop {
        match reader.read_event_into(&mut buffer).map_err(ExtractError::malformed)? {
            Event::Eof => return Ok(()),
            event => each(&event)?,
        }
        buffer.clear();
    }
}

fn resolve(reference: &BytesRef<'_>) -> String {
    let name: &str = reference;
    match (reference.resolve_char_ref(), quick_xml::escape::resolve_xml_entity(name)) {
        (Ok(Some(character)), _) => character.to_string(),
        (_, Some(text)) => text.to_owned(),
        _ => format!("&{name};"),
    }
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let found =
        element.attributes().flatten().find(|attribute| attribute.key.local_name().as_ref() == name)?;
    found.normalized_value(XmlVersion::Implicit1_0).ok().map(Into::into)
}
