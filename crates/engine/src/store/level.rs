//! Level that a node's directory records: no program that supports less opens it again.

use super::{Replay, Store};
use crate::identity;
use std::sync::atomic::{AtomicU32, Ordering};
use stele_types::lock::{Mutex, rank};
use stele_types::{Error, Level, Result};

#[derive(Debug)]
pub(crate) struct RecordedLevel {
    level: AtomicU32,
    recording: Mutex<(), { rank::STORE_LEVEL }>,
}

impl RecordedLevel {
    pub(super) fn new(level: Level) -> Self {
        Self { level: AtomicU32::new(level.get()), recording: Mutex::new(()) }
    }

    fn get(&self) -> Level {
        Level::new(self.level.load(Ordering::Acquire))
    }
}

impl Store {
    /// Returns the level that the directory records.
    pub fn level(&self) -> Level {
        self.shared.level.get()
    }

    /// Records a level; durable on return. A lower one than the recorded one changes nothing. Waits for the
    /// device. Fails with `Invalid` without replicas, and for a level that this program does not support;
    /// otherwise with the device's error, after which the former level is recorded or the new one.
    ///
    /// Invariant: the record is durable before anything of its level is in the directory.
    /// Test: `a_level_is_durable_when_it_is_recorded_and_is_never_lowered`.
    pub fn record_level(&self, level: Level) -> Result<()> {
        let shared = &self.shared;
        if shared.replay != Replay::Committed || level > Level::NEWEST {
            return Err(Error::invalid(format!("this store records no level {level}")));
        }
        let _recording = shared.level.recording.lock();
        // bug engine.level_lowered: `level <= self.level()` is `level == self.level()`
        if level <= self.level() {
            return Ok(());
        }
        identity::record_level(&shared.vfs, &shared.dir, shared.id, level)?;
        shared.level.level.store(level.get(), Ordering::Release);
        Ok(())
    }
}
