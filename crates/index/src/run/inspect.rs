//! Dump of a run file, damaged or not, for the command line.

use super::block::Block;
use super::footer::{self, Layout};
use super::meta::RunMeta;
use super::parse_run_file_name;
use super::reader::read_part;
use crate::cursor::Found;
use bytes::Bytes;
use std::path::Path;
use stele_types::{Error, Result, RunId};
use stele_vfs::{Open, Vfs, VfsFile};

/// One item of a run file.
#[derive(Debug)]
pub enum RunItem {
    /// The footer: metadata, and the layout of the parts.
    Footer(RunMeta, Vec<RunPart>),
    /// A key block; its entries follow.
    Block {
        /// Bytes from the start of the file.
        offset: u64,
        /// Size on disk.
        bytes: u64,
        /// Number of entries.
        entries: usize,
    },
    /// An entry of the last block.
    Entry {
        /// Its key.
        key: Bytes,
        /// Its content.
        found: Found,
    },
    /// A stretch that cannot be read or does not parse.
    Damage(Error),
}

/// A part of a run file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPart {
    /// `blocks`, `fences`, `filter`, `hash index` or `footer`.
    pub name: &'static str,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Size with the checksum.
    pub bytes: u64,
}

/// Dumps the file at `path`: the footer, then blocks with their entries. Reports damage to `f` and
/// continues after it. Fails only when the file cannot be opened or read.
pub fn inspect_run_items(vfs: &dyn Vfs, path: &Path, f: &mut dyn FnMut(RunItem)) -> Result<()> {
    let file = vfs.open(path, Open::READ)?;
    let named = path.file_name().and_then(|name| parse_run_file_name(name.to_str()?));
    let mut id = named.unwrap_or_default();
    let mut data_end = file.len()?;
    match tolerate(footer::read(&*file), f)? {
        Some((meta, layout)) => {
            id = meta.id;
            data_end = layout.data_bytes;
            for (offset, bytes) in checksummed_parts(&layout) {
                tolerate(read_part(&*file, id, offset, bytes), f)?;
            }
            let parts = parts(&layout, meta.bytes);
            f(RunItem::Footer(meta, parts));
        }
        // Blocks contain their lengths, so they can be walked without the other parts.
        None if named.is_none() => return Ok(()),
        None => {}
    }
    blocks(&*file, id, data_end, f)
}

/// Description of one part of a run file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRecord {
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Size on disk; 0 where unknown.
    pub bytes: u64,
    /// The part, or what is wrong.
    pub content: std::result::Result<String, String>,
}

/// Dumps the file like [`inspect_run_items`], as one line per part and per block.
pub fn inspect_run(vfs: &dyn Vfs, path: &Path, f: &mut dyn FnMut(RunRecord)) -> Result<()> {
    inspect_run_items(vfs, path, &mut |item| match item {
        RunItem::Footer(meta, parts) => {
            for RunPart { name, offset, bytes } in parts {
                let content = match name {
                    "footer" => format!("footer: {}", describe(&meta)),
                    _ => name.to_string(),
                };
                f(RunRecord { offset, bytes, content: Ok(content) });
            }
        }
        RunItem::Block { offset, bytes, entries } => {
            f(RunRecord { offset, bytes, content: Ok(format!("block of {entries} entries")) });
        }
        RunItem::Entry { .. } => {}
        RunItem::Damage(Error::Corrupt { offset, detail, .. }) => {
            f(RunRecord { offset, bytes: 0, content: Err(detail) });
        }
        RunItem::Damage(error) => {
            f(RunRecord { offset: 0, bytes: 0, content: Err(error.to_string()) });
        }
    })
}

fn describe(meta: &RunMeta) -> String {
    let extra = &meta.extra;
    let mut text = format!(
        "run {}, age {}, job {} part {}{}, {} entries ({} deleted, {} inline, {} expiring), keys {:?} to {:?}",
        meta.id,
        extra.age,
        extra.job,
        extra.part,
        if extra.last_part { " (last)" } else { "" },
        meta.entries,
        meta.tombstones,
        meta.inline,
        meta.expiring,
        meta.first_key,
        meta.last_key,
    );
    if !extra.ranges.is_empty() {
        text.push_str(&format!(", {} range tombstones", extra.ranges.len()));
    }
    if !extra.replaces.is_empty() {
        let replaced: Vec<_> = extra.replaces.iter().map(ToString::to_string).collect();
        text.push_str(&format!(", replaces runs {}", replaced.join(" ")));
    }
    for (file, live) in &meta.refs {
        text.push_str(&format!(
            ", refers to {} records ({} B) of file {:08x}",
            live.records, live.bytes, file.0
        ));
    }
    text
}

fn tolerate<T>(result: Result<T>, f: &mut dyn FnMut(RunItem)) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ (Error::Corrupt { .. } | Error::NewerFormat { .. })) => {
            f(RunItem::Damage(error));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn checksummed_parts(layout: &Layout) -> [(u64, u64); 3] {
    [
        (layout.data_bytes, layout.fences_bytes),
        (layout.filter_at(), layout.filter_bytes),
        (layout.hash_at(), layout.hash_bytes),
    ]
}

fn parts(layout: &Layout, file_bytes: u64) -> Vec<RunPart> {
    let [fences, filter, hash] = checksummed_parts(layout);
    let footer = (layout.footer_at(), file_bytes - layout.footer_at());
    let names = ["blocks", "fences", "filter", "hash index", "footer"];
    let places = [(0, layout.data_bytes), fences, filter, hash, footer];
    let part = |(name, (offset, bytes))| RunPart { name, offset, bytes };
    names.into_iter().zip(places).map(part).collect()
}

fn blocks(file: &dyn VfsFile, id: RunId, end: u64, f: &mut dyn FnMut(RunItem)) -> Result<()> {
    let mut offset = 0;
    while offset < end {
        let mut start = [0; 4];
        let got = file.read_at(&mut start, offset)?;
        let bytes = Block::bytes_on_disk(start.get(..got).unwrap_or_default());
        let Some(bytes) = bytes.filter(|bytes| *bytes as u64 <= end - offset) else {
            let detail = "no block begins here; the following blocks cannot be found";
            f(RunItem::Damage(Error::corrupt(file.path(), offset, detail)));
            return Ok(());
        };
        let mut raw = vec![0; bytes];
        file.read_exact_at(&mut raw, offset)?;
        if let Some(block) = tolerate(Block::open(file.path(), id, offset, &raw.into()), f)? {
            f(RunItem::Block { offset, bytes: bytes as u64, entries: block.count() });
            entries(file, &block, offset, f);
        }
        offset += bytes as u64;
    }
    Ok(())
}

fn entries(file: &dyn VfsFile, block: &Block, offset: u64, f: &mut dyn FnMut(RunItem)) {
    for slot in 0..block.count() {
        let entry = block.entry(slot).and_then(|entry| Some((entry, block.found(&entry)?)));
        f(match entry {
            Some((entry, found)) => {
                let key = [block.shared(), block.suffix(&entry)].concat().into();
                RunItem::Entry { key, found }
            }
            None => RunItem::Damage(Error::corrupt(file.path(), offset, "entry does not parse")),
        });
    }
}
