//! Moments: cuts over all regions, each at the end of a log object.
//!
//! ```text
//! body := number run last_log cuts (start:bytes end:bytes region term index)* clocks (node unix_ms)*
//!         program:bytes level
//! ```

use super::envelope::{self, Kind};
use super::names::Name;
use super::reader::{Fields, put_range};
use super::{LogSeq, RunId};
use stele_types::{KeyRange, LogIndex, MomentId, RegionId, Result, Term, varint};

/// The last entry of a region in a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Keys of the region.
    pub range: KeyRange,
    /// The region.
    pub region: RegionId,
    /// Term in which its leader sealed the moment.
    pub term: Term,
    /// Index of the last entry.
    pub index: LogIndex,
}

/// A moment, and the log object that ends at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Number in the cluster.
    pub number: MomentId,
    /// Run of its log objects.
    pub run: RunId,
    /// Log object that ends at the moment.
    pub last_log: LogSeq,
    /// Last entries of all regions.
    pub vector: Vec<Cut>,
    /// Wall clocks of the nodes: number of the node, Unix time in milliseconds.
    pub clocks_unix_ms: Vec<(u64, u64)>,
    /// Version of the program that wrote the backup.
    pub program: String,
    /// Level of the cluster.
    pub level: u32,
}

impl Moment {
    /// Returns the earliest and the latest of the nodes' clocks, Unix time in milliseconds; `None` without clocks.
    pub fn clocks_between_unix_ms(&self) -> Option<(u64, u64)> {
        let clocks = || self.clocks_unix_ms.iter().map(|(_, unix_ms)| *unix_ms);
        Some((clocks().min()?, clocks().max()?))
    }

    /// Encodes the object.
    ///
    /// # Errors
    /// [`stele_types::Error::Invalid`] if it is larger than such an object may be.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        let numbers = [self.number.0, self.run.0, self.last_log.0, self.vector.len() as u64];
        numbers.into_iter().for_each(|number| varint::put(&mut body, number));
        for cut in &self.vector {
            put_range(&mut body, &cut.range);
            let numbers = [cut.region.0, cut.term.0, cut.index.0];
            numbers.into_iter().for_each(|number| varint::put(&mut body, number));
        }
        varint::put(&mut body, self.clocks_unix_ms.len() as u64);
        for (node, unix_ms) in &self.clocks_unix_ms {
            varint::put(&mut body, *node);
            varint::put(&mut body, *unix_ms);
        }
        varint::put_bytes(&mut body, self.program.as_bytes());
        varint::put(&mut body, u64::from(self.level));
        envelope::seal(Kind::Moment, &body)
    }

    /// Decodes the object of this number.
    ///
    /// # Errors
    /// [`stele_types::Error::DamagedBackup`] for other bytes than those of this object.
    pub fn decode(run: RunId, number: MomentId, object: &[u8]) -> Result<Self> {
        let path = Name::Moment(run, number).path();
        let mut fields = Fields::new(&path, envelope::unseal(&path, Kind::Moment, object)?);
        if (MomentId(fields.number()?), RunId(fields.number()?)) != (number, run) {
            return Err(fields.damaged("it is the object of another place"));
        }
        let mut moment =
            Self { number, run, last_log: LogSeq(fields.number()?), ..Self::default() };
        for _ in 0..fields.count()? {
            let (range, region) = (fields.range()?, RegionId(fields.number()?));
            let (term, index) = (Term(fields.number()?), LogIndex(fields.number()?));
            moment.vector.push(Cut { range, region, term, index });
        }
        for _ in 0..fields.count()? {
            moment.clocks_unix_ms.push((fields.number()?, fields.number()?));
        }
        moment.program = fields.text()?;
        let level = u32::try_from(fields.number()?);
        moment.level = level.map_err(|_| fields.damaged("its level is above every level"))?;
        fields.end()?;
        Ok(moment)
    }
}
