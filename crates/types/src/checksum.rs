//! CRC-32C (Castagnoli; CRC-32/ISCSI), the one checksum of every file and value.

use crc_fast::{CrcAlgorithm, Digest};

/// Returns the checksum of one slice.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A checksum over several slices.
#[derive(Clone, Debug)]
pub struct Crc32c {
    digest: Digest,
    /// Length of the last part, and the factor for that length: parts often have the same length.
    shift: (u64, u32),
}

impl Crc32c {
    /// Starts a checksum.
    pub fn new() -> Self {
        Self { digest: Digest::new(CrcAlgorithm::Crc32Iscsi), shift: (0, ONE) }
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) -> &mut Self {
        self.digest.update(bytes);
        self
    }

    /// Adds `bytes` bytes with a known checksum without reading them.
    pub fn update_with_crc(&mut self, crc: u32, bytes: u64) -> &mut Self {
        if self.shift.0 != bytes {
            self.shift = (bytes, shift_by(bytes));
        }
        let joined = multiply(self.finish(), self.shift.1) ^ crc;
        self.digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!joined));
        self
    }

    /// Returns the checksum of all bytes added so far.
    pub fn finish(&self) -> u32 {
        self.digest.finalize() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the checksum of the last `bytes` bytes, given that of all bytes and that of those
/// before.
pub fn crc32c_suffix(before: u32, all: u32, bytes: u64) -> u32 {
    multiply(before, shift_by(bytes)) ^ all
}

/// Returns x^(8·bytes) modulo the polynomial.
fn shift_by(bytes: u64) -> u32 {
    let set = POWERS.iter().enumerate().filter(|(bit, _)| bytes >> bit & 1 == 1);
    set.fold(ONE, |shift, (_, power)| multiply(shift, *power))
}

/// x^0: the highest bit, as the polynomial's bits are reversed.
const ONE: u32 = 1 << 31;

/// Castagnoli's polynomial, its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x^(8·2^n) modulo the polynomial: the factor that appends 2^n bytes to a checksum.
const POWERS: [u32; 64] = {
    let mut powers = [0; 64];
    let mut power = ONE >> 8;
    let mut n = 0;
    while n < powers.len() {
        powers[n] = power;
        power = multiply(power, power);
        n += 1;
    }
    powers
};

const fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        product ^= b & (a >> 31).wrapping_neg();
        a <<= 1;
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summed_parts_give_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..70_001u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
        for cut in [0, 1, 7, 24, 4096, 65_535, 70_000, 70_001] {
            let (front, back) = bytes.split_at(cut);
            let mut crc = Crc32c::new();
            crc.update(front).update_with_crc(crc32c(back), back.len() as u64);
            assert_eq!(crc.finish(), crc32c(&bytes), "cut at {cut}");
            assert_eq!(
                crc32c_suffix(crc32c(front), crc32c(&bytes), back.len() as u64),
                crc32c(back)
            );
            crc.update_with_crc(crc32c(front), front.len() as u64).update(b"end");
            assert_eq!(crc.finish(), crc32c(&[&bytes, front, b"end"].concat()), "cut at {cut}");
        }
    }

    #[test]
    fn checksum_is_castagnoli_and_streams() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(Crc32c::new().update(b"1234").update(b"56789").finish(), 0xe306_9283);
    }
}
