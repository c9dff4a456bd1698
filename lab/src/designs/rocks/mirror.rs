//! Key-values of a follower on disk: the sender's tables, and the follower's own records.
//!
//! ```text
//! pairs       the database; with a file `OWN` it is the sender's as shipped
//! pairs-new   the next database while it is created
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

pub(super) const NEXT: &str = "pairs-new";
pub(super) const SHIPMENT: &str = "ship-";
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

fn each(dir: &Path, mut f: impl FnMut(&str, &Path) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        let entry = entry.map_err(failed("list", dir))?;
        f(&entry.file_name().to_string_lossy(), &entry.path())?;
    }
    Ok(())
}

/// Removes what a crash left of sent or received shipments.
pub(super) fn remove_leftovers(dir: &Path) -> Result<()> {
    each(dir, |name, path| match name == NEXT || name.starts_with(SHIPMENT) {
        true => remove(path),
        false => Ok(()),
    })
}

/// Removes the write-ahead logs of a checkpoint: writes made during the checkpoint.
pub(super) fn drop_logs(dir: &Path) -> Result<()> {
    each(dir, |name, path| match name.ends_with(".log") {
        true => fs::remove_file(path).map_err(failed("remove", path)),
        false => Ok(()),
    })
}

/// Copies a file through this process, as from a network; a copy inside a file system may write
/// nothing.
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

/// Creates `dir/pairs-new` durably from a shipment and the store's own records. `has_some`: tables
/// of `dir/pairs` are from the same sender, which uses each name once.
pub(super) fn make_next(dir: &Path, shipped: &Path, own: &Own, has_some: bool) -> Result<()> {
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

/// Makes `pairs-new` the database, atomically on a crash. It must not be open.
pub(super) fn switch(dir: &Path) -> Result<()> {
    let (here, next) = (dir.join("pairs"), dir.join(NEXT));
    let exchanged = renameat_with(CWD, &next, CWD, &here, RenameFlags::EXCHANGE);
    exchanged.map_err(|error| Error::io("exchange", &here, error.into()))?;
    sync(dir)?;
    remove(&next)
}

/// Records that a store does not copy from others: its local records, and the applied index of its
/// regions, which holds this store's incarnations.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    facts: Vec<(Vec<u8>, Vec<u8>)>,
    pub applied: BTreeMap<RegionId, Applied>,
}

impl Own {
    fn range() -> [Vec<u8>; 2] {
        [data_key(&[keyspace::LOCAL]), data_key(&[keyspace::LOCAL + 1])]
    }

    pub(super) fn of(db: &Db, path: &Path) -> Result<Self> {
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

    /// Writes the records into the sender's database, before any other write there. A crash in
    /// between repeats it.
    pub(super) fn restore(path: &Path, db: &Db) -> Result<()> {
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
        while !numbers.remaining().is_empty() {
            let (key_bytes, value_bytes) = (numbers.u64()?, numbers.u64()?);
            batch.put(numbers.bytes(key_bytes)?, [numbers.bytes(value_bytes)?, &[]]);
        }
        db.write(&batch, Durability::Synced)?;
        fs::remove_file(&file).map_err(failed("remove", &file))?;
        sync(path)
    }
}
