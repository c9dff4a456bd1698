//! Keys and values. A value's bytes follow from its number, so that a wrong byte is detected.

use bytes::Bytes;
use stele_storage::Pair;
use stele_types::Prng;

/// Number of a value; 0 for an absent value. Clients write values below `WRITTEN_MAX`, each once. The
/// number of a computed value follows from the value before it.
pub type Value = u64;

/// Bound of written values: their bytes begin with a zero, and those of a sum do not.
const WRITTEN_MAX: Value = 10_000_000;

/// Mark of a value that increments made: the sum follows.
const SUM: Value = 1 << 62;
/// Mark of a value with appended parts: the number of the value before all parts, in 32 bits, and a
/// hash of the parts follow. With both marks, that value is a sum, and 32 bits are its hash.
const APPENDED: Value = 1 << 63;
const HASH_BITS: u32 = 30;

const DIGITS: usize = 8;
const FAR_S: u64 = 4_000_000_000;

/// Returns the value after an increment; `None` if the value is not a number.
pub fn incremented(value: Value, by: u32) -> Option<Value> {
    match value & (SUM | APPENDED) {
        SUM => Some(value + Value::from(by)),
        0 if value == 0 => Some(SUM + Value::from(by)),
        _ => None,
    }
}

/// Returns the value after a part was appended.
pub fn appended(value: Value, part: u32) -> Value {
    let mix = |hash: u64, word: u64| {
        (hash ^ word).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    };
    let (head, hash) = match value & (SUM | APPENDED) {
        0 => (APPENDED | value << HASH_BITS, 0),
        SUM => (APPENDED | SUM | (mix(0, value) >> 32) << HASH_BITS, 0),
        _ => (value >> HASH_BITS << HASH_BITS, value & ((1 << HASH_BITS) - 1)),
    };
    head | mix(hash, u64::from(part)) >> (u64::BITS - HASH_BITS)
}

/// Returns the written value to which all parts of a value were appended.
pub fn base_of(value: Value) -> Option<Value> {
    let base = value << 2 >> (2 + HASH_BITS);
    (value & (SUM | APPENDED) == APPENDED && base != 0).then_some(base)
}

/// Returns true if the bytes of a value follow from its number.
pub fn has_known_bytes(value: Value) -> bool {
    value & APPENDED == 0
}

/// Returns true for a value that an increment can change.
pub fn is_countable(value: Value) -> bool {
    incremented(value, 0).is_some()
}

/// Returns the bytes of an appended part.
pub fn part_of(part: u32) -> Bytes {
    Bytes::from(format!("+{part:0DIGITS$}"))
}

/// Returns the user key of a group's key.
pub fn key_of(group: usize, key: u8) -> Bytes {
    Bytes::from(format!("g{group:02}/{key}"))
}

/// Returns the bytes of a value without appended parts.
pub fn value_of(value: Value, bytes_max: u64) -> Bytes {
    if value & SUM != 0 {
        return Bytes::from((value & !SUM).to_string());
    }
    let mut prng = Prng::new(value);
    let bytes = match prng.below(4) {
        0 => prng.below(40),
        1 => prng.below(120),
        _ => prng.below(bytes_max),
    };
    let mut out = format!("{value:0DIGITS$}").into_bytes();
    out.extend((0..bytes).map(|at| (at as u8).wrapping_mul(31) ^ value as u8));
    Bytes::from(out)
}

/// Returns the number of a value's bytes; `None` if no value has them.
pub(super) fn number_of(bytes: &[u8], bytes_max: u64) -> Option<Value> {
    let is = |value: &Value| value_of(*value, bytes_max) == bytes;
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<u32>().ok();
    let written = bytes.get(..DIGITS).and_then(text).map(Value::from);
    let written = written.filter(|value| *value < WRITTEN_MAX);
    let sum = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    let sum = sum.filter(|sum: &u64| *sum < SUM).map(|sum| SUM + sum);
    if let Some(value) = written.filter(is).or(sum.filter(is)) {
        return Some(value);
    }
    let (before, part) = bytes.split_at_checked(bytes.len().checked_sub(DIGITS + 1)?)?;
    let number = text(part.strip_prefix(b"+")?)?;
    let before = if before.is_empty() { 0 } else { number_of(before, bytes_max)? };
    Some(appended(before, number))
}

/// Returns the expiry of a value in Unix seconds, long after every run; 0 for none. Computed values
/// keep the expiry of the value before them.
pub fn end_of(value: Value) -> u64 {
    match base_of(value).unwrap_or(value) {
        written if written < SUM && written % 4 == 1 => FAR_S + written,
        _ => 0,
    }
}

/// Returns the number of a pair's value; `None` if no client wrote that value or that expiry.
pub(super) fn number_in(pair: &Pair, bytes_max: u64) -> Option<Value> {
    let value = number_of(&pair.value, bytes_max)?;
    (pair.expires_at_s == end_of(value)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computed_values_are_known_by_their_bytes_and_follow_from_those_before() {
        let bytes_max = 1_000;
        let number = |bytes: &[u8]| number_of(bytes, bytes_max);
        let sum = incremented(0, 41).unwrap();
        assert_eq!((number(b"41"), incremented(sum, 1)), (Some(sum), number(b"42")));
        assert_eq!((number(b"041"), number(b"-1"), number(b"")), (None, None, None));
        // A written value of this number would have these bytes, if it were written.
        assert_eq!(number(b"124516419"), incremented(0, 124_516_419));
        let mut seen = std::collections::BTreeSet::new();
        for before in [0, 1, 5, 1_000_000, sum] {
            assert_eq!(incremented(before, 1).is_some(), is_countable(before));
            let mut bytes = match before {
                0 => Vec::new(),
                before => value_of(before, bytes_max).to_vec(),
            };
            let mut value = before;
            for part in [7, 8, 7] {
                bytes.extend(part_of(part));
                value = appended(value, part);
                assert_eq!(number(&bytes), Some(value));
                assert!(seen.insert(value), "{before} and {part}");
                assert!(!is_countable(value) && !has_known_bytes(value));
                let is_written = before != 0 && before != sum;
                assert_eq!(base_of(value), is_written.then_some(before));
                assert_eq!(end_of(value), end_of(before));
            }
        }
        assert_eq!((base_of(5), base_of(sum), end_of(sum)), (None, None, 0));
    }

    #[test]
    fn a_value_is_known_by_its_bytes_and_a_wrong_byte_is_seen() {
        for value in 1..200 {
            let bytes = value_of(value, 1_000);
            assert_eq!(number_of(&bytes, 1_000), Some(value));
            assert_eq!(number_of(&bytes[..bytes.len() - 1], 1_000), None);
            let mut wrong = bytes.to_vec();
            let at = wrong.len() - 1;
            wrong[at] ^= 4;
            assert_eq!(number_of(&wrong, 1_000), None);
        }
    }
}
