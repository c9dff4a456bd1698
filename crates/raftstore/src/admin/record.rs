//! Record of the change that an admin entry makes. The descriptors in the entry hold the result.
//!
//! ```text
//! record := version:u8 (1) region kind:u8 body
//! body   := 0 change peers   count, then count × (add:u8 peer:id peer:store role:u8)
//!         | 1 leave joint
//!         | 2 split          count of new regions
//!         | 3 prepare merge  target index term
//!         | 4 commit merge   source index term
//!         | 5 rollback merge
//!         | 6 recover        count, then count × lost store     (numbers are varints)
//! ```

use crate::input::{ChangeKind, PeerChange};
use stele_types::{LogIndex, Peer, PeerId, PeerRole, RegionId, StoreId, Term, varint};

const FORMAT: u8 = 1;
/// Most changes or stores in one record, and most regions that one split creates.
pub(super) const PARTS_MAX: usize = 64;

/// Change of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Region with the log that contains it.
    pub region: RegionId,
    /// Change.
    pub change: Change,
}

/// Kinds of change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Changes of members: one at once, several by a joint configuration.
    Members(Vec<PeerChange>),
    /// End of a joint configuration.
    LeaveJoint,
    /// Split: new regions take the keys from each split key on.
    Split {
        /// Number of new regions.
        count: usize,
    },
    /// Preparation of a merge: no writes after it, until the target takes over or the preparation
    /// is rolled back.
    PrepareMerge {
        /// Target region.
        target: RegionId,
        /// Index and term of this entry.
        prepared: (LogIndex, Term),
    },
    /// Commit of a merge: takes over a prepared region.
    CommitMerge {
        /// Source region.
        source: RegionId,
        /// Index and term of the entry that prepared it.
        prepared: (LogIndex, Term),
    },
    /// Rollback of a preparation.
    RollbackMerge,
    /// Continuation without the peers on these stores, which are lost permanently. No majority
    /// agreed to it.
    Recover {
        /// Lost stores.
        lost: Vec<StoreId>,
    },
}

impl Record {
    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        varint::put(&mut out, self.region.0);
        match &self.change {
            Change::Members(changes) => {
                out.push(0);
                varint::put(&mut out, changes.len() as u64);
                for change in changes {
                    out.push(u8::from(change.kind == ChangeKind::Add));
                    varint::put(&mut out, change.peer.id.0);
                    varint::put(&mut out, change.peer.store.0);
                    out.push(change.peer.role as u8);
                }
            }
            Change::LeaveJoint => out.push(1),
            Change::Split { count } => {
                out.push(2);
                varint::put(&mut out, *count as u64);
            }
            Change::PrepareMerge { target: other, prepared: (index, term) }
            | Change::CommitMerge { source: other, prepared: (index, term) } => {
                out.push(if matches!(self.change, Change::CommitMerge { .. }) { 4 } else { 3 });
                for number in [other.0, index.0, term.0] {
                    varint::put(&mut out, number);
                }
            }
            Change::RollbackMerge => out.push(5),
            Change::Recover { lost } => {
                out.push(6);
                varint::put(&mut out, lost.len() as u64);
                lost.iter().for_each(|store| varint::put(&mut out, store.0));
            }
        }
        out
    }

    /// Decodes what [`Record::encode`] wrote; `None` if bytes are missing, invalid or left over.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let rest = &mut bytes;
        if take_byte(rest)? != FORMAT {
            return None;
        }
        let region = RegionId(varint::take(rest)?);
        let change = match take_byte(rest)? {
            0 => {
                let count = take_count(rest)?;
                Change::Members((0..count).map(|_| take_change(rest)).collect::<Option<_>>()?)
            }
            1 => Change::LeaveJoint,
            2 => Change::Split { count: take_count(rest)? },
            kind @ (3 | 4) => {
                let other = RegionId(varint::take(rest)?);
                let prepared = (LogIndex(varint::take(rest)?), Term(varint::take(rest)?));
                match kind {
                    3 => Change::PrepareMerge { target: other, prepared },
                    _ => Change::CommitMerge { source: other, prepared },
                }
            }
            5 => Change::RollbackMerge,
            6 => {
                let count = take_count(rest)?;
                let lost = (0..count).map(|_| varint::take(rest).map(StoreId));
                Change::Recover { lost: lost.collect::<Option<_>>()? }
            }
            _ => return None,
        };
        rest.is_empty().then_some(Self { region, change })
    }
}

fn take_change(rest: &mut &[u8]) -> Option<PeerChange> {
    let kind = match take_byte(rest)? {
        0 => ChangeKind::Remove,
        1 => ChangeKind::Add,
        _ => return None,
    };
    let (id, store) = (PeerId(varint::take(rest)?), StoreId(varint::take(rest)?));
    let role = PeerRole::from_number(u64::from(take_byte(rest)?))?;
    Some(PeerChange { kind, peer: Peer { id, store, role } })
}

fn take_count(rest: &mut &[u8]) -> Option<usize> {
    usize::try_from(varint::take(rest)?).ok().filter(|count| *count <= PARTS_MAX)
}

fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    let (&byte, tail) = rest.split_first()?;
    *rest = tail;
    Some(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_survives_the_round_trip_and_every_cut_is_refused() {
        let peer = Peer { id: PeerId(900), store: StoreId(3), role: PeerRole::Learner };
        let change = |kind| PeerChange { kind, peer };
        let changes = [
            Change::Members(vec![change(ChangeKind::Add), change(ChangeKind::Remove)]),
            Change::Members(Vec::new()),
            Change::LeaveJoint,
            Change::Split { count: 3 },
            Change::PrepareMerge { target: RegionId(1 << 40), prepared: (LogIndex(300), Term(9)) },
            Change::CommitMerge { source: RegionId(7), prepared: (LogIndex(300), Term(9)) },
            Change::RollbackMerge,
            Change::Recover { lost: vec![StoreId(2), StoreId(1 << 50)] },
        ];
        for change in changes {
            let record = Record { region: RegionId(77), change };
            let bytes = record.encode();
            assert_eq!(Record::decode(&bytes), Some(record));
            for cut in 0..bytes.len() {
                assert_eq!(Record::decode(&bytes[..cut]), None, "{bytes:?} cut at {cut}");
            }
            assert_eq!(Record::decode(&[&bytes[..], b"x"].concat()), None);
        }
    }

    #[test]
    fn a_count_beyond_the_bound_is_refused_before_anything_is_allocated() {
        let mut bytes = vec![FORMAT, 1, 0];
        varint::put(&mut bytes, u64::MAX);
        assert_eq!(Record::decode(&bytes), None);
    }
}
