//! Reads of records to be moved: many values at a time, with the record headers before them in
//! sorted files.

use crate::dir::Name;
use crate::read_many::{ReadMode, Unchecked};
use crate::shared::Shared;
use crate::sorted;
use bytes::Bytes;
use stele_types::{Locator, Lsn, Result};

impl Shared {
    pub fn read_records(&self, places: &[(usize, Locator)]) -> Result<Vec<Unchecked>> {
        let whole = |(key_bytes, at): &(usize, Locator)| {
            let before = self.bytes_before(*key_bytes, at)?;
            Ok(Locator { offset: at.offset - before, length: at.length + before, ..*at })
        };
        let whole: Vec<Locator> = places.iter().map(whole).collect::<Result<_>>()?;
        Ok(self.read_many_with(&whole, ReadMode::BACKGROUND)?.values)
    }

    pub fn record(&self, key: &[u8], at: &Locator, read: Unchecked) -> Result<(Bytes, Lsn)> {
        let before = self.bytes_before(key.len(), at)? as usize;
        if let Some((header, value)) = read.split(before)
            && at.check(&value).is_ok()
        {
            if before == 0 {
                return Ok((value, self.record_of(at)?.version));
            }
            let place = Lsn::new(at.file, at.offset - before as u32);
            if let Some(fields) = sorted::header_of(&header, self.dir.store, place, key)
                && fields.value_crc == at.crc
            {
                return Ok((value, fields.version));
            }
        }
        Ok((self.get(at)?, self.record_of(at)?.version))
    }

    /// Returns the bytes of the record header before a value; 0 in segments, where it is not
    /// needed, and for a damaged locator, which may name any position.
    fn bytes_before(&self, key_bytes: usize, at: &Locator) -> Result<u32> {
        let before = match self.value_name(at.file)? {
            Name::Sorted(_) => sorted::bytes_before_value(key_bytes),
            _ => 0,
        };
        let fits = before <= at.offset && at.length.checked_add(before).is_some();
        Ok(if fits { before } else { 0 })
    }
}
