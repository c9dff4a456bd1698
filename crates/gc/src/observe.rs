//! State of the store, as input of the policies.

use crate::drop_time::drop_s;
use crate::gc::Shared;
use crate::policy::{ExpiredRun, FileState, Files, Held, State, TierState, sorted_ago_s};
use crate::removal::{self, FileStatus};
use crate::work::Work;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stele_index::{RangeSet, Run, Tier, Version, VersionId};
use stele_log::{FileKind, FileList, ValueFileInfo};
use stele_types::{FileId, RunId};

const NANOS_PER_S: u64 = 1_000_000_000;
/// Time after which a store that is short of space requests truncations again: meanwhile followers
/// received entries.
const TRUNCATE_AGAIN_NANOS: u64 = NANOS_PER_S;
/// Limit for the runs that one job rewrites to drop expired pairs: other merges wait for it.
const EXPIRED_RUNS_MAX: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// The index has referred to this sorted file, or never will. An unreferenced file without this
    /// flag may belong to an installation in progress.
    was_committed: bool,
    dead_since: Option<VersionId>,
    /// Version of the last observation without the file; 0 if there was none.
    created_since: VersionId,
}

impl Seen {
    pub(crate) fn leftover() -> Self {
        Self { was_committed: true, ..Self::default() }
    }
}

/// Files as of the last observation. Invariant: it is used only while nothing that determines the state
/// of a file has changed, so an idle slice costs the same however many files there are.
#[derive(Debug, Default)]
pub(crate) struct FileCache {
    key: Option<FilesKey>,
    /// Versions that readers pinned. They matter if a file is dead.
    pinned: Vec<VersionId>,
    files: Files,
    largest_bytes: u64,
    pub observed: u64,
}

/// What determines the states of the files, except the size of the head.
#[derive(Debug, PartialEq, Eq)]
struct FilesKey {
    version: VersionId,
    checkpoint: FileId,
    list: FileList,
    is_merging: bool,
    /// Files that cannot be removed now.
    unremovable: usize,
    /// Fingerprint of the files that are not victims now, because a job on them ran out of space.
    failed_victims: u64,
}

impl FileCache {
    /// Forgets the files, because a job changed what is known of them.
    pub(crate) fn forget(&mut self) {
        self.key = None;
    }
}

/// Cached sums of the tiers: there are many runs, and they change only with the version.
#[derive(Debug, Default)]
pub(crate) struct TierCache {
    of: Option<VersionId>,
    tiers: Vec<TierState>,
    /// Earliest expiry of each run of the oldest tier that has one, earliest first.
    expiries: Vec<(u64, RunId)>,
    /// Earliest expiry in newer tiers; `u64::MAX` for none.
    expiry_above_s: u64,
    /// Mean size of a record; 0 without records.
    record_bytes: u64,
}

impl TierCache {
    /// Returns the runs with pairs that expired by `drop_s`, at most [`EXPIRED_RUNS_MAX`].
    fn expired(&self, drop_s: u64) -> Vec<ExpiredRun> {
        let due = self.expiries.iter().take_while(|(earliest_s, _)| *earliest_s <= drop_s);
        let expired = |(earliest_s, run): &(u64, RunId)| ExpiredRun {
            run: *run,
            since_s: drop_s.saturating_sub(*earliest_s),
        };
        // No expiry is known of a run that states 0: nothing is dropped before the time is known.
        due.take(EXPIRED_RUNS_MAX).filter(|_| drop_s > 0).map(expired).collect()
    }

    pub(crate) fn hidden_bytes(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.hides_bytes).sum()
    }
}

/// Time of the users' last write, at the resolution of the observations.
#[derive(Debug, Default)]
pub(crate) struct LastWrite {
    user_bytes: u64,
    seen_nanos: u64,
}

impl LastWrite {
    fn idle_s(&mut self, shared: &Shared) -> u64 {
        let now_nanos = shared.clock.monotonic_nanos();
        let user_bytes = shared.user_bytes.load(Ordering::Relaxed);
        if user_bytes != self.user_bytes {
            *self = Self { user_bytes, seen_nanos: now_nanos };
        }
        now_nanos.saturating_sub(self.seen_nanos) / NANOS_PER_S
    }
}

#[derive(Debug, Default)]
pub(crate) struct MemtableSeen {
    /// User bytes when it was started.
    user_bytes_before: u64,
    /// User bytes when the oldest unflushed memtable was started.
    user_bytes_flushed: u64,
    memory_bytes: u64,
    since_nanos: u64,
}

impl MemtableSeen {
    pub(crate) fn resume(&mut self, shared: &Shared, user_bytes: u64) {
        self.user_bytes_flushed = user_bytes;
        self.start(shared, user_bytes);
    }

    pub(crate) fn start(&mut self, shared: &Shared, user_bytes: u64) {
        self.user_bytes_before = user_bytes;
        self.memory_bytes = shared.index.memtable_bytes() as u64;
        self.since_nanos = shared.clock.monotonic_nanos();
    }
}

impl Work {
    pub(crate) fn observe(&mut self, shared: &Shared) -> State {
        // The checkpoint is read first: it may be older than the version, never newer.
        let checkpoint = shared.index.replay_from();
        let version = shared.index.version();
        let pinned = shared.index.pinned_versions();
        self.sum_tiers(&version);
        let (files, segment_bytes) = self.observe_files(shared, &version, checkpoint.file, pinned);
        let now_nanos = shared.clock.monotonic_nanos();
        let idle_s = self.last_write.idle_s(shared);
        let drop_s = self.drop_s(shared);
        let expired = self.tiers.expired(drop_s);
        let room_bytes = shared.hooks.room_bytes();
        let heat = shared.heat.lock();
        let state = State {
            idle_s,
            frozen: shared.index.frozen_count(),
            tiers: self.tiers.tiers.clone(),
            expired,
            expired_above: drop_s > 0 && self.tiers.expiry_above_s <= drop_s,
            files,
            free_segments: shared.log.free_segments(),
            free_segment_bytes: segment_bytes,
            overwrite_ratio: self.saved.overwrite_ratio,
            credit_bytes: self.saved.credit_bytes as i64,
            sort_balance_bytes: self.saved.sort_balance_bytes(),
            move_bytes_max: self.move_bytes_max.unwrap_or(u64::MAX),
            room_bytes,
            trim_bytes: self.trim.next(&version).map(|(_, run)| run.meta().bytes),
            freeze_ago_s: self
                .froze_at_nanos
                .map_or(u64::MAX, |at| now_nanos.saturating_sub(at) / NANOS_PER_S),
            backing_off: shared.clock.monotonic_nanos() < self.back_off_until_nanos,
            scanned_bytes: heat.scanned_bytes(),
            hot: heat.hottest().cloned(),
            sorting: self.sorting.as_ref().map(|sorting| sorting.rest.clone()),
            sorted_ago_s: sorted_ago_s(
                shared.clock.unix_seconds(),
                self.saved.sorted_at_s,
                self.opened_at_s,
                &shared.options(),
            ),
            truncate_untried: self.truncated_at != Some(checkpoint)
                || shared.short_of_space.load(Ordering::Relaxed)
                    && now_nanos.saturating_sub(self.truncated_at_nanos) >= TRUNCATE_AGAIN_NANOS,
            reappend_untried: self.reappended_at != Some(checkpoint),
            ..self.observe_memtable(shared)
        };
        drop(heat);
        // A short range tombstone may hide many bytes.
        let ranges = shared.index.memtable_ranges();
        let hides = hidden_by_ranges(&ranges, version.tiers());
        let state = State { memtable_hides_bytes: state.memtable_hides_bytes + hides, ..state };
        shared.job_bytes.store(state.job_bytes(), Ordering::Relaxed);
        self.space_amp = state.space_amp_weighed(&shared.options());
        state
    }

    fn observe_files(
        &mut self,
        shared: &Shared,
        version: &Version,
        checkpoint: FileId,
        pinned: Vec<VersionId>,
    ) -> (Files, u64) {
        let now_nanos = shared.clock.monotonic_nanos();
        // Read before the files: a later change makes the key differ.
        let (list, head_bytes) = shared.log.file_list();
        let key = FilesKey {
            version: version.id(),
            checkpoint,
            list,
            is_merging: self.merge.is_some(),
            unremovable: self.unremovable.values().filter(|until| now_nanos < **until).count(),
            failed_victims: self.failed_victims.fingerprint(now_nanos),
        };
        let is_same = self.files.key.as_ref() == Some(&key)
            && (!self.files.files.sums().has_dead || self.files.pinned == pinned);
        // bug gc.observes_each_file_again: never
        if is_same {
            self.files.files = self.files.files.with_bytes(key.list.head, head_bytes);
            self.files.largest_bytes = self.files.largest_bytes.max(head_bytes);
            return (self.files.files.clone(), self.files.largest_bytes);
        }
        let needed = self.interrupted_outputs(shared);
        let infos = shared.log.files();
        let is_listed = |file: &FileId| infos.binary_search_by_key(file, |info| info.file).is_ok();
        self.seen.retain(|file, _| is_listed(file));
        self.unremovable.retain(|file, _| is_listed(file));
        self.unreadable.retain(|file, _| version.live().contains_key(file));
        self.failed_victims.retain(|file| is_listed(&file));
        let mut files = Vec::with_capacity(infos.len());
        for info in infos.iter().filter(|info| info.kind != FileKind::Tombstones) {
            let status = FileStatus {
                is_below_checkpoint: info.file < checkpoint,
                pinned: &pinned,
                has_failed: self.failed_victims.contains(info.file, now_nanos),
                is_unremovable: self.unremovable.get(&info.file).is_some_and(|at| now_nanos < *at),
                ..self.file_status(info, version, needed.as_ref(), info.file < checkpoint)
            };
            files.push(self.file_state(info, version, &status));
        }
        self.observed = version.id();
        let files = Files::from(files);
        let largest_bytes = infos.iter().map(|info| info.bytes).max().unwrap_or(0);
        let observed = self.files.observed + infos.len() as u64;
        // Of an interrupted merge, the index is asked each time.
        let is_known = needed.is_some_and(|needed| needed.is_empty());
        let key = Some(key).filter(|_| is_known);
        self.files = FileCache { key, pinned, files: files.clone(), largest_bytes, observed };
        (files, largest_bytes)
    }

    /// Returns the time up to which expired pairs are dropped now; 0 if none are.
    pub(crate) fn drop_s(&mut self, shared: &Shared) -> u64 {
        let now_s = shared.clock.unix_seconds();
        self.saved.seen.note(now_s);
        drop_s(shared.time_source, now_s, &self.saved.seen, shared.cluster_time_s())
    }

    /// Returns the finished value files of a merge that is not resumed yet. `None` if they cannot
    /// be read now: any unreferenced file may be one.
    fn interrupted_outputs(&self, shared: &Shared) -> Option<BTreeSet<FileId>> {
        if self.merge.is_some() || shared.index.pending_merge().is_none() {
            return Some(BTreeSet::new());
        }
        shared.index.needed_files().ok().map(BTreeSet::from_iter)
    }

    fn file_status(
        &mut self,
        info: &ValueFileInfo,
        version: &Version,
        needed: Option<&BTreeSet<FileId>>,
        below_checkpoint: bool,
    ) -> FileStatus<'static> {
        let is_segment = info.kind != FileKind::Sorted;
        let live_records = version.live().get(&info.file).map_or(0, |live| live.records);
        // Invariant: the version was current before the files were listed. What was created since is
        // in no view of an earlier version.
        let created_since = self.observed;
        // bug gc.created_when_seen: let created_since = version.id();
        // bug gc.views_hold_later_files: let created_since = VersionId::default();
        let new = || Seen { created_since, ..Seen::default() };
        let seen = self.seen.entry(info.file).or_insert_with(new);
        if live_records > 0 {
            seen.was_committed = true;
            seen.dead_since = None;
        } else if (is_segment && below_checkpoint) || (!is_segment && seen.was_committed) {
            // Nothing can refer to it again: this version, or an earlier one, is the first without
            // it.
            seen.dead_since.get_or_insert(version.id());
        }
        let unreferenced = !is_segment && live_records == 0;
        let is_output = needed.is_none_or(|files| files.contains(&info.file));
        FileStatus {
            is_head: matches!(info.kind, FileKind::Segment { sealed: false, .. }),
            is_segment,
            is_uncommitted: unreferenced && (is_output || !seen.was_committed),
            is_wanted_by_raft: info.wanted_by_raft,
            is_pinned_by_reader: info.is_pinned,
            live_records,
            dead_since: seen.dead_since,
            created_since: seen.created_since,
            ..FileStatus::default()
        }
    }

    fn file_state(
        &self,
        info: &ValueFileInfo,
        version: &Version,
        status: &FileStatus<'_>,
    ) -> FileState {
        let live = version.live().get(&info.file).copied().unwrap_or_default();
        let left = self.unreadable.get(&info.file).copied().unwrap_or_default();
        // Invariant: a file is not a victim again while its live records are just those that could
        // not be read the last time. Nothing would move, and the index would be rewritten for it.
        let is_stuck = left.records > 0 && left == live;
        // bug gc.victims_in_vain: let is_stuck = false;
        let is_stuck = is_stuck || status.has_failed;
        FileState {
            id: info.file,
            bytes: info.bytes,
            live_bytes: on_device(info, live.bytes),
            unreadable_bytes: on_device(info, left.bytes.min(live.bytes)),
            is_sorted: self.saved.sorted.contains(&info.file),
            held: removal::held(status),
            held_when_dead: removal::held_when_dead(status).or(is_stuck.then_some(Held::Live)),
        }
    }

    /// Observes the memtables, which hold all user bytes since the last freeze. Each delete is taken to
    /// hide a record of mean size.
    fn observe_memtable(&mut self, shared: &Shared) -> State {
        let memory_bytes = shared.index.memtable_bytes() as u64;
        let user_bytes = shared.user_bytes.load(Ordering::Relaxed);
        if shared.index.memtable_is_empty() || memory_bytes < self.memtable.memory_bytes {
            self.memtable.start(shared, user_bytes);
        }
        self.memtable.memory_bytes = memory_bytes;
        if shared.index.frozen_count() == 0 {
            self.memtable.user_bytes_flushed = self.memtable.user_bytes_before;
        }
        let begun = self.memtable.user_bytes_before;
        let frozen_bytes = begun.saturating_sub(self.memtable.user_bytes_flushed);
        if shared.index.memtable_is_empty() {
            return State { frozen_bytes, ..State::default() };
        }
        let written = user_bytes.saturating_sub(self.memtable.user_bytes_before);
        let (entries, tombstones) = shared.index.memtable_entries();
        // Without runs the deletes hide records of this memtable.
        let record_bytes = match self.tiers.record_bytes {
            0 => written / entries.max(1),
            mean => mean,
        };
        let hides = tombstones.saturating_mul(record_bytes);
        // bug gc.deletes_beside_puts_unseen: let hides = if written >= memory_bytes / 2 { 0 } else { hides };
        let waited = shared.clock.monotonic_nanos().saturating_sub(self.memtable.since_nanos);
        State {
            memtable_bytes: written.max(1),
            frozen_bytes,
            memtable_hides_bytes: hides,
            memtable_age_s: waited / NANOS_PER_S,
            ..State::default()
        }
    }

    pub(crate) fn unflushed_bytes(&mut self, shared: &Shared) -> u64 {
        let state = self.observe_memtable(shared);
        state.memtable_bytes + state.frozen_bytes
    }

    fn sum_tiers(&mut self, version: &Version) {
        if self.tiers.of == Some(version.id()) {
            return;
        }
        let tiers = version.tiers();
        let (records, bytes) = version
            .live()
            .values()
            .fold((0, 0), |(records, bytes), live| (records + live.records, bytes + live.bytes));
        // Without references the runs hold the values.
        let entries: u64 = version.runs().map(|run| run.meta().entries).sum();
        let run_bytes: u64 = tiers.iter().map(|tier| tier.bytes).sum();
        let record_bytes = match records {
            0 => run_bytes / entries.max(1),
            records => bytes / records,
        };
        let sum = |(at, tier): (usize, &Tier)| TierState {
            bytes: tier.bytes,
            ref_bytes: ref_bytes(tier),
            hides_bytes: tier.tombstones * record_bytes
                + hidden_by_ranges(tier.ranges(), tiers.get(at + 1..).unwrap_or_default()),
        };
        let expires = |run: &Arc<Run>| (run.meta().earliest_expiry_s, run.id());
        let oldest = tiers.last().map_or(&[][..], |tier| &tier.runs).iter().map(expires);
        let mut expiries: Vec<_> = oldest.filter(|(first_s, _)| *first_s != u64::MAX).collect();
        expiries.sort_unstable();
        let upper = tiers.len().saturating_sub(1);
        let above = tiers.iter().take(upper).flat_map(|tier| &tier.runs);
        let expiry_above_s =
            above.map(|run| run.meta().earliest_expiry_s).min().unwrap_or(u64::MAX);
        let tiers = tiers.iter().enumerate().map(sum).collect();
        let of = Some(version.id());
        self.tiers = TierCache { of, tiers, expiries, expiry_above_s, record_bytes };
    }
}

/// Returns the live bytes plus their share of record headers, which a move to another sorted file
/// would not save. A move does save the padding of a segment.
fn on_device(info: &ValueFileInfo, live_bytes: u64) -> u64 {
    if info.kind != FileKind::Sorted || info.payload_bytes == 0 {
        return live_bytes;
    }
    let scaled = u128::from(live_bytes) * u128::from(info.bytes) / u128::from(info.payload_bytes);
    scaled.min(u128::from(info.bytes)) as u64
}

pub(crate) fn ref_bytes(tier: &Tier) -> u64 {
    tier.runs.iter().flat_map(|run| run.meta().refs.values()).map(|live| live.bytes).sum()
}

/// Estimates the bytes that range tombstones hide in older tiers: all of a run inside, half of one
/// that overlaps.
fn hidden_by_ranges(ranges: &RangeSet, older: &[Tier]) -> u64 {
    if ranges.is_empty() {
        return 0;
    }
    let mut bytes = 0;
    for run in older.iter().flat_map(|tier| &tier.runs) {
        let meta = run.meta();
        let refs: u64 = meta.refs.values().map(|live| live.bytes).sum();
        let inside = ranges
            .iter()
            .any(|range| range.contains(&meta.first_key) && range.contains(&meta.last_key));
        let touches = ranges
            .iter()
            .any(|range| range.start <= meta.last_key && range.is_below_end(&meta.first_key));
        bytes += if inside { refs } else { refs / 2 * u64::from(touches) };
    }
    bytes
}
