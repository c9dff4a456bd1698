use super::record::SpeedRecord;
use super::state::{SpeedState, Window};
use super::*;
use crate::Millis;
use crate::store::StoreReport;
use stele_types::{DeviceSpeed, OpCost, Prng};

const DATA_AFTER_MILLIS: u64 = 600_000;
const FAST: u8 = 22;

struct Played {
    state: SpeedState,
    now: Millis,
}

impl Played {
    fn new() -> Self {
        let state = SpeedState::new(SpeedClass(FAST), true);
        let mut played = Self { state, now: Millis(1_000_000) };
        played.seconds(FAST, 121);
        played
    }

    fn window(&mut self, window: Window) {
        self.now = Millis(self.now.0 + 1000);
        self.state.note(window, DATA_AFTER_MILLIS, self.now);
    }

    fn note(&mut self, class: u8) -> u8 {
        self.window(Window {
            class: SpeedClass(class),
            is_measured: true,
            is_recent: false,
            is_receiving: false,
        });
        self.state.class.0
    }

    /// Reports the class for so many seconds; returns the class that is then held.
    fn seconds(&mut self, class: u8, seconds: u64) -> u8 {
        (0..seconds).fold(self.state.class.0, |_, _| self.note(class))
    }
}

#[test]
fn classes_are_a_factor_of_the_square_root_of_two_apart() {
    let table = [(0, 0), (1, 0), (2, 2), (3, 3), (4, 4), (5, 4), (6, 5), (1000, 19), (1024, 20)];
    for (per_second, class) in table {
        assert_eq!(SpeedClass::of(per_second), SpeedClass(class), "{per_second} a second");
    }
    for class in 2..=126 {
        let bound = SpeedClass(class).per_second();
        let found = SpeedClass::of(bound + 1).0;
        assert!(found == class || found == class + 1 && class < 6, "class {class}: {bound}");
    }
    assert_eq!(SpeedClass::of(u64::MAX), SpeedClass(127));
}

#[test]
fn a_class_falls_after_two_seconds_of_slow_windows_to_the_highest_of_them() {
    let mut store = Played::new();
    assert_eq!(store.note(14), FAST, "one window is not enough");
    assert_eq!(store.note(16), 16);
    // A window at the present class ends the streak.
    assert_eq!([10, 16, 10, 17].map(|class| store.note(class)), [16; 4]);
    assert_eq!([10, 12].map(|class| store.note(class)), [16, 12]);
}

#[test]
fn a_class_falls_on_with_the_next_window_when_the_first_one_was_partly_fast() {
    let mut store = Played::new();
    assert_eq!([20, 12, 12].map(|class| store.note(class)), [FAST, 20, 12]);
    assert_eq!([10, 8, 9, 9].map(|class| store.note(class)), [12, 10, 9, 9]);
}

#[test]
fn a_class_rises_after_a_minute_of_fast_windows_to_the_lowest_of_them() {
    let mut store = Played::new();
    store.seconds(10, 2);
    assert_eq!(store.seconds(20, 58), 10);
    assert_eq!(store.note(18), 10);
    assert_eq!(store.note(24), 18);
    // A window at the present class starts the minute again.
    store.seconds(22, 50);
    assert_eq!(store.seconds(18, 1), 18);
    assert_eq!(store.seconds(22, 59), 18);
    assert_eq!(store.seconds(22, 1), 22);
}

#[test]
fn a_store_that_turns_fast_and_slow_every_twenty_seconds_stays_slow() {
    let mut store = Played::new();
    let mut changes = 0;
    for round in 0..60 {
        let before = store.state.class;
        store.seconds(if round % 2 == 0 { 12 } else { FAST }, 20);
        changes += u64::from(store.state.class != before);
    }
    assert_eq!((store.state.class.0, changes), (12, 1));
    assert_eq!(store.state.data_class.0, 12, "half of the time it is slow, for twenty minutes");
}

#[test]
fn a_pause_of_the_reports_does_not_count_as_slow_or_fast() {
    let mut store = Played::new();
    store.note(10);
    store.now = Millis(store.now.0 + 40_000);
    assert_eq!(store.note(10), FAST);
    assert_eq!(store.note(10), 10);
    store.note(20);
    store.now = Millis(store.now.0 + 100_000);
    assert_eq!(store.note(20), 10);
}

#[test]
fn data_follows_only_a_class_that_has_lasted_in_both_directions() {
    let mut store = Played::new();
    store.seconds(14, 300);
    assert_eq!((store.state.class.0, store.state.data_class.0), (14, FAST));
    store.seconds(FAST, 61);
    assert_eq!((store.state.class.0, store.state.data_class.0), (FAST, FAST));
    store.seconds(14, 400);
    store.seconds(12, 201);
    assert_eq!(store.state.data_class.0, FAST);
    store.seconds(12, 2);
    assert_eq!((store.state.class.0, store.state.data_class.0), (12, 14), "the nearest class");
    store.seconds(FAST, 650);
    assert_eq!((store.state.class.0, store.state.data_class.0), (FAST, 14));
    store.seconds(FAST, 20);
    assert_eq!(store.state.data_class.0, FAST);
}

#[test]
fn a_new_store_that_is_faster_than_its_estimate_gets_its_share_of_data_at_once() {
    let state = SpeedState::new(SpeedClass(12), false);
    let mut store = Played { state, now: Millis(1_000_000) };
    // The estimate of a start beside other writes to the device.
    for _ in 0..300 {
        store.window(Window {
            class: SpeedClass(12),
            is_measured: false,
            is_recent: false,
            is_receiving: false,
        });
    }
    assert_eq!((store.seconds(18, 61), store.state.data_class.0), (18, 18));
    assert_eq!((store.seconds(14, 2), store.state.data_class.0), (14, 18), "no lower one");
    assert_eq!((store.seconds(FAST, 61), store.state.data_class.0), (FAST, 18), "no longer new");
    // The next leader of the group knows that it has measured.
    let record = SpeedRecord::of(&store.state, store.now, 1_000);
    store.state = record.state(store.now, 1_000);
    assert_eq!((store.seconds(FAST, 10), store.state.data_class.0), (FAST, 18));
}

#[test]
fn receiving_a_snapshot_does_not_make_a_store_slow_but_ten_times_slower_shows() {
    let mut store = Played::new();
    let receiving = |class| Window {
        class: SpeedClass(class),
        is_measured: true,
        is_recent: false,
        is_receiving: true,
    };
    (0..30).for_each(|_| store.window(receiving(FAST - 4)));
    assert_eq!(store.state.class.0, FAST);
    (0..30).for_each(|_| store.window(receiving(FAST - 7)));
    assert_eq!(store.state.class.0, FAST - 3);
    // Fast windows count as they are: receiving does not hide that a store is fast.
    (0..61).for_each(|_| store.window(receiving(FAST)));
    assert_eq!(store.state.class.0, FAST);
}

/// A report contains writes of the last ten seconds: with few writes, those of a snapshot that has ended.
#[test]
fn an_idle_store_that_received_a_snapshot_keeps_its_class() {
    let mut store = Played::new();
    store.window(Window {
        class: SpeedClass(FAST - 3),
        is_measured: true,
        is_recent: false,
        is_receiving: true,
    });
    assert_eq!(store.seconds(FAST - 3, 10), FAST);
    let idle = Window {
        class: SpeedClass(FAST),
        is_measured: false,
        is_recent: false,
        is_receiving: false,
    };
    (0..10).for_each(|_| store.window(idle));
    assert_eq!(store.seconds(FAST - 3, 2), FAST - 3, "its own writes are slow");

    let mut store = Played::new();
    let many = |is_receiving| Window {
        class: SpeedClass(FAST - 3),
        is_measured: true,
        is_recent: true,
        is_receiving,
    };
    (0..3).for_each(|second| store.window(many(second == 0)));
    assert_eq!(store.state.class.0, FAST, "they wait for what was received");
    (0..2).for_each(|_| store.window(many(false)));
    assert_eq!(store.state.class.0, FAST - 3, "many writes are all later");
}

#[test]
fn an_estimate_sets_the_first_class_and_nothing_after_a_measurement() {
    let estimate = |class| Window {
        class: SpeedClass(class),
        is_measured: false,
        is_recent: false,
        is_receiving: false,
    };
    let mut store = Played::new();
    store.state = SpeedState::new(SpeedClass(10), false);
    (0..70).for_each(|_| store.window(estimate(14)));
    assert_eq!(store.state.class.0, 14, "nothing better is known");
    assert_eq!(store.seconds(12, 2), 12);
    (0..70).for_each(|_| store.window(estimate(20)));
    (0..70).for_each(|_| store.window(estimate(8)));
    assert_eq!(store.state.class.0, 12);
}

#[test]
fn a_write_under_way_counts_by_its_age() {
    let held = Some(SpeedClass(FAST));
    let report = |age: u64, writes| StoreReport {
        append_age_ms: age,
        device: DeviceSpeed {
            write: OpCost { fixed_nanos: 500_000, picos_per_byte: 0 },
            writes,
            ..DeviceSpeed::default()
        },
        ..StoreReport::default()
    };
    let class = |age, held| Window::of(&report(age, 5), 16 << 10, held).unwrap().class.0;
    assert_eq!(class(0, held), 21);
    assert_eq!(class(999, held), 21, "a large write may last so long");
    assert_eq!(class(1000, held), 0);
    assert_eq!(class(60_000, held), 0);
    assert_eq!(class(3_000, Some(SpeedClass(0))), 21, "four operations of a slow store");
    assert_eq!(class(60_000, None), 21);
    // A store that hangs says so without a measurement.
    assert!(Window::of(&report(1000, 0), 16 << 10, held).unwrap().is_measured);
    assert!(!Window::of(&report(0, 0), 16 << 10, held).unwrap().is_measured);
    let unknown = StoreReport { append_age_ms: 2000, ..StoreReport::default() };
    assert_eq!(Window::of(&unknown, 16 << 10, None), None);
    assert_eq!(Window::of(&unknown, 16 << 10, held).unwrap().class.0, 0);
}

#[test]
fn the_next_leader_goes_on_with_the_classes_and_with_the_wait_of_the_data() {
    let mut store = Played::new();
    store.seconds(14, 500);
    let record = SpeedRecord::of(&store.state, store.now, 5000);
    assert_eq!(record.differs, Some((4502, SpeedClass(14))));
    let record = SpeedRecord::decode(&record.encode()).unwrap();
    // Another monotonic clock, and 60 s without a leader.
    let mut next = Played { state: record.state(Millis(7), 5060), now: Millis(7) };
    assert_eq!((next.state.class.0, next.state.data_class.0), (14, FAST));
    assert_eq!(next.seconds(14, 40), 14);
    assert_eq!(next.state.data_class.0, FAST);
    next.seconds(14, 3);
    assert_eq!(next.state.data_class.0, 14);
}

fn defined(windows: &[u8]) -> Vec<u8> {
    let mut held = windows[0];
    let (mut out, mut start) = (vec![held], 1);
    for now in 1..windows.len() {
        // A streak begins after the last window that it does not contain.
        let is_new = |window: u8| (window < held) != (windows[now] < held) || window == held;
        let streak = (start..=now).rev().take_while(|at| !is_new(windows[*at])).count();
        let seen = &windows[now + 1 - streak..=now];
        let next = match windows[now].cmp(&held) {
            std::cmp::Ordering::Less if streak >= 2 => seen.iter().max(),
            std::cmp::Ordering::Greater if streak >= 60 => seen.iter().min(),
            _ => None,
        };
        if let Some(next) = next {
            // The last window begins the next fall if it is lower than the class.
            (held, start) = (*next, now + usize::from(windows[now] >= *next));
        }
        out.push(held);
    }
    out
}

#[test]
fn random_windows_move_the_class_as_defined() {
    for seed in 0..200 {
        let mut draw = Prng::new(seed);
        let (mut windows, mut base) = (Vec::new(), 20);
        for _ in 0..600 {
            if draw.below(70) == 0 {
                base = 10 + draw.below(14) as u8;
            }
            windows.push(base + draw.below(3) as u8);
        }
        let mut store = Played::new();
        store.state = SpeedState::new(SpeedClass(windows[0]), true);
        let held: Vec<u8> = windows.iter().map(|class| store.note(*class)).collect();
        assert_eq!(held, defined(&windows), "seed {seed}");
    }
}

#[test]
fn an_idle_store_that_was_slow_measures_once_a_minute_until_it_is_as_fast_as_its_probe() {
    let mut store = Played::new();
    let idle = Window {
        class: SpeedClass(FAST),
        is_measured: false,
        is_recent: false,
        is_receiving: false,
    };
    store.window(idle);
    assert!(!store.state.take_measurement(store.now), "its class is that of its probe");
    assert_eq!(store.seconds(10, 3), 10);
    let mut asked = Vec::new();
    for second in 0..200 {
        // A measurement is the newest for ten seconds.
        let is_measured = asked.last().is_some_and(|last| second - last <= 10);
        store.window(Window { is_measured, ..idle });
        if store.state.take_measurement(store.now) {
            asked.push(second);
        }
    }
    assert_eq!(asked, [59, 129], "a minute after the last write, then after the last measurement");
    assert_eq!(store.state.class.0, FAST);
    // A device that is still slow stays slow, and is measured on.
    assert_eq!(store.seconds(10, 3), 10);
    let mut count = 0;
    for _ in 0..300 {
        let is_due = store.state.take_measurement(store.now);
        count += u64::from(is_due);
        store.window(match is_due {
            true => Window { class: SpeedClass(10), is_measured: true, ..idle },
            false => idle,
        });
    }
    assert_eq!((count, store.state.class.0), (4, 10));
}

/// A class that rises or falls moves leaders and data, which writes to the device for some seconds. So does
/// the first second.
#[test]
fn an_idle_store_that_is_a_class_slower_while_it_works_changes_its_class_once() {
    let mut store = Played::new();
    let idle = Window {
        class: SpeedClass(FAST),
        is_measured: false,
        is_recent: false,
        is_receiving: false,
    };
    let (mut works_until, mut measures_until, mut changes) = (4, 0, 0);
    for second in 0..1800 {
        let held = store.state.class;
        match second {
            _ if second < works_until => drop(store.note(FAST - 1)),
            _ => store.window(Window { is_measured: second < measures_until, ..idle }),
        }
        if store.state.take_measurement(store.now) {
            measures_until = second + 10;
        }
        if store.state.class != held {
            (changes, works_until) = (changes + 1, second + 4);
        }
    }
    assert_eq!((changes, store.state.class.0), (1, FAST - 1));
}

#[test]
fn a_measurement_on_demand_raises_a_class_only_by_two_or_more() {
    let mut store = Played::new();
    let idle = Window {
        class: SpeedClass(FAST),
        is_measured: false,
        is_recent: false,
        is_receiving: false,
    };
    let measured = |class| Window { class: SpeedClass(class), is_measured: true, ..idle };
    for (seen, held) in [(11, 10), (12, 12)] {
        assert_eq!(store.seconds(10, 3), 10);
        for _ in 0..4 {
            (0..60).for_each(|_| store.window(idle));
            assert!(store.state.take_measurement(store.now));
            (0..10).for_each(|_| store.window(measured(seen)));
        }
        assert_eq!(store.state.class.0, held);
    }
    // A store that is one class below its probe measures nothing.
    store.seconds(FAST - 1, 70);
    (0..300).for_each(|_| store.window(idle));
    assert!(!store.state.take_measurement(store.now));
    // Writes of clients raise it by one.
    assert_eq!(store.seconds(FAST, 61), FAST);
}

#[test]
fn eight_slow_writes_of_an_idle_store_lower_no_class() {
    let mut store = Played::new();
    let idle = Window {
        class: SpeedClass(FAST),
        is_measured: false,
        is_recent: false,
        is_receiving: false,
    };
    assert_eq!(store.seconds(10, 3), 10);
    (0..60).for_each(|_| store.window(idle));
    assert!(store.state.take_measurement(store.now));
    assert_eq!(store.seconds(4, 10), 10, "a measurement on demand");
    (0..10).for_each(|_| store.window(idle));
    assert_eq!(store.seconds(4, 2), 4, "writes of clients");
}

#[test]
fn a_store_that_writes_or_was_never_measured_is_not_measured_on_demand() {
    let mut store = Played::new();
    store.seconds(10, 3);
    for _ in 0..300 {
        store.note(10);
        assert!(!store.state.take_measurement(store.now), "its writes measure it");
    }
    let mut new = SpeedState::new(SpeedClass(10), false);
    let estimate =
        Window { class: SpeedClass(10), is_measured: false, is_recent: false, is_receiving: false };
    for second in 0..300 {
        new.note(estimate, DATA_AFTER_MILLIS, Millis(second * 1000));
        assert!(!new.take_measurement(Millis(second * 1000)), "it counts as its probe");
    }
}
