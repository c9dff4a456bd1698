//! Async runtimes for commands that talk to nodes or are one.

use stele_types::{Error, Result};
use tokio::runtime::{Builder, Runtime};

/// Runs on the caller's thread, for a command that waits.
pub fn small() -> Result<Runtime> {
    built(Builder::new_current_thread().enable_all())
}

/// A thread for each processor.
pub fn large() -> Result<Runtime> {
    built(Builder::new_multi_thread().enable_all())
}

fn built(builder: &mut Builder) -> Result<Runtime> {
    builder.build().map_err(|error| Error::io("start", "the async runtime", error))
}
