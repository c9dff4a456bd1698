//! Token of a watch: where it continues.
//!
//! ```text
//! token    := "watch1." hexadecimal of: body crc32c:u32 (little-endian, of the body)
//! body     := cluster:u64 (little-endian) families:u8 positions:varint position*
//! families := number of the column family, 255: all
//! position := start:bytes end:bytes region version index
//!                                           (numbers are varints, bytes length-prefixed)
//! ```

use super::mark::tiles;
use bytes::Bytes;
use std::fmt;
use std::str::FromStr;
use stele_types::checksum::crc32c;
use stele_types::{ClusterId, ColumnFamily, Error, KeyRange, RegionId, Result, varint};

/// Beginning of each token; the number is that of its format.
const PREFIX: &str = "watch1.";
/// Beginning of the tokens of all formats.
const ANY_PREFIX: &str = "watch";
/// Most bytes of a token's text: above that of 130,000 regions with keys of 60 bytes.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// Column families of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// All of them.
    All,
    /// One of them.
    One(ColumnFamily),
}

/// Byte of all families in a token.
const ALL_FAMILIES: u8 = 255;

impl Families {
    /// Returns whether writes of a family are returned.
    pub(super) fn contain(self, family: ColumnFamily) -> bool {
        self == Self::All || self == Self::One(family)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            ALL_FAMILIES => Some(Self::All),
            byte => ColumnFamily::ALL.get(usize::from(byte)).copied().map(Self::One),
        }
    }

    fn byte(self) -> u8 {
        let Self::One(one) = self else { return ALL_FAMILIES };
        let number = ColumnFamily::ALL.iter().position(|family| *family == one);
        number.unwrap_or_default() as u8
    }
}

/// Position of the keys of one region's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Watched keys that are read from the log.
    pub range: KeyRange,
    /// Region with the log.
    pub region: RegionId,
    /// Version of the region's epoch before the entry at `index`.
    pub version: u64,
    /// First entry of which not all writes were returned.
    pub index: u64,
}

/// Where a watch continues: a text for users, of which [`str::parse`] makes the token again.
///
/// Invariant: the positions tile one range exactly: no key is forgotten.
/// Tests: `random_histories_lose_and_repeat_nothing`, `a_damaged_or_unknown_token_is_refused`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    cluster: ClusterId,
    families: Families,
    range: KeyRange,
    positions: Vec<Position>,
}

impl Token {
    /// Makes a token of positions, ascending. Fails with `Invalid` unless they tile a range, each in a log
    /// of its own.
    pub(super) fn new(
        cluster: ClusterId,
        families: Families,
        positions: Vec<Position>,
    ) -> Result<Self> {
        let (Some(first), Some(last)) = (positions.first(), positions.last()) else {
            return Err(damaged("it has no positions"));
        };
        let range = KeyRange { start: first.range.start.clone(), end: last.range.end.clone() };
        if !tiles(&range, positions.iter().map(|position| &position.range)) {
            return Err(damaged("its positions leave keys out"));
        }
        let mut regions: Vec<RegionId> = positions.iter().map(|position| position.region).collect();
        regions.sort_unstable();
        if regions.windows(2).any(|pair| matches!(pair, [one, other] if one == other)) {
            return Err(damaged("it has two positions in one log"));
        }
        Ok(Self { cluster, families, range, positions })
    }

    /// Returns the cluster of the watch.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Returns the column families of the watch.
    pub fn families(&self) -> Families {
        self.families
    }

    /// Returns the keys of the watch.
    pub fn range(&self) -> &KeyRange {
        &self.range
    }

    pub(super) fn positions(&self) -> &[Position] {
        &self.positions
    }

    fn decode(text: &str) -> Result<Self> {
        let bytes = bytes_of(text).ok_or_else(|| damaged("it is not hexadecimal"))?;
        let (body, sum) =
            bytes.split_last_chunk::<4>().ok_or_else(|| damaged("it is too short"))?;
        if crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(damaged("its checksum differs"));
        }
        let mut rest = body;
        let token = Self::take(&mut rest).filter(|_| rest.is_empty());
        let (cluster, families, positions) =
            token.ok_or_else(|| damaged("it does not end well"))?;
        Self::new(cluster, families, positions)
    }

    fn take(rest: &mut &[u8]) -> Option<(ClusterId, Families, Vec<Position>)> {
        let (cluster, tail) = rest.split_first_chunk::<8>()?;
        let (families, tail) = tail.split_first()?;
        *rest = tail;
        let families = Families::from_byte(*families)?;
        let count = varint::take(rest)?;
        let mut positions = Vec::new();
        // Each takes bytes, so that the count cannot make this long.
        for _ in 0..count {
            let start = Bytes::copy_from_slice(varint::take_bytes(rest)?);
            let end = Bytes::copy_from_slice(varint::take_bytes(rest)?);
            let region = RegionId(varint::take(rest)?);
            let (version, index) = (varint::take(rest)?, varint::take(rest)?);
            positions.push(Position { range: KeyRange { start, end }, region, version, index });
        }
        Some((ClusterId(u64::from_le_bytes(*cluster)), families, positions))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut body = self.cluster.0.to_le_bytes().to_vec();
        body.push(self.families.byte());
        varint::put(&mut body, self.positions.len() as u64);
        for Position { range, region, version, index } in &self.positions {
            varint::put_bytes(&mut body, &range.start);
            varint::put_bytes(&mut body, &range.end);
            [region.0, *version, *index].iter().for_each(|number| varint::put(&mut body, *number));
        }
        let sum = crc32c(&body).to_le_bytes();
        f.write_str(PREFIX)?;
        body.iter().chain(&sum).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Token {
    type Err = Error;

    /// Fails with `Invalid` for a text that is damaged, of another format or not a token.
    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.len() > TEXT_BYTES_MAX {
            return Err(damaged("it is too long"));
        }
        match text.strip_prefix(PREFIX) {
            Some(text) => Self::decode(text),
            None if text.starts_with(ANY_PREFIX) => Err(Error::invalid(
                "the token of the watch is of another version: use the version that made it",
            )),
            None => Err(damaged("it is not the text of a token")),
        }
    }
}

fn damaged(detail: &str) -> Error {
    Error::invalid(format!("the token of the watch is damaged: {detail}; use an earlier one"))
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(start: &'static [u8], end: &'static [u8], region: u64) -> Position {
        let range = KeyRange::new(start, end);
        Position { range, region: RegionId(region), version: 300, index: u64::MAX }
    }

    fn token() -> Token {
        let positions = vec![
            position(b"", b"\x00\xff", 9),
            position(b"\x00\xff", b"m", 4),
            position(b"m", b"", 5),
        ];
        Token::new(ClusterId(u64::MAX - 1), Families::One(ColumnFamily::Lock), positions).unwrap()
    }

    #[test]
    fn a_token_survives_its_text() {
        let token = token();
        let text = token.to_string();
        assert!(text.starts_with("watch1.") && text.is_ascii(), "{text}");
        assert_eq!(format!(" {text}\n").parse::<Token>().unwrap(), token);
        assert_eq!(token.range(), &KeyRange::all());
        let all = Token { families: Families::All, ..token };
        assert_eq!(all.to_string().parse::<Token>().unwrap(), all);
    }

    #[test]
    fn a_damaged_or_unknown_token_is_refused() {
        let text = token().to_string();
        let refused = |text: &str| match text.parse::<Token>() {
            Err(Error::Invalid(reason)) => reason,
            other => panic!("{text}: {other:?}"),
        };
        for end in 0..text.len() {
            refused(&text[..end]);
        }
        for at in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'7' { b'6' } else { b'7' };
            refused(std::str::from_utf8(&other).unwrap());
        }
        assert!(refused("").contains("not the text of a token"));
        assert!(refused("watch2.00").contains("another version"));
        assert!(refused("watch1.é").contains("damaged"));
        let holed = vec![position(b"", b"a", 1), position(b"b", b"", 2)];
        let made = |positions| Token::new(ClusterId(1), Families::All, positions);
        assert!(made(holed).unwrap_err().to_string().contains("leave keys out"));
        assert!(made(Vec::new()).is_err());
        let twice = vec![position(b"", b"a", 1), position(b"a", b"", 1)];
        assert!(made(twice).unwrap_err().to_string().contains("one log"));
    }
}
