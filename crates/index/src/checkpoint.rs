//! A checkpoint: the effects that runs hold, which need no log.
//!
//! ```text
//! checkpoint := replay_from:varint count:varint (region:varint index:varint term:varint)*
//! ```

use std::collections::BTreeMap;
use stele_types::{LogIndex, Lsn, RegionId, Term, varint};

/// Effects that survive a crash without the log below `replay_from`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Log records before this position need no replay.
    pub replay_from: Lsn,
    /// Last entry of each region that is applied in runs. Entries above it are replayed.
    pub applied: BTreeMap<RegionId, (LogIndex, Term)>,
}

impl Checkpoint {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.replay_from.as_u64());
        varint::put(out, self.applied.len() as u64);
        for (region, (index, term)) in &self.applied {
            varint::put(out, region.0);
            varint::put(out, index.0);
            varint::put(out, term.0);
        }
    }

    pub(crate) fn take(bytes: &mut &[u8]) -> Option<Self> {
        let replay_from = Lsn::from_u64(varint::take(bytes)?);
        let mut applied = BTreeMap::new();
        for _ in 0..varint::take(bytes)? {
            let region = RegionId(varint::take(bytes)?);
            let index = LogIndex(varint::take(bytes)?);
            applied.insert(region, (index, Term(varint::take(bytes)?)));
        }
        Some(Self { replay_from, applied })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::FileId;

    #[test]
    fn checkpoints_survive_the_round_trip_and_refuse_cut_bytes() {
        let mut checkpoint =
            Checkpoint { replay_from: Lsn::new(FileId(3), 77), ..Checkpoint::default() };
        checkpoint.applied.insert(RegionId(1), (LogIndex(9), Term(2)));
        checkpoint.applied.insert(RegionId(u64::MAX), (LogIndex(300), Term(5)));
        let mut out = Vec::new();
        checkpoint.encode(&mut out);
        assert_eq!(Checkpoint::take(&mut out.as_slice()), Some(checkpoint));
        for cut in 0..out.len() {
            assert_eq!(Checkpoint::take(&mut &out[..cut]), None, "cut at {cut}");
        }
    }
}
