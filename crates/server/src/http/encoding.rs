//! Bytes in paths, parameters and JSON.
//!
//! A path has a key with `%` and two hexadecimal digits for each byte that a path cannot have. In JSON, and in
//! parameters with such a name, a field `NAME` is text and `NAME64` is base64 with `-` and `_` and without `=`
//! (RFC 4648, section 5). In an answer bytes that are UTF-8 are text, and others are base64: there is one
//! form for each key and value.
//!
//! Invariant: each accepted text has one meaning, and what cannot be decoded is refused.
//! Tests: `each_key_survives_its_path`, `each_key_survives_its_base64`, `odd_texts_are_refused`.

use super::HttpFailure;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;

/// Returns the bytes of a text in which `%` and two digits stand for a byte, and with `plus_is_space` a `+` for
/// a space.
pub(super) fn percent_decoded(text: &[u8], plus_is_space: bool) -> Result<Vec<u8>, HttpFailure> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        out.push(match byte {
            b'%' => {
                let (digits, after) = after.split_first_chunk().ok_or_else(bad_percent)?;
                rest = after;
                byte_of(*digits).ok_or_else(bad_percent)?
            }
            b'+' if plus_is_space => b' ',
            byte => *byte,
        });
    }
    Ok(out)
}

fn byte_of([high, low]: [u8; 2]) -> Option<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

fn bad_percent() -> HttpFailure {
    let text = "after `%` two hexadecimal digits must follow: `%` itself is `%25`";
    HttpFailure::invalid(text.to_owned())
}

/// Returns the bytes of a text in base64. `name` is that of its field.
pub(super) fn base64(name: &str, text: &str) -> Result<Bytes, HttpFailure> {
    let decoded = URL_SAFE_NO_PAD.decode(text).map_err(|error| {
        HttpFailure::invalid(format!(
            "`{name}` is not base64 with `-` and `_` and without `=` (RFC 4648, section 5): {error}"
        ))
    });
    decoded.map(Bytes::from)
}

/// Returns bytes in base64.
pub(super) fn to_base64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Appends a field of a JSON object: `"NAME":"text"` or `"NAME64":"base64"`.
pub(super) fn put_bytes(out: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            out.extend_from_slice(b"\":");
            put_text(out, text);
        }
        Err(_) => {
            out.extend_from_slice(b"64\":\"");
            out.extend_from_slice(to_base64(bytes).as_bytes());
            out.push(b'"');
        }
    }
}

/// Appends a string of JSON.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    // A write to memory does not fail.
    let _ = serde_json::to_writer(out, text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use stele_types::Prng;

    /// Returns random bytes, of which many are special in paths, queries, base64 or JSON.
    fn random(prng: &mut Prng) -> Vec<u8> {
        const SPECIAL: &[u8] = b"%/.+?#&= \\\"\0\x7f\x80\xff-_";
        let byte = |prng: &mut Prng| match prng.below(2) {
            0 => SPECIAL[prng.below(SPECIAL.len() as u64) as usize],
            _ => prng.below(256) as u8,
        };
        (0..prng.below(40)).map(|_| byte(prng)).collect()
    }

    /// Encodes a key as clients may: some encode more bytes than others, and in other cases.
    fn encoded(prng: &mut Prng, key: &[u8]) -> String {
        let one = |byte: &u8| match byte {
            byte if byte.is_ascii_alphanumeric() && prng.below(4) > 0 => {
                char::from(*byte).to_string()
            }
            byte if b"-_.~".contains(byte) && prng.below(2) > 0 => char::from(*byte).to_string(),
            byte if prng.below(2) > 0 => format!("%{byte:02x}"),
            byte => format!("%{byte:02X}"),
        };
        key.iter().map(one).collect()
    }

    #[test]
    fn each_key_survives_its_path() {
        for seed in 0..5000 {
            let mut prng = Prng::new(seed);
            let key = random(&mut prng);
            let text = encoded(&mut prng, &key);
            for plus_is_space in [false, true] {
                let decoded = percent_decoded(text.as_bytes(), plus_is_space).unwrap();
                assert_eq!(decoded, key, "seed {seed}: {text}");
            }
        }
        assert_eq!(percent_decoded(b"a+b", false).unwrap(), b"a+b");
        assert_eq!(percent_decoded(b"a+b", true).unwrap(), b"a b");
        assert_eq!(percent_decoded(b"a/../b//c", false).unwrap(), b"a/../b//c");
        assert_eq!(percent_decoded(b"%2e%2E%2F%00", false).unwrap(), b"../\0");
        assert_eq!(percent_decoded("ä".as_bytes(), false).unwrap(), "ä".as_bytes());
    }

    #[test]
    fn what_is_accepted_as_a_path_has_no_percent_that_is_not_decoded() {
        for seed in 0..5000 {
            let mut prng = Prng::new(seed);
            let text = random(&mut prng);
            let percents = text.iter().filter(|byte| **byte == b'%').count();
            if let Ok(decoded) = percent_decoded(&text, false) {
                let shorter = text.len() - decoded.len();
                assert!(shorter.is_multiple_of(2) && shorter / 2 <= percents, "seed {seed}");
                assert_eq!(percents > 0, shorter > 0, "seed {seed}");
            }
        }
    }

    #[test]
    fn each_key_survives_its_base64() {
        for seed in 0..5000 {
            let key = random(&mut Prng::new(seed));
            let text = to_base64(&key);
            assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
            assert_eq!(base64("key64", &text).unwrap(), key, "seed {seed}");
        }
    }

    #[test]
    fn odd_texts_are_refused() {
        for text in ["%", "%4", "a%", "%zz", "%+1", "%-1", "% 1", "%%41", "%u0041"] {
            assert!(percent_decoded(text.as_bytes(), false).is_err(), "{text}");
        }
        // Padding, the other alphabet, spaces, bits that no byte has, and an impossible length.
        for text in ["YQ==", "+w", "/w", "Y Q", "YQ\n", "YR", "Y", "ä"] {
            assert!(base64("key64", text).is_err(), "{text}");
        }
        assert_eq!(base64("key64", "").unwrap(), "");
    }

    #[test]
    fn bytes_of_json_have_one_form_from_which_they_come_back() {
        for seed in 0..5000 {
            let bytes = random(&mut Prng::new(seed));
            let mut out = vec![b'{'];
            put_bytes(&mut out, "key", &bytes);
            out.push(b'}');
            let value: Value = serde_json::from_slice(&out).unwrap();
            let back = match (value["key"].as_str(), value["key64"].as_str()) {
                (Some(text), None) => Bytes::copy_from_slice(text.as_bytes()),
                (None, Some(text)) => base64("key64", text).unwrap(),
                other => panic!("{other:?}"),
            };
            assert_eq!(back, bytes, "seed {seed}");
            assert_eq!(value["key"].is_string(), std::str::from_utf8(&bytes).is_ok());
        }
    }
}
