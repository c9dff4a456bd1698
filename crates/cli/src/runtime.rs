//! Async runtimes for commands that talk to nodes or are one, and the way to a cluster.

use std::time::Duration;
use stele_client::{Client, Options};
use stele_server::threads::Thread;
use stele_types::{Error, Result};
use tokio::runtime::{Builder, Runtime};

/// A person waits: a cluster of which no node answers is said to be gone after this time.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// Connects through any of these nodes.
pub async fn connect(addresses: &[String]) -> Result<Client> {
    let options = Options { timeout: CONNECT_WITHIN, ..Options::default() };
    Ok(Client::connect_with(addresses, options).await?.with(Options::default()))
}

/// Runs on the caller's thread, for a command that waits.
pub fn small() -> Result<Runtime> {
    built(Builder::new_current_thread().enable_all())
}

/// A thread for each processor that is left, at least one: each of a node's stores has a loop of its own.
/// With a thread for each processor besides them, what a request needs wanders between processors that
/// all have enough to do.
pub fn large(stores: usize) -> Result<Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.saturating_sub(stores).max(1);
    let mut builder = Builder::new_multi_thread();
    built(builder.worker_threads(threads).thread_name(Thread::Network.prefix()).enable_all())
}

fn built(builder: &mut Builder) -> Result<Runtime> {
    builder.build().map_err(|error| Error::io("start", "the async runtime", error))
}
