//! A store opened on a copy of which the changes stay in memory: it answers as the store itself,
//! and nothing below changes.

use crate::common::{DIR, Model, Random, clock, contents, disk, open, tiny};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::Db;
use stele_simulated_disk::SimVfs;
use stele_vfs::{CopyOnWriteVfs, Vfs};

fn files(disk: &SimVfs) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = disk.paths().into_iter();
    paths.map(|path| (path.clone(), disk.read_file(&path).unwrap())).collect()
}

fn disk_bytes(disk: &SimVfs) -> u64 {
    let dirs = [DIR.to_owned(), format!("{DIR}/log"), format!("{DIR}/index")];
    let entries = dirs.iter().flat_map(|dir| disk.list(Path::new(dir)).unwrap());
    entries.map(|entry| entry.allocated_bytes).sum()
}

#[test]
fn a_copy_answers_as_the_store_after_any_crash_and_leaves_its_files_as_they_are() {
    let disk = disk(1);
    let mut random = Random(7);
    let mut model = Model::new();
    let mut db = open(&disk, &tiny()).unwrap();
    for round in 0..12 {
        for _ in 0..60 {
            let key = format!("key-{:03}", random.below(90)).into_bytes();
            match random.below(5) {
                0 => {
                    db.delete(&key).unwrap();
                    model.remove(&key);
                }
                _ => {
                    let bytes = random.below(900) as usize;
                    let value = random.bytes(bytes);
                    db.put(&key, &value).unwrap();
                    model.insert(key, value);
                }
            }
        }
        while db.maintain(64 << 10).unwrap().more && random.below(3) > 0 {}
        // The process ends here, in every other round with files that the next open removes.
        drop(db);
        let crashed = if round % 2 == 0 { disk.fork() } else { disk.restart(round) };
        let (before, operations) = (files(&crashed), crashed.operations());
        let copy = Arc::new(CopyOnWriteVfs::new(Arc::new(crashed.clone()), 8 << 20));
        let read = Db::open_with(copy.clone(), clock(), Path::new(DIR), tiny()).unwrap();
        assert_eq!(contents(&read).unwrap(), model, "round {round}");
        let report = read.verify(&mut |event| assert!(!is_damage(&event), "{event:?}")).unwrap();
        assert_eq!(report.keys, model.len() as u64);
        assert_eq!(report.disk_bytes + copy.removed_bytes(), disk_bytes(&crashed));
        read.put(b"only in memory", b"v").unwrap();
        read.compact().unwrap();
        read.close().unwrap();
        assert!(files(&crashed) == before, "round {round}");
        // The lock of the directory is the only thing that a copy takes.
        let changes = crashed.events().into_iter().filter(|it| it.operation >= operations);
        assert_eq!(changes.filter(|it| it.path != Path::new(DIR).join("LOCK")).count(), 0);
        db = open(&disk, &tiny()).unwrap();
    }
}

fn is_damage(event: &stele_engine::VerifyEvent) -> bool {
    matches!(event, stele_engine::VerifyEvent::Damage { .. })
}
