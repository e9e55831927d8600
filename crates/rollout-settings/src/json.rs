//! Reads JSON into a tree with positions.

use serde::de::IgnoredAny;

use super::tree::{Entry, Node, Span, SyntaxError, Value, printable};

/// The deepest nesting of values, so that a hostile file does not overflow the stack.
const MAX_DEPTH: usize = 64;

/// Parses one value. Duplicate keys appear twice in the tree.
pub(crate) fn parse(text: &str, source: usize) -> Result<Node, SyntaxError> {
    if text.trim_matches(is_space).is_empty() {
        return Ok(Node { value: Value::Null, span: Span { source, start: 0, end: 0 } });
    }
    // serde_json checks the grammar; the scanner only has to find positions.
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        let line =
            text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum::<usize>();
        let mut start = (line + error.column().saturating_sub(1)).min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let mut message = error.to_string();
        message.truncate(message.rfind(" at line ").unwrap_or(message.len()));
        return Err(refused(printable(&message), source, start));
    }
    let mut scanner = Scanner { text, source, at: 0 };
    scanner.value(0)
}

fn refused(message: String, source: usize, start: usize) -> SyntaxError {
    SyntaxError { message, span: Some(Span { source, start, end: start }), hint: None }
}

fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}

/// Scans a text that is known to be valid JSON.
struct Scanner<'t> {
    text: &'t str,
    source: usize,
    at: usize,
}

impl Scanner<'_> {
    fn value(&mut self, depth: usize) -> Result<Node, SyntaxError> {
        self.skip_space();
        let start = self.at;
        if depth > MAX_DEPTH {
            return Err(refused(format!("values are nested more than {MAX_DEPTH} deep"), self.source, start));
        }
        let value = match self.next_byte() {
            Some(b'{') => self.entries(depth)?,
            Some(b'[') => self.items(depth)?,
            Some(b'"') => Value::String(self.string()?.0),
            _ => self.scalar()?,
        };
        // For a collection, only its first character: it may span many lines.
        let end = if matches!(value, Value::Map(_) | Value::List(_)) { start + 1 } else { self.at };
        Ok(Node { value, span: Span { source: self.source, start, end } })
    }

    fn entries(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let mut entries = Vec::new();
        self.at += 1;
        while !self.ends_with(b'}') {
            let (key, key_span) = self.string()?;
            self.skip_space();
            // The colon.
            self.at += 1;
            entries.push(Entry { key, key_span, node: self.value(depth + 1)? });
        }
        Ok(Value::Map(entries))
    }

    fn items(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let mut items = Vec::new();
        self.at += 1;
        while !self.ends_with(b']') {
            items.push(self.value(depth + 1)?);
        }
        Ok(Value::List(items))
    }

    /// Moves to the next part of a collection; returns whether it ends instead.
    fn ends_with(&mut self, bracket: u8) -> bool {
        self.skip_space();
        if self.next_byte() == Some(b',') {
            self.at += 1;
            self.skip_space();
        }
        let ends = self.next_byte().is_none_or(|byte| byte == bracket);
        self.at += usize::from(ends);
        ends
    }

    fn string(&mut self) -> Result<(String, Span), SyntaxError> {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.next_byte().filter(|byte| *byte != b'"') {
            // The escaped character has at least one byte and is never the end of the text.
            self.at += if byte == b'\\' { 2 } else { 1 };
        }
        self.at = (self.at + 1).min(self.text.len());
        let written = self.text.get(start..self.at).unwrap_or_default();
        let read = serde_json::from_str(written);
        let read =
            read.map_err(|_| refused("an escape in this text is invalid".to_owned(), self.source, start));
        Ok((read?, self.span(start)))
    }

    fn scalar(&mut self) -> Result<Value, SyntaxError> {
        let start = self.at;
        let rest = &self.text[start..];
        let length = rest.find(|c: char| is_space(c) || matches!(c, ',' | ']' | '}')).unwrap_or(rest.len());
        self.at += length;
        let written = &rest[..length];
        Ok(match written {
            "null" => Value::Null,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            number => match (number.parse(), number.parse::<f64>()) {
                (Ok(whole), _) => Value::Int(whole),
                (Err(_), Ok(number)) if number.is_finite() => Value::Float(number),
                _ => return Err(refused("this number is too large".to_owned(), self.source, start)),
            },
        })
    }

    fn next_byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches(is_space).len();
    }

    fn span(&self, start: usize) -> Span {
        Span { source: self.source, start, end: self.at }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<serde_json::Value, (String, usize)> {
        let position = |error: SyntaxError| (error.message, error.span.map_or(0, |span| span.start));
        parse(text, 0).map(|node| node.to_json("", &mut |_, text, _| text.into())).map_err(position)
    }

    #[test]
    fn values_that_yaml_reads_differently_are_read_as_json() {
        let text =
            "{\n\t\"a\": \"\\/ \\ud83d\\ude00\",\n\t\"no\": [1, -2.5, 1e3, null, true],\n\t\"n\": \"no\"}\n";
        assert_eq!(read(text), Ok(json!({"a": "/ 😀", "no": [1, -2.5, 1e3, null, true], "n": "no"})));
        assert_eq!(read(""), Ok(json!(null)));
        assert_eq!(read("{}"), Ok(json!({})));
    }

    #[test]
    fn yaml_syntax_is_rejected_at_its_position() {
        for (text, place) in
            [("a: 1", 0), ("{a: 1}", 1), ("{\"a\": 1,}", 8), ("{\"a\": yes}", 6), ("{\"a\": 'x'}", 6)]
        {
            assert_eq!(read(text).map_err(|(_, at)| at), Err(place), "{text}");
        }
        assert_eq!(read("{\"a\": 1} x").unwrap_err().0, "trailing characters");
    }

    #[test]
    fn every_key_and_value_has_its_position() {
        let text = "{\"a\": [1, {\"é\": \"x\"}]}";
        let Value::Map(entries) = parse(text, 0).unwrap().value else { panic!() };
        assert_eq!(&text[entries[0].key_span.range()], "\"a\"");
        let Value::List(items) = &entries[0].node.value else { panic!() };
        assert_eq!((&text[items[0].span.range()], items[1].span.start), ("1", 10));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_rejected(text in ".{0,60}", json in "[\\[\\]{}\",:\\\\a1 ]{0,40}") {
            let _ = (read(&text), read(&json));
        }
    }
}
