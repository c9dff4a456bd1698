//! Pairs of transactions over several regions: intents, which stand in place of headers, and records.
//!
//! ```text
//! intent  := version:u8 (2) transaction:u128be record_key_len:varint record_key old new
//! old     := 0x00                             the name was absent
//!          | 0x01 header_len:varint header    bytes of the header's pair
//! new     := 0x00 | 0x01 header_len:varint header
//!          | 0x02                             the old one: the name is only read
//! record  := version:u8 (1) state:u8 (1 pending, 2 committed) started_ms:varint
//!            (key_len:varint header_key)*     all names of the transaction
//! ```

use crate::header::{Header, HeaderDamage};
use bytes::Bytes;
use std::fmt;
use stele_storage::Pair;
use stele_types::varint;

/// Version of a header's pair that is an intent.
const INTENT: u8 = 2;
const RECORD_VERSION: u8 = 1;
const PENDING: u8 = 1;
const COMMITTED: u8 = 2;
const ABSENT: u8 = 0;
const PRESENT: u8 = 1;
const SAME: u8 = 2;

/// Number of a transaction, drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u128);

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Header that a transaction gives a name when it commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewHeader {
    /// None: the name is deleted.
    Absent,
    /// Bytes of the header's pair.
    Header(Bytes),
    /// The old one: the name is only read.
    Same,
}

/// Header of a name while a transaction that may change it is not resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The transaction.
    pub transaction: TransactionId,
    /// Engine key of its record.
    pub record_key: Bytes,
    /// Bytes of the header's pair before; `None` if the name was absent or had expired.
    pub old: Option<Bytes>,
    /// Header after the commit.
    pub new: NewHeader,
}

impl Intent {
    /// Returns the value of the header's pair.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![INTENT];
        out.extend_from_slice(&self.transaction.0.to_be_bytes());
        varint::put_bytes(&mut out, &self.record_key);
        put_header(&mut out, self.old.as_ref());
        match &self.new {
            NewHeader::Absent => put_header(&mut out, None),
            NewHeader::Header(header) => put_header(&mut out, Some(header)),
            NewHeader::Same => out.push(SAME),
        }
        Bytes::from(out)
    }

    /// Decodes the value of a header's pair. `None` if it is not an intent.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&[INTENT])?;
        let (transaction, record_key) = take_names(bytes, &mut rest)?;
        let old = take_header(bytes, &mut rest)?;
        let (&kind, after) = rest.split_first()?;
        let new = match kind {
            SAME => {
                rest = after;
                NewHeader::Same
            }
            _ => take_header(bytes, &mut rest)?.map_or(NewHeader::Absent, NewHeader::Header),
        };
        rest.is_empty().then_some(Self { transaction, record_key, old, new })
    }

    /// Returns the header that the name has after its resolution.
    pub fn resolved(&self, is_committed: bool) -> Option<&Bytes> {
        match &self.new {
            _ if !is_committed => self.old.as_ref(),
            NewHeader::Same => self.old.as_ref(),
            NewHeader::Absent => None,
            NewHeader::Header(header) => Some(header),
        }
    }

    /// Returns the stamp of the members that do not exist after the resolution, if there are any.
    pub fn dropped_stamp(&self, is_committed: bool) -> Option<u64> {
        let stamp_of = |bytes: &Bytes| {
            let (header, _) = Header::decode(bytes).ok()?;
            (header.count > 0).then_some(header.stamp)
        };
        let old = self.old.as_ref().and_then(stamp_of);
        let kept = self.resolved(is_committed).and_then(stamp_of);
        let new = match &self.new {
            NewHeader::Header(header) => stamp_of(header),
            NewHeader::Absent | NewHeader::Same => None,
        };
        let dropped = if is_committed { old } else { new };
        dropped.filter(|_| dropped != kept)
    }
}

/// Returns the pair of a header, or of the intent in its place, with each expiry so many seconds later: the value, and
/// the expiry of the pair in Unix seconds, 0 for none. A restore gives names the time to live that they had.
///
/// Invariant: the seconds of the pair are those of its header, so the engine drops no name that a command finds.
/// An intent has none, and has the expiry in both of its headers.
/// Tests: `headers_and_intents_expire_later_by_the_same_time_as_their_pairs`.
pub fn expiring_later(value: &Bytes, by_s: u64) -> Result<(Bytes, u64), HeaderDamage> {
    let later = |bytes: &Bytes| {
        let (header, string) = Header::decode(bytes)?;
        let header = header.expiring_later(by_s);
        Ok((header.encode(&string), header.expires_at_s()))
    };
    if value.first() != Some(&INTENT) {
        return later(value);
    }
    let Some(mut intent) = Intent::decode(value) else {
        return Err(HeaderDamage::Short(value.len()));
    };
    // bug redis.intents_expire_as_before: return Ok((value.clone(), 0));
    if let Some(old) = &mut intent.old {
        *old = later(old)?.0;
    }
    if let NewHeader::Header(new) = &mut intent.new {
        *new = later(new)?.0;
    }
    Ok((intent.encode(), 0))
}

/// Intent that a command has met in place of a header.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetIntent {
    /// Engine key of the header.
    pub header_key: Bytes,
    /// The transaction.
    pub transaction: TransactionId,
    /// Engine key of its record.
    pub record_key: Bytes,
}

impl MetIntent {
    /// Returns the intent in place of a header. `None` if the pair is not one.
    pub fn of(header_key: &Bytes, value: &Bytes) -> Option<Self> {
        let mut rest = value.strip_prefix(&[INTENT])?;
        let (transaction, record_key) = take_names(value, &mut rest)?;
        Some(Self { header_key: header_key.clone(), transaction, record_key })
    }

    /// Returns the intent in place of a header's pair.
    pub fn of_pair(header_key: &Bytes, pair: Option<&Pair>) -> Option<Self> {
        Self::of(header_key, &pair?.value)
    }

    /// Appends the intent.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        varint::put_bytes(out, &self.header_key);
        out.extend_from_slice(&self.transaction.0.to_be_bytes());
        varint::put_bytes(out, &self.record_key);
    }

    /// Returns the bytes of intents.
    pub fn encode_all(met: &[Self]) -> Bytes {
        let mut out = Vec::new();
        met.iter().for_each(|met| met.put(&mut out));
        Bytes::from(out)
    }

    /// Decodes the bytes of intents. `None` if they are damaged.
    pub fn decode_all(bytes: &[u8]) -> Option<Vec<Self>> {
        let (mut rest, mut met) = (bytes, Vec::new());
        while !rest.is_empty() {
            met.push(Self::take(&mut rest)?);
        }
        Some(met)
    }

    /// Takes what [`MetIntent::put`] appended.
    pub(crate) fn take(rest: &mut &[u8]) -> Option<Self> {
        let header_key = Bytes::copy_from_slice(varint::take_bytes(rest)?);
        let (transaction, after) = rest.split_first_chunk::<16>()?;
        *rest = after;
        let transaction = TransactionId(u128::from_be_bytes(*transaction));
        let record_key = Bytes::copy_from_slice(varint::take_bytes(rest)?);
        Some(Self { header_key, transaction, record_key })
    }
}

/// State of a transaction that has a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// It may commit, unless the record is deleted.
    Pending,
    /// It has committed. Intents may be left.
    Committed,
}

/// Record of a transaction: the pair beside its first name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What was decided.
    pub state: RecordState,
    /// When the leader created it, in its Unix milliseconds.
    pub started_ms: u64,
    /// Engine keys of the headers of all names.
    pub header_keys: Vec<Bytes>,
}

impl Record {
    /// Returns the value of the record's pair.
    pub fn encode(&self) -> Bytes {
        let state = match self.state {
            RecordState::Pending => PENDING,
            RecordState::Committed => COMMITTED,
        };
        let mut out = vec![RECORD_VERSION, state];
        varint::put(&mut out, self.started_ms);
        self.header_keys.iter().for_each(|key| varint::put_bytes(&mut out, key));
        Bytes::from(out)
    }

    /// Decodes the value of a record's pair. `None` if it is damaged, or if a later build wrote it.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&[RECORD_VERSION])?;
        let (&state, after) = rest.split_first()?;
        rest = after;
        let state = match state {
            PENDING => RecordState::Pending,
            COMMITTED => RecordState::Committed,
            _ => return None,
        };
        let started_ms = varint::take(&mut rest)?;
        let header_keys = take_keys(&mut rest)?;
        Some(Self { state, started_ms, header_keys })
    }
}

/// Takes keys, each with its length, up to the end.
pub(super) fn take_keys(rest: &mut &[u8]) -> Option<Vec<Bytes>> {
    let mut keys = Vec::new();
    while !rest.is_empty() {
        keys.push(Bytes::copy_from_slice(varint::take_bytes(rest)?));
    }
    Some(keys)
}

/// Takes the transaction and the key of its record.
fn take_names(whole: &Bytes, rest: &mut &[u8]) -> Option<(TransactionId, Bytes)> {
    let (transaction, after) = rest.split_first_chunk::<16>()?;
    *rest = after;
    let record_key = whole.slice_ref(varint::take_bytes(rest)?);
    Some((TransactionId(u128::from_be_bytes(*transaction)), record_key))
}

fn put_header(out: &mut Vec<u8>, header: Option<&Bytes>) {
    match header {
        None => out.push(ABSENT),
        Some(header) => {
            out.push(PRESENT);
            varint::put_bytes(out, header);
        }
    }
}

fn take_header(whole: &Bytes, rest: &mut &[u8]) -> Option<Option<Bytes>> {
    let (&kind, after) = rest.split_first()?;
    *rest = after;
    match kind {
        ABSENT => Some(None),
        PRESENT => Some(Some(whole.slice_ref(varint::take_bytes(rest)?))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Kind;

    fn header(kind: Kind, stamp: u64, count: u64) -> Bytes {
        Header { kind, stamp, change: 9, count, expires_at_ms: 0 }.encode(b"v")
    }

    fn intent(old: Option<Bytes>, new: NewHeader) -> Intent {
        let record_key = Bytes::from_static(b"record");
        Intent { transaction: TransactionId(u128::MAX - 1), record_key, old, new }
    }

    #[test]
    fn an_intent_survives_the_round_trip_and_every_cut_is_refused() {
        let string = header(Kind::String, 1, 0);
        let news = [NewHeader::Absent, NewHeader::Header(string.clone()), NewHeader::Same];
        for new in news {
            for old in [None, Some(string.clone())] {
                let intent = intent(old, new.clone());
                let whole = intent.encode();
                assert_eq!(Intent::decode(&whole), Some(intent.clone()));
                let key = Bytes::from_static(b"header");
                let met = MetIntent::of(&key, &whole).unwrap();
                assert_eq!(
                    (met.transaction, &met.record_key),
                    (intent.transaction, &intent.record_key)
                );
                for cut in 0..whole.len() {
                    assert_eq!(Intent::decode(&whole.slice(..cut)), None);
                }
                let mut out = Vec::new();
                met.put(&mut out);
                assert_eq!(MetIntent::take(&mut &out[..]), Some(met));
                for cut in 0..out.len() {
                    assert_eq!(MetIntent::take(&mut &out[..cut]), None);
                }
            }
        }
        assert_eq!(Intent::decode(&string), None);
        assert_eq!(MetIntent::of(&string, &string), None);
    }

    #[test]
    fn a_record_survives_the_round_trip_and_other_bytes_are_refused() {
        let keys = vec![Bytes::from_static(b"a"), Bytes::from_static(b"bc")];
        for state in [RecordState::Pending, RecordState::Committed] {
            let record = Record { state, started_ms: 1 << 40, header_keys: keys.clone() };
            let whole = record.encode();
            assert_eq!(Record::decode(&whole), Some(record.clone()));
            for cut in 0..whole.len() {
                assert_ne!(Record::decode(&whole.slice(..cut)), Some(record.clone()));
            }
        }
        for bytes in [&b""[..], &[2, 1, 0], &[1, 0, 0], &[1, 3, 0], &[1, 1]] {
            assert_eq!(Record::decode(&Bytes::copy_from_slice(bytes)), None, "{bytes:?}");
        }
    }

    #[test]
    fn headers_and_intents_expire_later_by_the_same_time_as_their_pairs() {
        let expiring = |expires_at_ms| {
            Header { kind: Kind::String, stamp: 1, change: 2, count: 0, expires_at_ms }.encode(b"v")
        };
        for (before_ms, after_ms) in [(0, 0), (1_500, 101_500), (u64::MAX, u64::MAX)] {
            let (value, at_s) = expiring_later(&expiring(before_ms), 100).unwrap();
            assert_eq!(value, expiring(after_ms));
            assert_eq!(at_s, after_ms.div_ceil(1000));
            let old = Some(expiring(before_ms));
            for new in [NewHeader::Absent, NewHeader::Same, NewHeader::Header(expiring(700))] {
                let (value, at_s) =
                    expiring_later(&intent(old.clone(), new.clone()).encode(), 100).unwrap();
                let later = Intent::decode(&value).unwrap();
                assert_eq!((later.old, at_s), (Some(expiring(after_ms)), 0));
                match new {
                    NewHeader::Header(_) => {
                        assert_eq!(later.new, NewHeader::Header(expiring(100_700)));
                    }
                    other => assert_eq!(later.new, other),
                }
            }
        }
        let cut = intent(None, NewHeader::Same).encode();
        assert!(expiring_later(&cut.slice(..cut.len() - 1), 1).is_err());
        assert!(expiring_later(&Bytes::from_static(&[9, 0]), 1).is_err());
    }

    #[test]
    fn members_that_no_header_names_afterwards_are_dropped() {
        let (old, new) = (header(Kind::Hash, 1, 2), header(Kind::Hash, 7, 3));
        let string = header(Kind::String, 8, 0);
        let rows = [
            (Some(&old), NewHeader::Header(new.clone()), Some(7), Some(1)),
            (Some(&old), NewHeader::Same, None, None),
            (Some(&old), NewHeader::Absent, None, Some(1)),
            (Some(&old), NewHeader::Header(string), None, Some(1)),
            (Some(&old), NewHeader::Header(old.clone()), None, None),
            (None, NewHeader::Header(new), Some(7), None),
        ];
        for (old, new, aborted, committed) in rows {
            let intent = intent(old.cloned(), new);
            let dropped = [false, true].map(|is_committed| intent.dropped_stamp(is_committed));
            assert_eq!(dropped, [aborted, committed], "{intent:?}");
        }
    }
}
