//! Messages between peers of a region and between stores.

use crate::CommittedMerges;
use bytes::Bytes;
use stele_storage::{LostEntry, LostValue, Pair};
use stele_types::{
    KeyRange, LogIndex, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, RegionKind, StoreId,
    Term,
};

/// Message from one peer of a region to another, or from one store to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMessage {
    /// Sending store.
    pub from_store: StoreId,
    /// Receiving store.
    pub to_store: StoreId,
    /// Region of both peers.
    pub region: RegionId,
    /// Kind of the region, as the sender knows it.
    pub kind: RegionKind,
    /// User keys of the region, as the sender knows them.
    pub range: KeyRange,
    /// Epoch of the region, as the sender knows it.
    pub epoch: RegionEpoch,
    /// Sending peer.
    pub from: Peer,
    /// Receiving peer.
    pub to: Peer,
    /// Content.
    pub body: Body,
}

impl PeerMessage {
    /// Builds a message between stores, outside any region. Its content is verified by checksum, so
    /// the membership of the sender does not matter.
    pub fn between_stores(from_store: StoreId, to_store: StoreId, body: Body) -> Self {
        let unnamed = |store| Peer { id: PeerId(0), store, role: PeerRole::Voter };
        Self {
            from_store,
            to_store,
            region: RegionId(0),
            kind: RegionKind::Data,
            range: KeyRange::all(),
            epoch: RegionEpoch::default(),
            from: unnamed(from_store),
            to: unnamed(to_store),
            body,
        }
    }
}

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Raft message. Snapshots are not Raft messages: they are streamed as [`SnapshotHeader`] and
    /// pairs.
    Raft(RaftMessage),
    /// The receiver is not a member at the sender's `epoch`: it destroys itself.
    Gone,
    /// The receiver's region is prepared for a merge, and all its replicas hold the log up to this
    /// entry.
    Prepared {
        /// Index and term of the entry that prepared the merge.
        prepared: (LogIndex, Term),
    },
    /// The receiver's region was merged into another one: its log is committed up to this entry.
    Merged {
        /// Index and term of the entry that prepared the merge.
        prepared: (LogIndex, Term),
        /// Region that now owns the keys.
        target: RegionId,
        /// Version of the target as of which it has no peer on the receiver's store, if the sender
        /// knows one.
        left: Option<u64>,
    },
    /// The leader hibernates: a follower of this term that has committed everything up to `last`
    /// hibernates too.
    Hibernate {
        /// The leader's term.
        term: Term,
        /// The leader's last entry; it is committed.
        last: LogIndex,
    },
    /// Wakes a hibernating replica.
    WakeUp,
    /// The sender cannot read these values of the region and requests copies. An empty list wakes
    /// no replica; it only asks whether the sender is still a member.
    ValueRepairRequest(Vec<LostValue>),
    /// Requested keys and values, as far as the sender can read them.
    ValueRepairReply(Vec<(Bytes, Bytes)>),
    /// The sender cannot read these engine keys of the region and requests their pairs.
    RangeRepairRequest(KeyRange),
    /// All pairs of a requested range, or of its first part.
    RangeRepairReply(RangeRepairReply),
    /// Between stores: the sender lost these entries of its log and requests copies.
    EntryRecoveryRequest(Vec<LostEntry>),
    /// Between stores: requested entries and their payloads, as far as the sender has them.
    EntryRecoveryReply(Vec<(LostEntry, Bytes)>),
    /// Between stores: asks what the receiver's store knows of the outcome of a merge.
    MergeQuery(MergeQuery),
    /// Between stores: answer to [`Body::MergeQuery`].
    MergeAnswer(MergeAnswer),
    /// The sender's replica was removed, and the receiver was a member at the sender's `epoch`, which
    /// is newer than the receiver's: these were the members.
    Members(Vec<Peer>),
}

/// Preparation of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preparation {
    /// Region that is prepared.
    pub source: RegionId,
    /// Index and term of the entry that prepared it.
    pub prepared: (LogIndex, Term),
    /// Region that is to take over its keys.
    pub target: RegionId,
    /// Epoch at which the target may do so.
    pub target_epoch: RegionEpoch,
}

/// Question for the outcome of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeQuery {
    /// The preparation.
    pub preparation: Preparation,
    /// If the target's log has not decided, its leader refuses the merge.
    pub refuse: bool,
}

/// What a store knows of the outcome of a merge. The numbers are part of the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: the target may still commit the merge, or has committed it.
    Unknown = 0,
    /// The target's log refused the merge: it passed the epoch of the preparation without a commit.
    Refused = 1,
    /// The target's replica on this store was removed before it passed that epoch, and will not come
    /// again as the member that it was; the source is not merged here.
    TargetLost = 2,
}

impl Verdict {
    /// Returns the verdict of a wire number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Unknown, Self::Refused, Self::TargetLost].get(usize::from(number)).copied()
    }
}

/// Answer to a [`MergeQuery`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeAnswer {
    /// Region that is prepared.
    pub source: RegionId,
    /// Index and term of the entry that prepared it.
    pub prepared: (LogIndex, Term),
    /// What the sender knows.
    pub verdict: Verdict,
    /// Stores of the target's members, as far as the sender knows.
    pub stores: Vec<StoreId>,
}

/// Content of a range of engine keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRepairReply {
    /// Range; it holds the keys of `pairs` and no others.
    pub range: KeyRange,
    /// Index of the last applied entry at which this holds.
    pub at: LogIndex,
    /// Pairs, ascending by key.
    pub pairs: Vec<Pair>,
}

/// Kinds of Raft message between stores. The numbers are part of the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RaftKind {
    /// Entries to a follower.
    Append = 0,
    /// Reply to [`RaftKind::Append`].
    AppendResponse = 1,
    /// Vote request.
    RequestVote = 2,
    /// Reply to [`RaftKind::RequestVote`].
    RequestVoteResponse = 3,
    /// Pre-vote request.
    RequestPreVote = 4,
    /// Reply to [`RaftKind::RequestPreVote`].
    RequestPreVoteResponse = 5,
    /// Heartbeat of the leader; `context` identifies the read index round.
    Heartbeat = 6,
    /// Reply to [`RaftKind::Heartbeat`], with the same `context`.
    HeartbeatResponse = 7,
    /// Asks the leader to transfer leadership to the sender.
    TransferLeader = 8,
    /// Leadership transfer: the receiver campaigns at once.
    TimeoutNow = 9,
    /// Asks the leader for a read index; `context` identifies the read.
    ReadIndex = 10,
    /// Reply to [`RaftKind::ReadIndex`]: the read index in `index`, with the same `context`.
    ReadIndexResponse = 11,
}

impl RaftKind {
    /// All kinds, in the order of their numbers.
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

    /// Returns the kind of a wire number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Raft message. The fields have the meaning of the `raft` crate. [`PeerMessage`] names the sender
/// and the receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftMessage {
    /// Kind of message.
    pub kind: RaftKind,
    /// The sender's term; 0 in [`RaftKind::ReadIndex`] and [`RaftKind::TransferLeader`].
    pub term: Term,
    /// Term of the entry before `entries`, or of the sender's last entry.
    pub log_term: Term,
    /// Index of the entry before `entries`, of the sender's last entry, or of the acknowledged
    /// entry.
    pub index: LogIndex,
    /// The sender's commit index, or the part of it that the receiver may learn.
    pub commit: LogIndex,
    /// Term of the entry at `commit`, in votes. A vote refusal may be sent without a request, to
    /// announce the commit index.
    pub commit_term: Term,
    /// Whether a reply is a refusal.
    pub reject: bool,
    /// Index at which the log of a rejecting follower may match.
    pub reject_hint: LogIndex,
    /// Index at which a follower requests a snapshot; 0 for none.
    pub request_snapshot: LogIndex,
    /// The sender's priority in elections.
    pub priority: i64,
    /// Bytes that the reply repeats.
    pub context: Bytes,
    /// Entries in order; only [`RaftKind::Append`] has any.
    pub entries: Vec<RaftEntry>,
}

impl RaftMessage {
    /// Returns a message of this kind and term with all other fields zero.
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

/// Entry in a message. Its payload is a [`stele_types::Command`], or empty for the no-op of a new
/// leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftEntry {
    /// Term of the entry.
    pub term: Term,
    /// Index of the entry.
    pub index: LogIndex,
    /// The command's bytes, unchanged from client to disk.
    pub payload: Bytes,
}

/// Header of a snapshot, sent before its pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// Region as of `at`: range, epoch and members.
    pub region: Region,
    /// Index and term of the last entry applied in the pairs.
    pub at: (LogIndex, Term),
    /// The sender's term.
    pub leader_term: Term,
    /// Sender: the leader, or a voter that cannot be elected without the receiver.
    pub from: Peer,
    /// Receiving peer.
    pub to: Peer,
    /// Approximate bytes of keys and values that follow.
    pub bytes: u64,
    /// Merges that the region committed, as the sender knows them; `None` from earlier versions.
    pub merges: Option<CommittedMerges>,
}
