//! Outputs of the core.

use crate::input::RequestId;
use crate::messages::{PeerMessage, SnapshotHeader};
use std::sync::Arc;
use stele_storage::{Pair, StorageEngine};
use stele_types::{KeyRange, LogBatch, LogIndex, Peer, PeerId, Region, RegionId, StoreId, Term};

/// Id of a batch handed to the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Work for the owner of the store, in this order: send, append, reply.
pub struct Outputs<E: StorageEngine> {
    /// Messages to other stores.
    pub messages: Vec<PeerMessage>,
    /// Batch to make durable and then to report as [`crate::Input::Appended`]; at most one is in
    /// flight.
    pub append: Option<Append>,
    /// Replies to requests.
    pub replies: Vec<(RequestId, Reply)>,
    /// Snapshots to send.
    pub snapshots: Vec<SendSnapshot<E>>,
    /// Changes of regions.
    pub events: Vec<Event>,
    /// A region's log exceeds its limit and only a checkpoint allows truncation: run one on another
    /// thread. Repeated at each tick until a checkpoint is made.
    pub wants_checkpoint: bool,
}

impl<E: StorageEngine> Default for Outputs<E> {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            append: None,
            replies: Vec::new(),
            snapshots: Vec::new(),
            events: Vec::new(),
            wants_checkpoint: false,
        }
    }
}

/// Batch of records of many regions: one write, one sync.
#[derive(Clone, Debug)]
pub struct Append {
    /// Id of the batch.
    pub ticket: Ticket,
    /// Records, in order.
    pub batch: Arc<LogBatch>,
}

/// Snapshot to stream: its header, then the pairs of `ranges` in `view`, ascending.
pub struct SendSnapshot<E: StorageEngine> {
    /// Header, sent before the pairs.
    pub header: SnapshotHeader,
    /// Receiving store.
    pub to_store: StoreId,
    /// View of the engine as of `header.at`.
    pub view: Arc<E::View>,
    /// Ranges of engine keys to send.
    pub ranges: Vec<KeyRange>,
}

/// Outcome of a request. Each request gets exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The request was executed.
    Done(Done),
    /// The request was certainly not executed, now or later. It must change before it is repeated:
    /// its target or its contents.
    Refused(Refusal),
    /// The request was certainly not executed, now or later. The same request may succeed later.
    Busy(Busy),
    /// The request may have been executed, or may still be. A caller that repeats it may execute it
    /// twice.
    Unknown(Unknown),
}

/// Result of an executed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The write is on a quorum's disks and applied here.
    Written {
        /// Index of its entry.
        index: LogIndex,
        /// Term of its entry.
        term: Term,
        /// Time spent per stage.
        timings: Timings,
    },
    /// The comparison was made. If it held, the change is on a quorum's disks and applied here.
    Cas {
        /// Whether the comparison held.
        succeeded: bool,
        /// Pair that the key held.
        previous: Option<Pair>,
        /// Time spent per stage.
        timings: Timings,
    },
    /// A view taken from now on holds all that was acknowledged before the read arrived.
    ReadReady {
        /// Index of the last applied entry.
        applied: LogIndex,
    },
    /// The change has taken effect here.
    Admin {
        /// Region after the change.
        region: Region,
    },
    /// The offered snapshot is accepted.
    SnapshotAccepted {
        /// Ranges of engine keys to send, ascending.
        ranges: Vec<KeyRange>,
    },
}

/// Time of a write, per stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From arrival to proposal.
    pub queue_nanos: u64,
    /// From proposal to the local disk.
    pub append_nanos: u64,
    /// From the local disk, or from proposal if the quorum was faster, to the commit.
    pub replicate_nanos: u64,
    /// From the commit to the end of its application.
    pub apply_nanos: u64,
}

/// Reason for which a request was refused. It had no effect and has none later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another peer leads, or the region has no leader.
    NotLeader {
        /// Leader, if known.
        leader: Option<Peer>,
    },
    /// This store has no replica of the region.
    RegionNotFound,
    /// The region's range has changed.
    EpochNotMatch {
        /// Current region, and the regions created by its last split.
        current: Vec<Region>,
    },
    /// The request names the term of an earlier leader.
    StaleTerm {
        /// Leader, if known.
        leader: Option<Peer>,
    },
    /// Another leader's entry was committed in place of the request's, or another peer became leader
    /// than the one requested.
    Superseded {
        /// Leader, if known.
        leader: Option<Peer>,
    },
    /// This store has another peer of the region.
    MismatchPeer {
        /// Requested peer.
        asked: PeerId,
        /// Peer on this store.
        actual: PeerId,
    },
    /// The command exceeds the size limit.
    TooLarge {
        /// Size of the command in bytes.
        bytes: u64,
        /// Limit in bytes.
        bytes_max: u64,
    },
    /// The store has stopped; it did not take the request.
    StoreStopped,
    /// The request is invalid. The text gives the reason.
    Invalid(String),
}

/// Reason for which a request was not served now. It had no effect and has none later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Busy {
    /// A limit in bytes is reached, or another operation must end first.
    Wait {
        /// Name of the limit or operation.
        reason: &'static str,
    },
    /// The deadline passed before the request was proposed.
    DeadlinePassed,
    /// The device is full; only deletes are admitted.
    DiskFull,
    /// No leader confirmed the read in time.
    ReadIndexNotReady,
    /// The region is prepared for a merge.
    Merging,
}

/// Reason for which the outcome of a request is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// This peer lost its leadership before the entry was committed. A later leader may commit it.
    LeadershipLost,
    /// The replica left this store before the entry was applied.
    ReplicaRemoved,
    /// The store stopped with the request in progress.
    StoreStopped,
    /// The target of the leadership transfer did not become leader in time; it still may.
    TransferTimedOut,
    /// An earlier part of the request was executed, a later one was not.
    PartlyExecuted,
}

/// Reason for which a request was certainly not executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    Refused(Refusal),
    Busy(Busy),
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Busy> for Rejection {
    fn from(busy: Busy) -> Self {
        Self::Busy(busy)
    }
}

impl From<Rejection> for Reply {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Refused(refusal) => Self::Refused(refusal),
            Rejection::Busy(busy) => Self::Busy(busy),
        }
    }
}

/// Change of a region on this store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This store's peer became leader and has applied the first entry of its term.
    BecameLeader {
        /// Region that it leads.
        region: RegionId,
        /// Its term.
        term: Term,
    },
    /// This store's peer is no longer leader.
    LostLeader {
        /// Region that it led.
        region: RegionId,
    },
    /// A split or a snapshot created a replica.
    RegionCreated(Region),
    /// The range or the members changed.
    RegionChanged(Region),
    /// The replica was removed from this store.
    RegionDestroyed(RegionId),
}

/// Raft role of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Follower.
    #[default]
    Follower,
    /// Candidate or pre-candidate.
    Candidate,
    /// Leader.
    Leader,
}

/// Traffic of a region since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Commands applied.
    pub write_ops: u64,
    /// Bytes of these commands.
    pub write_bytes: u64,
    /// Reads confirmed by the core and by leases.
    pub read_ops: u64,
}

/// State of a region, as this store's peer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionReport {
    /// Region descriptor.
    pub region: Region,
    /// This store's peer.
    pub peer: Peer,
    /// Raft role of that peer.
    pub role: Role,
    /// Whether the peer leads and has applied an entry of its own term. Before that it does not
    /// know its followers' progress and reports all of them as pending.
    pub is_leading: bool,
    /// Leader, if known.
    pub leader: Option<Peer>,
    /// Current term.
    pub term: Term,
    /// Index of the last entry.
    pub last: LogIndex,
    /// Commit index.
    pub committed: LogIndex,
    /// Index of the last applied entry.
    pub applied: LogIndex,
    /// Index of the entry before the first one in the log.
    pub truncated: LogIndex,
    /// Leader only: peers that lack many committed entries or wait for a snapshot.
    pub pending_peers: Vec<Peer>,
    /// Leader only: unresponsive peers and the seconds since their last message.
    pub down_peers: Vec<(Peer, u64)>,
    /// Seconds without a known leader; 0 while one is known.
    pub leaderless_seconds: u64,
    /// Whether the peer hibernates.
    pub hibernating: bool,
    /// Traffic since the last report.
    pub traffic: Traffic,
}
