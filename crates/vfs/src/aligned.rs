//! Memory that direct I/O accepts.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use stele_types::{Error, Result};

/// Every [`AlignedBuf`] starts at a multiple of this: the page size, at least what any device asks.
pub const MEMORY_ALIGN_BYTES: usize = 4096;

/// What the processor maps at once where it can (x86-64, and aarch64 with pages of 4 KiB).
const LARGE_PAGE_BYTES: usize = 2 << 20;
/// Buffers from here on are asked to lie in large pages. A device takes a buffer in pieces of
/// neighbouring memory, and few of them: 1 MiB in pages of 4 KiB was 256 pieces, two requests, and
/// written in 440 us; in one large page it is one piece, written in 285 us (a virtio disk).
const LARGE_BYTES_MIN: usize = 512 << 10;

/// A growable byte buffer whose first byte is aligned to [`MEMORY_ALIGN_BYTES`].
#[derive(Default)]
pub struct AlignedBuf {
    /// Zeroed, never grown in place: the aligned part starts at `start` and stays there.
    memory: Vec<u8>,
    start: usize,
    len: usize,
    large_pages: bool,
}

impl AlignedBuf {
    /// An empty buffer without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty buffer with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut buffer = Self::new();
        buffer.move_to(bytes);
        buffer
    }

    /// An empty buffer for long direct reads or writes again and again: from half a MiB on its memory
    /// comes in large pages if the system has some, and counts in whole ones.
    pub fn in_large_pages() -> Self {
        Self { large_pages: true, ..Self::default() }
    }

    /// A buffer of `bytes` zeros.
    pub fn zeroed(bytes: usize) -> Self {
        let mut buffer = Self::with_capacity(bytes);
        buffer.len = bytes;
        buffer
    }

    /// Bytes it can hold before it must move.
    pub fn capacity(&self) -> usize {
        self.memory.len() - self.start
    }

    /// Empties it and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Makes room for `more` bytes, so that the next appends do not move it.
    pub fn reserve(&mut self, more: usize) {
        let needed = self.len + more;
        if needed > self.capacity() {
            self.move_to(needed.max(2 * self.capacity()));
        }
    }

    /// Appends one byte.
    pub fn push(&mut self, byte: u8) {
        self.extend_from_slice(&[byte]);
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        let at = self.start + self.len;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Cuts to `bytes`, or extends with zeros.
    pub fn resize(&mut self, bytes: usize) {
        if bytes > self.len {
            self.reserve(bytes - self.len);
            self.memory[self.start + self.len..self.start + bytes].fill(0);
        }
        self.len = bytes;
    }

    /// Extends with zeros to the next multiple of `block_bytes`.
    pub fn pad_to_multiple(&mut self, block_bytes: usize) {
        self.resize(self.len.next_multiple_of(block_bytes.max(1)));
    }

    /// Gives memory beyond `bytes` (or beyond the content, when that is longer) back.
    pub fn shrink_to(&mut self, bytes: usize) {
        if self.capacity() > bytes.max(self.len) {
            self.move_to(bytes);
        }
    }

    /// The content.
    pub fn as_slice(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    /// The content, to change in place.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    fn move_to(&mut self, capacity: usize) {
        let capacity = capacity.max(self.len);
        let is_large = self.large_pages && capacity >= LARGE_BYTES_MIN;
        let align = if is_large { LARGE_PAGE_BYTES } else { MEMORY_ALIGN_BYTES };
        let capacity = capacity.next_multiple_of(align);
        if capacity == 0 {
            *self = Self { large_pages: self.large_pages, ..Self::default() };
            return;
        }
        let mut memory = vec![0; capacity + align - 1];
        let address = memory.as_ptr().addr();
        let start = address.next_multiple_of(align) - address;
        memory.truncate(start + capacity);
        if is_large {
            advise_large_pages(memory.get_mut(start..).unwrap_or_default());
        }
        memory[start..start + self.len].copy_from_slice(self.as_slice());
        *self = Self { memory, start, len: self.len, large_pages: self.large_pages };
    }
}

/// Before the memory is first touched: a page once there stays as it is.
fn advise_large_pages(memory: &mut [u8]) {
    // SAFETY: the range is the caller's alone, and the advice changes how it is mapped, not what it
    // holds.
    let advised = unsafe {
        let begin = memory.as_mut_ptr().cast();
        rustix::mm::madvise(begin, memory.len(), rustix::mm::Advice::LinuxHugepage)
    };
    // A system without large pages: the buffer is as good as any other.
    let _small_pages = advised;
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} of {} bytes)", self.len, self.capacity())
    }
}

/// Fails with [`Error::Invalid`] unless a direct operation covers whole blocks, from aligned memory.
/// A handle through the page cache (`block_bytes` is `None`) takes everything.
pub(crate) fn check_direct(
    op: &str,
    path: &Path,
    memory: &[u8],
    offset: u64,
    block_bytes: Option<usize>,
) -> Result<()> {
    let Some(block_bytes) = block_bytes else { return Ok(()) };
    let (bytes, path) = (memory.len(), path.display());
    if !offset.is_multiple_of(block_bytes as u64) || !bytes.is_multiple_of(block_bytes) {
        return Err(Error::invalid(format!(
            "direct {op} of {path} at {offset}+{bytes} does not cover whole blocks of {block_bytes} bytes"
        )));
    }
    if !memory.as_ptr().addr().is_multiple_of(block_bytes) {
        return Err(Error::invalid(format!(
            "direct {op} of {path} from memory not aligned to {block_bytes} bytes"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aligned(buffer: &AlignedBuf) -> bool {
        buffer.as_ptr().addr().is_multiple_of(MEMORY_ALIGN_BYTES)
    }

    #[test]
    fn content_and_alignment_survive_growing_and_shrinking() {
        let mut buffer = AlignedBuf::new();
        let mut expected = Vec::new();
        for i in 0..3000u32 {
            buffer.extend_from_slice(&i.to_le_bytes());
            expected.extend_from_slice(&i.to_le_bytes());
            assert!(aligned(&buffer));
        }
        assert_eq!(buffer.as_slice(), expected);
        buffer.resize(5);
        buffer.shrink_to(100);
        assert!(aligned(&buffer) && buffer.capacity() == MEMORY_ALIGN_BYTES);
        assert_eq!(buffer.as_slice(), &expected[..5]);
        buffer.clear();
        buffer.shrink_to(0);
        assert_eq!((buffer.capacity(), buffer.len()), (0, 0));
    }

    #[test]
    fn long_buffers_lie_in_large_pages_and_short_ones_do_not() {
        let mut buffer = AlignedBuf::in_large_pages();
        buffer.extend_from_slice(&[1; 100]);
        assert_eq!(buffer.capacity(), MEMORY_ALIGN_BYTES);
        buffer.resize(LARGE_BYTES_MIN);
        assert_eq!(buffer.capacity(), LARGE_PAGE_BYTES);
        assert!(buffer.as_ptr().addr().is_multiple_of(LARGE_PAGE_BYTES));
        assert!(buffer[..100].iter().all(|&byte| byte == 1));
        assert!(buffer[100..].iter().all(|&byte| byte == 0));
        buffer.clear();
        buffer.shrink_to(0);
        buffer.resize(LARGE_PAGE_BYTES + 1);
        assert_eq!(buffer.capacity(), 2 * LARGE_PAGE_BYTES, "it remembers what it is for");
    }

    #[test]
    fn padding_is_zero_also_over_stale_bytes() {
        let mut buffer = AlignedBuf::zeroed(1024);
        buffer.fill(7);
        buffer.clear();
        buffer.push(1);
        buffer.pad_to_multiple(512);
        assert_eq!(buffer.len(), 512);
        assert!(buffer[1..].iter().all(|&byte| byte == 0));
    }
}
