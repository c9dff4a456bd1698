//! Opening a log: builds the regions' logs and the append position from the directory.
//!
//! Recovery reads the segments from the first that Raft needs; sealed ones through their sidecars.
//! Of older files it checks only the existence: they hold values, which are checked when read.

pub(crate) mod damage_survey;
mod inventory;
mod needed;
pub(crate) use inventory::is_reusable;

use crate::append::{Appender, active_meta};
use crate::catalog::FileMeta;
use crate::dir::{Dir, Name};
use crate::encode::Staged;
use crate::format::Item;
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::history::Pins;
use crate::read::EntryCache;
use crate::read_pool::ReadPool;
use crate::read_share::{LongReads, ScatteredReads};
use crate::region::Regions;
use crate::segment::damaged_payloads::{self, Passes};
use crate::segment::scan::{self, End, ItemSink, SegmentReader, TailState};
use crate::segment::sidecar::{self, SidecarWriter};
use crate::segment::{Begin, begin};
use crate::shared::{Shared, State};
use crate::{FileKind, LogOptions, RecoverFrom, Recovery, Tail};
use bytes::Bytes;
use damage_survey::DamageSurvey;
use inventory::{Inventory, Link, Orphans};
use needed::Needed;
use std::io::IoSlice;
use std::sync::atomic::AtomicU32;
use stele_types::checksum::crc32c;
use stele_types::lock::{Mutex, RwLock};
use stele_types::{Cause, Error, FileId, Locator, Lsn, Result};
use stele_vfs::{AlignedBuf, Handles, Open, VfsFile};

/// Maximum damaged entries outside every region's log that opening tolerates.
const UNNEEDED_MAX: usize = 1 << 16;

pub(crate) fn open(
    dir: Dir,
    options: LogOptions,
    from: &RecoverFrom,
) -> Result<(Shared, Appender, Recovery)> {
    dir.vfs.create_dir_all(&dir.path)?;
    match open_passing(&dir, &options, from, &mut damaged_payloads::none) {
        // Surveys the log only now: perhaps all damage is in data that is not needed.
        Err(error @ Error::Corrupt { .. }) if from.checkpointed.is_some() => {
            let survey = DamageSurvey::of(&dir, &options, from, UNNEEDED_MAX);
            let Some(unneeded) = survey.ok().and_then(DamageSurvey::into_unneeded) else {
                return Err(error);
            };
            open_passing(&dir, &options, from, &mut |damaged| unneeded.has(from, damaged))
        }
        other => other,
    }
}

fn open_passing(
    dir: &Dir,
    options: &LogOptions,
    from: &RecoverFrom,
    passes: &mut Passes<'_>,
) -> Result<(Shared, Appender, Recovery)> {
    let inventory = Inventory::take(dir, options, from, Orphans::Removed)?;
    let orphans_removed = inventory.orphans_removed;
    let mut recoverer = Recoverer::new(dir, options, from, passes, orphans_removed);
    let (catalog, next_file) = (inventory.catalog, inventory.next_file);
    let mut shared = Shared {
        state: RwLock::new(State::default()),
        catalog: RwLock::new(catalog),
        handles: Handles::of(options.handles.clone()),
        cache: EntryCache::new(options.entry_cache_bytes_max),
        read_pool: ReadPool::default(),
        long_reads: LongReads::default(),
        scattered_reads: ScatteredReads::default(),
        poison: Default::default(),
        has_replicas: from.checkpointed.is_some(),
        counters: Default::default(),
        pins: Pins::new(options.history_bytes_max),
        free: Mutex::new(inventory.free),
        next_file: AtomicU32::new(next_file.0),
        dir: dir.clone(),
        options: options.clone(),
    };
    let chain = inventory::links(dir, &inventory.segments, from)?;
    let mut appender = match chain.split_last() {
        Some((newest, sealed)) => {
            recoverer.read_sealed(&shared, sealed, newest)?;
            recoverer.read_newest(&mut shared, newest)?
        }
        None => create(&shared, from)?,
    };
    let mut recovery = recoverer.recovery;
    recovery.head = Lsn::new(appender.id, appender.end.at);
    check_whole(dir, &recoverer.regions, recovery.head, from)?;
    recoverer.needed.check(dir, &recoverer.regions)?;
    shared.state = RwLock::new(State { regions: recoverer.regions, head: recovery.head });
    let needs_block = appender.file.block_bytes().unwrap_or(0);
    if needs_block > appender.block_bytes as usize {
        // The device requires larger blocks than the segment was begun with.
        appender.roll(&shared)?;
        recovery.head = Lsn::new(appender.id, appender.end.at);
    }
    Ok((shared, appender, recovery))
}

struct Recoverer<'a, 'p> {
    dir: &'a Dir,
    options: &'a LogOptions,
    passes: &'a mut Passes<'p>,
    regions: Regions,
    needed: Needed,
    recovery: Recovery,
}

impl<'a, 'p> Recoverer<'a, 'p> {
    fn new(
        dir: &'a Dir,
        options: &'a LogOptions,
        from: &RecoverFrom,
        passes: &'a mut Passes<'p>,
        orphans_removed: usize,
    ) -> Self {
        let recovery = Recovery {
            tail: Tail::Clean,
            head: Lsn::default(),
            segments_scanned: 0,
            segments_by_sidecar: 0,
            bytes_scanned: 0,
            orphans_removed,
        };
        let needed = Needed::new(options, from);
        Self { dir, options, passes, regions: Regions::default(), needed, recovery }
    }

    fn read_sealed(&mut self, shared: &Shared, sealed: &[Link], newest: &Link) -> Result<()> {
        for (i, link) in sealed.iter().enumerate() {
            let next = sealed.get(i + 1).unwrap_or(newest);
            let end = End { at: next.header.previous_end, chain: next.header.chain };
            let totals = self.read_one_sealed(link.id, end)?;
            shared.catalog.write().update(link.id, |meta| {
                meta.end = Some(end.at);
                meta.payload_bytes = totals.payload_bytes;
                let recycled = link.header.recycled;
                meta.kind = FileKind::Segment { sealed: true, recycled };
            });
        }
        Ok(())
    }

    fn read_one_sealed(&mut self, id: FileId, end: End) -> Result<sidecar::Totals> {
        let (regions, needed) = (&mut self.regions, &mut self.needed);
        if let Some(totals) = by_sidecar(self.dir, id, end, regions, needed)? {
            self.recovery.segments_by_sidecar += 1;
            return Ok(totals);
        }
        let mut reader = SegmentReader::open(self.dir, id, false)?;
        let mut writer = SidecarWriter::new(self.dir, id, self.options.inline_value_bytes_max);
        let found = self.scan(&mut reader, Some(end.at), &mut writer)?.0;
        check_end(&mut reader, found, end)?;
        let totals = writer.totals;
        writer.finish(end);
        Ok(totals)
    }

    fn scan(
        &mut self,
        reader: &mut SegmentReader,
        until: Option<u32>,
        writer: &mut SidecarWriter,
    ) -> Result<(End, u32)> {
        let mut push = |item: &Item<'_>| {
            writer.push(item);
            Ok(())
        };
        let (regions, needed) = (&mut self.regions, &mut self.needed);
        let found = by_frames(reader, until, regions, needed, self.passes, &mut push)?;
        self.recovery.segments_scanned += 1;
        self.recovery.bytes_scanned += reader.bytes_read;
        Ok(found)
    }

    fn read_newest(&mut self, shared: &mut Shared, newest: &Link) -> Result<Appender> {
        let mut reader = SegmentReader::open(self.dir, newest.id, false)?;
        let inline_max = self.options.inline_value_bytes_max;
        let mut writer = SidecarWriter::new(self.dir, newest.id, inline_max);
        let (end, last) = self.scan(&mut reader, None, &mut writer)?;
        let tail = check_tail(&mut reader, end)?;
        if let TailState::Torn { bytes, uncertain } = tail {
            let from = Lsn::new(newest.id, end.at);
            self.recovery.tail = Tail::TornCut { from, bytes, uncertain };
        }
        let recycled = newest.header.recycled;
        shared.catalog.write().insert(newest.id, active_meta(newest.id, recycled));
        let file = self.dir.open_append(Name::Segment(newest.id))?;
        // What was read counts as durable from here on, so it must be. The last batch may be
        // written and not synced, or its sync may have failed and left bytes only in memory.
        // If the device now requires larger blocks, only the page cache can write this frame.
        let aligned = file.block_bytes().unwrap_or(0) <= reader.block_bytes() as usize;
        let path = self.dir.path_of(Name::Segment(newest.id));
        let again = if aligned { file.clone() } else { self.dir.vfs.open(&path, Open::WRITE)? };
        // bug log.skip_recovery_sync: never
        if tail != TailState::Confirmed {
            write_again(&mut reader, again.as_ref(), last, end.chain)?;
        }
        // bug log.skip_recovery_sync: skip
        again.sync_data()?;
        // bug log.skip_recovery_sync: skip
        self.dir.sync()?;
        Ok(Appender {
            block_bytes: reader.block_bytes(),
            origin: reader.origin(),
            file,
            id: newest.id,
            end,
            has_batches: true,
            confirmed: false,
            has_remains: reader.file_bytes() > u64::from(end.at),
            recycled,
            buffer: AlignedBuf::in_large_pages(),
            staged: Staged::default(),
            sidecar: writer,
        })
    }
}

/// Applies a sealed segment from its sidecar. Returns `None` if the sidecar is incomplete or
/// damaged.
fn by_sidecar(
    dir: &Dir,
    id: FileId,
    end: End,
    regions: &mut Regions,
    needed: &mut Needed,
) -> Result<Option<sidecar::Totals>> {
    let whole = sidecar::open(dir, id).ok().filter(|reader| {
        sidecar::summary(&reader.footer).0 == end && reader.each(&mut |_, _| Ok(())).is_ok()
    });
    let Some(reader) = whole else { return Ok(None) };
    scan::of_sidecar(&reader, &mut |item| {
        needed.take(item);
        regions.apply(item).map_err(|detail| reader.corrupt(0, detail))
    })?;
    needed.by_sidecar.insert(id, end);
    Ok(Some(sidecar::summary(&reader.footer).1))
}

/// Applies a segment from its frames. Returns their end, and the offset of the last frame.
fn by_frames(
    reader: &mut SegmentReader,
    until: Option<u32>,
    regions: &mut Regions,
    needed: &mut Needed,
    passes: &mut Passes<'_>,
    f: &mut ItemSink<'_>,
) -> Result<(End, u32)> {
    let path = reader.path().to_path_buf();
    let mut last = 0;
    let end = scan::frames(reader, until, passes, &mut |frame, body, payloads| {
        last = frame.at.offset;
        let at = u64::from(frame.at.offset);
        scan::of_frame(&path, frame, body, payloads, &mut |item: &Item<'_>| {
            needed.take(item);
            regions.apply(item).map_err(|detail| Error::corrupt(&path, at, detail))?;
            f(item)
        })
    })?;
    Ok((end, last))
}

fn check_end(reader: &mut SegmentReader, found: End, end: End) -> Result<()> {
    if found == end {
        return Ok(());
    }
    let detail = damaged_payloads::describe(reader, found)?
        .unwrap_or_else(|| "no complete batch here, but the sealed segment continues".into());
    Err(reader.corrupt(found.at, detail))
}

fn check_tail(reader: &mut SegmentReader, end: End) -> Result<TailState> {
    if end.at == reader.block_bytes() {
        return Err(reader.corrupt(end.at, "segment without its first frame"));
    }
    scan::tail(reader, end)
}

/// Writes the last frame's own bytes over it: whatever part a crash keeps, the bytes are the same.
fn write_again(reader: &mut SegmentReader, file: &dyn VfsFile, at: u32, crc: u32) -> Result<()> {
    let mut frame = match checked_frame(reader, at, crc)? {
        Some(frame) => frame,
        None => {
            reader.refresh()?;
            checked_frame(reader, at, crc)?.ok_or_else(|| {
                reader.corrupt(
                    at,
                    "two reads of the last batch differ from the first, which matched its \
                     checksum; nothing was changed; check the device, then open the store again",
                )
            })?
        }
    };
    frame.pad_to_multiple(reader.block_bytes() as usize);
    file.write_at(&[IoSlice::new(&frame)], u64::from(at), Cause::Log)
}

/// Returns a copy of the frame with this checksum, without its padding; `None` after a wrong read.
///
/// Invariant: the checksum of a frame that is written again is that of the returned bytes, not of an earlier
/// read of them. So a wrong read is never written over an acknowledged batch.
/// Test: `recovery_writes_back_only_a_copy_that_it_checked`.
fn checked_frame(reader: &mut SegmentReader, at: u32, crc: u32) -> Result<Option<AlignedBuf>> {
    let Some(header) = reader.named(at)? else { return Ok(None) };
    let mut frame = AlignedBuf::new();
    frame.extend_from_slice(&header.encode());
    frame.extend_from_slice(reader.body(at, &header)?.unwrap_or_default());
    let body_crc = crc32c(frame.get(FRAME_HEADER_BYTES..).unwrap_or_default());
    let is_checked = header.crc == crc && reader.is_whole(&header, body_crc);
    // bug log.written_back_unchecked: let is_checked = true;
    Ok(is_checked.then_some(frame))
}

fn create(shared: &Shared, from: &RecoverFrom) -> Result<Appender> {
    if from.checkpoint != Lsn::default() || from.raft_from != FileId(0) {
        let detail =
            format!("the index has a checkpoint at {}, but there is no log", from.checkpoint);
        return Err(Error::Missing { path: shared.dir.path.clone(), detail });
    }
    let id = shared.allocate_file();
    let mut buffer = AlignedBuf::in_large_pages();
    let previous = (FileId(0), End { at: 0, chain: 0 });
    let how =
        Begin { dir: &shared.dir, id, recycle: None, zeroed_bytes: 0, previous, carried: &[] };
    let begun = begin(&how, &mut buffer)?;
    shared.catalog.write().insert(id, active_meta(id, false));
    let inline_max = shared.options.inline_value_bytes_max;
    Ok(Appender {
        file: begun.file,
        id,
        block_bytes: begun.block_bytes,
        origin: begun.origin,
        end: begun.end,
        has_batches: false,
        confirmed: false,
        has_remains: false,
        recycled: false,
        buffer,
        staged: Staged::default(),
        sidecar: SidecarWriter::new(&shared.dir, id, inline_max),
    })
}

fn check_whole(dir: &Dir, regions: &Regions, head: Lsn, from: &RecoverFrom) -> Result<()> {
    // bug log.accept_lost_tail: never
    if from.checkpoint > head {
        let detail = format!("the log ends at {head}, before the checkpoint {}", from.checkpoint);
        return Err(Error::Missing { path: dir.path_of(Name::Segment(head.file)), detail });
    }
    // bug log.accept_gap: return Ok(());
    match regions.gap() {
        Some((region, first, last)) => {
            let detail = format!("entries {first} to {last} of region {region} are in no segment");
            Err(Error::Missing { path: dir.path.clone(), detail })
        }
        None => Ok(()),
    }
}

fn read_payload(dir: &Dir, name: Name, at: &Locator) -> Result<Bytes> {
    let file = dir.open_read(name)?;
    let (begin, end) = (u64::from(at.offset), u64::from(at.offset) + u64::from(at.length));
    if end > file.len()? {
        return Err(Error::corrupt(file.path(), begin, "value ends after the end of its file"));
    }
    let mut value = vec![0; at.length as usize];
    file.read_exact_at(&mut value, begin)?;
    at.check(&value)?;
    Ok(value.into())
}

pub(crate) fn unread_meta(kind: FileKind, bytes: u64, min_lsn: Lsn) -> FileMeta {
    FileMeta {
        kind,
        bytes,
        payload_bytes: bytes,
        min_lsn,
        max_lsn: min_lsn,
        end: None,
        is_damaged: false,
    }
}
