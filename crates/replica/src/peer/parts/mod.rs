//! Parts of a peer. Each keeps the state of one concern, privately: it takes what it needs as
//! arguments and returns a decision. It has no access to the engine, to outputs or to another part;
//! [`super::Replica`] holds the parts and carries their decisions out.

mod copies;
mod durability;
mod held_keys;
mod intents;
mod lead;
mod members;
mod merge;
mod moment;
mod proposals;
mod reads;
mod room;

pub(super) use copies::{Repairs, SnapshotBackoff};
pub(super) use durability::Durability;
pub(super) use held_keys::{
    Found, FoundPairs, HeldKeys, Released, Removed, found_bytes, value_bytes,
};
pub(super) use intents::IntentGuard;
pub(super) use lead::{Contacts, ElectionTimer, Hibernation, Leadership, Reaction, Seen};
pub(super) use members::{
    PendingChanges, TransferEnd, TransferTimes, Transfers, has_next_quorum, is_caught_up,
};
pub(super) use merge::{Merge, is_commit_merge};
pub use moment::PAUSE_NANOS;
pub(super) use moment::{LogEnd, Moments};
pub(crate) use proposals::Waiting;
pub(super) use proposals::{Proposal, Proposals, Purpose};
pub(super) use reads::{
    LeaderReads, LeaseRight, LeaseTerms, ReadOutcome, ReadStep, Reads, WaitingRead,
};
pub(super) use room::Room;
