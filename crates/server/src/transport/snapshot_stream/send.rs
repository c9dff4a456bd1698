//! Sending side.

use super::super::batch::FrameBatch;
use super::super::closed::CloseReason;
use super::super::connection::{self, Dialled, Reader};
use super::super::frame::{Frame, FrameKind};
use super::super::hello::{self, Lane, Offer, RESUMABLE};
use super::super::shared::Shared;
use super::super::stats::Stats;
use super::{CHUNK_BYTES_MAX, Tally};
use bytes::Bytes;
use std::sync::Arc;
use stele_node::snapshot::Position;
use stele_types::StoreId;
use stele_types::checksum::crc32c;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Snapshot being sent. When it is dropped the receiver drops all of it.
pub struct SnapshotSender {
    shared: Arc<Shared>,
    writer: OwnedWriteHalf,
    /// Replies of the receiver, without keepalives.
    answers: mpsc::Receiver<Result<Frame, CloseReason>>,
    tally: Tally,
    batch: FrameBatch,
}

/// Offers a snapshot and waits until the receiver accepts it. If `resumes` is set, the receiver may have a
/// part of it: [`SnapshotSender::position`].
pub(crate) async fn open(
    shared: Arc<Shared>,
    to: StoreId,
    from: StoreId,
    header: Bytes,
    resumes: bool,
) -> Result<SnapshotSender, CloseReason> {
    let address = shared.resolve.address(to).ok_or(CloseReason::NoAddress(to))?;
    let dialled = connection::dial(&shared, &address, Lane::Bulk, &[to]).await?;
    let Dialled { reader, writer, welcome } = dialled;
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
    pub fn is_resumable(&self) -> bool {
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
