//! One replica of a region on this store: a Raft node, its position in the log, and its waiting
//! requests.

mod apply;
mod decision;
mod lead;
mod members;
mod merge;
mod message;
mod modify;
mod moment;
mod parts;
mod program;
mod raft_group;
mod read;
mod ready;
mod recover;
mod repair;
mod room;
mod snapshot;
mod write;

use crate::context::Context;
use crate::input::Header;
use crate::log::{RegionLog, Start};
use crate::output::{Busy, Refusal, RegionReport, Rejection, Traffic};
use crate::reads::{ReadGate, Reader, is_stale_term};
use apply::Unapplied;
pub(crate) use decision::Skipped;
pub(crate) use members::CHILD_STARTS_AFTER;
pub use members::FIRST_OF_CHILD;
pub(crate) use merge::merge_answer;
pub use parts::PAUSE_NANOS;
pub(crate) use parts::Waiting;
use parts::{
    Contacts, Durability, ElectionTimer, HeldKeys, Hibernation, IntentGuard, Leadership,
    LeaseRight, Merge, Moments, PendingChanges, Proposals, Reads, Repairs, Room, SnapshotBackoff,
    Transfers, is_caught_up,
};
use raft_group::{Follower, RaftGroup};
pub(crate) use repair::find_values;
pub(crate) use snapshot::snapshot_ranges;
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{Error, LogIndex, Peer, PeerId, Region, RegionPhase, Result, StoreId, Term};

/// Replica of one region on this store: the Raft node and the parts, wired together.
pub(crate) struct Replica<E: StorageEngine> {
    /// This peer, as of the current descriptor.
    pub peer: Peer,
    pub region: Arc<Region>,
    /// Number of this replica among all that this store's process has run.
    pub incarnation: u64,
    reader: Arc<Reader>,
    group: RaftGroup<E>,
    durability: Durability,
    leadership: Leadership,
    election: ElectionTimer,
    hibernation: Hibernation,
    contacts: Contacts,
    proposals: Proposals,
    held: HeldKeys,
    intents: IntentGuard,
    changes: PendingChanges,
    reads: Reads,
    moments: Moments,
    lease: LeaseRight,
    merge: Merge,
    transfers: Transfers,
    snapshots: SnapshotBackoff,
    repairs: Repairs,
    room: Room,
    split_children: Vec<Region>,
    traffic: Traffic,
    /// Whether the store ticks it.
    pub is_ticking: bool,
    /// Whether it worked since the last collection of reports.
    pub is_noted: bool,
}

impl<E: StorageEngine> Replica<E> {
    pub(crate) fn new(ctx: &mut Context<E>, region: Region, start: &Start) -> Result<Self> {
        let store = ctx.options.store;
        let Some(peer) = region.peer_on(store).copied() else {
            return Err(Error::invalid(format!(
                "region {} has no peer on store {store}",
                region.id
            )));
        };
        let unapplied = Unapplied::read(&*ctx.engine, region.id, start)?;
        let start = &unapplied.with_proven_commit(start);
        let group = RaftGroup::new(ctx, &region, peer.id, start)?;
        let region = Arc::new(region);
        let reader = Arc::new(Reader::new(&ctx.readers, peer.id, region.clone(), start.applied));
        ctx.readers.insert(region.id, reader.clone());
        Ok(Self {
            peer,
            incarnation: ctx.next_incarnation(),
            reader,
            group,
            durability: Durability::new((start.hard_state.term, start.hard_state.vote)),
            leadership: Leadership::default(),
            election: ElectionTimer::new(&ctx.options, ctx.now, region.id, peer.id),
            hibernation: Hibernation::default(),
            contacts: Contacts::new(ctx.now.monotonic_nanos),
            proposals: Proposals::default(),
            held: HeldKeys::default(),
            intents: IntentGuard::default(),
            changes: PendingChanges::default(),
            reads: Reads::default(),
            moments: Moments::default(),
            lease: LeaseRight::default(),
            merge: Merge::new(unapplied.merges),
            transfers: Transfers::default(),
            snapshots: SnapshotBackoff::default(),
            repairs: Repairs::default(),
            room: Room::default(),
            split_children: Vec::new(),
            traffic: Traffic::default(),
            is_ticking: false,
            is_noted: false,
            region,
        })
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.group.is_leader()
    }

    pub(crate) fn term(&self) -> Term {
        self.group.term()
    }

    pub(crate) fn committed(&self) -> LogIndex {
        self.group.committed()
    }

    pub(crate) fn applied(&self) -> LogIndex {
        self.group.applied()
    }

    /// Returns the peer voted for in `term`; 0 for none.
    pub(crate) fn vote_in(&self, term: Term) -> u64 {
        if self.term() == term { self.group.hard_state().vote } else { 0 }
    }

    /// Returns whether this peer leads and serves in the current term.
    fn is_serving(&self) -> bool {
        self.is_leader() && self.leadership.is_serving_in(self.term())
    }

    fn others(&self) -> impl Iterator<Item = &Peer> {
        self.region.peers.iter().filter(|peer| peer.id != self.peer.id)
    }

    fn log(&self) -> &RegionLog<E> {
        self.group.log()
    }

    fn log_mut(&mut self) -> &mut RegionLog<E> {
        self.group.log_mut()
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durability.is_durable()
    }

    fn find_peer(&self, id: PeerId) -> Option<Peer> {
        let member = self.region.peer(id).copied();
        member.or_else(|| self.contacts.unknown(id))
    }

    pub(crate) fn leader(&self) -> Option<Peer> {
        self.find_peer(self.group.leader()?)
    }

    pub(crate) fn leader_hint(&self) -> Option<Peer> {
        self.leader().or(self.transfers.target())
    }

    /// Returns the leader's store, unless this peer leads.
    pub(crate) fn remote_leader_store(&self) -> Option<StoreId> {
        self.leader().filter(|leader| leader.id != self.peer.id).map(|leader| leader.store)
    }
}

// Request checks, in the order that clients expect.

impl<E: StorageEngine> Replica<E> {
    pub(crate) fn check_peer(&self, header: &Header) -> Result<(), Refusal> {
        match header.peer.filter(|asked| *asked != self.peer.id) {
            Some(asked) => Err(Refusal::MismatchPeer { asked, actual: self.peer.id }),
            None => Ok(()),
        }
    }

    pub(crate) fn check_version(&self, header: &Header, readers: &ReadGate) -> Result<(), Refusal> {
        if is_stale_term(header.term, self.term().0, self.region.kind) {
            return Err(Refusal::StaleTerm { leader: self.leader_hint() });
        }
        if header.version.is_some_and(|version| version != self.region.epoch.version) {
            return Err(Refusal::EpochNotMatch { current: self.current_regions(readers) });
        }
        Ok(())
    }

    /// Checks that a read may be answered: its term and version match and the region is not
    /// merging, when its target may already be writing to it.
    pub(super) fn check_readable(
        &self,
        header: &Header,
        readers: &ReadGate,
    ) -> Result<(), Rejection> {
        self.check_version(header, readers)?;
        // bug replica.read_while_merging: `self.check_phase()` is `Ok(())`
        self.check_phase()
    }

    pub(crate) fn check_phase(&self) -> Result<(), Rejection> {
        match self.region.phase {
            RegionPhase::Normal => Ok(()),
            RegionPhase::Merging { .. } => Err(Busy::Merging.into()),
            RegionPhase::Tombstone => Err(Refusal::RegionNotFound.into()),
        }
    }

    fn current_regions(&self, readers: &ReadGate) -> Vec<Region> {
        let newest = |region: &Region| match readers.get(region.id) {
            Some(reader) => (*reader.region()).clone(),
            None => region.clone(),
        };
        std::iter::once((*self.region).clone())
            .chain(self.split_children.iter().map(newest))
            .collect()
    }
}

// Status report of a peer.

impl<E: StorageEngine> Replica<E> {
    pub(crate) fn report(&mut self, ctx: &Context<E>) -> RegionReport {
        let (read_ops, read_bytes) = self.reader.returned();
        let traffic = Traffic { read_ops, read_bytes, ..self.traffic };
        // bug replica.report_resets_traffic: self.traffic = Traffic::default();
        let now = ctx.now.monotonic_nanos;
        let leads = self.is_leader();
        let leaderless = self.contacts.leaderless_nanos(now).unwrap_or_default();
        RegionReport {
            region: (*self.region).clone(),
            peer: self.peer,
            role: self.group.role(),
            is_leading: self.leadership.is_serving(),
            leader: self.leader(),
            term: self.term(),
            last: self.group.last(),
            committed: self.committed(),
            applied: self.applied(),
            truncated: LogIndex(self.log().truncated().0),
            pending_peers: if leads { self.pending_peers() } else { Vec::new() },
            down_peers: if leads { self.down_peers(ctx) } else { Vec::new() },
            leaderless_seconds: leaderless / 1_000_000_000,
            lacks_room: self.room.refused_bytes() > 0,
            hibernating: self.is_hibernating(),
            traffic,
        }
    }

    /// Returns whether the report of this replica may change without an input, a tick or work.
    pub(crate) fn changes_with_time(&self, ctx: &Context<E>) -> bool {
        let is_unreachable = |peer: &Peer| ctx.unreachable.contains_key(&peer.store);
        let now = ctx.now.monotonic_nanos;
        self.contacts.leaderless_nanos(now).is_some()
            || (self.is_leader() && self.others().any(is_unreachable))
            || (self.is_leader() && !self.down_peers(ctx).is_empty())
    }

    fn followers(&self) -> impl Iterator<Item = (&Peer, Follower)> {
        self.others().filter_map(|peer| Some((peer, self.group.follower(peer.id)?)))
    }

    fn pending_peers(&self) -> Vec<Peer> {
        // What a follower without room lacks, it does not get from the log.
        let lacks_room = |it: &Follower| self.room.is_full(it.id) && it.matched < self.committed();
        let lagging = self.followers().filter(|(_, progress)| {
            !is_caught_up(progress, self.committed()) || lacks_room(progress)
        });
        lagging.map(|(peer, _)| *peer).collect()
    }

    /// Returns the peers unresponsive for longer than an election takes. A hibernating leader
    /// receives no messages, so it counts only peers on unreachable stores.
    pub(super) fn down_peers(&self, ctx: &Context<E>) -> Vec<(Peer, u64)> {
        let now = ctx.now.monotonic_nanos;
        let timeout_nanos = ctx.options.device_nanos(ctx.options.election_ticks_max);
        let unresponsive = |peer: &Peer| {
            let since = match self.is_hibernating() {
                true => *ctx.unreachable.get(&peer.store)?,
                false => self.contacts.last(peer.id)?,
            };
            let elapsed = now.saturating_sub(since);
            (elapsed >= timeout_nanos).then_some((*peer, elapsed / 1_000_000_000))
        };
        self.followers().filter_map(|(peer, _)| unresponsive(peer)).collect()
    }
}
