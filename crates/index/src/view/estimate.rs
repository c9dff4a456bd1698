//! Estimates of the size of a key range and of its middle, from some key blocks and some memtable
//! entries; no value is read.

use super::View;
use crate::run::key_hash;
use bytes::Bytes;
use stele_types::{KeyRange, Result};

/// Key blocks read per tier, at most.
const BLOCKS_MAX: usize = 32;
/// A range is cut only if the part after its first part is at least half as large.
const MUCH_MORE: f64 = 1.5;

/// Estimated content of a key range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Number of keys with a value.
    pub keys: f64,
    /// Bytes of these keys and values.
    pub bytes: f64,
}

impl View {
    /// Estimates the content of `range`.
    pub fn estimate(&self, range: &KeyRange) -> Result<Estimate> {
        let mut sum = Estimate::default();
        self.sample(range, &mut |_, keys, bytes| {
            sum.keys += keys;
            sum.bytes += bytes;
        })?;
        Ok(sum)
    }

    /// Returns a key with about half of the bytes of `range` below it, and pairs on both sides.
    pub fn middle(&self, range: &KeyRange) -> Result<Option<Bytes>> {
        self.cut(range, |bytes| Some(bytes / 2.0))
    }

    /// Returns a key with about `bytes` of `range` below it; `None` if the range is not much
    /// larger.
    pub fn first_part(&self, range: &KeyRange, bytes: f64) -> Result<Option<Bytes>> {
        self.cut(range, |all| (all >= MUCH_MORE * bytes).then_some(bytes))
    }

    /// Returns a key with about `before(total)` bytes of `range` below it, and pairs on both sides;
    /// `total` is the bytes of the range.
    fn cut(&self, range: &KeyRange, before: impl Fn(f64) -> Option<f64>) -> Result<Option<Bytes>> {
        let mut points: Vec<(Bytes, f64)> = Vec::new();
        self.sample(range, &mut |key, _, bytes| points.push((Bytes::copy_from_slice(key), bytes)))?;
        points.sort_by(|a, b| a.0.cmp(&b.0));
        let wanted = before(points.iter().map(|(_, bytes)| bytes).sum());
        let mut points = points.into_iter();
        let (Some(wanted), Some((first, mut bytes_before))) = (wanted, points.next()) else {
            return Ok(None);
        };
        let mut cut = None;
        for (key, bytes) in points.filter(|(key, _)| *key > first) {
            cut = Some(key);
            // The pair that reaches the wanted bytes belongs to the upper part.
            bytes_before += bytes;
            if bytes_before >= wanted {
                break;
            }
        }
        Ok(cut)
    }

    /// Samples pairs of `range`: passes the key, and the keys and bytes that each represents.
    fn sample(&self, range: &KeyRange, f: &mut dyn FnMut(&[u8], f64, f64)) -> Result<()> {
        let memtables: Vec<_> = self.tables.memtables().collect();
        let tiers = self.version().tiers();
        for at in 0..memtables.len() + tiers.len() {
            let mut count = |key: &[u8], value: Option<crate::ValueSlice<'_>>, weight: f64| {
                let Some(value) = value else { return };
                if !self.is_shadowed(key, at) {
                    let bytes = key.len() as f64 + f64::from(value.len());
                    f(key, weight, weight * bytes);
                }
            };
            if let Some(memtable) = memtables.get(at) {
                memtable.sample(range, self.seq, &mut count)?;
            } else if let Some(tier) = tiers.get(at - memtables.len()) {
                let blocks = tier.keyed().iter().map(|run| Ok(run.blocks_in(range)?.len()));
                let blocks = blocks.collect::<Result<Vec<_>>>()?;
                let all: usize = blocks.iter().sum();
                for (run, blocks) in tier.keyed().iter().zip(blocks) {
                    run.sample(range, (BLOCKS_MAX * blocks).div_ceil(all.max(1)), &mut count)?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether one of the `newer` newest sources (memtables, then tiers) has an entry or
    /// range tombstone for `key`. Tiers are checked by their filters, with a false positive rate of
    /// about 1 %.
    fn is_shadowed(&self, key: &[u8], newer: usize) -> bool {
        // bug index.shadowed_counted: return false;
        let mut left = newer;
        for memtable in self.tables.memtables() {
            let Some(less) = left.checked_sub(1) else { return false };
            if memtable.get(key, self.seq).is_some() {
                return true;
            }
            left = less;
        }
        let hash = key_hash(key);
        self.version().tiers().iter().take(left).any(|tier| tier.may_hold(key, hash))
    }
}
