//! Changes of a region, as entries of its log.
//!
//! Such an entry is an ordinary command. Its first operation puts the [`Record`] under the region's
//! admin key, the others put the descriptors that the change makes. So the engine applies and
//! replays them together with the data, and nothing can come in between. Pure functions compute the
//! descriptors before the entry is proposed.

mod command;
mod members;
mod range;
mod record;

pub use command::changes_members;
pub(crate) use command::{command, conf_change, is_admin, parse};
pub(crate) use members::{change_peers, check_members, conf_state, leave_joint, recover};
pub(crate) use range::{
    commit_merge, prepare_merge, refuse_merge, rollback_merge, split, tombstone,
};
pub(crate) use record::{Change, Record};
