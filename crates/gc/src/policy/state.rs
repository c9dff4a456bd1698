//! Input and output of a policy: plain data, so that a decision is a pure function.

use super::victims::Files;
use crate::GcOptions;
use stele_types::{FileId, KeyRange, RunId};

pub(crate) const DEAD_SHARE_MIN: f64 = 0.1;

/// Sorted files that a scan of 100 values meets at most before they are merged into new ones.
const SORTED_FILES_MET_MAX: f64 = 4.0;

/// One tier of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierState {
    /// Bytes of its run files.
    pub bytes: u64,
    /// Bytes of the records that its entries refer to.
    pub ref_bytes: u64,
    /// Estimated bytes that its tombstones and range tombstones hide in older tiers.
    pub hides_bytes: u64,
}

/// Reason why a file cannot be removed, or is not a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// The log still appends to it.
    Head,
    /// No durable checkpoint covers it: perhaps only a memtable refers to it.
    Checkpoint,
    /// An uncommitted job wrote it.
    Job,
    /// A region's log still needs an entry in it.
    Raft,
    /// A reader of a region's log needs an entry in it.
    Reader,
    /// A view may still read it.
    View,
    /// Its removal could not read what must outlive it.
    Unreadable,
    /// The index refers to records in it.
    Live,
}

/// One value file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    /// Number of the file.
    pub id: FileId,
    /// Bytes on the device.
    pub bytes: u64,
    /// Bytes of records that the index refers to, as far as merges have discovered.
    pub live_bytes: u64,
    /// Of those, bytes of records that the last job could not read and thus not move.
    pub unreadable_bytes: u64,
    /// Whether a sort wrote it, in key order.
    pub is_sorted: bool,
    /// First reason why it cannot be removed now; `None` if it can.
    pub held: Option<Held>,
    /// First reason why it must stay even without live records; `None` for a possible victim.
    pub held_when_dead: Option<Held>,
}

impl FileState {
    pub(crate) fn dead_share(&self) -> f64 {
        1.0 - self.live_bytes.min(self.bytes) as f64 / self.bytes.max(1) as f64
    }

    /// Returns whether so much of the file is dead that a forced collection empties it.
    pub(crate) fn is_worth_emptying(&self) -> bool {
        self.dead_share() >= DEAD_SHARE_MIN
    }

    /// Returns the dead bytes that no job can free now: a view, a region's log or a failed read holds
    /// them.
    pub(super) fn stuck_bytes(&self) -> u64 {
        let is_stuck =
            matches!(self.held, Some(Held::View | Held::Unreadable | Held::Raft | Held::Reader));
        if is_stuck { self.bytes.saturating_sub(self.live_bytes) } else { 0 }
    }
}

/// A run of the oldest tier with an expired pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiredRun {
    /// Number of the run.
    pub run: RunId,
    /// Seconds since its first pair expired, by the time at which pairs are dropped.
    pub since_s: u64,
}

/// State of the store, as a policy sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Bytes applied since the memtable was last frozen, which the index's runs do not contain yet.
    pub memtable_bytes: u64,
    /// Bytes applied to frozen memtables that are not flushed yet.
    pub frozen_bytes: u64,
    /// Estimated bytes that deletes in memtables hide in runs.
    pub memtable_hides_bytes: u64,
    /// Seconds since the memtable was last frozen.
    pub memtable_age_s: u64,
    /// Seconds since garbage collection last froze a memtable, empty ones included.
    pub freeze_ago_s: u64,
    /// Seconds since a user last wrote, at the resolution of the observations.
    pub idle_s: u64,
    /// Frozen memtables that wait for their flush.
    pub frozen: usize,
    /// Tiers, newest first.
    pub tiers: Vec<TierState>,
    /// Bytes of the run that is the next to be rewritten without what newer tiers hide; `None` if all
    /// were since tombstones were added.
    pub trim_bytes: Option<u64>,
    /// Runs of the oldest tier with expired pairs, longest expired first; few at a time.
    pub expired: Vec<ExpiredRun>,
    /// Whether runs of newer tiers hold pairs that expired.
    pub expired_above: bool,
    /// Value files, by id.
    pub files: Files,
    /// Freed segments that wait for reuse.
    pub free_segments: usize,
    /// Bytes of one freed segment.
    pub free_segment_bytes: u64,
    /// Bytes on the device other than value files and runs (sidecars).
    pub other_bytes: u64,
    /// Share of new records that replaced an older one, learned from merges; 0 to 1.
    pub overwrite_ratio: f64,
    /// Bytes that may be written now within the budget; negative when overspent.
    pub credit_bytes: i64,
    /// Half of the bytes that users wrote, less the bytes that sorts wrote: with the live bytes, the
    /// credit of sorts.
    pub sort_balance_bytes: i64,
    /// Limit for the bytes that one job moves; lowered after the device ran full.
    pub move_bytes_max: u64,
    /// Bytes that a job may write before it frees any; `None` if nothing limits them.
    pub room_bytes: Option<u64>,
    /// Whether a job failed recently: only jobs that need little space are tried.
    pub backing_off: bool,
    /// Bytes scanned since everything was last sorted.
    pub scanned_bytes: u64,
    /// Range with the scans that paid most for sorting it.
    pub hot: Option<HotRange>,
    /// Unsorted rest of a sort in progress.
    pub sorting: Option<KeyRange>,
    /// Seconds since everything was last sorted; with a schedule, since the start of the interval in
    /// which it was.
    pub sorted_ago_s: u64,
    /// The truncation hook has not run since the checkpoint last advanced.
    pub truncate_untried: bool,
    /// Idle regions have not been re-appended since the checkpoint last advanced.
    pub reappend_untried: bool,
}

/// A range that is scanned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotRange {
    /// Key range.
    pub range: KeyRange,
    /// Estimated bytes of its values.
    pub bytes: u64,
    /// Bytes scanned in it since it was last sorted.
    pub scanned_bytes: u64,
}

/// Next job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// No job is worthwhile.
    Idle,
    /// Start a new memtable, so that the flush of this one discovers what it replaced.
    Freeze,
    /// Write the oldest frozen memtable to a run.
    Flush,
    /// Merge `count` tiers, starting at `first`, towards older ones.
    Merge {
        /// Index of the newest tier to merge.
        first: usize,
        /// Number of tiers.
        count: usize,
    },
    /// Rewrite the next run without what newer tiers hide.
    Trim,
    /// Rewrite these runs of the oldest tier without their expired pairs.
    DropExpired {
        /// Runs to rewrite.
        runs: Vec<RunId>,
    },
    /// Move live values out of these files, merging the tiers that refer to them.
    Relocate {
        /// Victims, best first.
        victims: Vec<FileId>,
    },
    /// Rewrite the values of this range in key order.
    Sort {
        /// Key range.
        range: KeyRange,
    },
    /// Remove files that nothing holds.
    Reclaim {
        /// Files to remove.
        files: Vec<FileId>,
    },
    /// Return freed segments that wait for reuse to the file system.
    DropFree {
        /// Number of segments.
        count: usize,
    },
    /// Seal the head of the log, so that it can be removed.
    Roll,
    /// Request the owner of the regions to truncate their logs up to the checkpoint.
    Truncate,
    /// Re-append entries of idle regions that lie below this file.
    Reappend {
        /// First file that is not affected.
        below: FileId,
    },
}

/// Part of the live bytes that freed segments take at most while they are kept above the accepted space.
const KEPT_OF_LIVE: u64 = 8;
/// Seconds without a write after which none is kept.
const KEPT_IDLE_S: u64 = 5;

impl State {
    /// Returns the bytes of all runs.
    pub fn index_bytes(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.bytes).sum()
    }

    /// Returns the bytes on the device.
    pub fn disk_bytes(&self) -> u64 {
        self.files.sums().bytes
            + self.index_bytes()
            + self.free_segments as u64 * self.free_segment_bytes
            + self.other_bytes
    }

    /// Returns the bytes on the device without the dead ones that no job can free now.
    pub(crate) fn movable_bytes(&self) -> u64 {
        let stuck: u64 = self.files.sums().stuck_bytes;
        // bug gc.moves_for_what_is_stuck: let stuck = 0;
        self.disk_bytes().saturating_sub(stuck)
    }

    /// Returns those bytes without the freed segments that are kept. Invariant: the policies and the pressure on
    /// writers go by these. What is stuck or kept would otherwise cause live values to be moved again and
    /// again, in vain.
    pub(crate) fn collectable_bytes(&self) -> u64 {
        let kept = self.kept_free_segments() as u64 * self.free_segment_bytes;
        // bug gc.moves_for_what_waits: let kept = 0;
        self.movable_bytes().saturating_sub(kept)
    }

    /// Returns how many freed segments wait for the next ones of the log, whatever space is accepted: while
    /// there are writes, each of those takes as much space a moment later, and each sync in new blocks commits
    /// metadata. One is kept also if it is more than its part.
    ///
    /// Invariant: no value is moved for the space that these take.
    /// Test: `values_in_key_order_stay_until_a_scan_meets_more_than_four_sorted_files`.
    pub(crate) fn kept_free_segments(&self) -> usize {
        if self.idle_s >= KEPT_IDLE_S {
            return 0;
        }
        let part = self.live_bytes() / KEPT_OF_LIVE / self.free_segment_bytes.max(1);
        // bug gc.freed_segments_are_dropped_at_once: return 0;
        self.free_segments.min(part.max(1) as usize)
    }

    /// Returns the bytes that one job may have to write before it frees any: all runs, and the live
    /// values of the largest file that has dead ones.
    pub fn job_bytes(&self) -> u64 {
        let has_dead = |file: &&FileState| file.live_bytes > 0 && file.is_worth_emptying();
        let largest = self.files.iter().filter(has_dead).map(|file| file.live_bytes).max();
        self.index_bytes() + largest.unwrap_or_default()
    }

    /// Returns whether jobs may write so many bytes now.
    pub fn has_room(&self, bytes: u64) -> bool {
        // bug gc.jobs_need_no_room: return true;
        self.room_bytes.is_none_or(|room| bytes <= room)
    }

    /// Returns whether the device has room for a second copy of what a sort moves, and of the runs: the
    /// files that it empties go at its end.
    pub(crate) fn has_room_to_sort(&self) -> bool {
        self.has_room(self.index_bytes().saturating_add(self.unsorted_bytes()))
    }

    /// Returns the bytes that sorts may write now: the live bytes once, then half a byte for each byte
    /// that users write.
    ///
    /// Invariant: sorts for which scans pay write no more than this, whatever is scanned.
    /// Tests: `decisions_of_adaptive`, `scans_and_updates_cause_sorts_of_half_a_byte_a_byte_written`.
    pub(crate) fn sort_credit_bytes(&self) -> i64 {
        let live = i64::try_from(self.live_bytes()).unwrap_or(i64::MAX);
        live.saturating_add(self.sort_balance_bytes)
    }

    /// Returns whether sorts may write so many bytes of values, and the same share of the runs.
    pub(crate) fn has_sort_credit(&self, value_bytes: u64) -> bool {
        // bug gc.sorts_without_credit: return true;
        let live = self.live_bytes().max(1) as f64;
        let share = (value_bytes as f64 / live).min(1.0);
        let bytes = value_bytes as f64 + share * self.index_bytes() as f64;
        self.sort_credit_bytes() as f64 >= bytes
    }

    /// Returns whether a sort also rewrites the values that lie in key order: if a scan of 100 values
    /// meets so many sorted files that it is far from one stream.
    ///
    /// Invariant: values in key order stay in place otherwise. Each sort of a few unsorted values would
    /// write all of them.
    /// Test: `values_in_key_order_stay_until_a_scan_meets_more_than_four_sorted_files`.
    pub fn rewrites_sorted(&self, sorted_files_met: f64) -> bool {
        // bug gc.sorted_values_move_again: return true;
        sorted_files_met > SORTED_FILES_MET_MAX && self.has_sort_credit(self.live_bytes())
    }

    /// Returns the bytes of values that a job may move besides the runs that it rewrites.
    pub(crate) fn room_for_values(&self) -> u64 {
        // bug gc.jobs_need_no_room: return u64::MAX;
        match self.room_bytes {
            Some(room) => room.saturating_sub(self.index_bytes()),
            None => u64::MAX,
        }
    }

    /// Returns the dead bytes of the files that only a later checkpoint releases, the head included,
    /// as far as they are known. What memtables refer to counts as live.
    pub(crate) fn unreleased_bytes(&self) -> u64 {
        let is_held =
            |file: &&FileState| matches!(file.held_when_dead, Some(Held::Head | Held::Checkpoint));
        let dead = |file: &FileState| file.bytes.saturating_sub(file.live_bytes);
        let dead: u64 = self.files.iter().filter(is_held).map(dead).sum();
        dead.saturating_sub(self.memtable_bytes + self.frozen_bytes) + self.memtable_hides_bytes
    }

    /// Returns the bytes of records that runs refer to: live ones, and dead ones not yet
    /// discovered.
    pub(crate) fn known_live_bytes(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.ref_bytes).sum()
    }

    /// Returns the bytes of records that may have replaced older ones which still count as live.
    pub(crate) fn undiscovered_bytes(&self) -> u64 {
        self.undiscovered_in_runs_bytes()
            + self.memtable_bytes
            + self.frozen_bytes
            + self.memtable_hides_bytes
    }

    /// Returns the part of [`State::undiscovered_bytes`] that a merge of all tiers would discover.
    pub(crate) fn undiscovered_in_runs_bytes(&self) -> u64 {
        let upper = self.tiers.len().saturating_sub(1);
        let hidden = |tier: &TierState| tier.ref_bytes + tier.hides_bytes;
        self.tiers.iter().take(upper).map(hidden).sum()
    }

    pub(crate) fn has_unflushed(&self) -> bool {
        self.memtable_bytes + self.memtable_hides_bytes > 0
    }

    /// Returns a lower bound of the live bytes, if no new record replaced another within one tier's
    /// age: each tier holds a key once, so the records of the largest tier are distinct.
    pub(crate) fn least_live_bytes(&self) -> u64 {
        let hides: u64 = self.tiers.iter().map(|tier| tier.hides_bytes).sum();
        let hides = hides + self.memtable_hides_bytes;
        let largest = self.tiers.iter().map(|tier| tier.ref_bytes).max().unwrap_or(0);
        largest.saturating_sub(hides)
    }

    /// Estimates the live bytes from the learned share of new records that replace older ones.
    pub fn live_bytes(&self) -> u64 {
        let unflushed = self.memtable_bytes + self.frozen_bytes;
        let known = (self.known_live_bytes() + unflushed) as f64;
        let dead = self.overwrite_ratio * self.undiscovered_bytes() as f64;
        ((known - dead).max(0.0) as u64).max(self.least_live_bytes())
    }

    /// Returns the estimated bytes on the device for each live byte; 1 for an empty store.
    pub fn space_amp(&self) -> f64 {
        ratio(self.disk_bytes(), self.live_bytes())
    }

    /// Returns [`State::space_amp`] of what jobs can free, with the slack of a small store, for the
    /// limits of the settings.
    pub fn space_amp_weighed(&self, options: &GcOptions) -> f64 {
        ratio(self.collectable_bytes(), options.weighed(self.live_bytes()))
    }

    /// Returns [`State::space_amp_weighed`] if every new record had replaced an older one.
    pub(crate) fn space_amp_at_worst(&self, options: &GcOptions) -> f64 {
        ratio(self.collectable_bytes(), options.weighed(self.least_live_bytes()))
    }

    /// Returns the live bytes outside sorted files. Invariant: unreadable records do not count.
    /// They stay in place, and would otherwise cause everything else to be sorted repeatedly.
    pub(crate) fn unsorted_bytes(&self) -> u64 {
        let sums = self.files.sums();
        // bug gc.sorts_in_vain: `sums.unreadable_bytes` is `0`
        self.known_live_bytes().saturating_sub(sums.sorted_bytes + sums.unreadable_bytes)
    }
}

fn ratio(disk_bytes: u64, live_bytes: u64) -> f64 {
    if disk_bytes == 0 { 1.0 } else { disk_bytes as f64 / live_bytes.max(1) as f64 }
}
