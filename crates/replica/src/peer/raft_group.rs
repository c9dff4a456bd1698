//! The raft library, behind the terms of this crate. No other file of the product, except the log
//! that the library reads and the conversion of its data, names the library.

use crate::admin;
use crate::context::Context;
use crate::log::{RegionLog, Start, committed, entry, from_raft, payload_of, to_raft};
use crate::messages::{RaftKind, RaftMessage};
use crate::options::Options;
use crate::output::Role;
use bytes::Bytes;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry, HardState as RaftHardState, Message,
    MessageType,
};
use raft::{INVALID_ID, Progress, ProgressState, RawNode, SnapshotStatus, StateRole};
use std::collections::{BTreeSet, VecDeque};
use stele_storage::StorageEngine;
use stele_types::{
    CommittedEntry, EntryRecord, Error, HardState, LogIndex, PeerId, Region, RegionId, Result, Term,
};

/// Raft node of one replica, with the committed entries that it has not applied.
pub(super) struct RaftGroup<E: StorageEngine> {
    node: RawNode<RegionLog<E>>,
    region: RegionId,
    /// Committed entries that are not applied, in order.
    to_apply: VecDeque<Entry>,
}

/// Work that Raft hands out.
///
/// Invariants: `entries` and `hard_state` go into the batch before `after_sync` leaves, and
/// `after_sync` leaves once that batch is durable. `at_once` may leave before, if the term is
/// durable.
pub(super) struct Ready {
    /// Number of the ready; they ascend.
    pub number: u64,
    /// Confirmed read index rounds: context, and index that must be applied.
    pub rounds: Vec<(Vec<u8>, LogIndex)>,
    /// Entries to make durable. The first may replace an existing one and all after it.
    pub entries: Vec<EntryRecord>,
    /// Hard state, if it changed.
    pub hard_state: Option<HardState>,
    /// Messages of a leader.
    pub at_once: Vec<Outgoing>,
    /// Messages that promise what the ready holds.
    pub after_sync: Vec<Outgoing>,
}

pub(super) enum Outgoing {
    Message(PeerId, RaftMessage),
    /// The receiver needs entries that the log no longer holds.
    Snapshot(PeerId),
}

impl Outgoing {
    /// Returns whether it offers the leadership to the target of a transfer.
    pub(super) fn is_leadership_offer(&self) -> bool {
        matches!(self, Self::Message(_, message) if message.kind == RaftKind::TimeoutNow)
    }

    /// Returns whether it promises nothing but the term: no entry and no vote.
    pub(super) fn promises_only_the_term(&self) -> bool {
        let Self::Message(_, message) = self else { return false };
        matches!(
            message.kind,
            RaftKind::HeartbeatResponse | RaftKind::ReadIndex | RaftKind::ReadIndexResponse
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Follower {
    pub id: PeerId,
    /// Last entry that it is known to hold; 0 for unknown.
    pub matched: LogIndex,
    /// Entry of the snapshot that it is being sent.
    pub snapshot: Option<LogIndex>,
}

impl Follower {
    fn new(id: u64, progress: &Progress) -> Self {
        let is_snapshot = progress.state == ProgressState::Snapshot;
        Self {
            id: PeerId(id),
            matched: LogIndex(progress.matched),
            snapshot: is_snapshot.then_some(LogIndex(progress.pending_snapshot)),
        }
    }
}

impl<E: StorageEngine> RaftGroup<E> {
    pub(super) fn new(
        ctx: &Context<E>,
        region: &stele_types::Region,
        id: PeerId,
        start: &Start,
    ) -> Result<Self> {
        let conf = admin::conf_state(region);
        let log = RegionLog::new(ctx.engine.clone(), region.id, start, conf, ctx.tails.clone());
        let config = config(&ctx.options, id, start);
        let node = RawNode::new(&config, log, &ctx.logger)
            .map_err(|error| Error::invalid(format!("region {}: {error}", region.id)))?;
        Ok(Self { node, region: region.id, to_apply: VecDeque::new() })
    }

    pub(super) fn log(&self) -> &RegionLog<E> {
        self.node.store()
    }

    pub(super) fn log_mut(&mut self) -> &mut RegionLog<E> {
        self.node.mut_store()
    }
}

impl<E: StorageEngine> RaftGroup<E> {
    pub(super) fn role(&self) -> Role {
        match self.node.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    pub(super) fn is_leader(&self) -> bool {
        self.role() == Role::Leader
    }

    pub(super) fn term(&self) -> Term {
        Term(self.node.raft.term)
    }

    pub(super) fn leader(&self) -> Option<PeerId> {
        let id = self.node.raft.leader_id;
        (id != INVALID_ID).then_some(PeerId(id))
    }

    pub(super) fn hard_state(&self) -> HardState {
        hard_state(&self.node.raft.hard_state())
    }

    pub(super) fn committed(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.committed)
    }

    pub(super) fn applied(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.applied)
    }

    pub(super) fn persisted(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.persisted)
    }

    /// Returns the last entry, durable or not.
    pub(super) fn last(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.last_index())
    }

    pub(super) fn has_tail(&self) -> bool {
        let has_fresh = !self.node.raft.raft_log.unstable.entries.is_empty();
        // bug replica.full_tails_starve: `self.log().has_tail()` is `true`
        has_fresh || self.log().has_tail()
    }

    /// Returns whether received entries would extend the log, without replacing any of it.
    pub(super) fn is_extended_by(&self, message: &RaftMessage) -> bool {
        let last = (self.last(), Term(self.node.raft.raft_log.last_term()));
        let continues = match message.entries.iter().find(|entry| entry.index == last.0) {
            Some(entry) => entry.term == last.1,
            None => (message.index, message.log_term) == last,
        };
        continues && message.entries.last().is_some_and(|entry| entry.index > last.0)
    }

    /// Returns whether the leader that sent the message can commit the last entry only after this peer
    /// holds an entry of the leader's term (Raft, section 5.4.2).
    pub(super) fn needs_entry_of_term(&self, message: &RaftMessage) -> bool {
        let last_term = Term(self.node.raft.raft_log.last_term());
        // bug replica.full_tails_end_in_an_earlier_term: `last_term < message.term` is `false`
        message.commit < self.last() && last_term < message.term
    }

    /// Returns the term of an entry; `None` if the log does not hold it.
    pub(super) fn term_of(&self, index: LogIndex) -> Option<Term> {
        // Raft returns term 0 for an absent entry.
        let term = self.node.raft.raft_log.term(index.0).ok().filter(|term| *term != 0);
        term.map(Term)
    }

    pub(super) fn has_entry(&self, (index, term): (LogIndex, Term)) -> bool {
        self.term_of(index) == Some(term)
    }

    /// Returns whether this peer is a voter. Only a voter campaigns or leads.
    pub(super) fn is_voter(&self) -> bool {
        self.node.raft.promotable()
    }

    pub(super) fn is_sole_voter(&self) -> bool {
        self.is_voter() && self.node.raft.prs().is_singleton()
    }

    /// Returns whether a change of members is in the log and not applied.
    pub(super) fn is_changing_members(&self) -> bool {
        self.node.raft.has_pending_conf()
    }

    /// Returns whether Raft drops proposals because of a leadership transfer.
    pub(super) fn is_transferring(&self) -> bool {
        self.node.raft.lead_transferee.is_some()
    }

    pub(super) fn pending_reads(&self) -> usize {
        self.node.raft.pending_read_count()
    }

    /// Returns the ticks since the last message from a leader.
    pub(super) fn silent_ticks(&self) -> u64 {
        self.node.raft.election_elapsed as u64
    }

    pub(super) fn is_heartbeat_due(&self) -> bool {
        let raft = &self.node.raft;
        self.is_leader() && raft.heartbeat_elapsed() + 1 >= raft.heartbeat_timeout()
    }

    /// Returns a replica's progress; meaningful on a leader.
    pub(super) fn follower(&self, id: PeerId) -> Option<Follower> {
        self.node.raft.prs().get(id.0).map(|progress| Follower::new(id.0, progress))
    }

    /// Returns the progress of all other replicas; meaningful on a leader.
    pub(super) fn followers(&self) -> impl Iterator<Item = Follower> {
        let all = self.node.raft.prs().iter();
        let others = all.filter(|(id, _)| **id != self.node.raft.id);
        others.map(|(id, progress)| Follower::new(*id, progress))
    }
}

/// Commands. None of them waits; what follows from them is in the next [`Ready`].
impl<E: StorageEngine> RaftGroup<E> {
    /// Runs one tick. A follower campaigns after `election_timeout_ticks` without a leader. Returns
    /// whether there is work.
    pub(super) fn tick(&mut self, election_timeout_ticks: usize) -> bool {
        if self.node.raft.randomized_election_timeout() != election_timeout_ticks {
            self.node.raft.set_randomized_election_timeout(election_timeout_ticks);
        }
        self.node.tick()
    }

    /// Processes a message that [`crate::validate`] has checked.
    pub(super) fn step(&mut self, message: RaftMessage, from: PeerId) -> Result<()> {
        let message = to_raft(message, from.0, self.node.raft.id);
        self.node.step(message).map_err(|error| Error::invalid(error.to_string()))
    }

    /// Starts an election. The caller has checked that this peer is a voter, and that every entry is
    /// durable: Raft asks for neither, and elects a learner.
    pub(super) fn campaign(&mut self) {
        // It succeeds in every role; a leader ignores it.
        let _done = self.node.campaign();
    }

    /// Proposes entries in one message. Returns whether Raft took them; otherwise it took none.
    pub(super) fn propose(&mut self, payloads: Vec<Bytes>) -> bool {
        let last = self.last().0 + payloads.len() as u64;
        let entries: Vec<Entry> = payloads.into_iter().map(|it| entry(0, 0, it)).collect();
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.node.raft.id;
        message.set_entries(entries.into());
        self.node.raft.step(message).is_ok() && self.last().0 == last
    }

    /// Sets whether followers learn of a commit at once, or with the next entries or heartbeat.
    pub(super) fn set_commits_sent_at_once(&mut self, at_once: bool) {
        self.node.raft.skip_bcast_commit(!at_once);
    }

    /// Starts a read index round, or asks the leader for one.
    pub(super) fn start_round(&mut self, context: Vec<u8>) {
        self.node.read_index(context);
    }

    /// Attaches a read index round to the next heartbeats.
    pub(super) fn attach_round(&mut self, context: Vec<u8>) {
        let read = Entry { data: context.into(), ..Entry::default() };
        let mut request = Message::default();
        request.set_msg_type(MessageType::MsgReadIndex);
        request.set_entries(vec![read].into());
        let (committed, id) = (self.committed().0, self.node.raft.id);
        self.node.raft.read_only.add_request(committed, request, id);
    }

    /// Offers the leadership to a voter once it holds the whole log.
    pub(super) fn transfer_leadership(&mut self, to: PeerId) {
        self.node.transfer_leader(to.0);
    }

    /// Stops leading, in the same term.
    pub(super) fn step_down(&mut self) {
        self.node.raft.become_follower(self.node.raft.term, INVALID_ID);
    }

    pub(super) fn note_unreachable(&mut self, peer: PeerId) {
        self.node.report_unreachable(peer.0);
    }

    pub(super) fn note_snapshot(&mut self, peer: PeerId, is_received: bool) {
        let status = if is_received { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.node.report_snapshot(peer.0, status);
    }

    /// Learns that an entry is committed, from another store or from the local target. Invariant:
    /// only a log that holds this entry, with this term, learns it. It then holds all earlier ones,
    /// and a committed entry stays committed, so a late message is as valid as the first.
    pub(super) fn learn_committed(&mut self, entry: (LogIndex, Term)) {
        // bug replica.commit_of_another_term: always
        if self.has_entry(entry) {
            let index = entry.0.min(self.last());
            self.node.raft.raft_log.commit_to(index.0);
        }
    }
}

impl<E: StorageEngine> RaftGroup<E> {
    /// Takes the work that Raft has, if there is any. Its entries are in the log, in memory, and
    /// its committed entries wait to be applied.
    pub(super) fn take_ready(&mut self) -> Option<Ready> {
        if !self.node.has_ready() {
            return None;
        }
        let mut ready = self.node.ready();
        self.node.mut_store().extend(ready.entries());
        self.to_apply.extend(ready.take_committed_entries());
        let rounds = ready.take_read_states().into_iter();
        let region = self.region;
        let out = Ready {
            number: ready.number(),
            rounds: rounds.map(|state| (state.request_ctx, LogIndex(state.index))).collect(),
            entries: ready.entries().iter().map(|entry| entry_record(region, entry)).collect(),
            hard_state: ready.hs().map(hard_state),
            at_once: outgoing(ready.take_messages()),
            after_sync: outgoing(ready.take_persisted_messages()),
        };
        self.node.advance_append_async(ready);
        Some(out)
    }

    /// Records that a ready and all earlier ones are durable: only durable entries count for the
    /// quorum and may be applied.
    pub(super) fn note_durable(&mut self, number: u64) {
        self.node.on_persist_ready(number);
    }

    /// Returns the next committed entry, if it is durable here. An entry applied earlier would be
    /// lost in a crash after its reply, and the index would refer to bytes that are not on disk.
    pub(super) fn next_to_apply(&self) -> Option<CommittedEntry> {
        let next = self.to_apply.front().filter(|entry| entry.index <= self.persisted().0);
        next.map(committed)
    }

    /// Removes the entry that [`RaftGroup::next_to_apply`] returned.
    pub(super) fn pop_to_apply(&mut self) {
        self.to_apply.pop_front();
    }

    pub(super) fn note_applied(&mut self, index: LogIndex) {
        self.log_mut().note_applied(index.0, None);
        self.node.advance_apply_to(index.0);
    }

    pub(super) fn change_members(&mut self, entry: &CommittedEntry) -> Result<()> {
        let Some(change) = admin::conf_change(&entry.payload) else { return Ok(()) };
        let conf = self.node.apply_conf_change(&change).map_err(|error| {
            Error::invalid(format!("region {}: entry {}: {error}", self.region, entry.index))
        })?;
        self.log_mut().note_applied(entry.index.0, Some(conf));
        Ok(())
    }

    /// Replaces the members by those of a recovered region, all of which are voters. No majority of
    /// the former members takes part, so there is no joint configuration between both.
    pub(super) fn replace_members(&mut self, region: &Region, at: LogIndex) -> Result<()> {
        let former = self.node.raft.prs().conf().to_conf_state();
        let mut changes = Vec::new();
        if !former.voters_outgoing.is_empty() {
            // Leaves the joint configuration.
            changes.push(ConfChangeV2::default());
        }
        let kept: Vec<u64> = region.peers.iter().map(|peer| peer.id.0).collect();
        let added = kept.iter().map(|id| member_change(*id, ConfChangeType::AddNode));
        changes.extend(added);
        let all =
            [&former.voters, &former.voters_outgoing, &former.learners, &former.learners_next];
        let gone: BTreeSet<u64> = all.into_iter().flatten().copied().collect();
        let gone = gone.into_iter().filter(|id| !kept.contains(id));
        changes.extend(gone.map(|id| member_change(id, ConfChangeType::RemoveNode)));
        for change in changes {
            let conf = self.node.apply_conf_change(&change).map_err(|error| {
                Error::invalid(format!("region {}: recovery at {at}: {error}", self.region))
            })?;
            self.log_mut().note_applied(at.0, Some(conf));
        }
        Ok(())
    }
}

fn member_change(node_id: u64, kind: ConfChangeType) -> ConfChangeV2 {
    let mut single = ConfChangeSingle { node_id, ..ConfChangeSingle::default() };
    single.set_change_type(kind);
    let mut change = ConfChangeV2::default();
    change.set_changes(vec![single].into());
    change
}

fn outgoing(messages: Vec<Message>) -> Vec<Outgoing> {
    let convert = |message: Message| {
        let to = PeerId(message.to);
        match message.get_msg_type() {
            MessageType::MsgSnapshot => Some(Outgoing::Snapshot(to)),
            _ => from_raft(message).map(|message| Outgoing::Message(to, message)),
        }
    };
    messages.into_iter().filter_map(convert).collect()
}

fn hard_state(state: &RaftHardState) -> HardState {
    HardState { term: Term(state.term), vote: state.vote, commit: LogIndex(state.commit) }
}

fn entry_record(region: RegionId, entry: &Entry) -> EntryRecord {
    let payload = payload_of(entry).clone();
    EntryRecord {
        region,
        term: Term(entry.term),
        index: LogIndex(entry.index),
        is_command: !payload.is_empty(),
        payload,
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
        // The next entries or heartbeat carry the commit index, see `set_commits_sent_at_once`.
        skip_bcast_commit: true,
        max_uncommitted_size: raft::NO_LIMIT,
        max_committed_size_per_ready: options.apply_bytes_max,
        ..raft::Config::default()
    }
}
