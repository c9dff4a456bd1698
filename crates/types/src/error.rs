//! The store's error type. Its variants are grouped by what the caller must do.
//! Beside it the outcome of a write of several parts that did not all succeed, and panics that end in
//! errors.

use crate::{KeyRange, Level, Locator, StoreId};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// A result with the store's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failure of a call. The message names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reject: the call can never succeed in this form. Nothing was changed.
    #[error("invalid request: {0}")]
    Invalid(String),

    /// Retry later: a limit in bytes is reached.
    #[error("busy: {0}; retry after a pause")]
    Busy(String),

    /// Retry later: the device is full. Reads, deletes and garbage collection continue.
    #[error("no space on the device for {}: writes are refused until space is freed; deletes, reads and garbage collection go on", .0.display())]
    NoSpace(PathBuf),

    /// Repair: stored bytes differ from what was written, or the device cannot read them. Nothing
    /// was truncated or skipped.
    #[error("corrupt data in {} at byte {offset}: {detail}; run `stele verify`, then restore from a replica or a backup", .path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Bytes from the start of the file.
        offset: u64,
        /// The failed check.
        detail: String,
    },

    /// Repair: a file that the manifest or the log refers to is missing.
    #[error("{} is missing: {detail}; restore it or rebuild this store from a replica", .path.display())]
    Missing {
        /// The missing file.
        path: PathBuf,
        /// The reference to the file.
        detail: String,
    },

    /// Fatal for this store: the device failed an operation. The store accepts no further writes.
    #[error("{op} of {} failed: {source}", .path.display())]
    Io {
        /// The operation, for example `read` or `sync`.
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },

    /// Fatal for this store: an earlier sync or write failed, or panicked, so the durable state is
    /// unknown.
    #[error(
        "the store has stopped after a failure ({0}); check the device, then open the store again: everything acknowledged is kept"
    )]
    Poisoned(String),

    /// Fatal for this store, if a write or its maintenance panicked: memory and device may differ.
    #[error(
        "{0}; this is a bug, report it; open the store again: everything acknowledged is kept, and of an interrupted write all or nothing"
    )]
    Panicked(String),

    /// Reject: another process holds the directory.
    #[error("{} is in use by another process; stop it, or name another directory", .0.display())]
    Locked(PathBuf),

    /// Reject: written by a newer version.
    #[error("{} has format {found}, this build reads up to {supported}; use a newer version. Nothing was changed", .path.display())]
    NewerFormat {
        /// The file with the newer format.
        path: PathBuf,
        /// The file's format version.
        found: u32,
        /// The newest version this build supports.
        supported: u32,
    },

    /// Reject: the store's cluster was finalized at a level that this program does not support.
    #[error("{} belongs to a cluster of level {found}, this build supports up to {supported}; run version {version} or later. Nothing was changed", .path.display())]
    NewerLevel {
        /// The file that records the level.
        path: PathBuf,
        /// Level that the store records.
        found: Level,
        /// Newest level that this build supports.
        supported: Level,
        /// Version that first supported the recorded level.
        version: String,
    },

    /// Reject: the directory belongs to another store or cluster, or to another program.
    #[error("{} is not this store: {detail}", .path.display())]
    WrongStore {
        /// The directory or file.
        path: PathBuf,
        /// The difference.
        detail: String,
    },

    /// As its source: one shard of a set failed. The other shards serve their keys.
    #[error("shard in {}: {source}{}", .dir.display(), shard_remedy(.source))]
    Shard {
        /// Directory of the shard.
        dir: PathBuf,
        /// Failure of the shard.
        source: Box<Error>,
    },

    /// Reject: the directory of a store is empty, as the mount point of a missing disk does.
    #[error(
        "{} holds no store, and store {store} was there: mount its disk and start the node again; if the disk was replaced, start it once with `--replaced-disk {}`", .dir.display(), .dir.display()
    )]
    StoreAbsent {
        /// The directory.
        dir: PathBuf,
        /// The store that was there.
        store: StoreId,
    },

    /// Retry later: no node that can serve the call was reached in time. Nothing was changed.
    #[error("no answer from the cluster: {0}; check that its nodes run, then try again")]
    Unavailable(String),

    /// Read first: the write may or may not take effect, now or later.
    #[error(
        "undetermined: {0}; the write may or may not have taken effect, read before repeating it"
    )]
    Undetermined(String),

    /// As its first failure: a write of several parts is done in part.
    #[error("{0}")]
    Partial(Box<Partial>),

    /// Reject: the cluster refuses in its present state. The text gives the reason.
    #[error("refused: {0}")]
    Refused(String),

    /// Repair: an object of a backup is missing, or differs from what was written.
    #[error(
        "the backup's object {object} is damaged: {detail}; run `stele backup verify --deep`, then use a moment that does not need it, or another copy of the backup"
    )]
    DamagedBackup {
        /// Name of the object in its repository.
        object: String,
        /// The failed check.
        detail: String,
    },

    /// Begin again: no store has the next writes of a watch any longer. The text names them.
    #[error("too old: {0}; take a token of a new watch, copy the data, then watch from that token")]
    TooOld(String),
}

impl Error {
    /// Creates the error of a request that can never succeed.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::Invalid(detail.into())
    }

    /// Creates the error of damage at a byte of a file.
    pub fn corrupt(path: impl AsRef<Path>, offset: u64, detail: impl Into<String>) -> Self {
        Self::Corrupt { path: path.as_ref().to_path_buf(), offset, detail: detail.into() }
    }

    /// Creates the error of a damaged or missing object of a backup.
    pub fn damaged_backup(object: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::DamagedBackup { object: object.into(), detail: detail.into() }
    }

    /// Creates the error of damage at a locator.
    pub fn corrupt_value(locator: &Locator, detail: impl Into<String>) -> Self {
        let path = PathBuf::from(format!("value file {:08x}", locator.file.0));
        Self::Corrupt { path, offset: u64::from(locator.offset), detail: detail.into() }
    }

    /// Creates the error of a failed shard. A request that can never succeed stays as it is: no
    /// shard caused it.
    pub fn of_shard(dir: impl AsRef<Path>, source: Self) -> Self {
        match source {
            Self::Invalid(_) | Self::Shard { .. } => source,
            source => Self::Shard { dir: dir.as_ref().to_path_buf(), source: Box::new(source) },
        }
    }

    /// Creates the error of a failed device operation; a full device becomes [`Error::NoSpace`].
    pub fn io(op: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace(path),
            _ => Self::Io { op, path, source },
        }
    }

    /// Creates the error of a failed read of an existing file. Bytes that the device cannot return
    /// are damage at `offset`; other failures say nothing about the stored bytes.
    pub fn failed_read(path: impl AsRef<Path>, offset: u64, source: io::Error) -> Self {
        if is_refused_by_device(&source) {
            return Self::corrupt(path, offset, format!("the device cannot read it ({source})"));
        }
        Self::io("read", path, source)
    }

    /// Returns a copy of the error: one failed group commit fails many callers.
    pub fn duplicate(&self) -> Self {
        match self {
            Self::Invalid(detail) => Self::Invalid(detail.clone()),
            Self::Busy(detail) => Self::Busy(detail.clone()),
            Self::NoSpace(path) => Self::NoSpace(path.clone()),
            Self::Corrupt { path, offset, detail } => {
                Self::Corrupt { path: path.clone(), offset: *offset, detail: detail.clone() }
            }
            Self::Missing { path, detail } => {
                Self::Missing { path: path.clone(), detail: detail.clone() }
            }
            Self::Io { op, path, source } => {
                let source = io::Error::new(source.kind(), source.to_string());
                Self::Io { op, path: path.clone(), source }
            }
            Self::Poisoned(detail) => Self::Poisoned(detail.clone()),
            Self::Panicked(detail) => Self::Panicked(detail.clone()),
            Self::Locked(path) => Self::Locked(path.clone()),
            Self::NewerFormat { path, found, supported } => {
                Self::NewerFormat { path: path.clone(), found: *found, supported: *supported }
            }
            Self::NewerLevel { path, found, supported, version } => Self::NewerLevel {
                path: path.clone(),
                found: *found,
                supported: *supported,
                version: version.clone(),
            },
            Self::WrongStore { path, detail } => {
                Self::WrongStore { path: path.clone(), detail: detail.clone() }
            }
            Self::Shard { dir, source } => {
                Self::Shard { dir: dir.clone(), source: Box::new(source.duplicate()) }
            }
            Self::StoreAbsent { dir, store } => {
                Self::StoreAbsent { dir: dir.clone(), store: *store }
            }
            Self::Unavailable(detail) => Self::Unavailable(detail.clone()),
            Self::Undetermined(detail) => Self::Undetermined(detail.clone()),
            Self::Partial(partial) => Self::Partial(Box::new(partial.duplicate())),
            Self::Refused(detail) => Self::Refused(detail.clone()),
            Self::DamagedBackup { object, detail } => Self::damaged_backup(object, detail),
            Self::TooOld(detail) => Self::TooOld(detail.clone()),
        }
    }

    /// Whether a write, or a part of it, may or may not take effect, now or later.
    pub fn is_undetermined(&self) -> bool {
        match self {
            Self::Undetermined(_) => true,
            Self::Partial(partial) => partial.unknown > 0,
            _ => false,
        }
    }

    /// Whether a sync failed: the durable state since the previous one is unknown.
    pub fn is_failed_sync(&self) -> bool {
        matches!(self.of_one_store(), Self::Io { op: "sync" | "sync directory", .. })
    }

    /// Whether a file could not be opened or read, for a reason that leaves the stored bytes and the
    /// durable state as they were.
    pub fn is_failed_read(&self) -> bool {
        matches!(self, Self::Io { op: "open" | "read" | "stat", .. })
    }

    /// Creates the error of a read that must not wait for the device, and would.
    pub fn would_wait(path: impl AsRef<Path>) -> Self {
        Self::io("read", path, io::ErrorKind::WouldBlock.into())
    }

    /// Whether a read would have waited for the device: it must be repeated where it may.
    pub fn needs_io(&self) -> bool {
        matches!(self, Self::Io { op: "read", source, .. } if source.kind() == io::ErrorKind::WouldBlock)
    }

    /// Whether stored bytes are damaged, missing or refused by the device.
    pub fn is_damage(&self) -> bool {
        matches!(self.of_one_store(), Self::Corrupt { .. } | Self::Missing { .. })
    }

    /// Returns the error of the shard that failed; an error of no shard is returned itself.
    pub fn of_one_store(&self) -> &Self {
        match self {
            Self::Shard { source, .. } => source.of_one_store(),
            error => error,
        }
    }
}

fn shard_remedy(source: &Error) -> &'static str {
    match source {
        Error::Io { .. } | Error::Corrupt { .. } | Error::Missing { .. } => {
            "; check its device. The other shards open without it by `Shards::open_without_failed`"
        }
        _ => "",
    }
}

/// Whether the device cannot return stored bytes. A bad sector, a failed protection or checksum of
/// the device or the file system is damage like a wrong checksum of our own: repeating the read does
/// not help, a copy does. A full device, a lack of memory or handles and a missing file are not.
fn is_refused_by_device(source: &io::Error) -> bool {
    // Numbers of Linux. Its block layer returns EIO, ENODATA for a medium error, EILSEQ for a failed
    // protection and EREMOTEIO for a failed target; file systems return EBADMSG and EUCLEAN.
    const EIO: i32 = 5;
    const ENODATA: i32 = 61;
    const EBADMSG: i32 = 74;
    const EILSEQ: i32 = 84;
    const EUCLEAN: i32 = 117;
    const EREMOTEIO: i32 = 121;
    let refusals = [EIO, ENODATA, EBADMSG, EILSEQ, EUCLEAN, EREMOTEIO];
    // bug types.refused_read_is_no_damage: return false;
    source.raw_os_error().is_some_and(|number| refusals.contains(&number))
}

/// What the parts of a write are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Keys with their values.
    Pairs,
    /// Keys.
    Keys,
    /// Regions, each with its part of a range.
    Regions,
}

/// Outcome of a write of several parts, after a failure.
#[derive(Debug)]
pub struct Partial {
    /// What the counts count.
    pub unit: Unit,
    /// Number of those that took effect.
    pub done: u64,
    /// Number of those that did not take effect and will not.
    pub not_done: u64,
    /// Number of those that may or may not take effect, now or later.
    pub unknown: u64,
    /// Range that the call did not reach: nothing in it is done. Only a call for a range has one.
    pub not_reached: Option<KeyRange>,
    /// First failure.
    pub first: Error,
}

impl Partial {
    /// Returns the error of the call: the failure itself if it says the same of all parts, or else how
    /// much is done.
    pub fn into_error(self) -> Error {
        let is_unchanged = self.done == 0 && self.unknown == 0;
        let is_all_unknown = self.done == 0 && self.not_done == 0 && self.not_reached.is_none();
        // bug types.part_done_is_refused: `is_all_unknown` is `true`
        match is_unchanged || is_all_unknown {
            true => self.first,
            false => Error::Partial(Box::new(self)),
        }
    }

    /// Returns a copy.
    pub fn duplicate(&self) -> Self {
        let Self { unit, done, not_done, unknown, .. } = *self;
        let (not_reached, first) = (self.not_reached.clone(), self.first.duplicate());
        Self { unit, done, not_done, unknown, not_reached, first }
    }
}

impl Unit {
    fn name(self, count: u64) -> &'static str {
        match (self, count) {
            (Self::Pairs, 1) => "pair",
            (Self::Pairs, _) => "pairs",
            (Self::Keys, 1) => "key",
            (Self::Keys, _) => "keys",
            (Self::Regions, 1) => "region",
            (Self::Regions, _) => "regions",
        }
    }
}

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = self.unit.name(self.done);
        write!(f, "not all was done: {} {unit} done, {} not done", self.done, self.not_done)?;
        if self.unknown > 0 {
            write!(f, ", {} of unknown outcome", self.unknown)?;
        }
        if let Some(range) = &self.not_reached {
            write!(f, ", none from key \"{}\" on", range.start.escape_ascii())?;
        }
        let remedy = match self.unknown {
            0 => "repeat the call for the rest",
            _ => "read before repeating it",
        };
        write!(f, "; {remedy}. First failure: {}", self.first)
    }
}

/// Runs `work`; returns [`Error::Panicked`] if it panics. `name` is its noun phrase, for example
/// `a group commit`.
///
/// The caller must not use what `work` may have left half done: it stops the store, or `work` owned
/// all that it changed.
pub fn caught<T>(name: &str, work: impl FnOnce() -> T) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let detail = text_of(&*panic);
        Error::Panicked(format!("{name} panicked: {detail}"))
    })
}

/// Returns the message of a panic.
pub fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reads_that_the_device_refuses_are_damage() {
        let read = |number| Error::failed_read("f", 7, io::Error::from_raw_os_error(number));
        for refused in [5, 61, 74, 84, 117, 121] {
            let error = read(refused);
            assert!(error.is_damage() && !error.is_failed_read(), "{error}");
            assert!(
                error.to_string().contains("f at byte 7: the device cannot read it"),
                "{error}"
            );
        }
        // ENOENT, EAGAIN, ENOMEM, EACCES, EMFILE.
        for other in [2, 11, 12, 13, 24] {
            let error = read(other);
            assert!(!error.is_damage() && error.is_failed_read(), "{error}");
        }
        assert!(matches!(read(28), Error::NoSpace(_)));
    }

    fn of(done: u64, not_done: u64, unknown: u64, rest: Option<KeyRange>) -> Error {
        let first = Error::Refused("no room".to_owned());
        Partial { unit: Unit::Pairs, done, not_done, unknown, not_reached: rest, first }
            .into_error()
    }

    #[test]
    fn a_write_done_in_part_is_not_told_as_its_failure() {
        for error in [of(1, 1, 0, None), of(0, 1, 1, None), of(1, 0, 1, None)] {
            assert!(matches!(error, Error::Partial(_)), "{error}");
        }
        let rest = KeyRange::new("m", "");
        assert!(matches!(of(0, 0, 1, Some(rest.clone())), Error::Partial(_)));
        assert!(matches!(of(0, 3, 0, Some(rest)), Error::Refused(_)), "nothing was changed");
        assert!(matches!(of(0, 0, 3, None), Error::Refused(_)), "it says the same of all parts");
        assert!(of(1, 1, 1, None).is_undetermined() && !of(1, 1, 0, None).is_undetermined());
    }

    #[test]
    fn its_text_names_the_counts_the_rest_and_the_first_failure() {
        assert_eq!(
            of(1, 512, 0, None).to_string(),
            "not all was done: 1 pair done, 512 not done; repeat the call for the rest. First failure: \
             refused: no room"
        );
        let rest = KeyRange::new(&b"m\x00"[..], "");
        assert_eq!(
            of(2, 0, 1, Some(rest)).duplicate().to_string(),
            "not all was done: 2 pairs done, 0 not done, 1 of unknown outcome, none from key \"m\\x00\" \
             on; read before repeating it. First failure: refused: no room"
        );
    }

    #[test]
    fn the_error_of_a_panic_names_the_work_the_message_and_the_remedy() {
        assert_eq!(caught("a sum", || 1 + 1).ok(), Some(2));
        let nth = 7;
        let texts = [
            caught("a write", || panic!("no room")).map(|()| 0),
            caught("a read", || panic!("block {nth}")).map(|()| 0),
            caught("a merge", || std::panic::panic_any(nth)).map(|()| 0),
        ]
        .map(|result| result.err().map(|error| error.to_string()).unwrap_or_default());
        for (text, start) in texts.iter().zip([
            "a write panicked: no room;",
            "a read panicked: block 7;",
            "a merge panicked: no message;",
        ]) {
            assert!(text.starts_with(start) && text.contains("open the store again"), "{text}");
        }
    }
}
