//! Routes of the messages of one connection: their stores, region, range, epoch and peers. A frame of several
//! messages names a route by its number once it was sent, so that a message of one of many regions costs
//! its body and a number.
//!
//! Both ends count the routes from 1, and drop all of them before one that would exceed a bound: what the
//! sender names, the receiver has.

use super::{PeerMessage, put_route};
use crate::messages::Body;
use std::collections::BTreeMap;
use stele_types::size::USER_KEY_BYTES_MAX;
use stele_types::{KeyRange, Peer, PeerId, RegionEpoch, RegionId, RegionKind, StoreId, varint};

/// Most messages in one frame: in memory they take far more bytes than there.
pub const JOINED_MAX: usize = 4096;
/// Most routes that a connection remembers.
const ROUTES_MAX: usize = 1 << 14;
/// Most bytes of their keys.
const KEY_BYTES_MAX: usize = 4 << 20;

/// Most bytes of an encoded route: two keys, and numbers of at most ten bytes.
pub const ROUTE_BYTES_MAX: usize = 2 * USER_KEY_BYTES_MAX + 128;

/// What a message is besides its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Sending and receiving store.
    pub stores: (StoreId, StoreId),
    pub region: RegionId,
    pub kind: RegionKind,
    pub range: KeyRange,
    pub epoch: RegionEpoch,
    /// Sending and receiving peer.
    pub peers: (Peer, Peer),
}

impl Route {
    fn of(message: &PeerMessage) -> Self {
        Self {
            stores: (message.from_store, message.to_store),
            region: message.region,
            kind: message.kind,
            range: message.range.clone(),
            epoch: message.epoch,
            peers: (message.from, message.to),
        }
    }

    /// Returns whether the message has this route.
    fn is_of(&self, message: &PeerMessage) -> bool {
        let is_of = self.stores == (message.from_store, message.to_store)
            && self.region == message.region
            && self.kind == message.kind
            && self.epoch == message.epoch
            && self.peers == (message.from, message.to)
            && self.range == message.range;
        // bug replica.changed_route_unsent: return self.region == message.region;
        is_of
    }

    pub(super) fn with(self, body: Body) -> PeerMessage {
        let Self { stores: (from_store, to_store), region, kind, range, epoch, peers } = self;
        let (from, to) = peers;
        PeerMessage { from_store, to_store, region, kind, range, epoch, from, to, body }
    }

    fn key_bytes(&self) -> usize {
        self.range.start.len() + self.range.end.len()
    }
}

/// Bound of both ends.
#[derive(Debug, Default)]
struct Held {
    routes: usize,
    key_bytes: usize,
}

impl Held {
    /// Counts a new route. Returns whether those before it are dropped.
    fn add(&mut self, key_bytes: usize) -> bool {
        let is_full = self.routes == ROUTES_MAX || self.key_bytes + key_bytes > KEY_BYTES_MAX;
        // bug replica.routes_unbounded: let is_full = false;
        if is_full {
            *self = Self::default();
        }
        self.routes += 1;
        self.key_bytes += key_bytes;
        is_full
    }
}

/// Region and peers of a route; stores for messages outside any region.
type RouteKey = (RegionId, (PeerId, PeerId), (StoreId, StoreId));

/// Routes that were sent on a connection.
#[derive(Debug, Default)]
pub struct SentRoutes {
    numbers: BTreeMap<RouteKey, (u64, Route)>,
    held: Held,
}

impl SentRoutes {
    /// Appends a message's route to `out`: its number if it was sent before. The message must then be sent
    /// on the connection.
    pub fn put(&mut self, message: &PeerMessage, out: &mut Vec<u8>) {
        let stores = (message.from_store, message.to_store);
        let key = (message.region, (message.from.id, message.to.id), stores);
        if let Some((number, route)) = self.numbers.get(&key)
            && route.is_of(message)
        {
            return varint::put(out, *number);
        }
        let route = Route::of(message);
        if self.held.add(route.key_bytes()) {
            self.numbers.clear();
        }
        self.numbers.insert(key, (self.held.routes as u64, route));
        varint::put(out, 0);
        put_route(message, out);
    }
}

/// Routes that were received on a connection, in order.
#[derive(Debug, Default)]
pub struct ReceivedRoutes {
    routes: Vec<Route>,
    held: Held,
}

impl ReceivedRoutes {
    pub(super) fn note(&mut self, route: Route) {
        if self.held.add(route.key_bytes()) {
            self.routes.clear();
        }
        self.routes.push(route);
    }

    pub(super) fn get(&self, number: u64) -> Option<&Route> {
        let at = usize::try_from(number.checked_sub(1)?).ok()?;
        self.routes.get(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode_joined, encode_body};
    use bytes::Bytes;
    use stele_types::Prng;

    /// Both ends of a connection.
    #[derive(Default)]
    struct Ends {
        sent: SentRoutes,
        received: ReceivedRoutes,
    }

    impl Ends {
        /// Returns a frame of these messages.
        fn frame(&mut self, messages: &[PeerMessage]) -> Bytes {
            let mut frame = Vec::new();
            for message in messages {
                let mut payloads = Vec::new();
                self.sent.put(message, &mut frame);
                encode_body(&message.body, &mut frame, &mut payloads);
                frame.extend(payloads.concat());
            }
            frame.into()
        }

        /// Sends the messages. Returns the length of their frame.
        fn pass(&mut self, messages: &[PeerMessage]) -> usize {
            let frame = self.frame(messages);
            let mut out = Vec::new();
            decode_joined(&frame, &mut self.received, |message| out.push(message)).unwrap();
            assert_eq!(out, messages);
            frame.len()
        }
    }

    fn message(region: u64, key: &[u8]) -> PeerMessage {
        let mut message = PeerMessage::between_stores(StoreId(1), StoreId(2), Body::WakeUp);
        message.region = RegionId(region);
        message.range.start = Bytes::copy_from_slice(key);
        message
    }

    #[test]
    fn messages_of_one_frame_arrive_whatever_their_bodies_and_a_known_route_is_a_number() {
        let mut ends = Ends::default();
        let bodies = crate::wire::tests::bodies();
        let first = ends.pass(&bodies);
        let again = ends.pass(&bodies);
        assert!(again < first, "{again} bytes after {first}");
        assert_eq!(ends.pass(&[message(7, b"start")]), 21);
        assert_eq!(ends.pass(&[message(7, b"start")]), 2);
    }

    #[test]
    fn a_change_of_the_region_or_of_its_peers_is_sent_and_so_is_the_way_back() {
        let mut ends = Ends::default();
        let mut one = message(7, b"a");
        ends.pass(&[one.clone(), one.clone()]);
        one.epoch.version += 1;
        ends.pass(&[one.clone(), one.clone()]);
        one.range.end = Bytes::from_static(b"b");
        ends.pass(&[one.clone()]);
        one.to.role = stele_types::PeerRole::Learner;
        ends.pass(&[one.clone(), message(7, b"a"), one]);
    }

    #[test]
    fn both_ends_drop_their_routes_at_the_same_ones() {
        let mut ends = Ends::default();
        let mut draw = Prng::new(3);
        for key_bytes in [4, 4_000] {
            let regions = 2 * ROUTES_MAX as u64 + 100;
            for round in 0..3 * regions / 64 {
                let region = |_| message(1 + draw.below(regions), &vec![7; key_bytes]);
                let messages: Vec<_> = (0..64).map(region).collect();
                ends.pass(&messages);
                let (sent, received) = (&ends.sent, &ends.received);
                assert!(received.routes.len() <= ROUTES_MAX && sent.numbers.len() <= ROUTES_MAX);
                let bytes: usize = received.routes.iter().map(Route::key_bytes).sum();
                assert!(bytes <= KEY_BYTES_MAX, "{bytes} in round {round}");
            }
        }
    }

    #[test]
    fn a_route_that_was_not_sent_and_damaged_frames_are_refused() {
        let mut sender = Ends::default();
        sender.pass(&[message(7, b"a")]);
        let frame = sender.frame(&[message(7, b"a")]);
        let decode = |frame: &Bytes| {
            let mut count = 0;
            let decoded = decode_joined(frame, &mut ReceivedRoutes::default(), |_| count += 1);
            (decoded.is_ok(), count)
        };
        assert_eq!(decode(&frame), (false, 0));
        let many = vec![message(7, b"a"); JOINED_MAX + 1];
        assert_eq!(decode(&Ends::default().frame(&many[1..])), (true, JOINED_MAX));
        assert_eq!(decode(&Ends::default().frame(&many)), (false, JOINED_MAX));
        let whole = Ends::default().frame(&crate::wire::tests::bodies());
        let count = crate::wire::tests::bodies().len();
        assert_eq!(decode(&whole), (true, count));
        let mut draw = Prng::new(5);
        for _ in 0..2_000 {
            let mut bad = whole.to_vec();
            let at = draw.below(bad.len() as u64) as usize;
            match draw.coin() {
                true => bad.truncate(at),
                false => bad[at] = draw.draw() as u8,
            }
            decode(&bad.into());
        }
    }
}
