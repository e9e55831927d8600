//! Amounts of CPU, memory and storage, written as numbers or Kubernetes quantities.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// An amount of CPU in thousandths of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cpus {
    /// Thousandths of a core.
    pub millis: u64,
}

/// An amount of memory or storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Bytes(pub u64);

/// Why a text is not a valid amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text is not a number with an optional unit.
    #[error("this is not a quantity")]
    Form,
    /// The amount is zero or less.
    #[error("a quantity must be more than 0")]
    NotPositive,
    /// The amount is too large for any machine.
    #[error("this quantity is too large")]
    TooLarge,
}

const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [(&str, i32); 9] =
    [("n", -9), ("u", -6), ("m", -3), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// Numbers without a unit below this are mebibytes: nothing runs in less than 1 MiB of memory.
const SMALLEST_BARE: u64 = 1 << 20;

/// A million cores, so that the multiplications of providers do not overflow.
const MOST_MILLIS: u64 = 1_000_000_000;

/// Providers use signed numbers for bytes.
const MOST_BYTES: u64 = i64::MAX as u64;

/// Parses a quantity in units of 10^-`decimals`, rounded up.
fn parse(text: &str, decimals: i32, most: u64) -> Result<u64, QuantityError> {
    let (negative, unsigned) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let number_end =
        unsigned.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(unsigned.len());
    let (number, unit) = unsigned.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(QuantityError::Form);
    }
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');

    let mut exponent = decimals - i32::try_from(fraction.len()).map_err(|_| QuantityError::Form)?;
    let mut binary = 0;
    if let Some(power) = BINARY.iter().position(|suffix| *suffix == unit) {
        binary = 10 * (power as u32 + 1);
    } else if let Some((_, power)) = DECIMAL.iter().find(|(suffix, _)| *suffix == unit) {
        exponent += power;
    } else if let Some(power) = unit.strip_prefix(['e', 'E']) {
        let unsigned = power.strip_prefix(['+', '-']).unwrap_or(power);
        if unsigned.is_empty() || unsigned.len() > 4 || !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(QuantityError::Form);
        }
        exponent += power.parse::<i32>().map_err(|_| QuantityError::Form)?;
    } else if !unit.is_empty() {
        return Err(QuantityError::Form);
    }
    if digits.is_empty() || negative {
        return Err(QuantityError::NotPositive);
    }
    let mantissa: u128 = digits.parse().map_err(|_| QuantityError::TooLarge)?;
    let scaled = mantissa.checked_mul(1 << binary).ok_or(QuantityError::TooLarge)?;
    let value = match u32::try_from(exponent) {
        Ok(power) => 10_u128.checked_pow(power).and_then(|factor| scaled.checked_mul(factor)),
        // With a divisor beyond u128, the result is less than one unit, which rounds up to one.
        Err(_) => {
            Some(10_u128.checked_pow(exponent.unsigned_abs()).map_or(1, |divisor| scaled.div_ceil(divisor)))
        }
    };
    let value = value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value <= most);
    value.ok_or(QuantityError::TooLarge)
}

impl FromStr for Cpus {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Ok(Self { millis: parse(text, 3, MOST_MILLIS)? })
    }
}

impl FromStr for Bytes {
    type Err = QuantityError;

    /// Parses a Kubernetes quantity strictly: a number without a unit is bytes.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Ok(Self(parse(text, 0, MOST_BYTES)?))
    }
}

impl Bytes {
    /// Creates an amount of mebibytes.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// Parses an amount of a job or task file: a number without a unit below 1 MiB is in mebibytes. The flag reports
    /// whether this rule was used.
    pub fn from_file(text: &str) -> Result<(Self, bool), QuantityError> {
        let bytes: Self = text.parse()?;
        let bare = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.' || byte == b'+');
        if bare && bytes.0 < SMALLEST_BARE {
            return Ok((format!("{text}Mi").parse()?, true));
        }
        Ok((bytes, false))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.millis.is_multiple_of(1000) {
            write!(f, "{}", self.millis / 1000)
        } else {
            write!(f, "{}m", self.millis)
        }
    }
}

/// Writes the exact amount in the largest unit that divides it, in a form that parses as the same amount.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary =
            BINARY.iter().enumerate().rev().map(|(power, unit)| (*unit, 1_u64 << (10 * (power + 1))));
        let decimal = DECIMAL.iter().rev().filter(|(_, power)| *power > 0);
        let decimal = decimal.map(|(unit, power)| (*unit, 10_u64.pow(power.unsigned_abs())));
        let whole = binary.chain(decimal).filter(|(_, size)| self.0 >= *size && self.0.is_multiple_of(*size));
        if let Some((unit, size)) = whole.max_by_key(|(_, size)| *size) {
            return write!(f, "{}{unit}", self.0 / size);
        }
        // The exponent prevents a small amount from being read as mebibytes.
        if self.0 < SMALLEST_BARE { write!(f, "{}e0", self.0) } else { write!(f, "{}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("2G", Ok(2_000_000_000)),
            ("2Gi", Ok(2 << 30)),
            ("2048", Ok(2048)),
            ("1.5Gi", Ok(3 << 29)),
            ("1.5k", Ok(1500)),
            (".5Ki", Ok(512)),
            ("5.", Ok(5)),
            ("+1", Ok(1)),
            ("1e3", Ok(1000)),
            ("1E3", Ok(1000)),
            ("1E", Ok(10_u64.pow(18))),
            ("7Ei", Ok(7 << 60)),
            ("8Ei", Err(QuantityError::TooLarge)),
            ("12e-1", Ok(2)),
            ("1n", Ok(1)),
            ("1500m", Ok(2)),
            ("1e-300", Ok(1)),
            ("0", Err(QuantityError::NotPositive)),
            ("0.0Gi", Err(QuantityError::NotPositive)),
            ("-1Gi", Err(QuantityError::NotPositive)),
            ("16Ei", Err(QuantityError::TooLarge)),
            ("1e300", Err(QuantityError::TooLarge)),
            ("99999999999999999999999999999999999999999", Err(QuantityError::TooLarge)),
            ("", Err(QuantityError::Form)),
            (".", Err(QuantityError::Form)),
            ("G", Err(QuantityError::Form)),
            ("1.2.3", Err(QuantityError::Form)),
            ("1GB", Err(QuantityError::Form)),
            ("2g", Err(QuantityError::Form)),
            ("1K", Err(QuantityError::Form)),
            ("1 G", Err(QuantityError::Form)),
            ("1e", Err(QuantityError::Form)),
            ("1e+", Err(QuantityError::Form)),
            ("1e99999", Err(QuantityError::Form)),
            ("--1", Err(QuantityError::Form)),
            ("１", Err(QuantityError::Form)),
        ] {
            assert_eq!(text.parse::<Bytes>().map(|bytes| bytes.0), expected, "{text:?}");
        }
    }

    #[test]
    fn cpus_are_counted_in_thousandths_rounded_up() {
        for (text, millis) in [("1", 1000), ("0.5", 500), ("500m", 500), ("0.0001", 1), ("2k", 2_000_000)] {
            assert_eq!(text.parse(), Ok(Cpus { millis }), "{text:?}");
        }
    }

    #[test]
    fn a_small_number_without_a_unit_is_mebibytes() {
        assert_eq!(Bytes::from_file("2048"), Ok((Bytes::mib(2048), true)));
        assert_eq!(Bytes::from_file("0.5"), Ok((Bytes(1 << 19), true)));
        assert_eq!(Bytes::from_file("1048575"), Ok((Bytes::mib(1_048_575), true)));
        assert_eq!(Bytes::from_file("1048576"), Ok((Bytes::mib(1), false)));
        assert_eq!(Bytes::from_file("100k"), Ok((Bytes(100_000), false)));
    }

    #[test]
    fn amounts_are_shown_in_the_largest_unit_that_divides_them() {
        for (bytes, text) in [
            (2 << 30, "2Gi"),
            (2_000_000_000, "2G"),
            (1_500_000_000, "1500M"),
            (1536 << 20, "1536Mi"),
            (1_048_577, "1048577"),
            (7, "7e0"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Cpus { millis: 2000 }.to_string(), "2");
        assert_eq!(Cpus { millis: 1500 }.to_string(), "1500m");
    }

    proptest! {
        #[test]
        fn a_displayed_amount_parses_as_the_same_amount(amount in 1..=MOST_BYTES, millis in 1..=MOST_MILLIS) {
            prop_assert_eq!(Bytes::from_file(&Bytes(amount).to_string()), Ok((Bytes(amount), false)));
            let cpus = Cpus { millis };
            prop_assert_eq!(cpus.to_string().parse(), Ok(cpus));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "[-+0-9.eEnumkMGTPi]{0,50}|\\PC{0,20}") {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<Cpus>();
            let _ = Bytes::from_file(&text);
        }

        #[test]
        fn a_larger_unit_is_a_larger_amount(count in 1_u64..1000) {
            let sizes: Vec<u64> = ["", "k", "Ki", "M", "Mi", "G", "Gi", "T", "Ti", "P", "Pi"]
                .iter()
                .map(|unit| format!("{count}{unit}").parse::<Bytes>().unwrap().0)
                .collect();
            prop_assert!(sizes.is_sorted_by(|a, b| a < b));
        }
    }
}
