//! Designs on Stele's unified log: one engine with different garbage collection (GC) policies.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use stele_engine::{GcOptions, Options, PolicyKind, Replay, Store};
use stele_types::Result;
use stele_vfs::{RealVfs, SystemClock};

const SEGMENT_BYTES: Range<u64> = 64 << 10..2 << 30;

/// GC policy of the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// Policy of the product.
    Adaptive,
    /// `Nezha`: rewrites all values in key order whenever this many bytes are unsorted.
    Nezha {
        /// Live bytes outside sorted files.
        sort_threshold_bytes: u64,
    },
    /// `Nezha-NoGC`: never moves a value. Unreferenced files are still removed.
    NezhaNoGc,
}

impl Design {
    /// Returns the engine's settings: a node's, without scrub.
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
                // The largest value: more than any device holds.
                sort_threshold_bytes: 1 << 50,
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

    /// Returns the same settings with a memtable of `buffers_bytes`, and segments, runs and caches
    /// in proportion.
    pub fn options_with(self, buffers_bytes: u64) -> Options {
        let usual = self.options();
        let bytes = usize::try_from(buffers_bytes).unwrap_or(usize::MAX);
        Options {
            segment_bytes_max: (2 * buffers_bytes).clamp(SEGMENT_BYTES.start, SEGMENT_BYTES.end),
            entry_cache_bytes_max: bytes / 2,
            value_cache_bytes_max: bytes,
            memtable_bytes_max: bytes,
            block_cache_bytes_max: bytes,
            run_bytes_max: buffers_bytes,
            ..usual
        }
    }

    /// Opens the store in `dir`; creates it if it does not exist.
    pub fn open(self, dir: &Path) -> Result<Store> {
        open(dir, self.options())
    }
}

/// Opens the store in `dir` with these settings; creates it if it does not exist.
pub fn open(dir: &Path, options: Options) -> Result<Store> {
    let (vfs, clock) = (Arc::new(RealVfs::new()), Arc::new(SystemClock::new()));
    let opened = Store::open(vfs, clock, dir, options, Replay::Committed);
    opened.map(|(store, _)| store)
}
