//! Reader of RDB files, as Redis up to 8.4 and Valkey write them.
//!
//! A file is `REDIS` and four digits, or `VALKEY` and three, then records, then the end and, since version 5, a
//! checksum of all bytes before it (0 for none). A record is a byte of its kind and its content: a value with its
//! name, the expiry of the next value, the number of the database of the next ones, or facts of the server. The
//! numbers of the kinds and the layouts were read from the documents of both projects and checked with files of
//! Redis 6.2 to 8.2 and Valkey 9.1.
//!
//! Strings, hashes and sets are passed to a [`RdbSink`] one member after the other. All else is skipped, and
//! named. Memory: one string, or one packed collection.

mod input;
mod packed;
mod skip;

pub(super) use input::RdbString;

use bytes::Bytes;
use input::RdbInput;
use packed::{Elements, Packed};
use std::io::{self, Read};
use stele_types::Error;

const MAGIC_REDIS: &[u8; 5] = b"REDIS";
const MAGIC_VALKEY: &[u8; 6] = b"VALKEY";
/// Newest versions that are read.
const REDIS_VERSION_MAX: u32 = 12;
const VALKEY_VERSION_MAX: u32 = 80;
/// Version since which a file ends in a checksum.
const CHECKSUM_VERSION: u32 = 5;

/// Reason for which a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum RdbError {
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Its bytes are not those that a server wrote.
    #[error("it is damaged at byte {offset}: {detail}; take another copy of it")]
    Damaged { offset: u64, detail: String },
    /// It is newer than this reader, or has what cannot be skipped.
    #[error(
        "byte {offset} has {what}, which is not known here; import from the running server: --from redis://HOST"
    )]
    Unknown { offset: u64, what: String },
    /// The sink does not continue.
    #[error(transparent)]
    Stopped(#[from] Error),
}

/// Type of a value that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RdbKind {
    Text,
    Hash,
    Set,
}

/// Name of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RdbName {
    pub database: u64,
    pub name: Bytes,
    /// Unix milliseconds.
    pub expires_at_ms: Option<u64>,
}

/// Receiver of what a file has. It ignores what it does not implement.
pub(super) trait RdbSink {
    /// A value begins.
    fn begin(&mut self, _name: &RdbName, _kind: RdbKind) -> Result<(), Error> {
        Ok(())
    }

    /// The value of a string, a member of a set, or a field of a hash with its value and, in Unix milliseconds,
    /// the expiry of the field.
    fn member(
        &mut self,
        _member: RdbString,
        _value: Option<RdbString>,
        _expires_at_ms: Option<u64>,
    ) -> Result<(), Error> {
        Ok(())
    }

    /// Members of the value that begun have more bytes together than can be held. They were skipped.
    fn left_out(&mut self, _bytes: u64) -> Result<(), Error> {
        Ok(())
    }

    /// The value is complete, except for what was left out.
    fn end(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// A value of another type was skipped.
    fn other(&mut self, _name: &RdbName, _kind: &str) -> Result<(), Error> {
        Ok(())
    }

    /// A record without a name was skipped.
    fn other_record(&mut self, _kind: &str) -> Result<(), Error> {
        Ok(())
    }
}

/// Whether a file with these first bytes is an RDB file.
pub(super) fn is_rdb(begin: &[u8]) -> bool {
    let is_digit = |at: usize| begin.get(at).is_some_and(u8::is_ascii_digit);
    begin.starts_with(MAGIC_REDIS) && is_digit(5) || begin.starts_with(MAGIC_VALKEY) && is_digit(6)
}

/// Reads a whole file and checks its checksum.
pub(super) fn read(from: impl Read, sink: &mut dyn RdbSink) -> Result<(), RdbError> {
    let mut input = RdbInput::new(from);
    let (server, version) = version(&mut input)?;
    let mut reader = Reader { input, server, sink, database: 0, expires_at_ms: None };
    while reader.record()? {}
    if server == Server::Valkey || version >= CHECKSUM_VERSION {
        let computed = reader.input.checksum();
        let stored = u64::from_le_bytes(reader.input.array()?);
        // bug cli.rdb_checksum_ignored: never
        if stored != 0 && stored != computed {
            return Err(reader.input.damaged("its checksum is another one"));
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Redis,
    Valkey,
}

fn version(input: &mut RdbInput<impl Read>) -> Result<(Server, u32), RdbError> {
    let not_rdb = |input: &RdbInput<_>| input.damaged("it does not begin as an RDB file");
    let begin = input.array::<9>()?;
    let (server, digits, newest) =
        match (begin.strip_prefix(MAGIC_REDIS), begin.strip_prefix(MAGIC_VALKEY)) {
            (Some(digits), _) => (Server::Redis, digits, REDIS_VERSION_MAX),
            (_, Some(digits)) => (Server::Valkey, digits, VALKEY_VERSION_MAX),
            _ => return Err(not_rdb(input)),
        };
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    let number: u32 = number.ok_or_else(|| not_rdb(input))?;
    match number <= newest {
        true => Ok((server, number)),
        false => {
            let what = format!("version {}", String::from_utf8_lossy(&begin));
            Err(RdbError::Unknown { offset: 0, what })
        }
    }
}

struct Reader<'a, R> {
    input: RdbInput<R>,
    server: Server,
    sink: &'a mut dyn RdbSink,
    database: u64,
    /// Expiry of the next value.
    expires_at_ms: Option<u64>,
}

impl<R: Read> Reader<'_, R> {
    /// Reads a record; returns whether others may follow.
    fn record(&mut self) -> Result<bool, RdbError> {
        match self.input.byte()? {
            0xff => return Ok(false),
            0xfe => self.database = self.input.length()?,
            0xfd => {
                let seconds = u32::from_le_bytes(self.input.array()?);
                self.expires_at_ms = Some(u64::from(seconds) * 1000);
            }
            0xfc => {
                let at_ms = i64::from_le_bytes(self.input.array()?);
                // A time before 1970 has passed.
                self.expires_at_ms = Some(u64::try_from(at_ms).unwrap_or(0));
            }
            // Sizes of the database.
            0xfb => self.lengths(2)?,
            // A fact of the server.
            0xfa => self.strings(2)?,
            // Frequency of use, and idle time.
            0xf9 => self.input.skip(1)?,
            0xf8 => self.lengths(1)?,
            0xf7 => self.module_record()?,
            0xf5 => {
                self.strings(1)?;
                self.sink.other_record("function library")?;
            }
            // Size of a slot of a cluster, and a slot that was being received.
            0xf4 => self.lengths(3)?,
            0xf3 if self.server == Server::Valkey => {
                self.strings(1)?;
                let ranges = self.input.length()?;
                for _ in 0..ranges {
                    self.lengths(2)?;
                }
            }
            kind => self.value(kind)?,
        }
        Ok(true)
    }

    fn lengths(&mut self, count: u64) -> Result<(), RdbError> {
        (0..count).try_for_each(|_| self.input.length().map(drop))
    }

    fn strings(&mut self, count: u64) -> Result<(), RdbError> {
        (0..count).try_for_each(|_| self.input.skip_string())
    }

    fn value(&mut self, kind: u8) -> Result<(), RdbError> {
        let offset = self.input.offset().saturating_sub(1);
        // Above the kinds of values are those of records that are not known.
        if kind >= 0x80 {
            return Err(RdbError::Unknown { offset, what: format!("a record of kind {kind}") });
        }
        let name = RdbName {
            database: self.database,
            name: self.input.short_string("a name")?,
            expires_at_ms: self.expires_at_ms.take(),
        };
        let is_valkey = self.server == Server::Valkey;
        match kind {
            0 => self.whole(&name, RdbKind::Text, |reader| {
                let value = reader.input.string()?;
                Ok(reader.sink.member(value, None, None)?)
            }),
            2 => self.whole(&name, RdbKind::Set, |reader| reader.members(Fields::None)),
            4 => self.whole(&name, RdbKind::Hash, |reader| reader.members(Fields::Plain)),
            9 => self.packed(&name, RdbKind::Hash, Packed::Zipmap, 2),
            11 => self.packed(&name, RdbKind::Set, Packed::Integers, 1),
            13 => self.packed(&name, RdbKind::Hash, Packed::Ziplist, 2),
            16 => self.packed(&name, RdbKind::Hash, Packed::Listpack, 2),
            20 => self.packed(&name, RdbKind::Set, Packed::Listpack, 1),
            22 if is_valkey => {
                self.whole(&name, RdbKind::Hash, |reader| reader.members(Fields::ExpiryLast))
            }
            24 => self.whole(&name, RdbKind::Hash, |reader| {
                let first_ms = u64::from_le_bytes(reader.input.array()?);
                reader.members(Fields::ExpiryFirst { first_ms })
            }),
            25 => {
                self.input.skip(8)?;
                self.packed(&name, RdbKind::Hash, Packed::Listpack, 3)
            }
            kind => {
                let of = self.skip_value(kind, offset)?;
                Ok(self.sink.other(&name, &of)?)
            }
        }
    }

    fn whole(
        &mut self,
        name: &RdbName,
        kind: RdbKind,
        members: impl FnOnce(&mut Self) -> Result<(), RdbError>,
    ) -> Result<(), RdbError> {
        self.sink.begin(name, kind)?;
        members(self)?;
        Ok(self.sink.end()?)
    }

    /// Reads members that are strings of their own.
    fn members(&mut self, fields: Fields) -> Result<(), RdbError> {
        for _ in 0..self.input.length()? {
            let before_ms = match fields {
                Fields::ExpiryFirst { first_ms } => match self.input.length()? {
                    0 => None,
                    // 1 stands for the first of all expiries.
                    after_ms => Some(first_ms.saturating_add(after_ms - 1)),
                },
                _ => None,
            };
            let member = self.input.string()?;
            let value = match fields {
                Fields::None => None,
                _ => Some(self.input.string()?),
            };
            let expires_at_ms = match fields {
                Fields::ExpiryLast => {
                    let at_ms = i64::from_le_bytes(self.input.array()?);
                    // -1 stands for none.
                    u64::try_from(at_ms).ok()
                }
                _ => before_ms,
            };
            self.sink.member(member, value, expires_at_ms)?;
        }
        Ok(())
    }

    /// Reads a packed collection of which a member has `width` elements: itself, its value, and its expiry.
    fn packed(
        &mut self,
        name: &RdbName,
        kind: RdbKind,
        form: Packed,
        width: usize,
    ) -> Result<(), RdbError> {
        self.sink.begin(name, kind)?;
        let bytes = match self.input.string()? {
            RdbString::Held(bytes) => bytes,
            RdbString::TooLong(bytes) => {
                self.sink.left_out(bytes)?;
                return Ok(self.sink.end()?);
            }
        };
        let damaged = || self.input.damaged("a collection before it is damaged");
        let mut elements = Elements::new(form, &bytes).ok_or_else(damaged)?;
        let mut next = || match elements.next() {
            None => Ok(None),
            Some(None) => Err(damaged()),
            Some(Some(element)) => Ok(Some(element)),
        };
        while let Some(member) = next()? {
            let mut part = || next()?.ok_or_else(damaged);
            let value = if width > 1 { Some(part()?) } else { None };
            let expiry = if width > 2 { part()? } else { Bytes::new() };
            // 0 stands for none.
            let at_ms = std::str::from_utf8(&expiry).ok().and_then(|text| text.parse().ok());
            let at_ms = at_ms.filter(|at_ms| *at_ms != 0);
            self.sink.member(RdbString::Held(member), value.map(RdbString::Held), at_ms)?;
        }
        Ok(self.sink.end()?)
    }
}

/// What a member has beside itself.
#[derive(Clone, Copy, Debug)]
enum Fields {
    None,
    /// A value.
    Plain,
    /// A number before it: milliseconds after the first expiry, plus 1; 0 for no expiry. Then a value.
    ExpiryFirst {
        first_ms: u64,
    },
    /// A value, and Unix milliseconds after it; -1 for no expiry.
    ExpiryLast,
}

#[cfg(test)]
mod tests;
