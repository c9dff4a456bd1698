//! The state of a simulated disk and its numbered operations.

mod files;

use super::SimOptions;
use super::fault::{CrashAt, CrashPoint, Event, Fault, Faults, Operation, Trigger};
use super::inode::Inode;
use super::names::{InodeId, Names};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use stele_types::{Error, Prng, Result};
use stele_vfs::Content;
use stele_vfs::{Create, DirEntry, Open, PinState};

#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub options: SimOptions,
    prng: Prng,
    /// Numbers for the user of the disk; apart, so that they change no fault.
    pub random: Prng,
    inodes: BTreeMap<InodeId, Inode>,
    next_inode: InodeId,
    dirs: BTreeMap<PathBuf, Names>,
    /// Numbers of the directories that are pinned, and the next one. They begin behind those of files,
    /// which do not depend on pins.
    dir_ids: BTreeMap<PathBuf, InodeId>,
    next_dir_id: InodeId,
    pub locks: BTreeSet<PathBuf>,
    pub next_operation: u64,
    pub events: Vec<Event>,
    pub record_writes: bool,
    pub crash_point: Option<CrashPoint>,
    pub crashed: bool,
    pub faults: Faults,
    pub stalls: u64,
    /// Number of the copy, by which the places of its directories differ; `None` without places.
    pub copies: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Whole,
    /// A part, then the crash.
    Part,
}

/// Whether an operation that succeeded took long.
pub(super) type Stalled = bool;

fn crash_error(op: &'static str, path: &Path) -> Error {
    Error::io(op, path, io::Error::other("simulated crash"))
}

fn injected(op: &'static str, path: &Path) -> Error {
    Error::io(op, path, io::Error::other("injected fault"))
}

/// Returns the error of a sector that cannot be read: EIO.
fn refused(path: &Path, offset: u64) -> Error {
    const EIO: i32 = 5;
    Error::failed_read(path, offset, io::Error::from_raw_os_error(EIO))
}

fn not_found(op: &'static str, path: &Path) -> Error {
    Error::io(op, path, io::ErrorKind::NotFound.into())
}

fn split(path: &Path) -> (&Path, String) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    (path.parent().unwrap_or(Path::new("")), name)
}

fn is_root(dir: &Path) -> bool {
    dir.file_name().is_none()
}

impl Disk {
    pub(super) fn new(options: SimOptions) -> Self {
        Self {
            prng: Prng::new(options.seed),
            random: Prng::new(!options.seed),
            options,
            inodes: BTreeMap::new(),
            next_inode: 0,
            dirs: BTreeMap::new(),
            dir_ids: BTreeMap::new(),
            next_dir_id: 1 << 60,
            locks: BTreeSet::new(),
            next_operation: 0,
            events: Vec::new(),
            record_writes: false,
            crash_point: None,
            crashed: false,
            faults: Faults::default(),
            stalls: 0,
            copies: Some(1),
        }
    }

    pub(super) fn restart(&self, seed: u64) -> Self {
        let mut disk = Self::new(SimOptions { seed, ..self.options.clone() });
        disk.record_writes = self.record_writes;
        disk.next_inode = self.next_inode;
        disk.copies = self.copies;
        for (dir, names) in &self.dirs {
            let names = names.after_crash(&mut disk.prng);
            for (id, inode) in
                names.by_name.values().filter_map(|id| Some((id, self.inodes.get(id)?)))
            {
                let content = inode.after_crash(&mut disk.prng);
                let mut restarted = Inode::durable(content, inode.reserved);
                restarted.unreadable.clone_from(&inode.unreadable);
                disk.inodes.insert(*id, restarted);
            }
            disk.dirs.insert(dir.clone(), Names::durable(names));
        }
        disk
    }

    /// Returns the disk as a new process finds it after the old one was killed: nothing is lost.
    pub(super) fn fork(&self) -> Self {
        let mut disk = Self {
            locks: BTreeSet::new(),
            next_operation: 0,
            events: Vec::new(),
            crash_point: None,
            crashed: false,
            faults: Faults::default(),
            ..self.clone()
        };
        disk.inodes.values_mut().for_each(|inode| inode.open = 0);
        disk.drop_unreachable();
        disk
    }

    fn begin(&mut self, op: &'static str, mut event: Event) -> Result<Step> {
        self.check_power(op, &event.path)?;
        event.operation = self.next_operation;
        self.next_operation += 1;
        let due = |point: &mut CrashPoint| point.operation <= event.operation;
        let step = match self.crash_point.take_if(due).map(|point| point.at) {
            None => Ok(Step::Whole),
            Some(at) => {
                self.crashed = true;
                match at {
                    CrashAt::Before => Err(crash_error(op, &event.path)),
                    CrashAt::Inside => Ok(Step::Part),
                    CrashAt::After => Ok(Step::Whole),
                }
            }
        };
        self.events.push(event);
        step
    }

    /// Begins an operation that cannot take effect in part: at a crash inside it happens or not,
    /// and fails. Returns `Some(error)` if it must be applied and then fail.
    fn begin_atomic(&mut self, op: &'static str, event: Event) -> Result<Option<Error>> {
        let path = event.path.clone();
        match self.begin(op, event)? {
            Step::Whole => Ok(None),
            Step::Part if self.prng.coin() => Ok(Some(crash_error(op, &path))),
            Step::Part => Err(crash_error(op, &path)),
        }
    }

    pub(super) fn check_power(&self, op: &'static str, path: &Path) -> Result<()> {
        if self.crashed { Err(crash_error(op, path)) } else { Ok(()) }
    }

    /// Returns the bytes that may still be allocated; `None` without a limit.
    pub(super) fn room_bytes(&self, operation: u64) -> Option<u64> {
        if self.faults.no_space(operation) {
            return Some(0);
        }
        let is_referenced = |inode: &&Inode| inode.linked || inode.open > 0;
        let used = || self.inodes.values().filter(is_referenced).map(Inode::allocated_bytes).sum();
        self.options.capacity_bytes.map(|capacity| capacity.saturating_sub(used()))
    }

    fn room_now(&self) -> Option<u64> {
        self.room_bytes(self.next_operation.saturating_sub(1))
    }

    fn names(&mut self, op: &'static str, dir: &Path) -> Result<&mut Names> {
        if is_root(dir) {
            return Ok(self.dirs.entry(dir.to_path_buf()).or_default());
        }
        self.dirs.get_mut(dir).ok_or_else(|| not_found(op, dir))
    }

    fn find(&self, path: &Path) -> Option<InodeId> {
        let (dir, name) = split(path);
        self.dirs.get(dir)?.visible.by_name.get(&name).copied()
    }

    pub(super) fn file(&self, path: &Path) -> Option<&Inode> {
        self.inodes.get(&self.find(path)?)
    }

    pub(super) fn file_mut(&mut self, path: &Path) -> Option<&mut Inode> {
        self.inodes.get_mut(&self.find(path)?)
    }

    /// Returns every file's path, sorted.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let in_dir = |(dir, names): (&PathBuf, &Names)| -> Vec<PathBuf> {
            names.visible.by_name.keys().map(|name| dir.join(name)).collect()
        };
        self.dirs.iter().flat_map(in_dir).collect()
    }

    /// Creates or replaces a file, durably and without a numbered operation.
    pub(super) fn place(&mut self, path: &Path, bytes: &[u8]) {
        let (dir, name) = split(path);
        let found = self.find(path);
        let id = found.unwrap_or(self.next_inode);
        self.next_inode = self.next_inode.max(id + 1);
        let mut content = Content::default();
        content.write(bytes, 0);
        let mut inode = Inode::durable(content, 0);
        inode.open = self.inodes.get(&id).map_or(0, |replaced| replaced.open);
        self.inodes.insert(id, inode);
        self.make_dirs(dir);
        self.dirs.entry(dir.to_path_buf()).or_default().create_durably(name, id);
    }

    pub(super) fn open(&mut self, path: &Path, how: Open) -> Result<InodeId> {
        self.check_power("open", path)?;
        let (dir, name) = split(path);
        let found = self.names("open", dir)?.visible.by_name.get(&name).copied();
        let id = match (found, how.create) {
            (Some(_), Create::New) => {
                return Err(Error::io("open", path, io::ErrorKind::AlreadyExists.into()));
            }
            (None, Create::Never) => return Err(not_found("open", path)),
            (Some(id), _) => id,
            (None, _) => self.create(path, dir, name)?,
        };
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.open += 1;
        }
        Ok(id)
    }

    fn create(&mut self, path: &Path, dir: &Path, name: String) -> Result<InodeId> {
        let fails = self.begin_atomic("open", Event::new(Operation::Create, path))?;
        if self.room_now() == Some(0) {
            return Err(Error::NoSpace(path.to_path_buf()));
        }
        let id = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(id, Inode::named());
        self.names("open", dir)?.create(name, id);
        fails.map_or(Ok(id), Err)
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        self.check_power("rename", from)?;
        let id = self.find(from).ok_or_else(|| not_found("rename", from))?;
        let replaced = self.find(to).filter(|there| *there != id);
        let event = Event { to: Some(to.into()), ..Event::new(Operation::Rename, from) };
        let mut fails = self.begin_atomic("rename", event)?;
        for fault in self.faults.take_due(Trigger::Rename, to) {
            match fault {
                Fault::NoRoomForName { .. } => return Err(Error::NoSpace(to.to_path_buf())),
                _ if self.prng.coin() => return Err(injected("rename", to)),
                _ => fails = Some(injected("rename", to)),
            }
        }
        let (dir, name) = split(to);
        self.names("rename", dir)?.rename(name, id);
        self.mark_unlinked(replaced);
        fails.map_or(Ok(()), Err)
    }

    pub(super) fn unlink(&mut self, path: &Path) -> Result<()> {
        self.check_power("unlink", path)?;
        let id = self.find(path).ok_or_else(|| not_found("unlink", path))?;
        let fails = self.begin_atomic("unlink", Event::new(Operation::Unlink, path))?;
        let (dir, name) = split(path);
        self.names("unlink", dir)?.unlink(name, id);
        self.mark_unlinked(Some(id));
        fails.map_or(Ok(()), Err)
    }

    fn mark_unlinked(&mut self, id: Option<InodeId>) {
        if let Some(inode) = id.and_then(|id| self.inodes.get_mut(&id)) {
            inode.linked = false;
        }
    }

    /// Drops files that no name, handle or unsynced change refers to.
    fn drop_unreachable(&mut self) {
        let kept: BTreeSet<InodeId> = self.dirs.values().flat_map(Names::inodes).collect();
        self.inodes.retain(|id, inode| inode.open > 0 || kept.contains(id));
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) -> Result<()> {
        self.check_power("sync directory", dir)?;
        let _exists = self.names("sync directory", dir)?;
        let step = self.begin("sync directory", Event::new(Operation::SyncDir, dir))?;
        let fails = !self.faults.take_due(Trigger::SyncDir, dir).is_empty();
        // bug vfs.skip_dir_sync: return Ok(());
        let mut prng = self.prng.clone();
        let names = self.names("sync directory", dir)?;
        if step == Step::Whole && !fails {
            if names.sync() {
                self.drop_unreachable();
            }
            return Ok(());
        }
        names.sync_partly(&mut prng);
        self.prng = prng;
        Err(if fails {
            injected("sync directory", dir)
        } else {
            crash_error("sync directory", dir)
        })
    }

    pub(super) fn create_dir_all(&mut self, dir: &Path) -> Result<()> {
        self.check_power("create directory", dir)?;
        let missing = |dir: &&Path| !is_root(dir) && !self.dirs.contains_key(*dir);
        let missing: Vec<PathBuf> =
            dir.ancestors().filter(missing).map(Path::to_path_buf).collect();
        for dir in missing.into_iter().rev() {
            let event = Event::new(Operation::CreateDir, dir.clone());
            let fails = self.begin_atomic("create directory", event)?;
            self.dirs.insert(dir, Names::default());
            fails.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Returns a number of a file or directory that stays the same while it is moved.
    pub(super) fn pin(&mut self, path: &Path) -> Result<InodeId> {
        self.check_power("open", path)?;
        if let Some(id) = self.find(path) {
            return Ok(id);
        }
        if !self.exists(path)? {
            return Err(not_found("open", path));
        }
        if let Some(id) = self.dir_ids.get(path) {
            return Ok(*id);
        }
        let id = self.next_dir_id;
        self.next_dir_id += 1;
        self.dir_ids.insert(path.to_path_buf(), id);
        Ok(id)
    }

    /// Returns what a path names that named `id`.
    pub(super) fn pin_state(&self, path: &Path, id: InodeId) -> Result<PinState> {
        if !self.exists(path)? {
            return Ok(PinState::Missing);
        }
        let now = self.find(path).or_else(|| self.dir_ids.get(path).copied());
        Ok(if now == Some(id) { PinState::InPlace } else { PinState::Replaced })
    }

    /// Moves a directory with all below it, or deletes it: durably, without a numbered operation. Open
    /// files stay open.
    pub(super) fn move_dir(&mut self, from: &Path, to: Option<&Path>) {
        let moved = |path: &Path| Some(to?.join(path.strip_prefix(from).ok()?));
        let names = std::mem::take(&mut self.dirs);
        for (path, names) in names {
            match (path.starts_with(from), moved(&path)) {
                (false, _) => drop(self.dirs.insert(path, names)),
                (true, Some(path)) => drop(self.dirs.insert(path, names)),
                (true, None) => names.inodes().for_each(|id| self.mark_unlinked(Some(id))),
            }
        }
        for (path, id) in std::mem::take(&mut self.dir_ids) {
            match path.starts_with(from) {
                false => drop(self.dir_ids.insert(path, id)),
                true => drop(moved(&path).map(|path| self.dir_ids.insert(path, id))),
            }
        }
    }

    fn make_dirs(&mut self, dir: &Path) {
        for dir in dir.ancestors().filter(|dir| !is_root(dir)) {
            self.dirs.entry(dir.to_path_buf()).or_default();
        }
    }

    pub(super) fn list(&mut self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.check_power("list", dir)?;
        let files = self.names("list", dir)?.visible.by_name.clone();
        let file = |(name, id): (String, InodeId)| {
            let inode = self.inodes.get(&id)?;
            let (bytes, allocated_bytes) = (inode.visible.len, inode.allocated_bytes());
            Some(DirEntry { name, bytes, allocated_bytes, is_dir: false })
        };
        let mut entries: Vec<DirEntry> = files.into_iter().filter_map(file).collect();
        let below = self.dirs.keys().filter(|path| !is_root(path) && path.parent() == Some(dir));
        entries.extend(below.map(|path| DirEntry {
            name: split(path).1,
            bytes: 0,
            allocated_bytes: 0,
            is_dir: true,
        }));
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    pub(super) fn exists(&self, path: &Path) -> Result<bool> {
        self.check_power("stat", path)?;
        Ok(is_root(path) || self.dirs.contains_key(path) || self.find(path).is_some())
    }
}
