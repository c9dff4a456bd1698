//! Checks of a peer's message before Raft processes it. The `raft` crate (0.7.0) trusts its peers:
//! it panics on some messages, and accepts impossible states from others.
//!
//! | without the check | effect in `raft` | check |
//! |---|---|---|
//! | heartbeat with a commit index beyond our log | `commit_to`: panic | [`heartbeat`] |
//! | entries that do not follow `index` | `find_conflict`, `truncate_and_append`: slice out of range, panic | [`append`] |
//! | `log_term` 0 at an index beyond our log: an absent entry has term 0, so it matches | `truncate_and_append`, `commit_to`: panic | [`append`] |
//! | an entry of term 0 beyond our log: matches in the same way | acknowledges an absent entry; `commit_to`: panic | [`append`] |
//! | a preparation, or a commit index in a vote refusal, of term 0 at an index beyond our log: as above | `commit_to`: panic | `Replica::has_entry` |
//! | entries of falling or future terms | log matching is lost | [`append`] |
//! | term near 2^64, then a campaign | `become_candidate`: overflow | [`check`] |
//! | index near 2^64 | `maybe_update`, `maybe_decr_to`: overflow | [`check`] |
//! | term 0 in a message that needs a term: taken for a local message | `send`: panic (votes); a deposed leader is accepted; `maybe_commit` of an absent entry: panic (read index) | [`check`] |
//! | a term in a message without one, forwarded to the leader | `send`: panic | [`check`] |
//! | acknowledgement beyond our log | entries count as replicated that are not; the next append makes *that peer* panic | [`answer`] |
//! | replies from ourselves | our own disk's progress is forged | [`check`] |
//! | vote that wins while entries are in flight to the disk | `become_leader`: assertion | [`check`] |
//! | leadership transfer by a non-leader | an election without pre-vote inside a lease | [`check`] |
//! | another leader in a leader's term | `leader_id` is replaced | [`check`] |
//! | a read without context, or reads without limit | never confirmed, never dropped | [`read`] |
//! | a read or transfer that a follower would forward | may circulate permanently, in our name | [`check`] |
//! | snapshot at index 0, or with members that contradict each other | treated as no snapshot; `restore`: panic | [`check_snapshot`] |

use crate::admin;
use crate::messages::{PeerMessage, RaftKind, RaftMessage, SnapshotHeader};
use crate::wire::{CONTEXT_BYTES_MAX, ENTRIES_MAX};
use stele_types::{LogIndex, Peer, PeerId, RegionPhase, StoreId, Term};

/// Exclusive limit of terms and indexes; counting does not reach it.
const NUMBER_MAX: u64 = 1 << 62;
const PENDING_READS_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerState {
    pub receiver: PeerId,
    pub term: Term,
    /// Its last entry, durable or not.
    pub last: LogIndex,
    pub persisted: LogIndex,
    pub leader: Option<PeerId>,
    pub is_leader: bool,
    pub from_is_member: bool,
    pub pending_reads: usize,
}

/// Checks a message and returns the reason for a refusal. A message that passes makes Raft neither
/// panic nor accept an impossible state.
pub(crate) fn check(
    message: &RaftMessage,
    from: PeerId,
    state: &PeerState,
) -> Result<(), &'static str> {
    if from == state.receiver || from.0 == 0 {
        return Err("not sent by another peer");
    }
    check_numbers(message)?;
    if message.term < state.term && !has_no_term(message.kind) {
        // Raft answers or ignores it by its term alone.
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
        _ if is_for_members_only(message.kind) && !state.from_is_member => {
            Err("the sender is not a member")
        }
        RaftKind::AppendResponse | RaftKind::HeartbeatResponse if same_term && state.is_leader => {
            answer(message, state)
        }
        RaftKind::RequestVoteResponse | RaftKind::RequestPreVoteResponse
            if state.persisted != state.last =>
        {
            Err("a vote while entries are in flight to the disk")
        }
        RaftKind::RequestVote | RaftKind::RequestPreVote if message.log_term > message.term => {
            Err("a log ahead of its term")
        }
        // bug replica.handover_by_anyone: never
        RaftKind::TimeoutNow if !leads => Err("leadership transfer by a non-leader"),
        RaftKind::TimeoutNow if state.persisted != state.last => {
            Err("leadership transfer while entries are in flight to the disk")
        }
        RaftKind::ReadIndex => read(message, state),
        RaftKind::ReadIndexResponse if !leads => Err("a read confirmed by a non-leader"),
        RaftKind::TransferLeader if !state.is_leader => Err("sent to a non-leader"),
        _ => Ok(()),
    }
}

/// Checks the rules that do not depend on the receiver's state.
fn check_numbers(message: &RaftMessage) -> Result<(), &'static str> {
    let terms = [message.term, message.log_term, message.commit_term];
    let indexes = [message.index, message.commit, message.reject_hint, message.request_snapshot];
    let large = |number: u64| number >= NUMBER_MAX;
    // bug replica.huge_numbers: never
    if terms.iter().any(|term| large(term.0)) {
        return Err("implausible term");
    }
    // bug replica.huge_numbers: never
    if indexes.iter().any(|index| large(index.0)) {
        return Err("implausible index");
    }
    if has_no_term(message.kind) != (message.term.0 == 0) {
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

fn has_no_term(kind: RaftKind) -> bool {
    matches!(kind, RaftKind::ReadIndex | RaftKind::TransferLeader)
}

fn is_for_members_only(kind: RaftKind) -> bool {
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

/// Checks a heartbeat: the leader sends a commit index of at most what the receiver acknowledged.
fn heartbeat(message: &RaftMessage, state: &PeerState) -> Result<(), &'static str> {
    // bug replica.heartbeat_commit_unchecked: never
    if message.commit > state.last {
        return Err("a commit index beyond the log");
    }
    Ok(())
}

/// Checks an append: entries are contiguous after `index`, and their terms ascend up to the
/// message's.
fn append(message: &RaftMessage) -> Result<(), &'static str> {
    if message.log_term > message.term {
        return Err("a log ahead of its term");
    }
    if (message.log_term.0 == 0) != (message.index.0 == 0) {
        return Err("a log term for no entry");
    }
    let (mut index, mut term) = (message.index, message.log_term.max(Term(1)));
    for entry in &message.entries {
        index = index.next();
        // bug replica.append_gap_unchecked: never
        if entry.index != index {
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

/// Checks a reply: a follower has nothing beyond its leader's log.
fn answer(message: &RaftMessage, state: &PeerState) -> Result<(), &'static str> {
    let indexes = [message.index, message.commit, message.reject_hint, message.request_snapshot];
    // bug replica.ack_beyond_last_unchecked: never
    if indexes.iter().any(|index| *index > state.last) {
        return Err("a reply about entries beyond the log");
    }
    Ok(())
}

fn read(message: &RaftMessage, state: &PeerState) -> Result<(), &'static str> {
    if !state.is_leader {
        return Err("sent to a non-leader");
    }
    if message.context.is_empty() {
        return Err("a read without context");
    }
    if state.pending_reads >= PENDING_READS_MAX {
        return Err("too many reads wait");
    }
    Ok(())
}

pub(crate) fn check_envelope(message: &PeerMessage, here: StoreId) -> Result<(), &'static str> {
    if message.to_store != here {
        return Err("addressed to another store");
    }
    if message.region.0 == 0 {
        return Err("no valid region");
    }
    check_pair(&message.from, &message.to)?;
    if message.from.store != message.from_store || message.to.store != message.to_store {
        return Err("a peer's store differs from the envelope's");
    }
    if message.range.is_empty() {
        return Err("an empty range");
    }
    Ok(())
}

pub(crate) fn check_stores(message: &PeerMessage, here: StoreId) -> Result<(), &'static str> {
    if message.to_store != here {
        return Err("addressed to another store");
    }
    match message.from_store.0 == 0 || message.from_store == here {
        true => Err("not sent by another store"),
        false => Ok(()),
    }
}

pub(crate) fn check_snapshot(
    header: &SnapshotHeader,
    term: Term,
    applied: LogIndex,
) -> Result<(), &'static str> {
    let region = &header.region;
    check_pair(&header.from, &header.to)?;
    if header.at.0.0 == 0 || header.at.1.0 == 0 || header.at.1 > header.leader_term {
        return Err("a snapshot at no entry");
    }
    if header.at.0.0 >= NUMBER_MAX || header.leader_term.0 >= NUMBER_MAX {
        return Err("implausible term or index");
    }
    if header.leader_term < term {
        return Err("a snapshot of a deposed leader");
    }
    if header.at.0 <= applied {
        return Err("a snapshot not newer than the local state");
    }
    if region.id.0 == 0 || region.range.is_empty() || region.phase == RegionPhase::Tombstone {
        return Err("no valid region");
    }
    admin::check_members(region).map_err(|_| "members that contradict each other")?;
    let same_place =
        |peer: &Peer| region.peer(peer.id).is_some_and(|member| member.store == peer.store);
    if !same_place(&header.to) {
        return Err("the receiver is not a member");
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
