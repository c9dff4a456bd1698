//! Operations that a store performs rarely, with a crash in the middle: keys that move between
//! regions, replicas that are destroyed, snapshots, and a write that the device lost.

use super::observed_state::catch_up;
use super::{DiskCopy, installation, long_batch};
use std::collections::BTreeMap;
use stele_engine::Store;
use stele_simulated_disk::Fault;
use stele_storage::{EngineView, LogStore, Progress, StateMachine};
use stele_types::{
    ColumnFamily, CommandBuilder, CommittedEntry, EntryRecord, HardState, LogBatch, LogIndex, Mark,
    Prng, Record, RegionId, Result, Term,
};

const JOURNAL: RegionId = RegionId(0);
const OLD: [u8; 100] = [b'o'; 100];
const NEW: [u8; 100] = [b'n'; 100];

pub(super) fn check(copy: &DiskCopy, prng: &mut Prng) -> Option<String> {
    let copy = copy.after(prng);
    if copy.options.direct_io && prng.below(6) == 0 {
        return long_batch::check(&copy, prng);
    }
    let store = copy.open_store().ok()?;
    let regions = settle(&store).ok()?;
    match prng.below(6) {
        0 => moved(&copy, store, &regions, prng),
        1 | 2 => ended(&copy, store, &regions, prng),
        3 | 4 => installation::check(&copy, store, prng),
        _ => lost(&copy, store, &regions, prng),
    }
}

/// Commits and applies everything in the logs. Returns the existing regions.
fn settle(store: &Store) -> Result<Vec<RegionId>> {
    let regions = store.log().regions().into_iter().filter(|id| *id != JOURNAL);
    let present: BTreeMap<RegionId, Progress> = regions
        .filter_map(|id| Some((id, store.progress(id)?)))
        .filter(|it| !it.1.destroyed)
        .collect();
    let states = present.iter().map(|(id, it)| {
        Record::HardState(*id, HardState { commit: it.persisted.0, ..it.hard_state })
    });
    let records: Vec<Record> = states.collect();
    store.append(&LogBatch { records })?;
    let upto: BTreeMap<RegionId, LogIndex> =
        present.iter().map(|(id, it)| (*id, it.persisted.0)).collect();
    catch_up(store, &upto)?;
    Ok(upto.into_keys().collect())
}

/// Writes a pair in a region: durable, committed and applied.
pub(super) fn put(store: &Store, region: RegionId, key: &[u8], value: &[u8]) -> Result<()> {
    let here = store.progress(region).unwrap_or_default();
    let (index, term) = (here.persisted.0.next(), here.persisted.1.max(Term(1)));
    let mut command = CommandBuilder::new();
    command.put(key, value, 0)?;
    let payload = command.build().bytes().clone();
    let state =
        HardState { commit: index, term: here.hard_state.term.max(term), ..here.hard_state };
    let entry = EntryRecord { region, term, index, is_command: true, payload: payload.clone() };
    let records = vec![Record::Entry(entry), Record::HardState(region, state)];
    store.append(&LogBatch { records })?;
    store.apply(region, &[CommittedEntry { term, index, is_command: true, payload }])
}

fn value_of(store: &Store, key: &[u8]) -> Result<Option<Vec<u8>>> {
    Ok(store.view()?.get(key)?.map(|pair| pair.value.to_vec()))
}

fn any_key() -> bytes::Bytes {
    ColumnFamily::Default.engine_key(b"~moved")
}

/// Writes a key in one region and then in another, as after a merge.
fn move_key(store: &Store, from: RegionId, to: RegionId) -> Result<()> {
    put(store, from, &any_key(), &OLD)?;
    put(store, to, &any_key(), &NEW)
}

fn is_new(store: &Store, when: &str) -> Option<String> {
    match value_of(store, &any_key()) {
        Ok(Some(value)) if value == NEW => None,
        other => {
            let found = other.map(|value| value.map(|value| value == OLD));
            Some(format!("{when} a key has the value that another region wrote before: {found:?}"))
        }
    }
}

/// Returns the last two regions, in descending order, so that a replay by region number differs
/// from log order.
fn two(regions: &[RegionId]) -> Option<(RegionId, RegionId)> {
    let (last, rest) = regions.split_last()?;
    Some((*last, *rest.last()?))
}

fn moved(copy: &DiskCopy, store: Store, regions: &[RegionId], prng: &mut Prng) -> Option<String> {
    let (from, to) = two(regions)?;
    move_key(&store, from, to).ok()?;
    drop(store);
    match copy.after(prng).open_store() {
        Ok(store) => is_new(&store, "after a crash"),
        Err(error) => Some(format!("it does not open: {error}")),
    }
}

/// Destroys a replica after another region took over one of its keys.
fn ended(copy: &DiskCopy, store: Store, regions: &[RegionId], prng: &mut Prng) -> Option<String> {
    let (from, to) = two(regions)?;
    move_key(&store, from, to).ok()?;
    store.flush().ok()?;
    if prng.below(4) > 0 {
        let nth = 1 + prng.below(2);
        copy.disk.inject(Fault::WriteFails { path_contains: ".seg".into(), nth }).ok()?;
    }
    let records = vec![Record::Mark(from, Mark::Destroy)];
    let left = store.append(&LogBatch { records }).is_ok();
    drop(store);
    let store = match copy.after(prng).open_store() {
        Ok(store) => store,
        Err(error) => {
            return Some(format!("it does not open after a replica was destroyed: {error}"));
        }
    };
    if let Some(text) = is_new(&store, "after a crash while a replica was destroyed,") {
        return Some(text);
    }
    let now = store.progress(from).unwrap_or_default();
    if !left {
        return None;
    }
    if !now.destroyed {
        return Some(format!("region {from} was destroyed, and exists after a crash: {now:?}"));
    }
    let at = (LogIndex(now.persisted.0.0 + 7), Term(now.persisted.1.0 + 1));
    store.append(&LogBatch { records: vec![Record::Mark(from, Mark::Start(at.0, at.1))] }).ok()?;
    let state = store.progress(from).unwrap_or_default().hard_state;
    (state != HardState::default())
        .then(|| format!("a new replica of region {from} starts with its predecessor's {state:?}"))
}

/// Loses a write in a place that holds an earlier, unacknowledged write.
fn lost(copy: &DiskCopy, store: Store, regions: &[RegionId], prng: &mut Prng) -> Option<String> {
    let (one, other) = two(regions)?;
    drop(store);
    let state = |store: &Store, region: RegionId, vote: u64| {
        let known = store.progress(region).unwrap_or_default().hard_state;
        let records = vec![Record::HardState(region, HardState { vote, ..known })];
        store.append(&LogBatch { records }).map(|()| store.log().head())
    };
    let (first, second) = (copy.killed(), copy.killed());
    let store = first.open_store().ok()?;
    let begin = store.log().head();
    let end = state(&store, one, 77).ok()?;
    drop(store);
    let store = second.open_store().ok()?;
    let same = store.log().head() == begin;
    state(&store, one, 78).ok()?;
    let last = state(&store, other, 79).ok()?;
    drop(store);
    let path =
        std::path::Path::new(crate::world::DIR).join(format!("log/{:08x}.seg", begin.file.0));
    let bytes = first.disk.read_file(&path).ok()?;
    let bytes = bytes.get(begin.offset as usize..end.offset as usize)?;
    if !same || last.file != begin.file {
        return None;
    }
    second.disk.corrupt(&path, u64::from(begin.offset), bytes).ok()?;
    let store = second.after(prng).open_store().ok()?;
    let vote = store.progress(one).unwrap_or_default().hard_state.vote;
    (vote != 78).then(|| "it opens with an older batch in place of a lost one".into())
}
