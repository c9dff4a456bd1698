//! Random histories, compared with a search of all orders of all operations.

use super::*;
use stele_types::Prng;

/// Keys of a history. Few, so that operations meet each other.
const KEYS_USED: u64 = 2;
/// Limit of the operations of a history: the search of all orders has to end.
const OPS_MAX: u64 = 8;
const HISTORIES: u64 = 10_000;

/// Returns whether an order of all operations explains them. Those of unknown outcome may be left out.
fn has_order(ops: &[Op]) -> bool {
    let mut met = BTreeSet::new();
    let mut left = vec![(State::default(), 0_u32)];
    while let Some((state, done)) = left.pop() {
        let is_done = |at: usize| done >> at & 1 == 1;
        let open = || ops.iter().enumerate().filter(|(at, _)| !is_done(*at));
        if open().all(|(_, op)| op.returned.is_none()) {
            return true;
        }
        let first_return = open().filter_map(|(_, op)| op.returned).min();
        for (at, op) in open().filter(|(_, op)| first_return.is_none_or(|it| op.called < it)) {
            let next = op.act.step(state).map(|state| (state, done | 1 << at));
            left.extend(next.filter(|next| met.insert(*next)));
        }
    }
    false
}

/// Draws an operation without its result. Written values are unique.
fn draw_act(prng: &mut Prng, written: &mut Vec<Value>) -> Act {
    let key = prng.below(KEYS_USED) as u8;
    let (expected, part) = (prng.below(written.len() as u64 + 1), written.len() as u32);
    let mut fresh = || {
        written.push(written.len() as Value + 1);
        written.len() as Value
    };
    match prng.below(11) {
        0 | 1 => Act::Write(vec![(key, fresh())]),
        2 => Act::Write(vec![(key, 0)]),
        3 => Act::Write(vec![(0, fresh()), (1, fresh())]),
        4 => Act::Read(vec![(key, 0)]),
        5 => Act::Read(vec![(0, 0), (1, 0)]),
        6 => Act::Cas { key, expected, new: fresh(), seen: None },
        7 => Act::Modify { key, change: Change::Append(part), seen: None },
        8 => Act::Modify { key, change: Change::Take, seen: None },
        _ => Act::Modify { key, change: Change::Increment(5), seen: None },
    }
}

fn take_effect(act: &mut Act, state: &mut State) {
    let after = act.step(*state);
    match act {
        Act::Write(_) => {}
        Act::Read(pairs) => {
            pairs.iter_mut().for_each(|(key, value)| *value = state[usize::from(*key)]);
        }
        Act::Cas { key, expected, seen, .. } => {
            let held = state[usize::from(*key)];
            *seen = Some((held == *expected, held));
        }
        Act::Modify { key, change, seen } => {
            let held = state[usize::from(*key)];
            *seen = Some(if *change == Change::Take { Some(held) } else { change.of(held) });
        }
    }
    *state = after.unwrap_or(*state);
}

/// Draws a linearizable history: operations begin, take effect and return or lose their answers.
fn draw_history(prng: &mut Prng) -> Vec<Op> {
    let (mut ops, mut state, mut written) = (Vec::<Op>::new(), State::default(), Vec::new());
    // Operations that did not take effect, and those that did and did not return.
    let (mut waiting, mut effective) = (Vec::new(), Vec::new());
    let count = 3 + prng.below(OPS_MAX - 2);
    for now in 1.. {
        let draw = prng.below(8);
        if ops.len() as u64 == count && draw < 2 {
            break;
        }
        let pick = |list: &mut Vec<usize>, prng: &mut Prng| {
            let at = prng.below(list.len() as u64) as usize;
            (at < list.len()).then(|| list.swap_remove(at))
        };
        match draw {
            0..=3 if (ops.len() as u64) < count => {
                waiting.push(ops.len());
                ops.push(op(now, 0, draw_act(prng, &mut written)));
            }
            0..=5 => {
                let Some(at) = pick(&mut waiting, prng) else { continue };
                take_effect(&mut ops[at].act, &mut state);
                effective.push(at);
            }
            _ => {
                let Some(at) = pick(&mut effective, prng) else { continue };
                ops[at].returned = (prng.below(3) > 0).then_some(now);
            }
        }
    }
    for op in ops.iter_mut().filter(|op| op.returned.is_none()) {
        if let Act::Cas { seen, .. } = &mut op.act {
            *seen = None;
        }
        if let Act::Modify { seen, .. } = &mut op.act {
            *seen = None;
        }
    }
    ops.retain(|op| op.returned.is_some() || !matches!(op.act, Act::Read(_)));
    ops
}

/// Replaces a result by another one, which may be wrong.
fn distort(ops: &mut [Op], prng: &mut Prng) {
    let values: Vec<Value> = ops.iter().flat_map(|op| op.act.written()).chain([0]).collect();
    let value = values[prng.below(values.len() as u64) as usize];
    let has_result = |op: &&mut Op| op.returned.is_some() && !matches!(op.act, Act::Write(_));
    let mut with_result: Vec<&mut Op> = ops.iter_mut().filter(has_result).collect();
    let at = prng.below(with_result.len() as u64) as usize;
    let Some(op) = with_result.get_mut(at) else { return };
    match &mut op.act {
        Act::Write(_) => {}
        Act::Read(pairs) => pairs[0].1 = value,
        Act::Cas { expected, seen, .. } => *seen = Some((*expected == value, value)),
        Act::Modify { change: Change::Increment(by), seen, .. } => {
            *seen = Some(if prng.coin() { None } else { incremented(0, *by) });
        }
        Act::Modify { change: Change::Append(part), seen, .. } => {
            *seen = Some(Some(appended(value, *part)));
        }
        Act::Modify { seen, .. } => *seen = Some(Some(value)),
    }
}

#[test]
fn no_random_history_is_rejected_falsely_and_no_violation_is_missed() {
    let (mut violations, mut needed_lost_writes) = (0, 0);
    for seed in 0..HISTORIES {
        let mut prng = Prng::new(seed);
        let mut ops = draw_history(&mut prng);
        assert!(has_order(&ops), "seed {seed}: {ops:#?}");
        if prng.coin() {
            distort(&mut ops, &mut prng);
        }
        let expected = has_order(&ops);
        assert_eq!(check(&ops).is_ok(), expected, "seed {seed}: {ops:#?}");
        violations += u64::from(!expected);
        let first = search(&relevant(&ops, &BTreeSet::new()));
        needed_lost_writes += u64::from(expected && first.is_err());
    }
    // The draw reaches what it has to distinguish.
    assert!(violations > HISTORIES / 50, "{violations} of {HISTORIES}");
    assert!(needed_lost_writes > HISTORIES / 100, "{needed_lost_writes} of {HISTORIES}");
}
