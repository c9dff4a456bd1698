//! Shared parts of the store's tests: a tiny configuration, a model, and a comparison of a store
//! with it.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{Batch, Db, GcOptions, KeyRange, Options, Order, Result, Store};
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_types::ManualClock;
use stele_vfs::Vfs;

pub(crate) const DIR: &str = "/store";

/// Returns options with which a few dozen writes roll segments, flush, merge, sort and collect
/// garbage.
pub(crate) fn tiny() -> Options {
    Options {
        segment_bytes_max: 64 << 10,
        recycle_segments_max: 1,
        direct_io: false,
        entry_cache_bytes_max: 8 << 10,
        value_cache_bytes_max: 0,
        memtable_bytes_max: 8 << 10,
        block_cache_bytes_max: 64 << 10,
        run_bytes_max: 4 << 10,
        checkpoint_log_bytes_max: 256 << 10,
        reserved_bytes: 0,
        background: false,
        gc: GcOptions::default(),
        ..Options::default()
    }
}

/// Returns a batch of puts, and of deletes where there is no value.
pub(crate) fn batch(pairs: &[(Vec<u8>, Option<Vec<u8>>)]) -> Result<Batch> {
    let mut batch = Batch::new();
    for (key, value) in pairs {
        match value {
            Some(value) => batch.put(key, value)?,
            None => batch.delete(key)?,
        };
    }
    Ok(batch)
}

pub(crate) fn disk(seed: u64) -> SimVfs {
    SimVfs::new(SimOptions { seed, ..SimOptions::default() })
}

pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(1_000_000))
}

pub(crate) fn open(disk: &SimVfs, options: &Options) -> stele_engine::Result<Db> {
    Db::open_with(Arc::new(disk.clone()), clock(), Path::new(DIR), options.clone())
}

/// Marks a directory as one of another kind, as if it had been created as such.
pub(crate) fn mark(disk: &SimVfs, kind: &str) {
    rewrite_identity(disk, |line| match line.starts_with("kind ") {
        true => Some(format!("kind {kind}")),
        false => Some(line.to_owned()),
    });
}

/// Removes the mark of a directory, as if an earlier version had created it.
pub(crate) fn unmark(disk: &SimVfs) {
    rewrite_identity(disk, |line| (!line.starts_with("kind ")).then(|| line.to_owned()));
}

fn rewrite_identity(disk: &SimVfs, change: impl Fn(&str) -> Option<String>) {
    let path = Path::new(DIR).join("STORE");
    let text = String::from_utf8(disk.read_file(&path).unwrap()).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("crc32c ")).filter_map(change);
    let body: String = lines.map(|line| format!("{line}\n")).collect();
    let crc = stele_types::checksum::crc32c(body.as_bytes());
    disk.write_file(&path, format!("{body}crc32c {crc:08x}\n").as_bytes());
}

pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn contents(db: &Db) -> stele_engine::Result<Model> {
    db.iter(KeyRange::all(), Order::Forward)?
        .map(|pair| pair.map(|p| (p.key.to_vec(), p.value.to_vec())))
        .collect()
}

pub(crate) fn difference(db: &Db, model: &Model) -> Option<String> {
    let found = match contents(db) {
        Ok(found) => found,
        Err(error) => return Some(format!("scan failed: {error}")),
    };
    for (key, value) in model {
        match found.get(key) {
            None => return Some(format!("key {} is lost", show(key))),
            Some(other) if other != value => {
                return Some(format!("key {} has an old or wrong value", show(key)));
            }
            Some(_) => {}
        }
        match db.get(key) {
            Ok(Some(read)) if read == value[..] => {}
            other => return Some(format!("get of {} gives {other:?}", show(key))),
        }
    }
    if let Some(key) = found.keys().find(|key| !model.contains_key(*key)) {
        return Some(format!("deleted key {} is present", show(key)));
    }
    let reverse = db.iter_keys(KeyRange::all(), Order::Reverse).ok()?;
    let backwards: Vec<Vec<u8>> = reverse.filter_map(|p| p.ok()).map(|p| p.key.to_vec()).collect();
    if !backwards.iter().eq(model.keys().rev()) {
        return Some("a reverse scan gives other keys than a forward one".into());
    }
    None
}

fn show(key: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(key))
}

pub(crate) fn leaked(disk: &SimVfs, db: &Db, options: &Options) -> Vec<String> {
    leaked_of(disk, db.store(), options)
}

/// Does the same as [`leaked`] for a store without the embedded interface.
pub(crate) fn leaked_of(disk: &SimVfs, store: &Store, options: &Options) -> Vec<String> {
    let mut leaked = Vec::new();
    let known: Vec<String> =
        store.log().files().iter().map(|file| format!("{:08x}", file.file.0)).collect();
    let mut spare = 0;
    for entry in disk.list(&PathBuf::from(DIR).join("log")).unwrap() {
        let stem = entry.name.split('.').next().unwrap_or_default().to_string();
        if entry.name.starts_with("free-") {
            spare += 1;
        } else if entry.name.ends_with(".tmp") || !known.contains(&stem) {
            leaked.push(format!("log/{}", entry.name));
        }
    }
    if spare > options.recycle_segments_max {
        leaked.push(format!("{spare} spare segments"));
    }
    let version = store.index().version();
    let runs: Vec<String> = version
        .tiers()
        .iter()
        .flat_map(|tier| tier.runs.iter().map(|run| format!("{:08x}.run", run.meta().id.0)))
        .collect();
    let mut manifests = 0;
    for entry in disk.list(&PathBuf::from(DIR).join("index")).unwrap() {
        if entry.name.starts_with("manifest-") {
            manifests += 1;
        } else if !runs.contains(&entry.name) {
            leaked.push(format!("index/{}", entry.name));
        }
    }
    if manifests != 1 {
        leaked.push(format!("{manifests} manifests"));
    }
    leaked
}

/// A small generator for tests: SplitMix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(n + 8);
        while out.len() < n {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(n);
        out
    }
}
