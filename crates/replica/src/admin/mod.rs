//! Changes of a region, as entries of its log.
//!
//! Such an entry is an ordinary command. Its first operation puts the [`AdminRecord`] under the region's
//! admin key, the others put the descriptors that the change makes. So the engine applies and
//! replays them together with the data, and nothing can come in between. Pure functions compute the
//! descriptors before the entry is proposed.

mod members;
mod range;
mod region_change;

use crate::input::{ChangeKind, PeerChange};
pub(crate) use members::{change_peers, check_members, conf_state, leave_joint, recover};
use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2};
pub(crate) use range::{
    commit_merge, prepare_merge, refuse_merge, rollback_merge, split, tombstone,
};
pub use region_change::{RegionChange, RegionChangeKind, region_change};
use stele_types::{
    Command, CommandBuilder, LogIndex, Op, Peer, PeerId, PeerRole, Region, RegionId, Result,
    StoreId, Term, keyspace, varint,
};

// Encoding of a record and its descriptors as one command.

/// Returns the command of a change: the record, then the new descriptors in the given order. Fails
/// with `Invalid` if the command would exceed the size limit.
pub(crate) fn command(record: &AdminRecord, regions: &[Region]) -> Result<Command> {
    let mut builder = CommandBuilder::new();
    builder.put(&keyspace::admin_key(record.region), &record.encode(), 0)?;
    for region in regions {
        builder.put(&keyspace::region_key(region.id), &region.encode(), 0)?;
    }
    Ok(builder.build())
}

/// Returns whether an entry changes its region, that is, whether its command starts with a put of
/// an admin key. Reads only a few bytes.
pub(crate) fn is_admin(payload: &[u8]) -> bool {
    // Version 1, a put that never expires, a key of 10 bytes: the first bytes of [`command`].
    payload.strip_prefix(&[1, 0, 10]).is_some_and(|rest| {
        let key = rest.get(..10);
        key.is_some_and(keyspace::is_admin_key)
    })
}

/// Returns an admin entry's record and the descriptors it puts. `None` for other entries; for an
/// entry accepted by [`is_admin`] it means damage.
pub(crate) fn parse(payload: &[u8]) -> Option<(AdminRecord, Vec<Region>)> {
    if !is_admin(payload) {
        return None;
    }
    let mut ops = Command::ops_of(payload)?;
    let record = match ops.next()? {
        Op::Put { value, .. } => AdminRecord::decode(value)?,
        _ => return None,
    };
    let regions = ops.map(|op| match op {
        Op::Put { key, value, expires_at_s: 0, .. } => Region::decode(value)
            .ok()
            .filter(|region| keyspace::region_of_key(key) == Some(region.id)),
        _ => None,
    });
    Some((record, regions.collect::<Option<Vec<_>>>()?))
}

/// Returns the change of members in an entry in Raft's form, if it has one. Derived from the
/// entry's bytes alone, so that it is equal on every replica.
pub(crate) fn conf_change(payload: &[u8]) -> Option<ConfChangeV2> {
    let (record, _) = parse(payload)?;
    let mut out = ConfChangeV2::default();
    match record.change {
        Change::Members(changes) => {
            let several = changes.len() > 1;
            let singles = changes.iter().map(|change| {
                let node_id = change.peer.id.0;
                let mut single = ConfChangeSingle { node_id, ..ConfChangeSingle::default() };
                single.set_change_type(match (change.kind, change.peer.role) {
                    (ChangeKind::Remove, _) => ConfChangeType::RemoveNode,
                    (ChangeKind::Add, PeerRole::Voter) => ConfChangeType::AddNode,
                    (ChangeKind::Add, _) => ConfChangeType::AddLearnerNode,
                });
                single
            });
            out.set_changes(singles.collect::<Vec<_>>().into());
            // Explicit: the leader proposes to leave with an entry that has its own descriptors.
            if several {
                out.set_transition(ConfChangeTransition::Explicit);
            }
        }
        Change::LeaveJoint => {}
        _ => return None,
    }
    Some(out)
}

/// Returns whether an entry changes the members of its region.
pub fn changes_members(payload: &[u8]) -> bool {
    conf_change(payload).is_some()
}

// Record of the change that an admin entry makes. The descriptors in the entry hold the result.
//
// ```text
// record := version:u8 (1) region kind:u8 body
// body   := 0 change peers   count, then count × (add:u8 peer:id peer:store role:u8)
//         | 1 leave joint
//         | 2 split          count of new regions
//         | 3 prepare merge  target index term
//         | 4 commit merge   source index term
//         | 5 rollback merge
//         | 6 recover        count, then count × lost store     (numbers are varints)
// ```

const FORMAT: u8 = 1;
/// Most changes or stores in one record, and most regions that one split creates.
pub(super) const PARTS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdminRecord {
    pub region: RegionId,
    pub change: Change,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Changes of members: one at once, several by a joint configuration.
    Members(Vec<PeerChange>),
    LeaveJoint,
    /// Split: new regions take the keys from each split key on.
    Split {
        count: usize,
    },
    /// Preparation of a merge: no writes after it, until the target takes over or the preparation
    /// is rolled back.
    PrepareMerge {
        target: RegionId,
        /// Index and term of this entry.
        prepared: (LogIndex, Term),
    },
    /// Commit of a merge: takes over a prepared region.
    CommitMerge {
        source: RegionId,
        /// Index and term of the entry that prepared it.
        prepared: (LogIndex, Term),
    },
    RollbackMerge,
    /// Continuation without the peers on these stores, which are lost permanently. No majority
    /// agreed to it.
    Recover {
        lost: Vec<StoreId>,
    },
}

impl AdminRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
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

    /// Decodes what [`AdminRecord::encode`] wrote; `None` if bytes are missing, invalid or left over.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
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
    use crate::input::PeerChange;
    use stele_types::{Peer, PeerId, RegionId, StoreId};

    fn region(id: u64) -> Region {
        Region { id: RegionId(id), ..Region::default() }
    }

    #[test]
    fn a_change_survives_the_round_trip_through_its_command() {
        let record = AdminRecord { region: RegionId(7), change: Change::Split { count: 1 } };
        let regions = vec![region(7), region(8)];
        let command = command(&record, &regions).unwrap();
        assert!(is_admin(command.bytes()));
        assert_eq!(parse(command.bytes()), Some((record, regions)));
        assert_eq!(conf_change(command.bytes()), None);
    }

    #[test]
    fn data_is_no_admin_entry() {
        let mut builder = CommandBuilder::new();
        builder.put(&stele_types::ColumnFamily::Default.engine_key(b"012345678"), b"", 0).unwrap();
        let data = builder.build();
        assert!(!is_admin(data.bytes()) && parse(data.bytes()).is_none());
        assert!(!is_admin(b""));
    }

    #[test]
    fn an_admin_entry_whose_bytes_are_damaged_is_not_read_as_something_else() {
        let record = AdminRecord { region: RegionId(7), change: Change::LeaveJoint };
        let whole = command(&record, &[region(7)]).unwrap();
        for cut in 14..whole.bytes().len() {
            let bytes = whole.bytes().slice(..cut);
            assert!(is_admin(&bytes));
            let read = parse(&bytes);
            assert!(read.is_none_or(|(_, regions)| regions.is_empty()), "cut at {cut}");
        }
        let mut builder = CommandBuilder::new();
        builder.put(&keyspace::admin_key(RegionId(7)), &record.encode(), 0).unwrap();
        builder.put(&keyspace::region_key(RegionId(9)), &region(7).encode(), 0).unwrap();
        assert!(parse(builder.build().bytes()).is_none(), "a descriptor under another's key");
    }

    #[test]
    fn raft_is_told_of_members_only() {
        let peer = |id, role| Peer { id: PeerId(id), store: StoreId(id), role };
        let add = |peer| PeerChange { kind: ChangeKind::Add, peer };
        let conf = |change| {
            let record = AdminRecord { region: RegionId(7), change };
            conf_change(command(&record, &[region(7)]).unwrap().bytes())
        };
        let one = conf(Change::Members(vec![add(peer(1, PeerRole::Learner))])).unwrap();
        assert_eq!(one.enter_joint(), None);
        let two = vec![add(peer(1, PeerRole::Learner)), add(peer(2, PeerRole::Voter))];
        assert_eq!(conf(Change::Members(two)).unwrap().enter_joint(), Some(false));
        assert!(conf(Change::LeaveJoint).unwrap().leave_joint());
        assert_eq!(conf(Change::RollbackMerge), None);
    }

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
            let record = AdminRecord { region: RegionId(77), change };
            let bytes = record.encode();
            assert_eq!(AdminRecord::decode(&bytes), Some(record));
            for cut in 0..bytes.len() {
                assert_eq!(AdminRecord::decode(&bytes[..cut]), None, "{bytes:?} cut at {cut}");
            }
            assert_eq!(AdminRecord::decode(&[&bytes[..], b"x"].concat()), None);
        }
    }

    #[test]
    fn a_count_beyond_the_bound_is_refused_before_anything_is_allocated() {
        let mut bytes = vec![FORMAT, 1, 0];
        varint::put(&mut bytes, u64::MAX);
        assert_eq!(AdminRecord::decode(&bytes), None);
    }
}
