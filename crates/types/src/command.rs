//! The command: the operations of one Raft entry. It is encoded once, where the request arrives.
//! The same bytes are proposed, replicated and logged. A value's offset in them is known after
//! encoding or after one walk (XLL section 3: targeted reads). Values computed from the value
//! before them have one definition for clusters and for single stores.
//!
//! ```text
//! command   := version:u8 (1) op*
//! op        := flags:u8 key_len:varint key tail
//! flags     := kind (bits 0-1: 0 put, 1 delete, 2 delete range) | has_expiry (bit 2)
//! put tail  := value_len:varint value_crc:u32le [expires_at_s:varint] value
//! range tail:= end_len:varint end        (an empty end: no upper bound)
//! ```

use crate::size::{
    APPENDED_VALUE_BYTES_MAX, COMMAND_BYTES_MAX, KEY_BYTES_MAX, USER_KEY_BYTES_MAX,
    VALUE_BYTES_MAX, check_value_bytes,
};
use crate::{Error, Locator, Lsn, Result, checksum, varint};
use bytes::Bytes;

const VERSION: u8 = 1;
const KIND_PUT: u8 = 0;
const KIND_DELETE: u8 = 1;
const KIND_DELETE_RANGE: u8 = 2;
const KIND_MASK: u8 = 0b11;
const HAS_EXPIRY: u8 = 0b100;

/// One operation of a command, borrowed from its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Sets a key.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// CRC-32C of the value, computed where the request arrived.
        value_crc: u32,
        /// Bytes from the start of the command to the value.
        value_offset: u32,
        /// Expiry in Unix seconds; 0 disables it.
        expires_at_s: u64,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Removes every key in [start, end); an empty end means no upper bound.
    DeleteRange {
        /// First key removed.
        start: &'a [u8],
        /// First key kept.
        end: &'a [u8],
    },
}

impl Op<'_> {
    /// Returns the value's locator, given the position of the command's first byte. `None` for
    /// deletes.
    pub fn locator(&self, payload: Lsn) -> Option<Locator> {
        match self {
            Self::Put { value, value_crc, value_offset, .. } => Some(Locator {
                file: payload.file,
                offset: payload.offset + value_offset,
                length: value.len() as u32,
                crc: *value_crc,
            }),
            _ => None,
        }
    }
}

/// Builder of a command: its operations take effect together.
#[derive(Clone, Debug)]
pub struct CommandBuilder {
    bytes: Vec<u8>,
    ops: usize,
}

impl Default for CommandBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl CommandBuilder {
    /// Creates an empty command.
    pub fn new() -> Self {
        Self { bytes: vec![VERSION], ops: 0 }
    }

    /// Creates an empty command with a capacity of `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut buffer = Vec::with_capacity(bytes + 1);
        buffer.push(VERSION);
        Self { bytes: buffer, ops: 0 }
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.ops
    }

    /// Whether the command has no operations.
    pub fn is_empty(&self) -> bool {
        self.ops == 0
    }

    /// Returns the encoded size in bytes so far.
    pub fn encoded_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a put; `expires_at_s` is in Unix seconds, 0 disables expiry.
    /// Fails with [`Error::Invalid`], adding nothing, when a limit is exceeded.
    pub fn put(&mut self, key: &[u8], value: &[u8], expires_at_s: u64) -> Result<&mut Self> {
        check_pair(key, value)?;
        self.put_with_crc(key, value, checksum::crc32c(value), expires_at_s)
    }

    /// [`CommandBuilder::put`] with a known checksum, so that a lock around this call is held for a
    /// copy only.
    pub fn put_with_crc(
        &mut self,
        key: &[u8],
        value: &[u8],
        value_crc: u32,
        expires_at_s: u64,
    ) -> Result<&mut Self> {
        check_pair(key, value)?;
        self.check_room(key.len() + value.len())?;
        let flags = if expires_at_s == 0 { KIND_PUT } else { KIND_PUT | HAS_EXPIRY };
        self.head(flags, key);
        varint::put(&mut self.bytes, value.len() as u64);
        self.bytes.extend_from_slice(&value_crc.to_le_bytes());
        if expires_at_s != 0 {
            varint::put(&mut self.bytes, expires_at_s);
        }
        self.bytes.extend_from_slice(value);
        Ok(self)
    }

    /// Adds a delete. Fails with [`Error::Invalid`], adding nothing, when a limit is exceeded.
    pub fn delete(&mut self, key: &[u8]) -> Result<&mut Self> {
        check_key(key)?;
        self.check_room(key.len())?;
        self.head(KIND_DELETE, key);
        Ok(self)
    }

    /// Adds a delete of [start, end); an empty `end` means no upper bound.
    /// Fails with [`Error::Invalid`], adding nothing, when a limit is exceeded.
    pub fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<&mut Self> {
        check_key(start)?;
        check_key(end)?;
        self.check_room(start.len() + end.len())?;
        self.head(KIND_DELETE_RANGE, start);
        varint::put_bytes(&mut self.bytes, end);
        Ok(self)
    }

    /// Adds the operations of another builder, unchanged.
    /// Fails with [`Error::Invalid`], adding nothing, when a limit is exceeded.
    pub fn extend(&mut self, other: &Self) -> Result<&mut Self> {
        self.check_room(other.bytes.len())?;
        self.bytes.extend_from_slice(other.bytes.get(1..).unwrap_or_default());
        self.ops += other.ops;
        Ok(self)
    }

    /// Returns the operations so far, in order.
    pub fn ops(&self) -> impl Iterator<Item = Op<'_>> {
        let total = self.bytes.len();
        let mut rest = self.bytes.get(1..).unwrap_or_default();
        std::iter::from_fn(move || take_op(&mut rest, total))
    }

    /// Returns the encoded command.
    pub fn build(self) -> Command {
        Command { bytes: Bytes::from(self.bytes) }
    }

    fn head(&mut self, flags: u8, key: &[u8]) {
        self.bytes.push(flags);
        varint::put_bytes(&mut self.bytes, key);
        self.ops += 1;
    }

    fn check_room(&self, more: usize) -> Result<()> {
        const OP_HEAD_BYTES_MAX: usize = 40;
        let total = self.bytes.len() + more + OP_HEAD_BYTES_MAX;
        if total <= COMMAND_BYTES_MAX {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "atomic batch of {total} bytes; the limit is {COMMAND_BYTES_MAX}: split it"
        )))
    }
}

/// Fails with [`Error::Invalid`] when the key or the value exceeds its maximum length.
pub fn check_pair(key: &[u8], value: &[u8]) -> Result<()> {
    check_key(key)?;
    check_value_bytes(value.len() as u64)
}

/// Fails with [`Error::Invalid`] when `key` exceeds the maximum of an engine key.
pub fn check_key(key: &[u8]) -> Result<()> {
    check_key_bytes(key, KEY_BYTES_MAX)
}

/// Fails with [`Error::Invalid`] when `key` exceeds the maximum of a user key.
pub fn check_user_key(key: &[u8]) -> Result<()> {
    check_key_bytes(key, USER_KEY_BYTES_MAX)
}

/// [`check_pair`] for a user key.
pub fn check_user_pair(key: &[u8], value: &[u8]) -> Result<()> {
    check_user_key(key)?;
    check_pair(key, value)
}

fn check_key_bytes(key: &[u8], bytes_max: usize) -> Result<()> {
    if key.len() <= bytes_max {
        return Ok(());
    }
    Err(Error::invalid(format!("key of {} bytes; the limit is {bytes_max}", key.len())))
}

/// An encoded, well-formed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    bytes: Bytes,
}

impl Command {
    /// Parses encoded bytes. Fails with [`Error::Invalid`] unless they are one well-formed command
    /// within the limits. Does not verify value checksums: each reader of a value does.
    pub fn parse(bytes: Bytes) -> Result<Self> {
        let bad = || Error::invalid("malformed command bytes");
        let (&version, mut rest) = bytes.split_first().ok_or_else(bad)?;
        if version != VERSION {
            return Err(Error::invalid(format!("command version {version}; known is {VERSION}")));
        }
        while !rest.is_empty() {
            let op = take_op(&mut rest, bytes.len()).ok_or_else(bad)?;
            let (key, value_bytes) = match op {
                Op::Put { key, value, .. } => (key, value.len()),
                Op::Delete { key } => (key, 0),
                Op::DeleteRange { start, end } => {
                    check_key(end)?;
                    (start, 0)
                }
            };
            check_key(key)?;
            if value_bytes > VALUE_BYTES_MAX {
                return Err(bad());
            }
        }
        Ok(Self { bytes })
    }

    /// Returns the encoded bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the operations of encoded bytes, borrowed; `None` unless all of them are well
    /// formed. Does not check limits: the bytes come from a log that checked them.
    pub fn ops_of(bytes: &[u8]) -> Option<impl Iterator<Item = Op<'_>>> {
        let (&version, ops) = bytes.split_first()?;
        let mut rest = ops;
        while version == VERSION && !rest.is_empty() {
            take_op(&mut rest, bytes.len())?;
        }
        let mut rest = ops;
        let total = bytes.len();
        (version == VERSION).then(|| std::iter::from_fn(move || take_op(&mut rest, total)))
    }

    /// Passes the operations of encoded bytes to `f` in one walk. Returns `false` at bytes that are
    /// not well formed, after passing the operations before them.
    pub fn each_op_of<'a>(bytes: &'a [u8], mut f: impl FnMut(Op<'a>)) -> bool {
        let Some((&VERSION, mut rest)) = bytes.split_first() else { return false };
        while !rest.is_empty() {
            let Some(op) = take_op(&mut rest, bytes.len()) else { return false };
            f(op);
        }
        true
    }

    /// Returns the operations in order.
    pub fn ops(&self) -> impl Iterator<Item = Op<'_>> {
        let total = self.bytes.len();
        let mut rest = self.bytes.get(1..).unwrap_or_default();
        std::iter::from_fn(move || take_op(&mut rest, total))
    }
}

fn take_op<'a>(rest: &mut &'a [u8], total: usize) -> Option<Op<'a>> {
    let (&flags, tail) = rest.split_first()?;
    let mut at = tail;
    let key = varint::take_bytes(&mut at)?;
    let op = match flags & KIND_MASK {
        KIND_PUT if flags & !(KIND_MASK | HAS_EXPIRY) == 0 => {
            let length = usize::try_from(varint::take(&mut at)?).ok()?;
            let (crc, after) = at.split_first_chunk::<4>()?;
            at = after;
            let expires_at_s = if flags & HAS_EXPIRY == 0 { 0 } else { varint::take(&mut at)? };
            let value_offset = (total - at.len()) as u32;
            let (value, after) = at.split_at_checked(length)?;
            at = after;
            Op::Put { key, value, value_crc: u32::from_le_bytes(*crc), value_offset, expires_at_s }
        }
        KIND_DELETE if flags == KIND_DELETE => Op::Delete { key },
        KIND_DELETE_RANGE if flags == KIND_DELETE_RANGE => {
            Op::DeleteRange { start: key, end: varint::take_bytes(&mut at)? }
        }
        _ => return None,
    };
    *rest = at;
    Some(op)
}

/// Reason why the value of a key does not allow a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The value is not a decimal number of 64 bits with sign.
    #[error("the value of the key is not a decimal number of 64 bits with sign; put one first")]
    NotANumber,
    /// The sum does not fit into 64 bits with sign.
    #[error("the sum does not fit into 64 bits with sign; the number is unchanged")]
    Overflow,
    /// The value would be too long.
    #[error("value of {bytes} bytes; an append makes at most {APPENDED_VALUE_BYTES_MAX}")]
    TooLong {
        /// Its length in bytes.
        bytes: u64,
    },
}

impl Unfit {
    /// Returns the error of the request: it can never succeed on this value.
    pub fn error(self) -> Error {
        Error::Invalid(self.to_string())
    }
}

/// Returns the sum of a value and `by`; no value counts as 0.
pub fn incremented(before: Option<&[u8]>, by: i64) -> Result<i64, Unfit> {
    let number = match before {
        Some(value) => number(value).ok_or(Unfit::NotANumber)?,
        None => 0,
    };
    number.checked_add(by).ok_or(Unfit::Overflow)
}

/// Parses a number as an increment writes it: without a plus, blanks or leading zeros.
fn number(value: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == value).then_some(number)
}

/// Returns a value with `bytes` at its end; no value counts as empty.
pub fn appended(before: Option<&[u8]>, bytes: &[u8]) -> Result<Vec<u8>, Unfit> {
    let before = before.unwrap_or_default();
    let length = before.len() + bytes.len();
    match length <= APPENDED_VALUE_BYTES_MAX {
        true => Ok([before, bytes].concat()),
        false => Err(Unfit::TooLong { bytes: length as u64 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileId;

    fn sample() -> Command {
        let mut builder = CommandBuilder::new();
        builder.put(b"a", b"one", 0).unwrap();
        builder.put(b"", b"", 77).unwrap();
        builder.delete(b"b").unwrap();
        builder.delete_range(b"c", b"").unwrap();
        builder.build()
    }

    #[test]
    fn operations_survive_the_round_trip() {
        let command = Command::parse(sample().bytes().clone()).unwrap();
        let ops: Vec<Op<'_>> = command.ops().collect();
        assert!(matches!(ops[0], Op::Put { key: b"a", value: b"one", expires_at_s: 0, .. }));
        assert!(matches!(ops[1], Op::Put { key: b"", value: b"", expires_at_s: 77, .. }));
        assert_eq!(ops[2], Op::Delete { key: b"b" });
        assert_eq!(ops[3], Op::DeleteRange { start: b"c", end: b"" });
        assert_eq!(ops.len(), 4);
    }

    #[test]
    fn a_locator_points_at_the_value_inside_the_command() {
        let command = sample();
        let op = command.ops().next().unwrap();
        let locator = op.locator(Lsn::new(FileId(9), 1000)).unwrap();
        let at = (locator.offset - 1000) as usize;
        let value = &command.bytes()[at..at + locator.length as usize];
        assert_eq!((value, locator.file), (&b"one"[..], FileId(9)));
        locator.check(value).unwrap();
        assert!(locator.check(b"onf").is_err());
    }

    #[test]
    fn every_cut_of_a_command_is_refused_or_shorter() {
        let whole = sample();
        for cut in 0..whole.bytes().len() {
            let bytes = whole.bytes().slice(..cut);
            let mut given = 0;
            let well_formed = Command::each_op_of(&bytes, |_| given += 1);
            assert!(given < 4);
            let parsed = Command::parse(bytes.clone());
            assert_eq!(parsed.is_ok(), well_formed);
            if let Ok(command) = parsed {
                assert_eq!(command.ops().count(), given);
            }
        }
    }

    #[test]
    fn limits_are_checked_and_add_nothing() {
        let mut builder = CommandBuilder::new();
        assert!(builder.put(&[0; KEY_BYTES_MAX + 1], b"", 0).is_err());
        assert!(builder.put(b"k", &vec![0; VALUE_BYTES_MAX + 1], 0).is_err());
        assert!(builder.is_empty());
        builder.put(&[0; KEY_BYTES_MAX], b"", 0).unwrap();
    }

    #[test]
    fn an_increment_takes_decimal_numbers_of_64_bits() {
        // Value before, number to add, sum.
        let rows = [
            (None, 5, Ok(5)),
            (None, i64::MIN, Ok(i64::MIN)),
            (Some("0"), 0, Ok(0)),
            (Some("41"), 1, Ok(42)),
            (Some("1"), -3, Ok(-2)),
            (Some("-9223372036854775808"), 1, Ok(i64::MIN + 1)),
            (Some("9223372036854775807"), 1, Err(Unfit::Overflow)),
            (Some("-9223372036854775808"), -1, Err(Unfit::Overflow)),
            (Some("9223372036854775808"), 0, Err(Unfit::NotANumber)),
            (Some(""), 1, Err(Unfit::NotANumber)),
            (Some("+1"), 1, Err(Unfit::NotANumber)),
            (Some("01"), 1, Err(Unfit::NotANumber)),
            (Some("-0"), 1, Err(Unfit::NotANumber)),
            (Some(" 1"), 1, Err(Unfit::NotANumber)),
            (Some("1.0"), 1, Err(Unfit::NotANumber)),
            (Some("\u{661}"), 1, Err(Unfit::NotANumber)),
        ];
        for (before, by, sum) in rows {
            assert_eq!(incremented(before.map(str::as_bytes), by), sum, "{before:?} and {by}");
        }
        assert_eq!(incremented(Some(&[0xff]), 1), Err(Unfit::NotANumber));
    }

    #[test]
    fn an_append_stops_at_the_limit() {
        let bytes_max = APPENDED_VALUE_BYTES_MAX;
        assert_eq!(appended(None, b"ab").unwrap(), b"ab");
        assert_eq!(appended(Some(b"ab"), b"c").unwrap(), b"abc");
        let nearly = vec![7; bytes_max - 1];
        assert_eq!(appended(Some(&nearly), &[7]).unwrap(), vec![7; bytes_max]);
        let too_long = Err(Unfit::TooLong { bytes: bytes_max as u64 + 1 });
        assert_eq!(appended(Some(&nearly), &[7, 7]), too_long);
        assert_eq!(appended(None, &vec![7; bytes_max + 1]), too_long);
    }
}
