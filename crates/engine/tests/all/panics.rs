//! Panics inside the store's work: each ends in an error that names the remedy, never in a call that
//! waits. The simulated disk panics in the middle of a write, a sync or a read.

use crate::common::{Model, contents, disk, open, tiny};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use stele_engine::{Batch, Db, Error, KeyRange, Options, Order};
use stele_simulated_disk::{Fault, SimVfs};

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

fn panic_in(disk: &SimVfs, path_contains: &str, nth: u64) {
    disk.on_stall(|path| panic!("a bug below {}", path.display()));
    disk.inject(Fault::Stall { path_contains: path_contains.into(), nth }).unwrap();
}

fn stopped(result: Result<(), Error>) {
    let error = result.expect_err("the store has not stopped");
    let text = error.to_string();
    assert!(matches!(error, Error::Poisoned(_)), "{text}");
    assert!(text.contains("a panic interrupted") && text.contains("open the store"), "{text}");
}

/// Puts keys until one fails, each after a call of `before`; returns the acknowledged pairs.
fn put_until_failure(db: &Db, before: impl Fn()) -> (Model, Error) {
    let mut acknowledged = Model::new();
    for n in 0u32.. {
        before();
        let (key, value) = (n.to_be_bytes().to_vec(), vec![n as u8; 700]);
        match db.put(&key, &value) {
            Ok(()) => drop(acknowledged.insert(key, value)),
            Err(error) => return (acknowledged, error),
        }
    }
    unreachable!("the numbers end");
}

#[test]
fn a_panic_in_a_write_or_sync_of_the_log_fails_its_call_and_stops_the_store() {
    within_limit(|| {
        for nth in 1..40 {
            let disk = disk(nth);
            let db = open(&disk, &tiny()).unwrap();
            panic_in(&disk, ".seg", nth);
            let (acknowledged, error) = put_until_failure(&db, || {});
            assert!(matches!(error, Error::Panicked(_)), "{error}");
            stopped(db.put(b"later", b"v"));
            stopped(db.flush());
            stopped(db.compact());
            stopped(db.maintain(1 << 20).map(|_| ()));
            let _ = db.close();
            let db = open(&disk, &tiny()).unwrap();
            let found = contents(&db).unwrap();
            assert!(acknowledged.iter().all(|(key, value)| found.get(key) == Some(value)));
            assert!(found.len() <= acknowledged.len() + 1, "nth {nth}");
        }
    });
}

#[test]
fn a_maintenance_thread_that_panics_stops_the_store() {
    within_limit(|| {
        let disk = disk(1);
        let db = open(&disk, &Options { background: true, ..tiny() }).unwrap();
        let armed = Arc::new(AtomicBool::new(false));
        let fired = armed.clone();
        disk.on_stall(move |path| {
            let is_it = std::thread::current().name() == Some("stele-maintain");
            assert!(!is_it, "a bug below {}", path.display());
            fired.store(false, Ordering::SeqCst);
        });
        // A writer that assists the thread takes the fault in its place: then another is injected.
        let (acknowledged, error) = put_until_failure(&db, || {
            if !armed.swap(true, Ordering::SeqCst) {
                disk.inject(Fault::Stall { path_contains: ".run".into(), nth: 1 }).unwrap();
            }
        });
        stopped(Err(error));
        stopped(db.put_async(b"later", b"v").unwrap().wait());
        assert_eq!(contents(&db).unwrap(), acknowledged, "reads go on");
        let _ = db.close();
        assert_eq!(contents(&open(&disk, &tiny()).unwrap()).unwrap(), acknowledged);
    });
}

#[test]
fn a_panic_in_a_callers_own_maintenance_is_its_error_and_stops_the_store() {
    within_limit(|| {
        let disk = disk(1);
        let db = open(&disk, &tiny()).unwrap();
        db.put(b"k", &[7; 300]).unwrap();
        panic_in(&disk, ".run", 1);
        let error = db.flush().unwrap_err();
        assert!(matches!(&error, Error::Panicked(text) if text.contains("a flush")), "{error}");
        stopped(db.put(b"k", b"v"));
        assert_eq!(db.get(b"k").unwrap().unwrap(), [7; 300][..]);
    });
}

/// Stalls a thread in its first write of matching files until `waits` waits for its lock, then
/// panics there. Returns the result of `waits`.
fn after_a_panic(
    path_contains: &str,
    panics: impl FnOnce(&Db) + Send,
    waits: impl FnOnce(&Db) -> Result<(), Error> + Send,
) -> Result<(), Error> {
    let disk = disk(1);
    let db = open(&disk, &tiny()).unwrap();
    db.put(b"k", &[7; 300]).unwrap();
    let (reached, stalled) = channel();
    let (go, going) = channel::<()>();
    let going = std::sync::Mutex::new(going);
    disk.on_stall(move |path| {
        reached.send(()).unwrap();
        going.lock().unwrap().recv().unwrap();
        panic!("a bug below {}", path.display());
    });
    disk.inject(Fault::Stall { path_contains: path_contains.into(), nth: 1 }).unwrap();
    std::thread::scope(|scope| {
        let panicking = scope.spawn(|| panics(&db));
        stalled.recv().unwrap();
        let waiting = scope.spawn(|| waits(&db));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        go.send(()).unwrap();
        panicking.join().unwrap();
        waiting.join().unwrap()
    })
}

#[test]
fn a_lock_that_a_panic_frees_protects_nothing_that_is_used_again() {
    within_limit(|| {
        let flush = |db: &Db| drop(db.flush());
        stopped(after_a_panic(".run", flush, |db| db.flush()));
        let put = |db: &Db| drop(db.put(b"k", b"v"));
        stopped(after_a_panic(".seg", put, |db| db.store().log().sync()));
    });
}

#[test]
fn a_thread_that_panics_while_it_reads_ahead_fails_that_scan_only() {
    within_limit(|| {
        let disk = disk(1);
        let options = Options { background: true, segment_bytes_max: 16 << 20, ..tiny() };
        let db = open(&disk, &options).unwrap();
        for from in (0..6000u32).step_by(100) {
            let mut batch = Batch::new();
            for n in from..from + 100 {
                batch.put(&n.to_be_bytes(), &[n as u8; 1024]).unwrap();
            }
            db.write(batch).unwrap();
        }
        db.compact().unwrap();
        disk.on_stall(|_| {
            let is_reader = std::thread::current().name() == Some("stele-read");
            assert!(!is_reader, "a bug of a read");
        });
        let mut failed = 0;
        // The iterator itself may do the read that is chosen.
        for _ in 0..20 {
            for nth in 3..8 {
                disk.inject(Fault::ReadStalls { path_contains: ".val".into(), nth }).unwrap();
            }
            let pairs = db.iter(KeyRange::all(), Order::Forward).unwrap();
            match pairs.collect::<Result<Vec<_>, _>>() {
                Ok(pairs) => assert_eq!(pairs.len(), 6000),
                Err(error) => {
                    failed += 1;
                    let text = error.to_string();
                    assert!(text.contains("a read of a scan panicked: a bug of a read"), "{text}");
                }
            }
            disk.clear_faults();
        }
        assert!(failed > 0, "no thread read ahead");
        assert_eq!(db.iter(KeyRange::all(), Order::Forward).unwrap().count(), 6000);
        db.put(b"k", b"v").unwrap();
        db.close().unwrap();
    });
}
