//! Loads: what the clients of a phase do.

use super::drive::{Class, Outcome, closed_loops};
use super::phases::{Measured, Plan};
use crate::workload::key;
use anyhow::{Result, ensure};
use std::sync::atomic::Ordering;
use stele_load::{Choice, Zipf};
use stele_storage::StorageEngine;
use stele_types::Prng;

/// Longest scan of YCSB's workload E.
const YCSB_SCAN_MAX: u64 = 100;

impl<E: StorageEngine + 'static> Measured<'_, E> {
    pub(super) fn gets(&self) -> Result<Outcome> {
        let Plan { clients, ops, keys, .. } = *self.plan;
        closed_loops(self.cluster, clients, ops, |client, _, random| {
            let found = client.get(&key(random.below(keys)))?;
            ensure!(found.is_some_and(|it| it.len() as u64 == self.plan.value_bytes), "lost key");
            Ok(Class::Read)
        })
    }

    pub(super) fn scans(&self, scans: u64, length: u64) -> Result<Outcome> {
        let length = length as usize;
        closed_loops(self.cluster, self.plan.clients, scans, |client, _, random| {
            // Low enough that sufficient keys follow.
            let start = random.draw() / 100 * 80;
            let found = client.scan(&start.to_be_bytes(), length)?;
            ensure!(found.len() == length, "a scan returned {} pairs", found.len());
            Ok(Class::Read)
        })
    }

    pub(super) fn mix(&self, reads_percent: u64) -> Result<Outcome> {
        let keys = self.plan.keys;
        let zipf = Choice::Zipfian(Zipf::new(keys));
        closed_loops(self.cluster, self.plan.clients, self.plan.ops, |client, _, random| {
            let reads = random.below(100) < reads_percent;
            let chosen = key(zipf.draw(random, keys));
            if !reads {
                client.put(&chosen, self.value(random))?;
                return Ok(Class::Write);
            }
            ensure!(client.get(&chosen)?.is_some(), "a key is missing");
            Ok(Class::Read)
        })
    }

    /// Scans from keys, and updates others, with Zipf's distribution. Some of the updates are deletes.
    pub(super) fn scan_mix(&self, scans_percent: u64, deletes_percent: u64) -> Result<Outcome> {
        let Plan { clients, ops, scan_length, keys, .. } = *self.plan;
        let zipf = Choice::Zipfian(Zipf::new(keys));
        closed_loops(self.cluster, clients, ops, |client, _, random| {
            let scans = random.below(100) < scans_percent;
            let chosen = key(zipf.draw(random, keys));
            if scans {
                let length = 1 + random.below(scan_length) as usize;
                client.scan(&chosen, length)?;
                return Ok(Class::Read);
            }
            match random.below(100) < deletes_percent {
                true => client.delete(&chosen)?,
                false => client.put(&chosen, self.value(random))?,
            }
            Ok(Class::Write)
        })
    }

    /// Runs a workload of Cooper et al. (SoCC 2010), with its authors' parameters.
    pub(super) fn ycsb(&self, workload: char) -> Result<Outcome> {
        let Plan { clients, ops, .. } = *self.plan;
        let reads = match workload {
            'a' | 'f' => 50,
            'c' => 100,
            _ => 95,
        };
        let keys = self.keys.load(Ordering::Relaxed);
        let zipf = Zipf::new(keys);
        let (zipf, latest) = (Choice::Zipfian(zipf.clone()), Choice::Latest(zipf));
        closed_loops(self.cluster, clients, ops, |client, _, random| {
            let reads = random.below(100) < reads;
            let chosen = |random: &mut Prng| key(zipf.draw(random, keys));
            match (workload, reads) {
                ('d', true) => {
                    let keys = self.keys.load(Ordering::Relaxed);
                    client.get(&key(latest.draw(random, keys)))?;
                }
                ('e', true) => {
                    let length = 1 + random.below(YCSB_SCAN_MAX) as usize;
                    client.scan(&chosen(random), length)?;
                }
                ('d' | 'e', false) => {
                    // Counted after the insert, because the latest keys are read.
                    let number = self.inserting.fetch_add(1, Ordering::Relaxed);
                    client.put(&key(number), self.value(random))?;
                    self.keys.fetch_add(1, Ordering::Relaxed);
                }
                (_, true) => {
                    let found = client.get(&chosen(random))?;
                    ensure!(found.is_some(), "a key is missing");
                }
                ('f', false) => {
                    let key = chosen(random);
                    client.get(&key)?;
                    client.put(&key, self.value(random))?;
                }
                (_, false) => client.put(&chosen(random), self.value(random))?,
            }
            Ok(if reads { Class::Read } else { Class::Write })
        })
    }
}
