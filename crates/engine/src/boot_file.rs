//! Starts of a store's directory, in the file `BOOT`:
//!
//! ```text
//! BOOT    := "stele boot\n" "count " n "\n" start? rival* stopped? "crc32c " hex "\n"
//! start   := "starts " id (" " id)* "\n" place?       (this start and those before it, newest first)
//! place   := "place " inode " " born_nanos " " file_system "\n"
//! rival   := "rivals " id (" " id)* "\n"              (starts of another directory of the store)
//! stopped := "stopped " text "\n"                     (the store does not serve: the reason)
//! ```
//!
//! Files of earlier versions hold only the count.

use crate::checked_text::{self, CheckedText};
use std::path::Path;
use std::sync::Arc;
use stele_types::{Boot, Error, Lineage, Place, Result, StartId, StoreRun};
use stele_vfs::Vfs;

const NAME: &str = "BOOT";
const MAGIC: &str = "stele boot";
/// Two lists of starts and a reason.
const FILE_BYTES_MAX: u64 = 16 << 10;
const REASON_BYTES_MAX: usize = 4 << 10;
/// Directory that tells whether the store's directory is where it was: it is never replaced.
const PLACE_OF: &str = "log";

/// A start of a directory. The caller holds the lock of the directory.
#[derive(Clone, Debug)]
pub struct DirStart {
    /// Random number of this start.
    pub id: StartId,
    /// Random number of the process.
    pub nonce: u64,
    /// Last run that is known from elsewhere, for a `BOOT` that is lost.
    pub known: StoreRun,
    /// The directory may be at another place than at its last start.
    pub may_have_moved: bool,
}

/// A start that is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// The run that the store states.
    pub run: StoreRun,
    /// The directory is at another place than at its last start.
    pub has_moved: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct BootFile {
    count: u64,
    starts: Lineage,
    place: Option<Place>,
    rivals: Lineage,
    stopped: Option<String>,
}

impl DirStart {
    /// Counts a start of the directory.
    ///
    /// Invariant: count, id, earlier ids and place are durable, in one atomic write, before a store
    /// states them. Otherwise two starts could have the same id, as a directory and its copy do.
    /// Test: `every_start_of_a_directory_comes_after_what_was_stated_wherever_the_power_is_cut`.
    ///
    /// Invariant: a directory that is at another place than at its last start is not started, unless
    /// the operator says that it was moved: it may be a copy, of which the original runs.
    ///
    /// A missing or damaged file goes on after [`DirStart::known`]. On a full device the start states
    /// the id of the start before it: the directory and its place are the same, so it goes on as that
    /// run. Fails with `WrongStore` if the directory is at another place, or was stopped beside another
    /// run, and with the error of the device.
    pub fn count(&self, vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Started> {
        let last = match read(vfs, dir) {
            Ok(last) => last.or_known(&self.known),
            Err(error) if is_lost(&error) => BootFile::default().or_known(&self.known),
            Err(error) => return Err(error),
        };
        let stopped = last.stopped.as_ref();
        // bug engine.stopped_starts: let stopped = None;
        if let Some(reason) = stopped {
            return Err(Error::WrongStore { path: dir.to_path_buf(), detail: reason.clone() });
        }
        let place = vfs.place(&dir.join(PLACE_OF))?;
        let has_moved = last.place.zip(place).is_some_and(|(last, now)| last != now);
        // bug engine.copied_directory_starts: never
        if has_moved && !self.may_have_moved {
            return Err(moved(dir));
        }
        let next = BootFile {
            // The largest number returns itself: a damaged one never wraps to 0.
            count: last.count.saturating_add(1),
            starts: last.starts.next(self.id),
            place: place.or(last.place),
            ..last.clone()
        };
        let run = |file: &BootFile, count| StoreRun {
            boot: Boot { count, nonce: self.nonce },
            lineage: file.starts.clone(),
        };
        // bug engine.boot_count_kept: return Ok(Started { run: run(&next, next.count), has_moved });
        match next.write(vfs, dir) {
            Ok(()) => Ok(Started { run: run(&next, next.count), has_moved }),
            // Nodes of earlier versions compare counts: it states none to them.
            Err(Error::NoSpace(_)) => Ok(Started { run: run(&last, 0), has_moved }),
            Err(error) => Err(error),
        }
    }
}

/// Records that the directory's store must not serve beside a run of another directory of it, and
/// why. The caller holds the lock of the directory.
pub fn stop_beside(vfs: &Arc<dyn Vfs>, dir: &Path, rival: &Lineage, reason: &str) -> Result<()> {
    let last = read(vfs, dir)?;
    let ids = rival.ids().iter().chain(last.rivals.ids()).copied();
    let stopped = Some(reason_of(reason));
    BootFile { rivals: Lineage::new(ids), stopped, ..last }.write(vfs, dir)
}

/// Replaces the reason of a directory that was stopped so; false if it is not stopped any longer. The
/// caller holds the lock of the directory.
pub fn describe_stop(vfs: &Arc<dyn Vfs>, dir: &Path, reason: &str) -> Result<bool> {
    let last = read(vfs, dir)?;
    if last.stopped.is_none() {
        return Ok(false);
    }
    BootFile { stopped: Some(reason_of(reason)), ..last }.write(vfs, dir)?;
    Ok(true)
}

fn reason_of(text: &str) -> String {
    text.chars().filter(|c| *c != '\n').take(REASON_BYTES_MAX / 4).collect()
}

/// Makes the directory the one that serves: its next start comes after its own starts and after those
/// of the directory beside which it was stopped. Other nodes then accept it, and no longer the other
/// one. The caller holds the lock of the directory. Fails with `Invalid` if it was not stopped.
pub fn keep_run(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<()> {
    let last = read(vfs, dir)?;
    if last.stopped.is_none() {
        let text = format!("{} was not stopped beside another run of its store", dir.display());
        return Err(Error::invalid(text));
    }
    // The newest start of each stays, however many there are.
    let (own, rivals) = (last.starts.ids(), last.rivals.ids());
    let own_max = Lineage::EARLIER_MAX / 2;
    let ids = own.iter().take(own_max).chain(rivals).chain(own.iter().skip(own_max)).copied();
    let starts = Lineage::new(ids);
    BootFile { starts, rivals: Lineage::default(), stopped: None, ..last }.write(vfs, dir)
}

impl BootFile {
    /// Returns what is known where the file does not know as much.
    fn or_known(self, known: &StoreRun) -> Self {
        let is_behind = known.boot.count > self.count;
        let starts = match self.starts.is_known() {
            true => self.starts,
            false => known.lineage.clone(),
        };
        let count = if is_behind { known.boot.count } else { self.count };
        Self { count, starts, ..self }
    }

    fn write(&self, vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<()> {
        let mut body = format!("{MAGIC}\ncount {}\n", self.count);
        let ids =
            |lineage: &Lineage| lineage.ids().iter().map(|id| format!(" {id}")).collect::<String>();
        if self.starts.is_known() {
            body += &format!("starts{}\n", ids(&self.starts));
        }
        if let Some(Place { inode, born_nanos, file_system }) = self.place {
            body += &format!("place {inode} {born_nanos} {file_system}\n");
        }
        if self.rivals.is_known() {
            body += &format!("rivals{}\n", ids(&self.rivals));
        }
        if let Some(reason) = &self.stopped {
            body += &format!("stopped {reason}\n");
        }
        checked_text::write(vfs, dir, NAME, &body, true)
    }
}

fn read(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<BootFile> {
    let text = CheckedText::read(vfs, &dir.join(NAME), MAGIC, FILE_BYTES_MAX)?;
    text.check()?;
    let ids = |name: &str| match text.field(name) {
        None => Ok(Lineage::default()),
        Some(ids) => {
            let ids: Option<Vec<_>> = ids.split(' ').map(StartId::from_hex).collect();
            ids.map(Lineage::new).ok_or_else(|| text.bad(&format!("malformed {name}")))
        }
    };
    let place = match text.field("place") {
        None => None,
        Some(numbers) => {
            let numbers: Vec<u64> = numbers.split(' ').flat_map(str::parse).collect();
            let [inode, born_nanos, file_system] = numbers[..] else {
                return Err(text.bad("malformed place"));
            };
            Some(Place { inode, born_nanos, file_system })
        }
    };
    Ok(BootFile {
        count: text.number("count")?,
        starts: ids("starts")?,
        place,
        rivals: ids("rivals")?,
        stopped: text.field("stopped").map(str::to_owned),
    })
}

fn moved(dir: &Path) -> Error {
    let detail = format!(
        "its files do not lie where they did at its last start, so it was moved, restored, or copied from \
         a directory that may still be used: if it was moved or restored and no other directory of its \
         store will be started, start the node once with `--moved-directory {}`; if it is a copy, start \
         the node with the original",
        dir.display()
    );
    Error::WrongStore { path: dir.to_path_buf(), detail }
}

fn is_lost(error: &Error) -> bool {
    match error {
        Error::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
        Error::WrongStore { .. } => true,
        other => other.is_damage(),
    }
}

#[cfg(test)]
mod tests;
