//! Clients: each runs one operation at a time on the region and store it expects, and records the
//! result.

use crate::checker::{Act, Op, Place, Value, is_linearizable};
use crate::sim::{Backend, Sim, key};
use bytes::Bytes;
use std::sync::Arc;
use stele_replica::*;
use stele_storage::{EngineView, Overlaid, Pair, StateMachine, StorageEngine};
use stele_types::*;

/// Nanoseconds after which a client gives up.
const REQUEST_TIMEOUT_NANOS: u64 = 2_000_000_000;

pub(crate) struct Clients {
    pub keys: Vec<String>,
    pub histories: Vec<Vec<Op>>,
    clients: Vec<Option<Pending>>,
    prng: Prng,
    clock: u64,
    values: Value,
    pub acknowledged: u64,
}

struct Pending {
    key: usize,
    called: u64,
    since_nanos: u64,
    store: u64,
    incarnation: u64,
    act: Act,
    what: Waits,
}

enum Waits {
    Reply(RequestId, Arc<Reader>, u64),
    /// Read of a request thread: its reader and its progress.
    Lease {
        reader: Arc<Reader>,
        permit: ReadPermit,
        seen: Option<Value>,
        at_nanos: u64,
    },
}

fn text(value: Value) -> Bytes {
    Bytes::from(format!("v{value}"))
}

fn number(pair: Option<&Pair>) -> Value {
    let parse = |pair: &Pair| std::str::from_utf8(&pair.value[1..]).unwrap().parse().unwrap();
    pair.map_or(0, parse)
}

impl Clients {
    pub(crate) fn new(count: usize, keys: &[&str], seed: u64) -> Self {
        Self {
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            histories: vec![Vec::new(); keys.len()],
            clients: (0..count).map(|_| None).collect(),
            prng: Prng::new(seed ^ 0xc11e_4755),
            clock: 0,
            values: 0,
            acknowledged: 0,
        }
    }

    pub(crate) fn step<B: Backend>(&mut self, sim: &mut Sim<B>) {
        for at in 0..self.clients.len() {
            match self.clients[at].take() {
                Some(pending) => self.clients[at] = self.check_pending(sim, pending),
                None if self.prng.below(3) > 0 => self.clients[at] = self.begin(sim),
                None => {}
            }
        }
    }

    /// Ends all pending operations; they may take effect or not.
    pub(crate) fn stop(&mut self) {
        for pending in self.clients.iter_mut().filter_map(Option::take).collect::<Vec<_>>() {
            self.record(&pending, None);
        }
    }

    /// Reads every key once more from the leader, and checks every history.
    pub(crate) fn check<B: Backend>(&mut self, sim: &mut Sim<B>) {
        self.stop();
        for at in 0..self.keys.len() {
            let name = self.keys[at].clone();
            let seen = self.read_surely(sim, &name);
            let called = self.tick();
            let returned = Some(self.tick());
            let place = Place { by: "the end", ..Place::default() };
            self.histories[at].push(Op { called, returned, act: Act::Get(seen), place });
            if !is_linearizable(&self.histories[at]) {
                let ops: String = first_break(&self.histories[at]);
                sim.fail(&format!("key {name} is not linearizable:{ops}"));
            }
        }
    }

    fn read_surely<B: Backend>(&mut self, sim: &mut Sim<B>, name: &str) -> Value {
        for _ in 0..200 {
            let stores: Vec<u64> = sim.nodes.keys().copied().collect();
            for store in stores {
                let Some(reader) = find(sim, store, &key(name)) else { continue };
                let id = sim.request();
                let header = Header { region: reader.region().id, ..Header::default() };
                sim.step(store, Input::request(id, Read { header, replica: false }));
                sim.run(20_000_000);
                if matches!(sim.replies.get(&id), Some(Reply::Done(Done::ReadReady { .. }))) {
                    return applied(sim, store, name);
                }
            }
        }
        sim.fail(&format!("{name} cannot be read"));
    }

    /// Draws the pause of a request thread between two steps: mostly none, sometimes longer than a
    /// lease.
    fn pause_nanos(&mut self) -> u64 {
        match self.prng.below(8) {
            0 => self.prng.below(700) * 1_000_000,
            _ => self.prng.below(3_000_000),
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin<B: Backend>(&mut self, sim: &mut Sim<B>) -> Option<Pending> {
        let stores: Vec<u64> = sim.nodes.keys().copied().filter(|id| sim.is_up(*id)).collect();
        let first = *stores.get(self.prng.below(stores.len() as u64) as usize)?;
        let at = self.prng.below(self.keys.len() as u64) as usize;
        let name = self.keys[at].clone();
        let reader = find(sim, first, &key(&name))?;
        let leader = reader.leader().map(|peer| peer.store.0).filter(|id| sim.is_up(*id));
        let store = match self.prng.below(8) {
            0 => first,
            _ => leader.unwrap_or(first),
        };
        let reader = find(sim, store, &key(&name))?;
        let region = reader.region();
        let header =
            Header { region: region.id, version: Some(region.epoch.version), ..Header::default() };
        let called = self.tick();
        let (incarnation, since_nanos, local) =
            (sim.node(store).incarnation, sim.now, sim.local(store));
        let pending = |act, what| {
            Some(Pending { key: at, called, since_nanos, store, incarnation, act, what })
        };
        if self.prng.below(10) < 3 {
            let permit = reader.check(&header).ok().and_then(|()| reader.permit(&header, local));
            if let Some(permit) = permit {
                let at_nanos = since_nanos + self.pause_nanos();
                let what = Waits::Lease { reader, permit, seen: None, at_nanos };
                return pending(Act::Get(0), what);
            }
        }
        let id = sim.request();
        let (act, input) = self.choose(at, id, header);
        sim.step(store, input);
        pending(act, Waits::Reply(id, reader, region.epoch.version))
    }

    fn choose<E: StorageEngine>(
        &mut self,
        at: usize,
        id: RequestId,
        header: Header,
    ) -> (Act, Input<E>) {
        let name = key(&self.keys[at]);
        self.values += 1;
        let new = self.values;
        let write = |command: CommandBuilder| {
            let command = command.build().bytes().clone();
            Input::request(id, Write { header, command, only_deletes: false })
        };
        let mut command = CommandBuilder::new();
        match self.prng.below(10) {
            0..4 => {
                command.put(&name, &text(new), 0).unwrap();
                (Act::Put(new), write(command))
            }
            4 => {
                command.delete(&name).unwrap();
                (Act::Delete, write(command))
            }
            5..8 => {
                let expected = self.guess(at);
                let change = Modification::Compare {
                    expected: (expected > 0).then(|| text(expected)),
                    new: NewPair::Put { value: text(new), expires_at_s: 0 },
                };
                let modify = Modify { header, key: name, change, session: None };
                (Act::Cas { expected, new, seen: None }, Input::request(id, modify))
            }
            _ => {
                let replica = self.prng.coin();
                (Act::Get(0), Input::request(id, Read { header, replica }))
            }
        }
    }

    /// Returns a value that the key may hold.
    fn guess(&mut self, at: usize) -> Value {
        let values = self.histories[at].iter().rev().map(|op| match op.act {
            Act::Put(value) | Act::Get(value) => value,
            Act::Cas { seen: Some((false, previous)), .. } => previous,
            Act::Cas { new, .. } => new,
            Act::Delete => 0,
        });
        let near: Vec<Value> = values.take(2).collect();
        near.get(self.prng.below(2) as usize).copied().unwrap_or(0)
    }

    fn check_pending<B: Backend>(
        &mut self,
        sim: &mut Sim<B>,
        mut pending: Pending,
    ) -> Option<Pending> {
        let died =
            !sim.is_up(pending.store) || sim.node(pending.store).incarnation != pending.incarnation;
        let id = match &mut pending.what {
            Waits::Reply(id, ..) => *id,
            Waits::Lease { .. } if died => return None,
            Waits::Lease { .. } => return self.check_lease(sim, pending),
        };
        match sim.replies.remove(&id) {
            // The process that was to take the view has crashed.
            Some(Reply::Done(Done::ReadReady { .. })) if died => {}
            Some(reply) => self.take(sim, &pending, reply),
            None if died || sim.now - pending.since_nanos > REQUEST_TIMEOUT_NANOS => {
                self.record(&pending, None);
            }
            None => return Some(pending),
        }
        None
    }

    /// Takes the view, and later checks the lease again.
    fn check_lease<B: Backend>(
        &mut self,
        sim: &mut Sim<B>,
        mut pending: Pending,
    ) -> Option<Pending> {
        let (now, local) = (sim.now, sim.local(pending.store));
        let Waits::Lease { reader, permit, seen, at_nanos } = &mut pending.what else {
            return None;
        };
        if *at_nanos > now {
            return Some(pending);
        }
        match *seen {
            Some(value) => {
                if let Some(effects) = reader.effects(permit, local) {
                    reader.note_reads(1, !effects.is_empty());
                    let effect = effects.get(&key(&self.keys[pending.key]));
                    let value = effect.map_or(value, |effect| number(effect.as_ref()));
                    pending.act = Act::Get(value);
                    let returned = Some(self.tick());
                    self.acknowledged += 1;
                    self.record(&pending, returned);
                }
                None
            }
            None => {
                *at_nanos = now + self.pause_nanos();
                let name = self.keys[pending.key].clone();
                *seen = Some(applied(sim, pending.store, &name));
                Some(pending)
            }
        }
    }

    fn take<B: Backend>(&mut self, sim: &mut Sim<B>, pending: &Pending, reply: Reply) {
        let returned = Some(self.tick());
        let Waits::Reply(_, reader, version) = &pending.what else { return };
        let mut act = pending.act;
        match (reply, &mut act) {
            (Reply::Done(Done::Written { .. }), _) => {}
            (Reply::Done(Done::ReadReady { .. }), Act::Get(seen)) => {
                let name = self.keys[pending.key].clone();
                *seen = visible(sim, pending.store, reader, &name);
                // The replica may have been removed, or its range changed, before the view was
                // taken.
                if !is_same(sim, pending.store, reader, *version) {
                    return;
                }
            }
            (Reply::Done(Done::Modified { result, .. }), Act::Cas { seen, .. }) => {
                *seen = match result {
                    Modified::Replaced { previous } => Some((true, number(previous.as_ref()))),
                    Modified::Unchanged { previous } => Some((false, number(previous.as_ref()))),
                    other => sim.fail(&format!("a comparison got the result {other:?}")),
                };
            }
            (Reply::Unknown(_), _) => {
                return self.record(pending, None);
            }
            (Reply::Refused(_) | Reply::Busy(_), _) => return,
            (other, act) => sim.fail(&format!("{act:?} got the reply {other:?}")),
        }
        self.acknowledged += 1;
        self.record_as(pending, act, returned);
    }

    fn record(&mut self, pending: &Pending, returned: Option<u64>) {
        self.record_as(pending, pending.act, returned);
    }

    fn record_as(&mut self, pending: &Pending, act: Act, returned: Option<u64>) {
        if returned.is_none() && matches!(act, Act::Get(_)) {
            return;
        }
        let by = match pending.what {
            Waits::Reply(..) => "the core",
            Waits::Lease { .. } => "a lease",
        };
        let place = Place { store: pending.store, sent_ms: pending.since_nanos / 1_000_000, by };
        let op = Op { called: pending.called, returned, act, place };
        self.histories[pending.key].push(op);
    }
}

/// Returns the end of the shortest prefix of a history that is not linearizable.
fn first_break(history: &[Op]) -> String {
    let until = |end: u64| -> Vec<Op> {
        let begun = history.iter().filter(|op| op.called <= end);
        let seen = |op: &Op| Op { returned: op.returned.filter(|at| *at <= end), ..*op };
        begun.map(seen).collect()
    };
    let mut ends: Vec<u64> = history.iter().filter_map(|op| op.returned).collect();
    ends.sort();
    let broken = ends.into_iter().find(|end| !is_linearizable(&until(*end)));
    let mut ops = until(broken.unwrap_or(u64::MAX));
    ops.sort_by_key(|op| op.returned.unwrap_or(u64::MAX));
    let done = ops.iter().filter(|op| op.returned.is_some()).count();
    ops.drain(..done.saturating_sub(16));
    ops.iter().map(|op| format!("\n  {op}")).collect()
}

fn applied<B: Backend>(sim: &mut Sim<B>, store: u64, name: &str) -> Value {
    let view = sim.node(store).engine.view().unwrap();
    number(view.get(&key(name)).unwrap().as_ref())
}

/// Returns a value as a read finds it that the core confirmed.
fn visible<B: Backend>(sim: &mut Sim<B>, store: u64, reader: &Reader, name: &str) -> Value {
    let permit = reader.permit_confirmed();
    let view = sim.node(store).engine.view().unwrap();
    let effects = reader.effects(&permit, 0).expect("nothing is applied in between");
    number(Overlaid::new(view, effects).get(&key(name)).unwrap().as_ref())
}

/// Returns whether a reader is still that of its region on a store, at that version.
fn is_same<B: Backend>(sim: &Sim<B>, store: u64, reader: &Arc<Reader>, version: u64) -> bool {
    let core = sim.nodes.get(&store).and_then(|node| node.core.as_ref());
    let region = reader.region();
    let now = core.and_then(|core| core.readers().get(region.id));
    now.is_some_and(|now| Arc::ptr_eq(&now, reader)) && region.epoch.version == version
}

/// Returns the region on a store that holds a key, of the latest version.
fn find<B: Backend>(sim: &mut Sim<B>, store: u64, key: &Bytes) -> Option<Arc<Reader>> {
    let core = sim.nodes.get(&store)?.core.as_ref()?;
    let readers = core.readers();
    let user_key = keyspace::user_key(key)?;
    let holds =
        |region: &Arc<Region>| region.kind == RegionKind::Data && region.range.contains(&user_key);
    let region = readers.all().into_iter().filter(holds).max_by_key(|it| it.epoch.version)?;
    readers.get(region.id)
}
