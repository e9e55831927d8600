//! Base85 with the alphabet of Python's `base64.b85encode`: five characters for four bytes.

const ALPHABET: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

/// Decodes a base85 text; none if it is invalid.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 5 * 4 + 4);
    for chunk in text.as_bytes().chunks(5) {
        let mut number: u32 = 0;
        for place in 0..5 {
            // A short group is filled up with the last character of the alphabet.
            let digit = match chunk.get(place) {
                Some(char) => ALPHABET.iter().position(|known| known == char)? as u32,
                None => 84,
            };
            number = number.checked_mul(85)?.checked_add(digit)?;
        }
        bytes.extend_from_slice(&number.to_be_bytes()[..chunk.len() - 1]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_encoded_by_python_is_decoded() {
        // base64.b85encode of b"", b"a", b"hello", bytes(4) and bytes([255] * 4)
        for (text, bytes) in
            [("", &b""[..]), ("VE", b"a"), ("Xk~0{Zv", b"hello"), ("00000", &[0; 4]), ("|NsC0", &[255; 4])]
        {
            assert_eq!(decode(text).as_deref(), Some(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_text_is_rejected() {
        for text in ["a b", "\u{e9}", "~~~~~", "\""] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
