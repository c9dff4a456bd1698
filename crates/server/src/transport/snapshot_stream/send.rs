//! Sending side.

use super::super::batch::Batch;
use super::super::closed::CloseReason;
use super::super::connection::{self, Reader};
use super::super::frame::{Frame, Kind};
use super::super::hello::{self, Lane};
use super::super::shared::Shared;
use super::super::stats::Stats;
use super::{CHUNK_BYTES_MAX, PIECE_BYTES_MAX, Tally};
use bytes::Bytes;
use std::sync::Arc;
use stele_types::StoreId;
use stele_types::checksum::crc32c;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Snapshot being sent. When it is dropped the receiver drops all of it.
pub struct SnapshotSender {
    shared: Arc<Shared>,
    to: StoreId,
    writer: OwnedWriteHalf,
    /// Replies of the receiver, without keepalives.
    answers: mpsc::Receiver<Result<Frame, CloseReason>>,
    tally: Tally,
    batch: Batch,
}

/// Offers a snapshot and waits until the receiver accepts it.
pub async fn open(
    shared: Arc<Shared>,
    to: StoreId,
    from: StoreId,
    header: &[u8],
) -> Result<SnapshotSender, CloseReason> {
    let address = shared.resolve.address(to).ok_or(CloseReason::NoAddress(to))?;
    let (reader, writer, _) = connection::dial(&shared, &address, Lane::Bulk, &[to]).await?;
    let (replies, answers) = mpsc::channel(2);
    let name = format!("replies to a snapshot for store {to}");
    shared.spawn(name, read_replies(shared.clone(), to, reader, replies));
    let tally = Tally::default();
    let mut sender = SnapshotSender { shared, to, writer, answers, tally, batch: Batch::default() };
    let offer = Bytes::from(hello::offer(to, from, header));
    let crc = crc32c(&offer);
    sender.write(Kind::Offer, &[], offer, crc).await?;
    let answer = timeout(sender.shared.options.stall_max, sender.answer()).await;
    match answer.map_err(|_| CloseReason::Stalled)?? {
        Kind::Accepted => Ok(sender),
        _ => Err(CloseReason::Malformed("unexpected reply to an offer")),
    }
}

async fn read_replies(
    shared: Arc<Shared>,
    to: StoreId,
    mut reader: Reader,
    replies: mpsc::Sender<Result<Frame, CloseReason>>,
) {
    let stores = [to];
    loop {
        let received = tokio::select! {
            received = connection::next_frame(&shared, &stores, &mut reader) => received,
            () = replies.closed() => return,
        };
        if matches!(&received, Ok(frame) if frame.kind == Kind::Alive) {
            continue;
        }
        let is_end = received.is_err();
        if replies.send(received).await.is_err() || is_end {
            return;
        }
    }
}

impl SnapshotSender {
    /// Sends the next piece; waits while the network or the receiver is slower. The receiver gets
    /// pieces as they were sent.
    pub async fn send(&mut self, piece: Bytes) -> Result<(), CloseReason> {
        if piece.len() > PIECE_BYTES_MAX {
            return Err(CloseReason::Malformed("a piece of a snapshot is too long"));
        }
        let mut rest = piece;
        loop {
            let chunk = rest.split_to(rest.len().min(CHUNK_BYTES_MAX));
            let (header, crc) = self.tally.send(&chunk, rest.is_empty());
            self.write(Kind::Chunk, &header, chunk, crc).await?;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Ends the snapshot and waits until the receiver has received all of it.
    pub async fn finish(mut self) -> Result<(), CloseReason> {
        let end = Bytes::copy_from_slice(&self.tally.end());
        let crc = crc32c(&end);
        self.write(Kind::End, &[], end, crc).await?;
        match self.answer().await? {
            Kind::Done => {
                Stats::add(&self.shared.stats.snapshots_sent, 1);
                Ok(())
            }
            _ => Err(CloseReason::Malformed("unexpected reply to the end of a snapshot")),
        }
    }

    /// Returns the receiver's reply; waits while the connection is alive.
    async fn answer(&mut self) -> Result<Kind, CloseReason> {
        read(self.answers.recv().await)
    }

    async fn write(
        &mut self,
        kind: Kind,
        header: &[u8],
        payload: Bytes,
        crc: u32,
    ) -> Result<(), CloseReason> {
        if self.shared.cuts.blocks_out(&[self.to]) {
            return Err(CloseReason::Cut);
        }
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

fn read(answer: Option<Result<Frame, CloseReason>>) -> Result<Kind, CloseReason> {
    let frame = answer.unwrap_or(Err(CloseReason::Ended))?;
    match frame.kind {
        Kind::Declined => {
            Err(CloseReason::Declined(String::from_utf8_lossy(&frame.body).into_owned()))
        }
        Kind::Refused => Err(hello::read_refused(&frame.body)),
        kind => Ok(kind),
    }
}
