//! JSON exactly as Python's `json.dumps` writes it, for hashes that other programs also compute.
//!
//! The main difference between writers is the format of numbers: Python uses exponents from other magnitudes on, and
//! gives them a sign and two digits. An integer of up to 64 bits stays an integer; `serde_json` reads larger ones as
//! floats. `serde_json` has no infinity and no NaN, which Python would write as words.

use std::io;

use serde::Serialize;
use serde_json::{Value, ser::Formatter};

/// The format: the arguments of `json.dumps`.
///
/// ```
/// use rollout::record::python_json::PythonJson;
///
/// let value = serde_json::json!({ "b": 1e-7, "a": "é" });
/// assert_eq!(PythonJson::sorted().text(&value), r#"{"a": "\u00e9", "b": 1e-07}"#);
/// assert_eq!(PythonJson::compact().text(&value), r#"{"b":1e-07,"a":"é"}"#);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PythonJson {
    /// Whether keys are sorted by code points, at every depth.
    pub sort_keys: bool,
    /// Whether characters outside ASCII are escaped.
    pub ensure_ascii: bool,
    /// The separators.
    pub spacing: Spacing,
}

/// The separators between the parts of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    /// A space after each comma and colon, all on one line: Python's default.
    Spaces,
    /// No whitespace: `separators=(",", ":")`.
    Nothing,
    /// New lines with this many spaces for each level: `indent`.
    Lines(usize),
}

impl PythonJson {
    /// `json.dumps(value, sort_keys=True)`: the form that ids are computed from.
    pub fn sorted() -> Self {
        Self { sort_keys: true, ensure_ascii: true, spacing: Spacing::Spaces }
    }

    /// `json.dumps(value, ensure_ascii=False, separators=(",", ":"))`: a line of a file.
    pub fn compact() -> Self {
        Self { sort_keys: false, ensure_ascii: false, spacing: Spacing::Nothing }
    }

    /// `json.dumps(value, ensure_ascii=False, indent=2)`: a readable file.
    pub fn pretty() -> Self {
        Self { sort_keys: false, ensure_ascii: false, spacing: Spacing::Lines(2) }
    }

    /// Returns the text of a value.
    pub fn text(self, value: &Value) -> String {
        let mut text = Vec::new();
        self.write(&mut text, value).expect("keys of a value are strings, and writing to memory cannot fail");
        String::from_utf8(text).expect("the output is UTF-8")
    }

    /// Writes any serializable value. Fails if a key is not a string, or if the writer fails.
    pub fn write(self, to: impl io::Write, value: &impl Serialize) -> io::Result<()> {
        let mut serializer =
            serde_json::Serializer::with_formatter(to, Layout { style: self, depth: 0, empty: true });
        if self.sort_keys {
            let mut value = serde_json::to_value(value)?;
            value.sort_all_objects();
            value.serialize(&mut serializer)?;
        } else {
            value.serialize(&mut serializer)?;
        }
        Ok(())
    }
}

struct Layout {
    style: PythonJson,
    depth: usize,
    empty: bool,
}

impl Layout {
    fn open<W: ?Sized + io::Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        to.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        if !first {
            to.write_all(if self.style.spacing == Spacing::Spaces { b", " } else { b"," })?;
        }
        self.line(to)
    }

    fn close<W: ?Sized + io::Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.empty {
            self.line(to)?;
        }
        self.empty = false;
        to.write_all(bracket)
    }

    fn line<W: ?Sized + io::Write>(&self, to: &mut W) -> io::Result<()> {
        match self.style.spacing {
            Spacing::Lines(indent) => write!(to, "\n{:1$}", "", indent * self.depth),
            Spacing::Spaces | Spacing::Nothing => Ok(()),
        }
    }
}

impl Formatter for Layout {
    fn write_f64<W: ?Sized + io::Write>(&mut self, to: &mut W, value: f64) -> io::Result<()> {
        to.write_all(float(value).as_bytes())
    }

    fn write_f32<W: ?Sized + io::Write>(&mut self, to: &mut W, value: f32) -> io::Result<()> {
        self.write_f64(to, value.into())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, to: &mut W, fragment: &str) -> io::Result<()> {
        if !self.style.ensure_ascii {
            return to.write_all(fragment.as_bytes());
        }
        let mut rest = fragment;
        while let Some(place) = rest.find(|c: char| !c.is_ascii() || c == '\x7f') {
            let (plain, special) = rest.split_at(place);
            to.write_all(plain.as_bytes())?;
            let mut characters = special.chars();
            let mut units = [0; 2];
            for unit in characters.next().map(|c| c.encode_utf16(&mut units)).into_iter().flatten() {
                write!(to, "\\u{unit:04x}")?;
            }
            rest = characters.as_str();
        }
        to.write_all(rest.as_bytes())
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open(to, b"[")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.next(to, first)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.close(to, b"]")
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open(to, b"{")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.next(to, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(if self.style.spacing == Spacing::Nothing { b":" } else { b": " })
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.close(to, b"}")
    }
}

/// Formats a finite number as Python's `repr` does: the fewest digits that read back as the same number, with an
/// exponent below 0.0001 and from 1e16 on.
fn float(value: f64) -> String {
    let shortest = format!("{value:e}");
    let digits = shortest.bytes().take_while(|byte| *byte != b'e').filter(u8::is_ascii_digit).count();
    // Of two texts of the same length that are equally close, Python chooses the even one, as does rounding to a
    // length.
    let rounded = format!("{value:.*e}", digits - 1);
    let scientific = if rounded.parse() == Ok(value) { rounded } else { shortest };
    let (number, exponent) = scientific.split_once('e').expect("this format has an exponent");
    let exponent: i32 = exponent.parse().expect("an exponent is a whole number");
    if (-4..16).contains(&exponent) {
        let decimals = usize::try_from(digits as i32 - 1 - exponent).unwrap_or(0);
        let fixed = format!("{value:.decimals$}");
        return if fixed.contains('.') { fixed } else { fixed + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{number}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_of_every_magnitude_are_written_as_python_does() {
        let table = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-1.5, "-1.5"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.000_123_4, "0.0001234"),
            (0.000_01, "1e-05"),
            (0.000_099_999, "9.9999e-05"),
            (1e-7, "1e-07"),
            (1.5e-7, "1.5e-07"),
            (1e-10, "1e-10"),
            (123_456_789_012_345.6, "123456789012345.6"),
            (1e15, "1000000000000000.0"),
            (9_007_199_254_740_993.0, "9007199254740992.0"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (1e22, "1e+22"),
            (1e100, "1e+100"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
            (5e-324, "5e-324"),
            (2_804_368_900_913_805.0 / 4.0, "701092225228451.2"),
            (2_804_368_900_913_807.0 / 4.0, "701092225228451.8"),
            (4_503_599_627_370_498.0, "4503599627370498.0"),
            (9_007_199_254_740_991.0, "9007199254740991.0"),
            (-0.5, "-0.5"),
            (100.0, "100.0"),
        ];
        for (value, text) in table {
            assert_eq!(PythonJson::sorted().text(&json!(value)), text);
        }
    }

    #[test]
    fn whole_numbers_stay_whole() {
        assert_eq!(
            PythonJson::sorted().text(&json!([0, -1, u64::MAX, i64::MIN])),
            "[0, -1, 18446744073709551615, -9223372036854775808]"
        );
        let mut text = Vec::new();
        PythonJson::compact().write(&mut text, &u128::MAX).unwrap();
        assert_eq!(text, u128::MAX.to_string().as_bytes());
    }

    #[test]
    fn characters_outside_ascii_are_escaped_if_requested() {
        let text = json!("é 日 😀 \u{7f}\u{80}\u{ffff} \0\u{1f}\u{8}\u{c}\n\r\t\"\\/ ~");
        assert_eq!(
            PythonJson::sorted().text(&text),
            r#""\u00e9 \u65e5 \ud83d\ude00 \u007f\u0080\uffff \u0000\u001f\b\f\n\r\t\"\\/ ~""#
        );
        assert_eq!(
            PythonJson::compact().text(&text),
            format!("\"é 日 😀 \u{7f}\u{80}\u{ffff} {}", r#"\u0000\u001f\b\f\n\r\t\"\\/ ~""#)
        );
    }

    #[test]
    fn keys_are_sorted_by_code_point_at_every_depth() {
        let value = json!({ "b": [{ "z": 1, "a": { "é": 2, "e": 3 } }], "B": 4, "": 5, "😀": 6, "\u{ffff}": 7, "a": 8 });
        assert_eq!(
            PythonJson { ensure_ascii: false, ..PythonJson::sorted() }.text(&value),
            "{\"\": 5, \"B\": 4, \"a\": 8, \"b\": [{\"a\": {\"e\": 3, \"é\": 2}, \"z\": 1}], \"\u{ffff}\": 7, \"😀\": 6}"
        );
    }

    #[test]
    fn lines_are_indented_and_empty_values_stay_on_their_line() {
        let value = json!({ "b": [], "a": {}, "c": [1, [], { "d": null }] });
        insta::assert_snapshot!(PythonJson::pretty().text(&value), @r#"
        {
          "b": [],
          "a": {},
          "c": [
            1,
            [],
            {
              "d": null
            }
          ]
        }
        "#);
    }

    #[test]
    fn a_key_that_is_not_a_string_is_rejected() {
        let map = std::collections::BTreeMap::from([(vec![1], 2)]);
        assert!(PythonJson::sorted().write(io::sink(), &map).is_err());
        assert!(PythonJson::compact().write(io::sink(), &map).is_err());
    }
}
