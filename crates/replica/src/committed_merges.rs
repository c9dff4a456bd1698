//! Record of the merges that a region committed as their target. It is kept beside the region's descriptor and
//! comes with its snapshots: a replica that came after a merge was decided knows the decision, too.
//!
//! ```text
//! record := since until count (source version)*          (varints)
//! ```

use stele_types::{RegionId, varint};

const SOURCES_MAX: usize = 32;

/// Merges that a region committed while it passed from one version to another. They are facts of its log:
/// a record stays true, also if it is not the newest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommittedMerges {
    /// Version as of which the record is complete.
    since: u64,
    /// Version up to which it is.
    until: u64,
    /// Sources taken over, each with the version that it gave the region, ascending.
    sources: Vec<(RegionId, u64)>,
}

impl CommittedMerges {
    /// Creates the record of a region of which the earlier merges are not known.
    pub fn since(version: u64) -> Self {
        Self { since: version, until: version, sources: Vec::new() }
    }

    /// Adds a change of the region's version, which took over `source` if there is one. Invariant: the record
    /// is complete between its two versions. Where it lacks a change, which a program of an earlier version
    /// applied or opening after a crash, it starts again.
    pub fn note(&mut self, before: u64, after: u64, source: Option<RegionId>) {
        if after <= self.until {
            return;
        }
        if self.until != before {
            *self = Self::since(before);
        }
        self.until = after;
        // bug replica.commit_not_recorded: let source = None;
        self.sources.extend(source.map(|source| (source, after)));
        if self.sources.len() > SOURCES_MAX {
            self.since = self.sources.remove(0).1;
        }
    }

    /// Returns whether the record proves that the region passed a version without the merge of `source`,
    /// which it could commit only at that version.
    pub(crate) fn has_refused(&self, source: RegionId, version: u64) -> bool {
        let is_complete = self.since <= version;
        // bug replica.incomplete_merges_are_proof: let is_complete = true;
        is_complete
            && version < self.until
            && self.sources.iter().all(|(known, _)| *known != source)
    }

    /// Appends the encoded record.
    pub fn put(&self, out: &mut Vec<u8>) {
        [self.since, self.until, self.sources.len() as u64]
            .into_iter()
            .chain(self.sources.iter().flat_map(|(source, version)| [source.0, *version]))
            .for_each(|number| varint::put(out, number));
    }

    /// Takes a record from the front of `rest`; `None` if it is cut short or too long.
    pub fn take(rest: &mut &[u8]) -> Option<Self> {
        let (since, until) = (varint::take(rest)?, varint::take(rest)?);
        let count = varint::take(rest).filter(|count| *count <= SOURCES_MAX as u64)?;
        let sources =
            (0..count).map(|_| Some((RegionId(varint::take(rest)?), varint::take(rest)?)));
        Some(Self { since, until, sources: sources.collect::<Option<_>>()? })
    }

    /// Decodes a whole record.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        Self::take(&mut bytes).filter(|_| bytes.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: RegionId = RegionId(7);

    /// Record of changes: the versions before and after each, and its source.
    fn record(since: u64, changes: &[(u64, u64, Option<u64>)]) -> CommittedMerges {
        let mut record = CommittedMerges::since(since);
        let ids = |source: Option<u64>| source.map(RegionId);
        changes
            .iter()
            .for_each(|(before, after, source)| record.note(*before, *after, ids(*source)));
        record
    }

    #[test]
    fn only_a_complete_record_beyond_the_version_and_without_the_source_is_proof() {
        // The merge may be committed at version 5.
        let rows: [(&str, CommittedMerges, bool); 8] = [
            ("nothing known", record(5, &[]), false),
            ("a split", record(5, &[(5, 6, None)]), true),
            ("a split, and one before", record(3, &[(3, 5, None), (5, 7, None)]), true),
            ("the merge", record(5, &[(5, 9, Some(7))]), false),
            ("the merge, and a split", record(5, &[(5, 9, Some(7)), (9, 10, None)]), false),
            ("another merge", record(5, &[(5, 9, Some(8))]), true),
            ("it began later", record(6, &[(6, 7, None)]), false),
            ("a change is missing", record(3, &[(3, 4, None), (6, 7, None)]), false),
        ];
        for (name, record, is_proof) in rows {
            assert_eq!(record.has_refused(SOURCE, 5), is_proof, "{name}");
        }
    }

    #[test]
    fn a_change_that_the_record_has_is_not_added_again() {
        let known = record(3, &[(3, 5, Some(8)), (5, 6, None)]);
        let mut again = known.clone();
        again.note(3, 5, Some(SOURCE));
        assert_eq!(again, known);
    }

    #[test]
    fn the_oldest_of_too_many_merges_is_dropped_and_the_record_is_complete_from_it_on() {
        let changes: Vec<_> = (0..40).map(|at| (at, at + 1, Some(100 + at))).collect();
        let record = record(0, &changes);
        assert_eq!((record.since, record.until, record.sources.len()), (8, 40, SOURCES_MAX));
        assert_eq!(record.sources[0], (RegionId(108), 9));
        assert!(!record.has_refused(SOURCE, 7) && record.has_refused(SOURCE, 8));
    }

    #[test]
    fn a_record_survives_the_round_trip_and_every_cut_is_refused() {
        let record = record(1 << 40, &[(1 << 40, 1 << 41, Some(300)), (1 << 41, 1 << 42, None)]);
        let mut bytes = Vec::new();
        record.put(&mut bytes);
        assert_eq!(CommittedMerges::decode(&bytes), Some(record));
        (0..bytes.len()).for_each(|cut| assert_eq!(CommittedMerges::decode(&bytes[..cut]), None));
        assert_eq!(CommittedMerges::decode(&[&bytes[..], b"x"].concat()), None);
        assert_eq!(CommittedMerges::decode(&[0, 0, SOURCES_MAX as u8 + 1]), None);
    }
}
