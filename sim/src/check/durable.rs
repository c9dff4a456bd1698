//! Checks that acknowledged writes are present at the end. Linearizability implies it; this check
//! needs no search and names the lost write.

use super::linear::{Act, Change, Op};
use crate::clients::{KEYS, Value};
use crate::world::World;

impl World {
    pub(super) fn check_durable(&mut self) {
        for group in 0..self.clients.histories.len() {
            let lost = lost(&self.clients.histories[group]);
            if let Some(text) = lost {
                return self
                    .fail(format!("an acknowledged write of group {group} is lost: {text}"));
            }
        }
    }
}

/// Returns the last acknowledged write of a key if a final read does not find its value and no
/// other write could have replaced it.
pub fn lost(history: &[Op]) -> Option<String> {
    for key in 0..KEYS {
        let finals = history.iter().filter(|op| op.is_final);
        let seen: Vec<Value> = finals.filter_map(|op| op.act.seen_of(key)).collect();
        let Some(found) = seen.last().copied() else { continue };
        let written: Vec<(&Op, Left)> =
            history.iter().filter_map(|op| Some((op, op.act.writes(key)?))).collect();
        // A write that replaced another one was called before the other returned, or after.
        let answered = written.iter().filter(|(op, _)| op.returned.is_some());
        let Some(last) = answered.max_by_key(|(op, _)| op.called) else { continue };
        let begun_later =
            |(op, _): &&(&Op, Left)| op.returned.is_none_or(|returned| returned > last.0.called);
        let may_be = |left: &Left| matches!(left, Left::Any) || *left == Left::Value(found);
        let possible = written.iter().filter(begun_later).any(|(_, left)| may_be(left));
        if !possible {
            let Op { slot, called_nanos, .. } = last.0;
            return Some(format!(
                "key {key} holds {found}; store {slot} acknowledged {:?}, called at {:.3} ms",
                last.0.act,
                *called_nanos as f64 / 1e6
            ));
        }
    }
    None
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Value(Value),
    /// Computed value of unknown outcome.
    Any,
}

impl Act {
    /// Returns what it leaves in a key, if it succeeded or its outcome is unknown; `None` if it does
    /// not change the key.
    fn writes(&self, key: u8) -> Option<Left> {
        match self {
            Self::Write(written) => {
                let written = written.iter().find(|(other, _)| *other == key);
                written.map(|(_, value)| Left::Value(*value))
            }
            Self::Cas { key: other, new, seen, .. } => {
                let succeeded = seen.is_none_or(|(succeeded, _)| succeeded);
                (*other == key && succeeded).then_some(Left::Value(*new))
            }
            Self::Modify { key: other, .. } if *other != key => None,
            Self::Modify { change: Change::Take, .. } => Some(Left::Value(0)),
            Self::Modify { seen: None, .. } => Some(Left::Any),
            Self::Modify { seen: Some(after), .. } => after.map(Left::Value),
            Self::Read(_) => None,
        }
    }

    fn seen_of(&self, key: u8) -> Option<Value> {
        let Self::Read(seen) = self else { return None };
        seen.iter().find(|(other, _)| *other == key).map(|(_, value)| *value)
    }
}
