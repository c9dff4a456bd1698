//! The events of one put, in order, and the central invariant of the product: a value's bytes
//! appear in exactly one write.

use crate::common::{Random, disk, open, tiny};
use stele_simulated_disk::{Event, Operation};

const GOLDEN: &str = "\
write log/00000001.seg log
sync log/00000001.seg
";

fn line(event: &Event) -> String {
    let path =
        event.path.strip_prefix(crate::common::DIR).unwrap_or(&event.path).display().to_string();
    // A segment is created under a spare name; events show the name with which it was opened.
    let path = match path.split_once("free-") {
        Some((dir, number)) => format!("{dir}{number}.seg"),
        None => path,
    };
    let name = match event.kind {
        Operation::Write => "write",
        Operation::Sync => "sync",
        Operation::SyncDir => "sync_dir",
        Operation::Create => "create",
        Operation::Rename => "rename",
        Operation::Unlink => "unlink",
        Operation::SetLen => "set_len",
        Operation::Allocate => "allocate",
        Operation::CreateDir => "create_dir",
    };
    let cause = event.cause.map(|cause| format!(" {}", cause.name())).unwrap_or_default();
    format!("{name} {path}{cause}\n")
}

#[test]
fn a_put_is_one_write_and_one_sync() {
    let disk = disk(1);
    let db = open(&disk, &tiny()).unwrap();
    db.put(b"first", b"makes the segment").unwrap();
    disk.clear_events();
    db.put(b"key", &Random(7).bytes(3000)).unwrap();
    let transcript: String = disk.events().iter().map(line).collect();
    assert_eq!(transcript, GOLDEN);
}

#[test]
fn the_bytes_of_a_value_appear_in_exactly_one_write_until_it_is_moved() {
    let disk = disk(1);
    disk.record_writes(true);
    let db = open(&disk, &tiny()).unwrap();
    let value = Random(7).bytes(3000);
    db.put(b"key", &value).unwrap();
    for n in 0..200u32 {
        db.put(format!("other-{n}").as_bytes(), &Random(u64::from(n)).bytes(900)).unwrap();
    }
    db.flush().unwrap();
    let needle = &value[1000..1040];
    let writes = disk.events().into_iter().filter(|event| {
        event.data.as_ref().is_some_and(|bytes| bytes.windows(40).any(|part| part == needle))
    });
    let writes: Vec<String> = writes.map(|event| line(&event)).collect();
    assert_eq!(writes, ["write log/00000001.seg log\n"]);
    assert_eq!(db.get(b"key").unwrap().unwrap(), value);
}
