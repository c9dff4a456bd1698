//! Snapshot transfers: offered, accepted, then sent in pieces from the sender's view to the
//! receiver's engine. A lost or damaged piece ends the transfer.

use super::{Happening, Requester, World};
use crate::plan::MS;
use bytes::Bytes;
use stele_engine::Store as Engine;
use stele_node::snapshot::{Reception, Source};
use stele_raftstore::{Done, Input, Reply, SendSnapshot, SnapshotHeader, wire};
use stele_storage::LogStore;
use stele_types::KeyRange;

/// Bytes of one piece, and pairs read at a time.
const PIECE_BYTES: usize = 3_000;
const PIECE_PAIRS: usize = 24;
/// Time between two pieces, in addition to the message delay.
const PIECE_NANOS: u64 = 100_000;
/// Time without progress after which a transfer ends.
const STALL_NANOS: u64 = 3_000 * MS;

/// State of one transfer.
pub struct Stream {
    from: u64,
    from_incarnation: u64,
    to: u64,
    to_incarnation: u64,
    header: SnapshotHeader,
    source: Source<Engine>,
    /// Ranges to send.
    ranges: Vec<KeyRange>,
    state: State,
    /// Number of steps; events of earlier steps are ignored.
    step: u64,
    /// The header has arrived.
    is_offered: bool,
    /// The receiver's log held the snapshot's last entry at that time.
    is_held: bool,
    ends_at: u64,
}

enum State {
    Offered,
    Receiving(Box<Reception<Engine>>),
    Ended,
}

impl Stream {
    /// Returns the store of the next step.
    pub fn at(&self) -> u64 {
        self.to
    }
}

impl World {
    pub(super) fn send_snapshot(&mut self, from: u64, snapshot: SendSnapshot<Engine>) {
        let source = Source::new(&snapshot, PIECE_BYTES, PIECE_PAIRS);
        let SendSnapshot { header, to_store, ranges, .. } = snapshot;
        let (region, peer) = (header.region.id, header.to.id);
        let Some(to) = self.homes.get(&to_store).copied() else {
            return self.push(from, Input::SnapshotSent { region, to: peer, ok: false });
        };
        let node = self.slots.get(&from).map_or(0, |slot| slot.node);
        let text = format!("sends region {region} at {:?} to s{to}", header.at);
        self.trace.note(self.now, node, from, || text);
        let number = self.number();
        let incarnation = |slot: u64| self.slots.get(&slot).map_or(0, |slot| slot.incarnation);
        let stream = Stream {
            from,
            from_incarnation: incarnation(from),
            to,
            to_incarnation: incarnation(to),
            header,
            source,
            ranges,
            state: State::Offered,
            step: 0,
            is_offered: false,
            is_held: false,
            ends_at: self.now + STALL_NANOS,
        };
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
                self.after(delay + PIECE_NANOS, Happening::Stream { number, step });
            }
            // Checksums cover each piece and the whole: the data is rejected.
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
        let is_running = |slot: u64, incarnation: u64| {
            let slot = self.slots.get(&slot);
            slot.is_some_and(|slot| slot.incarnation == incarnation && slot.running.is_some())
        };
        let both_run = is_running(stream.from, stream.from_incarnation)
            && is_running(stream.to, stream.to_incarnation);
        if !both_run || now > stream.ends_at {
            return self.end_stream(number, false);
        }
        match &stream.state {
            State::Offered if !stream.is_offered => {
                let (region, at) = (stream.header.region.id, stream.header.at);
                let engine = self.slots.get(&stream.to).and_then(|slot| slot.engine());
                stream.is_offered = true;
                stream.is_held = engine.and_then(|engine| engine.term(region, at.0)) == Some(at.1);
                self.offer(number);
            }
            State::Offered | State::Ended => {}
            State::Receiving(_) => self.piece(number),
        }
    }

    fn offer(&mut self, number: u64) {
        let Some(stream) = self.streams.get(&number) else { return };
        let to = stream.to;
        let mut frame = Vec::new();
        wire::encode_snapshot(&stream.header, &mut frame);
        let header = match wire::decode_snapshot(&frame) {
            Ok(header) => header,
            Err(error) => return self.fail(format!("a snapshot's header is rejected: {error}")),
        };
        self.request(to, Requester::Stream(number), |id| Input::SnapshotOffered { id, header });
    }

    pub(super) fn stream_reply(&mut self, number: u64, reply: Reply) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
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
        match engine.map(|engine| Reception::begin(engine, header, ranges)) {
            Some(Ok(reception)) => {
                stream.state = State::Receiving(Box::new(reception));
                self.stream_on(number, 64);
            }
            _ => self.end_stream(number, false),
        }
    }

    fn piece(&mut self, number: u64) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.ends_at = self.now + STALL_NANOS;
        let chunk = match stream.source.next_chunk() {
            Ok(Some(parts)) => Bytes::from(parts.concat()),
            Ok(None) => return self.received(number),
            Err(_) => return self.end_stream(number, false),
        };
        let State::Receiving(reception) = &mut stream.state else { return };
        let bytes = chunk.len() as u64;
        match reception.receive(chunk) {
            Ok(()) => self.stream_on(number, bytes),
            Err(_) => self.end_stream(number, false),
        }
    }

    /// Passes the complete snapshot to the receiver's loop, which installs it.
    fn received(&mut self, number: u64) {
        let Some(mut stream) = self.streams.remove(&number) else { return };
        let State::Receiving(reception) = std::mem::replace(&mut stream.state, State::Ended) else {
            return;
        };
        let Ok(input) = reception.finish() else {
            self.streams.insert(number, stream);
            return self.end_stream(number, false);
        };
        let Stream { from, from_incarnation, to, header, .. } = stream;
        let (region, peer) = (header.region.id, header.to.id);
        self.counts.snapshots += 1;
        self.checks.changes.snapshot_received(to, region);
        self.checks.repairs.replaced(to, region);
        self.trouble_near(to, 4);
        self.push(to, input);
        // The reply to the sender may be lost.
        let ok = !self.deliveries(to, from, 64).is_empty()
            && !self.hide_snapshot_end((region, to, from));
        self.reply_to_sender(
            (from, from_incarnation),
            Input::SnapshotSent { region, to: peer, ok },
        );
    }

    /// Ends a transfer without success: replies to the sender and drops the received pairs.
    pub(super) fn end_stream(&mut self, number: u64, ok: bool) {
        let Some(stream) = self.streams.remove(&number) else { return };
        let (region, to) = (stream.header.region.id, stream.header.to.id);
        let input = Input::SnapshotSent { region, to, ok };
        self.reply_to_sender((stream.from, stream.from_incarnation), input);
    }

    fn reply_to_sender(&mut self, sender: (u64, u64), input: Input<Engine>) {
        if self.slots.get(&sender.0).is_some_and(|slot| slot.incarnation == sender.1) {
            self.push(sender.0, input);
        }
    }

    /// Ends the transfers of a store that stops.
    pub(super) fn end_streams_of(&mut self, slot: u64) {
        let concerned = |(_, stream): &(&u64, &Stream)| stream.from == slot || stream.to == slot;
        let numbers: Vec<u64> =
            self.streams.iter().filter(concerned).map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.end_stream(number, false));
    }
}
