//! Application of entries that are committed *and* durable here, in log order, followed by the
//! replies.

use super::Peer;
use crate::admin::{self, Change, Record};
use crate::output::Event;
use crate::store::{Context, Effect};
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{Command, CommittedEntry, Error, LogIndex, Region, Result, mutant};

impl<E: StorageEngine> Peer<E> {
    /// Applies all entries that may be applied now.
    pub(super) fn apply_committed(&mut self, ctx: &mut Context<E>) -> Result<()> {
        let mut run: Vec<CommittedEntry> = Vec::new();
        let mut bytes = 0;
        while let Some(durable) = self.group.next_to_apply() {
            if admin::is_admin(&durable.payload) {
                self.apply_run(ctx, std::mem::take(&mut run))?;
                bytes = 0;
                if !self.apply_admin(ctx, durable)? {
                    break;
                }
                self.group.pop_to_apply();
                continue;
            }
            bytes += durable.payload.len() as u64;
            run.push(durable);
            self.group.pop_to_apply();
            if bytes >= ctx.options.apply_bytes_max {
                self.apply_run(ctx, std::mem::take(&mut run))?;
                bytes = 0;
            }
        }
        self.apply_run(ctx, run)
    }

    fn apply_run(&mut self, ctx: &mut Context<E>, run: Vec<CommittedEntry>) -> Result<()> {
        let Some(index) = run.last().map(|last| last.index) else { return Ok(()) };
        self.show_before_apply(ctx, &run);
        self.count_writes(&run);
        ctx.engine.apply(self.region.id, &run)?;
        self.note_applied(index);
        run.iter().for_each(|entry| self.answer_applied(ctx, entry.index, entry.term));
        let now_nanos = ctx.now.monotonic_nanos;
        self.proposals
            .take_times(index)
            .for_each(|timings| ctx.times.add_write(&timings, now_nanos));
        Ok(())
    }

    /// Counts the operations of entries. Only a leader counts: the traffic of a region is reported
    /// once.
    fn count_writes(&mut self, run: &[CommittedEntry]) {
        if !self.is_leader() && !mutant::active("raftstore.followers_count_writes") {
            return;
        }
        for entry in run.iter().filter(|entry| entry.is_command) {
            Command::each_op_of(&entry.payload, |_| self.traffic.write_ops += 1);
            self.traffic.write_bytes += entry.payload.len() as u64;
        }
    }

    /// Records that entries up to `index` are applied.
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

    /// Replaces the region's descriptor.
    fn set_region(&mut self, ctx: &mut Context<E>, region: Region) {
        let region = Arc::new(region);
        if let Some(name) = region.peer(self.name.id) {
            self.name = *name;
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
        record: &Record,
        others: Vec<Region>,
        at: LogIndex,
    ) {
        self.changes.note_applied(at);
        self.group.set_commits_sent_at_once(self.changes.is_pending());
        match &record.change {
            Change::Members(_) | Change::LeaveJoint => self.members_changed(ctx),
            Change::Split { .. } => self.split_applied(ctx, others),
            Change::CommitMerge { .. } => self.merge_applied(ctx, others),
            Change::PrepareMerge { target, .. } => ctx.effects.push(Effect::Schedule(*target)),
            Change::RollbackMerge => {}
            Change::Recover { .. } => {
                self.members_changed(ctx);
                self.campaign_after_recovery();
            }
        }
    }
}
