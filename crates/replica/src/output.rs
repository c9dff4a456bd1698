//! Outputs of the core.

use crate::input::RequestId;
use crate::messages::{PeerMessage, SnapshotHeader};
use crate::stages::Timings;
use bytes::Bytes;
use std::sync::Arc;
use stele_storage::{Modified, StorageEngine};
use stele_types::{KeyRange, LogBatch, LogIndex, Peer, PeerId, Region, RegionId, StoreId, Term};

/// Id of a batch handed to the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Work for the owner of the store, from one poll. `A` names the caller that gets a reply: the core
/// knows the id of its request, the store's loop the caller itself.
///
/// No field waits for another one of the same outputs: what must follow a durable batch comes out of
/// the poll after its report. The order send, append, reply is the fastest: followers write while
/// this store does. The owner takes the outputs of a poll before it polls again. A field of a later
/// poll follows the same field of an earlier one.
pub struct Outputs<E: StorageEngine, A = RequestId> {
    /// Messages to other stores.
    ///
    /// Precedes: each promise in them (a term, a vote, an acknowledgement) is durable. A leader's
    /// entries need not be, but its term is.
    /// Follows: nothing waits for them. They may leave before, during or after `append`, and may be
    /// lost or repeated. Those to one store keep their order where the transport can keep it.
    pub messages: Vec<PeerMessage>,
    /// Batch to make durable; at most one is in flight.
    ///
    /// Precedes: the batch before it was reported as durable. A batch that found no room comes
    /// again, with its ticket, before any other.
    /// Follows: the report [`crate::Input::Appended`], after write *and* sync. Until the next poll
    /// after it, no promise of the batch leaves, this disk does not count for a quorum, and none of
    /// its entries is applied.
    pub append: Option<Append>,
    /// Replies to requests; each request gets exactly one.
    ///
    /// Precedes: a write that is done is on the disks of a quorum, and reads here see it; without
    /// [`crate::Options::commit_return`] it is applied here. A read that is ready is confirmed, and
    /// what it must see is applied here or in the window. A request that is refused or busy has no
    /// effect, now or later.
    /// Follows: a view taken after a reply, with the effects of the window over it, holds the effect of
    /// its write.
    pub replies: Vec<(A, Reply)>,
    /// Snapshots to send, each a stream of its own.
    ///
    /// Precedes: their views are taken; every entry in them is committed, and durable here.
    /// Follows: one [`crate::Input::SnapshotSent`] for each. Until then, or until the receiver
    /// acknowledges the snapshot, it is sent no entries. They wait for no message and no batch.
    pub snapshots: Vec<SendSnapshot<E>>,
    /// Keys to read from the engine on another thread, which may wait for the device.
    ///
    /// Precedes: every entry that changes the key is applied, and the leader holds the key: it
    /// proposes no other change of it.
    /// Follows: one [`crate::Input::Found`] for each, of a view taken after these outputs.
    pub lookups: Vec<Lookup>,
    /// Changes of regions, in order.
    ///
    /// Precedes: the core is in the state that the event describes; of `BecameLeader` and
    /// `RegionChanged` the entry is applied. A creation or destruction may not be durable: after a
    /// crash it happens again, or has not happened.
    /// Follows: nothing waits for them.
    pub events: Vec<Event>,
    /// A region's log exceeds its limit and only a checkpoint allows truncation: run one on another
    /// thread.
    ///
    /// Precedes: the entries are applied here.
    /// Follows: truncation at a tick after the checkpoint. Repeated at each tick until it is made.
    pub wants_checkpoint: bool,
}

impl<E: StorageEngine> Default for Outputs<E> {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            append: None,
            replies: Vec::new(),
            snapshots: Vec::new(),
            lookups: Vec::new(),
            events: Vec::new(),
            wants_checkpoint: false,
        }
    }
}

/// Batch of records of many regions: one write, one sync. Invariant: after a crash the log holds all
/// of its records or none.
#[derive(Clone, Debug)]
pub struct Append {
    /// Id of the batch. Follows: the report with this ticket; one with another ticket has no effect.
    pub ticket: Ticket,
    /// Records. Those of one region are in the order in which they take effect. Follows: they are
    /// not changed, also when the batch is handed out again.
    pub batch: Arc<LogBatch>,
}

/// Snapshot to stream: its header, then the pairs of `ranges` in `view`, ascending.
pub struct SendSnapshot<E: StorageEngine> {
    /// Header. Precedes: the entry `header.at` is applied. Follows: the pairs, once the receiver
    /// accepts it.
    pub header: SnapshotHeader,
    /// Receiving store.
    pub to_store: StoreId,
    /// View of the engine. Invariant: it is taken in the poll that reports it, so it holds the
    /// effects of exactly the region's entries up to `header.at`. It pins files until it is dropped.
    pub view: Arc<E::View>,
    /// Ranges of engine keys to send, ascending. Follows: the receiver replaces exactly these, all
    /// at once.
    pub ranges: Vec<KeyRange>,
}

/// Read of one key for a modification, beside the store's loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Number of the lookup in this process of the store.
    pub id: LookupId,
    /// Region of the key.
    pub region: RegionId,
    /// Engine key.
    pub key: Bytes,
}

/// Number of a lookup; none is used twice in a process of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LookupId(pub u64);

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
    /// The write is on a quorum's disks, and reads here see it.
    Written {
        /// Index of its entry.
        index: LogIndex,
        /// Term of its entry.
        term: Term,
        /// Times of its stages.
        timings: Timings,
    },
    /// The modification was decided. If it changed the key, the change is on a quorum's disks and
    /// reads here see it.
    Modified {
        /// Its result.
        result: Modified,
        /// Times of its stages.
        timings: Timings,
    },
    /// A view taken from now on, with the effects of the window over it, holds all that was
    /// acknowledged before the read arrived.
    ReadReady {
        /// Index of the last entry that reads can see here.
        visible: LogIndex,
    },
    /// The change has taken effect here.
    Admin {
        /// Region after the change.
        region: Region,
    },
    /// The leader has paused for a moment: its log ends here, and all of it is committed.
    Paused {
        /// Range of the region after the entry.
        range: KeyRange,
        /// Index of the last entry.
        last: LogIndex,
        /// Term of the leader, and of the entry.
        term: Term,
    },
    /// The leader led at a time after the request: no later leader had committed an entry before.
    Sealed {
        /// Term of the leader.
        term: Term,
        /// Nanoseconds for which the leader proposed nothing.
        paused_nanos: u64,
    },
    /// The offered snapshot is accepted.
    SnapshotAccepted {
        /// Ranges of engine keys to send, ascending.
        ranges: Vec<KeyRange>,
    },
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
    /// The deadline of a session's request has passed, or is further away than
    /// [`LIFE_S_MAX`](stele_types::session::LIFE_S_MAX). This attempt had no effect; an earlier one
    /// may have had it.
    SessionDeadline {
        /// The cluster's time in Unix seconds.
        cluster_s: u64,
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
    /// The deadline passed after the request was proposed.
    DeadlinePassed,
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

/// Traffic of a region that this peer served as its leader, since the peer was created in this
/// process.
///
/// Invariant: totals only grow. A report that is lost, repeated or made for another reader loses and
/// repeats nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Operations of applied commands.
    pub write_ops: u64,
    /// Bytes of these commands.
    pub write_bytes: u64,
    /// Pairs returned by reads; a read without a pair counts as one.
    pub read_ops: u64,
    /// Bytes of these keys and values.
    pub read_bytes: u64,
}

/// Position in the collections of reports of a store; the default is before all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collection {
    /// Incarnation of the process that numbers them.
    pub incarnation: u64,
    /// Number of the collection, from 1.
    pub number: u64,
}

/// Reports of the regions of a store that may have changed between two collections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Collection from which the changes count; `None`: `regions` holds every region of the store.
    pub since: Option<Collection>,
    /// The collection that contains them.
    pub now: Collection,
    /// Reports of the regions that may have changed.
    pub regions: Vec<RegionReport>,
    /// Regions that ended here.
    pub gone: Vec<RegionId>,
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
    /// The device here had no room for entries that the leader sent.
    pub lacks_room: bool,
    /// Whether the peer hibernates.
    pub hibernating: bool,
    /// Traffic that the peer has served.
    pub traffic: Traffic,
}
