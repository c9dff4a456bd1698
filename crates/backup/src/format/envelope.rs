//! What all objects have in common.
//!
//! ```text
//! object := "STBK" kind:u8 version:u8 codec:u8 0:u8 raw_bytes:u32 crc32c:u32 stored
//!                                    (little-endian; the checksum covers the bytes before it and `stored`)
//! stored := the body, or its raw deflate stream of `raw_bytes` when inflated
//! ```

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use std::io::{Read, Write};
use std::path::Path;
use stele_types::checksum::Crc32c;
use stele_types::size::format_bytes;
use stele_types::{Error, Result};

const MAGIC: &[u8; 4] = b"STBK";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 16;
const CRC_AT: usize = 12;
/// Most bytes of an object, and of its body: a base of 2.5 TiB with chunks of 1 MiB and keys of 50 bytes.
pub(crate) const OBJECT_BYTES_MAX: usize = 256 << 20;
/// Bytes of which the compression decides whether the rest is worth its time.
const SAMPLE_BYTES: usize = 16 << 10;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Repository = 1,
    Chunk = 2,
    Log = 3,
    Base = 4,
    Moment = 5,
}

impl Kind {
    /// Returns the most bytes of a body. A value may have 64 MiB.
    fn bytes_max(self) -> usize {
        match self {
            Self::Repository => 1 << 10,
            Self::Moment => 64 << 20,
            Self::Chunk | Self::Log => 128 << 20,
            Self::Base => OBJECT_BYTES_MAX,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Codec {
    Stored = 0,
    Deflate = 1,
}

/// Encodes a body. Fails if it has more bytes than its kind may have.
pub(super) fn seal(kind: Kind, body: &[u8]) -> Result<Vec<u8>> {
    let too_large = || {
        let limit = format_bytes(kind.bytes_max() as u64);
        Error::invalid(format!(
            "a backup's {kind:?} object of {} bytes is above the limit of {limit}; split the data over several clusters",
            body.len()
        ))
    };
    let raw_bytes = u32::try_from(body.len()).ok().filter(|_| body.len() <= kind.bytes_max());
    let raw_bytes = raw_bytes.ok_or_else(too_large)?;
    let deflated = is_compressible(body).then(|| deflate(body)).flatten();
    let (codec, stored) = match &deflated {
        Some(deflated) if deflated.len() < body.len() => (Codec::Deflate, deflated.as_slice()),
        _ => (Codec::Stored, body),
    };
    let mut out = Vec::with_capacity(HEADER_BYTES + stored.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[kind as u8, VERSION, codec as u8, 0]);
    out.extend_from_slice(&raw_bytes.to_le_bytes());
    let mut crc = Crc32c::new();
    let crc = crc.update(&out).update(stored).finish();
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(stored);
    Ok(out)
}

fn is_compressible(body: &[u8]) -> bool {
    let from = (body.len() / 2).min(body.len().saturating_sub(SAMPLE_BYTES));
    let sample = body.get(from..).unwrap_or_default();
    let sample = sample.get(..SAMPLE_BYTES).unwrap_or(sample);
    let limit = sample.len() - sample.len() / 8;
    deflate(sample).is_some_and(|deflated| deflated.len() < limit)
}

fn deflate(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

/// Returns the body of an object. `name` is the object in errors.
///
/// # Errors
/// [`Error::NewerFormat`] for an object of a newer version, [`Error::DamagedBackup`] for every other difference from
/// what [`seal`] makes.
pub(super) fn unseal(name: &str, kind: Kind, object: &[u8]) -> Result<Vec<u8>> {
    let damaged = |detail: &str| Error::damaged_backup(name, detail);
    let Some((header, stored)) = object.split_at_checked(HEADER_BYTES) else {
        return Err(damaged("it is shorter than a header"));
    };
    let (before_crc, crc) = header.split_at_checked(CRC_AT).unwrap_or_default();
    let &[b'S', b'T', b'B', b'K', found_kind, version, codec, reserved, ref raw_bytes @ ..] =
        before_crc
    else {
        return Err(damaged("it does not begin as an object of a backup"));
    };
    let mut computed = Crc32c::new();
    let computed = computed.update(before_crc).update(stored).finish();
    // bug backup.object_crc_unchecked: let computed = u32::from_le_bytes(crc.try_into().unwrap_or_default());
    if computed.to_le_bytes() != crc {
        return Err(damaged("its checksum differs"));
    }
    if version > VERSION {
        let (found, supported) = (u32::from(version), u32::from(VERSION));
        return Err(Error::NewerFormat { path: Path::new(name).to_owned(), found, supported });
    }
    if version != VERSION || reserved != 0 || found_kind != kind as u8 {
        return Err(damaged(&format!("it is not a {kind:?} object of version {VERSION}")));
    }
    let raw_bytes = raw_bytes.try_into().map_or(usize::MAX, |raw| u32::from_le_bytes(raw) as usize);
    if raw_bytes > kind.bytes_max() {
        return Err(damaged("its body is above the limit of an object"));
    }
    let body = match codec {
        codec if codec == Codec::Stored as u8 => stored.to_vec(),
        codec if codec == Codec::Deflate as u8 => {
            inflate(stored, raw_bytes).ok_or_else(|| damaged("its compressed bytes are damaged"))?
        }
        _ => return Err(damaged("its compression is unknown")),
    };
    if body.len() != raw_bytes {
        return Err(damaged("its length differs"));
    }
    Ok(body)
}

/// Returns at most `raw_bytes` and one more, whatever the stream contains.
fn inflate(stored: &[u8], raw_bytes: usize) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    let mut decoder = DeflateDecoder::new(stored).take(raw_bytes as u64 + 1);
    decoder.read_to_end(&mut body).ok()?;
    Some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsealed(object: &[u8]) -> Result<Vec<u8>> {
        unseal("runs/1/log/2", Kind::Log, object)
    }

    #[test]
    fn bodies_come_back_and_repeated_bytes_are_compressed() {
        let random: Vec<u8> = {
            let mut prng = stele_types::Prng::new(7);
            (0..100_000).map(|_| prng.draw() as u8).collect()
        };
        for (body, is_smaller) in
            [(vec![], false), (vec![7; 100_000], true), (random, false), (vec![1], false)]
        {
            let object = seal(Kind::Log, &body).unwrap();
            assert_eq!(object.len() < body.len(), is_smaller);
            assert_eq!(unsealed(&object).unwrap(), body);
        }
    }

    #[test]
    fn every_changed_bit_and_every_cut_of_an_object_is_reported_with_its_name() {
        for body in [vec![7; 300], b"some body".to_vec()] {
            let object = seal(Kind::Log, &body).unwrap();
            for bit in 0..object.len() * 8 {
                let mut changed = object.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let error = unsealed(&changed).unwrap_err();
                assert!(matches!(&error, Error::DamagedBackup { .. }), "{error}");
                assert!(error.to_string().contains("runs/1/log/2"), "{error}");
            }
            for bytes in 0..object.len() {
                assert!(unsealed(&object[..bytes]).is_err());
            }
        }
    }

    #[test]
    fn a_newer_version_and_another_kind_are_refused() {
        let mut object = seal(Kind::Log, b"body").unwrap();
        assert!(unseal("x", Kind::Base, &object).is_err());
        object[5] = VERSION + 1;
        let mut crc = Crc32c::new();
        let crc = crc.update(&object[..CRC_AT]).update(&object[HEADER_BYTES..]).finish();
        object[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        let error = unsealed(&object).unwrap_err();
        assert!(matches!(error, Error::NewerFormat { found: 2, supported: 1, .. }), "{error}");
    }

    #[test]
    fn a_stream_that_inflates_to_more_than_it_states_is_not_followed() {
        let bomb = deflate(&vec![0; 1 << 20]).unwrap();
        assert_eq!(inflate(&bomb, 100).unwrap().len(), 101);
    }
}
