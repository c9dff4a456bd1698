//! Reads as a server's request threads do them: allowed by a lease or by the core, then read from a
//! view, then checked again. The thread may pause between any two steps.

use super::values::{Value, key_of, number_in};
use super::{Act, PATIENCE_NANOS, Pending};
use crate::plan::MS;
use crate::world::{Requester, Slot, World};
use std::sync::Arc;
use stele_engine::View;
use stele_replica::LinearizableRead;
use stele_replica::{Done, Header, Reader, Reply};
use stele_storage::{Admitted, CachedGet, EngineView, Order, Overlaid, ScanOptions, StateMachine};
use stele_types::{ColumnFamily, Result};

/// Read of one request thread.
pub struct ThreadRead {
    /// Node of the thread.
    pub node: u64,
    reader: Arc<Reader>,
    header: Header,
    /// Permission; `None` while the thread has not taken a lease.
    permission: Option<LinearizableRead>,
    view: Option<Arc<View>>,
    /// Values that the view showed first.
    shown: Vec<(u8, Value)>,
}

impl ThreadRead {
    /// Creates a read of a request that was checked.
    pub fn new(node: u64, reader: Arc<Reader>, header: Header) -> Self {
        Self { node, reader, header, permission: None, view: None, shown: Vec::new() }
    }

    /// Returns true if a lease allows it.
    pub fn is_by_lease(&self) -> bool {
        self.permission.as_ref().is_some_and(LinearizableRead::is_by_lease)
    }

    /// Takes the lease. Returns false if there is none.
    pub fn take_lease(&mut self, local_nanos: u64) -> bool {
        self.permission = LinearizableRead::by_lease(&self.reader, &self.header, local_nanos);
        self.permission.is_some()
    }

    /// Returns the header of the request.
    pub fn header(&self) -> Header {
        self.header
    }

    /// Takes the permission of a read that the core has confirmed. The view is taken after that.
    fn confirm(&mut self) {
        self.permission = Some(LinearizableRead::by_round(&self.reader, &self.header));
        self.view = None;
    }
}

enum Finished {
    Readable(Overlaid<Arc<View>>),
    /// Entries were applied since the permission of a confirmed read.
    TakeAnotherView,
    Refused,
}

impl World {
    /// Pauses the thread: mostly for a short time, sometimes for longer than a lease.
    pub(super) fn pause_thread(&mut self, at: usize) {
        let nanos = match self.clients.prng.below(10) {
            0 => self.clients.prng.below(800) * MS,
            _ => self.clients.prng.below(300_000),
        };
        self.client_in(at, nanos);
    }

    pub(super) fn confirmed(&mut self, at: usize, step: u64, mut pending: Pending) {
        let Some(mut thread_read) = self.reads_waiting.remove(&(at, step)) else {
            return self.pause_client(at);
        };
        thread_read.confirm();
        pending.thread_read = Some(thread_read);
        self.clients.list[at].pending = Some(pending);
        self.pause_thread(at);
    }

    pub(super) fn step_thread_read(&mut self, at: usize, mut pending: Pending) {
        let is_running = self
            .slots
            .get(&pending.slot)
            .is_some_and(|slot| slot.incarnation == pending.incarnation && slot.running.is_some());
        let Some(thread_read) = pending.thread_read.as_mut().filter(|_| is_running) else {
            return self.pause_client(at);
        };
        let hangs_until = self.slots.get(&pending.slot).map_or(0, |slot| slot.hangs_until);
        if hangs_until > self.now && self.clients.prng.coin() {
            // The thread waits for the device.
            self.clients.list[at].pending = Some(pending);
            return self.client_in(at, hangs_until - self.now);
        }
        if thread_read.permission.is_none() {
            let local = self.nodes.get(&thread_read.node).map_or(0, |node| node.local(self.now));
            let is_leased = thread_read.take_lease(local);
            let waiting = if is_leased { None } else { pending.thread_read.take() };
            let slot = pending.slot;
            self.clients.list[at].pending = Some(pending);
            let Some(waiting) = waiting else { return self.pause_thread(at) };
            self.client_in(at, PATIENCE_NANOS);
            let requester = Requester::Client { at, step: self.clients.list[at].step };
            return self.read_by_core(slot, requester, waiting, true);
        }
        if thread_read.view.is_none() {
            let view = self.engine(pending.slot).map(|engine| engine.view());
            let Some(Ok(view)) = view else { return self.pause_client(at) };
            if let Act::Read(keys) = &pending.act {
                let mut shown = keys.clone();
                let found =
                    read_keys(&view, pending.group, &mut shown, self.clients.value_bytes_max);
                thread_read.shown = if matches!(found, Ok(Some(()))) { shown } else { Vec::new() };
            }
            thread_read.view = Some(Arc::new(view));
            self.clients.list[at].pending = Some(pending);
            return self.pause_thread(at);
        }
        match self.finish_read(&pending) {
            Finished::Readable(state) => self.read_state(&mut pending, &state),
            Finished::TakeAnotherView => {
                if let Some(thread_read) = pending.thread_read.as_mut() {
                    thread_read.confirm();
                }
                self.clients.list[at].pending = Some(pending);
                return self.pause_thread(at);
            }
            Finished::Refused => {}
        }
        self.pause_client(at);
    }

    /// Returns the state that may be answered from: the lease was valid throughout, or the replica is
    /// the same.
    fn finish_read(&mut self, pending: &Pending) -> Finished {
        let Some(thread_read) = &pending.thread_read else { return Finished::Refused };
        let (Some(permission), Some(view)) = (&thread_read.permission, &thread_read.view) else {
            return Finished::Refused;
        };
        let local = self.nodes.get(&thread_read.node).map_or(0, |node| node.local(self.now));
        let readers = self.slots.get(&pending.slot).and_then(|slot| slot.readers());
        let Some(readers) = readers else { return Finished::Refused };
        let state = match permission.finish(view.clone(), readers, local) {
            Ok(Some(state)) => state,
            Ok(None) if permission.is_by_lease() => return Finished::Refused,
            Ok(None) => return Finished::TakeAnotherView,
            Err(_) => return Finished::Refused,
        };
        if permission.is_by_lease() {
            if self.slots.get(&pending.slot).is_some_and(Slot::has_ended_loop) {
                let slot = pending.slot;
                self.fail(format!("store {slot} serves a read by a lease after its loop ended"));
                return Finished::Refused;
            }
            thread_read.reader.note_reads(1, state.has_effects());
            // The lease must be of the version that the request was checked against.
            if thread_read.reader.check(&thread_read.header).is_err() {
                let (slot, region) = (pending.slot, thread_read.header.region);
                self.fail(format!(
                    "store {slot} serves a read of region {region} under a lease of another version"
                ));
            }
        }
        Finished::Readable(state)
    }

    fn read_state(&mut self, pending: &mut Pending, state: &Overlaid<Arc<View>>) {
        self.check_view(pending, state.view());
        let Act::Read(seen) = &mut pending.act else { return };
        let bytes_max = self.clients.value_bytes_max;
        let found = read_keys(state, pending.group, seen, bytes_max);
        match found {
            Ok(Some(())) => self.record_outcome(pending, Some(self.now)),
            Ok(None) => {
                let (slot, group) = (pending.slot, pending.group);
                self.fail(format!(
                    "store {slot} shows bytes in group {group} that no client wrote"
                ));
            }
            // The client gets an error and no value.
            Err(error) => self.check_read_error(pending.slot, &error),
        }
    }

    /// Checks that a view shows what it showed before.
    fn check_view(&mut self, pending: &Pending, view: &Arc<View>) {
        let shown = pending.thread_read.as_ref().map(|it| it.shown.clone()).unwrap_or_default();
        let mut now = shown.clone();
        let found = read_keys(view, pending.group, &mut now, self.clients.value_bytes_max);
        if !shown.is_empty() && matches!(found, Ok(Some(()))) && shown != now {
            let slot = pending.slot;
            self.fail(format!("a view of store {slot} showed {shown:?}, and now {now:?}"));
        }
    }

    pub(crate) fn client_reply(&mut self, at: usize, step: u64, reply: Option<Reply>) {
        let thread_read = self.reads_waiting.contains_key(&(at, step));
        let current = self.clients.list.get(at).is_some_and(|client| client.step == step);
        let Some(pending) = current.then(|| self.clients.list[at].pending.take()).flatten() else {
            self.reads_waiting.remove(&(at, step));
            return;
        };
        if thread_read && matches!(reply, Some(Reply::Done(Done::ReadReady { .. }))) {
            if pending.is_merging {
                let (slot, group) = (pending.slot, pending.group);
                return self.fail(format!(
                    "store {slot} serves a read of group {group} in a merging region"
                ));
            }
            return self.confirmed(at, step, pending);
        }
        self.reads_waiting.remove(&(at, step));
        let (pending, reply) = match reply {
            Some(reply) => match self.fill_replied(at, pending, reply) {
                Some((pending, reply)) => (pending, Some(reply)),
                None => return,
            },
            None => (pending, None),
        };
        let Some((pending, reply)) = self.attempt_ended(at, pending, reply) else { return };
        match pending.program.clone() {
            Some(program) => self.program_replied(&pending, &program, reply),
            None => self.take_reply(pending, reply),
        }
        self.pause_client(at);
    }
}

/// Reads the values of keys; `None` if no client wrote these bytes.
fn read_keys(
    view: &impl EngineView,
    group: usize,
    keys: &mut [(u8, Value)],
    bytes_max: u64,
) -> Result<Option<()>> {
    match keys {
        [(key, value)] => get(view, group, *key, bytes_max).map(|got| got.map(|got| *value = got)),
        many => scan(view, group, many, bytes_max),
    }
}

/// Reads the value of one key; `None` if no client wrote these bytes.
fn get(view: &impl EngineView, group: usize, key: u8, bytes_max: u64) -> Result<Option<Value>> {
    let name = ColumnFamily::Default.engine_key(&key_of(group, key));
    // A request thread must not wait for the device.
    let pair = match view.get_cached(&name)? {
        CachedGet::Ready(pair) => pair,
        CachedGet::NeedsIo(pending) => {
            let got = view.get_many(vec![pending], &mut |_, _| true);
            got.into_iter().next().transpose()?.map_or(Ok(None), Admitted::read)?
        }
    };
    Ok(match pair {
        Some(pair) => number_in(&pair, bytes_max),
        None => Some(0),
    })
}

fn scan(
    view: &impl EngineView,
    group: usize,
    keys: &mut [(u8, Value)],
    bytes_max: u64,
) -> Result<Option<()>> {
    let (Some((first, _)), Some((last, _))) = (keys.first(), keys.last()) else {
        return Ok(Some(()));
    };
    let family = ColumnFamily::Default;
    let start = family.engine_key(&key_of(group, *first));
    let end = stele_types::key_after(&family.engine_key(&key_of(group, *last)));
    let range = stele_types::KeyRange { start, end };
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
