//! Import of JSON lines, as `stele export` and `stele scan --json` write them: `{"key": …, "value": …[,
//! "expires_at_s": …]}`. In place of `key` and `value` a line may have `key_hex`, `key_base64`,
//! `value_hex`, `value_base64`; in place of the Unix time `expires_at_s` the seconds from now, `ttl_s`.

use super::{Item, Sink};
use crate::args::Encoding;
use crate::store::unix_seconds;
use crate::text::decode;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use stele_types::command::check_user_pair;
use stele_types::size::{USER_KEY_BYTES_MAX, VALUE_BYTES_MAX};
use stele_types::{Error, Result};

/// Length of the largest pair in hexadecimal, with space for the names.
const LINE_BYTES_MAX: usize = 2 * (VALUE_BYTES_MAX + USER_KEY_BYTES_MAX) + 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: Option<String>,
    key_hex: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_hex: Option<String>,
    value_base64: Option<String>,
    expires_at_s: Option<u64>,
    ttl_s: Option<u64>,
}

/// Yields every line. Refuses an invalid line and continues with the next.
pub(super) fn read(from: &Path, encoding: Encoding, sink: &mut Sink) -> Result<()> {
    let failed = |error| Error::io("read", from, error);
    let mut source: Box<dyn BufRead> = match from == Path::new("-") {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(BufReader::with_capacity(1 << 20, File::open(from).map_err(failed)?)),
    };
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let limit = LINE_BYTES_MAX as u64 + 1;
        let bytes = source.by_ref().take(limit).read_until(b'\n', &mut line).map_err(failed)?;
        if bytes == 0 {
            break;
        }
        if bytes > LINE_BYTES_MAX {
            let name = from.display();
            return Err(Error::invalid(format!(
                "line {number} of {name} is longer than {LINE_BYTES_MAX} bytes"
            )));
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let source_bytes = bytes as u64;
        let now_s = unix_seconds();
        sink.push(match parse(&line, encoding, now_s) {
            Ok((_, _, at_s)) if at_s != 0 && at_s <= now_s => Item::Expired { source_bytes },
            Ok((key, value, expires_at_s)) => Item::Pair { key, value, expires_at_s, source_bytes },
            Err(error) => Item::Refused { what: format!("line {number}"), error, source_bytes },
        })?;
    }
    Ok(())
}

/// Key, value, and the Unix seconds at which the pair expires; 0 never.
pub(super) type Parsed = (Vec<u8>, Vec<u8>, u64);

/// Parses a line; `now_s` is the Unix time.
pub(super) fn parse(line: &[u8], encoding: Encoding, now_s: u64) -> Result<Parsed> {
    let line: Line = serde_json::from_slice(line)
        .map_err(|error| Error::invalid(format!("not a pair: {error}")))?;
    let key = field("key", (line.key, encoding), line.key_hex, line.key_base64)?;
    let value = field("value", (line.value, encoding), line.value_hex, line.value_base64)?;
    check_user_pair(&key, &value)?;
    let expires_at_s = match (line.expires_at_s, line.ttl_s) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid("`expires_at_s` and `ttl_s` exclude each other"));
        }
        (Some(at_s), None) => at_s,
        (None, Some(ttl_s)) if ttl_s > 0 => now_s.saturating_add(ttl_s),
        (None, _) => 0,
    };
    Ok((key, value, expires_at_s))
}

/// Decodes the field, which must be given in exactly one form.
fn field(
    name: &str,
    plain: (Option<String>, Encoding),
    hex: Option<String>,
    base64: Option<String>,
) -> Result<Vec<u8>> {
    let forms = [plain, (hex, Encoding::Hex), (base64, Encoding::Base64)];
    let mut given = forms.into_iter().filter_map(|(text, encoding)| Some((text?, encoding)));
    match (given.next(), given.next()) {
        (Some((text, encoding)), None) => decode(&text, encoding),
        (None, _) => Err(Error::invalid(format!("no `{name}`"))),
        (Some(_), Some(_)) => Err(Error::invalid(format!("`{name}` is given twice"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_a_field_is_read_and_two_are_refused() {
        let read = |line: &str, encoding| parse(line.as_bytes(), encoding, 100);
        for (expiry, expected) in
            [(r#","ttl_s":9"#, 109), (r#","expires_at_s":7"#, 7), (r#","ttl_s":0"#, 0), ("", 0)]
        {
            let line = format!(r#"{{"key":"k","value":"v"{expiry}}}"#);
            let text = read(&line, Encoding::Text).unwrap();
            assert_eq!(text, (b"k".to_vec(), b"v".to_vec(), expected), "{line}");
        }
        assert!(
            read(r#"{"key":"k","value":"v","ttl_s":9,"expires_at_s":7}"#, Encoding::Text).is_err()
        );
        let mixed = read(r#"{"key_hex":"ff00","value_base64":"AAE="}"#, Encoding::Text).unwrap();
        assert_eq!(mixed, (vec![255, 0], vec![0, 1], 0));
        let hex = read(r#"{"key":"6b","value":""}"#, Encoding::Hex).unwrap();
        assert_eq!(hex, (b"k".to_vec(), vec![], 0));
        for bad in ["{}", "nonsense", r#"{"key":"a","key_hex":"61","value":""}"#, r#"{"key":"a"}"#]
        {
            assert!(read(bad, Encoding::Text).is_err(), "{bad}");
        }
    }
}
