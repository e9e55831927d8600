//! Numbers as servers write them: whole, as floats, as text, or not at all.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// A number; none for any other value.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Number(pub(super) Option<f64>);

impl Number {
    /// As a count: missing and negative numbers are 0.
    pub(super) fn count(self) -> u64 {
        // The conversion clamps floats that are out of range.
        self.0.unwrap_or_default().max(0.0) as u64
    }

    /// As the id of a token or an expert.
    pub(super) fn id(self) -> Option<u32> {
        let number = self.0?;
        let id = number as u32;
        (f64::from(id) == number).then_some(id)
    }

    /// As an amount of money.
    pub(super) fn amount(self) -> Option<f64> {
        self.0.filter(|amount| amount.is_finite() && *amount >= 0.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_u64<E>(self, number: u64) -> Result<Number, E> {
                Ok(Number(Some(number as f64)))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Number, E> {
                Ok(Number(Some(number as f64)))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Number, E> {
                Ok(Number(Some(number)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Number, E> {
                Ok(Number(text.trim().parse().ok()))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Number, E> {
                Ok(Number(None))
            }

            fn visit_unit<E>(self) -> Result<Number, E> {
                Ok(Number(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Number, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Number(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Number, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Number(None))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_every_form() {
        for (text, number, count, id) in [
            ("5", Some(5.0), 5, Some(5)),
            ("5.0", Some(5.0), 5, Some(5)),
            ("5.5", Some(5.5), 5, None),
            ("-1", Some(-1.0), 0, None),
            ("\"12\"", Some(12.0), 12, Some(12)),
            ("4294967296", Some(4_294_967_296.0), 4_294_967_296, None),
            ("1e300", Some(1e300), u64::MAX, None),
            ("null", None, 0, None),
            ("true", None, 0, None),
            ("\"many\"", None, 0, None),
            ("[1,[2]]", None, 0, None),
            ("{\"a\":{}}", None, 0, None),
        ] {
            let read: Number = serde_json::from_str(text).unwrap();
            assert_eq!((read.0, read.count(), read.id()), (number, count, id), "{text}");
        }
    }
}
