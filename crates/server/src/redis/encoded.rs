//! Parts of encoded replies: the executor encodes, and the connection divides and joins what it returns.

use bytes::Bytes;

/// Depth of nested replies at most: those of Stele have two levels.
const DEPTH_MAX: usize = 8;
const CRLF_BYTES: usize = 2;

/// Returns whether an answer to EXEC says that a watched name has changed.
pub(super) fn is_null(encoded: &[u8]) -> bool {
    matches!(encoded, b"*-1\r\n" | b"$-1\r\n" | b"_\r\n")
}

/// Returns the number of a reply that is one.
pub(super) fn integer(encoded: &[u8]) -> Option<i64> {
    let line = encoded.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
    stele_redis::parse_i64(line)
}

/// Returns the elements of a reply that is an array. `None` for any other reply.
pub(super) fn elements(encoded: &Bytes) -> Option<Vec<Bytes>> {
    let (kind, count, header) = header(encoded)?;
    if kind != b'*' {
        return None;
    }
    let replies = replies(&encoded.slice(header..))?;
    (replies.len() == count).then_some(replies)
}

/// Divides replies that were encoded one after another. `None` if the bytes end within one.
pub(super) fn replies(encoded: &Bytes) -> Option<Vec<Bytes>> {
    let (mut at, mut found) = (0, Vec::new());
    while at < encoded.len() {
        let bytes = length(encoded.get(at..)?, DEPTH_MAX)?;
        found.push(encoded.slice(at..at + bytes));
        at += bytes;
    }
    Some(found)
}

/// Returns the first word of each error among replies that were encoded one after another, also of those in arrays.
pub(super) fn error_words(encoded: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = encoded;
    let each = std::iter::from_fn(move || {
        let (kind, count, first) = header(rest)?;
        let line = rest.get(..first)?;
        let has_value = matches!(kind, b'$' | b'=') && !is_missing(rest);
        let value_bytes = if has_value { count.saturating_add(CRLF_BYTES) } else { 0 };
        rest = rest.get(first.saturating_add(value_bytes)..).unwrap_or_default();
        Some((kind == b'-').then_some(line))
    });
    each.flatten().map(|line| {
        let text = line.get(1..).unwrap_or_default();
        let end = text.iter().position(|byte| matches!(byte, b' ' | b'\r'));
        text.get(..end.unwrap_or(text.len())).unwrap_or_default()
    })
}

/// Returns the bytes of the reply at the front.
fn length(encoded: &[u8], depth: usize) -> Option<usize> {
    let (kind, count, header) = header(encoded)?;
    let nested = match kind {
        b'$' | b'=' if is_missing(encoded) => return Some(header),
        b'$' | b'=' => {
            let end = header.checked_add(count)?.checked_add(CRLF_BYTES)?;
            return (end <= encoded.len()).then_some(end);
        }
        b'*' | b'~' | b'>' => count,
        b'%' => count.checked_mul(2)?,
        _ => return Some(header),
    };
    let depth = depth.checked_sub(1)?;
    let mut at = header;
    for _ in 0..nested {
        at += length(encoded.get(at..)?, depth)?;
    }
    Some(at)
}

/// Returns the kind of the reply at the front, the number of its first line, and the bytes of this line.
/// The number is 0 for a missing value, and without a meaning for kinds that are only a line.
fn header(encoded: &[u8]) -> Option<(u8, usize, usize)> {
    let kind = *encoded.first()?;
    let end = encoded.iter().position(|&byte| byte == b'\r')?;
    let header = end + CRLF_BYTES;
    let number = stele_redis::parse_i64(encoded.get(1..end)?);
    let is_counted = matches!(kind, b'$' | b'=' | b'*' | b'~' | b'>' | b'%');
    let count = match number {
        Some(number) => usize::try_from(number).unwrap_or(0),
        None if is_counted => return None,
        None => 0,
    };
    (header <= encoded.len()).then_some((kind, count, header))
}

fn is_missing(encoded: &[u8]) -> bool {
    encoded.get(1) == Some(&b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_redis::{Protocol, Reply};

    fn all() -> Vec<Reply> {
        let bulk = |text: &'static str| Reply::Bulk(Bytes::from(text));
        vec![
            Reply::OK,
            Reply::error("ERR no"),
            Reply::Integer(-7),
            bulk("a\r\nb"),
            bulk(""),
            Reply::Null,
            Reply::NullArray,
            Reply::Array(vec![bulk("x"), Reply::Null, Reply::Array(vec![Reply::Integer(1)])]),
            Reply::Map(vec![(bulk("k"), bulk("v"))]),
            Reply::Set(vec![]),
            Reply::Double(1.5),
            Reply::Boolean(true),
            Reply::Verbatim(Bytes::from("text")),
        ]
    }

    #[test]
    fn replies_are_divided_where_they_end_in_both_versions() {
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let single: Vec<Bytes> = all().iter().map(|reply| reply.encoded(protocol)).collect();
            let together = Bytes::from(single.concat());
            assert_eq!(replies(&together), Some(single.clone()));
            let array = Reply::Array(all()).encoded(protocol);
            assert_eq!(elements(&array), Some(single));
            for cut in 1..array.len() {
                assert_eq!(elements(&array.slice(..cut)), None, "{cut}");
            }
        }
    }

    #[test]
    fn only_a_number_is_one_and_only_a_missing_array_is_null() {
        assert_eq!(integer(b":-12\r\n"), Some(-12));
        for other in [&b":\r\n"[..], b"+1\r\n", b":1", b""] {
            assert_eq!(integer(other), None);
        }
        let null = |protocol| is_null(&Reply::NullArray.encoded(protocol));
        assert!(null(Protocol::Resp2) && null(Protocol::Resp3));
        assert!(!is_null(b"*0\r\n"));
        assert_eq!(elements(&Bytes::from_static(b"-ERR no\r\n")), None);
    }

    #[test]
    fn errors_are_found_in_arrays_and_not_in_values() {
        let value = Reply::Bulk(Bytes::from("a\r\n-NOT an error\r\n"));
        let errors = vec![Reply::error("OOM no"), value.clone(), Reply::Null, Reply::error("ERR")];
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let replies = [
                Reply::OK,
                value.clone(),
                Reply::error("WRONGTYPE x"),
                Reply::Array(errors.clone()),
                Reply::Verbatim(Bytes::from("-")),
                Reply::error("ERR last"),
            ];
            let together = replies.map(|reply| reply.encoded(protocol)).concat();
            let words: Vec<&[u8]> = error_words(&together).collect();
            assert_eq!(words, [&b"WRONGTYPE"[..], b"OOM", b"ERR", b"ERR"]);
            for cut in 0..together.len() {
                assert!(error_words(&together[..cut]).count() <= words.len(), "{cut}");
            }
        }
    }

    #[test]
    fn deep_replies_are_refused() {
        let deep = Bytes::from(b"*1\r\n".repeat(100));
        assert_eq!(replies(&deep), None);
    }
}
