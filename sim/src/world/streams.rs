//! Snapshots on their way: offered, accepted, then piece by piece out of the sender's view into the
//! receiver's engine. A piece that is lost or damaged ends all of it.

use super::{Happening, Who, World};
use crate::plan::MS;
use bytes::Bytes;
use std::sync::Arc;
use stele_engine::{Ingest, Store as Engine, View};
use stele_raftstore::{Input, Reply, SendSnapshot, SnapshotHeader, wire};
use stele_storage::{EngineView, Pair, ScanOptions, StorageEngine};
use stele_types::KeyRange;

/// Pairs of one piece.
const PIECE_PAIRS: usize = 24;
/// Between two pieces, beside the way.
const PIECE_NANOS: u64 = 100_000;
/// After which a silent stream is given up.
const STALL_NANOS: u64 = 3_000 * MS;

/// See the module.
pub struct Stream {
    from: u64,
    from_life: u64,
    to: u64,
    to_life: u64,
    header: SnapshotHeader,
    view: Arc<View>,
    /// What is still to be sent, the first range first.
    ranges: Vec<KeyRange>,
    state: State,
    /// Counts its steps: a late step of a stream that moved on is none.
    step: u64,
    /// Where the header is on its way.
    is_offered: bool,
    ends_at: u64,
}

enum State {
    Offered,
    Receiving(Box<Ingest>),
    Ended,
}

impl Stream {
    /// The store at which its next step happens.
    pub fn at(&self) -> u64 {
        self.to
    }
}

impl World {
    pub(super) fn send_snapshot(&mut self, from: u64, snapshot: SendSnapshot<Engine>) {
        let SendSnapshot { header, to_store, view, ranges } = snapshot;
        let (region, peer) = (header.region.id, header.to.id);
        let Some(to) = self.homes.get(&to_store).copied() else {
            return self.push(from, Input::SnapshotSent { region, to: peer, ok: false });
        };
        let node = self.slots.get(&from).map_or(0, |slot| slot.node);
        let text = format!("sends region {region} at {:?} to s{to}", header.at);
        self.trace.note(self.now, node, from, || text);
        let number = self.number();
        let life = |slot: u64| self.slots.get(&slot).map_or(0, |slot| slot.life);
        let stream = Stream {
            from,
            from_life: life(from),
            to,
            to_life: life(to),
            header,
            view,
            ranges,
            state: State::Offered,
            step: 0,
            is_offered: false,
            ends_at: self.now + STALL_NANOS,
        };
        self.streams.insert(number, stream);
        self.stream_on(number, 256);
    }

    /// The next step, after so many bytes made their way.
    fn stream_on(&mut self, number: u64, bytes: u64) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.step += 1;
        let (from, to, step) = (stream.from, stream.to, stream.step);
        match self.deliveries(from, to, bytes).first() {
            Some((delay, false)) => {
                self.after(delay + PIECE_NANOS, Happening::Stream { number, life: step });
            }
            // Checksums of pieces, and of the whole: it is never taken.
            Some((_, true)) => {
                self.counts.corruptions += 1;
                self.end_stream(number, false);
            }
            None => self.end_stream(number, false),
        }
    }

    pub(super) fn stream(&mut self, number: u64, step: u64) {
        let now = self.now;
        let Some(stream) = self.streams.get_mut(&number).filter(|it| it.step == step) else {
            return;
        };
        let alive = |slot: u64, life: u64| {
            let slot = self.slots.get(&slot);
            slot.is_some_and(|slot| slot.life == life && slot.running.is_some())
        };
        let lives = alive(stream.from, stream.from_life) && alive(stream.to, stream.to_life);
        if !lives || now > stream.ends_at {
            return self.end_stream(number, false);
        }
        match &stream.state {
            State::Offered if !stream.is_offered => {
                stream.is_offered = true;
                self.offer(number);
            }
            State::Offered | State::Ended => {}
            State::Receiving(_) => self.piece(number),
        }
    }

    fn offer(&mut self, number: u64) {
        let Some(stream) = self.streams.get(&number) else { return };
        let to = stream.to;
        let mut head = Vec::new();
        wire::encode_snapshot(&stream.header, &mut head);
        let header = match wire::decode_snapshot(&head) {
            Ok(header) => header,
            Err(error) => return self.fail(format!("a snapshot's head is refused: {error}")),
        };
        let id = self.ask(to, Who::Stream(number));
        self.push(to, Input::SnapshotOffered { id, header });
    }

    pub(super) fn stream_reply(&mut self, number: u64, reply: Reply) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let engine = self.slots.get(&stream.to).and_then(|slot| slot.engine().cloned());
        let ranges = match (reply, engine.is_some()) {
            (Reply::SnapshotAccepted { ranges }, true) => ranges,
            (Reply::Refused(_) | Reply::SnapshotAccepted { .. }, _) => {
                return self.end_stream(number, false);
            }
            (other, _) => return self.fail(format!("a snapshot was answered with {other:?}")),
        };
        let (region, at) = (stream.header.region.id, stream.header.at);
        if engine.as_ref().and_then(|engine| engine.term(region, at.0)) == Some(at.1) {
            let text = format!("store {} takes region {region} as of {at:?}", stream.to);
            return self.fail(format!("{text}, which its log holds"));
        }
        if ranges != stream.ranges {
            return self.fail(format!("other ranges were accepted than sent: {ranges:?}"));
        }
        match engine.map(|engine| engine.begin_ingest(ranges)) {
            Some(Ok(incoming)) => {
                stream.state = State::Receiving(Box::new(incoming));
                self.stream_on(number, 64);
            }
            _ => self.end_stream(number, false),
        }
    }

    fn piece(&mut self, number: u64) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.ends_at = self.now + STALL_NANOS;
        let Some(pairs) = next_pairs(stream) else { return self.end_stream(number, false) };
        if pairs.is_empty() {
            return self.received(number);
        }
        let bytes: usize = pairs.iter().map(|pair| pair.key.len() + pair.value.len()).sum();
        let engine = self.slots.get(&stream.to).and_then(|slot| slot.engine().cloned());
        let State::Receiving(incoming) = &mut stream.state else { return };
        match engine.map(|engine| engine.receive(incoming, pairs)) {
            Some(Ok(())) => self.stream_on(number, bytes as u64),
            _ => self.end_stream(number, false),
        }
    }

    /// All pairs came: the receiver's loop installs them.
    fn received(&mut self, number: u64) {
        let Some(mut stream) = self.streams.remove(&number) else { return };
        let State::Receiving(incoming) = std::mem::replace(&mut stream.state, State::Ended) else {
            return;
        };
        if let Some(engine) = self.engine(stream.to) {
            // Best effort: it keeps the flush inside the installation short.
            let _ = engine.checkpoint();
        }
        let Stream { from, from_life, to, header, .. } = stream;
        let (region, peer) = (header.region.id, header.to.id);
        self.counts.snapshots += 1;
        self.checks.changes.arrived(to, region);
        self.checks.repairs.replaced(to, region);
        self.trouble_near(to, 4);
        self.push(to, Input::SnapshotReceived { header, incoming: *incoming });
        // The sender may never hear of it.
        let ok = !self.deliveries(to, from, 64).is_empty() && !self.is_unheard((region, to, from));
        self.tell_sender((from, from_life), Input::SnapshotSent { region, to: peer, ok });
    }

    /// Nothing comes of it: the sender is told, what came is dropped.
    pub(super) fn end_stream(&mut self, number: u64, ok: bool) {
        let Some(stream) = self.streams.remove(&number) else { return };
        let (region, to) = (stream.header.region.id, stream.header.to.id);
        let input = Input::SnapshotSent { region, to, ok };
        self.tell_sender((stream.from, stream.from_life), input);
    }

    fn tell_sender(&mut self, sender: (u64, u64), input: Input<Engine>) {
        if self.slots.get(&sender.0).is_some_and(|slot| slot.life == sender.1) {
            self.push(sender.0, input);
        }
    }

    /// Streams of a store that stops.
    pub(super) fn end_streams_of(&mut self, slot: u64) {
        let concerned = |(_, stream): &(&u64, &Stream)| stream.from == slot || stream.to == slot;
        let numbers: Vec<u64> =
            self.streams.iter().filter(concerned).map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.end_stream(number, false));
    }
}

/// The next pairs out of the sender's view; none at the end. `None`: the sender can't read them.
fn next_pairs(stream: &mut Stream) -> Option<Vec<Pair>> {
    while let Some(range) = stream.ranges.first_mut() {
        let pairs = stream.view.scan(&ScanOptions::new(range.clone(), PIECE_PAIRS)).ok()?;
        match pairs.last() {
            Some(last) => {
                let mut next = last.key.to_vec();
                next.push(0);
                range.start = Bytes::from(next);
                return Some(pairs);
            }
            None => {
                stream.ranges.remove(0);
            }
        }
    }
    Some(Vec::new())
}
