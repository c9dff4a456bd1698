//! Virtual time for the drivers of a store: its loop, its writes and its maintenance; and messages
//! between stores.

use super::device::bytes_of;
use super::{Happening, Requester, Running, SOUND_APPEND_NANOS, World};
use crate::plan::SECOND;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stele_engine::Store as Engine;
use stele_replica::{
    Admin, AdminCall, Append, Body, ChangeKind, Event, Input, Lookup, PeerChange, PeerMessage,
    RaftKind, Reply, Request, SendSnapshot, Ticket, wire,
};
use stele_replica::{CarryOut, Item, Queue};
use stele_storage::{LogStore, StateMachine};
use stele_types::checksum::crc32c;
use stele_types::{
    Error, LogBatch, Mark, PeerRole, Record, Region, RegionId, RegionPhase, Result, StoreId,
};

const WAKE_NANOS: u64 = 2_000;
/// Message delay between two stores of one node.
const NEAR_NANOS: u64 = 5_000;
/// Limit of time for a merge that cannot continue; it must be dropped at once.
const STUCK_NANOS_MAX: u64 = 4 * SECOND;
const SLICE_NANOS: u64 = 1_000_000;

struct Owner<'a> {
    world: &'a mut World,
    number: u64,
}

impl CarryOut<Engine, Requester> for Owner<'_> {
    fn send(&mut self, messages: Vec<PeerMessage>) {
        messages.iter().for_each(|message| self.world.send(self.number, message));
    }

    fn append(&mut self, append: Append) {
        self.world.write(self.number, append);
    }

    fn reply(&mut self, replies: Vec<(Requester, Reply)>) {
        for (requester, reply) in replies {
            self.world.reply(self.number, requester, reply);
        }
    }

    fn send_snapshot(&mut self, snapshot: SendSnapshot<Engine>) {
        self.world.send_snapshot(self.number, snapshot);
    }

    fn look_up(&mut self, lookup: Lookup) {
        self.world.begin_lookup(self.number, lookup);
    }

    fn handle(&mut self, events: Vec<Event>) {
        events.into_iter().for_each(|event| self.world.handle_event(self.number, event));
    }

    fn want_checkpoint(&mut self) {
        let slot = self.world.slots.get(&self.number);
        if let Some(running) = slot.and_then(|slot| slot.running.as_ref()) {
            running.wants_checkpoint.store(true, Ordering::Release);
        }
    }
}

impl World {
    /// Queues an input without a reply for a store's loop.
    pub fn push(&mut self, slot: u64, input: Input<Engine>) {
        self.push_item(slot, |queue| match input {
            Input::Message(message) => {
                let bytes = framed(&message).len() as u64;
                queue.push_messages([(message, bytes)])
            }
            input => queue.push(Item::Input(input)) == Some(true),
        });
    }

    /// Queues a request for a store's loop. The requester gets the reply.
    pub(super) fn submit(&mut self, slot: u64, requester: Requester, request: Request) {
        let change = match &request {
            Request::Admin(AdminCall { header, call }) => {
                changed_by(call).map(|merges| (header.region, merges, leaving_by(call)))
            }
            _ => None,
        };
        let mut refused = Some((requester, None));
        self.push_item(slot, |queue| {
            let pushed = queue.submit(request, requester, None);
            let wakes = matches!(pushed, Ok(true));
            refused = pushed.err().map(|it| (it.caller, Some(it.reply())));
            wakes
        });
        if let Some((requester, reply)) = refused {
            self.counts.refused += u64::from(reply.is_some());
            return self.after(0, Happening::Reply { slot, requester, reply });
        }
        if let Some((region, merges, leaving)) = change {
            self.mute_soon(slot, region, merges);
            leaving.into_iter().for_each(|store| self.hide_removal(store, region));
        }
    }

    /// Queues an item for a store's loop; a loop that has ended takes none. `push` returns whether the loop
    /// must be woken.
    pub(crate) fn push_item(
        &mut self,
        slot: u64,
        push: impl FnOnce(&Queue<Engine, Requester>) -> bool,
    ) {
        let running = self.slots.get(&slot).and_then(|slot| slot.running.as_ref());
        let running = running.filter(|running| running.store_loop.is_some());
        if running.is_some_and(|running| push(&running.queue)) {
            self.wake(slot, self.now + WAKE_NANOS);
        }
    }

    pub(super) fn wake(&mut self, slot: u64, at: u64) {
        let Some(it) = self.slots.get_mut(&slot) else { return };
        let incarnation = it.incarnation;
        let Some(running) = it.running.as_mut() else { return };
        if running.wake_at.is_none_or(|wakes| wakes > at) {
            running.wake_at = Some(at);
            self.after(at - self.now, Happening::LoopStep { slot, incarnation });
        }
    }

    pub(super) fn step_loop(&mut self, number: u64, incarnation: u64) {
        let now = self.now;
        let slot = self.slots.get_mut(&number).filter(|slot| slot.incarnation == incarnation);
        let Some(running) = slot.and_then(|slot| slot.running.as_mut()) else { return };
        // A later wake-up that was replaced by an earlier one, or one delayed by a pause.
        if running.wake_at.is_some_and(|wakes| wakes <= now) {
            running.wake_at = None;
            self.turn(number);
        }
    }

    pub(super) fn turn(&mut self, number: u64) {
        let global = self.now;
        let mut items = Vec::new();
        let Some(slot) = self.slots.get(&number) else { return };
        let Some(running) = &slot.running else { return };
        running.queue.take(&mut items);
        for item in &items {
            if let Item::Message { message, .. } = item {
                self.note_range_repair(number, message);
            }
        }
        self.note_lost_ranges(number);
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let Some(node) = self.nodes.get(&slot.node) else { return };
        let now = node.now(global);
        let store_loop = slot.running.as_mut().and_then(|running| running.store_loop.as_mut());
        let Some(store_loop) = store_loop else { return };
        let turn = store_loop.turn(&mut items, now);
        let next = store_loop.next_turn_nanos().map(|local| node.global(local).max(global + 1));
        match turn {
            Ok(turn) => {
                self.check_turn(number, &turn);
                turn.carry_out(&mut Owner { world: self, number });
            }
            Err(ended) => return self.loop_ended(number, ended),
        }
        self.check_range_repairs(number);
        if let Some(next) = next {
            self.wake(number, next);
        }
    }

    /// Writes a batch beside the loop: it becomes durable before the loop gets the completion.
    fn write(&mut self, number: u64, append: Append) {
        let now = self.now;
        self.check_level_of(number, &append.batch);
        let device_nanos = self.device_nanos(number, &append.batch);
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let (least, most) = slot.append_nanos;
        let drawn = least + self.rngs.disk.below(most - least + 1);
        let mut took = match device_nanos {
            // The times of a sound device vary by as much as half of their least.
            1.. if slot.append_nanos == SOUND_APPEND_NANOS => {
                device_nanos + device_nanos * drawn / (2 * most)
            }
            _ => drawn + device_nanos,
        };
        took = took.max(slot.stalled_until.saturating_sub(now));
        let early = self.rngs.disk.below(4) == 0 && slot.hangs_until <= now;
        let (node, incarnation) = (slot.node, slot.incarnation);
        if let Some(times) = slot.device.times() {
            times.append_began(now);
        }
        if let Some(running) = &mut slot.running {
            running.is_writing = true;
            running.queue.set_writing(true);
        }
        let Append { ticket, batch } = append;
        let engine = slot.engine().cloned();
        let done = engine.filter(|_| early).map(|engine| engine.append(&batch));
        if let Some(done) = &done {
            self.note_append(number, &batch, done);
        }
        let records = batch.records.len();
        self.trace.span(now, took, node, number, || format!("append {records}"));
        let happening =
            Happening::Appended { slot: number, incarnation, ticket, batch, began: now, done };
        self.after(took, happening);
    }

    pub(super) fn appended(
        &mut self,
        number: u64,
        incarnation: u64,
        ticket: Ticket,
        batch: &Arc<LogBatch>,
        began: u64,
        done: Option<Result<()>>,
    ) {
        let now = self.now;
        let Some(slot) = self.slots.get_mut(&number).filter(|slot| slot.incarnation == incarnation)
        else {
            return;
        };
        if slot.stalled_until > now {
            let (batch, wait) = (batch.clone(), slot.stalled_until - now);
            let happening =
                Happening::Appended { slot: number, incarnation, ticket, batch, began, done };
            return self.after(wait, happening);
        }
        if let Some(times) = slot.device.times() {
            times.append_ended(began);
            times.note_write(began, now, bytes_of(batch));
        }
        let Some(engine) = slot.engine().cloned() else { return };
        let result = done.unwrap_or_else(|| {
            let result = engine.append(batch);
            self.note_append(number, batch, &result);
            result
        });
        let leaves = |record: &Record| matches!(record, Record::Mark(_, Mark::Destroy));
        let leaves = result.is_ok() && batch.records.iter().any(leaves);
        if leaves {
            self.fill_now(number);
        }
        if let Some(running) = self.slots.get_mut(&number).and_then(|slot| slot.running.as_mut()) {
            running.is_writing = false;
            running.queue.set_writing(false);
        }
        self.push(number, Input::Appended { ticket, result });
        self.turn(number);
        if leaves {
            self.check_copy_now(number, 3);
        }
        if self.commits_unapplied(number, batch) {
            self.check_copy_now(number, 1);
        }
    }

    fn note_append(&mut self, number: u64, batch: &LogBatch, result: &Result<()>) {
        match result {
            Ok(_) => self.note_durable(number, batch),
            Err(Error::NoSpace(_)) => self.check_refused_append(number, batch),
            Err(_) => {}
        }
    }

    /// Returns true if a batch commits more than is applied while a region is merging.
    fn commits_unapplied(&self, number: u64, batch: &LogBatch) -> bool {
        let Some(engine) = self.engine(number) else { return false };
        let is_unapplied = |record: &Record| match record {
            Record::HardState(region, state) => {
                engine.progress(*region).is_some_and(|it| it.applied < state.commit)
            }
            Record::Entry(_) | Record::Mark(..) => false,
        };
        let readers = self.slots.get(&number).and_then(|slot| slot.readers());
        let merges = |it: &Arc<Region>| matches!(it.phase, RegionPhase::Merging { .. });
        batch.records.iter().any(is_unapplied)
            && readers.is_some_and(|readers| readers.all().iter().any(merges))
    }

    pub(super) fn send(&mut self, from: u64, message: &PeerMessage) {
        self.check_message(from, message);
        let Some(to) = self.route(from, message.to_store) else { return };
        let stated = self.stated(from);
        if self.nemesis.is_blocked((message.region, from, to), self.now) {
            return;
        }
        let withheld = self.withhold((from, to), message);
        let message = withheld.as_ref().unwrap_or(message);
        let frame = framed(message);
        for (delay, is_damaged) in self.deliveries(from, to, frame.len() as u64) {
            let frame = match is_damaged {
                true => self.damaged(&frame),
                false => frame.clone(),
            };
            let stated = stated.clone();
            self.after(delay, Happening::Frame { slot: to, from, stated, frame, is_forged: false });
        }
        if self.forges(message) {
            self.send_forged(from, message);
        }
        if let Some(news) = self.stale_rejection(from, message) {
            self.after(
                0,
                Happening::Frame { slot: to, from, stated, frame: framed(&news), is_forged: true },
            );
        }
    }

    /// Returns the delay of each copy of a frame between two stores, and whether it is damaged.
    pub(super) fn deliveries(&mut self, from: u64, to: u64, bytes: u64) -> Vec<(u64, bool)> {
        let node = |slot| self.slots.get(&slot).map_or(0, |slot| slot.node);
        let way = (node(from), node(to));
        match way.0 == way.1 {
            true => vec![(NEAR_NANOS, false)],
            false => self.net.deliveries(&mut self.rngs.net, way, self.now, bytes),
        }
    }

    /// Returns the frame with one wrong bit.
    pub(super) fn damaged(&mut self, frame: &Bytes) -> Bytes {
        self.counts.corruptions += 1;
        let mut bytes = frame.to_vec();
        let at = self.rngs.net.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << self.rngs.net.below(8);
        Bytes::from(bytes)
    }

    pub(super) fn receive(&mut self, slot: u64, from: u64, frame: Bytes, is_forged: bool) {
        let Some((body, checksum)) = frame.split_last_chunk::<4>() else { return };
        let is_sound = crc32c(body) == u32::from_le_bytes(*checksum);
        let decoded = wire::decode(frame.slice(..body.len()));
        match (is_sound, decoded) {
            (true, Ok(message)) => {
                self.note_take_over(slot, &message);
                match self.slots.get(&slot).is_some_and(|it| it.recovery.is_some()) {
                    true => self.receive_recovery_message(slot, message),
                    false => self.push(slot, Input::Message(message)),
                }
            }
            (true, Err(_)) if is_forged => {}
            (true, Err(error)) => {
                self.fail(format!("store {slot} rejects a message of store {from}: {error}"));
            }
            // The connection ends; a damaged frame is never decoded.
            (false, _) => {}
        }
    }

    fn handle_event(&mut self, number: u64, event: Event) {
        let node = self.slots.get(&number).map_or(0, |slot| slot.node);
        match &event {
            Event::BecameLeader { region, term } => {
                self.counts.leaders += 1;
                let asked = self.take_over.remove(&(number, *region));
                let is_asked = asked.is_some_and(|asked| Some(asked.0) == term.0.checked_sub(1));
                self.counts.transfers += u64::from(is_asked);
            }
            Event::RegionCreated(region) => self.count_split(region),
            Event::RegionChanged(region) => {
                self.counts.members += 1;
                self.count_split(region);
            }
            Event::RegionDestroyed(region) => self.count_merge(*region),
            Event::LostLeader { .. } => {}
        }
        let text = short(&format!("{event:?}"));
        self.trace.note(self.now, node, number, || text);
        if matches!(event, Event::RegionCreated(_) | Event::RegionDestroyed(_)) {
            self.trouble_near(number, 6);
        }
        self.check_event(number, &event);
        self.aim_at(number, &event);
    }

    /// Notes that the leader of a region asks the store to take it over.
    fn note_take_over(&mut self, slot: u64, message: &PeerMessage) {
        if let Body::Raft(raft) = &message.body
            && raft.kind == RaftKind::TimeoutNow
        {
            self.take_over.insert((slot, message.region), raft.term);
        }
    }

    /// Counts a region that was created by a split, once.
    fn count_split(&mut self, region: &Region) {
        let is_merging = matches!(region.phase, RegionPhase::Merging { .. });
        let known = self.regions.insert(region.id, is_merging);
        if known.is_none() && region.id.0 > 2 {
            self.counts.splits += 1;
        }
    }

    /// Counts a region that was merged away, once.
    fn count_merge(&mut self, region: RegionId) {
        if self.regions.insert(region, false) == Some(true) {
            self.counts.merges += 1;
        }
    }

    pub(super) fn maintain(&mut self, number: u64, incarnation: u64) {
        let Some(slot) = self.slots.get_mut(&number).filter(|slot| slot.incarnation == incarnation)
        else {
            return;
        };
        if slot.running.is_none() || slot.failed.is_some() {
            return;
        }
        self.trouble_near(number, 80);
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let Some(running) = slot.running.as_mut() else { return };
        let Running { engine, maintenance, wants_checkpoint, writers, stuck_since, .. } = running;
        let slice = maintenance.slice(&**engine, wants_checkpoint, self.plan.slice_bytes);
        slot.disk.clear_events();
        let slice = match slice {
            Ok(slice) => slice,
            // A failed sync stops the store, even if it appends nothing.
            Err(error) => {
                self.push_item(number, |queue| queue.push(Item::Stopped(error)) == Some(true));
                return;
            }
        };
        let worked = slice.work.is_some();
        let is_merging = engine.index().pending_merge().is_some();
        let is_permanent = |error: &Error| !matches!(error, Error::NoSpace(_));
        let error = slice.failure.filter(|error| is_merging && is_permanent(error));
        *stuck_since = error.as_ref().and(stuck_since.or(Some(self.now)));
        let stuck_nanos = stuck_since.map_or(0, |since| self.now - since);
        self.counts.slices += u64::from(worked);
        let pause = match worked {
            true => SLICE_NANOS * slot.maintenance_factor,
            false => slice.pause_nanos.max(SLICE_NANOS),
        };
        let pause = pause + self.rngs.pace.below(pause);
        // A slice takes the time until the next one.
        writers.maintained(slice.work.map(|done| (done.bytes, pause)), engine.pressure());
        if writers.own() > 0 {
            slot.lagged_at = Some(self.now);
        }
        self.after(pause, Happening::Maintain { slot: number, incarnation });
        if slice.has_new_damage {
            self.push(number, Input::Damaged);
        }
        if worked {
            self.check_replay(number);
            self.check_held_view(number);
        }
        if is_merging {
            self.check_copy_now(number, 30);
        }
        if stuck_nanos > STUCK_NANOS_MAX {
            let seconds = STUCK_NANOS_MAX / SECOND;
            let text = format!("store {number} cannot continue a merge for {seconds} s: {error:?}");
            self.fail(text);
        }
    }
}

fn framed(message: &PeerMessage) -> Bytes {
    let (mut frame, mut payloads) = (Vec::new(), Vec::new());
    wire::encode(message, &mut frame, &mut payloads);
    payloads.iter().for_each(|payload| frame.extend_from_slice(payload));
    let checksum = crc32c(&frame);
    frame.extend_from_slice(&checksum.to_le_bytes());
    Bytes::from(frame)
}

/// Returns true for an order that prepares a merge, false for another order that changes a region's
/// descriptor.
fn changed_by(call: &Admin) -> Option<bool> {
    match call {
        Admin::ChangePeers(_) | Admin::Split { .. } => Some(false),
        Admin::PrepareMerge { .. } => Some(true),
        _ => None,
    }
}

/// Returns the stores of the replicas that an order removes or demotes.
fn leaving_by(call: &Admin) -> Vec<StoreId> {
    let Admin::ChangePeers(changes) = call else { return Vec::new() };
    let leaves = |change: &&PeerChange| {
        change.kind == ChangeKind::Remove || change.peer.role == PeerRole::Learner
    };
    changes.iter().filter(leaves).map(|change| change.peer.store).collect()
}

/// Returns the beginning of a long line.
pub fn short(text: &str) -> String {
    let end = text.char_indices().nth(160).map_or(text.len(), |(at, _)| at);
    text[..end].to_owned()
}
