//! Outcome of a write of several parts that did not all succeed.

use crate::{Error, KeyRange};
use std::fmt;

/// What the parts of a write are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Keys with their values.
    Pairs,
    /// Keys.
    Keys,
    /// Regions, each with its part of a range.
    Regions,
}

/// Outcome of a write of several parts, after a failure.
#[derive(Debug)]
pub struct Partial {
    /// What the counts count.
    pub unit: Unit,
    /// Number of those that took effect.
    pub done: u64,
    /// Number of those that did not take effect and will not.
    pub not_done: u64,
    /// Number of those that may or may not take effect, now or later.
    pub unknown: u64,
    /// Range that the call did not reach: nothing in it is done. Only a call for a range has one.
    pub not_reached: Option<KeyRange>,
    /// First failure.
    pub first: Error,
}

impl Partial {
    /// Returns the error of the call: the failure itself if it says the same of all parts, or else how
    /// much is done.
    pub fn into_error(self) -> Error {
        let is_unchanged = self.done == 0 && self.unknown == 0;
        let is_all_unknown = self.done == 0 && self.not_done == 0 && self.not_reached.is_none();
        // bug types.part_done_is_refused: `is_all_unknown` is `true`
        match is_unchanged || is_all_unknown {
            true => self.first,
            false => Error::Partial(Box::new(self)),
        }
    }

    /// Returns a copy.
    pub fn duplicate(&self) -> Self {
        let Self { unit, done, not_done, unknown, .. } = *self;
        let (not_reached, first) = (self.not_reached.clone(), self.first.duplicate());
        Self { unit, done, not_done, unknown, not_reached, first }
    }
}

impl Unit {
    fn name(self, count: u64) -> &'static str {
        match (self, count) {
            (Self::Pairs, 1) => "pair",
            (Self::Pairs, _) => "pairs",
            (Self::Keys, 1) => "key",
            (Self::Keys, _) => "keys",
            (Self::Regions, 1) => "region",
            (Self::Regions, _) => "regions",
        }
    }
}

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = self.unit.name(self.done);
        write!(f, "not all was done: {} {unit} done, {} not done", self.done, self.not_done)?;
        if self.unknown > 0 {
            write!(f, ", {} of unknown outcome", self.unknown)?;
        }
        if let Some(range) = &self.not_reached {
            write!(f, ", none from key \"{}\" on", range.start.escape_ascii())?;
        }
        let remedy = match self.unknown {
            0 => "repeat the call for the rest",
            _ => "read before repeating it",
        };
        write!(f, "; {remedy}. First failure: {}", self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(done: u64, not_done: u64, unknown: u64, rest: Option<KeyRange>) -> Error {
        let first = Error::Refused("no room".to_owned());
        Partial { unit: Unit::Pairs, done, not_done, unknown, not_reached: rest, first }
            .into_error()
    }

    #[test]
    fn a_write_done_in_part_is_not_told_as_its_failure() {
        for error in [of(1, 1, 0, None), of(0, 1, 1, None), of(1, 0, 1, None)] {
            assert!(matches!(error, Error::Partial(_)), "{error}");
        }
        let rest = KeyRange::new("m", "");
        assert!(matches!(of(0, 0, 1, Some(rest.clone())), Error::Partial(_)));
        assert!(matches!(of(0, 3, 0, Some(rest)), Error::Refused(_)), "nothing was changed");
        assert!(matches!(of(0, 0, 3, None), Error::Refused(_)), "it says the same of all parts");
        assert!(of(1, 1, 1, None).is_undetermined() && !of(1, 1, 0, None).is_undetermined());
    }

    #[test]
    fn its_text_names_the_counts_the_rest_and_the_first_failure() {
        assert_eq!(
            of(1, 512, 0, None).to_string(),
            "not all was done: 1 pair done, 512 not done; repeat the call for the rest. First failure: \
             refused: no room"
        );
        let rest = KeyRange::new(&b"m\x00"[..], "");
        assert_eq!(
            of(2, 0, 1, Some(rest)).duplicate().to_string(),
            "not all was done: 2 pairs done, 0 not done, 1 of unknown outcome, none from key \"m\\x00\" \
             on; read before repeating it. First failure: refused: no room"
        );
    }
}
