//! One replica of a region on this store: a Raft node, its position in the log, and its waiting
//! requests.

mod admin;
mod answer;
mod apply;
mod cas;
mod check;
mod hibernate;
mod lease;
mod membership;
mod merge;
mod message;
mod propose;
mod queue;
mod read;
mod ready;
mod repair;
mod report;
mod role;
mod snapshot;
mod split;
mod tick;
mod truncate;

pub(crate) use queue::Request;
pub(crate) use repair::find_values;
pub(crate) use snapshot::snapshot_ranges;
pub(crate) use split::CHILD_STARTS_AFTER;

use crate::log::{RegionLog, Start};
use crate::messages::RangeRepairReply;
use crate::options::Options;
use crate::output::Traffic;
use crate::readers::Reader;
use crate::store::Context;
use answer::Proposals;
use queue::Queue;
use raft::eraftpb::{Entry, Message};
use raft::{RawNode, StateRole};
use read::Reads;
use role::Seen;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{Error, HardState, Peer as PeerName, PeerId, Region, Result, StoreId, Term};

/// Replica of one region on this store.
pub(crate) struct Peer<E: StorageEngine> {
    /// This peer, as of the current descriptor.
    pub name: PeerName,
    pub region: Arc<Region>,
    pub node: RawNode<RegionLog<E>>,
    /// Number of this replica among all that this store's process has run.
    pub incarnation: u64,
    reader: Arc<Reader>,
    durability: Durability,
    /// Term and vote last passed to the log, durable or not.
    written_vote: (u64, u64),
    /// Indexes of commit-merge entries that are not applied. Invariant: no durable commit index
    /// covers one.
    unapplied_merges: BTreeSet<u64>,
    /// Another store reported that the target committed the merge of this region.
    merge_confirmed: bool,
    /// Another store reported that the target, after the merge, has no replica on this store.
    target_left: bool,
    /// Committed entries that are not applied, in order.
    to_apply: VecDeque<Entry>,
    applied: u64,
    seen: Seen,
    /// Term in which this peer leads *and* has applied its first entry. From then on it knows all
    /// that earlier terms committed, and may propose and serve.
    leading: Option<u64>,
    /// Last term in which a leadership transfer was started. Its target may campaign at any moment
    /// regardless of the followers' vote holds, so no lease is valid in this term.
    transfer_term: u64,
    transfer: Option<role::Transfer>,
    /// Target of the last leadership transfer, until a leader is known.
    transfer_target: Option<PeerName>,
    /// Campaigns as soon as the start of its log is durable.
    campaigns_first: bool,
    /// Proposed entry that changes the range or the phase. Nothing is proposed after it until it is
    /// applied.
    barrier: Option<u64>,
    /// Last proposed entry that changes the region, until it is applied.
    admin_at: Option<u64>,
    queue: Queue,
    proposals: Proposals,
    reads: Reads,
    /// Senders outside the known membership.
    unknown_peers: BTreeMap<u64, PeerName>,
    /// Regions created by the last split.
    split_children: Vec<Region>,
    /// Monotonic nanoseconds of the last message from each peer.
    last_contact: BTreeMap<u64, u64>,
    /// Backoff for peers that did not accept the last snapshots.
    snapshot_waits: BTreeMap<u64, snapshot::Wait>,
    leaderless_since: Option<u64>,
    timer: tick::Timer,
    traffic: Traffic,
    /// Range repairs from other replicas that wait until this replica has applied their entry.
    range_repairs: Vec<RangeRepairReply>,
}

/// Durable state of this peer's promises.
#[derive(Default)]
struct Durability {
    /// Last ready with records in a batch.
    noted: u64,
    /// Last ready with durable records.
    reached: u64,
    /// Last ready taken from Raft.
    last_ready: u64,
    /// The first records of the log are not durable.
    log_start_pending: bool,
    /// Durable term and vote, and those in flight with their ready.
    vote: (u64, u64),
    vote_noted: Option<(u64, (u64, u64))>,
    /// Messages with promises that are not durable.
    held: VecDeque<Held>,
}

impl Durability {
    fn note_vote(&mut self, number: u64, vote: (u64, u64)) {
        if vote != self.vote_noted.map_or(self.vote, |(_, noted)| noted) {
            self.vote_noted = Some((number, vote));
        }
    }

    fn reach(&mut self, number: u64) {
        self.log_start_pending = false;
        self.reached = self.reached.max(number);
        if let Some((_, vote)) = self.vote_noted.take_if(|(noted, _)| *noted <= number) {
            self.vote = vote;
        }
    }
}

struct Held {
    after: u64,
    messages: Vec<Message>,
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
        let conf = crate::admin::conf_state(&region);
        let log = RegionLog::new(ctx.engine.clone(), region.id, start, conf, ctx.tails.clone());
        let config = config(&ctx.options, name.id, start);
        let node = RawNode::new(&config, log, &ctx.logger)
            .map_err(|error| Error::invalid(format!("region {}: {error}", region.id)))?;
        let region = Arc::new(region);
        let reader = Arc::new(Reader::new(name.id, region.clone()));
        ctx.readers.insert(region.id, reader.clone());
        let unapplied_merges =
            merge::merges_above(&*ctx.engine, region.id, start.applied, start.last.0)?;
        let HardState { term, vote, .. } = start.hard_state;
        Ok(Self {
            name,
            incarnation: ctx.next_incarnation(),
            reader,
            written_vote: (term.0, vote),
            unapplied_merges,
            merge_confirmed: false,
            target_left: false,
            durability: Durability { vote: (term.0, vote), ..Durability::default() },
            to_apply: VecDeque::new(),
            applied: start.applied.0,
            seen: Seen::default(),
            leading: None,
            transfer_term: 0,
            transfer: None,
            transfer_target: None,
            campaigns_first: false,
            barrier: None,
            admin_at: None,
            queue: Queue::default(),
            proposals: Proposals::default(),
            reads: Reads::default(),
            unknown_peers: BTreeMap::new(),
            split_children: Vec::new(),
            last_contact: BTreeMap::new(),
            snapshot_waits: BTreeMap::new(),
            leaderless_since: Some(ctx.now.monotonic_nanos),
            timer: tick::Timer::new(&ctx.options, ctx.now, region.id, name.id),
            traffic: Traffic::default(),
            range_repairs: Vec::new(),
            region,
            node,
        })
    }

    pub fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    pub fn committed(&self) -> u64 {
        self.node.raft.raft_log.committed
    }

    /// Returns the peer voted for in `term`; 0 for none.
    pub fn vote_in(&self, term: Term) -> u64 {
        if self.term() == term.0 { self.node.raft.vote } else { 0 }
    }

    fn log(&self) -> &RegionLog<E> {
        self.node.store()
    }

    fn log_mut(&mut self) -> &mut RegionLog<E> {
        self.node.mut_store()
    }

    fn last_index(&self) -> u64 {
        self.node.raft.raft_log.last_index()
    }

    /// Returns whether every entry and vote of this peer is durable.
    pub fn is_durable(&self) -> bool {
        !self.durability.log_start_pending && self.durability.reached >= self.durability.noted
    }

    /// Returns the peer with this id, member or not.
    fn peer_name(&self, id: u64) -> Option<PeerName> {
        let member = self.region.peer(PeerId(id)).copied();
        member.or_else(|| self.unknown_peers.get(&id).copied())
    }

    /// Returns the leader, as far as this peer knows.
    pub fn leader(&self) -> Option<PeerName> {
        self.peer_name(self.node.raft.leader_id)
    }

    /// Returns the peer to which clients are redirected.
    pub fn leader_hint(&self) -> Option<PeerName> {
        self.leader().or(self.transfer_target)
    }

    /// Returns the leader's store, unless this peer leads.
    pub fn remote_leader_store(&self) -> Option<StoreId> {
        self.leader().filter(|leader| leader.id != self.name.id).map(|leader| leader.store)
    }
}

fn config(options: &Options, id: PeerId, start: &Start) -> raft::Config {
    raft::Config {
        id: id.0,
        election_tick: options.election_ticks_min as usize,
        min_election_tick: options.election_ticks_min as usize,
        max_election_tick: options.election_ticks_max as usize,
        heartbeat_tick: options.heartbeat_ticks as usize,
        applied: start.applied.0,
        max_size_per_msg: options.append_message_bytes_max,
        max_inflight_msgs: options.inflight_messages_max,
        check_quorum: true,
        pre_vote: true,
        batch_append: true,
        // The next entries or heartbeat carry the commit index, see `propose`.
        skip_bcast_commit: true,
        max_uncommitted_size: raft::NO_LIMIT,
        max_committed_size_per_ready: options.apply_bytes_max,
        ..raft::Config::default()
    }
}
