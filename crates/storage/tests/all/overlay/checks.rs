//! Reads of every snapshot of a history over every view that it may be laid over.

use crate::overlay::history::{History, Snapshot};
use crate::overlay::plain::PlainView;
use std::fmt::Debug;
use std::sync::Arc;
use stele_storage::{CachedGet, EngineView, Order, Overlaid, Pair, PendingGet, ScanOptions};
use stele_types::{KeyRange, Prng};

const GETS: u64 = 4;
const SCANS: u64 = 6;

/// Compares reads of each snapshot over each view with the state after its last entry. Returns the
/// number of reads, or the first difference.
pub(super) fn compare(history: &History, seed: u64) -> Result<u64, String> {
    let prng = &mut Prng::new(seed ^ 0x5eed);
    let mut reads = 0;
    for snapshot in &history.snapshots {
        for view in snapshot.views() {
            let case = Case {
                history,
                snapshot,
                wanted: PlainView(Arc::clone(&history.states[snapshot.last])),
                overlaid: Overlaid::new(
                    PlainView(Arc::clone(&history.states[view])),
                    snapshot.effects.clone(),
                ),
            };
            reads += case.compare(prng).map_err(|detail| {
                let Snapshot { applied, last, .. } = snapshot;
                let ops = &history.entries[applied + 1..=*last];
                format!("seed {seed}: view {view} of {applied} to {last}: {detail}\n{ops:?}")
            })?;
        }
    }
    Ok(reads)
}

struct Case<'a> {
    history: &'a History,
    snapshot: &'a Snapshot,
    wanted: PlainView,
    overlaid: Overlaid<PlainView>,
}

impl Case<'_> {
    fn compare(&self, prng: &mut Prng) -> Result<u64, String> {
        for _ in 0..GETS {
            self.get(prng)?;
        }
        self.get_many(prng)?;
        for _ in 0..SCANS {
            self.scan(prng)?;
        }
        Ok(3 * GETS + SCANS + self.pages(prng)?)
    }

    fn get_many(&self, prng: &mut Prng) -> Result<(), String> {
        let keys: Vec<_> = (0..GETS).map(|_| self.history.keys.draw(prng)).collect();
        let gets = keys.iter().cloned().map(PendingGet::of_key).collect();
        let got = self.overlaid.get_many(gets, &mut |_, _| true);
        let got: Vec<_> = got.into_iter().map(|got| got.unwrap().read().unwrap()).collect();
        let wanted: Vec<_> = keys.iter().map(|key| self.wanted.get(key).unwrap()).collect();
        equal(&got, &wanted, &("get_many", &keys))?;
        for (key, pair) in keys.iter().zip(&wanted) {
            let meta = pair.as_ref().map(Pair::meta);
            equal(&self.overlaid.get_meta(key).unwrap(), &meta, &("get_meta", key))?;
        }
        Ok(())
    }

    fn get(&self, prng: &mut Prng) -> Result<(), String> {
        let key = self.history.keys.draw(prng);
        let wanted = self.wanted.get(&key).unwrap();
        equal(&self.overlaid.get(&key).unwrap(), &wanted, &("get", &key))?;
        let Snapshot { applied, last, .. } = *self.snapshot;
        let mut unapplied = self.history.entries[applied + 1..=last].iter().flatten();
        let cached = self.overlaid.get_cached(&key).unwrap();
        // An effect of an entry that is applied may stay, with those of all later ones.
        let needs_io = matches!(cached, CachedGet::NeedsIo(_));
        if needs_io && !unapplied.any(|op| op.writes(&key)) {
            return Ok(());
        }
        equal(&cached, &CachedGet::Ready(wanted), &("get_cached", &key))
    }

    fn scan(&self, prng: &mut Prng) -> Result<(), String> {
        let options = self.options(prng);
        let wanted = self.wanted.scan(&options).unwrap();
        equal(&self.overlaid.scan(&options).unwrap(), &wanted, &options)?;
        let Snapshot { applied, last, ref effects } = *self.snapshot;
        let mut unapplied = self.history.entries[applied + 1..=last].iter().flatten();
        let has_effect = unapplied.any(|op| op.overlaps(&options.range));
        let found = effects.has_effect_in(&options.range);
        equal(&(found || !has_effect), &true, &("effect in", &options.range))
    }

    fn options(&self, prng: &mut Prng) -> ScanOptions {
        let limits = [0, 1, 2, 3, 5, 8, 40, usize::MAX];
        let bytes_max = [0, 3, 8, 20, 60, 400, usize::MAX, usize::MAX];
        ScanOptions {
            range: match prng.below(3) {
                0 => KeyRange::all(),
                _ => self.history.keys.range(prng),
            },
            order: if prng.coin() { Order::Forward } else { Order::Reverse },
            limit: limits[prng.below(8) as usize],
            bytes_max: bytes_max[prng.below(8) as usize],
            keys_only: prng.below(4) == 0,
            wanted: 0,
        }
    }

    /// Reads all keys in pages, each after the last key of the one before. Returns the number of
    /// pages.
    fn pages(&self, prng: &mut Prng) -> Result<u64, String> {
        let mut options = self.options(prng);
        let whole = ScanOptions { limit: usize::MAX, bytes_max: usize::MAX, ..options.clone() };
        options.limit = options.limit.max(1);
        let mut pages: Vec<Vec<Pair>> = Vec::new();
        loop {
            let page = self.overlaid.scan(&options).unwrap();
            let last = page.last().map(|pair| pair.key.clone());
            pages.push(page);
            match (last, options.order) {
                (Some(last), Order::Forward) => {
                    options.range.start = [&last[..], &[0]].concat().into();
                }
                // Nothing is below the empty key, and an empty end is no bound.
                (Some(last), Order::Reverse) if !last.is_empty() => options.range.end = last,
                _ => break,
            }
        }
        let wanted = self.wanted.scan(&whole).unwrap();
        equal(&pages.concat(), &wanted, &("pages", &whole, &options))?;
        Ok(pages.len() as u64)
    }
}

fn equal<T: PartialEq + Debug>(found: &T, wanted: &T, what: &impl Debug) -> Result<(), String> {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what:?}: found {found:?}, wanted {wanted:?}"))
}
