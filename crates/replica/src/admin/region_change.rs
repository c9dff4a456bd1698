//! Changes of a region as a reader of its log sees them: from the entry alone, without the state of a
//! replica.

use super::{Change, parse};
use stele_types::{LogIndex, Region, RegionId};

/// Change of the keys of a region, or of what its log accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionChange {
    /// The region as the entry leaves it.
    pub region: Region,
    /// What the entry changed.
    pub kind: RegionChangeKind,
}

/// Kind of a [`RegionChange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionChangeKind {
    /// New regions took the keys from each split key on.
    Split {
        /// The new regions in key order. The first entry of each of their logs has index 6.
        children: Vec<Region>,
    },
    /// The region was prepared for a merge: no write follows unless that is rolled back.
    Prepared {
        /// Region that takes the keys over.
        target: RegionId,
    },
    /// The region took over the keys of a prepared one.
    Merged {
        /// The region that is merged away.
        source: RegionId,
        /// Entry of its log that prepared it. Later ones do not count.
        prepared: LogIndex,
    },
    /// The preparation of a merge was rolled back: writes follow.
    RolledBack,
}

/// Returns the change in an entry, if it changes the keys of its region. Changes of members do not.
/// `None` also for a damaged one, which stops a replica before it is applied.
pub fn region_change(payload: &[u8]) -> Option<RegionChange> {
    let (record, regions) = parse(payload)?;
    let mut regions = regions.into_iter();
    let region = regions.next().filter(|region| region.id == record.region)?;
    let kind = match record.change {
        Change::Split { .. } => RegionChangeKind::Split { children: regions.collect() },
        Change::PrepareMerge { target, .. } => RegionChangeKind::Prepared { target },
        Change::CommitMerge { source, prepared: (prepared, _) } => {
            RegionChangeKind::Merged { source, prepared }
        }
        Change::RollbackMerge => RegionChangeKind::RolledBack,
        Change::Members(_) | Change::LeaveJoint | Change::Recover { .. } => return None,
    };
    Some(RegionChange { region, kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{self, AdminRecord};
    use crate::input::{ChangeKind, NewRegion, PeerChange};
    use bytes::Bytes;
    use stele_types::{
        ColumnFamily, CommandBuilder, KeyRange, Peer, PeerId, PeerRole, StoreId, Term,
    };

    const AT: (LogIndex, Term) = (LogIndex(9), Term(6));

    fn region(id: u64, start: &'static str, end: &'static str) -> Region {
        let peer = |store| Peer {
            id: PeerId(id * 10 + store),
            store: StoreId(store),
            role: PeerRole::Voter,
        };
        let peers = (1..=3).map(peer).collect();
        Region { id: RegionId(id), range: KeyRange::new(start, end), peers, ..Region::default() }
    }

    fn seen(change: Change, regions: &[Region]) -> Option<RegionChange> {
        let record = AdminRecord { region: regions[0].id, change };
        region_change(admin::command(&record, regions).unwrap().bytes())
    }

    #[test]
    fn each_change_of_keys_is_named_with_the_region_as_it_leaves_it() {
        let ids =
            NewRegion { region: RegionId(8), peers: vec![PeerId(81), PeerId(82), PeerId(83)] };
        let split = admin::split(&region(7, "b", "q"), &[Bytes::from("m")], &[ids]).unwrap();
        let (parent, children) = (split[0].clone(), split[1..].to_vec());
        assert_eq!(parent.range, KeyRange::new("b", "m"));
        let kind = RegionChangeKind::Split { children };
        let expected = RegionChange { region: parent, kind };
        assert_eq!(seen(Change::Split { count: 1 }, &split), Some(expected));

        let (source, target) = (region(7, "b", "m"), region(9, "m", "z"));
        let prepared = admin::prepare_merge(&source, &target, AT).unwrap();
        let kind = RegionChangeKind::Prepared { target: target.id };
        let change = Change::PrepareMerge { target: target.id, prepared: AT };
        let expected = RegionChange { region: prepared.clone(), kind };
        assert_eq!(seen(change, std::slice::from_ref(&prepared)), Some(expected));

        let (merged, gone) = admin::commit_merge(&target, &prepared, AT.0).unwrap();
        let kind = RegionChangeKind::Merged { source: source.id, prepared: AT.0 };
        let change = Change::CommitMerge { source: source.id, prepared: AT };
        let expected = RegionChange { region: merged.clone(), kind };
        assert_eq!(seen(change, &[merged, gone]), Some(expected));

        let back = admin::rollback_merge(&prepared).unwrap();
        let kind = RegionChangeKind::RolledBack;
        let expected = RegionChange { region: back.clone(), kind };
        assert_eq!(seen(Change::RollbackMerge, &[back]), Some(expected));
    }

    #[test]
    fn changes_of_members_and_writes_change_no_keys() {
        let here = region(7, "b", "m");
        let peer = Peer { id: PeerId(74), store: StoreId(4), role: PeerRole::Learner };
        let add = PeerChange { kind: ChangeKind::Add, peer };
        let lost = vec![StoreId(2), StoreId(3)];
        let members = [Change::Members(vec![add]), Change::LeaveJoint, Change::Recover { lost }];
        for change in members {
            assert_eq!(seen(change, std::slice::from_ref(&here)), None);
        }
        let mut write = CommandBuilder::new();
        write.put(&ColumnFamily::Default.engine_key(b"key"), b"value", 0).unwrap();
        assert_eq!(region_change(write.build().bytes()), None);
        assert_eq!(region_change(b""), None);
    }

    #[test]
    fn an_entry_with_the_descriptor_of_another_region_first_is_none() {
        let record = AdminRecord { region: RegionId(7), change: Change::RollbackMerge };
        let command = admin::command(&record, &[region(8, "b", "m")]).unwrap();
        assert_eq!(region_change(command.bytes()), None);
        let command = admin::command(&record, &[]).unwrap();
        assert_eq!(region_change(command.bytes()), None);
    }
}
