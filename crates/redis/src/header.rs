//! Headers: the value of the pair that stands for a name.
//!
//! ```text
//! header := version:u8 (1) kind:u8 (0 string, 1 hash, 2 set) stamp:u64be change:u64be
//!           count:varint expires_at_ms:varint (0: no expiry) value
//! ```
//!
//! The value of a string follows its header; hashes and sets have one pair for each member, under the
//! header's stamp. Each write of a value or a member draws a new change number.
//!
//! Invariant: members under a stamp that no live header has do not exist. So SET over a hash, DEL and
//! EXPIRE change one pair. Test: `a_hash_that_was_replaced_has_none_of_its_members`.

use bytes::Bytes;
use stele_types::varint;

/// Bytes of a header without the value of a string, at most. A longer pair is that of a string.
pub(crate) const HEADER_BYTES_MAX: usize = 2 + 16 + 2 * varint::VARINT_BYTES_MAX;

const VERSION: u8 = 1;
const STRING: u8 = 0;
const HASH: u8 = 1;
const SET: u8 = 2;

/// Type of a name's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes.
    String,
    /// Fields with values.
    Hash,
    /// Members without values.
    Set,
}

impl Kind {
    /// Returns the type that TYPE answers with this name, in any case.
    pub fn named(name: &[u8]) -> Option<Self> {
        let all = [Self::String, Self::Hash, Self::Set];
        all.into_iter().find(|kind| name.eq_ignore_ascii_case(kind.name().as_bytes()))
    }

    /// Returns the name that TYPE answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Hash => "hash",
            Self::Set => "set",
        }
    }
}

/// What a header states about its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of the value.
    pub kind: Kind,
    /// Number under which members are stored; new with each new value.
    pub stamp: u64,
    /// Number of the last change.
    pub change: u64,
    /// Number of members; 0 for strings.
    pub count: u64,
    /// Expiry in Unix milliseconds; 0 disables it.
    pub expires_at_ms: u64,
}

/// Reasons for which bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderDamage {
    /// A later build wrote it.
    #[error("header of version {0}; known is {known}: upgrade this node", known = VERSION)]
    UnknownVersion(u8),
    /// A type that this build does not know.
    #[error("header of unknown type {0}: upgrade this node")]
    UnknownKind(u8),
    /// Bytes that end too early.
    #[error("header of {0} bytes is cut short: the pair is damaged")]
    Short(usize),
}

impl Header {
    /// Returns the value of the header's pair; `value` is that of a string.
    pub fn encode(&self, value: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(HEADER_BYTES_MAX + value.len());
        out.push(VERSION);
        out.push(match self.kind {
            Kind::String => STRING,
            Kind::Hash => HASH,
            Kind::Set => SET,
        });
        out.extend_from_slice(&self.stamp.to_be_bytes());
        out.extend_from_slice(&self.change.to_be_bytes());
        varint::put(&mut out, self.count);
        varint::put(&mut out, self.expires_at_ms);
        out.extend_from_slice(value);
        Bytes::from(out)
    }

    /// Decodes the value of a header's pair into the header and the value of a string.
    pub fn decode(bytes: &Bytes) -> Result<(Self, Bytes), HeaderDamage> {
        let short = || HeaderDamage::Short(bytes.len());
        let (&version, rest) = bytes.split_first().ok_or_else(short)?;
        if version != VERSION {
            return Err(HeaderDamage::UnknownVersion(version));
        }
        let (&kind, rest) = rest.split_first().ok_or_else(short)?;
        let kind = match kind {
            STRING => Kind::String,
            HASH => Kind::Hash,
            SET => Kind::Set,
            kind => return Err(HeaderDamage::UnknownKind(kind)),
        };
        let (stamp, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
        let (change, mut rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
        let count = varint::take(&mut rest).ok_or_else(short)?;
        let expires_at_ms = varint::take(&mut rest).ok_or_else(short)?;
        let header = Self {
            kind,
            stamp: u64::from_be_bytes(*stamp),
            change: u64::from_be_bytes(*change),
            count,
            expires_at_ms,
        };
        Ok((header, bytes.slice_ref(rest)))
    }

    /// Returns the stamps of which the members exist while the name has this header. The sweeper keeps them.
    ///
    /// Invariant: a stamp that is missing here never returns, so its members are never needed again. What writes
    /// members before the header that will have their stamp has to name this stamp here first.
    /// Tests: `a_stamp_that_no_header_has_never_returns`,
    /// `the_sweeper_keeps_the_members_of_every_stamp_of_a_header`.
    pub fn stamps(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.stamp)
    }

    /// Returns the header with an expiry, if it has one, so many seconds later.
    pub(crate) fn expiring_later(self, by_s: u64) -> Self {
        let later_ms = self.expires_at_ms.saturating_add(by_s.saturating_mul(1000));
        let expires_at_ms = if self.expires_at_ms == 0 { 0 } else { later_ms };
        Self { expires_at_ms, ..self }
    }

    /// Returns the expiry of the engine's pair in Unix seconds, rounded up; 0 disables it.
    pub fn expires_at_s(&self) -> u64 {
        self.expires_at_ms.div_ceil(1000)
    }

    /// Whether the name has expired at a time in Unix milliseconds, and so counts as absent.
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms != 0 && self.expires_at_ms <= now_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: Kind) -> Header {
        Header { kind, stamp: 7, change: u64::MAX, count: 300, expires_at_ms: 1 << 41 }
    }

    #[test]
    fn a_header_survives_the_round_trip_and_every_cut_is_refused() {
        for kind in [Kind::String, Kind::Hash, Kind::Set] {
            let whole = header(kind).encode(b"");
            assert_eq!(Header::decode(&whole), Ok((header(kind), Bytes::new())));
            for cut in 0..whole.len() {
                assert_eq!(Header::decode(&whole.slice(..cut)), Err(HeaderDamage::Short(cut)));
            }
        }
        let (_, value) = Header::decode(&header(Kind::String).encode(b"value")).unwrap();
        assert_eq!(value, "value");
    }

    #[test]
    fn a_header_is_never_longer_than_its_limit() {
        let (count, expires_at_ms) = (u64::MAX, u64::MAX);
        let longest = Header { count, expires_at_ms, ..header(Kind::Set) }.encode(b"");
        assert_eq!(longest.len(), HEADER_BYTES_MAX);
        assert_eq!(Kind::named(b"Hash"), Some(Kind::Hash));
        assert_eq!(Kind::named(b"zset"), None);
    }

    #[test]
    fn a_header_of_a_later_build_is_refused_by_name() {
        let with = |at: usize, byte| {
            let mut bytes = header(Kind::Hash).encode(b"").to_vec();
            bytes[at] = byte;
            Header::decode(&bytes.into()).unwrap_err()
        };
        assert_eq!(with(0, 2), HeaderDamage::UnknownVersion(2));
        assert_eq!(with(1, 3), HeaderDamage::UnknownKind(3));
        assert_eq!(with(0, 2).to_string(), "header of version 2; known is 1: upgrade this node");
    }

    #[test]
    fn the_engine_drops_no_pair_before_its_millisecond() {
        // Milliseconds, the engine's seconds, and whether it has expired at 1,500 ms.
        let rows = [
            (0, 0, false),
            (1, 1, true),
            (1_000, 1, true),
            (1_001, 2, true),
            (1_500, 2, true),
            (1_501, 2, false),
            (u64::MAX, u64::MAX / 1000 + 1, false),
        ];
        for (expires_at_ms, seconds, has_expired) in rows {
            let header = Header { expires_at_ms, ..header(Kind::String) };
            assert_eq!(header.expires_at_s(), seconds);
            assert_eq!(header.has_expired(1_500), has_expired, "{expires_at_ms}");
        }
    }
}
