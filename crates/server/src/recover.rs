//! Changes to directories of nodes that do not run: recovery of regions after the loss of a majority, the run
//! that goes on, and the tick.

pub use stele_node::recover::{
    NotRecovered, Offline, Planned, RegionOutcome, SurvivingReplica, check_cluster, check_lost,
    plan, recover_all, uncovered,
};

use crate::members::{self, Known};
use crate::node::lease_times;
use crate::store::Engine;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stele_engine::{Options, Replay};
use stele_proto::stele::control::v1::StoreState;
use stele_replica::{Now, RaftStore};
use stele_types::{Clock, ClusterId, Error, Result, StoreId, StoreIdent, TickMillis};
use stele_vfs::{CopyOnWriteVfs, RealVfs, SystemClock, Vfs};

/// Most bytes of the changes that opening a directory makes, and that are dropped.
const CHANGES_BYTES_MAX: u64 = 1 << 30;

/// A directory that no node runs.
pub type OfflineDir = Offline<Engine>;

/// Opens a node's directory. Opening changes files, as the start of the node would.
pub fn open(vfs: Arc<dyn Vfs>, dir: &Path) -> Result<(OfflineDir, Arc<Engine>)> {
    let clock = SystemClock::new();
    let now = Now { monotonic_nanos: clock.monotonic_nanos(), unix_millis: clock.unix_millis() };
    let engine = Arc::new(open_engine(vfs, dir)?);
    let offline = Offline::open(engine.clone(), now, crate::node::random())?;
    Ok((offline, engine))
}

/// Makes the directory of a node that does not run the one of its store that goes on, at its next start.
/// Fails with `Invalid` if it holds another store than `store`, or was not stopped beside another run.
///
/// Invariant: the choice is of the store that the operator names: the other directory loses writes.
pub fn keep_run(dir: &Path, store: StoreId) -> Result<()> {
    let real: Arc<dyn Vfs> = Arc::new(RealVfs::new());
    // It holds the lock of the directory; what opening changes is dropped with it.
    let engine = open_copy(real.clone(), dir)?;
    let ident = RaftStore::ident(&engine)?;
    let found = ident.ok_or_else(|| no_member(dir))?;
    // bug server.other_store_kept: never
    if found.store != store {
        return Err(Error::invalid(format!(
            "{} holds store {}, not store {store}: name the directory of store {store} with --store",
            dir.display(),
            found.store
        )));
    }
    stele_engine::keep_run(&real, dir)?;
    drop(engine);
    Ok(())
}

/// Records another tick of the cluster in the directories of a node that does not run, with `pause` as the
/// wait for so long. Fails with `Invalid` for a directory that belongs to no cluster, and with `Locked` for one
/// that is in use.
///
/// Invariant: no node has run a store for the vote hold of its former tick when it records another. The hold
/// of a shorter tick would end before a lease that the store has granted.
/// Tests: `a_tick_is_recorded_after_the_vote_holds_of_the_former_one`.
pub fn set_tick(dirs: &[PathBuf], tick: TickMillis, pause: impl Fn(Duration)) -> Result<()> {
    let (mut opened, mut hold_nanos) = (Vec::new(), 0);
    for dir in dirs {
        let engine = open_engine(Arc::new(RealVfs::new()), dir)?;
        let ident = RaftStore::ident(&engine)?.ok_or_else(|| no_member(dir))?;
        // A store that records none has run with the setting of its node, which is not known.
        let former = ident.tick.unwrap_or(TickMillis::LONGEST);
        hold_nanos = hold_nanos.max(lease_times(former).vote_hold_nanos());
        opened.push((engine, StoreIdent { tick: Some(tick), ..ident }));
    }
    // bug server.tick_recorded_at_once: skip
    pause(Duration::from_nanos(hold_nanos));
    opened.iter().try_for_each(|(engine, ident)| {
        RaftStore::write_ident(engine, ident)?;
        engine.close()
    })
}

fn no_member(dir: &Path) -> Error {
    Error::invalid(format!("{} is no member of a cluster", dir.display()))
}

fn open_copy(real: Arc<dyn Vfs>, dir: &Path) -> Result<Engine> {
    open_engine(Arc::new(CopyOnWriteVfs::new(real, CHANGES_BYTES_MAX)), dir)
}

fn open_engine(vfs: Arc<dyn Vfs>, dir: &Path) -> Result<Engine> {
    let options = Options { background: false, ..Options::default() };
    let clock = Arc::new(SystemClock::new());
    Ok(Engine::open(vfs, clock, dir, options, Replay::Committed)?.0)
}

/// What the list of members in a directory says of the cluster's stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Stores of the cluster.
    pub stores: BTreeSet<StoreId>,
    /// Version of the list; 0 for none.
    pub version: u64,
}

/// Reads the list of members in a directory. One that is missing, damaged or of another cluster lists
/// nothing.
pub fn listed(dir: &Path, ident: StoreIdent) -> Listed {
    let known = members_of(dir, ident);
    Listed { stores: known.stores.into_keys().collect(), version: known.version }
}

/// Marks stores as removed in the list of members in a directory of a node that does not run; durable
/// on return.
///
/// Invariant: the list names the lost stores as removed before a region goes on without them. So the
/// node refuses them from its first second, before it has found the placement group.
pub fn record_lost(dir: &Path, ident: StoreIdent, lost: &BTreeSet<StoreId>) -> Result<()> {
    let mut known = members_of(dir, ident);
    known.record_lost(lost, StoreState::Removed as i32);
    known.cluster = ident.cluster;
    // bug server.lost_stores_not_listed: return Ok(());
    members::write(dir, &known)?;
    RealVfs::new().sync_dir(dir)
}

fn members_of(dir: &Path, ident: StoreIdent) -> Known {
    let known = members::read(dir).ok().flatten().unwrap_or_default();
    let is_own = [ClusterId(0), ident.cluster].contains(&known.cluster);
    if is_own { known } else { Known::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{Boot, Lineage, StartId, StoreRun};

    #[test]
    fn a_directory_is_kept_only_as_the_store_that_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let files: Arc<dyn Vfs> = Arc::new(RealVfs::new());
        let engine = open_engine(files.clone(), dir.path()).unwrap();
        let ident = StoreIdent::new(ClusterId(7), StoreId(3));
        RaftStore::write_ident(&engine, &ident).unwrap();
        engine.close().unwrap();
        drop(engine);
        let start = || {
            let known = StoreRun { boot: Boot::UNKNOWN, lineage: Lineage::default() };
            let id = StartId(u128::from(crate::node::random()) << 1 | 1);
            let start = stele_engine::DirStart { id, nonce: 1, known, may_have_moved: false };
            start.count(&files, dir.path())
        };
        start().unwrap();
        let text = keep_run(dir.path(), StoreId(3)).unwrap_err().to_string();
        assert!(text.contains("was not stopped"), "{text}");
        let rival = Lineage::new([StartId(9)]);
        stele_engine::stop_beside(&files, dir.path(), &rival, "two runs").unwrap();
        let text = keep_run(dir.path(), StoreId(4)).unwrap_err().to_string();
        assert!(text.contains("holds store 3, not store 4"), "{text}");
        assert!(start().is_err(), "it is still stopped");
        keep_run(dir.path(), StoreId(3)).unwrap();
        assert!(start().unwrap().run.lineage.holds(StartId(9)));
    }

    #[test]
    fn a_tick_is_recorded_after_the_vote_holds_of_the_former_one() {
        let root = tempfile::tempdir().unwrap();
        let dirs = ["a", "b"].map(|name| root.path().join(name));
        let files: Arc<dyn Vfs> = Arc::new(RealVfs::new());
        let tick = |millis| TickMillis::new(millis).unwrap();
        let written = |dir: &Path, recorded| {
            let engine = open_engine(files.clone(), dir).unwrap();
            let ident = StoreIdent::new(ClusterId(7), StoreId(3));
            let ident = StoreIdent { tick: recorded, ..ident };
            RaftStore::write_ident(&engine, &ident).unwrap();
            engine.close().unwrap();
        };
        let text = set_tick(&dirs[..1], tick(20), |_| unreachable!()).unwrap_err().to_string();
        assert!(text.contains("is no member of a cluster"), "{text}");
        written(&dirs[0], Some(tick(30)));
        written(&dirs[1], Some(tick(50)));
        let pauses = std::cell::RefCell::new(Vec::new());
        let pause = |time: Duration| {
            let other = open_engine(files.clone(), &dirs[0]).err().unwrap();
            assert!(matches!(other, Error::Locked(_)), "a node could run: {other}");
            pauses.borrow_mut().push(time.as_millis());
        };
        set_tick(&dirs, tick(20), pause).unwrap();
        for dir in &dirs {
            let engine = open_engine(files.clone(), dir).unwrap();
            let ident = RaftStore::ident(&engine).unwrap().unwrap();
            assert_eq!((ident.store, ident.tick), (StoreId(3), Some(tick(20))));
        }
        written(&dirs[0], Some(tick(20)));
        set_tick(&dirs[..1], tick(20), pause).unwrap();
        assert_eq!(*pauses.borrow(), [500, 200]);
    }

    #[test]
    fn lost_stores_are_removed_in_the_list_of_members_also_in_a_new_and_a_damaged_one() {
        let dir = tempfile::tempdir().unwrap();
        let ident = StoreIdent::new(ClusterId(7), StoreId(3));
        let lost = BTreeSet::from([StoreId(1), StoreId(2)]);
        let removed = || {
            let known = members::read(dir.path()).unwrap().unwrap();
            let removed = known.stores.iter().filter(|(_, it)| it.is_removed);
            (removed.map(|(id, _)| id.0).collect::<Vec<_>>(), known)
        };
        record_lost(dir.path(), ident, &lost).unwrap();
        assert_eq!(removed().0, [1, 2]);
        let mut known = removed().1;
        known.stores.get_mut(&StoreId(2)).unwrap().is_removed = false;
        known.stores.insert(StoreId(3), members::Member::default());
        (known.version, known.write) = (5, 8);
        known.own.insert(StoreId(3), Some("/data".into()));
        members::write(dir.path(), &known).unwrap();
        let stores = [1, 2, 3].map(StoreId).into();
        assert_eq!(listed(dir.path(), ident), Listed { stores, version: 5 });
        record_lost(dir.path(), ident, &lost).unwrap();
        let (ids, known) = removed();
        assert_eq!((&ids[..], known.version, known.write), (&[1, 2][..], 5, 9));
        assert_eq!(known.own.len(), 1, "the stores of the node stay known");
        // A list that was left by a node of another cluster says nothing about this one.
        let other = StoreIdent { cluster: ClusterId(8), ..ident };
        assert_eq!(listed(dir.path(), other), Listed::default());
        std::fs::write(dir.path().join("members.json"), b"{").unwrap();
        record_lost(dir.path(), ident, &lost).unwrap();
        assert_eq!(removed().0, [1, 2]);
    }
}
