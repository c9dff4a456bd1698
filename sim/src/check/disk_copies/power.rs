//! Checks power cuts: the store opens, runs its maintenance, and crashes again in the middle of it.
//! Its state stays the same each time.

use super::DiskCopy;
use super::observed_state::{ObservedState, applied, catch_up, difference, pairs};
use std::collections::BTreeMap;
use stele_engine::Store;
use stele_simulated_disk::{CrashAt, CrashPoint, Event, Fault, Operation};
use stele_storage::StateMachine;
use stele_types::{LogIndex, Prng, RegionId};

const SLICES_MAX: usize = 12;
const SLICE_BYTES: u64 = 32 << 10;
/// Further power cuts after which the copy must open.
const CUTS_TRIED: usize = 3;

pub(super) fn check(copy: &DiskCopy, live: &ObservedState, prng: &mut Prng) -> Option<String> {
    let copy = copy.after(prng);
    let engine = match open_undamaged(&copy) {
        Ok(engine) => engine,
        Err(text) => return Some(format!("after a crash {text}")),
    };
    let state = match ObservedState::of(&engine) {
        Ok(state) => state,
        Err(error) => return Some(format!("it cannot be read after a crash: {error}")),
    };
    if let Some(text) = live.missing_in(&state) {
        return Some(format!("after a crash {text}"));
    }
    match catch_up(&engine, &live.applied()) {
        Ok(true) => {}
        Ok(false) => return None,
        Err(error) => return Some(format!("it cannot apply what it applied: {error}")),
    }
    if let Some(text) = same(&engine, &live.pairs) {
        return Some(format!("after a crash {text}"));
    }
    crash_again(&copy, engine, live, prng)
}

fn same(engine: &Store, before: &[stele_storage::Pair]) -> Option<String> {
    match pairs(engine) {
        Ok(now) => difference(before, &now),
        Err(error) => Some(format!("it cannot be read: {error}")),
    }
}

fn crash_again(
    copy: &DiskCopy,
    engine: Store,
    live: &ObservedState,
    prng: &mut Prng,
) -> Option<String> {
    let upto = applied(&engine);
    let logs = ObservedState::without_pairs(&engine);
    let cut;
    let (copy, fault) = match prng.below(10) {
        0..4 => {
            let text = inject_fault(copy, prng);
            work(&engine, prng);
            drop(engine);
            (copy, text)
        }
        _ => {
            drop(engine);
            let (crashed, text) = crash_at_work(copy, &upto, prng)?;
            cut = crashed;
            (&cut, text)
        }
    };
    if let Some(text) = opens(copy, prng) {
        return Some(format!("after {fault} {text}"));
    }
    let copy = copy.after(prng);
    let engine = match open_undamaged(&copy) {
        Ok(engine) => engine,
        Err(text) => return Some(format!("after {fault} {text}")),
    };
    if let Some(text) = logs.logs_missing_in(&ObservedState::without_pairs(&engine)) {
        return Some(format!("after {fault} {text}"));
    }
    if let Err(error) = catch_up(&engine, &upto) {
        return Some(format!("after {fault} it cannot apply what it applied: {error}"));
    }
    if let Some(text) = same(&engine, &live.pairs) {
        return Some(format!("after {fault} {text}"));
    }
    // Completes a merge that was started.
    if let Err(error) = engine.compact() {
        return Some(format!("it cannot be compacted after {fault}: {error}"));
    }
    if let Some(text) = same(&engine, &live.pairs) {
        return Some(format!("compacted, {text}"));
    }
    drop(engine);
    let text = cut_at_last(&copy, &upto, live, prng)?;
    Some(format!("compacted after {fault}, then a power cut: {text}"))
}

/// Checks a final power cut: what an earlier process failed to sync must not count.
pub(super) fn cut_at_last(
    copy: &DiskCopy,
    upto: &BTreeMap<RegionId, LogIndex>,
    live: &ObservedState,
    prng: &mut Prng,
) -> Option<String> {
    let cut = copy.cut(prng);
    let engine = match open_undamaged(&cut) {
        Ok(engine) => engine,
        Err(text) => return Some(text),
    };
    match catch_up(&engine, upto) {
        Ok(true) => same(&engine, &live.pairs),
        Ok(false) => None,
        Err(error) => Some(format!("it cannot apply what it applied: {error}")),
    }
}

/// Runs the same work twice, the second time with a crash at an operation of the first. Mostly that
/// is a sync, a rename or another operation that makes data durable, or one on a manifest.
fn crash_at_work(
    copy: &DiskCopy,
    upto: &BTreeMap<RegionId, LogIndex>,
    prng: &mut Prng,
) -> Option<(DiskCopy, String)> {
    let (first, seed) = (copy.killed(), prng.draw());
    let repeat = |copy: &DiskCopy| {
        let engine = copy.open_store().ok()?;
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
        // A manifest edit or its second copy finds no space; the crash comes after the work.
        let nth = 1 + prng.below(8);
        let fault = Fault::NoRoomOnce { path_contains: "manifest-".into(), nth };
        second.disk.inject(fault.clone()).ok()?;
        let _ = repeat(&second);
        return Some((second, format!("{fault:?}")));
    }
    second.disk.crash_at(CrashPoint { operation, at });
    // The work fails at the crash.
    let _ = repeat(&second);
    let text = format!("a second crash, {at:?} {:?} of {}", event.kind, event.path.display());
    Some((second, text))
}

/// Returns an error if the copy does not open after a power cut.
fn opens(copy: &DiskCopy, prng: &mut Prng) -> Option<String> {
    (0..CUTS_TRIED).find_map(|_| {
        let cut = copy.cut(prng);
        open_undamaged(&cut).err()
    })
}

/// Opens a disk that was never damaged: the index must not be rebuilt.
fn open_undamaged(copy: &DiskCopy) -> Result<Store, String> {
    match copy.open() {
        Ok((store, opened)) => match opened.rebuilt {
            None => Ok(store),
            Some(reason) => Err(format!("its index is rebuilt: {reason}")),
        },
        Err(error) => Err(format!("it does not open: {error}")),
    }
}

pub(super) fn work(engine: &Store, prng: &mut Prng) {
    // The work may fail because of the injected fault.
    match prng.below(3) {
        0 => drop(engine.compact()),
        1 => {
            let _ = engine.flush();
            maintain(engine);
        }
        _ => maintain(engine),
    }
}

pub(super) fn maintain(engine: &Store) {
    for _ in 0..SLICES_MAX {
        if !matches!(engine.maintain(SLICE_BYTES), Ok(done) if done.more) {
            return;
        }
    }
}

/// Injects a fault. Returns its description.
fn inject_fault(copy: &DiskCopy, prng: &mut Prng) -> String {
    let nth = 1 + prng.below(3);
    let of = |name: &str| name.to_owned();
    let fault = match prng.below(10) {
        0 => Fault::WriteFails { path_contains: of("manifest-"), nth },
        1 => Fault::SyncFails { path_contains: of("manifest-"), nth },
        2 => Fault::SyncFails { path_contains: of(".run"), nth },
        3 => Fault::SyncDirFails { path_contains: String::new(), nth },
        4 | 5 => Fault::NoSpace { from_operation: copy.disk.operations() + prng.below(120) },
        _ => {
            let operations_max = [10, 40, 120, 300][prng.below(4) as usize];
            let operation = copy.disk.operations() + prng.below(operations_max);
            let at = CrashAt::ALL[prng.below(3) as usize];
            copy.disk.crash_at(CrashPoint { operation, at });
            return "a second crash".into();
        }
    };
    let text = format!("{fault:?}");
    match copy.disk.inject(fault) {
        Ok(()) => text,
        Err(error) => error.to_string(),
    }
}
