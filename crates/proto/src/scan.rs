//! Answer of a scan. A server encodes the pairs as it reads them: to keep each pair as a message would
//! cost references to its key and value, and its length would be computed at every level of an answer
//! within a message of a stream.

use crate::SHARED_BYTES_MIN;
use crate::errorpb::Error;
use crate::kvrpcpb::KvPair;
use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{
    DecodeContext, WireType, encode_key, encode_varint, encoded_len_varint, message, skip_field,
};
use prost::{DecodeError, Message};

const REGION_ERROR: u32 = 1;
const PAIRS: u32 = 2;
/// Fields of a pair.
const KEY: u32 = 2;
const VALUE: u32 = 3;
/// Bytes of the number and type of any of these fields.
const TAG_BYTES: usize = 1;

/// `kvrpcpb.RawScanResponse` and `kvrpcpb.RawBatchScanResponse`, which have the same fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScanResponse {
    /// Error of the region.
    pub region_error: Option<Error>,
    /// Pairs that were received.
    pub kvs: Vec<KvPair>,
    /// Pairs to send, after those of `kvs`.
    pub encoded: EncodedPairs,
}

/// Encoded pairs of a [`ScanResponse`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedPairs {
    /// To be sent in order. A long value is a part that shares its memory.
    parts: Vec<Bytes>,
    encoded_bytes: usize,
    count: usize,
    bytes: u64,
}

impl EncodedPairs {
    /// Appends pairs of key and value, with one allocation for keys and short values. The first pass
    /// over them finds its length.
    pub fn extend<'a>(&mut self, pairs: impl Iterator<Item = (&'a [u8], &'a Bytes)> + Clone) {
        let mut copied_bytes = 0;
        for (key, value) in pairs.clone() {
            let encoded = encoded_bytes(pair_bytes(key, value));
            let shared = if is_shared(value) { value.len() } else { 0 };
            copied_bytes += encoded - shared;
            // Invariant: the length of the answer is that of its parts. Its client takes what follows for
            // the next field.
            // Test: `encoded_pairs_are_the_bytes_of_the_message_and_decode_to_its_pairs`.
            // bug proto.shared_values_uncounted: `encoded` is `encoded - shared`
            self.encoded_bytes += encoded;
            self.count += 1;
            self.bytes += (key.len() + value.len()) as u64;
        }
        let (mut copied, mut long_values) = (Vec::with_capacity(copied_bytes), Vec::new());
        for (key, value) in pairs {
            put_tag(PAIRS, pair_bytes(key, value), &mut copied);
            put_field(KEY, key, &mut copied);
            if is_shared(value) {
                put_tag(VALUE, value.len(), &mut copied);
                long_values.push((copied.len(), value.clone()));
            } else {
                put_field(VALUE, value, &mut copied);
            }
        }
        let (mut copied, mut begin) = (Bytes::from(copied), 0);
        for (at, value) in long_values {
            self.parts.extend([copied.split_to(at - begin), value]);
            begin = at;
        }
        if !copied.is_empty() {
            self.parts.push(copied);
        }
    }

    /// Appends the pairs of `others`.
    pub fn append(&mut self, mut others: Self) {
        self.parts.append(&mut others.parts);
        self.encoded_bytes += others.encoded_bytes;
        self.count += others.count;
        self.bytes += others.bytes;
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the bytes of keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn is_shared(value: &Bytes) -> bool {
    value.len() >= SHARED_BYTES_MIN
}

/// Returns the bytes of a pair without its tag and length.
fn pair_bytes(key: &[u8], value: &[u8]) -> usize {
    field_bytes(key) + field_bytes(value)
}

/// Returns the bytes of a field, of which the default is not encoded.
fn field_bytes(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { encoded_bytes(bytes.len()) }
}

fn encoded_bytes(bytes: usize) -> usize {
    TAG_BYTES + encoded_len_varint(bytes as u64) + bytes
}

#[inline]
fn put_tag(field: u32, bytes: usize, to: &mut Vec<u8>) {
    encode_key(field, WireType::LengthDelimited, to);
    encode_varint(bytes as u64, to);
}

fn put_field(field: u32, bytes: &[u8], to: &mut Vec<u8>) {
    if !bytes.is_empty() {
        put_tag(field, bytes.len(), to);
        to.extend_from_slice(bytes);
    }
}

impl Message for ScanResponse {
    fn encode_raw(&self, to: &mut impl BufMut) {
        if let Some(error) = &self.region_error {
            message::encode(REGION_ERROR, error, to);
        }
        message::encode_repeated(PAIRS, &self.kvs, to);
        for part in &self.encoded.parts {
            to.put(part.clone());
        }
    }

    fn merge_field(
        &mut self,
        field: u32,
        wire_type: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match field {
            REGION_ERROR => {
                let error = self.region_error.get_or_insert_default();
                message::merge(wire_type, error, from, context)
            }
            PAIRS => message::merge_repeated(wire_type, &mut self.kvs, from, context),
            _ => skip_field(wire_type, field, from, context),
        }
    }

    fn encoded_len(&self) -> usize {
        let error = self.region_error.as_ref();
        error.map_or(0, |error| message::encoded_len(REGION_ERROR, error))
            + message::encoded_len_repeated(PAIRS, &self.kvs)
            + self.encoded.encoded_bytes
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same message as `prost` derives it.
    #[derive(Clone, PartialEq, Message)]
    struct Derived {
        #[prost(message, optional, tag = "1")]
        region_error: Option<Error>,
        #[prost(message, repeated, tag = "2")]
        kvs: Vec<KvPair>,
    }

    fn pairs(lengths: &[(usize, usize)]) -> Vec<KvPair> {
        let pair = |&(key, value): &(usize, usize)| KvPair {
            key: vec![key as u8; key].into(),
            value: vec![value as u8; value].into(),
            ..KvPair::default()
        };
        lengths.iter().map(pair).collect()
    }

    fn encoded(pairs: &[KvPair]) -> EncodedPairs {
        let mut encoded = EncodedPairs::default();
        encoded.extend(pairs.iter().map(|pair| (&pair.key[..], &pair.value)));
        encoded
    }

    #[test]
    fn encoded_pairs_are_the_bytes_of_the_message_and_decode_to_its_pairs() {
        const L: usize = SHARED_BYTES_MIN;
        let lists: [&[(usize, usize)]; 7] = [
            &[],
            &[(0, 0)],
            &[(1, 0), (0, 1)],
            &[(126, 127), (128, 16_383), (129, 16_384)],
            &[(3, L - 1), (3, L), (3, L + 1)],
            &[(3, L), (3, 5), (4, 2 * L), (5, 7)],
            &[(20, 1000); 50],
        ];
        for lengths in lists {
            let kvs = pairs(lengths);
            let region_error = (lengths.len() == 1).then(Error::default);
            let derived = Derived { region_error: region_error.clone(), kvs: kvs.clone() };
            let split = kvs.len() / 2;
            let mut parts = encoded(&kvs[..split]);
            parts.append(encoded(&kvs[split..]));
            assert_eq!(parts.len(), kvs.len());
            let bytes: usize = kvs.iter().map(|pair| pair.key.len() + pair.value.len()).sum();
            assert_eq!(parts.bytes(), bytes as u64);
            let sent = ScanResponse { region_error, encoded: parts, ..ScanResponse::default() };
            let wanted = derived.encode_to_vec();
            assert_eq!(sent.encoded_len(), wanted.len());
            assert!(sent.encode_to_vec() == wanted, "{lengths:?}");
            let received = ScanResponse::decode(&wanted[..]).unwrap();
            assert!(received.kvs == derived.kvs && received.encoded.is_empty());
            assert_eq!(received.region_error, derived.region_error);
            assert!(received.encode_to_vec() == wanted, "{lengths:?}");
        }
    }

    #[test]
    fn what_a_scan_answers_is_allocated_once_and_long_values_are_not_copied() {
        let short = encoded(&pairs(&[(20, 1000); 50]));
        assert_eq!(short.parts.len(), 1);
        let kvs = pairs(&[(20, 1000), (20, SHARED_BYTES_MIN), (20, 1000)]);
        let long = encoded(&kvs);
        assert_eq!(long.parts.len(), 3);
        assert_eq!(long.parts[1].as_ptr(), kvs[1].value.as_ptr());
        let ends: Vec<_> = [0, 2].iter().map(|&at| long.parts[at].as_ptr_range()).collect();
        assert_eq!(ends[0].end, ends[1].start, "two allocations");
    }
}
