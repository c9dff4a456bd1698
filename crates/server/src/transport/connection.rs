//! One connection: reading and writing of frames.

use super::closed::CloseReason;
use super::frame::{self, Frame, FrameKind, Frames};
use super::hello::{self, HELLO_BYTES_MAX, Hello, Lane, MAGIC, Welcome};
use super::runs::PROBE_TIME;
use super::shared::{Shared, Stats};
use crate::access::{Socket, SocketReader, SocketWriter, socket};
use stele_tls::{NodeName, Protocol};
use stele_types::StoreId;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

pub(super) struct Reader {
    stream: SocketReader,
    frames: Frames,
}

impl Reader {
    /// Reads the next frame. When the future is dropped no byte is lost.
    pub(super) async fn next(&mut self, stats: &Stats) -> Result<Frame, CloseReason> {
        loop {
            if let Some(frame) = self.frames.take()? {
                return Ok(frame);
            }
            let bytes = self.stream.read_buf(self.frames.room()).await?;
            if bytes == 0 {
                return Err(CloseReason::Ended);
            }
            Stats::add(&stats.bytes_received, bytes);
        }
    }

    pub(super) fn bound(&mut self, bytes_max: usize) {
        self.frames.bound(bytes_max);
    }

    pub(super) fn parts(&mut self) -> (&mut Frames, &mut SocketReader) {
        (&mut self.frames, &mut self.stream)
    }
}

/// Splits a connection into halves; frames are bounded as before a hello.
pub(super) fn split(stream: Socket) -> Result<(Reader, SocketWriter), CloseReason> {
    socket::tcp(&stream).set_nodelay(true)?;
    let (read, write) = socket::into_halves(stream);
    Ok((Reader { stream: read, frames: Frames::new(HELLO_BYTES_MAX) }, write))
}

pub(super) struct Dialled {
    pub reader: Reader,
    pub writer: SocketWriter,
    pub welcome: Welcome,
    /// Name in the certificate of the node; `None` without TLS.
    pub node: Option<NodeName>,
}

/// Dials a node and verifies that it is the expected one.
pub(super) async fn dial(
    shared: &Shared,
    address: &str,
    lane: Lane,
    wanted: &[StoreId],
) -> Result<Dialled, CloseReason> {
    let identity = &shared.identity;
    let mut hello = Hello::new(lane, identity.cluster, &identity.address);
    hello.times = Some(identity.times);
    hello.from = shared.own.borrow().opened.clone();
    // Nodes of earlier versions refuse a hello that names a removed store.
    if hello.from.iter().any(|store| !shared.resolve.is_removed(*store)) {
        hello.from.retain(|store| !shared.resolve.is_removed(*store));
    }
    hello.runs = hello.from.iter().map(|store| identity.boots.get(*store)).collect();
    hello.wanted = wanted.to_vec();
    let handshake = async {
        let stream = shared.options.access.dial(address, Protocol::Node).await;
        let stream = stream.map_err(CloseReason::Dial)?;
        let node = socket::node(&stream);
        let (mut reader, mut writer) = split(stream)?;
        let handshake_bytes =
            [&MAGIC, &frame::whole(FrameKind::Hello, &hello.encode())[..]].concat();
        socket::send(&mut writer, &handshake_bytes).await?;
        loop {
            let answer = reader.next(&shared.stats).await?;
            match answer.kind {
                FrameKind::Welcome => {
                    let welcome = Welcome::decode(&answer.body);
                    let mut welcome =
                        welcome.ok_or(CloseReason::Malformed("unreadable reply to a hello"))?;
                    // Invariant: a node at the address of a store is its node only by its certificate.
                    // Test: `a_node_at_the_address_of_another_ones_store_gets_nothing_for_it`.
                    // bug server.any_node_answers: let node = None;
                    let is_foreign = |store: &StoreId| shared.is_foreign(*store, node.as_ref());
                    if let Some(store) = wanted.first().filter(|_| wanted.iter().all(is_foreign)) {
                        return Err(CloseReason::NotOwner(*store));
                    }
                    welcome.runs.retain(|(store, _)| !is_foreign(store));
                    shared.note_refused(&welcome.refused);
                    return Ok(Dialled { reader, writer, welcome, node });
                }
                FrameKind::Refused => {
                    let (reason, refused) = hello::read_refused(&answer.body);
                    shared.note_refused(&refused);
                    return Err(reason);
                }
                FrameKind::Alive => {}
                _ => return Err(CloseReason::Malformed("unexpected reply to a hello")),
            }
        }
    };
    let limit = match lane {
        Lane::Probe => PROBE_TIME,
        _ => shared.options.dial_timeout,
    };
    let connected = timeout(limit, handshake).await;
    let connected = connected.map_err(|_| CloseReason::Silent)??;
    Stats::add(&shared.stats.connections_out, 1);
    Ok(connected)
}

pub(super) async fn next_frame(shared: &Shared, reader: &mut Reader) -> Result<Frame, CloseReason> {
    // Invariant: a connection that receives nothing for `silence_max` is closed; otherwise a half-open
    // one would accept messages permanently.
    // bug server.silence_ignored: `shared.options.silence_max` is `std::time::Duration::MAX`
    let frame = timeout(shared.options.silence_max, reader.next(&shared.stats)).await;
    frame.map_err(|_| CloseReason::Silent)?
}
