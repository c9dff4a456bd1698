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

/// Encoded pairs of a [`ScanResponse`], from a [`PairEncoder`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedPairs {
    /// To be sent in order. A long value is a part that shares its memory.
    parts: Vec<Bytes>,
    encoded_bytes: usize,
    count: usize,
    bytes: u64,
}

impl EncodedPairs {
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

/// Bytes of a piece of memory for pairs. The allocator has one of this length again when an answer was
/// sent; one for several MiB comes from the system, which fills it with zeros page by page.
const MEMORY_BYTES_MAX: usize = 256 << 10;
/// Most bytes of a pair besides its key and its value: three tags with their lengths.
const PAIR_HEADER_BYTES_MAX: usize = 3 * (TAG_BYTES + 5);

/// Encodes pairs one after another, keys and short values into memory of the answer.
#[derive(Debug, Default)]
pub struct PairEncoder {
    done: EncodedPairs,
    /// Pairs after those in parts.
    open: Vec<u8>,
    /// Bytes that are announced and not encoded.
    expected_bytes: usize,
}

impl PairEncoder {
    /// Announces at most so many pairs, and bytes of their keys and values: for what is encoded next,
    /// memory is allocated once.
    pub fn expect(&mut self, pairs: usize, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.expected_bytes = bytes.saturating_add(pairs.saturating_mul(PAIR_HEADER_BYTES_MAX));
    }

    /// Appends a pair. `share` returns the value as bytes that share its memory, for a long one.
    pub fn push(&mut self, key: &[u8], value: &[u8], share: impl FnOnce() -> Bytes) {
        let pair = pair_bytes(key, value);
        let (encoded, is_shared) = (encoded_bytes(pair), value.len() >= SHARED_BYTES_MIN);
        let copied_bytes = encoded - if is_shared { value.len() } else { 0 };
        self.make_room(copied_bytes);
        put_header([Some((PAIRS, pair)), not_empty(KEY, key)], &mut self.open);
        self.open.extend_from_slice(key);
        put_header([not_empty(VALUE, value)], &mut self.open);
        if is_shared {
            self.close();
            self.done.parts.push(share());
        } else {
            self.open.extend_from_slice(value);
        }
        // Invariant: the length of the answer is that of its parts. Its client takes what follows for
        // the next field.
        // Test: `encoded_pairs_are_the_bytes_of_the_message_and_decode_to_its_pairs`.
        // bug proto.shared_values_uncounted: `encoded` is `copied_bytes`
        self.done.encoded_bytes += encoded;
        self.done.count += 1;
        self.done.bytes += (key.len() + value.len()) as u64;
        self.expected_bytes = self.expected_bytes.saturating_sub(encoded);
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.done.len()
    }

    /// Returns whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    /// Returns the bytes of keys and values.
    pub fn bytes(&self) -> u64 {
        self.done.bytes()
    }

    /// Returns the encoded pairs.
    pub fn finish(mut self) -> EncodedPairs {
        self.close();
        self.done
    }

    fn make_room(&mut self, bytes: usize) {
        if self.open.capacity() - self.open.len() < bytes {
            self.close();
            let expected_bytes = self.expected_bytes.min(MEMORY_BYTES_MAX);
            self.open.reserve(expected_bytes.max(bytes));
        }
    }

    /// Makes a part of what is open. Memory of which less than half is used is not kept with it.
    fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let is_used = 2 * self.open.len() >= self.open.capacity();
        // bug proto.unused_memory_is_kept: let is_used = true;
        self.done.parts.push(match is_used {
            true => std::mem::take(&mut self.open).into(),
            false => Bytes::copy_from_slice(&self.open),
        });
        self.open.clear();
    }
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

/// Returns number and length of a field, of which the default is not encoded.
fn not_empty(field: u32, bytes: &[u8]) -> Option<(u32, usize)> {
    (!bytes.is_empty()).then_some((field, bytes.len()))
}

/// Puts numbers and lengths of fields.
#[inline]
fn put_header<const N: usize>(fields: [Option<(u32, usize)>; N], to: &mut Vec<u8>) {
    let mut header = [0; 2 * PAIR_HEADER_BYTES_MAX];
    let mut rest = &mut header[..];
    for (field, bytes) in fields.into_iter().flatten() {
        encode_key(field, WireType::LengthDelimited, &mut rest);
        encode_varint(bytes as u64, &mut rest);
    }
    let unused = rest.len();
    to.extend_from_slice(header.get(..header.len() - unused).unwrap_or_default());
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
        let mut encoder = PairEncoder::default();
        let bytes = pairs.iter().map(|pair| (pair.key.len() + pair.value.len()) as u64).sum();
        encoder.expect(pairs.len(), bytes);
        pairs.iter().for_each(|pair| encoder.push(&pair.key, &pair.value, || pair.value.clone()));
        encoder.finish()
    }

    #[test]
    fn encoded_pairs_are_the_bytes_of_the_message_and_decode_to_its_pairs() {
        const L: usize = SHARED_BYTES_MIN;
        let lists: [&[(usize, usize)]; 8] = [
            &[],
            &[(0, 0)],
            &[(1, 0), (0, 1)],
            &[(126, 127), (128, 16_383), (129, 16_384)],
            &[(3, L - 1), (3, L), (3, L + 1)],
            &[(3, L), (3, 5), (4, 2 * L), (5, 7)],
            &[(20, 1000); 50],
            &[(20, 20_000); 40],
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
    }

    #[test]
    fn memory_that_was_announced_and_not_used_is_given_back() {
        let mut encoder = PairEncoder::default();
        encoder.expect(100, 100_000);
        encoder.push(b"key", &[7; 1000], Bytes::new);
        assert!(encoder.open.capacity() > 100_000);
        let encoded = encoder.finish();
        assert_eq!(encoded.parts.len(), 1);
        let part = encoded.parts.into_iter().next().unwrap();
        assert!(part.try_into_mut().unwrap().capacity() < 2000);
        // Long answers have pieces of one length.
        let long = encoded_of(&[(20, 20_000); 40]);
        let lengths: Vec<usize> = long.parts.iter().map(Bytes::len).collect();
        assert_eq!(lengths.iter().sum::<usize>(), long.encoded_bytes);
        assert!(lengths.iter().all(|bytes| *bytes <= MEMORY_BYTES_MAX), "{lengths:?}");
        assert_eq!(lengths.len(), 4);
    }

    fn encoded_of(lengths: &[(usize, usize)]) -> EncodedPairs {
        encoded(&pairs(lengths))
    }
}
