//! Merge of the region into its neighbour, or of a neighbour into it: the entries that must not be
//! committed early, and what is known of the outcome.

use crate::admin::{self, Change};
use crate::messages::{MergeAnswer, Verdict};
use std::collections::BTreeSet;
use stele_types::{
    EntryRecord, LogIndex, Region, RegionEpoch, RegionId, RegionPhase, StoreId, Term,
};

#[derive(Debug, Default)]
pub(crate) struct Merge {
    /// Indexes of commit-merge entries that are not applied.
    unapplied: BTreeSet<LogIndex>,
    is_confirmed: bool,
    /// Another store reported that the target, after the merge, has no replica on this store.
    has_target_left: bool,
    answers: Answers,
}

#[derive(Debug, Default)]
struct Answers {
    prepared: (LogIndex, Term),
    is_refused: bool,
    lost_on: BTreeSet<StoreId>,
    /// Stores of the target's members, as far as other stores know.
    stores: BTreeSet<StoreId>,
    /// Monotonic nanoseconds of the last question, and whether it requested a refusal.
    asked: Option<(u64, bool)>,
}

const STORES_MAX: usize = 64;
/// Nanoseconds between two questions to all stores.
const ASK_INTERVAL_NANOS: u64 = 100_000_000;

impl Merge {
    /// Returns the state after opening a log with these commit-merge entries, which are not
    /// applied.
    pub(crate) fn new(unapplied: BTreeSet<LogIndex>) -> Self {
        Self { unapplied, ..Self::default() }
    }

    /// Records the commit-merge entries of a ready before any commit index covers them. Its first
    /// entry replaces all from its index on.
    pub(crate) fn note_entries(&mut self, entries: &[EntryRecord]) {
        let Some(first) = entries.first() else { return };
        self.unapplied.retain(|index| *index < first.index);
        let merges = entries.iter().filter(|entry| is_commit_merge(&entry.payload));
        self.unapplied.extend(merges.map(|entry| entry.index));
    }

    /// Returns the highest commit index that may be made durable. Invariant: no durable commit
    /// index covers a commit-merge entry that is not applied.
    pub(crate) fn commit_ceiling(&self, applied: LogIndex) -> LogIndex {
        // bug replica.merge_commit_early: return LogIndex(u64::MAX);
        let next_merge = self.unapplied.range(applied.next()..).next();
        LogIndex(next_merge.map_or(u64::MAX, |index| index.0 - 1))
    }

    /// Handles a report that another store has a tombstone of `source`, this region, at `version`.
    /// If that version is after the preparation, the target committed the merge. `left` is the
    /// version of the target as of which it has no replica here. Returns whether it did.
    pub(crate) fn on_merged(
        &mut self,
        source: &Region,
        reported: (LogIndex, Term),
        version: u64,
        left: Option<u64>,
    ) -> bool {
        let RegionPhase::Merging { prepared, term, target_epoch, .. } = source.phase else {
            return false;
        };
        if (prepared, term) != reported || version <= source.epoch.version {
            return false;
        }
        self.is_confirmed = true;
        // Invariant: only a version after the merge counts. An earlier replica of the target may be
        // on its way here, and needs this replica.
        let merged = source.epoch.version.max(target_epoch.version) + 1;
        // bug replica.target_left_early: `left >= merged` is `true`
        let is_after = |left: u64| left >= merged;
        self.has_target_left |= left.is_some_and(is_after);
        true
    }

    /// Handles a store's answer to the question for the outcome of the merge of `source`, this
    /// region. Invariant: an answer counts only for the preparation that it names. An earlier one may
    /// have been refused by a target that has not decided the present one.
    pub(crate) fn note_answer(&mut self, source: &Region, from: StoreId, answer: &MergeAnswer) {
        let RegionPhase::Merging { prepared, term, .. } = source.phase else { return };
        let is_other = answer.prepared != (prepared, term);
        // bug replica.rollback_of_another_preparation: never
        if is_other {
            return;
        }
        let answers = self.answers_of((prepared, term));
        if answers.stores.len() + answer.stores.len() <= STORES_MAX {
            answers.stores.extend(&answer.stores);
        }
        match answer.verdict {
            Verdict::Refused => answers.is_refused = true,
            Verdict::TargetLost => _ = answers.lost_on.insert(from),
            Verdict::Unknown => _ = answers.lost_on.remove(&from),
        }
    }

    /// Returns whether the answers prove that the target of `source`, this region, refused the merge,
    /// or that no replica with its log is left.
    pub(crate) fn is_refused(&mut self, source: &Region) -> bool {
        let RegionPhase::Merging { prepared, term, .. } = source.phase else { return false };
        let answers = self.answers_of((prepared, term));
        let is_lost = |store| answers.lost_on.contains(&store);
        answers.is_refused || source.peers.iter().all(|peer| is_lost(peer.store))
    }

    pub(crate) fn target_stores(&self) -> &BTreeSet<StoreId> {
        &self.answers.stores
    }

    /// Returns whether to ask the other stores now for the outcome of the merge of `source`, this
    /// region, and counts it as asked. Invariant: a rollback that is requested again and again, once
    /// for each answer perhaps, sends no more questions than time allows.
    pub(crate) fn is_question_due(
        &mut self,
        source: &Region,
        refuse: bool,
        now_nanos: u64,
    ) -> bool {
        let RegionPhase::Merging { prepared, term, .. } = source.phase else { return false };
        let answers = self.answers_of((prepared, term));
        let is_recent = |(at_nanos, refused): (u64, bool)| {
            now_nanos.saturating_sub(at_nanos) < ASK_INTERVAL_NANOS && (refused || !refuse)
        };
        // bug replica.asks_each_time: never
        if answers.asked.is_some_and(is_recent) {
            return false;
        }
        answers.asked = Some((now_nanos, refuse));
        true
    }

    fn answers_of(&mut self, prepared: (LogIndex, Term)) -> &mut Answers {
        if self.answers.prepared != prepared {
            self.answers = Answers { prepared, ..Answers::default() };
        }
        &mut self.answers
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// Returns whether no region here needs `source`, this region: its target committed the merge,
    /// and the target's replica here learned it from a snapshot, or was removed. A target that is
    /// behind will need it. `descriptor` returns the target's descriptor or tombstone here.
    pub(crate) fn has_ended(
        &self,
        source: &Region,
        is_target_here: impl FnOnce(RegionId) -> bool,
        descriptor: impl FnOnce(RegionId) -> Option<Region>,
    ) -> bool {
        let RegionPhase::Merging { target, target_epoch, .. } = source.phase else { return false };
        let owns = |now: &Region| {
            now.phase != RegionPhase::Tombstone
                && now.epoch.version > source.epoch.version
                && now.range.overlaps(&source.range)
        };
        let has_merged =
            |now: Region| owns(&now) || self.is_confirmed && has_passed(&now, target_epoch);
        self.has_target_left && !is_target_here(target)
            || descriptor(target).is_some_and(has_merged)
    }
}

/// Returns whether an entry takes over a source.
pub(crate) fn is_commit_merge(payload: &[u8]) -> bool {
    admin::is_admin(payload)
        && matches!(admin::parse(payload), Some((record, _))
            if matches!(record.change, Change::CommitMerge { .. }))
}

/// Returns whether a region that is known to have committed the merge has done so after `epoch`, at
/// which it may: a tombstone of that same epoch is of a replica removed by a later change.
fn has_passed(now: &Region, epoch: RegionEpoch) -> bool {
    let reached =
        now.epoch.conf_version >= epoch.conf_version && now.epoch.version >= epoch.version;
    reached && (now.epoch != epoch || now.phase == RegionPhase::Tombstone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::AdminRecord;
    use bytes::Bytes;
    use stele_types::KeyRange;

    const PREPARED: (LogIndex, Term) = (LogIndex(8), Term(2));

    fn region(version: u64, phase: RegionPhase) -> Region {
        let epoch = RegionEpoch { conf_version: 1, version };
        Region { epoch, phase, range: KeyRange::all(), ..Region::default() }
    }

    /// Source of version 3, prepared for a target of version 5.
    fn source() -> Region {
        let target_epoch = RegionEpoch { conf_version: 1, version: 5 };
        let (prepared, term) = PREPARED;
        region(3, RegionPhase::Merging { target: RegionId(7), prepared, term, target_epoch })
    }

    #[test]
    fn no_commit_index_covers_a_merge_that_is_not_applied() {
        let change = Change::CommitMerge { source: RegionId(7), prepared: PREPARED };
        let record = AdminRecord { region: RegionId(2), change };
        let merge = admin::command(&record, &[]).unwrap().bytes().clone();
        let entries = |from: u64, payloads: &[&Bytes]| -> Vec<EntryRecord> {
            let entry = |(index, payload): (u64, &&Bytes)| EntryRecord {
                region: RegionId(2),
                term: Term(1),
                index: LogIndex(index),
                is_command: true,
                payload: (*payload).clone(),
            };
            (from..).zip(payloads).map(entry).collect()
        };
        let put = Bytes::from_static(b"put");
        let with_two = [entries(4, &[&put, &merge, &put, &merge])];
        let replaced = [entries(4, &[&put, &merge]), entries(5, &[&put])];
        // Entries in the log, applied index, highest commit index.
        let rows: [(&[Vec<EntryRecord>], u64, u64); 5] = [
            (&[], 3, u64::MAX),
            (&with_two, 3, 4),
            (&with_two, 5, 6),
            (&with_two, 7, u64::MAX),
            (&replaced, 3, u64::MAX),
        ];
        for (readies, applied, ceiling) in rows {
            let mut state = Merge::default();
            readies.iter().for_each(|entries| state.note_entries(entries));
            assert_eq!(state.commit_ceiling(LogIndex(applied)), LogIndex(ceiling), "{applied}");
        }
    }

    #[test]
    fn the_other_stores_are_asked_for_an_outcome_at_intervals_and_at_once_for_a_refusal() {
        const INTERVAL: u64 = ASK_INTERVAL_NANOS;
        let (source, mut merge) = (source(), Merge::default());
        // Refusal requested, nanoseconds, whether the question is due.
        let rows = [
            (false, 5, true),
            (false, 6, false),
            (true, 7, true),
            (false, 8, false),
            (true, 6 + INTERVAL, false),
            (false, 7 + INTERVAL, true),
        ];
        for (refuse, now_nanos, is_due) in rows {
            let found = merge.is_question_due(&source, refuse, now_nanos);
            assert_eq!(found, is_due, "{refuse} at {now_nanos}");
        }
        let later = RegionPhase::Merging {
            target: RegionId(7),
            prepared: LogIndex(9),
            term: Term(2),
            target_epoch: RegionEpoch { conf_version: 1, version: 5 },
        };
        assert!(merge.is_question_due(&region(3, later), false, 8 + INTERVAL));
    }

    #[test]
    fn an_answer_to_an_earlier_preparation_refuses_no_later_one() {
        let peers = (1..=2).map(|store| stele_types::Peer {
            store: StoreId(store),
            ..stele_types::Peer::default()
        });
        let source = Region { peers: peers.collect(), ..source() };
        let earlier = (LogIndex(7), Term(2));
        use Verdict::{Refused, TargetLost, Unknown};
        // Answers (store, preparation, verdict); whether they prove the refusal.
        type Said = (u64, (LogIndex, Term), Verdict);
        let rows: [(&[Said], bool); 7] = [
            (&[], false),
            (&[(1, PREPARED, Refused)], true),
            (&[(1, earlier, Refused)], false),
            (&[(1, earlier, TargetLost), (2, PREPARED, TargetLost)], false),
            (&[(1, PREPARED, TargetLost), (2, PREPARED, TargetLost)], true),
            (&[(1, PREPARED, TargetLost), (2, PREPARED, Unknown)], false),
            (&[(1, PREPARED, Refused), (1, PREPARED, Unknown)], true),
        ];
        for (answers, expected) in rows {
            let mut state = Merge::default();
            for (store, prepared, verdict) in answers {
                let (prepared, verdict, stores) = (*prepared, *verdict, vec![StoreId(9)]);
                let answer = MergeAnswer { source: source.id, prepared, verdict, stores };
                state.note_answer(&source, StoreId(*store), &answer);
            }
            assert_eq!(state.is_refused(&source), expected, "{answers:?}");
        }
    }

    #[test]
    fn a_source_ends_once_the_target_committed_the_merge_and_needs_it_no_longer() {
        let other = (LogIndex(9), Term(2));
        let behind = || Some(region(5, RegionPhase::Normal));
        let merged = || Some(region(6, RegionPhase::Normal));
        let removed = || Some(region(6, RegionPhase::Tombstone));
        let away = || Some(region(3, RegionPhase::Tombstone));
        // Report (preparation, version, version without the target), target here, its descriptor.
        let rows = [
            ("no report, target behind", None, true, away(), false),
            ("no report, target owns the keys", None, true, merged(), true),
            ("report, target has applied", Some((PREPARED, 4, None)), true, removed(), true),
            ("report, target behind", Some((PREPARED, 4, None)), true, away(), false),
            ("report of another preparation", Some((other, 4, Some(6))), false, None, false),
            ("report of the preparation only", Some((PREPARED, 3, Some(6))), false, None, false),
            ("target left after the merge", Some((PREPARED, 4, Some(6))), false, None, true),
            ("target left before the merge", Some((PREPARED, 4, Some(5))), false, None, false),
            ("target left, and is back", Some((PREPARED, 4, Some(6))), true, away(), false),
        ];
        for (name, report, is_here, descriptor, expected) in rows {
            let mut state = Merge::default();
            if let Some((prepared, version, left)) = report {
                state.on_merged(&source(), prepared, version, left);
            }
            assert_eq!(state.has_ended(&source(), |_| is_here, |_| descriptor), expected, "{name}");
        }
        let state = Merge::default();
        let normal = region(3, RegionPhase::Normal);
        assert!(!state.has_ended(&normal, |_| false, |_| behind()), "it merges into no region");
    }
}
