//! Whether a history of a group of registers can be put into an order in which each operation takes
//! effect at one moment between its call and its return.
//!
//! Histories are walked in time. What is kept is the set of states the registers may be in, each with
//! the open operations that took effect already; an operation takes effect no earlier than an answer
//! needs it. The work thus grows with what is open at once, not with the length (the just-in-time
//! linearization of Lowe, 2017, after Wing and Gong, 1993).

use crate::clients::{KEYS, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

/// What was done, and what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Sets keys, all at once; 0 removes.
    Write(Vec<(u8, Value)>),
    /// Saw these, all at once.
    Read(Vec<(u8, Value)>),
    /// Set `new` if the key held `expected`. `seen`: whether it did, and what it held; `None` while
    /// nobody knows.
    Cas {
        /// Which key.
        key: u8,
        /// What it must hold.
        expected: Value,
        /// What it then holds.
        new: Value,
        /// What came of it.
        seen: Option<(bool, Value)>,
    },
}

/// An operation of a history.
#[derive(Clone, Debug)]
pub struct Op {
    /// When it was called: a number that orders all calls and returns.
    pub called: u64,
    /// When it returned; `None` if it may take effect at any time, or never.
    pub returned: Option<u64>,
    /// When it was called, in virtual time.
    pub called_nanos: u64,
    /// When it returned, in virtual time.
    pub returned_nanos: Option<u64>,
    /// The store that was asked.
    pub slot: u64,
    /// Part of the last look at everything.
    pub is_final: bool,
    /// A lease allowed it.
    pub by_lease: bool,
    /// What it was.
    pub act: Act,
}

type State = [Value; KEYS as usize];
/// Open operations, by their places.
type Places = u128;
/// States that the registers may be in, with what of the open operations made them so.
type States = BTreeSet<(State, Places)>;

/// More states than this are not looked at: the history is then taken for right.
const STATES_MAX: usize = 20_000;

impl Act {
    /// What a key is known to have held after it.
    pub fn known(&self, key: u8) -> Option<Value> {
        match self {
            Self::Write(pairs) | Self::Read(pairs) => {
                pairs.iter().find(|(other, _)| *other == key).map(|(_, value)| *value)
            }
            Self::Cas { key: other, new, seen, .. } if *other == key => Some(match seen {
                Some((false, previous)) => *previous,
                _ => *new,
            }),
            Self::Cas { .. } => None,
        }
    }

    /// The registers after it, if it may happen to them as they are.
    fn step(&self, mut state: State) -> Option<State> {
        match self {
            Self::Write(pairs) => {
                pairs.iter().for_each(|(key, value)| state[usize::from(*key)] = *value);
                Some(state)
            }
            Self::Read(pairs) => {
                let same = pairs.iter().all(|(key, value)| state[usize::from(*key)] == *value);
                same.then_some(state)
            }
            Self::Cas { key, expected, new, seen } => {
                let held = &mut state[usize::from(*key)];
                let matches = *held == *expected;
                if let Some((succeeded, previous)) = seen
                    && (*succeeded != matches || *previous != *held)
                {
                    return None;
                }
                if matches {
                    *held = *new;
                }
                Some(state)
            }
        }
    }

    /// Values that it saw.
    fn seen(&self) -> Vec<Value> {
        match self {
            Self::Read(pairs) => pairs.iter().map(|(_, value)| *value).collect(),
            Self::Cas { seen: Some((_, previous)), .. } => vec![*previous],
            _ => Vec::new(),
        }
    }

    /// Values that it may have written.
    fn written(&self) -> Vec<Value> {
        match self {
            Self::Write(pairs) => pairs.iter().map(|(_, value)| *value).collect(),
            Self::Cas { new, .. } => vec![*new],
            Self::Read(_) => Vec::new(),
        }
    }
}

/// Fails with the operation that can't be, and what came before it.
pub fn check(history: &[Op]) -> Result<(), String> {
    let ops = relevant(history);
    let mut moments: BTreeMap<u64, (usize, bool)> = BTreeMap::new();
    for (at, op) in ops.iter().enumerate() {
        moments.insert(op.called, (at, true));
        if let Some(returned) = op.returned {
            moments.insert(returned, (at, false));
        }
    }
    let mut search = Search {
        ops: &ops,
        places: BTreeMap::new(),
        free: (0..Places::BITS).rev().collect(),
        states: States::from([(State::default(), 0)]),
    };
    for (at, is_call) in moments.into_values() {
        match is_call {
            true if !search.open(at) => return Ok(()),
            true => {}
            false => {
                search.close(at);
                if search.states.is_empty() {
                    return Err(story(&ops, at));
                }
                if search.states.len() > STATES_MAX {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Without what nobody knows the end of and nobody saw an effect of: written values are unique, so
/// whether it happened makes no difference.
fn relevant(history: &[Op]) -> Vec<Op> {
    let mut seen: BTreeSet<Value> = history.iter().flat_map(|op| op.act.seen()).collect();
    // A lost comparison whose effect was seen has seen what it expected.
    loop {
        let before = seen.len();
        for op in history {
            if let Act::Cas { expected, new, seen: None, .. } = &op.act
                && seen.contains(new)
            {
                seen.insert(*expected);
            }
        }
        if seen.len() == before {
            break;
        }
    }
    let matters = |op: &&Op| {
        let written = op.act.written();
        op.returned.is_some() || written.iter().any(|value| *value == 0 || seen.contains(value))
    };
    history.iter().filter(matters).cloned().collect()
}

struct Search<'a> {
    ops: &'a [Op],
    /// Of open operations.
    places: BTreeMap<usize, u32>,
    free: Vec<u32>,
    states: States,
}

impl Search<'_> {
    /// False when too many are open.
    fn open(&mut self, at: usize) -> bool {
        let place = self.free.pop();
        if let Some(place) = place {
            self.places.insert(at, place);
        }
        place.is_some()
    }

    /// The operation returned: it took effect in every state that remains.
    fn close(&mut self, at: usize) {
        let Some(place) = self.places.get(&at).copied() else { return };
        let bit = 1 << place;
        let mut done = States::new();
        let mut met = self.states.clone();
        let mut left: Vec<(State, Places)> = std::mem::take(&mut self.states).into_iter().collect();
        while let Some((state, taken)) = left.pop() {
            if taken & bit != 0 {
                done.insert((state, taken & !bit));
                continue;
            }
            for (other, place) in &self.places {
                if taken >> place & 1 == 1 {
                    continue;
                }
                let Some(after) = self.ops[*other].act.step(state) else { continue };
                if self.is_idle(*other, taken) || (after == state && self.may_never(*other)) {
                    continue;
                }
                let next = (after, taken | 1 << place);
                if met.len() <= STATES_MAX && met.insert(next) {
                    left.push(next);
                }
            }
        }
        self.places.remove(&at);
        self.free.push(place);
        self.states = self.smallest(done);
    }

    fn may_never(&self, at: usize) -> bool {
        self.ops[at].returned.is_none()
    }

    /// Of open operations that may never happen and do the same, the first is taken first.
    fn is_idle(&self, at: usize, taken: Places) -> bool {
        let same = |(other, place): (&usize, &u32)| {
            taken >> place & 1 == 0
                && self.may_never(*other)
                && self.ops[*other].act == self.ops[at].act
        };
        self.may_never(at) && self.places.range(..at).any(same)
    }

    /// Without states that others equal with fewer of the operations that may never happen: whatever
    /// follows from the former follows from the latter.
    fn smallest(&self, states: States) -> States {
        let optional = self.places.iter().filter(|(at, _)| self.ops[**at].returned.is_none());
        let optional: Places = optional.map(|(_, place)| 1 << place).sum();
        let mut kept: BTreeMap<(State, Places), Vec<Places>> = BTreeMap::new();
        for (state, taken) in states {
            let (sure, maybe) = (taken & !optional, taken & optional);
            let others = kept.entry((state, sure)).or_default();
            if others.iter().any(|other| other & maybe == *other) {
                continue;
            }
            others.retain(|other| other & maybe != maybe);
            others.push(maybe);
        }
        kept.into_iter()
            .flat_map(|((state, sure), maybe)| {
                maybe.into_iter().map(move |maybe| (state, sure | maybe))
            })
            .collect()
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |nanos: u64| nanos as f64 / 1e6;
        let end = self.returned_nanos.map_or("...".to_owned(), |at| format!("{:.3}", millis(at)));
        let by = if self.by_lease { " by a lease" } else { "" };
        let (start, slot) = (millis(self.called_nanos), self.slot);
        write!(f, "[{start:.3}, {end}] store {slot} {:?}{by}", self.act)
    }
}

/// The operation that can't be, after the operations that bear on it.
fn story(ops: &[Op], at: usize) -> String {
    const SHOWN: usize = 24;
    let returned = ops[at].returned.unwrap_or(u64::MAX);
    let mut before: Vec<&Op> = ops.iter().filter(|op| op.called <= returned).collect();
    before.sort_by_key(|op| op.returned.unwrap_or(op.called));
    let first = before.len().saturating_sub(SHOWN);
    let mut text = String::new();
    for op in &before[first..] {
        // Writing to a string does not fail.
        let _ = write!(text, "\n  {op}");
    }
    let _ = write!(text, "\n  which can't be: {}", ops[at]);
    text
}

#[cfg(test)]
mod tests;
