//! The pipeline that every write of a store passes: group commit, the records of all regions in one write and one
//! sync.

use crate::output::{Append, Ticket};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stele_types::{HardState, LogBatch, LogIndex, Mark, Record, RegionId, Term};

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyInBatch {
    pub region: RegionId,
    /// Number of the replica: a replaced replica's batches do not concern its successor.
    pub incarnation: u64,
    pub number: u64,
}

/// Batch in flight and batch being filled: the middle of the pipeline that every write of a store
/// passes.
///
/// The owner of the store calls [`RaftStore::step`] and [`RaftStore::poll`] on one thread, the *loop*.
/// The batch is written by the loop or by a thread beside it.
///
/// | step | function | on |
/// |---|---|---|
/// | 1 a request joins the queue of its region | `RaftStore::step`, `Replica::enqueue` | loop, no disk |
/// | 2 all waiting requests of a region become one proposal | `Replica::propose_waiting`, `RaftGroup::propose` | loop, in `poll` |
/// | 3 Raft hands out a ready: entries, term and vote, messages | `RaftGroup::take_ready` | loop, in `poll` |
/// | 4 its records join those of all other regions | `Replica::write_records`, [`GroupCommit::push`], [`GroupCommit::note_ready`] | loop, in `poll` |
/// | 5 messages leave, or are held | `Replica::handle_ready`, `Durability::release_or_hold`, `Outputs::messages` | loop; the transport sends |
/// | 6 one batch is handed out | [`GroupCommit::hand_out`], `Outputs::append` | loop, end of `poll` |
/// | 7 one write and one sync | `StorageEngine::append` | loop, or a thread beside it |
/// | 8 the batch is persisted: held messages leave | `Input::Appended`, [`GroupCommit::finish`], `Replica::ready_durable` | loop, start of `poll` |
/// | 9 a quorum commits | `RaftGroup::note_durable` for this disk, `RaftGroup::step` for the others | loop |
/// | 10 committed entries that are durable here are applied in order, all regions together | `Replica::apply_committed`, `StorageEngine::apply_all` | loop, in `poll` |
/// | 11 committed entries are visible, and the client is answered | `Replica::publish`, `Replica::answer_committed`, `Outputs::replies` | loop; the owner sends |
///
/// What may overlap: step 7 of one batch, on this store and on the followers, with steps 1 to 5 and
/// 9 to 11 of others. Requests that arrive during a sync share the next batch. What may not: two
/// batches in step 7, so that steps 7 and 8 keep the order of the readies; step 5 of a promise with
/// step 7 of its batch.
///
/// Invariants, with the step that keeps each:
/// - 2: nothing is proposed after a change of the range or the phase that is not applied
///   (`Changes::is_barred`).
/// - 4: records of one region keep their order, and a batch is written whole or not at all. Records
///   of several regions that must change together are pushed in one poll.
/// - 5: a message that makes a promise (a vote, an acknowledgement, a term) leaves after step 8 of
///   its ready. A leader's entries may leave before, if its term is durable.
/// - 6: a batch that found no room is handed out again. Replicas with puts in it start again from
///   their durable state instead, as after a crash; nothing else of it is lost.
/// - 8: a batch of a replica that was replaced does not concern its successor (`ReadyInBatch::incarnation`).
/// - 9: a disk counts for the quorum after its sync (`Durability::is_durable`).
/// - 10: applied <= committed, and applied <= persisted here (`RaftGroup::next_to_apply`).
/// - 11: acknowledged => on the disks of a quorum, and visible here (`Replica::publish`). Without commit
///   return, and for administrative entries: applied here.
///
/// [`RaftStore::step`]: super::RaftStore::step
/// [`RaftStore::poll`]: super::RaftStore::poll
#[derive(Default)]
pub(crate) struct GroupCommit {
    records: Vec<Record>,
    readies: Vec<ReadyInBatch>,
    /// Hard states of which only the commit index changed: they wait for the next batch and cost no
    /// sync of their own.
    piggybacked: BTreeMap<RegionId, HardState>,
    /// Truncations, which wait for the next batch too.
    truncations: BTreeMap<RegionId, Mark>,
    /// The truncations wait no longer.
    truncates_now: bool,
    /// Bytes of entries that are not written.
    entry_bytes: u64,
    in_flight: Option<InFlight>,
    last_ticket: u64,
}

pub(crate) struct InFlight {
    pub append: Append,
    /// Readies with records in the batch, in order.
    pub readies: Vec<ReadyInBatch>,
    /// Monotonic nanoseconds at which it was first handed out.
    pub began_nanos: u64,
    /// Monotonic nanoseconds at which to hand it out again after a full device.
    retry_at: Option<u64>,
}

impl GroupCommit {
    /// Adds a record. Records of one region keep their order.
    pub(crate) fn push(&mut self, record: Record) {
        match &record {
            Record::HardState(region, _) => {
                self.piggybacked.remove(region);
            }
            Record::Mark(region, Mark::Destroy) => self.drop_all_of(*region),
            _ => {}
        }
        self.entry_bytes += entry_bytes(&record);
        self.records.push(record);
    }

    /// Ends a region's log of which the entries up to `applied.commit` are applied here.
    ///
    /// Invariant: a log that ends says up to where its entries are committed. Otherwise a reader could not
    /// tell the last ones from entries that others replaced. What is applied is durable: later entries may
    /// not have been written yet, and others may be at their place.
    /// Test: `the_end_of_a_log_says_what_of_it_was_applied`.
    pub(crate) fn push_end(&mut self, region: RegionId, applied: HardState) {
        self.drop_all_of(region);
        // bug replica.end_without_commit: skip
        self.records.push(Record::HardState(region, applied));
        self.records.push(Record::Mark(region, Mark::Destroy));
    }

    fn drop_all_of(&mut self, ended: RegionId) {
        self.drop_piggybacked(ended);
        self.drop_waiting(|region| region == ended);
    }

    pub(crate) fn entry_bytes(&self) -> u64 {
        self.entry_bytes
    }

    fn drop_waiting(&mut self, is_dropped: impl Fn(RegionId) -> bool) {
        let entry_bytes_left = &mut self.entry_bytes;
        self.records.retain(|record| {
            let stays = !is_dropped(region_of(record));
            if !stays {
                *entry_bytes_left = entry_bytes_left.saturating_sub(entry_bytes(record));
            }
            stays
        });
    }

    /// Adds a hard state of which only the commit index changed; it waits for the next batch.
    pub(crate) fn piggyback(&mut self, region: RegionId, hard_state: HardState) {
        self.piggybacked.insert(region, hard_state);
    }

    /// Adds a truncation; it waits for the next batch.
    pub(crate) fn piggyback_truncation(&mut self, region: RegionId, index: LogIndex, term: Term) {
        self.truncations.insert(region, Mark::TruncatePrefix(index, term));
    }

    /// Lets the truncations added so far wait for no other record.
    pub(crate) fn write_truncations(&mut self) {
        self.truncates_now = true;
    }

    pub(crate) fn drop_piggybacked(&mut self, region: RegionId) {
        self.piggybacked.remove(&region);
        self.truncations.remove(&region);
    }

    pub(crate) fn note_ready(&mut self, ready: ReadyInBatch) {
        self.readies.push(ready);
    }

    /// Hands out a batch, if there are records and none is in flight. Hands out the batch in flight
    /// again, if it found no room and its pause is over.
    pub(crate) fn hand_out(&mut self, now_nanos: u64) -> Option<Append> {
        if let Some(under_way) = &mut self.in_flight {
            under_way.retry_at.take_if(|at| *at <= now_nanos)?;
            return Some(under_way.append.clone());
        }
        let truncates = std::mem::take(&mut self.truncates_now) && !self.truncations.is_empty();
        if self.records.is_empty() && !truncates {
            return None;
        }
        let mut records = std::mem::take(&mut self.records);
        let piggybacked = std::mem::take(&mut self.piggybacked).into_iter();
        records.extend(piggybacked.map(|(id, state)| Record::HardState(id, state)));
        let truncations = std::mem::take(&mut self.truncations).into_iter();
        records.extend(truncations.map(|(id, mark)| Record::Mark(id, mark)));
        self.last_ticket += 1;
        let append =
            Append { ticket: Ticket(self.last_ticket), batch: Arc::new(LogBatch { records }) };
        let readies = std::mem::take(&mut self.readies);
        let (began_nanos, retry_at) = (now_nanos, None);
        self.in_flight = Some(InFlight { append: append.clone(), readies, began_nanos, retry_at });
        Some(append)
    }

    /// Ends the batch in flight: it is durable.
    pub(crate) fn finish(&mut self, ticket: Ticket) -> Option<InFlight> {
        let done = self.in_flight.take_if(|under_way| under_way.append.ticket == ticket)?;
        let bytes: u64 = done.append.batch.records.iter().map(entry_bytes).sum();
        self.entry_bytes = self.entry_bytes.saturating_sub(bytes);
        Some(done)
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.in_flight.is_some()
    }

    pub(crate) fn under_way(&self, ticket: Ticket) -> Option<&InFlight> {
        self.in_flight.as_ref().filter(|under_way| under_way.append.ticket == ticket)
    }

    /// Schedules the batch to be handed out again: the device had no room. Nothing of it is lost.
    pub(crate) fn retry(&mut self, ticket: Ticket, at_nanos: u64) {
        if let Some(under_way) = self.in_flight.as_mut().filter(|it| it.append.ticket == ticket) {
            under_way.retry_at = Some(at_nanos);
        }
    }

    /// Drops all records of some replicas, in flight or not: the device had no room. What is left of
    /// the batch in flight is handed out again at once, as another batch.
    ///
    /// Invariant: the log of a replica loses the end of what was not written, never a part before
    /// that: nothing that follows a dropped record stays.
    pub(crate) fn give_up(&mut self, regions: &BTreeSet<RegionId>) {
        self.drop_waiting(|region| regions.contains(&region));
        self.readies.retain(|ready| !regions.contains(&ready.region));
        regions.iter().for_each(|region| self.drop_piggybacked(*region));
        let Some(under_way) = self.in_flight.take() else { return };
        let InFlight { append, mut readies, began_nanos, .. } = under_way;
        let is_kept = |record: &&Record| !regions.contains(&region_of(record));
        let (kept, dropped): (Vec<_>, Vec<_>) = append.batch.records.iter().partition(is_kept);
        let bytes: u64 = dropped.into_iter().map(entry_bytes).sum();
        self.entry_bytes = self.entry_bytes.saturating_sub(bytes);
        readies.retain(|ready| !regions.contains(&ready.region));
        let records: Vec<Record> = kept.into_iter().cloned().collect();
        if records.is_empty() {
            return;
        }
        self.last_ticket += 1;
        let append =
            Append { ticket: Ticket(self.last_ticket), batch: Arc::new(LogBatch { records }) };
        self.in_flight = Some(InFlight { append, readies, began_nanos, retry_at: Some(0) });
    }

    /// Returns whether a record of the region is in flight or waits for the next batch.
    pub(crate) fn has_records_of(&self, region: RegionId) -> bool {
        let under_way = self.in_flight.iter().flat_map(|under_way| &under_way.append.batch.records);
        self.records.iter().chain(under_way).any(|record| region_of(record) == region)
    }

    /// Returns the monotonic nanoseconds at which a batch must be handed out again.
    pub(crate) fn retry_at(&self) -> Option<u64> {
        self.in_flight.as_ref().and_then(|under_way| under_way.retry_at)
    }
}

fn entry_bytes(record: &Record) -> u64 {
    match record {
        Record::Entry(entry) => entry.payload.len() as u64,
        Record::HardState(..) | Record::Mark(..) => 0,
    }
}

fn region_of(record: &Record) -> RegionId {
    match record {
        Record::Entry(entry) => entry.region,
        Record::HardState(region, _) | Record::Mark(region, _) => *region,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hard_state(commit: u64) -> HardState {
        HardState { term: Term(1), vote: 1, commit: LogIndex(commit) }
    }

    #[test]
    fn a_commit_index_alone_waits_for_a_batch_to_ride_on() {
        let mut batches = GroupCommit::default();
        batches.piggyback(RegionId(1), hard_state(5));
        assert!(batches.hand_out(0).is_none());
        batches.push(Record::HardState(RegionId(2), hard_state(1)));
        let append = batches.hand_out(0).unwrap();
        assert_eq!(append.batch.records.len(), 2);
        assert!(batches.finish(append.ticket).is_some());
        assert!(batches.hand_out(0).is_none());
    }

    #[test]
    fn one_batch_is_under_way_and_a_full_device_gets_the_same_again() {
        let mut batches = GroupCommit::default();
        batches.push(Record::HardState(RegionId(2), hard_state(1)));
        let first = batches.hand_out(0).unwrap();
        batches.push(Record::HardState(RegionId(3), hard_state(1)));
        assert!(batches.hand_out(1).is_none());
        batches.retry(first.ticket, 10);
        assert!(batches.hand_out(9).is_none());
        assert_eq!(batches.hand_out(10).unwrap().batch, first.batch);
        assert!(batches.hand_out(11).is_none());
        assert!(batches.finish(first.ticket).is_some());
        assert_eq!(batches.hand_out(12).unwrap().batch.records.len(), 1);
    }

    #[test]
    fn nothing_of_a_region_follows_its_destruction() {
        let mut batches = GroupCommit::default();
        batches.push(Record::HardState(RegionId(2), hard_state(1)));
        batches.piggyback(RegionId(2), hard_state(2));
        batches.push(Record::Mark(RegionId(2), Mark::Destroy));
        let records = &batches.hand_out(0).unwrap().batch.records;
        assert_eq!(records[..], [Record::Mark(RegionId(2), Mark::Destroy)]);
    }

    #[test]
    fn the_end_of_a_log_says_what_of_it_was_applied() {
        let mut batches = GroupCommit::default();
        batches.push(Record::HardState(RegionId(2), hard_state(1)));
        batches.piggyback(RegionId(2), hard_state(5));
        batches.push_end(RegionId(2), hard_state(4));
        let records = &batches.hand_out(0).unwrap().batch.records;
        let expected = [
            Record::HardState(RegionId(2), hard_state(4)),
            Record::Mark(RegionId(2), Mark::Destroy),
        ];
        assert_eq!(records[..], expected);
    }
}
