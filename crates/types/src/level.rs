//! Level of a cluster: what its programs may write and send.

use crate::{Error, Result};
use std::fmt;

/// What a program may write to its directories and send to other nodes. A program reads everything of
/// all levels that it supports, and writes nothing of a level above that of its cluster.
///
/// | level | since version | what it allows |
/// |---|---|---|
/// | 1 | 0.1.0 | files 2, manifest 3, state of garbage collection 2, hello 1 to 4, everything else 1 |
/// | 2 | 0.2.0 | the file `STORE` in format 3, which records the level; moments: the calls Pause and Seal |
/// | 3 | 0.2.0 | records of sessions' requests, in space 5 of the ordered keys |
/// | 4 | 0.2.0 | Redis keys, in space 6 of the ordered keys |
///
/// A new cluster has the newest level of its first node. `stele ctl finalize` raises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u32);

impl Level {
    /// Level of the oldest supported version, which `testing/oldest-version` names. It has no record of a
    /// level.
    pub const OLDEST: Self = Self(1);
    /// Level of moments.
    pub const MOMENTS: Self = Self(2);
    /// Level of the records of sessions' requests.
    pub const SESSIONS: Self = Self(3);
    /// Level of Redis keys.
    pub const REDIS: Self = Self(4);
    /// Newest level that this program supports.
    pub const NEWEST: Self = Self::REDIS;

    /// Versions that first supported each level, from the oldest level on.
    const VERSIONS: [&str; 4] = ["0.1.0", "0.2.0", "0.2.0", "0.2.0"];

    /// Returns the level with this number, also one that this program does not support; 0, which earlier
    /// versions state, is the oldest.
    pub fn new(number: u32) -> Self {
        Self(number.max(Self::OLDEST.0))
    }

    /// Returns the number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// Returns the version that first supported the level; `None` for a level that this program does not
    /// support.
    pub fn version(self) -> Option<&'static str> {
        Self::VERSIONS.get(self.0.checked_sub(Self::OLDEST.0)? as usize).copied()
    }

    /// Fails with `Refused` if what is of level `self` may not be written yet because the level in use is
    /// `in_use`. `what` begins the sentence, in the plural.
    ///
    /// Invariant: nothing of a level is written or sent before all nodes record the level.
    /// Tests: `what_is_of_a_higher_level_is_refused_with_the_remedy`,
    /// `a_node_of_level_1_writes_nothing_of_later_levels_until_it_is_finalized`.
    pub fn check(self, what: &str, in_use: Self) -> Result<()> {
        // bug types.level_unchecked: always
        if self <= in_use {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "{what} are of level {self}, and the cluster writes level {in_use}: run `stele ctl finalize` once all \
             nodes run version {} or later",
            self.version().unwrap_or("of that level")
        )))
    }
}

impl Default for Level {
    fn default() -> Self {
        Self::OLDEST
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_has_the_version_that_first_supported_it_and_no_other_has() {
        let supported = Level::OLDEST.get()..=Level::NEWEST.get();
        assert_eq!(supported.clone().count(), Level::VERSIONS.len());
        assert!(supported.map(Level::new).all(|level| level.version().is_some()));
        assert_eq!(Level::new(Level::NEWEST.get() + 1).version(), None);
        assert_eq!((Level::new(0), Level::default()), (Level::OLDEST, Level::OLDEST));
    }

    #[test]
    fn what_is_of_a_higher_level_is_refused_with_the_remedy() {
        let refused = Level::MOMENTS.check("moments", Level::OLDEST).unwrap_err();
        assert!(matches!(refused, Error::Refused(_)), "{refused}");
        let text = refused.to_string();
        for part in ["moments are of level 2", "level 1", "`stele ctl finalize`", "version 0.2.0"] {
            assert!(text.contains(part), "{text}");
        }
        for in_use in [Level::MOMENTS, Level::new(3)] {
            assert!(Level::MOMENTS.check("moments", in_use).is_ok());
        }
    }
}
