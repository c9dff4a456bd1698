//! Concatenated fixed-width numbers.

use std::path::Path;
use stele_types::{Error, Result};

/// Reader of big-endian numbers; too few bytes are reported as damage.
pub(super) struct Numbers<'a> {
    remaining: &'a [u8],
    path: &'a Path,
}

impl<'a> Numbers<'a> {
    /// Creates a reader of `bytes`, found in `path`.
    pub(super) fn new(bytes: &'a [u8], path: &'a Path) -> Self {
        Self { remaining: bytes, path }
    }

    fn damaged(&self) -> Error {
        Error::corrupt(self.path, 0, "a record is shorter than its fields")
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        let (head, remaining) = self.remaining.split_first_chunk().ok_or_else(|| self.damaged())?;
        self.remaining = remaining;
        Ok(u64::from_be_bytes(*head))
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        let (head, remaining) = self.remaining.split_first().ok_or_else(|| self.damaged())?;
        self.remaining = remaining;
        Ok(*head)
    }

    /// Reads the next `count` bytes.
    pub(super) fn bytes(&mut self, count: u64) -> Result<&'a [u8]> {
        let count = usize::try_from(count).map_err(|_| self.damaged())?;
        let (head, remaining) =
            self.remaining.split_at_checked(count).ok_or_else(|| self.damaged())?;
        self.remaining = remaining;
        Ok(head)
    }

    /// Returns the unread bytes.
    pub(super) fn remaining(&self) -> &'a [u8] {
        self.remaining
    }
}

/// Encodes numbers, big-endian.
pub(super) fn encode(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}
