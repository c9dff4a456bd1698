//! The pipeline with a stall or a panic between its steps. Each test has a time limit: a call that
//! waits without end fails it.

use super::*;
use crate::options::Options;
use crate::store::Replay;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use stele_index::Found;
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_types::ManualClock;

const DIR: &str = "/store";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    BeforeAppend,
    BeforeApply,
    AfterApply,
}

struct Interrupted {
    store: Arc<Store>,
    hook: Box<dyn Fn(Place) + Send + Sync>,
}

impl CommitSteps for Interrupted {
    fn decide(
        &self,
        group: &mut CommandBuilder,
        modifications: Vec<PendingModification>,
    ) -> Result<()> {
        CommitSteps::decide(&*self.store, group, modifications)
    }

    fn append(&self, group: CommandBuilder) -> Result<CommittedEntry> {
        (self.hook)(Place::BeforeAppend);
        let entry = CommitSteps::append(&*self.store, group)?;
        (self.hook)(Place::BeforeApply);
        Ok(entry)
    }

    fn apply(&self, entry: CommittedEntry) -> Result<()> {
        CommitSteps::apply(&*self.store, entry)?;
        (self.hook)(Place::AfterApply);
        Ok(())
    }

    fn stop(&self, error: Error) -> Error {
        CommitSteps::stop(&*self.store, error)
    }
}

fn store(disk: &SimVfs) -> Arc<Store> {
    let (vfs, clock) = (Arc::new(disk.clone()), Arc::new(ManualClock::at(1)));
    let options = Options { direct_io: false, segment_bytes_max: 1 << 20, ..Options::default() };
    Arc::new(Store::open(vfs, clock, Path::new(DIR), options, Replay::All).unwrap().0)
}

fn pipeline(
    store: &Arc<Store>,
    bytes_max: usize,
    hook: impl Fn(Place) + Send + Sync + 'static,
) -> Arc<CommitPipeline> {
    let steps = Interrupted { store: store.clone(), hook: Box::new(hook) };
    CommitPipeline::new(Arc::new(steps), bytes_max, Arc::default())
}

fn put_async(pipeline: &Arc<CommitPipeline>, key: &str) -> Result<Completion> {
    pipeline.submit(key.len() + 5, |group| group.put(key.as_bytes(), b"value", 0).map(|_| ()))
}

fn put(pipeline: &Arc<CommitPipeline>, key: &str) -> Result<()> {
    put_async(pipeline, key)?.wait()
}

fn has(store: &Store, key: &str) -> bool {
    matches!(store.index().get(key.as_bytes()).unwrap(), Some(Found::Value { .. }))
}

/// Runs a test; fails after half a minute.
fn within_limit(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(30));
    assert!(ended.is_ok() || thread.is_finished(), "a call waits without end");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Panics at `place` in the second group: a member of it leads, others wait for the next group, one
/// waits for room in the queue.
fn interrupt(place: Place) {
    let disk = SimVfs::new(SimOptions::default());
    let store = store(&disk);
    let (reached, at_place) = channel();
    let (go, going) = channel::<()>();
    let going = parking_lot::Mutex::new(going);
    let nth = AtomicUsize::new(0);
    let pipeline = pipeline(&store, 40, move |now| {
        if now == place && nth.fetch_add(1, Ordering::Relaxed) == 1 {
            reached.send(()).unwrap();
            going.lock().recv().unwrap();
            panic!("a bug at {now:?}");
        }
    });
    put(&pipeline, "first").unwrap();
    std::thread::scope(|scope| {
        let start = |key: &'static str| {
            let pipeline = &pipeline;
            scope.spawn(move || put(pipeline, key))
        };
        let leader = start("leader");
        at_place.recv().unwrap();
        let next = [start("next-1"), start("next-2")];
        until(|| pipeline.queue.lock().groups.back().is_some_and(|group| group.builder.len() == 2));
        let without_room = start("no-room");
        std::thread::sleep(Duration::from_millis(20));
        go.send(()).unwrap();
        let failed = leader.join().unwrap().unwrap_err();
        let text = failed.to_string();
        assert!(matches!(failed, Error::Panicked(_)), "{text}");
        assert!(text.contains(&format!("a group commit panicked: a bug at {place:?}")), "{text}");
        for thread in next.into_iter().chain([without_room]) {
            let failed = thread.join().unwrap();
            assert!(matches!(failed, Err(Error::Poisoned(_))), "{place:?}: {failed:?}");
        }
    });
    let later = put(&pipeline, "later").unwrap_err();
    let text = later.to_string();
    assert!(matches!(later, Error::Poisoned(_)), "{text}");
    assert!(text.contains("a bug at") && text.contains("open the store again"), "{text}");
    pipeline.drain();
    drop((pipeline, store));
    let store = self::store(&disk);
    assert!(has(&store, "first"));
    assert_eq!(has(&store, "leader"), place != Place::BeforeAppend, "{place:?}");
    assert!(!has(&store, "next-1") && !has(&store, "no-room") && !has(&store, "later"));
}

#[test]
fn a_leader_that_panics_fails_its_group_and_all_later_calls_and_no_call_waits() {
    within_limit(|| {
        for place in [Place::BeforeAppend, Place::BeforeApply, Place::AfterApply] {
            interrupt(place);
        }
    });
}

#[test]
fn a_callback_that_panics_ends_its_own_call_only() {
    within_limit(|| {
        let store = store(&SimVfs::new(SimOptions::default()));
        let pipeline = pipeline(&store, 1 << 20, |_| {});
        let called = Arc::new(AtomicUsize::new(0));
        for key in ["a", "b", "c"] {
            let called = called.clone();
            put_async(&pipeline, key).unwrap().on_done(move |result| {
                result.unwrap();
                called.fetch_add(1, Ordering::Relaxed);
                assert_ne!(key, "b", "a bug of the callback");
            });
        }
        put(&pipeline, "d").unwrap();
        assert_eq!(called.load(Ordering::Relaxed), 3);
        put(&pipeline, "e").unwrap();
        assert!(["a", "b", "c", "d", "e"].iter().all(|key| has(&store, key)));
    });
}

#[test]
fn a_stalled_leader_delays_the_next_group_and_a_drain_waits_for_both() {
    within_limit(|| {
        let store = store(&SimVfs::new(SimOptions::default()));
        let (reached, at_place) = channel();
        let (go, going) = channel::<()>();
        let going = parking_lot::Mutex::new(going);
        let pipeline = pipeline(&store, 1 << 20, move |now| {
            if now == Place::BeforeApply {
                reached.send(()).unwrap();
                // The channel is closed after the first group.
                let _ = going.lock().recv();
            }
        });
        std::thread::scope(|scope| {
            let leader = scope.spawn(|| put(&pipeline, "first"));
            at_place.recv().unwrap();
            let last = put_async(&pipeline, "second").unwrap();
            let drain = scope.spawn(|| pipeline.drain());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!drain.is_finished() && !leader.is_finished() && !last.is_done());
            assert!(!has(&store, "first") && !pipeline.lead_once());
            drop(go);
            drain.join().unwrap();
            leader.join().unwrap().unwrap();
            assert!(has(&store, "first") && has(&store, "second"));
            last.wait().unwrap();
        });
    });
}

#[test]
fn a_call_that_no_leader_took_fails_when_the_pipeline_is_dropped() {
    let store = store(&SimVfs::new(SimOptions::default()));
    let pipeline = pipeline(&store, 1 << 20, |_| {});
    let (result, given) = channel();
    put_async(&pipeline, "a").unwrap().on_done(move |outcome| result.send(outcome).unwrap());
    drop(pipeline);
    let text = given.recv().unwrap().unwrap_err().to_string();
    assert!(text.contains("dropped") && text.contains("Db::close"), "{text}");
    assert!(!has(&store, "a"));
}

#[test]
fn the_callbacks_of_a_group_run_before_another_thread_may_lead_the_next() {
    within_limit(|| {
        let store = store(&SimVfs::new(SimOptions::default()));
        let pipeline = pipeline(&store, 1 << 20, |_| {});
        let (led, result) = channel();
        let next = pipeline.clone();
        put_async(&pipeline, "a").unwrap().on_done(move |_| {
            drop(put_async(&next, "b"));
            led.send(next.lead_once()).unwrap();
        });
        assert!(pipeline.lead_once());
        assert!(!result.recv().unwrap(), "the next group was committed before this callback");
        pipeline.drain();
        assert!(has(&store, "a") && has(&store, "b"));
    });
}
