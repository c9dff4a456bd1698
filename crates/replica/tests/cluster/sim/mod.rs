//! Several stores in one thread, with a network, disks and clocks that fail by seed. Equal seeds
//! give equal histories.

mod backend;
mod network;
mod node;

pub(crate) use backend::{Backend, ModelBackend, SteleBackend};
pub(crate) use network::Network;
pub(crate) use node::{Carried, NoRoom, Node};

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stele_replica::*;
use stele_storage::{EngineView, LogStore, ScanOptions, Snapshots, StateMachine, StorageEngine};
use stele_types::*;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MS;
pub(crate) const CLUSTER: ClusterId = ClusterId(7);
pub(crate) const DATA: RegionId = RegionId(2);
const EVENTS_KEPT: usize = 40;

enum Happening<E: StorageEngine> {
    Message(Bytes),
    /// End of an append; `done` is `None` if the append runs only now.
    Appended {
        ticket: Ticket,
        batch: Arc<LogBatch>,
        done: Option<Result<()>>,
    },
    SnapshotOffered {
        header: SnapshotHeader,
        carried: Carried,
    },
    SnapshotReceived {
        header: SnapshotHeader,
        ingest: E::Ingest,
    },
    SnapshotSent {
        region: RegionId,
        to: PeerId,
        ok: bool,
    },
    Lookup(Lookup),
    Checkpoint,
}

/// Events by time and number, with their store and its incarnation.
type Agenda<E> = BTreeMap<(u64, u64), (u64, u64, Happening<E>)>;

pub(crate) struct Sim<B: Backend> {
    pub seed: u64,
    pub now: u64,
    pub prng: Prng,
    pub net: Network,
    pub lost: fn(&PeerMessage) -> bool,
    pub nodes: BTreeMap<u64, Node<B::Engine>>,
    pub backend: B,
    pub options: fn(&mut Options),
    pub replies: BTreeMap<RequestId, Reply>,
    pub leaders_by_term: BTreeMap<(RegionId, Term), u64>,
    pub events: Vec<String>,
    agenda: Agenda<B::Engine>,
    happenings: u64,
    requests: u64,
    incarnations: u64,
    next_id: u64,
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

/// Returns the seed to run with, from `STELE_SEED` or the given one, and prints how to replay it.
pub(crate) fn seed(test: &str, usual: u64) -> u64 {
    let chosen = std::env::var("STELE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = chosen.unwrap_or(usual);
    println!("STELE_SEED={seed} cargo test -p stele-replica --test cluster {test}");
    seed
}

impl Sim<ModelBackend> {
    /// Returns `count` stores on model engines, all voters of the one data region.
    pub(crate) fn new(count: u64, seed: u64) -> Self {
        Self::over(ModelBackend, count, seed)
    }
}

impl<B: Backend> Sim<B> {
    /// Returns `count` stores, all voters of the one data region; peer ids are 100 + store.
    pub(crate) fn over(backend: B, count: u64, seed: u64) -> Self {
        let stores: Vec<u64> = (1..=count).collect();
        Self::with(backend, count, &stores, seed, |_| {})
    }

    /// Returns `count` stores of which `members` are voters of the data region; the others are
    /// empty.
    pub(crate) fn with(
        backend: B,
        count: u64,
        members: &[u64],
        seed: u64,
        options: fn(&mut Options),
    ) -> Self {
        let mut sim = Self {
            seed,
            now: SECOND,
            prng: Prng::new(seed),
            net: Network::default(),
            lost: |_| false,
            nodes: BTreeMap::new(),
            backend,
            options,
            replies: BTreeMap::new(),
            leaders_by_term: BTreeMap::new(),
            events: Vec::new(),
            agenda: BTreeMap::new(),
            happenings: 0,
            requests: 0,
            incarnations: 0,
            next_id: 1_000,
        };
        let region = Region {
            id: DATA,
            epoch: RegionEpoch { conf_version: 1, version: 1 },
            peers: members.iter().map(|store| peer(100 + store, *store)).collect(),
            ..Region::default()
        };
        for store in 1..=count {
            let regions = if members.contains(&store) { vec![region.clone()] } else { vec![] };
            sim.add_store(store, &regions);
        }
        sim
    }

    pub(crate) fn add_store(&mut self, id: u64, regions: &[Region]) {
        let engine = self.backend.create(id);
        let ident = StoreIdent::new(CLUSTER, StoreId(id));
        RaftStore::bootstrap(&*engine, &ident, regions).unwrap();
        self.nodes.insert(id, Node::new(id, engine));
        self.start(id);
    }

    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(crate) fn start(&mut self, id: u64) {
        self.incarnations += 1;
        let mut options =
            Options::new(StoreId(id), CLUSTER, self.incarnations, self.seed ^ self.incarnations);
        (self.options)(&mut options);
        let node = self.nodes.get_mut(&id).unwrap();
        node.incarnation = self.incarnations;
        let now = node.now(self.now);
        node.core = Some(RaftStore::open(node.engine.clone(), options, now).unwrap());
        self.note(format!("store {id} starts"));
    }

    /// Crashes a store: it is down and loses its unsynced state.
    pub(crate) fn crash(&mut self, id: u64) {
        let seed = self.prng.draw();
        let node = self.nodes.get_mut(&id).unwrap();
        node.core = None;
        node.paused_until = 0;
        let mut broken = Vec::new();
        self.agenda.retain(|_, (to, _, happening)| {
            if let Happening::SnapshotOffered { header, .. }
            | Happening::SnapshotReceived { header, .. } = happening
                && *to == id
            {
                broken.push((header.from.store.0, header.region.id, header.to.id));
            }
            *to != id || matches!(happening, Happening::Message(_))
        });
        // Their connections break, and senders notice it.
        for (from, region, to) in broken {
            self.answer_sender((id, from), region, to, false);
        }
        let node = self.nodes.get_mut(&id).unwrap();
        node.engine = self.backend.crash(id, node.engine.clone(), seed);
        self.note(format!("store {id} crashes"));
    }

    pub(crate) fn restart(&mut self, id: u64) {
        self.crash(id);
        self.start(id);
    }

    pub(crate) fn is_up(&self, id: u64) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.core.is_some())
    }

    pub(crate) fn node(&mut self, id: u64) -> &mut Node<B::Engine> {
        self.nodes.get_mut(&id).unwrap()
    }

    pub(crate) fn local(&self, id: u64) -> u64 {
        self.nodes.get(&id).unwrap().local(self.now)
    }

    pub(crate) fn note(&mut self, event: String) {
        if self.events.len() >= EVENTS_KEPT {
            self.events.remove(0);
        }
        self.events.push(format!("{:>9.3} ms {event}", self.now as f64 / MS as f64));
    }

    #[track_caller]
    pub(crate) fn fail(&mut self, what: &str) -> ! {
        let events = std::mem::take(&mut self.events).join("\n  ");
        let mut regions = String::new();
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            for report in self.reports(id) {
                regions += &format!("\n  store {id} {}", line_of(&report));
            }
        }
        panic!("{what}\nseed {}\nevents:\n  {events}\nregions:{regions}", self.seed);
    }

    fn schedule(&mut self, after: u64, to: u64, happening: Happening<B::Engine>) {
        let incarnation = self.nodes.get(&to).map_or(0, |node| node.incarnation);
        self.happenings += 1;
        self.agenda.insert((self.now + after, self.happenings), (to, incarnation, happening));
    }

    pub(crate) fn run(&mut self, nanos: u64) {
        let until = self.now + nanos;
        while self.turn(until) {}
        self.now = until;
    }

    /// Runs until a condition holds; fails if it does not within `nanos`.
    #[track_caller]
    pub(crate) fn run_until(
        &mut self,
        nanos: u64,
        what: &str,
        mut holds: impl FnMut(&mut Self) -> bool,
    ) {
        let until = self.now + nanos;
        while !holds(self) {
            if !self.turn(until) {
                self.fail(&format!("not within {} ms: {what}", nanos / MS));
            }
        }
    }

    /// Runs the next event, if it is due before `until`.
    fn turn(&mut self, until: u64) -> bool {
        let happening = self.agenda.keys().next().map(|(at, _)| *at);
        let ticks = self.nodes.values().filter_map(|node| {
            let next = node.core.as_ref()?.next_tick_nanos()?;
            Some((node.global(next).max(self.now).max(node.paused_until), node.id))
        });
        let tick = ticks.min();
        let happens_first = happening.is_some_and(|at| tick.is_none_or(|(tick, _)| at <= tick));
        let Some(at) = happening.into_iter().chain(tick.map(|(at, _)| at)).min() else {
            return false;
        };
        if at > until {
            return false;
        }
        self.now = self.now.max(at);
        match (happens_first, tick) {
            (false, Some((_, store))) => self.poll(store),
            _ => self.happen(),
        }
        true
    }

    fn happen(&mut self) {
        let Some(((_, number), (to, incarnation, happening))) = self.agenda.pop_first() else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&to) else { return };
        if node.core.is_none() {
            return;
        }
        if node.paused_until > self.now {
            let at = node.paused_until;
            self.agenda.insert((at, number), (to, incarnation, happening));
            return;
        }
        let is_message = matches!(happening, Happening::Message(_));
        if !is_message && incarnation != node.incarnation {
            return;
        }
        self.begin_turn(to);
        self.carry_out(to, happening);
        self.poll(to);
    }

    fn begin_turn(&mut self, id: u64) {
        let global = self.now;
        let node = self.node(id);
        let now = node.now(global);
        node.core().begin_turn(now);
    }

    fn carry_out(&mut self, to: u64, happening: Happening<B::Engine>) {
        let engine = self.node(to).engine.clone();
        match happening {
            Happening::Message(frame) => {
                let message = wire::decode(frame).unwrap();
                self.node(to).core().step(Input::Message(message));
            }
            Happening::Appended { ticket, batch, done } => {
                if self.node(to).stalled {
                    return self.schedule(MS, to, Happening::Appended { ticket, batch, done });
                }
                let result = done.unwrap_or_else(|| self.node(to).append(&batch));
                self.node(to).core().step(Input::Appended { ticket, result });
            }
            Happening::SnapshotOffered { header, carried } => self.offered(to, header, carried),
            Happening::SnapshotReceived { header, ingest } => {
                let (from, region) = (header.from.store.0, header.region.id);
                let peer = header.to.id;
                self.node(to).core().step(Input::SnapshotReceived { header, ingest });
                self.answer_sender((to, from), region, peer, true);
            }
            Happening::SnapshotSent { region, to: peer, ok } => {
                self.node(to).core().step(Input::SnapshotSent { region, to: peer, ok });
            }
            Happening::Lookup(lookup) => {
                let result = engine.view().unwrap().get(&lookup.key);
                self.node(to).core().step(Input::Found { lookup, result });
            }
            Happening::Checkpoint => engine.checkpoint().unwrap(),
        }
    }

    /// Reports the result of a snapshot to its sender, if that way is open.
    fn answer_sender(&mut self, way: (u64, u64), region: RegionId, to: PeerId, ok: bool) {
        let ok = ok && self.net.is_open(way);
        let delay = self.net.delay(&mut self.prng);
        self.schedule(delay, way.1, Happening::SnapshotSent { region, to, ok });
    }

    fn offered(&mut self, to: u64, header: SnapshotHeader, carried: Carried) {
        let id = self.request();
        let way = (to, header.from.store.0);
        self.node(to).core().step(Input::request(id, Request::SnapshotOffered(header.clone())));
        self.poll(to);
        let accepted = match self.replies.remove(&id) {
            Some(Reply::Done(Done::SnapshotAccepted { ranges })) => ranges == carried.ranges,
            Some(Reply::Refused(_) | Reply::Busy(_)) => false,
            other => self.fail(&format!("an offered snapshot got the reply {other:?}")),
        };
        let (region, peer) = (header.region.id, header.to.id);
        if !accepted || !self.net.is_open((way.1, way.0)) {
            return self.answer_sender(way, region, peer, false);
        }
        let engine = self.node(to).engine.clone();
        let mut ingest = engine.begin_ingest(carried.ranges).unwrap();
        for pairs in carried.pairs {
            engine.receive(&mut ingest, pairs).unwrap();
        }
        let delay = 5 * self.net.delay(&mut self.prng);
        self.schedule(delay, to, Happening::SnapshotReceived { header, ingest });
    }

    /// Makes a checkpoint on every store, so that it may truncate its log.
    pub(crate) fn checkpoint(&self) {
        for node in self.nodes.values() {
            node.engine.checkpoint().unwrap();
        }
    }

    pub(crate) fn poll(&mut self, id: u64) {
        let global = self.now;
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let now = node.now(global);
        let Some(core) = &mut node.core else { return };
        if node.paused_until > global {
            return;
        }
        let outputs = match core.poll(now) {
            Ok(outputs) => outputs,
            Err(error) => self.fail(&format!("store {id} stops: {error}")),
        };
        for message in outputs.messages {
            self.send(&message);
        }
        if let Some(Append { ticket, batch }) = outputs.append {
            self.append(id, ticket, batch);
        }
        self.replies.extend(outputs.replies);
        for snapshot in outputs.snapshots {
            self.send_snapshot(id, snapshot);
        }
        for lookup in outputs.lookups {
            let delay = self.prng.below(5 * MS);
            self.schedule(delay, id, Happening::Lookup(lookup));
        }
        for event in outputs.events {
            self.see(id, event);
        }
        if outputs.wants_checkpoint {
            let delay = self.prng.below(200 * MS);
            self.schedule(delay, id, Happening::Checkpoint);
        }
    }

    fn send(&mut self, message: &PeerMessage) {
        let way = (message.from_store.0, message.to_store.0);
        if (self.lost)(message) {
            return;
        }
        let (mut frame, mut payloads) = (Vec::new(), Vec::new());
        wire::encode(message, &mut frame, &mut payloads);
        payloads.iter().for_each(|payload| frame.extend_from_slice(payload));
        let frame = Bytes::from(frame);
        for delay in self.net.deliveries(&mut self.prng, way) {
            self.schedule(delay, way.1, Happening::Message(frame.clone()));
        }
    }

    /// Sets whether the device of a store counts as nearly full, and what it has no room for.
    pub(crate) fn set_full(&mut self, store: u64, is_full: bool, no_room: NoRoom) {
        let Some(node) = self.nodes.get_mut(&store) else { return };
        node.no_room = no_room;
        self.backend.set_full(&node.engine, is_full);
    }

    /// The batch is durable some time before the store learns it.
    fn append(&mut self, id: u64, ticket: Ticket, batch: Arc<LogBatch>) {
        let (least, most) = self.node(id).append_nanos;
        let delay = least + self.prng.below(most - least + 1);
        let node = self.node(id);
        let early = !node.stalled && delay.is_multiple_of(4);
        let done = early.then(|| node.append(&batch));
        self.schedule(delay, id, Happening::Appended { ticket, batch, done });
    }

    fn send_snapshot(&mut self, from: u64, snapshot: SendSnapshot<B::Engine>) {
        let SendSnapshot { header, to_store, view, ranges } = snapshot;
        let scan =
            |range: &KeyRange| view.scan(&ScanOptions::new(range.clone(), usize::MAX)).unwrap();
        let pairs = ranges.iter().map(scan).collect();
        let mut head = Vec::new();
        wire::encode_snapshot(&header, &mut head);
        let header = wire::decode_snapshot(&head).unwrap();
        let to = to_store.0;
        self.note(format!("store {from} sends {} at {:?} to {to}", header.region.id, header.at));
        if !self.net.is_open((from, to)) || !self.is_up(to) {
            return self.answer_sender((to, from), header.region.id, header.to.id, false);
        }
        let delay = self.net.delay(&mut self.prng);
        let carried = Carried { ranges, pairs };
        self.schedule(delay, to, Happening::SnapshotOffered { header, carried });
    }

    fn see(&mut self, store: u64, event: Event) {
        if let Event::BecameLeader { region, term } = event {
            let other = self.leaders_by_term.insert((region, term), store);
            if other.is_some_and(|other| other != store) {
                self.fail(&format!("two leaders of region {region} in term {term}"));
            }
        }
        let event = format!("{event:?}");
        let end = event.char_indices().nth(150).map_or(event.len(), |(at, _)| at);
        self.note(format!("store {store}: {}", &event[..end]));
    }

    pub(crate) fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    pub(crate) fn step(&mut self, store: u64, input: Input<B::Engine>) {
        if self.is_up(store) {
            self.begin_turn(store);
            self.node(store).core().step(input);
            self.poll(store);
        }
    }

    pub(crate) fn write(&mut self, store: u64, region: RegionId, command: Bytes) -> RequestId {
        let id = self.request();
        let header = Header { region, ..Header::default() };
        self.step(store, Input::request(id, Write { header, command, only_deletes: false }));
        id
    }

    pub(crate) fn admin(&mut self, store: u64, region: RegionId, call: Admin) -> RequestId {
        let id = self.request();
        let header = Header { region, ..Header::default() };
        self.step(store, Input::request(id, AdminCall { header, call }));
        id
    }

    pub(crate) fn is_written(&self, id: RequestId) -> bool {
        matches!(self.replies.get(&id), Some(Reply::Done(Done::Written { .. })))
    }

    /// Returns the regions of a store; none while it is down.
    pub(crate) fn reports(&mut self, store: u64) -> Vec<RegionReport> {
        let node = self.nodes.get_mut(&store).unwrap();
        node.core.as_mut().map(|core| core.regions()).unwrap_or_default()
    }

    pub(crate) fn report(&mut self, store: u64, region: RegionId) -> Option<RegionReport> {
        self.reports(store).into_iter().find(|report| report.region.id == region)
    }

    pub(crate) fn leader(&mut self, region: RegionId) -> Option<u64> {
        let stores: Vec<u64> = self.nodes.keys().copied().collect();
        let mut found = None;
        for store in stores {
            let report = self.report(store, region);
            if let Some(report) = report.filter(|report| report.role == Role::Leader) {
                found = found.max(Some((report.term, store)));
            }
        }
        found.map(|(_, store)| store)
    }

    /// Waits for a leader that serves; returns its store.
    #[track_caller]
    pub(crate) fn elect(&mut self, region: RegionId) -> u64 {
        self.elect_within(region, 20 * SECOND)
    }

    #[track_caller]
    pub(crate) fn elect_within(&mut self, region: RegionId, nanos: u64) -> u64 {
        let what = format!("a leader of region {region}");
        self.run_until(nanos, &what, |sim| sim.serving(region).is_some());
        self.serving(region).unwrap()
    }

    /// Returns the store with a leader that has applied its first entry.
    pub(crate) fn serving(&mut self, region: RegionId) -> Option<u64> {
        let store = self.leader(region)?;
        let report = self.report(store, region)?;
        let engine = &self.nodes.get(&store)?.engine;
        let own = engine.term(region, report.applied);
        (own == Some(report.term)).then_some(store)
    }

    #[track_caller]
    pub(crate) fn lead(&mut self, region: RegionId, store: u64) {
        for _ in 0..20 {
            let leader = self.elect(region);
            if leader == store {
                self.run(100 * MS);
                return;
            }
            let report = self.report(leader, region).unwrap();
            let to = report.region.peer_on(StoreId(store)).unwrap().id;
            self.admin(leader, region, Admin::TransferLeader(to));
            self.run(500 * MS);
        }
        self.fail(&format!("store {store} does not lead region {region}"));
    }

    /// Sends a change to the leader until it succeeds.
    #[track_caller]
    pub(crate) fn change(&mut self, region: RegionId, call: Admin) -> Region {
        for _ in 0..100 {
            let leader = self.elect(region);
            let id = self.admin(leader, region, call.clone());
            let until = self.now + SECOND;
            while !self.replies.contains_key(&id) && self.turn(until) {}
            match self.replies.get(&id).cloned() {
                Some(Reply::Done(Done::Admin { region })) => return region,
                Some(Reply::Refused(Refusal::Invalid(reason))) => {
                    self.fail(&format!("{call:?}: {reason}"));
                }
                _ => self.run(50 * MS),
            }
        }
        self.fail(&format!("never done: {call:?}"));
    }

    /// Writes until the write is acknowledged.
    #[track_caller]
    pub(crate) fn write_surely(&mut self, region: RegionId, name: &str, value: &str) {
        for _ in 0..100 {
            let leader = self.elect(region);
            let id = self.write(leader, region, put(name, value));
            let until = self.now + SECOND;
            while !self.replies.contains_key(&id) && self.turn(until) {}
            if self.is_written(id) {
                return;
            }
        }
        self.fail(&format!("{name}={value} is never written"));
    }

    pub(crate) fn value(&self, store: u64, name: &str) -> Option<String> {
        let view = self.nodes.get(&store)?.engine.view().unwrap();
        let pair = view.get(&key(name)).unwrap()?;
        Some(String::from_utf8(pair.value.to_vec()).unwrap())
    }

    /// Returns whether all members of every region have applied the same index and hold the same
    /// pairs.
    pub(crate) fn is_settled(&mut self) -> bool {
        let mut regions: BTreeMap<RegionId, BTreeSet<String>> = BTreeMap::new();
        let mut members: BTreeMap<RegionId, (usize, usize)> = BTreeMap::new();
        for store in self.nodes.keys().copied().collect::<Vec<_>>() {
            for report in self.reports(store) {
                let id = report.region.id;
                let line = format!("{:?} {} {}", report.region, report.applied, report.last);
                regions.entry(id).or_default().insert(line);
                let count = members.entry(id).or_default();
                *count = (count.0 + 1, report.region.peers.len());
            }
        }
        regions.values().all(|states| states.len() == 1)
            && members.values().all(|(here, named)| here == named)
    }

    /// Fails unless replicas that applied the same hold the same pairs.
    #[track_caller]
    pub(crate) fn check_replicas(&mut self) {
        let mut first: BTreeMap<(RegionId, LogIndex), (u64, Vec<stele_storage::Pair>)> =
            BTreeMap::new();
        for store in self.nodes.keys().copied().collect::<Vec<_>>() {
            for report in self.reports(store) {
                let view = self.node(store).engine.view().unwrap();
                let ranges = report.region.engine_ranges();
                let scan = |range| view.scan(&ScanOptions::new(range, usize::MAX)).unwrap();
                let pairs: Vec<_> = ranges.into_iter().flat_map(scan).collect();
                let at = (report.region.id, report.applied);
                let known = first.entry(at).or_insert_with(|| (store, pairs.clone()));
                if known.1 != pairs {
                    let what = format!(
                        "stores {} and {store} differ in region {} at {}:\n{:?}\n{pairs:?}",
                        known.0, at.0, at.1, known.1
                    );
                    self.fail(&what);
                }
            }
        }
    }

    /// Ends all faults, waits until no replicas differ, and compares them.
    #[track_caller]
    pub(crate) fn settle(&mut self) {
        self.net = Network::default();
        self.lost = |_| false;
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.node(id).stalled = false;
            self.node(id).paused_until = 0;
            if !self.is_up(id) {
                self.start(id);
            }
        }
        self.run(2 * SECOND);
        let mut left = 60;
        while !self.is_settled() {
            left -= 1;
            if left == 0 {
                self.fail("the stores never agree");
            }
            self.run(SECOND);
        }
        self.check_replicas();
    }

    pub(crate) fn isolate(&mut self, store: u64) {
        let others: Vec<u64> = self.nodes.keys().copied().filter(|id| *id != store).collect();
        self.net.partition(&[store], &others);
    }

    /// Returns the stores that may serve reads of a region under a lease now.
    pub(crate) fn leases(&mut self, region: RegionId) -> Vec<u64> {
        let now = self.now;
        let holds = |node: &&Node<B::Engine>| {
            let reader = node.core.as_ref().and_then(|core| core.readers().get(region));
            reader
                .is_some_and(|reader| reader.permit(&Header::default(), node.local(now)).is_some())
        };
        self.nodes.values().filter(holds).map(|node| node.id).collect()
    }
}

pub(crate) fn line_of(report: &RegionReport) -> String {
    let peers: Vec<String> = report
        .region
        .peers
        .iter()
        .map(|peer| format!("{}@{}{:?}", peer.id, peer.store, peer.role))
        .collect();
    let text = |key: &Bytes| String::from_utf8_lossy(key).into_owned();
    format!(
        "region {} [{}, {}) {:?} {:?} {:?} term {} last {} committed {} applied {} leader {:?} hibernating {} {}",
        report.region.id,
        text(&report.region.range.start),
        text(&report.region.range.end),
        report.region.phase,
        report.region.epoch,
        report.role,
        report.term,
        report.last,
        report.committed,
        report.applied,
        report.leader.map(|leader| leader.id),
        report.hibernating,
        peers.join(" ")
    )
}
