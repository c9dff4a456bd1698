//! An async client of a Stele cluster: raw keys over the TiKV protocol, and administration over the
//! control protocol. The address of any node suffices.
//!
//! ```no_run
//! # async fn example() -> stele_types::Result<()> {
//! let client = stele_client::Client::connect(&["127.0.0.1:2379"]).await?;
//! client.put("greeting", "hello").await?;
//! assert_eq!(client.get("greeting").await?.as_deref(), Some(&b"hello"[..]));
//! # Ok(()) }
//! ```
//!
//! A call is retried until its deadline while regions and nodes change. What never left this client is
//! sent elsewhere, and makes no outcome unknown. A write that may have taken effect is retried only if
//! [`Options::repeat_undetermined`] is set and it is not a read-modify-write; otherwise it fails with
//! [`stele_types::Error::Undetermined`]. The read-modify-writes are [`Client::compare_and_swap`],
//! [`Client::write_if`], [`Client::put_if_absent`], [`Client::increment`], [`Client::append`] and [`Client::get_and_delete`].
//! The requests of a [`Session`] are retried too: each takes effect exactly once, or at most once if its
//! outcome is still unknown at the deadline of the call.
//!
//! Writes of many keys are sent in parts. One that fails with [`stele_types::Error::Partial`] is done in
//! part; with any other error than that and `Undetermined`, nothing was changed.

mod backoff;
mod call;
mod client;
mod connections;
mod control;
mod delivery;
mod pd_rpc_client;
mod raw;
mod retry_decision;
mod route;
mod stream;
mod watch;

#[doc(hidden)]
pub mod fuzzing;
#[doc(hidden)]
pub mod simulation;

pub use client::{Client, Options};
pub use connections::{Dial, Dialled, Wire, connect as connect_channel, over};
pub use control::{Comparison, Control, KnownStores, RegionRow, Verdict};
pub use raw::{
    Checksum, Copied, Copy, KeyWrite, Pair, PutPair, Scan, ScanOptions, Session, Swap, Ttl,
};
/// Messages of the control protocol.
pub use stele_proto::stele::control::v1 as messages;
/// A copied pair, and the message of [`Client::write_if`].
pub use stele_proto::stele::kv::v1::{CopiedPair, Values, WriteIfRequest, WriteIfResponse};
/// Messages of Redis commands between nodes.
pub use stele_proto::stele::redis::v1 as redis_messages;
pub use watch::{
    Cut, CutPart, Families, LoggedEvent, LoggedWrite, OldValue, Token, Watch, WatchEvent,
    WatchFrom, WatchOptions, Writes,
};
