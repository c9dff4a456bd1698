//! Multi-Raft on the unified log, as a deterministic core: inputs go in, outputs come out. The
//! caller supplies time, disk, network and seeds; the core has no thread, clock or random source.
//!
//! Invariants: acknowledged ⇒ on a quorum's disks; applied ≤ committed; applied ≤ locally
//! persisted; a message that makes a promise is sent after the promise is durable.

mod admin;
mod batch;
mod committed_merges;
mod context;
mod entry_recovery;
mod input;
mod journal;
mod log;
mod maintenance;
mod messages;
mod options;
mod output;
mod peer;
mod pipeline;
mod queue;
mod reads;
mod slowdown;
mod stages;
mod store;
mod turn;
mod validate;
pub mod wire;

#[doc(hidden)]
pub mod fuzzing {
    //! Parsers of untrusted bytes, for fuzz targets.

    /// Decodes an admin entry and encodes it again.
    pub fn admin(payload: &[u8]) -> Option<stele_types::Command> {
        crate::admin::conf_change(payload);
        let (record, regions) = crate::admin::parse(payload)?;
        crate::admin::command(&record, &regions).ok()
    }
}

pub use admin::{RegionChange, RegionChangeKind, changes_members, region_change};
pub use batch::{BatchOp, BatchWrite, OP_OVERHEAD_BYTES};
pub use committed_merges::CommittedMerges;
pub use entry_recovery::EntryRecovery;
pub use input::{
    Admin, AdminCall, ChangeKind, Header, Input, Modify, MomentCall, MomentStep, NewRegion, Now,
    PeerChange, Read, Recovery, Request, RequestId, Run, Write,
};
pub use maintenance::{Maintenance, Slice};
pub use messages::{
    Body, MergeAnswer, MergeQuery, PeerMessage, Preparation, RaftEntry, RaftKind, RaftMessage,
    RangeRepairReply, SnapshotHeader, Verdict,
};
pub use options::{LeaseTimes, LogKept, Options};
pub use output::{
    Append, Busy, Changes, Collection, Done, Event, Lookup, LookupId, Outputs, Refusal,
    RegionReport, Reply, Role, SendSnapshot, Ticket, Traffic, Unknown,
};
pub use peer::{FIRST_OF_CHILD, PAUSE_NANOS};
pub use queue::{Admitted, CoreCall, Item, MemoryGuard, NotTaken, Queue, Submission};
pub use reads::{LinearizableRead, ReadGate, ReadPath, ReadPermit, Reader};
pub use slowdown::{REPORT_NANOS, SlowWriters, Slowdowns, WAIT_NANOS_MAX};
pub use stages::{Stage, StageNanos, StageSums, StageTimes, Timings};
pub use stele_storage::{Modification, Modified, NewPair, Outcome, Program, ProgramStep};
pub use store::RaftStore;
pub use turn::{CarryOut, Ended, StoreLoop};
