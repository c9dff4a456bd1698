//! Shares of the file descriptors of a process: open value files and connections follow from the limit.

use std::sync::Arc;
use stele_vfs::HandlePool;

/// Descriptors kept for the log, the manifest, the port and what the runtime opens: of the process, and
/// of each store.
const RESERVED: u64 = 128;
const RESERVED_OF_STORE: u64 = 32;
/// Part of a low limit that is reserved at most.
const RESERVED_PART: u64 = 4;
/// Open value files at most, however high the limit is.
const HANDLES_MAX: u64 = 64 << 10;

/// Shares of a process's descriptors. The default is that of a process of which the limit is unknown.
#[derive(Clone, Debug)]
pub struct Descriptors {
    limit: u64,
    connections_max: u64,
    handles: Arc<HandlePool>,
}

impl Default for Descriptors {
    fn default() -> Self {
        Self { limit: u64::MAX, connections_max: u64::MAX, handles: Arc::default() }
    }
}

impl PartialEq for Descriptors {
    fn eq(&self, other: &Self) -> bool {
        self.limit == other.limit
    }
}

impl Descriptors {
    /// Shares `limit` descriptors of a process with so many stores. Invariant: the shares leave the
    /// reserve and a quarter of the rest free: for runs, and connections to other nodes.
    pub fn share(limit: u64, stores: usize) -> Self {
        let reserved = RESERVED + RESERVED_OF_STORE.saturating_mul(stores as u64);
        let rest = limit - reserved.min(limit / RESERVED_PART);
        let handles_max = (rest / 2).clamp(1, HANDLES_MAX);
        let connections_max = (rest / 4).max(1);
        Self { limit, connections_max, handles: Arc::new(HandlePool::new(handles_max as usize)) }
    }

    /// Returns the open value files of all stores.
    pub fn handles(&self) -> &Arc<HandlePool> {
        &self.handles
    }

    /// Returns the connections that are accepted where the configuration allows `wanted`.
    pub fn connections_max(&self, wanted: u64) -> u64 {
        wanted.min(self.connections_max)
    }

    /// Returns the line for the log of a start; `Err` holds a warning with its remedy.
    pub fn describe(&self, wanted_connections: u64) -> Result<String, String> {
        let connections = self.connections_max(wanted_connections);
        let files = self.handles.handles_max();
        let line = format!(
            "the process may open {} descriptors: up to {files} value files and {connections} \
             connections",
            self.limit
        );
        match connections < wanted_connections {
            true => Err(format!(
                "{line}, not the {wanted_connections} of `connections_max`; raise the limit \
                 (`ulimit -n`, or LimitNOFILE= of the service)"
            )),
            false => Ok(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_connections_follow_from_the_limit_and_leave_a_reserve() {
        for (limit, stores) in [(64, 1), (100, 1), (1024, 1), (1024, 4), (4096, 8), (1 << 20, 24)] {
            let shares = Descriptors::share(limit, stores);
            let files = shares.handles().handles_max() as u64;
            let connections = shares.connections_max(4_000);
            assert!(files >= 16 && connections >= 12, "{limit}: {files} {connections}");
            assert!(files + connections <= limit - limit / 4, "{limit}: {files} {connections}");
            assert!(connections <= 4_000);
        }
        let few = Descriptors::share(1024, 1);
        assert_eq!((few.handles().handles_max(), few.connections_max(4_000)), (432, 216));
        assert!(few.describe(4_000).unwrap_err().contains("LimitNOFILE"));
        assert!(few.describe(100).unwrap().contains("100 connections"));
        let many = Descriptors::share(1 << 20, 1);
        assert_eq!((many.handles().handles_max(), many.connections_max(4_000)), (64 << 10, 4_000));
    }
}
