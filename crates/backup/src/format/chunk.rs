//! Chunks: pairs of one column family in key order, named by their content.
//!
//! ```text
//! body := (key:bytes value:bytes expires_at_s)*           (numbers are varints, bytes length-prefixed)
//! ```

use super::envelope::{self, Kind};
use super::names::Name;
use super::reader::Fields;
use bytes::Bytes;
use ring::digest::{SHA256, digest};
use std::fmt;
use stele_types::{Error, Result, varint};

/// Most bytes of a chunk's body, unless it is one larger pair.
pub const CHUNK_BYTES_MAX: usize = 4 << 20;

/// A pair with its absolute expiry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// Key as users name it.
    pub key: Bytes,
    /// Value.
    pub value: Bytes,
    /// Unix time of its expiry in seconds; 0 for never.
    pub expires_at_s: u64,
}

impl Pair {
    /// Returns the bytes that the pair has in a body.
    pub(super) fn encoded_bytes(&self) -> usize {
        let prefixed = |bytes: &Bytes| varint::len(bytes.len() as u64) + bytes.len();
        prefixed(&self.key) + prefixed(&self.value) + varint::len(self.expires_at_s)
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        varint::put_bytes(out, &self.key);
        varint::put_bytes(out, &self.value);
        varint::put(out, self.expires_at_s);
    }

    pub(super) fn take(fields: &mut Fields<'_>) -> Result<Self> {
        let (key, value) = (fields.bytes()?, fields.bytes()?);
        Ok(Self { key, value, expires_at_s: fields.number()? })
    }
}

/// SHA-256 of a chunk's body before compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkName(pub [u8; 32]);

impl ChunkName {
    /// Returns the name of a body.
    fn of(body: &[u8]) -> Self {
        let mut name = [0; 32];
        name.copy_from_slice(digest(&SHA256, body).as_ref());
        Self(name)
    }

    /// Returns the name that an object must have.
    ///
    /// # Errors
    /// [`Error::DamagedBackup`] if it is not a chunk.
    pub fn of_object(object: &[u8]) -> Result<Self> {
        Ok(Self::of(&envelope::unseal("chunk", Kind::Chunk, object)?))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let mut name = [0; 32];
        if text.len() != 64 || !text.bytes().all(is_hex) {
            return None;
        }
        for (byte, digits) in name.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(name))
    }
}

impl fmt::Display for ChunkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Pairs of one column family, ascending by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Pairs, ascending by key.
    pub pairs: Vec<Pair>,
}

/// A chunk as it is stored.
pub(crate) struct EncodedChunk {
    pub(crate) name: ChunkName,
    /// Bytes of the body before compression.
    pub(crate) bytes: u64,
    body: Vec<u8>,
}

impl EncodedChunk {
    /// Returns the object.
    pub(crate) fn object(&self) -> Result<Vec<u8>> {
        envelope::seal(Kind::Chunk, &self.body)
    }
}

impl Chunk {
    /// Returns the name and the object.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is larger than a chunk may be.
    pub fn encode(&self) -> Result<(ChunkName, Vec<u8>)> {
        let encoded = self.encoded();
        Ok((encoded.name, encoded.object()?))
    }

    /// Encodes the pairs, and computes their name.
    pub(crate) fn encoded(&self) -> EncodedChunk {
        let mut body = Vec::with_capacity(self.pairs.iter().map(Pair::encoded_bytes).sum());
        self.pairs.iter().for_each(|pair| pair.put(&mut body));
        EncodedChunk { name: ChunkName::of(&body), bytes: body.len() as u64, body }
    }

    /// Decodes the object with this name.
    ///
    /// # Errors
    /// [`Error::DamagedBackup`] unless the content has the name and its keys ascend.
    pub fn decode(name: &ChunkName, object: &[u8]) -> Result<Self> {
        let path = Name::Chunk(*name).path();
        let body = envelope::unseal(&path, Kind::Chunk, object)?;
        // bug backup.chunk_name_unchecked: `ChunkName::of(&body) != *name` is `false`
        if ChunkName::of(&body) != *name {
            return Err(Error::damaged_backup(path, "its content has another hash than its name"));
        }
        let mut fields = Fields::new(&path, body);
        let mut pairs: Vec<Pair> = Vec::new();
        while !fields.is_at_end() {
            let pair = Pair::take(&mut fields)?;
            if pairs.last().is_some_and(|last| last.key >= pair.key) {
                return Err(fields.damaged("its keys do not ascend"));
            }
            pairs.push(pair);
        }
        Ok(Self { pairs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk() -> Chunk {
        let pair = |key: &'static str, value: &'static str, expires_at_s| Pair {
            key: key.into(),
            value: value.into(),
            expires_at_s,
        };
        Chunk { pairs: vec![pair("", "v", 0), pair("a", "", 7), pair("b", "w", u64::MAX)] }
    }

    #[test]
    fn a_chunk_has_the_name_of_its_content_and_comes_back() {
        let encoded = chunk().encoded();
        assert_eq!(ChunkName::parse(&encoded.name.to_string()), Some(encoded.name));
        let object = encoded.object().unwrap();
        assert_eq!(Chunk::decode(&encoded.name, &object).unwrap(), chunk());
        let mut other = chunk();
        other.pairs[1].expires_at_s = 8;
        assert_ne!(other.encoded().name, encoded.name);
    }

    #[test]
    fn a_chunk_under_another_name_is_damage() {
        let object = chunk().encoded().object().unwrap();
        let error = Chunk::decode(&ChunkName([7; 32]), &object).unwrap_err();
        assert!(matches!(error, Error::DamagedBackup { .. }), "{error}");
    }

    #[test]
    fn keys_that_do_not_ascend_are_damage() {
        let mut twice = chunk();
        twice.pairs[2].key = "a".into();
        let encoded = twice.encoded();
        assert!(Chunk::decode(&encoded.name, &encoded.object().unwrap()).is_err());
    }
}
