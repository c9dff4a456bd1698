//! Encoding of a record and its descriptors as one command.

use super::{Change, Record};
use crate::input::ChangeKind;
use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2};
use stele_types::{Command, CommandBuilder, Op, PeerRole, Region, Result, keyspace};

/// Returns the command of a change: the record, then the new descriptors in the given order. Fails
/// with `Invalid` if the command would exceed the size limit.
pub(crate) fn command(record: &Record, regions: &[Region]) -> Result<Command> {
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
pub(crate) fn parse(payload: &[u8]) -> Option<(Record, Vec<Region>)> {
    if !is_admin(payload) {
        return None;
    }
    let mut ops = Command::ops_of(payload)?;
    let record = match ops.next()? {
        Op::Put { value, .. } => Record::decode(value)?,
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
        let record = Record { region: RegionId(7), change: Change::Split { count: 1 } };
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
        let record = Record { region: RegionId(7), change: Change::LeaveJoint };
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
            let record = Record { region: RegionId(7), change };
            conf_change(command(&record, &[region(7)]).unwrap().bytes())
        };
        let one = conf(Change::Members(vec![add(peer(1, PeerRole::Learner))])).unwrap();
        assert_eq!(one.enter_joint(), None);
        let two = vec![add(peer(1, PeerRole::Learner)), add(peer(2, PeerRole::Voter))];
        assert_eq!(conf(Change::Members(two)).unwrap().enter_joint(), Some(false));
        assert!(conf(Change::LeaveJoint).unwrap().leave_joint());
        assert_eq!(conf(Change::RollbackMerge), None);
    }
}
