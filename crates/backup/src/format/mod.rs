//! Objects of a repository, and their encodings. Every object begins with a header and is covered by a checksum
//! (`envelope.rs`); its place in the repository is a name (`names.rs`).
//!
//! The state at a moment is a base, over which the records of all log objects from [`Base::log_from`] to
//! [`Moment::last_log`] are written in their order.

mod base;
mod chunk;
mod chunker;
mod envelope;
mod log_object;
mod moment;
mod names;
mod reader;
mod repository_object;

pub use base::{Base, ChunkRef, Part};
pub use chunk::{CHUNK_BYTES_MAX, Chunk, ChunkName, Pair};
pub use chunker::Chunker;
pub use log_object::{LOG_BYTES_MAX, LogObject, Record, Write};
pub use moment::{Cut, Moment};
pub use stele_types::ColumnFamily as Family;

pub(crate) use envelope::OBJECT_BYTES_MAX;
pub(crate) use names::Name;
pub(crate) use repository_object::RepositoryObject;

use std::fmt;

/// A run: the log objects without a gap that one backup wrote, and the bases and moments beside them. Later runs
/// have greater numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u64);

/// Place of a log object in its run; the first is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogSeq(pub u64);

/// Place of a base among those of its run; later ones have greater numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseSeq(pub u64);

impl LogSeq {
    /// Returns the place of the next log object.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

macro_rules! sixteen_digits {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }
    )*};
}

sixteen_digits!(RunId LogSeq BaseSeq);
