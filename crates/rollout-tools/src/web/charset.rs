//! Decodes the bytes of a page to text.

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};

/// The part of a page in which its encoding is declared.
const PRESCAN_BYTES: usize = 1024;

/// Decodes a page by its byte order mark, its header or its own `<meta>`, in this order. A page without a
/// declaration is read as UTF-8, or as windows-1252 if it is not valid UTF-8.
///
/// In a truncated page, the last character may be incomplete.
pub(super) fn decode(body: &[u8], content_type: Option<&str>, is_cut: bool) -> String {
    let declared = || content_type.and_then(|header| label_in(header.as_bytes()));
    let encoding = match Encoding::for_bom(body) {
        Some((encoding, _)) => encoding,
        None => declared()
            .or_else(|| in_meta(body))
            .unwrap_or_else(|| if is_utf8(body, is_cut) { UTF_8 } else { WINDOWS_1252 }),
    };
    encoding.decode(body).0.into_owned()
}

fn is_utf8(body: &[u8], is_cut: bool) -> bool {
    std::str::from_utf8(body).map_or_else(|error| is_cut && error.error_len().is_none(), |_| true)
}

/// The encoding that follows the first `charset=`.
fn label_in(text: &[u8]) -> Option<&'static Encoding> {
    const KEY: &[u8] = b"charset";
    let mut rest = text;
    loop {
        let at = rest.windows(KEY.len()).position(|window| window.eq_ignore_ascii_case(KEY))?;
        rest = &rest[at + KEY.len()..];
        if let Some(value) = rest.trim_ascii_start().strip_prefix(b"=") {
            let value = value.trim_ascii_start();
            let value = value.strip_prefix(b"\"").or_else(|| value.strip_prefix(b"'")).unwrap_or(value);
            let end = value.iter().position(|byte| matches!(byte, b'"' | b'\'' | b';' | b'>' | b'/' | b' '));
            return Encoding::for_label(&value[..end.unwrap_or(value.len())]);
        }
    }
}

fn in_meta(body: &[u8]) -> Option<&'static Encoding> {
    let start = &body[..body.len().min(PRESCAN_BYTES)];
    let meta = start.windows(5).position(|window| window.eq_ignore_ascii_case(b"<meta"))?;
    let encoding = label_in(&start[meta..])?;
    // The declaration itself could not be read if the page were UTF-16.
    Some(if encoding.is_ascii_compatible() { encoding } else { UTF_8 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_is_decoded_by_its_own_and_its_servers_declaration() {
        for (body, header, text) in [
            (&b"caf\xc3\xa9"[..], Some("text/html"), "café"),
            (b"caf\xe9", Some("text/html"), "café"),
            (b"caf\xe9", Some("text/html; charset=ISO-8859-1"), "café"),
            (b"caf\xc3\xa9", Some("text/html; charset=\"utf-8\""), "café"),
            (b"\xb0\xcd\xc0\xe8", Some("text/html;charset=gb2312"), "巴黎"),
            (b"<meta charset=gbk>\xb0\xcd\xc0\xe8", None, "<meta charset=gbk>巴黎"),
            (
                b"<META content='text/html; charset=Shift_JIS'>\x93\xfa",
                Some("text/html"),
                "<META content='text/html; charset=Shift_JIS'>日",
            ),
            (b"\xef\xbb\xbfcaf\xc3\xa9", Some("text/html; charset=latin1"), "café"),
            (b"\xff\xfeh\0i\0", None, "hi"),
            (b"<meta charset=utf-16>\xc3\xa9", None, "<meta charset=utf-16>é"),
            (b"a\xc3\xa9", Some("text/html; charset=nonsense"), "aé"),
            (b"charset=gbk \xc3\xa9", None, "charset=gbk é"),
            (b"", Some("charset"), ""),
        ] {
            assert_eq!(decode(body, header, false), text, "{:?}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn a_truncated_character_does_not_change_the_encoding() {
        assert_eq!(decode(b"\xe5\xb7\xb4\xe9\xbb", None, true), "巴\u{fffd}");
    }

    proptest! {
        #[test]
        fn any_text_of_unicode_survives(text: String) {
            // A mark at the start is not part of the text, and a page can mention encodings.
            prop_assume!(!text.starts_with('\u{feff}') && !text.contains("<"));
            prop_assert_eq!(decode(text.as_bytes(), None, false), text);
        }

        #[test]
        fn no_bytes_make_it_panic(body: Vec<u8>, header: String) {
            let _ = decode(&body, Some(&header), true);
        }
    }
}
