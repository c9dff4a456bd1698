//! Selection of the next job, with the schedule of the sorts of everything and the tiers to merge.

use super::state::{Choice, DEAD_SHARE_MIN, Held, State, TierState};
use super::victims::{self, Victims, Wanted};
use crate::{GcOptions, PolicyKind};
use std::cmp::Reverse;
use stele_types::KeyRange;

/// Share of the target at which a round starts: its outputs take space until its victims are
/// removed.
const TRIGGER_OF_TARGET: f64 = 0.985;
/// Smallest and largest share of the live bytes that one round frees.
const ROUND_SHARE: (f64, f64) = (0.04, 0.3);
/// Share of undiscovered dead bytes above which victims cannot be told apart, so tiers are merged
/// first. Costly indexes wait longer: the share grows with the root of the index's own share.
const UNDISCOVERED_SHARE_MAX: f64 = 0.05;
/// Share of the live bytes up to which an index is cheap to merge.
const CHEAP_INDEX_SHARE: f64 = 0.01;
/// Share of unsorted bytes from which sorting is worthwhile.
const UNSORTED_SHARE_MIN: f64 = 0.1;
/// Part of the live bytes that may stay unsorted in memtables when the others are sorted.
const LEFT_OF_LIVE: u64 = 64;
/// Time after a freeze in which a sort does not cause another one.
const FREEZE_AGAIN_S: u64 = 2;
/// Part of the live bytes from which a range is sorted by itself; half a value file also suffices.
const PART_OF_LIVE: u64 = 16;
/// Part of the live bytes, and least bytes, that must be written before a job only discovers dead
/// bytes.
const DISCOVER_OF_LIVE: u64 = 4;
const DISCOVER_BYTES_FLOOR: u64 = 32 << 20;
/// Time after the first expiry in a run before it is rewritten. So a run is rewritten at most once
/// in this time, however many of its pairs expire.
const EXPIRED_S_MIN: u64 = 60 * 60;
/// Dead bytes, and part of the bytes on the device, that are worth a flush or a new segment when the
/// device is nearly full.
const SHORT_DEAD_BYTES_MIN: u64 = 16 << 10;
const SHORT_DEAD_OF_DISK: u64 = 1024;
/// Part of the index that a job must free where the device is nearly full: it rewrites as much of it.
const SHORT_FREED_OF_INDEX: u64 = 16;
/// Part of the head of the log that must be dead before it is sealed for that.
const HEAD_DEAD_PART: u64 = 8;
/// Least seconds from one freeze to the next that a lack of space causes.
const SHORT_FREEZE_S: u64 = 2;
/// Part of the index above which bytes that tombstones hide are worth a merge of all of it.
const MERGE_OF_INDEX: u64 = 16;
/// Factor by which the budget grows between the target and the hard limit.
const BUDGET_RISE: f64 = 4.0;

/// Picks the next job. Pure: the same state gives the same choice.
pub fn pick(state: &State, options: &GcOptions) -> Choice {
    if let Some(choice) = reclaim(state) {
        return choice;
    }
    if state.frozen > 0 {
        return Choice::Flush;
    }
    if let Some(choice) = release(state) {
        return choice;
    }
    if let Some(choice) = drop_free(state, options, state.kept_free_segments()) {
        return choice;
    }
    if state.backing_off {
        return Choice::Idle;
    }
    if let Some((first, count)) = due(&state.tiers, options)
        && has_room_to_merge(state, first, count)
    {
        return Choice::Merge { first, count };
    }
    let sorting = state.sorting.clone().map(|range| Choice::Sort { range });
    // The last part of a sort frees space, and a relocation would move values that the sort moves.
    let space = match options.policy {
        _ if sorting.is_some() && state.space_amp_weighed(options) < options.space_amp_hard => None,
        PolicyKind::Nezha => nezha(state, options),
        PolicyKind::Adaptive | PolicyKind::Wisckey => collect_space(state, options),
    };
    if let Some(choice) = space.or(sorting).or_else(|| sort(state, options)) {
        return choice;
    }
    let waited = options.flush_interval_s > 0 && state.memtable_age_s >= options.flush_interval_s;
    if waited && state.has_unflushed() {
        return Choice::Freeze;
    }
    merge_when_idle(state, options)
        .or_else(|| drop_expired_in_time(state, options))
        .unwrap_or(Choice::Idle)
}

/// Picks the next job while the device is nearly full: files with nothing live go first, then what
/// tells which bytes are dead. Dead bytes are freed regardless of the budget and discovered early.
pub fn pick_short_of_space(state: &State, options: &GcOptions) -> Choice {
    const SPACE_AMP: f64 = 1.1;
    const DISCOVER_SHARE: u64 = 32;
    if let Some(choice) = reclaim(state).or_else(|| drop_all_free(state)) {
        return choice;
    }
    if state.frozen > 0 {
        return Choice::Flush;
    }
    if let Some(choice) = unhold(state) {
        return choice;
    }
    let options = GcOptions {
        space_amp_target: SPACE_AMP,
        space_amp_hard: SPACE_AMP,
        space_slack_bytes: 0,
        discover_bytes_min: options.discover_bytes_min.min(state.disk_bytes() / DISCOVER_SHARE),
        ..options.clone()
    };
    match pick(state, &options) {
        Choice::Idle if !state.backing_off => free_more(state, &options).unwrap_or(Choice::Idle),
        choice => choice,
    }
}

/// Picks what a store that is short of space does although it is within its target.
fn free_more(state: &State, options: &GcOptions) -> Option<Choice> {
    if let Some(choice) = merge_what_fits(state, options) {
        return Some(choice);
    }
    // The clocks agree that the pairs have expired: nothing is gained by a longer wait.
    // bug gc.expired_wait_when_short: `0` is `EXPIRED_S_MIN`
    if let Some(Choice::DropExpired { mut runs }) = drop_expired(state, 0) {
        runs.truncate(1);
        return Some(Choice::DropExpired { runs });
    }
    // Invariant: while a job frees more than a small part of what it writes, no put is refused for good.
    let least_freed = (state.index_bytes() / SHORT_FREED_OF_INDEX).max(SHORT_DEAD_BYTES_MIN);
    // bug gc.full_stores_stay_full: let least_freed = state.index_bytes();
    relocate_any(state, options, least_freed)
}

/// Picks the merge that tells which bytes are dead: of all tiers, or where they do not fit a second
/// time of one run after the other, then of the newest tiers.
fn merge_what_fits(state: &State, options: &GcOptions) -> Option<Choice> {
    let upper = state.tiers.len().saturating_sub(1);
    let hides: u64 = state.tiers.iter().take(upper).map(|tier| tier.hides_bytes).sum();
    let tells = hides >= worth_bytes(state) && hides > state.index_bytes() / MERGE_OF_INDEX;
    // bug gc.expired_stay: `state.expired_above` is `false`
    let tells = tells || state.expired_above;
    let is_due = tells || state.tiers.len() > options.tiers_max;
    if upper == 0 || !is_due {
        return None;
    }
    let at_once = merge_all(state);
    // bug gc.merges_only_at_once: always
    if at_once.is_some() {
        return at_once;
    }
    if tells && state.trim_bytes.is_some_and(|bytes| state.has_room(bytes)) {
        return Some(Choice::Trim);
    }
    let mut bytes = 0;
    let fits = |tier: &&super::TierState| {
        bytes += tier.bytes;
        state.has_room(bytes)
    };
    let count = state.tiers.iter().take_while(fits).count();
    (count > 1).then_some(Choice::Merge { first: 0, count })
}

/// Picks the next job of a forced collection: the budget does not apply, and every file with a
/// noticeable dead share is a victim. [`Choice::Idle`] when it is complete.
pub fn pick_collect(state: &State, options: &GcOptions) -> Choice {
    if let Some(choice) = reclaim(state) {
        return choice;
    }
    if state.frozen > 0 {
        return Choice::Flush;
    }
    if state.has_unflushed() {
        return Choice::Freeze;
    }
    if let Some(choice) = release(state) {
        return choice;
    }
    if state.tiers.len() > 1
        && let Some(choice) = merge_all(state)
    {
        return choice;
    }
    if let Some(choice) = drop_expired(state, 0) {
        return choice;
    }
    relocate_any(state, options, state.index_bytes())
        .or_else(|| drop_free(state, options, 0))
        .unwrap_or(Choice::Idle)
}

/// Picks a merge of all tiers if the device has room for its outputs.
fn merge_all(state: &State) -> Option<Choice> {
    let count = state.tiers.len();
    state.has_room(state.index_bytes()).then_some(Choice::Merge { first: 0, count })
}

/// Picks every file with a noticeable dead share that fits, if that frees more than so many bytes: the
/// runs that refer to the files are rewritten for them.
fn relocate_any(state: &State, options: &GcOptions, least_freed: u64) -> Option<Choice> {
    let wanted = Wanted {
        freed_bytes: u64::MAX,
        move_bytes_max: state.move_bytes_max,
        dead_share_min: DEAD_SHARE_MIN,
        room_bytes: state.room_for_values(),
    };
    let victims = victims::choose(state, options, wanted);
    let worth = victims.freed_bytes > least_freed;
    worth.then_some(Choice::Relocate { victims: victims.files })
}

/// Handles what keeps dead bytes from being freed in a store that is short of space: the head of the
/// log, a checkpoint that a flush would advance, and the logs of regions.
fn unhold(state: &State) -> Option<Choice> {
    let is_head = |file: &&super::FileState| file.held_when_dead == Some(Held::Head);
    let is_head_worth = state.files.iter().filter(is_head).any(|head| {
        let dead = state.unreleased_bytes().min(head.bytes.saturating_sub(head.live_bytes));
        dead >= worth_bytes(state) && dead >= head.bytes / HEAD_DEAD_PART
    });
    // bug gc.head_stays: never
    if is_head_worth {
        return Some(Choice::Roll);
    }
    let waits = state.freeze_ago_s < SHORT_FREEZE_S;
    if !waits && state.unreleased_bytes() >= worth_bytes(state) {
        return Some(Choice::Freeze);
    }
    release(state)
}

fn worth_bytes(state: &State) -> u64 {
    SHORT_DEAD_BYTES_MIN.max(state.disk_bytes() / SHORT_DEAD_OF_DISK)
}

/// Picks all freed segments: other files need their blocks.
fn drop_all_free(state: &State) -> Option<Choice> {
    (state.free_segments > 0).then_some(Choice::DropFree { count: state.free_segments })
}

/// Returns the budget that `user_bytes` of user writes earn at this space amplification.
pub fn credit_for(user_bytes: u64, space_amp: f64, options: &GcOptions) -> f64 {
    let span = (options.space_amp_hard - options.space_amp_target).max(0.01);
    let over = ((space_amp - options.space_amp_target) / span).clamp(0.0, 1.0);
    user_bytes as f64 * options.budget_ratio * (1.0 + (BUDGET_RISE - 1.0) * over)
}

/// Returns the space amplification at which a round of garbage collection starts.
pub fn space_trigger(options: &GcOptions) -> f64 {
    (options.space_amp_target * TRIGGER_OF_TARGET).max(1.02)
}

/// Picks files that nothing holds: their removal gives every other job room.
fn reclaim(state: &State) -> Option<Choice> {
    if state.files.sums().removable == 0 {
        return None;
    }
    let removable = state.files.iter().filter(|file| file.held.is_none());
    let files: Vec<_> = removable.map(|file| file.id).collect();
    (!files.is_empty()).then_some(Choice::Reclaim { files })
}

/// Picks freed segments in excess of the accepted space, before any live value is moved for it:
/// reusing written blocks saves less than moving values costs. A store smaller than a segment keeps
/// one for its next writes: it has nothing to move.
fn drop_free(state: &State, options: &GcOptions, kept: usize) -> Option<Choice> {
    let accepted = space_trigger(options) * options.weighed(state.live_bytes()) as f64;
    let accepted = (accepted as u64).max(2 * state.free_segment_bytes);
    let surplus = state.movable_bytes().saturating_sub(accepted);
    let count = surplus.div_ceil(state.free_segment_bytes.max(1)) as usize;
    let count = count.min(state.free_segments.saturating_sub(kept));
    (count > 0).then_some(Choice::DropFree { count })
}

/// Handles mostly dead files that only the logs of regions hold: requests truncation, then
/// re-appends the logs' tails.
fn release(state: &State) -> Option<Choice> {
    let last = state.files.sums().last_held_by_raft?;
    if state.truncate_untried {
        return Some(Choice::Truncate);
    }
    state.reappend_untried.then_some(Choice::Reappend { below: last.next() })
}

/// Merges tiers of an idle store within the budget, so that scans get faster. A store that is
/// mostly index has no other use for its budget, and may exceed it.
fn merge_when_idle(state: &State, options: &GcOptions) -> Option<Choice> {
    let can_afford = state.credit_bytes > 0 || state.index_bytes() > state.known_live_bytes();
    let (first, count) = due_when_idle(&state.tiers).filter(|_| can_afford)?;
    let starts = is_idle(state, options) && has_room_to_merge(state, first, count);
    starts.then_some(Choice::Merge { first, count })
}

/// Rewrites runs that have held expired pairs for long, within the budget. An idle store may exceed
/// it, because only writes earn it.
fn drop_expired_in_time(state: &State, options: &GcOptions) -> Option<Choice> {
    let can_afford = state.credit_bytes > 0 || is_idle(state, options);
    drop_expired(state, EXPIRED_S_MIN).filter(|_| can_afford)
}

fn drop_expired(state: &State, since_s_min: u64) -> Option<Choice> {
    let due = state.expired.iter().filter(|expired| expired.since_s >= since_s_min);
    let runs: Vec<_> = due.map(|expired| expired.run).collect();
    let has_any = !runs.is_empty();
    // bug gc.expired_stay: let has_any = false;
    has_any.then_some(Choice::DropExpired { runs })
}

/// Returns whether the outputs of a merge fit: its inputs go only after them.
fn has_room_to_merge(state: &State, first: usize, count: usize) -> bool {
    state.has_room(state.tiers.iter().skip(first).take(count).map(|tier| tier.bytes).sum())
}

fn is_idle(state: &State, options: &GcOptions) -> bool {
    options.merge_idle_s > 0 && state.idle_s >= options.merge_idle_s
}

fn collect_space(state: &State, options: &GcOptions) -> Option<Choice> {
    let live = state.live_bytes();
    let cheap = state.index_bytes() as f64 <= CHEAP_INDEX_SHARE * live as f64;
    let worst_max = if cheap { space_trigger(options) } else { options.space_amp_hard };
    let space_amp = state.space_amp_weighed(options);
    let suspect = state.space_amp_at_worst(options) >= worst_max;
    if space_amp < space_trigger(options) && !suspect {
        return None;
    }
    if let Some(choice) = discover(state, options, suspect) {
        return Some(choice);
    }
    if space_amp < space_trigger(options) {
        return None;
    }
    if state.credit_bytes <= 0 && space_amp < options.space_amp_hard {
        return None;
    }
    let victims = round(state, options);
    // If the gain is less than rewriting the index costs, wait for more dead bytes.
    let worth = victims.freed_bytes > state.index_bytes();
    (worth && !victims.files.is_empty()).then_some(Choice::Relocate { victims: victims.files })
}

/// Returns the victims of one round. Rewriting the index is a fixed price of each round, a longer
/// wait the price of large rounds: the share freed grows with the root of the index's share.
fn round(state: &State, options: &GcOptions) -> Victims {
    let live = options.weighed(state.live_bytes()) as f64;
    let index_share = state.index_bytes() as f64 / live.max(1.0);
    let share = (5.0 * index_share).sqrt().clamp(ROUND_SHARE.0, ROUND_SHARE.1);
    let surplus = state.collectable_bytes() as f64 - space_trigger(options) * live;
    let hard = state.space_amp_weighed(options) >= options.space_amp_hard;
    let budget = if hard { live / 4.0 } else { state.credit_bytes.max(0) as f64 };
    let budget = budget.min(state.move_bytes_max as f64);
    let wanted = Wanted {
        freed_bytes: (surplus.max(0.0) + share * live) as u64,
        move_bytes_max: budget as u64,
        dead_share_min: 0.05,
        room_bytes: state.room_for_values(),
    };
    victims::choose(state, options, wanted)
}

/// Picks a freeze or merge that only discovers dead bytes: with large values it costs next to
/// nothing (a 35-byte entry for a 16 KiB value).
fn discover(state: &State, options: &GcOptions, suspect: bool) -> Option<Choice> {
    let known = state.known_live_bytes();
    let least = discover_bytes_min(known, options);
    let step = least.max((known as f64 * ROUND_SHARE.0 / 2.0) as u64);
    if state.memtable_bytes.max(state.memtable_hides_bytes) >= step {
        return Some(Choice::Freeze);
    }
    let upper = state.undiscovered_in_runs_bytes();
    let share = if suspect { 1.0 } else { state.overwrite_ratio };
    let index_share = state.index_bytes() as f64 / (known as f64).max(1.0);
    let share_max = UNDISCOVERED_SHARE_MAX.max(index_share.sqrt());
    let unclear = share * upper as f64 >= share_max * known as f64;
    let merge = state.tiers.len() > 1 && upper >= least && unclear;
    if merge { merge_all(state) } else { None }
}

/// Returns the bytes below which no flush or merge runs only to discover dead bytes. Undiscovered
/// bytes take space: in a small store the same share of its live bytes as in a large one, down to
/// the floor at which a discovery costs too much.
fn discover_bytes_min(known: u64, options: &GcOptions) -> u64 {
    options.discover_bytes_min.min((known / DISCOVER_OF_LIVE).max(DISCOVER_BYTES_FLOOR))
}

fn nezha(state: &State, options: &GcOptions) -> Option<Choice> {
    let unsorted = state.unsorted_bytes() + state.memtable_bytes;
    if unsorted < options.sort_threshold_bytes {
        return None;
    }
    if !state.has_room_to_sort() {
        return collect_space(state, options);
    }
    if state.has_unflushed() {
        return Some(Choice::Freeze);
    }
    Some(Choice::Sort { range: KeyRange::all() })
}

fn sort(state: &State, options: &GcOptions) -> Option<Choice> {
    let live = state.live_bytes();
    let (unsorted, unflushed) = (state.unsorted_bytes(), state.memtable_bytes);
    let worth = |bytes: u64| bytes > 0 && bytes as f64 >= UNSORTED_SHARE_MIN * live as f64;
    if options.policy == PolicyKind::Wisckey
        || !state.has_room_to_sort()
        || !worth(unsorted.saturating_add(unflushed))
    {
        return None;
    }
    // Values that only memtables refer to are sorted after a flush, out of the new runs.
    let freezes = match worth(unsorted) {
        // The sort that follows would leave them in place.
        true => unflushed >= live / LEFT_OF_LIVE && state.memtable_age_s >= FREEZE_AGAIN_S,
        // Avoids repeated flushes of a small store that is being overwritten.
        false => unflushed >= discover_bytes_min(state.known_live_bytes(), options),
    };
    let sort = |range: KeyRange| match freezes {
        true => Some(Choice::Freeze),
        false => worth(unsorted).then_some(Choice::Sort { range }),
    };
    let can_afford = |range_bytes: u64| {
        state.has_sort_credit(unsorted.saturating_add(unflushed).min(range_bytes))
    };
    let scheduled = options.sort_interval_s > 0 && state.sorted_ago_s >= options.sort_interval_s;
    let paid = |scanned: u64, bytes: u64| {
        options.scan_load_ratio > 0.0
            && bytes > 0
            && scanned as f64 >= options.scan_load_ratio * bytes as f64
    };
    if scheduled || paid(state.scanned_bytes, live) && can_afford(live) {
        return sort(KeyRange::all());
    }
    // Part of a value file is not one stream: many such parts would be scattered in turn.
    let part_bytes_min = (options.value_file_bytes_max / 2).min(live / PART_OF_LIVE);
    let hot = state
        .hot
        .as_ref()
        .filter(|hot| hot.bytes >= part_bytes_min && paid(hot.scanned_bytes, hot.bytes))
        .filter(|hot| can_afford(hot.bytes))?;
    sort(hot.range.clone())
}

/// Returns the seconds since the start of the interval in which the store last sorted: the next
/// sort is due when they are at least an interval. A store that was just opened counts as sorted.
/// Time is divided into intervals, and each store sorts once in each. The intervals of stores with
/// different phases begin at different times, also if all stores were started, or all were given
/// the setting, at the same moment.
pub(crate) fn sorted_ago_s(
    now_s: u64,
    sorted_at_s: u64,
    opened_at_s: u64,
    options: &GcOptions,
) -> u64 {
    let interval_s = options.sort_interval_s;
    // bug gc.replicas_sort_together: always
    if interval_s == 0 {
        return now_s.saturating_sub(sorted_at_s);
    }
    let phase_s = (options.sort_phase * interval_s as f64) as u64;
    let moved = |at_s: u64| at_s.saturating_add(interval_s).saturating_sub(phase_s);
    let last_s = moved(sorted_at_s.max(opened_at_s));
    moved(now_s).saturating_sub(last_s - last_s % interval_s)
}

/// Size ratio of a merge in an idle store. Up to four tiers may stay otherwise, and a scan of one
/// tier is twice as fast as one of four.
const IDLE_SIZE_RATIO: f64 = 8.0;

/// Returns the index of the newest tier to merge and the number of tiers; `None` while there are
/// few enough. Reads then probe few tiers: tiered with a size ratio on top, lazily leveled below
/// (the oldest tier is the one large level).
pub(super) fn due(tiers: &[TierState], options: &GcOptions) -> Option<(usize, usize)> {
    let surplus = tiers.len().checked_sub(options.tiers_max).filter(|&n| n > 0)?;
    let mut best: Option<(usize, usize)> = None;
    for first in 0..tiers.len() {
        let count = window(tiers, first, options.size_ratio);
        if count > surplus && best.is_none_or(|(_, longest)| count > longest) {
            best = Some((first, count));
        }
    }
    // No tiers are of similar size: the newest are the smallest, and merging them costs least.
    Some(best.unwrap_or((0, surplus + 1)))
}

/// Returns the tiers to merge as [`due`] does, but in an idle store: with wider windows, although
/// there are few tiers. Data that arrives in portions with idle times in between is rewritten up to
/// [`IDLE_SIZE_RATIO`] times more for each time that the store grows by that factor. The budget
/// limits this, except in a store that is nearly all index.
pub(super) fn due_when_idle(tiers: &[TierState]) -> Option<(usize, usize)> {
    let windows = (0..tiers.len()).map(|first| (first, window(tiers, first, IDLE_SIZE_RATIO)));
    windows.filter(|&(_, count)| count > 1).max_by_key(|&(first, count)| (count, Reverse(first)))
}

/// Returns how many tiers from `first` on are merged together: each is at most `size_ratio` times
/// as large as all newer ones of the window.
fn window(tiers: &[TierState], first: usize, size_ratio: f64) -> usize {
    let mut bytes = 0u64;
    let mut count = 0;
    for tier in tiers.iter().skip(first) {
        if count > 0 && tier.bytes as f64 > size_ratio * bytes as f64 {
            break;
        }
        bytes += tier.bytes;
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: u64 = 86_400;

    fn options(phase: f64) -> GcOptions {
        GcOptions { sort_interval_s: DAY_S, sort_phase: phase, ..GcOptions::default() }
    }

    /// Returns the seconds at which a store that is observed every minute sorts.
    fn sorts(phase: f64, opened_at_s: u64, days: u64) -> Vec<u64> {
        let (mut sorted_at_s, mut all) = (0, Vec::new());
        for now_s in (opened_at_s..opened_at_s + days * DAY_S).step_by(60) {
            if sorted_ago_s(now_s, sorted_at_s, opened_at_s, &options(phase)) >= DAY_S {
                sorted_at_s = now_s;
                all.push(now_s);
            }
        }
        all
    }

    #[test]
    fn each_store_sorts_once_an_interval_and_replicas_at_different_times() {
        const START_S: u64 = 1_700_000_000;
        let replicas = [0.1, 0.4, 0.8].map(|phase| sorts(phase, START_S, 30));
        for sorts in &replicas {
            assert!((29..=30).contains(&sorts.len()), "{}", sorts.len());
            assert!(sorts.windows(2).all(|pair| pair[1] - pair[0] == DAY_S));
            assert!(sorts[0] > START_S, "not all at once when they start");
        }
        let [a, b, c] = replicas.map(|sorts| sorts[1] % DAY_S);
        for (one, other) in [(a, b), (b, c), (a, c)] {
            assert!(one.abs_diff(other) > DAY_S / 5, "{one} and {other}");
        }
    }

    #[test]
    fn a_sort_that_is_late_does_not_move_the_next_one() {
        let at_s = 1_700_000_000;
        let due_s = sorts(0.5, at_s, 2)[0];
        let late_s = due_s + 5 * 3600;
        let next_s = due_s + DAY_S;
        assert!(sorted_ago_s(next_s - 60, late_s, at_s, &options(0.5)) < DAY_S);
        assert!(sorted_ago_s(next_s, late_s, at_s, &options(0.5)) >= DAY_S);
        let never = GcOptions::default();
        assert_eq!(sorted_ago_s(at_s, at_s - 7, at_s, &never), 7, "without a schedule");
    }

    fn merged(sizes: &[u64], tiers_max: usize) -> Option<(usize, usize)> {
        due(&tiers(sizes), &GcOptions { tiers_max, ..GcOptions::default() })
    }

    fn tiers(sizes: &[u64]) -> Vec<TierState> {
        sizes.iter().map(|&bytes| TierState { bytes, ..TierState::default() }).collect()
    }

    #[test]
    fn merges_take_tiers_of_like_size_and_spare_the_large_level() {
        assert_eq!(merged(&[1, 1, 1], 3), None);
        assert_eq!(merged(&[1, 1, 1, 100], 3), Some((0, 3)));
        assert_eq!(merged(&[1, 8, 8, 8, 1000], 4), Some((1, 3)));
        assert_eq!(merged(&[1, 1, 2, 4, 8], 4), Some((0, 5)));
        assert_eq!(merged(&[1, 10, 100, 1000], 3), Some((0, 2)));
        assert_eq!(merged(&[1, 10, 100, 1000], 1), Some((0, 4)));
    }

    #[test]
    fn a_store_at_rest_merges_all_but_what_is_small_beside_the_next() {
        let merged = |sizes: &[u64]| due_when_idle(&tiers(sizes));
        assert_eq!(merged(&[]), None);
        assert_eq!(merged(&[5]), None);
        assert_eq!(merged(&[1, 9, 90]), None);
        assert_eq!(merged(&[9, 35, 249, 563]), Some((0, 4)));
        assert_eq!(merged(&[1, 10, 10, 20]), Some((1, 3)));
        assert_eq!(merged(&[4, 4, 100, 100]), Some((0, 2)));
    }
}
