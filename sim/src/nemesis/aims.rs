//! Faults at critical moments: orders during other changes, leaders cut off with entries that only
//! they have, full devices when a replica is destroyed.

use super::Undo;
use crate::faults::Fault;
use crate::plan::MS;
use crate::world::{Happening, World};
use std::path::Path;
use stele_placement::SYSTEM_REGION;
use stele_replica::{Admin, ChangeKind, Event, PeerChange, Role};
use stele_types::{Peer, PeerRole, Region, RegionId, RegionPhase, StoreId};
use stele_vfs::Vfs;

/// Time without messages, longer than the steps of a removal.
const HIDDEN_NANOS: u64 = 8_000 * MS;

impl World {
    pub(crate) fn aim_at(&mut self, number: u64, event: &Event) {
        if !self.nemesis.is_active {
            return;
        }
        let makes_mistakes = self.nemesis.makes_mistakes();
        if let Event::RegionChanged(region) = event
            && self.leads(number, region.id)
            && self.hide_target(number, region)
        {
            return;
        }
        match event {
            Event::RegionChanged(region) if makes_mistakes && self.leads(number, region.id) => {
                self.mistake_at(number, region);
            }
            Event::BecameLeader { region, .. } if makes_mistakes => {
                let core = self.slots.get_mut(&number).and_then(|slot| slot.core());
                let now = core.and_then(|core| core.region(*region)).map(|it| it.region);
                if let Some(now) = now.filter(Region::is_joint) {
                    self.mistake_at(number, &now);
                }
            }
            Event::RegionCreated(region) if self.plan.faults.has(Fault::Loss) => {
                self.isolate_learner(number, region);
            }
            _ => {}
        }
    }

    pub(super) fn leads(&mut self, number: u64, region: RegionId) -> bool {
        let core = self.slots.get_mut(&number).and_then(|slot| slot.core());
        let report = core.and_then(|core| core.region(region));
        report.is_some_and(|report| report.role == Role::Leader)
    }

    /// Returns a store that is leader of a region, in its own view.
    pub(super) fn leader_of(&mut self, region: RegionId) -> Option<u64> {
        self.serving().into_iter().find(|number| self.leads(*number, region))
    }

    /// Orders a change during a membership change or a merge.
    fn mistake_at(&mut self, number: u64, region: &Region) {
        if region.is_joint() {
            let at = self.nemesis.prng.below(region.peers.len() as u64) as usize;
            let Some(peer) = region.peers.get(at).copied() else { return };
            let change = match peer.role {
                PeerRole::Voter => {
                    let peer = Peer { role: PeerRole::Learner, ..peer };
                    PeerChange { kind: ChangeKind::Add, peer }
                }
                _ => PeerChange { kind: ChangeKind::Remove, peer },
            };
            return self.order(number, region.id, Admin::ChangePeers(vec![change]));
        }
        let RegionPhase::Merging { target, prepared, .. } = region.phase else { return };
        match self.nemesis.prng.below(4) {
            0 => {
                let call = match self.nemesis.prng.coin() {
                    // Ordered as the placement group does after a cancellation, or by it.
                    true if prepared.0 % 2 == 0 => return self.cancel_merge(region.id),
                    true => Admin::AbandonMerge(vec![]),
                    false => Admin::RollbackMerge(vec![]),
                };
                return self.order(number, region.id, call);
            }
            1 => {
                let Some(leader) = self.leader_of(target) else { return };
                let reader = self.slots.get(&leader).and_then(|it| it.readers()?.get(target));
                if let Some(reader) = reader {
                    let now = reader.region();
                    self.split_somewhere(leader, &now);
                }
            }
            _ => {}
        }
        self.commit_merge_soon(region.id, target);
    }

    /// Schedules several orders to commit a merge, like an impatient administrator.
    pub(super) fn commit_merge_soon(&mut self, source: RegionId, target: RegionId) {
        for _ in 0..3 {
            let pause = (2 + self.nemesis.prng.below(300)) * MS;
            self.after(pause, Happening::Undo(Undo::CommitMerge(source, target)));
        }
    }

    /// Orders the target's leader to commit a prepared merge, whatever became of the target.
    pub(super) fn commit_merge(&mut self, source: RegionId, target: RegionId) {
        let Some(leader) = self.leader_of(target).filter(|_| self.nemesis.is_active) else {
            return;
        };
        if self.nemesis.is_report_lost(self.node_with(leader), self.now) {
            return;
        }
        let readers = self.slots.get(&leader).and_then(|slot| slot.readers());
        let Some(reader) = readers.and_then(|readers| readers.get(source)) else { return };
        let source = (*reader.region()).clone();
        if let RegionPhase::Merging { prepared, .. } = source.phase {
            let call = Admin::CommitMerge { source, prepared_index: prepared };
            self.order(leader, target, call);
        }
    }

    /// Cuts a new learner off from its region, and the region's leader from the placement leader.
    fn isolate_learner(&mut self, number: u64, region: &Region) {
        let Some(slot) = self.slots.get(&number) else { return };
        let own = slot.id.and_then(|own| region.peer_on(own)).map(|peer| peer.role);
        if own != Some(PeerRole::Learner) || self.nemesis.prng.coin() {
            return;
        }
        let node = |world: &Self, slot: Option<u64>| {
            slot.and_then(|slot| world.slots.get(&slot)).map(|slot| slot.node)
        };
        let leader = self.leader_of(region.id);
        let group = self.leader_of(SYSTEM_REGION);
        let (Some(leader), Some(group)) = (node(self, leader), node(self, group)) else { return };
        if leader == group {
            return;
        }
        self.counts.partitions += 1;
        self.net.partition(&[leader], &[group]);
        self.undo_at(Undo::Network, 5_000);
        let others: Vec<u64> = self.slots.keys().copied().collect();
        for other in others {
            self.nemesis.block_messages((region.id, other, number), self.now + 5_000 * MS);
        }
    }

    /// Blocks messages to a hibernating replica that is being removed, mostly, so that nothing
    /// wakes it.
    pub(crate) fn hide_removal(&mut self, store: StoreId, region: RegionId) {
        let Some(&to) = self.homes.get(&store).filter(|_| self.nemesis.is_active) else { return };
        let core = self.slots.get_mut(&to).and_then(|slot| slot.core());
        let is_hibernating =
            core.and_then(|core| core.region(region)).is_some_and(|it| it.hibernating);
        let faults = self.plan.faults;
        let may = faults.has(Fault::Loss) || faults.has(Fault::Partition);
        if !is_hibernating || !may || self.nemesis.prng.below(4) == 0 {
            return;
        }
        let others: Vec<u64> = self.homes.values().copied().filter(|from| *from != to).collect();
        for from in others {
            self.nemesis.block_messages((region, from, to), self.now + HIDDEN_NANOS);
        }
    }

    /// Hides the end of a snapshot transfer from its sender, sometimes: neither transport nor
    /// replica reports it. Returns true if hidden.
    pub(crate) fn hide_snapshot_end(&mut self, way: (RegionId, u64, u64)) -> bool {
        let may = self.nemesis.is_active && self.plan.faults.has(Fault::Loss);
        if !may || self.nemesis.prng.below(3) > 0 {
            return false;
        }
        let until = self.now + (200 + self.nemesis.prng.below(3_000)) * MS;
        self.nemesis.block_messages(way, until);
        true
    }

    fn undo_at(&mut self, undo: Undo, millis: u64) {
        self.after(millis * MS, Happening::Undo(undo));
    }

    /// Blocks a leader's messages soon after an order: followers have the proposal but do not learn
    /// that it is committed. The leader still reaches the placement group.
    pub(crate) fn mute_soon(&mut self, number: u64, region: RegionId, merges: bool) {
        let faults = self.plan.faults;
        let may = faults.has(Fault::Loss) || merges && faults.has(Fault::Merge);
        let spared = match merges {
            true => self.nemesis.withholds(region),
            false => self.nemesis.prng.coin(),
        };
        if !self.nemesis.is_active || !may || spared {
            return;
        }
        let pause = self.nemesis.prng.below(2 * self.plan.way_nanos.1 + MS / 2);
        self.after(pause, Happening::Undo(Undo::Mute(number, region)));
    }

    /// Blocks a store's messages in a region to all followers, or to one.
    pub(super) fn mute(&mut self, number: u64, region: RegionId) {
        let reader = self.slots.get(&number).and_then(|slot| slot.readers()?.get(region));
        let Some(now) = reader.map(|reader| reader.region()) else { return };
        let homes = now.peers.iter().filter_map(|peer| self.homes.get(&peer.store).copied());
        let others: Vec<u64> = homes.filter(|it| *it != number).collect();
        let at = self.nemesis.prng.below(others.len() as u64) as usize;
        let only = others.get(at).copied().filter(|_| self.nemesis.prng.coin());
        let until = self.now + (600 + self.nemesis.prng.below(1_500)) * MS;
        let node = self.slots.get(&number).map_or(0, |slot| slot.node);
        self.trace
            .note(self.now, node, number, || format!("messages of region {region} are blocked"));
        for other in others.into_iter().filter(|it| only.is_none_or(|only| only == *it)) {
            self.nemesis.block_messages((region, number, other), until);
        }
    }

    /// Fills the device after a replica was destroyed, mostly, so that its pairs cannot be dropped.
    pub(crate) fn fill_now(&mut self, number: u64) {
        let fills = self.nemesis.is_active && self.plan.faults.has(Fault::NoSpace);
        if !fills || self.nemesis.prng.below(3) == 0 {
            return;
        }
        let Some(slot) = self.slots.get(&number) else { return };
        let dir = Path::new(crate::world::DIR);
        let (Ok(free), Ok(total)) = (slot.disk.free_bytes(dir), slot.disk.total_bytes(dir)) else {
            return;
        };
        self.counts.disk_faults += 1;
        slot.disk.set_capacity(Some(total - free));
        self.undo_later(Undo::Space(number), 500);
    }
}
