//! A file of the simulated disk: visible content, durable content, and the unsynced changes
//! between.

use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Range;
use stele_types::Prng;
use stele_vfs::Content;

/// Unit that a device writes completely or not at all.
const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub visible: Content,
    /// Content that every restart finds at least.
    durable: Content,
    /// Changes to `visible` since the last sync, oldest first.
    pending: Vec<Change>,
    /// Whether `visible` holds bytes that no sync will make durable (after a failed sync).
    diverged: bool,
    /// Numbers of sectors that the device refuses to read, until they are written completely.
    pub unreadable: BTreeSet<u64>,
    /// Blocks are reserved for `[0, reserved)`.
    pub reserved: u64,
    /// Whether a visible name refers to this file.
    pub linked: bool,
    pub open: usize,
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, data: Bytes },
    SetLen(u64),
}

impl Change {
    fn apply(&self, content: &mut Content) {
        match self {
            Self::Write { offset, data } => content.write(data, *offset),
            Self::SetLen(len) => content.set_len(*len),
        }
    }

    /// Applies only the sectors of a write for which `keep` returns `true`. A length is applied as
    /// a whole.
    fn apply_part(&self, content: &mut Content, mut keep: impl FnMut() -> bool) {
        match self {
            Self::Write { offset, data } => {
                for (at, piece) in sectors(*offset, data) {
                    if keep() {
                        content.write(&piece, at);
                    }
                }
            }
            Self::SetLen(len) => {
                if keep() {
                    content.set_len(*len);
                }
            }
        }
    }

    fn len_after(&self, len: u64) -> u64 {
        match self {
            Self::Write { offset, data } => len.max(offset + data.len() as u64),
            Self::SetLen(len) => *len,
        }
    }
}

fn sectors(offset: u64, data: &Bytes) -> impl Iterator<Item = (u64, Bytes)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = offset + at as u64;
        let room = (SECTOR_BYTES - start % SECTOR_BYTES) as usize;
        let bytes = room.min(data.len() - at);
        let piece = data.slice(at..at + bytes);
        at += bytes;
        (bytes > 0).then_some((start, piece))
    })
}

impl Inode {
    pub(super) fn named() -> Self {
        Self { linked: true, ..Self::default() }
    }

    pub(super) fn durable(content: Content, reserved: u64) -> Self {
        Self { visible: content.clone(), durable: content, reserved, ..Self::named() }
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.visible.allocated_bytes(self.reserved)
    }

    /// Writes `data`. An empty write changes nothing, not even the length, as with `pwrite`.
    pub(super) fn write(&mut self, offset: u64, data: Bytes) {
        if data.is_empty() {
            return;
        }
        self.change(Change::Write { offset, data });
    }

    /// Writes some sectors of `data`, never all.
    pub(super) fn write_torn(&mut self, offset: u64, data: &Bytes, prng: &mut Prng) {
        let pieces: Vec<_> = sectors(offset, data).collect();
        if pieces.is_empty() {
            return;
        }
        let left_out = prng.below(pieces.len() as u64);
        // Often a prefix, as on real devices; otherwise any subset.
        let prefix = prng.coin();
        for (i, (at, piece)) in (0..).zip(pieces) {
            let keep = if prefix { i < left_out } else { i != left_out && prng.coin() };
            if keep {
                self.write(at, piece);
            }
        }
    }

    /// Extends with zeros to at least `len`.
    pub(super) fn grow(&mut self, len: u64) {
        if len > self.visible.len {
            self.change(Change::SetLen(len));
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        self.reserved = self.reserved.min(len);
        self.change(Change::SetLen(len));
    }

    pub(super) fn refuse_reads(&mut self, range: Range<u64>) {
        let sectors = range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES);
        self.unreadable.extend(sectors);
    }

    pub(super) fn refused(&self, range: Range<u64>) -> Option<u64> {
        let end = range.end.min(self.visible.len).div_ceil(SECTOR_BYTES);
        let first = range.start / SECTOR_BYTES;
        let sector = self.unreadable.range(first..end.max(first)).next()?;
        Some((sector * SECTOR_BYTES).max(range.start))
    }

    /// Gives the sectors that a change replaces completely a new place on the device.
    fn remap(&mut self, change: &Change) {
        match change {
            Change::Write { offset, data } => {
                let end = (offset + data.len() as u64) / SECTOR_BYTES;
                let whole = offset.div_ceil(SECTOR_BYTES)..end;
                self.unreadable.retain(|sector| !whole.contains(sector));
            }
            Change::SetLen(len) => {
                self.unreadable.retain(|sector| *sector < len.div_ceil(SECTOR_BYTES));
            }
        }
    }

    fn change(&mut self, change: Change) {
        if !self.unreadable.is_empty() {
            self.remap(&change);
        }
        change.apply(&mut self.visible);
        self.pending.push(change);
    }

    pub(super) fn sync(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        for change in &pending {
            match change {
                Change::Write { offset, data } if !self.diverged => {
                    self.durable.share(&self.visible, *offset, data.len());
                    self.durable.grow(offset + data.len() as u64);
                }
                change => change.apply(&mut self.durable),
            }
        }
    }

    /// Makes a part of the changes durable; the rest never will be.
    pub(super) fn sync_partly(&mut self, prng: &mut Prng) {
        self.durable = self.after_crash(prng);
        self.pending.clear();
        self.diverged = true;
    }

    /// Returns what a restart finds: the durable content with some of the later sectors and
    /// lengths.
    pub(super) fn after_crash(&self, prng: &mut Prng) -> Content {
        let mut content = self.durable.clone();
        if self.pending.is_empty() {
            return content;
        }
        // bug vfs.sim_unsynced_kept: return self.visible.clone();
        let mut lens = vec![content.len];
        for change in &self.pending {
            lens.push(change.len_after(lens.last().copied().unwrap_or(0)));
        }
        let changes = self.pending.len();
        match prng.below(4) {
            0 => {}
            1 => self.pending.iter().for_each(|change| change.apply(&mut content)),
            2 => {
                let whole = prng.below(changes as u64) as usize;
                self.pending.iter().take(whole).for_each(|change| change.apply(&mut content));
                if let Some(torn) = self.pending.get(whole) {
                    torn.apply_part(&mut content, || prng.coin());
                }
            }
            _ => {
                for change in &self.pending {
                    change.apply_part(&mut content, || prng.coin());
                }
                // The length is durable independently of the bytes.
                let which =
                    if prng.coin() { changes } else { prng.below(lens.len() as u64) as usize };
                content.set_len(lens.get(which).copied().unwrap_or(content.len));
            }
        }
        content
    }

    /// Changes stored bytes like damage: durably at once, and in the unsynced changes too.
    pub(super) fn damage(&mut self, offset: u64, bytes: &[u8]) {
        self.visible.write(bytes, offset);
        self.durable.write(bytes, offset);
        for change in &mut self.pending {
            if let Change::Write { offset: at, data } = change {
                let from = offset.max(*at);
                let to = (offset + bytes.len() as u64).min(*at + data.len() as u64);
                if from < to {
                    let mut damaged = data.to_vec();
                    let source = &bytes[(from - offset) as usize..(to - offset) as usize];
                    damaged[(from - *at) as usize..(to - *at) as usize].copy_from_slice(source);
                    *data = damaged.into();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(content: &Content) -> Vec<u8> {
        let mut bytes = vec![0; content.len as usize];
        content.read(&mut bytes, 0);
        bytes
    }

    #[test]
    fn a_sync_makes_exactly_what_is_seen_durable() {
        let mut prng = Prng::new(7);
        let mut inode = Inode::default();
        for round in 0..300 {
            let offset = prng.below(30_000);
            match prng.below(6) {
                0 => inode.set_len(offset),
                1 => inode.sync(),
                _ => inode.write(offset, vec![round as u8; prng.below(9000) as usize].into()),
            }
            let mut synced = inode.clone();
            synced.sync();
            assert_eq!(all(&synced.durable), all(&inode.visible));
            assert_eq!(all(&synced.after_crash(&mut prng)), all(&inode.visible));
        }
    }

    #[test]
    fn torn_writes_end_at_sectors_and_lack_something() {
        for seed in 0..200 {
            let mut inode = Inode::durable(Content::default(), 0);
            inode.write_torn(100, &Bytes::from(vec![1; 3000]), &mut Prng::new(seed));
            let mut bytes = all(&inode.visible);
            bytes.resize(3100, 0);
            assert!(bytes[100..].contains(&0), "seed {seed}");
            let edges = bytes.windows(2).enumerate().filter(|(_, pair)| pair[0] != pair[1]);
            for (at, _) in edges {
                assert!(at + 1 == 100 || (at + 1) % 512 == 0, "seed {seed}: edge at {}", at + 1);
            }
        }
    }

    #[test]
    fn after_a_failed_sync_a_later_one_proves_nothing() {
        let mut lost = 0;
        for seed in 0..40 {
            let mut prng = Prng::new(seed);
            let mut inode = Inode::default();
            inode.write(0, vec![1; 512].into());
            inode.sync_partly(&mut prng);
            inode.write(512, vec![2; 512].into());
            inode.sync();
            assert_eq!(all(&inode.visible)[0], 1);
            let survived = all(&inode.after_crash(&mut prng));
            assert_eq!(survived[512..], [2; 512]);
            lost += usize::from(survived[0] == 0);
        }
        assert!((1..40).contains(&lost));
    }
}
