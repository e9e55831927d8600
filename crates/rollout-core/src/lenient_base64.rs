//! Base64 in either alphabet, with or without padding.

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Decodes a text. Returns None if it is not base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let standard = |letter| match letter {
        b'-' => b'+',
        b'_' => b'/',
        letter => letter,
    };
    LENIENT.decode(text.bytes().map(standard).collect::<Vec<u8>>()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_alphabets_are_read_with_padding_and_without() {
        for text in ["+/8=", "+/8", "-_8=", "-_8", "+_8", "-_9"] {
            assert_eq!(decode(text), Some(vec![0xfb, 0xff]), "{text}");
        }
        assert_eq!(decode(""), Some(vec![]));
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in ["A", "AAAAA", "A===", "AA=A", "=AAA", "A A=", "AA\n", "ü"] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }
}
