//! Bases: all pairs, as chunks, region after region.
//!
//! ```text
//! body    := run seq log_from log_complete parts part* settings (name:bytes value:bytes)* has_access:u8 access:bytes?
//! part    := family:u8 start:bytes end:bytes region index chunks chunk*
//! chunk   := name:[u8;32] first_key:bytes pairs bytes
//! ```

use super::chunk::ChunkName;
use super::envelope::{self, Kind};
use super::names::Name;
use super::reader::{Fields, put_range};
use super::{BaseSeq, Family, LogSeq, RunId};
use bytes::Bytes;
use stele_types::{KeyRange, LogIndex, RegionId, Result, varint};

/// A chunk of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRef {
    /// Name of the chunk.
    pub name: ChunkName,
    /// Its first key.
    pub first_key: Bytes,
    /// Number of its pairs.
    pub pairs: u64,
    /// Bytes of its body before compression.
    pub bytes: u64,
}

/// Pairs of one region and column family, read from one view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Column family.
    pub family: Family,
    /// Keys of the part, whether or not they have values.
    pub range: KeyRange,
    /// Region from which they were read.
    pub region: RegionId,
    /// Index of the last entry in the view.
    pub index: LogIndex,
    /// Chunks, ascending by key.
    pub chunks: Vec<ChunkRef>,
}

/// All pairs, each part at an index of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Run of the base.
    pub run: RunId,
    /// Place among the bases of the run.
    pub seq: BaseSeq,
    /// First log object with records that may be missing in the parts.
    pub log_from: LogSeq,
    /// A moment can be restored from the base if its last log object is this one or a later one.
    pub log_complete: LogSeq,
    /// Parts.
    pub parts: Vec<Part>,
    /// Settings of the cluster: names and values.
    pub settings: Vec<(String, String)>,
    /// Access rules as JSON, without secrets.
    pub access: Option<String>,
}

impl Base {
    /// Returns the chunks of all parts.
    pub fn chunks(&self) -> impl Iterator<Item = &ChunkRef> {
        self.parts.iter().flat_map(|part| &part.chunks)
    }

    /// Encodes the object.
    ///
    /// # Errors
    /// [`stele_types::Error::Invalid`] if it is larger than such an object may be.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        let numbers = [self.run.0, self.seq.0, self.log_from.0, self.log_complete.0];
        numbers.into_iter().for_each(|number| varint::put(&mut body, number));
        varint::put(&mut body, self.parts.len() as u64);
        for part in &self.parts {
            body.push(part.family.space());
            put_range(&mut body, &part.range);
            let numbers = [part.region.0, part.index.0, part.chunks.len() as u64];
            numbers.into_iter().for_each(|number| varint::put(&mut body, number));
            for chunk in &part.chunks {
                body.extend_from_slice(&chunk.name.0);
                varint::put_bytes(&mut body, &chunk.first_key);
                varint::put(&mut body, chunk.pairs);
                varint::put(&mut body, chunk.bytes);
            }
        }
        varint::put(&mut body, self.settings.len() as u64);
        for (name, value) in &self.settings {
            varint::put_bytes(&mut body, name.as_bytes());
            varint::put_bytes(&mut body, value.as_bytes());
        }
        body.push(u8::from(self.access.is_some()));
        if let Some(access) = &self.access {
            varint::put_bytes(&mut body, access.as_bytes());
        }
        envelope::seal(Kind::Base, &body)
    }

    /// Decodes the object at this place.
    ///
    /// # Errors
    /// [`stele_types::Error::DamagedBackup`] for other bytes than those of this object.
    pub fn decode(run: RunId, seq: BaseSeq, object: &[u8]) -> Result<Self> {
        let path = Name::Base(run, seq).path();
        let mut fields = Fields::new(&path, envelope::unseal(&path, Kind::Base, object)?);
        if (RunId(fields.number()?), BaseSeq(fields.number()?)) != (run, seq) {
            return Err(fields.damaged("it is the object of another place"));
        }
        let (log_from, log_complete) = (LogSeq(fields.number()?), LogSeq(fields.number()?));
        let mut base = Self { run, seq, log_from, log_complete, ..Self::default() };
        for _ in 0..fields.count()? {
            base.parts.push(take_part(&mut fields)?);
        }
        for _ in 0..fields.count()? {
            base.settings.push((fields.text()?, fields.text()?));
        }
        base.access = match fields.byte()? {
            0 => None,
            1 => Some(fields.text()?),
            _ => return Err(fields.damaged("its access rules are of unknown kind")),
        };
        fields.end()?;
        Ok(base)
    }
}

fn take_part(fields: &mut Fields<'_>) -> Result<Part> {
    let (family, range) = (fields.family()?, fields.range()?);
    let (region, index) = (RegionId(fields.number()?), LogIndex(fields.number()?));
    let mut chunks = Vec::new();
    for _ in 0..fields.count()? {
        let (name, first_key) = (ChunkName(fields.exactly()?), fields.bytes()?);
        // The key would keep the whole body in memory.
        let first_key = Bytes::copy_from_slice(&first_key);
        chunks.push(ChunkRef { name, first_key, pairs: fields.number()?, bytes: fields.number()? });
    }
    Ok(Part { family, range, region, index, chunks })
}
