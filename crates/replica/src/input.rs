//! Inputs of the core.

use crate::messages::{PeerMessage, SnapshotHeader};
use crate::output::{Lookup, Ticket};
use bytes::Bytes;
use std::sync::Arc;
use stele_storage::{Modification, Pair, Program, StorageEngine};
use stele_types::{
    LogIndex, MomentId, Peer, PeerId, Region, RegionId, Result, SessionRequest, StoreId, Term,
};

/// Time of one call, supplied by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds of a monotonic clock.
    pub monotonic_nanos: u64,
    /// Milliseconds since the Unix epoch.
    pub unix_millis: u64,
}

impl Now {
    /// Returns seconds since the Unix epoch; times to live are compared with it.
    pub fn unix_seconds(&self) -> u64 {
        self.unix_millis / 1_000
    }
}

/// Id of a request on this store. The queue of its loop gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Event that the owner of a store passes to the core.
pub enum Input<E: StorageEngine> {
    /// Request, which gets one reply.
    Request {
        /// Names the request in the reply.
        id: RequestId,
        /// The request.
        request: Request,
    },
    /// Result of a lookup. Every lookup gets one.
    Found {
        /// The lookup.
        lookup: Lookup,
        /// The engine's result.
        result: Result<Option<Pair>>,
    },
    /// Message from another store.
    Message(PeerMessage),
    /// Result of appending a batch.
    Appended {
        /// Ticket of the batch.
        ticket: Ticket,
        /// The engine's result.
        result: Result<()>,
    },
    /// All pairs of a snapshot have arrived.
    SnapshotReceived {
        /// Header of the received snapshot.
        header: SnapshotHeader,
        /// Its pairs, staged in the engine.
        ingest: E::Ingest,
    },
    /// Result of sending a snapshot.
    SnapshotSent {
        /// Region of the snapshot.
        region: RegionId,
        /// Receiving peer.
        to: PeerId,
        /// Whether the receiver got all of it.
        ok: bool,
    },
    /// The engine could not read something, or may have found damage: the next poll requests copies
    /// from other replicas.
    Damaged,
    /// Whether leases may serve reads, as the cluster is configured. With `false`, every lease of the
    /// store ends at once, and reads wait for read index rounds.
    Leases(bool),
    /// The cluster's time in Unix seconds, as received now; 0 is not a time. Deadlines of sessions'
    /// requests are compared with it.
    ClusterTime(u64),
    /// The transport lost its connection to a store.
    StoreUnreachable(StoreId),
    /// The transport reached the store again.
    StoreReachable(StoreId),
}

impl<E: StorageEngine> Input<E> {
    /// Returns the input of a request.
    pub fn request(id: RequestId, request: impl Into<Request>) -> Self {
        Self::Request { id, request: request.into() }
    }
}

/// Input that gets a reply.
#[derive(Clone, Debug)]
pub enum Request {
    /// Client write.
    Write(Write),
    /// Client read-modify-write of one key.
    Modify(Modify),
    /// Client change of several keys, decided together.
    Run(Run),
    /// Client read that no lease served.
    Read(Read),
    /// Change of a region, by placement or an administrator.
    Admin(AdminCall),
    /// Offer of a snapshot with this header, by a peer. The reply is `SnapshotAccepted`, `Refused` or
    /// `Busy`.
    SnapshotOffered(SnapshotHeader),
    /// Step of a moment, by placement.
    Moment(MomentCall),
}

impl Request {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Write(write) => write.command.len() as u64,
            Self::Modify(modify) => modify.bytes() as u64,
            Self::Run(run) => run.program.bytes() as u64,
            Self::Read(_) | Self::Admin(_) | Self::SnapshotOffered(_) | Self::Moment(_) => 0,
        }
    }
}

impl From<Write> for Request {
    fn from(write: Write) -> Self {
        Self::Write(write)
    }
}

impl From<Modify> for Request {
    fn from(modify: Modify) -> Self {
        Self::Modify(modify)
    }
}

impl From<Run> for Request {
    fn from(run: Run) -> Self {
        Self::Run(run)
    }
}

impl From<Read> for Request {
    fn from(read: Read) -> Self {
        Self::Read(read)
    }
}

impl From<AdminCall> for Request {
    fn from(call: AdminCall) -> Self {
        Self::Admin(call)
    }
}

impl From<MomentCall> for Request {
    fn from(call: MomentCall) -> Self {
        Self::Moment(call)
    }
}

/// Routing fields of a request of a client or of placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Region that the request is for.
    pub region: RegionId,
    /// Peer that the client expects on this store; `None` skips the check.
    pub peer: Option<PeerId>,
    /// The region's `epoch.version` known to the client; `None` skips the check.
    pub version: Option<u64>,
    /// Term known to the client; 0 skips the check.
    pub term: u64,
    /// Deadline in monotonic nanoseconds; 0 disables it.
    pub deadline_nanos: u64,
}

/// A write: one command, applied unchanged.
#[derive(Clone, Debug)]
pub struct Write {
    /// Routing fields. The request thread has checked that every key lies in the range of that
    /// version.
    pub header: Header,
    /// An encoded [`stele_types::Command`] with engine keys.
    pub command: Bytes,
    /// Whether the command only deletes. Such a write is admitted on a full disk.
    pub only_deletes: bool,
}

/// A read-modify-write of one key: the leader decides it when it proposes it, on the live pair of the
/// key, and the entry holds the result.
#[derive(Clone, Debug)]
pub struct Modify {
    /// Routing fields.
    pub header: Header,
    /// Engine key.
    pub key: Bytes,
    /// Change of the key's pair.
    pub change: Modification,
    /// The request of a session that this is an attempt of: it takes effect at most once, and each later
    /// attempt gets the first result.
    pub session: Option<SessionRequest>,
}

impl Modify {
    /// Returns the bytes of the key and of the values that it carries.
    pub fn bytes(&self) -> usize {
        self.key.len() + self.change.value_bytes()
    }
}

/// A change of several keys of one region: the leader decides it when it proposes it, on the pairs of all its
/// keys at once, and one entry holds all its operations.
#[derive(Clone, Debug)]
pub struct Run {
    /// Routing fields. The request thread has checked that every key lies in the range of that
    /// version.
    pub header: Header,
    /// What decides.
    pub program: Arc<dyn Program>,
}

/// A read: the reply says when a view of the engine holds all that was acknowledged before it.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Routing fields.
    pub header: Header,
    /// Whether a follower may serve it.
    pub replica: bool,
}

/// Step of a moment: a cut of all regions, chosen without clocks. All of them pause, and once their
/// answers have all keys, each confirms that it led meanwhile, and goes on.
#[derive(Clone, Copy, Debug)]
pub struct MomentCall {
    /// Routing fields.
    pub header: Header,
    /// The moment.
    pub moment: MomentId,
    /// Requested step.
    pub step: MomentStep,
}

/// Steps of a moment in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentStep {
    /// The leader proposes nothing for a time, and answers with the end of its log once all of it is
    /// committed. The reply is `Paused`; `Refused` for a moment for which it has paused in its term, and
    /// for earlier ones.
    Pause,
    /// The leader ends its pause and confirms its leadership. The reply is `Sealed`; `Refused` if it has
    /// not answered in a pause for the moment that lasts.
    Seal,
}

/// Request to change a region.
#[derive(Clone, Debug)]
pub struct AdminCall {
    /// Routing fields.
    pub header: Header,
    /// Requested change.
    pub call: Admin,
}

/// Kinds of change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admin {
    /// Adds and removes peers. A single change takes effect at once. Several go through a joint
    /// configuration, which the leader leaves automatically. A new voter must be a learner that has
    /// caught up. An empty list leaves the joint configuration now.
    ChangePeers(Vec<PeerChange>),
    /// Transfers leadership to this peer.
    TransferLeader(PeerId),
    /// Splits at ascending user keys. The region keeps the keys before the first one; each new
    /// region starts at one key.
    Split {
        /// Split keys.
        keys: Vec<Bytes>,
        /// Identifiers of the new regions, one for each key.
        new_ids: Vec<NewRegion>,
    },
    /// Stops writes and prepares the region to be merged into `target`.
    PrepareMerge {
        /// Neighbour region, as placement knows it.
        target: Region,
    },
    /// Merges a prepared neighbour with peers on the same stores into this region.
    CommitMerge {
        /// Neighbour region, as of its preparation.
        source: Region,
        /// Index of the entry that prepared it.
        prepared_index: LogIndex,
    },
    /// Rolls back a merge preparation, once it is proven that the target refused the merge. Names stores that
    /// may prove it: those of the target's present members, as far as the caller knows.
    RollbackMerge(Vec<StoreId>),
    /// Rolls back a merge preparation like [`Admin::RollbackMerge`]; a target that has not decided refuses
    /// the merge.
    AbandonMerge(Vec<StoreId>),
    /// Starts an election now.
    Campaign,
    /// Wakes the region if it hibernates.
    Wake,
    /// Destroys this replica: placement found that the peer is no longer a member.
    Destroy(PeerId),
    /// Continues the region without a majority of its voters, which is lost permanently.
    Recover(Recovery),
}

/// Continuation of a region of which the majority is lost. It makes one replica's log the region's:
/// all its entries count as committed, and acknowledged entries that it lacks are lost.
///
/// Invariant: no other replica that is left has a log that is further ahead, by term and index of the
/// last entry. The caller has compared them; the core only checks that this one has not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Stores that are lost permanently. They must never run again.
    pub lost: Vec<StoreId>,
    /// Index and term of the replica's last entry, as compared.
    pub last: (LogIndex, Term),
    /// Greatest term of all replicas that are left.
    pub term: Term,
    /// Command of an entry after that of the new membership, durable and committed together with it.
    pub command: Option<Bytes>,
}

/// One change of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerChange {
    /// Direction of the change.
    pub kind: ChangeKind,
    /// Peer to add or remove; its role is voter or learner.
    pub peer: Peer,
}

/// Direction of a membership change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Adds a peer, or changes its role.
    Add,
    /// Removes a peer.
    Remove,
}

/// Identifiers of a region that a split creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRegion {
    /// Id of the new region.
    pub region: RegionId,
    /// Its peers, one for each peer of the split region, in the same order.
    pub peers: Vec<PeerId>,
}
