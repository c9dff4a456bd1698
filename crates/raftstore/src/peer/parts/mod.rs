//! Parts of a peer. Each keeps the state of one concern, privately: it takes what it needs as
//! arguments and returns a decision. It has no access to the engine, to outputs or to another part;
//! [`super::Peer`] holds the parts and carries their decisions out.

mod contacts;
mod durability;
mod election;
mod held_keys;
mod hibernation;
mod leadership;
mod lease;
mod membership;
mod merge;
mod proposals;
mod reads;
mod repairs;
mod room;
mod snapshots;
mod transfer;

pub(super) use contacts::Contacts;
pub(super) use durability::Durability;
pub(super) use election::ElectionTimer;
pub(super) use held_keys::{Expired, Found, HeldKeys, Released, found_bytes};
pub(super) use hibernation::{Hibernation, Reaction};
pub(super) use leadership::{Leadership, Seen};
pub(super) use lease::{LeaseRight, LeaseTerms};
pub(super) use membership::{Changes, has_next_quorum, is_caught_up};
pub(super) use merge::{Merge, is_commit_merge};
pub(crate) use proposals::Request;
pub(super) use proposals::{Proposal, Proposals, Purpose};
pub(super) use reads::{Answer, LeaderReads, ReadStep, Reads, WaitingRead};
pub(super) use repairs::Repairs;
pub(super) use room::Room;
pub(super) use snapshots::Snapshots;
pub(super) use transfer::{TransferEnd, Transfers};
