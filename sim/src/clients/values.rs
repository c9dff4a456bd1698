//! Keys and values. A value's bytes follow from its number, so that a wrong byte is detected.

use bytes::Bytes;
use stele_storage::Pair;
use stele_types::Prng;

/// Number of a value; 0 for an absent value.
pub type Value = u32;

const DIGITS: usize = 8;
const FAR_S: u64 = 4_000_000_000;

/// Returns the user key of a group's key.
pub fn key_of(group: usize, key: u8) -> Bytes {
    Bytes::from(format!("g{group:02}/{key}"))
}

/// Returns the bytes of a value.
pub fn value_of(value: Value, bytes_max: u64) -> Bytes {
    let mut prng = Prng::new(u64::from(value));
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
pub fn number_of(bytes: &[u8], bytes_max: u64) -> Option<Value> {
    let value = std::str::from_utf8(bytes.get(..DIGITS)?).ok()?.parse().ok()?;
    (value_of(value, bytes_max) == bytes).then_some(value)
}

/// Returns the expiry of a value in Unix seconds, long after every run; 0 for none.
pub fn end_of(value: Value) -> u64 {
    match value % 4 {
        1 => FAR_S + u64::from(value),
        _ => 0,
    }
}

/// Returns the number of a pair's value; `None` if no client wrote that value or that expiry.
pub fn number_in(pair: &Pair, bytes_max: u64) -> Option<Value> {
    let value = number_of(&pair.value, bytes_max)?;
    (pair.expires_at_s == end_of(value)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

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
