//! Snapshots between stores: pairs of a pinned view out in chunks, a staged range in. They never
//! pass through the receiver's log.
//!
//! A connection that breaks does not end a snapshot: both sides keep what they have for
//! [`BROKEN_NANOS_MAX`], and the sender goes on after the receiver's position. An aborted snapshot leaves
//! nothing.

mod pairs;
mod parts;
mod position;
mod reception;
mod source;

pub use parts::{Part, Parts, ReplicaKey};
pub use position::{POSITION_BYTES, Position};
pub use reception::Reception;
pub use source::{BROKEN_NANOS_MAX, RETRY_NANOS, Source};

#[doc(hidden)]
pub mod fuzzing {
    //! Decoders of bytes from outside, for fuzz targets.
    use super::pairs;
    use bytes::Bytes;
    use stele_storage::Pair;
    use stele_types::Result;

    /// Decodes the pairs of a snapshot from its chunks.
    pub fn snapshot_pairs<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Pair>> {
        let (mut decoder, mut pairs) = (pairs::Decoder::default(), Vec::new());
        for chunk in chunks {
            pairs.extend(decoder.push(Bytes::copy_from_slice(chunk))?);
        }
        decoder.finish().map(|()| pairs)
    }

    /// Encodes pairs.
    pub fn snapshot_bytes(pairs: &[Pair]) -> Vec<u8> {
        pairs::encode(pairs).concat()
    }
}
