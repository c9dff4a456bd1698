//! Receiving side.

use super::super::closed::CloseReason;
use super::super::connection::Reader;
use super::super::frame::{self, Frame, Kind};
use super::super::hello::{self, Hello};
use super::super::shared::Shared;
use super::super::stats::Stats;
use super::{PIECE_BYTES_MAX, Tally};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use stele_types::{StoreId, mutant};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;

/// Snapshot that another node offers. It is declined when it is dropped.
pub struct SnapshotOffer {
    to: StoreId,
    from: StoreId,
    header: Bytes,
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

/// Passes an offered snapshot to the owner.
pub async fn receive(
    shared: &Arc<Shared>,
    hello: &Hello,
    mut reader: Reader,
    mut writer: OwnedWriteHalf,
) -> Result<(), CloseReason> {
    let stall_max = shared.options.stall_max;
    let frame = timeout(stall_max, reader.next(&shared.stats)).await;
    let frame = frame.map_err(|_| CloseReason::Silent)??;
    let offer = Some(frame).filter(|frame| frame.kind == Kind::Offer);
    let offer = offer.and_then(|frame| hello::read_offer(&frame.body));
    let (to, from, header) =
        offer.ok_or(CloseReason::Malformed("a bulk connection without an offer"))?;
    let here = shared.is_own(to) && hello.from.contains(&from);
    if !here {
        return Err(CloseReason::Malformed("the snapshot's stores do not match the connection"));
    }
    let Ok(permit) = shared.snapshots_in.clone().try_acquire_owned() else {
        let reason = "too many snapshots are being received";
        writer.write_all(&frame::whole(Kind::Declined, reason.as_bytes())).await?;
        return Err(CloseReason::Declined(reason.to_owned()));
    };
    let (replies, answers) = mpsc::channel(2);
    let connection = Connection { shared: shared.clone(), reader, replies, _permit: permit };
    let owner = shared.deliver.snapshot(SnapshotOffer { to, from, header, connection });
    let (written, ()) = tokio::join!(write_replies(shared, from, answers, writer), owner);
    written
}

/// Writes replies, and a keepalive whenever there is none.
async fn write_replies(
    shared: &Shared,
    from: StoreId,
    mut answers: mpsc::Receiver<Bytes>,
    mut writer: OwnedWriteHalf,
) -> Result<(), CloseReason> {
    let options = &shared.options;
    let alive = frame::whole(Kind::Alive, b"");
    loop {
        let answer = match timeout(options.keepalive_interval, answers.recv()).await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(()),
            Err(_) => alive.clone(),
        };
        if shared.cuts.blocks_out(&[from]) {
            continue;
        }
        let written = timeout(options.stall_max, writer.write_all(&answer)).await;
        written.map_err(|_| CloseReason::Stalled)??;
    }
}

impl SnapshotOffer {
    /// Returns the receiving store.
    pub fn to(&self) -> StoreId {
        self.to
    }

    /// Returns the sending store.
    pub fn from(&self) -> StoreId {
        self.from
    }

    /// Returns the header as the sending side passed it.
    pub fn header(&self) -> Bytes {
        self.header.clone()
    }

    /// Refuses the snapshot with a reason.
    pub async fn refuse(self, reason: &str) {
        self.connection.decline(reason).await;
    }

    /// Accepts the snapshot.
    pub async fn accept(self) -> Result<SnapshotReceiver, CloseReason> {
        let mut connection = self.connection;
        connection.reply(frame::whole(Kind::Accepted, b"")).await?;
        connection.reader.bound(frame_bytes_max());
        Ok(SnapshotReceiver { connection, tally: Tally::default(), ended: false })
    }
}

fn frame_bytes_max() -> usize {
    hello::Lane::Bulk.frame_bytes_max()
}

impl SnapshotReceiver {
    /// Returns the next piece, as it was sent; `None` after the last, when the totals match. After
    /// an error nothing of the snapshot may be used.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CloseReason> {
        let mut piece = BytesMut::new();
        loop {
            let frame = self.connection.frame().await?;
            match frame.kind {
                Kind::Alive => {}
                Kind::Chunk => {
                    let chunk = self.tally.receive(&frame.body);
                    let (chunk, is_last) = chunk
                        .ok_or(CloseReason::Malformed("a chunk of a snapshot is out of order"))?;
                    if is_last && piece.is_empty() {
                        return Ok(Some(chunk));
                    }
                    if piece.len() + chunk.len() > PIECE_BYTES_MAX {
                        return Err(CloseReason::Malformed("a piece of a snapshot is too long"));
                    }
                    piece.extend_from_slice(&chunk);
                    if is_last {
                        return Ok(Some(piece.freeze()));
                    }
                }
                Kind::End => return self.end(&frame, piece.is_empty()).map(|()| None),
                _ => return Err(CloseReason::Malformed("the frame does not belong to a snapshot")),
            }
        }
    }

    fn end(&mut self, frame: &Frame, is_whole: bool) -> Result<(), CloseReason> {
        // Invariant: a snapshot is complete only if all chunks and bytes were received and match
        // the checksum.
        let agrees = is_whole && frame.body[..] == self.tally.end();
        if !agrees && !mutant::active("server.snapshot_unchecked_end") {
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
                let _ = self.connection.reply(frame::whole(Kind::Done, b"")).await;
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
        let _ = self.reply(frame::whole(Kind::Declined, hello::bounded(reason).as_bytes())).await;
    }
}
