//! One iteration: durable batches, also those for which the device had no room, ticks, and the work
//! of the regions that need some. An idle region costs nothing.

use super::RaftStore;
use crate::input::Now;
use crate::journal::JOURNAL;
use crate::log::Start;
use crate::messages::Body;
use crate::output::{Outputs, Ticket};
use crate::peer::Replica;
use std::collections::BTreeSet;
use std::ops::Bound::{self, Excluded, Unbounded};
use stele_storage::{RegionEntries, StorageEngine};
use stele_types::{Error, Mark, Record, RegionId, Result};

/// Regions for which an empty list keeps memory.
const SPARE_REGIONS_MAX: usize = 1024;

/// Regions with pending work.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    /// In the order in which they came, some more than once.
    ids: Vec<RegionId>,
    /// Memory of the last list that was taken.
    spare: Vec<RegionId>,
}

impl Dirty {
    pub(super) fn insert(&mut self, region: RegionId) {
        if self.ids.last() != Some(&region) {
            self.ids.push(region);
        }
    }

    pub(super) fn remove(&mut self, region: RegionId) {
        self.ids.retain(|id| *id != region);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = RegionId> {
        self.ids.iter().copied()
    }

    /// Takes all regions, each once, in the order of their ids.
    fn take(&mut self) -> Vec<RegionId> {
        let mut taken = std::mem::replace(&mut self.ids, std::mem::take(&mut self.spare));
        taken.sort_unstable();
        taken.dedup();
        taken
    }

    fn reuse(&mut self, mut taken: Vec<RegionId>) {
        taken.clear();
        taken.shrink_to(SPARE_REGIONS_MAX);
        self.spare = taken;
    }
}

/// Most passes over the dirty regions in one poll; remaining work makes the next poll due at once.
const PASSES_MAX: usize = 4;

impl<E: StorageEngine> RaftStore<E> {
    /// Does all work that is due. An error is fatal for the store: its outputs are lost, and it
    /// must be opened again.
    pub fn poll(&mut self, now: Now) -> Result<Outputs<E>> {
        self.ctx.now = now;
        self.ctx.space = self.ctx.engine.space();
        if let Some((ticket, result)) = self.appended.take() {
            self.appended(ticket, result)?;
        }
        self.tick();
        self.end_pauses();
        self.drop_waiting()?;
        self.replace_stale_peers()?;
        self.run_store_requests()?;
        self.install_snapshots()?;
        self.settle_orphaned_ranges()?;
        for _ in 0..PASSES_MAX {
            if self.dirty.is_empty() {
                break;
            }
            self.work()?;
            self.run_store_requests()?;
        }
        self.ctx.received_bytes = 0;
        self.ctx.received_tail_bytes = 0;
        self.request_lost();
        self.probe_hibernating();
        self.truncate_all_if_due();
        // Invariant: a batch that is handed out again contains no tombstone that came later.
        let is_again = self.ctx.batches.is_under_way();
        // bug replica.dropped_before_tombstone: let is_again = false;
        self.ctx.out.append = self.ctx.batches.hand_out(now.monotonic_nanos);
        if self.ctx.out.append.is_some() && !is_again {
            self.leaving.handed_out();
        }
        Ok(std::mem::take(&mut self.ctx.out))
    }

    /// Makes a pass over the dirty regions. What all of them can apply is applied at its end, together.
    fn work(&mut self) -> Result<()> {
        let dirty = self.dirty.take();
        for region in &dirty {
            let Some(replica) = self.replicas.get_mut(region) else { continue };
            if !std::mem::replace(&mut replica.is_noted, true) {
                self.report_changes.note(*region);
            }
            if replica.work(&mut self.ctx)? {
                self.dirty.insert(*region);
            }
        }
        self.dirty.reuse(dirty);
        let runs = std::mem::take(&mut self.ctx.runs);
        if !runs.is_empty() {
            self.ctx.engine.apply_all(&runs)?;
        }
        for RegionEntries { region, entries } in runs {
            let Some(replica) = self.replicas.get_mut(&region) else { continue };
            if replica.run_applied(&mut self.ctx, &entries) {
                self.dirty.insert(region);
            }
        }
        Ok(())
    }

    /// Ticks every region that is awake, once however late the call is: missed ticks must not make
    /// a follower count its leader as unresponsive.
    fn tick(&mut self) {
        let now = self.ctx.now.monotonic_nanos;
        if self.ticking.is_empty() || now < self.next_tick_nanos {
            return;
        }
        // bug replica.make_up_for_ticks: `now` is `self.next_tick_nanos`
        self.next_tick_nanos = now + self.ctx.options.tick_nanos;
        let Self { ticking, replicas, ctx, dirty, .. } = self;
        ticking.retain(|region| {
            let Some(replica) = replicas.get_mut(region) else { return false };
            replica.tick(ctx);
            dirty.insert(*region);
            // bug replica.ticks_end_with_hibernation: return !replica.is_hibernating();
            replica.is_ticking = !replica.is_hibernating();
            replica.is_ticking
        });
        self.truncate_logs();
    }

    /// Schedules the regions of which a pause for a moment ends: what waits there is proposed.
    fn end_pauses(&mut self) {
        let now = self.ctx.now.monotonic_nanos;
        while let Some((_, region)) = self.ctx.pauses.front().filter(|(ends, _)| *ends <= now) {
            self.dirty.insert(*region);
            self.ctx.pauses.pop_front();
        }
    }

    fn appended(&mut self, ticket: Ticket, result: Result<()>) -> Result<()> {
        match result {
            Ok(()) => {}
            // bug replica.drop_on_no_space: never
            Err(Error::NoSpace(_)) => {
                return self.retry_without_puts(ticket);
            }
            Err(error) => return Err(error),
        }
        let Some(done) = self.ctx.batches.finish(ticket) else { return Ok(()) };
        let is_of_journal =
            |it: &&Record| matches!(it, Record::Entry(entry) if entry.region == JOURNAL);
        for _ in done.append.batch.records.iter().filter(is_of_journal) {
            self.ctx.journal.apply_durable(&*self.ctx.engine)?;
        }
        for ready in done.readies {
            let replica = self
                .replicas
                .get_mut(&ready.region)
                .filter(|replica| replica.incarnation == ready.incarnation);
            if let Some(replica) = replica {
                replica.ready_durable(&mut self.ctx, ready.number, done.began_nanos);
                self.dirty.insert(ready.region);
            }
        }
        self.drop_left()
    }

    fn replace_stale_peers(&mut self) -> Result<()> {
        for message in std::mem::take(&mut self.stale) {
            if self.replace_stale(&message)? {
                self.receive_for_absent(&message);
            }
        }
        Ok(())
    }
}

// Probe of hibernating replicas: one that was removed while unreachable gets no message and sends
// none. The store asks for one replica after the other whether it is still a member.

/// Nanoseconds between two probes, regardless of the number of hibernating regions.
const PROBE_INTERVAL_NANOS: u64 = 1_000_000_000;
/// Replicas that are looked at for one probe: none may have others to be asked.
const LOOKED_AT_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct HibernationProbe {
    next_nanos: u64,
    /// Region looked at last.
    last: RegionId,
    rounds: usize,
}

impl<E: StorageEngine> RaftStore<E> {
    /// Returns the monotonic nanoseconds of the next probe; `None` while every region is awake.
    pub(super) fn probes_at(&self) -> Option<u64> {
        (self.replicas.len() > self.ticking.len()).then_some(self.hibernation_probe.next_nanos)
    }

    /// Asks another replica whether the next hibernating replica is still a member. A repair
    /// request for no value wakes no replica, and only a store that knows of the removal answers
    /// it, in any version of this protocol.
    pub(super) fn probe_hibernating(&mut self) {
        let now = self.ctx.now.monotonic_nanos;
        if self.probes_at().is_none_or(|at| now < at) {
            return;
        }
        self.hibernation_probe.next_nanos = now + PROBE_INTERVAL_NANOS;
        // bug replica.rests_for_ever: return;
        let last = self.hibernation_probe.last;
        let after = self.replicas.range((Excluded(last), Unbounded));
        let in_turn = after.chain(self.replicas.range(..=last)).take(LOOKED_AT_MAX);
        let mut looked_at = last;
        let next = in_turn
            .inspect(|(region, _)| looked_at = **region)
            .find(|(_, replica)| replica.may_have_been_removed());
        self.hibernation_probe.last = looked_at;
        self.hibernation_probe.rounds += usize::from(looked_at <= last);
        let Some((_, replica)) = next else { return };
        let question = Body::ValueRepairRequest(Vec::new());
        // bug replica.asking_wakes: let question = Body::WakeUp;
        replica.ask(&mut self.ctx, self.hibernation_probe.rounds, question);
    }
}

// Truncation of logs: entries that a checkpoint covers and no follower needs.

/// In a tick of devices; in a shorter one it is a part of them.
const REGIONS_PER_TICK: usize = 16;
const REGIONS_PER_POLL: usize = 256;
/// Least nanoseconds from one pass over all regions to the next.
const PASS_INTERVAL_NANOS: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Truncations {
    /// Last region checked in a tick.
    last: RegionId,
    /// Garbage collection waits for a pass over all regions.
    is_requested: bool,
    pass: Option<RegionId>,
    /// Monotonic nanoseconds before which no pass begins.
    next_nanos: u64,
}

impl Truncations {
    /// Returns whether a pass is under way, and begins it if it is due.
    fn begin_pass(&mut self, is_short: bool, now_nanos: u64) -> Option<RegionId> {
        let is_due = (self.is_requested || is_short) && now_nanos >= self.next_nanos;
        if self.pass.is_none() && is_due {
            self.pass = Some(RegionId(0));
            self.is_requested = false;
            self.next_nanos = now_nanos + PASS_INTERVAL_NANOS;
        }
        self.pass
    }

    /// Returns the monotonic nanoseconds at which the pass under way, or the next one, goes on.
    fn due_at(&self, is_short: bool, now_nanos: u64) -> Option<u64> {
        match self.pass {
            Some(_) => Some(now_nanos),
            None => (self.is_requested || is_short).then_some(self.next_nanos),
        }
    }
}

impl<E: StorageEngine> RaftStore<E> {
    /// Truncates the logs of some regions, in turn. Truncations are piggybacked on the next batch.
    pub(super) fn truncate_logs(&mut self) {
        let from = self.truncations.last;
        let ticks = self.ctx.options.device_ticks(1).max(1) as usize;
        let last = self.truncate_after(from, REGIONS_PER_TICK.div_ceil(ticks), false);
        self.truncations.last = last.unwrap_or(RegionId(0));
    }

    /// Truncates the logs of all regions, hibernating ones too, when garbage collection requests it,
    /// and once a second while the store is short of space. These truncations do not wait for another
    /// batch: a store that accepts no put might write none.
    pub(super) fn truncate_all_if_due(&mut self) {
        let is_short = self.ctx.space.is_short;
        let is_requested = self.ctx.engine.take_truncation_request();
        // bug replica.truncation_request_ignored: skip
        self.truncations.is_requested |= is_requested;
        let now = self.ctx.now.monotonic_nanos;
        let Some(from) = self.truncations.begin_pass(is_short, now) else { return };
        self.truncations.pass = self.truncate_after(from, REGIONS_PER_POLL, true);
        self.ctx.batches.write_truncations();
    }

    /// Returns the monotonic nanoseconds at which a pass over all regions goes on.
    pub(super) fn truncates_at(&self) -> Option<u64> {
        self.truncations.due_at(self.ctx.space.is_short, self.ctx.now.monotonic_nanos)
    }

    /// Truncates the logs of at most `count` regions after `from`. Returns the last one; `None` when
    /// there are no more.
    fn truncate_after(&mut self, from: RegionId, count: usize, at_once: bool) -> Option<RegionId> {
        let range = self.replicas.range_mut((Bound::Excluded(from), Bound::Unbounded));
        let (mut last, mut seen) = (from, 0);
        for (id, replica) in range.take(count) {
            replica.truncate_log(&mut self.ctx, at_once);
            (last, seen) = (*id, seen + 1);
        }
        (seen == count).then_some(last)
    }
}

impl<E: StorageEngine> RaftStore<E> {
    /// Handles that a batch found no room. Replicas with puts in it start again from their durable
    /// state; hard states, marks and changes of regions are tried again, without the puts.
    ///
    /// Invariant: what frees space does not wait for what needs space. A batch with a truncation or
    /// the end of a removed replica contains no put after its first failure.
    /// Test: `a_replica_leaves_a_device_that_has_no_room_for_a_put_in_flight`.
    pub(super) fn retry_without_puts(&mut self, ticket: Ticket) -> Result<()> {
        let at_nanos = self.ctx.now.monotonic_nanos + self.ctx.options.device_nanos(1);
        self.ctx.batches.retry(ticket, at_nanos);
        let given_up = self.to_give_up(ticket);
        // bug replica.full_batch_waits: always
        if given_up.is_empty() {
            return Ok(());
        }
        self.ctx.batches.give_up(&given_up);
        given_up.into_iter().try_for_each(|region| self.start_again(region))
    }

    /// Returns the regions of which the batch contains entries that need space. A log that begins or
    /// ends in the batch is tried again as a whole.
    fn to_give_up(&self, ticket: Ticket) -> BTreeSet<RegionId> {
        let Some(under_way) = self.ctx.batches.under_way(ticket) else { return BTreeSet::new() };
        let records = || under_way.append.batch.records.iter();
        let is_marked = |region: RegionId| {
            records().any(|record| {
                matches!(record, Record::Mark(of, Mark::Start(..) | Mark::Destroy) if *of == region)
            })
        };
        let has_log = |region: RegionId| {
            self.ctx.engine.progress(region).is_some_and(|progress| !progress.destroyed)
        };
        let is_of = |replica: &Replica<E>| {
            let readies =
                &mut under_way.readies.iter().filter(|ready| ready.region == replica.region.id);
            readies.all(|ready| ready.incarnation == replica.incarnation)
        };
        let needs_space = |record: &Record| match record {
            Record::Entry(entry) => {
                let replica = self.replicas.get(&entry.region).filter(|replica| is_of(replica))?;
                replica.may_give_up(&entry.payload).then_some(entry.region)
            }
            Record::HardState(..) | Record::Mark(..) => None,
        };
        let regions: BTreeSet<RegionId> = records().filter_map(needs_space).collect();
        let may_restart = |region: &RegionId| !is_marked(*region) && has_log(*region);
        regions.into_iter().filter(may_restart).collect()
    }

    /// Starts a replica again from its durable state, as after a crash of the process.
    ///
    /// Invariant: no peer and no client relies on what is lost. Promises leave after they are
    /// durable, and clients are answered when a quorum has the entry.
    fn start_again(&mut self, id: RegionId) -> Result<()> {
        let Some(mut before) = self.replicas.remove(&id) else { return Ok(()) };
        before.give_up_unwritten(&mut self.ctx);
        self.ctx.readers.remove(id);
        let progress = self.ctx.engine.progress(id).unwrap_or_default();
        let region = (*before.region).clone();
        drop(before);
        let mut replica = Replica::new(&mut self.ctx, region, &Start::of(&progress))?;
        // A membership stays durable as soon as it counts.
        self.ctx.batches.push(Record::HardState(id, replica.current_hard_state()));
        replica.campaign_if_alone();
        self.replicas.insert(id, replica);
        self.schedule(id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_begin_on_request_and_while_the_store_is_short_at_most_once_a_second() {
        const SECOND: u64 = PASS_INTERVAL_NANOS;
        // Nanoseconds, request, short; then whether a pass runs, and when the next one is due.
        let rows = [
            (0, false, false, false, None),
            (5, true, false, true, None),
            (6, true, false, false, Some(5 + SECOND)),
            (5 + SECOND, false, false, true, None),
            (6 + SECOND, false, true, false, Some(5 + 2 * SECOND)),
            (5 + 2 * SECOND, false, true, true, Some(5 + 3 * SECOND)),
        ];
        let mut truncations = Truncations::default();
        for (now, requested, short, runs, due) in rows {
            truncations.is_requested |= requested;
            assert_eq!(truncations.begin_pass(short, now).is_some(), runs, "at {now}");
            if runs {
                assert_eq!(truncations.due_at(short, now), Some(now));
            }
            truncations.pass = None;
            assert_eq!(truncations.due_at(short, now), due, "at {now}");
        }
    }
}
