//! Values computed from the value before them: one definition for clusters and for single stores.

use crate::limits::APPENDED_VALUE_BYTES_MAX;
use crate::{Error, Result};

/// Reason why the value of a key does not allow a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The value is not a decimal number of 64 bits with sign.
    #[error("the value of the key is not a decimal number of 64 bits with sign; put one first")]
    NotANumber,
    /// The sum does not fit into 64 bits with sign.
    #[error("the sum does not fit into 64 bits with sign; the number is unchanged")]
    Overflow,
    /// The value would be too long.
    #[error("value of {bytes} bytes; an append makes at most {APPENDED_VALUE_BYTES_MAX}")]
    TooLong {
        /// Its length in bytes.
        bytes: u64,
    },
}

impl Unfit {
    /// Returns the error of the request: it can never succeed on this value.
    pub fn error(self) -> Error {
        Error::Invalid(self.to_string())
    }
}

/// Returns the sum of a value and `by`; no value counts as 0.
pub fn incremented(before: Option<&[u8]>, by: i64) -> Result<i64, Unfit> {
    let number = match before {
        Some(value) => number(value).ok_or(Unfit::NotANumber)?,
        None => 0,
    };
    number.checked_add(by).ok_or(Unfit::Overflow)
}

/// Parses a number as an increment writes it: without a plus, blanks or leading zeros.
fn number(value: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == value).then_some(number)
}

/// Returns a value with `bytes` at its end; no value counts as empty.
pub fn appended(before: Option<&[u8]>, bytes: &[u8]) -> Result<Vec<u8>, Unfit> {
    let before = before.unwrap_or_default();
    let length = before.len() + bytes.len();
    match length <= APPENDED_VALUE_BYTES_MAX {
        true => Ok([before, bytes].concat()),
        false => Err(Unfit::TooLong { bytes: length as u64 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_increment_takes_decimal_numbers_of_64_bits() {
        // Value before, number to add, sum.
        let rows = [
            (None, 5, Ok(5)),
            (None, i64::MIN, Ok(i64::MIN)),
            (Some("0"), 0, Ok(0)),
            (Some("41"), 1, Ok(42)),
            (Some("1"), -3, Ok(-2)),
            (Some("-9223372036854775808"), 1, Ok(i64::MIN + 1)),
            (Some("9223372036854775807"), 1, Err(Unfit::Overflow)),
            (Some("-9223372036854775808"), -1, Err(Unfit::Overflow)),
            (Some("9223372036854775808"), 0, Err(Unfit::NotANumber)),
            (Some(""), 1, Err(Unfit::NotANumber)),
            (Some("+1"), 1, Err(Unfit::NotANumber)),
            (Some("01"), 1, Err(Unfit::NotANumber)),
            (Some("-0"), 1, Err(Unfit::NotANumber)),
            (Some(" 1"), 1, Err(Unfit::NotANumber)),
            (Some("1.0"), 1, Err(Unfit::NotANumber)),
            (Some("\u{661}"), 1, Err(Unfit::NotANumber)),
        ];
        for (before, by, sum) in rows {
            assert_eq!(incremented(before.map(str::as_bytes), by), sum, "{before:?} and {by}");
        }
        assert_eq!(incremented(Some(&[0xff]), 1), Err(Unfit::NotANumber));
    }

    #[test]
    fn an_append_stops_at_the_limit() {
        let bytes_max = APPENDED_VALUE_BYTES_MAX;
        assert_eq!(appended(None, b"ab").unwrap(), b"ab");
        assert_eq!(appended(Some(b"ab"), b"c").unwrap(), b"abc");
        let nearly = vec![7; bytes_max - 1];
        assert_eq!(appended(Some(&nearly), &[7]).unwrap(), vec![7; bytes_max]);
        let too_long = Err(Unfit::TooLong { bytes: bytes_max as u64 + 1 });
        assert_eq!(appended(Some(&nearly), &[7, 7]), too_long);
        assert_eq!(appended(None, &vec![7; bytes_max + 1]), too_long);
    }
}
