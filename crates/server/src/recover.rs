//! Recovery of regions on directories of nodes that do not run, after the loss of a majority.

pub use stele_node::recover::{Offline, Planned, Replica, Verdict, plan, uncovered};

use crate::store::Engine;
use std::path::Path;
use std::sync::Arc;
use stele_engine::{Options, Replay};
use stele_raftstore::Now;
use stele_types::{Clock, Result};
use stele_vfs::{SystemClock, Vfs};

/// A directory that no node runs.
pub type OfflineDir = Offline<Engine>;

/// Opens a node's directory. Opening changes files, as the start of the node would.
pub fn open(vfs: Arc<dyn Vfs>, dir: &Path) -> Result<(OfflineDir, Arc<Engine>)> {
    let clock = Arc::new(SystemClock::new());
    let options = Options { background: false, ..Options::default() };
    let now = Now { monotonic_nanos: clock.monotonic_nanos(), unix_seconds: clock.unix_seconds() };
    let (engine, _) = Engine::open(vfs, clock, dir, options, Replay::Committed)?;
    let engine = Arc::new(engine);
    let offline = Offline::open(engine.clone(), now, crate::node::random())?;
    Ok((offline, engine))
}
