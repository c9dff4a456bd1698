//! One snapshot on its own connection: chunks go one way; TCP provides the back-pressure.
//!
//! ```text
//! sender:   Offer Chunk* End                receiver: Accepted Alive* (Done | Declined)
//! chunk    := number:u64le bytes            (numbered from 0)
//! end      := position                      (after the last chunk)
//! accepted := position?                     (what the receiver has; absent: nothing)
//! position := chunks:u64le bytes:u64le crc:u32le          (over the bytes of all chunks)
//! ```
//!
//! A snapshot with totals that do not match is refused as a whole. After a connection that broke, a sender
//! that offers the same snapshot goes on after the receiver's position.
//!
//! In version 1 of the protocol a chunk has at most [`CHUNK_BYTES_MAX`] bytes, and a byte after its
//! number, which was the end of a piece. Each snapshot begins at its first chunk. Before version 3 the header
//! of an offer has no merges that the region committed.

use super::batch::FrameBatch;
use super::closed::CloseReason;
use super::connection::{self, Dialled, Reader};
use super::frame::{self, Frame, FrameKind};
use super::hello::{self, Hello, Lane, Offer, RESUMABLE};
use super::shared::{Shared, Stats};
use crate::access::{SocketWriter, socket};
use bytes::Bytes;
use std::sync::Arc;
use stele_node::snapshot::Position;
use stele_types::StoreId;
use stele_types::checksum::{Crc32c, crc32c, crc32c_suffix};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;

/// Most bytes in one chunk of version 1.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
const NUMBER_BYTES: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Tally {
    at: Position,
    version: u8,
}

impl Tally {
    fn header_bytes(&self) -> usize {
        NUMBER_BYTES + usize::from(self.version < RESUMABLE)
    }

    fn send(&mut self, parts: &[Bytes]) -> (Vec<u8>, u32) {
        let mut header = self.at.chunks().to_le_bytes().to_vec();
        header.resize(self.header_bytes(), 1);
        let mut sum = Crc32c::new();
        for part in parts {
            sum.update(part);
        }
        let (crc, bytes) = (sum.finish(), parts.iter().map(|part| part.len() as u64).sum());
        self.at.add(crc, bytes);
        let frame = Crc32c::new().update(&header).update_with_crc(crc, bytes).finish();
        (header, frame)
    }

    /// Returns the chunk of a frame, if it is the next one.
    fn receive(&mut self, frame: &Frame) -> Option<Bytes> {
        let (number, _) = frame.body.split_first_chunk::<NUMBER_BYTES>()?;
        // Invariant: chunks are accepted in order; a gap or a repetition fails the snapshot.
        let in_place = u64::from_le_bytes(*number) == self.at.chunks();
        // bug server.snapshot_gap: never
        if !in_place {
            return None;
        }
        let header = frame.body.get(..self.header_bytes())?;
        let chunk = frame.body.slice(header.len()..);
        if self.version < RESUMABLE && chunk.len() > CHUNK_BYTES_MAX {
            return None;
        }
        let bytes = chunk.len() as u64;
        // The frame's checksum was verified: the chunk is not read for its own.
        self.at.add(crc32c_suffix(crc32c(header), frame.crc, bytes), bytes);
        Some(chunk)
    }
}

fn frame_bytes_max() -> usize {
    Lane::Bulk.frame_bytes_max()
}

/// Snapshot being sent. When it is dropped the receiver drops all of it.
pub struct SnapshotSender {
    shared: Arc<Shared>,
    writer: SocketWriter,
    /// Replies of the receiver, without keepalives.
    answers: mpsc::Receiver<Result<Frame, CloseReason>>,
    tally: Tally,
    batch: FrameBatch,
}

/// Offers a snapshot and waits until the receiver accepts it. If `resumes` is set, the receiver may have a
/// part of it: [`SnapshotSender::position`].
pub(super) async fn open(
    shared: Arc<Shared>,
    to: StoreId,
    from: StoreId,
    header: Bytes,
    resumes: bool,
) -> Result<SnapshotSender, CloseReason> {
    let address = shared.resolve.address(to).ok_or(CloseReason::NoAddress(to))?;
    let dialled = connection::dial(&shared, &address, Lane::Bulk, &[to]).await?;
    let Dialled { reader, writer, welcome, .. } = dialled;
    let version = welcome.version;
    let (replies, answers) = mpsc::channel(2);
    let name = format!("replies to a snapshot for store {to}");
    shared.spawn(name, read_replies(shared.clone(), reader, replies));
    let tally = Tally { at: Position::default(), version };
    let mut sender =
        SnapshotSender { shared, writer, answers, tally, batch: FrameBatch::default() };
    let offer = Bytes::from(Offer { to, from, resumes, header }.encode(version));
    let crc = crc32c(&offer);
    sender.write(FrameKind::Offer, &[], vec![offer], crc).await?;
    let answer = timeout(sender.shared.options.stall_max, sender.answer()).await;
    let answer = answer.map_err(|_| CloseReason::Stalled)??;
    let at = match answer.kind {
        FrameKind::Accepted if answer.body.is_empty() => Some(Position::default()),
        FrameKind::Accepted if resumes => Position::decode(&answer.body),
        FrameKind::Accepted => {
            Position::decode(&answer.body).filter(|at| *at == Position::default())
        }
        _ => None,
    };
    sender.tally.at = at.ok_or(CloseReason::Malformed("unexpected reply to an offer"))?;
    Ok(sender)
}

async fn read_replies(
    shared: Arc<Shared>,
    mut reader: Reader,
    replies: mpsc::Sender<Result<Frame, CloseReason>>,
) {
    loop {
        let received = tokio::select! {
            received = connection::next_frame(&shared, &mut reader) => received,
            () = replies.closed() => return,
        };
        if matches!(&received, Ok(frame) if frame.kind == FrameKind::Alive) {
            continue;
        }
        let is_end = received.is_err();
        if replies.send(received).await.is_err() || is_end {
            return;
        }
    }
}

impl SnapshotSender {
    /// Returns the position after the last chunk.
    pub fn position(&self) -> Position {
        self.tally.at
    }

    /// Returns whether the receiver can go on after this connection broke.
    pub(crate) fn is_resumable(&self) -> bool {
        self.tally.version >= RESUMABLE
    }

    /// Sends the next chunk, in parts; waits while the network or the receiver is slower.
    pub async fn send(&mut self, parts: Vec<Bytes>) -> Result<(), CloseReason> {
        if self.is_resumable() {
            return self.send_chunk(parts).await;
        }
        // A node of version 1 puts together what is cut.
        let mut rest = Bytes::from(parts.concat());
        while !rest.is_empty() {
            let chunk = rest.split_to(rest.len().min(CHUNK_BYTES_MAX));
            self.send_chunk(vec![chunk]).await?;
        }
        Ok(())
    }

    async fn send_chunk(&mut self, parts: Vec<Bytes>) -> Result<(), CloseReason> {
        let (header, crc) = self.tally.send(&parts);
        self.write(FrameKind::Chunk, &header, parts, crc).await
    }

    /// Ends the snapshot and waits until the receiver has received all of it.
    pub async fn finish(mut self) -> Result<(), CloseReason> {
        let end = Bytes::copy_from_slice(&self.tally.at.encode());
        let crc = crc32c(&end);
        self.write(FrameKind::End, &[], vec![end], crc).await?;
        match self.answer().await?.kind {
            FrameKind::Done => {
                Stats::add(&self.shared.stats.snapshots_sent, 1);
                Ok(())
            }
            _ => Err(CloseReason::Malformed("unexpected reply to the end of a snapshot")),
        }
    }

    /// Returns the receiver's reply; waits while the connection is alive.
    async fn answer(&mut self) -> Result<Frame, CloseReason> {
        read(self.answers.recv().await)
    }

    async fn write(
        &mut self,
        kind: FrameKind,
        header: &[u8],
        payload: Vec<Bytes>,
        crc: u32,
    ) -> Result<(), CloseReason> {
        self.batch.clear();
        self.batch.add(kind, header, payload, crc);
        let write = self.batch.write(&mut self.writer, self.shared.options.stall_max);
        let written = tokio::select! {
            biased;
            // Any reply before the end refuses the rest.
            answer = self.answers.recv() => {
                read(answer)?;
                return Err(CloseReason::Malformed("a reply before the end of the snapshot"));
            }
            written = write => written,
        };
        if let Err(CloseReason::Io(error)) = written {
            // A reply sent before the connection closed gives the better reason.
            read(self.answers.recv().await)?;
            return Err(CloseReason::Io(error));
        }
        written?;
        let stats = &self.shared.stats;
        Stats::add(&stats.bytes_sent, self.batch.bytes());
        Stats::add(&stats.lane(Lane::Bulk).frames_sent, self.batch.frames());
        Stats::add(&stats.lane(Lane::Bulk).bytes_sent, self.batch.bytes());
        Ok(())
    }
}

fn read(answer: Option<Result<Frame, CloseReason>>) -> Result<Frame, CloseReason> {
    let frame = answer.unwrap_or(Err(CloseReason::Ended))?;
    match frame.kind {
        FrameKind::Declined => {
            Err(CloseReason::Declined(String::from_utf8_lossy(&frame.body).into_owned()))
        }
        FrameKind::Refused => Err(hello::read_refused(&frame.body).0),
        _ => Ok(frame),
    }
}

/// Longest offer, in bytes.
const OFFER_BYTES_MAX: usize = 1 << 20;

/// Snapshot that another node offers. It is declined when it is dropped.
pub struct SnapshotOffer {
    offer: Offer,
    version: u8,
    connection: Connection,
}

/// Snapshot being received. It is declined when it is dropped before [`SnapshotReceiver::done`].
pub struct SnapshotReceiver {
    connection: Connection,
    tally: Tally,
    ended: bool,
}

struct Connection {
    shared: Arc<Shared>,
    reader: Reader,
    /// Channel to the writing task: replies, with keepalives between them.
    replies: mpsc::Sender<Bytes>,
    _permit: OwnedSemaphorePermit,
}

/// Passes an offered snapshot to the owner, if its sending store is heard.
pub(super) async fn receive(
    shared: &Arc<Shared>,
    hello: &Hello,
    is_heard: impl Fn(StoreId) -> bool,
    mut reader: Reader,
    mut writer: SocketWriter,
) -> Result<(), CloseReason> {
    let (stall_max, version) = (shared.options.stall_max, hello.version());
    reader.bound(OFFER_BYTES_MAX);
    let frame = timeout(stall_max, reader.next(&shared.stats)).await;
    let frame = frame.map_err(|_| CloseReason::Silent)??;
    let offer = Some(frame).filter(|frame| frame.kind == FrameKind::Offer);
    let offer = offer.and_then(|frame| Offer::decode(&frame.body, version));
    let offer = offer.ok_or(CloseReason::Malformed("a bulk connection without an offer"))?;
    let from = offer.from;
    let here = shared.own.borrow().serves(offer.to) && is_heard(from);
    if !here {
        return Err(CloseReason::Malformed("the snapshot's stores do not match the connection"));
    }
    let Ok(permit) = shared.snapshots_in.clone().try_acquire_owned() else {
        let reason = "too many snapshots are being received";
        socket::send(&mut writer, &frame::whole(FrameKind::Declined, reason.as_bytes())).await?;
        return Err(CloseReason::Declined(reason.to_owned()));
    };
    let (replies, answers) = mpsc::channel(2);
    let connection = Connection { shared: shared.clone(), reader, replies, _permit: permit };
    let owner = shared.deliver.snapshot(SnapshotOffer { offer, version, connection });
    let (written, ()) = tokio::join!(write_replies(shared, answers, writer), owner);
    written
}

/// Writes replies, and a keepalive whenever there is none.
async fn write_replies(
    shared: &Shared,
    mut answers: mpsc::Receiver<Bytes>,
    mut writer: SocketWriter,
) -> Result<(), CloseReason> {
    let options = &shared.options;
    let alive = frame::whole(FrameKind::Alive, b"");
    loop {
        let answer = match timeout(options.keepalive_interval, answers.recv()).await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(()),
            Err(_) => alive.clone(),
        };
        let written = timeout(options.stall_max, socket::send(&mut writer, &answer)).await;
        written.map_err(|_| CloseReason::Stalled)??;
    }
}

impl SnapshotOffer {
    /// Returns the receiving store.
    pub fn to(&self) -> StoreId {
        self.offer.to
    }

    /// Returns the sending store.
    pub fn from(&self) -> StoreId {
        self.offer.from
    }

    /// Returns the header as the sending side passed it.
    pub fn header(&self) -> Bytes {
        self.offer.header.clone()
    }

    /// Returns whether the sender can go on after what this side has of the snapshot.
    pub fn resumes(&self) -> bool {
        self.offer.resumes
    }

    /// Refuses the snapshot with a reason.
    pub async fn refuse(self, reason: &str) {
        self.connection.decline(reason).await;
    }

    /// Accepts the snapshot, from what this side has of it on.
    pub async fn accept(self, has: Position) -> Result<SnapshotReceiver, CloseReason> {
        let Self { offer, version, mut connection } = self;
        let at = if offer.resumes { has } else { Position::default() };
        let body = at.encode();
        let body = if version < RESUMABLE { &[][..] } else { &body };
        connection.reply(frame::whole(FrameKind::Accepted, body)).await?;
        connection.reader.bound(frame_bytes_max());
        Ok(SnapshotReceiver { connection, tally: Tally { at, version }, ended: false })
    }
}

impl SnapshotReceiver {
    /// Returns the next chunk; `None` after the last, when the totals match. After an error nothing of the
    /// snapshot may be used, unless the connection broke: then it may go on after
    /// [`SnapshotReceiver::position`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, CloseReason> {
        loop {
            let frame = self.connection.frame().await?;
            match frame.kind {
                FrameKind::Alive => {}
                FrameKind::Chunk => {
                    let chunk = self.tally.receive(&frame);
                    let malformed = CloseReason::Malformed("a chunk of a snapshot is out of order");
                    return chunk.map(Some).ok_or(malformed);
                }
                FrameKind::End => return self.end(&frame).map(|()| None),
                _ => return Err(CloseReason::Malformed("the frame does not belong to a snapshot")),
            }
        }
    }

    /// Returns the position after the last chunk.
    pub fn position(&self) -> Position {
        self.tally.at
    }

    fn end(&mut self, frame: &Frame) -> Result<(), CloseReason> {
        // Invariant: a snapshot is complete only if all chunks and bytes were received and match
        // the checksum.
        let agrees = frame.body[..] == self.tally.at.encode();
        // bug server.snapshot_unchecked_end: never
        if !agrees {
            return Err(CloseReason::Malformed("the totals of a snapshot do not match"));
        }
        self.ended = true;
        Ok(())
    }

    /// Reports the outcome to the sender: success, or the reason. Without the end of the pieces the
    /// snapshot is always declined.
    pub async fn done(self, result: Result<(), String>) {
        let reason = match result {
            Ok(()) if self.ended => {
                Stats::add(&self.connection.shared.stats.snapshots_received, 1);
                // If the reply is lost the sender starts again: the receiver has the snapshot
                // already.
                let _ = self.connection.reply(frame::whole(FrameKind::Done, b"")).await;
                return;
            }
            Ok(()) => "the snapshot is incomplete".to_owned(),
            Err(reason) => reason,
        };
        self.connection.decline(&reason).await;
    }
}

impl Connection {
    async fn frame(&mut self) -> Result<Frame, CloseReason> {
        let next = self.reader.next(&self.shared.stats);
        let frame = timeout(self.shared.options.stall_max, next).await;
        let frame = frame.map_err(|_| CloseReason::Silent)??;
        let lane = self.shared.stats.lane(hello::Lane::Bulk);
        Stats::add(&lane.frames_received, 1);
        Stats::add(&lane.bytes_received, frame.body.len());
        Ok(frame)
    }

    async fn reply(&self, answer: Bytes) -> Result<(), CloseReason> {
        self.replies.send(answer).await.map_err(|_| CloseReason::Ended)
    }

    async fn decline(self, reason: &str) {
        // The sender may be gone.
        let _ =
            self.reply(frame::whole(FrameKind::Declined, hello::bounded(reason).as_bytes())).await;
    }
}
