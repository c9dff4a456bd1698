//! Tests of stores that copy another store's tables instead of writing their own.

#![cfg(feature = "rocksdb")]
use std::path::{Path, PathBuf};
use stele_lab::designs::rocks::{Persistence, RockStore, Settings};
use stele_storage::{EngineView, LogStore, Pair, ScanOptions, StateMachine};
use stele_types::*;
use tempfile::TempDir;

const DATA: RegionId = RegionId(2);
const JOURNAL: RegionId = RegionId(0);
const TERM: Term = Term(1);
/// Number of entries after which their applied bytes are due for shipment.
const SHIPPED: u64 = 40;
const SLICE_BYTES: u64 = 1 << 20;

const NAME: [u8; 2] = [keyspace::LOCAL, b'n'];

struct Group {
    dir: TempDir,
    settings: Settings,
    first: RockStore,
    second: RockStore,
    last: u64,
}

fn entry(region: RegionId, index: u64, key: &[u8], value: &[u8]) -> Vec<Record> {
    let mut command = CommandBuilder::new();
    command.put(key, value, 0).unwrap();
    let (index, payload) = (LogIndex(index), command.build().bytes().clone());
    let entry = EntryRecord { region, term: TERM, index, is_command: true, payload };
    let hard_state = HardState { term: TERM, vote: 0, commit: index };
    vec![Record::Entry(entry), Record::HardState(region, hard_state)]
}

fn apply(store: &RockStore, region: RegionId, upto: u64) {
    let from = store.progress(region).unwrap().applied.next();
    let entries = store.entries(region, from, LogIndex(upto + 1), usize::MAX).unwrap();
    store.apply(region, &entries).unwrap();
}

fn maintain(store: &RockStore) {
    store.maintain(SLICE_BYTES).unwrap();
}

fn contents(store: &RockStore) -> (Vec<Pair>, Pair) {
    let view = store.view().unwrap();
    let range = KeyRange::new(vec![keyspace::LOCAL + 1], Vec::new());
    let pairs = view.scan(&ScanOptions::new(range, usize::MAX)).unwrap();
    (pairs, view.get(&NAME).unwrap().unwrap())
}

fn checkpointed(store: &RockStore) -> u64 {
    store.progress(DATA).unwrap().checkpointed.0
}

fn files(dir: &Path, end: &str) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|it| it.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(end)).count()
}

impl Group {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::tiny(Persistence::Tables);
        let open = |name: &str| {
            let store = RockStore::open(&dir.path().join(name), &settings).unwrap();
            let records = entry(JOURNAL, 1, &NAME, name.as_bytes());
            store.append(&LogBatch { records }).unwrap();
            apply(&store, JOURNAL, 1);
            store
        };
        let (first, second) = (open("first"), open("second"));
        Self { dir, settings, first, second, last: 0 }
    }

    /// Appends `count` entries to both stores; the first one applies them.
    fn commit(&mut self, count: u64) {
        for index in self.last + 1..=self.last + count {
            let key = [&[1][..], &(index * 7919 % 100).to_be_bytes()].concat();
            let records = entry(DATA, index, &key, &[index as u8; 1000]);
            self.first.append(&LogBatch { records: records.clone() }).unwrap();
            self.second.append(&LogBatch { records }).unwrap();
        }
        self.last += count;
        apply(&self.first, DATA, self.last);
    }

    fn commit_and_ship(&mut self) {
        self.commit(SHIPPED);
        maintain(&self.first);
        apply(&self.second, DATA, self.last);
        maintain(&self.second);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn crash(self, meanwhile: impl Fn(&Path)) -> Self {
        let path = self.path("second");
        let Self { dir, settings, first, second, last } = self;
        drop(second);
        meanwhile(&path);
        let second = RockStore::open(&path, &settings).unwrap();
        Self { dir, settings, first, second, last }
    }

    fn assert_same(&self) {
        assert_eq!(self.second.progress(DATA).unwrap().applied, LogIndex(self.last));
        let ((expected, _), (found, name)) = (contents(&self.first), contents(&self.second));
        assert!(found == expected, "{} pairs, not {}", found.len(), expected.len());
        assert_eq!(name.value, &b"second"[..], "a local record");
    }
}

fn truncate(store: &RockStore, upto: LogIndex) {
    let term = store.term(DATA, upto).unwrap();
    let records = vec![Record::Mark(DATA, Mark::TruncatePrefix(upto, term))];
    store.append(&LogBatch { records }).unwrap();
    assert_eq!(store.progress(DATA).unwrap().truncated.0, upto);
}

#[test]
fn a_follower_has_only_tables_until_its_pairs_are_read() {
    let mut group = Group::new();
    for round in 1..=4 {
        group.commit_and_ship();
        assert_eq!(checkpointed(&group.second), round * SHIPPED);
    }
    let upto = LogIndex(4 * SHIPPED);
    truncate(&group.second, upto);
    let pairs = group.path("second").join("pairs");
    assert!(group.second.is_following() && !group.first.is_following());
    assert!(files(&pairs, ".sst") > 0);
    assert_eq!((files(&pairs, ".log"), files(&pairs, "LOCK")), (0, 0), "it was never opened");
    group.commit(3);
    apply(&group.second, DATA, group.last);
    group.assert_same();
    assert!(!group.second.is_following());
    group.commit_and_ship();
    group.assert_same();
}

#[test]
fn tables_that_a_follower_has_are_not_written_again() {
    use std::os::unix::fs::MetadataExt;
    let inodes = |dir: &Path| -> Vec<u64> {
        let files = std::fs::read_dir(dir.join("pairs")).unwrap().map(|it| it.unwrap());
        let tables = files.filter(|it| it.file_name().to_string_lossy().ends_with(".sst"));
        tables.map(|it| it.metadata().unwrap().ino()).collect()
    };
    let mut group = Group::new();
    group.commit_and_ship();
    let before = inodes(&group.path("second"));
    group.commit_and_ship();
    let after = inodes(&group.path("second"));
    assert!(before.iter().any(|inode| after.contains(inode)), "{before:?} {after:?}");
}

/// Every store numbers its tables independently.
#[test]
fn a_table_of_the_same_name_and_length_by_another_store_is_not_taken_for_the_senders() {
    let mut group = Group::new();
    group.commit(SHIPPED);
    maintain(&group.first);
    apply(&group.second, DATA, group.last);
    let here = group.path("second").join("pairs");
    let shipment = std::fs::read_dir(group.path("first")).unwrap().map(|it| it.unwrap());
    let shipment = shipment.map(|it| it.path()).find(|it| it.to_string_lossy().contains("ship-"));
    let mut planted = 0;
    for file in std::fs::read_dir(shipment.unwrap()).unwrap().map(|it| it.unwrap()) {
        if file.file_name().to_string_lossy().ends_with(".sst") {
            let bytes = file.metadata().unwrap().len() as usize;
            std::fs::write(here.join(file.file_name()), vec![0; bytes]).unwrap();
            planted += 1;
        }
    }
    assert!(planted > 0);
    maintain(&group.second);
    assert_eq!(checkpointed(&group.second), group.last);
    group.assert_same();
}

#[test]
fn a_follower_takes_nothing_that_it_has_not_applied() {
    let mut group = Group::new();
    group.commit_and_ship();
    group.commit(SHIPPED);
    apply(&group.second, DATA, SHIPPED + 1);
    maintain(&group.first);
    maintain(&group.second);
    assert_eq!(checkpointed(&group.second), SHIPPED);
    apply(&group.second, DATA, group.last);
    maintain(&group.second);
    assert_eq!(checkpointed(&group.second), group.last);
    group.assert_same();
}

#[test]
fn a_follower_that_crashed_has_all_that_is_committed() {
    let mut group = Group::new();
    group.commit(SHIPPED / 8);
    apply(&group.second, DATA, group.last);
    assert!(group.second.is_following());
    group = group.crash(|_| {});
    group.assert_same();

    group = group.crash(|_| {});
    group.commit_and_ship();
    assert_eq!(checkpointed(&group.second), group.last, "it follows again");
    truncate(&group.second, LogIndex(group.last));
    group.commit(2);
    apply(&group.second, DATA, group.last);
    group = group.crash(|_| {});
    group.assert_same();
}

#[test]
fn a_crash_while_a_shipment_is_taken_leaves_the_tables_before() {
    let mut group = Group::new();
    group.commit_and_ship();
    group.commit(SHIPPED);
    apply(&group.second, DATA, group.last);
    group = group.crash(|dir| {
        let next = dir.join("pairs-new");
        std::fs::create_dir_all(&next).unwrap();
        std::fs::write(next.join("000007.sst"), b"half").unwrap();
        std::fs::create_dir_all(dir.join("ship-7")).unwrap();
    });
    let dir = group.path("second");
    assert_eq!((files(&dir, "pairs-new"), files(&dir, "ship-7")), (0, 0));
    group.assert_same();
}

/// The store's own records are written into the tables at the first open, and again after a crash.
#[test]
fn a_crash_while_taken_tables_are_opened_repeats_it() {
    let mut group = Group::new();
    group.commit_and_ship();
    let own = group.path("second").join("pairs/OWN");
    let stored = std::fs::read(&own).unwrap();
    group = group.crash(|_| {});
    assert!(!own.exists());
    group = group.crash(|dir| std::fs::write(dir.join("pairs/OWN"), &stored).unwrap());
    group.assert_same();
}

#[test]
fn how_far_a_journal_is_applied_that_only_the_sender_has_is_not_taken_over() {
    let Group { dir, settings, first, second, last } = Group::new();
    drop(second);
    let path = dir.path().join("second");
    std::fs::remove_dir_all(&path).unwrap();
    let second = RockStore::open(&path, &settings).unwrap();
    let mut group = Group { dir, settings, first, second, last };
    group.commit_and_ship();
    assert_eq!(checkpointed(&group.second), group.last, "it installed the tables");
    group = group.crash(|_| {});
    group.second.append(&LogBatch { records: entry(JOURNAL, 1, &NAME, b"second") }).unwrap();
    assert_eq!(group.second.progress(JOURNAL).unwrap().applied, LogIndex(0));
    apply(&group.second, JOURNAL, 1);
    group.assert_same();
}

#[test]
fn who_applies_first_after_following_ships_its_tables_to_the_other() {
    let mut group = Group::new();
    group.commit_and_ship();
    std::mem::swap(&mut group.first, &mut group.second);
    group.commit(1);
    assert!(!group.first.is_following(), "it leads");
    apply(&group.second, DATA, group.last);
    assert!(!group.second.is_following(), "it was leader, and has its own key-values");

    let path = group.path("first");
    let Group { dir, settings, first, second, last } = group;
    drop(second);
    let second = RockStore::open(&path, &settings).unwrap();
    let mut group = Group { dir, settings, first, second, last };
    group.commit_and_ship();
    group.commit_and_ship();
    assert!(group.second.is_following());
    assert_eq!(checkpointed(&group.second), group.last);
    assert_eq!(contents(&group.first).0, contents(&group.second).0);
    assert_eq!(contents(&group.second).1.value, &b"first"[..]);
}
