//! Checks whether a history of a group of registers is linearizable: whether an order exists in
//! which each operation takes effect at one moment between its call and its return.
//!
//! The check walks the history in time. It keeps the set of possible register states, each with the
//! open operations that already took effect. An operation takes effect no earlier than a return
//! requires. The work grows with the number of open operations, not with the length (just-in-time
//! linearization: Lowe, 2017, after Wing and Gong, 1993).

use crate::clients::{KEYS, Value, appended, base_of, incremented};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

/// Operation on a group, with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Sets keys atomically; 0 deletes.
    Write(Vec<(u8, Value)>),
    /// Values read atomically.
    Read(Vec<(u8, Value)>),
    /// Sets `new` if the key holds `expected`.
    Cas {
        /// Key in the group.
        key: u8,
        /// Expected value.
        expected: Value,
        /// New value.
        new: Value,
        /// Whether it succeeded, and the previous value; `None` if the outcome is unknown.
        seen: Option<(bool, Value)>,
    },
    /// Changes a key by a function of its value.
    Modify {
        /// Key in the group.
        key: u8,
        /// The function.
        change: Change,
        /// Value after an increment or append, or `None` if the value did not allow it; value before
        /// a take. `None` if the outcome is unknown.
        seen: Option<Option<Value>>,
    },
}

/// Function of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds to a number; an absent one counts as 0.
    Increment(u32),
    /// Appends a part.
    Append(u32),
    /// Deletes the key.
    Take,
}

impl Change {
    /// Returns the value after it; `None` if it does not apply to this one.
    pub fn of(self, value: Value) -> Option<Value> {
        match self {
            Self::Increment(by) => incremented(value, by),
            Self::Append(part) => Some(appended(value, part)),
            Self::Take => Some(0),
        }
    }
}

/// An operation of a history.
#[derive(Clone, Debug)]
pub struct Op {
    /// Number of the call in the order of all calls and returns.
    pub called: u64,
    /// Number of the return in that order; `None` if it may take effect later, or never.
    pub returned: Option<u64>,
    /// Virtual time of the call.
    pub called_nanos: u64,
    /// Virtual time of the return.
    pub returned_nanos: Option<u64>,
    /// Store that received the request.
    pub slot: u64,
    /// Part of the final reads.
    pub is_final: bool,
    /// Read under a lease.
    pub by_lease: bool,
    /// Operation and result.
    pub act: Act,
}

type State = [Value; KEYS as usize];
/// Bit set of open operations, by their places.
type Places = u128;
/// Possible register states, each with the open operations that took effect.
type States = BTreeSet<(State, Places)>;

/// Limit of states; beyond it the history counts as linearizable.
const STATES_MAX: usize = 20_000;

impl Act {
    /// Returns the value that a key is known to hold after it.
    pub fn known(&self, key: u8) -> Option<Value> {
        match self {
            Self::Write(pairs) | Self::Read(pairs) => {
                pairs.iter().find(|(other, _)| *other == key).map(|(_, value)| *value)
            }
            Self::Cas { key: other, new, seen, .. } if *other == key => Some(match seen {
                Some((false, previous)) => *previous,
                _ => *new,
            }),
            Self::Modify { key: other, change: Change::Take, .. } if *other == key => Some(0),
            Self::Modify { key: other, seen, .. } if *other == key => seen.flatten(),
            Self::Cas { .. } | Self::Modify { .. } => None,
        }
    }

    /// Returns the registers after it, or `None` if it cannot take effect in this state.
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
            Self::Modify { key, change, seen } => {
                let held = &mut state[usize::from(*key)];
                let after = change.of(*held);
                let shown = if *change == Change::Take { Some(*held) } else { after };
                if seen.is_some_and(|seen| seen != shown) {
                    return None;
                }
                *held = after.unwrap_or(*held);
                Some(state)
            }
        }
    }

    /// Returns the values that it read.
    pub fn seen(&self) -> Vec<Value> {
        match self {
            Self::Read(pairs) => pairs.iter().map(|(_, value)| *value).collect(),
            Self::Cas { seen: Some((_, previous)), .. } => vec![*previous],
            Self::Modify { seen: Some(Some(value)), .. } => vec![*value],
            _ => Vec::new(),
        }
    }

    /// Returns the values that it may have written to one of these keys and that are known.
    fn written_to(&self, keys: &BTreeSet<u8>) -> Vec<Value> {
        let of_keys = |(key, value): &(u8, Value)| keys.contains(key).then_some(*value);
        match self {
            Self::Write(pairs) => pairs.iter().filter_map(of_keys).collect(),
            Self::Cas { key, new, .. } => of_keys(&(*key, *new)).into_iter().collect(),
            Self::Modify { .. } | Self::Read(_) => Vec::new(),
        }
    }

    /// Returns the values that it may have written.
    pub fn written(&self) -> Vec<Value> {
        match self {
            Self::Write(pairs) => pairs.iter().map(|(_, value)| *value).collect(),
            Self::Cas { new, .. } => vec![*new],
            // A computed value that is not known is taken for one that was seen.
            Self::Modify { .. } => vec![0],
            Self::Read(_) => Vec::new(),
        }
    }
}

/// Extent of a search that found no violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// An order explains the history.
    Complete,
    /// The search met a limit: whether an order exists is unknown.
    Cut,
}

/// Checks a history. Fails with the operation that no order explains, and the operations before it.
///
/// An increment that meets a value that is not a number may have met any lost write of its key. All
/// lost writes would make most histories too large for the search. Those of a key are included once
/// a search fails without them.
///
/// Invariant: a violation is reported only if the search fails with every lost write that such an
/// increment may have met. Until then a failure may only mean that one of them is missing.
pub fn check(history: &[Op]) -> Result<Extent, String> {
    let mut met = BTreeSet::new();
    loop {
        let ops = relevant(history, &met);
        let at = match search(&ops) {
            Ok(extent) => return Ok(extent),
            Err(at) => at,
        };
        let more = unmet(&ops, at, &met);
        if more.is_empty() {
            return Err(story(&ops, at));
        }
        met.extend(more);
    }
}

/// Returns keys outside `met` of increments that met a value that is not a number: the key of the failed
/// operation, or else of all that began before it returned. Another operation of unknown outcome may
/// have stood for the write that such an increment met, and is missing now.
fn unmet(ops: &[Op], failed: usize, met: &BTreeSet<u8>) -> Vec<u8> {
    let key = |op: &Op| match op.act {
        Act::Modify { key, seen: Some(None), .. } => Some(key).filter(|key| !met.contains(key)),
        _ => None,
    };
    if let Some(key) = key(&ops[failed]) {
        return vec![key];
    }
    let began = |op: &&Op| ops[failed].returned.is_none_or(|returned| op.called < returned);
    ops.iter().filter(began).filter_map(key).collect()
}

/// Searches an order of the operations. Fails with the place of the one that none explains.
fn search(ops: &[Op]) -> Result<Extent, usize> {
    let mut moments: BTreeMap<u64, (usize, bool)> = BTreeMap::new();
    for (at, op) in ops.iter().enumerate() {
        moments.insert(op.called, (at, true));
        if let Some(returned) = op.returned {
            moments.insert(returned, (at, false));
        }
    }
    let mut search = Search {
        ops,
        places: BTreeMap::new(),
        free: (0..Places::BITS).rev().collect(),
        states: States::from([(State::default(), 0)]),
        is_cut: false,
    };
    for (at, is_call) in moments.into_values() {
        match is_call {
            true if !search.open(at) => return Ok(Extent::Cut),
            true => {}
            false => {
                search.close(at);
                if search.is_cut || search.states.len() > STATES_MAX {
                    return Ok(Extent::Cut);
                }
                if search.states.is_empty() {
                    return Err(at);
                }
            }
        }
    }
    Ok(Extent::Complete)
}

/// Drops operations with unknown outcome and without an effect that another operation saw. Written
/// values are unique, so they make no difference. What was written to the keys `met` counts as seen.
fn relevant(history: &[Op], met: &BTreeSet<u8>) -> Vec<Op> {
    // What saw a value with appended parts saw the written value before them.
    let with_base = |value| [Some(value), base_of(value)].into_iter().flatten();
    let seen = history.iter().flat_map(|op| op.act.seen()).flat_map(with_base);
    let written = history.iter().flat_map(|op| op.act.written_to(met));
    let mut seen: BTreeSet<Value> = seen.chain(written).collect();
    // If the new value of a comparison with unknown outcome was seen, it saw its expected value.
    loop {
        let before = seen.len();
        for op in history {
            if let Act::Cas { expected, new, seen: None, .. } = &op.act
                && seen.contains(new)
            {
                seen.extend([Some(*expected), base_of(*expected)].into_iter().flatten());
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
    places: BTreeMap<usize, u32>,
    free: Vec<u32>,
    states: States,
    /// Some possible states were not visited.
    is_cut: bool,
}

impl Search<'_> {
    /// Opens an operation. Returns false if too many are open.
    fn open(&mut self, at: usize) -> bool {
        let place = self.free.pop();
        if let Some(place) = place {
            self.places.insert(at, place);
        }
        place.is_some()
    }

    /// Closes an operation: in every remaining state it took effect.
    fn close(&mut self, at: usize) {
        let Some(place) = self.places.get(&at).copied() else { return };
        let bit = 1 << place;
        let mut done = States::new();
        let mut met = self.states.clone();
        let mut left: Vec<(State, Places)> = std::mem::take(&mut self.states).into_iter().collect();
        while let Some((state, applied)) = left.pop() {
            if applied & bit != 0 {
                done.insert((state, applied & !bit));
                continue;
            }
            for (other, place) in &self.places {
                if applied >> place & 1 == 1 {
                    continue;
                }
                let Some(after) = self.ops[*other].act.step(state) else { continue };
                if self.is_redundant(*other, applied) || (after == state && self.may_never(*other))
                {
                    continue;
                }
                let next = (after, applied | 1 << place);
                if met.len() > STATES_MAX {
                    self.is_cut = true;
                } else if met.insert(next) {
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

    /// Returns true for an open operation of unknown outcome if an earlier equal one has not taken
    /// effect: the earlier one goes first.
    fn is_redundant(&self, at: usize, applied: Places) -> bool {
        let same = |(other, place): (&usize, &u32)| {
            applied >> place & 1 == 0
                && self.may_never(*other)
                && self.ops[*other].act == self.ops[at].act
        };
        self.may_never(at) && self.places.range(..at).any(same)
    }

    /// Drops states that equal another one with fewer operations of unknown outcome applied: all
    /// that follows from the former follows from the latter.
    fn smallest(&self, states: States) -> States {
        let optional = self.places.iter().filter(|(at, _)| self.ops[**at].returned.is_none());
        let optional: Places = optional.map(|(_, place)| 1 << place).sum();
        let mut kept: BTreeMap<(State, Places), Vec<Places>> = BTreeMap::new();
        for (state, applied) in states {
            let (sure, maybe) = (applied & !optional, applied & optional);
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

/// Describes the operation that no order explains, after the operations before it.
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
    let _ = write!(text, "\n  which no order explains: {}", ops[at]);
    text
}

#[cfg(test)]
mod tests;
