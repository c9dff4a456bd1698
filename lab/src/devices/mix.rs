//! Operations of a client, drawn by their shares (KVSB: insert, update, read, delete).

use super::args::Shares;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stele_load::{Kind, Records};
use stele_types::Prng;

pub(super) struct Source<'a> {
    pub shares: Shares,
    pub records: &'a Records,
    /// Number of records of the store, which all its clients share.
    pub inserted: &'a AtomicU64,
    pub prng: Prng,
}

impl Source<'_> {
    /// Draws an operation and its key; records are chosen uniformly.
    pub(super) fn draw(&mut self) -> (Kind, Vec<u8>) {
        let Shares { insert, update, read, .. } = self.shares;
        let percent = self.prng.below(100);
        let kind = match percent {
            _ if percent < insert => {
                let record = self.inserted.fetch_add(1, Relaxed);
                return (Kind::Insert, self.records.key(record));
            }
            _ if percent < insert + update => Kind::Update,
            _ if percent < insert + update + read => Kind::Read,
            _ => Kind::Delete,
        };
        let record = self.prng.below(self.inserted.load(Relaxed));
        (kind, self.records.key(record))
    }
}
