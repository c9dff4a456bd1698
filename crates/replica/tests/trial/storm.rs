//! Random histories: lost, duplicated and late messages, slow disks, crashes, membership changes,
//! splits. No acknowledged write is lost, no read is stale, and all replicas end up equal.

use super::*;
use stele_storage::{LogStore, Overlaid, Pair, StateMachine};

const KEYS: u64 = 8;
const STORES: u64 = 5;

/// Key with one client that writes growing numbers, one at a time.
#[derive(Default)]
struct Client {
    next: u64,
    acknowledged: u64,
    pending: Option<(RequestId, u64)>,
}

#[derive(Default)]
struct Counter {
    succeeded: u64,
    unknown: u64,
    pending: Option<RequestId>,
}

struct Reading {
    store: u64,
    header: Header,
    key: u64,
    at_least: u64,
}

struct Storm {
    trial: Trial,
    prng: Prng,
    clients: Vec<Client>,
    counter: Counter,
    reads: BTreeMap<RequestId, Reading>,
    lease_reads: u64,
    next_id: u64,
    calm: bool,
    known: BTreeMap<u64, reports::Known>,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut trial = Trial::with(3, |options| {
            options.log_kept = LogKept { entries: 20, pin_bytes_max: 2_000 };
            options.hibernate_after_ticks = 30;
        });
        for store in 4..=STORES {
            trial.add_store(store, &[]);
        }
        trial.stores.values_mut().for_each(make_slow);
        Self {
            trial,
            prng: Prng::new(seed),
            clients: (0..KEYS).map(|_| Client::default()).collect(),
            counter: Counter::default(),
            reads: BTreeMap::new(),
            lease_reads: 0,
            next_id: 1_000,
            calm: false,
            known: BTreeMap::new(),
        }
    }

    fn any_store(&mut self) -> u64 {
        self.prng.below(STORES) + 1
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.prng.below(one_in) == 0
    }

    fn header(&mut self, store: u64, user_key: &str) -> Option<Header> {
        let readers = self.trial.store(store).core.readers();
        let region = readers.all().into_iter().find(|it| it.range.contains(user_key.as_bytes()))?;
        let deadline_nanos = self.trial.now + 2_000_000_000;
        let version = Some(region.epoch.version);
        Some(Header { region: region.id, version, deadline_nanos, ..Header::default() })
    }

    fn step(&mut self) {
        match self.prng.below(100) {
            0..40 => self.deliver(),
            40..75 => {
                let store = self.any_store();
                self.turn(store);
            }
            75..80 => self.trial.now += self.prng.below(30_000_000),
            80..92 => self.request(),
            92..96 => self.read(),
            96 => self.change(),
            _ if self.calm => {}
            97 if self.chance(6) => {
                let store = self.any_store();
                self.crash(store);
            }
            98 if self.chance(4) => {
                let store = self.any_store();
                self.trial.store(store).stalled ^= true;
            }
            99 if self.chance(6) => match self.chance(2) {
                true => {
                    let store = self.any_store();
                    self.trial.isolate(store);
                    let noticed = self.chance(2);
                    self.notify_others(store, noticed);
                }
                false => self.heal(),
            },
            _ => {}
        }
        self.collect();
    }

    /// Reports a lost store to the others, as the transport does.
    fn notify_others(&mut self, lost: u64, noticed: bool) {
        for other in (1..=STORES).filter(|other| *other != lost && noticed) {
            self.trial.store(other).core.step(Input::StoreUnreachable(StoreId(lost)));
            self.trial.store(lost).core.step(Input::StoreUnreachable(StoreId(other)));
        }
    }

    fn heal(&mut self) {
        self.trial.heal();
        for (one, other) in (1..=STORES).flat_map(|one| (1..=STORES).map(move |other| (one, other)))
        {
            if one != other {
                self.trial.store(one).core.step(Input::StoreReachable(StoreId(other)));
            }
        }
    }

    fn deliver(&mut self) {
        let waiting = self.trial.in_flight.len() as u64;
        let at = if self.chance(4) { self.prng.below(waiting) } else { 0 } as usize;
        let Some(message) = self.trial.in_flight.remove(at) else { return };
        let way = (message.from_store.0, message.to_store.0);
        let lost = !self.calm && self.chance(25);
        if lost || self.trial.cut.contains(&way) {
            return;
        }
        if !self.calm && self.chance(30) {
            self.trial.in_flight.push_back(message.clone());
        }
        if let Some(store) = self.trial.stores.get_mut(&way.1) {
            store.core.step(Input::Message(message));
        }
    }

    fn turn(&mut self, store: u64) {
        let stalled = std::mem::replace(&mut self.trial.store(store).stalled, true);
        self.trial.poll(store);
        let late = !self.calm && (stalled || self.chance(3));
        self.trial.store(store).stalled = late;
        self.trial.append(store);
        self.trial.store(store).stalled = stalled;
        if self.calm || self.chance(3) {
            self.trial.answer_lookups(store);
        }
        if self.chance(20) {
            self.known.entry(store).or_default().check(self.trial.store(store));
        }
        if self.chance(40) {
            self.trial.store(store).engine.maintain(0).unwrap();
        }
    }

    fn crash(&mut self, store: u64) {
        if self.chance(2) {
            // The batch in flight reached the disk, and the store was not notified.
            let store = self.trial.store(store);
            if let Some(append) = store.waiting.take() {
                store.engine.append(&append.batch).unwrap();
            }
        }
        self.reads.retain(|_, reading| reading.store != store);
        self.trial.restart(store);
        make_slow(self.trial.store(store));
    }

    fn request(&mut self) {
        let store = self.any_store();
        let key_number = self.prng.below(KEYS + 1);
        if key_number == KEYS {
            return self.count(store);
        }
        let name = format!("w{key_number}");
        let Some(header) = self.header(store, &name) else { return };
        let client = &mut self.clients[key_number as usize];
        if client.pending.is_some() {
            return;
        }
        client.next += 1;
        let value = client.next;
        let id = self.trial.request();
        client.pending = Some((id, value));
        let command = put(&name, &format!("{value:08}"));
        let write = Write { header, command, only_deletes: false };
        self.trial.store(store).core.step(Input::request(id, write));
    }

    fn count(&mut self, store: u64) {
        let Some(header) = self.header(store, "zcount") else { return };
        if self.counter.pending.is_some() {
            return;
        }
        let engine = self.trial.store(store).engine.clone();
        let found = engine.view().unwrap().get(&key("zcount")).unwrap().map(|pair| pair.value);
        let number = |value: &Bytes| std::str::from_utf8(value).unwrap().parse::<u64>().unwrap();
        let next = found.as_ref().map_or(0, number) + 1;
        let new = NewPair::Put { value: format!("{next}").into(), expires_at_s: 0 };
        let change = match self.chance(2) {
            true => Modification::Compare { expected: found, new },
            false => Modification::Increment { by: 1 },
        };
        let id = self.trial.request();
        self.counter.pending = Some(id);
        let modify = Modify { header, key: key("zcount"), change, session: None };
        self.trial.store(store).core.step(Input::request(id, modify));
    }

    fn read(&mut self) {
        let store = self.any_store();
        let key_number = self.prng.below(KEYS);
        let name = format!("w{key_number}");
        let Some(header) = self.header(store, &name) else { return };
        let at_least = self.clients[key_number as usize].acknowledged;
        let now = self.trial.now;
        let reader = self.trial.store(store).core.readers().get(header.region);
        if let Some(reader) = reader
            && reader.check(&header).is_ok()
            && let Some(permit) = reader.permit(&header, now)
        {
            let view = self.trial.store(store).engine.view().unwrap();
            if let Some(effects) = reader.effects(&permit, now) {
                reader.note_reads(1, !effects.is_empty());
                self.lease_reads += 1;
                let view = Overlaid::new(view, effects);
                let found = view.get(&key(&name)).unwrap();
                return self.check(key_number, at_least, found, "lease");
            }
        }
        let id = self.trial.request();
        let replica = self.chance(2);
        self.reads.insert(id, Reading { store, header, key: key_number, at_least });
        self.trial.store(store).core.step(Input::request(id, Read { header, replica }));
    }

    fn check(&self, key_number: u64, at_least: u64, found: Option<Pair>, how: &str) {
        let value = found.map_or(0, |p| std::str::from_utf8(&p.value).unwrap().parse().unwrap());
        let tried = self.clients[key_number as usize].next;
        assert!(
            (at_least..=tried).contains(&value),
            "{how} read of w{key_number} found {value}, acknowledged {at_least}, tried {tried}"
        );
    }

    fn collect(&mut self) {
        for (id, reply) in std::mem::take(&mut self.trial.replies) {
            if let Some(reading) = self.reads.remove(&id) {
                if matches!(reply, Reply::Done(Done::ReadReady { .. })) {
                    let store = self.trial.store(reading.store);
                    let view = store.engine.view().unwrap();
                    // The replica may have shrunk or been removed since.
                    let reader = store.core.readers().get(reading.header.region);
                    let Some(reader) = reader.filter(|it| it.check(&reading.header).is_ok()) else {
                        continue;
                    };
                    let effects = reader.effects(&reader.permit_confirmed(), 0).unwrap();
                    let view = Overlaid::new(view, effects);
                    let found = view.get(&key(&format!("w{}", reading.key))).unwrap();
                    self.check(reading.key, reading.at_least, found, "confirmed");
                }
                continue;
            }
            if self.counter.pending == Some(id) {
                self.counter.pending = None;
                match reply {
                    Reply::Done(Done::Modified {
                        result: Modified::Replaced { .. } | Modified::Updated { .. },
                        ..
                    }) => self.counter.succeeded += 1,
                    Reply::Unknown(_) => self.counter.unknown += 1,
                    _ => {}
                }
                continue;
            }
            for client in &mut self.clients {
                if client.pending.is_some_and(|(pending, _)| pending == id) {
                    let (_, value) = client.pending.take().unwrap();
                    if matches!(reply, Reply::Done(Done::Written { .. })) {
                        client.acknowledged = client.acknowledged.max(value);
                    }
                }
            }
        }
        // A crash loses the requests of its store: their clients give up.
        let forgotten = self.chance(300);
        if forgotten {
            self.clients.iter_mut().for_each(|client| client.pending = None);
            self.counter.unknown += u64::from(self.counter.pending.take().is_some());
        }
    }

    fn change(&mut self) {
        let store = self.any_store();
        let reports = self.trial.store(store).core.regions();
        let leaders: Vec<_> = reports.into_iter().filter(|it| it.role == Role::Leader).collect();
        let Some(report) = leaders.get(self.prng.below(leaders.len() as u64) as usize) else {
            return;
        };
        let region = &report.region;
        let target = self.any_store();
        let call = match (self.prng.below(6), region.peer_on(StoreId(target)).copied()) {
            (0 | 1, Some(peer)) => Admin::TransferLeader(peer.id),
            (2, _) => match self.split(region) {
                Some(call) => call,
                None => return,
            },
            (_, None) => self.alter(ChangeKind::Add, target, PeerRole::Learner),
            (3, Some(peer)) if peer.role == PeerRole::Learner => {
                Admin::ChangePeers(vec![PeerChange {
                    kind: ChangeKind::Add,
                    peer: Peer { role: PeerRole::Voter, ..peer },
                }])
            }
            (4, Some(peer)) if peer.role == PeerRole::Learner => {
                Admin::ChangePeers(vec![PeerChange { kind: ChangeKind::Remove, peer }])
            }
            (5, Some(peer)) if region.peers.len() > 3 => Admin::ChangePeers(vec![PeerChange {
                kind: ChangeKind::Add,
                peer: Peer { role: PeerRole::Learner, ..peer },
            }]),
            _ => return,
        };
        let id = region.id;
        self.trial.admin(store, id, call);
    }

    fn alter(&mut self, kind: ChangeKind, store: u64, role: PeerRole) -> Admin {
        self.next_id += 1;
        let peer = Peer { id: PeerId(self.next_id), store: StoreId(store), role };
        Admin::ChangePeers(vec![PeerChange { kind, peer }])
    }

    fn split(&mut self, region: &Region) -> Option<Admin> {
        let at = format!("w{}", self.prng.below(KEYS));
        let inside = region.range.contains(at.as_bytes()) && region.range.start != at.as_bytes();
        if !inside {
            return None;
        }
        self.next_id += 100;
        let first = self.next_id;
        self.next_id += 100;
        let peers = (1..=region.peers.len() as u64).map(|i| PeerId(first + i)).collect();
        let new = NewRegion { region: RegionId(first), peers };
        Some(Admin::Split { keys: vec![at.into()], new_ids: vec![new] })
    }

    /// Ends all faults and waits until every replica has everything.
    fn end_faults(&mut self) {
        self.calm = true;
        self.heal();
        for store in self.trial.stores.values_mut() {
            (store.stalled, store.holds_lookups) = (false, false);
        }
        for _ in 0..400 {
            self.trial.ticks(1);
            self.collect();
        }
        let mut regions: BTreeMap<RegionId, Vec<(u64, RegionReport)>> = BTreeMap::new();
        for (id, store) in &mut self.trial.stores {
            for report in store.core.regions() {
                regions.entry(report.region.id).or_default().push((*id, report));
            }
        }
        for (region, replicas) in &regions {
            let leads = |(_, it): &&(u64, RegionReport)| it.role == Role::Leader;
            let leader = replicas.iter().find(leads);
            let leaderless = || panic!("no store leads {region}: {}", described(replicas));
            let (_, leader) = leader.unwrap_or_else(leaderless);
            assert_eq!(
                replicas.len(),
                leader.region.peers.len(),
                "{region}: {}",
                described(replicas)
            );
            for (_, replica) in replicas {
                assert_eq!(replica.region, leader.region);
                assert_eq!(replica.applied, leader.applied, "{}", described(replicas));
            }
            let content = |store: u64| self.content(store, &leader.region);
            let expected = content(replicas[0].0);
            replicas.iter().for_each(|(store, _)| assert_eq!(content(*store), expected));
        }
        let covered: Vec<_> = regions.values().map(|it| it[0].1.region.range.clone()).collect();
        for key_number in 0..KEYS {
            let name = format!("w{key_number}");
            let owners = covered.iter().filter(|range| range.contains(name.as_bytes()));
            assert_eq!(owners.count(), 1, "{name}");
        }
        self.final_values(&regions);
    }

    fn content(&self, store: u64, region: &Region) -> Vec<Pair> {
        let view = self.trial.stores[&store].engine.view().unwrap();
        let scan = |range| view.scan(&ScanOptions::new(range, usize::MAX)).unwrap();
        region.engine_ranges().into_iter().flat_map(scan).collect()
    }

    fn final_values(&mut self, regions: &BTreeMap<RegionId, Vec<(u64, RegionReport)>>) {
        let holder = |name: &str| {
            let mut all = regions.values();
            all.find(|it| it[0].1.region.range.contains(name.as_bytes())).unwrap()[0].0
        };
        for key_number in 0..KEYS {
            let name = format!("w{key_number}");
            let view = self.trial.store(holder(&name)).engine.view().unwrap();
            let found = view.get(&key(&name)).unwrap();
            let at_least = self.clients[key_number as usize].acknowledged;
            self.check(key_number, at_least, found, "last");
        }
        let value = self.trial.value(holder("zcount"), "zcount");
        let counted = value.map_or(0, |value| value.parse::<u64>().unwrap());
        let Counter { succeeded, unknown, .. } = self.counter;
        assert!(
            (succeeded..=succeeded + unknown).contains(&counted),
            "counted {counted}, succeeded {succeeded}, unknown {unknown}"
        );
    }
}

/// Makes every get of a store a read of the device, and lookups wait.
fn make_slow(store: &mut Store) {
    store.engine.set_cold(true);
    store.holds_lookups = true;
}

fn described(replicas: &[(u64, RegionReport)]) -> String {
    let line = |(store, it): &(u64, RegionReport)| {
        let peers: Vec<_> = it.region.peers.iter().map(|p| (p.id.0, p.store.0, p.role)).collect();
        format!(
            "\nstore {store} peer {} {:?} term {} last {} committed {} applied {} truncated {} hibernating {} \
             leader {:?} {:?} {:?} members {peers:?}",
            it.peer.id,
            it.role,
            it.term,
            it.last,
            it.committed,
            it.applied,
            it.truncated,
            it.hibernating,
            it.leader.map(|leader| leader.id.0),
            it.region.epoch,
            it.region.phase,
        )
    };
    replicas.iter().map(line).collect()
}

fn run(seed: u64, steps: u64) -> (u64, u64) {
    let mut storm = Storm::new(seed);
    for _ in 0..steps {
        storm.step();
    }
    storm.end_faults();
    let acknowledged = storm.clients.iter().map(|client| client.acknowledged).sum();
    (acknowledged, storm.lease_reads)
}

#[test]
fn nothing_acknowledged_is_lost_and_no_read_is_stale() {
    let seeds = match std::env::var("STELE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => {
            let count = std::env::var("STELE_SEEDS").map_or(12, |count| count.parse().unwrap());
            (1..=count).collect::<Vec<u64>>()
        }
    };
    let mut totals = (0, 0);
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed, 30_000));
        let Ok((acknowledged, lease_reads)) = result else {
            panic!("replay: STELE_SEED={seed} cargo test -p stele-replica nothing_acknowledged");
        };
        totals = (totals.0 + acknowledged, totals.1 + lease_reads);
    }
    println!("{} writes acknowledged, {} reads by lease", totals.0, totals.1);
}
