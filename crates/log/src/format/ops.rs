//! The operations of an entry: from its command, or from the digest that a sidecar keeps.
//!
//! ```text
//! digest := op*          op := flags:u8 place key_bytes key tail
//! flags  := kind (bits 0-1: 0 put, 1 delete, 2 delete range) | has_expiry (2) | inline (3)
//! place  := bytes from the payload's start to the value, or for deletes to the operation's end
//! put    := value_bytes crc:u32 [expires_at_s] [value]        range := end_bytes end
//! ```
//! An operation's version is the position named by its place: unique, and in log order.

use super::item::Content;
use super::take;
use crate::ReplayOp;
use bytes::Bytes;
use stele_types::{Command, Locator, Lsn, Op, ValueRef, varint};

const PUT: u8 = 0;
const DELETE: u8 = 1;
const DELETE_RANGE: u8 = 2;
const KIND_MASK: u8 = 0b11;
const HAS_EXPIRY: u8 = 4;
const INLINE: u8 = 8;

pub(crate) type Versioned<'a> = (Lsn, ReplayOp<'a>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct OpDigest<'a> {
    /// See `place` above.
    place: u32,
    pub what: OpKind<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum OpKind<'a> {
    Put {
        key: &'a [u8],
        value_bytes: u32,
        crc: u32,
        expires_at_s: u64,
        /// The value, if it is kept beside the key.
        inline: Option<&'a [u8]>,
    },
    Delete(&'a [u8]),
    /// Start and end.
    DeleteRange(&'a [u8], &'a [u8]),
}

/// Appends a command's digest. Returns `false`, with part of it appended, when the bytes are not a
/// command.
pub(crate) fn put_digest(out: &mut Vec<u8>, payload: &[u8], inline_max: usize) -> bool {
    each_of_payload(payload, inline_max, |op| put_op(out, &op))
}

/// Returns the operations of an entry with its payload at `payload`; `None` for malformed bytes.
pub(crate) fn versioned<'a>(
    content: Content<'a>,
    payload: Lsn,
    inline_max: usize,
) -> Option<Vec<Versioned<'a>>> {
    let mut out = Vec::new();
    let mut within = true;
    let whole = each(content, inline_max, |op| {
        let op = op.versioned(payload);
        within &= op.is_some();
        out.extend(op);
    });
    (whole && within).then_some(out)
}

/// Passes an entry's operations to `f`. Returns `false` for malformed bytes, possibly after some
/// operations.
pub(crate) fn each<'a>(
    content: Content<'a>,
    inline_max: usize,
    mut f: impl FnMut(OpDigest<'a>),
) -> bool {
    match content {
        Content::Payload(payload) => each_of_payload(payload, inline_max, f),
        Content::Digest(mut digest) => {
            while !digest.is_empty() {
                let Some(op) = take_op(&mut digest) else { return false };
                f(op);
            }
            true
        }
        Content::Lost => false,
    }
}

impl<'a> OpDigest<'a> {
    pub(crate) fn versioned(self, payload: Lsn) -> Option<Versioned<'a>> {
        let version = Lsn::new(payload.file, payload.offset.checked_add(self.place)?);
        let op = match self.what {
            OpKind::Put { key, value_bytes, crc, expires_at_s, inline } => {
                let value = match inline {
                    Some(value) => ValueRef::Inline(Bytes::copy_from_slice(value)),
                    None => ValueRef::At(Locator {
                        file: version.file,
                        offset: version.offset,
                        length: value_bytes,
                        crc,
                    }),
                };
                ReplayOp::Put { key, value, expires_at_s }
            }
            OpKind::Delete(key) => ReplayOp::Delete { key },
            OpKind::DeleteRange(start, end) => ReplayOp::DeleteRange { start, end },
        };
        Some((version, op))
    }
}

/// Passes a command's operations with their places to `f`. Returns `false` when the bytes are not a
/// command.
fn each_of_payload<'a>(
    payload: &'a [u8],
    inline_max: usize,
    mut f: impl FnMut(OpDigest<'a>),
) -> bool {
    let bytes = |key: &[u8]| (varint::len(key.len() as u64) + key.len()) as u32;
    let mut end = 1;
    Command::each_op_of(payload, |op| {
        let (place, what) = match op {
            Op::Put { key, value, value_crc, value_offset, expires_at_s } => {
                let inline = (value.len() <= inline_max).then_some(value);
                let value_bytes = value.len() as u32;
                end = value_offset + value_bytes;
                let what = OpKind::Put { key, value_bytes, crc: value_crc, expires_at_s, inline };
                (value_offset, what)
            }
            Op::Delete { key } => {
                end += 1 + bytes(key);
                (end, OpKind::Delete(key))
            }
            Op::DeleteRange { start, end: upto } => {
                end += 1 + bytes(start) + bytes(upto);
                (end, OpKind::DeleteRange(start, upto))
            }
        };
        f(OpDigest { place, what });
    })
}

fn put_op(out: &mut Vec<u8>, op: &OpDigest<'_>) {
    let flags = match op.what {
        OpKind::Put { expires_at_s, inline, .. } => {
            let expiry = if expires_at_s == 0 { 0 } else { HAS_EXPIRY };
            PUT | expiry | if inline.is_some() { INLINE } else { 0 }
        }
        OpKind::Delete(_) => DELETE,
        OpKind::DeleteRange(..) => DELETE_RANGE,
    };
    out.push(flags);
    varint::put(out, u64::from(op.place));
    match op.what {
        OpKind::Put { key, value_bytes, crc, expires_at_s, inline } => {
            varint::put_bytes(out, key);
            varint::put(out, u64::from(value_bytes));
            out.extend_from_slice(&crc.to_le_bytes());
            if expires_at_s != 0 {
                varint::put(out, expires_at_s);
            }
            out.extend_from_slice(inline.unwrap_or_default());
        }
        OpKind::Delete(key) => varint::put_bytes(out, key),
        OpKind::DeleteRange(start, end) => {
            varint::put_bytes(out, start);
            varint::put_bytes(out, end);
        }
    }
}

fn take_op<'a>(digest: &mut &'a [u8]) -> Option<OpDigest<'a>> {
    let flags = take::u8(digest)?;
    let place = u32::try_from(varint::take(digest)?).ok()?;
    let key = varint::take_bytes(digest)?;
    let what = match flags & KIND_MASK {
        PUT => {
            let value_bytes = u32::try_from(varint::take(digest)?).ok()?;
            let crc = take::u32_le(digest)?;
            let expires_at_s = if flags & HAS_EXPIRY == 0 { 0 } else { varint::take(digest)? };
            let inline = if flags & INLINE == 0 {
                None
            } else {
                let (value, rest) = digest.split_at_checked(value_bytes as usize)?;
                *digest = rest;
                Some(value)
            };
            OpKind::Put { key, value_bytes, crc, expires_at_s, inline }
        }
        DELETE => OpKind::Delete(key),
        DELETE_RANGE => OpKind::DeleteRange(key, varint::take_bytes(digest)?),
        _ => return None,
    };
    Some(OpDigest { place, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{CommandBuilder, FileId};

    #[test]
    fn a_digest_gives_the_operations_of_its_command() {
        let mut builder = CommandBuilder::new();
        builder.put(b"a", &[7; 100], 0).unwrap();
        builder.delete(b"b").unwrap();
        builder.put(b"c", b"small", 99).unwrap();
        builder.delete_range(b"d", b"").unwrap();
        builder.put(b"e", b"", 0).unwrap();
        let command = builder.build();
        let at = Lsn::new(FileId(3), 600);
        let direct = versioned(Content::Payload(command.bytes()), at, 64).unwrap();
        let mut digest = Vec::new();
        assert!(put_digest(&mut digest, command.bytes(), 64));
        assert_eq!(versioned(Content::Digest(&digest), at, 64).unwrap(), direct);
        assert_eq!(direct.len(), 5);
        assert!(direct.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(
            matches!(&direct[0].1, ReplayOp::Put { value: ValueRef::At(l), .. } if l.lsn() == direct[0].0)
        );
        assert!(versioned(Content::Digest(&digest[..digest.len() - 1]), at, 64).is_none());
        assert!(versioned(Content::Payload(b"\x09junk"), at, 64).is_none());
    }
}
