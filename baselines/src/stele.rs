//! The designs on Stele's unified log: one engine, which its policy of collection makes one or the
//! other.

use std::path::Path;
use std::sync::Arc;
use stele_engine::{GcOptions, Options, PolicyKind, Replay, Store};
use stele_types::Result;
use stele_vfs::{RealVfs, SystemClock};

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// As the product does it.
    Adaptive,
    /// `Nezha`: everything is rewritten in key order whenever this many bytes are not.
    Nezha {
        /// Live bytes outside sorted files.
        sort_threshold_bytes: u64,
    },
    /// `Nezha-NoGC`: no value is ever moved. Files that nothing refers to are still removed.
    NezhaNoGc,
}

impl Design {
    /// The engine's settings: a node's, save that nothing looks for damage.
    pub fn options(self) -> Options {
        let usual = Options::default();
        let gc = match self {
            Self::Adaptive => GcOptions::default(),
            Self::Nezha { sort_threshold_bytes } => GcOptions {
                policy: PolicyKind::Nezha,
                sort_threshold_bytes,
                ..GcOptions::default()
            },
            Self::NezhaNoGc => GcOptions {
                policy: PolicyKind::Nezha,
                sort_threshold_bytes: u64::MAX,
                scan_load_ratio: 0.0,
                ..GcOptions::default()
            },
        };
        Options {
            entry_cache_bytes_max: usual.memtable_bytes_max / 2,
            background: false,
            gc,
            ..usual
        }
    }

    /// Opens the store in `dir`, creating it when there is none.
    pub fn open(self, dir: &Path) -> Result<Store> {
        let (vfs, clock) = (Arc::new(RealVfs::new()), Arc::new(SystemClock::new()));
        let opened = Store::open(vfs, clock, dir, self.options(), Replay::Committed);
        opened.map(|(store, _)| store)
    }
}
