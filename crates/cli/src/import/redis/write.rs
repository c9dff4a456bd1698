//! Requests that write a part, and what their replies mean.
//!
//! A string is one SET. Of a collection the first part is one transaction that deletes the name, writes the
//! members and sets the expiry: a reader sees the old value, or the members of the part. Later parts add members,
//! so a reader of a collection of several parts sees it grow.
//!
//! Invariant: members and expiry of a value are written by one transaction: a value of which the import is
//! interrupted expires when the source says.
//! Test: `a_collection_never_exists_without_its_expiry`.

use super::lanes::{PartOutcome, Work, outcome_of_error};
use super::part::{ValueKind, ValuePart};
use bytes::Bytes;
use stele_load::resp::RespReply;

/// Writes parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writes;

fn word(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

impl Work for Writes {
    const PARTS_MAX: usize = 128;
    const REQUEST_BYTES_MAX: u64 = 1 << 20;

    fn requests(&self, part: &ValuePart) -> Vec<Vec<Bytes>> {
        let (name, kind) = (&part.value.name, part.value.kind);
        let expiry = part.value.expires_at_ms.map(|at_ms| Bytes::from(at_ms.to_string()));
        let members = |command| {
            let mut request = vec![word(command), name.clone()];
            request.extend(part.strings.iter().cloned());
            request
        };
        let adding = match kind {
            ValueKind::Text => {
                let mut set = members("SET");
                set.extend(expiry.into_iter().flat_map(|at_ms| [word("PXAT"), at_ms]));
                return vec![set];
            }
            ValueKind::Gone => None,
            _ if part.strings.is_empty() => None,
            ValueKind::Hash => Some(members("HSET")),
            ValueKind::Set => Some(members("SADD")),
        };
        let deletion = part.is_first.then(|| vec![word("DEL"), name.clone()]);
        if deletion.is_none() && adding.is_none() {
            return Vec::new();
        }
        // Also of a later part: the name may have expired meanwhile, and its members begin it again.
        // bug cli.import_expiry_of_first_part: let expiry = expiry.filter(|_| part.is_first);
        let expiry = expiry.filter(|_| adding.is_some());
        let expiry = expiry.map(|at_ms| vec![word("PEXPIREAT"), name.clone(), at_ms]);
        let changes: Vec<Vec<Bytes>> = [deletion, adding, expiry].into_iter().flatten().collect();
        if changes.len() == 1 {
            return changes;
        }
        let (begin, end) = (vec![vec![word("MULTI")]], vec![vec![word("EXEC")]]);
        [begin, changes, end].concat()
    }

    fn request_bytes(&self, part: &ValuePart) -> u64 {
        part.bytes()
    }

    fn outcome(&self, _: &ValuePart, replies: &[RespReply]) -> PartOutcome {
        let in_transaction = replies.iter().filter_map(|reply| match reply {
            RespReply::Array(elements) => elements.as_ref(),
            _ => None,
        });
        let in_transaction = in_transaction.flatten();
        // The reason of a command that was not queued comes before the refusal of EXEC.
        let mut errors = replies.iter().chain(in_transaction).filter_map(|reply| match reply {
            RespReply::Error(text) => Some(text),
            _ => None,
        });
        errors.next().map_or(PartOutcome::Done, |text| outcome_of_error(text))
    }

    fn may_repeat(&self, part: &ValuePart) -> bool {
        part.is_whole() || !part.is_first
    }
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::Database;
    use super::super::part::SourceValue;
    use super::*;
    use std::sync::Arc;

    fn part(kind: ValueKind, strings: &[&'static str], is_first: bool, is_last: bool) -> ValuePart {
        let value =
            SourceValue { database: Database(0), name: "n".into(), kind, expires_at_ms: Some(9) };
        let strings = strings.iter().map(|text| Bytes::from(*text)).collect();
        ValuePart { value: Arc::new(value), strings, is_first, total: is_last.then_some(1) }
    }

    fn text(part: &ValuePart) -> Vec<String> {
        let requests = Writes.requests(part).into_iter();
        let line = |words: Vec<Bytes>| {
            let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
            words.join(" ")
        };
        requests.map(line).collect()
    }

    #[test]
    fn a_collection_never_exists_without_its_expiry() {
        let whole = ["MULTI", "DEL n", "HSET n f v", "PEXPIREAT n 9", "EXEC"];
        assert_eq!(text(&part(ValueKind::Hash, &["f", "v"], true, true)), whole);
        assert_eq!(text(&part(ValueKind::Hash, &["f", "v"], true, false)), whole);
        let later = ["MULTI", "SADD n m", "PEXPIREAT n 9", "EXEC"];
        assert_eq!(text(&part(ValueKind::Set, &["m"], false, false)), later);
        assert_eq!(text(&part(ValueKind::Set, &[], false, true)), [""; 0]);
        assert_eq!(text(&part(ValueKind::Text, &["v"], true, true)), ["SET n v PXAT 9"]);
        assert_eq!(text(&part(ValueKind::Hash, &[], true, true)), ["DEL n"]);
        assert_eq!(text(&part(ValueKind::Gone, &[], true, true)), ["DEL n"]);
        let mut lasting = part(ValueKind::Set, &["m"], false, true);
        lasting.value = Arc::new(SourceValue {
            database: Database(0),
            name: "n".into(),
            kind: ValueKind::Set,
            expires_at_ms: None,
        });
        assert_eq!(text(&lasting), ["SADD n m"]);
    }

    #[test]
    fn the_first_error_decides() {
        let error = |text: &str| RespReply::Error(text.to_owned());
        let status = |text: &str| RespReply::Status(text.to_owned());
        let whole = part(ValueKind::Set, &["m"], true, true);
        let outcome = |replies: &[RespReply]| Writes.outcome(&whole, replies);
        assert_eq!(outcome(&[status("OK")]), PartOutcome::Done);
        let done = RespReply::Array(Some(vec![RespReply::Integer(1)]));
        assert_eq!(outcome(&[status("OK"), status("QUEUED"), done]), PartOutcome::Done);
        let late = RespReply::Array(Some(vec![RespReply::Integer(1), error("ERR long")]));
        assert_eq!(outcome(&[status("OK"), late]), PartOutcome::Refused("ERR long".into()));
        let aborted = [status("OK"), error("NOPERM no"), error("EXECABORT")];
        assert_eq!(outcome(&aborted), PartOutcome::Refused("NOPERM no".into()));
        for (text, expected) in [
            ("TRYAGAIN a", PartOutcome::NoEffect as fn(String) -> PartOutcome),
            ("UNDETERMINED a", PartOutcome::Unknown),
            ("OOM a", PartOutcome::NoMemory),
            ("ERR a", PartOutcome::Refused),
        ] {
            assert_eq!(outcome(&[error(text)]), expected(text.into()), "{text}");
        }
    }

    #[test]
    fn only_the_first_of_several_parts_is_not_repeated() {
        let rows = [(true, true, true), (true, false, false), (false, false, true)];
        for (is_first, is_last, may) in rows {
            assert_eq!(Writes.may_repeat(&part(ValueKind::Set, &["m"], is_first, is_last)), may);
        }
    }
}
