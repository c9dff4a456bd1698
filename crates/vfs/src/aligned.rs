//! Memory that direct I/O accepts.

use bytes::BytesMut;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use stele_types::{Error, Result};

/// Alignment of every [`AlignedBuf`]: the page size, at least what any device requires.
pub const MEMORY_ALIGN_BYTES: usize = 4096;

/// Size of a large page, where available (x86-64, and aarch64 with pages of 4 KiB).
const LARGE_PAGE_BYTES: usize = 2 << 20;
/// Minimum length of a buffer that requests large pages. A device reads a buffer in contiguous
/// segments, few per request: 1 MiB in pages of 4 KiB was 256 segments, two requests, and took 440
/// us to write; in one large page it is one segment and took 285 us (a virtio disk).
const LARGE_BYTES_MIN: usize = 512 << 10;

/// A growable byte buffer, aligned to [`MEMORY_ALIGN_BYTES`].
#[derive(Default)]
pub struct AlignedBuf {
    /// Starts aligned and never grows by itself: the content moves to larger aligned memory.
    memory: BytesMut,
    large_pages: bool,
}

impl AlignedBuf {
    /// Creates an empty buffer without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty buffer with a capacity of `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut buffer = Self::new();
        buffer.move_to(bytes);
        buffer
    }

    /// Creates an empty buffer for repeated long direct reads or writes. From half a MiB on its
    /// memory is in large pages, if the system has some, and a multiple of their size.
    pub fn in_large_pages() -> Self {
        Self { large_pages: true, ..Self::default() }
    }

    /// Creates a buffer of `bytes` zeros.
    pub fn zeroed(bytes: usize) -> Self {
        let mut memory =
            aligned_zeros(bytes.next_multiple_of(MEMORY_ALIGN_BYTES), MEMORY_ALIGN_BYTES);
        memory.truncate(bytes);
        Self { memory, large_pages: false }
    }

    /// Returns the bytes it can hold before it must move.
    pub fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// Empties the buffer and keeps its memory.
    pub fn clear(&mut self) {
        self.memory.clear();
    }

    /// Reserves capacity for `more` bytes, so that the next appends do not move the buffer.
    pub fn reserve(&mut self, more: usize) {
        let needed = self.len() + more;
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
        self.memory.extend_from_slice(bytes);
    }

    /// Truncates to `bytes`, or extends with zeros.
    pub fn resize(&mut self, bytes: usize) {
        self.reserve(bytes.saturating_sub(self.len()));
        self.memory.resize(bytes, 0);
    }

    /// Extends with zeros to the next multiple of `block_bytes`.
    pub fn pad_to_multiple(&mut self, block_bytes: usize) {
        self.resize(self.len().next_multiple_of(block_bytes.max(1)));
    }

    /// Frees memory beyond `bytes`, or beyond the content if that is longer.
    pub fn shrink_to(&mut self, bytes: usize) {
        if self.capacity() > bytes.max(self.len()) {
            self.move_to(bytes);
        }
    }

    /// Splits off the first `bytes` without moving anything. `bytes` is a multiple of
    /// [`MEMORY_ALIGN_BYTES`], at most the content's length. The rest stays in place.
    ///
    /// # Panics
    /// If the rest would not be aligned, or there are fewer bytes.
    pub fn split_front(&mut self, bytes: usize) -> Self {
        assert!(bytes.is_multiple_of(MEMORY_ALIGN_BYTES), "split of an aligned buffer at {bytes}");
        Self { memory: self.memory.split_to(bytes), large_pages: self.large_pages }
    }

    /// Appends `next`, which [`AlignedBuf::split_front`] had split from this buffer: without a copy
    /// if neither moved since, otherwise by a copy.
    pub fn rejoin(&mut self, next: Self) {
        let begins = self.memory.as_ptr().addr();
        if self.capacity() == self.len() && begins + self.len() == next.memory.as_ptr().addr() {
            self.memory.unsplit(next.memory);
        } else {
            self.extend_from_slice(&next);
        }
        // Buffers that are neighbours by chance are joined by a copy that ignores the alignment.
        if !self.memory.as_ptr().addr().is_multiple_of(MEMORY_ALIGN_BYTES) {
            self.move_to(self.capacity());
        }
    }

    /// Returns the content.
    pub fn as_slice(&self) -> &[u8] {
        &self.memory
    }

    /// Returns the content for changes in place.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    fn move_to(&mut self, capacity: usize) {
        let capacity = capacity.max(self.len());
        let is_large = self.large_pages && capacity >= LARGE_BYTES_MIN;
        let align = if is_large { LARGE_PAGE_BYTES } else { MEMORY_ALIGN_BYTES };
        let mut memory = aligned_room(capacity.next_multiple_of(align), align);
        if is_large {
            advise_large_pages(&mut memory);
        }
        memory.extend_from_slice(&self.memory);
        self.memory = memory;
    }
}

fn aligned_zeros(bytes: usize, align: usize) -> BytesMut {
    aligned_part(BytesMut::zeroed(bytes + align - 1), bytes, align)
}

/// Returns empty memory with a capacity of `bytes`, aligned to `align`, untouched.
fn aligned_room(bytes: usize, align: usize) -> BytesMut {
    aligned_part(BytesMut::with_capacity(bytes + align - 1), bytes, align)
}

fn aligned_part(mut memory: BytesMut, bytes: usize, align: usize) -> BytesMut {
    if bytes == 0 {
        return BytesMut::new();
    }
    let address = memory.as_ptr().addr();
    let mut aligned = memory.split_off(address.next_multiple_of(align) - address);
    drop(aligned.split_off(bytes));
    aligned
}

/// Requests large pages. Must run before the memory is first touched: an existing page stays as it
/// is.
fn advise_large_pages(memory: &mut BytesMut) {
    let room = memory.spare_capacity_mut();
    // SAFETY: only the caller uses the range, and the advice changes how it is mapped, not its
    // content.
    let advised = unsafe {
        let begin = room.as_mut_ptr().cast();
        rustix::mm::madvise(begin, room.len(), rustix::mm::Advice::LinuxHugepage)
    };
    // Without large pages the buffer works as well, only slower.
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
        write!(f, "AlignedBuf({} of {} bytes)", self.len(), self.capacity())
    }
}

/// Fails with [`Error::Invalid`] unless a direct operation covers whole blocks, from aligned
/// memory. A handle through the page cache (`block_bytes` is `None`) accepts everything.
pub fn check_direct(
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
        assert_eq!(buffer.capacity(), 2 * LARGE_PAGE_BYTES, "it keeps its kind");
    }

    #[test]
    fn what_was_split_off_is_put_back_where_it_lay() {
        let mut whole = AlignedBuf::in_large_pages();
        whole.reserve(5 * MEMORY_ALIGN_BYTES);
        (0..4 * MEMORY_ALIGN_BYTES + 9).for_each(|i| whole.push((i / 1000) as u8));
        let (expected, place) = (whole.to_vec(), whole.as_ptr());
        let mut first = whole.split_front(MEMORY_ALIGN_BYTES);
        let second = whole.split_front(2 * MEMORY_ALIGN_BYTES);
        assert!(aligned(&first) && aligned(&second) && aligned(&whole));
        first.rejoin(second);
        first.rejoin(whole);
        assert_eq!((first.as_slice(), first.as_ptr()), (&expected[..], place));
        let mut moved = first.split_front(MEMORY_ALIGN_BYTES);
        first.reserve(1 << 20);
        moved.rejoin(first);
        assert!(aligned(&moved));
        assert_eq!(moved.as_slice(), expected);
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
