//! The output of a program as markup: colours stay, other control sequences are removed.

use rollout_core::text::split_escape;

use crate::html::Html;

/// The style of the text that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Style {
    foreground: Option<u8>,
    background: Option<u8>,
    bold: bool,
    dim: bool,
    italic: bool,
    underline: bool,
}

impl Style {
    fn classes(self) -> String {
        let mut classes = Vec::new();
        classes.extend(self.foreground.map(|colour| format!("fg{colour}")));
        classes.extend(self.background.map(|colour| format!("bg{colour}")));
        for (is_set, name) in
            [(self.bold, "bold"), (self.dim, "dim"), (self.italic, "italic"), (self.underline, "underline")]
        {
            if is_set {
                classes.push(name.to_owned());
            }
        }
        classes.join(" ")
    }

    /// Applies the parameters of a `m` sequence.
    fn apply(&mut self, parameters: &str) {
        let mut codes = parameters.split([';', ':']).map(|code| code.parse::<u16>().unwrap_or(0));
        while let Some(code) = codes.next() {
            match code {
                0 => *self = Self::default(),
                1 => self.bold = true,
                2 => self.dim = true,
                3 => self.italic = true,
                4 => self.underline = true,
                22 => (self.bold, self.dim) = (false, false),
                23 => self.italic = false,
                24 => self.underline = false,
                30..=37 => self.foreground = Some((code - 30) as u8),
                38 => self.foreground = extended(&mut codes),
                39 => self.foreground = None,
                40..=47 => self.background = Some((code - 40) as u8),
                48 => self.background = extended(&mut codes),
                49 => self.background = None,
                90..=97 => self.foreground = Some((code - 90 + 8) as u8),
                100..=107 => self.background = Some((code - 100 + 8) as u8),
                _ => {}
            }
        }
    }
}

/// A colour of the large palette or in RGB, as the nearest of the sixteen.
fn extended(codes: &mut impl Iterator<Item = u16>) -> Option<u8> {
    match codes.next()? {
        5 => match codes.next()? {
            colour @ 0..=15 => Some(colour as u8),
            colour @ 16..=231 => {
                let colour = colour - 16;
                Some(nearest([colour / 36, colour / 6 % 6, colour % 6].map(|level| level * 51)))
            }
            grey @ 232..=255 => Some(nearest([(grey - 232) * 10 + 8; 3])),
            _ => None,
        },
        2 => Some(nearest([codes.next()?, codes.next()?, codes.next()?])),
        _ => None,
    }
}

fn nearest([red, green, blue]: [u16; 3]) -> u8 {
    let most = red.max(green).max(blue);
    if most < 64 {
        return 0;
    }
    let bit = |level: u16, bit: u8| if level * 2 > most { bit } else { 0 };
    let hue = bit(red, 1) | bit(green, 2) | bit(blue, 4);
    if most > 192 { hue + 8 } else { hue }
}

/// Renders output. A line that a program has overwritten, such as a progress bar, shows its last state.
pub(crate) fn render(output: &str) -> Html {
    let mut html = Html::default();
    let mut style = Style::default();
    for line in output.split_inclusive('\n') {
        let end = if line.ends_with('\n') { "\n" } else { "" };
        let line = line.trim_end_matches(['\n', '\r']);
        render_line(line.rsplit('\r').next().unwrap_or(line), &mut style, &mut html);
        html.push_markup(end);
    }
    html
}

fn render_line(line: &str, style: &mut Style, html: &mut Html) {
    let mut rest = line;
    while let Some(start) = rest.find('\u{1b}') {
        span(&rest[..start], *style, html);
        rest = &rest[start + 1..];
        let (sequence, after) = split_escape(rest);
        if let Some(parameters) = sequence {
            style.apply(parameters);
        }
        rest = after;
    }
    span(rest, *style, html);
}

fn span(text: &str, style: Style, html: &mut Html) {
    let text: String = text.chars().filter(|c| *c == '\t' || !c.is_control()).collect();
    if text.is_empty() {
        return;
    }
    if style == Style::default() {
        html.push_text(&text);
    } else {
        html.push_format(format_args!("<span class=\"{}\">", style.classes()));
        html.push_text(&text);
        html.push_markup("</span>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str) -> String {
        render(text).to_string()
    }

    #[test]
    fn colours_become_classes() {
        assert_eq!(rendered("a \u{1b}[1;31mred\u{1b}[0m b"), "a <span class=\"fg1 bold\">red</span> b");
        assert_eq!(rendered("\u{1b}[38;5;196mx"), "<span class=\"fg9\">x</span>");
        assert_eq!(rendered("\u{1b}[38;2;0;120;0mx"), "<span class=\"fg2\">x</span>");
        assert_eq!(rendered("\u{1b}[92mone\ntwo\u{1b}[39m three").matches("fg10").count(), 2);
    }

    #[test]
    fn other_sequences_are_removed_and_text_is_escaped() {
        for sequence in [
            "\u{1b}[2J",
            "\u{1b}[?25l",
            "\u{1b}c",
            "\u{1b}(B",
            "\u{7}",
            "\u{1b}]0;t\u{7}",
            "\u{1b}]52;c;x\u{1b}\\",
        ] {
            assert_eq!(rendered(&format!("a{sequence}b")), "ab", "{sequence:?}");
        }
        assert_eq!(rendered("\u{1b}[31m<script>"), "<span class=\"fg1\">&lt;script&gt;</span>");
        assert_eq!(rendered("\u{1b}["), "");
        assert_eq!(rendered("\u{1b}é"), "");
    }

    #[test]
    fn a_progress_bar_shows_its_last_state() {
        assert_eq!(rendered("10%\r20%\r\ndone\r\n"), "20%\ndone\n");
    }
}
