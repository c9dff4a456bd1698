//! Writer of runs.

use super::block::BlockBuilder;
use super::fences::{Fences, separator};
use super::filter::Filter;
use super::footer::{self, Layout};
use super::hash_index::{self, HashIndex, Place};
use super::meta::{RunExtra, RunMeta};
use super::{RunOptions, key_hash, run_path, run_tmp_path};
use crate::cursor::Found;
use bytes::Bytes;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Cause, Error, Result, RunId, ValueRef};
use stele_vfs::{Open, Vfs, VfsFile};

/// Size of a write to the file.
const WRITE_BYTES: usize = 256 << 10;
/// Bytes written between syncs, at most, so that the last sync, and concurrent syncs of the log,
/// have little to write back.
const SYNC_BYTES: u64 = 8 << 20;
const BLOCK_BYTES: std::ops::RangeInclusive<usize> = 512..=32 << 10;

/// Writer of one run. Until the run is complete, its file has a temporary name.
#[derive(Debug)]
pub struct RunWriter {
    out: TmpFile,
    options: RunOptions,
    meta: RunMeta,
    block: BlockBuilder,
    fences: Fences,
    hashes: Vec<u64>,
    places: Vec<Place>,
    last_key: Vec<u8>,
    synced: u64,
}

#[derive(Debug)]
struct TmpFile {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    file: Arc<dyn VfsFile>,
    cause: Cause,
    /// Bytes not yet written to the file; they begin at `written`.
    pending: Vec<u8>,
    written: u64,
}

impl TmpFile {
    fn write(&mut self) -> Result<()> {
        self.file.write_at(&[IoSlice::new(&self.pending)], self.written, self.cause)?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

impl RunWriter {
    /// Creates the file of run `id` in `dir`; fails if it exists.
    pub fn create(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        id: RunId,
        options: &RunOptions,
        cause: Cause,
    ) -> Result<Self> {
        let block_bytes = options.block_bytes.clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end());
        let file = vfs.open(&run_tmp_path(dir, id), Open::CREATE)?;
        let (vfs, dir, pending) = (vfs.clone(), dir.to_path_buf(), Vec::new());
        Ok(Self {
            out: TmpFile { vfs, dir, file, cause, pending, written: 0 },
            options: RunOptions { block_bytes, ..*options },
            meta: RunMeta::empty(id),
            block: BlockBuilder::default(),
            fences: Fences::default(),
            hashes: Vec::new(),
            places: Vec::new(),
            last_key: Vec::new(),
            synced: 0,
        })
    }

    /// Adds an entry. Fails with [`Error::Invalid`], adding nothing, unless `key` is above all
    /// earlier keys.
    pub fn add(&mut self, key: &[u8], found: &Found) -> Result<()> {
        if self.block.is_full_for(key, found, self.options.block_bytes) {
            self.cut()?;
        }
        let last = if self.block.len() == 0 { &self.last_key } else { self.block.last_key() };
        if self.meta.entries > 0 && last >= key {
            return Err(Error::invalid("keys of a run must ascend"));
        }
        if self.block.len() == 0 {
            let fence = if self.fences.len() == 0 { &[] } else { separator(&self.last_key, key) };
            self.fences.push(fence, 0);
        }
        if self.meta.entries == 0 {
            self.meta.first_key = Bytes::copy_from_slice(key);
        }
        let block = (self.fences.len() - 1) as u32;
        self.hashes.push(key_hash(key));
        self.places.push(Place { block, slot: self.block.len() as u8 });
        self.block.add(key, found);
        self.count(key, found);
        Ok(())
    }

    fn count(&mut self, key: &[u8], found: &Found) {
        self.meta.entries += 1;
        self.meta.key_bytes += key.len() as u64;
        match found {
            Found::Deleted => self.meta.tombstones += 1,
            Found::Value { value, expires_at_s } => {
                if *expires_at_s != 0 {
                    self.meta.count_expiry(*expires_at_s);
                }
                match value {
                    ValueRef::Inline(_) => self.meta.inline += 1,
                    ValueRef::At(at) => {
                        // bug index.refs_forgotten: self.meta.refs.entry(at.file).or_default(); return;
                        self.meta.refs.entry(at.file).or_default().add(key.len(), at);
                    }
                }
            }
        }
    }

    /// Returns the run's number.
    pub fn id(&self) -> RunId {
        self.meta.id
    }

    /// Returns the number of entries added so far.
    pub fn entries(&self) -> u64 {
        self.meta.entries
    }

    pub(crate) fn estimated_bytes(&self) -> u64 {
        let keys = self.hashes.len();
        let index = hash_index::bytes_for(keys) + keys * self.options.filter_bits_per_key / 8;
        self.end() + (self.block.bytes() + index + self.fences.memory_bytes()) as u64
    }

    fn end(&self) -> u64 {
        self.out.written + self.out.pending.len() as u64
    }

    fn cut(&mut self) -> Result<()> {
        self.last_key.clear();
        self.last_key.extend_from_slice(self.block.last_key());
        let start = self.end();
        self.block.finish(&mut self.out.pending, self.meta.id, start);
        self.fences.set_last_bytes(self.end() - start);
        if self.out.pending.len() >= WRITE_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        self.out.write()?;
        if self.out.written - self.synced >= SYNC_BYTES {
            self.out.file.sync_data()?;
            self.synced = self.out.written;
        }
        Ok(())
    }

    /// Appends a part and returns its size with the trailer; an empty part is left out.
    fn part(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let (offset, from) = (self.end(), self.out.pending.len());
        encode(&mut self.out.pending);
        if self.out.pending.len() > from {
            footer::put(&mut self.out.pending, from, self.meta.id, offset);
        }
        self.end() - offset
    }

    /// Completes the file and makes its data durable under its name; the name is durable once the
    /// caller has synced the directory.
    pub fn finish(self, extra: RunExtra) -> Result<RunMeta> {
        self.close()?.finish(extra)
    }

    /// Completes the run except for the footer, which needs the tier's age.
    pub fn close(mut self) -> Result<ClosedRun> {
        if self.block.len() > 0 {
            self.cut()?;
        }
        self.meta.last_key = Bytes::from(std::mem::take(&mut self.last_key));
        let blocks = self.fences.len();
        let mut layout =
            Layout { blocks: blocks as u64, data_bytes: self.end(), ..Layout::default() };
        let fences = std::mem::take(&mut self.fences);
        layout.fences_bytes = self.part(|out| fences.encode(out));
        let filter = Filter::build(&self.hashes, self.options.filter_bits_per_key);
        layout.probes = filter.probes();
        layout.filter_bytes = self.part(|out| filter.encode(out));
        self.write()?;
        if let Some(index) = HashIndex::build(&self.hashes, &self.places, blocks) {
            layout.block_bits = index.block_bits();
            layout.hash_bytes = self.part(|out| index.encode(out));
        }
        Ok(ClosedRun { out: self.out, meta: self.meta, layout })
    }
}

/// A run without its footer; its file has a temporary name.
#[derive(Debug)]
pub struct ClosedRun {
    out: TmpFile,
    meta: RunMeta,
    layout: Layout,
}

impl ClosedRun {
    /// Syncs what is written so far, so that [`Self::finish`] is short.
    pub fn sync(&mut self) -> Result<()> {
        self.out.write()?;
        self.out.file.sync_data()
    }

    /// Writes the footer, see [`RunWriter::finish`].
    pub fn finish(mut self, extra: RunExtra) -> Result<RunMeta> {
        self.meta.extra = extra;
        self.out.pending.extend_from_slice(&footer::encode(&self.meta, &self.layout));
        self.out.write()?;
        // Invariant: a run is complete on disk before the manifest references it.
        // bug index.skip_run_sync: skip
        self.out.file.sync_data()?;
        let (dir, id) = (&self.out.dir, self.meta.id);
        self.out.vfs.rename(&run_tmp_path(dir, id), &run_path(dir, id))?;
        self.meta.bytes = self.out.written;
        Ok(self.meta)
    }
}
