//! The operations of an entry: from its command, or from the digest a sidecar keeps.
//!
//! ```text
//! digest := op*          op := flags:u8 place key_bytes key tail
//! flags  := kind (bits 0-1: 0 put, 1 delete, 2 delete range) | has_expiry (2) | inline (3)
//! place  := bytes from the payload's start to the value, or for deletes to the operation's end
//! put    := value_bytes crc:u32 [expires_at_s] [value]        range := end_bytes end
//! ```
//! An operation's version is the position its place names: unique, and in the log's order.

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

/// An operation and its version.
pub(crate) type Versioned<'a> = (Lsn, ReplayOp<'a>);

pub(crate) fn put_digest(out: &mut Vec<u8>, payload: &[u8], inline_max: usize) {
    each_op(payload, |place, op| match op {
        Op::Put { key, value, value_crc, expires_at_s, .. } => {
            let inline = value.len() <= inline_max;
            let expiry = if expires_at_s == 0 { 0 } else { HAS_EXPIRY };
            out.push(PUT | expiry | if inline { INLINE } else { 0 });
            varint::put(out, u64::from(place));
            varint::put_bytes(out, key);
            varint::put(out, value.len() as u64);
            out.extend_from_slice(&value_crc.to_le_bytes());
            if expires_at_s != 0 {
                varint::put(out, expires_at_s);
            }
            if inline {
                out.extend_from_slice(value);
            }
        }
        Op::Delete { key } => {
            out.push(DELETE);
            varint::put(out, u64::from(place));
            varint::put_bytes(out, key);
        }
        Op::DeleteRange { start, end } => {
            out.push(DELETE_RANGE);
            varint::put(out, u64::from(place));
            varint::put_bytes(out, start);
            varint::put_bytes(out, end);
        }
    });
}

/// The operations of an entry whose payload lies at `payload`; `None` when the bytes make no sense.
pub(crate) fn versioned<'a>(
    content: Content<'a>,
    payload: Lsn,
    inline_max: usize,
) -> Option<Vec<Versioned<'a>>> {
    match content {
        Content::Payload(bytes) => from_payload(bytes, payload, inline_max),
        Content::Digest(mut digest) => {
            let mut out = Vec::new();
            while !digest.is_empty() {
                out.push(take_op(&mut digest, payload)?);
            }
            Some(out)
        }
    }
}

fn from_payload<'a>(
    bytes: &'a [u8],
    payload: Lsn,
    inline_max: usize,
) -> Option<Vec<Versioned<'a>>> {
    let mut out = Vec::new();
    let covered = each_op(bytes, |place, op| {
        let op = match op {
            Op::Put { key, value, expires_at_s, .. } => {
                let value = match op.locator(payload) {
                    Some(at) if value.len() > inline_max => ValueRef::At(at),
                    _ => ValueRef::Inline(Bytes::copy_from_slice(value)),
                };
                ReplayOp::Put { key, value, expires_at_s }
            }
            Op::Delete { key } => ReplayOp::Delete { key },
            Op::DeleteRange { start, end } => ReplayOp::DeleteRange { start, end },
        };
        out.push((Lsn::new(payload.file, payload.offset.wrapping_add(place)), op));
    });
    covered.then_some(out)
}

/// Walks a command's operations with their places; `false` when the bytes are no command.
fn each_op<'a>(payload: &'a [u8], mut f: impl FnMut(u32, Op<'a>)) -> bool {
    let Some(ops) = Command::ops_of(payload) else { return false };
    let mut end = 1;
    for op in ops {
        let bytes = |key: &[u8]| (varint::len(key.len() as u64) + key.len()) as u32;
        let place = match op {
            Op::Put { value_offset, value, .. } => {
                end = value_offset + value.len() as u32;
                f(value_offset, op);
                continue;
            }
            Op::Delete { key } => end + 1 + bytes(key),
            Op::DeleteRange { start, end: upto } => end + 1 + bytes(start) + bytes(upto),
        };
        end = place;
        f(place, op);
    }
    true
}

fn take_op<'a>(digest: &mut &'a [u8], payload: Lsn) -> Option<Versioned<'a>> {
    let flags = take::u8(digest)?;
    let place = u32::try_from(varint::take(digest)?).ok()?;
    let version = Lsn::new(payload.file, payload.offset.checked_add(place)?);
    let key = varint::take_bytes(digest)?;
    let op = match flags & KIND_MASK {
        PUT => {
            let length = u32::try_from(varint::take(digest)?).ok()?;
            let crc = take::u32_le(digest)?;
            let expires_at_s = if flags & HAS_EXPIRY == 0 { 0 } else { varint::take(digest)? };
            let value = if flags & INLINE == 0 {
                ValueRef::At(Locator { file: version.file, offset: version.offset, length, crc })
            } else {
                let (value, rest) = digest.split_at_checked(length as usize)?;
                *digest = rest;
                ValueRef::Inline(Bytes::copy_from_slice(value))
            };
            ReplayOp::Put { key, value, expires_at_s }
        }
        DELETE => ReplayOp::Delete { key },
        DELETE_RANGE => ReplayOp::DeleteRange { start: key, end: varint::take_bytes(digest)? },
        _ => return None,
    };
    Some((version, op))
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
        put_digest(&mut digest, command.bytes(), 64);
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
