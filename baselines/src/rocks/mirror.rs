//! A follower's key-values on disk: tables of the sender, and what is the follower's own.
//!
//! ```text
//! pairs       the database; with a file `OWN` it is the sender's as it was shipped
//! pairs-new   the next one while it is made
//! OWN := (key_bytes:u64 value_bytes:u64 key value)*       (big-endian; keys and values as in `pairs`)
//! ```

use super::batch::Batch;
use super::db::{Db, Durability};
use super::numbers::{Numbers, encode};
use super::pairs::{Applied, data_key};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use stele_types::{Error, RegionId, Result, keyspace};

pub const NEXT: &str = "pairs-new";
/// What the names of shipments begin with.
pub const SHIPMENT: &str = "ship-";
const OWN: &str = "OWN";
const COPY_BYTES: usize = 1 << 20;

fn failed<'a>(op: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + 'a {
    move |source| Error::io(op, path, source)
}

fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|it| it.sync_all()).map_err(failed("sync", path))
}

fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", dir, error)),
        _ => Ok(()),
    }
}

/// Gives each file of a directory, by its name and where it lies.
fn each(dir: &Path, mut f: impl FnMut(&str, &Path) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        let entry = entry.map_err(failed("list", dir))?;
        f(&entry.file_name().to_string_lossy(), &entry.path())?;
    }
    Ok(())
}

/// Removes what a crash left of shipments that were sent or taken.
pub fn remove_leftovers(dir: &Path) -> Result<()> {
    each(dir, |name, path| match name == NEXT || name.starts_with(SHIPMENT) {
        true => remove(path),
        false => Ok(()),
    })
}

/// Removes the write-ahead logs of a checkpoint: writes made while it was.
pub fn drop_logs(dir: &Path) -> Result<()> {
    each(dir, |name, path| match name.ends_with(".log") {
        true => fs::remove_file(path).map_err(failed("remove", path)),
        false => Ok(()),
    })
}

/// By way of this process, as from a network; copying inside a file system may write nothing.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut source = File::open(from).map_err(failed("open", from))?;
    let mut target = File::create(to).map_err(failed("create", to))?;
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let bytes = source.read(&mut buffer).map_err(failed("read", from))?;
        let Some(read) = buffer.get(..bytes).filter(|read| !read.is_empty()) else { break };
        target.write_all(read).map_err(failed("write", to))?;
    }
    target.sync_all().map_err(failed("sync", to))
}

/// Makes `dir/pairs-new` of what was shipped and of what is the store's own, all of it on the device.
/// `has_some`: tables of `dir/pairs` are of the same sender, whose names it gives but once.
pub fn make_next(dir: &Path, shipped: &Path, own: &Own, has_some: bool) -> Result<()> {
    let (here, next) = (dir.join("pairs"), dir.join(NEXT));
    remove(&next)?;
    fs::create_dir(&next).map_err(failed("create", &next))?;
    let bytes = |path: &Path| fs::metadata(path).map(|it| it.len()).ok();
    each(shipped, |name, from| {
        let (is_table, to, known) = (name.ends_with(".sst"), next.join(name), here.join(name));
        if has_some && is_table && bytes(&known).is_some_and(|it| Some(it) == bytes(from)) {
            return fs::hard_link(&known, &to).map_err(failed("link", &to));
        }
        match is_table || name == "CURRENT" || name.starts_with("MANIFEST-") {
            true => copy(from, &to),
            false => Ok(()),
        }
    })?;
    let file = next.join(OWN);
    fs::write(&file, own.encode()).map_err(failed("write", &file))?;
    sync(&file)?;
    sync(&next)
}

/// Makes what is next the database, at once: a crash leaves one or the other. Nobody has it open.
pub fn switch(dir: &Path) -> Result<()> {
    let (here, next) = (dir.join("pairs"), dir.join(NEXT));
    let exchanged = renameat_with(CWD, &next, CWD, &here, RenameFlags::EXCHANGE);
    exchanged.map_err(|error| Error::io("exchange", &here, error.into()))?;
    sync(dir)?;
    remove(&next)
}

/// What a store does not take from others: facts of it alone, and how far its regions are applied,
/// which counts their lives here.
#[derive(Clone, Debug, Default)]
pub struct Own {
    facts: Vec<(Vec<u8>, Vec<u8>)>,
    pub applied: BTreeMap<RegionId, Applied>,
}

impl Own {
    fn range() -> [Vec<u8>; 2] {
        [data_key(&[keyspace::LOCAL]), data_key(&[keyspace::LOCAL + 1])]
    }

    /// That of a store with this database.
    pub fn of(db: &Db, path: &Path) -> Result<Self> {
        let mut facts = Vec::new();
        let [start, end] = Self::range();
        let mut cursor = db.cursor();
        cursor.seek(&start);
        while let Some((key, value)) = cursor.pair()?.filter(|(key, _)| *key < &end[..]) {
            facts.push((key.to_vec(), value.to_vec()));
            cursor.step(true);
        }
        Ok(Self { facts, applied: Applied::all(db, path)? })
    }

    fn encode(&self) -> Vec<u8> {
        let applied = self.applied.iter().map(|(id, it)| (Applied::key(*id), it.encode()));
        let mut out = Vec::new();
        for (key, value) in self.facts.iter().cloned().chain(applied) {
            out.extend(encode(&[key.len() as u64, value.len() as u64]));
            out.extend(key);
            out.extend(value);
        }
        out
    }

    /// Puts it into a database that is the sender's so far. Done before anything else is written there;
    /// a crash in between repeats it.
    pub fn restore(path: &Path, db: &Db) -> Result<()> {
        let file = path.join(OWN);
        let stored = match fs::read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            stored => stored.map_err(failed("read", &file))?,
        };
        let mut batch = Batch::new();
        let [start, end] = Self::range();
        batch.delete_range(&start, &end);
        batch.delete_range(&Applied::FIRST_KEY, &Applied::END_KEY);
        let mut numbers = Numbers::new(&stored, &file);
        while !numbers.rest().is_empty() {
            let (key_bytes, value_bytes) = (numbers.u64()?, numbers.u64()?);
            batch.put(numbers.bytes(key_bytes)?, [numbers.bytes(value_bytes)?, &[]]);
        }
        db.write(&batch, Durability::Synced)?;
        fs::remove_file(&file).map_err(failed("remove", &file))?;
        sync(path)
    }
}
