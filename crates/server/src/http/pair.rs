//! One pair: GET, HEAD, PUT, DELETE, and POST with an increment.

use super::encoding::{base64, percent_decoded};
use super::etag::{self, Precondition, Preconditions};
use super::query::Query;
use super::{Asked, HttpFailure, HttpService, empty, held};
use crate::tikv::ValueDigest;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use stele_client::{Client, Ttl, WriteIfRequest};
use stele_placement::Permissions;
use stele_proto::stele::kv::v1::Put;
use stele_types::size::{USER_KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Seconds that a pair has left, or is to have.
const TTL: HeaderName = HeaderName::from_static("stele-ttl");
/// Seconds of a time to live at most: a hundred years.
pub(super) const TTL_S_MAX: u64 = 100 * 366 * 86_400;
/// Bytes of a value of which the request thread computes the digest, at most: it takes less than 1 ms.
const HASHED_HERE_BYTES_MAX: usize = 256 << 10;

const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// A cache may keep a value, and asks before it uses it.
const REVALIDATED: HeaderValue = HeaderValue::from_static("private, no-cache");
/// No browser guesses that a value is a page.
const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// Returns the key that a path has, still encoded, or the parameter `key64`.
pub(super) fn key(of_path: Option<&str>, query: &Query) -> Result<Bytes, HttpFailure> {
    let key = match of_path {
        Some(text) => Some(Bytes::from(percent_decoded(text.as_bytes(), false)?)),
        None => query.text("key64")?.map(|text| base64("key64", text)).transpose()?,
    };
    let key = key.ok_or_else(|| {
        HttpFailure::invalid("name the key: /v1/kv/KEY, or /v1/kv/?key64=BASE64URL".to_owned())
    })?;
    check_key(&key)?;
    Ok(key)
}

/// Fails for a key that no pair has.
pub(super) fn check_key(key: &[u8]) -> Result<(), HttpFailure> {
    match key.len() {
        0 => Err(HttpFailure::invalid("the key is empty".to_owned())),
        bytes if bytes > USER_KEY_BYTES_MAX => Err(HttpFailure::invalid(format!(
            "the key has {bytes} bytes; the limit is {USER_KEY_BYTES_MAX}"
        ))),
        _ => Ok(()),
    }
}

impl HttpService {
    /// GET, and HEAD with `is_head`.
    pub(super) async fn get(&self, asked: Asked, is_head: bool) -> Result<Response, HttpFailure> {
        let (key, family) = (asked.key()?, asked.family()?);
        let conditions = Preconditions::of(&asked.headers)?;
        asked.check_keys(Permissions::READ, [&key[..]])?;
        let found = self.client(family).await?.get_with_ttl(key).await?;
        let Some((value, ttl)) = found else {
            return Err(match conditions.of_read(None) {
                Precondition::Fails => HttpFailure::precondition_failed(None),
                _ => HttpFailure::not_found(),
            });
        };
        asked.memory.charge(value.len() as u64)?;
        let digest = digest_of(&value).await?;
        let bytes = value.len();
        let mut response = match conditions.of_read(Some(digest)) {
            Precondition::Fails => return Err(HttpFailure::precondition_failed(Some(digest))),
            Precondition::NotModified => empty(StatusCode::NOT_MODIFIED),
            Precondition::Holds => {
                let mut response = match is_head {
                    true => empty(StatusCode::OK),
                    false => held(value, &asked.memory),
                };
                let headers = response.headers_mut();
                headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes));
                headers.insert(CONTENT_TYPE, OCTETS);
                headers.insert(X_CONTENT_TYPE_OPTIONS, NO_SNIFF);
                response
            }
        };
        let headers = response.headers_mut();
        headers.insert(ETAG, etag::header(digest));
        headers.insert(CACHE_CONTROL, REVALIDATED);
        if let Ttl::Seconds(seconds) = ttl {
            headers.insert(TTL, HeaderValue::from(seconds));
        }
        Ok(response)
    }

    /// PUT: the value is the body.
    pub(super) async fn put(&self, mut asked: Asked) -> Result<Response, HttpFailure> {
        let (key, family) = (asked.key()?, asked.written_family()?);
        let conditions = Preconditions::of(&asked.headers)?;
        let ttl = ttl(&asked.headers)?;
        if asked.headers.contains_key(CONTENT_RANGE) {
            let text = "a value is put as a whole: send no Content-Range";
            return Err(HttpFailure::invalid(text.to_owned()));
        }
        asked.check_keys(wanted(&conditions), [&key[..]])?;
        let value = asked.body(VALUE_BYTES_MAX as u64).await?;
        let digest = digest_of(&value).await?;
        let client = self.client(family).await?;
        match conditions.is_empty() {
            true => client.put_with_ttl(key, value, ttl).await?,
            false => {
                let ttl = if let Ttl::Seconds(seconds) = ttl { seconds } else { 0 };
                write_if(&client, &conditions, key, Some(Put { value, ttl })).await?;
            }
        }
        let mut response = empty(StatusCode::NO_CONTENT);
        response.headers_mut().insert(ETAG, etag::header(digest));
        Ok(response)
    }

    /// DELETE: succeeds if the key has no value.
    pub(super) async fn delete(&self, asked: Asked) -> Result<Response, HttpFailure> {
        let (key, family) = (asked.key()?, asked.written_family()?);
        let conditions = Preconditions::of(&asked.headers)?;
        asked.check_keys(wanted(&conditions), [&key[..]])?;
        let client = self.client(family).await?;
        match conditions.is_empty() {
            true => client.delete(key).await?,
            false => write_if(&client, &conditions, key, None).await?,
        }
        Ok(empty(StatusCode::NO_CONTENT))
    }

    /// POST with the parameter `increment`: returns the sum, which is the new value.
    pub(super) async fn increment(&self, asked: Asked) -> Result<Response, HttpFailure> {
        let (key, family) = (asked.key()?, asked.written_family()?);
        let by = asked.query.number("increment", "of 64 bits with sign")?;
        let by: i64 = by.ok_or_else(|| {
            HttpFailure::invalid("name the change: /v1/kv/KEY?increment=NUMBER".to_owned())
        })?;
        asked.check_keys(Permissions::READ_WRITE, [&key[..]])?;
        let sum = self.client(family).await?.increment(key, by).await?.to_string();
        let digest = ValueDigest::of(sum.as_bytes());
        let mut response = held(sum.into(), &asked.memory);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(ETAG, etag::header(digest));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

/// Returns the rights that a write needs: conditions tell something of what was there.
fn wanted(conditions: &Preconditions) -> Permissions {
    if conditions.is_empty() { Permissions::WRITE } else { Permissions::READ_WRITE }
}

/// Sets or deletes a key. Fails unless the conditions hold on the leader of its region.
async fn write_if(
    client: &Client,
    conditions: &Preconditions,
    key: Bytes,
    put: Option<Put>,
) -> Result<(), HttpFailure> {
    let (if_match, if_none_match) = conditions.of_write();
    let request = WriteIfRequest { key, if_match, if_none_match, put, ..Default::default() };
    let response = client.write_if(request).await?;
    if response.done {
        return Ok(());
    }
    let found = response.digest.and_then(|bytes| <[u8; _]>::try_from(&bytes[..]).ok());
    Err(HttpFailure::precondition_failed(found.map(ValueDigest)))
}

fn ttl(headers: &HeaderMap) -> Result<Ttl, HttpFailure> {
    let mut all = headers.get_all(TTL).into_iter();
    let Some(value) = all.next() else { return Ok(Ttl::Endless) };
    let seconds = value.to_str().ok().filter(|_| all.next().is_none());
    let seconds = seconds.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let seconds = seconds.and_then(|text| text.parse().ok());
    match seconds.filter(|seconds| (1..=TTL_S_MAX).contains(seconds)) {
        Some(seconds) => Ok(Ttl::Seconds(seconds)),
        None => Err(HttpFailure::invalid(format!(
            "the header Stele-TTL is a number of seconds from 1 to {TTL_S_MAX}; without it a pair does not expire"
        ))),
    }
}

/// Computes the digest of a value, that of a long one on another thread.
async fn digest_of(value: &Bytes) -> Result<ValueDigest, HttpFailure> {
    if value.len() <= HASHED_HERE_BYTES_MAX {
        return Ok(ValueDigest::of(value));
    }
    let value = value.clone();
    let computed = tokio::task::spawn_blocking(move || ValueDigest::of(&value)).await;
    // It fails when the node stops.
    computed.map_err(|_| HttpFailure::internal("the node stops"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_from_the_path_or_from_the_parameter_and_is_never_empty() {
        let query = |text| Query::parse(Some(text), &["key64"]).unwrap();
        let of = |path, text| key(path, &query(text)).map_err(|failure| failure.to_string());
        assert_eq!(of(Some("a%2Fb"), ""), Ok(Bytes::from("a/b")));
        assert_eq!(of(Some("a/../b"), ""), Ok(Bytes::from("a/../b")));
        assert_eq!(of(Some(".."), ""), Ok(Bytes::from("..")));
        assert_eq!(of(None, "key64=Li4"), Ok(Bytes::from("..")));
        assert_eq!(of(None, "key64=_w"), Ok(Bytes::from(vec![255])));
        for (path, text) in [(Some(""), ""), (None, "key64="), (None, ""), (None, "key64=a")] {
            assert!(of(path, text).is_err(), "{path:?} {text}");
        }
        let long = "a".repeat(USER_KEY_BYTES_MAX);
        assert!(of(Some(&long), "").is_ok());
        assert!(of(Some(&format!("{long}a")), "").unwrap_err().contains("the limit"));
    }

    #[test]
    fn a_time_to_live_is_a_whole_number_of_seconds() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(TTL, HeaderValue::from_str(value).unwrap());
            }
            ttl(&headers).ok()
        };
        assert_eq!(of(&[]), Some(Ttl::Endless));
        assert_eq!(of(&["60"]), Some(Ttl::Seconds(60)));
        for bad in ["", "0", "-1", "+1", "1.5", "1s", "99999999999999999999", "99999999999"] {
            assert_eq!(of(&[bad]), None, "{bad}");
        }
        assert_eq!(of(&["1", "2"]), None);
    }
}
