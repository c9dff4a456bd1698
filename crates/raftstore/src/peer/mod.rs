//! One replica of a region on this store: a Raft node, its place in the log, and the requests that
//! wait for it.

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

/// One replica.
pub(crate) struct Peer<E: StorageEngine> {
    /// Itself, as of the region it knows.
    pub name: PeerName,
    pub region: Arc<Region>,
    pub node: RawNode<RegionLog<E>>,
    /// Which life of the region on this store this is.
    pub incarnation: u64,
    reader: Arc<Reader>,
    durability: Durability,
    /// Term and vote as last handed to the log, durable or not.
    written_vote: (u64, u64),
    /// Entries that take another region over and are not applied: no commit index that covers one
    /// is made durable.
    merges_ahead: BTreeSet<u64>,
    /// Another store says that the target took this region over.
    taken: bool,
    /// And that the target, since then, has no replica on this store any more.
    target_left: bool,
    /// Committed entries in order that are not applied yet.
    to_apply: VecDeque<Entry>,
    applied: u64,
    seen: Seen,
    /// The term in which this peer leads *and* has applied its first entry: from then on it knows
    /// all that earlier terms committed, and may propose and serve.
    leading: Option<u64>,
    /// The last term in which leadership was to be handed over: the receiver may campaign at any
    /// moment, whatever followers promised, so no lease counts in it.
    transfer_term: u64,
    transfer: Option<role::Transfer>,
    /// Who was to lead next, until a leader is known.
    transfer_target: Option<PeerName>,
    /// It campaigns as soon as its log has begun.
    campaigns_first: bool,
    /// A proposed entry that will change the range or the phase: nothing is proposed behind it until
    /// it is applied.
    barrier: Option<u64>,
    /// The last entry proposed that changes the region, until it is applied.
    admin_at: Option<u64>,
    queue: Queue,
    proposals: Proposals,
    reads: Reads,
    /// Peers that are no members as far as this one knows, and spoke to it.
    strangers: BTreeMap<u64, PeerName>,
    /// Regions that the last split of this one made.
    split_children: Vec<Region>,
    /// When each peer was last heard of.
    heard: BTreeMap<u64, u64>,
    /// Peers that did not take the last snapshots.
    snapshot_waits: BTreeMap<u64, snapshot::Wait>,
    leaderless_since: Option<u64>,
    timer: tick::Timer,
    traffic: Traffic,
    /// What other replicas say of ranges, until what that is as of is applied here.
    found_ranges: Vec<RangeRepairReply>,
}

/// What of this peer's promises is durable.
#[derive(Default)]
struct Durability {
    /// The last ready whose records went into a batch.
    noted: u64,
    /// The last such ready that is durable.
    reached: u64,
    /// The last ready taken.
    last_ready: u64,
    /// The beginning of its log is not durable yet.
    log_start_pending: bool,
    /// Term and vote on disk, and those on their way there with the ready that carries them.
    vote: (u64, u64),
    vote_noted: Option<(u64, (u64, u64))>,
    /// Messages that promise what is not durable yet.
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
    /// The replica of `region` on this store, continuing from `start`.
    pub fn new(ctx: &mut Context<E>, region: Region, start: &Start) -> Result<Self> {
        let store = ctx.options.store;
        let Some(name) = region.peer_on(store).copied() else {
            return Err(Error::invalid(format!(
                "region {} has no peer on store {store}",
                region.id
            )));
        };
        let conf = crate::admin::conf_state(&region);
        let log = RegionLog::new(ctx.engine.clone(), region.id, start, conf);
        let config = config(&ctx.options, name.id, start);
        let node = RawNode::new(&config, log, &ctx.logger)
            .map_err(|error| Error::invalid(format!("region {}: {error}", region.id)))?;
        let region = Arc::new(region);
        let reader = Arc::new(Reader::new(name.id, region.clone()));
        ctx.readers.insert(region.id, reader.clone());
        let merges_ahead =
            merge::merges_above(&*ctx.engine, region.id, start.applied, start.last.0)?;
        let HardState { term, vote, .. } = start.hard_state;
        Ok(Self {
            name,
            incarnation: ctx.next_incarnation(),
            reader,
            written_vote: (term.0, vote),
            merges_ahead,
            taken: false,
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
            strangers: BTreeMap::new(),
            split_children: Vec::new(),
            heard: BTreeMap::new(),
            snapshot_waits: BTreeMap::new(),
            leaderless_since: Some(ctx.now.monotonic_nanos),
            timer: tick::Timer::new(&ctx.options, ctx.now, region.id, name.id),
            traffic: Traffic::default(),
            found_ranges: Vec::new(),
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

    /// Whom it voted for in a term, or 0.
    pub fn vote_in(&self, term: Term) -> u64 {
        if self.term() == term.0 { self.node.raft.vote } else { 0 }
    }

    /// An entry of this region is durable.
    pub fn placed(&mut self, entry: &stele_types::EntryRecord, at: stele_types::Lsn) {
        self.log_mut().placed(entry.index.0, entry.term.0, at);
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

    /// Whether every entry and vote of this peer is durable.
    pub fn is_durable(&self) -> bool {
        !self.durability.log_start_pending && self.durability.reached >= self.durability.noted
    }

    /// The peer of that id, member or not.
    fn peer_name(&self, id: u64) -> Option<PeerName> {
        let member = self.region.peer(PeerId(id)).copied();
        member.or_else(|| self.strangers.get(&id).copied())
    }

    /// Who leads, as far as this peer knows.
    pub fn leader(&self) -> Option<PeerName> {
        self.peer_name(self.node.raft.leader_id)
    }

    /// Whom clients should ask.
    pub fn leader_hint(&self) -> Option<PeerName> {
        self.leader().or(self.transfer_target)
    }

    /// The leader's store, unless it is this one.
    pub fn led_from(&self) -> Option<StoreId> {
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
        // What is committed is told with the next entries or heartbeat, see `propose`.
        skip_bcast_commit: true,
        max_uncommitted_size: raft::NO_LIMIT,
        max_committed_size_per_ready: options.apply_bytes_max,
        ..raft::Config::default()
    }
}
