//! Reads of a value without waiting for the device.

use crate::Log;
use crate::read::TRUSTED_LENGTH_BYTES;
use bytes::Bytes;
use stele_types::{Locator, Result};

impl Log {
    /// Returns the value at a locator if its file is open and the page cache holds it. Returns
    /// `None` otherwise, also when it does not match its checksum: then the caller must use
    /// [`Log::get`], which may wait.
    pub fn get_cached(&self, at: &Locator) -> Result<Option<Bytes>> {
        let Some(file) = self.shared.handles.get(u64::from(at.file.0), false) else {
            return Ok(None);
        };
        if u64::from(at.length) > TRUSTED_LENGTH_BYTES {
            return Ok(None);
        }
        let mut value = vec![0; at.length as usize];
        if !file.read_cached_at(&mut value, u64::from(at.offset))? {
            return Ok(None);
        }
        let is_whole =
            at.check(&value).is_ok() || stele_types::mutant::active("log.cached_unchecked");
        Ok(is_whole.then(|| value.into()))
    }
}
