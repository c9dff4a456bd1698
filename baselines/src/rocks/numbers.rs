//! Fixed-width numbers, one after the other.

use std::path::Path;
use stele_types::{Error, Result};

/// Reads big-endian numbers off the front of bytes; running out of them is damage.
pub struct Numbers<'a> {
    rest: &'a [u8],
    path: &'a Path,
}

impl<'a> Numbers<'a> {
    /// Over `bytes`, found in `path`.
    pub fn new(bytes: &'a [u8], path: &'a Path) -> Self {
        Self { rest: bytes, path }
    }

    fn damaged(&self) -> Error {
        Error::corrupt(self.path, 0, "a record is shorter than its fields")
    }

    /// The next number.
    pub fn u64(&mut self) -> Result<u64> {
        let (head, rest) = self.rest.split_first_chunk().ok_or_else(|| self.damaged())?;
        self.rest = rest;
        Ok(u64::from_be_bytes(*head))
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8> {
        let (head, rest) = self.rest.split_first().ok_or_else(|| self.damaged())?;
        self.rest = rest;
        Ok(*head)
    }

    /// The next so many bytes.
    pub fn bytes(&mut self, count: u64) -> Result<&'a [u8]> {
        let count = usize::try_from(count).map_err(|_| self.damaged())?;
        let (head, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.damaged())?;
        self.rest = rest;
        Ok(head)
    }

    /// What is left.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// The numbers, big-endian.
pub fn encode(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}
