//! Snapshots between stores: pairs of a pinned view out in pieces, a staged range in. They never
//! pass through the receiver's log. An aborted snapshot leaves nothing.

mod pairs;
mod reception;
mod source;

pub use reception::Reception;
pub use source::Source;

#[doc(hidden)]
pub mod fuzzing {
    //! Decoders of bytes from outside, for fuzz targets.
    use super::pairs;
    use stele_storage::Pair;
    use stele_types::Result;

    /// Decodes the pairs of a snapshot from its pieces.
    pub fn snapshot_pairs<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Pair>> {
        let (mut decoder, mut pairs) = (pairs::Decoder::default(), Vec::new());
        for piece in pieces {
            pairs.extend(decoder.push(piece)?);
        }
        decoder.finish().map(|()| pairs)
    }

    /// Encodes pairs.
    pub fn snapshot_bytes(pairs: &[Pair]) -> Vec<u8> {
        let mut out = Vec::new();
        pairs.iter().for_each(|pair| pairs::encode(pair, &mut out));
        out
    }
}
