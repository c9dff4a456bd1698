//! Workload: a load, uniform updates, gets, a scan.

use super::fairness::Fairness;
use super::space::{disk_bytes, settle};
use super::{BATCH_KEYS, Durable, UPDATES_PER_KEY};
use crate::embedded::disk::sequential_read_mb_s;
use crate::embedded::stats::rounded;
use crate::machine::forget_cached;
use crate::machine::{Stopwatch, written_bytes};
use crate::workload::{KEY_BYTES, Values, key};
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::time::Instant;
use stele_types::Prng;

const GETS_MAX: u64 = 100_000;
/// Samples of the occupied space per round of updates over all keys.
const SAMPLES_PER_KEY: u64 = 8;

pub(super) type Figures = Vec<(&'static str, f64)>;

pub(super) struct Work {
    pub home: PathBuf,
    pub keys: u64,
    pub value_bytes: u64,
    pub seed: u64,
    pub fairness: Fairness,
}

impl Work {
    fn payload(&self, pairs: u64) -> f64 {
        (pairs * (self.value_bytes + KEY_BYTES as u64)) as f64
    }

    /// Returns the bytes on disk per live byte.
    fn space_amp(&self) -> Result<f64> {
        Ok(disk_bytes(&self.home)? as f64 / self.payload(self.keys))
    }

    fn settle(&self, store: &mut dyn Durable) -> Result<u32> {
        let bound = self.fairness.space_amp_max();
        settle(store, &self.home, bound.map(|max| (max * self.payload(self.keys)) as u64))
    }

    pub(super) fn write(&self, store: &mut dyn Durable) -> Result<Figures> {
        let values = Values::new(self.seed, self.value_bytes as usize);
        let (mut random, mut of_values) = (Prng::new(self.seed), Prng::new(self.seed + 1));
        let before = written_bytes()?;
        let watch = Stopwatch::start()?;
        self.batches(store, (&values, &mut of_values), self.keys, &mut |at| at)?;
        let put = watch.seconds()?;
        self.settle(store)?;
        let loaded = written_bytes()? - before;

        let updates = self.keys * UPDATES_PER_KEY;
        let mut peak = self.space_amp()?;
        let (mut left, mut seconds) = (updates, 0.0);
        while left > 0 {
            let count = left.min(self.keys.div_ceil(SAMPLES_PER_KEY));
            let watch = Stopwatch::start()?;
            let mut choose = |_| random.below(self.keys);
            self.batches(store, (&values, &mut of_values), count, &mut choose)?;
            seconds += watch.seconds()?.0;
            left -= count;
            peak = peak.max(self.space_amp()?);
        }
        let unsettled = written_bytes()? - before;
        let compactions = self.settle(store)?;
        let total = written_bytes()? - before;
        Ok(vec![
            ("put_per_s", rounded(self.keys as f64 / put.0)),
            ("put_per_cpu_s", rounded(self.keys as f64 / put.1)),
            ("put_mb_per_s", rounded(self.payload(self.keys) / put.0 / 1e6)),
            ("update_per_s", rounded(updates as f64 / seconds)),
            ("load_written_per_payload", rounded(loaded as f64 / self.payload(self.keys))),
            ("written_per_payload", rounded(total as f64 / self.payload(self.keys + updates))),
            ("written_mb", rounded(total as f64 / 1e6)),
            ("written_by_settling_mb", rounded((total - unsettled) as f64 / 1e6)),
            ("disk_mb", rounded(disk_bytes(&self.home)? as f64 / 1e6)),
            ("space_amp", rounded(self.space_amp()?)),
            ("space_amp_peak", rounded(peak)),
            ("compactions_to_bound", f64::from(compactions)),
        ])
    }

    fn batches(
        &self,
        store: &mut dyn Durable,
        (values, random): (&Values, &mut Prng),
        pairs: u64,
        choose: &mut dyn FnMut(u64) -> u64,
    ) -> Result<()> {
        let mut at = 0;
        while at < pairs {
            let count = BATCH_KEYS.min(pairs - at);
            let batch: Vec<_> = (at..at + count)
                .map(|at| (key(choose(at)), values.any(random, self.value_bytes as usize)))
                .collect();
            store.write(&batch)?;
            at += count;
        }
        Ok(())
    }

    pub(super) fn read(&self, store: &mut dyn Durable, dir: &Path) -> Result<Figures> {
        let value_bytes = self.value_bytes as usize;
        let mut random = Prng::new(self.seed + 1);
        forget_cached(dir)?;
        let gets = self.keys.min(GETS_MAX);
        let watch = Stopwatch::start()?;
        for _ in 0..gets {
            let found = store.get(&key(random.below(self.keys)))?;
            ensure!(found == Some(value_bytes), "a key is missing");
        }
        let get = watch.seconds()?;
        store.compact()?;
        store.settle()?;
        let disk = sequential_read_mb_s(dir, self.keys * self.value_bytes)?;
        forget_cached(dir)?;
        let started = Instant::now();
        let (pairs, bytes) = store.scan()?;
        let scan = bytes as f64 / 1e6 / started.elapsed().as_secs_f64();
        ensure!(
            (pairs, bytes) == (self.keys, self.keys * self.value_bytes),
            "a scan did not return all pairs"
        );
        Ok(vec![
            ("get_per_s", rounded(gets as f64 / get.0)),
            ("get_per_cpu_s", rounded(gets as f64 / get.1)),
            ("scan_mb_per_s", rounded(scan)),
            ("disk_mb_per_s", rounded(disk)),
            ("scan_per_disk", rounded(scan / disk)),
        ])
    }
}
