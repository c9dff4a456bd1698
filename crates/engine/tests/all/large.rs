//! Stores with many files.

use crate::common::{DIR, disk, open, tiny};
use std::path::Path;
use std::process::Command;
use stele_engine::{Db, Options, StateMachine};

const VALUES: u64 = 90;
/// Descriptors of a process, of which the test itself, the store and its runs need some.
const DESCRIPTORS: u64 = 40;
const CHILD: &str = "STELE_TEST_FEW_DESCRIPTORS";

fn key(at: u64) -> Vec<u8> {
    format!("key-{at:05}").into_bytes()
}

/// Runs in a process of its own, because the limit is one of the process.
#[test]
fn a_store_with_more_files_than_the_process_may_open_is_written_read_and_opened_again() {
    if let Ok(dir) = std::env::var(CHILD) {
        return with_few_descriptors(Path::new(&dir));
    }
    let dir = std::env::temp_dir().join(format!("stele-few-descriptors-{}", std::process::id()));
    let name =
        "large::a_store_with_more_files_than_the_process_may_open_is_written_read_and_opened_again";
    let run = format!("ulimit -n {DESCRIPTORS} && exec \"$0\" --exact {name} --nocapture");
    let child = std::env::current_exe().unwrap();
    let child = Command::new("sh").arg("-c").arg(run).arg(child).env(CHILD, &dir).output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    let errors = String::from_utf8_lossy(&child.stderr).into_owned();
    assert!(child.status.success() && text.contains("every value was read"), "{text}\n{errors}");
}

fn with_few_descriptors(dir: &Path) {
    let options = || Options { memtable_bytes_max: 1 << 20, run_bytes_max: 64 << 20, ..tiny() };
    let open = || Db::open(dir, options()).unwrap();
    let value = |at: u64| vec![at as u8; 60 << 10];
    let db = open();
    (0..VALUES).for_each(|at| db.put(&key(at), &value(at)).unwrap());
    assert!(db.store().log_stats().segments as u64 > 2 * DESCRIPTORS);
    for at in (0..VALUES).chain((0..VALUES).rev()) {
        assert_eq!(db.get(&key(at)).unwrap().unwrap(), value(at), "{at}");
    }
    db.flush().unwrap();
    drop(db);
    let db = open();
    for at in (0..VALUES).map(|at| at * 77 % VALUES) {
        assert_eq!(db.get(&key(at)).unwrap().unwrap(), value(at), "{at}");
    }
    db.compact().unwrap();
    assert!((0..VALUES).all(|at| db.get(&key(at)).unwrap().unwrap() == value(at)));
    println!("every value was read");
}

#[test]
fn no_file_is_looked_at_for_the_size_of_a_store_until_one_is_created_or_removed() {
    let disk = disk(1);
    let db = open(&disk, &tiny()).unwrap();
    (0..100).for_each(|at| db.put(&key(at), &[1; 3_000]).unwrap());
    let bytes = || db.store().stats().disk_bytes;
    let before = bytes();
    assert!(before > 300_000);
    // What only a reading of the directory shows.
    disk.write_file(Path::new(DIR).join("log").join("other.txt"), &[0; 1 << 20]);
    assert_eq!(bytes(), before);
    db.put(&key(0), &[2; 3_000]).unwrap();
    let grown = bytes();
    assert!(grown > before && grown < before + (1 << 20), "the head has grown: {before} {grown}");
    db.flush().unwrap();
    let counted = bytes();
    assert!(counted > grown + (1 << 19), "{grown} {counted}");
    db.compact().unwrap();
    let device = db.device().unwrap();
    assert_eq!(bytes(), device.store_bytes);
}
