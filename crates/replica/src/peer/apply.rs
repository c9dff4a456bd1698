//! Application of entries that are committed *and* durable here, in log order, followed by the
//! replies.

use super::Replica;
use super::parts::is_commit_merge;
use crate::admin::{self, AdminRecord, Change};
use crate::context::{Context, StoreRequest};
use crate::log::Start;
use crate::output::Event;
use crate::reads::Coverage;
use std::collections::BTreeSet;
use std::sync::Arc;
use stele_storage::{RegionEntries, StorageEngine};
use stele_types::{Command, CommittedEntry, Error, LogIndex, Region, RegionId, Result};

impl<E: StorageEngine> Replica<E> {
    /// Takes the entries that are committed and durable here, for the pass to apply at its end with those of
    /// other regions, and applies those that change the region. Returns whether some wait for the next pass.
    ///
    /// Invariant: an entry that changes the region is applied after all entries before it are.
    /// Test: `an_entry_that_changes_the_region_is_applied_after_the_writes_before_it`.
    pub(super) fn apply_committed(&mut self, ctx: &mut Context<E>) -> Result<bool> {
        let of_region = ctx.runs.last().filter(|run| run.region == self.region.id);
        let taken = of_region.map(|run| run.entries.iter());
        let mut bytes: u64 =
            taken.into_iter().flatten().map(|entry| entry.payload.len() as u64).sum();
        let mut has_run = of_region.is_some();
        let mut run: Vec<CommittedEntry> = Vec::new();
        let mut waits = false;
        while let Some(durable) = self.group.next_to_apply() {
            if admin::is_admin(&durable.payload) {
                // bug replica.change_overtakes_writes: never
                if has_run {
                    waits = true;
                    break;
                }
                if !self.apply_admin(ctx, durable)? {
                    break;
                }
                self.group.pop_to_apply();
                continue;
            }
            if bytes >= ctx.options.apply_bytes_max {
                waits = true;
                break;
            }
            bytes += durable.payload.len() as u64;
            has_run = true;
            run.push(durable);
            self.group.pop_to_apply();
        }
        self.add_run(ctx, run);
        Ok(waits)
    }

    fn add_run(&mut self, ctx: &mut Context<E>, run: Vec<CommittedEntry>) {
        if run.is_empty() {
            return;
        }
        self.show_before_apply(ctx, &run);
        self.count_writes(&run);
        let region = self.region.id;
        match ctx.runs.last_mut().filter(|last| last.region == region) {
            Some(last) => last.entries.extend(run),
            None => ctx.runs.push(RegionEntries { region, entries: run }),
        }
    }

    /// Returns whether entries of the region are applied at the end of the pass under way.
    pub(super) fn has_run(&self, ctx: &Context<E>) -> bool {
        ctx.runs.last().is_some_and(|run| run.region == self.region.id)
    }

    /// Handles that the pass has applied these entries. Returns whether this peer begins to serve.
    pub(crate) fn run_applied(&mut self, ctx: &mut Context<E>, run: &[CommittedEntry]) -> bool {
        if let Some(index) = run.last().map(|last| last.index) {
            self.note_applied(index);
            run.iter().for_each(|entry| self.answer_applied(ctx, entry.index, entry.term));
            let now_nanos = ctx.now.monotonic_nanos;
            let times = self.proposals.take_times(index);
            times.for_each(|timings| ctx.times.add_write(&timings, now_nanos));
        }
        self.publish(ctx)
    }

    /// Counts the operations of entries. Only a leader counts: the traffic of a region is reported
    /// once.
    fn count_writes(&mut self, run: &[CommittedEntry]) {
        // bug replica.followers_count_writes: never
        if !self.is_leader() {
            return;
        }
        for entry in run.iter().filter(|entry| entry.is_command) {
            Command::each_op_of(&entry.payload, |_| self.traffic.write_ops += 1);
            self.traffic.write_bytes += entry.payload.len() as u64;
        }
    }

    pub(super) fn note_applied(&mut self, index: LogIndex) {
        self.group.note_applied(index);
        self.reader.window().note_applied(index);
    }

    /// Applies an entry that changes the region. Returns whether it was applied: a merge may have
    /// to wait for its source.
    fn apply_admin(&mut self, ctx: &mut Context<E>, entry: CommittedEntry) -> Result<bool> {
        let Some((record, regions)) = admin::parse(&entry.payload) else {
            return Err(Error::invalid(format!(
                "region {}: entry {} is not an admin record known to this build",
                self.region.id, entry.index
            )));
        };
        if let Change::CommitMerge { source, prepared } = record.change
            && !self.is_source_ready(ctx, source, prepared)
        {
            return Ok(false);
        }
        let mut regions = regions.into_iter();
        let own = regions.next().filter(|region| region.id == self.region.id);
        let own = own.ok_or_else(|| Error::invalid("an admin entry of another region"))?;
        let versions = (self.region.epoch.version, own.epoch.version);
        // Request threads see the new version before any effect of it is visible.
        self.reader.set_region(Arc::new(own.clone()));
        ctx.engine.apply(self.region.id, std::slice::from_ref(&entry))?;
        self.set_region(ctx, own);
        match &record.change {
            Change::Recover { .. } => self.group.replace_members(&self.region, entry.index)?,
            _ => self.group.change_members(&entry)?,
        }
        let (index, term) = (entry.index, entry.term);
        self.note_applied(index);
        let source = match &record.change {
            Change::CommitMerge { source, .. } => Some(*source),
            _ => None,
        };
        ctx.note_version(self.region.id, versions, source)?;
        self.after_admin(ctx, &record, regions.collect(), index);
        self.answer_applied(ctx, index, term);
        Ok(true)
    }

    fn set_region(&mut self, ctx: &mut Context<E>, region: Region) {
        let region = Arc::new(region);
        if let Some(peer) = region.peer(self.peer.id) {
            self.peer = *peer;
        }
        self.region = region.clone();
        self.reader.set_region(region.clone());
        if region.phase != stele_types::RegionPhase::Normal {
            self.reader.end_lease();
        }
        self.publish_leader();
        ctx.out.events.push(Event::RegionChanged((*region).clone()));
    }

    fn after_admin(
        &mut self,
        ctx: &mut Context<E>,
        record: &AdminRecord,
        others: Vec<Region>,
        at: LogIndex,
    ) {
        self.changes.note_applied(at);
        self.group.set_commits_sent_at_once(self.changes.is_pending());
        match &record.change {
            Change::Members(_) | Change::LeaveJoint => self.members_changed(ctx),
            Change::Split { .. } => self.split_applied(ctx, others),
            Change::CommitMerge { .. } => self.merge_applied(ctx, others),
            Change::PrepareMerge { target, .. } => {
                ctx.store_requests.push(StoreRequest::Schedule(*target))
            }
            Change::RollbackMerge => {}
            Change::Recover { .. } => {
                self.members_changed(ctx);
                self.campaign_after_recovery();
            }
        }
    }
}

// Publication of what is committed: request threads see it, waiting reads are served, and writes are
// answered.

impl<E: StorageEngine> Replica<E> {
    /// Returns the last entry that reads can see: it is applied here, or in the window.
    pub(super) fn visible(&self) -> LogIndex {
        self.reader.window().visible()
    }

    /// Publishes the committed entries, then answers what waits for them. Returns whether this peer
    /// begins to serve: requests may wait for that.
    ///
    /// Invariant: a write that is answered is on the disks of a quorum, and visible here before. So is an entry
    /// of which a follower learns that it is committed: this is called before the outputs of a poll leave.
    /// Tests: `a_write_is_not_answered_before_a_quorum_has_it`,
    /// `what_a_leader_answered_survives_its_power_cut_before_its_own_sync`.
    pub(super) fn publish(&mut self, ctx: &mut Context<E>) -> bool {
        let (committed, applied) = (self.committed(), self.applied());
        if committed > applied && ctx.options.read_acceleration {
            self.extend_window(committed);
        }
        let coverage = match self.visible() {
            // bug replica.lease_ahead_of_apply: always
            _ if committed == applied => Coverage::Applied,
            visible if visible >= committed => Coverage::Window,
            _ => Coverage::Part,
        };
        self.reader.window().set_coverage(coverage);
        let begins = self.begin_serving(ctx);
        if ctx.options.commit_return {
            self.answer_committed(ctx);
        }
        self.answer_reads(ctx);
        if self.moments.has_any() {
            self.answer_pause(ctx);
        }
        begins
    }

    /// Adds committed entries to the window. Invariant: no window reaches over an administrative entry that is
    /// not applied. It may move keys to another region, and this window does not hold the entries of that one.
    /// Test: `a_window_ends_before_an_administrative_entry_which_is_answered_when_it_is_applied`.
    fn extend_window(&self, committed: LogIndex) {
        let window = self.reader.window();
        let is_plain = |payload: &bytes::Bytes| {
            // bug replica.window_over_admin: `!admin::is_admin(payload)` is `true`
            !admin::is_admin(payload)
        };
        let next = self.log().tail_from(window.visible().next());
        let plain = next.take_while(|(index, payload)| *index <= committed && is_plain(payload));
        window.extend(plain.map(|(index, payload)| (index, payload.clone())));
    }

    /// Makes entries visible that are about to be applied, if the window is not empty: its effects
    /// must not be older than a view.
    pub(super) fn show_before_apply(&self, ctx: &Context<E>, run: &[CommittedEntry]) {
        let window = self.reader.window();
        // bug replica.apply_ahead_of_window: never
        if ctx.options.read_acceleration && window.coverage() != Coverage::Applied {
            window.extend(run.iter().map(|entry| (entry.index, entry.payload.clone())));
        }
        let last = run.last().map_or(LogIndex(0), |entry| entry.index);
        debug_assert!(window.is_empty() || window.visible() >= last, "views pass the window");
    }

    /// Starts serving if an entry of this peer's own term is visible: then all that earlier terms
    /// committed is visible too, and no administrative entry before it waits to be applied.
    fn begin_serving(&mut self, ctx: &mut Context<E>) -> bool {
        let term = self.term();
        if !self.is_leader() || self.leadership.is_serving_in(term) {
            return false;
        }
        let begins = self.group.term_of(self.visible()) == Some(term);
        if begins {
            self.start_leading(ctx);
        }
        begins
    }
}

// Entries of an opened log that are not applied.

const FETCH_BYTES: usize = 1 << 20;

/// Unapplied entries of a log that matter before they are applied.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unapplied {
    /// Entries that commit a merge.
    pub merges: BTreeSet<LogIndex>,
    /// Last two entries that change the members, the older one first.
    changes: [Option<LogIndex>; 2],
}

impl Unapplied {
    pub(super) fn read<E: StorageEngine>(
        engine: &E,
        region: RegionId,
        start: &Start,
    ) -> Result<Self> {
        let mut found = Self::default();
        let (mut from, last) = (start.applied.next(), start.last.0);
        while from <= last {
            let entries = engine.entries(region, from, last.next(), FETCH_BYTES)?;
            let Some(end) = entries.last().map(|entry| entry.index.next()) else { break };
            for entry in entries {
                if is_commit_merge(&entry.payload) {
                    found.merges.insert(entry.index);
                }
                if admin::changes_members(&entry.payload) {
                    found.changes = [found.changes[1], Some(entry.index)];
                }
            }
            from = end;
        }
        Ok(found)
    }

    /// Returns `start` with what the log itself proves to be committed. Invariant: a replica with a
    /// change of members in its log knows that the change before it is committed, and so does not
    /// campaign with the members before both. A leader proposes a change only after it applied the
    /// one before. The durable commit index can be lower, because it does not cover a merge that is
    /// not applied.
    /// Test: `after_a_crash_a_change_of_members_proves_that_the_one_before_it_is_committed`.
    pub(super) fn with_proven_commit(&self, start: &Start) -> Start {
        let mut start = *start;
        let proven = self.changes[0].unwrap_or_default();
        // bug replica.earlier_change_uncommitted: skip
        start.hard_state.commit = start.hard_state.commit.max(proven);
        start
    }
}
