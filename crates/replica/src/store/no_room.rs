//! Batches for which the device had no room.

use super::RaftStore;
use crate::log::Start;
use crate::output::Ticket;
use crate::peer::Replica;
use std::collections::BTreeSet;
use stele_storage::StorageEngine;
use stele_types::{Mark, Record, RegionId, Result};

impl<E: StorageEngine> RaftStore<E> {
    /// Handles that a batch found no room. Replicas with puts in it start again from their durable
    /// state; hard states, marks and changes of regions are tried again, without the puts.
    ///
    /// Invariant: what frees space does not wait for what needs space. A batch with a truncation or
    /// the end of a removed replica contains no put after its first failure.
    /// Test: `a_replica_leaves_a_device_that_has_no_room_for_a_put_in_flight`.
    pub(super) fn retry_without_puts(&mut self, ticket: Ticket) -> Result<()> {
        let at_nanos = self.ctx.now.monotonic_nanos + self.ctx.options.tick_nanos;
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
