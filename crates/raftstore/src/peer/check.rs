//! Refusals, in the order in which clients expect them.

use super::Peer;
use crate::input::Header;
use crate::output::Refusal;
use crate::readers::{Readers, is_stale_term};
use stele_storage::StorageEngine;
use stele_types::{Region, RegionPhase};

impl<E: StorageEngine> Peer<E> {
    /// Whether a request is for this replica at all.
    pub fn check_peer(&self, header: &Header) -> Result<(), Refusal> {
        match header.peer.filter(|asked| *asked != self.name.id) {
            Some(asked) => Err(Refusal::MismatchPeer { asked, actual: self.name.id }),
            None => Ok(()),
        }
    }

    /// Whether a request is meant for this term and this version of the range.
    pub fn check_version(&self, header: &Header, readers: &Readers) -> Result<(), Refusal> {
        if is_stale_term(header.term, self.term(), self.region.kind) {
            return Err(Refusal::StaleCommand);
        }
        if header.version.is_some_and(|version| version != self.region.epoch.version) {
            return Err(Refusal::EpochNotMatch { current: self.current_regions(readers) });
        }
        Ok(())
    }

    /// Whether a read is answered: of this term and version, and not of what is being merged, which
    /// another region may be writing to.
    pub(super) fn check_readable(&self, header: &Header, readers: &Readers) -> Result<(), Refusal> {
        self.check_version(header, readers)?;
        match stele_types::mutant::active("raftstore.read_while_merging") {
            true => Ok(()),
            false => self.check_phase(),
        }
    }

    /// Whether the region takes data in its phase.
    pub fn check_phase(&self) -> Result<(), Refusal> {
        match self.region.phase {
            RegionPhase::Normal => Ok(()),
            RegionPhase::Merging { .. } => Err(Refusal::Merging),
            RegionPhase::Tombstone => Err(Refusal::RegionNotFound),
        }
    }

    /// This region, and those that its last split made with it, as they are by now.
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
