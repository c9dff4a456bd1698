//! Counts bytes and calls of a file system by [`Cause`]: the source of every write-amplification
//! figure.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stele_types::Cause;

const CAUSES: usize = Cause::ALL.len();

/// Running totals. Shared by threads, never reset.
#[derive(Debug, Default)]
pub struct Meter {
    written_bytes: [AtomicU64; CAUSES],
    writes: [AtomicU64; CAUSES],
    syncs: AtomicU64,
    dir_syncs: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

/// The totals at one moment, or between two (from [`MeterSnapshot::since`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterSnapshot {
    /// Bytes written, in the order of [`Cause::ALL`].
    pub written_bytes: [u64; CAUSES],
    /// Write calls, in the order of [`Cause::ALL`].
    pub writes: [u64; CAUSES],
    /// Number of data syncs of files.
    pub syncs: u64,
    /// Number of directory syncs.
    pub dir_syncs: u64,
    /// Number of read calls.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
}

impl Meter {
    /// Returns the current totals.
    pub fn snapshot(&self) -> MeterSnapshot {
        let load = |from: &[AtomicU64; CAUSES]| std::array::from_fn(|i| from[i].load(Relaxed));
        MeterSnapshot {
            written_bytes: load(&self.written_bytes),
            writes: load(&self.writes),
            syncs: self.syncs.load(Relaxed),
            dir_syncs: self.dir_syncs.load(Relaxed),
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
        }
    }

    /// Counts a write of so many bytes.
    pub fn count_write(&self, cause: Cause, bytes: u64) {
        self.written_bytes[cause as usize].fetch_add(bytes, Relaxed);
        self.writes[cause as usize].fetch_add(1, Relaxed);
    }

    /// Counts a read of so many bytes.
    pub fn count_read(&self, bytes: u64) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts a sync of a file.
    pub fn count_sync(&self) {
        self.syncs.fetch_add(1, Relaxed);
    }

    /// Counts a sync of a directory.
    pub fn count_dir_sync(&self) {
        self.dir_syncs.fetch_add(1, Relaxed);
    }
}

impl MeterSnapshot {
    /// Returns the bytes written for one cause.
    pub fn bytes(&self, cause: Cause) -> u64 {
        self.written_bytes[cause as usize]
    }

    /// Returns the write calls for one cause.
    pub fn calls(&self, cause: Cause) -> u64 {
        self.writes[cause as usize]
    }

    /// Returns the bytes written for all causes.
    pub fn total(&self) -> u64 {
        self.written_bytes.iter().sum()
    }

    /// Returns the increase since `earlier`, a snapshot of the same meter.
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: &[u64; CAUSES], then: &[u64; CAUSES]| {
            std::array::from_fn(|i| now[i].saturating_sub(then[i]))
        };
        Self {
            written_bytes: less(&self.written_bytes, &earlier.written_bytes),
            writes: less(&self.writes, &earlier.writes),
            syncs: self.syncs.saturating_sub(earlier.syncs),
            dir_syncs: self.dir_syncs.saturating_sub(earlier.dir_syncs),
            reads: self.reads.saturating_sub(earlier.reads),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_subtract_by_cause() {
        let meter = Meter::default();
        meter.count_write(Cause::Log, 10);
        let earlier = meter.snapshot();
        meter.count_write(Cause::Log, 5);
        meter.count_write(Cause::Snapshot, 7);
        meter.count_sync();
        meter.count_read(3);
        let added = meter.snapshot().since(&earlier);
        assert_eq!((added.bytes(Cause::Log), added.calls(Cause::Log)), (5, 1));
        assert_eq!(added.bytes(Cause::Snapshot), 7);
        assert_eq!((added.total(), added.syncs, added.dir_syncs), (12, 1, 0));
        assert_eq!((added.reads, added.read_bytes), (1, 3));
    }
}
