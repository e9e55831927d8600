//! A decoder of server-sent events.

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// Its type; empty if the server gives none.
    pub name: &'a [u8],
    /// Its data. Several lines are joined by line breaks.
    pub data: &'a [u8],
}

/// Finds the events in a stream of bytes, wherever it is cut into pieces. It works on bytes, so a character may be
/// split between two pieces.
#[derive(Debug, Default)]
pub struct SseDecoder {
    line: Vec<u8>,
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    after_return: bool,
    started: bool,
}

impl SseDecoder {
    /// Reads the next piece, and passes on each event that is complete.
    pub fn feed<E>(
        &mut self,
        mut bytes: &[u8],
        mut on_event: impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            // A line may end in \r\n, and the two bytes may be in different pieces.
            if std::mem::take(&mut self.after_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.line.extend_from_slice(bytes);
                break;
            };
            self.line.extend_from_slice(&bytes[..end]);
            self.after_return = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            self.end_line(&mut on_event)?;
        }
        Ok(())
    }

    /// Ends the stream. An event that lacks only its empty line counts: some servers end this way.
    pub fn finish<E>(&mut self, mut on_event: impl FnMut(SseEvent<'_>) -> Result<(), E>) -> Result<(), E> {
        if !self.line.is_empty() {
            self.end_line(&mut on_event)?;
        }
        self.end_event(&mut on_event)
    }

    fn end_line<E>(&mut self, on_event: &mut impl FnMut(SseEvent<'_>) -> Result<(), E>) -> Result<(), E> {
        if !std::mem::replace(&mut self.started, true) && self.line.starts_with(b"\xef\xbb\xbf") {
            self.line.drain(..3);
        }
        if self.line.is_empty() {
            return self.end_event(on_event);
        }
        let colon = self.line.iter().position(|byte| *byte == b':');
        let (field, value) = match colon {
            Some(colon) => (&self.line[..colon], &self.line[colon + 1..]),
            None => (self.line.as_slice(), &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            // A comment, an id, or the time to wait before reconnecting.
            _ => {}
        }
        self.line.clear();
        Ok(())
    }

    fn end_event<E>(&mut self, on_event: &mut impl FnMut(SseEvent<'_>) -> Result<(), E>) -> Result<(), E> {
        let result = match std::mem::take(&mut self.has_data) {
            true => on_event(SseEvent { name: &self.name, data: &self.data }),
            false => Ok(()),
        };
        self.name.clear();
        self.data.clear();
        result
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn events(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut decoder = SseDecoder::default();
        let mut events = Vec::new();
        let mut on_event = |event: SseEvent<'_>| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            events.push((text(event.name), text(event.data)));
            Ok::<_, Infallible>(())
        };
        for piece in pieces {
            decoder.feed(piece, &mut on_event).unwrap();
        }
        decoder.finish(&mut on_event).unwrap();
        events
    }

    fn event(name: &str, data: &str) -> (String, String) {
        (name.to_owned(), data.to_owned())
    }

    #[test]
    fn events_are_found_in_every_form_that_the_standard_allows() {
        for (text, expected) in [
            ("data: a\n\ndata: b\n\n", vec![event("", "a"), event("", "b")]),
            ("data:a\r\n\r\ndata:  b\r\r", vec![event("", "a"), event("", " b")]),
            ("event: ping\ndata: {}\n\n", vec![event("ping", "{}")]),
            ("data: a\ndata: b\ndata\n\n", vec![event("", "a\nb\n")]),
            (": comment\n\nid: 1\nretry: 5\n\ndata: a\n\n", vec![event("", "a")]),
            ("event: lost\n\ndata: a\n\n", vec![event("", "a")]),
            ("\u{feff}data: a\n\n", vec![event("", "a")]),
            ("data: [DONE]", vec![event("", "[DONE]")]),
            ("data: é🦀\n\n", vec![event("", "é🦀")]),
            ("\n\n\n", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(events(&[text.as_bytes()]), expected, "{text:?}");
        }
    }

    #[test]
    fn an_error_of_the_callback_stops_the_decoder() {
        let mut seen = 0;
        let result = SseDecoder::default().feed(b"data: a\n\ndata: b\n\n", |_| {
            seen += 1;
            Err("enough")
        });
        assert_eq!((result, seen), (Err("enough"), 1));
    }

    proptest! {
        #[test]
        fn events_do_not_depend_on_where_the_stream_is_cut(
            lines in prop::collection::vec(
                ("data: ?[a-zé🦀:\u{feff}]{0,6}|event: [a-z]{0,3}|: c|id: 1|[a-z]{0,3}", "\r\n|\n|\r|\r\n\r\n|\n\n|\r\r"),
                0..10,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let bytes = lines.iter().map(|(line, end)| format!("{line}{end}")).collect::<String>().into_bytes();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            places.extend([0, bytes.len()]);
            places.sort_unstable();
            let pieces: Vec<&[u8]> = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(events(&pieces), events(&[&bytes]));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8)) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            events(&pieces);
        }

        #[test]
        fn data_is_decoded_unchanged(lines in prop::collection::vec("[^\r\n]{0,20}", 1..5)) {
            let text: String = lines.iter().map(|line| format!("data: {line}\n")).collect::<String>() + "\n";
            prop_assert_eq!(events(&[text.as_bytes()]), vec![event("", &lines.join("\n"))]);
        }
    }
}
