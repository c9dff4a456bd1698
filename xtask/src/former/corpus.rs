//! Stores that no command of the oldest supported version makes. `cargo xtask corpus` builds this as an example of its
//! engine.

use std::path::{Path, PathBuf};
use stele_engine::{Db, KeyRange, Options, Order, Partition, Result, Shards};

/// The smallest size of a segment.
const SEGMENT_BYTES: u64 = 64 << 10;
const VALUE_BYTES: usize = 4_000;
/// More such values than one segment has room for.
const VALUES: usize = 17;

fn main() -> Result<()> {
    let work = PathBuf::from(std::env::args().nth(1).unwrap_or_default());
    sealed(&work.join("sealed"))?;
    graves(&work.join("graves"))?;
    sharded(&work)
}

fn options() -> Options {
    Options {
        segment_bytes_max: SEGMENT_BYTES,
        recycle_segments_max: 0,
        direct_io: false,
        reserved_bytes: 0,
        background: false,
        ..Options::default()
    }
}

fn value(letter: char) -> Vec<u8> {
    letter.to_string().repeat(VALUE_BYTES).into_bytes()
}

fn maintain(db: &Db) -> Result<()> {
    while db.maintain(1 << 20)?.more {}
    Ok(())
}

/// A sealed segment with its sidecar, and the one after it.
fn sealed(dir: &Path) -> Result<()> {
    let db = Db::open(dir, options())?;
    for number in 1..=VALUES {
        db.put(format!("k{number}").as_bytes(), &value('s'))?;
    }
    db.delete(b"k3")?;
    db.put(b"k4", b"shorter")?;
    db.close()
}

/// Retained tombstones: their segment is removed, and an older one has the values that they delete. A view held
/// that one.
fn graves(dir: &Path) -> Result<()> {
    let db = Db::open(dir, options())?;
    for key in ["gone", "gone1", "gone2", "gone3"] {
        db.put(key.as_bytes(), &value('o'))?;
    }
    db.flush()?;
    let view = db.iter(KeyRange::all(), Order::Forward)?;
    for _ in 0..VALUES {
        db.put(b"filler", &value('f'))?;
    }
    db.flush()?;
    maintain(&db)?;
    for _ in 0..VALUES {
        db.put(b"filler", &value('g'))?;
    }
    db.put(b"left", &value('l'))?;
    db.delete(b"gone")?;
    db.delete_range(b"gone1", b"gone3")?;
    db.compact()?;
    db.close()?;
    drop(view);
    Ok(())
}

/// A set of two shards, divided at a key: one with what a compaction left, and both with a log after that.
fn sharded(work: &Path) -> Result<()> {
    let dirs = ["shard-0", "shard-1"].map(|name| (work.join(name), options()));
    let shards = Shards::open(&dirs, Partition::Range(vec!["k5".into()]))?;
    for number in 1..=9 {
        shards.put(format!("k{number}").as_bytes(), "h".repeat(10 * number * number).as_bytes())?;
    }
    shards.delete(b"k3")?;
    shards.shard(1)?.compact()?;
    shards.put(b"k6", b"after")?;
    shards.delete(b"k7")?;
    shards.close()
}
