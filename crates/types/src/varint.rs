//! Unsigned LEB128, the only variable-length integer of all file formats.

/// Maximum encoded bytes of a `u64`.
pub const VARINT_BYTES_MAX: usize = 10;

/// Appends `value`.
#[inline]
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns how many bytes [`put`] appends for `value`.
#[inline]
pub fn len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Takes a value off the front of `bytes`. Returns `None`, with `bytes` unchanged, when they are
/// cut short or overlong.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().enumerate().take(VARINT_BYTES_MAX) {
        if i == VARINT_BYTES_MAX - 1 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *bytes = bytes.get(i + 1..)?;
            return Some(value);
        }
    }
    None
}

/// Appends a length and the bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Takes what [`put_bytes`] appended.
pub fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut rest = *bytes;
    let length = usize::try_from(take(&mut rest)?).ok()?;
    let (taken, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_survive_the_round_trip_at_every_width() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put(&mut out, value);
                assert_eq!(out.len(), len(value));
                let mut rest = out.as_slice();
                assert_eq!(take(&mut rest), Some(value));
                assert!(rest.is_empty());
                assert_eq!(take(&mut &out[..out.len() - 1]), None);
            }
        }
    }

    #[test]
    fn overlong_integers_and_cut_bytes_are_refused() {
        assert_eq!(take(&mut [0xff; 11].as_slice()), None);
        assert_eq!(
            take(&mut [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2].as_slice()),
            None
        );
        assert_eq!(take_bytes(&mut [3, b'a', b'b'].as_slice()), None);
    }
}
