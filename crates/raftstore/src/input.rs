//! What goes into the core.

use crate::messages::{PeerMessage, SnapshotHeader};
use crate::output::Ticket;
use bytes::Bytes;
use stele_storage::StorageEngine;
use stele_types::{Appended, LogIndex, Peer, PeerId, Region, RegionId, Result, StoreId};

/// The time, as the core is told it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds on a clock that never goes back.
    pub monotonic_nanos: u64,
    /// Seconds since the Unix epoch; times to live are compared with it.
    pub unix_seconds: u64,
}

/// Names a request of this store's clients; each is answered once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Something that happened to a store.
pub enum Input<E: StorageEngine> {
    /// A client writes.
    Write(Write),
    /// A client compares and swaps.
    Cas(Cas),
    /// A client reads, and no lease served it.
    Read(Read),
    /// Placement or an operator changes a region.
    Admin(AdminCall),
    /// Another store's peer speaks.
    Message(PeerMessage),
    /// The batch of that ticket is durable, or failed.
    Appended {
        /// Which batch.
        ticket: Ticket,
        /// What the engine said.
        result: Result<Appended>,
    },
    /// A leader wants to send a snapshot: answered with `SnapshotAccepted` or `Refused`.
    SnapshotOffered {
        /// Who is answered.
        id: RequestId,
        /// Whose snapshot.
        header: SnapshotHeader,
    },
    /// All pairs of a snapshot came.
    SnapshotReceived {
        /// Whose snapshot.
        header: SnapshotHeader,
        /// Its pairs, in the engine's hands.
        incoming: E::Ingest,
    },
    /// A snapshot left this store, or did not.
    SnapshotSent {
        /// The region.
        region: RegionId,
        /// The receiver.
        to: PeerId,
        /// Whether all of it arrived.
        ok: bool,
    },
    /// The engine could not read something, or may have noticed so: other replicas are asked for it.
    Damaged,
    /// Whose the keys are that are unclaimed here, as the placement group knows.
    Owners(Vec<Region>),
    /// The transport lost a store.
    StoreUnreachable(StoreId),
    /// The transport found it again.
    StoreReachable(StoreId),
}

/// What every request says about where it belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The region.
    pub region: RegionId,
    /// The peer the client believes is here.
    pub peer: Option<PeerId>,
    /// The region's `epoch.version` the client knows; `None` skips the check.
    pub version: Option<u64>,
    /// The term the client knows; 0 for any.
    pub term: u64,
    /// Monotonic nanoseconds after which nobody waits for the answer; 0 for never.
    pub deadline_nanos: u64,
}

/// A write: one command, applied as it is.
#[derive(Clone, Debug)]
pub struct Write {
    /// Who is answered.
    pub id: RequestId,
    /// Where it belongs; the edge checked that every key lies in the range of that version.
    pub header: Header,
    /// An encoded [`stele_types::Command`] with engine keys.
    pub command: Bytes,
    /// It only deletes: let it pass on a full disk.
    pub frees: bool,
}

/// Sets or deletes a key if it holds what is expected.
#[derive(Clone, Debug)]
pub struct Cas {
    /// Who is answered.
    pub id: RequestId,
    /// Where it belongs.
    pub header: Header,
    /// An engine key.
    pub key: Bytes,
    /// The live value it must have; `None`: it must have none.
    pub expected: Option<Bytes>,
    /// What then happens.
    pub new: CasNew,
}

/// What a successful comparison does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CasNew {
    /// Sets the key.
    Put {
        /// To this value.
        value: Bytes,
        /// Unix seconds at which the pair ceases to exist; 0 for never.
        expires_at_s: u64,
    },
    /// Removes the key.
    Delete,
}

impl CasNew {
    /// Bytes of the value.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put { value, .. } => value.len(),
            Self::Delete => 0,
        }
    }
}

/// Asks when a view of the engine holds all that was acknowledged before.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Who is answered.
    pub id: RequestId,
    /// Where it belongs.
    pub header: Header,
    /// A follower may serve it.
    pub replica: bool,
}

/// A change of a region.
#[derive(Clone, Debug)]
pub struct AdminCall {
    /// Who is answered.
    pub id: RequestId,
    /// Where it belongs.
    pub header: Header,
    /// The change.
    pub call: Admin,
}

/// What may be changed about a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admin {
    /// Adds and removes peers: one learner at once, more or voters by a joint change that the leader
    /// leaves by itself. A voter must have been a learner that caught up. None at all: leaves the
    /// joint configuration now.
    ChangePeers(Vec<PeerChange>),
    /// Hands leadership over.
    TransferLeader(PeerId),
    /// Splits at user keys, ascending. The region keeps what lies before the first; each new region
    /// begins at one key.
    Split {
        /// Where.
        keys: Vec<Bytes>,
        /// One for each key.
        new_ids: Vec<NewRegion>,
    },
    /// Stops writes and readies the region to be merged into `target`.
    PrepareMerge {
        /// The neighbour, as placement knows it.
        target: Region,
    },
    /// Takes over a prepared neighbour whose peers are on the same stores.
    CommitMerge {
        /// The neighbour as of its preparation.
        source: Region,
        /// The entry that prepared it.
        prepared_index: LogIndex,
    },
    /// Takes a preparation back.
    RollbackMerge,
    /// Campaigns now.
    Campaign,
    /// Ticks again, if the region rests.
    Wake,
    /// Placement found that this peer is no member any more: it destroys itself.
    Destroy(PeerId),
}

/// One change of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerChange {
    /// Adds or removes.
    pub kind: ChangeKind,
    /// The peer; its role is voter or learner.
    pub peer: Peer,
}

/// Which way membership changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Adds a peer, or gives it another role.
    Add,
    /// Removes it.
    Remove,
}

/// The identifiers of a region that a split makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRegion {
    /// The new region.
    pub region: RegionId,
    /// Its peers, one on each store of the region's peers, in their order.
    pub peers: Vec<PeerId>,
}
