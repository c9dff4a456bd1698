//! Start of a node's directories: adoption of what they hold, and the bootstrap of a cluster.

use std::sync::Arc;
use stele_placement::Bootstrap;
use stele_replica::{EntryRecovery, RaftStore};
use stele_storage::{RecoverableLog, StorageEngine};
use stele_types::{Error, Result, StoreId, StoreIdent, TickMillis};

/// Directory of a node, as found at its start.
pub enum Directory<E, M> {
    /// It opened. Its store is a member of a cluster, or `None`: it will bootstrap or join one.
    Open(Arc<E>, Option<StoreIdent>),
    /// It lost log entries. Its store neither votes nor acknowledges until copies from other stores
    /// replace them.
    Recovering(StoreIdent, EntryRecovery<M>),
}

/// Opens a directory with `open`, or begins its recovery with `recover`. Fails with the error of
/// `open` if copies of entries would not help: the error is no damage, nothing of the log is lost,
/// or the directory does not tell its store, so that no other store could answer it.
pub fn adopt<E: StorageEngine, M: RecoverableLog>(
    open: impl FnOnce() -> Result<E>,
    recover: impl FnOnce() -> Result<Option<M>>,
    ident: impl FnOnce(&M) -> Option<StoreIdent>,
) -> Result<Directory<E, M>> {
    let error = match open() {
        Ok(engine) => {
            let engine = Arc::new(engine);
            let ident = RaftStore::ident(&*engine)?;
            return Ok(Directory::Open(engine, ident));
        }
        Err(error) => error,
    };
    if !error.is_damage() {
        return Err(error);
    }
    let Some(log) = recover()? else { return Err(error) };
    let Some(ident) = ident(&log) else { return Err(error) };
    Ok(Directory::Recovering(ident, EntryRecovery::new(ident.store, log)))
}

/// Returns the tick of a node: that of its cluster, which its stores record. `setting` is that of the
/// node's configuration. A cluster of an earlier version has recorded none: each node states it, as in
/// that version. Fails with `Invalid` if the setting is another one.
///
/// Invariant: a node runs with the tick of its cluster. A lease that is counted in longer ticks outlives the
/// vote holds that are counted in shorter ones.
/// Tests: `a_node_has_the_tick_that_its_stores_record_and_no_other`,
/// `a_new_cluster_has_the_short_tick_on_every_node_and_keeps_it`.
pub fn tick(setting: Option<TickMillis>, recorded: &[Option<TickMillis>]) -> Result<TickMillis> {
    let mut ticks = recorded.iter().flatten();
    // bug node.unrecorded_tick_is_short: `TickMillis::UNLESS_RECORDED` is `TickMillis::OF_NEW_CLUSTERS`
    let unless = TickMillis::UNLESS_RECORDED;
    let Some(tick) = ticks.next().copied() else { return Ok(setting.unwrap_or(unless)) };
    let is_other = |other: &TickMillis| *other != tick;
    if let Some(other) = ticks.copied().find(is_other) {
        return Err(Error::invalid(format!(
            "the stores of this node record different ticks of their cluster, {} ms and {} ms: name \
             only directories as `store` that record the tick of the other nodes",
            tick.get(),
            other.get()
        )));
    }
    let refused = setting.filter(is_other);
    // bug node.any_tick_at_a_restart: `refused` is `None`
    match refused {
        None => Ok(tick),
        Some(setting) => Err(Error::invalid(format!(
            "tick_ms is {}, and the cluster of this node has a tick of {} ms: leave tick_ms out, or \
             set it to {}; `stele ctl --store DIR config tick_ms {}` changes the tick of each store",
            setting.get(),
            tick.get(),
            tick.get(),
            setting.get()
        ))),
    }
}

/// Makes new directories the first stores of a cluster with this tick; `None` records none, as an earlier
/// version. Returns the identity of each.
///
/// Invariant: the first store carries the regions and is written last; before, no cluster exists. A
/// crash in between leaves directories that can bootstrap again.
pub fn bootstrap<E: StorageEngine>(
    engines: &[Arc<E>],
    bootstrap: &Bootstrap,
    tick: Option<TickMillis>,
) -> Result<Vec<StoreIdent>> {
    let ident = |store| StoreIdent { tick, ..StoreIdent::new(bootstrap.cluster, store) };
    let idents: Vec<StoreIdent> = bootstrap.stores().map(ident).collect();
    let mut stores: Vec<_> = engines.iter().zip(&idents).collect();
    // bug node.first_store_first: skip
    stores.reverse();
    for (engine, own) in stores {
        match own.store {
            StoreId(1) => RaftStore::bootstrap(&**engine, own, &Bootstrap::regions())?,
            _ => RaftStore::write_ident(&**engine, own)?,
        }
    }
    Ok(idents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use stele_conformance::ModelEngine;
    use stele_storage::{LogStore, LostEntry};
    use stele_types::{ClusterId, LogBatch, Mark, Record, RegionId};

    struct Log(Option<StoreIdent>);

    impl RecoverableLog for Log {
        fn lost_entries(&mut self, _: usize) -> Vec<LostEntry> {
            Vec::new()
        }
        fn find(&self, _: &LostEntry) -> Option<Bytes> {
            None
        }
        fn restore_entry(&mut self, _: &LostEntry, _: &[u8]) -> Result<bool> {
            Ok(false)
        }
        fn is_recovered(&self) -> bool {
            true
        }
    }

    const IDENT: StoreIdent = StoreIdent::new(ClusterId(7), StoreId(3));

    fn damage() -> Error {
        Error::corrupt(std::path::Path::new("log"), 0, "a payload does not match".to_owned())
    }

    #[test]
    fn a_directory_opens_or_recovers_or_keeps_the_error_with_which_it_did_not_open() {
        let full = || Error::NoSpace("full".into());
        let recovers = |error: fn() -> Error, log: fn() -> Option<Log>| {
            let open = || Err::<ModelEngine, _>(error());
            match adopt(open, || Ok(log()), |log| log.0) {
                Ok(Directory::Recovering(ident, _)) => Ok(ident),
                Ok(Directory::Open(..)) => panic!("it did not open"),
                Err(found) => Err(found.to_string()),
            }
        };
        assert_eq!(recovers(damage, || Some(Log(Some(IDENT)))), Ok(IDENT));
        for (error, log) in [
            (damage as fn() -> Error, (|| None) as fn() -> Option<Log>),
            (damage, || Some(Log(None))),
            (full, || Some(Log(Some(IDENT)))),
        ] {
            assert_eq!(recovers(error, log), Err(error().to_string()));
        }
        let open = || Ok(ModelEngine::default());
        let adopted = adopt(open, || Ok(None::<Log>), |log| log.0).unwrap();
        assert!(matches!(adopted, Directory::Open(_, None)), "a new directory");
    }

    #[test]
    fn a_node_has_the_tick_that_its_stores_record_and_no_other() {
        let of = |millis: u64| TickMillis::new(millis);
        // Setting, recorded ticks, tick of the node or a part of the refusal.
        let rows = [
            (0, vec![20], Ok(20)),
            (20, vec![20], Ok(20)),
            (0, vec![50, 0, 50], Ok(50)),
            (0, vec![0, 20], Ok(20)),
            (0, vec![0, 0], Ok(50)),
            (100, vec![0], Ok(100)),
            (50, vec![20], Err("tick_ms is 50, and the cluster of this node has a tick of 20 ms")),
            (20, vec![0, 50], Err("leave tick_ms out, or set it to 50")),
            (0, vec![20, 50], Err("20 ms and 50 ms")),
        ];
        for (setting, recorded, expected) in rows {
            let recorded: Vec<_> = recorded.into_iter().map(of).collect();
            match (tick(of(setting), &recorded).map(TickMillis::get), expected) {
                (Ok(found), expected) => assert_eq!(Ok(found), expected, "{recorded:?}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (Err(error), Ok(tick)) => panic!("{tick} ms: {error}"),
            }
        }
    }

    #[test]
    fn the_store_with_the_regions_is_written_after_all_others() {
        let engines: Vec<_> = (0..3).map(|_| Arc::new(ModelEngine::default())).collect();
        let capacities_bytes = vec![1; 3];
        let plan = Bootstrap { cluster: ClusterId(7), address: "a:1".into(), capacities_bytes };
        // Nothing can be written to the second directory: the log of its identity is destroyed.
        let destroy = Record::Mark(RegionId(0), Mark::Destroy);
        engines[1].append(&LogBatch { records: vec![destroy] }).unwrap();
        assert!(bootstrap(&engines, &plan, Some(TickMillis::OF_NEW_CLUSTERS)).is_err());
        assert_eq!(RaftStore::ident(&*engines[0]).unwrap(), None, "no regions without all stores");
    }
}
