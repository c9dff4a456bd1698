//! Requests of sessions, and the keys of their records.
//!
//! A client numbers the requests of its session. The command with the effect of a request also writes
//! the request's record, a pair beside its key: a repetition finds it and gets the first result. So a
//! request takes effect at most once, although the client repeats it after an unknown outcome. The
//! invariants are those of `spec/Sessions.tla`.
//!
//! ```text
//! record key := 0x05 escaped 0x00 0x01 family:u8 session:u64be number:u64be
//! escaped    := the user key, 0x00 as 0x00 0xff
//! ```
//!
//! Invariant: records are ordered like their user keys, and no boundary of regions lies between a key and
//! its records: no escaped key with its end `0x00 0x01` begins another one.
//! Test: `a_record_is_in_the_region_of_its_key_and_in_no_other`.

use crate::size::KEY_BYTES_MAX;
use crate::{ColumnFamily, Error, KeyRange, Result, keyspace};
use bytes::Bytes;

/// Most seconds from the cluster's time to the deadline of a request: as long as a record is kept.
pub const LIFE_S_MAX: u64 = 60 * 60;

const ESCAPE: u8 = 0x00;
const ESCAPED: u8 = 0xff;
const END: u8 = 0x01;
/// Bytes after the escaped key: its end, family, session and number.
const SUFFIX_BYTES: usize = 2 + 1 + 8 + 8;

/// Id of a session. Its client draws it at random.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// A numbered request of a session. All attempts have the same number and the same deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionRequest {
    /// The session.
    pub session: SessionId,
    /// Number of the request; no two requests of a session have the same.
    pub number: u64,
    /// Deadline of all attempts, and expiry of the record, in Unix seconds of the cluster's time.
    pub expires_at_s: u64,
}

/// Whether an attempt may be executed at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It may.
    InTime,
    /// Its deadline has passed: its record may be dropped.
    Late,
    /// Its deadline is more than [`LIFE_S_MAX`] away.
    TooFar,
}

impl SessionRequest {
    /// Returns whether an attempt may be executed at a time of the cluster, in Unix seconds.
    ///
    /// Invariant: no attempt is executed after the request's deadline by the cluster's time. Merges drop the
    /// record an hour later by that time, and no clock of one node is compared. An attempt that spent
    /// days on its way does nothing.
    /// Test: `an_attempt_after_its_deadline_is_refused_and_never_executed`.
    pub fn due(&self, cluster_s: u64) -> Due {
        // bug types.late_attempt_executed: never
        if self.expires_at_s < cluster_s {
            return Due::Late;
        }
        match self.expires_at_s.saturating_sub(cluster_s) > LIFE_S_MAX {
            true => Due::TooFar,
            false => Due::InTime,
        }
    }

    /// Returns the key of the request's record. Fails with [`Error::Invalid`] if the engine key is not that
    /// of a family's key, or if the record's key would be too long.
    pub fn record_key(&self, engine_key: &[u8]) -> Result<Bytes> {
        let invalid = || Error::invalid("a session changes keys of column families only");
        let (space, user_key) = engine_key.split_first().ok_or_else(invalid)?;
        ColumnFamily::ALL.into_iter().find(|cf| cf.space() == *space).ok_or_else(invalid)?;
        let mut out = escaped(user_key);
        out.push(*space);
        out.extend_from_slice(&self.session.0.to_be_bytes());
        out.extend_from_slice(&self.number.to_be_bytes());
        match out.len() <= KEY_BYTES_MAX {
            true => Ok(Bytes::from(out)),
            false => Err(Error::invalid(format!(
                "key of {} bytes in a session; with each byte 0 counted twice the limit is {}",
                user_key.len(),
                KEY_BYTES_MAX - 1 - SUFFIX_BYTES
            ))),
        }
    }
}

/// What the key of a record names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordKey {
    /// Column family of the key that the request changed.
    pub family: ColumnFamily,
    /// That key.
    pub user_key: Bytes,
    /// The session.
    pub session: SessionId,
    /// Number of the request.
    pub number: u64,
}

impl RecordKey {
    /// Decodes the key of a record; `None` for any other engine key.
    pub fn decode(engine_key: &[u8]) -> Option<Self> {
        let mut rest = engine_key.strip_prefix(&[keyspace::RECORDS])?;
        let mut user_key = Vec::with_capacity(rest.len());
        loop {
            let (&byte, tail) = rest.split_first()?;
            rest = tail;
            if byte != ESCAPE {
                user_key.push(byte);
                continue;
            }
            let (&kind, tail) = rest.split_first()?;
            rest = tail;
            match kind {
                ESCAPED => user_key.push(ESCAPE),
                END => break,
                _ => return None,
            }
        }
        let (&space, rest) = rest.split_first()?;
        let family = ColumnFamily::ALL.into_iter().find(|cf| cf.space() == space)?;
        let (session, number) = rest.split_first_chunk::<8>()?;
        let number = u64::from_be_bytes(number.try_into().ok()?);
        let session = SessionId(u64::from_be_bytes(*session));
        Some(Self { family, user_key: Bytes::from(user_key), session, number })
    }

    /// Returns the engine key that the request changed.
    pub fn changed_key(&self) -> Bytes {
        self.family.engine_key(&self.user_key)
    }
}

/// Returns the engine range of the records of a range of user keys. It may be empty: between two
/// boundaries of which the escaped forms are too long there is no record.
pub fn record_range(range: &KeyRange) -> KeyRange {
    let bound = |key: &Bytes| {
        // No record's key is longer, so none lies between the whole bound and this part of it.
        let mut out = escaped(key);
        out.truncate(KEY_BYTES_MAX);
        Bytes::from(out)
    };
    let start = match range.start.is_empty() {
        true => Bytes::from_static(&[keyspace::RECORDS]),
        false => bound(&range.start),
    };
    let end = match range.end.is_empty() {
        true => Bytes::from_static(&[keyspace::RECORDS + 1]),
        false => bound(&range.end),
    };
    KeyRange { start, end }
}

/// Returns the space of records, the escaped user key, and its end.
fn escaped(user_key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + user_key.len() + SUFFIX_BYTES);
    out.push(keyspace::RECORDS);
    for byte in user_key {
        out.push(*byte);
        if *byte == ESCAPE {
            out.push(ESCAPED);
        }
    }
    // bug types.record_key_unended: return out;
    out.extend_from_slice(&[ESCAPE, END]);
    out
}

/// The cluster's time, the median of its nodes' clocks, as a node last received it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterTime {
    /// 0 if none was received.
    unix_s: u64,
    received_nanos: u64,
}

const NANOS_PER_S: u64 = 1_000_000_000;

impl ClusterTime {
    /// Most seconds after which a received time still decides on sessions' requests. A clock of one node
    /// is not trusted for longer.
    pub const FRESH_S_MAX: u64 = 10 * 60;

    /// Creates the time that was received at a monotonic time in nanoseconds. 0 is not a time.
    pub fn new(unix_s: u64, monotonic_nanos: u64) -> Self {
        Self { unix_s, received_nanos: monotonic_nanos }
    }

    /// Returns the cluster's time now in Unix seconds; 0 if it is unknown.
    pub fn now_s(&self, monotonic_nanos: u64) -> u64 {
        let elapsed_s = monotonic_nanos.saturating_sub(self.received_nanos) / NANOS_PER_S;
        if self.unix_s == 0 { 0 } else { self.unix_s.saturating_add(elapsed_s) }
    }

    /// Like [`ClusterTime::now_s`]; `None` if it is unknown, or was received long ago.
    pub fn fresh_s(&self, monotonic_nanos: u64) -> Option<u64> {
        let age_s = monotonic_nanos.saturating_sub(self.received_nanos) / NANOS_PER_S;
        (self.unix_s > 0 && age_s <= Self::FRESH_S_MAX).then(|| self.now_s(monotonic_nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::USER_KEY_BYTES_MAX;
    use crate::{Region, RegionKind};

    fn request(session: u64, number: u64) -> SessionRequest {
        SessionRequest { session: SessionId(session), number, expires_at_s: 7 }
    }

    /// Keys of which many begin others, ascending.
    fn keys() -> Vec<Bytes> {
        let parts: [&[u8]; 6] = [b"", &[0], &[1], &[0xff], b"a", &[0, 0xff]];
        let pairs = parts.iter().flat_map(|a| parts.map(|b| [*a, b].concat()));
        let mut keys: Vec<Bytes> = pairs.map(Bytes::from).collect();
        let long = |last: u8| Bytes::from([vec![0; USER_KEY_BYTES_MAX - 1], vec![last]].concat());
        keys.extend([long(0), long(1), Bytes::from(vec![b'a'; USER_KEY_BYTES_MAX])]);
        keys.sort();
        keys.dedup();
        keys
    }

    #[test]
    fn a_record_is_in_the_region_of_its_key_and_in_no_other() {
        let keys = keys();
        let bounds = || keys.iter().chain([&keys[0]]);
        for (start, end) in bounds().flat_map(|start| bounds().map(move |end| (start, end))) {
            let range = KeyRange { start: start.clone(), end: end.clone() };
            if range.is_empty() {
                continue;
            }
            let region = Region { kind: RegionKind::Data, range, ..Region::default() };
            let ranges = region.engine_ranges();
            for key in &keys {
                for request in [request(0, 0), request(u64::MAX, u64::MAX)] {
                    let Ok(record) = request.record_key(&ColumnFamily::Lock.engine_key(key)) else {
                        assert!(key.len() > KEY_BYTES_MAX / 2 - SUFFIX_BYTES);
                        continue;
                    };
                    let is_there = ranges.iter().any(|range| range.contains(&record));
                    assert_eq!(
                        is_there,
                        region.range.contains(key),
                        "{key:?} in {:?}",
                        region.range
                    );
                }
            }
        }
    }

    #[test]
    fn the_key_of_a_record_names_all_of_it_and_every_cut_is_refused() {
        for key in keys() {
            let changed = ColumnFamily::Write.engine_key(&key);
            let Ok(record) = request(3, 1 << 40).record_key(&changed) else { continue };
            let decoded = RecordKey::decode(&record).unwrap();
            assert_eq!((decoded.session, decoded.number), (SessionId(3), 1 << 40));
            assert_eq!(decoded.changed_key(), changed);
            assert_eq!(keyspace::user_key(&record), Some(key));
            assert!((0..record.len()).all(|cut| RecordKey::decode(&record[..cut]).is_none()));
            assert_eq!(RecordKey::decode(&[&record[..], &[0]].concat()), None);
        }
        assert!(request(1, 1).record_key(&keyspace::in_space(keyspace::SYSTEM, b"k")).is_err());
        assert!(request(1, 1).record_key(b"").is_err());
    }

    #[test]
    fn an_attempt_is_due_up_to_its_deadline_and_not_long_before() {
        let request = |expires_at_s| SessionRequest { expires_at_s, ..request(1, 1) };
        let now_s = 1_000_000;
        let rows = [
            (now_s - 1, Due::Late),
            (0, Due::Late),
            (now_s, Due::InTime),
            (now_s + LIFE_S_MAX, Due::InTime),
            (now_s + LIFE_S_MAX + 1, Due::TooFar),
            (u64::MAX, Due::TooFar),
        ];
        for (expires_at_s, due) in rows {
            assert_eq!(request(expires_at_s).due(now_s), due, "{expires_at_s}");
        }
    }

    #[test]
    fn the_clusters_time_goes_on_and_is_not_trusted_for_long() {
        let time = ClusterTime::new(1_000, 5 * NANOS_PER_S);
        assert_eq!((time.now_s(5 * NANOS_PER_S), time.now_s(65 * NANOS_PER_S)), (1_000, 1_060));
        let last = (5 + ClusterTime::FRESH_S_MAX) * NANOS_PER_S;
        assert_eq!(time.fresh_s(last), Some(1_600));
        assert_eq!(time.fresh_s(last + NANOS_PER_S), None);
        assert_eq!(ClusterTime::default().fresh_s(0), None);
        assert_eq!(ClusterTime::default().now_s(last), 0);
    }
}
