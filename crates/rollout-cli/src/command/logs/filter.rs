//! Makes the output of an untrusted program safe for a terminal: text, lines and colours stay, the rest is removed.

/// The longest sequence of parameters of a colour.
const MAX_PARAMETERS: usize = 32;

/// The first byte of the control characters U+0080 to U+009F.
const CONTROL_LEAD: u8 = 0xc2;

/// The first byte of the characters that change the direction of text.
const DIRECTION_LEAD: u8 = 0xe2;

/// A filter over chunks of output. A sequence may begin in one chunk and end in the next.
#[derive(Debug, Default)]
pub(super) struct Filter {
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Text,
    /// After a carriage return: a line end if another character follows.
    Return,
    /// After the escape character.
    Escape,
    /// In `ESC [ …`, with its parameters.
    Control(Vec<u8>),
    /// In a sequence with a text, such as the title of the window.
    String,
    /// In such a sequence, after the escape character that may end it.
    StringEscape,
    /// In a character of several bytes that may be a control character, with those that were read.
    Character(Vec<u8>),
}

impl Filter {
    /// Returns the chunk without control sequences other than colours.
    pub(super) fn apply(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut kept = Vec::with_capacity(chunk.len());
        for &byte in chunk {
            self.state = step(std::mem::take(&mut self.state), byte, &mut kept);
        }
        kept
    }
}

fn step(state: State, byte: u8, kept: &mut Vec<u8>) -> State {
    match state {
        State::Text => text(byte, kept),
        State::Return => {
            if byte != b'\n' && byte != b'\r' {
                kept.push(b'\n');
            }
            text(byte, kept)
        }
        State::Escape => match byte {
            b'[' => State::Control(Vec::new()),
            b']' | b'P' | b'X' | b'^' | b'_' => State::String,
            // Sequences of two or three characters: the intermediate ones are in this range.
            b' '..=b'/' => State::Escape,
            _ => State::Text,
        },
        State::Control(mut parameters) => match byte {
            b'0'..=b'?' | b' '..=b'/' if parameters.len() < MAX_PARAMETERS => {
                parameters.push(byte);
                State::Control(parameters)
            }
            b'0'..=b'?' | b' '..=b'/' => State::Control(parameters),
            b'm' if parameters.iter().all(|byte| matches!(byte, b'0'..=b'9' | b';')) => {
                kept.extend_from_slice(b"\x1b[");
                kept.extend_from_slice(&parameters);
                kept.push(b'm');
                State::Text
            }
            _ => State::Text,
        },
        State::String => match byte {
            0x07 => State::Text,
            0x1b => State::StringEscape,
            _ => State::String,
        },
        State::StringEscape => match byte {
            b'\\' => State::Text,
            _ => State::String,
        },
        State::Character(mut bytes) => {
            if !matches!(byte, 0x80..=0xbf) {
                // Without its other bytes, the first could make a character with those that follow.
                kept.extend_from_slice("\u{fffd}".as_bytes());
                return text(byte, kept);
            }
            bytes.push(byte);
            if bytes[0] == DIRECTION_LEAD && bytes.len() < 3 {
                return State::Character(bytes);
            }
            let is_safe = str::from_utf8(&bytes).is_ok_and(|character| !character.contains(is_control));
            if is_safe {
                kept.extend_from_slice(&bytes);
            }
            State::Text
        }
    }
}

/// Whether a character of several bytes is a control character, which terminals read like an escape sequence, or
/// changes the direction of the text that follows.
fn is_control(c: char) -> bool {
    matches!(c, '\u{80}'..='\u{9f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn text(byte: u8, kept: &mut Vec<u8>) -> State {
    match byte {
        0x1b => return State::Escape,
        b'\r' => return State::Return,
        CONTROL_LEAD | DIRECTION_LEAD => return State::Character(vec![byte]),
        b'\n' | b'\t' | b' '..=b'~' | 0x80.. => kept.push(byte),
        _ => {}
    }
    State::Text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(chunks: &[&str]) -> String {
        let mut filter = Filter::default();
        let kept: Vec<u8> = chunks.iter().flat_map(|chunk| filter.apply(chunk.as_bytes())).collect();
        String::from_utf8(kept).unwrap()
    }

    #[test]
    fn text_lines_and_colours_stay() {
        assert_eq!(filtered(&["one\ttwo\n日本 é\n"]), "one\ttwo\n日本 é\n");
        assert_eq!(filtered(&["\u{1b}[1;31mred\u{1b}[0m"]), "\u{1b}[1;31mred\u{1b}[0m");
    }

    #[test]
    fn what_moves_the_cursor_or_talks_to_the_terminal_is_removed() {
        for sequence in [
            "\u{1b}[2J",
            "\u{1b}[10;10H",
            "\u{1b}[?25l",
            "\u{1b}[>4;1m",
            "\u{1b}c",
            "\u{1b}(B",
            "\u{7}",
            "\u{8}",
            "\u{1b}]0;title\u{7}",
            "\u{1b}]52;c;ZXZpbA==\u{1b}\\",
            "\u{1b}P$q\u{1b}\\",
        ] {
            assert_eq!(filtered(&["a", sequence, "b"]), "ab", "{sequence:?}");
            let letters: Vec<String> = sequence.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            assert_eq!(
                filtered(&[&["a"], letters.as_slice(), &["b"]].concat()),
                "ab",
                "{sequence:?} in pieces"
            );
        }
    }

    #[test]
    fn control_characters_of_two_bytes_and_changes_of_direction_are_removed() {
        for c in ["\u{9b}", "\u{9d}", "\u{90}", "\u{85}", "\u{202e}", "\u{2066}"] {
            assert_eq!(filtered(&["a", c, "2Jb"]), "a2Jb", "{c:?}");
        }
        assert_eq!(filtered(&["\u{a0}é € – ─ \u{200d}"]), "\u{a0}é € – ─ \u{200d}");
        // A character may begin in one chunk and end in the next.
        let mut filter = Filter::default();
        let chunks = [&b"a\xc2"[..], b"\x9b2Jb\xe2\x80", b"\xaec\xe2", b"\x82\xacd"];
        let kept: Vec<u8> = chunks.iter().flat_map(|chunk| filter.apply(chunk)).collect();
        assert_eq!(kept, b"a2Jbc\xe2\x82\xacd");
        // Bytes around a removed one make no character.
        for bytes in [&b"\xc2\0\x9b2J"[..], b"\xc2\x1bx\x9b2J", b"\xe2\x80\0\xae"] {
            let kept = Filter::default().apply(bytes);
            assert!(!String::from_utf8_lossy(&kept).contains(is_control), "{bytes:?}");
        }
    }

    #[test]
    fn a_progress_bar_becomes_lines() {
        assert_eq!(filtered(&["10%\r20%\r\ndone\r\n"]), "10%\n20%\ndone\n");
    }
}
