//! Sizes: their form for people, and the global limits of calls. A call that exceeds a limit fails
//! with `Error::Invalid` and changes nothing.

use crate::{Error, Result};

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Parses `128MiB`, `4 KiB`, `1g`, `4096`: binary units, any case, the `iB` optional.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let bad =
        || Error::invalid(format!("`{text}` is not a size; write for example 16KiB or 128MiB"));
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1u64 << 40,
        _ => return Err(bad()),
    };
    number.checked_mul(factor).ok_or_else(bad)
}

/// Formats a size with the largest unit that leaves at least 1, one decimal.
pub fn format_bytes(bytes: u64) -> String {
    for (unit, factor) in UNITS {
        if bytes >= factor && factor > 1 {
            return format!("{:.1} {unit}", bytes as f64 / factor as f64);
        }
    }
    format!("{bytes} B")
}

/// Formats a number with its noun: `1 device`, `2 devices`. The plural of the noun ends in `s`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Maximum bytes of a key that front ends accept.
pub const USER_KEY_BYTES_MAX: usize = 8 << 10;
/// Maximum bytes of an engine key: a user key and its space.
pub const KEY_BYTES_MAX: usize = USER_KEY_BYTES_MAX + 16;
/// Maximum bytes of a value.
pub const VALUE_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of a value that an append makes: each append logs the whole value.
pub const APPENDED_VALUE_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of one command (an atomic batch): one value of maximum length with its key, and
/// some reserve.
pub const COMMAND_BYTES_MAX: usize = 96 << 20;
/// Values of at most this many bytes are stored in the index instead of being referred to.
pub const INLINE_VALUE_BYTES_MAX: usize = 64;
/// Average bytes of a record in a value file beyond key and value. Counted as live, so that a file
/// with only live records is nearly all live.
pub const RECORD_OVERHEAD_BYTES: u64 = 12;
/// The on-disk format that this build writes. It also reads all earlier ones.
pub const FORMAT_VERSION: u32 = 2;

/// Fails with `Error::Invalid` for a value above the limit.
pub fn check_value_bytes(bytes: u64) -> Result<()> {
    if bytes <= VALUE_BYTES_MAX as u64 {
        return Ok(());
    }
    Err(Error::invalid(format!("value of {bytes} bytes; the limit is {VALUE_BYTES_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_no_plural() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "key")), ["0 keys", "1 key", "2 keys"]);
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!(parse_bytes("128MiB").unwrap(), 128 << 20);
        assert_eq!(parse_bytes(" 4 k ").unwrap(), 4096);
        assert_eq!(parse_bytes("77").unwrap(), 77);
        for bad in ["", "MiB", "1.5G", "3 parsecs", "99999999999999T"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(12), "12 B");
    }
}
