//! Markdown: one section for each heading.

use super::plain::{self, first_line};
use super::{ExtractError, Sections};

/// The longest title, in characters; a longer heading stays in the text.
const TITLE_CHARS: usize = 200;

pub(super) fn read(text: &str, sections: &mut Sections<'_>) -> Result<(), ExtractError> {
    let lines: Vec<_> = text.lines().collect();
    let mut outline = Outline::default();
    let mut fence: Option<&str> = None;
    let (mut body, mut title) = (String::new(), String::new());
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        let marker = fence_marker(line);
        match (fence, marker) {
            (Some(open), Some(close)) if close.starts_with(open) && line.trim() == close => fence = None,
            (None, Some(open)) => fence = Some(open),
            _ => {}
        }
        let heading = if fence.is_none() && marker.is_none() { heading(&lines[at..]) } else { None };
        if let Some(heading) = heading {
            flush(&title, &mut body, sections)?;
            title = outline.enter(heading.level, heading.title);
            at += heading.lines;
        } else {
            body.push_str(line);
            body.push('\n');
            at += 1;
        }
    }
    flush(&title, &mut body, sections)
}

fn flush(title: &str, body: &mut String, sections: &mut Sections<'_>) -> Result<(), ExtractError> {
    if title.is_empty() {
        plain::read(body, sections)?
    } else {
        sections.push(title, body)?
    }
    body.clear();
    Ok(())
}

/// The headings that contain a section.
#[derive(Default)]
pub(super) struct Outline(Vec<(usize, String)>);

impl Outline {
    /// Enters a heading; returns its title with those of its parents.
    pub(super) fn enter(&mut self, level: usize, title: &str) -> String {
        self.0.retain(|(above, _)| *above < level);
        let title = if title.chars().count() > TITLE_CHARS { first_line(title) } else { title.to_owned() };
        self.0.push((level, title));
        let titles: Vec<_> = self.0.iter().map(|(_, title)| title.as_str()).collect();
        titles.join(" > ")
    }
}

struct Heading<'a> {
    level: usize,
    title: &'a str,
    lines: usize,
}

/// The heading at the start of these lines.
fn heading<'a>(lines: &[&'a str]) -> Option<Heading<'a>> {
    let line = lines[0].trim();
    // Four spaces make it a code block.
    if line.is_empty() || lines[0].starts_with("    ") {
        return None;
    }
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    if let 1..=6 = level
        && (line.len() == level || line[level..].starts_with([' ', '\t']))
    {
        let title = line[level..].trim();
        let open = title.trim_end_matches('#');
        // Closing marks are not part of the title, but the one of `C#` is.
        let title = if open.is_empty() || open.ends_with(' ') { open.trim_end() } else { title };
        return (!title.is_empty()).then_some(Heading { level, title, lines: 1 });
    }
    let under = lines.get(1)?.trim();
    let is_line_of = |mark: char| under.len() >= 3 && under.chars().all(|c| c == mark);
    let is_text = !line.starts_with(['-', '=', '>', '|', '*', '+']);
    match is_text {
        true if is_line_of('=') => Some(Heading { level: 1, title: line, lines: 2 }),
        true if is_line_of('-') => Some(Heading { level: 2, title: line, lines: 2 }),
        _ => None,
    }
}

/// The marks that begin or end a code block.
fn fence_marker(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let mark = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let end = line.find(|c| c != mark).unwrap_or(line.len());
    (end >= 3).then(|| &line[..end])
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::io::Cursor;

    use super::super::{DocumentFormat, ExtractLimits, extract};

    fn outline(text: &str) -> String {
        let mut shown = String::new();
        for section in
            extract(DocumentFormat::Markdown, Cursor::new(text), &ExtractLimits::default()).unwrap()
        {
            writeln!(shown, "[{}] {}", section.title, section.text.replace('\n', "/")).unwrap();
        }
        shown
    }

    #[test]
    fn headings_make_sections_within_sections() {
        let text =
            "Before.\n\n# Guide #\nIntro.\n\n## Install\n\n### Linux\napt\n\n## C#\nuse\n\n# 附录\n完\n";
        insta::assert_snapshot!(outline(text), @r"
        [Before.] Before.
        [Guide] Intro.
        [Guide > Install] 
        [Guide > Install > Linux] apt
        [Guide > C#] use
        [附录] 完
        ");
    }

    #[test]
    fn headings_may_be_underlined() {
        insta::assert_snapshot!(outline("Title\n=====\na\n\nPart\n----\nb\n\n---\nc\n"), @r"
        [Title] a
        [Title > Part] b//---/c
        ");
    }

    #[test]
    fn code_has_no_headings() {
        insta::assert_snapshot!(outline("# A\n```sh\n# not one\n~~~\n```\n#hashtag\n    # code\n# B\nx"), @r"
        [A] ```sh/# not one/~~~/```/#hashtag/    # code
        [B] x
        ");
    }
}
