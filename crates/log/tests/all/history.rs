//! Readers of regions' logs: what they get after Raft dropped it, and the segments that stay for them.

use crate::common::{REGION, batch, command, disk, entry, open_with, options, put, seed, value};
use std::collections::BTreeMap;
use stele_log::{FileKind, History, HistoryReader, Log, LogOptions, Pinned, RecoverFrom};
use stele_simulated_disk::SimVfs;
use stele_types::{FileId, HardState, LogIndex, Mark, Prng, Record, RegionId, Term};

const OTHER: RegionId = RegionId(2);

fn keeping(history_bytes_max: u64) -> LogOptions {
    LogOptions { history_bytes_max, ..options() }
}

fn open(disk: &SimVfs, history_bytes_max: u64) -> Log {
    open_with(disk, keeping(history_bytes_max), RecoverFrom::default()).unwrap().0
}

fn needing(above: u64) -> Pinned {
    Pinned::from([(REGION, LogIndex(above))])
}

fn commit(region: RegionId, index: u64, term: u64) -> Record {
    let (term, commit) = (Term(term), LogIndex(index));
    Record::HardState(region, HardState { term, vote: 0, commit })
}

fn one(region: RegionId, index: u64, term: u64, tag: u64) -> Record {
    let key = format!("key-{index}");
    entry(region, index, term, &command(&[(key.as_bytes(), &value(tag, 700))]))
}

fn append(log: &Log, records: Vec<Record>) {
    log.append(&batch(records)).unwrap();
}

/// Truncates the region's log up to `index`, which is thus committed.
fn truncate(log: &Log, region: RegionId, index: u64) {
    let term = log.term(region, LogIndex(index)).unwrap();
    append(log, vec![Record::Mark(region, Mark::TruncatePrefix(LogIndex(index), term))]);
}

/// Removes all that garbage collection might.
fn remove_unneeded(log: &Log) -> Vec<FileId> {
    let is_sealed = |kind| matches!(kind, FileKind::Segment { sealed: true, .. });
    let files = log.files().into_iter();
    let needless = files.filter(|info| is_sealed(info.kind) && !info.wanted_by_raft);
    let removed: Vec<_> = needless.filter(|info| !info.is_pinned).map(|info| info.file).collect();
    removed.iter().for_each(|file| log.remove(*file).unwrap());
    removed
}

/// Reads to the end; returns index, term and tag of the value, and how it ended.
fn drain(reader: &mut HistoryReader, committed: u64) -> (Vec<(u64, u64)>, History) {
    let mut all = Vec::new();
    loop {
        match reader.read(LogIndex(committed), 3000).unwrap() {
            History::Entries(entries) => {
                all.extend(entries.iter().map(|entry| (entry.index.0, entry.term.0)));
            }
            end => return (all, end),
        }
    }
}

fn puts(log: &Log, indexes: std::ops::RangeInclusive<u64>) {
    for index in indexes {
        put(log, REGION, index, 900).unwrap();
        append(log, vec![commit(REGION, index, 1)]);
    }
}

#[test]
fn a_reader_returns_what_raft_has_dropped_while_its_segments_stay() {
    let log = open(&disk(1), 1 << 20);
    puts(&log, 1..=60);
    log.pin(&needing(10)).unwrap();
    truncate(&log, REGION, 60);
    let removed = remove_unneeded(&log);
    assert!(!removed.is_empty(), "what lies before entry 11 is not needed");
    let (entries, end) = drain(&mut log.history(REGION, LogIndex(11)), 60);
    let expected: Vec<_> = (11..=60).map(|index| (index, 1)).collect();
    assert_eq!((entries, end), (expected, History::UpToDate));
    let (entries, end) = drain(&mut log.history(REGION, LogIndex(1)), 60);
    assert_eq!((entries, end), (Vec::new(), History::TooOld));

    log.pin(&needing(60)).unwrap();
    remove_unneeded(&log);
    let (entries, end) = drain(&mut log.history(REGION, LogIndex(11)), 60);
    assert_eq!((entries, end), (Vec::new(), History::TooOld));
}

#[test]
fn a_segment_stays_as_long_as_one_entry_of_it_is_needed() {
    let log = open(&disk(2), 1 << 20);
    puts(&log, 1..=60);
    truncate(&log, REGION, 60);
    for above in 0..60 {
        log.pin(&needing(above)).unwrap();
        remove_unneeded(&log);
        let (entries, end) = drain(&mut log.history(REGION, LogIndex(above + 1)), 60);
        assert_eq!((entries.len() as u64, end), (60 - above, History::UpToDate), "{above}");
    }
}

#[test]
fn a_reader_returns_what_was_committed_whatever_was_replaced() {
    let log = open(&disk(3), 1 << 20);
    log.pin(&needing(0)).unwrap();
    append(&log, (1..=4).map(|index| one(REGION, index, 1, index)).collect());
    append(&log, vec![commit(REGION, 2, 1)]);
    // Long enough to lie in other segments than what replaces them.
    append(&log, (5..=40).map(|index| one(REGION, index, 1, index)).collect());
    append(&log, vec![Record::Mark(REGION, Mark::TruncateSuffix(LogIndex(30)))]);
    append(&log, (4..=50).map(|index| one(REGION, index, 3, index)).collect());
    append(&log, vec![commit(REGION, 50, 3)]);
    append(&log, (51..=90).map(|index| one(REGION, index, 3, index)).collect());
    append(&log, vec![commit(REGION, 90, 3)]);
    truncate(&log, REGION, 90);
    let (entries, end) = drain(&mut log.history(REGION, LogIndex(1)), 90);
    let expected: Vec<_> = (1..=90).map(|index| (index, if index < 4 { 1 } else { 3 })).collect();
    assert_eq!((entries, end), (expected, History::UpToDate));
}

#[test]
fn a_reader_returns_an_entry_once_that_lies_twice() {
    let log = open(&disk(4), 1 << 20);
    log.pin(&needing(0)).unwrap();
    puts(&log, 1..=30);
    truncate(&log, REGION, 20);
    for index in 1..=60 {
        put(&log, OTHER, index, 900).unwrap();
    }
    let appended = log.reappend_tails(log.head().file, 1 << 20, &|_| LogIndex(u64::MAX)).unwrap();
    assert!(appended > 0);
    puts(&log, 31..=40);
    truncate(&log, REGION, 40);
    let (entries, _) = drain(&mut log.history(REGION, LogIndex(1)), 40);
    assert_eq!(entries, (1..=40).map(|index| (index, 1)).collect::<Vec<_>>());
}

#[test]
fn a_slow_reader_holds_no_more_than_the_bytes_of_the_window() {
    let bytes_max = 48 << 10;
    let log = open(&disk(5), bytes_max);
    log.pin(&needing(0)).unwrap();
    let mut held = 0;
    for round in 0..20 {
        puts(&log, round * 20 + 1..=round * 20 + 20);
        truncate(&log, REGION, round * 20 + 20);
        remove_unneeded(&log);
        let pinned = log.pinned();
        held = held.max(pinned.bytes);
        let files = log.files().into_iter();
        let sealed =
            files.filter(|info| matches!(info.kind, FileKind::Segment { sealed: true, .. }));
        let bytes: u64 = sealed.map(|info| info.bytes).sum();
        assert!(bytes <= bytes_max, "{bytes} bytes stay");
    }
    assert!(held > bytes_max / 2, "{held} bytes of the window were used");
    assert_eq!(drain(&mut log.history(REGION, LogIndex(1)), 400).1, History::TooOld);
    // A reader that needs the latest is not concerned.
    let (entries, end) = drain(&mut log.history(REGION, LogIndex(381)), 400);
    assert_eq!((entries.len(), end), (20, History::UpToDate));

    log.set_history_bytes_max(0);
    remove_unneeded(&log);
    assert_eq!(log.pinned().from, None);
}

#[test]
fn after_an_open_segments_stay_until_the_needs_of_readers_are_known() {
    let disk = disk(6);
    let log = open(&disk, 1 << 20);
    log.pin(&needing(0)).unwrap();
    puts(&log, 1..=60);
    truncate(&log, REGION, 60);
    drop(log);
    let log = open(&disk, 1 << 20);
    assert_eq!(remove_unneeded(&log), []);
    let (entries, _) = drain(&mut log.history(REGION, LogIndex(1)), 60);
    assert_eq!(entries.len(), 60);
    log.pin(&Pinned::new()).unwrap();
    assert!(!remove_unneeded(&log).is_empty());
}

#[test]
fn a_reader_of_a_replica_that_began_with_a_snapshot_learns_that_it_is_too_old() {
    let log = open(&disk(7), 1 << 20);
    log.pin(&needing(0)).unwrap();
    puts(&log, 1..=30);
    append(&log, vec![Record::Mark(REGION, Mark::Start(LogIndex(50), Term(1)))]);
    puts(&log, 51..=90);
    truncate(&log, REGION, 90);
    let (entries, end) = drain(&mut log.history(REGION, LogIndex(1)), 90);
    assert_eq!(entries, (1..=30).map(|index| (index, 1)).collect::<Vec<_>>());
    assert_eq!(end, History::TooOld);
    let (entries, end) = drain(&mut log.history(REGION, LogIndex(51)), 90);
    assert_eq!((entries.len(), end), (40, History::UpToDate));
}

#[test]
fn what_a_region_committed_before_it_left_is_read_and_nothing_after() {
    let log = open(&disk(8), 1 << 20);
    log.pin(&needing(0)).unwrap();
    puts(&log, 1..=30);
    append(&log, vec![one(REGION, 31, 1, 31), Record::Mark(REGION, Mark::Destroy)]);
    let (entries, end) = drain(&mut log.history(REGION, LogIndex(1)), 30);
    assert_eq!(entries, (1..=30).map(|index| (index, 1)).collect::<Vec<_>>());
    assert_eq!(end, History::TooOld);
}

/// One region as Raft leaves it: entries of rising terms, of which those above the commit index may be
/// replaced.
#[derive(Default)]
struct Group {
    term: u64,
    committed: u64,
    truncated: u64,
    /// Term of each entry; the first has index 1.
    terms: Vec<u64>,
}

impl Group {
    fn last(&self) -> u64 {
        self.terms.len() as u64
    }

    fn step(&mut self, log: &Log, region: RegionId, random: &mut Prng) {
        let mut records = Vec::new();
        match random.below(8) {
            0 => {
                self.term += 1;
                let kept = self.committed + random.below(self.last() - self.committed + 1);
                self.terms.truncate(kept as usize);
                let count = 1 + random.below(5);
                records.extend(self.grow(region, count));
            }
            1..=4 => {
                let count = 1 + random.below(9);
                records.extend(self.grow(region, count));
            }
            5 | 6 => {
                self.committed += random.below(self.last() - self.committed + 1);
                records.push(commit(region, self.committed, self.term));
            }
            _ => {
                let upto = self.truncated + random.below(self.committed - self.truncated + 1);
                if upto > self.truncated {
                    self.truncated = upto;
                    let term = Term(self.terms[upto as usize - 1]);
                    records.push(commit(region, self.committed, self.term));
                    let mark = Mark::TruncatePrefix(LogIndex(upto), term);
                    records.push(Record::Mark(region, mark));
                }
            }
        }
        append(log, records);
    }

    fn grow(&mut self, region: RegionId, count: u64) -> Vec<Record> {
        let grow = |_| {
            self.terms.push(self.term);
            one(region, self.last(), self.term, self.last())
        };
        (0..count).map(grow).collect()
    }
}

fn run(seed: u64) {
    let mut random = Prng::new(seed);
    let mut disk = disk(seed);
    let mut log = open(&disk, 1 << 20);
    let regions = [REGION, OTHER, RegionId(3)];
    let mut groups: BTreeMap<RegionId, Group> = BTreeMap::new();
    let mut read: BTreeMap<RegionId, u64> = regions.iter().map(|region| (*region, 0)).collect();
    let pins = |read: &BTreeMap<RegionId, u64>| -> Pinned {
        read.iter().map(|(region, upto)| (*region, LogIndex(*upto))).collect()
    };
    log.pin(&pins(&read)).unwrap();
    for _ in 0..400 {
        let region = regions[random.below(3) as usize];
        let group = groups.entry(region).or_insert_with(|| Group { term: 1, ..Group::default() });
        match random.below(20) {
            0..=13 => group.step(&log, region, &mut random),
            14..=16 if log.region(region).is_some() => {
                let upto = read.entry(region).or_default();
                let mut reader = log.history(region, LogIndex(*upto + 1));
                for _ in 0..random.below(4) {
                    let bytes_max = 1 + random.below(9000) as usize;
                    match reader.read(LogIndex(group.committed), bytes_max).unwrap() {
                        History::Entries(entries) => {
                            for entry in entries {
                                *upto += 1;
                                let is = one(region, *upto, group.terms[*upto as usize - 1], *upto);
                                let Record::Entry(is) = is else { unreachable!() };
                                assert_eq!((entry.index, entry.term), (is.index, is.term));
                                assert_eq!(entry.payload, is.payload, "STELE_SEED={seed}");
                            }
                            assert!(*upto <= group.committed, "STELE_SEED={seed}");
                        }
                        History::UpToDate => {
                            assert_eq!(*upto, group.committed, "STELE_SEED={seed}");
                        }
                        History::TooOld => panic!("{region} above {upto}; STELE_SEED={seed}"),
                    }
                }
            }
            14..=17 => drop(log.pin(&pins(&read)).unwrap()),
            18 => {
                remove_unneeded(&log);
                let upto = |region| LogIndex(groups.get(&region).map_or(0, |it| it.committed));
                log.reappend_tails(log.head().file, 20_000, &upto).unwrap();
            }
            _ => {
                disk.crash_now();
                disk = disk.restart(random.draw());
                log = open(&disk, 1 << 20);
            }
        }
    }
}

#[test]
fn random_readers_return_what_was_committed() {
    let first = seed();
    let rounds = if std::env::var("STELE_SEED").is_ok() { 1 } else { 60 };
    (first..first + rounds).for_each(run);
}
