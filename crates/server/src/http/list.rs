//! Pairs of a range in the order of their keys, page by page.
//!
//! ```text
//! {"pairs": [{"key": TEXT, "value": TEXT}, ...], "next": TOKEN | null}
//! TOKEN := base64 of: 1 (format) key (the last one of the page)
//! ```

use super::encoding::{base64, put_bytes, to_base64};
use super::{Asked, HttpFailure, HttpService, json};
use crate::memory::RequestMemory;
use axum::response::Response;
use bytes::Bytes;
use stele_client::{Pair, ScanOptions};
use stele_types::{KeyRange, key_after};

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1_000;
/// Bytes of the pairs of a page, unless its last pair has more: then the page ends.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// First byte of a token: its format.
const FORMAT: u8 = 1;

impl HttpService {
    /// GET of a range.
    ///
    /// Invariant: each key that is in the range during all pages of a list is returned once, however the pages
    /// and regions are cut.
    /// Test: `a_list_over_several_regions_has_each_key_once_however_it_is_paged`.
    pub(super) async fn list(&self, asked: Asked) -> Result<Response, HttpFailure> {
        let (range, family) = (asked.query.range()?, asked.family()?);
        let keys_only = asked.query.flag("keys_only")?;
        let limit = limit(asked.query.number("limit", &format!("from 1 to {LIMIT_MAX}"))?)?;
        let after = asked.query.text("after")?.map(last_key).transpose()?;
        asked.check_range(&range)?;
        let start = after.map(|last| key_after(&last)).unwrap_or_default();
        let rest = range.within(&KeyRange { start, end: Bytes::new() });
        let client = self.client(family).await?;
        let options = ScanOptions { reverse: false, keys_only, limit: Some(limit + 1) };
        let mut scan = client.scan(rest, options);
        let mut page = Page::new(limit, keys_only);
        while !page.is_full()
            && let Some(pairs) = scan.next_page().await?
        {
            page.add(pairs, &asked.memory)?;
        }
        Ok(json(page.into_text(), &asked.memory))
    }
}

fn limit(given: Option<usize>) -> Result<usize, HttpFailure> {
    match given {
        None => Ok(LIMIT_DEFAULT),
        Some(limit) if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
        Some(_) => {
            let text = format!("the parameter `limit` is a number from 1 to {LIMIT_MAX}");
            Err(HttpFailure::invalid(text))
        }
    }
}

fn last_key(token: &str) -> Result<Bytes, HttpFailure> {
    let bytes = base64("after", token)?;
    match bytes.first() {
        Some(&FORMAT) => Ok(bytes.slice(1..)),
        _ => Err(HttpFailure::invalid("the parameter `after` is no `next` of a list".to_owned())),
    }
}

fn token(last: &[u8]) -> String {
    to_base64(&[&[FORMAT], last].concat())
}

/// Pairs of a page as they are returned.
struct Page {
    text: Vec<u8>,
    keys_only: bool,
    /// Pairs that it may have.
    left: usize,
    /// Bytes of its pairs.
    bytes: usize,
    last: Bytes,
    /// More pairs follow.
    has_next: bool,
}

impl Page {
    fn new(limit: usize, keys_only: bool) -> Self {
        let text = b"{\"pairs\":[".to_vec();
        Self { text, keys_only, left: limit, bytes: 0, last: Bytes::new(), has_next: false }
    }

    fn is_full(&self) -> bool {
        self.has_next || self.bytes >= PAGE_BYTES_MAX
    }

    fn add(&mut self, pairs: Vec<Pair>, memory: &RequestMemory) -> Result<(), HttpFailure> {
        let bytes = |pair: &Pair| pair.key.len() + pair.value.len();
        memory.charge(pairs.iter().map(bytes).sum::<usize>() as u64)?;
        for pair in pairs {
            if self.left == 0 || self.is_full() {
                self.has_next = true;
                return Ok(());
            }
            self.left -= 1;
            self.bytes += bytes(&pair);
            self.put(&pair, memory)?;
            self.last = pair.key;
        }
        Ok(())
    }

    fn put(&mut self, pair: &Pair, memory: &RequestMemory) -> Result<(), HttpFailure> {
        let before = self.text.capacity();
        let separator: &[u8] = if self.text.ends_with(b"[") { b"{" } else { b",{" };
        self.text.extend_from_slice(separator);
        put_bytes(&mut self.text, "key", &pair.key);
        if !self.keys_only {
            self.text.push(b',');
            put_bytes(&mut self.text, "value", &pair.value);
        }
        self.text.push(b'}');
        // The page is bounded, so that the text grows by little before it is charged.
        Ok(memory.charge((self.text.capacity() - before) as u64)?)
    }

    fn into_text(mut self) -> Bytes {
        self.text.extend_from_slice(b"],\"next\":");
        let next = match self.is_full() {
            true => format!("\"{}\"", token(&self.last)),
            false => "null".to_owned(),
        };
        self.text.extend_from_slice(next.as_bytes());
        self.text.extend_from_slice(b"}\n");
        self.text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Class, ConnectionMemory, NodeMemory};
    use serde_json::{Value, json};

    fn page(limit: usize, keys_only: bool, pairs: &[(&[u8], &[u8])]) -> Value {
        let connection = ConnectionMemory::new(&NodeMemory::new(64 << 20), 0);
        let memory = RequestMemory::new(&connection, Class::Data);
        let mut page = Page::new(limit, keys_only);
        let pair = |(key, value): &(&[u8], &[u8])| Pair {
            key: Bytes::copy_from_slice(key),
            value: Bytes::copy_from_slice(value),
        };
        page.add(pairs.iter().map(pair).collect(), &memory).unwrap();
        let text = page.into_text();
        assert!(memory.used() + 64 >= text.len() as u64);
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn a_page_has_text_as_text_and_other_bytes_in_base64() {
        let pairs: [(&[u8], &[u8]); 3] = [(b"a", b"1\"\n"), (b"b", &[255]), (&[254], b"3")];
        assert_eq!(
            page(9, false, &pairs),
            json!({"pairs": [
                {"key": "a", "value": "1\"\n"},
                {"key": "b", "value64": "_w"},
                {"key64": "_g", "value": "3"},
            ], "next": null})
        );
        let keys = json!({"pairs": [{"key": "a"}, {"key": "b"}], "next": token(b"b")});
        assert_eq!(page(2, true, &pairs), keys);
        assert_eq!(page(2, true, &[]), json!({"pairs": [], "next": null}));
    }

    #[test]
    fn a_page_ends_after_the_pair_that_fills_it() {
        let long = vec![b'x'; PAGE_BYTES_MAX];
        let found = page(9, false, &[(b"a", b"1"), (b"b", &long), (b"c", b"3")]);
        assert_eq!(found["pairs"].as_array().unwrap().len(), 2);
        assert_eq!(last_key(found["next"].as_str().unwrap()).unwrap(), "b");
    }

    #[test]
    fn a_token_survives_its_text_and_others_are_refused() {
        for key in [&b""[..], b"a", &[0, 255]] {
            assert_eq!(last_key(&token(key)).unwrap(), key);
        }
        for text in ["", "AA", "a", "=", "YWJj"] {
            assert!(last_key(text).is_err(), "{text}");
        }
        assert_eq!(limit(None).unwrap(), LIMIT_DEFAULT);
        for bad in [0, LIMIT_MAX + 1] {
            assert!(limit(Some(bad)).is_err());
        }
    }
}
