//! Maintenance thread of one store: slices, as [`Maintenance`] decides.

use super::space_watch::{Change, SpaceWatch};
use super::store_loop::Inbox;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stele_replica::Input;
use stele_replica::{Item, Maintenance, SlowWriters};
use stele_storage::StorageEngine;
use stele_types::Clock;

/// Bytes of one slice; between slices the thread checks whether to stop.
const SLICE_BYTES: u64 = 1 << 20;

/// Work of one stage since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageWork {
    /// Slices that did work.
    pub slices: u64,
    /// Bytes read and written; for `reclaim`, bytes freed.
    pub bytes: u64,
}

/// Work of each stage, by name.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<BTreeMap<&'static str, StageWork>>);

impl Counts {
    fn record(&self, stage: &'static str, bytes: u64) {
        let mut stages = self.0.lock();
        let done = stages.entry(stage).or_default();
        done.slices += 1;
        done.bytes += bytes;
    }

    pub(super) fn all(&self) -> Vec<(&'static str, StageWork)> {
        self.0.lock().iter().map(|(stage, done)| (*stage, *done)).collect()
    }
}

pub(super) fn run<E: StorageEngine>(
    engine: &E,
    running: &AtomicBool,
    wants_checkpoint: &AtomicBool,
    inbox: &Inbox<E>,
    counts: &Counts,
    space: &SpaceWatch,
    (clock, writers): (&dyn Clock, &SlowWriters),
) {
    let mut maintenance = Maintenance::default();
    while running.load(Ordering::Acquire) {
        let began_nanos = clock.monotonic_nanos();
        let slice = match maintenance.slice(engine, wants_checkpoint, SLICE_BYTES) {
            Ok(slice) => slice,
            Err(error) => {
                inbox.push(Item::Stopped(error));
                return;
            }
        };
        match space.note(engine.space()) {
            Some(Change::Full(text)) => tracing::warn!("{text}"),
            Some(Change::HasRoom(text)) => tracing::info!("{text}"),
            None => {}
        }
        if slice.has_new_damage {
            inbox.push(Item::Input(Input::Damaged));
        }
        let nanos = clock.monotonic_nanos().saturating_sub(began_nanos);
        writers.maintained(slice.work.map(|done| (done.bytes, nanos)), engine.pressure());
        match slice.work {
            Some(done) => counts.record(done.stage, done.bytes),
            None if slice.pause_nanos == 0 => {}
            None => std::thread::sleep(Duration::from_nanos(slice.pause_nanos)),
        }
    }
}
