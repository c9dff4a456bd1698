//! Reused buffers of long reads. Page faults of new memory take as long as the read itself.

use bytes::Bytes;
use std::sync::Arc;
use stele_types::lock::{Mutex, rank};
use stele_vfs::AlignedBuf;

/// Buffer lengths are multiples of this: a large page, which a device reads as one segment.
const STEP_BYTES: usize = 2 << 20;

#[derive(Clone, Debug)]
pub(crate) struct ReadPool {
    free: Arc<Mutex<Vec<AlignedBuf>, { rank::LOG_READ_POOL }>>,
    /// Maximum bytes of all free buffers.
    kept_bytes_max: usize,
}

impl ReadPool {
    /// Creates a pool that keeps at most `kept_bytes_max` of free buffers.
    pub fn new(kept_bytes_max: usize) -> Self {
        Self { free: Arc::default(), kept_bytes_max }
    }

    /// Returns a buffer of `bytes` with arbitrary content.
    pub fn take(&self, bytes: usize) -> Pooled {
        let length = bytes.next_multiple_of(STEP_BYTES);
        let mut free = self.free.lock();
        let fitting = free.iter().position(|buffer| buffer.len() == length);
        let kept = fitting.map(|at| free.swap_remove(at));
        drop(free);
        let buffer = kept.unwrap_or_else(|| {
            let mut buffer = AlignedBuf::in_large_pages();
            buffer.resize(length);
            buffer
        });
        Pooled { buffer, bytes, pool: self.clone() }
    }

    pub fn memory_bytes(&self) -> u64 {
        self.free.lock().iter().map(|buffer| buffer.capacity() as u64).sum()
    }
}

/// A buffer that returns to its pool when the last value in it is dropped.
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

    /// Returns the bytes of memory it holds, which may exceed the requested ones.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Returns the buffer as bytes that values can share.
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
        if self.buffer.len() > self.pool.kept_bytes_max {
            return;
        }
        let mut free = self.pool.free.lock();
        free.push(std::mem::take(&mut self.buffer));
        let mut bytes: usize = free.iter().map(|buffer| buffer.len()).sum();
        // The buffers that were free longest go first: current reads use buffers of this length.
        while bytes > self.pool.kept_bytes_max {
            bytes -= free.remove(0).len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = STEP_BYTES as u64;

    #[test]
    fn a_buffer_comes_back_when_its_last_value_goes_and_few_are_kept() {
        let pool = ReadPool::new(2 * STEP_BYTES);
        let mut buffer = pool.take(40_000);
        buffer.as_mut_slice().fill(7);
        let value = buffer.into_bytes().slice(100..200);
        assert_eq!(pool.memory_bytes(), 0);
        let other = value.clone();
        drop(value);
        assert_eq!((other.len(), pool.memory_bytes()), (100, 0));
        drop(other);
        assert_eq!(pool.memory_bytes(), STEP);
        assert_eq!(pool.take(50_000).as_ref().len(), 50_000);
        drop((0..9).map(|_| pool.take(1000)).collect::<Vec<_>>());
        assert_eq!(pool.memory_bytes(), 2 * STEP);
        drop(pool.take(2 * STEP_BYTES + 1));
        assert_eq!(pool.memory_bytes(), 2 * STEP, "longer buffers are not kept");
    }

    #[test]
    fn buffers_fit_their_reads_and_those_of_a_length_no_longer_asked_for_go() {
        let pool = ReadPool::new(2 * STEP_BYTES);
        drop([pool.take(1), pool.take(1)]);
        let long = pool.take(STEP_BYTES + 1);
        assert_eq!((long.capacity() as u64, pool.memory_bytes()), (2 * STEP, 2 * STEP));
        drop(long);
        assert_eq!(pool.memory_bytes(), 2 * STEP);
        let again = pool.take(STEP_BYTES + 1);
        assert_eq!((again.capacity() as u64, pool.memory_bytes()), (2 * STEP, 0));
    }
}
