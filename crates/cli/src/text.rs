//! Text forms of bytes, for people and for JSON.

use crate::args::{Encoding, Range};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use stele_types::{Error, KeyRange, Result};

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Parses what [`to_hex`] writes; accepts either case.
pub(crate) fn from_hex(text: &str) -> Result<Vec<u8>> {
    let bad =
        || Error::invalid(format!("`{text}` is not hexadecimal: write two digits for each byte"));
    if !text.len().is_multiple_of(2) {
        return Err(bad());
    }
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(nibble(*high)? << 4 | nibble(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(|pair| byte(pair).ok_or_else(bad)).collect()
}

pub(crate) fn parse(text: &str, hex: bool) -> Result<Vec<u8>> {
    if hex { from_hex(text) } else { Ok(text.as_bytes().to_vec()) }
}

pub(crate) fn decode(text: &str, encoding: Encoding) -> Result<Vec<u8>> {
    match encoding {
        Encoding::Text => Ok(text.as_bytes().to_vec()),
        Encoding::Hex => from_hex(text),
        Encoding::Base64 => BASE64
            .decode(text)
            .map_err(|error| Error::invalid(format!("a field is not base64: {error}"))),
    }
}

pub(crate) fn to_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Formats bytes for a terminal; escapes control characters, backslashes and bytes that are not
/// UTF-8.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '\\' {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

pub(crate) fn key_range(range: &Range, hex: bool) -> Result<KeyRange> {
    if let Some(prefix) = &range.prefix {
        return Ok(KeyRange::prefix(&parse(prefix, hex)?));
    }
    let bound = |text: &Option<String>| parse(text.as_deref().unwrap_or_default(), hex);
    Ok(KeyRange::new(bound(&range.start)?, bound(&range.end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_survives_the_round_trip() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)).unwrap(), bytes);
        assert_eq!(from_hex("0Aff").unwrap(), [10, 255]);
        for bad in ["0", "0g", "+1", "é"] {
            assert!(from_hex(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn text_for_terminals_is_one_line() {
        assert_eq!(printable("a\tb\nç\\".as_bytes()), "a\\tb\\nç\\\\");
        assert_eq!(printable(b"a\xff\x00"), "a\\xff\\u{0}");
    }

    #[test]
    fn encodings_are_inverse() {
        let bytes = b"\x00any\xff";
        assert_eq!(decode(&to_base64(bytes), Encoding::Base64).unwrap(), bytes);
        assert!(decode("***", Encoding::Base64).is_err());
        assert_eq!(decode("text", Encoding::Text).unwrap(), b"text");
    }
}
