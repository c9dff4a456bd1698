//! Pairs of a view in order.

use crate::index::Tables;
use crate::merge::Merged;
use crate::slot::Found;
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{KeyRange, Result, ValueRef};

/// Which way an iteration goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// Pairs of a view in order: the newest version of each key, deleted ones left out, expired ones
/// (which only a clock can tell) included.
#[derive(Debug)]
pub struct ViewIter {
    merged: Merged,
    range: KeyRange,
    direction: Direction,
    /// Keeps the version pinned, so that no file it refers to goes.
    _tables: Arc<Tables>,
}

impl ViewIter {
    pub(crate) fn new(
        mut merged: Merged,
        range: KeyRange,
        direction: Direction,
        tables: Arc<Tables>,
    ) -> Result<Self> {
        match direction {
            Direction::Forward => merged.seek(&range.start)?,
            Direction::Reverse if range.end.is_empty() => merged.seek_before(None)?,
            Direction::Reverse => merged.seek_before(Some(&range.end))?,
        }
        Ok(Self { merged, range, direction, _tables: tables })
    }

    /// The next pair: key, value and Unix second of its end (0 for none). `None` at the end.
    // Errors end an iteration, so this is no `Iterator`.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<(Bytes, ValueRef, u64)>> {
        while let Some(key) = self.merged.key() {
            let inside = match self.direction {
                Direction::Forward => self.range.is_below_end(key),
                Direction::Reverse => key >= &self.range.start[..],
            };
            if !inside {
                return Ok(None);
            }
            if !self.merged.hidden()
                && let Found::Value { value, expires_at_s } = self.merged.found()?
            {
                let key = Bytes::copy_from_slice(key);
                self.merged.advance()?;
                return Ok(Some((key, value, expires_at_s)));
            }
            self.merged.advance()?;
        }
        Ok(None)
    }
}
