//! Directories of a node: at its start, and when one was moved away, deleted or replaced while its
//! store ran. Each has a result of its own: one that does not open leaves the node running with the
//! others.

use super::identity::{OpenDir, Opened};
use super::listen::Addresses;
use super::{open, random};
use crate::config::Config;
use crate::members::{self, Known, Members};
use crate::stores::{Boots, FailedDir, is_of_directory};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{DirStart, RecoveringStore, Started};
use stele_node::start::{self, Directory};
use stele_types::{ClusterId, Error, Result, StartId, StoreId, StoreIdent};

pub(super) struct Dirs {
    /// Open ones; those without an identity are new.
    pub opened: Opened,
    /// Those that wait for copies of log entries.
    pub damaged: Vec<open::DamagedDir>,
    /// Those that serve no store.
    pub failed: Vec<FailedDir>,
    /// What the newest readable copy of the list of members holds.
    pub members: Arc<Members>,
    /// Cluster of the stores; `None` if all directories are new.
    pub cluster: Option<ClusterId>,
    /// Random number of the process.
    nonce: u64,
}

impl Dirs {
    pub(super) fn idents(&self) -> Vec<StoreIdent> {
        let opened = self.opened.iter().filter_map(|open| open.ident);
        opened.chain(self.damaged.iter().map(|damaged| damaged.ident)).collect()
    }

    pub(super) fn boots(&self) -> Arc<Boots> {
        let boots = Boots::new(self.nonce);
        let opened = self.opened.iter().filter_map(|open| Some((open.ident?, &open.run)));
        let damaged = self.damaged.iter().map(|damaged| (damaged.ident, &damaged.run));
        opened.chain(damaged).for_each(|(ident, run)| boots.add(ident.store, run.clone()));
        Arc::new(boots)
    }

    pub(super) fn keep_members(
        &self,
        cluster: ClusterId,
        addresses: &Addresses,
        boots: &Boots,
    ) -> Arc<Members> {
        let members = &self.members;
        members.set_client_address(&addresses.clients);
        members.set_cluster(cluster);
        let opened = self.opened.iter().filter_map(|open| Some((&open.dir, open.ident?)));
        let damaged = self.damaged.iter().map(|damaged| (&damaged.dir, damaged.ident));
        for (dir, ident) in opened.chain(damaged) {
            members.keep_in(dir);
            members.add_own(ident.store, &addresses.nodes, dir, boots.get(ident.store));
        }
        members.save();
        members.clone()
    }
}

/// Opens the directories. Fails if none opens, or with an error that is not of one directory.
pub(super) fn open_all(config: &Config) -> Result<Dirs> {
    let mut opening = Opening::new(config);
    let mut new = Vec::new();
    for dir in &config.stores {
        match open::is_new(dir) {
            Ok(true) => new.push(dir),
            Ok(false) => opening.open(dir)?,
            Err(error) => opening.fail(dir, error)?,
        }
    }
    let cluster = opening.cluster();
    let known = opening.known(cluster);
    opening.drop_foreign(cluster, &known);
    let mut wanted = Vec::new();
    for dir in new {
        match opening.absent(dir, &known) {
            Some(absent) => opening.fail(dir, absent)?,
            None => wanted.push(dir),
        }
    }
    // A directory that did not open may hold the stores of a cluster: none is bootstrapped beside it.
    if opening.idents().is_empty() && !opening.failed.is_empty() {
        return Err(all_failed(opening.failed));
    }
    wanted.into_iter().try_for_each(|dir| opening.open(dir))?;
    opening.finish(cluster, known)
}

struct Opening<'a> {
    config: &'a Config,
    opened: Opened,
    damaged: Vec<open::DamagedDir>,
    failed: Vec<Failed>,
    copies: BTreeMap<PathBuf, Known>,
    /// Directories at other places than at their last starts, also those that do not start for it.
    moved: Vec<PathBuf>,
    /// First error of a copy of the list of members that cannot be read.
    unreadable: Option<Error>,
    nonce: u64,
}

impl<'a> Opening<'a> {
    fn new(config: &'a Config) -> Self {
        let (mut copies, mut unreadable) = (BTreeMap::new(), None);
        for dir in &config.stores {
            match members::read(dir) {
                Ok(known) => copies.extend(known.map(|known| (dir.clone(), known))),
                Err(error) => unreadable = unreadable.or(Some(error)),
            }
        }
        let (opened, damaged, failed) = (Vec::new(), Vec::new(), Vec::new());
        let (moved, nonce) = (Vec::new(), random() | 1);
        Self { config, opened, damaged, failed, copies, moved, unreadable, nonce }
    }

    fn open(&mut self, dir: &Path) -> Result<()> {
        let open = || open::engine(self.config, dir);
        let recover = || open::begin_recovery(self.config, dir);
        // The directory is locked by what is open.
        let count = |directory| self.count_start(dir).map(|started| (directory, started));
        let (directory, started) =
            match start::adopt(open, recover, RecoveringStore::ident).and_then(count) {
                Ok(started) => started,
                Err(error) => {
                    let is_moved = matches!(error, Error::WrongStore { .. });
                    self.moved.extend(is_moved.then(|| dir.to_path_buf()));
                    return self.fail(dir, error);
                }
            };
        if started.has_moved {
            self.moved.push(dir.to_path_buf());
        }
        let run = started.run;
        match directory {
            Directory::Open(engine, ident) => {
                self.opened.push(OpenDir { dir: dir.to_path_buf(), engine, ident, run });
            }
            Directory::Recovering(ident, log) => {
                self.damaged.push(open::damaged(dir, ident, log, run));
            }
        }
        Ok(())
    }

    fn count_start(&self, dir: &Path) -> Result<Started> {
        // The list of members has a copy of the last run.
        let of_copy = |known: &Known| {
            Some(known.stores.get(&members::store_in(known, dir)?)?.known.run.clone())
        };
        let known = self.copies.values().filter_map(of_copy).max_by_key(|run| run.boot.count);
        let is_said = self.config.moved_directories.iter().any(|moved| moved == dir);
        let is_sole = self.copies.get(dir).is_some_and(Known::is_sole_node);
        let start = DirStart {
            id: StartId(u128::from(random()) << 64 | u128::from(random())),
            nonce: self.nonce,
            known: known.unwrap_or_default(),
            may_have_moved: is_said || is_sole,
        };
        let started = start.count(&open::files(self.config), dir)?;
        if started.has_moved && !is_said {
            tracing::warn!(
                "{} is not where it was at its last start: it was moved, restored or copied. The node is \
                 the only one of its cluster and serves; never start the other directory, if there is one",
                dir.display()
            );
        }
        if started.run.boot.count == 0 {
            tracing::warn!("{}: the device is full: the start is not counted", dir.display());
        }
        Ok(started)
    }

    fn fail(&mut self, dir: &Path, error: Error) -> Result<()> {
        // bug server.one_directory_fails_all: always
        if !is_of_directory(&error) {
            return Err(error);
        }
        self.failed.push(Failed::new(dir, error));
        Ok(())
    }

    fn idents(&self) -> Vec<(&Path, StoreIdent)> {
        let opened = self.opened.iter().filter_map(|open| Some((&*open.dir, open.ident?)));
        opened.chain(self.damaged.iter().map(|damaged| (&*damaged.dir, damaged.ident))).collect()
    }

    /// Returns the cluster of the stores. Where a disk of another cluster was mounted by mistake, the
    /// cluster that knows most of these directories as this node's counts, then the one with most
    /// stores here.
    fn cluster(&self) -> Option<ClusterId> {
        let idents = self.idents();
        let score = |cluster: ClusterId| {
            let own = idents.iter().filter(|(_, ident)| ident.cluster == cluster);
            let dirs = self.config.stores.iter();
            let knows = |known: &&Known| {
                dirs.clone().filter(|dir| members::store_in(known, dir).is_some()).count()
            };
            let copies = own.clone().filter_map(|(dir, _)| self.copies.get(*dir));
            (copies.map(|known| knows(&known)).max().unwrap_or(0), own.count())
        };
        // Of equals, the last is returned: the first directory is first in `idents`.
        idents.iter().rev().map(|(_, ident)| ident.cluster).max_by_key(|cluster| score(*cluster))
    }

    /// Returns the newest copy of the list of members, without those of other clusters.
    fn known(&self, cluster: Option<ClusterId>) -> Known {
        let idents = self.idents();
        let is_foreign = |dir: &Path, known: &Known| {
            let here = idents.iter().find(|(at, _)| *at == dir).map(|(_, ident)| ident.cluster);
            let other = |of: ClusterId| cluster.is_some_and(|cluster| cluster != of);
            here.is_some_and(other) || (known.cluster != ClusterId(0) && other(known.cluster))
        };
        let copies = self.copies.iter().filter(|(dir, known)| !is_foreign(dir, known));
        let is_there = |dir: &Path| !self.moved.iter().any(|moved| moved == dir);
        Known::newest(copies.map(|(dir, known)| (known, is_there(dir))))
    }

    /// Takes out the stores that do not belong to this node's cluster, or no longer, or twice.
    fn drop_foreign(&mut self, cluster: Option<ClusterId>, known: &Known) {
        let mut seen: BTreeMap<StoreId, PathBuf> = BTreeMap::new();
        let mut foreign = |dir: &Path, ident: StoreIdent| {
            let store = ident.store;
            let is_removed = known.stores.get(&store).is_some_and(|member| member.is_removed);
            let other = cluster.filter(|cluster| *cluster != ident.cluster);
            let detail = match (other, seen.get(&store)) {
                (Some(cluster), _) => format!(
                    "it holds store {store} of cluster {}, and this node belongs to cluster \
                     {cluster}: mount the disk of this node there, or start another node with it",
                    ident.cluster
                ),
                _ if is_removed => format!(
                    "store {store} was removed from the cluster: empty the directory to add it as a \
                     new store, or no longer name it as `store`"
                ),
                (None, Some(first)) => format!(
                    "it holds store {store}, and so does {}: no longer name the older copy",
                    first.display()
                ),
                (None, None) => {
                    seen.insert(store, dir.to_path_buf());
                    return None;
                }
            };
            let is_expected = is_removed && other.is_none();
            let error = Error::WrongStore { path: dir.to_path_buf(), detail };
            Some(Failed { is_expected, ..Failed::new(dir, error) })
        };
        let failed = &mut self.failed;
        self.opened.retain(|open| {
            let found = open.ident.and_then(|ident| foreign(&open.dir, ident));
            failed.extend(found);
            failed.last().is_none_or(|last| last.dir != open.dir)
        });
        self.damaged.retain(|damaged| {
            failed.extend(foreign(&damaged.dir, damaged.ident));
            failed.last().is_none_or(|last| last.dir != damaged.dir)
        });
    }

    /// Returns the error of a directory without a store where one was.
    ///
    /// Invariant: an empty directory where a store was, such as the mount point of a missing disk,
    /// does not become a new store: it would fill the disk of the system, and the old store would
    /// count as replaced.
    /// Test: `an_empty_or_missing_directory_where_a_store_was_is_refused_until_the_disk_is_back`.
    fn absent(&self, dir: &Path, known: &Known) -> Option<Error> {
        let store = members::store_in(known, dir)?;
        let is_replaced = self.config.replaced_disks.iter().any(|replaced| replaced == dir);
        // bug server.empty_mount_is_new: `is_replaced` is `true`
        match is_replaced {
            true => None,
            false => Some(Error::StoreAbsent { dir: dir.to_path_buf(), store }),
        }
    }

    fn finish(mut self, cluster: Option<ClusterId>, known: Known) -> Result<Dirs> {
        if self.idents().is_empty() {
            match (self.failed.is_empty(), self.unreadable.take()) {
                (false, _) => return Err(all_failed(self.failed)),
                (true, Some(error)) => return Err(error),
                (true, None) => {}
            }
        }
        if let Some(error) = self.unreadable.take() {
            tracing::warn!("a copy of the list of members is skipped: {error}");
        }
        let mut opened = Vec::new();
        for open in std::mem::take(&mut self.opened) {
            // It may have been created where a store was, and not have joined.
            let absent = self.absent(&open.dir, &known).filter(|_| open.ident.is_none());
            match absent {
                Some(error) => self.failed.push(Failed::new(&open.dir, error)),
                None => opened.push(open),
            }
        }
        let members = Members::new(known);
        for open in opened.iter().filter(|open| open.ident.is_none()) {
            members.replace_disk(&open.dir);
        }
        let failed = self.failed.into_iter().map(|Failed { dir, error, is_expected }| {
            let store = members.store_in(&dir);
            FailedDir { is_expected, ..FailedDir::new(dir, store, &error) }
        });
        let failed = failed.collect();
        let (damaged, nonce) = (self.damaged, self.nonce);
        Ok(Dirs { opened, damaged, failed, members: Arc::new(members), cluster, nonce })
    }
}

struct Failed {
    dir: PathBuf,
    error: Error,
    /// The node is complete without it.
    is_expected: bool,
}

impl Failed {
    fn new(dir: &Path, error: Error) -> Self {
        Self { dir: dir.to_path_buf(), error, is_expected: false }
    }
}

fn all_failed(mut failed: Vec<Failed>) -> Error {
    if failed.len() == 1
        && let Some(Failed { error, .. }) = failed.pop()
    {
        return error;
    }
    let lines = failed.iter().map(|it| format!("\n  {}: {}", it.dir.display(), it.error));
    Error::invalid(format!("no directory holds a store that opens:{}", lines.collect::<String>()))
}

/// Last states of stores in which they were displaced.
#[derive(Debug)]
pub(super) struct Displaced<T>(Mutex<BTreeMap<StoreId, Arc<T>>>);

impl<T> Default for Displaced<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Displaced<T> {
    /// Takes the state of a store for a heartbeat. Returns whether the store must stop: it was displaced
    /// in two states in a row. A state that is shown again, because the device does not answer, counts
    /// once.
    pub(super) fn note(&self, store: StoreId, state: &Arc<T>, is_displaced: bool) -> bool {
        let mut seen = self.0.lock();
        if !is_displaced {
            seen.remove(&store);
            return false;
        }
        let before = seen.insert(store, state.clone());
        // bug server.displaced_at_once: `before.is_some_and(|before| !Arc::ptr_eq(&before, state))` is `true`
        before.is_some_and(|before| !Arc::ptr_eq(&before, state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_stops_when_it_was_displaced_at_two_heartbeats_in_a_row() {
        let displaced = Displaced::default();
        let (one, two) = (StoreId(1), StoreId(2));
        let state = || Arc::new(());
        let first = state();
        assert!(!displaced.note(one, &first, true));
        assert!(!displaced.note(one, &first, true), "the same state is no second one");
        assert!(!displaced.note(two, &state(), true), "another store");
        assert!(!displaced.note(one, &state(), false), "it is back");
        assert!(!displaced.note(one, &state(), true));
        assert!(displaced.note(one, &state(), true));
    }
}
