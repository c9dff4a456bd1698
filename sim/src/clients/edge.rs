//! Reads as a server's edge threads do them: confirmed by a lease or by the core, then out of a view,
//! then checked again. The thread may be away between any two of these.

use super::values::{Value, key_of, number_in};
use super::{Act, Pending};
use crate::plan::MS;
use crate::world::World;
use std::sync::Arc;
use stele_engine::View;
use stele_raftstore::{Header, Lease, Reader, Reply};
use stele_storage::{Cached, EngineView, Order, ScanOptions, StorageEngine};
use stele_types::{ColumnFamily, Result};

/// See the module.
pub struct Edge {
    /// Whose thread it is.
    pub node: u64,
    reader: Arc<Reader>,
    header: Header,
    lease: Option<Lease>,
    view: Option<Arc<View>>,
    /// What the view showed first.
    shown: Vec<(u8, Value)>,
}

impl Edge {
    /// A read that a lease allows, or that the core will.
    pub fn new(node: u64, reader: Arc<Reader>, header: Header, lease: Option<Lease>) -> Self {
        Self { node, reader, header, lease, view: None, shown: Vec::new() }
    }

    /// Whether a lease allowed it.
    pub fn is_by_lease(&self) -> bool {
        self.lease.is_some()
    }
}

impl World {
    /// Mostly the thread is back at once, now and then only after more than a lease.
    pub(super) fn dither(&mut self, at: usize) {
        let nanos = match self.clients.prng.below(10) {
            0 => self.clients.prng.below(800) * MS,
            _ => self.clients.prng.below(300_000),
        };
        self.client_in(at, nanos);
    }

    /// The core confirmed a read.
    pub(super) fn confirmed(&mut self, at: usize, step: u64, mut pending: Pending) {
        let Some(edge) = self.edges_waiting.remove(&(at, step)) else { return self.rest(at) };
        pending.edge = Some(edge);
        self.clients.list[at].pending = Some(pending);
        self.dither(at);
    }

    pub(super) fn edge_step(&mut self, at: usize, mut pending: Pending) {
        let lives = self
            .slots
            .get(&pending.slot)
            .is_some_and(|slot| slot.life == pending.life && slot.running.is_some());
        let Some(edge) = pending.edge.as_mut().filter(|_| lives) else { return self.rest(at) };
        if edge.view.is_none() {
            let view = self.engine(pending.slot).map(|engine| engine.view());
            let Some(Ok(view)) = view else { return self.rest(at) };
            if let Act::Read(keys) = &pending.act {
                let mut shown = keys.clone();
                let found = look_at(&view, pending.group, &mut shown, self.clients.value_bytes_max);
                edge.shown = if matches!(found, Ok(Some(()))) { shown } else { Vec::new() };
            }
            edge.view = Some(Arc::new(view));
            self.clients.list[at].pending = Some(pending);
            return self.dither(at);
        }
        if self.is_allowed(&pending) {
            self.look(&mut pending);
        }
        self.rest(at);
    }

    /// Whether what a view shows may be told: the lease held throughout, or the replica is the same.
    fn is_allowed(&self, pending: &Pending) -> bool {
        let Some(edge) = &pending.edge else { return false };
        if let Some(lease) = edge.lease {
            let local = self.nodes.get(&edge.node).map_or(0, |node| node.local(self.now));
            let still = edge.reader.is_still_valid(lease, local);
            edge.reader.note_reads(u64::from(still));
            return still;
        }
        let readers = self.slots.get(&pending.slot).and_then(|slot| slot.readers());
        let now = readers.and_then(|readers| readers.get(edge.header.region));
        now.is_some_and(|now| Arc::ptr_eq(&now, &edge.reader))
            && edge.reader.check(&edge.header).is_ok()
    }

    fn look(&mut self, pending: &mut Pending) {
        let Some(view) = pending.edge.as_ref().and_then(|edge| edge.view.clone()) else { return };
        let Act::Read(seen) = &mut pending.act else { return };
        let bytes_max = self.clients.value_bytes_max;
        let found = look_at(&view, pending.group, seen, bytes_max);
        let shown = pending.edge.as_ref().map(|edge| edge.shown.clone()).unwrap_or_default();
        match found {
            Ok(Some(())) if !shown.is_empty() && shown != *seen => {
                let text =
                    format!("a view of store {} showed {shown:?}, now {seen:?}", pending.slot);
                self.fail(text);
            }
            Ok(Some(())) => self.write_down(pending, Some(self.now)),
            Ok(None) => {
                let (slot, group) = (pending.slot, pending.group);
                self.fail(format!("store {slot} shows bytes in group {group} that nobody wrote"));
            }
            // The client is told that the store can't read it, and nothing else.
            Err(error) => self.check_read_error(pending.slot, &error),
        }
    }

    pub(crate) fn client_reply(&mut self, at: usize, step: u64, reply: Option<Reply>) {
        let edge = self.edges_waiting.contains_key(&(at, step));
        let current = self.clients.list.get(at).is_some_and(|client| client.step == step);
        let Some(pending) = current.then(|| self.clients.list[at].pending.take()).flatten() else {
            self.edges_waiting.remove(&(at, step));
            return;
        };
        if edge && matches!(reply, Some(Reply::ReadReady { .. })) {
            if pending.is_merging {
                let (slot, group) = (pending.slot, pending.group);
                return self.fail(format!(
                    "store {slot} serves a read of group {group}, which is being merged"
                ));
            }
            return self.confirmed(at, step, pending);
        }
        self.edges_waiting.remove(&(at, step));
        self.take_reply(pending, reply);
        self.rest(at);
    }
}

/// The values of keys; `None`: nobody wrote these bytes.
fn look_at(
    view: &View,
    group: usize,
    keys: &mut [(u8, Value)],
    bytes_max: u64,
) -> Result<Option<()>> {
    match keys {
        [(key, value)] => get(view, group, *key, bytes_max).map(|got| got.map(|got| *value = got)),
        many => scan(view, group, many, bytes_max),
    }
}

/// The value of one key; `None`: nobody wrote these bytes.
fn get(view: &View, group: usize, key: u8, bytes_max: u64) -> Result<Option<Value>> {
    let name = ColumnFamily::Default.engine_key(&key_of(group, key));
    // As an edge thread does, which must not wait for the device.
    let pair = match view.get_cached(&name)? {
        Cached::Here(pair) => pair,
        Cached::NeedsIo => view.get(&name)?,
    };
    Ok(match pair {
        Some(pair) => number_in(&pair, bytes_max),
        None => Some(0),
    })
}

/// The values of all keys from the first to the last.
fn scan(view: &View, group: usize, keys: &mut [(u8, Value)], bytes_max: u64) -> Result<Option<()>> {
    let (Some((first, _)), Some((last, _))) = (keys.first(), keys.last()) else {
        return Ok(Some(()));
    };
    let family = ColumnFamily::Default;
    let start = family.engine_key(&key_of(group, *first));
    let mut end = family.engine_key(&key_of(group, *last)).to_vec();
    end.push(0);
    let range = stele_types::KeyRange { start, end: end.into() };
    let mut options = ScanOptions::new(range, usize::MAX);
    if group % 2 == 1 {
        options.order = Order::Reverse;
    }
    for pair in view.scan(&options)? {
        let is = |key: u8| family.engine_key(&key_of(group, key)) == pair.key;
        let Some((_, value)) = keys.iter_mut().find(|(key, _)| is(*key)) else { return Ok(None) };
        let Some(number) = number_in(&pair, bytes_max) else { return Ok(None) };
        *value = number;
    }
    Ok(Some(()))
}
