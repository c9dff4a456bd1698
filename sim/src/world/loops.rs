//! Store loop and maintenance. The order is the product's: receive inputs, write, step what became
//! durable, poll, send, reply.

use super::{Happening, World};
use crate::plan::SECOND;
use bytes::Bytes;
use std::sync::Arc;
use stele_engine::Store as Engine;
use stele_raftstore::{
    Admin, AdminCall, Append, ChangeKind, Event, Input, Outputs, PeerChange, PeerMessage, Ticket,
    wire,
};
use stele_storage::{LogStore, Repair, StateMachine};
use stele_types::checksum::crc32c;
use stele_types::{
    Error, LogBatch, Mark, PeerRole, Record, Region, RegionId, RegionPhase, Result, StoreId,
};

/// Delay from an input to the loop's step.
const WAKE_NANOS: u64 = 2_000;
/// Message delay between two stores of one node.
const NEAR_NANOS: u64 = 5_000;
/// Limit of one maintenance slice.
const SLICE_BYTES: u64 = 32 << 10;
/// First and longest pause of idle maintenance. The first is also the reset value.
const IDLE_NANOS: u64 = 5_000_000;
const IDLE_NANOS_MAX: u64 = 160_000_000;
/// Limit of time for a merge that cannot continue; it must be dropped at once.
const STUCK_NANOS_MAX: u64 = 4 * SECOND;
const SLICE_NANOS: u64 = 1_000_000;

impl World {
    /// Queues an input for a store's loop.
    pub fn push(&mut self, slot: u64, input: Input<Engine>) {
        let Some(running) = self.slots.get_mut(&slot).and_then(|slot| slot.running.as_mut()) else {
            return;
        };
        if running.core.is_none() {
            return;
        }
        let (changes, leaving) = match &input {
            Input::Admin(AdminCall { header, call, .. }) => {
                let changes = changed_by(call).map(|merges| (header.region, merges));
                (changes, leaving_by(call))
            }
            _ => (None, Vec::new()),
        };
        running.inbox.push(input);
        if !running.is_writing {
            self.wake(slot, self.now + WAKE_NANOS);
        }
        if let Some((region, merges)) = changes {
            self.mute_soon(slot, region, merges);
            leaving.into_iter().for_each(|store| self.hide_removal(store, region));
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
        let Some(slot) = self.slots.get_mut(&number).filter(|slot| slot.incarnation == incarnation)
        else {
            return;
        };
        let Some(running) = slot.running.as_mut() else { return };
        // A later wake-up that was replaced by an earlier one, or one delayed by a pause.
        if running.wake_at.is_none_or(|wakes| wakes > now) || running.is_writing {
            return;
        }
        running.wake_at = None;
        let inputs = std::mem::take(&mut running.inbox);
        for input in &inputs {
            self.note_range_repair(number, input);
        }
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let Some(running) = slot.running.as_mut() else { return };
        let Some(core) = &mut running.core else { return };
        inputs.into_iter().for_each(|input| core.step(input));
        match running.append.take() {
            Some(append) => {
                running.is_writing = true;
                self.write(number, append);
            }
            None => self.poll(number),
        }
    }

    /// Writes a batch: it becomes durable before the loop gets the completion.
    fn write(&mut self, number: u64, append: Append) {
        let now = self.now;
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let (least, most) = slot.append_nanos;
        let mut took = least + self.rngs.disk.below(most - least + 1);
        took = took.max(slot.stalled_until.saturating_sub(now));
        let early = self.rngs.disk.below(4) == 0;
        let (node, incarnation) = (slot.node, slot.incarnation);
        let Append { ticket, batch } = append;
        let engine = slot.engine().cloned();
        let done = engine.filter(|_| early).map(|engine| engine.append(&batch));
        if let Some(done) = &done {
            self.note_append(number, &batch, done);
        }
        let records = batch.records.len();
        self.trace.span(now, took, node, number, || format!("append {records}"));
        let happening = Happening::Appended { slot: number, incarnation, ticket, batch, done };
        self.after(took, happening);
    }

    pub(super) fn appended(
        &mut self,
        number: u64,
        incarnation: u64,
        ticket: Ticket,
        batch: &Arc<LogBatch>,
        done: Option<Result<()>>,
    ) {
        let now = self.now;
        let Some(slot) = self.slots.get_mut(&number).filter(|slot| slot.incarnation == incarnation)
        else {
            return;
        };
        if slot.stalled_until > now {
            let (batch, wait) = (batch.clone(), slot.stalled_until - now);
            let happening = Happening::Appended { slot: number, incarnation, ticket, batch, done };
            return self.after(wait, happening);
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
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let Some(running) = slot.running.as_mut() else { return };
        running.is_writing = false;
        if let Some(core) = &mut running.core {
            core.step(Input::Appended { ticket, result });
        }
        self.poll(number);
        if leaves {
            self.check_copy_now(number, 3);
        }
        if self.commits_unapplied(number, batch) {
            self.check_copy_now(number, 1);
        }
    }

    /// Records the result of an append.
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

    /// Polls a store and executes its outputs.
    pub(super) fn poll(&mut self, number: u64) {
        let global = self.now;
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let Some(node) = self.nodes.get(&slot.node) else { return };
        let now = node.now(global);
        let Some(core) = slot.core() else { return };
        let polled = core.poll(now);
        let next = core.next_tick_nanos().map(|local| node.global(local).max(global));
        match polled {
            Ok(outputs) => self.dispatch(number, outputs),
            Err(error) => return self.store_failed(number, &error),
        }
        self.check_range_repairs(number);
        let Some(running) = self.slots.get_mut(&number).and_then(|slot| slot.running.as_mut())
        else {
            return;
        };
        let waits = running.append.is_some() || !running.inbox.is_empty();
        match waits {
            true => self.wake(number, global + WAKE_NANOS),
            false => {
                if let Some(next) = next {
                    self.wake(number, next.max(global + 1));
                }
            }
        }
    }

    fn dispatch(&mut self, number: u64, outputs: Outputs<Engine>) {
        for message in &outputs.messages {
            self.send(number, message);
        }
        if let Some(append) = outputs.append
            && let Some(running) = self.slots.get_mut(&number).and_then(|it| it.running.as_mut())
        {
            running.append = Some(append);
        }
        for (id, reply) in outputs.replies {
            self.reply(id, reply);
        }
        for snapshot in outputs.snapshots {
            self.send_snapshot(number, snapshot);
        }
        for event in outputs.events {
            self.handle_event(number, event);
        }
    }

    pub(super) fn send(&mut self, from: u64, message: &PeerMessage) {
        self.check_message(from, message);
        let Some(to) = self.homes.get(&message.to_store).copied() else { return };
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
            self.after(delay, Happening::Frame { slot: to, from, frame, is_forged: false });
        }
        if self.forges(message) {
            self.send_forged(from, message);
        }
        if let Some(news) = self.stale_rejection(from, message) {
            self.after(
                0,
                Happening::Frame { slot: to, from, frame: framed(&news), is_forged: true },
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
            Event::BecameLeader { .. } => self.counts.leaders += 1,
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
        if slot.running.is_none() {
            return;
        }
        self.trouble_near(number, 80);
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let Some(running) = slot.running.as_mut() else { return };
        let done = running.engine.maintain(SLICE_BYTES);
        slot.disk.clear_events();
        // A failed sync stops the store, even if it appends nothing.
        if let Err(error @ Error::Poisoned(_)) = &done {
            return self.store_failed(number, error);
        }
        let worked = matches!(&done, Ok(done) if done.more && done.bytes > 0);
        let has_lost = running.engine.has_lost();
        let is_merging = running.engine.index().pending_merge().is_some();
        let is_permanent = |error: &Error| !matches!(error, Error::NoSpace(_));
        let error = done.err().filter(|error| is_merging && is_permanent(error));
        running.stuck_since = error.as_ref().and(running.stuck_since.or(Some(self.now)));
        let stuck_nanos = running.stuck_since.map_or(0, |since| self.now - since);
        if worked {
            self.counts.slices += 1;
        }
        let next_pause = match worked {
            true => IDLE_NANOS,
            false => (running.maintain_pause * 2).min(IDLE_NANOS_MAX),
        };
        running.maintain_pause = next_pause;
        let pause = if worked { SLICE_NANOS } else { next_pause };
        let pause = pause + self.rngs.pace.below(pause);
        self.after(pause, Happening::Maintain { slot: number, incarnation });
        if has_lost {
            self.push(number, Input::Damaged);
        }
        if worked {
            self.check_replay(number);
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

/// Encodes a message, with its checksum.
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
