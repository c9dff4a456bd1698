//! Values that look like batches, and segments of format 1, of which the checksums have no salt.

use crate::common::*;
use stele_log::Tail;
use stele_simulated_disk::{Fault, SimVfs};
use stele_types::checksum::{Crc32c, crc32c};
use stele_types::{FileId, LogIndex, Lsn, StoreId};

const BLOCK: usize = 512;
const FRAME_HEADER: usize = 24;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn put_word(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

/// Returns the checksum of a frame of format 1.
fn unsalted(store: StoreId, frame: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(&store.0.to_le_bytes()).update(&frame[..4]).update(&frame[8..]).finish()
}

/// Returns a value that holds, at each block boundary of its file, a batch of format 1 for that
/// place. A client that knows the store can make it.
fn full_of_batches(at: Lsn, bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    let end = at.offset as usize + bytes;
    for block in ((at.offset as usize).next_multiple_of(BLOCK)..end - FRAME_HEADER).step_by(BLOCK) {
        let begin = block - at.offset as usize;
        let frame = &mut value[begin..begin + FRAME_HEADER];
        let words = [0, 0, at.file.0, block as u32, 9, 1];
        frame.copy_from_slice(&words.map(u32::to_le_bytes).concat());
        let crc = unsalted(options().store, frame);
        put_word(frame, 4, crc);
    }
    value
}

#[test]
fn a_value_is_not_taken_for_batches_though_its_writer_knows_the_store() {
    const BYTES: usize = 6000;
    let disk = disk(1);
    let (log, _) = open(&disk);
    put(&log, REGION, 1, 100).unwrap();
    let head = log.head();
    // The value begins after the frame's header and the record's.
    let at = |value: &[u8]| {
        let disk = disk.fork();
        let (log, _) = open(&disk);
        let command = command(&[(b"key", value)]);
        let appended = log.append(&batch(vec![entry(REGION, 2, 1, &command)])).unwrap();
        let locator = command.ops().next().unwrap().locator(appended.payloads[0]).unwrap();
        (disk, Lsn::new(locator.file, locator.offset))
    };
    let (_, place) = at(&vec![0; BYTES]);
    let (disk, found) = at(&full_of_batches(place, BYTES));
    assert_eq!(found, place, "the batches in the value name their own places");
    // As after a power cut that tore the write: only a part of the value reached the device.
    let path = segment_path(head.file);
    disk.inject(Fault::FlipBit { path, offset: u64::from(head.offset) + 30, bit: 1 }).unwrap();
    let (log, recovery) = open(&disk);
    assert!(matches!(recovery.tail, Tail::TornCut { from, .. } if from == head), "{recovery:?}");
    assert_eq!(log.region(REGION).unwrap().last, LogIndex(1));
    put(&log, REGION, 2, 100).unwrap();
    drop(log);
    assert_put(&open(&disk).0, REGION, 2, 100);
}

#[test]
fn each_segment_has_its_own_salt() {
    let disk = disk(2);
    let (log, _) = open(&disk);
    let mut index = 0;
    while log.stats().segments < 5 {
        index += 1;
        put(&log, REGION, index, 900).unwrap();
    }
    let salt = |file| disk.read_file(segment_path(FileId(file))).unwrap()[48..56].to_vec();
    let salts: std::collections::BTreeSet<_> = (1..=5).map(salt).collect();
    assert_eq!(salts.len(), 5);
}

/// Rewrites a segment as a build of format 1 wrote it. Returns the checksum of its last frame,
/// which the next segment is chained to.
fn to_format_1(disk: &SimVfs, file: FileId, mut chain: u32) -> u32 {
    let path = segment_path(file);
    let mut bytes = disk.read_file(&path).unwrap();
    put_word(&mut bytes, 8, 1);
    put_word(&mut bytes, 36, chain);
    let crc = crc32c(&bytes[..44]);
    put_word(&mut bytes, 44, crc);
    bytes[48..60].fill(0);
    let mut at = BLOCK;
    while at < bytes.len() && word(&bytes, at + 8) == file.0 {
        let end = at + FRAME_HEADER + word(&bytes, at) as usize;
        put_word(&mut bytes, at + 16, chain);
        chain = unsalted(options().store, &bytes[at..end]);
        put_word(&mut bytes, at + 4, chain);
        at = end.next_multiple_of(BLOCK);
    }
    disk.write_file(&path, &bytes);
    if disk.file_bytes(sidecar_path(file)).is_some() {
        stele_vfs::Vfs::unlink(disk, &sidecar_path(file)).unwrap();
    }
    chain
}

#[test]
fn a_log_of_format_1_opens_and_its_next_segment_has_a_salt() {
    let disk = disk(3);
    let (log, _) = open(&disk);
    let mut last = 0;
    while log.stats().segments < 3 {
        last += 1;
        put(&log, REGION, last, 900).unwrap();
    }
    put(&log, REGION, last + 1, 900).unwrap();
    drop(log);
    (1..=3).fold(0, |chain, file| to_format_1(&disk, FileId(file), chain));
    let (log, recovery) = open(&disk);
    assert_eq!(recovery.tail, Tail::Clean);
    (1..=last + 1).for_each(|index| assert_put(&log, REGION, index, 900));
    put(&log, REGION, last + 2, 900).unwrap();
    assert_eq!(log.head().file, FileId(3), "in the same segment");
    drop(log);
    let (log, recovery) = open(&disk);
    assert_eq!(recovery.tail, Tail::Clean);
    let mut index = last + 2;
    while log.stats().segments < 4 {
        index += 1;
        put(&log, REGION, index, 900).unwrap();
    }
    let format = |file| word(&disk.read_file(segment_path(FileId(file))).unwrap(), 8);
    assert_eq!((format(3), format(4)), (1, 2));
    assert_eq!(log.verify(&mut |_| {}).unwrap().damaged, 0);
    drop(log);
    disk.crash_now();
    let (log, _) = open(&disk.restart(1));
    (1..=index).for_each(|index| assert_put(&log, REGION, index, 900));
}
