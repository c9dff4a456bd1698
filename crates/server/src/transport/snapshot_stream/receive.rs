//! The receiving side.

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

/// A snapshot that another node wants to send. It is declined when it is dropped.
pub struct SnapshotOffer {
    to: StoreId,
    from: StoreId,
    header: Bytes,
    line: Line,
}

/// A snapshot on its way in. It is declined when it is dropped before [`SnapshotReceiver::done`].
pub struct SnapshotReceiver {
    line: Line,
    tally: Tally,
    ended: bool,
}

struct Line {
    shared: Arc<Shared>,
    reader: Reader,
    /// To the task that writes: answers, and signs of life between them.
    say: mpsc::Sender<Bytes>,
    _permit: OwnedSemaphorePermit,
}

/// Hands an offered snapshot to the owner.
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
        return Err(CloseReason::Malformed("a snapshot of or for another store"));
    }
    let Ok(permit) = shared.snapshots_in.clone().try_acquire_owned() else {
        let why = "too many snapshots are on their way in";
        writer.write_all(&frame::whole(Kind::Declined, why.as_bytes())).await?;
        return Err(CloseReason::Declined(why.to_owned()));
    };
    let (say, answers) = mpsc::channel(2);
    let line = Line { shared: shared.clone(), reader, say, _permit: permit };
    let owner = shared.deliver.snapshot(SnapshotOffer { to, from, header, line });
    let (said, ()) = tokio::join!(speak(shared, from, answers, writer), owner);
    said
}

/// Writes what is said, and a sign of life whenever nothing is.
async fn speak(
    shared: &Shared,
    from: StoreId,
    mut answers: mpsc::Receiver<Bytes>,
    mut writer: OwnedWriteHalf,
) -> Result<(), CloseReason> {
    let options = &shared.options;
    let alive = frame::whole(Kind::Alive, b"");
    loop {
        let answer = match timeout(options.alive_interval, answers.recv()).await {
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
    /// The store that is to receive it.
    pub fn to(&self) -> StoreId {
        self.to
    }

    /// The store that sends it.
    pub fn from(&self) -> StoreId {
        self.from
    }

    /// The header as it was given to the sending side.
    pub fn header(&self) -> Bytes {
        self.header.clone()
    }

    /// Does not take it, and says why.
    pub async fn refuse(self, why: &str) {
        self.line.decline(why).await;
    }

    /// Takes it.
    pub async fn accept(self) -> Result<SnapshotReceiver, CloseReason> {
        let mut line = self.line;
        line.say(frame::whole(Kind::Accepted, b"")).await?;
        line.reader.bound(frame_bytes_max());
        Ok(SnapshotReceiver { line, tally: Tally::default(), ended: false })
    }
}

fn frame_bytes_max() -> usize {
    hello::Lane::Bulk.frame_bytes_max()
}

impl SnapshotReceiver {
    /// The next piece, as it was sent; `None` after the last, when the totals agree. After an error
    /// nothing of the snapshot may be used.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CloseReason> {
        let mut piece = BytesMut::new();
        loop {
            let frame = self.line.frame().await?;
            match frame.kind {
                Kind::Alive => {}
                Kind::Chunk => {
                    let chunk = self.tally.receive(&frame.body);
                    let (chunk, is_last) = chunk
                        .ok_or(CloseReason::Malformed("a snapshot's chunk out of its place"))?;
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
                _ => return Err(CloseReason::Malformed("a frame that is no part of a snapshot")),
            }
        }
    }

    fn end(&mut self, frame: &Frame, is_whole: bool) -> Result<(), CloseReason> {
        // Rule: a snapshot counts only if all its chunks and bytes came, and their checksum holds.
        let agrees = is_whole && frame.body[..] == self.tally.end();
        if !agrees && !mutant::active("server.snapshot_unchecked_end") {
            return Err(CloseReason::Malformed("a snapshot's totals do not agree"));
        }
        self.ended = true;
        Ok(())
    }

    /// Tells the sender how it ended: taken, or why not. Without the end of the pieces it is never
    /// taken.
    pub async fn done(self, result: Result<(), String>) {
        let why = match result {
            Ok(()) if self.ended => {
                Stats::add(&self.line.shared.stats.snapshots_received, 1);
                // If it does not arrive the sender starts anew: the receiver has it already.
                let _ = self.line.say(frame::whole(Kind::Done, b"")).await;
                return;
            }
            Ok(()) => "it did not come to its end".to_owned(),
            Err(why) => why,
        };
        self.line.decline(&why).await;
    }
}

impl Line {
    async fn frame(&mut self) -> Result<Frame, CloseReason> {
        let next = self.reader.next(&self.shared.stats);
        let frame = timeout(self.shared.options.stall_max, next).await;
        let frame = frame.map_err(|_| CloseReason::Silent)??;
        let lane = self.shared.stats.lane(hello::Lane::Bulk);
        Stats::add(&lane.frames_received, 1);
        Stats::add(&lane.bytes_received, frame.body.len());
        Ok(frame)
    }

    async fn say(&self, answer: Bytes) -> Result<(), CloseReason> {
        self.say.send(answer).await.map_err(|_| CloseReason::Ended)
    }

    async fn decline(self, why: &str) {
        // Whoever is gone needs no answer.
        let _ = self.say(frame::whole(Kind::Declined, hello::bounded(why).as_bytes())).await;
    }
}
