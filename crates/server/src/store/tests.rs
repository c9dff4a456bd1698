use super::{Counts, Engine, Inbox, Item, maintain, spawn};
use crate::threads::Thread;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use stele_engine::{Options, Replay};
use stele_types::{Error, StoreId};
use stele_vfs::{SimOptions, SimVfs, SystemClock};

const SIGABRT: i32 = 6;
/// Marks the process in which this test must panic.
const INSIDE: &str = "STELE_TEST_PANICS";

#[test]
fn fault_05_a_panic_in_a_stores_thread_ends_the_process() {
    if std::env::var_os(INSIDE).is_some() {
        let thread = spawn(Thread::Store, StoreId(1), || panic!("half done")).unwrap();
        let _ = thread.join();
        return;
    }
    let name = "store::tests::fault_05_a_panic_in_a_stores_thread_ends_the_process";
    let mut inside = Command::new(std::env::current_exe().unwrap());
    let ended = inside.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    assert_eq!(ended.status.signal(), Some(SIGABRT), "{ended:?}");
    let output = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(output.contains("half done") && output.contains("stele-store-1"), "{output}");
}

// Catalogue: 17.
#[test]
fn a_store_that_its_maintenance_stopped_ends_though_nothing_is_appended() {
    let disk = Arc::new(SimVfs::new(SimOptions::default()));
    let (clock, dir) = (Arc::new(SystemClock::new()), Path::new("/store"));
    let opened = Engine::open(disk, clock, dir, Options::default(), Replay::Committed);
    let (engine, _) = opened.unwrap();
    engine.log().stop(Error::invalid("a sync failed"));
    let inbox = Inbox::new(1 << 20);
    let (running, wants_checkpoint) = (AtomicBool::new(true), AtomicBool::new(false));
    maintain::run(&engine, &running, &wants_checkpoint, &inbox, &Counts::default());
    let mut items = Vec::new();
    inbox.queue.take(&mut items);
    let [Item::Stopped(error)] = &items[..] else { panic!("{} items", items.len()) };
    assert!(matches!(error, Error::Poisoned(_)), "{error}");
}
