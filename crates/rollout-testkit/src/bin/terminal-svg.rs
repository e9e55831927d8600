//! Draws what a command printed on a terminal as an SVG picture, for the documentation.
//!
//! `terminal-svg COLUMNS COMMAND <recorded >picture.svg` draws a prompt with the command, and then the last screen. If
//! the command has a live display, the picture shows it in the middle of the run, too.
#![expect(clippy::print_stdout, reason = "it prints the picture")]

use std::{
    fmt::Write as _,
    io::{self, Read as _},
    process::ExitCode,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(columns), Some(command)) =
        (arguments.first().and_then(|text| text.parse().ok()), arguments.get(1))
    else {
        eprintln!("usage: terminal-svg COLUMNS COMMAND <recorded >picture.svg");
        return ExitCode::from(2);
    };
    let mut recorded = String::new();
    if let Err(error) = io::stdin().read_to_string(&mut recorded) {
        eprintln!("cannot read the recorded output: {error}");
        return ExitCode::FAILURE;
    }
    print!("{}", picture(command, &Screen::new(columns).read(&recorded)));
    ExitCode::SUCCESS
}

/// How a character is drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Style {
    bold: bool,
    dim: bool,
    /// The last digit of a colour's code.
    colour: Option<u8>,
}

impl Style {
    fn apply(&mut self, code: &str) {
        match code.as_bytes() {
            b"" | b"0" => *self = Self::default(),
            b"1" => self.bold = true,
            b"2" => self.dim = true,
            [b'3', colour @ b'0'..=b'7'] => self.colour = Some(colour - b'0'),
            b"39" => self.colour = None,
            _ => {}
        }
    }

    fn attributes(self) -> String {
        const COLOURS: [&str; 8] =
            ["#5c6370", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d7dae0"];
        let mut text = String::new();
        if self.bold {
            text += r#" font-weight="bold""#;
        }
        if self.dim {
            text += r#" opacity="0.6""#;
        }
        if let Some(colour) = self.colour {
            let _ = write!(text, r#" fill="{}""#, COLOURS[usize::from(colour)]);
        }
        text
    }
}

type Line = Vec<(char, Style)>;

/// The screen of a terminal that is as high as needed.
struct Screen {
    columns: usize,
    lines: Vec<Line>,
    row: usize,
    column: usize,
    style: Style,
}

impl Screen {
    fn new(columns: usize) -> Self {
        Self { columns, lines: vec![Line::new()], row: 0, column: 0, style: Style::default() }
    }

    /// The lines to draw: those in the middle of the run, and those that are different at the end.
    fn read(mut self, recorded: &str) -> Vec<Line> {
        let (mut frames, mut erasing) = (Vec::new(), false);
        let mut rest = recorded.chars();
        while let Some(character) = rest.next() {
            match character {
                '\u{1b}' => {
                    let mut parameters = String::new();
                    let last = rest.by_ref().find(|c| {
                        let is_last = c.is_ascii_alphabetic();
                        if !is_last && *c != '[' {
                            parameters.push(*c);
                        }
                        is_last
                    });
                    // A live display is erased line by line before it is drawn again.
                    if last == Some('K') && !erasing {
                        frames.push(self.lines.clone());
                    }
                    erasing = erasing || last == Some('K');
                    self.control(last, &parameters);
                }
                '\r' => self.column = 0,
                '\n' => self.down(1),
                _ => {
                    erasing = false;
                    self.put(character);
                }
            }
        }
        let last = trimmed(self.lines);
        if frames.is_empty() {
            return last;
        }
        let mut shown = trimmed(frames.swap_remove(frames.len() / 2));
        let same = shown.iter().zip(&last).take_while(|(a, b)| a == b).count();
        shown.extend(last.into_iter().skip(same));
        shown
    }

    fn control(&mut self, last: Option<char>, parameters: &str) {
        let count = parameters.parse().unwrap_or(1);
        match last {
            Some('A') => self.row = self.row.saturating_sub(count),
            Some('B') => self.down(count),
            Some('K') => self.lines[self.row].clear(),
            Some('m') => parameters.split(';').for_each(|code| self.style.apply(code)),
            _ => {}
        }
    }

    fn down(&mut self, count: usize) {
        self.row += count;
        if self.lines.len() <= self.row {
            self.lines.resize(self.row + 1, Line::new());
        }
    }

    fn put(&mut self, character: char) {
        if self.column == self.columns {
            self.column = 0;
            self.down(1);
        }
        let line = &mut self.lines[self.row];
        if line.len() <= self.column {
            line.resize(self.column + 1, (' ', Style::default()));
        }
        line[self.column] = (character, self.style);
        self.column += 1;
    }
}

/// Lines without white space at their ends, and without empty lines at the end.
fn trimmed(mut lines: Vec<Line>) -> Vec<Line> {
    for line in &mut lines {
        line.truncate(line.iter().rposition(|(character, _)| *character != ' ').map_or(0, |last| last + 1));
    }
    lines.truncate(lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1));
    lines
}

fn picture(command: &str, lines: &[Line]) -> String {
    const SIZE: f64 = 13.0;
    const ADVANCE: f64 = 7.83;
    const HEIGHT: usize = 18;
    let prompt: Line =
        format!("$ {command}").chars().map(|c| (c, Style { bold: true, ..Style::default() })).collect();
    let longest = lines.iter().map(Vec::len).max().unwrap_or(0).max(prompt.len());
    #[expect(clippy::cast_precision_loss, reason = "a line is short")]
    let at = |column: usize| column as f64 * ADVANCE;
    let (width, height) = (at(longest) + 24.0, (lines.len() + 1) * HEIGHT + 20);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height}\" \
         viewBox=\"0 0 {width:.0} {height}\" role=\"img\" aria-label=\"{}\">\n\
         <rect width=\"{width:.0}\" height=\"{height}\" rx=\"8\" fill=\"#1e2127\"/>\n\
         <g font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,monospace\" font-size=\"{SIZE}\" \
         fill=\"#d7dae0\" xml:space=\"preserve\">\n",
        escaped(command)
    );
    for (row, line) in [&prompt].into_iter().chain(lines).enumerate() {
        let mut column = 0;
        for run in line.chunk_by(|a, b| a.1 == b.1) {
            let text: String = run.iter().map(|(character, _)| *character).collect();
            if !text.trim().is_empty() {
                let _ = writeln!(
                    svg,
                    "<text x=\"{:.1}\" y=\"{}\" textLength=\"{:.1}\"{}>{}</text>",
                    12.0 + at(column),
                    28 + row * HEIGHT,
                    at(run.len()),
                    run[0].1.attributes(),
                    escaped(&text)
                );
            }
            column += run.len();
        }
    }
    svg + "</g>\n</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[Line]) -> Vec<String> {
        lines.iter().map(|line| line.iter().map(|(character, _)| character).collect()).collect()
    }

    #[test]
    fn a_live_display_is_shown_in_the_middle_of_the_run_and_then_the_rest() {
        let recorded = "start\r\none   two   \u{1b}[1A\u{1b}[2K\u{1b}[1B\u{1b}[2K\u{1b}[1A\rthree \
                        \u{1b}[2K\rdone\r\n";
        assert_eq!(texts(&Screen::new(6).read(recorded)), ["start", "three", "done"]);
    }

    #[test]
    fn colours_and_weights_are_drawn() {
        let lines = Screen::new(80).read("\u{1b}[1mbold\u{1b}[0m \u{1b}[32m<ok>\u{1b}[0m\r\n");
        let svg = picture("run", &lines);
        assert!(svg.contains(r#" font-weight="bold">bold</text>"#), "{svg}");
        assert!(svg.contains(r##" fill="#98c379">&lt;ok&gt;</text>"##), "{svg}");
    }
}
