//! Nemesis: random faults and administrator actions, by seed.

use crate::sim::{Backend, MS, NoRoom, Sim};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use stele_replica::*;
use stele_types::*;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dangers {
    pub network: bool,
    pub crashes: bool,
    pub pauses: bool,
    pub slow_disks: bool,
    pub full_disks: bool,
    pub transfers: bool,
    pub members: bool,
    pub ranges: bool,
}

impl Dangers {
    pub(crate) const ALL: Self = Self {
        network: true,
        crashes: true,
        pauses: true,
        slow_disks: true,
        full_disks: false,
        transfers: true,
        members: true,
        ranges: true,
    };
}

pub(crate) struct Nemesis {
    prng: Prng,
    dangers: Dangers,
    next_at: u64,
    /// Time at which network faults end.
    calm_at: u64,
    /// Crashed stores and the times of their restarts.
    down: Vec<(u64, u64)>,
    /// Requested changes of regions.
    pub asked: Vec<(&'static str, RequestId)>,
}

impl Nemesis {
    pub(crate) fn new(dangers: Dangers, seed: u64) -> Self {
        let prng = Prng::new(seed ^ 0x4e3e_5150);
        Self { prng, dangers, next_at: 0, calm_at: u64::MAX, down: Vec::new(), asked: Vec::new() }
    }

    pub(crate) fn step<B: Backend>(&mut self, sim: &mut Sim<B>) {
        for at in (0..self.down.len()).rev() {
            if self.down[at].1 <= sim.now {
                sim.start(self.down.remove(at).0);
            }
        }
        if self.calm_at <= sim.now {
            self.calm_at = u64::MAX;
            heal(sim);
        }
        if sim.now < self.next_at {
            return;
        }
        self.next_at = sim.now + (100 + self.prng.below(900)) * MS;
        let Dangers {
            network,
            crashes,
            pauses,
            slow_disks,
            full_disks,
            transfers,
            members,
            ranges,
        } = self.dangers;
        if full_disks && self.prng.below(3) == 0 {
            return self.fill_disk(sim);
        }
        match self.prng.below(12) {
            0..4 if network => self.trouble_network(sim),
            4 if crashes => self.crash(sim),
            5 if pauses => self.pause(sim),
            6 if slow_disks => self.slow_disk(sim),
            7 if transfers => self.transfer(sim),
            8 | 9 if members => self.change_members(sim),
            10 | 11 if ranges => self.change_ranges(sim),
            _ => heal(sim),
        }
        if ranges {
            finish_merges(sim);
        }
    }

    fn any<B: Backend>(&mut self, sim: &Sim<B>) -> u64 {
        let stores: Vec<u64> = sim.nodes.keys().copied().collect();
        stores[self.prng.below(stores.len() as u64) as usize]
    }

    fn trouble_network<B: Backend>(&mut self, sim: &mut Sim<B>) {
        let stores: Vec<u64> = sim.nodes.keys().copied().collect();
        if self.prng.coin() {
            self.calm_at = sim.now + self.prng.below(2_000) * MS;
        }
        match self.prng.below(5) {
            0 => {
                let (one, other): (Vec<u64>, Vec<u64>) =
                    stores.into_iter().partition(|_| self.prng.coin());
                sim.note(format!("{one:?} and {other:?} are partitioned"));
                sim.net.partition(&one, &other);
            }
            1 => {
                let (from, to) = (self.any(sim), self.any(sim));
                sim.note(format!("nothing passes from {from} to {to}"));
                sim.net.cut_one_way(from, to);
            }
            2 => {
                let store = sim.leader(crate::sim::DATA).unwrap_or(1);
                sim.note(format!("{store} is isolated"));
                sim.isolate(store);
            }
            3 => {
                sim.net.lost_permille = self.prng.below(300);
                sim.net.doubled_permille = self.prng.below(500);
            }
            _ => sim.net.delay_nanos = (100_000, (1 + self.prng.below(300)) * MS),
        }
    }

    fn crash<B: Backend>(&mut self, sim: &mut Sim<B>) {
        let store = self.any(sim);
        if sim.is_up(store) {
            sim.crash(store);
            self.down.push((store, sim.now + (50 + self.prng.below(2_000)) * MS));
        }
    }

    fn pause<B: Backend>(&mut self, sim: &mut Sim<B>) {
        let (store, until) = (self.any(sim), sim.now + self.prng.below(2_000) * MS);
        sim.note(format!("{store} is paused until {} ms", until / MS));
        sim.node(store).paused_until = until;
    }

    fn slow_disk<B: Backend>(&mut self, sim: &mut Sim<B>) {
        let (store, most) = (self.any(sim), self.prng.below(300) * MS);
        sim.note(format!("the disk of {store} takes up to {} ms", most / MS));
        let node = sim.node(store);
        node.append_nanos = (100_000, 100_000 + most);
        node.stalled = self.prng.below(4) == 0;
    }

    fn fill_disk<B: Backend>(&mut self, sim: &mut Sim<B>) {
        if self.prng.below(3) == 0 {
            return free_disks(sim);
        }
        let store = self.any(sim);
        let is_full = self.prng.coin();
        let no_room = match self.prng.below(4) {
            0 => NoRoom::All,
            1 => NoRoom::None,
            _ => NoRoom::Entries,
        };
        sim.note(format!("the disk of {store} is full: {is_full}, no room for {no_room:?}"));
        sim.set_full(store, is_full, no_room);
    }

    fn pick_leader<B: Backend>(&mut self, sim: &mut Sim<B>) -> Option<(u64, RegionReport)> {
        let mut all = Vec::new();
        for store in sim.nodes.keys().copied().collect::<Vec<_>>() {
            let pick_leader = sim.reports(store).into_iter().filter(|it| it.role == Role::Leader);
            all.extend(pick_leader.map(|report| (store, report)));
        }
        let at = self.prng.below(all.len() as u64) as usize;
        (!all.is_empty()).then(|| all.swap_remove(at))
    }

    fn transfer<B: Backend>(&mut self, sim: &mut Sim<B>) {
        let Some((store, report)) = self.pick_leader(sim) else { return };
        let others = report.region.peers.iter().filter(|peer| **peer != report.peer);
        let heirs: Vec<PeerId> =
            others.filter(|peer| peer.role == PeerRole::Voter).map(|peer| peer.id).collect();
        let to = match self.prng.below(NONSENSE_ONE_IN) {
            0 => report.region.peers.last().map(|peer| peer.id),
            _ if heirs.is_empty() => None,
            _ => Some(heirs[self.prng.below(heirs.len() as u64) as usize]),
        };
        let Some(to) = to else { return };
        sim.note(format!("{store} is to transfer region {} to {to}", report.region.id));
        self.ask(sim, "transfer", store, report.region.id, Admin::TransferLeader(to));
    }

    /// Adds voters up to three or four, then replaces one; removes learners.
    fn change_members<B: Backend>(&mut self, sim: &mut Sim<B>) {
        let Some((store, report)) = self.pick_leader(sim) else { return };
        let region = &report.region;
        let of = |role| region.peers.iter().filter(move |peer| peer.role == role).copied();
        let learner = of(PeerRole::Learner).next();
        let voters: Vec<Peer> = of(PeerRole::Voter).collect();
        let free = sim.nodes.keys().copied().find(|id| region.peer_on(StoreId(*id)).is_none());
        let add = |peer, role| PeerChange { kind: ChangeKind::Add, peer: Peer { role, ..peer } };
        let remove = |peer| PeerChange { kind: ChangeKind::Remove, peer };
        let victim = voters[self.prng.below(voters.len() as u64) as usize];
        let changes = match (learner, self.prng.below(4)) {
            (Some(learner), 0) => vec![remove(learner)],
            (Some(learner), 1 | 2) if voters.len() >= 3 => {
                vec![add(learner, PeerRole::Voter), add(victim, PeerRole::Learner)]
            }
            (Some(learner), _) => vec![add(learner, PeerRole::Voter)],
            (None, 0) if voters.len() > 3 => vec![remove(victim)],
            (None, _) => match free {
                Some(store) => {
                    let id = PeerId(sim.fresh_id());
                    let peer = Peer { id, store: StoreId(store), role: PeerRole::Learner };
                    vec![add(peer, PeerRole::Learner)]
                }
                None => vec![],
            },
        };
        sim.note(format!("members of region {}: {changes:?}", region.id));
        self.ask(sim, "members", store, region.id, Admin::ChangePeers(changes));
    }

    fn change_ranges<B: Backend>(&mut self, sim: &mut Sim<B>) {
        let Some((store, report)) = self.pick_leader(sim) else { return };
        let region = report.region.clone();
        let nonsense = self.prng.below(NONSENSE_ONE_IN) == 0;
        let others = sim.reports(store).into_iter().map(|report| report.region);
        let targets: Vec<Region> = others
            .filter(|other| is_beside(&region, other) && (nonsense || fits(&region, other)))
            .collect();
        if targets.is_empty() || self.prng.coin() {
            let letters = (b'a'..=b'z').map(|letter| Bytes::from(vec![letter]));
            let inside = |key: &Bytes| region.range.contains(key) && *key > region.range.start;
            let keys: Vec<Bytes> = letters.filter(|key| nonsense || inside(key)).collect();
            if keys.is_empty() {
                return;
            }
            let key = keys[self.prng.below(keys.len() as u64) as usize].clone();
            let new_ids = vec![new_region(sim, &region)];
            sim.note(format!("split of region {} at {key:?}", region.id));
            let split = Admin::Split { keys: vec![key], new_ids };
            return self.ask(sim, "split", store, region.id, split);
        }
        let target = targets[self.prng.below(targets.len() as u64) as usize].clone();
        sim.note(format!("region {} is to be merged into {}", region.id, target.id));
        self.ask(sim, "merge", store, region.id, Admin::PrepareMerge { target });
    }

    fn ask<B: Backend>(
        &mut self,
        sim: &mut Sim<B>,
        what: &'static str,
        store: u64,
        region: RegionId,
        call: Admin,
    ) {
        let id = sim.admin(store, region, call);
        self.asked.push((what, id));
    }
}

pub(crate) fn heal<B: Backend>(sim: &mut Sim<B>) {
    sim.note("all faults end".into());
    sim.net = crate::sim::Network::default();
    for node in sim.nodes.values_mut() {
        node.stalled = false;
        node.append_nanos = (100_000, 2_000_000);
    }
    free_disks(sim);
}

fn free_disks<B: Backend>(sim: &mut Sim<B>) {
    for store in sim.nodes.keys().copied().collect::<Vec<_>>() {
        sim.set_full(store, false, NoRoom::None);
    }
}

/// Rate of invalid requests, which must be refused without effect.
const NONSENSE_ONE_IN: u64 = 8;

fn is_beside(region: &Region, other: &Region) -> bool {
    let (a, b) = (&region.range, &other.range);
    let touch = |left: &KeyRange, right: &KeyRange| !left.end.is_empty() && left.end == right.start;
    other.id != region.id && other.kind == region.kind && (touch(a, b) || touch(b, a))
}

/// Returns whether the members of two regions allow a merge.
fn fits(region: &Region, other: &Region) -> bool {
    let places = |region: &Region| -> BTreeSet<(StoreId, u8)> {
        region.peers.iter().map(|peer| (peer.store, peer.role as u8)).collect()
    };
    !region.is_joint() && other.phase == RegionPhase::Normal && places(region) == places(other)
}

pub(crate) fn new_region<B: Backend>(sim: &mut Sim<B>, parent: &Region) -> NewRegion {
    let region = RegionId(sim.fresh_id());
    let peers = parent.peers.iter().map(|_| PeerId(sim.fresh_id())).collect();
    NewRegion { region, peers }
}

/// Destroys replicas that no membership contains and that missed their removal, as placement does.
pub(crate) fn destroy_stale_peers<B: Backend>(sim: &mut Sim<B>) {
    let mut latest: BTreeMap<RegionId, Region> = BTreeMap::new();
    let stores: Vec<u64> = sim.nodes.keys().copied().collect();
    for report in stores.iter().flat_map(|store| sim.reports(*store)).collect::<Vec<_>>() {
        let known = latest.entry(report.region.id).or_insert_with(|| report.region.clone());
        if known.epoch.conf_version < report.region.epoch.conf_version {
            *known = report.region;
        }
    }
    for store in stores {
        for report in sim.reports(store) {
            let id = report.peer.id;
            if latest.get(&report.region.id).is_some_and(|region| region.peer(id).is_none()) {
                sim.admin(store, report.region.id, Admin::Destroy(id));
            }
        }
    }
}

/// Commits prepared merges at their targets, or rolls them back where the target has changed.
pub(crate) fn finish_merges<B: Backend>(sim: &mut Sim<B>) {
    for store in sim.nodes.keys().copied().collect::<Vec<_>>() {
        for report in sim.reports(store) {
            let RegionPhase::Merging { target, prepared, target_epoch, .. } = report.region.phase
            else {
                continue;
            };
            if report.role != Role::Leader {
                continue;
            }
            let source = report.region.clone();
            let leader = sim.leader(target);
            let now = leader.and_then(|leader| sim.report(leader, target));
            match (leader, now) {
                (Some(leader), Some(now)) if now.region.epoch == target_epoch => {
                    let call = Admin::CommitMerge { source, prepared_index: prepared };
                    sim.admin(leader, target, call);
                }
                _ => {
                    sim.admin(store, source.id, Admin::RollbackMerge(vec![]));
                }
            }
        }
    }
}
