//! Log objects: writes in the order in which the backup read them.
//!
//! ```text
//! body   := run seq records record* token:bytes has_moment:u8 moment?
//! record := region index family:u8 tag:u8 write
//! write  := 0 key:bytes value:bytes expires_at_s | 1 key:bytes | 2 start:bytes end:bytes
//! ```

use super::chunk::Pair;
use super::envelope::{self, Kind};
use super::names::Name;
use super::reader::{Fields, put_range};
use super::{Family, LogSeq, RunId};
use bytes::Bytes;
use stele_types::{KeyRange, LogIndex, MomentId, RegionId, Result, varint};

/// Bytes of records at which a log object ends.
pub const LOG_BYTES_MAX: usize = 16 << 20;

/// A state that a write left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The pair.
    Put(Pair),
    /// The key has no value.
    Delete(Bytes),
    /// The keys of the range have no values.
    DeleteRange(KeyRange),
}

/// A write, and the entry that contained it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Region of the entry.
    pub region: RegionId,
    /// Index of the entry.
    pub index: LogIndex,
    /// Column family of the keys.
    pub family: Family,
    /// State after the write.
    pub write: Write,
}

impl Record {
    /// Returns about the bytes that the record has in a log object, at least as many as in memory but for a
    /// constant.
    pub fn bytes(&self) -> usize {
        let write = match &self.write {
            Write::Put(pair) => pair.encoded_bytes(),
            Write::Delete(key) => key.len(),
            Write::DeleteRange(range) => range.start.len() + range.end.len(),
        };
        write + 32
    }
}

/// Writes of a run, in the order in which they are written at a restore: per key that of their commits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogObject {
    /// Run of the object.
    pub run: RunId,
    /// Place in the run.
    pub seq: LogSeq,
    /// Writes.
    pub records: Vec<Record>,
    /// Where the backup continues after the records.
    pub token_after: Bytes,
    /// Moment at which the object ends, if one does.
    pub moment: Option<MomentId>,
}

impl LogObject {
    /// Encodes the object.
    ///
    /// # Errors
    /// [`stele_types::Error::Invalid`] if it is larger than such an object may be.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut body = Vec::with_capacity(self.records.iter().map(Record::bytes).sum());
        for number in [self.run.0, self.seq.0, self.records.len() as u64] {
            varint::put(&mut body, number);
        }
        for record in &self.records {
            varint::put(&mut body, record.region.0);
            varint::put(&mut body, record.index.0);
            body.push(record.family.space());
            put_write(&mut body, &record.write);
        }
        varint::put_bytes(&mut body, &self.token_after);
        body.push(u8::from(self.moment.is_some()));
        if let Some(moment) = self.moment {
            varint::put(&mut body, moment.0);
        }
        envelope::seal(Kind::Log, &body)
    }

    /// Decodes the object at this place.
    ///
    /// # Errors
    /// [`stele_types::Error::DamagedBackup`] for other bytes than those of this object.
    pub fn decode(run: RunId, seq: LogSeq, object: &[u8]) -> Result<Self> {
        let path = Name::Log(run, seq).path();
        let mut fields = Fields::new(&path, envelope::unseal(&path, Kind::Log, object)?);
        let place = (RunId(fields.number()?), LogSeq(fields.number()?));
        if place != (run, seq) {
            return Err(fields.damaged("it is the object of another place"));
        }
        let mut records = Vec::new();
        for _ in 0..fields.count()? {
            let (region, index) = (RegionId(fields.number()?), LogIndex(fields.number()?));
            let family = fields.family()?;
            records.push(Record { region, index, family, write: take_write(&mut fields)? });
        }
        let token_after = fields.bytes()?;
        let moment = match fields.byte()? {
            0 => None,
            1 => Some(MomentId(fields.number()?)),
            _ => return Err(fields.damaged("its end is unknown")),
        };
        fields.end()?;
        Ok(Self { run, seq, records, token_after, moment })
    }
}

fn put_write(out: &mut Vec<u8>, write: &Write) {
    match write {
        Write::Put(pair) => {
            out.push(0);
            pair.put(out);
        }
        Write::Delete(key) => {
            out.push(1);
            varint::put_bytes(out, key);
        }
        Write::DeleteRange(range) => {
            out.push(2);
            put_range(out, range);
        }
    }
}

fn take_write(fields: &mut Fields<'_>) -> Result<Write> {
    Ok(match fields.byte()? {
        0 => Write::Put(Pair::take(fields)?),
        1 => Write::Delete(fields.bytes()?),
        2 => Write::DeleteRange(fields.range()?),
        _ => return Err(fields.damaged("a write is of unknown kind")),
    })
}
