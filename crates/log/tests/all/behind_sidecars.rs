//! Payloads that must be readable although sidecars stand for their segments: of entries that are
//! not applied yet, and of the store's own keys. Damage to other payloads there does not prevent
//! opening.

use crate::common::*;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use stele_log::{DamageSurvey, DamagedPayload, Log, RecoverFrom};
use stele_simulated_disk::{Fault, SimVfs};
use stele_types::{
    CommandBuilder, Error, FileId, HardState, KeyRange, LogIndex, Lsn, Mark, Record, RegionId,
    Result, Term,
};

const OTHER: RegionId = RegionId(2);
const VALUE_BYTES: usize = 300;

fn from(checkpointed: u64) -> RecoverFrom {
    RecoverFrom {
        checkpointed: Some(BTreeMap::from([(REGION, LogIndex(checkpointed))])),
        own_keys: Some(KeyRange::prefix(b"own/")),
        ..RecoverFrom::default()
    }
}

fn opened(disk: &SimVfs, checkpointed: u64) -> Result<Log> {
    open_with(&disk.fork(), options(), from(checkpointed)).map(|(log, _)| log)
}

fn survey(disk: &SimVfs, checkpointed: u64) -> Result<DamageSurvey> {
    DamageSurvey::take(Arc::new(disk.clone()), Path::new(DIR), &options(), &from(checkpointed), 100)
}

fn damaged_payloads(survey: &DamageSurvey) -> Vec<DamagedPayload> {
    survey.damaged_after(None).copied().collect()
}

fn flip(disk: &SimVfs, at: Lsn, delta: u64) {
    let (path, offset) = (segment_path(at.file), u64::from(at.offset) + delta);
    disk.inject(Fault::FlipBit { path, offset, bit: 3 }).unwrap();
}

/// Entries of one region, each with its operations, then enough entries of another region to seal
/// their segment.
struct Sealed {
    disk: SimVfs,
    places: Vec<Lsn>,
    payloads: Vec<Bytes>,
}

impl Sealed {
    fn new(seed: u64, commit: u64, ops: &[&dyn Fn(&mut CommandBuilder)]) -> Self {
        let disk = disk(seed);
        let (log, _) = open(&disk);
        log.append(&batch(vec![Record::Mark(OTHER, Mark::Start(LogIndex(0), Term(0)))])).unwrap();
        let (mut places, mut payloads) = (Vec::new(), Vec::new());
        for (at, op) in ops.iter().enumerate() {
            let mut command = CommandBuilder::new();
            op(&mut command);
            let command = command.build();
            payloads.push(command.bytes().clone());
            let entry = entry(REGION, at as u64 + 1, 1, &command);
            places.extend(log.append(&batch(vec![entry])).unwrap().payloads);
        }
        let state = HardState { term: Term(1), vote: 0, commit: LogIndex(commit) };
        log.append(&batch(vec![Record::HardState(REGION, state)])).unwrap();
        let mut index = 0;
        while log.stats().segments < 3 {
            index += 1;
            put(&log, OTHER, index, 900).unwrap();
        }
        assert!(places.iter().all(|at| at.file == FileId(1)));
        drop(log);
        assert!(disk.file_bytes(sidecar_path(FileId(1))).is_some());
        Self { disk, places, payloads }
    }

    /// Returns a copy of the disk with damage in the middle of these entries' values.
    fn damaged(&self, entries: &[usize]) -> SimVfs {
        let disk = self.disk.fork();
        let middle = VALUE_BYTES as u64 / 2;
        entries.iter().for_each(|entry| flip(&disk, self.places[entry - 1], middle));
        disk
    }

    /// Checks that the store opens only after these entries are restored.
    fn needs(&self, disk: &SimVfs, checkpointed: u64, entries: &[u64]) {
        assert!(matches!(opened(disk, checkpointed), Err(Error::Corrupt { .. })));
        let mut survey = survey(disk, checkpointed).unwrap();
        let found = damaged_payloads(&survey);
        let indices: Vec<u64> = found.iter().map(|damaged| damaged.index.0).collect();
        assert_eq!(indices, entries);
        for damaged in found {
            assert!(!survey.is_recovered());
            let at = damaged.index.0 as usize - 1;
            assert_eq!((damaged.region, damaged.at), (REGION, self.places[at]));
            assert!(survey.restore_payload(&damaged, &self.payloads[at]).unwrap());
        }
        assert!(survey.is_recovered());
        let log = opened(disk, checkpointed).unwrap();
        for index in entries {
            let found = log.entries(REGION, LogIndex(*index), LogIndex(index + 1), 1).unwrap();
            assert_eq!(found[0].payload, self.payloads[*index as usize - 1]);
        }
    }

    fn needs_none(&self, disk: &SimVfs, checkpointed: u64) {
        assert!(opened(disk, checkpointed).is_ok());
        assert!(survey(disk, checkpointed).unwrap().is_recovered());
    }
}

fn puts(key: &'static [u8], n: u64) -> impl Fn(&mut CommandBuilder) {
    move |command| {
        command.put(key, &value(n, VALUE_BYTES), 0).unwrap();
    }
}

// Catalogue: 11.
#[test]
fn what_is_not_applied_has_to_be_readable_behind_a_sidecar() {
    let [a, b, c] = [puts(b"a", 1), puts(b"b", 2), puts(b"c", 3)];
    let sealed = Sealed::new(1, 4, &[&a, &b, &c, &a, &b, &c, &a]);
    sealed.needs_none(&sealed.disk, 0);
    sealed.needs_none(&sealed.damaged(&[1, 4]), 0);
    for checkpointed in [0, 2, 4] {
        sealed.needs(&sealed.damaged(&[1, 4, 5, 7]), checkpointed, &[5, 7]);
    }
    sealed.needs(&sealed.damaged(&[5, 6, 7]), 5, &[6, 7]);
    sealed.needs_none(&sealed.damaged(&[5, 6, 7]), 7);
    // Without replicas the sidecar is trusted, and a read reports the damage.
    let whole = RecoverFrom { checkpointed: None, ..from(0) };
    open_with(&sealed.damaged(&[5]), options(), whole).unwrap();
}

// Catalogue: 11.
#[test]
fn what_a_store_knows_of_itself_has_to_be_readable_behind_a_sidecar() {
    let [own, user] = [puts(b"own/a", 1), puts(b"user", 2)];
    let both = |command: &mut CommandBuilder| {
        command.put(b"x", &value(7, VALUE_BYTES), 0).unwrap();
        command.put(b"own/b", &value(8, VALUE_BYTES), 0).unwrap();
    };
    let sealed = Sealed::new(2, 9, &[&own, &user, &own, &both, &user]);
    // Only the newest value of a key is read.
    sealed.needs_none(&sealed.damaged(&[1, 2, 5]), 0);
    sealed.needs(&sealed.damaged(&[1, 3]), 0, &[3]);
    sealed.needs_none(&sealed.damaged(&[1, 3]), 3);
    sealed.needs_none(&sealed.damaged(&[4]), 0);
    let disk = sealed.damaged(&[]);
    flip(&disk, sealed.places[3], VALUE_BYTES as u64 + 100);
    sealed.needs(&disk, 0, &[4]);
}

// Catalogue: 11.
#[test]
fn what_a_store_no_longer_knows_of_itself_need_not_be_readable() {
    let [a, b] = [puts(b"own/a", 1), puts(b"own/b", 2)];
    let delete = |command: &mut CommandBuilder| {
        command.delete(b"own/a").unwrap();
    };
    let small = |command: &mut CommandBuilder| {
        command.put(b"own/a", b"small", 0).unwrap();
    };
    let range = |command: &mut CommandBuilder| {
        command.delete_range(b"own/a", b"own/b").unwrap();
    };
    let ends: [&dyn Fn(&mut CommandBuilder); 3] = [&delete, &small, &range];
    for end in ends {
        let sealed = Sealed::new(3, 9, &[&a, &b, end]);
        sealed.needs_none(&sealed.damaged(&[1]), 0);
        sealed.needs(&sealed.damaged(&[1, 2]), 0, &[2]);
        // The entry that replaces it is not applied yet.
        let sealed = Sealed::new(4, 2, &[&a, &b, end]);
        sealed.needs(&sealed.damaged(&[1]), 0, &[1]);
    }
}

// Catalogue: 24.
#[test]
fn more_damage_than_that_of_payloads_is_reported() {
    let [a, b] = [puts(b"a", 1), puts(b"b", 2)];
    let sealed = Sealed::new(5, 1, &[&a, &b, &a]);
    let disk = sealed.damaged(&[2]);
    // The header of its entry too.
    let at = sealed.places[1];
    flip(&disk, Lsn::new(at.file, at.offset - 6), 0);
    assert!(matches!(opened(&disk, 0), Err(Error::Corrupt { .. })));
    assert!(matches!(survey(&disk, 0), Err(Error::Corrupt { .. })));
}
