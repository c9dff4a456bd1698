//! Redis protocol of a node: its listener, and the order in which a connection's commands are executed.
//!
//! 1. One task serves a connection. It reads requests into a queue of at most [`BATCH_COMMANDS_MAX`] commands
//!    and [`BATCH_BYTES_MAX`] bytes, executes the queue, writes the replies, and reads again.
//! 2. Commands of the connection itself, such as SELECT, are answered in place. Consecutive commands of pairs
//!    with keys of one region travel as one batch to [`Execute`].
//! 3. Replies are written in the order of the requests. The next requests are executed after the socket has
//!    taken them.
//!
//! Nothing of one connection overlaps, except that it receives at most a window of bytes while it writes.
//!
//! Invariant: a batch begins after the one before it has ended. A client that sends SET of data and SET of a
//! flag in one pipeline relies on it.
//! Test: `commands_of_two_regions_are_executed_in_the_order_of_their_pipeline`.
//!
//! Invariant: what a client has announced is charged to the memory of the node before it is received. What
//! has no memory is refused, and its bytes are dropped as they are received.
//! Test: `a_value_larger_than_the_memory_is_refused_before_it_is_received`.

mod clients;
mod cluster;
mod connection;
mod encoded;
mod information;
mod input;
mod listener;
mod pipeline;
mod refusals;
mod scans;
mod state;
mod sweeper;
#[cfg(test)]
mod tests;
mod transaction;
mod transactions;

pub(crate) use cluster::ClusterExecutor;
pub(crate) use listener::{RedisPort, serve};
pub(crate) use scans::ScanCursors;
pub(crate) use sweeper::{SweepTotals, run as sweep};

use crate::memory::{Exceeded, RequestMemory};
use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use stele_redis::{Protocol, Reply, Request};
use stele_types::RegionId;

/// Commands of a batch at most.
const BATCH_COMMANDS_MAX: usize = 128;
/// Bytes of the arguments of a batch at most. A longer command is a batch of its own.
const BATCH_BYTES_MAX: usize = 64 << 10;

/// Future of an [`Execute`] call.
pub(crate) type Executing<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, RedisFailure>> + Send + 'a>>;

/// Executes commands on the leaders of the regions that have their keys.
pub(crate) trait Execute: Send + Sync + 'static {
    /// Returns the region of each engine key, as this node knows it now.
    fn regions<'a>(&'a self, header_keys: &'a [Bytes]) -> Executing<'a, Vec<RegionId>>;

    /// Executes the requests in order as one atomic change, or as one read. Returns their encoded replies in
    /// order; of a transaction one array of them, or a null array if a watched name has changed.
    ///
    /// Keys of several regions are changed together, too. Fails with [`RedisFailure::SeveralRegions`] if the
    /// region of a batch was split meanwhile. Only
    /// [`RedisFailure::Undetermined`] may have an effect.
    fn run<'a>(&'a self, batch: &'a RedisBatch) -> Executing<'a, Bytes>;

    /// Returns the change numbers of names; `None` for a missing one.
    fn changes<'a>(&'a self, database: u8, names: &'a [Bytes]) -> Executing<'a, Vec<Option<u64>>>;

    /// Returns the number of followers that have a write before it is acknowledged: quorum - 1.
    fn followers_of_a_write(&self) -> u64;
}

/// Requests that are executed together.
#[derive(Debug)]
pub(crate) struct RedisBatch {
    /// Requests, each with its database. They are all programs, or one is a command of a whole key space or
    /// a scan of a name: `SCAN`, `KEYS`, `DBSIZE`, `RANDOMKEY`, `FLUSHDB`, `FLUSHALL`, `HSCAN`, `SSCAN`.
    pub requests: Vec<Request>,
    /// Version of the protocol of the replies.
    pub protocol: Protocol,
    /// Region of all keys; `None` without keys, and for keys of several regions.
    pub region: Option<RegionId>,
    /// Watched names of EXEC; `None` outside a transaction.
    pub transaction: Option<Vec<Watched>>,
    /// Memory of the batch. The connection charges the replies when they are returned, until they are written.
    pub memory: Arc<RequestMemory>,
}

/// Name that a connection watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    /// Number of the database.
    pub database: u8,
    /// Name that clients use.
    pub name: Bytes,
    /// Its change number when WATCH was executed; `None` if it was missing.
    pub change: Option<u64>,
}

/// Reason for which a batch has no replies. Each of its commands is answered with the error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RedisFailure {
    /// The batch may have taken effect or not.
    #[error(
        "UNDETERMINED the command may have taken effect or not: {0}; read before you repeat it"
    )]
    Undetermined(String),
    /// It had no effect. It may succeed later.
    #[error("TRYAGAIN {0}")]
    Unavailable(String),
    /// It had no effect, because its keys lie in several regions.
    #[error(
        "CROSSSLOT Keys in request don{} hash to the same slot: they are in several regions of the store; give \
         all of them the same {{tag}} in their names",
        "'t"
    )]
    SeveralRegions,
    /// It had no effect, because a collection is too large to be changed together with keys of other regions.
    #[error("CROSSSLOT {0}; give all names the same {{tag}}")]
    TooManyMembers(String),
    /// It can never succeed in this form.
    #[error("ERR {0}")]
    Invalid(String),
    /// There is no memory for it.
    #[error("OOM {0}")]
    Memory(Exceeded),
}

impl From<RedisFailure> for Reply {
    /// Returns the error reply. Line ends in its text become spaces: they would end the reply.
    fn from(failure: RedisFailure) -> Self {
        Self::error(failure.to_string().replace(['\r', '\n'], " "))
    }
}
