//! Class of a store over time, by windows of about a second: one for each report.

use super::SpeedClass;
use crate::Millis;
use crate::schedule::judge::GAP_CLASSES_MIN;
use crate::store::StoreReport;

/// Classes of a store. A pure state machine: the reports come in with their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeedState {
    /// Class by which leaders are placed.
    pub class: SpeedClass,
    /// Class by which data is placed.
    pub data_class: SpeedClass,
    /// At least one window was measured. Then estimates change nothing.
    pub is_measured: bool,
    /// Time until which data follows a higher class at once; `None` before the first measurement.
    pub(super) is_new_until: Option<Millis>,
    /// Windows that all differ from `class` to one side.
    window_streak: Option<Streak>,
    /// Classes that all differ from `data_class` to one side.
    pub(super) class_streak: Option<Streak>,
    last: Option<Millis>,
    /// Last time at which the store received a snapshot.
    received: Option<Millis>,
    /// Class of the store's probe, which it reports while it measures nothing.
    probed: Option<SpeedClass>,
    /// Last time of a measurement, or of a request for one.
    measured: Option<Millis>,
    requested: Option<Millis>,
}

/// Input from one report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Class of the operations in the window.
    pub class: SpeedClass,
    /// The class is measured, not an estimate.
    pub is_measured: bool,
    /// All operations in the window are of the last two seconds.
    pub is_recent: bool,
    /// The store receives a snapshot.
    pub is_receiving: bool,
}

/// A time in which all classes were on one side of the one that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Streak {
    /// Start, as far as this leader has seen it.
    pub since: Millis,
    /// Time before `since`, under earlier leaders.
    pub before_millis: u64,
    /// Class of the streak that is nearest to the one that is held.
    pub nearest: SpeedClass,
}

/// Time after which a lower class counts: two windows, of which the second report may come early.
const FALL_MILLIS: u64 = 1_750;
/// Time after which a higher class counts. It is longer than the pauses in which a store without
/// leaders looks faster than it is under their load.
const RISE_MILLIS: u64 = 60_000;
/// Time after a store's first measurement in which data follows a higher class at once: the estimate of its
/// start is eight writes of one moment. It is longer than the time after which a class rises.
const NEW_MILLIS: u64 = 120_000;
/// Longest time for which one report speaks. After a longer pause, streaks start again.
const WINDOW_MILLIS_MAX: u64 = 5_000;
/// Usual distance of two reports.
const WINDOW_MILLIS: u64 = 1_000;
/// Time after a snapshot in which its writes still slow others down.
const RECEIVED_MILLIS: u64 = 2_000;
/// Age of the oldest write in a report: the ten seconds of a measurement, and the time until the report.
const MEASURED_MILLIS: u64 = 12_000;
/// Classes by which a window in which the store receives a snapshot counts as faster: a factor 4.
const RECEIVING_CLASSES: u8 = 4;
/// Age from which a write under way counts as the window's speed. Large writes take shorter.
const STUCK_MILLIS_MIN: u64 = 1_000;
/// Time without a measurement after which a store is to measure.
const MEASURE_MILLIS: u64 = 60_000;
/// Classes by which a measurement on demand must be above the class to raise it: the gap from which leaders
/// move to a faster store.
const REQUESTED_CLASSES_MIN: u8 = GAP_CLASSES_MIN;
/// Multiple of an operation's cost at the present class that a write under way must exceed.
const STUCK_COSTS: u64 = 4;

impl Window {
    /// Returns the window of a report; `None` if it says nothing about the speed. `held` is the
    /// store's present class, if it has one.
    pub fn of(report: &StoreReport, op_bytes: u64, held: Option<SpeedClass>) -> Option<Self> {
        let device = &report.device;
        let measured = device.write.per_second(op_bytes).map(SpeedClass::of);
        let stuck = held.and_then(|held| stuck_class(report.append_age_ms, held));
        let class = match (measured, stuck) {
            (Some(measured), Some(stuck)) => measured.min(stuck),
            (measured, stuck) => measured.or(stuck)?,
        };
        let is_measured = device.writes > 0 || stuck.is_some();
        let (is_recent, is_receiving) = (device.has_recent_writes(), report.receiving > 0);
        Some(Self { class, is_measured, is_recent, is_receiving })
    }
}

/// Returns the class of a store of which a write has lasted for `age_millis`; `None` while that is
/// within the bounds of its class.
fn stuck_class(age_millis: u64, held: SpeedClass) -> Option<SpeedClass> {
    let cost_millis = 1000 / held.per_second();
    let is_stuck = age_millis >= STUCK_MILLIS_MIN && age_millis > cost_millis * STUCK_COSTS;
    // bug placement.stuck_write_ignored: `is_stuck` is `false`
    is_stuck.then(|| SpeedClass::of(1000 / age_millis.max(1)))
}

impl SpeedState {
    /// Creates the state of a store that is first seen with this class.
    pub fn new(class: SpeedClass, is_measured: bool) -> Self {
        Self {
            class,
            data_class: class,
            is_measured,
            is_new_until: None,
            window_streak: None,
            class_streak: None,
            last: None,
            received: None,
            probed: None,
            measured: None,
            requested: None,
        }
    }

    /// Returns whether the store is to measure its device now: no write has measured it for a minute,
    /// and its class is far below that of its probe. Counts as a measurement.
    ///
    /// Invariant: a store that became slow and then idle does not stay slow: its class follows from
    /// measurements only, and without writes there would be none.
    /// Test: `an_idle_store_that_was_slow_measures_once_a_minute_until_it_is_as_fast_as_its_probe`.
    pub(crate) fn take_measurement(&mut self, now: Millis) -> bool {
        let is_below =
            self.is_measured && self.probed.is_some_and(|probed| self.is_far_below(probed));
        let is_due = is_below && self.measured.is_none_or(|last| now.since(last) >= MEASURE_MILLIS);
        // bug placement.idle_store_stays_slow: let is_due = false;
        if is_due {
            (self.measured, self.requested) = (Some(now), Some(now));
        }
        is_due
    }

    /// Takes the window of a report. `data_after_millis`: time after which data follows.
    ///
    /// Invariant: the class falls only after windows of 2 s that are all lower, to the highest of
    /// them, and rises only after 60 s, to the lowest. Leaders that leave make a store faster, and
    /// therefore must not bring themselves back.
    /// Test: `random_windows_move_the_class_as_defined`.
    pub fn note(&mut self, window: Window, data_after_millis: u64, now: Millis) {
        let start = self.window_start(now);
        self.last = Some(now);
        if window.is_receiving {
            self.received = Some(now);
        }
        match window.is_measured {
            true => {
                self.measured = Some(now);
                self.is_new_until.get_or_insert(Millis(now.0.saturating_add(NEW_MILLIS)));
            }
            false => self.probed = Some(window.class),
        }
        // Invariant: an estimate changes nothing after a measurement. It knows neither load nor age.
        let counts =
            (window.is_measured || !self.is_measured) && !self.is_about_as_requested(window, now);
        // bug placement.estimate_replaces_measurement: always
        if counts {
            self.is_measured |= window.is_measured;
            let seen = self.judged(window, now);
            self.take(seen, start, now);
        }
        self.follow_with_data(data_after_millis, now);
    }

    /// Whether a window holds only what an idle store was to measure, and is not far above the class.
    /// Invariant: a measurement on demand raises a class and does not lower it. It is eight writes of one
    /// moment, and a class falls after two seconds of them.
    /// Invariant: an idle device is faster than one that works, by less than [`REQUESTED_CLASSES_MIN`]. A
    /// measurement on demand that is above the class by less changes nothing: it would bring leaders and data
    /// back, their writes would lower the class, and moves of an idle cluster would never end.
    /// Test: `an_idle_store_that_is_a_class_slower_while_it_works_changes_its_class_once`.
    fn is_about_as_requested(&self, window: Window, now: Millis) -> bool {
        let is_requested = self.requested.is_some_and(|at| now.since(at) <= MEASURED_MILLIS);
        is_requested && window.is_measured && !self.is_far_below(window.class)
    }

    /// Whether the class is so far below another one that a measurement on demand raises it.
    fn is_far_below(&self, class: SpeedClass) -> bool {
        let gap = REQUESTED_CLASSES_MIN;
        // bug placement.idle_device_counts_as_fast: let gap = 1;
        self.class.0.saturating_add(gap) <= class.0
    }

    /// Returns the start of the window that ends now. Forgets the streak of windows after a pause.
    fn window_start(&mut self, now: Millis) -> Millis {
        let elapsed = self.last.map_or(0, |last| now.since(last));
        if elapsed > WINDOW_MILLIS_MAX {
            self.window_streak = None;
        }
        Millis(now.0.saturating_sub(elapsed.min(WINDOW_MILLIS)))
    }

    /// Returns the class as which a window counts.
    /// Invariant: receiving a snapshot does not make a store slow; ten times slower still shows. A
    /// measurement of a store with few writes contains those of that time until they are
    /// [`MEASURED_MILLIS`] old. One of many writes does not: a device that becomes slow must show soon.
    /// Test: `an_idle_store_that_received_a_snapshot_keeps_its_class`.
    fn judged(&self, window: Window, now: Millis) -> SpeedClass {
        let seen = window.class;
        // bug placement.received_counts_for_two_seconds: `window.is_recent` is `true`
        // bug placement.received_hides_a_slow_device: `window.is_recent` is `false`
        let is_receiving = self.counts_as_receiving(window.is_recent, now);
        // bug placement.receiving_counts_as_slow: `is_receiving` is `false`
        match is_receiving {
            true if seen < self.class => {
                SpeedClass(seen.0.saturating_add(RECEIVING_CLASSES)).min(self.class)
            }
            _ => seen,
        }
    }

    /// Returns whether a window counts as one in which the store receives a snapshot, so that its class is
    /// up to four too high. `is_recent`: all operations in the window are of the last two seconds.
    pub fn counts_as_receiving(&self, is_recent: bool, now: Millis) -> bool {
        let after_millis = if is_recent { RECEIVED_MILLIS } else { MEASURED_MILLIS };
        self.received.is_some_and(|at| now.since(at) <= after_millis)
    }

    fn take(&mut self, seen: SpeedClass, start: Millis, now: Millis) {
        // bug placement.fall_without_waiting: `FALL_MILLIS` is `0`
        // bug placement.rise_at_once: `RISE_MILLIS` is `0`
        let waits = [FALL_MILLIS, RISE_MILLIS];
        if let Some(class) = follow(&mut self.window_streak, self.class, seen, waits, start, now) {
            self.class = class;
        }
    }

    /// Invariant: data follows only a class that has lasted, in both directions: a move of data
    /// costs more than a slow minute. A new store that is faster than its estimate gets its share at once.
    fn follow_with_data(&mut self, fall: u64, now: Millis) {
        // bug placement.data_follows_at_once: let fall = 0;
        let is_new = self.is_new_until.is_none_or(|until| now < until);
        // bug placement.estimate_holds_data: let is_new = false;
        let rise = if is_new { 0 } else { fall };
        let (streak, held) = (&mut self.class_streak, self.data_class);
        if let Some(class) = follow(streak, held, self.class, [fall, rise], now, now) {
            self.data_class = class;
        }
    }
}

/// Adds `seen`, which has lasted since `start`, to a streak on one side of `held`. Returns the class
/// of the streak that is nearest to `held` when the streak has lasted: `waits` for a fall and for a
/// rise.
///
/// After a fall the streak continues with the last value. The first windows of a device that becomes
/// slow also contain fast operations; they must not make the fall take twice the wait.
fn follow(
    streak: &mut Option<Streak>,
    held: SpeedClass,
    seen: SpeedClass,
    [fall_millis, rise_millis]: [u64; 2],
    start: Millis,
    now: Millis,
) -> Option<SpeedClass> {
    let is_fall = seen < held;
    let before = streak.take().filter(|streak| (streak.nearest < held) == is_fall);
    if seen == held {
        return None;
    }
    let new = Streak { since: start, before_millis: 0, nearest: seen };
    let mut this = before.unwrap_or(new);
    this.nearest = match is_fall {
        true => this.nearest.max(seen),
        false => this.nearest.min(seen),
    };
    let lasted = now.since(this.since).saturating_add(this.before_millis);
    if lasted < if is_fall { fall_millis } else { rise_millis } {
        *streak = Some(this);
        return None;
    }
    let falls_on = is_fall && seen < this.nearest;
    // bug placement.fall_in_steps: let falls_on = false;
    *streak = falls_on.then_some(new);
    Some(this.nearest)
}
