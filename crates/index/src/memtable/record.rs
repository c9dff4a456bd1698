//! One version of one key, in arena words; immutable once a node references it.
//!
//! ```text
//! word 0   older version's address (bits 0-31) | key length (32-47) | value length (48-59) | flags (60-63)
//! word 1   sequence number
//! key      ceil(length / 8) words, big-endian bytes, zero padded
//! [epoch]  range deletes made before this version, when there were any
//! [expiry] Unix seconds, when there is one
//! value    a locator's two words, or the inline bytes padded
//! ```

use super::KeyWrite;
use super::node::Arena;
use crate::cursor::{Found, ValueSlice};
use bytes::Bytes;
use std::cmp::Ordering;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use stele_types::{FileId, Locator, ValueRef};

const DELETED: u64 = 1;
const INLINE: u64 = 2;
const EXPIRES: u64 = 4;
const EPOCH: u64 = 8;
const HEAD_WORDS: usize = 2;
const VALUE_BYTES_MAX: usize = 0xfff;

#[derive(Clone, Copy)]
pub(super) enum Content {
    Deleted,
    /// An inline value; its bytes are returned separately.
    Inline,
    At(Locator),
}

/// Returns the eight bytes of `key` from `at` as a big-endian number, zero padded.
#[inline]
pub(super) fn word_at(key: &[u8], at: usize) -> u64 {
    let rest = key.get(at..).unwrap_or_default();
    if let Some(whole) = rest.first_chunk() {
        return u64::from_be_bytes(*whole);
    }
    let mut padded = [0; 8];
    padded[..rest.len()].copy_from_slice(rest);
    u64::from_be_bytes(padded)
}

#[derive(Clone, Copy)]
pub(super) struct VersionRecord<'a> {
    words: &'a [AtomicU64],
    head: u64,
}

impl<'a> VersionRecord<'a> {
    /// Returns the record at an address that a node or a newer version references.
    #[inline]
    pub(super) fn at(arena: &'a Arena, at: u32) -> Self {
        let words = arena.from(at);
        Self { words, head: words[0].load(Relaxed) }
    }

    #[inline]
    fn word(&self, i: usize) -> u64 {
        self.words[i].load(Relaxed)
    }

    pub(super) fn older(&self) -> u32 {
        self.head as u32
    }

    pub(super) fn seq(&self) -> u64 {
        self.word(1)
    }

    #[inline]
    pub(super) fn key_len(&self) -> usize {
        (self.head >> 32) as usize & 0xffff
    }

    fn value_len(&self) -> usize {
        (self.head >> 48) as usize & VALUE_BYTES_MAX
    }

    fn has(&self, flag: u64) -> bool {
        self.head >> 60 & flag != 0
    }

    fn after_key(&self) -> usize {
        HEAD_WORDS + self.key_len().div_ceil(8)
    }

    /// Compares the record's key with `key`; both must share their first `skip` bytes.
    #[inline]
    pub(super) fn compare(&self, key: &[u8], skip: usize) -> Ordering {
        let words = self.key_len().min(key.len()).div_ceil(8);
        for i in skip / 8..words {
            let order = self.word(HEAD_WORDS + i).cmp(&word_at(key, i * 8));
            if order != Ordering::Equal {
                return order;
            }
        }
        // The words are equal, so the keys can differ only in zero padding.
        self.key_len().cmp(&key.len())
    }

    /// Returns eight key bytes from byte `at`, like [`word_at`].
    pub(super) fn key_word(&self, at: usize) -> u64 {
        let words = self.key_len().div_ceil(8);
        let part = |i: usize| if i < words { self.word(HEAD_WORDS + i) } else { 0 };
        match at % 8 {
            0 => part(at / 8),
            bytes => part(at / 8) << (8 * bytes) | part(at / 8 + 1) >> (64 - 8 * bytes),
        }
    }

    pub(super) fn shared(&self, other: &VersionRecord<'_>) -> usize {
        let limit = self.key_len().min(other.key_len());
        for i in 0..limit.div_ceil(8) {
            let differing = self.word(HEAD_WORDS + i) ^ other.word(HEAD_WORDS + i);
            if differing != 0 {
                return limit.min(i * 8 + differing.leading_zeros() as usize / 8);
            }
        }
        limit
    }

    #[inline]
    pub(super) fn key_into(&self, out: &mut Vec<u8>) {
        self.bytes_into(HEAD_WORDS, self.key_len(), out);
    }

    /// Replaces the content of `out` by `length` bytes that begin at word `from`.
    #[inline]
    fn bytes_into(&self, from: usize, length: usize, out: &mut Vec<u8>) {
        let words = length.div_ceil(8);
        out.resize(words * 8, 0);
        for (to, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(&self.words[from..]) {
            *to = word.load(Relaxed).to_be_bytes();
        }
        out.truncate(length);
    }

    /// Returns how many range deletes the memtable held when this version was written.
    pub(super) fn epoch(&self) -> u64 {
        if self.has(EPOCH) { self.word(self.after_key()) } else { 0 }
    }

    /// Returns the version's content and expiry in Unix seconds. Writes inline bytes to `bytes` and
    /// otherwise leaves it unchanged.
    #[inline]
    pub(super) fn content(&self, bytes: &mut Vec<u8>) -> (Content, u64) {
        if self.has(DELETED) {
            return (Content::Deleted, 0);
        }
        let mut at = self.after_key() + usize::from(self.has(EPOCH));
        let mut expires_at_s = 0;
        if self.has(EXPIRES) {
            expires_at_s = self.word(at);
            at += 1;
        }
        if self.has(INLINE) {
            self.bytes_into(at, self.value_len(), bytes);
            return (Content::Inline, expires_at_s);
        }
        let (place, rest) = (self.word(at), self.word(at + 1));
        let locator = Locator {
            file: FileId((place >> 32) as u32),
            offset: place as u32,
            length: (rest >> 32) as u32,
            crc: rest as u32,
        };
        (Content::At(locator), expires_at_s)
    }

    pub(super) fn found(&self) -> Found {
        let mut bytes = Vec::new();
        let (content, expires_at_s) = self.content(&mut bytes);
        let value = match content {
            Content::Deleted => return Found::Deleted,
            Content::Inline => ValueRef::Inline(Bytes::from(bytes)),
            Content::At(locator) => ValueRef::At(locator),
        };
        Found::Value { value, expires_at_s }
    }
}

/// Writes a record and returns its address. The caller holds the writer lock; the record becomes
/// visible when the caller stores the address with release ordering.
pub(super) fn write(arena: &Arena, epoch: u64, write: &KeyWrite<'_>, older: u32) -> u32 {
    let KeyWrite { seq, key, value, expires_at_s } = *write;
    debug_assert!(key.len() <= stele_types::size::KEY_BYTES_MAX);
    let (kind, value_len, value_words) = match value {
        None => (DELETED, 0, 0),
        Some(ValueSlice::Inline(bytes)) => (INLINE, bytes.len(), bytes.len().div_ceil(8)),
        Some(ValueSlice::At(_)) => (0, 0, 2),
    };
    debug_assert!(value_len <= VALUE_BYTES_MAX);
    let expires = if value.is_some() { expires_at_s } else { 0 };
    let flags = kind | if expires != 0 { EXPIRES } else { 0 } | if epoch != 0 { EPOCH } else { 0 };
    let key_words = key.len().div_ceil(8);
    let optional = usize::from(epoch != 0) + usize::from(expires != 0);
    let at = arena.allocate(HEAD_WORDS + key_words + optional + value_words);
    let mut words = arena.from(at).iter();
    let mut push = |word: u64| {
        if let Some(slot) = words.next() {
            slot.store(word, Relaxed);
        }
    };
    push(u64::from(older) | (key.len() as u64) << 32 | (value_len as u64) << 48 | flags << 60);
    push(seq.0);
    (0..key_words).for_each(|i| push(word_at(key, i * 8)));
    if epoch != 0 {
        push(epoch);
    }
    if expires != 0 {
        push(expires);
    }
    match value {
        Some(ValueSlice::At(l)) => {
            push(u64::from(l.file.0) << 32 | u64::from(l.offset));
            push(u64::from(l.length) << 32 | u64::from(l.crc));
        }
        Some(ValueSlice::Inline(bytes)) => {
            (0..value_words).for_each(|i| push(word_at(bytes, i * 8)));
        }
        None => {}
    }
    at
}
