//! Entity tags and the conditions on them (RFC 9110, sections 8.8.3 and 13). The tag of a pair is the digest of
//! its value, so that equal values have equal tags, also after a write in between.

use super::HttpFailure;
use crate::tikv::ValueDigest;
use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use stele_client::Values;

/// Tags of a condition at most.
const TAGS_MAX: usize = 64;

/// Returns the header of a value with this digest: a strong tag.
pub(super) fn header(digest: ValueDigest) -> HeaderValue {
    let mut text = String::with_capacity(2 * ValueDigest::BYTES + 2);
    text.push('"');
    digest.0.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
    text.push('"');
    // It has digits and letters alone.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("\"\""))
}

/// Values that a condition names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tagged {
    /// `*`
    All,
    /// Those with these digests. A tag of another form is that of no value.
    OneOf(Vec<ValueDigest>),
}

impl Tagged {
    fn contain(&self, found: ValueDigest) -> bool {
        match self {
            Self::All => true,
            Self::OneOf(digests) => digests.contains(&found),
        }
    }

    fn values(&self) -> Values {
        match self {
            Self::All => Values { all: true, digests: Vec::new() },
            Self::OneOf(digests) => {
                let bytes = |digest: &ValueDigest| Bytes::copy_from_slice(&digest.0);
                Values { all: false, digests: digests.iter().map(bytes).collect() }
            }
        }
    }
}

/// Conditions of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Preconditions {
    if_match: Option<Tagged>,
    if_none_match: Option<Tagged>,
}

/// Result of conditions for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precondition {
    Holds,
    /// `If-Match` does not hold.
    Fails,
    /// `If-None-Match` does not hold: the caller has the value.
    NotModified,
}

impl Preconditions {
    /// Fails for a header that is no list of tags.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, HttpFailure> {
        // A weak tag matches no value strongly, and weakly that of its opaque part.
        let if_match = tagged(headers, &IF_MATCH, false)?;
        Ok(Self { if_match, if_none_match: tagged(headers, &IF_NONE_MATCH, true)? })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.if_match.is_none() && self.if_none_match.is_none()
    }

    /// Decides the conditions of a read.
    pub(super) fn of_read(&self, found: Option<ValueDigest>) -> Precondition {
        let contain = |tagged: &Tagged| found.is_some_and(|found| tagged.contain(found));
        if !self.if_match.as_ref().is_none_or(contain) {
            return Precondition::Fails;
        }
        match self.if_none_match.as_ref().is_some_and(contain) {
            true => Precondition::NotModified,
            false => Precondition::Holds,
        }
    }

    /// Returns the conditions as the leader of the region decides them.
    pub(super) fn of_write(&self) -> (Option<Values>, Option<Values>) {
        let values = |tagged: &Option<Tagged>| tagged.as_ref().map(Tagged::values);
        (values(&self.if_match), values(&self.if_none_match))
    }
}

/// Returns the tags of a header, which may come several times.
fn tagged(
    headers: &HeaderMap,
    name: &HeaderName,
    is_weak: bool,
) -> Result<Option<Tagged>, HttpFailure> {
    let mut all: Option<Vec<ValueDigest>> = None;
    let (mut tags, mut is_any) = (0, false);
    for value in headers.get_all(name) {
        let mut rest = value.as_bytes().trim_ascii();
        let digests = all.get_or_insert_default();
        if rest == b"*" {
            is_any = true;
            continue;
        }
        while !rest.is_empty() {
            let (tag, after) = take_tag(rest).ok_or_else(|| bad(name))?;
            rest = after;
            tags += 1;
            if tags > TAGS_MAX {
                let text = format!("the header {name} has more than {TAGS_MAX} tags");
                return Err(HttpFailure::invalid(text));
            }
            if !tag.is_weak || is_weak {
                digests.extend(digest(tag.opaque));
            }
        }
    }
    match (is_any, tags) {
        (true, 0) => Ok(Some(Tagged::All)),
        (true, _) => Err(bad(name)),
        (false, 0) if all.is_some() => Err(bad(name)),
        (false, _) => Ok(all.map(Tagged::OneOf)),
    }
}

fn bad(name: &HeaderName) -> HttpFailure {
    HttpFailure::invalid(format!("the header {name} is `*` or a list of tags: \"TAG\", \"TAG\""))
}

struct TagText<'a> {
    is_weak: bool,
    opaque: &'a [u8],
}

/// Takes a tag and the comma after it.
fn take_tag(text: &[u8]) -> Option<(TagText<'_>, &[u8])> {
    let (is_weak, quoted) = match text.strip_prefix(b"W/") {
        Some(quoted) => (true, quoted),
        None => (false, text),
    };
    let opaque = quoted.strip_prefix(b"\"")?;
    let end = opaque.iter().position(|byte| *byte == b'"')?;
    let (opaque, rest) = opaque.split_at_checked(end)?;
    let mut rest = rest.strip_prefix(b"\"")?.trim_ascii();
    if !rest.is_empty() && !rest.starts_with(b",") {
        return None;
    }
    // A list may have empty places.
    while let Some(after) = rest.strip_prefix(b",") {
        rest = after.trim_ascii();
    }
    Some((TagText { is_weak, opaque }, rest))
}

/// Returns the digest that a tag of this node has; `None` for a tag of another form.
fn digest(opaque: &[u8]) -> Option<ValueDigest> {
    let mut digest = [0; ValueDigest::BYTES];
    let (pairs, []) = opaque.as_chunks::<2>() else { return None };
    if pairs.len() != digest.len() {
        return None;
    }
    // Only lower case: a tag is compared as it is written.
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(ValueDigest(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(lines: &[(HeaderName, &str)]) -> Result<Preconditions, HttpFailure> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        Preconditions::of(&headers)
    }

    fn tag(value: &[u8]) -> String {
        header(ValueDigest::of(value)).to_str().unwrap().to_owned()
    }

    fn read(lines: &[(HeaderName, &str)], found: Option<&[u8]>) -> Precondition {
        conditions(lines).unwrap().of_read(found.map(ValueDigest::of))
    }

    #[test]
    fn a_tag_is_strong_and_comes_back() {
        let text = tag(b"v");
        assert_eq!(text.len(), 34);
        assert!(text.starts_with('"') && text.ends_with('"'));
        assert_eq!(digest(text.trim_matches('"').as_bytes()), Some(ValueDigest::of(b"v")));
        assert_eq!(digest(text.trim_matches('"').to_uppercase().as_bytes()), None);
        assert_eq!(digest(b""), None);
        assert_eq!(digest(&[b'0'; 31]), None);
    }

    #[test]
    fn a_read_has_the_results_of_the_standard() {
        use Precondition::{Fails, Holds, NotModified};
        let (v, w) = (tag(b"v"), tag(b"w"));
        let weak = format!("W/{v}");
        let both = format!("{w}, {v}");
        for (lines, of_v, of_none) in [
            (vec![], Holds, Holds),
            (vec![(IF_MATCH, &v[..])], Holds, Fails),
            (vec![(IF_MATCH, &w)], Fails, Fails),
            (vec![(IF_MATCH, "*")], Holds, Fails),
            (vec![(IF_MATCH, &weak)], Fails, Fails),
            (vec![(IF_MATCH, "\"other\"")], Fails, Fails),
            (vec![(IF_MATCH, &both)], Holds, Fails),
            (vec![(IF_MATCH, &w), (IF_MATCH, &v)], Holds, Fails),
            (vec![(IF_NONE_MATCH, &v)], NotModified, Holds),
            (vec![(IF_NONE_MATCH, &weak)], NotModified, Holds),
            (vec![(IF_NONE_MATCH, &w)], Holds, Holds),
            (vec![(IF_NONE_MATCH, "*")], NotModified, Holds),
            (vec![(IF_MATCH, &w), (IF_NONE_MATCH, &v)], Fails, Fails),
        ] {
            assert_eq!(read(&lines, Some(b"v")), of_v, "{lines:?}");
            assert_eq!(read(&lines, None), of_none, "{lines:?}");
        }
    }

    #[test]
    fn what_is_no_list_of_tags_is_refused_and_never_taken_for_no_condition() {
        let many = vec!["\"a\""; TAGS_MAX + 1].join(",");
        for text in ["", "a", "\"a", "\"a\" \"b\"", "w/\"a\"", "*, \"a\"", "**", ",", &many] {
            assert!(conditions(&[(IF_MATCH, text)]).is_err(), "{text}");
            assert!(conditions(&[(IF_NONE_MATCH, text)]).is_err(), "{text}");
        }
        assert!(conditions(&[(IF_MATCH, "*"), (IF_MATCH, "\"a\"")]).is_err());
        for text in ["\"\"", "\"a,b\"", "\"a\",", "\"a\",, \"b\"", "\"a\" , W/\"b\"", "\"\u{e4}\""]
        {
            assert!(conditions(&[(IF_MATCH, text)]).is_ok(), "{text}");
        }
        assert!(conditions(&[]).unwrap().is_empty());
    }
}
