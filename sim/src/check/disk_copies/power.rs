//! The power goes, the store opens and goes on with its maintenance, and the power goes again in the
//! middle of it: each time it holds what it held.

use super::DiskCopy;
use super::facts::{Facts, applied, catch_up, difference, pairs};
use std::collections::BTreeMap;
use stele_engine::Store;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Prng, RegionId};
use stele_vfs::{CrashAt, CrashPoint, Event, Fault, Operation};

/// Slices of maintenance before the second crash, at most.
const SLICES_MAX: usize = 12;
const SLICE_BYTES: u64 = 32 << 10;
/// What a power cut leaves is looked at so often more, if only for whether it opens.
const CUTS_TRIED: usize = 3;

pub fn look(twin: &DiskCopy, live: &Facts, prng: &mut Prng) -> Option<String> {
    let twin = twin.after(prng);
    let engine = match open_whole(&twin) {
        Ok(engine) => engine,
        Err(text) => return Some(format!("after a crash {text}")),
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

fn go_on(twin: &DiskCopy, engine: Store, live: &Facts, prng: &mut Prng) -> Option<String> {
    let upto = applied(&engine);
    let logs = Facts::without_pairs(&engine);
    let cut;
    let (twin, trouble) = match prng.below(10) {
        0..4 => {
            let text = trouble(twin, prng);
            work(&engine, prng);
            drop(engine);
            (twin, text)
        }
        _ => {
            drop(engine);
            let (crashed, text) = crash_at_work(twin, &upto, prng)?;
            cut = crashed;
            (&cut, text)
        }
    };
    if let Some(text) = opens(twin, prng) {
        return Some(format!("after {trouble} {text}"));
    }
    let twin = twin.after(prng);
    let engine = match open_whole(&twin) {
        Ok(engine) => engine,
        Err(text) => return Some(format!("after {trouble} {text}")),
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
    if let Err(error) = engine.compact() {
        return Some(format!("it can't be compacted after {trouble}: {error}"));
    }
    if let Some(text) = same(&engine, &live.pairs) {
        return Some(format!("compacted, {text}"));
    }
    drop(engine);
    let text = cut_at_last(&twin, &upto, live, prng)?;
    Some(format!("compacted after {trouble}, and then without power: {text}"))
}

/// What an earlier process could not sync must not count: only the power tells.
fn cut_at_last(
    twin: &DiskCopy,
    upto: &BTreeMap<RegionId, LogIndex>,
    live: &Facts,
    prng: &mut Prng,
) -> Option<String> {
    let cut = twin.cut(prng);
    let engine = match open_whole(&cut) {
        Ok(engine) => engine,
        Err(text) => return Some(text),
    };
    match catch_up(&engine, upto) {
        Ok(true) => same(&engine, &live.pairs),
        Ok(false) => None,
        Err(error) => Some(format!("it can't apply what it applied: {error}")),
    }
}

/// Does the same work twice, the second time up to an operation that the first one did: mostly one of
/// those that make something durable or give it its name, or one on a manifest.
fn crash_at_work(
    twin: &DiskCopy,
    upto: &BTreeMap<RegionId, LogIndex>,
    prng: &mut Prng,
) -> Option<(DiskCopy, String)> {
    let (first, seed) = (twin.killed(), prng.draw());
    let repeat = |twin: &DiskCopy| {
        let engine = twin.open_store().ok()?;
        catch_up(&engine, upto).ok()?;
        work(&engine, &mut Prng::new(seed));
        Some(())
    };
    let second = first.killed();
    repeat(&first)?;
    let mut events = first.disk.events();
    let is_manifest = |event: &Event| event.path.to_string_lossy().contains("manifest");
    match prng.below(4) {
        0 => {}
        1 if events.iter().any(is_manifest) => events.retain(is_manifest),
        _ => events.retain(|event| event.kind != Operation::Write || is_manifest(event)),
    }
    let event = events.get(prng.below(events.len() as u64) as usize)?;
    let (operation, at) = (event.operation, CrashAt::ALL[prng.below(3) as usize]);
    if prng.below(8) == 0 {
        // An edit has room, or its repetition has none: the power goes when all is done.
        let nth = 1 + prng.below(8);
        let fault = Fault::NoRoomOnce { path_contains: "manifest-".into(), nth };
        second.disk.inject(fault.clone()).ok()?;
        let _ = repeat(&second);
        return Some((second, format!("{fault:?}")));
    }
    second.disk.crash_at(CrashPoint { operation, at });
    // It fails where the power goes.
    let _ = repeat(&second);
    let text = format!("a second crash, {at:?} {:?} of {}", event.kind, event.path.display());
    Some((second, text))
}

/// Whatever a power cut leaves opens.
fn opens(twin: &DiskCopy, prng: &mut Prng) -> Option<String> {
    (0..CUTS_TRIED).find_map(|_| {
        let cut = twin.cut(prng);
        open_whole(&cut).err()
    })
}

/// Opens a disk that was never damaged: its index is there, and is not made again from what else is.
fn open_whole(twin: &DiskCopy) -> Result<Store, String> {
    match twin.open() {
        Ok((store, opened)) => match opened.rebuilt {
            None => Ok(store),
            Some(why) => Err(format!("its index is made again: {why}")),
        },
        Err(error) => Err(format!("it does not open: {error}")),
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
fn trouble(twin: &DiskCopy, prng: &mut Prng) -> String {
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
