//! Stores of this node, with their runs as its hellos and reports state them.

use crate::followers::Followers;
use crate::recovery_thread::RecoveryThread;
use crate::store::StoreHandle;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use stele_engine::GcOptions;
use stele_replica::PeerMessage;
use stele_types::{Error, Level, RegionId, Result, StoreId, StoreRun};

/// Stands for the level in use before the first answer to a report.
const UNKNOWN_LEVEL: u32 = 0;

/// Stores of this node that take messages, in the order they were started.
#[derive(Clone, Default)]
pub struct Serving {
    open: Vec<Arc<StoreHandle>>,
    /// Stores that wait for copies of entries before they open.
    recovering: Vec<Arc<RecoveryThread>>,
}

impl Serving {
    fn get(&self, id: StoreId) -> Option<&Arc<StoreHandle>> {
        self.open.iter().find(|store| store.id() == id)
    }

    /// Returns whether the store takes messages here.
    pub fn has(&self, id: StoreId) -> bool {
        self.get(id).is_some() || self.recovering.iter().any(|store| store.id == id)
    }

    /// Queues messages, each with its bytes, for their stores, which drop them while too many wait. Each
    /// store takes all of its messages in one turn. Leaves those for other stores.
    pub fn deliver(&self, messages: &mut Vec<(PeerMessage, u64)>) {
        for store in &self.open {
            store.messages(messages.extract_if(.., |(it, _)| it.to_store == store.id()));
        }
        for store in &self.recovering {
            let of_store = messages.extract_if(.., |(it, _)| it.to_store == store.id);
            of_store.for_each(|(message, bytes)| store.message(message, bytes));
        }
    }
}

/// Stores of this node.
pub struct Stores {
    /// Replaced as a whole at each change, so that a batch of messages reads it once.
    serving: RwLock<Arc<Serving>>,
    failed: RwLock<Vec<FailedDir>>,
    /// Bytes of the largest Raft entry; larger batches are split.
    pub entry_bytes_max: usize,
    undetermined_writes_fail: AtomicBool,
    level_in_use: AtomicU32,
    stopping: AtomicBool,
    gc_options: RwLock<Option<GcOptions>>,
    followers: Arc<Followers>,
}

impl Stores {
    /// Creates the list without a store.
    pub fn new(entry_bytes_max: usize) -> Self {
        Self {
            serving: RwLock::default(),
            failed: RwLock::default(),
            entry_bytes_max,
            undetermined_writes_fail: AtomicBool::new(false),
            level_in_use: AtomicU32::new(UNKNOWN_LEVEL),
            stopping: AtomicBool::new(false),
            gc_options: RwLock::default(),
            followers: Arc::default(),
        }
    }

    /// Returns the streams of the node that follow regions' logs.
    pub fn followers(&self) -> &Arc<Followers> {
        &self.followers
    }

    /// Returns whether the node hands its leaders over and stops.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Replaces the settings of garbage collection of all stores, also of those that open later. Fails
    /// with `Invalid` when one is out of bounds.
    pub fn set_gc_options(&self, options: &GcOptions) -> Result<()> {
        options.validate()?;
        *self.gc_options.write() = Some(options.clone());
        self.all().iter().try_for_each(|store| store.engine().set_gc_options(options.clone()))
    }

    /// Returns whether puts and deletes of unknown outcome are answered with an error, which clients
    /// do not repeat. A setting of the cluster.
    pub fn undetermined_writes_fail(&self) -> bool {
        self.undetermined_writes_fail.load(Ordering::Relaxed)
    }

    pub(crate) fn set_undetermined_writes_fail(&self, fail: bool) {
        self.undetermined_writes_fail.store(fail, Ordering::Relaxed);
    }

    /// Returns the level that this node may write and send, as it last received; the oldest before the
    /// first answer to a report.
    pub fn level_in_use(&self) -> Level {
        Level::new(self.level_in_use.load(Ordering::Acquire)).max(Level::OLDEST)
    }

    /// Invariant: the level in use never falls: an answer of an earlier leader may come late.
    /// Test: `a_level_in_use_never_falls_and_what_is_above_it_is_refused`.
    pub(crate) fn note_level_in_use(&self, level: Level) {
        // bug server.level_in_use_falls: self.level_in_use.store(level.get(), Ordering::Release);
        // bug server.level_in_use_falls: skip
        self.level_in_use.fetch_max(level.get(), Ordering::AcqRel);
    }

    /// Fails with `Refused` if the cluster does not yet write what is of this level, and with `Busy` before
    /// the first answer to a report, when nothing is known of that. `what` begins the sentence, in the
    /// plural. All code that writes or sends something of a later level calls it first.
    pub fn may_use(&self, level: Level, what: &str) -> Result<()> {
        let is_unknown = self.level_in_use.load(Ordering::Acquire) == UNKNOWN_LEVEL;
        // bug server.unknown_level_refused: let is_unknown = false;
        if is_unknown && level > Level::OLDEST {
            let text = format!("{what} wait for the first answer of the placement leader");
            return Err(Error::Busy(text));
        }
        level.check(what, self.level_in_use())
    }

    /// Adds a started store.
    pub fn add(&self, store: Arc<StoreHandle>) {
        let options = self.gc_options.read().clone();
        if let Some(Err(error)) = options.map(|options| store.engine().set_gc_options(options)) {
            tracing::warn!("store {}: garbage collection keeps its settings: {error}", store.id());
        }
        self.change(|serving| serving.open.push(store));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Serving) -> T) -> T {
        change(Arc::make_mut(&mut self.serving.write()))
    }

    /// Takes out a store that has stopped.
    pub fn remove(&self, id: StoreId) -> Option<Arc<StoreHandle>> {
        self.change(|serving| {
            let at = serving.open.iter().position(|store| store.id() == id)?;
            Some(serving.open.remove(at))
        })
    }

    /// Drops all stores, which must be stopped, and so frees their directories.
    pub fn clear(&self) {
        self.change(|serving| serving.open.clear());
    }

    /// Returns the stores that take messages now.
    pub fn serving(&self) -> Arc<Serving> {
        self.serving.read().clone()
    }

    /// Returns the store with this id, if it is open.
    pub fn get(&self, id: StoreId) -> Option<Arc<StoreHandle>> {
        self.serving.read().get(id).cloned()
    }

    /// Returns the first store.
    pub fn first(&self) -> Option<Arc<StoreHandle>> {
        self.serving.read().open.first().cloned()
    }

    /// Returns all open stores.
    pub fn all(&self) -> Vec<Arc<StoreHandle>> {
        self.serving.read().open.clone()
    }

    /// Returns the stores that wait for copies of entries before they open.
    pub fn recovering(&self) -> Vec<Arc<RecoveryThread>> {
        self.serving.read().recovering.clone()
    }

    pub(crate) fn add_failed(&self, dir: FailedDir) {
        match dir.is_expected {
            true => tracing::warn!("{dir}"),
            false => tracing::error!("{dir}"),
        }
        self.failed.write().push(dir);
    }

    /// Returns the directories that serve no store.
    pub fn failed(&self) -> Vec<FailedDir> {
        self.failed.read().clone()
    }

    /// Starts a recovering store. It is listed before its thread can remove it.
    pub(crate) fn add_recovering(
        &self,
        start: impl FnOnce() -> Result<Arc<RecoveryThread>>,
    ) -> Result<()> {
        self.change(|serving| {
            serving.recovering.push(start()?);
            Ok(())
        })
    }

    /// Returns whether this node has the store, open or recovering.
    pub fn has(&self, id: StoreId) -> bool {
        self.serving.read().has(id)
    }

    pub(crate) fn remove_recovering(&self, id: StoreId) {
        self.change(|serving| serving.recovering.retain(|store| store.id != id));
    }

    /// Returns a store with a replica of the region; the one that leads it, if there is one. One that
    /// has failed knows nothing of its regions any more.
    pub fn holding(&self, region: RegionId) -> Option<Arc<StoreHandle>> {
        let mut holders = self.all();
        holders.retain(|store| store.is_running() && store.readers().get(region).is_some());
        let leading = holders.iter().find(|store| store.leads(region));
        leading.or(holders.first()).cloned()
    }
}

/// Runs of this node's stores. One store may be added while the node runs.
#[derive(Debug)]
pub struct Boots {
    nonce: u64,
    runs: RwLock<BTreeMap<StoreId, StoreRun>>,
}

impl Boots {
    /// Creates the runs of a process with this random number, which is not 0, without a store.
    pub fn new(nonce: u64) -> Self {
        Self { nonce, runs: RwLock::default() }
    }

    /// Adds a store with the run of its directory.
    pub fn add(&self, store: StoreId, run: StoreRun) {
        self.runs.write().insert(store, run);
    }

    /// Returns the random number of the process.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Returns the run of a store; unknown for one that this node does not have.
    pub fn get(&self, store: StoreId) -> StoreRun {
        self.runs.read().get(&store).cloned().unwrap_or_default()
    }
}

/// Directory that serves no store since the start of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDir {
    /// Directory; `None` after its disk was replaced.
    pub dir: Option<PathBuf>,
    /// Store that was there, as far as known.
    pub store: Option<StoreId>,
    /// Reason, with what to do.
    pub reason: String,
    /// The node is complete without it.
    pub is_expected: bool,
}

impl FailedDir {
    /// Creates the record of a directory that did not open.
    pub fn new(dir: PathBuf, store: Option<StoreId>, error: &Error) -> Self {
        let remove = match store {
            Some(store) => format!("remove the store with `stele ctl remove-store {store}`"),
            None => "remove its store with `stele ctl remove-store`".to_owned(),
        };
        let replace = format!(
            "mount or repair the disk and start the node again; or replace the disk and start once \
             with `--replaced-disk {}`; or {remove}",
            dir.display()
        );
        let reason = match error {
            // These name what to do.
            Error::StoreAbsent { .. } => format!("{error}; or {remove}"),
            Error::WrongStore { .. } => error.to_string(),
            _ => format!("{error}; {replace}"),
        };
        Self { dir: Some(dir), store, reason, is_expected: false }
    }

    /// Creates the record of a store of the node that is in none of its directories.
    pub fn absent(store: StoreId, dir: Option<PathBuf>) -> Self {
        let remove = format!("remove the store with `stele ctl remove-store {store}`");
        let (reason, is_expected) = match &dir {
            Some(dir) => {
                let dir = dir.display();
                let text = format!(
                    "it was in {dir}, which does not hold it now: name its directory as `store`; or \
                     {remove}"
                );
                (text, false)
            }
            None => (format!("its disk was replaced: {remove}"), true),
        };
        Self { dir, store: Some(store), reason, is_expected }
    }
}

impl fmt::Display for FailedDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.store, &self.dir) {
            (Some(store), _) => write!(f, "store {store} does not serve: ")?,
            (None, Some(dir)) => write!(f, "the store in {} does not serve: ", dir.display())?,
            (None, None) => {}
        }
        f.write_str(&self.reason)
    }
}

/// Whether an error of opening is of the directory, so that the others may serve. The other errors
/// end the start: another process has the directory, or the program or its settings are wrong.
pub(crate) fn is_of_directory(error: &Error) -> bool {
    matches!(
        error,
        Error::Io { .. }
            | Error::NoSpace(_)
            | Error::Corrupt { .. }
            | Error::Missing { .. }
            | Error::WrongStore { .. }
            | Error::StoreAbsent { .. }
            | Error::Poisoned(_)
            | Error::Panicked(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_in_use_never_falls_and_what_is_above_it_is_refused() {
        let stores = Stores::new(1);
        assert!(matches!(stores.may_use(Level::MOMENTS, "moments"), Err(Error::Busy(_))));
        assert!(stores.may_use(Level::OLDEST, "puts").is_ok());
        stores.note_level_in_use(Level::OLDEST);
        let refused = stores.may_use(Level::MOMENTS, "moments").unwrap_err().to_string();
        assert!(
            refused.contains("run `stele ctl finalize` once all nodes run version 0.2.0"),
            "{refused}"
        );
        stores.note_level_in_use(Level::MOMENTS);
        stores.note_level_in_use(Level::OLDEST);
        assert_eq!(stores.level_in_use(), Level::MOMENTS);
        assert!(stores.may_use(Level::MOMENTS, "moments").is_ok());
    }
}
