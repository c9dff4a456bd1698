//! One reader of a region's log: what it gets of each committed entry, in the order of the log.
//!
//! The owner reads the entries, sends what [`LogFollower::step`] returns, and says when to go on.

mod followed;
#[cfg(test)]
mod tests;

pub use followed::{FollowedRegions, KEPT_NANOS, StreamId};

use bytes::Bytes;
use stele_replica::{RegionChange, region_change};
use stele_types::{
    ColumnFamily, Command, CommittedEntry, Error, KeyRange, LogIndex, Op, Region, RegionId,
    RegionPhase, Result, Term,
};

/// Payloads of the entries of one step, unless one entry has more.
pub const STEP_BYTES_MAX: usize = 256 << 10;

/// Returns the first entry for a reader that begins with a copy of the region as of its applied entry.
///
/// Invariant: a reader that begins with a region prepared for a merge gets the preparation. Otherwise it would
/// not learn which region takes the keys over.
/// Test: `a_reader_of_a_region_that_merges_begins_with_the_preparation`.
pub fn first_from_now(region: &Region, applied: LogIndex) -> LogIndex {
    let next = applied.next();
    let RegionPhase::Merging { prepared, .. } = region.phase else { return next };
    // bug node.follow_after_preparation: return next;
    prepared
}

/// What a reader of a region's log gets of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Index of the entry.
    pub index: LogIndex,
    /// Term of the entry.
    pub term: Term,
    /// Writes with keys of the reader, in order. Empty for an entry with a change.
    pub writes: Vec<FollowedWrite>,
    /// Change of the region's keys, whatever the keys of the reader.
    pub change: Option<RegionChange>,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedWrite {
    /// Column family of the key.
    pub family: ColumnFamily,
    /// User key; of a range: its first key.
    pub key: Bytes,
    /// What happens to it.
    pub kind: WriteKind,
}

/// Kind of a [`FollowedWrite`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// Sets the key.
    Put {
        /// The value; it shares the bytes of the entry.
        value: Bytes,
        /// Expiry in Unix seconds; 0 for none.
        expires_at_s: u64,
    },
    /// Removes the key.
    Delete,
    /// Removes the keys before this one; empty: no end.
    DeleteRange(Bytes),
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Entries were read. Those that concern none of the keys are left out.
    Read(Vec<Followed>),
    /// No further entry is known to be committed.
    UpToDate,
    /// The next entry is no longer in this store.
    TooOld,
}

/// Reader of one region's log from an index on, for the writes to some keys.
#[derive(Clone, Debug)]
pub struct LogFollower {
    region: RegionId,
    keys: KeyRange,
    /// The engine's keys of `keys`, by family.
    engine_keys: [(ColumnFamily, KeyRange); ColumnFamily::ALL.len()],
    next: LogIndex,
}

impl LogFollower {
    /// Creates a reader of the writes to `keys` from the entry `next` on.
    pub fn new(region: RegionId, keys: KeyRange, next: LogIndex) -> Self {
        let engine_keys = ColumnFamily::ALL.map(|family| (family, family.engine_range(&keys)));
        Self { region, keys, engine_keys, next }
    }

    /// Returns the index of the next entry.
    pub fn next_index(&self) -> LogIndex {
        self.next
    }

    /// Returns the region of the log.
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// Returns the keys of the reader.
    pub fn keys(&self) -> &KeyRange {
        &self.keys
    }

    /// Reads the next entries. `read` returns committed entries from the next one on, with payloads of at
    /// most so many bytes or one entry: none if no further one is known to be committed, `None` if the
    /// next one is gone. Fails with `Invalid` at a gap or at an entry that is not a command, and as `read` does.
    ///
    /// Invariant: entries are passed on in the order of their indexes, each once, none left out.
    /// Tests: `a_follower_gets_each_write_to_its_keys_once_in_order`, `a_gap_in_a_log_is_not_passed_over`.
    pub fn step(
        &mut self,
        read: impl FnOnce(usize) -> Result<Option<Vec<CommittedEntry>>>,
    ) -> Result<Step> {
        let Some(entries) = read(STEP_BYTES_MAX)? else { return Ok(Step::TooOld) };
        if entries.is_empty() {
            return Ok(Step::UpToDate);
        }
        let (mut next, mut followed) = (self.next, Vec::new());
        for entry in entries {
            // bug node.follow_over_gaps: `entry.index != next` is `false`
            if entry.index != next {
                let detail = format!("entry {} after entry {}", entry.index, self.next);
                return Err(self.invalid(&detail));
            }
            next = next.next();
            followed.extend(self.followed(&entry)?);
        }
        // bug node.follow_repeats: let next = LogIndex(next.0 - 1);
        self.next = next;
        Ok(Step::Read(followed))
    }

    /// Returns what the reader gets of an entry, if it concerns the reader.
    fn followed(&self, entry: &CommittedEntry) -> Result<Option<Followed>> {
        if !entry.is_command {
            return Ok(None);
        }
        let (index, term) = (entry.index, entry.term);
        // Invariant: changes of a region are passed on whatever the keys of the reader, which then follows
        // other regions.
        // Test: `a_follower_gets_changes_of_the_region_whatever_its_keys`.
        let change = region_change(&entry.payload);
        // bug node.follow_without_changes: let change = None;
        if change.is_some() {
            return Ok(Some(Followed { index, term, writes: Vec::new(), change }));
        }
        let mut writes = Vec::new();
        let is_whole = Command::each_op_of(&entry.payload, |op| {
            self.add_writes(&op, &entry.payload, &mut writes);
        });
        if !is_whole {
            return Err(self.invalid(&format!("entry {index} is not a command")));
        }
        let is_empty = writes.is_empty();
        Ok((!is_empty).then_some(Followed { index, term, writes, change: None }))
    }

    fn add_writes(&self, op: &Op<'_>, payload: &Bytes, writes: &mut Vec<FollowedWrite>) {
        for (family, keys) in &self.engine_keys {
            let family = *family;
            match op {
                Op::Put { key, value, expires_at_s, .. } if keys.contains(key) => {
                    let value = payload.slice_ref(value);
                    let kind = WriteKind::Put { value, expires_at_s: *expires_at_s };
                    writes.extend(write_of(family, key, kind, payload));
                }
                Op::Delete { key } if keys.contains(key) => {
                    writes.extend(write_of(family, key, WriteKind::Delete, payload));
                }
                Op::DeleteRange { start, end } => {
                    let range = KeyRange::new(payload.slice_ref(start), payload.slice_ref(end));
                    // bug node.follow_whole_ranges: let keys = &family.engine_range(&KeyRange::all());
                    let part = range.common(keys);
                    writes.extend(part.and_then(|part| range_of(family, &part)));
                }
                Op::Put { .. } | Op::Delete { .. } => {}
            }
        }
    }

    fn invalid(&self, detail: &str) -> Error {
        Error::invalid(format!("log of region {}: {detail}", self.region))
    }
}

fn write_of(
    family: ColumnFamily,
    key: &[u8],
    kind: WriteKind,
    payload: &Bytes,
) -> Option<FollowedWrite> {
    let key = payload.slice_ref(key.get(1..)?);
    Some(FollowedWrite { family, key, kind })
}

/// Returns the delete of a range of engine keys of one family.
fn range_of(family: ColumnFamily, part: &KeyRange) -> Option<FollowedWrite> {
    let user_key = |key: &Bytes| (!key.is_empty()).then(|| key.slice(1..));
    // Nothing but its first byte is left of the end of the family's space.
    let (key, end) = (user_key(&part.start)?, user_key(&part.end)?);
    Some(FollowedWrite { family, key, kind: WriteKind::DeleteRange(end) })
}
