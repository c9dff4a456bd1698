use super::*;

mod random_histories;

fn op(called: u64, returned: u64, act: Act) -> Op {
    Op {
        called,
        returned: (returned > 0).then_some(returned),
        called_nanos: 0,
        returned_nanos: None,
        slot: 0,
        is_final: false,
        by_lease: false,
        act,
    }
}

fn put(called: u64, returned: u64, value: Value) -> Op {
    op(called, returned, Act::Write(vec![(0, value)]))
}

fn get(called: u64, returned: u64, value: Value) -> Op {
    op(called, returned, Act::Read(vec![(0, value)]))
}

fn cas(called: u64, returned: u64, expected: Value, new: Value, seen: Option<(bool, Value)>) -> Op {
    op(called, returned, Act::Cas { key: 0, expected, new, seen })
}

fn holds(ops: &[Op]) -> bool {
    check(ops).is_ok()
}

#[test]
fn a_stale_read_is_found_and_a_concurrent_one_is_not() {
    assert!(holds(&[put(1, 2, 7), get(3, 4, 7)]));
    assert!(!holds(&[put(1, 2, 7), get(3, 4, 0)]));
    assert!(holds(&[put(1, 5, 7), get(3, 4, 0)]));
    assert!(!holds(&[put(1, 9, 7), get(2, 3, 7), get(4, 5, 0)]));
}

#[test]
fn an_operation_of_unknown_outcome_takes_effect_late_or_never_but_only_once() {
    assert!(holds(&[put(1, 0, 7), get(2, 3, 0), get(4, 5, 7)]));
    assert!(holds(&[put(1, 0, 7), get(2, 3, 0)]));
    assert!(!holds(&[put(1, 0, 7), get(2, 3, 7), put(4, 5, 8), get(6, 7, 8), get(8, 9, 7)]));
    let deleted = op(2, 0, Act::Write(vec![(0, 0)]));
    assert!(holds(&[put(1, 3, 7), deleted.clone(), get(4, 5, 7), get(6, 7, 0)]));
    assert!(!holds(&[put(1, 3, 7), deleted, get(4, 5, 0), get(6, 7, 7)]));
}

#[test]
fn comparisons_take_what_they_saw() {
    let seven = put(1, 2, 7);
    assert!(holds(&[seven.clone(), cas(3, 4, 7, 8, Some((true, 7)))]));
    assert!(!holds(&[seven.clone(), cas(3, 4, 0, 8, Some((true, 0)))]));
    assert!(holds(&[seven.clone(), cas(3, 4, 0, 8, Some((false, 7)))]));
    let both = [seven.clone(), cas(3, 6, 7, 8, Some((true, 7))), cas(4, 7, 7, 9, Some((true, 7)))];
    assert!(!holds(&both));
    assert!(holds(&[seven, cas(3, 0, 7, 8, None), get(4, 5, 8)]));
}

#[test]
fn a_lost_write_that_only_a_lost_comparison_saw_counts() {
    let lost = put(1, 0, 7);
    assert!(holds(&[lost.clone(), cas(2, 0, 7, 8, None), get(3, 4, 8)]));
    assert!(!holds(&[lost, cas(2, 0, 9, 8, None), get(3, 4, 8)]));
}

#[test]
fn modifications_compute_from_the_value_before_them() {
    let modify =
        |called, returned, change, seen| op(called, returned, Act::Modify { key: 0, change, seen });
    let count = |called, returned, by, seen| modify(called, returned, Change::Increment(by), seen);
    let sum = |by: u32| incremented(0, by).unwrap();
    assert!(holds(&[count(1, 2, 5, Some(Some(sum(5)))), count(3, 4, 2, Some(Some(sum(7))))]));
    assert!(!holds(&[count(1, 2, 5, Some(Some(sum(5)))), count(3, 4, 2, Some(Some(sum(2))))]));
    // Two increments that read the same number: one is lost.
    let lost = [count(1, 6, 5, Some(Some(sum(5)))), count(2, 7, 2, Some(Some(sum(2))))];
    assert!(!holds(&lost));
    assert!(holds(&[put(1, 2, 7), count(3, 4, 5, Some(None)), get(5, 6, 7)]));
    assert!(!holds(&[put(1, 2, 7), count(3, 4, 5, Some(Some(sum(5))))]));
    // Only the increment shows that the put, or the comparison, took effect.
    assert!(holds(&[put(1, 0, 7), count(3, 4, 5, Some(None))]));
    assert!(holds(&[cas(1, 0, 0, 7, None), count(3, 4, 5, Some(None))]));
    assert!(!holds(&[put(1, 0, 0), count(3, 4, 5, Some(None))]));
    assert!(holds(&[count(1, 0, 5, None), get(2, 3, 0), get(4, 5, sum(5))]));
    assert!(!holds(&[count(1, 0, 5, None), get(2, 3, sum(5)), get(4, 5, sum(10))]));
    let append =
        |called, returned, part, seen| modify(called, returned, Change::Append(part), seen);
    let (one, both) = (appended(7, 1), appended(appended(7, 1), 2));
    // Only the result of the last append shows that the put and the first append took effect.
    assert!(holds(&[put(1, 0, 7), append(2, 0, 1, None), append(3, 4, 2, Some(Some(both)))]));
    assert!(!holds(&[put(1, 2, 7), append(3, 4, 1, Some(Some(one))), get(5, 6, both)]));
    let take = |called, returned, seen| modify(called, returned, Change::Take, Some(Some(seen)));
    assert!(holds(&[put(1, 2, 7), take(3, 4, 7), take(5, 6, 0), get(7, 8, 0)]));
    assert!(!holds(&[put(1, 2, 7), take(3, 6, 7), take(4, 7, 7)]), "taken twice");
}

#[test]
fn keys_written_together_are_seen_together() {
    let both = op(1, 8, Act::Write(vec![(0, 7), (1, 8)]));
    let seen = |called, returned, a, b| op(called, returned, Act::Read(vec![(0, a), (1, b)]));
    assert!(holds(&[both.clone(), seen(2, 3, 0, 0), seen(4, 5, 7, 8)]));
    assert!(!holds(&[both.clone(), seen(2, 3, 7, 0)]));
    assert!(!holds(&[both, seen(2, 3, 7, 8), seen(4, 5, 0, 0)]));
}

#[test]
fn long_histories_with_lost_answers_are_checked_at_once() {
    let mut ops = Vec::new();
    for round in 0..5_000u64 {
        let at = round * 10 + 1;
        let value = round as Value * 2 + 1;
        ops.push(put(at, if round % 3 == 0 { 0 } else { at + 4 }, value));
        ops.push(put(at + 1, at + 5, value + 1));
        ops.push(get(at + 6, at + 7, value + 1));
        if round % 100 == 0 {
            ops.push(op(at + 2, 0, Act::Write(vec![(0, 0)])));
        }
    }
    assert!(holds(&ops));
    ops.push(get(100_000, 100_001, 2));
    assert!(!holds(&ops));
}

/// The search visits other orders of twenty open writes first, more than it keeps.
#[test]
fn a_history_with_more_states_than_the_search_visits_counts_as_linearizable_and_as_cut() {
    let key = |at: u64| (at % u64::from(KEYS)) as u8;
    let mut ops: Vec<Op> =
        (1..=20).map(|at| op(at, 100 + at, Act::Write(vec![(key(at), at as Value)]))).collect();
    let last = (17..=20).map(|at| (key(at), at as Value)).collect();
    ops.push(op(30, 40, Act::Read(last)));
    assert_eq!(check(&ops), Ok(Extent::Cut));
    assert_eq!(check(&ops[..1]), Ok(Extent::Complete));
}

#[test]
fn increments_of_two_keys_met_lost_writes() {
    let put = |called, key, value| op(called, 0, Act::Write(vec![(key, value)]));
    let failed = |called, returned, key| {
        op(called, returned, Act::Modify { key, change: Change::Increment(5), seen: Some(None) })
    };
    let (one, two) = (put(1, 0, 7), put(2, 1, 8));
    assert!(holds(&[one.clone(), failed(3, 4, 0)]));
    assert!(holds(&[one.clone(), two.clone(), failed(3, 4, 0), failed(5, 6, 1)]));
    assert!(!holds(&[two.clone(), failed(3, 4, 0), failed(5, 6, 1)]));
    assert!(!holds(&[one.clone(), failed(3, 4, 0), failed(5, 6, 1)]));
    let read = op(7, 8, Act::Read(vec![(2, 9)]));
    assert!(!holds(&[one, two, failed(3, 4, 0), failed(5, 6, 1), read]));
}

#[test]
fn an_operation_that_stood_for_a_lost_write_may_be_needed_later() {
    let modify =
        |called, returned, change, seen| op(called, returned, Act::Modify { key: 0, change, seen });
    let failed = || modify(3, 4, Change::Increment(5), Some(None));
    let append = || modify(2, 0, Change::Append(6), None);
    let with = |value| get(7, 8, appended(value, 6));
    assert!(holds(&[put(1, 0, 7), append(), failed(), put(5, 6, 30), with(30)]));
    assert!(!holds(&[append(), failed(), put(5, 6, 30), with(30)]));
    let lost = || cas(2, 0, 0, 8, None);
    let delete = || put(5, 6, 0);
    assert!(holds(&[put(1, 0, 7), lost(), failed(), delete(), get(7, 8, 8)]));
    assert!(!holds(&[lost(), failed(), delete(), get(7, 8, 8)]));
}
