//! Histories as files for `cluster-tests/porcupine`: one JSON object a line. Times are numbers that
//! order all calls and returns, also those within one virtual nanosecond.

use crate::check::linear::{self, Act, Change, Op};
use crate::clients::{KEYS, Value, key_of};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;

/// Returns the histories of all groups. Writes of several keys are split into single ones, and so
/// are reads of some of a group's keys. A key with an increment or an append of unknown outcome is left
/// out: the model has no operation for it. That checks less than `linear` does, but rejects no valid
/// history.
pub fn porcupine(histories: &[Vec<Op>]) -> String {
    let mut lines = String::new();
    for (group, history) in histories.iter().enumerate() {
        let known = Known::of(history);
        for (process, op) in history.iter().enumerate() {
            for record in records(group, process, op, &known) {
                lines += &record.to_string();
                lines.push('\n');
            }
        }
    }
    lines
}

/// Returns the groups with histories that `linear` rejects.
pub fn refused(histories: &[Vec<Op>]) -> Vec<String> {
    let checked = histories.iter().enumerate();
    let refused = checked.filter(|(_, history)| linear::check(history).is_err());
    refused.map(|(group, _)| format!("g{group}")).collect()
}

/// Changes one read of each group, where possible, to return a value that was overwritten before
/// the read began. Values are unique, so no order explains it. The read is one that [`porcupine`] keeps.
pub fn plant(histories: &mut [Vec<Op>]) {
    for history in histories {
        let open = Known::of(history).open;
        let mut reads = history.iter().enumerate().rev();
        let found = reads.find_map(|(at, op)| Some((at, stale(history, op, &open)?)));
        if let Some((at, value)) = found {
            let Some(op) = history.get_mut(at) else { continue };
            op.act = match &op.act {
                Act::Read(pairs) if pairs.len() == 1 => Act::Read(vec![(pairs[0].0, value)]),
                other => other.clone(),
            };
        }
    }
}

/// Returns a value that a read of one key must not return, because it was overwritten before.
fn stale(history: &[Op], read: &Op, open: &BTreeSet<u8>) -> Option<Value> {
    let Act::Read(pairs) = &read.act else { return None };
    let [(key, _)] = pairs[..] else { return None };
    if open.contains(&key) {
        return None;
    }
    let written = |op: &Op| match &op.act {
        Act::Write(pairs) => pairs.iter().find(|(other, _)| *other == key).map(|(_, value)| *value),
        _ => None,
    };
    let before = |op: &Op, at: u64| op.returned.is_some_and(|returned| returned < at);
    read.returned?;
    let last = history.iter().filter(|op| written(op).is_some() && before(op, read.called));
    let last = last.max_by_key(|op| op.called)?;
    let earlier = history.iter().filter(|op| before(op, last.called));
    earlier.filter_map(written).find(|value| *value != 0)
}

fn text(value: Value) -> Json {
    if value == 0 { Json::Null } else { json!(format!("v{value}")) }
}

struct Known {
    /// Keys with a value that an operation of unknown outcome may have computed.
    open: BTreeSet<u8>,
    values: BTreeSet<Value>,
}

impl Known {
    fn of(history: &[Op]) -> Self {
        let open = |op: &Op| match op.act {
            Act::Modify { key, change: Change::Increment(_) | Change::Append(_), seen: None } => {
                Some(key)
            }
            _ => None,
        };
        let values = |op: &Op| op.act.seen().into_iter().chain(op.act.written());
        Self {
            open: history.iter().filter_map(open).collect(),
            values: history.iter().flat_map(values).chain([0]).collect(),
        }
    }

    fn before(&self, change: Change, after: Value) -> Option<Value> {
        self.values.iter().copied().find(|value| change.of(*value) == Some(after))
    }
}

fn records(group: usize, process: usize, op: &Op, known: &Known) -> Vec<Json> {
    let name = |key: u8| String::from_utf8_lossy(&key_of(group, key)).into_owned();
    let base = |kind: &str| {
        json!({
            "process": process, "op": kind, "group": format!("g{group}"),
            "call_ns": op.called, "return_ns": op.returned.unwrap_or(op.called),
            "ambiguous": op.returned.is_none(),
        })
    };
    let with = |kind: &str, fields: Json| {
        let mut record = base(kind);
        if let (Some(record), Some(fields)) = (record.as_object_mut(), fields.as_object()) {
            record.extend(fields.clone());
        }
        record
    };
    let closed = |(key, _): &&(u8, Value)| !known.open.contains(key);
    match &op.act {
        Act::Write(pairs) => pairs
            .iter()
            .filter(closed)
            .map(|(key, value)| match value {
                0 => with("delete", json!({"key": name(*key)})),
                value => with("put", json!({"key": name(*key), "value": text(*value)})),
            })
            .collect(),
        Act::Read(pairs) if pairs.len() == usize::from(KEYS) && known.open.is_empty() => {
            let found = pairs.iter().filter(|(_, value)| *value != 0);
            let found: Vec<Json> =
                found.map(|(key, value)| json!([name(*key), text(*value)])).collect();
            vec![with("scan", json!({"limit": 100, "pairs": found}))]
        }
        Act::Read(pairs) => pairs
            .iter()
            .filter(closed)
            .map(|(key, value)| with("get", json!({"key": name(*key), "found": text(*value)})))
            .collect(),
        Act::Cas { key, .. } | Act::Modify { key, .. } if known.open.contains(key) => Vec::new(),
        Act::Cas { key, expected, new, seen } => {
            let (succeeded, previous) = seen.unwrap_or_default();
            let fields = json!({
                "key": name(*key), "expected": text(*expected), "value": text(*new),
                "succeeded": succeeded, "found": text(previous),
            });
            vec![with("cas", fields)]
        }
        Act::Modify { key, change, seen } => {
            let swap = |before: Value, after: Value| {
                let fields = json!({
                    "key": name(*key), "expected": text(before), "value": text(after),
                    "succeeded": true, "found": text(before),
                });
                vec![with("cas", fields)]
            };
            match (change, seen) {
                (Change::Take, None) => vec![with("delete", json!({"key": name(*key)}))],
                (Change::Take, Some(before)) => swap(before.unwrap_or(0), 0),
                (_, Some(Some(after))) => match known.before(*change, *after) {
                    Some(before) => swap(before, *after),
                    None => Vec::new(),
                },
                // The value did not allow the change: the model knows no such answer.
                (_, Some(None) | None) => Vec::new(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(called: u64, act: Act, returned: Option<u64>) -> Op {
        Op {
            called,
            returned,
            called_nanos: called,
            returned_nanos: returned,
            slot: 1,
            is_final: false,
            by_lease: false,
            act,
        }
    }

    /// Key 0 is written twice and read, then key 1.
    fn history() -> Vec<Op> {
        let mut ops = Vec::new();
        for (key, value) in [(0, 10), (1, 20)] {
            let at = u64::from(key) * 10;
            ops.push(op(at, Act::Write(vec![(key, value)]), Some(at + 1)));
            ops.push(op(at + 2, Act::Write(vec![(key, value + 1)]), Some(at + 3)));
            ops.push(op(at + 4, Act::Read(vec![(key, value + 1)]), Some(at + 5)));
        }
        ops
    }

    #[test]
    fn a_stale_read_is_planted_where_the_file_keeps_the_read() {
        let mut all = [history()];
        plant(&mut all);
        assert_eq!(all[0][5].act, Act::Read(vec![(1, 20)]), "the last read of the history");

        let mut all = [history()];
        let open = Act::Modify { key: 1, change: Change::Increment(1), seen: None };
        all[0].insert(0, op(30, open, None));
        plant(&mut all);
        assert_eq!(all[0][6].act, Act::Read(vec![(1, 21)]), "the file leaves key 1 out");
        assert_eq!(all[0][3].act, Act::Read(vec![(0, 10)]));
        assert_eq!(refused(&all), ["g0"]);
        assert!(!porcupine(&all).contains("v20"));
    }
}
