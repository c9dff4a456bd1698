//! Many messages in one write. Headers and small payloads are encoded into one buffer, large
//! payloads stay where they are: the kernel gathers both. The messages share frames, where the other side
//! reads such frames: one header and one checksum, and what they repeat is sent once.

use super::closed::CloseReason;
use super::frame::{self, FrameKind, HEADER_BYTES};
use super::hello::Lane;
use super::serve::SMALL_FRAME_BYTES_MAX;
use crate::access::SocketWriter;
use bytes::Bytes;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use stele_replica::PeerMessage;
use stele_replica::wire::{self, SentRoutes};
use stele_types::checksum::Crc32c;
use tokio::io::AsyncWrite;

/// Shorter payloads are copied into the buffer: cheaper than one more slice for the kernel.
const COPIED_BYTES_MAX: usize = 2 << 10;
/// Buffer bytes kept for the next batch.
const BUFFER_KEPT_BYTES_MAX: usize = 1 << 20;
const SLICES_MAX: usize = 64;
/// Most bytes of a frame of several messages: a receiver needs no budget for it.
const JOINED_BYTES_MAX: usize = SMALL_FRAME_BYTES_MAX;

enum Part {
    Buffered(Range<usize>),
    Payload(Bytes),
}

/// Frames of one write to a connection.
#[derive(Default)]
pub struct FrameBatch {
    buffer: Vec<u8>,
    parts: Vec<Part>,
    payloads: Vec<Bytes>,
    bytes: usize,
    frames: usize,
    progress: Progress,
    joining: Option<Joining>,
}

/// What the connection took of a batch.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Parts that it took as a whole.
    parts: usize,
    /// Bytes of the part after them.
    bytes: usize,
    calls: usize,
}

/// State of a connection on which messages share frames.
#[derive(Default)]
struct Joining {
    routes: SentRoutes,
    /// Encoded body of a message.
    body: Vec<u8>,
    /// Frame that takes more messages.
    open: Option<OpenFrame>,
}

struct OpenFrame {
    start: usize,
    body_bytes: usize,
    messages: usize,
    crc: Crc32c,
}

impl FrameBatch {
    /// Creates the batch of a connection on which messages share frames.
    pub fn joining() -> Self {
        Self { joining: Some(Joining::default()), ..Self::default() }
    }

    /// Removes all frames, keeps some of the memory.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT_BYTES_MAX);
        self.parts.clear();
        (self.bytes, self.frames) = (0, 0);
        self.progress = Progress::default();
    }

    pub(super) fn frames(&self) -> usize {
        self.frames
    }

    /// Returns the number of write calls since the batch was empty.
    pub(super) fn calls(&self) -> usize {
        self.progress.calls
    }

    /// Returns the bytes of all frames.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a message; false if it is larger than a frame of the lane. After the last one comes
    /// [`FrameBatch::end`].
    pub fn add_message(&mut self, lane: Lane, message: &PeerMessage) -> bool {
        if let Some(mut joining) = self.joining.take() {
            let is_added = self.join(lane, message, &mut joining);
            self.joining = Some(joining);
            return is_added;
        }
        let start = self.buffer.len();
        self.buffer.resize(start + HEADER_BYTES, 0);
        self.payloads.clear();
        wire::encode(message, &mut self.buffer, &mut self.payloads);
        let body = start + HEADER_BYTES..self.buffer.len();
        let payload_bytes: usize = self.payloads.iter().map(Bytes::len).sum();
        let body_bytes = body.len() + payload_bytes;
        if body_bytes > lane.frame_bytes_max() {
            self.buffer.truncate(start);
            return false;
        }
        let mut crc = Crc32c::new();
        crc.update(&self.buffer[body]);
        self.push_buffered(start);
        self.push_payloads(&mut crc);
        self.finish(start, FrameKind::Message, body_bytes, crc.finish());
        true
    }

    /// Adds a message to the open frame, or to a new one if it has no room there.
    fn join(&mut self, lane: Lane, message: &PeerMessage, joining: &mut Joining) -> bool {
        joining.body.clear();
        self.payloads.clear();
        wire::encode_body(&message.body, &mut joining.body, &mut self.payloads);
        let payload_bytes: usize = self.payloads.iter().map(Bytes::len).sum();
        let bytes_max = wire::ROUTE_BYTES_MAX + joining.body.len() + payload_bytes;
        if bytes_max > lane.frame_bytes_max() {
            return false;
        }
        let has_room = |open: &OpenFrame| {
            open.body_bytes + bytes_max <= JOINED_BYTES_MAX && open.messages < wire::JOINED_MAX
        };
        let mut open = match joining.open.take() {
            Some(open) if has_room(&open) => open,
            full => {
                full.into_iter().for_each(|open| self.end_frame(open));
                let start = self.buffer.len();
                self.buffer.resize(start + HEADER_BYTES, 0);
                self.push_buffered(start);
                OpenFrame { start, body_bytes: 0, messages: 0, crc: Crc32c::new() }
            }
        };
        let from = self.buffer.len();
        joining.routes.put(message, &mut self.buffer);
        self.buffer.extend_from_slice(&joining.body);
        open.crc.update(&self.buffer[from..]);
        open.messages += 1;
        open.body_bytes += self.buffer.len() - from + payload_bytes;
        self.push_buffered(from);
        self.push_payloads(&mut open.crc);
        joining.open = Some(open);
        true
    }

    /// Ends the last frame: the batch is written next.
    pub fn end(&mut self) {
        let open = self.joining.as_mut().and_then(|joining| joining.open.take());
        open.into_iter().for_each(|open| self.end_frame(open));
    }

    fn end_frame(&mut self, open: OpenFrame) {
        self.finish(open.start, FrameKind::Messages, open.body_bytes, open.crc.finish());
    }

    /// Adds the payloads to the stream.
    fn push_payloads(&mut self, crc: &mut Crc32c) {
        let mut payloads = std::mem::take(&mut self.payloads);
        for payload in payloads.drain(..) {
            crc.update(&payload);
            if payload.len() > COPIED_BYTES_MAX {
                self.parts.push(Part::Payload(payload));
            } else {
                let from = self.buffer.len();
                self.buffer.extend_from_slice(&payload);
                self.push_buffered(from);
            }
        }
        self.payloads = payloads;
    }

    /// Adds the bytes appended to the buffer since `from` to the stream.
    fn push_buffered(&mut self, from: usize) {
        let end = self.buffer.len();
        match self.parts.last_mut() {
            Some(Part::Buffered(range)) if range.end == from => range.end = end,
            _ => self.parts.push(Part::Buffered(from..end)),
        }
    }

    /// Adds a frame of a small header and a payload in parts; `crc` covers all.
    pub(super) fn add(&mut self, kind: FrameKind, header: &[u8], payload: Vec<Bytes>, crc: u32) {
        let start = self.buffer.len();
        self.buffer.resize(start + HEADER_BYTES, 0);
        self.buffer.extend_from_slice(header);
        self.push_buffered(start);
        let body_bytes = header.len() + payload.iter().map(Bytes::len).sum::<usize>();
        let parts = payload.into_iter().filter(|part| !part.is_empty());
        self.parts.extend(parts.map(Part::Payload));
        self.finish(start, kind, body_bytes, crc);
    }

    fn finish(&mut self, start: usize, kind: FrameKind, body_bytes: usize, crc: u32) {
        let bytes = u32::try_from(body_bytes).unwrap_or(u32::MAX);
        let frame_header = frame::header(kind, bytes, crc);
        self.buffer[start..start + HEADER_BYTES].copy_from_slice(&frame_header);
        self.bytes += HEADER_BYTES + body_bytes;
        self.frames += 1;
    }

    /// Returns a part of the bytes to write, counted from 0; `None` after the last one.
    pub fn part(&self, number: usize) -> Option<&[u8]> {
        Some(match self.parts.get(number)? {
            Part::Buffered(range) => &self.buffer[range.clone()],
            Part::Payload(bytes) => bytes,
        })
    }

    /// Writes what the connection takes of the frames in one call, or makes sure that nothing of them is
    /// kept back once it took all. Returns whether the whole batch is written.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut SocketWriter,
    ) -> Poll<io::Result<bool>> {
        let Progress { parts, bytes, .. } = self.progress;
        if self.part(parts).is_none() {
            // An encrypted connection may keep the last bytes.
            return Pin::new(stream).poll_flush(cx).map_ok(|()| true);
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        while let Some(part) = self.part(parts + count).filter(|_| count < SLICES_MAX) {
            let from = if count == 0 { bytes } else { 0 };
            slices[count] = IoSlice::new(&part[from..]);
            count += 1;
        }
        let written = ready!(Pin::new(stream).poll_write_vectored(cx, &slices[..count]))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(written);
        Poll::Ready(Ok(false))
    }

    fn advance(&mut self, written: usize) {
        let Progress { mut parts, mut bytes, calls } = self.progress;
        bytes += written;
        while let Some(part) = self.part(parts).filter(|part| bytes >= part.len()) {
            bytes -= part.len();
            parts += 1;
        }
        self.progress = Progress { parts, bytes, calls: calls + 1 };
    }

    /// Writes all frames. Fails when no byte is accepted for `stall_max`.
    pub(super) async fn write(
        &mut self,
        stream: &mut SocketWriter,
        stall_max: Duration,
    ) -> Result<(), CloseReason> {
        loop {
            let write = poll_fn(|cx| self.poll_write(cx, stream));
            let written = tokio::time::timeout(stall_max, write).await;
            if written.map_err(|_| CloseReason::Stalled)?? {
                return Ok(());
            }
        }
    }
}
