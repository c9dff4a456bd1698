//! Requests that compare a part with what the target has, and what their replies mean. Nothing is written.

use super::lanes::{PartOutcome, Work, outcome_of_error};
use super::part::{ValueKind, ValuePart};
use bytes::Bytes;
use stele_load::resp::RespReply;

/// Compares parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    /// Difference of two expiries that are equal: a source that states only the rest of the time rounds it.
    pub tolerance_ms: u64,
}

/// Reply to PEXPIRETIME of a missing name.
const MISSING: i64 = -2;

impl Work for Comparison {
    // The requests fit into the buffers of a connection. A target may wait until its replies are read before it
    // reads further requests.
    const PARTS_MAX: usize = 64;
    const REQUEST_BYTES_MAX: u64 = 16 << 10;

    fn requests(&self, part: &ValuePart) -> Vec<Vec<Bytes>> {
        let (name, kind) = (&part.value.name, part.value.kind);
        let of_name =
            |command: &'static str| vec![Bytes::from_static(command.as_bytes()), name.clone()];
        let mut requests = Vec::new();
        if kind == ValueKind::Gone {
            return requests;
        }
        if part.is_first {
            requests.extend([of_name("PEXPIRETIME"), of_name("TYPE")]);
        }
        let members = part.strings.iter().step_by(kind.width()).cloned();
        let command = match kind {
            ValueKind::Hash => "HMGET",
            ValueKind::Set => "SMISMEMBER",
            ValueKind::Text | ValueKind::Gone => {
                requests.push(of_name("GET"));
                return requests;
            }
        };
        if !part.strings.is_empty() {
            let mut request = of_name(command);
            request.extend(members);
            requests.push(request);
        }
        if part.is_last() {
            requests.push(of_name(if kind == ValueKind::Hash { "HLEN" } else { "SCARD" }));
        }
        requests
    }

    fn request_bytes(&self, part: &ValuePart) -> u64 {
        const COMMANDS_BYTES: u64 = 128;
        let name = part.value.name.len() as u64;
        let members = match part.value.kind {
            ValueKind::Text | ValueKind::Gone => 0,
            _ => part.bytes(),
        };
        COMMANDS_BYTES + 3 * name + members
    }

    fn outcome(&self, part: &ValuePart, replies: &[RespReply]) -> PartOutcome {
        let error = replies.iter().find_map(|reply| match reply {
            RespReply::Error(text) if !text.starts_with("WRONGTYPE") => Some(text),
            _ => None,
        });
        if let Some(text) = error {
            return outcome_of_error(text);
        }
        self.difference(part, replies).map_or(PartOutcome::Done, PartOutcome::Differs)
    }

    fn may_repeat(&self, _: &ValuePart) -> bool {
        true
    }
}

impl Comparison {
    /// Returns what differs; `None` if nothing does.
    fn difference(&self, part: &ValuePart, replies: &[RespReply]) -> Option<String> {
        let (kind, mut replies) = (part.value.kind, replies);
        if kind == ValueKind::Gone {
            return None;
        }
        if part.is_first {
            let [RespReply::Integer(expires_at_ms), RespReply::Status(of), rest @ ..] = replies
            else {
                return Some(UNEXPECTED.to_owned());
            };
            // A collection of which all members have expired.
            let is_absent = kind != ValueKind::Text && part.total == Some(0);
            match (*expires_at_ms == MISSING, is_absent) {
                (true, true) => return None,
                (true, false) => return Some("the target does not have it".to_owned()),
                (false, true) => {
                    return Some("the target has it, and the source does not".to_owned());
                }
                (false, false) => {}
            }
            if of != kind.name() {
                return Some(format!("a {} here, a {of} in the target", kind.name()));
            }
            let difference = self.expiry(part.value.expires_at_ms, *expires_at_ms);
            if difference.is_some() {
                return difference;
            }
            replies = rest;
        }
        match kind {
            ValueKind::Text => text(part, replies),
            _ => members(part, replies),
        }
    }

    fn expiry(&self, source: Option<u64>, target: i64) -> Option<String> {
        let target = u64::try_from(target).ok();
        let is_equal = match (source, target) {
            (Some(source), Some(target)) => source.abs_diff(target) <= self.tolerance_ms,
            (source, target) => source == target,
        };
        // bug cli.compare_without_expiry: always
        if is_equal {
            return None;
        }
        let shown =
            |at_ms: Option<u64>| at_ms.map_or("never".to_owned(), |it| format!("at {it} ms"));
        Some(format!("it expires {} here, {} in the target", shown(source), shown(target)))
    }
}

const UNEXPECTED: &str = "the target sent replies of unexpected types";

fn text(part: &ValuePart, replies: &[RespReply]) -> Option<String> {
    match replies {
        [RespReply::Bulk(value)] if value.as_ref() == part.strings.first() => None,
        [RespReply::Bulk(_) | RespReply::TooLong(_)] => {
            Some("another value in the target".to_owned())
        }
        _ => Some(UNEXPECTED.to_owned()),
    }
}

fn members(part: &ValuePart, replies: &[RespReply]) -> Option<String> {
    let (found, total) = match replies {
        [] => (None, None),
        [RespReply::Array(Some(found)), RespReply::Integer(total)] => (Some(found), Some(*total)),
        [RespReply::Array(Some(found))] => (Some(found), None),
        [RespReply::Integer(total)] => (None, Some(*total)),
        _ => return Some(UNEXPECTED.to_owned()),
    };
    if let Some(found) = found {
        let width = part.value.kind.width();
        let expected = part.strings.chunks(width);
        let is_equal = |(member, found): (&[Bytes], &RespReply)| match (member, found) {
            ([_, value], RespReply::Bulk(Some(found))) => value == found,
            ([_], RespReply::Integer(found)) => *found == 1,
            _ => false,
        };
        let members = expected.len();
        if found.len() != members {
            return Some(UNEXPECTED.to_owned());
        }
        // bug cli.compare_without_members: `!is_equal(*pair)` is `false`
        if let Some((member, _)) = expected.zip(found).find(|pair| !is_equal(*pair)) {
            let member = member.first().map(|it| crate::text::printable(it)).unwrap_or_default();
            return Some(format!("member `{member}` is another one in the target, or missing"));
        }
    }
    match (part.total, total) {
        (Some(expected), Some(total)) if i64::try_from(expected) != Ok(total) => {
            Some(format!("{expected} members here, {total} in the target"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::Database;
    use super::super::part::SourceValue;
    use super::*;
    use std::sync::Arc;

    fn part(
        kind: ValueKind,
        strings: &[&'static str],
        is_first: bool,
        total: Option<u64>,
    ) -> ValuePart {
        let value =
            SourceValue { database: Database(0), name: "n".into(), kind, expires_at_ms: Some(900) };
        let strings = strings.iter().map(|text| Bytes::from(*text)).collect();
        ValuePart { value: Arc::new(value), strings, is_first, total }
    }

    fn number(number: i64) -> RespReply {
        RespReply::Integer(number)
    }

    fn bulk(text: &'static str) -> RespReply {
        RespReply::Bulk(Some(text.into()))
    }

    fn of(kind: ValueKind) -> RespReply {
        RespReply::Status(kind.name().to_owned())
    }

    const COMPARISON: Comparison = Comparison { tolerance_ms: 10 };

    #[track_caller]
    fn differs(part: &ValuePart, replies: &[RespReply], words: &str) {
        match COMPARISON.outcome(part, replies) {
            PartOutcome::Differs(text) => assert!(text.contains(words), "{text}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_string_differs_by_value_type_or_expiry() {
        let text = part(ValueKind::Text, &["v"], true, Some(1));
        let outcome = |replies: &[RespReply]| COMPARISON.outcome(&text, replies);
        assert_eq!(COMPARISON.requests(&text).len(), 3);
        assert_eq!(outcome(&[number(910), of(ValueKind::Text), bulk("v")]), PartOutcome::Done);
        differs(&text, &[number(900), of(ValueKind::Text), bulk("w")], "another value");
        differs(
            &text,
            &[number(911), of(ValueKind::Text), bulk("v")],
            "expires at 900 ms here, at 911",
        );
        differs(&text, &[number(-1), of(ValueKind::Text), bulk("v")], "never in the target");
        differs(
            &text,
            &[number(-2), of(ValueKind::Gone), RespReply::Bulk(None)],
            "does not have it",
        );
        let wrong = RespReply::Error("WRONGTYPE".into());
        differs(&text, &[number(900), of(ValueKind::Set), wrong], "a set in the target");
        let again = RespReply::Error("TRYAGAIN".into());
        assert!(matches!(
            outcome(&[number(900), of(ValueKind::Text), again]),
            PartOutcome::NoEffect(_)
        ));
    }

    #[test]
    fn a_collection_differs_by_a_member_or_their_number() {
        let hash = part(ValueKind::Hash, &["f", "v", "g", "w"], true, Some(2));
        let replies = |last: &'static str, total| {
            let values = RespReply::Array(Some(vec![bulk("v"), bulk(last)]));
            vec![number(900), of(ValueKind::Hash), values, number(total)]
        };
        assert_eq!(COMPARISON.requests(&hash).len(), 4);
        assert_eq!(COMPARISON.outcome(&hash, &replies("w", 2)), PartOutcome::Done);
        differs(&hash, &replies("x", 2), "member `g`");
        differs(&hash, &replies("w", 3), "2 members here, 3");
        let middle = part(ValueKind::Set, &["m"], false, None);
        let has = |found| RespReply::Array(Some(vec![number(found)]));
        assert_eq!(COMPARISON.outcome(&middle, &[has(1)]), PartOutcome::Done);
        differs(&middle, &[has(0)], "member `m`");
        let end = part(ValueKind::Set, &[], false, Some(5));
        assert_eq!(COMPARISON.outcome(&end, &[number(5)]), PartOutcome::Done);
        differs(&end, &[number(4)], "5 members here, 4");
        let absent = part(ValueKind::Hash, &[], true, Some(0));
        let missing = [number(-2), of(ValueKind::Gone), number(0)];
        assert_eq!(COMPARISON.outcome(&absent, &missing), PartOutcome::Done);
    }
}
