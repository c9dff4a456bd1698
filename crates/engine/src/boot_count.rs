//! Number of starts of a store's directory, in the file `BOOT`:
//!
//! ```text
//! BOOT := "stele boot\n" "count " n "\n" "crc32c " hex "\n"
//! ```

use crate::checked_text::{self, CheckedText};
use std::path::Path;
use std::sync::Arc;
use stele_types::{Error, Result, mutant};
use stele_vfs::Vfs;

const NAME: &str = "BOOT";
const MAGIC: &str = "stele boot";
const FILE_BYTES_MAX: u64 = 4096;

/// Counts a start of the directory; returns its number, which is greater than `known`. The caller
/// holds the lock of the directory.
///
/// Invariant: the number is durable before a store states it. Otherwise two starts could have the
/// same one, as a directory and its copy do.
///
/// A missing or damaged file counts from `known`, which is what the caller knows from elsewhere.
/// Fails with the error of the device.
pub fn next_boot_count(vfs: &Arc<dyn Vfs>, dir: &Path, known: u64) -> Result<u64> {
    let last = match read(vfs, dir) {
        Ok(last) => last.max(known),
        Err(error) if is_lost(&error) => known,
        Err(error) => return Err(error),
    };
    // The largest number returns itself: a damaged one never wraps to 0.
    let next = last.saturating_add(1);
    if !mutant::active("engine.boot_count_kept") {
        checked_text::write(vfs, dir, NAME, &format!("{MAGIC}\ncount {next}\n"), true)?;
    }
    Ok(next)
}

fn read(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<u64> {
    let text = CheckedText::read(vfs, &dir.join(NAME), MAGIC, FILE_BYTES_MAX)?;
    text.check()?;
    text.number("count")
}

fn is_lost(error: &Error) -> bool {
    match error {
        Error::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
        Error::WrongStore { .. } => true,
        other => other.is_damage(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_vfs::{CrashAt, CrashPoint, SimVfs};

    const DIR: &str = "/s";

    fn disk() -> SimVfs {
        let disk = SimVfs::default();
        disk.create_dir_all(Path::new(DIR)).unwrap();
        disk
    }

    fn next(disk: &SimVfs, known: u64) -> Result<u64> {
        next_boot_count(&(Arc::new(disk.clone()) as Arc<dyn Vfs>), Path::new(DIR), known)
    }

    #[test]
    fn every_start_of_a_directory_has_a_greater_number_wherever_the_power_is_cut() {
        let base = disk();
        assert_eq!((next(&base, 0).unwrap(), next(&base, 0).unwrap()), (1, 2));
        let whole = base.fork();
        next(&whole, 0).unwrap();
        for (operation, at) in (0..whole.operations()).flat_map(|i| CrashAt::ALL.map(|at| (i, at)))
        {
            let disk = base.fork();
            disk.crash_at(CrashPoint { operation, at });
            let stated = next(&disk, 0).unwrap_or(2);
            for seed in 0..8 {
                let after = next(&disk.restart(seed), 0).unwrap();
                assert!(after > stated, "{operation} {at:?} {seed}: {after} after {stated}");
            }
        }
    }

    #[test]
    fn a_missing_or_damaged_count_goes_on_after_what_is_known_from_elsewhere() {
        let disk = disk();
        let next = |known| next(&disk, known).unwrap();
        assert_eq!((next(0), next(7), next(3)), (1, 8, 9));
        let file = Path::new(DIR).join(NAME);
        disk.corrupt(&file, 17, b"8").unwrap();
        assert_eq!(next(40), 41, "the checksum does not match");
        disk.unlink(&file).unwrap();
        assert_eq!(next(0), 1);
    }

    #[test]
    fn a_device_that_fails_is_reported() {
        let disk = disk();
        next(&disk, 0).unwrap();
        disk.crash_now();
        assert!(matches!(next(&disk, 0), Err(Error::Io { .. })));
    }
}
