//! Writers that wait while garbage collection lags, in virtual time. The rule is that of the server
//! (`stele_replica::SlowWriters`). This module adds the time and the checks.

use super::{Happening, Requester, Slot, World};
use crate::plan::SECOND;
use stele_replica::{Modification, NewPair, REPORT_NANOS, Request, Slowdowns, WAIT_NANOS_MAX};
use stele_types::RegionId;

/// Longest time from the end of a lag until a store hears of it: the last report of a store that is cut
/// off counts until the store is silent, the answer that states it may be late, and the node may pause.
const LAG_KNOWN_NANOS: u64 = REPORT_NANOS + 20 * SECOND;

/// Returns the region of a request that may make a store larger.
fn region_that_grows(request: &Request) -> Option<RegionId> {
    match request {
        Request::Write(write) => (!write.only_deletes).then_some(write.header.region),
        Request::Modify(modify) => match modify.change {
            Modification::GetAndDelete
            | Modification::Replace { new: NewPair::Delete }
            | Modification::Compare { new: NewPair::Delete, .. } => None,
            _ => Some(modify.header.region),
        },
        // What it writes is known once it is decided.
        Request::Run(run) => Some(run.header.region),
        _ => None,
    }
}

impl World {
    /// Sends a store a request, after the wait that its node makes a writer take. The requester gets
    /// the reply.
    pub fn request(&mut self, number: u64, requester: Requester, request: impl Into<Request>) {
        let request = request.into();
        let Some(nanos) = self.wait_of(number, &request) else {
            return self.submit(number, requester, request);
        };
        self.check_wait(number, &request, nanos);
        self.counts.slowed_writes += 1;
        self.counts.slowed_nanos_most = self.counts.slowed_nanos_most.max(nanos);
        let incarnation = self.slots.get(&number).map_or(0, |slot| slot.incarnation);
        let request = Box::new(request);
        self.after(nanos, Happening::Slowed { slot: number, incarnation, requester, request });
    }

    /// Sends a store a write that has waited; it is lost with a store that stopped meanwhile.
    pub(super) fn waited(
        &mut self,
        number: u64,
        incarnation: u64,
        requester: Requester,
        request: Request,
    ) {
        match self.slots.get(&number).is_some_and(|slot| slot.incarnation == incarnation) {
            true => self.submit(number, requester, request),
            false => self.lost(requester),
        }
    }

    fn wait_of(&self, number: u64, request: &Request) -> Option<u64> {
        let slot = self.slots.get(&number).filter(|_| self.plan.has_slow_writers)?;
        let now_nanos = self.nodes.get(&slot.node)?.local(self.now);
        let (running, readers) = (slot.running.as_ref()?, slot.readers()?);
        running.writers.wait_nanos(request, readers, now_nanos)
    }

    /// Checks that a write waits within its bound, only if it makes a store larger, and only after a
    /// replica of its region lagged.
    fn check_wait(&mut self, number: u64, request: &Request, nanos: u64) {
        if nanos > WAIT_NANOS_MAX {
            return self.fail(format!("a write to store {number} waits {nanos} ns"));
        }
        let Some(region) = region_that_grows(request) else {
            return self.fail(format!("a request to store {number} waits and needs no space"));
        };
        let readers = self.slots.get(&number).and_then(|slot| slot.readers());
        let reader = readers.and_then(|readers| readers.get(region));
        let peers = reader.map(|reader| reader.region().peers.clone()).unwrap_or_default();
        let lagged = |slot: &Slot| {
            let is_replica = peers.iter().any(|peer| slot.id == Some(peer.store));
            // A store lags until a slice of its maintenance shows that it does not: one may hang.
            let lags = slot.running.as_ref().is_some_and(|it| it.writers.own() > 0);
            let ended = slot.lagged_at.map(|at| at + LAG_KNOWN_NANOS);
            let is_known = ended.is_some_and(|ended| self.now <= ended);
            (is_replica || slot.number == number) && (lags || is_known)
        };
        if !self.slots.values().any(lagged) {
            self.fail(format!("a write to store {number} waits, and no replica of {region} lags"));
        }
    }

    pub(crate) fn learn_slowdowns(&mut self, node: u64, slowdowns: &Slowdowns) {
        let Some(now_nanos) = self.nodes.get(&node).map(|node| node.local(self.now)) else {
            return;
        };
        for slot in self.slots.values().filter(|slot| slot.node == node) {
            if let Some(running) = &slot.running {
                running.writers.reported(slowdowns.clone(), now_nanos);
            }
        }
    }
}
