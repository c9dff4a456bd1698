//! Snapshot transfers: offered, accepted, then sent in chunks from the sender's view to the receiver's
//! engine. A lost chunk breaks the connection: the transfer goes on on another one. A damaged chunk ends
//! it.

use super::{Happening, Requester, World};
use crate::faults::Fault;
use crate::plan::MS;
use bytes::Bytes;
use std::collections::VecDeque;
use stele_engine::Store as Engine;
use stele_node::snapshot::{BROKEN_NANOS_MAX, Position, RETRY_NANOS, Reception, Source};
use stele_replica::{Done, Input, Reply, Request, SendSnapshot, SnapshotHeader, wire};
use stele_storage::LogStore;
use stele_types::KeyRange;
use stele_types::checksum::crc32c;

/// Bytes of one chunk, and pairs read at a time.
const CHUNK_BYTES: usize = 3_000;
const CHUNK_PAIRS: usize = 24;
/// Most chunks that are sent at once.
const CHUNKS_MAX: u64 = 3;
/// Most parts of broken transfers that a store keeps.
pub const PARTS_MAX: usize = 2;
/// Time between two sends, in addition to the message delay.
const SEND_NANOS: u64 = 100_000;
/// Time without progress after which a connection ends.
const STALL_NANOS: u64 = 3_000 * MS;

/// State of one transfer. Each connection has another number: what belongs to an earlier one is ignored.
pub struct Stream {
    from: u64,
    from_incarnation: u64,
    to: u64,
    to_incarnation: u64,
    header: SnapshotHeader,
    /// The header as the receiver gets it.
    encoded: Bytes,
    source: Source<Engine>,
    ranges: Vec<KeyRange>,
    state: State,
    position: Position,
    /// Chunks on their way, with the sender's position after each.
    in_flight: VecDeque<(Bytes, Position)>,
    /// Number of steps; events of earlier steps are ignored.
    step: u64,
    /// The receiver's log held the snapshot's last entry when the offer came.
    is_held: bool,
    ends_at: u64,
}

enum State {
    /// Waits for its next connection.
    Broken,
    /// The offer is on its way.
    Offered,
    /// The receiver's loop decides; with what it has of the snapshot.
    Asked(Option<Box<Reception<Engine>>>),
    /// The answer is on its way.
    Accepted(Box<Reception<Engine>>),
    Receiving(Box<Reception<Engine>>),
}

impl Stream {
    /// Returns the store of the next step.
    pub fn at(&self) -> u64 {
        match self.state {
            State::Broken => self.from,
            _ => self.to,
        }
    }

    /// Returns whether this store receives it.
    pub fn is_received_by(&self, slot: u64) -> bool {
        self.to == slot && !matches!(self.state, State::Broken)
    }
}

impl World {
    pub(super) fn send_snapshot(&mut self, from: u64, snapshot: SendSnapshot<Engine>) {
        let source = Source::new(&snapshot, CHUNK_BYTES, CHUNK_PAIRS);
        let SendSnapshot { header, to_store, ranges, .. } = snapshot;
        let (region, peer) = (header.region.id, header.to.id);
        let Some(to) = self.route(from, to_store) else {
            return self.push(from, Input::SnapshotSent { region, to: peer, ok: false });
        };
        let node = self.slots.get(&from).map_or(0, |slot| slot.node);
        let text = format!("sends region {region} at {:?} to s{to}", header.at);
        self.trace.note(self.now, node, from, || text);
        let mut encoded = Vec::new();
        wire::encode_snapshot(&header, &mut encoded);
        let from_incarnation = self.slots.get(&from).map_or(0, |slot| slot.incarnation);
        let stream = Stream {
            from,
            from_incarnation,
            to,
            to_incarnation: 0,
            header,
            encoded: encoded.into(),
            source,
            ranges,
            state: State::Broken,
            position: Position::default(),
            in_flight: VecDeque::new(),
            step: 0,
            is_held: false,
            ends_at: 0,
        };
        self.connect(stream);
    }

    /// Begins a connection: sends the offer.
    fn connect(&mut self, mut stream: Stream) {
        let to = self.slots.get(&stream.to);
        if to.is_none_or(|slot| slot.is_gone) {
            return self.answer_sender(&stream, false);
        }
        stream.to_incarnation = to.map_or(0, |slot| slot.incarnation);
        stream.ends_at = self.now + STALL_NANOS;
        stream.state = State::Offered;
        if let Some(slot) = self.slots.get_mut(&stream.to) {
            slot.receptions_begun += 1;
        }
        let number = self.number();
        self.streams.insert(number, stream);
        self.stream_on(number, 256);
    }

    /// Schedules the next step after `bytes` were sent.
    fn stream_on(&mut self, number: u64, bytes: u64) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.step += 1;
        let (from, to, step) = (stream.from, stream.to, stream.step);
        match self.deliveries(from, to, bytes).first() {
            Some((delay, false)) => {
                self.after(delay + SEND_NANOS, Happening::Stream { number, step });
            }
            // Checksums cover each chunk and the whole: the data is rejected.
            Some((_, true)) => {
                self.counts.corruptions += 1;
                self.end_stream(number, false);
            }
            None => self.break_stream(number),
        }
    }

    pub(super) fn stream(&mut self, number: u64, step: u64) {
        let now = self.now;
        let Some(stream) = self.streams.get_mut(&number).filter(|it| it.step == step) else {
            return;
        };
        let is_running = |slot: u64, incarnation: u64| {
            let slot = self.slots.get(&slot);
            slot.is_some_and(|slot| slot.incarnation == incarnation && slot.running.is_some())
        };
        if !is_running(stream.from, stream.from_incarnation) {
            return self.abandon_stream(number);
        }
        if let State::Broken = stream.state {
            let stream = self.streams.remove(&number);
            return stream.into_iter().for_each(|stream| self.connect(stream));
        }
        if !is_running(stream.to, stream.to_incarnation) || now > stream.ends_at {
            return self.break_stream(number);
        }
        match std::mem::replace(&mut stream.state, State::Broken) {
            State::Offered => self.offer(number),
            State::Accepted(reception) => self.begin_sending(number, reception),
            State::Receiving(reception) => self.deliver(number, reception),
            other @ (State::Asked(_) | State::Broken) => stream.state = other,
        }
    }

    /// Asks the receiver's loop. Another connection for the same replica ends.
    fn offer(&mut self, number: u64) {
        let Some(stream) = self.streams.get(&number) else { return };
        let (sender, receiver) = (stream.from, stream.to);
        let stated = self.stated(sender);
        if !self.is_heard(sender, &stated, receiver) {
            return self.end_stream(number, false);
        }
        let Some(stream) = self.streams.get(&number) else { return };
        let (to, region, at) = (stream.to, stream.header.region.id, stream.header.at);
        let header = match wire::decode_snapshot(&stream.encoded) {
            Ok(header) => header,
            Err(error) => return self.fail(format!("a snapshot's header is rejected: {error}")),
        };
        let is_other = |(other, it): &(&u64, &Stream)| {
            **other != number && it.is_received_by(to) && it.header.region.id == region
        };
        let others: Vec<u64> = self.streams.iter().filter(is_other).map(|(it, _)| *it).collect();
        others.into_iter().for_each(|other| self.break_stream(other));
        let engine = self.slots.get(&to).and_then(|slot| slot.engine().cloned());
        let running = self.slots.get_mut(&to).and_then(|slot| slot.running.as_mut());
        let part = running.and_then(|running| running.parts.take((header.to.store, region)));
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let part = part.and_then(|part| part.of(&stream.encoded));
        let part = part.filter(|_| stream.source.resumes());
        stream.is_held = engine.and_then(|engine| engine.term(region, at.0)) == Some(at.1);
        stream.state = State::Asked(part.map(Box::new));
        self.request(to, Requester::Stream(number), Request::SnapshotOffered(header));
    }

    pub(super) fn stream_reply(&mut self, number: u64, reply: Reply) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let State::Asked(part) = std::mem::replace(&mut stream.state, State::Broken) else {
            return self.fail("a snapshot was answered twice".into());
        };
        let engine = self.slots.get(&stream.to).and_then(|slot| slot.engine().cloned());
        let ranges = match (reply, engine.is_some()) {
            (Reply::Done(Done::SnapshotAccepted { ranges }), true) => ranges,
            (
                Reply::Refused(_) | Reply::Busy(_) | Reply::Done(Done::SnapshotAccepted { .. }),
                _,
            ) => {
                return self.end_stream(number, false);
            }
            (other, _) => return self.fail(format!("a snapshot was answered with {other:?}")),
        };
        let (region, at) = (stream.header.region.id, stream.header.at);
        // The entry may also have come between the offer and this answer.
        if stream.is_held {
            let text = format!("store {} accepts region {region} at {at:?}", stream.to);
            return self.fail(format!("{text}, which its log holds"));
        }
        if ranges != stream.ranges {
            return self.fail(format!("the accepted ranges differ from those sent: {ranges:?}"));
        }
        let header = stream.header.clone();
        let begin = |engine| Reception::begin(engine, header, ranges).map(Box::new).ok();
        match part.or_else(|| engine.and_then(begin)) {
            Some(reception) => {
                stream.state = State::Accepted(reception);
                self.stream_on(number, 64);
            }
            None => self.end_stream(number, false),
        }
    }

    /// Sends from what the receiver has on.
    fn begin_sending(&mut self, number: u64, reception: Box<Reception<Engine>>) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let at = reception.position();
        if !stream.source.accepted(at) {
            return self.end_stream(number, false);
        }
        if at != Position::default() {
            self.counts.resumed += 1;
        }
        stream.source.note(at);
        stream.position = at;
        stream.state = State::Receiving(reception);
        self.send_chunks(number);
    }

    fn send_chunks(&mut self, number: u64) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.ends_at = self.now + STALL_NANOS;
        let mut bytes = 0;
        for _ in 0..=self.rngs.pace.below(CHUNKS_MAX) {
            let chunk = match stream.source.next_chunk() {
                Ok(Some(parts)) => Bytes::from(parts.concat()),
                Ok(None) => break,
                Err(_) => return self.end_stream(number, false),
            };
            stream.position.add(crc32c(&chunk), chunk.len() as u64);
            stream.source.note(stream.position);
            bytes += chunk.len() as u64;
            stream.in_flight.push_back((chunk, stream.position));
        }
        match stream.in_flight.is_empty() {
            true => self.received(number),
            false if self.breaks_connection() => self.break_stream(number),
            false => self.stream_on(number, bytes),
        }
    }

    /// Decides whether a connection breaks while chunks are on their way.
    fn breaks_connection(&mut self) -> bool {
        let may = self.nemesis.is_active() && self.plan.faults.has(Fault::Loss);
        may && self.rngs.pace.below(6) == 0
    }

    fn deliver(&mut self, number: u64, mut reception: Box<Reception<Engine>>) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        while let Some((chunk, after)) = stream.in_flight.pop_front() {
            if reception.receive(chunk, after).is_err() {
                return self.end_stream(number, false);
            }
        }
        stream.state = State::Receiving(reception);
        self.send_chunks(number);
    }

    /// Passes the complete snapshot to the receiver's loop, which installs it.
    fn received(&mut self, number: u64) {
        let Some(mut stream) = self.streams.remove(&number) else { return };
        let State::Receiving(reception) = std::mem::replace(&mut stream.state, State::Broken)
        else {
            return;
        };
        if reception.position() != stream.position {
            return self.fail("the totals of a snapshot do not match".into());
        }
        let Ok(input) = reception.finish() else { return self.answer_sender(&stream, false) };
        let (from, to, region) = (stream.from, stream.to, stream.header.region.id);
        self.counts.snapshots += 1;
        self.checks.changes.snapshot_received(to, &stream.header.region);
        self.checks.repairs.replaced(to, region);
        self.trouble_near(to, 4);
        self.push(to, input);
        if self.hide_snapshot_end((region, to, from)) {
            return self.answer_sender(&stream, false);
        }
        // The reply to the sender may be lost.
        match self.deliveries(to, from, 64).is_empty() {
            true => self.retry(stream),
            false => self.answer_sender(&stream, true),
        }
    }

    /// Ends the connection: the receiver keeps its part, and the sender tries another connection.
    pub(super) fn break_stream(&mut self, number: u64) {
        let Some(mut stream) = self.streams.remove(&number) else { return };
        self.keep_part(&mut stream);
        self.retry(stream);
    }

    /// Schedules the next connection, unless too much time has passed.
    fn retry(&mut self, mut stream: Stream) {
        if !stream.source.may_retry(self.now) {
            return self.answer_sender(&stream, false);
        }
        stream.state = State::Broken;
        let (number, step) = (self.number(), stream.step);
        self.streams.insert(number, stream);
        self.after(RETRY_NANOS, Happening::Stream { number, step });
    }

    /// Leaves with the receiver what it has of the snapshot, and what still arrives of what was sent.
    fn keep_part(&mut self, stream: &mut Stream) {
        let sent = std::mem::take(&mut stream.in_flight);
        let mut reception = match std::mem::replace(&mut stream.state, State::Broken) {
            State::Asked(Some(part)) | State::Accepted(part) => part,
            State::Receiving(part) => part,
            State::Asked(None) | State::Broken | State::Offered => return,
        };
        let replica = (stream.header.to.store, stream.header.region.id);
        let arrives = self.rngs.pace.below(sent.len() as u64 + 1) as usize;
        let slot = self.slots.get_mut(&stream.to);
        let slot = slot.filter(|slot| slot.incarnation == stream.to_incarnation);
        let Some(running) = slot.and_then(|slot| slot.running.as_mut()) else { return };
        for (chunk, after) in sent.into_iter().take(arrives) {
            if reception.receive(chunk, after).is_err() {
                return;
            }
        }
        drop(running.parts.put(replica, stream.encoded.clone(), *reception, self.now));
        self.after(BROKEN_NANOS_MAX, Happening::PartsExpire { slot: stream.to });
    }

    /// Drops parts of which the sender did not come back.
    pub(super) fn expire_parts(&mut self, slot: u64) {
        let running = self.slots.get_mut(&slot).and_then(|slot| slot.running.as_mut());
        drop(running.map(|running| running.parts.expire(self.now)));
    }

    /// Ends a transfer: replies to the sender and drops the received pairs.
    pub(super) fn end_stream(&mut self, number: u64, ok: bool) {
        let Some(stream) = self.streams.remove(&number) else { return };
        self.answer_sender(&stream, ok);
    }

    /// Ends a transfer of which the sender has stopped: the receiver keeps its part.
    fn abandon_stream(&mut self, number: u64) {
        let Some(mut stream) = self.streams.remove(&number) else { return };
        self.keep_part(&mut stream);
    }

    fn answer_sender(&mut self, stream: &Stream, ok: bool) {
        let (region, to) = (stream.header.region.id, stream.header.to.id);
        let sender = self.slots.get(&stream.from);
        if sender.is_some_and(|slot| slot.incarnation == stream.from_incarnation) {
            self.push(stream.from, Input::SnapshotSent { region, to, ok });
        }
    }

    /// Ends the connections of a store that stops, and the transfers that it sends.
    pub(crate) fn end_streams_of(&mut self, slot: u64) {
        let numbers = |world: &Self, is_concerned: &dyn Fn(&Stream) -> bool| -> Vec<u64> {
            let concerned = world.streams.iter().filter(|(_, stream)| is_concerned(stream));
            concerned.map(|(number, _)| *number).collect()
        };
        for number in numbers(self, &|stream| stream.from == slot) {
            self.abandon_stream(number);
        }
        for number in numbers(self, &|stream| stream.is_received_by(slot)) {
            self.break_stream(number);
        }
    }
}
