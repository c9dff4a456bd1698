//! Request checks, in the order that clients expect.

use super::Peer;
use crate::input::Header;
use crate::output::{Busy, Refusal, Rejection};
use crate::readers::{Readers, is_stale_term};
use stele_storage::StorageEngine;
use stele_types::{Region, RegionPhase};

impl<E: StorageEngine> Peer<E> {
    /// Checks that a request is for this peer.
    pub fn check_peer(&self, header: &Header) -> Result<(), Refusal> {
        match header.peer.filter(|asked| *asked != self.name.id) {
            Some(asked) => Err(Refusal::MismatchPeer { asked, actual: self.name.id }),
            None => Ok(()),
        }
    }

    /// Checks a request's term and its version of the range.
    pub fn check_version(&self, header: &Header, readers: &Readers) -> Result<(), Refusal> {
        if is_stale_term(header.term, self.term().0, self.region.kind) {
            return Err(Refusal::StaleTerm { leader: self.leader_hint() });
        }
        if header.version.is_some_and(|version| version != self.region.epoch.version) {
            return Err(Refusal::EpochNotMatch { current: self.current_regions(readers) });
        }
        Ok(())
    }

    /// Checks that a read may be answered: its term and version match and the region is not
    /// merging, when its target may already be writing to it.
    pub(super) fn check_readable(
        &self,
        header: &Header,
        readers: &Readers,
    ) -> Result<(), Rejection> {
        self.check_version(header, readers)?;
        match stele_types::mutant::active("raftstore.read_while_merging") {
            true => Ok(()),
            false => self.check_phase(),
        }
    }

    /// Checks that the region's phase allows reads and writes.
    pub fn check_phase(&self) -> Result<(), Rejection> {
        match self.region.phase {
            RegionPhase::Normal => Ok(()),
            RegionPhase::Merging { .. } => Err(Busy::Merging.into()),
            RegionPhase::Tombstone => Err(Refusal::RegionNotFound.into()),
        }
    }

    /// Returns this region and those created by its last split, as currently known.
    fn current_regions(&self, readers: &Readers) -> Vec<Region> {
        let newest = |region: &Region| match readers.get(region.id) {
            Some(reader) => (*reader.region()).clone(),
            None => region.clone(),
        };
        std::iter::once((*self.region).clone())
            .chain(self.split_children.iter().map(newest))
            .collect()
    }
}
