//! Targets for a whole store, and for the file with its identity.

use super::files::Base;
use super::{FILE, checksums};
use crate::{Bound, Target};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use stele_engine::{Db, KeyRange, Options, Order, Result};
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_types::{ManualClock, StoreId};

const DIR: &str = "/store";

fn options() -> Options {
    Options {
        segment_bytes_max: 64 << 10,
        recycle_segments_max: 1,
        direct_io: false,
        entry_cache_bytes_max: 0,
        value_cache_bytes_max: 0,
        memtable_bytes_max: 4 << 10,
        block_cache_bytes_max: 64 << 10,
        run_bytes_max: 4 << 10,
        checkpoint_log_bytes_max: 64 << 10,
        reserved_bytes: 0,
        background: false,
        ..Options::default()
    }
}

fn open(disk: &SimVfs) -> Result<Db> {
    let clock = Arc::new(ManualClock::at(1_000_000));
    Db::open_with(Arc::new(disk.clone()), clock, Path::new(DIR), options())
}

/// Creates a store with values that were written, overwritten, flushed and garbage collected.
fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| {
        let disk = SimVfs::new(SimOptions::default());
        let db = open(&disk).unwrap();
        for round in 0..4u8 {
            for n in 0..60u32 {
                let key = format!("key-{:03}", n * 7 % 60);
                db.put(key.as_bytes(), &vec![round; (n as usize * 13) % 500]).unwrap();
            }
            db.delete(b"key-007").unwrap();
            db.delete_range(b"key-010", b"key-012").unwrap();
            db.maintain(1 << 20).unwrap();
        }
        db.flush().unwrap();
        for _ in 0..20 {
            db.maintain(1 << 20).unwrap();
        }
        db.put(b"last", b"not flushed").unwrap();
        db.close().unwrap();
        Base::of(&disk)
    })
}

pub(super) const IDENTITY: Target = Target {
    name: "store_file",
    run: |input| {
        let disk = SimVfs::new(SimOptions::default());
        disk.write_file(Path::new(DIR).join("STORE"), input);
        // A valid identity leads to an empty store.
        if let Err(error) = open(&disk) {
            let _ = error.to_string();
        }
    },
    seeds: || vec![identity(StoreId(1)), identity(StoreId(u64::MAX))],
    fix_checksums: Some(checksums::identity),
    bound: FILE,
};

fn identity(id: StoreId) -> Vec<u8> {
    let disk = SimVfs::new(SimOptions::default());
    let clock = Arc::new(ManualClock::at(1));
    let options = Options { store: Some(id), ..options() };
    drop(Db::open_with(Arc::new(disk.clone()), clock, Path::new(DIR), options).unwrap());
    disk.read_file(Path::new(DIR).join("STORE")).unwrap()
}

/// Whole store with one damaged file: opened, read, written to, garbage collected and verified.
pub(super) const OPEN: Target = Target {
    name: "store_open",
    run: |input| {
        let disk = SimVfs::new(SimOptions::default());
        base().with(input, &disk);
        let Ok(db) = open(&disk) else { return };
        let _ = db.get(b"key-003");
        for order in [Order::Forward, Order::Reverse] {
            if let Ok(pairs) = db.iter(KeyRange::all(), order) {
                let _ = pairs.take_while(std::result::Result::is_ok).count();
            }
        }
        let _ = db.put(b"key-003", b"new");
        let _ = db.maintain(1 << 20);
        let _ = db.verify(&mut |_| {});
        db.stats();
        let _ = db.close();
    },
    seeds: || base().inputs(),
    fix_checksums: Some(|input| base().fix_checksums(input)),
    bound: Bound { bytes: 32 << 20, per_byte: 256 },
};
