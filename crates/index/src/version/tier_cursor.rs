//! Cursor over the runs of one tier, one after the other.

use crate::cursor::Cursor;
use crate::run::{Run, RunCursor};
use crate::slot::{Found, ValueSlice};
use std::sync::Arc;
use stele_types::{Error, KeyRange, Result};

/// Cursor over the runs of one tier. Opens a run's cursor when it is reached.
pub(crate) struct TierCursor {
    /// Runs with entries, ascending by key and disjoint.
    runs: Arc<[Arc<Run>]>,
    /// Index of the current run, and the cursor in it.
    at: Option<(usize, RunCursor)>,
    /// Whether to read ahead in large pieces, bypassing the block cache.
    readahead: bool,
    /// Runs and blocks without keys of this range are skipped.
    within: KeyRange,
}

impl TierCursor {
    pub fn new(runs: Arc<[Arc<Run>]>, readahead: bool, within: KeyRange) -> Self {
        Self { runs, at: None, readahead, within }
    }

    /// Makes the run at `index` current; keeps the cursor if it already is.
    fn enter(&mut self, index: usize) -> Option<&mut RunCursor> {
        if self.at.as_ref().is_none_or(|(at, _)| *at != index) {
            self.at = self.runs.get(index).map(|run| {
                let cursor = if self.readahead { run.cursor_ahead() } else { run.cursor() };
                (index, cursor.within(&self.within))
            });
        }
        self.at.as_mut().map(|(_, cursor)| cursor)
    }

    /// Calls [`RunCursor::approach`] in the run that may hold `key`.
    pub fn approach(&mut self, key: &[u8]) -> Result<()> {
        let index = self.runs.partition_point(|run| run.meta().last_key < key);
        if index == self.runs.len() {
            self.at = None;
        }
        self.enter(index).map_or(Ok(()), |cursor| cursor.approach(key))
    }

    /// Calls [`RunCursor::arrive`]; moves to the next run if this one has no entry from `key` on.
    pub fn arrive(&mut self, key: &[u8]) -> Result<()> {
        let Some((_, cursor)) = &mut self.at else { return Ok(()) };
        cursor.arrive(key)?;
        if cursor.valid() { Ok(()) } else { self.next_run() }
    }

    /// Moves to the first entry of the following runs. A run may have no unmasked entry.
    #[cold]
    fn next_run(&mut self) -> Result<()> {
        while let Some(cursor) = self.enter(self.index() + 1) {
            cursor.seek(&[])?;
            if cursor.valid() || cursor.is_above_all() {
                break;
            }
        }
        Ok(())
    }

    /// Moves to the last entry of the preceding runs.
    #[cold]
    fn previous_run(&mut self) -> Result<()> {
        while let Some(before) = self.index().checked_sub(1)
            && let Some(cursor) = self.enter(before)
        {
            cursor.seek_before(None)?;
            if cursor.valid() || cursor.is_below_all() {
                break;
            }
        }
        Ok(())
    }

    fn index(&self) -> usize {
        self.at.as_ref().map_or(0, |(index, _)| *index)
    }
}

impl Cursor for TierCursor {
    #[inline]
    fn valid(&self) -> bool {
        self.at.as_ref().is_some_and(|(_, cursor)| cursor.valid())
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.at.as_ref().map_or(&[], |(_, cursor)| cursor.key())
    }

    #[inline]
    fn prefix(&self) -> u64 {
        self.at.as_ref().map_or(0, |(_, cursor)| cursor.prefix())
    }

    #[inline]
    fn found(&self) -> Result<Found> {
        match &self.at {
            Some((_, cursor)) => cursor.found(),
            None => Err(Error::invalid("the cursor is not positioned")),
        }
    }

    #[inline]
    fn value(&self) -> Option<(ValueSlice<'_>, u64)> {
        self.at.as_ref().and_then(|(_, cursor)| cursor.value())
    }

    #[inline]
    fn is_deleted(&self) -> bool {
        self.at.as_ref().is_none_or(|(_, cursor)| cursor.is_deleted())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        let Some((_, cursor)) = &mut self.at else { return Ok(()) };
        if !cursor.valid() {
            return Ok(());
        }
        cursor.next()?;
        if cursor.valid() { Ok(()) } else { self.next_run() }
    }

    fn prev(&mut self) -> Result<()> {
        let Some((_, cursor)) = &mut self.at else { return Ok(()) };
        if !cursor.valid() {
            return Ok(());
        }
        cursor.prev()?;
        if cursor.valid() { Ok(()) } else { self.previous_run() }
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.approach(key)?;
        self.arrive(key)
    }

    fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()> {
        let below = |run: &Arc<Run>| bound.is_none_or(|bound| run.meta().first_key < bound);
        let Some(index) = self.runs.partition_point(below).checked_sub(1) else {
            self.at = None;
            return Ok(());
        };
        let Some(cursor) = self.enter(index) else { return Ok(()) };
        cursor.seek_before(bound)?;
        if cursor.valid() { Ok(()) } else { self.previous_run() }
    }
}

impl std::fmt::Debug for TierCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TierCursor")
            .field("runs", &self.runs.len())
            .field("at", &self.index())
            .finish()
    }
}
