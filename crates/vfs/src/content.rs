//! Content of a file in memory, sparse and cheap to clone.

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const CHUNK_BYTES: usize = 4096;

/// Bytes of a file in chunks of 4096. Clones share chunks until one of them writes.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Length of the file in bytes.
    pub len: u64,
    /// By offset ÷ `CHUNK_BYTES`. Missing chunks, and bytes from `len` on, are zero.
    chunks: BTreeMap<u64, Arc<[u8; CHUNK_BYTES]>>,
}

impl Content {
    /// Copies the bytes at `offset`. Returns their number: less than requested only at the end.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let end = self.len.min(offset.saturating_add(buffer.len() as u64));
        let total = end.saturating_sub(offset) as usize;
        for (chunk, from, at, bytes) in pieces(offset, total) {
            let to = &mut buffer[at..at + bytes];
            match self.chunks.get(&chunk) {
                Some(data) => to.copy_from_slice(&data[from..from + bytes]),
                None => to.fill(0),
            }
        }
        total
    }

    /// Writes, extending the length when needed.
    pub fn write(&mut self, data: &[u8], offset: u64) {
        for (chunk, from, at, bytes) in pieces(offset, data.len()) {
            let target = self.chunks.entry(chunk).or_insert_with(|| Arc::new([0; CHUNK_BYTES]));
            Arc::make_mut(target)[from..from + bytes].copy_from_slice(&data[at..at + bytes]);
        }
        self.grow(offset + data.len() as u64);
    }

    /// Copies those of the bytes at `offset` that are in chunks; leaves the others as they are.
    pub(crate) fn read_chunks(&self, buffer: &mut [u8], offset: u64) {
        for (chunk, from, at, bytes) in pieces(offset, buffer.len()) {
            if let Some(data) = self.chunks.get(&chunk) {
                buffer[at..at + bytes].copy_from_slice(&data[from..from + bytes]);
            }
        }
    }

    /// Whether a chunk of `bytes` at `offset` was written.
    pub(crate) fn has_chunks(&self, offset: u64, bytes: usize) -> bool {
        pieces(offset, bytes).any(|(chunk, ..)| self.has_chunk(chunk))
    }

    pub(crate) fn has_chunk(&self, chunk: u64) -> bool {
        self.chunks.contains_key(&chunk)
    }

    /// Makes the length at least `len`.
    pub fn grow(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// Takes the chunks of `[offset, offset + bytes)` from `other` without a copy.
    pub fn share(&mut self, other: &Self, offset: u64, bytes: usize) {
        for (chunk, ..) in pieces(offset, bytes) {
            match other.chunks.get(&chunk) {
                Some(data) => self.chunks.insert(chunk, Arc::clone(data)),
                None => self.chunks.remove(&chunk),
            };
        }
    }

    /// Returns the bytes that the content takes on a device with `[0, reserved)` reserved for it.
    pub fn allocated_bytes(&self, reserved: u64) -> u64 {
        let reserved_chunks = reserved.div_ceil(CHUNK_BYTES as u64);
        // Called for every write, and most files reserve nothing.
        let beyond = match reserved_chunks {
            0 => self.chunks.len() as u64,
            _ => self.chunks.range(reserved_chunks..).count() as u64,
        };
        (reserved_chunks + beyond) * CHUNK_BYTES as u64
    }

    /// Returns how many of `bytes` at `offset` can be written if at most `room` more may be
    /// allocated.
    pub fn fitting(&self, offset: u64, bytes: usize, reserved: u64, mut room: u64) -> usize {
        for (chunk, _, at, _) in pieces(offset, bytes) {
            if chunk * CHUNK_BYTES as u64 >= reserved && !self.has_chunk(chunk) {
                match room.checked_sub(CHUNK_BYTES as u64) {
                    Some(rest) => room = rest,
                    None => return at,
                }
            }
        }
        bytes
    }

    /// Sets the length; drops the bytes beyond it.
    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            let chunk = len / CHUNK_BYTES as u64;
            let _cut = self.chunks.split_off(&len.div_ceil(CHUNK_BYTES as u64));
            if let Some(last) = self.chunks.get_mut(&chunk) {
                Arc::make_mut(last)[(len % CHUNK_BYTES as u64) as usize..].fill(0);
            }
        }
        self.len = len;
    }
}

/// Splits a range into (chunk, offset in the chunk, offset in the range, bytes).
pub(crate) fn pieces(
    offset: u64,
    total: usize,
) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let absolute = offset + at as u64;
        let from = (absolute % CHUNK_BYTES as u64) as usize;
        let bytes = (CHUNK_BYTES - from).min(total - at);
        let piece = (absolute / CHUNK_BYTES as u64, from, at, bytes);
        at += bytes;
        (bytes > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_vector_of_bytes() {
        let mut content = Content::default();
        let mut model = Vec::new();
        let mut prng = stele_types::Prng::new(1);
        for _ in 0..400 {
            let offset = prng.below(20_000) as usize;
            if prng.below(4) == 0 {
                content.set_len(offset as u64);
                model.resize(offset, 0);
            } else {
                let data = vec![prng.draw() as u8; prng.below(9000) as usize];
                content.write(&data, offset as u64);
                if model.len() < offset + data.len() {
                    model.resize(offset + data.len(), 0);
                }
                model[offset..offset + data.len()].copy_from_slice(&data);
            }
            let mut all = vec![9; model.len() + 10];
            assert_eq!(content.read(&mut all, 0), model.len());
            assert_eq!(all[..model.len()], model);
        }
    }
}
