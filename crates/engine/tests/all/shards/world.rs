//! Disks of a set of shards, and a model of each shard. A shard of which the disk was cut has two
//! allowed contents: with and without the call that was cut.

use crate::common::{Model, batch, clock, difference, disk, tiny};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use stele_engine::{
    Error, Group, KeyRange, Options, Order, Partition, Result, SetId, ShardPlace, Shards,
    ShardsOptions, StoreMode,
};
use stele_simulated_disk::SimVfs;

pub(super) const SHARDS: usize = 3;
pub(super) const SET: SetId = SetId(0x5e1e);

#[derive(Clone, Debug)]
pub(super) enum Step {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
    Batch(Vec<(Vec<u8>, Option<Vec<u8>>)>),
    DeleteGroup(Group),
    PutWithMode(Vec<u8>, Vec<u8>, StoreMode),
    Take(Vec<u8>),
    Flush,
    Maintain,
    Compact,
}

#[derive(Clone, Debug, Default)]
struct Expected {
    certain: Model,
    /// Content with the call that was cut; the shard takes no call after it.
    or_with_cut_call: Option<Model>,
}

pub(super) struct World {
    pub disks: Vec<SimVfs>,
    pub shards: Option<Shards>,
    partition: Partition,
    options: Options,
    expected: Vec<Expected>,
}

pub(super) fn by_hash() -> Partition {
    Partition::Hash
}

pub(super) fn by_range() -> Partition {
    Partition::Range(vec![Bytes::from_static(b"key-07"), Bytes::from_static(b"key-14")])
}

pub(super) fn key(n: u64) -> Vec<u8> {
    format!("key-{n:02}").into_bytes()
}

pub(super) fn dir(shard: usize) -> PathBuf {
    PathBuf::from(format!("/shard-{shard}"))
}

pub(super) fn place(disk: &SimVfs, shard: usize, options: &Options) -> ShardPlace {
    ShardPlace { vfs: Arc::new(disk.clone()), dir: dir(shard), options: options.clone() }
}

pub(super) fn places(disks: &[SimVfs]) -> Vec<ShardPlace> {
    disks.iter().enumerate().map(|(shard, disk)| place(disk, shard, &tiny())).collect()
}

pub(super) fn disks(seed: u64) -> Vec<SimVfs> {
    (0..SHARDS as u64).map(|shard| disk(seed + shard)).collect()
}

pub(super) fn open(disks: &[SimVfs], partition: Partition) -> Result<Shards> {
    Shards::open_with(places(disks), clock(), ShardsOptions::new(partition, SET))
}

pub(super) fn open_without_failed(disks: &[SimVfs], partition: Partition) -> Result<Shards> {
    let options = ShardsOptions { without_failed: true, ..ShardsOptions::new(partition, SET) };
    Shards::open_with(places(disks), clock(), options)
}

pub(super) fn contents(shards: &Shards, order: Order) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let pairs = shards.iter(KeyRange::all(), order)?;
    pairs.map(|pair| pair.map(|p| (p.key.to_vec(), p.value.to_vec()))).collect()
}

fn after(model: &Model, step: &Step, has: &dyn Fn(&[u8]) -> bool) -> Model {
    let before = model;
    let mut model = model.clone();
    let mut set = |key: &Vec<u8>, value: Option<&Vec<u8>>| {
        match value.filter(|_| has(key)) {
            Some(value) => model.insert(key.clone(), value.clone()),
            None => model.remove(key),
        };
    };
    match step {
        Step::Put(key, value) => set(key, Some(value)),
        Step::Delete(key) | Step::Take(key) => set(key, None),
        Step::Batch(pairs) => pairs.iter().for_each(|(key, value)| set(key, value.as_ref())),
        Step::DeleteRange(start, end) => {
            let range = KeyRange::new(start.clone(), end.clone());
            model.retain(|key, _| !range.contains(key));
        }
        Step::PutWithMode(key, value, mode) => match (mode, before.get(key)) {
            (StoreMode::NoOverwrite, Some(_)) | (StoreMode::UpdateOnly, None) => {}
            (StoreMode::Append, Some(old)) => set(key, Some(&[&old[..], value].concat())),
            _ => set(key, Some(value)),
        },
        Step::DeleteGroup(group) => model.retain(|key, _| !group.contains(key)),
        Step::Flush | Step::Maintain | Step::Compact => {}
    }
    model
}

fn execute(shards: &Shards, step: &Step) -> Result<()> {
    match step {
        Step::Put(key, value) => shards.put(key, value),
        Step::Delete(key) => shards.delete(key),
        Step::DeleteRange(start, end) => shards.delete_range(start, end),
        Step::Batch(pairs) => shards.write(batch(pairs)?),
        Step::DeleteGroup(group) => shards.delete_group(*group).map(|_| ()),
        Step::PutWithMode(key, value, mode) => shards.put_with_mode(key, value, *mode).map(|_| ()),
        Step::Take(key) => shards.retrieve_and_delete(key).map(|_| ()),
        Step::Flush => shards.flush(),
        Step::Maintain => shards.maintain(32 << 10).map(|_| ()),
        Step::Compact => shards.compact(),
    }
}

impl World {
    /// Creates disks without a set.
    pub(super) fn new(seed: u64, partition: Partition, options: Options) -> Self {
        let expected = vec![Expected::default(); SHARDS];
        Self { disks: disks(seed), shards: None, partition, options, expected }
    }

    pub(super) fn open(&mut self) -> Result<()> {
        let places = self.disks.iter().enumerate();
        let places = places.map(|(shard, disk)| place(disk, shard, &self.options)).collect();
        let options = ShardsOptions::new(self.partition.clone(), SET);
        self.shards = Some(Shards::open_with(places, clock(), options)?);
        Ok(())
    }

    fn shards(&self) -> &Shards {
        self.shards.as_ref().unwrap()
    }

    fn is_cut(&self, shard: usize) -> bool {
        self.disks[shard].crashed()
    }

    fn needed(&self, step: &Step) -> Vec<usize> {
        let shards = self.shards();
        let of_range = |range: KeyRange| match &self.partition {
            Partition::Hash if range.is_empty() => Vec::new(),
            Partition::Hash => (0..SHARDS).collect::<Vec<_>>(),
            Partition::Range(bounds) => (0..SHARDS)
                .filter(|&shard| {
                    let start = if shard == 0 { Bytes::new() } else { bounds[shard - 1].clone() };
                    let end = bounds.get(shard).cloned().unwrap_or_default();
                    range.overlaps(&KeyRange { start, end })
                })
                .collect(),
        };
        match step {
            Step::Put(key, _)
            | Step::Delete(key)
            | Step::Take(key)
            | Step::PutWithMode(key, ..) => vec![shards.shard_of(key)],
            Step::Batch(pairs) => {
                let mut all: Vec<_> = pairs.iter().map(|(key, _)| shards.shard_of(key)).collect();
                all.sort_unstable();
                all.dedup();
                all
            }
            Step::DeleteRange(start, end) => of_range(KeyRange::new(start.clone(), end.clone())),
            Step::DeleteGroup(group) => of_range(group.range()),
            Step::Flush | Step::Maintain | Step::Compact => (0..SHARDS).collect(),
        }
    }

    /// Executes a step, and notes what each shard may hold then.
    pub(super) fn step(&mut self, step: &Step) {
        let needed = self.needed(step);
        let done = execute(self.shards(), step);
        if matches!(step, Step::Batch(_)) && needed.len() > 1 {
            assert!(matches!(&done, Err(Error::Invalid(text)) if text.contains("split it")));
            return;
        }
        if let Err(error) = &done {
            assert!(matches!(error, Error::Shard { .. }), "{step:?}: {error}");
            let cut = needed.iter().any(|&shard| self.is_cut(shard));
            assert!(cut, "{step:?} failed without a cut: {error}");
        }
        for shard in needed {
            let opened = self.shards.as_ref().unwrap();
            let has = |key: &[u8]| opened.shard_of(key) == shard;
            let next = after(&self.expected[shard].certain, step, &has);
            let is_cut = self.disks[shard].crashed();
            let expected = &mut self.expected[shard];
            if let Some(content) = &expected.or_with_cut_call {
                // The failed call may be visible or not.
                let changes = next != expected.certain && after(content, step, &has) != *content;
                assert!(done.is_err() || !changes, "{step:?} after a cut");
            } else if done.is_err() && is_cut {
                expected.or_with_cut_call = Some(next);
            } else {
                expected.certain = next;
            }
        }
    }

    pub(super) fn cut(&mut self, seed: u64) {
        self.shards = None;
        let cut = |(disk, n): (&SimVfs, u64)| disk.restart(seed ^ n);
        self.disks = self.disks.iter().zip(0..).map(cut).collect();
    }

    /// Describes how the shards differ from what they may hold; then takes what they hold for
    /// certain.
    pub(super) fn difference(&mut self) -> Option<String> {
        for shard in 0..SHARDS {
            let db = self.shards().shard(shard).unwrap();
            let expected = &self.expected[shard];
            let Some(differs) = difference(db, &expected.certain) else { continue };
            let Some(other) = &expected.or_with_cut_call else {
                return Some(format!("shard {shard}: {differs}"));
            };
            if let Some(differs_too) = difference(db, other) {
                return Some(format!(
                    "shard {shard}: {differs}; or, with the cut call, {differs_too}"
                ));
            }
            self.expected[shard].certain = other.clone();
        }
        self.expected.iter_mut().for_each(|expected| expected.or_with_cut_call = None);
        self.merged_difference()
    }

    fn merged_difference(&self) -> Option<String> {
        let mut all = self.model();
        let forward = contents(self.shards(), Order::Forward).unwrap();
        if !forward.iter().map(|(key, value)| (key, value)).eq(&all) {
            return Some("a scan over all shards differs".into());
        }
        let mut backward = contents(self.shards(), Order::Reverse).unwrap();
        backward.reverse();
        if backward != forward {
            return Some("a reverse scan over all shards differs".into());
        }
        let asked: Vec<Vec<u8>> = (0..30).rev().map(key).collect();
        let asked: Vec<&[u8]> = asked.iter().map(|key| &key[..]).collect();
        let exist = self.shards().exist(&asked).unwrap();
        if !asked.iter().map(|key| all.contains_key(*key)).eq(exist) {
            return Some("existence differs".into());
        }
        let got = |key: &Vec<u8>| self.shards().get(key).unwrap().map(|value| value.to_vec());
        all.retain(|key, value| got(key).as_ref() != Some(value));
        all.keys().next().map(|key| format!("a get of {key:?} differs"))
    }

    /// Returns all pairs of shards that were not cut.
    pub(super) fn model(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        self.expected.iter().flat_map(|expected| expected.certain.clone()).collect()
    }
}
