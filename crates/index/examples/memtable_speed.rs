//! Benchmark of inserts of random 16-byte keys into memtables of 64 MiB, and into a `BTreeMap`
//! under a lock: `cargo run --release -p stele-index --example memtable_speed [keys]`.

use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use stele_index::{Cursor, Found, Memtable};
use stele_types::{Result, Seq, ValueRef};

type Map = BTreeMap<Box<[u8]>, (u64, Found)>;

const MEMTABLE_BYTES_MAX: usize = 64 << 20;

fn key(i: u64, style: usize) -> [u8; 16] {
    let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut key = [0; 16];
    match style {
        0 => {
            key[..8].copy_from_slice(&mixed.to_be_bytes());
            key[8..].copy_from_slice(&i.to_be_bytes());
        }
        1 => key.copy_from_slice(format!("{:016}", mixed % 10_000_000).as_bytes()),
        _ => key.copy_from_slice(format!("{i:016}").as_bytes()),
    }
    key
}

fn report(what: &str, count: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{what:<44} {:>10.0}/s", count as f64 / seconds);
}

fn main() -> Result<()> {
    let count: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(5_000_000);
    let value = Bytes::from_static(&[7; 20]);
    let found = Found::Value { value: ValueRef::Inline(value.clone()), expires_at_s: 0 };
    for (style, name) in ["random", "random decimal", "in order"].into_iter().enumerate() {
        let mut tables = vec![Arc::new(Memtable::new())];
        let mut starts = vec![0];
        let start = Instant::now();
        for i in 0..count {
            if tables[tables.len() - 1].bytes() >= MEMTABLE_BYTES_MAX {
                tables.push(Arc::new(Memtable::new()));
                starts.push(i);
            }
            tables[tables.len() - 1].put(Seq(i), &key(i, style), &found);
        }
        report(&format!("stele tree, {name}: insert"), count, start);
        let per_entry = tables[0].bytes() as f64 / tables[0].entries() as f64;
        println!("{:>44} {per_entry:>10.1} bytes per entry, {} tables", "", tables.len());
        let start = Instant::now();
        let gets = tables[0].entries().min(count);
        let hits = (0..gets).filter(|i| {
            let i = (i * 7919) % gets;
            tables[0].get(&key(i, style), Seq(u64::MAX)).is_some()
        });
        assert_eq!(hits.count() as u64, gets);
        report(&format!("stele tree, {name}: get"), gets, start);
        let start = Instant::now();
        let mut cursor = tables[0].cursor(Seq(u64::MAX));
        cursor.seek(b"")?;
        let mut seen = 0;
        while cursor.valid() {
            assert!(cursor.found().is_ok());
            cursor.next()?;
            seen += 1;
        }
        report(&format!("stele tree, {name}: walk"), seen, start);
    }
    let maps: Vec<RwLock<Map>> = (0..=count / 860_000).map(|_| RwLock::default()).collect();
    let start = Instant::now();
    for i in 0..count {
        let map = &maps[(i / 860_000) as usize];
        map.write().insert(Box::from(key(i, 0)), (i, found.clone()));
    }
    report("RwLock<BTreeMap>, random: insert", count, start);
    Ok(())
}
