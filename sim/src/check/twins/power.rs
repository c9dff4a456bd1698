//! The power goes, the store opens and goes on with its maintenance, and the power goes again in the
//! middle of it: each time it holds what it held.

use super::Twin;
use super::facts::{Facts, applied, catch_up, difference, pairs};
use stele_engine::Store;
use stele_storage::StorageEngine;
use stele_types::Prng;
use stele_vfs::{CrashAt, CrashPoint, Fault};

/// Slices of maintenance before the second crash, at most.
const SLICES_MAX: usize = 12;
const SLICE_BYTES: u64 = 32 << 10;

pub fn look(twin: &Twin, live: &Facts, prng: &mut Prng) -> Option<String> {
    let twin = twin.after(prng);
    let engine = match twin.open_store() {
        Ok(engine) => engine,
        Err(error) => return Some(format!("it does not open after a crash: {error}")),
    };
    let facts = match Facts::of(&engine) {
        Ok(facts) => facts,
        Err(error) => return Some(format!("it can't be read after a crash: {error}")),
    };
    if let Some(text) = live.missing_in(&facts) {
        return Some(format!("after a crash {text}"));
    }
    match catch_up(&engine, &live.applied()) {
        Ok(true) => {}
        Ok(false) => return None,
        Err(error) => return Some(format!("it can't apply what it applied: {error}")),
    }
    if let Some(text) = same(&engine, &live.pairs) {
        return Some(format!("after a crash {text}"));
    }
    go_on(&twin, engine, live, prng)
}

fn same(engine: &Store, before: &[stele_storage::Pair]) -> Option<String> {
    match pairs(engine) {
        Ok(now) => difference(before, &now),
        Err(error) => Some(format!("it can't be read: {error}")),
    }
}

fn go_on(twin: &Twin, engine: Store, live: &Facts, prng: &mut Prng) -> Option<String> {
    let upto = applied(&engine);
    let logs = Facts::without_pairs(&engine);
    let trouble = trouble(twin, prng);
    work(&engine, prng);
    drop(engine);
    let twin = twin.after(prng);
    let engine = match twin.open_store() {
        Ok(engine) => engine,
        Err(error) => return Some(format!("it does not open after {trouble}: {error}")),
    };
    if let Some(text) = logs.logs_missing_in(&Facts::without_pairs(&engine)) {
        return Some(format!("after {trouble} {text}"));
    }
    if let Err(error) = catch_up(&engine, &upto) {
        return Some(format!("after {trouble} it can't apply what it applied: {error}"));
    }
    if let Some(text) = same(&engine, &live.pairs) {
        return Some(format!("after {trouble} {text}"));
    }
    // What was begun is ended.
    match engine.compact() {
        Ok(()) => same(&engine, &live.pairs).map(|text| format!("compacted, {text}")),
        Err(error) => Some(format!("it can't be compacted after {trouble}: {error}")),
    }
}

fn work(engine: &Store, prng: &mut Prng) {
    // It may fail, by what was done to the disk.
    match prng.below(3) {
        0 => drop(engine.compact()),
        1 => {
            let _ = engine.flush();
            maintain(engine);
        }
        _ => maintain(engine),
    }
}

fn maintain(engine: &Store) {
    for _ in 0..SLICES_MAX {
        if !matches!(engine.maintain(SLICE_BYTES), Ok(done) if done.more) {
            return;
        }
    }
}

/// Makes something go wrong soon, and says what.
fn trouble(twin: &Twin, prng: &mut Prng) -> String {
    let nth = 1 + prng.below(3);
    let of = |name: &str| name.to_owned();
    let fault = match prng.below(10) {
        0 => Fault::WriteFails { path_contains: of("manifest-"), nth },
        1 => Fault::SyncFails { path_contains: of("manifest-"), nth },
        2 => Fault::SyncFails { path_contains: of(".run"), nth },
        3 => Fault::SyncDirFails { path_contains: String::new(), nth },
        4 | 5 => Fault::NoSpace { from_operation: twin.disk.operations() + prng.below(120) },
        _ => {
            let ahead = [10, 40, 120, 300][prng.below(4) as usize];
            let operation = twin.disk.operations() + prng.below(ahead);
            let at = CrashAt::ALL[prng.below(3) as usize];
            twin.disk.crash_at(CrashPoint { operation, at });
            return "a second crash".into();
        }
    };
    let text = format!("{fault:?}");
    match twin.disk.inject(fault) {
        Ok(()) => text,
        Err(error) => error.to_string(),
    }
}
