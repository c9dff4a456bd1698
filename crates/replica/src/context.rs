//! State shared by all peers of a store, lent to the one that is working.

use crate::CommittedMerges;
use crate::input::{Now, RequestId};
use crate::journal::Journal;
use crate::log::Tails;
use crate::messages::Preparation;
use crate::options::Options;
use crate::output::{Done, Lookup, LookupId, Outputs, Rejection, Reply, Unknown};
use crate::peer::Skipped;
use crate::pipeline::GroupCommit;
use crate::reads::ReadGate;
use crate::stages::StageTimes;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use stele_storage::{PROGRAM_KEYS_MAX, RegionEntries, Space, StorageEngine};
use stele_types::{
    ClusterTime, LogIndex, Region, RegionEpoch, RegionId, StoreId, Term, TickMillis,
};

pub(crate) struct Context<E: StorageEngine> {
    pub engine: Arc<E>,
    pub options: Options,
    pub logger: slog::Logger,
    pub now: Now,
    /// Space of the device, as of the start of the poll.
    pub space: Space,
    pub out: Outputs<E>,
    pub batches: GroupCommit,
    /// Entries that the pass under way applies at its end, of each region at most once.
    pub runs: Vec<RegionEntries>,
    pub journal: Journal,
    pub readers: Arc<ReadGate>,
    pub times: Arc<StageTimes>,
    pub leases: bool,
    pub cluster_time: ClusterTime,
    /// Effects requested by peers; run while no peer is working.
    pub store_requests: Vec<StoreRequest>,
    /// Bytes of the pairs that look-ups found for modifications that are not proposed yet.
    pub found_bytes: u64,
    /// Bytes of entries in memory that are not applied, and of their effects, over all regions.
    pub tails: Tails,
    /// Bytes of received entries that are in no tail yet.
    pub received_bytes: u64,
    /// Bytes that they will have in a tail.
    pub received_tail_bytes: u64,
    /// Merge sources that are replicated up to the preparation on all their replicas.
    pub replicated_sources: BTreeMap<RegionId, (LogIndex, Term)>,
    /// Epochs between which regions changed by snapshots on this store.
    pub installed: BTreeMap<RegionId, Vec<Skipped>>,
    pub merges: BTreeMap<RegionId, CommittedMerges>,
    /// Epochs as of which regions no longer have their replica here, as other stores said. They are
    /// no state of a replica here, and not in its tombstone.
    pub gone: BTreeMap<RegionId, RegionEpoch>,
    /// Pauses for moments, ascending by the monotonic nanoseconds at which they end.
    pub pauses: VecDeque<(u64, RegionId)>,
    /// Unreachable stores, with the monotonic nanoseconds of the loss.
    pub unreachable: BTreeMap<StoreId, u64>,
    /// Tick that this store records in its identity.
    pub tick: Option<TickMillis>,
    read_index_rounds: u64,
    incarnations: u64,
    /// Lookups so far, and those without a result.
    lookups: u64,
    lookups_under_way: usize,
}

/// Two programs of the most keys.
const LOOKUPS_MAX: usize = 2 * PROGRAM_KEYS_MAX;

const GONE_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) enum StoreRequest {
    /// A split created this region; its log starts after the entry.
    Create {
        region: Region,
        after: (LogIndex, Term),
        campaign: bool,
    },
    /// The replica is removed from this store, once none of its entries is handed out. Its pairs are
    /// dropped, unless another region here owns them.
    Destroy(Region),
    /// The replica of this region has no leader, and asks whether it is still a member.
    AskElsewhere(RegionId),
    Schedule(RegionId),
    /// The source's log is committed up to its preparation, and its target waits for it.
    CommitSource {
        source: RegionId,
        prepared: (LogIndex, Term),
    },
    /// The target of a merge refuses it, if it leads here and nothing is decided.
    RefuseMerge(Preparation),
}

impl<E: StorageEngine> Context<E> {
    pub(crate) fn new(engine: Arc<E>, options: Options, logger: slog::Logger, now: Now) -> Self {
        Self {
            space: engine.space(),
            engine,
            leases: options.leases,
            cluster_time: ClusterTime::default(),
            options,
            logger,
            now,
            out: Outputs::default(),
            batches: GroupCommit::default(),
            runs: Vec::new(),
            journal: Journal::default(),
            readers: Arc::new(ReadGate::default()),
            times: Arc::default(),
            store_requests: Vec::new(),
            found_bytes: 0,
            tails: Tails::default(),
            received_bytes: 0,
            received_tail_bytes: 0,
            replicated_sources: BTreeMap::new(),
            installed: BTreeMap::new(),
            merges: BTreeMap::new(),
            gone: BTreeMap::new(),
            pauses: VecDeque::new(),
            unreachable: BTreeMap::new(),
            tick: None,
            read_index_rounds: 0,
            incarnations: 0,
            lookups: 0,
            lookups_under_way: 0,
        }
    }

    /// Starts lookups and returns their ids; `None` if too many have no result.
    pub(crate) fn look_up(&mut self, region: RegionId, keys: Vec<Bytes>) -> Option<Vec<LookupId>> {
        if self.lookups_under_way + keys.len() > LOOKUPS_MAX {
            return None;
        }
        self.lookups_under_way += keys.len();
        let start = |key| {
            self.lookups += 1;
            let id = LookupId(self.lookups);
            self.out.lookups.push(Lookup { id, region, key });
            id
        };
        Some(keys.into_iter().map(start).collect())
    }

    pub(crate) fn lookup_ended(&mut self) {
        self.lookups_under_way = self.lookups_under_way.saturating_sub(1);
    }

    /// Records the epoch as of which a region has no replica here any more.
    pub(crate) fn note_gone(&mut self, region: RegionId, epoch: RegionEpoch) {
        if self.gone.len() >= GONE_MAX {
            self.gone.clear();
        }
        self.gone.insert(region, epoch);
    }

    /// Turns leases on or off. Invariant: while leases are off, no peer of this store has a lease. A
    /// read in flight finds its lease ended and waits for a read index round.
    /// Test: `a_lease_in_force_ends_when_leases_are_turned_off_and_reads_go_on_by_rounds`.
    pub(crate) fn set_leases(&mut self, on: bool) {
        self.leases = on;
        // bug replica.lease_outlives_its_setting: never
        if !on {
            self.readers.end_leases();
        }
    }

    /// Returns the context of a new read index round. It is unique over all stores and process
    /// incarnations: otherwise a late reply to an earlier round would confirm a deposed leader.
    pub(crate) fn next_read_context(&mut self) -> Vec<u8> {
        // bug replica.read_context_reused: skip
        self.read_index_rounds += 1;
        let parts =
            [self.options.store.0, self.options.process_incarnation, self.read_index_rounds];
        parts.iter().flat_map(|part| part.to_be_bytes()).collect()
    }

    pub(crate) fn next_incarnation(&mut self) -> u64 {
        self.incarnations += 1;
        self.incarnations
    }

    pub(crate) fn has_tail_room(&self, bytes: u64) -> bool {
        // bug replica.tails_unbounded: `self.tails.bytes() + bytes < self.options.tail_bytes_max` is `true`
        self.tails.bytes() + bytes < self.options.tail_bytes_max
    }

    fn reply(&mut self, id: RequestId, reply: Reply) {
        self.out.replies.push((id, reply));
    }

    pub(crate) fn done(&mut self, id: RequestId, done: Done) {
        self.reply(id, Reply::Done(done));
    }

    /// Answers a request that was not executed and will not be.
    pub(crate) fn reject(&mut self, id: RequestId, rejection: impl Into<Rejection>) {
        self.reply(id, rejection.into().into());
    }

    /// Answers a request that may have been executed, or may still be.
    pub(crate) fn unknown(&mut self, id: RequestId, reason: Unknown) {
        self.reply(id, Reply::Unknown(reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_conformance::ModelEngine;
    use stele_types::{ClusterId, StoreId};

    #[test]
    fn read_contexts_are_never_used_twice() {
        let options = Options::new(StoreId(1), ClusterId(7), 5, 42);
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let engine = Arc::new(ModelEngine::default());
        let mut ctx = Context::new(engine, options, logger, Now::default());
        assert_ne!(ctx.next_read_context(), ctx.next_read_context());
    }
}
