//! Cursor over a run.

use super::block::{Block, Entry, KEY_SLACK_BYTES};
use super::hash_index::LINE_BYTES;
use super::parts::{Held, Reads};
use super::reader::Run;
use crate::cursor::{Cursor, prefix_of};
use crate::cursor::{Found, ValueSlice};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use stele_types::{Error, KeyRange, Result};

/// Consecutive blocks read from the file after which a cursor reads ahead.
const BLOCKS_BEFORE_READAHEAD: u32 = 4;
/// First readahead of a short walk; doubled up to [`READAHEAD_BYTES_MAX`].
const READAHEAD_BYTES_MIN: u64 = 32 << 10;
const READAHEAD_BYTES_MAX: u64 = 256 << 10;
/// Distance of memory prefetches from the current entry: about five entries.
const PREFETCH_BYTES: usize = 256;

/// How a cursor reads blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    /// Through the cache; after several consecutive blocks it reads ahead without filling the cache.
    Short,
    /// Large reads from the start, bypassing the cache.
    Whole,
    /// Only what the block cache and the page cache hold. A step that needs the device fails
    /// ([`stele_types::Error::needs_io`]).
    InMemory,
}

/// Cursor over a run. Moving to an entry allocates nothing; inline values are slices of the block.
#[derive(Debug)]
pub struct RunCursor {
    run: Arc<Run>,
    walk: Walk,
    block: Option<Block>,
    block_at: usize,
    slot: usize,
    entry: Entry,
    valid: bool,
    /// The current key, followed by unspecified bytes.
    key: Vec<u8>,
    key_len: usize,
    /// Length of the prefix that all keys of the block share, and its first eight bytes.
    shared_len: usize,
    shared_prefix: u64,
    readahead: Readahead,
    within: KeyRange,
    /// Page of fences of the last block, in a cold run.
    held: Held,
}

/// Readahead state: bytes of the file read before they are needed.
#[derive(Debug)]
struct Readahead {
    /// Consecutive blocks read from the file.
    run_length: u32,
    bytes: u64,
    window: Bytes,
    window_at: u64,
}

impl Readahead {
    /// Returns the bytes of a range of the file, if all of them were read.
    fn bytes_of(&self, place: Range<u64>) -> Option<Bytes> {
        let start = usize::try_from(place.start.checked_sub(self.window_at)?).ok()?;
        let end = usize::try_from(place.end - self.window_at).ok()?;
        (end <= self.window.len()).then(|| self.window.slice(start..end))
    }
}

impl RunCursor {
    pub(super) fn new(run: Arc<Run>, walk: Walk) -> Self {
        let bytes = if walk == Walk::Whole { READAHEAD_BYTES_MAX } else { READAHEAD_BYTES_MIN };
        let readahead = Readahead { run_length: 0, bytes, window: Bytes::new(), window_at: 0 };
        Self {
            run,
            walk,
            block: None,
            block_at: 0,
            slot: 0,
            entry: Entry::default(),
            valid: false,
            key: Vec::new(),
            key_len: 0,
            shared_len: 0,
            shared_prefix: 0,
            readahead,
            within: KeyRange::all(),
            held: None,
        }
    }

    /// Restricts the cursor to blocks that may hold keys of `range`; it may end before others.
    /// Damage of other blocks does not fail the walk.
    pub(crate) fn within(mut self, range: &KeyRange) -> Self {
        self.within = range.clone();
        self
    }

    pub(crate) fn is_above_all(&self) -> bool {
        // bug index.walk_beyond_the_range: return false;
        !self.within.is_below_end(&self.run.meta.first_key)
    }

    #[inline]
    fn is_above(&mut self, i: usize) -> Result<bool> {
        // bug index.walk_beyond_the_range: return Ok(false);
        if self.within.end.is_empty() || i >= self.run.blocks()? {
            return Ok(false);
        }
        if i == 0 {
            return Ok(self.is_above_all());
        }
        let first = self.run.fences_with(i, &mut self.held)?.key(i);
        Ok(!self.within.is_below_end(first))
    }

    pub(crate) fn is_below_all(&self) -> bool {
        // bug index.walk_beyond_the_range: return false;
        self.run.meta.last_key[..] < self.within.start[..]
    }

    #[inline]
    fn is_below(&mut self, i: usize) -> Result<bool> {
        // bug index.walk_beyond_the_range: return Ok(false);
        if self.within.start.is_empty() {
            return Ok(false);
        }
        if i >= self.run.blocks()? {
            return Ok(self.is_below_all());
        }
        Ok(self.run.fences_with(i, &mut self.held)?.key(i) <= &self.within.start[..])
    }

    /// Returns whether block `i` is not read for the keys of the range.
    fn is_masked(&mut self, i: usize) -> Result<bool> {
        if !self.run.has_masks() {
            return Ok(false);
        }
        let is_masked = self.run.is_masked(i, self.run.fences_with(i, &mut self.held)?);
        Ok(is_masked || self.run.is_covered_within(i, &self.within)?)
    }

    /// Returns the run.
    pub fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// Makes `i` the current block; returns false when there is no such block.
    fn load(&mut self, i: usize) -> Result<bool> {
        if i >= self.run.blocks()? {
            return Ok(false);
        }
        if self.block.is_none() || self.block_at != i {
            let in_a_row = self.block.is_some() && i == self.block_at + 1;
            self.block = None;
            self.block = Some(self.fetch(i, in_a_row)?);
            self.block_at = i;
        }
        if let Some(block) = &self.block {
            let shared = block.shared();
            self.key.clear();
            self.key.extend_from_slice(shared);
            self.key.resize(shared.len() + 2 * KEY_SLACK_BYTES, 0);
            (self.shared_len, self.shared_prefix) = (shared.len(), prefix_of(shared));
        }
        Ok(true)
    }

    fn fetch(&mut self, i: usize, in_a_row: bool) -> Result<Block> {
        // bug index.walk_in_memory_waits: never
        if self.walk == Walk::InMemory {
            let block = self.run.block_cached(i, &mut self.held)?;
            return block.ok_or_else(|| Error::would_wait(self.run.path()));
        }
        if let Some(block) = self.in_window(i)? {
            return Ok(block);
        }
        let id = self.run.id();
        if self.walk == Walk::Short {
            if let Some(block) = self.run.cache.block(id, i) {
                return Ok(block);
            }
            self.readahead.run_length = if in_a_row { self.readahead.run_length + 1 } else { 0 };
            if self.readahead.run_length < BLOCKS_BEFORE_READAHEAD {
                let block = self.run.read_block(i, &mut self.held)?;
                self.run.cache.insert_block(id, i, block.clone());
                return Ok(block);
            }
        }
        self.read_ahead(i)?;
        match self.in_window(i)? {
            Some(block) => Ok(block),
            // A damaged block read alone is read twice and reported with its offset.
            None => self.run.read_block(i, &mut self.held),
        }
    }

    fn in_window(&mut self, i: usize) -> Result<Option<Block>> {
        if self.readahead.window.is_empty() {
            return Ok(None);
        }
        let place = self.run.fences_with(i, &mut self.held)?.block(i);
        let raw = place.clone().and_then(|place| self.readahead.bytes_of(place));
        let Some((place, raw)) = place.zip(raw) else { return Ok(None) };
        Ok(Block::open(self.run.path(), self.run.id(), place.start, &raw).ok())
    }

    fn read_ahead(&mut self, i: usize) -> Result<()> {
        // The pseudo-block of an unreadable tail is not read.
        let place = self.run.fences_with(i, &mut self.held)?.readable(i);
        let Some(place) = place else { return Ok(()) };
        let data_end = self.run.layout.data_bytes;
        let end = (place.start + self.readahead.bytes).min(data_end).max(place.end);
        let mut bytes = vec![0; (end - place.start) as usize];
        match self.run.file.read_exact_at(&mut bytes, place.start) {
            Ok(()) => {}
            // The file may end after this block.
            Err(error) if error.is_damage() => return Ok(()),
            failed => return failed,
        }
        self.readahead.window = Bytes::from(bytes);
        self.readahead.window_at = place.start;
        self.readahead.bytes = (self.readahead.bytes * 2).min(READAHEAD_BYTES_MAX);
        // The device reads the next window during the walk over this one.
        let left = data_end.saturating_sub(end);
        if left > 0 {
            self.run.file.will_read(end, self.readahead.bytes.min(left));
        }
        Ok(())
    }

    /// Fails if the place of a block is not known without the device.
    fn check_walk(&self) -> Result<()> {
        let is_in_memory = self.run.is_pinned() && !self.run.has_masks();
        match self.walk == Walk::InMemory && !is_in_memory {
            true => Err(Error::would_wait(self.run.path())),
            false => Ok(()),
        }
    }

    #[inline]
    fn key_fits(&self, entry: &Entry) -> bool {
        self.shared_len + entry.suffix_len() <= self.key.len()
    }

    /// Moves to the next entry if it is in another block or needs a longer key buffer.
    #[cold]
    #[inline(never)]
    fn next_slow(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.valid) {
            return Ok(());
        }
        match self.slot + 1 {
            following if following < self.count() => self.move_to_slot(following),
            _ => self.first_of(self.block_at + 1),
        }
    }

    #[inline]
    fn move_to_slot(&mut self, slot: usize) -> Result<()> {
        let entry = self.block.as_ref().and_then(|block| block.entry(slot));
        self.set_entry(slot, entry)
    }

    fn set_entry(&mut self, slot: usize, entry: Option<Entry>) -> Result<()> {
        let (Some(block), Some(entry)) = (&self.block, entry) else {
            return Err(self.run.bad_block(self.block_at));
        };
        // The key buffer has held the block's shared prefix since the block was loaded.
        self.key_len = self.shared_len + entry.suffix_len();
        if !self.key_fits(&entry) {
            self.key.resize(self.key_len + KEY_SLACK_BYTES, 0);
        }
        block.suffix_into(&entry, &mut self.key, self.shared_len);
        (self.slot, self.entry, self.valid) = (slot, entry, true);
        Ok(())
    }

    fn first_of(&mut self, mut i: usize) -> Result<()> {
        while self.is_masked(i)? {
            i += 1;
        }
        if self.is_above(i)? {
            return Ok(());
        }
        if self.load(i)? { self.move_to_slot(0) } else { Ok(()) }
    }

    fn last_before(&mut self, mut i: usize) -> Result<()> {
        while i > 0 && self.is_masked(i - 1)? {
            i -= 1;
        }
        if self.is_below(i)? {
            return Ok(());
        }
        let Some(i) = i.checked_sub(1) else { return Ok(()) };
        if !self.load(i)? {
            return Ok(());
        }
        self.move_to_slot(self.count().saturating_sub(1))
    }

    /// Begins a seek: loads the block and prefetches its memory. Several cursors are all
    /// approached before the first one arrives, so that their cache misses overlap.
    pub(crate) fn approach(&mut self, key: &[u8]) -> Result<()> {
        self.valid = false;
        self.check_walk()?;
        let fences = self.run.fences_for(key, &mut self.held, Reads::MayWait)?;
        let at = fences.map_or(0, |fences| fences.find(key));
        if self.is_masked(at)? || self.is_above(at)? {
            (self.block, self.block_at) = (None, at);
            return Ok(());
        }
        if self.load(at)?
            && let Some(block) = &self.block
        {
            block.prefetch_ends();
        }
        Ok(())
    }

    pub(crate) fn arrive(&mut self, key: &[u8]) -> Result<()> {
        if self.block.is_none() {
            return if self.is_masked(self.block_at)? {
                self.first_of(self.block_at)
            } else {
                Ok(())
            };
        }
        let slot = self.lower_bound(key)?;
        if slot >= self.count() {
            return self.first_of(self.block_at + 1);
        }
        self.move_to_slot(slot)?;
        if let Some(block) = &self.block {
            let lines = (0..PREFETCH_BYTES).step_by(LINE_BYTES);
            lines.for_each(|bytes| block.prefetch_after(&self.entry, bytes));
        }
        Ok(())
    }

    #[inline]
    fn count(&self) -> usize {
        self.block.as_ref().map_or(0, Block::count)
    }

    fn lower_bound(&self, key: &[u8]) -> Result<usize> {
        let place = self.block.as_ref().and_then(|block| block.lower_bound(key));
        place.map(|(slot, _)| slot).ok_or_else(|| self.run.bad_block(self.block_at))
    }
}

impl Cursor for RunCursor {
    #[inline]
    fn valid(&self) -> bool {
        self.valid
    }

    #[inline]
    fn key(&self) -> &[u8] {
        let length = if self.valid { self.key_len } else { 0 };
        self.key.get(..length).unwrap_or_default()
    }

    #[inline]
    fn prefix(&self) -> u64 {
        match &self.block {
            Some(block) if self.valid => block.prefix(&self.entry, self.shared_prefix),
            _ => 0,
        }
    }

    #[inline]
    fn found(&self) -> Result<Found> {
        let found = self.block.as_ref().and_then(|block| block.found(&self.entry));
        found.ok_or_else(|| self.run.bad_block(self.block_at))
    }

    #[inline]
    fn value(&self) -> Option<(ValueSlice<'_>, u64)> {
        let block = self.block.as_ref().filter(|_| self.valid)?;
        block.value(&self.entry)
    }

    #[inline]
    fn is_deleted(&self) -> bool {
        !self.valid || self.entry.is_deleted()
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        // Entries are contiguous: the offset of the next one need not be looked up.
        if self.valid
            && self.slot + 1 < self.count()
            && let Some(block) = &self.block
            && let Some(entry) = block.entry_at(self.entry.end())
            && self.key_fits(&entry)
        {
            self.key_len = self.shared_len + entry.suffix_len();
            block.suffix_into(&entry, &mut self.key, self.shared_len);
            block.prefetch_after(&entry, PREFETCH_BYTES);
            (self.slot, self.entry) = (self.slot + 1, entry);
            return Ok(());
        }
        self.next_slow()
    }

    fn prev(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.valid) {
            return Ok(());
        }
        match self.slot.checked_sub(1) {
            Some(slot) => self.move_to_slot(slot),
            None => self.last_before(self.block_at),
        }
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.approach(key)?;
        self.arrive(key)
    }

    fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()> {
        self.valid = false;
        self.check_walk()?;
        let Some(bound) = bound else { return self.last_before(self.run.blocks()?) };
        if self.is_below_all() {
            return Ok(());
        }
        let at = self.run.fences_below(bound, &mut self.held)?.find_below(bound);
        if self.is_masked(at)? {
            return self.last_before(at);
        }
        if !self.load(at)? {
            return Ok(());
        }
        match self.lower_bound(bound)?.checked_sub(1) {
            Some(slot) => self.move_to_slot(slot),
            None => self.last_before(at),
        }
    }
}
