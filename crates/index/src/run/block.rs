//! Key blocks: entries in key order, without the prefix that all their keys share.
//!
//! ```text
//! block := body_len:u32le body trailer
//! body  := shared_len:varint shared entry* zero* (offset:u16le)* count:u16le
//!                                                                      (offsets from the body's start)
//! entry := head:u8 [suffix_len:varint] suffix [expires_at_s:varint] value
//! head  := kind (bits 0-1: 0 located, 1 inline, 2 deleted) | has_expiry (bit 2) | suffix_len (bits 3-7;
//!          31: the varint follows)
//! value := locator (16 bytes) | length:varint bytes | nothing
//! ```
//! A random 16-byte key takes 33 bytes with a locator and 38 with 20 bytes inline. Zeros are
//! inserted where few of them make the block end at a page boundary of the file.

use super::footer::{self, TRAILER_BYTES};
use super::hash_index::{LINE_BYTES, prefetch};
use crate::cursor::prefix_of;
use crate::cursor::{Found, ValueSlice};
use bytes::{Bytes, BytesMut};
use std::cmp::Ordering;
use std::path::Path;
use stele_types::{Error, Locator, Result, RunId, ValueRef, varint};

const LOCATED: u8 = 0;
const INLINE: u8 = 1;
const DELETED: u8 = 2;
const KIND: u8 = 0b11;
const HAS_EXPIRY: u8 = 0b100;
const SUFFIX_SHIFT: u8 = 3;
const SUFFIX_FOLLOWS: u8 = 31;
const LENGTH_BYTES: usize = 4;
const COUNT_BYTES: usize = 2;
/// Typical error of a guessed slot.
const GUESS_ERROR_SLOTS: usize = 4;
/// Spare bytes of a key's buffer after the key.
pub(super) const KEY_SLACK_BYTES: usize = 32;
/// Smallest read of the system, and of the device at best.
const PAGE_BYTES: u64 = 4096;
/// At most one part in so many of a block is padding, so that the next block begins at a page
/// boundary: reading it then takes one page less.
const PADDED_SHARE: u64 = 16;
/// Maximum number of entries: a slot fits one byte of the hash index.
pub(super) const ENTRIES_MAX: usize = 256;

pub(super) fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let same = words.take_while(|(a, b)| a == b).count() * 8;
    let rest = a.iter().zip(b).skip(same);
    same + rest.take_while(|(a, b)| a == b).count()
}

#[derive(Debug, Default)]
pub(super) struct BlockBuilder {
    keys: Vec<u8>,
    values: Vec<u8>,
    items: Vec<Item>,
    shared: usize,
}

#[derive(Debug)]
struct Item {
    flags: u8,
    key_end: usize,
    value_end: usize,
}

impl BlockBuilder {
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    fn key(&self, i: usize) -> &[u8] {
        let end = |i: usize| self.items.get(i).map_or(0, |item| item.key_end);
        self.keys.get(if i == 0 { 0 } else { end(i - 1) }..end(i)).unwrap_or_default()
    }

    pub(super) fn last_key(&self) -> &[u8] {
        self.key(self.items.len().wrapping_sub(1))
    }

    fn shared_with(&self, key: &[u8]) -> usize {
        if self.items.is_empty() {
            key.len()
        } else {
            self.shared.min(shared_prefix(self.key(0), key))
        }
    }

    fn size(&self, entries: usize, key_bytes: usize, shared: usize) -> usize {
        // Entry head, offset and the occasional varint; the exact size does not matter for where to
        // cut.
        self.values.len() + key_bytes + shared + 16 + entries * 3
            - (entries * shared).min(key_bytes)
    }

    pub(super) fn bytes(&self) -> usize {
        if self.items.is_empty() { 0 } else { self.size(self.len(), self.keys.len(), self.shared) }
    }

    pub(super) fn is_full_for(&self, key: &[u8], found: &Found, block_bytes: usize) -> bool {
        let value = match found {
            Found::Value { value: ValueRef::Inline(value), .. } => value.len() + 1,
            Found::Value { .. } => Locator::BYTES,
            Found::Deleted => 0,
        };
        let shared = self.shared_with(key);
        let size = self.size(self.len() + 1, self.keys.len() + key.len(), shared) + value;
        !self.items.is_empty() && (size > block_bytes || self.items.len() == ENTRIES_MAX)
    }

    /// Adds an entry; its key must be above all earlier keys.
    pub(super) fn add(&mut self, key: &[u8], found: &Found) {
        self.shared = self.shared_with(key);
        let mut flags = DELETED;
        if let Found::Value { value, expires_at_s } = found {
            flags = if matches!(value, ValueRef::At(_)) { LOCATED } else { INLINE };
            if *expires_at_s != 0 {
                flags |= HAS_EXPIRY;
                varint::put(&mut self.values, *expires_at_s);
            }
            match value {
                ValueRef::At(locator) => self.values.extend_from_slice(&locator.encode()),
                ValueRef::Inline(value) => varint::put_bytes(&mut self.values, value),
            }
        }
        self.keys.extend_from_slice(key);
        let (key_end, value_end) = (self.keys.len(), self.values.len());
        self.items.push(Item { flags, key_end, value_end });
    }

    pub(super) fn finish(&mut self, out: &mut Vec<u8>, id: RunId, offset: u64) {
        let from = out.len();
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        let body = out.len();
        let shared = self.shared;
        varint::put_bytes(out, self.key(0).get(..shared).unwrap_or_default());
        let mut offsets = Vec::with_capacity(self.items.len() * 2);
        let (mut key_start, mut value_start) = (0, 0);
        for item in &self.items {
            offsets.extend_from_slice(&((out.len() - body) as u16).to_le_bytes());
            let suffix = self.keys.get(key_start + shared..item.key_end).unwrap_or_default();
            if suffix.len() < usize::from(SUFFIX_FOLLOWS) {
                out.push(item.flags | (suffix.len() as u8) << SUFFIX_SHIFT);
            } else {
                out.push(item.flags | SUFFIX_FOLLOWS << SUFFIX_SHIFT);
                varint::put(out, suffix.len() as u64);
            }
            out.extend_from_slice(suffix);
            out.extend_from_slice(self.values.get(value_start..item.value_end).unwrap_or_default());
            (key_start, value_start) = (item.key_end, item.value_end);
        }
        let tail_bytes = offsets.len() + COUNT_BYTES + TRAILER_BYTES;
        let bytes = (out.len() - from + tail_bytes) as u64;
        let gap = (offset + bytes).next_multiple_of(PAGE_BYTES) - (offset + bytes);
        if gap <= bytes / PADDED_SHARE {
            out.resize(out.len() + gap as usize, 0);
        }
        out.extend_from_slice(&offsets);
        out.extend_from_slice(&(self.items.len() as u16).to_le_bytes());
        let body_len = (out.len() - body) as u32;
        if let Some(length) = out.get_mut(from..body) {
            length.copy_from_slice(&body_len.to_le_bytes());
        }
        footer::put(out, from, id, offset);
        self.keys.clear();
        self.values.clear();
        self.items.clear();
        self.shared = 0;
    }
}

/// A block with a valid checksum. Clones share its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    bytes: Bytes,
    /// Range of the shared prefix in `bytes`; entries follow.
    shared: (u32, u32),
    /// Position of the offsets.
    offsets: u32,
    count: u32,
}

/// One entry: ranges in its block's bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    flags: u8,
    expires_at_s: u64,
    suffix: (u32, u32),
    value: (u32, u32),
}

impl Entry {
    #[inline]
    pub(super) fn is_deleted(&self) -> bool {
        self.flags & KIND == DELETED
    }

    #[inline]
    pub(super) fn suffix_len(&self) -> usize {
        (self.suffix.1 - self.suffix.0) as usize
    }

    #[inline]
    pub(super) fn end(&self) -> u32 {
        self.value.1
    }
}

/// Decodes a varint at a position of a slice; also returns the position after it.
#[inline]
fn varint_at(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let first = *bytes.get(at)?;
    if first < 0x80 {
        return Some((u64::from(first), at + 1));
    }
    let mut rest = bytes.get(at..)?;
    let value = varint::take(&mut rest)?;
    Some((value, bytes.len() - rest.len()))
}

impl Block {
    pub(super) fn open(path: &Path, id: RunId, offset: u64, raw: &Bytes) -> Result<Self> {
        let part = footer::check(path, id, offset, raw)?;
        let parsed = part.split_first_chunk::<LENGTH_BYTES>().and_then(|(length, body)| {
            let body_len = u32::from_le_bytes(*length) as usize;
            (body.len() == body_len).then(|| Self::parse(raw.slice_ref(body)))?
        });
        parsed.ok_or_else(|| Error::corrupt(path, offset, "block does not parse"))
    }

    /// Returns the size of a block on disk, given its first bytes.
    pub(super) fn bytes_on_disk(head: &[u8]) -> Option<usize> {
        let length = u32::from_le_bytes(*head.first_chunk()?) as usize;
        Some(length + LENGTH_BYTES + TRAILER_BYTES)
    }

    fn parse(bytes: Bytes) -> Option<Self> {
        let (rest, count) = bytes.split_last_chunk::<COUNT_BYTES>()?;
        let count = u32::from(u16::from_le_bytes(*count));
        let offsets = rest.len().checked_sub(count as usize * 2)?;
        let (shared_len, start) = varint_at(rest, 0)?;
        let end = start.checked_add(usize::try_from(shared_len).ok()?)?;
        if end > offsets || count == 0 {
            return None;
        }
        let shared = (start as u32, end as u32);
        Some(Self { offsets: offsets as u32, bytes, shared, count })
    }

    pub(super) fn count(&self) -> usize {
        self.count as usize
    }

    /// Prefetches what a search reads first: the first entry, the last entry and the offsets.
    #[inline]
    pub(super) fn prefetch_ends(&self) {
        prefetch(&self.bytes, 0);
        let from = (self.offsets as usize).saturating_sub(LINE_BYTES);
        (from..self.bytes.len()).step_by(LINE_BYTES).for_each(|at| prefetch(&self.bytes, at));
    }

    /// Prefetches what a walk reads after an entry. The processor itself prefetches for one walk,
    /// but not for several interleaved ones.
    #[inline(always)]
    pub(super) fn prefetch_after(&self, entry: &Entry, bytes: usize) {
        prefetch(&self.bytes, entry.end() as usize + bytes);
    }

    /// Returns the block's buffer if no other clone exists.
    pub(crate) fn into_memory(self) -> Option<BytesMut> {
        self.bytes.try_into_mut().ok()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + LENGTH_BYTES + TRAILER_BYTES
    }

    #[inline]
    fn part(&self, (start, end): (u32, u32)) -> &[u8] {
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }

    pub(super) fn shared(&self) -> &[u8] {
        self.part(self.shared)
    }

    #[inline]
    pub(super) fn shared_len(&self) -> usize {
        (self.shared.1 - self.shared.0) as usize
    }

    #[inline]
    pub(super) fn suffix(&self, entry: &Entry) -> &[u8] {
        self.part(entry.suffix)
    }

    /// Returns the entry in a slot; `None` when there is none or it does not parse.
    #[inline]
    pub(super) fn entry(&self, slot: usize) -> Option<Entry> {
        if slot >= self.count() {
            return None;
        }
        let at = self.offsets as usize + slot * 2;
        let offset = u16::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?);
        self.entry_at(u32::from(offset))
    }

    #[inline(always)]
    pub(super) fn entry_at(&self, at: u32) -> Option<Entry> {
        let entries = self.bytes.get(..self.offsets as usize)?;
        let head = *entries.get(at as usize)?;
        let mut at = at as usize + 1;
        let mut suffix_len = u64::from(head >> SUFFIX_SHIFT);
        if suffix_len == u64::from(SUFFIX_FOLLOWS) {
            (suffix_len, at) = varint_at(entries, at)?;
        }
        let suffix_end = at.checked_add(suffix_len as usize)?;
        let suffix = (at as u32, suffix_end as u32);
        at = suffix_end;
        let mut expires_at_s = 0;
        if head & HAS_EXPIRY != 0 {
            (expires_at_s, at) = varint_at(entries, at)?;
        }
        let length = match head & KIND {
            LOCATED => Locator::BYTES as u64,
            INLINE => {
                let (length, after) = varint_at(entries, at)?;
                at = after;
                length
            }
            DELETED => 0,
            _ => return None,
        };
        let end = at.checked_add(length as usize)?;
        if end > entries.len() {
            return None;
        }
        let flags = head & (KIND | HAS_EXPIRY);
        Some(Entry { flags, expires_at_s, suffix, value: (at as u32, end as u32) })
    }

    /// Returns the content of an entry of this block. Inline bytes are a slice of the block.
    #[inline(always)]
    pub(super) fn found(&self, entry: &Entry) -> Option<Found> {
        let (start, end) = entry.value;
        let value = match entry.flags & KIND {
            DELETED => return Some(Found::Deleted),
            LOCATED => ValueRef::At(Locator::decode(self.part(entry.value))?),
            _ => ValueRef::Inline(self.bytes.slice(start as usize..end as usize)),
        };
        Some(Found::Value { value, expires_at_s: entry.expires_at_s })
    }

    /// Returns the value of an entry of this block, without a copy; `None` for a deleted key.
    #[inline]
    pub(super) fn value(&self, entry: &Entry) -> Option<(ValueSlice<'_>, u64)> {
        let value = match entry.flags & KIND {
            DELETED => return None,
            // A parsed entry has all the bytes of its locator.
            LOCATED => ValueSlice::At(Locator::decode(self.part(entry.value))?),
            _ => ValueSlice::Inline(self.part(entry.value)),
        };
        Some((value, entry.expires_at_s))
    }

    /// Writes the entry's suffix at `at` of `key`, which is long enough for it. Up to
    /// [`KEY_SLACK_BYTES`] bytes after it may change.
    #[inline(always)]
    pub(super) fn suffix_into(&self, entry: &Entry, key: &mut [u8], at: usize) {
        let (start, end) = entry.suffix;
        let length = (end - start) as usize;
        let from = self.bytes.get(start as usize..).unwrap_or_default();
        let to = key.get_mut(at..).unwrap_or_default();
        // A copy of fixed length takes two instructions; one of variable length takes a call.
        if length <= KEY_SLACK_BYTES
            && let (Some(from), Some(to)) = (from.first_chunk(), to.first_chunk_mut())
        {
            let (from, to): (&[u8; KEY_SLACK_BYTES], &mut [u8; KEY_SLACK_BYTES]) = (from, to);
            *to = *from;
        } else if let Some(to) = to.get_mut(..length) {
            to.copy_from_slice(self.suffix(entry));
        }
    }

    /// Returns the first eight bytes of the entry's key, given those of the shared prefix. See
    /// [`crate::Cursor::prefix`].
    #[inline]
    pub(super) fn prefix(&self, entry: &Entry, shared_prefix: u64) -> u64 {
        let shift = 8 * self.shared_len();
        if shift >= 64 {
            return shared_prefix;
        }
        let (start, end) = entry.suffix;
        let length = (end - start) as usize;
        let from = self.bytes.get(start as usize..).unwrap_or_default();
        let word = match from.first_chunk() {
            Some(word) if length >= 8 => u64::from_be_bytes(*word),
            // Masks the bytes after the suffix.
            Some(word) if length > 0 => u64::from_be_bytes(*word) & (u64::MAX << (64 - 8 * length)),
            _ => prefix_of(self.suffix(entry)),
        };
        shared_prefix | word >> shift
    }

    #[inline]
    pub(super) fn entry_if(&self, slot: usize, key: &[u8]) -> Option<Entry> {
        let entry = self.entry(slot)?;
        (key.strip_prefix(self.shared())? == self.suffix(&entry)).then_some(entry)
    }

    /// Returns the first slot with a key at or above `key` (`count` when there is none), and
    /// whether that key is `key`. Returns `None` when an entry does not parse.
    pub(super) fn lower_bound(&self, key: &[u8]) -> Option<(usize, bool)> {
        let shared = self.shared();
        let front = key.get(..shared.len()).unwrap_or(key);
        match front.cmp(shared) {
            Ordering::Less => return Some((0, false)),
            Ordering::Greater => return Some((self.count(), false)),
            Ordering::Equal => {}
        }
        self.search(key.get(shared.len()..).unwrap_or_default())
    }

    /// Implements [`Self::lower_bound`] for a suffix: a guess, growing steps away from it, and a
    /// binary search between the last two. Evenly spread keys are found within a few cache lines,
    /// others in about twice the probes of a binary search.
    fn search(&self, suffix: &[u8]) -> Option<(usize, bool)> {
        let (mut low, mut high) = (0, self.count());
        let mut probe = self.guess(suffix)?;
        let (mut step, mut below, mut above) = (GUESS_ERROR_SLOTS, false, false);
        while low < high {
            match self.suffix(&self.entry(probe)?).cmp(suffix) {
                Ordering::Less => (low, below) = (probe + 1, true),
                Ordering::Equal => return Some((probe, true)),
                Ordering::Greater => (high, above) = (probe, true),
            }
            probe = match (below, above) {
                (true, true) => low.midpoint(high),
                (true, false) => (low + step).min(high.saturating_sub(1)),
                _ => high.saturating_sub(1 + step).max(low),
            };
            step *= 2;
        }
        Some((low, false))
    }

    /// Returns the slot of a suffix if suffixes were evenly spread between the first and the last.
    fn guess(&self, suffix: &[u8]) -> Option<usize> {
        let last_slot = self.count().checked_sub(1)?;
        let last = prefix_of(self.suffix(&self.entry(last_slot)?));
        let first = prefix_of(self.suffix(&self.entry(0)?));
        let (offset, span) = (prefix_of(suffix).saturating_sub(first), last.saturating_sub(first));
        // At most 256 entries: 48 bits times the slot number do not overflow.
        let (offset, span) = (offset >> 16, (span >> 16).max(1));
        Some(((offset * last_slot as u64 / span) as usize).min(last_slot))
    }
}
