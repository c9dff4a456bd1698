//! Checks of a store's own thread that its directory is still where it was opened. The stores of a
//! node are checked at its heartbeats instead.

use crate::store::Store;
use std::sync::Arc;
use stele_types::{Clock, Error};

/// Nanoseconds between two checks.
const CHECK_NANOS: u64 = 5_000_000_000;

/// Last check of the place of one store.
#[derive(Debug)]
pub(super) struct PlaceWatch {
    clock: Arc<dyn Clock>,
    checked_nanos: u64,
    is_displaced: bool,
    has_stopped: bool,
}

impl PlaceWatch {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let checked_nanos = clock.monotonic_nanos();
        Self { clock, checked_nanos, is_displaced: false, has_stopped: false }
    }

    /// Checks the place if that is due. Invariant: a store of which the directory was moved away,
    /// deleted or replaced at two checks in a row stops, so that it acknowledges nothing that would be
    /// lost with it. A directory that is moved and moved back at once stops no store.
    pub(super) fn step(&mut self, store: &Store) {
        let now = self.clock.monotonic_nanos();
        let is_due = now.saturating_sub(self.checked_nanos) >= CHECK_NANOS;
        // bug engine.embedded_place_unwatched: always
        if self.has_stopped || !is_due {
            return;
        }
        self.checked_nanos = now;
        // A device that does not answer shows elsewhere.
        let displaced = store.check_place().err().filter(|e| matches!(e, Error::WrongStore { .. }));
        let was_displaced = std::mem::replace(&mut self.is_displaced, displaced.is_some());
        if let Some(error) = displaced.filter(|_| was_displaced) {
            store.stop(error);
            self.has_stopped = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::store::Replay;
    use std::path::Path;
    use stele_types::ManualClock;
    use stele_vfs::SimVfs;

    #[test]
    fn a_store_that_is_displaced_at_two_checks_in_a_row_stops() {
        const DIR: &str = "/store";
        let (disk, clock) = (SimVfs::default(), Arc::new(ManualClock::at(1)));
        let vfs = Arc::new(disk.clone());
        let opened =
            Store::open(vfs, clock.clone(), Path::new(DIR), Options::default(), Replay::All);
        let (store, mut watch) = (opened.unwrap().0, PlaceWatch::new(clock.clone()));
        let mut is_stopped_after = |seconds| {
            clock.advance_seconds(seconds);
            watch.step(&store);
            store.log().check_poison().is_err()
        };
        assert!(!is_stopped_after(5));
        disk.move_dir(DIR, "/away");
        assert!(!is_stopped_after(5), "the first check");
        assert!(!is_stopped_after(1), "no check is due");
        disk.move_dir("/away", DIR);
        assert!(!is_stopped_after(5), "it is back");
        disk.move_dir(DIR, "/away");
        assert!(!is_stopped_after(5));
        assert!(is_stopped_after(5));
        let error = store.log().check_poison().unwrap_err().to_string();
        assert!(error.contains("moved away or deleted"), "{error}");
    }
}
