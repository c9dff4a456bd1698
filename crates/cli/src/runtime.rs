//! Async runtimes for clients and servers, and the connection to a cluster.

use std::time::Duration;
use stele_client::{Client, Options};
use stele_load::TlsFiles;
use stele_server::tasks::Thread;
use stele_types::{Error, Result};
use tokio::runtime::{Builder, Runtime};

/// Time to find a node that responds. Short, because a person waits.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

pub(crate) async fn connect(addresses: &[String], tls: &TlsFiles) -> Result<Client> {
    let patient = Options { on_wait: Some(report_wait), ..Options::default() };
    let options = Options { timeout: CONNECT_WITHIN, ..patient };
    Ok(tls.connect(addresses, options).await?.with(patient))
}

fn report_wait(reason: &str) {
    eprintln!("stele: {reason}");
}

pub(crate) fn small() -> Result<Runtime> {
    built(Builder::new_current_thread().enable_all())
}

/// Builds a runtime of one thread per processor minus one per store, at least one: each store of a
/// node has an event loop of its own. With one thread per processor in addition to the loops,
/// requests would move between processors that are all busy.
pub(crate) fn large(stores: usize) -> Result<Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.saturating_sub(stores).max(1);
    let mut builder = Builder::new_multi_thread();
    built(builder.worker_threads(threads).thread_name(Thread::Network.prefix()).enable_all())
}

fn built(builder: &mut Builder) -> Result<Runtime> {
    builder.build().map_err(|error| Error::io("start", "the async runtime", error))
}
