//! Pairs of a view in order.

use crate::cursor::prefix_of;
use crate::index::Tables;
use crate::merge::Merged;
use crate::slot::{Found, ValueSlice};
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{Error, KeyRange, Result, ValueRef};

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
    /// Of the range's end.
    end_prefix: u64,
    direction: Direction,
    state: State,
    /// Keeps the version pinned, so that no file it refers to goes.
    _tables: Arc<Tables>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The merge stands on the first key, which was not looked at.
    Fresh,
    /// The merge stands on the pair lent.
    Standing,
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

    /// Moves to the next pair, the first one to begin with; false at the end. What `key`, `value`
    /// and `expires_at_s` lend is the pair stood on. An error ends the iteration.
    #[inline]
    pub fn advance(&mut self) -> Result<bool> {
        let before = std::mem::replace(&mut self.state, State::Ended);
        match before {
            State::Ended => return Ok(false),
            State::Standing => self.merged.advance()?,
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
            if !self.merged.hidden() && !self.merged.is_deleted() {
                self.state = State::Standing;
                return Ok(true);
            }
            self.merged.advance()?;
        }
        Ok(false)
    }

    #[inline]
    fn stood_on(&self) -> Option<(ValueSlice<'_>, u64)> {
        match self.state {
            State::Standing => self.merged.value(),
            State::Fresh | State::Ended => None,
        }
    }

    /// The key stood on; empty when none is.
    #[inline]
    pub fn key(&self) -> &[u8] {
        match self.state {
            State::Standing => self.merged.key().unwrap_or_default(),
            State::Fresh | State::Ended => &[],
        }
    }

    /// The value of the pair stood on; empty when none is.
    #[inline]
    pub fn value(&self) -> ValueSlice<'_> {
        self.stood_on().map_or(ValueSlice::Inline(&[]), |(value, _)| value)
    }

    /// Key, value and Unix second of its end (0 for never) of the pair stood on. Fails when none is,
    /// or when what the run holds for the key can't be read.
    #[inline]
    pub fn pair(&self) -> Result<(&[u8], ValueSlice<'_>, u64)> {
        match self.stood_on() {
            Some((value, expires_at_s)) => Ok((self.key(), value, expires_at_s)),
            None => Err(self.no_pair()),
        }
    }

    #[cold]
    fn no_pair(&self) -> Error {
        let found = self.merged.found();
        found.err().unwrap_or_else(|| Error::invalid("the iteration stands on no pair"))
    }

    /// Unix second at which the pair stood on ends; 0 for never.
    #[inline]
    pub fn expires_at_s(&self) -> u64 {
        self.stood_on().map_or(0, |(_, expires_at_s)| expires_at_s)
    }

    /// The next pair to keep: key, value and Unix second of its end (0 for none). `None` at the
    /// end.
    // Errors end an iteration, so this is no `Iterator`.
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
