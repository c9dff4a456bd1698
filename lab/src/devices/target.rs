//! Stores over devices: opened for one measured part, and removed after it.

use super::args::{Args, Layout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{
    CompletionQueue, Db, Options, Partition, QueuedStore, SetId, ShardPlace, Shards, ShardsOptions,
};
use stele_types::{Error, Result};
use stele_vfs::{ProfiledVfs, RealVfs, SystemClock, Vfs};

/// Directory that a measured part creates below each given one.
const PART: &str = "stele-lab-devices";

pub(super) enum Target {
    Store(Db),
    Shards(Shards),
}

impl Target {
    pub(super) fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        match self {
            Self::Store(db) => db.put(key, value),
            Self::Shards(shards) => shards.put(key, value),
        }
    }

    /// Returns whether the key was found.
    pub(super) fn get(&self, key: &[u8]) -> Result<bool> {
        match self {
            Self::Store(db) => Ok(db.get(key)?.is_some()),
            Self::Shards(shards) => Ok(shards.get(key)?.is_some()),
        }
    }

    pub(super) fn delete(&self, key: &[u8]) -> Result<()> {
        match self {
            Self::Store(db) => db.delete(key),
            Self::Shards(shards) => shards.delete(key),
        }
    }

    pub(super) fn flush(&self) -> Result<()> {
        match self {
            Self::Store(db) => db.flush(),
            Self::Shards(shards) => shards.flush(),
        }
    }

    /// Returns the bytes of memory that the stores count.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Store(db) => db.stats().engine.memory_bytes,
            Self::Shards(shards) => shards.stats().total.memory_bytes,
        }
    }

    pub(super) fn close(self) -> Result<()> {
        match self {
            Self::Store(db) => db.close(),
            Self::Shards(shards) => shards.close(),
        }
    }
}

impl QueuedStore for Target {
    fn store_of(&self, key: &[u8]) -> Result<(&Db, Option<Arc<Path>>)> {
        match self {
            Self::Store(db) => db.store_of(key),
            Self::Shards(shards) => shards.store_of(key),
        }
    }
}

/// Directories of one measured part; dropping this removes them.
pub(super) struct Place {
    dirs: Vec<PathBuf>,
}

impl Place {
    /// Creates a directory for each of `devices` devices. Fails if one exists: it may be in use.
    pub(super) fn create(args: &Args, devices: u64) -> Result<Self> {
        let mut place = Self { dirs: Vec::new() };
        for number in 0..devices {
            let dir = match args.emulated {
                Some(_) => args.devices.first().map(|dir| dir.join(format!("{PART}-{number}"))),
                None => args.devices.get(number as usize).map(|dir| dir.join(PART)),
            };
            let dir = dir.ok_or_else(|| Error::invalid("--devices names too few directories"))?;
            std::fs::create_dir(&dir).map_err(|error| Error::io("create", &dir, error))?;
            place.dirs.push(dir);
        }
        Ok(place)
    }

    /// Opens the stores. With `--pin`, the threads of each store inherit its processor.
    pub(super) fn open(&self, args: &Args) -> Result<Vec<Target>> {
        match args.layout {
            Layout::Instances => {
                let numbered = (0..).zip(&self.dirs);
                numbered.map(|(number, dir)| self.open_store(args, number, dir, 1)).collect()
            }
            Layout::OneStore => {
                let dir = self.dirs.first().ok_or_else(|| Error::invalid("no device"))?;
                Ok(vec![self.open_store(args, 0, dir, self.dirs.len())?])
            }
            Layout::Shards => {
                let place = |dir: &PathBuf| {
                    Ok(ShardPlace {
                        vfs: device(args, 1)?,
                        dir: dir.clone(),
                        options: options(args),
                    })
                };
                let places = self.dirs.iter().map(place).collect::<Result<Vec<_>>>()?;
                let options = ShardsOptions::new(Partition::Hash, SetId(args.seed));
                let clock = Arc::new(SystemClock::new());
                Ok(vec![Target::Shards(Shards::open_with(places, clock, options)?)])
            }
        }
    }

    fn open_store(&self, args: &Args, number: u64, dir: &Path, striped: usize) -> Result<Target> {
        let (vfs, clock) = (device(args, striped)?, Arc::new(SystemClock::new()));
        let open = || {
            if args.pin {
                super::pin::bind(number)?;
            }
            Ok(Target::Store(Db::open_with(vfs, clock, dir, options(args))?))
        };
        // A thread of its own: it keeps the processor that it is bound to.
        let opened = std::thread::scope(|scope| scope.spawn(open).join());
        opened.unwrap_or_else(|_| Err(Error::Busy("the thread that opens a store stopped".into())))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for dir in &self.dirs {
            if let Err(error) = std::fs::remove_dir_all(dir) {
                eprintln!("{} was not removed: {error}", dir.display());
            }
        }
    }
}

fn options(args: &Args) -> Options {
    Options { value_cache_bytes_max: args.value_cache_bytes as usize, ..Options::default() }
}

/// Returns the files of one device, or of a stripe over several.
fn device(args: &Args, striped: usize) -> Result<Arc<dyn Vfs>> {
    let real = Arc::new(RealVfs::new());
    if args.emulated.is_none() {
        return Ok(real);
    }
    let clock = Arc::new(SystemClock::new());
    Ok(Arc::new(ProfiledVfs::new(real, args.profile.striped(striped), clock)?))
}

pub(super) fn queue(args: &Args) -> Result<CompletionQueue> {
    CompletionQueue::new(stele_engine::QueueOptions {
        depth: args.depth as usize,
        key_bytes_max: args.key_bytes as usize,
        value_bytes_max: args.value_bytes as usize,
    })
}
