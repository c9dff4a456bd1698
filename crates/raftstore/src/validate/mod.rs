//! What a message of a peer must be before Raft sees it. The `raft` crate (0.7.0) trusts its peers:
//! it stops the process on some messages, and takes what is not so from others.
//!
//! | without the check | happens in `raft` | check |
//! |---|---|---|
//! | heartbeat with a commit index beyond our log | `commit_to`: fatal | [`heartbeat`] |
//! | entries that do not follow `index` | `find_conflict`, `truncate_and_append`: slice out of range, fatal | [`append`] |
//! | `log_term` 0 at an index beyond our log: the term of what is not there is 0, so it matches | `truncate_and_append`, `commit_to`: fatal | [`append`] |
//! | an entry of term 0 beyond our log: "matches" in the same way | acknowledges what is not there; `commit_to`: fatal | [`append`] |
//! | a preparation of term 0, or a refusal that tells so, at an index beyond our log: as above | `commit_to`: fatal | `Peer::holds` |
//! | entries of falling or future terms | Raft's log matching is lost | [`append`] |
//! | term near 2^64, then a campaign | `become_candidate`: overflow | [`check`] |
//! | index near 2^64 | `maybe_update`, `maybe_decr_to`: overflow | [`check`] |
//! | term 0 where a term belongs: taken for a local message | `send`: fatal (votes); a deposed leader heard; `maybe_commit` of what is not there: fatal (read index) | [`check`] |
//! | a term where none belongs, passed on to the leader | `send`: fatal | [`check`] |
//! | acknowledgement beyond our log | entries count as replicated that are not; the next append to that peer stops *it* | [`answer`] |
//! | answers from ourselves | our disk's progress is forged | [`check`] |
//! | vote that wins while entries are on their way to the disk | `become_leader`: assertion | [`check`] |
//! | hand-over by a peer that does not lead | an election without pre-vote inside a lease | [`check`] |
//! | another leader in a leader's term | `leader_id` is replaced | [`check`] |
//! | a read without context, or reads without bound | never confirmed, never forgotten | [`read`] |
//! | a read or transfer that a follower would pass on | may go around for ever, in our name | [`check`] |
//! | snapshot at index 0, or with members that contradict each other | taken for none; `restore`: fatal | [`check_snapshot`] |

use crate::admin;
use crate::messages::{PeerMessage, RaftKind, RaftMessage, SnapshotHeader};
use crate::wire::{CONTEXT_BYTES_MAX, ENTRIES_MAX};
use stele_types::mutant;
use stele_types::{LogIndex, Peer, PeerId, RegionPhase, StoreId, Term};

/// Terms and indexes are below this: nobody reaches it by counting.
const NUMBER_MAX: u64 = 1 << 62;
/// Most reads that wait for a quorum at once.
const PENDING_READS_MAX: usize = 4096;

/// What a message is held against: the state of the peer that receives it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerState {
    /// The receiver.
    pub me: PeerId,
    /// Its term.
    pub term: Term,
    /// Its last entry, durable or not.
    pub last: LogIndex,
    /// Its last durable entry.
    pub persisted: LogIndex,
    /// Who leads in its term, as far as it knows.
    pub leader: Option<PeerId>,
    /// Whether it leads.
    pub is_leader: bool,
    /// Whether the sender is a member, as far as it knows.
    pub from_is_member: bool,
    /// How many reads wait for a quorum.
    pub pending_reads: usize,
}

/// Says why a message is refused. What passes makes Raft neither stop nor believe what cannot be.
pub(crate) fn check(
    message: &RaftMessage,
    from: PeerId,
    state: &PeerState,
) -> Result<(), &'static str> {
    if from == state.me || from.0 == 0 {
        return Err("sent by nobody else");
    }
    check_numbers(message)?;
    if message.term < state.term && !carries_no_term(message.kind) {
        // Raft answers it, or lets it go, without looking further.
        return Ok(());
    }
    let same_term = message.term == state.term;
    let leads = state.leader == Some(from) && same_term;
    match message.kind {
        RaftKind::Append | RaftKind::Heartbeat
            if same_term && state.leader.is_some_and(|leader| leader != from) =>
        {
            Err("a second leader in one term")
        }
        RaftKind::Append => append(message),
        RaftKind::Heartbeat => heartbeat(message, state),
        _ if needs_member(message.kind) && !state.from_is_member => Err("from no member"),
        RaftKind::AppendResponse | RaftKind::HeartbeatResponse if same_term && state.is_leader => {
            answer(message, state)
        }
        RaftKind::RequestVoteResponse | RaftKind::RequestPreVoteResponse
            if state.persisted != state.last =>
        {
            Err("a vote while entries are on their way to the disk")
        }
        RaftKind::RequestVote | RaftKind::RequestPreVote if message.log_term > message.term => {
            Err("a log ahead of its term")
        }
        RaftKind::TimeoutNow if !leads && !mutant::active("raftstore.handover_by_anyone") => {
            Err("handed over by who does not lead")
        }
        RaftKind::TimeoutNow if state.persisted != state.last => {
            Err("handed over while entries are on their way to the disk")
        }
        RaftKind::ReadIndex => read(message, state),
        RaftKind::ReadIndexResponse if !leads => Err("a read confirmed by who does not lead"),
        RaftKind::TransferLeader if !state.is_leader => Err("asked of who does not lead"),
        _ => Ok(()),
    }
}

/// What holds whatever the receiver's state.
fn check_numbers(message: &RaftMessage) -> Result<(), &'static str> {
    let terms = [message.term, message.log_term, message.commit_term];
    let indexes = [message.index, message.commit, message.reject_hint, message.request_snapshot];
    let large = |number: u64| number >= NUMBER_MAX;
    let unchecked = mutant::active("raftstore.huge_numbers");
    if !unchecked && terms.iter().any(|term| large(term.0)) {
        return Err("implausible term");
    }
    if !unchecked && indexes.iter().any(|index| large(index.0)) {
        return Err("implausible index");
    }
    if carries_no_term(message.kind) != (message.term.0 == 0) {
        return Err("a term where none belongs, or none where one belongs");
    }
    if message.context.len() > CONTEXT_BYTES_MAX {
        return Err("context too long");
    }
    let is_append = message.kind == RaftKind::Append;
    if message.entries.len() > ENTRIES_MAX || !is_append && !message.entries.is_empty() {
        return Err("too many entries");
    }
    Ok(())
}

fn carries_no_term(kind: RaftKind) -> bool {
    matches!(kind, RaftKind::ReadIndex | RaftKind::TransferLeader)
}

fn needs_member(kind: RaftKind) -> bool {
    use RaftKind::{
        AppendResponse, HeartbeatResponse, ReadIndex, ReadIndexResponse, RequestPreVoteResponse,
        RequestVoteResponse, TransferLeader,
    };
    matches!(
        kind,
        AppendResponse
            | HeartbeatResponse
            | ReadIndex
            | ReadIndexResponse
            | RequestPreVoteResponse
            | RequestVoteResponse
            | TransferLeader
    )
}

/// The leader tells of a commit index only what the receiver acknowledged.
fn heartbeat(message: &RaftMessage, state: &PeerState) -> Result<(), &'static str> {
    if message.commit > state.last && !mutant::active("raftstore.heartbeat_commit_unchecked") {
        return Err("a commit index beyond the log");
    }
    Ok(())
}

/// Entries follow each other from `index` on, and so do their terms, up to the message's.
fn append(message: &RaftMessage) -> Result<(), &'static str> {
    if message.log_term > message.term {
        return Err("a log ahead of its term");
    }
    if (message.log_term.0 == 0) != (message.index.0 == 0) {
        return Err("the term of no entry");
    }
    let (mut index, mut term) = (message.index, message.log_term.max(Term(1)));
    for entry in &message.entries {
        index = index.next();
        if entry.index != index && !mutant::active("raftstore.append_gap_unchecked") {
            return Err("entries with a gap");
        }
        if entry.term < term || entry.term > message.term {
            return Err("entries of falling or future terms");
        }
        if admin::is_admin(&entry.payload) && admin::parse(&entry.payload).is_none() {
            return Err("a malformed admin entry");
        }
        term = entry.term;
    }
    if index.0 >= NUMBER_MAX {
        return Err("implausible index");
    }
    Ok(())
}

/// A follower knows of nothing beyond its leader's log.
fn answer(message: &RaftMessage, state: &PeerState) -> Result<(), &'static str> {
    let told = [message.index, message.commit, message.reject_hint, message.request_snapshot];
    if told.iter().any(|index| *index > state.last)
        && !mutant::active("raftstore.ack_beyond_last_unchecked")
    {
        return Err("an answer about what is beyond the log");
    }
    Ok(())
}

fn read(message: &RaftMessage, state: &PeerState) -> Result<(), &'static str> {
    if !state.is_leader {
        return Err("asked of who does not lead");
    }
    if message.context.is_empty() {
        return Err("a read without context");
    }
    if state.pending_reads >= PENDING_READS_MAX {
        return Err("too many reads wait");
    }
    Ok(())
}

/// Says why the envelope of a message to this store is refused.
pub(crate) fn check_envelope(message: &PeerMessage, here: StoreId) -> Result<(), &'static str> {
    if message.to_store != here {
        return Err("meant for another store");
    }
    if message.region.0 == 0 {
        return Err("of no region");
    }
    check_pair(&message.from, &message.to)?;
    if message.from.store != message.from_store || message.to.store != message.to_store {
        return Err("a peer on another store than it says");
    }
    if message.range.is_empty() {
        return Err("a range without keys");
    }
    Ok(())
}

/// Says why the envelope of a message from one store to another is refused.
pub(crate) fn check_stores(message: &PeerMessage, here: StoreId) -> Result<(), &'static str> {
    if message.to_store != here {
        return Err("meant for another store");
    }
    match message.from_store.0 == 0 || message.from_store == here {
        true => Err("sent by no other store"),
        false => Ok(()),
    }
}

/// Says why a snapshot for this peer is refused, given the peer's term and what it has applied.
pub(crate) fn check_snapshot(
    header: &SnapshotHeader,
    term: Term,
    applied: LogIndex,
) -> Result<(), &'static str> {
    let region = &header.region;
    check_pair(&header.from, &header.to)?;
    if header.at.0.0 == 0 || header.at.1.0 == 0 || header.at.1 > header.leader_term {
        return Err("taken at no entry");
    }
    if header.at.0.0 >= NUMBER_MAX || header.leader_term.0 >= NUMBER_MAX {
        return Err("implausible term or index");
    }
    if header.leader_term < term {
        return Err("of a deposed leader");
    }
    if header.at.0 <= applied {
        return Err("older than what is here");
    }
    if region.id.0 == 0 || region.range.is_empty() || region.phase == RegionPhase::Tombstone {
        return Err("of no region");
    }
    admin::check_members(region).map_err(|_| "members that contradict each other")?;
    let same_place =
        |peer: &Peer| region.peer(peer.id).is_some_and(|member| member.store == peer.store);
    if !same_place(&header.to) {
        return Err("the receiver is no member");
    }
    Ok(())
}

fn check_pair(from: &Peer, to: &Peer) -> Result<(), &'static str> {
    let named = [from.id.0, to.id.0, from.store.0, to.store.0].iter().all(|id| *id != 0);
    if !named || from.id == to.id || from.store == to.store {
        return Err("not from one peer to another");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
