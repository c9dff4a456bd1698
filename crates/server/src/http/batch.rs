//! Several operations in one request.
//!
//! ```text
//! {"operations": [{"put": {"key": TEXT, "value": TEXT, "ttl": SECONDS}}, {"delete": {"key": TEXT}},
//!                 {"get": {"key": TEXT}}, ...]}
//! {"results": [{}, {}, {"key": TEXT, "value": TEXT | null}, ...]}
//! ```
//!
//! The puts and deletes of the keys of one region take effect together: so many are one entry of its log. The
//! gets come after all of them. Another writer may come between regions, and between writes and gets.

use super::encoding::{base64, put_bytes};
use super::pair::{TTL_S_MAX, check_key};
use super::{Asked, HttpFailure, HttpService, json};
use crate::memory::RequestMemory;
use axum::response::Response;
use bytes::Bytes;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::Number;
use std::fmt;
use stele_client::{Client, KeyWrite};
use stele_placement::Permissions;

/// Operations at most. The client of the cluster sends as many of one region together.
const OPERATIONS_MAX: usize = 512;
/// Bytes of the keys and values that are written, at most. As above.
const WRITTEN_BYTES_MAX: usize = 1 << 20;
/// Bytes of the body at most: that many written bytes, escaped.
pub(super) const BODY_BYTES_MAX: u64 = 8 << 20;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody {
    operations: Operations,
}

struct Operations(Vec<OneOperation>);

#[derive(serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum OneOperation {
    Put(PutFields),
    Delete(KeyFields),
    Get(KeyFields),
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PutFields {
    key: Option<String>,
    key64: Option<String>,
    value: Option<String>,
    value64: Option<String>,
    ttl: Option<Number>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFields {
    key: Option<String>,
    key64: Option<String>,
}

impl<'de> Deserialize<'de> for Operations {
    /// Ends at the first operation above the limit, before it needs memory.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(OperationsVisitor)
    }
}

struct OperationsVisitor;

impl<'de> Visitor<'de> for OperationsVisitor {
    type Value = Operations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {OPERATIONS_MAX} operations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Operations, A::Error> {
        let mut all = Vec::new();
        while let Some(operation) = list.next_element()? {
            if all.len() == OPERATIONS_MAX {
                return Err(de::Error::invalid_length(OPERATIONS_MAX + 1, &self));
            }
            all.push(operation);
        }
        Ok(Operations(all))
    }
}

/// Operations of a batch, which were checked.
#[derive(Debug, Default, PartialEq, Eq)]
struct Batch {
    writes: Vec<KeyWrite>,
    gets: Vec<Bytes>,
    /// For each operation whether it is a get, in the order of the request.
    is_get: Vec<bool>,
}

impl HttpService {
    /// POST of a list of operations. All are checked before any is done.
    pub(super) async fn batch(&self, mut asked: Asked) -> Result<Response, HttpFailure> {
        let family = asked.family()?;
        let body = asked.body(BODY_BYTES_MAX).await?;
        let batch = Batch::of(&body, self.0.clock.unix_seconds())?;
        drop(body);
        if !batch.writes.is_empty() {
            asked.written_family()?;
        }
        let written = batch.writes.iter().map(|write| &write.key[..]);
        asked.check_keys(Permissions::WRITE, written)?;
        asked.check_keys(Permissions::READ, batch.gets.iter().map(|key| &key[..]))?;
        let text = batch.done(&self.client(family).await?, &asked.memory).await?;
        Ok(json(text, &asked.memory))
    }
}

impl Batch {
    /// Decodes the operations of a body.
    fn of(body: &[u8], now_s: u64) -> Result<Self, HttpFailure> {
        let body: BatchBody = serde_json::from_slice(body)
            .map_err(|error| HttpFailure::invalid(format!("the body is no batch: {error}")))?;
        let (mut batch, mut written_bytes) = (Self::default(), 0);
        for operation in body.operations.0 {
            batch.is_get.push(matches!(operation, OneOperation::Get(_)));
            let write = match operation {
                OneOperation::Get(fields) => {
                    batch.gets.push(key(fields.key, fields.key64)?);
                    continue;
                }
                OneOperation::Delete(fields) => {
                    KeyWrite { key: key(fields.key, fields.key64)?, put: None }
                }
                OneOperation::Put(fields) => {
                    let key = key(fields.key, fields.key64)?;
                    let value = either("value", fields.value, fields.value64)?;
                    KeyWrite { key, put: Some((value, expiry(fields.ttl, now_s)?)) }
                }
            };
            written_bytes += write.key.len() + write.put.as_ref().map_or(0, |put| put.0.len());
            batch.writes.push(write);
        }
        if written_bytes > WRITTEN_BYTES_MAX {
            return Err(HttpFailure::too_large(format!(
                "the keys and values of the writes have {written_bytes} bytes; the limit is {WRITTEN_BYTES_MAX}"
            )));
        }
        Ok(batch)
    }

    /// Writes, and then reads. Returns the results as text.
    async fn done(self, client: &Client, memory: &RequestMemory) -> Result<Bytes, HttpFailure> {
        if !self.writes.is_empty() {
            client.write(self.writes).await?;
        }
        let values = match self.gets.is_empty() {
            true => Vec::new(),
            false => client.batch_get(self.gets.clone()).await?,
        };
        let bytes: usize = values.iter().flatten().map(Bytes::len).sum();
        memory.charge(bytes as u64)?;
        let mut text = b"{\"results\":[".to_vec();
        let mut found = self.gets.iter().zip(values);
        for is_get in self.is_get {
            let before = text.capacity();
            let separator: &[u8] = if text.ends_with(b"[") { b"{" } else { b",{" };
            text.extend_from_slice(separator);
            if is_get && let Some((key, value)) = found.next() {
                put_bytes(&mut text, "key", key);
                text.push(b',');
                match value {
                    Some(value) => put_bytes(&mut text, "value", &value),
                    None => text.extend_from_slice(b"\"value\":null"),
                }
            }
            text.push(b'}');
            memory.charge((text.capacity() - before) as u64)?;
        }
        text.extend_from_slice(b"]}\n");
        Ok(text.into())
    }
}

fn key(text: Option<String>, coded: Option<String>) -> Result<Bytes, HttpFailure> {
    let key = either("key", text, coded)?;
    check_key(&key)?;
    Ok(key)
}

/// Returns the bytes of a field that is text or base64.
fn either(name: &str, text: Option<String>, coded: Option<String>) -> Result<Bytes, HttpFailure> {
    match (text, coded) {
        (Some(text), None) => Ok(Bytes::from(text)),
        (None, Some(coded)) => base64(&format!("{name}64"), &coded),
        _ => {
            let text = format!("an operation has either `{name}` or `{name}64`");
            Err(HttpFailure::invalid(text))
        }
    }
}

/// Returns the Unix seconds at which a pair with this time to live expires; 0: never. JSON has one type of
/// number, of which `60.0` is another spelling of `60`.
fn expiry(ttl_s: Option<Number>, now_s: u64) -> Result<u64, HttpFailure> {
    let Some(number) = ttl_s else { return Ok(0) };
    let is_whole = |seconds: &f64| seconds.fract() == 0.0 && *seconds <= TTL_S_MAX as f64;
    let whole = || number.as_f64().filter(is_whole).map(|seconds| seconds as u64);
    match number.as_u64().or_else(whole) {
        Some(seconds) if (1..=TTL_S_MAX).contains(&seconds) => Ok(now_s + seconds),
        _ => {
            let text = format!("`ttl` is a number of seconds from 1 to {TTL_S_MAX}");
            Err(HttpFailure::invalid(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(operations: &str) -> Result<Batch, HttpFailure> {
        Batch::of(format!("{{\"operations\":[{operations}]}}").as_bytes(), 100)
    }

    #[test]
    fn operations_are_decoded_in_their_order() {
        let found = batch(
            r#"{"put":{"key":"a","value":"1"}}, {"get":{"key64":"_w"}},
               {"put":{"key":"b","value64":"AP8","ttl":60.0}}, {"delete":{"key":"a\/c"}}"#,
        )
        .unwrap();
        let put = |key: &'static str, value: &'static [u8], expires_at_s| KeyWrite {
            key: key.into(),
            put: Some((Bytes::from_static(value), expires_at_s)),
        };
        let delete = KeyWrite { key: "a/c".into(), put: None };
        assert_eq!(found.writes, [put("a", b"1", 0), put("b", &[0, 255], 160), delete]);
        assert_eq!(found.gets, [Bytes::from_static(&[255])]);
        assert_eq!(found.is_get, [false, true, false, false]);
        assert_eq!(batch("").unwrap(), Batch::default());
    }

    #[test]
    fn what_is_no_batch_is_refused_as_a_whole() {
        for operations in [
            r#"{"put":{"key":"a"}}"#,
            r#"{"put":{"value":"a"}}"#,
            r#"{"put":{"key":"a","value":"1","value64":"AA"}}"#,
            r#"{"put":{"key":"a","value":"1","ttl":0}}"#,
            r#"{"put":{"key":"a","value":"1","ttl":-1}}"#,
            r#"{"put":{"key":"a","value":"1","ttl":1.5}}"#,
            r#"{"put":{"key":"a","value":"1","ttl":1e30}}"#,
            r#"{"put":{"key":"a","value":"1","ttl":"1"}}"#,
            r#"{"put":{"key":"a","value":"1","tll":1}}"#,
            r#"{"put":{"key":"a","value":1}}"#,
            r#"{"get":{"key":""}}"#,
            r#"{"get":{"key64":"="}}"#,
            r#"{"get":{"key":"a"},"delete":{"key":"a"}}"#,
            r#"{"swap":{"key":"a"}}"#,
            "{}",
            "1",
        ] {
            assert!(batch(operations).is_err(), "{operations}");
        }
        for body in ["", "[]", "{}", r#"{"operations":{}}"#, r#"{"operations":[],"more":1}"#] {
            assert!(Batch::of(body.as_bytes(), 0).is_err(), "{body}");
        }
    }

    #[test]
    fn a_batch_is_bounded_so_that_the_writes_of_a_region_are_one_entry() {
        let get = r#"{"get":{"key":"a"}}"#;
        assert_eq!(batch(&vec![get; OPERATIONS_MAX].join(",")).unwrap().gets.len(), OPERATIONS_MAX);
        assert!(batch(&vec![get; OPERATIONS_MAX + 1].join(",")).is_err());
        let put = |bytes: usize| {
            batch(&format!(r#"{{"put":{{"key":"a","value":"{}"}}}}"#, "x".repeat(bytes)))
        };
        assert!(put(WRITTEN_BYTES_MAX - 1).is_ok());
        assert!(put(WRITTEN_BYTES_MAX).unwrap_err().to_string().starts_with("413"));
    }
}
