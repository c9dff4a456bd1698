//! Histories as files that `cluster-tests/porcupine` reads: one JSON object a line.

use crate::check::linear::{Act, Op};
use crate::clients::{KEYS, Value, key_of};
use serde_json::{Value as Json, json};

/// All groups. Writes of many keys at once are their parts there, and reads of some of a group's keys
/// are too: weaker than what the check of this crate asks, but never wrong.
pub fn porcupine(histories: &[Vec<Op>]) -> String {
    let mut lines = String::new();
    for (group, history) in histories.iter().enumerate() {
        for (process, op) in history.iter().enumerate() {
            for record in records(group, process, op) {
                lines += &record.to_string();
                lines.push('\n');
            }
        }
    }
    lines
}

fn text(value: Value) -> Json {
    if value == 0 { Json::Null } else { json!(format!("v{value}")) }
}

fn records(group: usize, process: usize, op: &Op) -> Vec<Json> {
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
    match &op.act {
        Act::Write(pairs) => pairs
            .iter()
            .map(|(key, value)| match value {
                0 => with("delete", json!({"key": name(*key)})),
                value => with("put", json!({"key": name(*key), "value": text(*value)})),
            })
            .collect(),
        Act::Read(pairs) if pairs.len() == usize::from(KEYS) => {
            let found = pairs.iter().filter(|(_, value)| *value != 0);
            let found: Vec<Json> =
                found.map(|(key, value)| json!([name(*key), text(*value)])).collect();
            vec![with("scan", json!({"limit": 100, "pairs": found}))]
        }
        Act::Read(pairs) => pairs
            .iter()
            .map(|(key, value)| with("get", json!({"key": name(*key), "found": text(*value)})))
            .collect(),
        Act::Cas { key, expected, new, seen } => {
            let (succeeded, previous) = seen.unwrap_or_default();
            let fields = json!({
                "key": name(*key), "expected": text(*expected), "value": text(*new),
                "succeeded": succeeded, "found": text(previous),
            });
            vec![with("cas", fields)]
        }
    }
}
