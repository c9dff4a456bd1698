//! Verifies every checksum of every file. Damage is reported and skipped, never truncated.

use crate::catalog::FileMeta;
use crate::dir::Name;
use crate::format::{Content, Item};
use crate::segment::scan::{self, Payloads, Probe, SegmentReader};
use crate::segment::sidecar;
use crate::shared::Shared;
use crate::sorted::SortedReader;
use crate::{FileKind, retained_tombstones};
use std::path::PathBuf;
use stele_types::{Command, Error, FileId, Locator, Lsn, Op, Result};

/// Progress of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifyEvent {
    /// A file was read to its end.
    Checked {
        /// The file's number.
        file: FileId,
        /// The file's length in bytes.
        bytes: u64,
        /// Number of intact records.
        records: u64,
    },
    /// Bytes differ from what was written.
    Damaged(Damage),
}

/// Bytes that differ from what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The damaged file.
    pub path: PathBuf,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// The failed check.
    pub detail: String,
}

/// Totals of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifySummary {
    /// Number of files read.
    pub files: usize,
    /// Bytes of these files.
    pub bytes: u64,
    /// Number of intact records.
    pub records: u64,
    /// Number of damages reported.
    pub damaged: usize,
}

pub(crate) fn verify(shared: &Shared, f: &mut dyn FnMut(VerifyEvent)) -> Result<VerifySummary> {
    let files: Vec<(FileId, FileMeta)> =
        shared.catalog.read().iter().map(|(file, meta)| (file, *meta)).collect();
    let mut summary = VerifySummary::default();
    for (file, meta) in files {
        let mut checker = Checker { shared, f, damaged: 0, records: 0 };
        let bytes = checker.file(file, &meta)?;
        let (records, damaged) = (checker.records, checker.damaged);
        summary.files += 1;
        summary.bytes += bytes;
        summary.records += records;
        summary.damaged += damaged;
        f(VerifyEvent::Checked { file, bytes, records });
    }
    Ok(summary)
}

struct Checker<'a> {
    shared: &'a Shared,
    f: &'a mut dyn FnMut(VerifyEvent),
    damaged: usize,
    records: u64,
}

impl Checker<'_> {
    fn file(&mut self, file: FileId, meta: &FileMeta) -> Result<u64> {
        let checked = match meta.kind {
            FileKind::Segment { .. } => self.segment(file),
            FileKind::Sorted => self.sorted(file),
            FileKind::Tombstones => retained_tombstones::each(&self.shared.dir, file, &mut |_| {
                self.records += 1;
                Ok(())
            })
            .map(|()| meta.bytes),
        };
        match checked {
            Err(error) => self.report(error).map(|()| 0),
            whole => whole,
        }
    }

    /// Reports damage to the caller; other errors end the verification.
    fn report(&mut self, error: Error) -> Result<()> {
        let damage = match error {
            Error::Corrupt { path, offset, detail } => Damage { path, offset, detail },
            Error::Missing { path, detail } => Damage { path, offset: 0, detail },
            other => return Err(other),
        };
        self.damaged += 1;
        (self.f)(VerifyEvent::Damaged(damage));
        Ok(())
    }

    fn segment(&mut self, file: FileId) -> Result<u64> {
        let dir = &self.shared.dir;
        let end = self.shared.end_of(file);
        let mut reader = SegmentReader::open(dir, file, false)?;
        reader.refresh()?;
        let (mut at, mut chain) = (reader.block_bytes(), Some(reader.header.chain));
        let upto = end.unwrap_or(u32::try_from(reader.file_bytes()).unwrap_or(u32::MAX));
        while at < upto {
            let Probe::Frame(frame) = reader.probe(at)? else {
                // After a segment with an unknown end lie remains that were never part of it.
                if end.is_some() {
                    self.report(reader.corrupt(at, "no whole batch here"))?;
                }
                chain = None;
                let next = at.saturating_add(reader.block_bytes());
                at = scan::next_frame(&mut reader, next)?.unwrap_or(upto);
                continue;
            };
            if chain.is_some_and(|chain| chain != frame.chain) {
                self.report(reader.corrupt(at, "batch is not chained to the one before it"))?;
            }
            chain = Some(frame.crc);
            let path = reader.path().to_path_buf();
            if let Some(body) = reader.body(at, &frame)? {
                let mut bad = Vec::new();
                let mut records = 0;
                scan::of_frame(&path, &frame, body, Payloads::All, &mut |item| {
                    records += 1;
                    bad.extend(bad_values(item));
                    Ok(())
                })?;
                self.records += records;
                for locator in bad {
                    let offset = u64::from(locator.offset);
                    let detail = "value does not match its checksum";
                    self.report(Error::corrupt(&path, offset, detail))?;
                }
            }
            at = reader.after(at, &frame);
        }
        self.sidecar(file)?;
        Ok(reader.file_bytes())
    }

    /// Verifies the sidecar. A missing one is not damage: it is optional.
    fn sidecar(&mut self, file: FileId) -> Result<()> {
        let dir = &self.shared.dir;
        if !dir.vfs.exists(&dir.path_of(Name::Sidecar(file)))? {
            return Ok(());
        }
        let checked =
            sidecar::open(dir, file).and_then(|reader| scan::of_sidecar(&reader, &mut |_| Ok(())));
        checked.or_else(|error| self.report(error))
    }

    fn sorted(&mut self, file: FileId) -> Result<u64> {
        let mut reader = SortedReader::open(&self.shared.dir, file)?;
        let path = reader.path().to_path_buf();
        while let Some(record) = reader.next_record()? {
            self.records += 1;
            if record.locator.check(record.value).is_err() {
                let detail = "value does not match its checksum";
                self.report(Error::corrupt(&path, u64::from(record.locator.offset), detail))?;
            }
        }
        let (counted, found) = (reader.totals().records, self.records);
        if counted != found {
            let detail = format!("{found} records, but the footer counts {counted}");
            self.report(Error::corrupt(&path, reader.file_bytes(), detail))?;
        }
        Ok(reader.file_bytes())
    }
}

fn bad_values(item: &Item<'_>) -> Vec<Locator> {
    let Item::Entry(entry) = item else { return Vec::new() };
    let Content::Payload(payload) = entry.content else { return Vec::new() };
    let ops = entry.is_command.then(|| Command::ops_of(payload)).flatten();
    let bad = |op: Op<'_>| {
        let locator = op.locator(Lsn::new(entry.at.file, entry.at.offset))?;
        let Op::Put { value, .. } = op else { return None };
        locator.check(value).is_err().then_some(locator)
    };
    ops.into_iter().flatten().filter_map(bad).collect()
}
