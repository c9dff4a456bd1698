//! Receiving side.

use super::super::closed::CloseReason;
use super::super::connection::Reader;
use super::super::frame::{self, Frame, FrameKind};
use super::super::hello::{self, Hello, Offer, RESUMABLE};
use super::super::shared::Shared;
use super::super::stats::Stats;
use super::{Tally, frame_bytes_max};
use bytes::Bytes;
use std::sync::Arc;
use stele_node::snapshot::Position;
use stele_types::StoreId;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;

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
pub(crate) async fn receive(
    shared: &Arc<Shared>,
    hello: &Hello,
    is_heard: impl Fn(StoreId) -> bool,
    mut reader: Reader,
    mut writer: OwnedWriteHalf,
) -> Result<(), CloseReason> {
    let (stall_max, version) = (shared.options.stall_max, hello.version());
    reader.bound(OFFER_BYTES_MAX);
    let frame = timeout(stall_max, reader.next(&shared.stats)).await;
    let frame = frame.map_err(|_| CloseReason::Silent)??;
    let offer = Some(frame).filter(|frame| frame.kind == FrameKind::Offer);
    let offer = offer.and_then(|frame| Offer::decode(&frame.body, version));
    let offer = offer.ok_or(CloseReason::Malformed("a bulk connection without an offer"))?;
    let from = offer.from;
    let here = shared.is_own(offer.to) && is_heard(from);
    if !here {
        return Err(CloseReason::Malformed("the snapshot's stores do not match the connection"));
    }
    let Ok(permit) = shared.snapshots_in.clone().try_acquire_owned() else {
        let reason = "too many snapshots are being received";
        writer.write_all(&frame::whole(FrameKind::Declined, reason.as_bytes())).await?;
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
    mut writer: OwnedWriteHalf,
) -> Result<(), CloseReason> {
    let options = &shared.options;
    let alive = frame::whole(FrameKind::Alive, b"");
    loop {
        let answer = match timeout(options.keepalive_interval, answers.recv()).await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(()),
            Err(_) => alive.clone(),
        };
        let written = timeout(options.stall_max, writer.write_all(&answer)).await;
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
