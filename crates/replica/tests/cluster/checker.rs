//! Linearizability checker for one register: whether the operations can be ordered so that each
//! takes effect at one moment between its call and its return (Wing and Gong, 1993, with Lowe's
//! memo of visited states).

use std::collections::HashSet;
use std::fmt;

/// Value; 0 for none.
pub(crate) type Value = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Put(Value),
    Delete,
    Get(Value),
    /// Compare-and-swap from `expected` to `new`. `seen`: whether it held, and the value found;
    /// `None` while unknown.
    Cas {
        expected: Value,
        new: Value,
        seen: Option<(bool, Value)>,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub called: u64,
    /// Time of the return; `None` if it may take effect at any time, or never.
    pub returned: Option<u64>,
    pub act: Act,
    pub place: Place,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub store: u64,
    pub sent_ms: u64,
    pub by: &'static str,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { store, sent_ms, by } = self.place;
        let end = self.returned.map_or("...".to_owned(), |at| at.to_string());
        write!(
            f,
            "[{}, {end}] {:?} to store {store} at {sent_ms} ms, by {by}",
            self.called, self.act
        )
    }
}

impl Act {
    /// Returns the register after the operation, if it can happen to a register with `value`.
    fn step(self, value: Value) -> Option<Value> {
        match self {
            Self::Put(new) => Some(new),
            Self::Delete => Some(0),
            Self::Get(seen) => (seen == value).then_some(value),
            Self::Cas { expected, new, seen: None } => {
                Some(if value == expected { new } else { value })
            }
            Self::Cas { expected, new, seen: Some((true, previous)) } => {
                (value == expected && previous == value).then_some(new)
            }
            Self::Cas { expected, seen: Some((false, previous)), .. } => {
                (value != expected && previous == value).then_some(value)
            }
        }
    }
}

struct Search<'a> {
    ops: &'a [Op],
    seen: HashSet<(Vec<u64>, Value)>,
}

pub(crate) fn is_linearizable(ops: &[Op]) -> bool {
    let mut ops = ops.to_vec();
    ops.sort_by_key(|op| op.called);
    let mut search = Search { ops: &ops, seen: HashSet::new() };
    let mut taken = vec![0u64; ops.len().div_ceil(64)];
    search.from(&mut taken, 0)
}

impl Search<'_> {
    /// Depth-first search with an explicit stack, because histories are long.
    fn from(&mut self, taken: &mut [u64], value: Value) -> bool {
        let mut stack: Vec<(usize, Value)> = Vec::new();
        let (mut value, mut next) = (value, 0);
        loop {
            match self.candidate(taken, value, next) {
                Candidate::Done => return true,
                Candidate::Take(at, after) => {
                    taken[at / 64] |= 1 << (at % 64);
                    if self.seen.insert((taken.to_vec(), after)) {
                        stack.push((at, value));
                        (value, next) = (after, 0);
                    } else {
                        taken[at / 64] &= !(1 << (at % 64));
                        next = at + 1;
                    }
                }
                Candidate::None => {
                    let Some((at, before)) = stack.pop() else { return false };
                    taken[at / 64] &= !(1 << (at % 64));
                    (value, next) = (before, at + 1);
                }
            }
        }
    }

    /// Returns the first operation from `from` on that may take effect next: no remaining operation
    /// returned before it was called.
    fn candidate(&self, taken: &[u64], value: Value, from: usize) -> Candidate {
        let left = |at: &usize| taken[at / 64] >> (at % 64) & 1 == 0;
        let returns = (0..self.ops.len()).filter(left).filter_map(|at| self.ops[at].returned);
        let Some(first_return) = returns.min() else { return Candidate::Done };
        for at in (from..self.ops.len()).filter(left) {
            let op = &self.ops[at];
            if op.called > first_return {
                break;
            }
            if let Some(after) = op.act.step(value) {
                return Candidate::Take(at, after);
            }
        }
        Candidate::None
    }
}

enum Candidate {
    Done,
    Take(usize, Value),
    None,
}

fn op(called: u64, returned: u64, act: Act) -> Op {
    Op { called, returned: (returned > 0).then_some(returned), act, place: Place::default() }
}

#[test]
fn a_stale_read_is_found_and_a_concurrent_one_is_not() {
    let put = op(1, 2, Act::Put(7));
    assert!(is_linearizable(&[put, op(3, 4, Act::Get(7))]));
    assert!(!is_linearizable(&[put, op(3, 4, Act::Get(0))]));
    assert!(is_linearizable(&[op(1, 5, Act::Put(7)), op(3, 4, Act::Get(0))]));
    let back = [op(1, 9, Act::Put(7)), op(2, 3, Act::Get(7)), op(4, 5, Act::Get(0))];
    assert!(!is_linearizable(&back));
}

#[test]
fn an_operation_of_unknown_outcome_takes_effect_late_or_never_but_only_once() {
    let lost = op(1, 0, Act::Put(7));
    assert!(is_linearizable(&[lost, op(2, 3, Act::Get(0)), op(4, 5, Act::Get(7))]));
    assert!(is_linearizable(&[lost, op(2, 3, Act::Get(0))]));
    let twice = [
        lost,
        op(2, 3, Act::Get(7)),
        op(4, 5, Act::Put(8)),
        op(6, 7, Act::Get(8)),
        op(8, 9, Act::Get(7)),
    ];
    assert!(!is_linearizable(&twice));
}

#[test]
fn comparisons_take_what_they_saw() {
    let cas = |expected, new, seen| Act::Cas { expected, new, seen };
    let put = op(1, 2, Act::Put(7));
    assert!(is_linearizable(&[put, op(3, 4, cas(7, 8, Some((true, 7))))]));
    assert!(!is_linearizable(&[put, op(3, 4, cas(0, 8, Some((true, 0))))]));
    assert!(is_linearizable(&[put, op(3, 4, cas(0, 8, Some((false, 7))))]));
    let both = [put, op(3, 6, cas(7, 8, Some((true, 7)))), op(3, 6, cas(7, 9, Some((true, 7))))];
    assert!(!is_linearizable(&both));
    assert!(is_linearizable(&[put, op(3, 0, cas(7, 8, None)), op(4, 5, Act::Get(8))]));
    assert!(is_linearizable(&[op(1, 2, Act::Delete), op(3, 4, cas(0, 8, Some((true, 0))))]));
}
