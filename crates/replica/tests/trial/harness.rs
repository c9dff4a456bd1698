//! A few stores in one thread: messages arrive in order unless the way is cut, and each append
//! completes when the test allows it.

use crate::entry_recovery::Waiting;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use stele_conformance::ModelEngine;
use stele_replica::*;
use stele_storage::{EngineView, LogStore, ScanOptions, Snapshots, StateMachine};
use stele_types::*;

pub(crate) type Model = RaftStore<ModelEngine>;

pub(crate) const DATA: RegionId = RegionId(2);
pub(crate) const TICK: u64 = 50_000_000;
pub(crate) const HEARTBEAT_TICKS: u64 = 2;
pub(crate) const SECOND: u64 = 1_000_000_000;

pub(crate) struct Store {
    pub engine: Arc<ModelEngine>,
    pub core: Model,
    /// Appends wait for the test.
    pub stalled: bool,
    pub fills_up: bool,
    pub full: bool,
    /// Batches for which the device has no room.
    pub refuses: fn(&LogBatch) -> bool,
    pub accepted: u64,
    pub holds_lookups: bool,
    pub lookups: Vec<Lookup>,
    pub waiting: Option<Append>,
    pub events: Vec<Event>,
}

pub(crate) struct Trial {
    pub stores: BTreeMap<u64, Store>,
    pub now: u64,
    pub replies: BTreeMap<RequestId, Reply>,
    pub cut: BTreeSet<(u64, u64)>,
    pub lose: fn(&PeerMessage) -> bool,
    /// Change of each message that is not lost.
    pub alter: fn(&mut PeerMessage),
    pub snapshot_reports_fail: bool,
    pub loses_snapshots: bool,
    /// Snapshots are under way until this ends.
    pub holds_snapshots: bool,
    pub held: Vec<(u64, SendSnapshot<ModelEngine>)>,
    /// Snapshots carry no record of merges, as those of earlier versions.
    pub sends_no_merges: bool,
    pub recovering: BTreeMap<u64, Waiting>,
    pub in_flight: VecDeque<PeerMessage>,
    pub requests: u64,
    pub incarnations: u64,
    pub options: fn(&mut Options),
}

pub(crate) fn peer(id: u64, store: u64) -> Peer {
    Peer { id: PeerId(id), store: StoreId(store), role: PeerRole::Voter }
}

pub(crate) fn key(text: &str) -> Bytes {
    ColumnFamily::Default.engine_key(text.as_bytes())
}

pub(crate) fn put(name: &str, value: &str) -> Bytes {
    let mut builder = CommandBuilder::new();
    builder.put(&key(name), value.as_bytes(), 0).unwrap();
    builder.build().bytes().clone()
}

pub(crate) fn snapshot_ranges(region: &Region) -> Vec<KeyRange> {
    let descriptor = KeyRange::of_key(keyspace::region_key(region.id));
    std::iter::once(descriptor).chain(region.engine_ranges()).collect()
}

/// Writes a pair of a store's own through its journal, region 0, as a core does before it is opened.
pub(crate) fn write_own_pair(engine: &ModelEngine, (key, value): (Bytes, Bytes)) {
    let (region, term) = (RegionId(0), Term(1));
    let last = engine.progress(region).map_or(LogIndex(0), |it| it.persisted.0);
    let mut builder = CommandBuilder::new();
    builder.put(&key, &value, 0).unwrap();
    let payload = builder.build().bytes().clone();
    let (index, is_command) = (last.next(), true);
    let entry = EntryRecord { region, term, index, is_command, payload: payload.clone() };
    let state = HardState { term, vote: 0, commit: index };
    let records = vec![Record::Entry(entry), Record::HardState(region, state)];
    engine.append(&LogBatch { records }).unwrap();
    engine.apply(region, &[CommittedEntry { term, index, is_command, payload }]).unwrap();
}

/// Returns regions 3 and 4 with neighbouring ranges and replicas on stores 1 to 3.
pub(crate) fn neighbours() -> [Region; 2] {
    let region = |id: u64, start: &'static str, end: &'static str| Region {
        id: RegionId(id),
        range: KeyRange::new(start, end),
        epoch: RegionEpoch { conf_version: 1, version: 2 },
        peers: (1..=3).map(|store| peer(id * 100 + store, store)).collect(),
        ..Region::default()
    };
    [region(3, "", "m"), region(4, "m", "")]
}

/// Writes more on store 1 than the log keeps for an unreachable follower.
pub(crate) fn outgrow_log(trial: &mut Trial) {
    for i in 0..200 {
        trial.write(1, put(&format!("a{i}"), &"v".repeat(100)));
        trial.settle();
    }
    trial.store(1).engine.maintain(0).unwrap();
    trial.ticks(2);
    trial.write(1, put("b", "1"));
    trial.ticks(2);
}

impl Trial {
    /// Returns stores 1 to `count` with one data region and a voter on each; peer ids are 100 +
    /// store.
    pub(crate) fn new(count: u64) -> Self {
        Self::with(count, |_| {})
    }

    /// Returns stores 1 to 3, of which store 1 leads and the log no longer holds what the isolated
    /// store 3 lacks.
    pub(crate) fn with_store_3_behind() -> Self {
        let mut trial = Self::with(3, |options| {
            options.log_kept = LogKept { entries: 10, pin_bytes_max: 1_000 };
        });
        trial.lead(DATA, 1);
        trial.isolate(3);
        outgrow_log(&mut trial);
        trial
    }

    pub(crate) fn with(count: u64, options: fn(&mut Options)) -> Self {
        let mut trial = Self {
            stores: BTreeMap::new(),
            now: 1_000_000_000,
            replies: BTreeMap::new(),
            cut: BTreeSet::new(),
            lose: |_| false,
            alter: |_| {},
            snapshot_reports_fail: false,
            loses_snapshots: false,
            holds_snapshots: false,
            held: Vec::new(),
            sends_no_merges: false,
            recovering: BTreeMap::new(),
            in_flight: VecDeque::new(),
            requests: 0,
            incarnations: 0,
            options,
        };
        let region = Region {
            id: DATA,
            epoch: RegionEpoch { conf_version: 1, version: 1 },
            peers: (1..=count).map(|store| peer(100 + store, store)).collect(),
            ..Region::default()
        };
        for store in 1..=count {
            trial.add_store(store, std::slice::from_ref(&region));
        }
        trial
    }

    pub(crate) fn add_store(&mut self, id: u64, regions: &[Region]) {
        let engine = ModelEngine::new();
        let ident = StoreIdent::new(ClusterId(7), StoreId(id));
        Model::bootstrap(&engine, &ident, regions).unwrap();
        self.open(id, Arc::new(engine));
    }

    pub(crate) fn open(&mut self, id: u64, engine: Arc<ModelEngine>) {
        self.incarnations += 1;
        let mut options = Options::new(StoreId(id), ClusterId(7), self.incarnations, 42);
        (self.options)(&mut options);
        let core = Model::open(engine.clone(), options, self.clock()).unwrap();
        let store = Store {
            engine,
            core,
            stalled: false,
            fills_up: false,
            full: false,
            refuses: |_| false,
            accepted: 0,
            holds_lookups: false,
            lookups: Vec::new(),
            waiting: None,
            events: Vec::new(),
        };
        self.stores.insert(id, store);
    }

    /// Crashes a store: appended records are kept, the state in memory is lost.
    pub(crate) fn restart(&mut self, id: u64) {
        let store = self.stores.remove(&id).unwrap();
        let engine = Arc::new(store.engine.crash());
        drop(store);
        self.open(id, engine);
    }

    pub(crate) fn clock(&self) -> Now {
        Now { monotonic_nanos: self.now, unix_millis: self.now / 1_000_000 }
    }

    pub(crate) fn store(&mut self, id: u64) -> &mut Store {
        self.stores.get_mut(&id).unwrap()
    }

    pub(crate) fn poll(&mut self, id: u64) -> bool {
        let now = self.clock();
        let Some(store) = self.stores.get_mut(&id) else { return false };
        let outputs = store.core.poll(now).unwrap();
        let busy = !outputs.messages.is_empty() || outputs.append.is_some();
        if outputs.append.is_some() {
            store.waiting = outputs.append;
        }
        store.events.extend(outputs.events);
        store.lookups.extend(outputs.lookups);
        self.replies.extend(outputs.replies);
        self.in_flight.extend(outputs.messages);
        let snapshots: Vec<_> = outputs.snapshots;
        let appended = self.append(id);
        let sent = !snapshots.is_empty();
        let found = !self.store(id).holds_lookups && self.answer_lookups(id);
        for snapshot in snapshots {
            match self.holds_snapshots {
                true => self.held.push((id, snapshot)),
                false => self.carry(id, snapshot),
            }
        }
        busy || appended || sent || found
    }

    /// Answers the lookups of a store; returns whether there were any.
    pub(crate) fn answer_lookups(&mut self, id: u64) -> bool {
        let store = self.store(id);
        let lookups = std::mem::take(&mut store.lookups);
        let any = !lookups.is_empty();
        for lookup in lookups {
            let result = store.engine.view().unwrap().get(&lookup.key);
            store.core.step(Input::Found { lookup, result });
        }
        any
    }

    pub(crate) fn append(&mut self, id: u64) -> bool {
        let store = self.store(id);
        if store.stalled {
            return false;
        }
        let Some(append) = store.waiting.take() else { return false };
        let result = match store.full || (store.refuses)(&append.batch) {
            true => Err(Error::NoSpace("full".into())),
            false => store.engine.append(&append.batch),
        };
        store.core.step(Input::Appended { ticket: append.ticket, result });
        true
    }

    pub(crate) fn carry(&mut self, from: u64, snapshot: SendSnapshot<ModelEngine>) {
        let SendSnapshot { mut header, to_store, view, ranges } = snapshot;
        if self.sends_no_merges {
            header.merges = None;
        }
        let (region, to) = (header.region.id, header.to.id);
        let ok = self.carry_to(from, &header, to_store.0, &view, &ranges);
        let ok = ok && !self.snapshot_reports_fail;
        self.store(from).core.step(Input::SnapshotSent { region, to, ok });
    }

    pub(crate) fn carry_to(
        &mut self,
        from: u64,
        header: &SnapshotHeader,
        to: u64,
        view: &stele_conformance::ModelView,
        ranges: &[KeyRange],
    ) -> bool {
        let is_lost = self.cut.contains(&(from, to)) || self.loses_snapshots;
        if is_lost || !self.stores.contains_key(&to) {
            return false;
        }
        let id = self.request();
        let now = self.clock();
        let receiver = self.store(to);
        receiver.core.step(Input::request(id, Request::SnapshotOffered(header.clone())));
        let outputs = receiver.core.poll(now).unwrap();
        if outputs.append.is_some() {
            receiver.waiting = outputs.append;
        }
        receiver.events.extend(outputs.events);
        self.in_flight.extend(outputs.messages);
        self.replies.extend(outputs.replies);
        let Some(Reply::Done(Done::SnapshotAccepted { ranges: wanted })) = self.replies.remove(&id)
        else {
            return false;
        };
        assert_eq!(wanted, ranges);
        let receiver = self.store(to);
        receiver.accepted += 1;
        let mut ingest = receiver.engine.begin_ingest(wanted).unwrap();
        for range in ranges {
            // Unreadable pairs are not sent.
            let Ok(pairs) = view.scan(&ScanOptions::new(range.clone(), usize::MAX)) else {
                return false;
            };
            receiver.engine.receive(&mut ingest, pairs).unwrap();
        }
        if std::mem::take(&mut receiver.fills_up) {
            receiver.engine.set_full(true);
        }
        receiver.core.step(Input::SnapshotReceived { header: header.clone(), ingest });
        true
    }

    /// Runs everything that needs no time.
    pub(crate) fn settle(&mut self) {
        for _ in 0..500 {
            let ids: Vec<u64> = self.stores.keys().copied().collect();
            let mut busy = false;
            for id in ids {
                busy |= self.poll(id);
            }
            busy |= self.poll_recovering();
            while let Some(mut message) = self.in_flight.pop_front() {
                let way = (message.from_store.0, message.to_store.0);
                if self.cut.contains(&way) || (self.lose)(&message) {
                    continue;
                }
                (self.alter)(&mut message);
                let mut frame = Vec::new();
                let mut payloads = Vec::new();
                wire::encode(&message, &mut frame, &mut payloads);
                payloads.iter().for_each(|payload| frame.extend_from_slice(payload));
                let decoded = wire::decode(frame.into()).unwrap();
                assert_eq!(decoded, message);
                if let Some(store) = self.stores.get_mut(&way.1) {
                    store.core.step(Input::Message(decoded));
                    busy = true;
                } else if let Some(waiting) = self.recovering.get_mut(&way.1) {
                    self.in_flight.extend(waiting.recovery.receive(decoded).unwrap());
                    busy = true;
                }
            }
            if !busy {
                return;
            }
        }
        panic!("the stores stay busy");
    }

    pub(crate) fn ticks(&mut self, count: u64) {
        for _ in 0..count {
            self.now += TICK;
            self.settle();
        }
    }

    /// Lets a heartbeat send the commit index to followers.
    pub(crate) fn send_heartbeats(&mut self) {
        self.ticks(HEARTBEAT_TICKS);
    }

    /// Advances time without polling a store.
    pub(crate) fn advance(&mut self, nanos: u64) {
        self.now += nanos;
    }

    pub(crate) fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    pub(crate) fn leader(&mut self, region: RegionId) -> Option<u64> {
        let mut leaders = Vec::new();
        for (id, store) in &mut self.stores {
            let report = store.core.region(region);
            if let Some(report) = report.filter(|report| report.role == Role::Leader) {
                leaders.push((report.term, *id));
            }
        }
        leaders.sort();
        leaders.last().map(|(_, id)| *id)
    }

    /// Ticks until the region has a leader that has applied its first entry; returns its store.
    pub(crate) fn elect(&mut self, region: RegionId) -> u64 {
        for _ in 0..200 {
            self.ticks(1);
            let Some(leader) = self.leader(region) else { continue };
            let report = self.store(leader).core.region(region).unwrap();
            let own = self.store(leader).engine.term(region, report.applied);
            if own == Some(report.term) {
                return leader;
            }
        }
        panic!("region {region} elects no leader");
    }

    pub(crate) fn lead(&mut self, region: RegionId, store: u64) {
        self.elect(region);
        for _ in 0..10 {
            if self.leader(region) == Some(store) {
                self.ticks(2);
                return;
            }
            let leader = self.elect(region);
            let report = self.store(leader).core.region(region).unwrap();
            let to = report.region.peer_on(StoreId(store)).unwrap().id;
            self.admin(leader, region, Admin::TransferLeader(to));
            self.ticks(3);
        }
        panic!("store {store} does not lead");
    }

    pub(crate) fn header(&self, region: RegionId) -> Header {
        Header { region, ..Header::default() }
    }

    pub(crate) fn write(&mut self, store: u64, command: Bytes) -> RequestId {
        let id = self.request();
        let header = self.header(DATA);
        self.store(store)
            .core
            .step(Input::request(id, Write { header, command, only_deletes: false }));
        id
    }

    pub(crate) fn delete(&mut self, store: u64, name: &str) -> RequestId {
        let id = self.request();
        let mut builder = CommandBuilder::new();
        builder.delete(&key(name)).unwrap();
        let command = builder.build().bytes().clone();
        let header = self.header(DATA);
        self.store(store)
            .core
            .step(Input::request(id, Write { header, command, only_deletes: true }));
        id
    }

    pub(crate) fn modify(&mut self, store: u64, name: &str, change: Modification) -> RequestId {
        let id = self.request();
        let modify = Modify { header: self.header(DATA), key: key(name), change, session: None };
        self.store(store).core.step(Input::request(id, modify));
        id
    }

    pub(crate) fn cas(
        &mut self,
        store: u64,
        name: &str,
        expected: Option<&str>,
        new: &str,
    ) -> RequestId {
        let expected = expected.map(|value| Bytes::copy_from_slice(value.as_bytes()));
        let value = Bytes::copy_from_slice(new.as_bytes());
        let new = NewPair::Put { value, expires_at_s: 0 };
        self.modify(store, name, Modification::Compare { expected, new })
    }

    pub(crate) fn modified(&self, id: RequestId) -> Option<&Modified> {
        match self.reply(id) {
            Some(Reply::Done(Done::Modified { result, .. })) => Some(result),
            _ => None,
        }
    }

    pub(crate) fn read(&mut self, store: u64, replica: bool) -> RequestId {
        let id = self.request();
        let header = self.header(DATA);
        self.store(store).core.step(Input::request(id, Read { header, replica }));
        id
    }

    pub(crate) fn admin(&mut self, store: u64, region: RegionId, call: Admin) -> RequestId {
        let id = self.request();
        let header = self.header(region);
        self.store(store).core.step(Input::request(id, AdminCall { header, call }));
        id
    }

    pub(crate) fn reply(&self, id: RequestId) -> Option<&Reply> {
        self.replies.get(&id)
    }

    pub(crate) fn is_written(&self, id: RequestId) -> bool {
        matches!(self.reply(id), Some(Reply::Done(Done::Written { .. })))
    }

    pub(crate) fn unknown(&self, id: RequestId) -> Option<Unknown> {
        match self.reply(id) {
            Some(Reply::Unknown(reason)) => Some(*reason),
            _ => None,
        }
    }

    pub(crate) fn busy(&self, id: RequestId) -> Option<&Busy> {
        match self.reply(id) {
            Some(Reply::Busy(busy)) => Some(busy),
            _ => None,
        }
    }

    pub(crate) fn refusal(&self, id: RequestId) -> Option<&Refusal> {
        match self.reply(id) {
            Some(Reply::Refused(refusal)) => Some(refusal),
            _ => None,
        }
    }

    pub(crate) fn value(&mut self, store: u64, name: &str) -> Option<String> {
        let pair = self.store(store).engine.view().unwrap().get(&key(name)).unwrap();
        pair.map(|pair| String::from_utf8(pair.value.to_vec()).unwrap())
    }

    pub(crate) fn report(&mut self, store: u64, region: RegionId) -> RegionReport {
        self.store(store).core.region(region).unwrap()
    }

    /// Returns whether all regions of a store hibernate and its next poll is due for a probe only.
    pub(crate) fn is_hibernating(&mut self, store: u64) -> bool {
        let now = self.now;
        let core = &mut self.store(store).core;
        let hibernate = core.regions().iter().all(|it| it.hibernating);
        hibernate && core.next_tick_nanos().is_some_and(|at| (now..=now + SECOND).contains(&at))
    }

    pub(crate) fn isolate(&mut self, store: u64) {
        for other in self.stores.keys().copied().filter(|other| *other != store) {
            self.cut.insert((store, other));
            self.cut.insert((other, store));
        }
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }
}
