//! Victims of relocations that ran out of space.

use std::collections::BTreeMap;
use stele_types::FileId;

/// Time for which a victim is excluded after its first failure; each further failure doubles it.
const FIRST_WAIT_NANOS: u64 = 8_000_000_000;
const DOUBLINGS_MAX: u32 = 6;

/// Files that are not victims for a time.
///
/// Invariant: the choice that failed is not the next one. Other victims may fit, and each attempt
/// costs the reads and writes of a whole job.
#[derive(Debug, Default)]
pub(crate) struct FailedVictims(BTreeMap<FileId, Failed>);

#[derive(Clone, Copy, Debug, Default)]
struct Failed {
    times: u32,
    until_nanos: u64,
}

impl FailedVictims {
    /// Notes that a job that was to empty these files ran out of space.
    pub(crate) fn note(&mut self, files: &[FileId], now_nanos: u64) {
        // bug gc.failed_victim_again: return;
        for file in files {
            let failed = self.0.entry(*file).or_default();
            let wait_nanos = FIRST_WAIT_NANOS << failed.times.min(DOUBLINGS_MAX);
            failed.until_nanos = now_nanos.saturating_add(wait_nanos);
            failed.times += 1;
        }
    }

    pub(crate) fn contains(&self, file: FileId, now_nanos: u64) -> bool {
        self.0.get(&file).is_some_and(|failed| now_nanos < failed.until_nanos)
    }

    /// Returns a number that changes when a file is excluded or no longer is.
    pub(crate) fn fingerprint(&self, now_nanos: u64) -> u64 {
        let excluded = self.0.values().filter(|failed| now_nanos < failed.until_nanos);
        excluded.fold(0, |sum, failed| sum.wrapping_add(failed.until_nanos))
    }

    /// Forgets the files that do not exist any longer.
    pub(crate) fn retain(&mut self, exists: impl Fn(FileId) -> bool) {
        self.0.retain(|file, _| exists(*file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_that_failed_is_excluded_for_longer_each_time() {
        let mut failed = FailedVictims::default();
        failed.note(&[FileId(3)], 0);
        assert!(failed.contains(FileId(3), FIRST_WAIT_NANOS - 1));
        assert!(!failed.contains(FileId(3), FIRST_WAIT_NANOS));
        assert!(!failed.contains(FileId(4), 0));
        failed.note(&[FileId(3)], FIRST_WAIT_NANOS);
        assert!(failed.contains(FileId(3), 3 * FIRST_WAIT_NANOS - 1));
        for _ in 0..100 {
            failed.note(&[FileId(3)], 0);
        }
        assert!(!failed.contains(FileId(3), FIRST_WAIT_NANOS << DOUBLINGS_MAX));
        failed.retain(|file| file != FileId(3));
        assert!(!failed.contains(FileId(3), 0));
    }
}
