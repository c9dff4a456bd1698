//! Trouble at the moment when it can do most: orders on top of others, leaders that vanish with what
//! only they know, devices that are full when a replica leaves.

use super::Undo;
use crate::faults::Fault;
use crate::plan::MS;
use crate::world::{Happening, Stop, Who, World};
use std::path::Path;
use stele_placement::SYSTEM_REGION;
use stele_raftstore::{Admin, ChangeKind, Event, PeerChange, Role};
use stele_types::{Peer, PeerRole, Region, RegionId, RegionPhase};
use stele_vfs::Vfs;

impl World {
    /// Something happened to a region on a store.
    pub(crate) fn aim_at(&mut self, number: u64, event: &Event) {
        if !self.nemesis.is_active {
            return;
        }
        let makes_mistakes = self.nemesis.makes_mistakes();
        match event {
            Event::RegionChanged(region) if makes_mistakes && self.leads(number, region.id) => {
                self.mistake_at(number, region);
            }
            Event::RegionCreated(region) if self.plan.faults.has(Fault::Kill) => {
                self.orphan(number, region);
            }
            _ => {}
        }
    }

    fn leads(&mut self, number: u64, region: RegionId) -> bool {
        let core = self.slots.get_mut(&number).and_then(|slot| slot.core());
        let report = core.and_then(|core| core.region(region));
        report.is_some_and(|report| report.role == Role::Leader)
    }

    /// The store that leads a region, if one believes to.
    fn leader_of(&mut self, region: RegionId) -> Option<u64> {
        self.serving().into_iter().find(|number| self.leads(*number, region))
    }

    /// A change on top of a change, or of what is to be merged.
    fn mistake_at(&mut self, number: u64, region: &Region) {
        if region.is_joint() && self.nemesis.prng.coin() {
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
        let RegionPhase::Merging { target, .. } = region.phase else { return };
        match self.nemesis.prng.below(4) {
            0 => self.order(number, region.id, Admin::RollbackMerge),
            1 | 2 => {
                let Some(leader) = self.leader_of(target) else { return };
                let reader = self.slots.get(&leader).and_then(|it| it.readers()?.get(target));
                if let Some(reader) = reader {
                    let now = reader.region();
                    self.split_in_half(leader, &now, Who::Nobody);
                }
                for _ in 0..3 {
                    let pause = (2 + self.nemesis.prng.below(300)) * MS;
                    self.after(pause, Happening::Undo(Undo::TakeOver(region.id, target)));
                }
            }
            _ => {}
        }
    }

    /// A source that was prepared is to be taken over, whatever became of its target.
    pub(super) fn take_over(&mut self, source: RegionId, target: RegionId) {
        let Some(leader) = self.leader_of(target).filter(|_| self.nemesis.is_active) else {
            return;
        };
        let readers = self.slots.get(&leader).and_then(|slot| slot.readers());
        let Some(reader) = readers.and_then(|readers| readers.get(source)) else { return };
        let source = (*reader.region()).clone();
        if let RegionPhase::Merging { prepared, .. } = source.phase {
            let call = Admin::CommitMerge { source, prepared_index: prepared };
            self.order(leader, target, call);
        }
    }

    /// A replica just came to be, and those that voted for it vanish before they say so.
    fn orphan(&mut self, number: u64, region: &Region) {
        let Some(slot) = self.slots.get(&number) else { return };
        let (node, own) = (slot.node, slot.id);
        let is_learner = own.and_then(|own| region.peer_on(own)).map(|peer| peer.role)
            == Some(PeerRole::Learner);
        if !is_learner || self.plan.nodes < 4 || region.id == SYSTEM_REGION {
            return;
        }
        if self.nemesis.prng.below(4) > 0 {
            return;
        }
        let kept = self.leader_of(SYSTEM_REGION).and_then(|slot| self.slots.get(&slot));
        let kept = kept.map(|slot| slot.node);
        let homes = region.peers.iter().filter_map(|peer| self.homes.get(&peer.store));
        let nodes = homes.filter_map(|home| self.slots.get(home)).map(|slot| slot.node);
        let mut nodes: Vec<u64> = nodes.filter(|it| *it != node && Some(*it) != kept).collect();
        nodes.dedup();
        for id in nodes {
            self.counts.kills += 1;
            self.stop_node(id, Stop::Kill);
            let pause = (4_000 + self.nemesis.prng.below(3_000)) * MS;
            self.after(pause, Happening::Undo(Undo::Start(id)));
        }
    }

    /// What a leader was just ordered is decided, and hardly anybody hears so: it goes on speaking to
    /// the placement group.
    pub(super) fn mute_soon(&mut self, number: u64, region: RegionId) {
        if !self.plan.faults.has(Fault::OneWay) || self.nemesis.prng.coin() {
            return;
        }
        let pause = self.nemesis.prng.below(3 * self.plan.way_nanos.1 + MS);
        self.after(pause, Happening::Undo(Undo::Mute(number, region)));
    }

    pub(super) fn mute(&mut self, number: u64, region: RegionId) {
        let kept = self.leader_of(SYSTEM_REGION).and_then(|slot| self.slots.get(&slot));
        let kept = kept.map(|slot| slot.node);
        let Some(slot) = self.slots.get(&number).filter(|_| self.nemesis.is_active) else { return };
        let node = slot.node;
        let Some(reader) = slot.readers().and_then(|readers| readers.get(region)) else { return };
        let now = reader.region();
        let homes = now.peers.iter().filter_map(|peer| self.homes.get(&peer.store));
        let nodes: Vec<u64> =
            homes.filter_map(|home| self.slots.get(home)).map(|slot| slot.node).collect();
        if kept == Some(node) || kept.is_some_and(|kept| nodes.contains(&kept)) {
            return;
        }
        self.counts.partitions += 1;
        let others = nodes.into_iter().filter(|it| *it != node);
        self.net.cut.extend(others.map(|it| (node, it)));
        self.trace.note(self.now, node, number, || "is not heard by its followers".into());
        self.after(3_000 * MS, Happening::Undo(Undo::Network));
    }

    /// A replica left for good: now and then there is no room to drop its pairs.
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
