//! Scrub of stores that are large relative to a slice: runs of many slices, and damage behind damage.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::Clock;

/// Relation of the sizes as on a node: slices of 1 MiB, runs of 64 MiB, 16 MiB a second.
const SLICE_BYTES: u64 = 4 << 10;
const RUN_BYTES: u64 = 64 * SLICE_BYTES;
const RATE: u64 = 16 * SLICE_BYTES;
/// Longest pause of a store's idle maintenance.
const PAUSE_NANOS: u64 = 160_000_000;

/// Clock of one run of a process, which began at this Unix second.
#[derive(Debug)]
struct Nanos(AtomicU64, u64);

impl Clock for Nanos {
    fn monotonic_nanos(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn unix_millis(&self) -> u64 {
        self.1 * 1_000 + self.monotonic_nanos() / 1_000_000
    }
}

struct Large {
    disk: SimVfs,
    store: Store,
    clock: Arc<Nanos>,
}

fn options() -> Options {
    Options {
        memtable_bytes_max: 16 << 20,
        run_bytes_max: RUN_BYTES,
        segment_bytes_max: 1 << 20,
        block_cache_bytes_max: 0,
        // The filter and fences of no run stay in memory, as on a large store.
        index_memory_bytes_max: 0,
        scrub_bytes_per_second_max: RATE,
        ..tiny()
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:08}").into_bytes()
}

fn large(
    seed: u64,
    values: impl Iterator<Item = (u64, Vec<u8>)>,
    end: fn(&Store) -> stele_engine::Result<()>,
) -> Large {
    let (disk, clock) = (disk(seed), Arc::new(Nanos(AtomicU64::new(0), 1_000_000)));
    let vfs = Arc::new(disk.clone());
    let opened = Store::open(vfs, clock.clone(), Path::new(DIR), options(), Replay::Committed);
    let store = opened.unwrap().0;
    let values: Vec<(u64, Vec<u8>)> = values.collect();
    for (number, values) in values.chunks(500).enumerate() {
        let mut command = CommandBuilder::new();
        for (at, value) in values {
            command.put(&key(*at), value, 0).unwrap();
        }
        let payload = command.build().bytes().clone();
        let (region, term, index) = (REGION, Term(1), LogIndex(number as u64 + 1));
        let entry = EntryRecord { region, term, index, is_command: true, payload: payload.clone() };
        let hard_state = HardState { term, vote: 0, commit: index };
        let mut records = vec![Record::Entry(entry), Record::HardState(REGION, hard_state)];
        if number == 0 {
            records.insert(0, Record::Mark(REGION, Mark::Start(LogIndex(0), Term(0))));
        }
        store.append(&LogBatch { records }).unwrap();
        let entry = CommittedEntry { term, index, is_command: true, payload };
        store.apply(REGION, &[entry]).unwrap();
    }
    end(&store).unwrap();
    Large { disk, store, clock }
}

impl Large {
    /// Maintains the store as its thread does until a pass is complete. Returns the seconds it took.
    fn pass(&self) -> f64 {
        let (began, passes) = (self.clock.monotonic_nanos(), self.store.scrub_stats().passes);
        while self.store.scrub_stats().passes == passes {
            self.maintain();
            let seconds = (self.clock.monotonic_nanos() - began) / 1_000_000_000;
            assert!(seconds < 2_000, "{:?}", self.store.scrub_stats());
        }
        (self.clock.monotonic_nanos() - began) as f64 / 1e9
    }

    fn maintain(&self) {
        let done = self.store.maintain(SLICE_BYTES).unwrap();
        let goes_on = done.more && done.bytes > 0 || done.scrubbed_bytes > 0;
        let nanos = if goes_on { 100_000 } else { PAUSE_NANOS };
        self.clock.0.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Maintains the store until its pass has checked this part of its bytes.
    fn scrub_up_to(&self, percent: u64) {
        while self.store.scrub_stats().passes == 0 {
            let stats = self.store.scrub_stats();
            if stats.pass_bytes > 0 && stats.pass_checked_bytes * 100 >= percent * stats.pass_bytes
            {
                return;
            }
            self.maintain();
        }
        panic!("the pass is complete: {:?}", self.store.scrub_stats());
    }

    fn restart(self) -> Self {
        let Self { disk, store, clock } = self;
        drop(store);
        Self::open(disk, &clock)
    }

    fn open(disk: SimVfs, clock: &Nanos) -> Self {
        let clock = Arc::new(Nanos(AtomicU64::new(0), clock.unix_seconds()));
        let vfs = Arc::new(disk.clone());
        let opened = Store::open(vfs, clock.clone(), Path::new(DIR), options(), Replay::Committed);
        Self { disk, store: opened.unwrap().0, clock }
    }

    fn place(&self, at: u64) -> (PathBuf, u64) {
        let found = self.store.index().get(&key(at)).unwrap();
        let Some(stele_index::Found::Value { value: ValueRef::At(at), .. }) = found else {
            panic!("key {at} has no value in a file");
        };
        let name = format!("{:08x}.val", at.file.0);
        let path = self.disk.paths().into_iter().find(|path| path.ends_with(&name));
        (path.unwrap(), u64::from(at.offset))
    }

    /// Damages the block of a run that holds a key.
    fn damage_block_of(&self, at: u64) {
        let version = self.store.index().version();
        let (mut offset, mut place) = (0, None);
        for run in version.runs() {
            inspect_run_items(&self.disk, run.path(), &mut |item| match item {
                RunItem::Block { offset: block, .. } => offset = block,
                RunItem::Entry { key: held, .. } if held == key(at) => {
                    place = Some((run.path().to_path_buf(), offset + 40));
                }
                _ => {}
            })
            .unwrap();
        }
        let (path, offset) = place.unwrap();
        self.disk.inject(Fault::FlipBit { path, offset, bit: 3 }).unwrap();
    }

    fn lost(&self) -> Vec<Bytes> {
        self.store.lost_values(10).into_iter().map(|lost| lost.key).collect()
    }
}

// 10 GiB in slices of 1 MiB at 16 MiB/s take 640 s. Here all three are 256 times smaller, and so is a
// store of 1.5 GiB: of each run, what is not a block fills many slices.
#[test]
fn a_pass_over_runs_whose_filter_and_fences_exceed_a_slice_ends_in_the_time_of_its_budget() {
    let values = (0..60_000).map(|at| match at % 60 {
        0 => (at, vec![at as u8; 4 << 10]),
        _ => (at, vec![at as u8; 20]),
    });
    let large = large(41, values, Store::compact);
    let version = large.store.index().version();
    let run_bytes: u64 = version.runs().map(|run| run.meta().bytes).sum();
    assert!(version.runs().any(|run| run.meta().bytes > 32 * SLICE_BYTES));
    drop(version);
    let (path, offset) = large.place(59_940);
    large.disk.inject(Fault::FlipBit { path, offset, bit: 1 }).unwrap();
    let seconds = large.pass();
    let stats = large.store.scrub_stats();
    assert!(stats.bytes > run_bytes + (4 << 20), "{stats:?}");
    let scheduled = stats.bytes as f64 / RATE as f64;
    assert!(seconds <= 1.1 * scheduled + 1.0, "{seconds} s for {scheduled}: {stats:?}");
    assert!(seconds >= 0.9 * scheduled - 1.0, "{seconds} s for {scheduled}: {stats:?}");
    assert_eq!(large.lost(), [key(59_940)]);
    assert_eq!((stats.cut_short, stats.pass_checked_bytes), (0, stats.pass_bytes));
    assert!(stats.age_s as f64 <= seconds + 1.0);
}

#[test]
fn scattered_small_values_count_as_the_blocks_that_are_read_for_them() {
    const VALUES: u64 = 3_000;
    // In the order of their arrival: the values of neighbouring keys are far from each other.
    let values = (0..VALUES).map(|at| at * 1_009 % VALUES);
    let values = values.map(|at| (at, vec![at as u8; if at % 2 == 0 { 100 } else { 2_000 }]));
    let large = large(42, values, Store::flush);
    let value_bytes = VALUES / 2 * 2_100;
    large.pass();
    let stats = large.store.scrub_stats();
    assert!(stats.pass_bytes < 2 * value_bytes, "{stats:?}");
    assert!(stats.bytes > VALUES * 4096 * 9 / 10, "{stats:?}");
}

#[test]
fn what_follows_a_damaged_block_is_scrubbed_though_the_block_is_never_covered() {
    let values = (0..3_000).map(|at| (at, vec![at as u8; 400]));
    let large = large(43, values, Store::compact);
    large.pass();
    let path = {
        let version = large.store.index().version();
        version
            .runs()
            .min_by(|a, b| a.meta().first_key.cmp(&b.meta().first_key))
            .unwrap()
            .path()
            .to_path_buf()
    };
    large.disk.inject(Fault::FlipBit { path, offset: 40, bit: 3 }).unwrap();
    let (path, offset) = large.place(2_999);
    large.disk.inject(Fault::FlipBit { path, offset, bit: 1 }).unwrap();
    large.clock.0.fetch_add(100_000 * 1_000_000_000, Ordering::Relaxed);
    large.pass();
    let stats = large.store.scrub_stats();
    assert_eq!(large.store.lost_ranges().len(), 1, "{stats:?}");
    assert_eq!(large.lost(), [key(2_999)]);
    assert!(stats.cut_short <= 2, "{stats:?}");
}

#[test]
fn damage_after_the_runs_were_read_again_is_found_in_the_same_pass() {
    let values = (0..3_000).map(|at| (at, vec![at as u8; 400]));
    let large = large(47, values, Store::compact);
    large.scrub_up_to(20);
    [900, 2_700].into_iter().for_each(|at| large.damage_block_of(at));
    large.scrub_up_to(50);
    assert_eq!(large.store.lost_ranges().len(), 2, "the runs were read again");
    [2_100, 2_990].into_iter().for_each(|at| large.damage_block_of(at));
    let (path, offset) = large.place(2_400);
    large.disk.inject(Fault::FlipBit { path, offset, bit: 1 }).unwrap();
    let mut checked_bytes = 0;
    while large.store.scrub_stats().passes == 0 {
        large.maintain();
        let stats = large.store.scrub_stats();
        assert!(stats.pass_checked_bytes >= checked_bytes, "the pass was given up: {stats:?}");
        checked_bytes = stats.pass_checked_bytes;
    }
    assert_eq!(large.store.lost_ranges().len(), 4, "{:?}", large.store.scrub_stats());
    assert_eq!(large.lost(), [key(2_400)]);
}

#[test]
fn damage_that_a_read_meets_is_found_while_the_scrub_pauses_after_failed_reads() {
    let values = (0..3_000).map(|at| (at, vec![at as u8; 400]));
    let large = large(48, values, Store::compact);
    large.scrub_up_to(20);
    for nth in 1..=200 {
        let path_contains = "/index/".to_owned();
        large.disk.inject(Fault::ReadFails { path_contains, nth }).unwrap();
    }
    (0..50).for_each(|_| large.maintain());
    large.disk.clear_faults();
    let (stats, began) = (large.store.scrub_stats(), large.clock.monotonic_nanos());
    (0..50).for_each(|_| large.maintain());
    assert_eq!(large.store.scrub_stats().bytes, stats.bytes, "the scrub pauses: {stats:?}");
    large.damage_block_of(1_500);
    assert!(large.store.view().unwrap().get(&key(1_500)).unwrap_err().is_damage());
    while large.store.lost_ranges().is_empty() {
        large.maintain();
        let seconds = (large.clock.monotonic_nanos() - began) / 1_000_000_000;
        assert!(seconds < 30, "after {seconds} s: {:?}", large.store.scrub_stats());
    }
}

// 10 GiB, in the relation of the sizes. A pass takes twice 640 s here, because the blocks of the device
// are not smaller too: each value of a slice's size lies in two.
#[test]
fn a_pass_over_a_store_that_is_restarted_again_and_again_ends_in_the_time_of_its_budget() {
    let values = (0..10_000).map(|at| (at, vec![at as u8; 4 << 10]));
    let mut large = large(44, values, Store::compact);
    let without_restart = Large::open(large.disk.fork(), &large.clock);
    without_restart.pass();
    let needed_bytes = without_restart.store.scrub_stats().bytes;
    let (mut read_bytes, mut restarts) = (0, 0);
    let began_s = large.clock.unix_seconds();
    for percent in (10..100).step_by(10) {
        large.scrub_up_to(percent);
        read_bytes += large.store.scrub_stats().bytes;
        large = large.restart();
        restarts += 1;
        let age_s = large.clock.unix_seconds() - began_s;
        assert!(large.store.scrub_stats().age_s.abs_diff(age_s) <= restarts, "after {age_s} s");
    }
    large.pass();
    let stats = large.store.scrub_stats();
    read_bytes += stats.bytes;
    assert_eq!(stats.pass_checked_bytes, stats.pass_bytes);
    // A restart repeats at most what is read between two records: in ten seconds, or a hundredth.
    let repeated_bytes = restarts * (12 * RATE).max(needed_bytes / 80);
    let expected_bytes = needed_bytes * 99 / 100..=needed_bytes + repeated_bytes;
    assert!(expected_bytes.contains(&read_bytes), "{read_bytes} of {expected_bytes:?} {stats:?}");
    let seconds = large.clock.unix_seconds() - began_s;
    assert!(seconds <= read_bytes * 11 / 10 / RATE + restarts, "{seconds} s for {read_bytes}");
    // The next pass begins when the interval has passed, whether or not the store restarts.
    (0..100).for_each(|_| large.maintain());
    large = large.restart();
    (0..100).for_each(|_| large.maintain());
    let stats = large.store.scrub_stats();
    assert_eq!((stats.bytes, stats.pass_checked_bytes), (0, stats.pass_bytes));
}

#[test]
fn a_pass_begins_again_where_the_record_of_its_progress_is_damaged() {
    let values = (0..2_000).map(|at| (at, vec![at as u8; 4 << 10]));
    let large = large(45, values, Store::compact);
    large.scrub_up_to(60);
    large.disk.corrupt(Path::new(DIR).join("SCRUB"), 30, b"7").unwrap();
    let large = large.restart();
    large.pass();
    let stats = large.store.scrub_stats();
    assert!(stats.bytes >= stats.pass_bytes, "{stats:?}");
}

#[test]
fn damage_that_is_not_repaired_is_found_again_after_a_restart() {
    let values = (0..4_000).map(|at| (at, vec![at as u8; 4 << 10]));
    let large = large(46, values, Store::compact);
    let (path, offset) = large.place(1_600);
    large.disk.inject(Fault::FlipBit { path, offset, bit: 1 }).unwrap();
    large.scrub_up_to(80);
    assert_eq!(large.lost(), [key(1_600)]);
    let large = large.restart();
    let checked = large.store.scrub_stats();
    let percent = checked.pass_checked_bytes * 100 / checked.pass_bytes.max(1);
    assert!((10..=40).contains(&percent), "{checked:?}");
    assert_eq!(large.lost(), [] as [Bytes; 0]);
    large.pass();
    assert_eq!(large.lost(), [key(1_600)]);
}
