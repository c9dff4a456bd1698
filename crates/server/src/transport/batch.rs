//! Many messages in one write. Headers and small payloads are encoded into one buffer, large
//! payloads stay where they are: the kernel gathers both.

use super::closed::CloseReason;
use super::frame::{self, FrameKind, HEADER_BYTES};
use super::hello::Lane;
use bytes::Bytes;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::time::Duration;
use stele_replica::{PeerMessage, wire};
use stele_types::checksum::Crc32c;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;

/// Shorter payloads are copied into the buffer: cheaper than one more slice for the kernel.
const COPIED_BYTES_MAX: usize = 2 << 10;
/// Buffer bytes kept for the next batch.
const BUFFER_KEPT_BYTES_MAX: usize = 1 << 20;
const SLICES_MAX: usize = 64;

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
}

impl FrameBatch {
    /// Removes all frames, keeps some of the memory.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT_BYTES_MAX);
        self.parts.clear();
        (self.bytes, self.frames) = (0, 0);
    }

    pub(super) fn frames(&self) -> usize {
        self.frames
    }

    /// Returns the bytes of all frames.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a message; false if it is larger than a frame of the lane.
    pub fn add_message(&mut self, lane: Lane, message: &PeerMessage) -> bool {
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
        self.finish(start, FrameKind::Message, body_bytes, crc.finish());
        true
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

    /// Writes all frames; returns the number of calls. Fails when no byte is accepted for
    /// `stall_max`.
    pub(super) async fn write(
        &self,
        stream: &mut OwnedWriteHalf,
        stall_max: Duration,
    ) -> Result<usize, CloseReason> {
        let (mut next, mut skip, mut calls) = (0, 0, 0);
        while self.part(next).is_some() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            while let Some(part) = self.part(next + count).filter(|_| count < SLICES_MAX) {
                let from = if count == 0 { skip } else { 0 };
                slices[count] = IoSlice::new(&part[from..]);
                count += 1;
            }
            let write = stream.write_vectored(&slices[..count]);
            let written = tokio::time::timeout(stall_max, write).await;
            let written = written.map_err(|_| CloseReason::Stalled)??;
            calls += 1;
            if written == 0 {
                return Err(CloseReason::Io(io::ErrorKind::WriteZero.into()));
            }
            skip += written;
            while let Some(part) = self.part(next).filter(|part| skip >= part.len()) {
                skip -= part.len();
                next += 1;
            }
        }
        Ok(calls)
    }
}
