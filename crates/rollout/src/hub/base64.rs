//! Base64 with padding, block by block.

/// How many bytes are encoded at a time: a multiple of three, so that blocks follow each other without padding.
pub(super) const BLOCK: usize = 192 << 10;

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes at the end of a text.
pub(super) fn encode(bytes: &[u8], text: &mut String) {
    text.reserve(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { letter.into() } else { '=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_standard_hold() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ];
        for (bytes, expected) in cases {
            let mut text = String::new();
            encode(bytes.as_bytes(), &mut text);
            assert_eq!(text, expected);
        }
        let mut text = String::new();
        encode(&[0xfb, 0xff], &mut text);
        assert_eq!(text, "+/8=");
    }

    #[test]
    fn blocks_need_no_padding_between_them() {
        assert_eq!(BLOCK % 3, 0);
    }
}
