//! Incoming connection: handshake, then delivery of messages.

use super::closed::{CloseReason, RejectReason};
use super::connection::{self, Reader};
use super::frame::{self, FrameKind, Frames};
use super::hello::{self, Hello, Lane, MAGIC, RefusedStore, Welcome};
use super::queue::message_bytes;
use super::shared::{ROOM_UNIT_BYTES, Shared, Stats};
use super::{BoxFuture, snapshot_stream};
use crate::access::{Denied, Rights, Socket, SocketWriter, socket};
use std::io;
use std::sync::Arc;
use stele_node::members::RunStanding;
use stele_node::succession::Refusal;
use stele_replica::PeerMessage;
use stele_replica::wire::{self, ReceivedRoutes};
use stele_tls::NodeName;
use stele_types::{StoreId, StoreRun};
use tokio::io::AsyncReadExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Larger frames need a receive budget; smaller ones lie in blocks that a connection has anyway.
pub(super) const SMALL_FRAME_BYTES_MAX: usize = 64 << 10;

pub(super) async fn run(shared: Arc<Shared>, stream: Socket, rights: Rights) {
    let name = match socket::tcp(&stream).peer_addr() {
        Ok(address) => address.to_string(),
        Err(_) => "unknown".to_owned(),
    };
    let mut remote = Remote { name, is_logged: false };
    let permit = shared.incoming.clone().try_acquire_owned();
    let denied = rights.check_node().err();
    let ended = match (permit, denied) {
        // Invariant: only a node of the cluster sends messages of nodes.
        // Tests: `a_client_is_no_node_of_the_cluster`.
        (_, Some(denied)) if !denied.is_elsewhere() => Err(CloseReason::Denied(denied)),
        (Ok(_permit), denied) => serve(&shared, (stream, rights.node()), denied, &mut remote).await,
        (Err(_), _) => {
            Err(CloseReason::Refused(RejectReason::TooMany, "too many connections".to_owned()))
        }
    };
    if let Err(reason) = ended {
        shared.stats.count_closed(&reason);
        if !remote.is_logged {
            shared.deliver.closed(&remote.name, &reason);
        }
    }
}

struct Remote {
    name: String,
    /// The log already contains the reason why its connections end.
    is_logged: bool,
}

async fn serve(
    shared: &Arc<Shared>,
    (stream, node): (Socket, Option<&NodeName>),
    elsewhere: Option<Denied>,
    remote: &mut Remote,
) -> Result<(), CloseReason> {
    let (mut reader, mut writer) = connection::split(stream)?;
    let handshake = handshake(shared, (&mut reader, node, &mut writer), elsewhere, remote);
    let hello = timeout(shared.options.dial_timeout, handshake).await;
    let Greeted { hello, refused } = hello.map_err(|_| CloseReason::Silent)??;
    Stats::add(&shared.stats.connections_in, 1);
    let heard = Heard::new(&hello, &refused, node);
    let _connected = shared.runs.connect(heard.runs.clone());
    // A node that dialled this one can be dialled: pauses end.
    for node in hello.from.iter().filter_map(|store| shared.nodes.known(*store)) {
        node.retry();
    }
    reader.bound(hello.lane.frame_bytes_max());
    match hello.lane {
        Lane::Urgent | Lane::Data => messages(shared, &hello, &heard, reader, writer).await,
        Lane::Bulk => {
            let is_heard = |store| heard.holds(store);
            snapshot_stream::receive(shared, &hello, is_heard, reader, writer).await
        }
        Lane::Probe => Ok(()),
    }
}

struct Greeted {
    hello: Hello,
    /// Stores that are not heard.
    refused: Vec<RefusedStore>,
}

/// Stores of a connection that are heard, with their runs.
struct Heard<'a> {
    address: String,
    /// Name in the certificate of their node; `None` without TLS.
    node: Option<&'a NodeName>,
    /// Stores that are not heard because no list of members has named them yet.
    not_listed: Vec<StoreId>,
    runs: Vec<(StoreId, StoreRun)>,
}

impl<'a> Heard<'a> {
    fn new(hello: &Hello, refused: &[RefusedStore], node: Option<&'a NodeName>) -> Self {
        let mut runs = hello.runs_of_stores();
        runs.retain(|(store, _)| !refused.iter().any(|it| it.store == *store));
        if hello.lane == Lane::Probe {
            runs.clear();
        }
        let not_listed = refused.iter().filter(|it| it.refusal == Refusal::NotListed);
        let not_listed = not_listed.map(|it| it.store).collect();
        Self { address: hello.address.clone(), node, not_listed, runs }
    }

    /// Returns which of these stores were removed from the cluster. Fails if another run of one of
    /// them was accepted since, or if it is bound to another node since.
    ///
    /// Invariant: when a run is accepted, no message of the displaced one is delivered any more, and its
    /// connections end.
    ///
    /// Invariant: when a store is bound to a node, the connections of others end that were heard for it.
    /// Test: `a_node_speaks_for_its_own_stores_alone`.
    fn check(
        &self,
        shared: &Shared,
        of: impl Fn(StoreId) -> bool,
    ) -> Result<Vec<StoreId>, CloseReason> {
        let (mut removed, node) = (Vec::new(), self.node);
        for (store, run) in self.runs.iter().filter(|(store, _)| of(*store)) {
            // bug server.bound_store_heard_on: let node = None;
            if shared.is_foreign(*store, node) {
                return Err(CloseReason::NotOwner(*store));
            }
            let standing = shared.resolve.standing(*store, run, &self.address);
            // bug server.displaced_run_heard: let standing = RunStanding::Heard;
            match standing {
                RunStanding::Heard => {}
                RunStanding::Removed => removed.push(*store),
                RunStanding::Displaced => return Err(CloseReason::Displaced),
            }
        }
        Ok(removed)
    }

    /// Fails if a store of the connection can be heard that was not: the node dials again.
    fn check_listed(&self, shared: &Shared) -> Result<(), CloseReason> {
        let is_listed = |store: &StoreId| {
            self.node.is_some_and(|node| shared.resolve.check_owner(*store, node.as_str()).is_ok())
        };
        if self.not_listed.iter().any(is_listed) { Err(CloseReason::Ended) } else { Ok(()) }
    }

    fn holds(&self, store: StoreId) -> bool {
        self.runs.iter().any(|(it, _)| *it == store)
    }
}

async fn handshake(
    shared: &Arc<Shared>,
    (reader, node, writer): (&mut Reader, Option<&NodeName>, &mut SocketWriter),
    elsewhere: Option<Denied>,
    remote: &mut Remote,
) -> Result<Greeted, CloseReason> {
    let mut magic = [0; MAGIC.len()];
    reader.parts().1.read_exact(&mut magic).await?;
    if magic != MAGIC {
        return Err(CloseReason::Malformed("the first bytes are not a node's"));
    }
    let frame = reader.next(&shared.stats).await?;
    let hello = Some(frame).filter(|frame| frame.kind == FrameKind::Hello);
    let hello = hello.and_then(|frame| Hello::decode(&frame.body));
    let hello = hello.ok_or(CloseReason::Malformed("the connection begins without a hello"))?;
    remote.name = format!("{} at {} ({}, incoming)", hello.address, remote.name, hello.lane.name());
    let is_removed = |store| shared.resolve.is_removed(store);
    let own = shared.own.borrow().all();
    let elsewhere = elsewhere.map(|denied| (RejectReason::OtherListener, denied.to_string()));
    let mut rejection = elsewhere.or_else(|| hello.rejection(&shared.identity, &own, is_removed));
    // Invariant: only a node of this cluster states addresses.
    let mut refused = Vec::new();
    if rejection.is_none() && hello.lane != Lane::Probe {
        refused = shared.refused_stores(&hello, node).await;
    }
    let is_heard = |store: &StoreId| {
        !is_removed(*store) && !refused.iter().any(|it: &RefusedStore| it.store == *store)
    };
    // bug server.copy_refuses_node: `!hello.from.iter().any(is_heard)` is `true`
    if let Some(first) = refused.first()
        && !hello.from.iter().any(is_heard)
    {
        rejection = Some((RejectReason::of_stores(first.refusal), first.text.clone()));
    }
    // A node that is refused dials again several times a second.
    let reason = rejection.as_ref().map(|(reason, _)| *reason);
    let of_first = || refused.first().map(|it| RejectReason::of_stores(it.refusal));
    let logged = reason.or_else(of_first);
    let is_repeated = shared.note_rejection(&hello, logged);
    // Refusals by certificate were logged where they are counted.
    let by_node = [Some(RejectReason::OtherNode), Some(RejectReason::NotListed)].contains(&logged);
    remote.is_logged = is_repeated || by_node;
    if let Some((reason, text)) = rejection {
        let answer = frame::whole(FrameKind::Refused, &hello::refused(reason, &text, &refused));
        socket::send(writer, &answer).await?;
        return Err(CloseReason::Refused(reason, text));
    }
    if !refused.is_empty() && !remote.is_logged {
        shared.deliver.refuses(&remote.name, &refused);
    }
    remote.is_logged = false;
    let (gone, serving): (_, Vec<StoreId>) = {
        let own = shared.own.borrow();
        (own.gone.clone(), own.serving().collect())
    };
    let runs = serving.into_iter().map(|store| (store, shared.identity.boots.get(store)));
    let runs = runs.filter(|(_, run)| run.is_known()).collect();
    let welcome = Welcome { version: hello.version(), gone, runs, refused: refused.clone() };
    socket::send(writer, &frame::whole(FrameKind::Welcome, &welcome.encode())).await?;
    Ok(Greeted { hello, refused })
}

async fn messages(
    shared: &Shared,
    hello: &Hello,
    heard: &Heard<'_>,
    mut reader: Reader,
    mut writer: SocketWriter,
) -> Result<(), CloseReason> {
    let options = &shared.options;
    let mut own = shared.own.subscribe();
    if !own.borrow().gone.is_empty() {
        // It may have changed since the welcome.
        own.mark_changed();
    }
    let mut tick = interval(options.keepalive_interval);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let silent_ticks_max = ticks(shared);
    let mut silent_ticks = 0;
    let (frames, stream) = reader.parts();
    let mut room = Room::new(shared);
    let (mut routes, mut messages) = (ReceivedRoutes::default(), Vec::new());
    loop {
        let ended = take_messages(shared, hello, (frames, &mut routes), &mut messages);
        if !messages.is_empty() {
            deliver(shared, heard, &mut messages)?;
            room.release();
        }
        ended?;
        room.request(frames.begun_bytes());
        tokio::select! {
            // Invariant: a large frame is not read further before there is budget for all of it.
            // The budget is acquired at once, so that connections with partial budgets cannot
            // deadlock.
            () = room.acquired(), if room.is_requested() => silent_ticks = 0,
            read = stream.read_buf(frames.room()), if !room.is_requested() => {
                let bytes = read?;
                if bytes == 0 {
                    return Err(CloseReason::Ended);
                }
                Stats::add(&shared.stats.bytes_received, bytes);
                silent_ticks = 0;
            }
            _ = tick.tick() => {
                silent_ticks += u32::from(!room.is_requested());
                if silent_ticks > silent_ticks_max {
                    return Err(CloseReason::Silent);
                }
                let _ = heard.check(shared, |_| true)?;
                heard.check_listed(shared)?;
                frames.release_blocks();
                write_alive(shared, &mut writer)?;
            }
            // The sender is a part of `shared`.
            Ok(()) = own.changed() => {
                write_alive(shared, &mut writer)?;
            }
        }
    }
}

/// Writes a keepalive with the stores that do not serve. Only keepalives are written here: if one
/// does not fit, they have not been read for hours.
fn write_alive(shared: &Shared, writer: &mut SocketWriter) -> Result<(), CloseReason> {
    let alive = frame::whole(FrameKind::Alive, &hello::alive(&shared.own.borrow().gone));
    socket::send_now(writer, &alive).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => CloseReason::Stalled,
        _ => CloseReason::Io(error),
    })
}

/// A connection's part of [`Shared::room`].
struct Room<'a> {
    shared: &'a Shared,
    held: Option<OwnedSemaphorePermit>,
    requested: Option<BoxFuture<'static, Option<OwnedSemaphorePermit>>>,
}

impl<'a> Room<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self { shared, held: None, requested: None }
    }

    /// Requests budget for a frame of `bytes`, unless it is small or has its budget.
    fn request(&mut self, bytes: usize) {
        let is_small = bytes <= SMALL_FRAME_BYTES_MAX;
        // bug server.received_unbounded: let is_small = true;
        if is_small || self.held.is_some() || self.requested.is_some() {
            return;
        }
        // A frame larger than the whole budget takes all of it.
        let units = bytes.min(self.shared.options.received_bytes_max).div_ceil(ROOM_UNIT_BYTES);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let room = self.shared.room.clone();
        match room.clone().try_acquire_many_owned(units) {
            Ok(permit) => self.held = Some(permit),
            Err(_) => {
                Stats::add(&self.shared.stats.waits_for_room, 1);
                let wait = async move { room.acquire_many_owned(units).await.ok() };
                self.requested = Some(Box::pin(wait));
            }
        }
    }

    fn is_requested(&self) -> bool {
        self.requested.is_some()
    }

    /// Waits for the requested budget; when dropped, it keeps its place in the queue.
    async fn acquired(&mut self) {
        if let Some(requested) = &mut self.requested {
            self.held = requested.await;
            self.requested = None;
        }
    }

    fn release(&mut self) {
        self.held = None;
    }
}

/// Returns the number of intervals that may pass without a received byte.
fn ticks(shared: &Shared) -> u32 {
    let options = &shared.options;
    let interval = options.keepalive_interval.as_millis().max(1);
    u32::try_from(options.silence_max.as_millis().div_ceil(interval) + 1).unwrap_or(u32::MAX)
}

/// Takes the messages that have arrived as a whole, each with its approximate bytes. Those before a
/// malformed one are taken.
fn take_messages(
    shared: &Shared,
    hello: &Hello,
    (frames, routes): (&mut Frames, &mut ReceivedRoutes),
    messages: &mut Vec<(PeerMessage, u64)>,
) -> Result<(), CloseReason> {
    let lane = shared.stats.lane(hello.lane);
    while let Some(frame) = frames.take()? {
        let before = messages.len();
        let mut take = |message: PeerMessage| {
            let bytes = message_bytes(&message);
            messages.push((message, bytes));
        };
        let decoded = match frame.kind {
            FrameKind::Alive => continue,
            FrameKind::Message => wire::decode(frame.body.clone()).map(take),
            FrameKind::Messages => wire::decode_joined(&frame.body, routes, &mut take),
            _ => {
                return Err(CloseReason::Malformed(
                    "a frame of this kind does not belong on this connection",
                ));
            }
        };
        Stats::add(&lane.frames_received, 1);
        Stats::add(&lane.bytes_received, frame.body.len());
        // Invariant: a connection carries only messages of the stores in its hello.
        let is_known = |(message, _): &(PeerMessage, u64)| hello.from.contains(&message.from_store);
        // bug server.any_sender: never
        if !messages.iter().skip(before).all(is_known) {
            messages.truncate(before);
            return Err(CloseReason::Malformed("the sending store is not in the hello"));
        }
        decoded.map_err(CloseReason::Unreadable)?;
    }
    Ok(())
}

/// Delivers messages, in order. What decides whether they are heard is read once for all of them.
fn deliver(
    shared: &Shared,
    heard: &Heard<'_>,
    messages: &mut Vec<(PeerMessage, u64)>,
) -> Result<(), CloseReason> {
    let is_from = |store| messages.iter().any(|(message, _)| message.from_store == store);
    let removed = heard.check(shared, is_from)?;
    let is_heard = |from| {
        // bug server.removed_store_heard: `!removed.contains(&from) && heard.holds(from)` is `true`
        !removed.contains(&from) && heard.holds(from)
    };
    let taken = messages.len();
    {
        let own = shared.own.borrow();
        messages
            .retain(|(message, _)| own.serves(message.to_store) && is_heard(message.from_store));
    }
    Stats::add(&shared.stats.strays_received, taken - messages.len());
    Stats::add(&shared.stats.messages_received, messages.len());
    shared.deliver.messages(messages);
    messages.clear();
    Ok(())
}
