//! Values of the records of sessions' requests: the first result, as a repetition gets it.
//!
//! ```text
//! record := version:u8 (1) result:u8 [expires_at_s:varint value | bytes:varint | value]
//! result := 0 replaced nothing | 1 replaced a pair | 2 updated | 3 unchanged nothing
//!         | 4 unchanged a pair | 5 not a number | 6 overflow | 7 too long | 8 answered
//! ```
//!
//! Pairs have expiry and value, an update its value, a value that is too long its bytes, a program its answer.

use crate::{Modified, Pair};
use bytes::Bytes;
use stele_types::command::Unfit;
use stele_types::varint;

const VERSION: u8 = 1;
const REPLACED: u8 = 0;
const REPLACED_PAIR: u8 = 1;
const UPDATED: u8 = 2;
const UNCHANGED: u8 = 3;
const UNCHANGED_PAIR: u8 = 4;
const NOT_A_NUMBER: u8 = 5;
const OVERFLOW: u8 = 6;
const TOO_LONG: u8 = 7;
const ANSWERED: u8 = 8;

/// Returns the value of a request's record.
pub fn encode_record(result: &Modified) -> Vec<u8> {
    let with_pair = |kind: u8, pair: &Pair| {
        let mut out = vec![VERSION, kind];
        varint::put(&mut out, pair.expires_at_s);
        out.extend_from_slice(&pair.value);
        out
    };
    match result {
        Modified::Replaced { previous: None } => vec![VERSION, REPLACED],
        Modified::Replaced { previous: Some(pair) } => with_pair(REPLACED_PAIR, pair),
        Modified::Updated { value } => [&[VERSION, UPDATED], &value[..]].concat(),
        Modified::Answered { answer } => [&[VERSION, ANSWERED], &answer[..]].concat(),
        Modified::Unchanged { previous: None } => vec![VERSION, UNCHANGED],
        Modified::Unchanged { previous: Some(pair) } => with_pair(UNCHANGED_PAIR, pair),
        Modified::Unfit(Unfit::NotANumber) => vec![VERSION, NOT_A_NUMBER],
        Modified::Unfit(Unfit::Overflow) => vec![VERSION, OVERFLOW],
        Modified::Unfit(Unfit::TooLong { bytes }) => {
            let mut out = vec![VERSION, TOO_LONG];
            varint::put(&mut out, *bytes);
            out
        }
    }
}

/// Returns the result in the record of a request that changed `key`; `None` unless `record` is one.
pub fn decode_record(key: &Bytes, record: &Bytes) -> Option<Modified> {
    let (&version, rest) = record.split_first()?;
    let (&kind, mut rest) = rest.split_first()?;
    if version != VERSION {
        return None;
    }
    let pair = |mut rest: &[u8]| {
        let expires_at_s = varint::take(&mut rest)?;
        Some(Pair { key: key.clone(), value: record.slice_ref(rest), expires_at_s })
    };
    let result = match kind {
        REPLACED_PAIR => return Some(Modified::Replaced { previous: Some(pair(rest)?) }),
        UNCHANGED_PAIR => return Some(Modified::Unchanged { previous: Some(pair(rest)?) }),
        UPDATED => return Some(Modified::Updated { value: record.slice_ref(rest) }),
        ANSWERED => return Some(Modified::Answered { answer: record.slice_ref(rest) }),
        REPLACED => Modified::Replaced { previous: None },
        UNCHANGED => Modified::Unchanged { previous: None },
        NOT_A_NUMBER => Modified::Unfit(Unfit::NotANumber),
        OVERFLOW => Modified::Unfit(Unfit::Overflow),
        TOO_LONG => Modified::Unfit(Unfit::TooLong { bytes: varint::take(&mut rest)? }),
        _ => return None,
    };
    rest.is_empty().then_some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_survives_the_round_trip() {
        let key = Bytes::from_static(b"k");
        let pair = |value: &'static [u8], expires_at_s| {
            Some(Pair { key: key.clone(), value: Bytes::from_static(value), expires_at_s })
        };
        let results = [
            Modified::Replaced { previous: None },
            Modified::Replaced { previous: pair(b"", 0) },
            Modified::Replaced { previous: pair(b"value", u64::MAX) },
            Modified::Updated { value: Bytes::from_static(b"-42") },
            Modified::Unchanged { previous: None },
            Modified::Unchanged { previous: pair(b"value", 300) },
            Modified::Unfit(Unfit::NotANumber),
            Modified::Unfit(Unfit::Overflow),
            Modified::Unfit(Unfit::TooLong { bytes: 70_000 }),
            Modified::Answered { answer: Bytes::from_static(b"+OK") },
        ];
        for result in results {
            let record = Bytes::from(encode_record(&result));
            assert_eq!(decode_record(&key, &record), Some(result));
        }
        for record in [&[][..], &[1], &[2, 0], &[1, 9], &[1, 0, 0], &[1, 7], &[1, 7, 0x80], &[1, 1]]
        {
            assert_eq!(decode_record(&key, &Bytes::copy_from_slice(record)), None, "{record:?}");
        }
    }
}
