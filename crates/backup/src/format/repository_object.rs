//! The object that makes a place a repository.
//!
//! ```text
//! body := format cluster
//! ```

use super::envelope::{self, Kind};
use super::names::Name;
use super::reader::Fields;
use std::path::PathBuf;
use stele_types::{ClusterId, Error, Result, varint};

/// Format of the names and of what they refer to; that of each object is in its header.
const FORMAT: u64 = 1;

/// Cluster of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RepositoryObject {
    pub(crate) cluster: ClusterId,
}

impl RepositoryObject {
    pub(crate) fn encode(self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        varint::put(&mut body, FORMAT);
        varint::put(&mut body, self.cluster.0);
        envelope::seal(Kind::Repository, &body)
    }

    pub(crate) fn decode(object: &[u8]) -> Result<Self> {
        let path = Name::Repository.path();
        let mut fields = Fields::new(&path, envelope::unseal(&path, Kind::Repository, object)?);
        let format = fields.number()?;
        if format > FORMAT {
            let found = u32::try_from(format).unwrap_or(u32::MAX);
            let path = PathBuf::from(path);
            return Err(Error::NewerFormat { path, found, supported: FORMAT as u32 });
        }
        let cluster = ClusterId(fields.number()?);
        fields.end()?;
        Ok(Self { cluster })
    }
}
