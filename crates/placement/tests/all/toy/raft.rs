//! Raft of the toy: elections, copies, membership changes, splits.

use super::{SILENT_TICKS, Toy, ToyRegion};
use std::collections::BTreeMap;
use stele_placement::operator::Order;
use stele_placement::{Change, Instruction, NewRegion};
use stele_types::*;

/// Returns the voters of the old (`outgoing`) or the new configuration.
pub(super) fn voters(region: &Region, outgoing: bool) -> Vec<Peer> {
    let votes = |role| match role {
        PeerRole::Voter => true,
        PeerRole::Learner => false,
        PeerRole::DemotingVoter => outgoing,
        PeerRole::IncomingVoter => !outgoing,
    };
    region.peers.iter().filter(|peer| votes(peer.role)).copied().collect()
}

impl Toy {
    pub(crate) fn has_quorum(&self, region: &Region) -> bool {
        [true, false].into_iter().all(|outgoing| {
            let all = voters(region, outgoing);
            all.iter().filter(|peer| self.is_alive(peer.store)).count() > all.len() / 2
        })
    }

    pub(super) fn elect(&mut self) {
        let ids: Vec<RegionId> = self.regions.keys().copied().collect();
        for id in ids {
            let region = &self.regions[&id];
            let led = region.leader.is_some_and(|leader| {
                self.is_alive(leader.store) && region.region.peer(leader.id).is_some()
            });
            let quorum = self.has_quorum(&region.region);
            if led && quorum {
                continue;
            }
            let mut able = voters(&region.region, false);
            able.retain(|peer| self.is_alive(peer.store) && !region.copying.contains_key(&peer.id));
            let chosen = self.draw.below(able.len() as u64) as usize;
            let Some(region) = self.regions.get_mut(&id) else { continue };
            region.leader = able.get(chosen).copied().filter(|_| quorum);
            region.term += 1;
        }
    }

    pub(super) fn copy(&mut self) {
        let alive: Vec<StoreId> = self.live_stores().collect();
        for region in self.regions.values_mut().filter(|region| region.leader.is_some()) {
            let ToyRegion { region, copying, .. } = region;
            copying.retain(|id, left| match region.peer(*id) {
                None => false,
                Some(peer) if alive.contains(&peer.store) => {
                    *left = left.saturating_sub(1);
                    *left > 0
                }
                Some(_) => true,
            });
        }
    }

    pub(super) fn carry_out(&mut self, order: &Instruction) {
        let Some(known) = self.regions.get(&order.region) else { return };
        let leads = known.leader.is_some_and(|leader| leader.id == order.leader.id);
        if known.region.epoch != order.epoch || !leads || !self.has_quorum(&known.region) {
            return;
        }
        let device = self.stores.get(&order.leader.store);
        let hangs = device.is_some_and(|store| store.hangs_since.is_some());
        if hangs && !matches!(order.order, Order::TransferLeader(_)) {
            return;
        }
        match &order.order {
            Order::ChangePeers(changes) => self.change_peers(order.region, changes),
            Order::TransferLeader(to) => self.transfer(order.region, *to),
            Order::Split { new, .. } => self.split(order.region, &new[0]),
            other => panic!("no merges in this toy: {other:?}"),
        }
    }

    fn transfer(&mut self, id: RegionId, to: Peer) {
        let known = &self.regions[&id];
        let behind = known.copying.contains_key(&to.id);
        let votes = voters(&known.region, false).iter().any(|peer| peer.id == to.id);
        assert!(votes && !behind, "region {id}: {to:?} cannot lead {:?}", known.region);
        if self.is_alive(to.store)
            && let Some(known) = self.regions.get_mut(&id)
        {
            known.leader = known.region.peer(to.id).copied();
            known.term += 1;
        }
    }

    fn change_peers(&mut self, id: RegionId, changes: &[Change]) {
        let before = self.regions[&id].region.clone();
        let mut after = before.clone();
        after.epoch.conf_version += 1;
        match changes {
            [] => leave_joint(&mut after),
            [Change::Add(peer)]
                if peer.role == PeerRole::Learner && before.peer(peer.id).is_none() =>
            {
                assert!(self.peers_ever.insert(peer.id), "peer {} allocated twice", peer.id);
                assert!(
                    before.peer_on(peer.store).is_none(),
                    "two peers of {id} on {}",
                    peer.store
                );
                after.peers.push(*peer);
                let ticks = 1 + self.draw.below(8);
                if let Some(known) = self.regions.get_mut(&id) {
                    known.copying.insert(peer.id, ticks);
                }
            }
            [Change::Remove(peer)] => after.peers.retain(|other| other.id != peer.id),
            changes => changes.iter().for_each(|change| enter_joint(&mut after, change)),
        }
        self.check_change(&before, &after);
        self.log(format!("region {id}: {}", peers_text(&after)));
        let leader = self.regions[&id].leader.and_then(|leader| after.peer(leader.id).copied());
        assert!(leader.is_some(), "region {id} lost its leader to {after:?}");
        assert!(leader.is_some_and(|l| l.role != PeerRole::Learner), "a learner leads {id}");
        self.regions.entry(id).and_modify(|r| (r.region, r.leader) = (after, leader));
    }

    /// Checks that a membership change is safe, as far as the placement group could know.
    fn check_change(&self, before: &Region, after: &Region) {
        let known_down = |store: StoreId| match self.stores.get(&store) {
            Some(store) => !store.alive && self.tick - store.changed > SILENT_TICKS + 1,
            None => true,
        };
        if voters(before, false) == voters(after, false) {
            return;
        }
        for outgoing in [true, false] {
            let all = voters(after, outgoing);
            let live = all.iter().filter(|peer| !known_down(peer.store)).count();
            assert!(
                live > all.len() / 2,
                "no quorum: {} to {}",
                peers_text(before),
                peers_text(after)
            );
        }
        let shared = |region: &Region| {
            let nodes = voters(region, false);
            let mut nodes: Vec<&str> =
                nodes.iter().filter_map(|p| Some(&*self.stores.get(&p.store)?.address)).collect();
            let count = nodes.len();
            nodes.sort();
            nodes.dedup();
            count - nodes.len()
        };
        assert!(shared(after) <= shared(before), "two on a node: {}", peers_text(after));
    }

    pub(super) fn split_by_itself(&mut self, id: RegionId) {
        let region = &self.regions[&id].region;
        if region.is_joint() || self.regions[&id].leader.is_none() {
            return;
        }
        let Some(mut ids) = self.cluster.take_ids(1 + region.peers.len() as u64) else { return };
        let Some(new) = ids.next().map(RegionId) else { return };
        self.split(id, &NewRegion { region: new, peers: ids.map(PeerId).collect() });
    }

    fn split(&mut self, id: RegionId, new: &NewRegion) {
        // Keys are 8 bytes; the middle of the range.
        let number = |key: &[u8], none| key.try_into().map_or(none, u64::from_be_bytes);
        let Some(known) = self.regions.get_mut(&id) else { return };
        let range = known.region.range.clone();
        let (low, high) = (number(&range.start, 0), number(&range.end, u64::MAX));
        let middle = (low + (high - low) / 2).to_be_bytes().to_vec();
        known.region.epoch.version += 1;
        known.region.range.end = middle.clone().into();
        known.size_bytes /= 2;
        let mut right = known.region.clone();
        right.id = new.region;
        right.range = KeyRange { start: middle.into(), end: range.end };
        assert_eq!(right.peers.len(), new.peers.len());
        let mut copying = BTreeMap::new();
        for (peer, id) in right.peers.iter_mut().zip(&new.peers) {
            assert!(self.peers_ever.insert(*id), "peer {id} allocated twice");
            if let Some(left) = known.copying.get(&peer.id) {
                copying.insert(*id, *left);
            }
            peer.id = *id;
        }
        let led_from = known.leader.map(|leader| leader.store);
        let leader = led_from.and_then(|store| right.peer_on(store)).copied();
        let size_bytes = known.size_bytes;
        let new = ToyRegion { region: right, leader, term: 5, size_bytes, copying };
        let id = new.region.id;
        assert!(self.regions.insert(id, new).is_none(), "region {id} allocated twice");
    }
}

fn leave_joint(region: &mut Region) {
    assert!(region.is_joint(), "left twice: {region:?}");
    for peer in &mut region.peers {
        peer.role = match peer.role {
            PeerRole::IncomingVoter => PeerRole::Voter,
            PeerRole::DemotingVoter => PeerRole::Learner,
            role => role,
        };
    }
}

fn enter_joint(region: &mut Region, change: &Change) {
    let Change::Add(new) = change else { panic!("a voter removed in one step: {change:?}") };
    let peer = region.peers.iter_mut().find(|peer| peer.id == new.id).expect("a member");
    peer.role = match (peer.role, new.role) {
        (PeerRole::Learner, PeerRole::Voter) => PeerRole::IncomingVoter,
        (PeerRole::Voter, PeerRole::Learner) => PeerRole::DemotingVoter,
        other => panic!("no such change of roles: {other:?}"),
    };
}

pub(super) fn peers_text(region: &Region) -> String {
    let text = |peer: &Peer| format!("{}:{:?}", peer.store, peer.role);
    region.peers.iter().map(text).collect::<Vec<_>>().join(" ")
}
