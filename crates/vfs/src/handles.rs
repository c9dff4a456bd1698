//! Open files for reading, shared by all stores of a process, and a file system that closes some of
//! them when the process has no descriptors left. Other files and directories are kept open to
//! notice that their paths name others.

use crate::{DirEntry, DirLock, FileSystem, Open, Vfs, VfsFile};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::lock::{RwLock, rank};
use stele_types::{Error, Result};

/// Handles that a pool keeps unless stated.
const HANDLES_MAX: usize = 1024;
/// Part of the handles that are closed together.
const CLOSED_PART: usize = 8;
/// Attempts of a call for which the process has no descriptor.
const ATTEMPTS_MAX: usize = 32;

/// Key of a handle: the user of the pool, its number of the file, and whether the handle bypasses the
/// page cache.
type Key = (u64, u64, bool);

/// Open files, of all users together at most a fixed number. A file stays valid while a reader holds
/// it. Those used longest ago are closed first.
#[derive(Debug)]
pub struct HandlePool {
    handles_max: usize,
    next_user: AtomicU64,
    /// Number of files opened. A handle that was used since the last of them is not marked again: readers
    /// of open files write to no shared memory.
    opened: AtomicU64,
    open: RwLock<BTreeMap<Key, Cached>, { rank::HANDLES }>,
}

#[derive(Debug)]
struct Cached {
    file: Arc<dyn VfsFile>,
    /// Value of [`HandlePool::opened`] at the last use.
    used: AtomicU64,
}

impl Default for HandlePool {
    fn default() -> Self {
        Self::new(HANDLES_MAX)
    }
}

impl HandlePool {
    /// Creates a pool of at most `handles_max` handles; at least one.
    pub fn new(handles_max: usize) -> Self {
        Self {
            handles_max: handles_max.max(1),
            next_user: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            open: RwLock::default(),
        }
    }

    /// Returns the number of handles.
    pub fn count(&self) -> usize {
        self.open.read().len()
    }

    /// Returns the most handles.
    pub fn handles_max(&self) -> usize {
        self.handles_max
    }

    /// Closes the handles that were used longest ago, for a call that found no descriptor. Returns
    /// whether there were any.
    pub fn close_some(&self) -> bool {
        let closed = take_oldest(&mut self.open.write());
        !closed.is_empty()
    }
}

/// Takes a part of the handles out, those used longest ago; one at least. They are closed by the caller,
/// without the lock.
fn take_oldest(open: &mut BTreeMap<Key, Cached>) -> Vec<Cached> {
    let age = |(key, cached): (&Key, &Cached)| (cached.used.load(Ordering::Relaxed), *key);
    let mut keys: Vec<(u64, Key)> = open.iter().map(age).collect();
    let count = open.len().div_ceil(CLOSED_PART);
    keys.sort_unstable();
    // bug vfs.lowest_handles_closed: keys.sort_unstable_by_key(|(_, key)| *key);
    keys.iter().take(count).filter_map(|(_, key)| open.remove(key)).collect()
}

/// Handles of one store in a pool. They are closed when it is dropped.
#[derive(Debug)]
pub struct Handles {
    pool: Arc<HandlePool>,
    user: u64,
}

impl Handles {
    /// Becomes a user of a pool.
    pub fn of(pool: Arc<HandlePool>) -> Self {
        let user = pool.next_user.fetch_add(1, Ordering::Relaxed);
        Self { pool, user }
    }

    /// Returns the handle of a file if it is open.
    pub fn get(&self, file: u64, is_direct: bool) -> Option<Arc<dyn VfsFile>> {
        let open = self.pool.open.read();
        let cached = open.get(&(self.user, file, is_direct))?;
        let now = self.pool.opened.load(Ordering::Relaxed);
        if cached.used.load(Ordering::Relaxed) != now {
            cached.used.store(now, Ordering::Relaxed);
        }
        Some(cached.file.clone())
    }

    /// Keeps a handle. Returns the one that was kept before, if there is one.
    pub fn insert(&self, file: u64, is_direct: bool, handle: Arc<dyn VfsFile>) -> Arc<dyn VfsFile> {
        let used = AtomicU64::new(self.pool.opened.fetch_add(1, Ordering::Relaxed) + 1);
        let mut open = self.pool.open.write();
        let closed = match open.len() >= self.pool.handles_max {
            true => take_oldest(&mut open),
            false => Vec::new(),
        };
        let kept = open.entry((self.user, file, is_direct));
        let handle = kept.or_insert(Cached { file: handle, used }).file.clone();
        drop(open);
        drop(closed);
        handle
    }

    /// Closes the handles of a file.
    pub fn forget(&self, file: u64) {
        let mut open = self.pool.open.write();
        let closed = [false, true].map(|is_direct| open.remove(&(self.user, file, is_direct)));
        drop(open);
        drop(closed);
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        let mut open = self.pool.open.write();
        let after = open.split_off(&(self.user, 0, false));
        let (own, others) = after.into_iter().partition(|((user, ..), _)| *user == self.user);
        let (own, mut others): (BTreeMap<Key, Cached>, BTreeMap<Key, Cached>) = (own, others);
        open.append(&mut others);
        drop(open);
        drop(own);
    }
}

/// File system of a process with few descriptors.
///
/// Invariant: a call fails for lack of descriptors only when no handle of the pool is left to close.
#[derive(Debug)]
pub struct FrugalVfs {
    inner: Arc<dyn Vfs>,
    pool: Arc<HandlePool>,
}

impl FrugalVfs {
    /// Wraps a file system, of which the pool holds handles.
    pub fn new(inner: Arc<dyn Vfs>, pool: Arc<HandlePool>) -> Self {
        Self { inner, pool }
    }

    fn with_descriptor<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 1..ATTEMPTS_MAX {
            match call() {
                // bug vfs.fails_without_descriptors: never
                Err(error) if is_out_of_descriptors(&error) && self.pool.close_some() => {}
                done => return done,
            }
        }
        call()
    }
}

/// Whether the process (EMFILE) or the machine (ENFILE) has no descriptor left.
fn is_out_of_descriptors(error: &Error) -> bool {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    let Error::Io { source, .. } = error else { return false };
    matches!(source.raw_os_error(), Some(EMFILE | ENFILE))
}

impl crate::VfsLayer for FrugalVfs {
    fn below(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>> {
        self.with_descriptor(|| self.inner.open(path, how))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.with_descriptor(|| self.inner.sync_dir(dir))
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.with_descriptor(|| self.inner.create_dir_all(dir))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.with_descriptor(|| self.inner.list(dir))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>> {
        self.with_descriptor(|| self.inner.lock(path))
    }

    fn lock_for_reading(&self, path: &Path) -> Result<Option<Box<dyn DirLock>>> {
        self.with_descriptor(|| self.inner.lock_for_reading(path))
    }

    fn pin(&self, path: &Path) -> Result<Box<dyn Pinned>> {
        self.with_descriptor(|| self.inner.pin(path))
    }

    fn file_system(&self, file: &Path) -> Result<FileSystem> {
        self.with_descriptor(|| self.inner.file_system(file))
    }

    fn random(&self) -> Result<u64> {
        self.with_descriptor(|| self.inner.random())
    }
}

/// What the path of a pinned file or directory names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinState {
    /// The file or directory that was pinned.
    InPlace,
    /// Nothing: it was moved away or deleted.
    Missing,
    /// Another one.
    Replaced,
}

/// A file or directory that is kept open.
pub trait Pinned: Send + Sync + Debug {
    /// Returns the path.
    fn path(&self) -> &Path;
    /// Compares device and inode of what is open with those that the path names now.
    fn state(&self) -> Result<PinState>;
}

/// Pin of a copy in memory, which nothing else can move.
#[derive(Debug)]
pub(crate) struct Unmoved(pub PathBuf);

impl Pinned for Unmoved {
    fn path(&self) -> &Path {
        &self.0
    }

    fn state(&self) -> Result<PinState> {
        Ok(PinState::InPlace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RealVfs;

    fn opened() -> Arc<dyn VfsFile> {
        RealVfs::new().open(Path::new("/dev/null"), Open::READ).unwrap()
    }

    #[test]
    fn the_handles_used_longest_ago_are_closed_and_those_in_use_stay_open() {
        let (opened, pool) = (opened(), Arc::new(HandlePool::new(16)));
        let handles = Handles::of(pool.clone());
        for file in 0..100 {
            handles.insert(file, false, opened.clone());
            // The lowest numbers are used all the time.
            (0..=file.min(3)).for_each(|low| assert!(handles.get(low, false).is_some(), "{low}"));
            assert!(pool.count() <= 16);
        }
        assert!(handles.get(99, false).is_some() && handles.get(50, false).is_none());
        assert!(handles.get(99, true).is_none(), "a direct handle is another one");
        handles.forget(99);
        assert!(handles.get(99, false).is_none());
    }

    #[test]
    fn the_stores_of_a_process_share_a_pool_and_close_only_their_own_handles_at_the_end() {
        let (opened, pool) = (opened(), Arc::new(HandlePool::new(64)));
        let users: Vec<Handles> = (0..3).map(|_| Handles::of(pool.clone())).collect();
        for (user, handles) in users.iter().enumerate() {
            for file in 0..8 {
                handles.insert(file, user == 1, opened.clone());
            }
        }
        let [first, second, third]: [Handles; 3] = users.try_into().unwrap();
        drop(second);
        assert_eq!(pool.count(), 16);
        assert!((0..8).all(|file| first.get(file, false).is_some()));
        drop(first);
        assert!((0..8).all(|file| third.get(file, false).is_some()));
        drop(third);
        assert_eq!(pool.count(), 0);
    }

    #[test]
    fn a_call_that_finds_no_descriptor_is_tried_again_after_handles_are_closed() {
        let (opened, pool) = (opened(), Arc::new(HandlePool::new(100)));
        let handles = Handles::of(pool.clone());
        (0..60).for_each(|file| {
            handles.insert(file, false, opened.clone());
        });
        let frugal = FrugalVfs::new(Arc::new(RealVfs::new()), pool.clone());
        let out = |number| Error::io("open", "/x", std::io::Error::from_raw_os_error(number));
        for number in [24, 23] {
            let left = pool.count() / 2;
            let call = || if pool.count() > left { Err(out(number)) } else { Ok(left) };
            assert_eq!(frugal.with_descriptor(call).unwrap(), left);
            assert!(pool.count() > left / 2, "not more than needed");
        }
        let failed = frugal.with_descriptor(|| Err::<(), _>(out(24)));
        assert!(failed.is_err() && pool.count() == 0, "nothing is left to close");
        let (calls, other) = (AtomicU64::new(0), Handles::of(pool.clone()));
        other.insert(1, false, opened);
        let failed = frugal.with_descriptor(|| {
            calls.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>(out(13))
        });
        assert!(failed.is_err() && calls.into_inner() == 1 && pool.count() == 1);
    }
}
