//! One replica of a region on this store: a Raft node, its position in the log, and its waiting
//! requests.

mod admin;
mod answer;
mod apply;
mod check;
mod decision;
mod hibernate;
mod lease;
mod membership;
mod merge;
mod message;
mod modify;
mod parts;
mod propose;
mod publish;
mod raft_group;
mod read;
mod ready;
mod recover;
mod repair;
mod report;
mod restart;
mod role;
mod room;
mod snapshot;
mod split;
mod tick;
mod truncate;
mod unapplied;

pub(crate) use decision::Skipped;
pub(crate) use merge::merge_answer;
pub(crate) use parts::Request;
pub(crate) use repair::find_values;
pub(crate) use snapshot::snapshot_ranges;
pub(crate) use split::CHILD_STARTS_AFTER;

use crate::log::{RegionLog, Start};
use crate::output::Traffic;
use crate::readers::Reader;
use crate::store::Context;
use parts::{
    Changes, Contacts, Durability, ElectionTimer, HeldKeys, Hibernation, Leadership, LeaseRight,
    Merge, Proposals, Reads, Repairs, Room, Snapshots, Transfers,
};
use raft_group::RaftGroup;
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{Error, LogIndex, Peer as PeerName, PeerId, Region, Result, StoreId, Term};
use unapplied::Unapplied;

/// Replica of one region on this store: the Raft node and the parts, wired together.
pub(crate) struct Peer<E: StorageEngine> {
    /// This peer, as of the current descriptor.
    pub name: PeerName,
    pub region: Arc<Region>,
    /// Number of this replica among all that this store's process has run.
    pub incarnation: u64,
    /// State that request threads see.
    reader: Arc<Reader>,
    group: RaftGroup<E>,
    durability: Durability,
    leadership: Leadership,
    election: ElectionTimer,
    hibernation: Hibernation,
    contacts: Contacts,
    proposals: Proposals,
    held: HeldKeys,
    changes: Changes,
    reads: Reads,
    lease: LeaseRight,
    merge: Merge,
    transfers: Transfers,
    snapshots: Snapshots,
    repairs: Repairs,
    room: Room,
    /// Regions created by the last split.
    split_children: Vec<Region>,
    traffic: Traffic,
}

impl<E: StorageEngine> Peer<E> {
    /// Returns the replica of `region` on this store, continuing from `start`.
    pub fn new(ctx: &mut Context<E>, region: Region, start: &Start) -> Result<Self> {
        let store = ctx.options.store;
        let Some(name) = region.peer_on(store).copied() else {
            return Err(Error::invalid(format!(
                "region {} has no peer on store {store}",
                region.id
            )));
        };
        let unapplied = Unapplied::read(&*ctx.engine, region.id, start)?;
        let start = &unapplied.with_proven_commit(start);
        let group = RaftGroup::new(ctx, &region, name.id, start)?;
        let region = Arc::new(region);
        let reader = Arc::new(Reader::new(&ctx.readers, name.id, region.clone(), start.applied));
        ctx.readers.insert(region.id, reader.clone());
        Ok(Self {
            name,
            incarnation: ctx.next_incarnation(),
            reader,
            group,
            durability: Durability::new((start.hard_state.term, start.hard_state.vote)),
            leadership: Leadership::default(),
            election: ElectionTimer::new(&ctx.options, ctx.now, region.id, name.id),
            hibernation: Hibernation::default(),
            contacts: Contacts::new(ctx.now.monotonic_nanos),
            proposals: Proposals::default(),
            held: HeldKeys::default(),
            changes: Changes::default(),
            reads: Reads::default(),
            lease: LeaseRight::default(),
            merge: Merge::new(unapplied.merges),
            transfers: Transfers::default(),
            snapshots: Snapshots::default(),
            repairs: Repairs::default(),
            room: Room::default(),
            split_children: Vec::new(),
            traffic: Traffic::default(),
            region,
        })
    }

    pub fn is_leader(&self) -> bool {
        self.group.is_leader()
    }

    pub fn term(&self) -> Term {
        self.group.term()
    }

    pub fn committed(&self) -> LogIndex {
        self.group.committed()
    }

    fn applied(&self) -> LogIndex {
        self.group.applied()
    }

    /// Returns the peer voted for in `term`; 0 for none.
    pub fn vote_in(&self, term: Term) -> u64 {
        if self.term() == term { self.group.hard_state().vote } else { 0 }
    }

    /// Returns whether this peer leads and serves in the current term.
    fn is_serving(&self) -> bool {
        self.is_leader() && self.leadership.is_serving_in(self.term())
    }

    /// Returns the other members of the region.
    fn others(&self) -> impl Iterator<Item = &PeerName> {
        self.region.peers.iter().filter(|peer| peer.id != self.name.id)
    }

    fn log(&self) -> &RegionLog<E> {
        self.group.log()
    }

    fn log_mut(&mut self) -> &mut RegionLog<E> {
        self.group.log_mut()
    }

    /// Returns whether every entry and vote of this peer is durable.
    pub fn is_durable(&self) -> bool {
        self.durability.is_durable()
    }

    /// Returns the peer with this id, member or not.
    fn peer_name(&self, id: PeerId) -> Option<PeerName> {
        let member = self.region.peer(id).copied();
        member.or_else(|| self.contacts.unknown(id))
    }

    /// Returns the leader, as far as this peer knows.
    pub fn leader(&self) -> Option<PeerName> {
        self.peer_name(self.group.leader()?)
    }

    /// Returns the peer to which clients are redirected.
    pub fn leader_hint(&self) -> Option<PeerName> {
        self.leader().or(self.transfers.target())
    }

    /// Returns the leader's store, unless this peer leads.
    pub fn remote_leader_store(&self) -> Option<StoreId> {
        self.leader().filter(|leader| leader.id != self.name.id).map(|leader| leader.store)
    }
}
