//! Operator actions on regions.

use super::Undo;
use crate::clients::{KEYS, key_of, transaction_borders};
use crate::faults::Fault;
use crate::plan::MS;
use crate::world::{Happening, Requester, World};
use bytes::Bytes;
use std::sync::Arc;
use stele_placement::DrainGoal;
use stele_replica::{Admin, AdminCall, ChangeKind, Header, PeerChange, RegionReport, Role};
use stele_types::{Peer, PeerId, PeerRole, Region, RegionId, RegionKind, StoreId};

impl World {
    pub(super) fn change_region(&mut self, fault: Fault) {
        let ranges = matches!(fault, Fault::Split | Fault::Merge);
        let Some((slot, report)) = self.led_region(ranges) else { return };
        match fault {
            Fault::Transfer => {
                let peers = &report.region.peers;
                let at = self.nemesis.prng.below(peers.len() as u64) as usize;
                self.order(slot, report.region.id, Admin::TransferLeader(peers[at].id));
            }
            Fault::Members => {
                self.change_members(slot, &report);
            }
            Fault::Split => {
                self.split_somewhere(slot, &report.region);
            }
            _ => self.merge_soon(slot, &report),
        }
    }

    pub(super) fn split_somewhere(&mut self, slot: u64, region: &Region) {
        let keys = (0..self.plan.groups as usize)
            .flat_map(|group| (0..KEYS).map(move |key| key_of(group, key)));
        let has_transactions = self.plan.transaction_permille > 0;
        let keys = keys.chain(transaction_borders().filter(|_| has_transactions));
        let range = &region.range;
        let keys: Vec<Bytes> =
            keys.filter(|key| range.contains(key) && *key > range.start).collect();
        let at = self.nemesis.prng.below(keys.len() as u64) as usize;
        if let Some(key) = keys.get(at) {
            self.split_at(slot, region, key.clone());
        }
    }

    /// Returns a region and a store that is its leader, in its own view.
    pub(super) fn led_region(&mut self, is_data: bool) -> Option<(u64, RegionReport)> {
        let regions = self.reports_by_region();
        let fits = |it: &RegionReport| !is_data || it.region.kind == RegionKind::Data;
        let leading = regions.into_values().flatten();
        let leading = leading.filter(|(_, it)| it.role == Role::Leader && fits(it));
        let mut leading: Vec<_> = leading.collect();
        let at = self.nemesis.prng.below(leading.len() as u64) as usize;
        (!leading.is_empty()).then(|| leading.swap_remove(at))
    }

    pub(crate) fn order(&mut self, slot: u64, region: RegionId, call: Admin) {
        let node = self.slots.get(&slot).map_or(0, |slot| slot.node);
        let text = format!("ordered for region {region}: {call:?}");
        self.trace.note(self.now, node, slot, || crate::world::short(&text));
        let header = Header { region, ..Header::default() };
        self.request(slot, Requester::Ignored, AdminCall { header, call });
    }

    /// Adds a learner, promotes one (in place of a voter or in addition), or removes one.
    fn change_members(&mut self, slot: u64, report: &RegionReport) {
        let region = &report.region;
        let of = |role| region.peers.iter().filter(move |peer| peer.role == role).copied();
        // A lost replica is no candidate.
        let is_there = |peer: &Peer| {
            let slot = self.homes.get(&peer.store).and_then(|home| self.slots.get(home));
            slot.is_some_and(|slot| !slot.is_damaged && !slot.may_not_open)
        };
        let learner = of(PeerRole::Learner).find(is_there);
        let voters: Vec<Peer> = of(PeerRole::Voter).collect();
        let node_of = |world: &Self, store: StoreId| {
            let home = world.homes.get(&store)?;
            world.slots.get(home).map(|slot| slot.node)
        };
        let used_nodes: Vec<Option<u64>> =
            region.peers.iter().map(|peer| node_of(self, peer.store)).collect();
        let free = self.serving_homes().into_iter().find_map(|number| {
            let slot = self.slots.get(&number)?;
            slot.id.filter(|_| !used_nodes.contains(&Some(slot.node)))
        });
        let add = |peer, role| PeerChange { kind: ChangeKind::Add, peer: Peer { role, ..peer } };
        let remove = |peer| PeerChange { kind: ChangeKind::Remove, peer };
        let Some(victim) =
            voters.get(self.nemesis.prng.below(voters.len() as u64) as usize).copied()
        else {
            return;
        };
        let changes = match (learner, self.nemesis.prng.below(4)) {
            (Some(learner), 0) => vec![remove(learner)],
            (Some(learner), 1 | 2) if voters.len() >= 3 => {
                vec![add(learner, PeerRole::Voter), add(victim, PeerRole::Learner)]
            }
            (Some(learner), _) => vec![add(learner, PeerRole::Voter)],
            (None, _) => {
                let (Some(store), Some(ids)) = (free, self.take_ids(1)) else { return };
                let peer = Peer { id: PeerId(ids.start), store, role: PeerRole::Learner };
                vec![add(peer, PeerRole::Learner)]
            }
        };
        self.order(slot, region.id, Admin::ChangePeers(changes));
    }

    /// Orders a merge, immediately or while one follower's commit index lags. A region without a
    /// neighbour is split, so that the next merge has a target.
    fn merge_soon(&mut self, slot: u64, report: &RegionReport) {
        if self.neighbour(slot, &report.region).is_none() {
            return self.split_somewhere(slot, &report.region);
        }
        if self.nemesis.prng.coin() {
            return self.merge(slot, &report.region);
        }
        let target = self.neighbour(slot, &report.region).map(|target| target.id);
        let pause = (50 + self.nemesis.prng.below(500)) * MS;
        self.withhold_from_one(slot, report, target, pause);
        self.after(pause, Happening::Undo(Undo::Merge(slot, report.region.id)));
    }

    pub(super) fn merge_now(&mut self, slot: u64, region: RegionId) {
        if !self.nemesis.is_active || !self.leads(slot, region) {
            return;
        }
        let reader = self.slots.get(&slot).and_then(|slot| slot.readers()?.get(region));
        if let Some(now) = reader.map(|reader| reader.region()) {
            self.merge(slot, &now);
        }
    }

    fn merge(&mut self, slot: u64, region: &Region) {
        if let Some(target) = self.neighbour(slot, region) {
            self.order(slot, region.id, Admin::PrepareMerge { target: (*target).clone() });
            self.commit_merge_soon(region.id, target.id);
        }
    }

    fn neighbour(&self, slot: u64, region: &Region) -> Option<Arc<Region>> {
        let readers = self.slots.get(&slot).and_then(|slot| slot.readers())?;
        let beside = |other: &Region| {
            let (a, b) = (&region.range, &other.range);
            let touch = |end: &Bytes, start: &Bytes| !end.is_empty() && end == start;
            other.id != region.id
                && other.kind == region.kind
                && (touch(&b.end, &a.start) || touch(&a.end, &b.start))
        };
        readers.all().into_iter().find(|other| beside(other))
    }

    /// Orders to drain a store, or cancels the last such order.
    pub(super) fn drain(&mut self) {
        let drained = self.nemesis.drained.pop();
        if let Some(id) = drained {
            return self.nemesis.goals.push((id, DrainGoal::Cancel));
        }
        let Some(slot) = self.any_slot() else { return };
        if let Some(id) = self.slots.get(&slot).and_then(|slot| slot.id) {
            self.nemesis.drained.push(id);
            self.nemesis.goals.push((id, DrainGoal::Drain));
        }
    }
}
