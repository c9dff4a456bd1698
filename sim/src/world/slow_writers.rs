//! Writers that wait while garbage collection lags, in virtual time. The rule is that of the server
//! (`stele_replica::SlowWriters`). This module adds the time and the checks.

use super::{Happening, Requester, Slot, World};
use crate::plan::SECOND;
use stele_replica::{Input, Modification, Modify, NewPair, RequestId, Write};
use stele_replica::{REPORT_NANOS, Slowdowns, WAIT_NANOS_MAX};

/// Longest time from the end of a lag until a store hears of it: the last report of a store that is cut
/// off counts until the store is silent, the answer that states it may be late, and the node may pause.
const LAG_KNOWN_NANOS: u64 = REPORT_NANOS + 20 * SECOND;

/// Write that waits before it is proposed. Its id is drawn afterwards.
#[expect(missing_docs, reason = "the fields are the requests")]
pub enum SlowWrite {
    Write(Write),
    Modify(Modify),
}

impl SlowWrite {
    fn make(self, id: RequestId) -> Input<stele_engine::Store> {
        match self {
            Self::Write(write) => Input::Write(Write { id, ..write }),
            Self::Modify(modify) => Input::Modify(Modify { id, ..modify }),
        }
    }

    /// Returns whether the write makes no store larger.
    fn frees(&self) -> bool {
        match self {
            Self::Write(write) => write.frees,
            Self::Modify(modify) => matches!(
                modify.change,
                Modification::GetAndDelete
                    | Modification::Replace { new: NewPair::Delete }
                    | Modification::Compare { new: NewPair::Delete, .. }
            ),
        }
    }
}

impl World {
    /// Sends a store a write, after the wait that its node makes the writer take.
    pub(crate) fn request_write(&mut self, number: u64, requester: Requester, write: SlowWrite) {
        let Some(nanos) = self.wait_of(number, &write) else {
            return self.request(number, requester, |id| write.make(id));
        };
        self.check_wait(number, &write, nanos);
        self.counts.slowed_writes += 1;
        self.counts.slowed_nanos_most = self.counts.slowed_nanos_most.max(nanos);
        let incarnation = self.slots.get(&number).map_or(0, |slot| slot.incarnation);
        let write = Box::new(write);
        self.after(nanos, Happening::Slowed { slot: number, incarnation, requester, write });
    }

    /// Sends a store a write that has waited; it is lost with a store that stopped meanwhile.
    pub(super) fn waited(
        &mut self,
        number: u64,
        incarnation: u64,
        requester: Requester,
        write: SlowWrite,
    ) {
        match self.slots.get(&number).is_some_and(|slot| slot.incarnation == incarnation) {
            true => self.request(number, requester, |id| write.make(id)),
            false => self.lost(requester),
        }
    }

    fn wait_of(&self, number: u64, write: &SlowWrite) -> Option<u64> {
        let slot = self.slots.get(&number).filter(|_| self.plan.has_slow_writers)?;
        let now_nanos = self.nodes.get(&slot.node)?.local(self.now);
        let (running, readers) = (slot.running.as_ref()?, slot.readers()?);
        match write {
            SlowWrite::Write(write) => running.writers.write_wait(write, readers, now_nanos),
            SlowWrite::Modify(modify) => running.writers.modify_wait(modify, readers, now_nanos),
        }
    }

    /// Checks that a write waits within its bound, only if it makes a store larger, and only after a
    /// replica of its region lagged.
    fn check_wait(&mut self, number: u64, write: &SlowWrite, nanos: u64) {
        if nanos > WAIT_NANOS_MAX {
            return self.fail(format!("a write to store {number} waits {nanos} ns"));
        }
        if write.frees() {
            return self.fail(format!("a write to store {number} that frees space waits"));
        }
        let region = match write {
            SlowWrite::Write(write) => write.header.region,
            SlowWrite::Modify(modify) => modify.header.region,
        };
        let readers = self.slots.get(&number).and_then(|slot| slot.readers());
        let reader = readers.and_then(|readers| readers.get(region));
        let peers = reader.map(|reader| reader.region().peers.clone()).unwrap_or_default();
        let lagged = |slot: &Slot| {
            let is_replica = peers.iter().any(|peer| slot.id == Some(peer.store));
            let ended = slot.lagged_at.map(|at| at + LAG_KNOWN_NANOS);
            (is_replica || slot.number == number) && ended.is_some_and(|ended| self.now <= ended)
        };
        if !self.slots.values().any(lagged) {
            self.fail(format!("a write to store {number} waits, and no replica of {region} lags"));
        }
    }

    /// Gives the stores of a node what the placement leader knows of stores that lag.
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
