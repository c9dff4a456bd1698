//! A toy cluster: stores that stop and start, regions that change as ordered. It carries orders out
//! without judgement, and checks them.

mod raft;

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use stele_placement::schedule::round;
use stele_placement::*;
use stele_types::*;

pub(crate) struct ToyStore {
    pub address: String,
    pub alive: bool,
    pub changed: u64,
    /// Tick since which an append to the device does not end.
    pub hangs_since: Option<u64>,
    /// Operations a second that the device does now.
    pub speed: u64,
    pub usable_bytes: u64,
    pub rack: String,
}

pub(crate) struct ToyRegion {
    pub region: Region,
    pub leader: Option<Peer>,
    pub term: u64,
    pub size_bytes: u64,
    /// Learners that copy, with the ticks that they still need.
    pub copying: BTreeMap<PeerId, u64>,
}

pub(crate) struct Toy {
    pub draw: Prng,
    pub tick: u64,
    pub stores: BTreeMap<StoreId, ToyStore>,
    pub regions: BTreeMap<RegionId, ToyRegion>,
    pub cluster: Cluster,
    pub operators: Operators,
    pairs: BTreeMap<Bytes, Bytes>,
    peers_ever: BTreeSet<PeerId>,
    pub events: Vec<String>,
    /// Transfers of leadership by operators that only move leaders, by region.
    pub leader_moves: BTreeMap<RegionId, u64>,
    pub replica_moves: u64,
    last_operator: OperatorId,
}

/// Ticks are seconds.
pub(crate) const SILENT_TICKS: u64 = 5;
const DOWN_TICKS: u64 = 40;

impl Toy {
    /// Creates a cluster of `nodes` nodes with up to two stores each, founded by the first.
    pub(crate) fn new(seed: u64, nodes: u64) -> Self {
        let bootstrap = Bootstrap {
            cluster: ClusterId(seed | 1),
            address: "n1".into(),
            capacities_bytes: vec![1 << 40],
        };
        let mut pairs = BTreeMap::new();
        persist(&mut pairs, &bootstrap.pairs());
        let cluster = Cluster::load(pairs.clone(), Millis(0), 0).unwrap().unwrap();
        let mut toy = Self {
            draw: Prng::new(seed),
            tick: 1,
            stores: BTreeMap::new(),
            regions: BTreeMap::new(),
            cluster,
            operators: Operators::default(),
            pairs,
            peers_ever: BTreeSet::new(),
            events: Vec::new(),
            leader_moves: BTreeMap::new(),
            replica_moves: 0,
            last_operator: OperatorId(0),
        };
        let founder = toy.new_store("n1", 1 << 40);
        toy.stores.insert(StoreId(1), founder);
        for region in Bootstrap::regions() {
            toy.peers_ever.extend(region.peers.iter().map(|peer| peer.id));
            let leader = region.peers.first().copied();
            let (size_bytes, copying) = (10 << 20, BTreeMap::new());
            let new = ToyRegion { leader, term: 5, size_bytes, copying, region };
            toy.regions.insert(new.region.id, new);
        }
        for (name, ticks) in
            [("silent_after_seconds", SILENT_TICKS), ("down_after_seconds", DOWN_TICKS)]
        {
            let changes = toy.cluster.plan_setting(name, ticks).unwrap();
            toy.commit(&changes);
        }
        for node in 2..=nodes {
            toy.join(&format!("n{node}"));
        }
        toy
    }

    pub(crate) fn now(&self) -> Millis {
        Millis(self.tick * 1000)
    }

    pub(crate) fn log(&mut self, what: impl std::fmt::Display) {
        let line = format!("{:5} {what}", self.tick);
        self.events.push(line);
    }

    pub(crate) fn commit(&mut self, changes: &[PairChange]) {
        persist(&mut self.pairs, changes);
        self.cluster.apply(changes).unwrap();
    }

    fn new_store(&mut self, address: &str, usable_bytes: u64) -> ToyStore {
        let known = self.stores.values().find(|store| store.address == address);
        let rack = known.map(|store| store.rack.clone());
        let rack = rack.unwrap_or_else(|| format!("r{}", self.draw.below(4)));
        let (address, changed) = (address.to_owned(), self.tick);
        let speed = 100 << self.draw.below(7);
        let hangs_since = None;
        ToyStore { address, alive: true, changed, hangs_since, speed, usable_bytes, rack }
    }

    pub(crate) fn set(&mut self, name: &str, value: u64) {
        let changes = self.cluster.plan_setting(name, value).unwrap();
        self.commit(&changes);
    }

    pub(crate) fn join(&mut self, address: &str) {
        let count = 1 + self.draw.below(2) as usize;
        let new = NewStore { capacity_bytes: 1 << 40, ..NewStore::default() };
        let (ids, changes) = self.cluster.plan_join(address, &vec![new; count]).unwrap();
        self.commit(&changes);
        // A small device is nearly full at some time, but the others hold everything.
        let is_small = self.stores.len() >= 6 && self.draw.below(3) == 0;
        for id in ids {
            assert!(!self.stores.contains_key(&id), "store {id} allocated twice");
            let store = self.new_store(address, if is_small { 1 << 30 } else { 1 << 40 });
            self.stores.insert(id, store);
        }
        self.log(format!("{address} joins with {count} stores"));
    }

    pub(crate) fn set_alive(&mut self, store: StoreId, alive: bool) {
        let tick = self.tick;
        if let Some(known) = self.stores.get_mut(&store).filter(|known| known.alive != alive) {
            (known.alive, known.changed) = (alive, tick);
            self.log(format!("store {store} {}", if alive { "starts" } else { "stops" }));
        }
    }

    pub(crate) fn order_state(&mut self, store: StoreId, goal: DrainGoal) {
        let plan = self.cluster.plan_state(store, goal, self.now());
        self.log(format!("{goal:?} store {store}: {}", plan.is_ok()));
        if let Ok(changes) = plan {
            self.commit(&changes);
        }
    }

    /// Changes the placement leader: volatile facts and operators are lost.
    pub(crate) fn change_placement_leader(&mut self) {
        self.log("the placement group changes its leader");
        let unsaved = self.draw.coin();
        if !unsaved {
            self.save_regions();
        }
        self.cluster = Cluster::load(self.pairs.clone(), self.now(), 0).unwrap().unwrap();
        self.operators = Operators::default();
        self.last_operator = OperatorId(0);
    }

    fn save_regions(&mut self) {
        let changes = self.cluster.take_region_changes(1 << 20);
        self.commit(&changes);
    }

    /// Advances by a second. `lost_percent` of the orders are lost.
    pub(crate) fn step(&mut self, lost_percent: u64) {
        self.tick += 1;
        self.elect();
        self.copy();
        // Without a leader of its own region there is no placement group.
        if self.regions.get(&SYSTEM_REGION).is_none_or(|own| own.leader.is_none()) {
            return;
        }
        self.report();
        let ids = self.cluster.plan_ids(200).unwrap();
        self.commit(&ids);
        self.save_regions();
        let tombstones = self.cluster.plan_tombstones(self.now());
        self.commit(&tombstones);
        let speeds = self.cluster.plan_speeds(self.now(), self.tick);
        self.commit(&speeds);
        self.cluster.note_drains(self.now());
        let now = self.now();
        round(&mut self.cluster, &mut self.operators, now);
        self.count_moves();
        let live: Vec<StoreId> = self.live_stores().collect();
        for order in self.operators.instructions(&self.cluster, &live, self.now()) {
            if self.draw.below(100) >= lost_percent {
                self.carry_out(&order);
            }
        }
    }

    fn count_moves(&mut self) {
        let last = self.last_operator;
        for operator in self.operators.running().filter(|operator| operator.id > last) {
            self.last_operator = self.last_operator.max(operator.id);
            match operator.kind {
                Kind::Leaders | Kind::Evict => {
                    *self.leader_moves.entry(operator.region).or_default() += 1;
                }
                Kind::Balance => self.replica_moves += 1,
                _ => {}
            }
        }
    }

    pub(crate) fn set_hangs(&mut self, store: StoreId, hangs: bool) {
        let tick = self.tick;
        if let Some(known) =
            self.stores.get_mut(&store).filter(|s| s.hangs_since.is_some() != hangs)
        {
            known.hangs_since = hangs.then_some(tick);
            self.log(format!(
                "the device of store {store} {}",
                if hangs { "hangs" } else { "works" }
            ));
        }
    }

    /// Makes a follower of some region lag for a time, if no other one does.
    pub(crate) fn lag(&mut self) {
        let ids: Vec<RegionId> = self.regions.keys().copied().collect();
        let id = ids[self.draw.below(ids.len() as u64) as usize];
        let ticks = 1 + self.draw.below(30);
        let Some(known) = self.regions.get_mut(&id).filter(|known| known.copying.is_empty()) else {
            return;
        };
        let leader = known.leader.map(|leader| leader.id);
        let voters = raft::voters(&known.region, false);
        if let Some(peer) = voters.iter().find(|peer| leader.is_some_and(|id| id != peer.id)) {
            known.copying.insert(peer.id, ticks);
            let peer = *peer;
            self.log(format!("region {id} lags on store {}", peer.store));
        }
    }

    pub(crate) fn set_speed(&mut self, store: StoreId, speed: u64) {
        if let Some(known) = self.stores.get_mut(&store) {
            known.speed = speed;
        }
        self.log(format!("store {store} does {speed} operations a second"));
    }

    fn report_of(&self, id: StoreId, store: &ToyStore) -> (NodeReport, StoreReport) {
        let labels = Some(vec![("rack".to_owned(), store.rack.clone())]);
        let node = NodeReport { address: store.address.clone(), labels, ..NodeReport::default() };
        let here = self.regions.values().filter(|known| known.region.peer_on(id).is_some());
        let live_bytes: u64 = here.map(|known| known.size_bytes).sum();
        let write = OpCost { fixed_nanos: 1_000_000_000 / store.speed, picos_per_byte: 0 };
        let report = StoreReport {
            id,
            capacity_bytes: 1 << 40,
            free_bytes: 1 << 39,
            live_bytes,
            usable_bytes: store.usable_bytes,
            is_full: live_bytes >= store.usable_bytes,
            append_age_ms: store.hangs_since.map_or(0, |since| (self.tick - since) * 1000),
            device: DeviceSpeed { write, writes: 10, ..DeviceSpeed::default() },
            ..StoreReport::default()
        };
        (node, report)
    }

    pub(crate) fn live_stores(&self) -> impl Iterator<Item = StoreId> {
        self.stores.iter().filter(|(_, store)| store.alive).map(|(id, _)| *id)
    }

    pub(crate) fn is_alive(&self, store: StoreId) -> bool {
        self.stores.get(&store).is_some_and(|store| store.alive)
    }

    fn report(&mut self) {
        let now = self.now();
        let live: Vec<StoreId> = self.live_stores().collect();
        for id in live {
            let (node, report) = self.report_of(id, &self.stores[&id]);
            let plan = self.cluster.plan_heartbeat(&node, &[report]);
            if let Ok(changes) = &plan {
                self.commit(changes);
            }
            if plan.is_err() {
                // The store was removed while it was stopped, so it must not hold a replica.
                for known in self.regions.values() {
                    assert!(
                        known.region.peer_on(id).is_none(),
                        "{id} was removed with {:?}",
                        known.region
                    );
                }
                self.stores.remove(&id);
                continue;
            }
            self.cluster.record_heartbeat(&node, &[report], now);
            for region in self.regions.values().filter(|r| r.leader.is_some_and(|l| l.store == id))
            {
                // A hibernating region reports seldom, and its changes at once.
                let reported = self.cluster.regions().get(region.region.id);
                let is_known = reported.is_some_and(|info| {
                    (&info.region, info.leader) == (&region.region, region.leader)
                        && info.pending.iter().eq(region.copying.keys())
                });
                if is_known && region.region.id.0.is_multiple_of(3) && !self.tick.is_multiple_of(7)
                {
                    continue;
                }
                let report = region_report(region, self);
                // Another store may already lead the region, so the report may be stale.
                self.cluster.observe(report, now).ok();
            }
            self.cluster.note_full_report(&node.address);
        }
    }

    pub(crate) fn grow(&mut self) {
        let ids: Vec<RegionId> = self.regions.keys().copied().filter(|id| id.0 != 1).collect();
        let id = ids[self.draw.below(ids.len() as u64) as usize];
        if let Some(region) = self.regions.get_mut(&id) {
            region.size_bytes += self.draw.below(64 << 20);
        }
        if self.draw.coin() && self.regions.len() < 40 {
            self.split_by_itself(id);
        }
    }
}

fn region_report(known: &ToyRegion, toy: &Toy) -> RegionReport {
    let down = known.region.peers.iter().filter(|peer| !toy.is_alive(peer.store));
    let seconds = |peer: &Peer| match toy.stores.get(&peer.store) {
        Some(store) => toy.tick - store.changed,
        None => toy.tick,
    };
    RegionReport {
        region: known.region.clone(),
        leader: known.leader.unwrap_or_default(),
        term: Term(known.term),
        down: down.map(|peer| DownPeer { peer: peer.id, seconds: seconds(peer) }).collect(),
        pending: known.copying.keys().copied().collect(),
        size_bytes: known.size_bytes,
        ..RegionReport::default()
    }
}

fn persist(pairs: &mut BTreeMap<Bytes, Bytes>, changes: &[PairChange]) {
    for change in changes {
        match &change.value {
            Some(value) => pairs.insert(change.key.clone(), value.clone()),
            None => pairs.remove(&change.key),
        };
    }
}
