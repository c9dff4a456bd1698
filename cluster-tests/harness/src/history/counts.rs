//! Numbers of operations, by kind of operation and of answer.

use super::operation::Operation;
use crate::client::AnswerKind;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

#[derive(Debug, Default)]
pub(crate) struct Counts {
    by_op: BTreeMap<&'static str, BTreeMap<AnswerKind, u64>>,
    /// Writes of a value with an unknown outcome, and those of them that took effect: another
    /// operation observed the value.
    unknown_writes: u64,
    unknown_writes_seen: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, records: &[Operation]) {
        let seen: HashSet<&str> = records.iter().flat_map(Operation::observed).collect();
        for value in
            records.iter().filter(|one| one.ambiguous).filter_map(|one| one.value.as_deref())
        {
            self.unknown_writes += 1;
            self.unknown_writes_seen += u64::from(seen.contains(value));
        }
        for record in records {
            *self.by_op.entry(record.op).or_default().entry(record.answer).or_default() += 1;
        }
    }

    /// Returns the number of written values with an unknown outcome, and of those that were seen.
    pub(crate) fn unknown_writes(&self) -> [u64; 2] {
        [self.unknown_writes, self.unknown_writes_seen]
    }

    /// Converts the numbers into an object: per operation, the number of each answer.
    pub(crate) fn object(&self) -> Value {
        let answers = |answers: &BTreeMap<AnswerKind, u64>| -> Map<String, Value> {
            answers.iter().map(|(kind, count)| (kind.name().to_owned(), (*count).into())).collect()
        };
        let ops = self.by_op.iter().map(|(op, all)| ((*op).to_owned(), answers(all).into()));
        Value::Object(ops.collect())
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{:8}{:>9}{:>9}{:>9}", "", "done", "refused", "unknown")?;
        for (op, answers) in &self.by_op {
            let sum = |is_counted: fn(AnswerKind) -> bool| -> u64 {
                answers.iter().filter(|(kind, _)| is_counted(**kind)).map(|(_, count)| count).sum()
            };
            let done = sum(|kind| kind == AnswerKind::Done);
            let (refused, unknown) = (sum(AnswerKind::is_refusal), sum(AnswerKind::is_unknown));
            write!(out, "{op:8}{done:9}{refused:9}{unknown:9}  ")?;
            for (kind, count) in answers.iter().filter(|(kind, _)| **kind != AnswerKind::Done) {
                write!(out, " {} {count}", kind.name())?;
            }
            writeln!(out)?;
        }
        let [unknown, seen] = self.unknown_writes();
        writeln!(out, "{seen} of {unknown} written values of unknown outcome were seen")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_counted_under_its_answer() {
        let with = |op, answer| {
            let mut record = Operation { op, ..Operation::default() };
            record.set_answer(answer);
            record
        };
        let mut counts = Counts::default();
        counts.add(&[with("put", AnswerKind::Done), with("put", AnswerKind::NotLeader)]);
        counts.add(&[with("put", AnswerKind::NoResponse), with("put", AnswerKind::NotLeader)]);
        counts.add(&[with("get", AnswerKind::Done)]);
        let expected = serde_json::json!({
            "get": {"done": 1}, "put": {"done": 1, "no_response": 1, "not_leader": 2},
        });
        assert_eq!(counts.object(), expected);
        let text = counts.to_string();
        let put = text.lines().find(|line| line.starts_with("put")).unwrap();
        let words: Vec<&str> = put.split_whitespace().collect();
        assert_eq!(words[..4], ["put", "1", "2", "1"], "{text}");
    }

    #[test]
    fn an_unknown_write_that_was_seen_took_effect() {
        let put = |value: &str, answer| {
            let mut put =
                Operation { op: "put", value: Some(value.to_owned()), ..Operation::default() };
            put.set_answer(answer);
            put
        };
        let get = Operation { op: "get", found: Some("2".to_owned()), ..Operation::default() };
        let mut counts = Counts::default();
        let unknown = AnswerKind::NoResponse;
        counts.add(&[put("1", unknown), put("2", unknown), put("3", AnswerKind::NotLeader), get]);
        assert_eq!(counts.unknown_writes(), [2, 1]);
    }
}
