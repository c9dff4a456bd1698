//! Parameters after `?`, as forms and URLs encode them: `%2F` is a byte, and `+` is a space.

use super::HttpFailure;
use super::encoding::{base64, percent_decoded};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::str::FromStr;
use stele_types::KeyRange;

/// Parameters of a request by name, each at most once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query(BTreeMap<&'static str, Bytes>);

impl Query {
    /// Decodes parameters. Fails for a name that is not among `allowed`, and for one that comes twice: a
    /// parameter that has no effect would be taken for one that has.
    pub(super) fn parse(
        text: Option<&str>,
        allowed: &'static [&'static str],
    ) -> Result<Self, HttpFailure> {
        let mut found = BTreeMap::new();
        for part in text.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = percent_decoded(name.as_bytes(), true)?;
            let known = allowed.iter().find(|known| known.as_bytes() == name);
            let Some(known) = known else {
                let name = String::from_utf8_lossy(&name);
                return Err(HttpFailure::invalid(format!(
                    "there is no parameter `{name}` here; those are: {}",
                    allowed.join(", ")
                )));
            };
            let value = percent_decoded(value.as_bytes(), true)?;
            if found.insert(*known, Bytes::from(value)).is_some() {
                return Err(HttpFailure::invalid(format!("the parameter `{known}` comes twice")));
            }
        }
        Ok(Self(found))
    }

    /// Returns the text of a parameter.
    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, HttpFailure> {
        let text = |value| {
            std::str::from_utf8(value)
                .map_err(|_| HttpFailure::invalid(format!("the parameter `{name}` is not UTF-8")))
        };
        self.0.get(name).map(|value| text(value)).transpose()
    }

    /// Returns a parameter that is true or false; false without it, and true without a value.
    pub(super) fn flag(&self, name: &str) -> Result<bool, HttpFailure> {
        match self.text(name)? {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(_) => {
                let text = format!("the parameter `{name}` is true or false");
                Err(HttpFailure::invalid(text))
            }
        }
    }

    /// Returns a parameter that is a number.
    pub(super) fn number<T: FromStr>(
        &self,
        name: &str,
        range: &str,
    ) -> Result<Option<T>, HttpFailure> {
        let number = |text: &str| {
            // No other spelling of the number, such as `+1`.
            let digits = text.strip_prefix('-').unwrap_or(text);
            let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse());
            number.and_then(Result::ok).ok_or_else(|| {
                HttpFailure::invalid(format!("the parameter `{name}` is a number {range}"))
            })
        };
        self.text(name)?.map(number).transpose()
    }

    /// Returns the keys that `prefix`, `start`, `end` (exclusive), and the same in base64 under names with `64`,
    /// have in common; all without them.
    pub(super) fn range(&self) -> Result<KeyRange, HttpFailure> {
        let mut range = KeyRange::all();
        for prefix in self.keys("prefix", "prefix64")? {
            range = range.within(&KeyRange::prefix(&prefix));
        }
        for start in self.keys("start", "start64")? {
            range = range.within(&KeyRange { start, end: Bytes::new() });
        }
        for end in self.keys("end", "end64")? {
            range = range.within(&KeyRange { start: Bytes::new(), end });
        }
        Ok(range)
    }

    /// Returns the keys of a parameter and of the one in base64.
    fn keys(&self, name: &str, name64: &str) -> Result<Vec<Bytes>, HttpFailure> {
        let coded = self.text(name64)?.map(|text| base64(name64, text)).transpose()?;
        Ok(self.0.get(name).cloned().into_iter().chain(coded).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: &[&str] =
        &["prefix", "prefix64", "start", "start64", "end", "end64", "limit", "keys_only"];

    fn parsed(text: &str) -> Query {
        Query::parse(Some(text), ALLOWED).unwrap()
    }

    fn refused(text: &str) -> String {
        Query::parse(Some(text), ALLOWED).unwrap_err().to_string()
    }

    #[test]
    fn parameters_are_decoded_and_unknown_and_repeated_ones_are_refused() {
        let query = parsed("prefix=a%2Fb+c%2B&&limit=10&keys_only");
        assert_eq!(query.keys("prefix", "prefix64").unwrap(), ["a/b c+"]);
        assert_eq!(query.number::<u64>("limit", "").unwrap(), Some(10));
        assert!(query.flag("keys_only").unwrap());
        assert!(!query.flag("limits").unwrap());
        assert_eq!(Query::parse(None, ALLOWED).unwrap(), Query::default());
        assert!(refused("prefx=a").contains("no parameter `prefx`"));
        assert!(refused("limit=1&limit=2").contains("comes twice"));
        assert!(refused("limit=%4").contains('%'));
        for bad in ["", "+1", "1.0", "a", " 1", "--1", "0x1", "99999999999999999999"] {
            let query = parsed(&format!("limit={}", bad.replace('+', "%2B")));
            assert!(query.number::<u64>("limit", "").is_err(), "{bad}");
        }
        assert!(parsed("keys_only=yes").flag("keys_only").is_err());
    }

    #[test]
    fn a_range_is_what_prefix_start_and_end_have_in_common() {
        let range = |text| parsed(text).range().unwrap();
        assert_eq!(range(""), KeyRange::all());
        assert_eq!(range("prefix=a"), KeyRange::new("a", "b"));
        assert_eq!(range("start=b&end=d"), KeyRange::new("b", "d"));
        assert_eq!(range("prefix=a&start=ab"), KeyRange::new("ab", "b"));
        assert_eq!(range("prefix=a&end=ac"), KeyRange::new("a", "ac"));
        assert_eq!(range("prefix64=_w"), KeyRange::new(vec![255], ""));
        assert!(range("start=b&end=a").is_empty());
        assert!(range("prefix=a&start=c").is_empty());
        assert_eq!(range("prefix=a&prefix64=YWI"), KeyRange::prefix(b"ab"));
        assert_eq!(range("start=b&start64=Yw&end=f&end64=ZQ"), KeyRange::new("c", "e"));
        assert!(parsed("prefix64=YR").range().is_err());
    }
}
