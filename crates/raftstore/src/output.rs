//! What comes out of the core.

use crate::input::RequestId;
use crate::messages::{PeerMessage, SnapshotHeader};
use std::sync::Arc;
use stele_storage::{Pair, StorageEngine};
use stele_types::{KeyRange, LogBatch, LogIndex, Peer, PeerId, Region, RegionId, StoreId, Term};

/// Names a batch on its way to the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What the owner of the store does next, in this order: send, append, answer.
pub struct Outputs<E: StorageEngine> {
    /// Messages to other stores.
    pub messages: Vec<PeerMessage>,
    /// A batch to make durable, then to report as [`crate::Input::Appended`]; at most one is under way.
    pub append: Option<Append>,
    /// Answers.
    pub replies: Vec<(RequestId, Reply)>,
    /// Snapshots to send.
    pub snapshots: Vec<SendSnapshot<E>>,
    /// What happened to regions.
    pub events: Vec<Event>,
    /// A region's log takes more than it may, and only a checkpoint lets it go: make one, off this
    /// thread. Said again, a tick later, until one was made.
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

/// Records of many regions: one write, one sync.
#[derive(Clone, Debug)]
pub struct Append {
    /// Its name.
    pub ticket: Ticket,
    /// The records.
    pub batch: Arc<LogBatch>,
}

/// A snapshot to stream: its header, then the pairs of `ranges` out of `view`, ascending.
pub struct SendSnapshot<E: StorageEngine> {
    /// What precedes the pairs.
    pub header: SnapshotHeader,
    /// Where it goes.
    pub to_store: StoreId,
    /// One point in time, as of `header.at`.
    pub view: Arc<E::View>,
    /// What of it is sent.
    pub ranges: Vec<KeyRange>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// On a quorum's disks, and applied here.
    Written {
        /// Its entry.
        index: LogIndex,
        /// The entry's term.
        term: Term,
        /// Where the time went.
        timings: Timings,
    },
    /// The comparison was made; if it held, the change is on a quorum's disks and applied.
    Cas {
        /// Whether it held.
        succeeded: bool,
        /// What the key held.
        previous: Option<Pair>,
        /// Where the time went.
        timings: Timings,
    },
    /// A view taken from now on holds all that was acknowledged before the read came.
    ReadReady {
        /// Applied up to here.
        applied: LogIndex,
    },
    /// The change took effect here.
    AdminDone {
        /// The region after it.
        region: Region,
    },
    /// Send the pairs of these ranges.
    SnapshotAccepted {
        /// The engine's ranges, ascending.
        ranges: Vec<KeyRange>,
    },
    /// Nothing was done, save where [`Refusal`] says otherwise.
    Refused(Refusal),
}

/// Where a write's time went.
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

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another peer leads, or nobody does.
    NotLeader {
        /// Who, if known.
        leader: Option<Peer>,
    },
    /// No replica of it is here.
    RegionNotFound,
    /// The range changed.
    EpochNotMatch {
        /// The region, and its neighbours of the same split.
        current: Vec<Region>,
    },
    /// Leadership or the time ended: the write may or may not take effect. Send it again.
    StaleCommand,
    /// Another replica of the region is here.
    MismatchPeer {
        /// Asked for.
        asked: PeerId,
        /// Here.
        actual: PeerId,
    },
    /// A limit in bytes is reached, or something else must end first.
    Busy {
        /// Which.
        reason: &'static str,
    },
    /// The command is too large.
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The largest.
        bytes_max: u64,
    },
    /// The device is full; what only deletes is let through.
    DiskFull,
    /// No leader confirmed the read.
    ReadIndexNotReady,
    /// The region is about to be merged.
    Merging,
    /// The replica has no data yet.
    NotInitialized,
    /// A compare-and-swap may or may not have taken effect.
    Undetermined,
    /// It can never succeed as it is.
    Invalid(String),
}

/// What happened to a region on this store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This store's peer leads, and its first entry is applied.
    BecameLeader {
        /// The region.
        region: RegionId,
        /// The term.
        term: Term,
    },
    /// It leads no more.
    LostLeader {
        /// The region.
        region: RegionId,
    },
    /// A replica came to be: by a split or a snapshot.
    RegionCreated(Region),
    /// Range or members changed.
    RegionChanged(Region),
    /// The replica left this store.
    RegionDestroyed(RegionId),
}

/// A peer's part at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Follows.
    #[default]
    Follower,
    /// Campaigns.
    Candidate,
    /// Leads.
    Leader,
}

/// Work done for a region since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Commands applied.
    pub write_ops: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Reads confirmed by the core and by leases.
    pub read_ops: u64,
}

/// A region as this store's peer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionReport {
    /// The region.
    pub region: Region,
    /// This store's peer.
    pub peer: Peer,
    /// Its part.
    pub role: Role,
    /// It leads, and an entry of its own term is applied. Before that a leader knows nothing of its
    /// followers: all of them are pending.
    pub is_leading: bool,
    /// Who leads, if known.
    pub leader: Option<Peer>,
    /// The term.
    pub term: Term,
    /// The last entry.
    pub last: LogIndex,
    /// Committed up to here.
    pub committed: LogIndex,
    /// Applied up to here.
    pub applied: LogIndex,
    /// The log begins after this entry.
    pub truncated: LogIndex,
    /// Of a leader: peers whose log lacks committed entries by much, or that wait for a snapshot.
    pub pending_peers: Vec<Peer>,
    /// Of a leader: peers that did not answer for the given seconds.
    pub down_peers: Vec<(Peer, u64)>,
    /// Seconds since a leader was last heard of; 0 while one is known.
    pub leaderless_seconds: u64,
    /// It rests.
    pub hibernating: bool,
    /// Work since the last report.
    pub traffic: Traffic,
}
