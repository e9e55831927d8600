//! Converts the key names that models write to those of X.

/// The longest name of a key.
const MAX_NAME_BYTES: usize = 40;

/// The X name of a key or a combination of keys: `ctrl+shift+t`. `None` if it is invalid.
pub(super) fn named(written: &str) -> Option<String> {
    let written = written.trim();
    // The plus sign itself, alone or at the end of a combination.
    let (combination, plus) = match written.strip_suffix("++") {
        Some(rest) => (rest, true),
        None if written == "+" => return Some("plus".to_owned()),
        None => (written, false),
    };
    let mut keys = combination.split('+').map(|key| single(key.trim())).collect::<Option<Vec<_>>>()?;
    if plus {
        keys.push("plus".to_owned());
    }
    Some(keys.join("+"))
}

/// The name of one key.
fn single(written: &str) -> Option<String> {
    if written.len() == 1 {
        let byte = written.as_bytes()[0];
        return match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => Some(written.to_owned()),
            _ => of_sign(byte).map(str::to_owned),
        };
    }
    let known = match written.to_ascii_lowercase().as_str() {
        "enter" | "return" => "Return",
        "esc" | "escape" => "Escape",
        "tab" => "Tab",
        "space" | "spacebar" => "space",
        "backspace" => "BackSpace",
        "del" | "delete" => "Delete",
        "ins" | "insert" => "Insert",
        "home" => "Home",
        "end" => "End",
        "pageup" | "page_up" | "pgup" | "prior" => "Prior",
        "pagedown" | "page_down" | "pgdn" | "next" => "Next",
        "up" | "arrowup" | "arrow_up" => "Up",
        "down" | "arrowdown" | "arrow_down" => "Down",
        "left" | "arrowleft" | "arrow_left" => "Left",
        "right" | "arrowright" | "arrow_right" => "Right",
        "ctrl" | "control" => "ctrl",
        "alt" | "option" => "alt",
        "shift" => "shift",
        "super" | "win" | "windows" | "cmd" | "command" | "meta" => "super",
        "capslock" | "caps_lock" => "Caps_Lock",
        "printscreen" | "print_screen" | "prtsc" | "print" => "Print",
        _ => written,
    };
    let is_name = known.len() <= MAX_NAME_BYTES
        && known.starts_with(|c: char| c.is_ascii_alphabetic())
        && known.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let function_key = known.strip_prefix(['f', 'F']).is_some_and(|number| number.parse::<u8>().is_ok());
    is_name.then(|| if function_key { known.to_ascii_uppercase() } else { known.to_owned() })
}

fn of_sign(byte: u8) -> Option<&'static str> {
    Some(match byte {
        b' ' => "space",
        b'!' => "exclam",
        b'"' => "quotedbl",
        b'#' => "numbersign",
        b'$' => "dollar",
        b'%' => "percent",
        b'&' => "ampersand",
        b'\'' => "apostrophe",
        b'(' => "parenleft",
        b')' => "parenright",
        b'*' => "asterisk",
        b',' => "comma",
        b'-' => "minus",
        b'.' => "period",
        b'/' => "slash",
        b':' => "colon",
        b';' => "semicolon",
        b'<' => "less",
        b'=' => "equal",
        b'>' => "greater",
        b'?' => "question",
        b'@' => "at",
        b'[' => "bracketleft",
        b'\\' => "backslash",
        b']' => "bracketright",
        b'^' => "asciicircum",
        b'_' => "underscore",
        b'`' => "grave",
        b'{' => "braceleft",
        b'|' => "bar",
        b'}' => "braceright",
        b'~' => "asciitilde",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_found_under_the_names_that_models_use() {
        for (written, name) in [
            ("Enter", "Return"),
            ("a", "a"),
            ("A", "A"),
            ("ctrl+c", "ctrl+c"),
            ("Control + Shift + ESC", "ctrl+shift+Escape"),
            ("cmd+space", "super+space"),
            ("f5", "F5"),
            ("ArrowDown", "Down"),
            ("-", "minus"),
            ("+", "plus"),
            ("ctrl++", "ctrl+plus"),
            ("ctrl+-", "ctrl+minus"),
            ("XF86AudioMute", "XF86AudioMute"),
            ("Page_Up", "Prior"),
        ] {
            assert_eq!(named(written).as_deref(), Some(name), "{written}");
        }
    }

    #[test]
    fn invalid_keys_are_rejected() {
        for written in ["", "ctrl+", "+a", "--clearmodifiers", "-x", "a b", "é", "巴", "0x41", "a;b", "\n"]
        {
            assert_eq!(named(written), None, "{written:?}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_never_an_option_of_a_program(written: String) {
            if let Some(name) = named(&written) {
                prop_assert!(!name.starts_with('-'));
                prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "_+".contains(c)), "{}", name);
            }
        }
    }
}
