//! Snapshots of a region from another replica: pairs are staged, then installed at once.

use crate::Pair;
use stele_types::{Error, KeyRange, LogIndex, RegionId, Result, Term};

/// Installation of snapshots.
pub trait Snapshots: Send + Sync {
    /// Staged pairs of a snapshot, not yet readable. Dropping it removes what it wrote; after a
    /// crash the next open does.
    type Ingest: Send + 'static;

    /// Begins to stage pairs for `ranges` (ascending, disjoint). Callable from any thread; any
    /// number at a time.
    fn begin_ingest(&self, ranges: Vec<KeyRange>) -> Result<Self::Ingest>;

    /// Stages pairs: keys ascend over all ranges and calls, and lie in a range. Callable from any
    /// thread; no other call waits for it. After an error the ingest cannot be installed.
    fn receive(&self, ingest: &mut Self::Ingest, pairs: Vec<Pair>) -> Result<()>;

    /// Replaces the contents of the ranges by the staged pairs and starts the region's log after
    /// (`index`, `term`): completely or, after a crash or an error, not at all. Values were written
    /// once, to sorted value files, never through the log. Checkpoints everything applied before.
    fn install(&self, region: RegionId, at: (LogIndex, Term), ingest: Self::Ingest) -> Result<()>;
}

/// Fails with `Invalid` unless the ranges of a snapshot ascend, are disjoint and not empty.
pub fn check_ranges(ranges: &[KeyRange]) -> Result<()> {
    let apart = |pair: &[KeyRange]| match pair {
        [low, high] => !low.end.is_empty() && low.end <= high.start,
        _ => true,
    };
    if ranges.is_empty() || ranges.iter().any(KeyRange::is_empty) || !ranges.windows(2).all(apart) {
        return Err(Error::invalid("ranges to replace must ascend, be disjoint and not be empty"));
    }
    Ok(())
}
