//! Buffers of long reads, used again: fresh memory costs page faults, as long as the read itself.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use stele_vfs::AlignedBuf;

/// Buffers kept for the next reads: one that is filled while the values of the last are used.
const BUFFERS_KEPT: usize = 2;

#[derive(Clone, Debug)]
pub(crate) struct ReadPool {
    free: Arc<Mutex<Vec<AlignedBuf>>>,
    buffer_bytes: usize,
}

impl ReadPool {
    /// Buffers of up to `buffer_bytes` are kept, longer ones given back.
    pub fn new(buffer_bytes: usize) -> Self {
        Self { free: Arc::default(), buffer_bytes }
    }

    /// A buffer of `bytes` with any content.
    pub fn take(&self, bytes: usize) -> Pooled {
        let kept = bytes <= self.buffer_bytes;
        let free = if kept { self.free.lock().pop() } else { None };
        let buffer = free.unwrap_or_else(|| {
            // Of full length at once: one that grows with each read would move each time.
            let mut buffer = AlignedBuf::in_large_pages();
            buffer.resize(if kept { self.buffer_bytes } else { bytes });
            buffer
        });
        Pooled { buffer, bytes, pool: self.clone() }
    }

    pub fn memory_bytes(&self) -> u64 {
        self.free.lock().iter().map(|buffer| buffer.capacity() as u64).sum()
    }
}

/// Goes back to its pool when the last value that lies in it is dropped.
#[derive(Debug)]
pub(crate) struct Pooled {
    buffer: AlignedBuf,
    bytes: usize,
    pool: ReadPool,
}

impl Pooled {
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        self.buffer.as_mut_slice().get_mut(..bytes).unwrap_or_default()
    }

    /// What it keeps in memory: may be more than was asked for.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// The buffer, to be cut into values that share it.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_slice().get(..self.bytes).unwrap_or_default()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock();
        if free.len() < BUFFERS_KEPT && self.buffer.len() <= self.pool.buffer_bytes {
            free.push(std::mem::take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_its_last_value_goes_and_few_are_kept() {
        let pool = ReadPool::new(64 << 10);
        let mut buffer = pool.take(40_000);
        buffer.as_mut_slice().fill(7);
        let value = buffer.into_bytes().slice(100..200);
        assert_eq!(pool.memory_bytes(), 0);
        let other = value.clone();
        drop(value);
        assert_eq!((other.len(), pool.memory_bytes()), (100, 0));
        drop(other);
        assert_eq!(pool.memory_bytes(), 64 << 10);
        assert_eq!(pool.take(50_000).as_ref().len(), 50_000);
        drop((0..9).map(|_| pool.take(1000)).collect::<Vec<_>>());
        assert_eq!(pool.memory_bytes(), 2 * (64 << 10));
        drop(pool.take(1 << 20));
        assert_eq!(pool.memory_bytes(), 2 * (64 << 10), "longer ones are not kept");
    }
}
