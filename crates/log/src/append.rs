//! The only foreground write path: one batch becomes one frame, one write and one sync.
//!
//! One thread at a time holds the [`Appender`], the active segment. The steps of [`Appender::append`]:
//!
//! | step | function | on a failure |
//! |---|---|---|
//! | 1 a segment without room for the payloads is left for a new one | [`Appender::roll`] | no room: nothing changes |
//! | 2 records become one frame, checked against the regions' logs | `encode` | the batch is refused, nothing is written |
//! | 3 the frame is written at the end of the last one | [`Appender::write`] | no room: its remains are cut before the next batch |
//! | 4 the file is synced | [`Appender::sync`] | the log stops for good |
//! | 5 entries, hard states and head are shown, all at one moment | [`Appender::publish`] | the log stops for good |
//! | 6 payloads go to the cache, and the caller gets their places | `append` | |
//!
//! A long frame is written while it is encoded: steps 2 and 3 overlap, its first block is written last, and until
//! then no frame exists ([`Appender::write_pipelined`]). Readers use the regions' logs meanwhile. They see the state
//! before the batch until step 5, and neither wait for steps 3 and 4 nor hold them up.
//!
//! What each step keeps:
//! - 1: the name of the new segment ends the old one; nothing fails and nothing is appended there after it.
//! - 3: a batch starts at a block that no acknowledged byte shares, so that a torn write damages no other batch.
//! - 4 before 5: what the log shows is durable; therefore applied ≤ persisted, and no index refers to lost bytes.
//! - 5: the same steps as in recovery, so that a restart shows what was shown before.
//! - A failed sync is never repeated: a second success would not cover what the first one lost.

use crate::FileKind;
use crate::catalog::FileMeta;
use crate::encode::{self, Encoded, FrameBuffer, PipelinedWrite, Staged, encode, frame_bytes};
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::{CarriedRegion, Origin};
use crate::log::Appended;
use crate::segment::scan::End;
use crate::segment::sidecar::SidecarWriter;
use crate::segment::{Begin, Begun, begin};
use crate::shared::{Counters, Shared};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use stele_types::{Cause, Error, FileId, Lsn, Record, Result};
use stele_vfs::{AlignedBuf, DeviceTimer, VfsFile};

/// Capacity kept for the next batch, unless the last batch needed more.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// Frames of at least this length are written while they are encoded, where that helps.
const PIPELINED_BYTES_MIN: u64 = 512 << 10;
/// Upper bound of a pipelined frame's end. It stays far below the largest offset, because a frame
/// may exceed the estimated length.
const PIPELINED_END_MAX: u64 = 2 << 30;

/// The active segment. Held by one thread at a time.
#[derive(Debug)]
pub(crate) struct Appender {
    pub file: Arc<dyn VfsFile>,
    pub id: FileId,
    pub block_bytes: u32,
    /// What the checksums of this segment's frames cover besides them.
    pub origin: Origin,
    pub end: End,
    /// Whether batches were written here. A batch that fits into no segment goes to an empty one.
    pub has_batches: bool,
    /// Whether the confirming frame of the last batch lies at `end`.
    pub confirmed: bool,
    /// Whether part of a batch that was not appended may lie after `end`.
    pub has_remains: bool,
    pub recycled: bool,
    pub buffer: AlignedBuf,
    pub staged: Staged,
    pub sidecar: SidecarWriter,
}

impl Appender {
    /// Invariant: what is acknowledged is written and synced before.
    /// Test: `every_crash_point_keeps_what_was_acknowledged`.
    pub(crate) fn append(
        &mut self,
        shared: &Shared,
        records: &[Record],
        withdraw: bool,
    ) -> Result<Appended> {
        shared.poison.check()?;
        self.roll_if_full(shared, records)?;
        let can_pipeline = self.can_pipeline(shared, records);
        let (encoded, begin_nanos) = match can_pipeline {
            true => self.write_pipelined(shared, records, withdraw)?,
            false => self.encode_and_write(shared, records, withdraw)?,
        };
        // bug log.publish_before_sync: self.publish(shared, &encoded)?;
        // A sync covers only completed writes: all parts are written by now.
        // bug log.sync_under_way: skip if can_pipeline
        self.sync(shared)?;
        // Invariant: what counts as the device's time is one write and its sync, of a batch that a
        // caller waits for. No lock is waited for in between, and no segment begins.
        // bug log.maintenance_is_measured: `withdraw` is `true`
        if let Some(timer) = &shared.options.timer
            && withdraw
        {
            timer.write_ended(begin_nanos, self.buffer.len() as u64);
        }
        // bug log.publish_before_sync: skip
        self.publish(shared, &encoded)?;
        let payloads = entries(records).map(|entry| &entry.payload);
        shared.cache.insert(encoded.payloads.iter().copied().zip(payloads));
        Counters::add(&shared.counters.batches, 1);
        Counters::add(&shared.counters.payload_bytes, encoded.payload_bytes);
        let kept = self.buffer.len().max(BUFFER_BYTES_KEPT);
        // Cleared first: shrinking would copy the content to the new memory.
        self.buffer.clear();
        self.buffer.shrink_to(kept.next_power_of_two());
        self.staged.shrink();
        let memory = self.staged.memory_bytes() + self.sidecar.memory_bytes();
        let memory = (self.buffer.capacity() + memory) as u64;
        shared.counters.buffer_bytes.store(memory, Relaxed);
        Ok(Appended { payloads: encoded.payloads, head: self.head() })
    }

    /// Reserves device space for a batch, so that the next append of it cannot run out of space.
    /// Fails with `NoSpace` and changes nothing that counts.
    pub(crate) fn preallocate(&mut self, shared: &Shared, records: &[Record]) -> Result<()> {
        shared.poison.check()?;
        let bytes = frame_bytes(records);
        if self.has_batches && self.end_with(bytes) > shared.options.segment_bytes_max {
            self.roll(shared)?;
        }
        self.cut_remains(shared)?;
        let end = self.end_with(bytes).next_multiple_of(u64::from(self.block_bytes));
        self.file.allocate(end).map_err(|error| shared.poison.unless_full(error))
    }

    /// Rolls to a new segment if the payloads alone do not fit into this one. This avoids encoding
    /// them for it.
    fn roll_if_full(&mut self, shared: &Shared, records: &[Record]) -> Result<()> {
        let payloads: u64 = entries(records).map(|entry| entry.payload.len() as u64).sum();
        let fits = self.end_with(payloads) <= shared.options.segment_bytes_max;
        if fits || !self.has_batches { Ok(()) } else { self.roll(shared) }
    }

    fn encode_and_write(
        &mut self,
        shared: &Shared,
        records: &[Record],
        withdraw: bool,
    ) -> Result<(Encoded, u64)> {
        let mut encoded = self.encode(shared, records, withdraw)?;
        let end = |this: &Self| this.end_with(this.buffer.len() as u64);
        if self.has_batches && end(self) > shared.options.segment_bytes_max {
            self.roll(shared)?;
            encoded = self.encode(shared, records, withdraw)?;
        }
        if end(self) > u64::from(u32::MAX) {
            return Err(Error::invalid("batch does not fit into a segment"));
        }
        let begin_nanos = begin_nanos(shared);
        self.write(shared)?;
        Ok((encoded, begin_nanos))
    }

    /// Whether a batch is long enough to be written while it is encoded. Only into blocks written
    /// before: in a growing file writes wait for each other.
    fn can_pipeline(&self, shared: &Shared, records: &[Record]) -> bool {
        if !self.recycled || self.file.block_bytes().is_none() {
            return false;
        }
        let bytes = frame_bytes(records);
        let end = self.end_with(bytes);
        bytes >= PIPELINED_BYTES_MIN
            && end <= shared.options.segment_bytes_max.min(PIPELINED_END_MAX)
    }

    /// Encodes a batch and writes it meanwhile. The first block is written last: before that no
    /// frame exists.
    fn write_pipelined(
        &mut self,
        shared: &Shared,
        records: &[Record],
        withdraw: bool,
    ) -> Result<(Encoded, u64)> {
        self.confirmed = false;
        self.has_remains = true;
        let memory = std::mem::replace(&mut self.buffer, AlignedBuf::in_large_pages());
        let state = shared.state.read();
        let begin_nanos = begin_nanos(shared);
        let place = self.place(shared, &state.regions, withdraw);
        let pipelined = PipelinedWrite { file: self.file.as_ref(), at: u64::from(self.end.at) };
        let mut frame = FrameBuffer::new(memory, Some(pipelined));
        let encoded = encode(&place, records, &mut frame, &mut self.staged);
        drop(state);
        if let Err(error) = encoded {
            frame.abandon().map_err(|error| shared.poison.unless_full(error))?;
            return Err(error);
        }
        let has_submitted = frame.has_submitted();
        self.buffer = frame.finish().map_err(|error| shared.poison.unless_full(error))?;
        match has_submitted {
            true => self.written(shared),
            false => self.write(shared)?,
        }
        Ok((encoded?, begin_nanos))
    }

    /// Writes an empty frame after the last batch. It distinguishes damage to that batch from a
    /// torn write. The next batch overwrites it: the empty frame was never acknowledged.
    pub(crate) fn confirm(&mut self, shared: &Shared) -> Result<()> {
        shared.poison.check()?;
        let room = u64::from(self.end.at) + u64::from(self.block_bytes) < u64::from(u32::MAX);
        if self.confirmed || !self.has_batches || !room {
            return Ok(());
        }
        let state = shared.state.read();
        encode::encode_confirmation(&self.place(shared, &state.regions, true), &mut self.buffer);
        drop(state);
        self.write(shared)?;
        self.confirmed = true;
        Ok(())
    }

    /// Writes the empty frame after the last batch again, syncs it, and notes its time as that of a
    /// write. Returns false, and writes nothing, in a segment without batches.
    ///
    /// Invariant: a measurement leaves the log as it is. The frame is the one of [`Appender::confirm`],
    /// at the same place, which the next batch overwrites.
    pub(crate) fn measure(&mut self, shared: &Shared) -> Result<bool> {
        self.confirmed = false;
        let begin_nanos = begin_nanos(shared);
        self.confirm(shared)?;
        if !self.confirmed {
            return Ok(false);
        }
        // bug log.measured_without_sync: skip
        self.sync(shared)?;
        if let Some(timer) = &shared.options.timer {
            timer.write_ended(begin_nanos, self.buffer.len() as u64);
        }
        Ok(true)
    }

    /// Makes everything written so far durable. A failure poisons the log: the durable state is
    /// then unknown, and a later sync that succeeds proves nothing.
    pub(crate) fn sync(&mut self, shared: &Shared) -> Result<()> {
        Counters::add(&shared.counters.syncs, 1);
        // bug log.skip_sync: return Ok(());
        self.file.sync_data().map_err(|error| shared.poison.set(error))
    }

    fn end_with(&self, bytes: u64) -> u64 {
        u64::from(self.end.at) + bytes
    }

    fn head(&self) -> Lsn {
        Lsn::new(self.id, self.end.at)
    }

    fn place<'a>(
        &self,
        shared: &Shared,
        regions: &'a crate::region::Regions,
        withdraw: bool,
    ) -> encode::FrameContext<'a> {
        encode::FrameContext {
            origin: self.origin,
            at: self.head(),
            chain: self.end.chain,
            block_bytes: self.block_bytes,
            regions,
            inline_max: shared.options.inline_value_bytes_max,
            withdraw,
        }
    }

    fn encode(&mut self, shared: &Shared, records: &[Record], withdraw: bool) -> Result<Encoded> {
        let state = shared.state.read();
        let place = self.place(shared, &state.regions, withdraw);
        let memory = std::mem::replace(&mut self.buffer, AlignedBuf::in_large_pages());
        let mut frame = FrameBuffer::new(memory, None);
        let encoded = encode(&place, records, &mut frame, &mut self.staged);
        self.buffer = frame.finish()?;
        encoded
    }

    fn write(&mut self, shared: &Shared) -> Result<()> {
        self.confirmed = false;
        self.cut_remains(shared)?;
        self.has_remains = true;
        let slices = [IoSlice::new(&self.buffer)];
        let written = self.file.write_at(&slices, u64::from(self.end.at), Cause::Log);
        // On a full device the batch is not appended; the next one starts at the same block.
        written.map_err(|error| shared.poison.unless_full(error))?;
        self.written(shared);
        Ok(())
    }

    /// Truncates the remains of a failed batch. A shorter batch would leave some of them after it,
    /// and recovery would take them for a trace of damage. In recycled blocks such bytes are no
    /// trace.
    fn cut_remains(&mut self, shared: &Shared) -> Result<()> {
        if self.has_remains && !self.recycled {
            let end = u64::from(self.end.at);
            self.file.set_len(end).map_err(|error| shared.poison.unless_full(error))?;
            self.has_remains = false;
        }
        Ok(())
    }

    fn written(&mut self, shared: &Shared) {
        self.has_remains = false;
        Counters::add(&shared.counters.written_bytes, self.buffer.len() as u64);
    }

    /// Makes the durable frame in the buffer visible, by the same steps as recovery. Invariant: the
    /// regions' logs and the head show only what is synced, all of a batch at one moment. So an
    /// entry that they show is persisted, and what they do not show yet lies at the head or after
    /// it.
    /// Test: `while_a_batch_is_in_its_sync_entries_are_applied_checkpointed_and_read`.
    fn publish(&mut self, shared: &Shared, encoded: &Encoded) -> Result<()> {
        debug_assert!(self.is_staged_as_written(shared, encoded));
        let at = self.end.at;
        let next = End { at: at + self.buffer.len() as u32, chain: encoded.crc };
        let mut state = shared.state.write();
        let mut items = self.staged.items(self.id);
        while let Some(Some(item)) = items.next_item() {
            if let Err(detail) = state.regions.apply(&item) {
                return Err(shared.poison.set(Error::corrupt(
                    self.file.path(),
                    u64::from(at),
                    detail,
                )));
            }
        }
        state.head = Lsn::new(self.id, next.at);
        drop(state);
        let mut items = self.staged.items(self.id);
        while let Some(Some(item)) = items.next_item() {
            self.sidecar.push(&item);
        }
        self.end = next;
        self.has_batches = true;
        Ok(())
    }

    /// Whether the published items are those that recovery would read from the frame.
    fn is_staged_as_written(&self, shared: &Shared, encoded: &Encoded) -> bool {
        let body_end = FRAME_HEADER_BYTES + encoded.body_bytes as usize;
        let body = self.buffer.get(FRAME_HEADER_BYTES..body_end).unwrap_or_default();
        let begin = Lsn::new(self.id, self.end.at + FRAME_HEADER_BYTES as u32);
        self.staged.agrees_with(begin, body, shared.options.inline_value_bytes_max)
    }

    /// Continues in a new segment. Fails with `NoSpace` and changes nothing.
    pub(crate) fn roll(&mut self, shared: &Shared) -> Result<()> {
        let oldest = shared.catalog.read().first_segment().unwrap_or(self.id);
        let carried: Vec<CarriedRegion> = {
            let mut state = shared.state.write();
            state.regions.forget_destroyed(oldest);
            state.regions.carried().collect()
        };
        let bytes = self.file.len().map_err(|error| shared.poison.unless_full(error))?;
        let id = shared.allocate_file();
        let recycle = shared.free.lock().pop();
        let previous = (self.id, self.end);
        let zeroed_bytes = shared.options.segment_bytes_max;
        let how =
            Begin { dir: &shared.dir, id, recycle, zeroed_bytes, previous, carried: &carried };
        let begun = begin(&how, &mut self.buffer).map_err(|error| {
            shared.free.lock().extend(recycle);
            shared.poison.unless_full(error)
        })?;
        // Invariant: nothing is appended to a segment after the next one has its name, so nothing fails
        // from here on. A restart would not read what is appended later.
        // Test: `a_new_segment_whose_sidecar_cannot_be_written_takes_the_appends`.
        self.seal(shared, bytes);
        Counters::add(&shared.counters.recycled, u64::from(recycle.is_some()));
        Counters::add(&shared.counters.zeroed, u64::from(recycle.is_none() && begun.recycled));
        self.enter(shared, id, begun, &carried);
        Ok(())
    }

    /// Seals the old segment. Its sidecar is written after the new segment exists, because a
    /// sidecar is never required.
    fn seal(&mut self, shared: &Shared, bytes: u64) {
        let (end, payload_bytes) = (self.end, self.sidecar.totals.payload_bytes);
        shared.catalog.write().update(self.id, |meta| {
            if let FileKind::Segment { recycled, .. } = meta.kind {
                meta.kind = FileKind::Segment { sealed: true, recycled };
            }
            (meta.bytes, meta.payload_bytes) = (bytes, payload_bytes);
            meta.end = Some(end.at);
        });
    }

    fn enter(&mut self, shared: &Shared, id: FileId, begun: Begun, carried: &[CarriedRegion]) {
        let mut sidecar =
            SidecarWriter::new(&shared.dir, id, shared.options.inline_value_bytes_max);
        for region in carried {
            sidecar.push(&crate::format::Item::Carried(*region));
        }
        std::mem::replace(&mut self.sidecar, sidecar).finish(self.end);
        // bug log.old_segment_after_roll: if self.sidecar.chunks.is_none() { return; }
        Counters::add(&shared.counters.written_bytes, begun.written_bytes);
        Counters::add(&shared.counters.rolls, 1);
        shared.catalog.write().insert(id, active_meta(id, begun.recycled));
        (self.file, self.block_bytes, self.end) = (begun.file, begun.block_bytes, begun.end);
        (self.id, self.origin) = (id, begun.origin);
        self.has_batches = false;
        self.confirmed = false;
        (self.has_remains, self.recycled) = (false, begun.recycled);
        shared.state.write().head = self.head();
    }
}

pub(crate) fn active_meta(id: FileId, recycled: bool) -> FileMeta {
    FileMeta {
        kind: FileKind::Segment { sealed: false, recycled },
        bytes: 0,
        payload_bytes: 0,
        min_lsn: Lsn::new(id, 0),
        max_lsn: Lsn::new(id, u32::MAX),
        end: None,
        is_damaged: false,
    }
}

/// Returns the time at which a write begins; 0 if it is not measured.
fn begin_nanos(shared: &Shared) -> u64 {
    shared.options.timer.as_ref().map_or(0, DeviceTimer::write_begins)
}

fn entries(records: &[Record]) -> impl Iterator<Item = &stele_types::EntryRecord> {
    records.iter().filter_map(|r| if let Record::Entry(entry) = r { Some(entry) } else { None })
}
