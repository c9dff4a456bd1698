//! A position in a run.

use super::block::{Block, Entry, KEY_SLACK_BYTES};
use super::prefetch::LINE_BYTES;
use super::reader::Run;
use crate::cursor::{Cursor, prefix_of};
use crate::slot::{Found, ValueSlice};
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{KeyRange, Result, mutant};

/// Blocks in a row, read from the file, after which a cursor reads ahead.
const BLOCKS_BEFORE_AHEAD: u32 = 4;
/// First read ahead of a short walk; doubled up to [`AHEAD_BYTES_MAX`].
const AHEAD_BYTES_MIN: u64 = 32 << 10;
const AHEAD_BYTES_MAX: u64 = 256 << 10;
/// Memory asked for ahead of the entry stood on: some five entries.
const WALK_AHEAD_BYTES: usize = 256;

/// A position in a run. Standing on an entry costs no allocation; inline values are slices of the
/// block.
#[derive(Debug)]
pub struct RunCursor {
    run: Arc<Run>,
    block: Option<Block>,
    block_at: usize,
    slot: usize,
    entry: Entry,
    valid: bool,
    /// The key stood on and bytes of no meaning.
    key: Vec<u8>,
    key_len: usize,
    /// Length of what all keys of the block begin with, and its first eight bytes.
    shared_len: usize,
    shared_prefix: u64,
    ahead: Ahead,
    within: KeyRange,
}

/// Bytes of the file read before they were needed.
#[derive(Debug)]
struct Ahead {
    always: bool,
    /// Blocks read from the file in a row.
    run_length: u32,
    bytes: u64,
    window: Bytes,
    window_at: u64,
}

impl RunCursor {
    pub(super) fn new(run: Arc<Run>, always: bool) -> Self {
        let bytes = if always { AHEAD_BYTES_MAX } else { AHEAD_BYTES_MIN };
        let ahead = Ahead { always, run_length: 0, bytes, window: Bytes::new(), window_at: 0 };
        Self {
            run,
            block: None,
            block_at: 0,
            slot: 0,
            entry: Entry::default(),
            valid: false,
            key: Vec::new(),
            key_len: 0,
            shared_len: 0,
            shared_prefix: 0,
            ahead,
            within: KeyRange::all(),
        }
    }

    /// Does without blocks that hold no key of `range`: it may end before them. What can't be read there
    /// is none of this walk's business.
    pub(crate) fn within(mut self, range: &KeyRange) -> Self {
        self.within = range.clone();
        self
    }

    /// Whether all keys from block `i` on lie above the range.
    #[inline]
    pub(crate) fn is_above(&self, i: usize) -> bool {
        let first = if i == 0 { &self.run.meta.first_key[..] } else { self.run.fences.key(i) };
        i < self.run.fences.len() && !self.within.is_below_end(first) && walks_bounded()
    }

    /// Whether all of the run lies below the range.
    pub(crate) fn is_below_all(&self) -> bool {
        self.is_below(self.run.fences.len())
    }

    /// Whether all keys before block `i` lie below the range.
    #[inline]
    fn is_below(&self, i: usize) -> bool {
        let start = &self.within.start[..];
        let below = match i < self.run.fences.len() {
            true => self.run.fences.key(i) <= start,
            false => &self.run.meta.last_key[..] < start,
        };
        below && !start.is_empty() && walks_bounded()
    }

    /// The run walked over.
    pub fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// Makes `i` the current block; false when there is no such block.
    fn load(&mut self, i: usize) -> Result<bool> {
        if i >= self.run.fences.len() {
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
        if let Some(block) = self.in_window(i) {
            return Ok(block);
        }
        let id = self.run.id();
        if !self.ahead.always {
            if let Some(block) = self.run.cache.get(id, i as u32) {
                return Ok(block);
            }
            self.ahead.run_length = if in_a_row { self.ahead.run_length + 1 } else { 0 };
            if self.ahead.run_length < BLOCKS_BEFORE_AHEAD {
                let block = self.run.read_block(i)?;
                self.run.cache.insert(id, i as u32, block.clone());
                return Ok(block);
            }
        }
        self.read_ahead(i)?;
        match self.in_window(i) {
            Some(block) => Ok(block),
            // Read alone, a damaged block is read twice and reported with its place.
            None => self.run.read_block(i),
        }
    }

    fn in_window(&self, i: usize) -> Option<Block> {
        if self.ahead.window.is_empty() {
            return None;
        }
        let place = self.run.fences.block(i)?;
        let start = usize::try_from(place.start.checked_sub(self.ahead.window_at)?).ok()?;
        let end = usize::try_from(place.end - self.ahead.window_at).ok()?;
        if end > self.ahead.window.len() {
            return None;
        }
        let sealed = self.ahead.window.slice(start..end);
        Block::open(self.run.path(), self.run.id(), place.start, &sealed).ok()
    }

    fn read_ahead(&mut self, i: usize) -> Result<()> {
        // What is no block is not read as one.
        let place = self.run.fences.block(i).filter(|_| self.run.unreadable_tail != Some(i));
        let Some(place) = place else { return Ok(()) };
        let end = (place.start + self.ahead.bytes).min(self.run.fences.data_bytes()).max(place.end);
        let mut bytes = vec![0; (end - place.start) as usize];
        match self.run.file.read_exact_at(&mut bytes, place.start) {
            Ok(()) => {}
            // The file may end behind this block.
            Err(error) if error.is_damage() => return Ok(()),
            failed => return failed,
        }
        self.ahead.window = Bytes::from(bytes);
        self.ahead.window_at = place.start;
        self.ahead.bytes = (self.ahead.bytes * 2).min(AHEAD_BYTES_MAX);
        // The device reads the next window while this one is walked over.
        let left = self.run.fences.data_bytes().saturating_sub(end);
        if left > 0 {
            self.run.file.will_read(end, self.ahead.bytes.min(left));
        }
        Ok(())
    }

    #[inline]
    fn key_fits(&self, entry: &Entry) -> bool {
        self.shared_len + entry.suffix_len() <= self.key.len()
    }

    /// The following entry where it is in another block, or takes a longer key's buffer.
    #[cold]
    #[inline(never)]
    fn next_slow(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.valid) {
            return Ok(());
        }
        match self.slot + 1 {
            following if following < self.count() => self.stand(following),
            _ => self.first_of(self.block_at + 1),
        }
    }

    /// Stands on a slot of the current block.
    #[inline]
    fn stand(&mut self, slot: usize) -> Result<()> {
        let entry = self.block.as_ref().and_then(|block| block.entry(slot));
        self.stand_on(slot, entry)
    }

    fn stand_on(&mut self, slot: usize, entry: Option<Entry>) -> Result<()> {
        let (Some(block), Some(entry)) = (&self.block, entry) else {
            return Err(self.run.bad_block(self.block_at));
        };
        // The key's front is the block's since the block was loaded.
        self.key_len = self.shared_len + entry.suffix_len();
        if !self.key_fits(&entry) {
            self.key.resize(self.key_len + KEY_SLACK_BYTES, 0);
        }
        block.suffix_into(&entry, &mut self.key, self.shared_len);
        (self.slot, self.entry, self.valid) = (slot, entry, true);
        Ok(())
    }

    /// Stands on the first entry of block `i` or of those after it, if there is one.
    fn first_of(&mut self, mut i: usize) -> Result<()> {
        while self.run.is_masked(i) {
            i += 1;
        }
        if self.is_above(i) {
            return Ok(());
        }
        if self.load(i)? { self.stand(0) } else { Ok(()) }
    }

    /// Stands on the last entry before block `i`, if there is one.
    fn last_before(&mut self, mut i: usize) -> Result<()> {
        while i > 0 && self.run.is_masked(i - 1) {
            i -= 1;
        }
        if self.is_below(i) {
            return Ok(());
        }
        let Some(i) = i.checked_sub(1) else { return Ok(()) };
        if !self.load(i)? {
            return Ok(());
        }
        self.stand(self.count().saturating_sub(1))
    }

    /// First half of a seek: gets the block and asks for its memory. With several cursors to place,
    /// all go this far before the first one goes on, so that their cache misses overlap.
    pub(crate) fn approach(&mut self, key: &[u8]) -> Result<()> {
        self.valid = false;
        let at = self.run.fences.find(key);
        if self.run.is_masked(at) || self.is_above(at) {
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

    /// Second half of a seek to the same key.
    pub(crate) fn arrive(&mut self, key: &[u8]) -> Result<()> {
        if self.block.is_none() {
            return if self.run.is_masked(self.block_at) {
                self.first_of(self.block_at)
            } else {
                Ok(())
            };
        }
        let slot = self.lower_bound(key)?;
        if slot >= self.count() {
            return self.first_of(self.block_at + 1);
        }
        self.stand(slot)?;
        if let Some(block) = &self.block {
            let lines = (0..WALK_AHEAD_BYTES).step_by(LINE_BYTES);
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

fn walks_bounded() -> bool {
    !mutant::active("index.walk_beyond_the_range")
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
        // Entries follow each other: no need to look up where the next one begins.
        if self.valid
            && self.slot + 1 < self.count()
            && let Some(block) = &self.block
            && let Some(entry) = block.entry_at(self.entry.end())
            && self.key_fits(&entry)
        {
            self.key_len = self.shared_len + entry.suffix_len();
            block.suffix_into(&entry, &mut self.key, self.shared_len);
            block.prefetch_after(&entry, WALK_AHEAD_BYTES);
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
            Some(slot) => self.stand(slot),
            None => self.last_before(self.block_at),
        }
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.approach(key)?;
        self.arrive(key)
    }

    fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()> {
        self.valid = false;
        let Some(bound) = bound else { return self.last_before(self.run.fences.len()) };
        if self.is_below_all() {
            return Ok(());
        }
        let at = self.run.fences.find_below(bound);
        if self.run.is_masked(at) {
            return self.last_before(at);
        }
        if !self.load(at)? {
            return Ok(());
        }
        match self.lower_bound(bound)?.checked_sub(1) {
            Some(slot) => self.stand(slot),
            None => self.last_before(at),
        }
    }
}
