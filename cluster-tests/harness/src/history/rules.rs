//! Rules of answers, checked over all operations of a history. Each operation was sent once and its
//! value is unique, so that a value names its write.

use super::operation::Operation;
use crate::client::AnswerKind;
use std::collections::HashMap;

/// Violations of one rule that are listed; the others are counted.
const LISTED_MAX: usize = 5;

/// Rules that every answer must keep.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// Whether no put and no delete may be answered by `stale_command`, after which common clients
    /// send it again. A compare-and-swap must never be.
    pub strict: bool,
}

impl Rules {
    pub(crate) fn broken(&self, records: &[Operation]) -> Vec<String> {
        let mut broken = listed("refused and yet took effect", seen_although_refused(records));
        broken.extend(listed("must not be answered by stale_command", self.stale(records)));
        broken
    }

    fn stale(&self, records: &[Operation]) -> Vec<String> {
        let is_forbidden = |op: &str| match op {
            "cas" => true,
            "put" | "delete" => self.strict,
            _ => false,
        };
        let stale = records.iter().filter(|one| one.answer == AnswerKind::StaleCommand);
        stale.filter(|one| is_forbidden(one.op)).map(describe).collect()
    }
}

/// Invariant: a refused write has no effect, now or later. Its value is written by no other
/// operation, so that a single sight of it proves a violation.
fn seen_although_refused(records: &[Operation]) -> Vec<String> {
    let refused: HashMap<&str, &Operation> = records
        .iter()
        .filter(|one| one.refused)
        .filter_map(|one| Some((one.value.as_deref()?, one)))
        .collect();
    // The first observer of each value.
    let mut seen: HashMap<&str, &Operation> = HashMap::new();
    for one in records.iter().filter(|one| one.is_done()) {
        for value in one.observed().filter(|value| refused.contains_key(value)) {
            let first = seen.entry(value).or_insert(one);
            if one.return_ns < first.return_ns {
                *first = one;
            }
        }
    }
    let mut found: Vec<(&Operation, &Operation)> =
        seen.into_iter().filter_map(|(value, by)| Some((*refused.get(value)?, by))).collect();
    found.sort_by_key(|(write, _)| write.call_ns);
    let text = |(write, by): (&Operation, &Operation)| {
        format!("{}, was seen by {}", describe(write), describe(by))
    };
    found.into_iter().map(text).collect()
}

fn describe(record: &Operation) -> String {
    let Operation { op, process, answer, .. } = record;
    let key = if record.key.is_empty() { &record.group } else { &record.key };
    let value = record.value.as_deref().map(|value| format!(" to {value}")).unwrap_or_default();
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let (call, end) = (seconds(record.call_ns), seconds(record.return_ns));
    let answer = answer.name();
    format!("{op} of {key}{value} by client {process} ({answer}, {call:.6} s to {end:.6} s)")
}

fn listed(rule: &str, violations: Vec<String>) -> Vec<String> {
    let more = violations.len().saturating_sub(LISTED_MAX);
    let mut lines: Vec<String> =
        violations.into_iter().take(LISTED_MAX).map(|text| format!("{rule}: {text}")).collect();
    if more > 0 {
        lines.push(format!("{rule}: {more} more"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(op: &'static str, value: &str, answer: AnswerKind) -> Operation {
        let value = Some(value.to_owned());
        let mut record = Operation { op, key: "k".to_owned(), value, ..Operation::default() };
        record.set_answer(answer);
        record
    }

    fn get(found: &str) -> Operation {
        Operation { op: "get", found: Some(found.to_owned()), ..Operation::default() }
    }

    fn scan(found: &str) -> Operation {
        let pairs = vec![("j".to_owned(), "0".to_owned()), ("k".to_owned(), found.to_owned())];
        Operation { op: "scan", pairs, ..Operation::default() }
    }

    fn swap_from(found: &str, succeeded: bool) -> Operation {
        Operation { op: "cas", found: Some(found.to_owned()), succeeded, ..Operation::default() }
    }

    fn broken(records: &[Operation]) -> Vec<String> {
        Rules::default().broken(records)
    }

    #[test]
    fn a_refused_value_that_any_operation_sees_is_a_violation() {
        for op in ["put", "cas"] {
            for answer in [AnswerKind::NotLeader, AnswerKind::EpochNotMatch, AnswerKind::ErrorText]
            {
                let refused = write(op, "7", answer);
                assert!(broken(&[refused.clone(), get("6"), scan("8")]).is_empty());
                for sight in [get("7"), scan("7"), swap_from("7", true), swap_from("7", false)] {
                    let found = broken(&[refused.clone(), sight.clone()]);
                    assert_eq!(found.len(), 1, "{found:?}");
                    assert!(found[0].contains("to 7") && found[0].contains(answer.name()));
                    // The order of the records does not matter: clients are merged one by one.
                    assert_eq!(broken(&[sight, refused.clone()]).len(), 1);
                }
            }
        }
    }

    #[test]
    fn a_write_of_unknown_outcome_may_appear_late_or_never() {
        for answer in [
            AnswerKind::NoResponse,
            AnswerKind::StaleCommand,
            AnswerKind::UndeterminedResult,
            AnswerKind::UndeterminedText,
        ] {
            let unknown = write("put", "7", answer);
            assert!(unknown.ambiguous && !unknown.refused);
            assert!(broken(std::slice::from_ref(&unknown)).is_empty());
            assert!(broken(&[unknown, get("6"), get("7"), scan("7")]).is_empty());
        }
    }

    #[test]
    fn a_read_without_an_answer_is_not_a_sight() {
        let mut lost = get("7");
        lost.set_answer(AnswerKind::NoResponse);
        assert!(broken(&[write("put", "7", AnswerKind::NotLeader), lost]).is_empty());
    }

    #[test]
    fn a_comparison_is_never_answered_by_stale_command_and_with_strict_no_write_is() {
        let swap = write("cas", "7", AnswerKind::StaleCommand);
        let put = write("put", "8", AnswerKind::StaleCommand);
        let mut delete = Operation { op: "delete", ..Operation::default() };
        delete.set_answer(AnswerKind::StaleCommand);
        let mut read = Operation { op: "get", ..Operation::default() };
        read.set_answer(AnswerKind::StaleCommand);
        let records = [swap, put, delete, read];
        assert_eq!(broken(&records).len(), 1);
        assert_eq!(Rules { strict: true }.broken(&records).len(), 3);
        let determined = [AnswerKind::UndeterminedText, AnswerKind::Done, AnswerKind::NotLeader];
        for answer in determined {
            assert!(Rules { strict: true }.broken(&[write("cas", "7", answer)]).is_empty());
        }
    }

    #[test]
    fn many_violations_of_one_rule_are_counted() {
        let swap = write("cas", "7", AnswerKind::StaleCommand);
        let found = broken(&vec![swap; LISTED_MAX + 3]);
        assert_eq!(found.len(), LISTED_MAX + 1);
        assert!(found[LISTED_MAX].ends_with("3 more"), "{found:?}");
    }
}
