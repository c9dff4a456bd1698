//! What peers of a region say to each other.

use bytes::Bytes;
use stele_storage::{LostEntry, LostValue, Pair};
use stele_types::{
    KeyRange, LogIndex, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, RegionKind, StoreId,
    Term,
};

/// A message from one peer of a region to another, or from one store to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMessage {
    /// The sender's store.
    pub from_store: StoreId,
    /// The receiver's store.
    pub to_store: StoreId,
    /// The region both belong to.
    pub region: RegionId,
    /// Whose keys the region holds, as the sender knows it.
    pub kind: RegionKind,
    /// The region's user keys as the sender knows them: which snapshot a store without a replica may
    /// take.
    pub range: KeyRange,
    /// The region's epoch as the sender knows it.
    pub epoch: RegionEpoch,
    /// The sender.
    pub from: Peer,
    /// The receiver.
    pub to: Peer,
    /// What is said.
    pub body: Body,
}

impl PeerMessage {
    /// A message from one store to another, of no region: what it speaks of proves itself, so that
    /// nobody's membership matters.
    pub fn between_stores(from_store: StoreId, to_store: StoreId, body: Body) -> Self {
        let nobody = |store| Peer { id: PeerId(0), store, role: PeerRole::Voter };
        Self {
            from_store,
            to_store,
            region: RegionId(0),
            kind: RegionKind::Data,
            range: KeyRange::all(),
            epoch: RegionEpoch::default(),
            from: nobody(from_store),
            to: nobody(to_store),
            body,
        }
    }
}

/// What one peer says to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Raft's own message. A snapshot is never one: it travels as [`SnapshotHeader`] and pairs.
    Raft(RaftMessage),
    /// The receiver is no member at the sender's `epoch`: it destroys itself.
    Gone,
    /// The receiver's region is prepared for a merge, and all its replicas hold the log up to here
    /// (index and term).
    Prepared {
        /// The entry that prepared it.
        prepared: (LogIndex, Term),
    },
    /// The receiver's region was merged away: its log up to here is committed (index and term).
    Merged {
        /// The entry that prepared the merge.
        prepared: (LogIndex, Term),
        /// The region that took the keys.
        target: RegionId,
        /// Its version as of which it has no peer on the receiver's store, if the sender knows.
        left: Option<u64>,
    },
    /// The leader rests: a follower of this term that has committed all up to `last` rests too.
    Hibernate {
        /// The leader's term.
        term: Term,
        /// The leader's last entry, which is committed.
        last: LogIndex,
    },
    /// Someone needs the region: tick again.
    WakeUp,
    /// The sender can't read these values of the region: who can, sends them. With none it wakes nobody,
    /// and asks only to hear if it is no member any more.
    ValueRepairRequest(Vec<LostValue>),
    /// Keys and values that were asked for, as far as they are here.
    ValueRepairReply(Vec<(Bytes, Bytes)>),
    /// The sender does not know what these engine keys of the region hold: who does, says so.
    RangeRepairRequest(KeyRange),
    /// All pairs of a range that was asked for, or of its first part.
    RangeRepairReply(RangeRepairReply),
    /// Between stores: the sender lost these entries of its log. Who has them, sends them.
    EntryRecoveryRequest(Vec<LostEntry>),
    /// Between stores: entries that were asked for and their payloads, as far as they are here.
    EntryRecoveryReply(Vec<(LostEntry, Bytes)>),
}

/// What a range of engine keys holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRepairReply {
    /// The range; the keys of `pairs` and no others are in it.
    pub range: KeyRange,
    /// The entry of the region up to which that is so.
    pub at: LogIndex,
    /// Ascending.
    pub pairs: Vec<Pair>,
}

/// The kinds of Raft message that travel between stores. The numbers are the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RaftKind {
    /// Entries to a follower.
    Append = 0,
    /// Its answer.
    AppendResponse = 1,
    /// Asks for a vote.
    RequestVote = 2,
    /// Its answer.
    RequestVoteResponse = 3,
    /// Asks whether a vote would be given.
    RequestPreVote = 4,
    /// Its answer.
    RequestPreVoteResponse = 5,
    /// The leader lives; `context` names the round.
    Heartbeat = 6,
    /// Its answer, with the same `context`.
    HeartbeatResponse = 7,
    /// Asks the leader to hand over to the sender.
    TransferLeader = 8,
    /// Campaign at once: the leader hands over to the receiver.
    TimeoutNow = 9,
    /// Asks the leader up to where a read must have applied; `context` names the read.
    ReadIndex = 10,
    /// Its answer in `index`, with the same `context`.
    ReadIndexResponse = 11,
}

impl RaftKind {
    /// All of them, by number.
    pub const ALL: [Self; 12] = [
        Self::Append,
        Self::AppendResponse,
        Self::RequestVote,
        Self::RequestVoteResponse,
        Self::RequestPreVote,
        Self::RequestPreVoteResponse,
        Self::Heartbeat,
        Self::HeartbeatResponse,
        Self::TransferLeader,
        Self::TimeoutNow,
        Self::ReadIndex,
        Self::ReadIndexResponse,
    ];

    /// The kind of a number on the wire.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// A Raft message; the fields mean what the `raft` crate's do. Sender and receiver are the
/// [`PeerMessage`]'s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftMessage {
    /// Its kind.
    pub kind: RaftKind,
    /// The sender's term; 0 in [`RaftKind::ReadIndex`] and [`RaftKind::TransferLeader`].
    pub term: Term,
    /// Term of the entry before `entries`, or of the sender's last entry.
    pub log_term: Term,
    /// Index of the entry before `entries`, of the sender's last entry, or of what is acknowledged.
    pub index: LogIndex,
    /// The sender's commit index, or what it may tell the receiver of it.
    pub commit: LogIndex,
    /// Term of the entry at `commit`, in votes. A refusal of one may come unasked, to tell of it.
    pub commit_term: Term,
    /// Whether an answer says no.
    pub reject: bool,
    /// Where a rejecting follower's log may match.
    pub reject_hint: LogIndex,
    /// The index a follower asks a snapshot at; 0 for none.
    pub request_snapshot: LogIndex,
    /// The sender's priority in elections.
    pub priority: i64,
    /// What an answer repeats.
    pub context: Bytes,
    /// Entries in order; only [`RaftKind::Append`] has any.
    pub entries: Vec<RaftEntry>,
}

impl RaftMessage {
    /// A message of that kind and term, all else zero.
    pub fn new(kind: RaftKind, term: Term) -> Self {
        Self {
            kind,
            term,
            log_term: Term(0),
            index: LogIndex(0),
            commit: LogIndex(0),
            commit_term: Term(0),
            reject: false,
            reject_hint: LogIndex(0),
            request_snapshot: LogIndex(0),
            priority: 0,
            context: Bytes::new(),
            entries: Vec::new(),
        }
    }
}

/// An entry on its way. Its payload is a [`stele_types::Command`], or empty: a new leader's no-op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftEntry {
    /// Term of the entry.
    pub term: Term,
    /// Index of the entry.
    pub index: LogIndex,
    /// The command's bytes, unchanged from client to disk.
    pub payload: Bytes,
}

/// What precedes a snapshot's pairs: whose it is, and where its log begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// The region as of `index`: range, epoch and members.
    pub region: Region,
    /// The entry up to which the pairs are applied, and its term.
    pub at: (LogIndex, Term),
    /// The sender's term.
    pub leader_term: Term,
    /// The leader that sends it, or a voter that can't be elected without the receiver.
    pub from: Peer,
    /// The receiver.
    pub to: Peer,
    /// Bytes of keys and values to come, about.
    pub bytes: u64,
}
