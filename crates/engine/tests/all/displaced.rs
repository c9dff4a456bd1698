//! Directories that are moved away, deleted or replaced under a running store.

use crate::common::{DIR, clock, disk, open, tiny};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stele_engine::{Db, Error, Options};
use stele_simulated_disk::SimVfs;
use stele_vfs::{FsKind, Vfs};

fn stored(seed: u64) -> (SimVfs, Db) {
    let disk = disk(seed);
    let db = open(&disk, &tiny()).unwrap();
    db.put(b"k", b"v").unwrap();
    (disk, db)
}

fn refused(db: &Db) -> String {
    match db.store().check_place() {
        Err(Error::WrongStore { path, detail }) => {
            assert_eq!(path, Path::new(DIR));
            detail
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_store_notices_that_its_directory_its_lock_or_its_log_is_another_or_gone() {
    type Displace = fn(&SimVfs);
    let rows: [(Displace, &str); 6] = [
        (|disk| disk.move_dir(DIR, "/away"), "it was moved away or deleted"),
        (|disk| disk.remove_dir(DIR), "it was moved away or deleted"),
        (
            |disk| {
                disk.move_dir(DIR, "/away");
                disk.create_dir_all(Path::new(DIR)).unwrap();
            },
            "it was replaced by another",
        ),
        (
            |disk| disk.unlink(&Path::new(DIR).join("LOCK")).unwrap(),
            "its `LOCK` was moved away or deleted",
        ),
        (
            |disk| {
                disk.unlink(&Path::new(DIR).join("LOCK")).unwrap();
                disk.write_file(Path::new(DIR).join("LOCK"), b"");
            },
            "its `LOCK` was replaced by another",
        ),
        (|disk| disk.remove_dir(Path::new(DIR).join("log")), "its `log` was moved away or deleted"),
    ];
    for (displace, words) in rows {
        let (disk, db) = stored(1);
        db.store().check_place().unwrap();
        displace(&disk);
        let text = refused(&db);
        assert!(text.contains(words) && text.contains("start again"), "{text}");
    }
    let (disk, db) = stored(1);
    disk.move_dir(DIR, "/away");
    disk.move_dir("/away", DIR);
    db.store().check_place().unwrap();
}

#[test]
fn a_store_that_was_stopped_acknowledges_nothing_more() {
    let (disk, db) = stored(2);
    disk.move_dir(DIR, "/away");
    let error = db.store().check_place().unwrap_err();
    db.store().stop(error);
    let refused = db.put(b"k", b"later").unwrap_err();
    assert!(matches!(refused, Error::Poisoned(_)), "{refused}");
    assert!(refused.to_string().contains("moved away"), "{refused}");
    assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_store_states_its_file_system_and_the_mode_in_which_it_uses_it() {
    let (_, db) = stored(3);
    let of = db.store().file_system();
    assert_eq!((of.kind, of.mode()), (FsKind::Simulated, "buffered"));
}

#[test]
fn an_embedded_store_of_which_the_directory_is_moved_away_stops_by_itself() {
    let (disk, clock) = (disk(4), clock());
    let options = Options { background: true, ..tiny() };
    let vfs = Arc::new(disk.clone());
    let db = Db::open_with(vfs, clock.clone(), Path::new(DIR), options).unwrap();
    db.put(b"k", b"v").unwrap();
    disk.move_dir(DIR, "/away");
    // The store's own thread checks its place every five seconds.
    let refused = (0..2_000).find_map(|_| {
        clock.advance_seconds(1);
        std::thread::sleep(Duration::from_millis(5));
        db.put(b"k", b"later").err()
    });
    let refused = refused.expect("writes are acknowledged in a directory that is gone");
    assert!(matches!(refused, Error::Poisoned(_)), "{refused}");
    assert!(refused.to_string().contains("moved away"), "{refused}");
}
