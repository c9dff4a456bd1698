//! Moments for which only a leader answers that was deposed and does not know it, at the end of a run.
//!
//! 1. All data regions are led on one node, which does not lead the placement group.
//! 2. That node is isolated. The others elect leaders, and a client writes through one of them.
//! 3. A moment is requested at once. Its calls reach the isolated node only, as if those to the others were
//!    lost. Its old leaders have nothing to commit: they answer, and their ranges tile all keys.
//!
//! No such moment may be complete: it lacks the write. It is abandoned because no old leader seals. Its lease
//! has ended, and no quorum answers its round. The write is acknowledged soon after the end of the lease where
//! ticks are short: then also a seal that is confirmed for a time before its request would complete it.

use crate::plan::{MS, SECOND};
use crate::world::World;
use stele_replica::{Admin, RegionReport};
use stele_types::{RegionId, RegionKind, RegionPhase};

/// Moments of a run.
const ATTEMPTS: usize = 3;
/// Requests to transfer leaders, and the time after each.
const TRANSFERS: u64 = 20;
const TRANSFER_NANOS: u64 = 100 * MS;
/// Ticks after which new leaders have leases.
const LEASED_TICKS: u64 = 4;
/// Longest pause of a client between two operations.
const PAUSE_NANOS_MAX: u64 = 5 * MS;
/// Limits for a write through a later leader, for a moment, and for replicas to agree again.
const WRITTEN_NANOS: u64 = 3 * SECOND;
const MOMENT_NANOS: u64 = 2 * SECOND;
const SETTLE_NANOS: u64 = 60 * SECOND;

/// Takes the moments. Returns whether it did: only in plans with moments and three nodes, where every node has
/// a replica of every region.
pub(crate) fn play(world: &mut World) -> bool {
    let plan = &world.plan;
    let is_fit = plan.takes_moments && plan.nodes == 3 && world.counts.overspent == 0;
    if !is_fit || world.violation.is_some() || !world.is_settled() {
        return false;
    }
    world.moments.record(true);
    world.clients.set_pause_max(PAUSE_NANOS_MAX);
    for attempt in 0..ATTEMPTS {
        world.take_moment_of_deposed(attempt);
        if world.violation.is_some() {
            break;
        }
    }
    world.moments.record(false);
    world.clients.set_pause_max(world.plan.client_pause_nanos_max());
    true
}

impl World {
    fn take_moment_of_deposed(&mut self, attempt: usize) {
        let nodes: Vec<u64> = self.nodes.keys().copied().collect();
        let leads_none = |node: &&u64| self.leading_slot(**node).is_none();
        let fit: Vec<u64> = nodes.iter().filter(leads_none).copied().collect();
        let Some(deposed) = fit.get(attempt % fit.len().max(1)).copied() else { return };
        // Leaders that were transferred do not hibernate for some time.
        let is_gathered =
            self.lead_on(|node| node != deposed) && self.lead_on(|node| node == deposed);
        self.run(LEASED_TICKS * self.plan.raft.tick_nanos);
        if !is_gathered || !self.are_led_on(deposed) {
            return;
        }
        let others: Vec<u64> = nodes.into_iter().filter(|node| *node != deposed).collect();
        self.net.partition(&[deposed], &others);
        self.trace.note(self.now, deposed, 0, || "is isolated with all data leaders".into());
        self.clients.avoid(Some(deposed));
        self.start_clients(u64::from(u32::MAX));
        let before = self.moments.written.len();
        let until = self.now + WRITTEN_NANOS;
        while self.moments.written.len() == before && self.now < until && self.violation.is_none() {
            self.run(MS);
        }
        if self.moments.written.len() > before {
            self.take_moment_of(deposed, &others);
        }
        self.clients.stop();
        self.clients.avoid(None);
        self.net.heal();
        self.run_until(SETTLE_NANOS, |world| !world.clients.is_busy() && world.is_settled());
    }

    /// Requests a moment of which the calls reach one node only, and waits for its end.
    fn take_moment_of(&mut self, asked: u64, others: &[u64]) {
        let leads = |node: &&u64| self.leading_slot(**node).is_some();
        let Some(placement) = others.iter().find(leads).copied() else { return };
        self.moments.ask_only(Some(asked));
        self.take_moment(placement);
        self.run_until(MOMENT_NANOS, |world| !world.moments.is_under_way());
        self.moments.ask_only(None);
    }

    /// Transfers the leaders of all data regions to nodes that are `wanted`. Returns whether all are there.
    fn lead_on(&mut self, wanted: impl Fn(u64) -> bool) -> bool {
        for _ in 0..TRANSFERS {
            let (mut is_done, mut transfers) = (true, Vec::new());
            for (region, led) in self.led_data() {
                let Some((slot, report)) = led else {
                    is_done = false;
                    continue;
                };
                if self.slots.get(&slot).is_some_and(|it| wanted(it.node)) {
                    continue;
                }
                is_done = false;
                let there = report.region.peers.iter().find(|peer| {
                    let home = self.homes.get(&peer.store).and_then(|it| self.slots.get(it));
                    home.is_some_and(|it| wanted(it.node))
                });
                transfers.extend(there.map(|peer| (slot, region, peer.id)));
            }
            if is_done {
                return true;
            }
            for (slot, region, peer) in transfers {
                self.order(slot, region, Admin::TransferLeader(peer));
            }
            self.run(TRANSFER_NANOS);
        }
        false
    }

    /// Returns whether a node leads all data regions, and has nothing to commit or to merge.
    fn are_led_on(&mut self, node: u64) -> bool {
        self.led_data().into_iter().all(|(_, led)| {
            led.is_some_and(|(slot, it)| {
                self.slots.get(&slot).is_some_and(|slot| slot.node == node)
                    && it.committed == it.last
                    && it.region.phase == RegionPhase::Normal
            })
        })
    }

    /// Returns all data regions, each with its leader's slot and report if it has one.
    fn led_data(&mut self) -> Vec<(RegionId, Option<(u64, RegionReport)>)> {
        let regions = self.reports_by_region().into_iter();
        let data = regions.filter(|(_, reports)| {
            reports.iter().any(|(_, it)| it.region.kind == RegionKind::Data)
        });
        let leader = |reports: Vec<(u64, RegionReport)>| {
            reports.into_iter().filter(|(_, it)| it.is_leading).max_by_key(|(_, it)| it.term)
        };
        data.map(|(region, reports)| (region, leader(reports))).collect()
    }
}
