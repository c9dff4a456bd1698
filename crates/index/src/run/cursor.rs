//! A position in a run.

use super::block::{Block, Entry};
use super::reader::Run;
use crate::cursor::Cursor;
use crate::slot::Found;
use bytes::Bytes;
use std::sync::Arc;
use stele_types::Result;

/// Blocks in a row, read from the file, after which a cursor reads ahead.
const BLOCKS_BEFORE_AHEAD: u32 = 4;
/// First read ahead of a short walk; doubled up to [`AHEAD_BYTES_MAX`].
const AHEAD_BYTES_MIN: u64 = 32 << 10;
const AHEAD_BYTES_MAX: u64 = 256 << 10;

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
    key: Vec<u8>,
    ahead: Ahead,
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
        let (block_at, slot, entry) = (0, 0, Entry::default());
        Self { run, block: None, block_at, slot, entry, valid: false, key: Vec::new(), ahead }
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
            self.key.clear();
            self.key.extend_from_slice(block.shared());
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
        let Some(place) = self.run.fences.block(i) else { return Ok(()) };
        let end = (place.start + self.ahead.bytes).min(self.run.fences.data_bytes()).max(place.end);
        let mut bytes = vec![0; (end - place.start) as usize];
        self.run.file.read_exact_at(&mut bytes, place.start)?;
        self.ahead.window = Bytes::from(bytes);
        self.ahead.window_at = place.start;
        self.ahead.bytes = (self.ahead.bytes * 2).min(AHEAD_BYTES_MAX);
        Ok(())
    }

    /// Stands on a slot of the current block.
    #[inline]
    fn stand(&mut self, slot: usize) -> Result<()> {
        let entry = self.block.as_ref().and_then(|block| block.entry(slot));
        self.stand_on(slot, entry)
    }

    #[inline]
    fn stand_on(&mut self, slot: usize, entry: Option<Entry>) -> Result<()> {
        let (Some(block), Some(entry)) = (&self.block, entry) else {
            return Err(self.run.bad_block(self.block_at));
        };
        // The key's front is the block's since the block was loaded.
        self.key.truncate(block.shared_len());
        self.key.extend_from_slice(block.suffix(&entry));
        (self.slot, self.entry, self.valid) = (slot, entry, true);
        Ok(())
    }

    /// Stands on the first entry of block `i`, if there is one.
    fn first_of(&mut self, i: usize) -> Result<()> {
        if self.load(i)? { self.stand(0) } else { Ok(()) }
    }

    /// Stands on the last entry of the block before `i`, if there is one.
    fn last_before(&mut self, i: usize) -> Result<()> {
        let Some(i) = i.checked_sub(1) else { return Ok(()) };
        if !self.load(i)? {
            return Ok(());
        }
        self.stand(self.count().saturating_sub(1))
    }

    fn count(&self) -> usize {
        self.block.as_ref().map_or(0, Block::count)
    }

    fn lower_bound(&self, key: &[u8]) -> Result<usize> {
        let place = self.block.as_ref().and_then(|block| block.lower_bound(key));
        place.map(|(slot, _)| slot).ok_or_else(|| self.run.bad_block(self.block_at))
    }
}

impl Cursor for RunCursor {
    fn valid(&self) -> bool {
        self.valid
    }

    fn key(&self) -> &[u8] {
        if self.valid { &self.key } else { &[] }
    }

    fn found(&self) -> Result<Found> {
        let found = self.block.as_ref().and_then(|block| block.found(&self.entry));
        found.ok_or_else(|| self.run.bad_block(self.block_at))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.valid) {
            return Ok(());
        }
        if self.slot + 1 < self.count() {
            // Entries follow each other: no need to look up where the next one begins.
            let entry = self.block.as_ref().and_then(|block| block.entry_at(self.entry.end()));
            return self.stand_on(self.slot + 1, entry);
        }
        self.first_of(self.block_at + 1)
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
        self.valid = false;
        let at = self.run.fences.find(key);
        if !self.load(at)? {
            return Ok(());
        }
        let slot = self.lower_bound(key)?;
        if slot < self.count() { self.stand(slot) } else { self.first_of(at + 1) }
    }

    fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()> {
        self.valid = false;
        let Some(bound) = bound else { return self.last_before(self.run.fences.len()) };
        let at = self.run.fences.find_below(bound);
        if !self.load(at)? {
            return Ok(());
        }
        match self.lower_bound(bound)?.checked_sub(1) {
            Some(slot) => self.stand(slot),
            None => self.last_before(at),
        }
    }
}
