//! Every accepted call is completed once, within the bounds of its queue, whatever happens to the
//! store. Each test that could wait without end has a time limit.

use super::*;
use crate::options::Options;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use stele_simulated_disk::{Fault, SimOptions, SimVfs};
use stele_types::ManualClock;

const LONG: Duration = Duration::from_secs(30);
const BOUNDS: QueueOptions = QueueOptions { depth: 8, key_bytes_max: 32, value_bytes_max: 1000 };

fn disk() -> SimVfs {
    SimVfs::new(SimOptions::default())
}

fn open(disk: &SimVfs, background: bool) -> Db {
    let options = Options {
        direct_io: false,
        segment_bytes_max: 1 << 20,
        value_cache_bytes_max: 0,
        background,
        ..Options::default()
    };
    let clock = Arc::new(ManualClock::at(1));
    Db::open_with(Arc::new(disk.clone()), clock, Path::new("/store"), options).unwrap()
}

fn queue(depth: usize) -> CompletionQueue {
    CompletionQueue::new(QueueOptions { depth, ..BOUNDS }).unwrap()
}

fn value(n: u64) -> Vec<u8> {
    vec![n as u8; 100 + (n % 800) as usize]
}

/// Collects results until `count` have come.
fn collect(queue: &CompletionQueue, count: usize) -> Vec<Completed> {
    let mut done = Vec::new();
    while done.len() < count {
        let missing = count - done.len();
        assert!(queue.wait(&mut done, missing, LONG) > 0, "{} of {count}", done.len());
    }
    assert_eq!(done.len(), count);
    done
}

/// Makes the next read of a value file wait until the returned sender is used or dropped; then it
/// panics if `panics`.
fn hold_read(disk: &SimVfs, panics: bool) -> std::sync::mpsc::Sender<()> {
    let (go, going) = channel::<()>();
    let going = std::sync::Mutex::new(going);
    disk.on_stall(move |_| {
        let _ = going.lock().unwrap().recv();
        assert!(!panics, "a bug of a read");
    });
    disk.inject(Fault::ReadStalls { path_contains: ".seg".into(), nth: 1 }).unwrap();
    go
}

#[test]
fn calls_of_all_kinds_are_completed_once_each_with_the_answer_of_the_synchronous_call() {
    let db = open(&disk(), true);
    let queue = queue(8);
    let mut model = BTreeMap::new();
    for n in 0..200_u64 {
        queue.put(&db, n, &n.to_be_bytes(), &value(n)).unwrap();
        model.insert(n, value(n));
        collect(&queue, 1);
    }
    let mut expected = BTreeMap::new();
    let mut answers = BTreeMap::new();
    let mut done = Vec::new();
    for tag in 0..600_u64 {
        let n = tag / 3;
        let submit = || match tag % 3 {
            0 => queue.try_get(&db, tag, &n.to_be_bytes()),
            1 => queue.try_exist(&db, tag, &(n * 2).to_be_bytes()),
            _ => queue.try_get(&db, tag, &(n + 200).to_be_bytes()),
        };
        while let Err(error) = submit() {
            assert!(matches!(error, Error::Busy(_)), "{error}");
            queue.wait(&mut done, 1, LONG);
        }
        expected.insert(
            tag,
            match tag % 3 {
                0 => Answer::Value(Some(model[&n].clone().into())),
                1 => Answer::Exists(n * 2 < 200),
                _ => Answer::Value(None),
            },
        );
    }
    done.extend(collect(&queue, 600 - done.len()));
    for Completed { tag, result } in done {
        assert!(answers.insert(tag, result.unwrap()).is_none(), "call {tag} completed twice");
    }
    assert_eq!(answers, expected);
    queue.delete(&db, 1, &7_u64.to_be_bytes()).unwrap();
    assert_eq!(collect(&queue, 1)[0].result.as_ref().unwrap(), &Answer::Written);
    assert_eq!(db.get(&7_u64.to_be_bytes()).unwrap(), None);
    let stats = queue.stats();
    assert_eq!((stats.in_flight, stats.completed, stats.memory_bytes), (0, 0, 0));
    assert_eq!(stats.accepted, 801);
}

#[test]
fn beyond_its_depth_a_queue_is_busy_until_results_are_collected() {
    let disk = disk();
    let db = open(&disk, true);
    db.put(b"k", &value(1)).unwrap();
    let queue = queue(4);
    let go = hold_read(&disk, false);
    for tag in 0..4 {
        queue.try_get(&db, tag, b"k").unwrap();
    }
    let busy = queue.try_put(&db, 9, b"x", b"y").unwrap_err();
    assert!(matches!(busy, Error::Busy(_)) && busy.to_string().contains("all 4 slots"), "{busy}");
    drop(go);
    while queue.stats().completed < 4 {
        std::thread::yield_now();
    }
    // All are completed and none is collected: their values take memory still.
    let busy = queue.try_exist(&db, 9, b"k").unwrap_err();
    assert!(matches!(busy, Error::Busy(_)), "{busy}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| queue.put(&db, 5, b"x", b"y"));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        let mut done = Vec::new();
        assert_eq!(queue.poll(&mut done), 4);
        waiting.join().unwrap().unwrap();
    });
    collect(&queue, 1);
    assert_eq!(queue.stats().accepted, 5, "refused calls are not counted");
}

#[test]
fn keys_and_values_in_flight_stay_below_depth_times_their_bounds() {
    let disk = disk();
    let db = open(&disk, true);
    let queue = queue(8);
    let key = [b'k'; 32];
    for n in 0..64_u64 {
        while queue.try_put(&db, n, &key, &[7; 1000]).is_err() {
            queue.wait(&mut Vec::new(), 1, LONG);
        }
    }
    while queue.stats().in_flight + queue.stats().completed > 0 {
        queue.wait(&mut Vec::new(), 1, LONG);
    }
    let bound = queue.options().memory_bytes_max();
    assert_eq!(bound, 8 * 1032);
    for tag in 0..8 {
        queue.try_get(&db, tag, &key).unwrap();
    }
    while queue.stats().in_flight > 0 {
        std::thread::yield_now();
    }
    let stats = queue.stats();
    assert_eq!(stats.memory_bytes, 8 * 1000, "values that are not collected count");
    assert!((8 * 1000..=bound).contains(&stats.memory_bytes_peak), "{stats:?}");
    let values: usize = collect(&queue, 8).iter().map(bytes_of).sum();
    assert_eq!((values, queue.stats().memory_bytes), (8000, 0));
}

fn bytes_of(done: &Completed) -> usize {
    match &done.result {
        Ok(Answer::Value(Some(value))) => value.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_value_above_the_bound_fails_its_call_with_a_typed_error_and_is_not_read() {
    let disk = disk();
    let db = open(&disk, true);
    db.put(b"long", &[1; 1001]).unwrap();
    db.put(b"inline", &[1; 40]).unwrap();
    db.put(b"right", &[1; 1000]).unwrap();
    let queue = queue(4);
    for (key, value) in [(&[0; 33][..], &[1; 9][..]), (b"k", &[1; 1001])] {
        let refused = queue.put(&db, 1, key, value).unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
        assert!(refused.to_string().contains("create the queue with a larger"), "{refused}");
    }
    assert_eq!(queue.stats(), QueueStats::default());
    queue.get(&db, 1, b"long").unwrap();
    let done = collect(&queue, 1);
    let refused = done[0].result.as_ref().unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    assert!(
        refused.to_string().contains("1001 bytes and the queue takes at most 1000"),
        "{refused}"
    );
    queue.get(&db, 2, b"right").unwrap();
    assert_eq!(bytes_of(&collect(&queue, 1)[0]), 1000);
    let short = CompletionQueue::new(QueueOptions { value_bytes_max: 39, ..BOUNDS }).unwrap();
    short.get(&db, 3, b"inline").unwrap();
    assert!(matches!(collect(&short, 1)[0].result, Err(Error::Invalid(_))));
    assert!(CompletionQueue::new(QueueOptions { depth: 0, ..BOUNDS }).is_err());
}

#[test]
fn without_threads_a_call_is_completed_when_it_returns() {
    let db = open(&disk(), false);
    let queue = queue(4);
    queue.put(&db, 1, b"k", &value(9)).unwrap();
    queue.get(&db, 2, b"k").unwrap();
    queue.exist(&db, 3, b"none").unwrap();
    let mut done = Vec::new();
    assert_eq!(queue.poll(&mut done), 3);
    let answers: Vec<Answer> = done.into_iter().map(|done| done.result.unwrap()).collect();
    let value = Answer::Value(Some(value(9).into()));
    assert_eq!(answers, [Answer::Written, value, Answer::Exists(false)]);
}

#[test]
fn a_store_that_stops_completes_each_accepted_call_once() {
    for nth in 2..8 {
        let disk = disk();
        let db = open(&disk, true);
        db.put(b"k", &value(1)).unwrap();
        disk.inject(Fault::SyncFails { path_contains: ".seg".into(), nth }).unwrap();
        let queue = queue(64);
        let (mut accepted, mut completed) = (BTreeSet::new(), BTreeSet::new());
        let (mut failed, mut done) = (0, Vec::new());
        let mut tag = 0;
        while failed == 0 || completed.len() < accepted.len() {
            if failed == 0 {
                tag += 2;
                if queue.try_put(&db, tag, &tag.to_be_bytes(), &value(tag)).is_ok() {
                    accepted.insert(tag);
                }
                if queue.try_get(&db, tag + 1, b"k").is_ok() {
                    accepted.insert(tag + 1);
                }
            }
            let in_time = queue.wait(&mut done, 1, LONG) > 0;
            assert!(in_time, "{} of {}", completed.len(), accepted.len());
            for Completed { tag, result } in done.drain(..) {
                assert!(completed.insert(tag), "call {tag} completed twice");
                failed += usize::from(result.is_err());
                assert!(result.is_ok() || tag % 2 == 0, "reads go on");
            }
        }
        assert_eq!(completed, accepted);
        assert_eq!(queue.stats().memory_bytes, 0);
    }
}

#[test]
fn a_store_that_is_dropped_completes_the_calls_that_wait() {
    let disk = disk();
    let db = open(&disk, true);
    db.put(b"k", &value(1)).unwrap();
    let queue = queue(64);
    let go = hold_read(&disk, false);
    for tag in 0..30 {
        queue.try_get(&db, tag, b"k").unwrap();
    }
    let waiting = std::thread::spawn(move || drop(db));
    // The held batch is answered, and all that no thread took fails.
    std::thread::sleep(Duration::from_millis(20));
    drop(go);
    let done = collect(&queue, 30);
    waiting.join().unwrap();
    let tags: BTreeSet<u64> = done.iter().map(|done| done.tag).collect();
    assert_eq!(tags.len(), 30);
    for Completed { result, .. } in done {
        if let Err(error) = result {
            assert!(error.to_string().contains("the store was closed"), "{error}");
        }
    }
}

#[test]
fn a_panic_of_a_reading_thread_completes_its_calls_with_an_error_and_the_thread_goes_on() {
    let disk = disk();
    let db = open(&disk, true);
    db.put(b"k", &value(1)).unwrap();
    let queue = queue(64);
    drop(hold_read(&disk, true));
    for tag in 0..20 {
        queue.try_get(&db, tag, b"k").unwrap();
    }
    let mut done = Vec::new();
    while done.len() < 20 {
        assert!(queue.wait(&mut done, 1, Duration::from_secs(5)) > 0, "{} of 20", done.len());
    }
    assert!(done.iter().any(|done| done.result.is_err()));
    for tag in 0..20 {
        queue.try_get(&db, tag, b"k").unwrap();
    }
    assert!(collect(&queue, 20).iter().all(|done| done.result.is_ok()));
    db.put(b"k", b"v").unwrap();
    db.close().unwrap();
}

#[test]
fn a_read_that_fails_leaves_the_other_calls_of_its_batch_their_answers() {
    let disk = disk();
    let db = open(&disk, true);
    for n in 0..8_u64 {
        db.put(&n.to_be_bytes(), &value(n + 1)).unwrap();
    }
    let queue = queue(64);
    disk.inject(Fault::ReadFails { path_contains: ".seg".into(), nth: 1 }).unwrap();
    for n in 0..8_u64 {
        queue.try_get(&db, n, &n.to_be_bytes()).unwrap();
    }
    let mut failed = 0;
    for Completed { tag, result } in collect(&queue, 8) {
        match result {
            Ok(answer) => assert_eq!(answer, Answer::Value(Some(value(tag + 1).into()))),
            Err(error) => {
                assert!(matches!(error, Error::Io { op: "read", .. }), "{error}");
                failed += 1;
            }
        }
    }
    // A failed read of the page cache is repeated at the device.
    assert!(failed <= 1, "{failed} calls failed");
}

#[test]
fn writes_of_a_key_complete_in_the_order_of_their_commits() {
    let db = open(&disk(), true);
    let queue = queue(64);
    for round in 0..30_u64 {
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (db, queue) = (&db, &queue);
                scope.spawn(move || {
                    for n in 0..16 {
                        let tag = (round * 4 + thread) * 16 + n;
                        queue.put(db, tag, b"k", &tag.to_be_bytes()).unwrap();
                        // A synchronous writer may lead the group of others.
                        if n % 5 == thread {
                            db.put(b"other", b"v").unwrap();
                        }
                    }
                });
            }
        });
        let last = collect(&queue, 64).pop().unwrap();
        let found = db.get(b"k").unwrap().unwrap();
        assert_eq!(found, last.tag.to_be_bytes()[..], "the last completed put is not the last");
    }
}

#[derive(Default)]
struct Counter(AtomicUsize);

impl Notify for Counter {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_event_loop_is_woken_for_the_first_result_after_each_collection() {
    let db = open(&disk(), false);
    let counter = Arc::new(Counter::default());
    let queue = CompletionQueue::with_notify(BOUNDS, counter.clone()).unwrap();
    let woken = || counter.0.load(Ordering::SeqCst);
    for round in 1..4 {
        for tag in 0..5 {
            queue.put(&db, tag, b"k", b"v").unwrap();
            assert_eq!(woken(), round);
        }
        assert_eq!(queue.poll(&mut Vec::new()), 5);
        assert_eq!(queue.poll(&mut Vec::new()), 0);
    }
}

#[test]
fn a_wait_returns_with_enough_results_or_after_its_time() {
    let disk = disk();
    let db = open(&disk, true);
    db.put(b"k", &value(1)).unwrap();
    let queue = queue(64);
    let mut done = Vec::new();
    assert_eq!(queue.wait(&mut done, 5, LONG), 0, "nothing is awaited from an idle queue");
    let go = hold_read(&disk, false);
    queue.try_get(&db, 1, b"k").unwrap();
    assert_eq!(queue.wait(&mut done, 1, Duration::from_millis(10)), 0);
    drop(go);
    assert_eq!(queue.wait(&mut done, 64, LONG), 1, "one call is in flight");
    for tag in 0..40 {
        queue.try_get(&db, tag, b"k").unwrap();
    }
    assert!(queue.wait(&mut done, 30, LONG) >= 30);
}
