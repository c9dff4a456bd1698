//! What a policy sees and what it answers: plain data, so that a decision is a pure function.

use crate::GcOptions;
use stele_types::{FileId, KeyRange, mutant};

/// One tier of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierState {
    /// Bytes of its run files.
    pub bytes: u64,
    /// Bytes of the records its entries refer to.
    pub ref_bytes: u64,
    /// Estimated bytes its tombstones and range tombstones hide in older tiers.
    pub hides_bytes: u64,
}

/// Why a file can't be removed, or is no victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// The log still appends to it.
    Head,
    /// No durable checkpoint covers it: a memtable may be all that refers to it.
    Checkpoint,
    /// A job that is not committed wrote it.
    Job,
    /// Some region's log still needs an entry in it.
    Raft,
    /// A view may still read it.
    View,
    /// The index refers to records in it.
    Live,
}

/// One value file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    /// The file.
    pub id: FileId,
    /// Bytes on the device.
    pub bytes: u64,
    /// Bytes of records the index refers to, as far as merges have found out.
    pub live_bytes: u64,
    /// Of those, bytes of records that the last job could not read, and so not move.
    pub unreadable_bytes: u64,
    /// Written in key order by a sort.
    pub is_sorted: bool,
    /// The first reason why it can't be removed now; `None`: it can.
    pub held: Option<Held>,
    /// The first reason why it would stay if nothing in it were live; `None`: a possible victim.
    pub held_when_dead: Option<Held>,
}

impl FileState {
    /// Share of the file that is known to be dead.
    pub fn dead_share(&self) -> f64 {
        1.0 - self.live_bytes.min(self.bytes) as f64 / self.bytes.max(1) as f64
    }
}

/// The store as a policy sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Bytes applied since the memtable was last frozen: what the index's runs don't know yet.
    pub memtable_bytes: u64,
    /// Bytes applied to frozen memtables that are not flushed yet.
    pub frozen_bytes: u64,
    /// Estimated bytes that deletes in memtables hide in runs.
    pub memtable_hides_bytes: u64,
    /// Seconds since the memtable was last frozen.
    pub memtable_age_s: u64,
    /// Seconds since a user last wrote, as far as looks at the store tell.
    pub idle_s: u64,
    /// Frozen memtables that wait for their flush.
    pub frozen: usize,
    /// Newest first.
    pub tiers: Vec<TierState>,
    /// By id.
    pub files: Vec<FileState>,
    /// Freed segments that wait for reuse.
    pub free_segments: usize,
    /// Bytes of one of them.
    pub free_segment_bytes: u64,
    /// Other device bytes beside value files and runs (sidecars).
    pub other_bytes: u64,
    /// Share of new records that replaced an older one, learned from merges; 0 to 1.
    pub overwrite_ratio: f64,
    /// Bytes that may be written now without exceeding the budget; negative: overspent.
    pub credit_bytes: i64,
    /// Most bytes one job may move; lowered after the device ran full.
    pub move_bytes_max: u64,
    /// Whether a job failed a moment ago: only what needs little space is tried.
    pub backing_off: bool,
    /// Bytes scanned since everything was last sorted.
    pub scanned_bytes: u64,
    /// The range whose scans paid most for sorting it, with the bytes scanned and its size.
    pub hot: Option<HotRange>,
    /// What is left of a sort that has begun.
    pub sorting: Option<KeyRange>,
    /// Seconds since everything was last sorted.
    pub sorted_ago_s: u64,
    /// Whether the truncation hook was not asked yet since the checkpoint last moved.
    pub truncate_untried: bool,
    /// Whether idle regions were not re-appended yet since the checkpoint last moved.
    pub reappend_untried: bool,
}

/// A range that is scanned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotRange {
    /// Its keys.
    pub range: KeyRange,
    /// Estimated bytes of its values.
    pub bytes: u64,
    /// Bytes scanned in it since it was last sorted.
    pub scanned_bytes: u64,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Nothing is worth doing.
    Idle,
    /// Start a new memtable, so that the flush of this one makes known what it replaced.
    Freeze,
    /// Write the oldest frozen memtable to a run.
    Flush,
    /// Merge this many tiers from the newest on, starting at `first`.
    Merge {
        /// Index of the newest tier taken.
        first: usize,
        /// How many.
        count: usize,
    },
    /// Move what is live out of these files, merging all tiers on the way.
    Relocate {
        /// The victims, best first.
        victims: Vec<FileId>,
    },
    /// Rewrite the values of this range in key order.
    Sort {
        /// The keys.
        range: KeyRange,
    },
    /// Remove files that nothing holds.
    Reclaim {
        /// The files.
        files: Vec<FileId>,
    },
    /// Give freed segments that wait for reuse back to the file system.
    DropFree {
        /// How many.
        count: usize,
    },
    /// Ask the owner of the regions to truncate their logs up to the checkpoint.
    Truncate,
    /// Re-append entries of idle regions that lie below this file.
    Reappend {
        /// The first file left alone.
        below: FileId,
    },
}

impl State {
    /// Bytes of all runs.
    pub fn index_bytes(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.bytes).sum()
    }

    /// Bytes on the device.
    pub fn disk_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum::<u64>()
            + self.index_bytes()
            + self.free_segments as u64 * self.free_segment_bytes
            + self.other_bytes
    }

    /// Bytes of records that runs refer to: what is live, and what no merge has found dead yet.
    pub fn known_live_bytes(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.ref_bytes).sum()
    }

    /// Bytes of records that may have replaced older ones which still count as live.
    pub fn undiscovered_bytes(&self) -> u64 {
        self.undiscovered_in_runs_bytes()
            + self.memtable_bytes
            + self.frozen_bytes
            + self.memtable_hides_bytes
    }

    /// Of those, what a merge of all tiers would make known.
    pub fn undiscovered_in_runs_bytes(&self) -> u64 {
        let upper = self.tiers.len().saturating_sub(1);
        let hidden = |tier: &TierState| tier.ref_bytes + tier.hides_bytes;
        self.tiers.iter().take(upper).map(hidden).sum()
    }

    /// Whether the active memtable holds anything.
    pub fn has_unflushed(&self) -> bool {
        self.memtable_bytes + self.memtable_hides_bytes > 0
    }

    /// Live bytes if no new record replaced another within one tier's age, at the least: each tier
    /// holds a key once, so what the largest tier refers to is distinct.
    pub fn least_live_bytes(&self) -> u64 {
        let hides: u64 = self.tiers.iter().map(|tier| tier.hides_bytes).sum();
        let hides = hides + self.memtable_hides_bytes;
        let largest = self.tiers.iter().map(|tier| tier.ref_bytes).max().unwrap_or(0);
        largest.saturating_sub(hides)
    }

    /// Live bytes, estimated from the share of new records that used to replace older ones.
    pub fn live_bytes(&self) -> u64 {
        let unflushed = self.memtable_bytes + self.frozen_bytes;
        let known = (self.known_live_bytes() + unflushed) as f64;
        let dead = self.overwrite_ratio * self.undiscovered_bytes() as f64;
        ((known - dead).max(0.0) as u64).max(self.least_live_bytes())
    }

    /// Bytes on the device for each live byte, estimated; 1 for an empty store.
    pub fn space_amp(&self) -> f64 {
        ratio(self.disk_bytes(), self.live_bytes())
    }

    /// The same with what is accepted of a small store, as the settings' limits count.
    pub fn space_amp_weighed(&self, options: &GcOptions) -> f64 {
        ratio(self.disk_bytes(), options.weighed(self.live_bytes()))
    }

    /// That, if every new record replaced an older one.
    pub fn space_amp_at_worst(&self, options: &GcOptions) -> f64 {
        ratio(self.disk_bytes(), options.weighed(self.least_live_bytes()))
    }

    /// Live bytes outside files written in key order by a sort. Rule: what can't be read does not
    /// count. It stays where it is, and would have everything else sorted for it again and again.
    pub fn unsorted_bytes(&self) -> u64 {
        let unreadable = |file: &FileState| match mutant::active("gc.sorts_in_vain") {
            true => 0,
            false => file.unreadable_bytes,
        };
        let sorted = |file: &FileState| match file.is_sorted {
            true => file.live_bytes,
            false => unreadable(file),
        };
        self.known_live_bytes().saturating_sub(self.files.iter().map(sorted).sum())
    }
}

fn ratio(disk_bytes: u64, live_bytes: u64) -> f64 {
    if disk_bytes == 0 { 1.0 } else { disk_bytes as f64 / live_bytes.max(1) as f64 }
}
