//! CRC-32C (Castagnoli; CRC-32/ISCSI), the one checksum of every file and value.

use crc_fast::{CrcAlgorithm, Digest};

/// The checksum of one slice.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A checksum over several slices.
#[derive(Clone, Debug)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// Starts a checksum.
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(bytes);
        self
    }

    /// The checksum of all bytes added so far.
    pub fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_castagnoli_and_streams() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(Crc32c::new().update(b"1234").update(b"56789").finish(), 0xe306_9283);
    }
}
