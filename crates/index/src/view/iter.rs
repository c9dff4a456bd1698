//! Iterator over the pairs of a view.

use crate::cursor::prefix_of;
use crate::cursor::{Found, ValueSlice};
use crate::index::Tables;
use crate::merge::Merged;
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{Error, KeyRange, Result, ValueRef};

/// Direction of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// Pairs of a view in order: the newest version of each key, without deleted ones. Expired pairs
/// are included, because the view has no clock.
#[derive(Debug)]
pub struct ViewIter {
    merged: Merged,
    range: KeyRange,
    /// [`prefix_of`] of the range's end.
    end_prefix: u64,
    direction: Direction,
    state: State,
    /// Pins the version, so that no file it references is removed.
    _tables: Arc<Tables>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The merge is at the first key, which was not checked yet.
    Fresh,
    /// The merge is at the current pair.
    Positioned,
    Ended,
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
        Ok(Self {
            merged,
            end_prefix: prefix_of(&range.end),
            range,
            direction,
            state: State::Fresh,
            _tables: tables,
        })
    }

    /// Moves to the next pair, initially to the first one; returns false at the end. `key`, `value`
    /// and `expires_at_s` then return the current pair. An error ends the iteration.
    #[inline]
    pub fn advance(&mut self) -> Result<bool> {
        let before = std::mem::replace(&mut self.state, State::Ended);
        match before {
            State::Ended => return Ok(false),
            State::Positioned => self.merged.advance()?,
            State::Fresh => {}
        }
        while let Some(key) = self.merged.key() {
            let inside = match self.direction {
                Direction::Forward => self.merged.is_below(&self.range.end, self.end_prefix),
                Direction::Reverse => key >= &self.range.start[..],
            };
            if !inside {
                return Ok(false);
            }
            if !self.merged.is_hidden() && !self.merged.is_deleted() {
                self.state = State::Positioned;
                return Ok(true);
            }
            self.merged.advance()?;
        }
        Ok(false)
    }

    #[inline]
    fn current(&self) -> Option<(ValueSlice<'_>, u64)> {
        match self.state {
            State::Positioned => self.merged.value(),
            State::Fresh | State::Ended => None,
        }
    }

    /// Returns the current key; empty when there is no current pair.
    #[inline]
    pub fn key(&self) -> &[u8] {
        match self.state {
            State::Positioned => self.merged.key().unwrap_or_default(),
            State::Fresh | State::Ended => &[],
        }
    }

    /// Returns the current value; empty when there is no current pair.
    #[inline]
    pub fn value(&self) -> ValueSlice<'_> {
        self.current().map_or(ValueSlice::Inline(&[]), |(value, _)| value)
    }

    /// Returns key, value and expiry in Unix seconds (0 for none) of the current pair. Fails when
    /// there is no current pair, or when the run's entry cannot be read.
    #[inline]
    pub fn pair(&self) -> Result<(&[u8], ValueSlice<'_>, u64)> {
        match self.current() {
            Some((value, expires_at_s)) => Ok((self.key(), value, expires_at_s)),
            None => Err(self.no_pair()),
        }
    }

    #[cold]
    fn no_pair(&self) -> Error {
        let found = self.merged.found();
        found.err().unwrap_or_else(|| {
            Error::invalid("the iterator has no current pair; call advance first")
        })
    }

    /// Returns the expiry of the current pair in Unix seconds; 0 for none.
    #[inline]
    pub fn expires_at_s(&self) -> u64 {
        self.current().map_or(0, |(_, expires_at_s)| expires_at_s)
    }

    /// Returns the next pair, owned: key, value and expiry in Unix seconds (0 for none). `None` at
    /// the end.
    // Not an `Iterator`, because an error ends the iteration.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<(Bytes, ValueRef, u64)>> {
        if !self.advance()? {
            return Ok(None);
        }
        let key = Bytes::copy_from_slice(self.merged.key().unwrap_or_default());
        match self.merged.found()? {
            Found::Value { value, expires_at_s } => Ok(Some((key, value, expires_at_s))),
            Found::Deleted => Ok(None),
        }
    }
}
