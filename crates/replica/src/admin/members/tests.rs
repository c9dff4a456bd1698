use super::super::{AdminRecord, Change, command, conf_change};
use super::*;
use raft::storage::MemStorage;
use raft::{Config, RawNode};
use stele_types::{LogIndex, PeerId, Prng, RegionEpoch, RegionId, StoreId, Term};

fn peer(id: u64, role: PeerRole) -> Peer {
    Peer { id: PeerId(id), store: StoreId(100 + id), role }
}

fn region(peers: &[(u64, PeerRole)]) -> Region {
    Region {
        id: RegionId(7),
        epoch: RegionEpoch { conf_version: 1, version: 1 },
        peers: peers.iter().map(|(id, role)| peer(*id, *role)).collect(),
        ..Region::default()
    }
}

fn voters(count: u64) -> Region {
    region(&(1..=count).map(|id| (id, PeerRole::Voter)).collect::<Vec<_>>())
}

fn plus(id: u64, role: PeerRole) -> PeerChange {
    PeerChange { kind: ChangeKind::Add, peer: peer(id, role) }
}

fn minus(id: u64) -> PeerChange {
    PeerChange { kind: ChangeKind::Remove, peer: peer(id, PeerRole::Voter) }
}

fn roles(region: &Region) -> String {
    let letter = |peer: &Peer| match peer.role {
        PeerRole::Voter => 'v',
        PeerRole::Learner => 'l',
        PeerRole::IncomingVoter => 'i',
        PeerRole::DemotingVoter => 'd',
    };
    let words: Vec<_> =
        region.peers.iter().map(|peer| format!("{}{}", letter(peer), peer.id)).collect();
    format!("{} @{}", words.join(" "), region.epoch.conf_version)
}

#[test]
fn one_voter_grows_to_three_and_a_voter_is_replaced() {
    let steps: &[(&[PeerChange], &str)] = &[
        (&[plus(2, PeerRole::Learner)], "v1 l2 @2"),
        (&[plus(2, PeerRole::Voter)], "v1 v2 @3"),
        (&[plus(3, PeerRole::Learner)], "v1 v2 l3 @4"),
        (&[plus(3, PeerRole::Voter)], "v1 v2 v3 @5"),
        (&[plus(4, PeerRole::Learner)], "v1 v2 v3 l4 @6"),
        (&[plus(4, PeerRole::Voter), plus(1, PeerRole::Learner)], "d1 v2 v3 i4 @8"),
        (&[], "l1 v2 v3 v4 @9"),
        (&[minus(1)], "v2 v3 v4 @10"),
    ];
    let mut now = voters(1);
    for (changes, after) in steps {
        now = match changes.is_empty() {
            true => leave_joint(&now).unwrap(),
            false => change_peers(&now, changes).unwrap(),
        };
        assert_eq!(roles(&now), *after);
    }
}

// Catalogue: 42, 43.
#[test]
fn changes_that_break_the_rules_are_refused() {
    let joint =
        region(&[(1, PeerRole::DemotingVoter), (2, PeerRole::Voter), (4, PeerRole::IncomingVoter)]);
    let mut merging = voters(3);
    merging.phase = RegionPhase::Merging {
        target: RegionId(8),
        prepared: LogIndex(1),
        term: Term(1),
        target_epoch: RegionEpoch::default(),
    };
    let mut same_store = plus(9, PeerRole::Learner);
    same_store.peer.store = StoreId(101);
    let mut moved = plus(1, PeerRole::Learner);
    moved.peer.store = StoreId(999);
    let learner = region(&[(1, PeerRole::Voter), (2, PeerRole::Learner)]);
    let refused: &[(&Region, &[PeerChange], &str)] = &[
        (&voters(3), &[], "0 membership changes"),
        (&voters(3), &[plus(1, PeerRole::Voter)], "already"),
        (&voters(3), &[minus(9)], "not a member"),
        (&voters(3), &[plus(9, PeerRole::Voter)], "learner first"),
        (&voters(3), &[same_store], "two peers on one store"),
        (&voters(3), &[moved], "is on store"),
        (&voters(1), &[minus(1)], "no voter"),
        (&voters(1), &[plus(1, PeerRole::Learner)], "no voter"),
        (&learner, &[plus(1, PeerRole::Learner), minus(2)], "no voter"),
        (&voters(3), &[minus(1), plus(2, PeerRole::Learner)], "make it a learner"),
        (&voters(3), &[plus(4, PeerRole::Learner), plus(5, PeerRole::Learner)], "alone"),
        (&voters(3), &[plus(4, PeerRole::Learner), minus(4)], "twice"),
        (&joint, &[plus(5, PeerRole::Learner)], "between two"),
        (&joint, &[minus(1)], "between two"),
        (&merging, &[plus(5, PeerRole::Learner)], "merging"),
        (&voters(3), &[plus(0, PeerRole::Learner)], "is 0"),
    ];
    for (before, changes, reason) in refused {
        let error = change_peers(before, changes).unwrap_err();
        assert!(error.contains(reason), "{changes:?}: {error}");
    }
    assert!(leave_joint(&voters(3)).is_err());
}

fn raft_of(region: &Region) -> RawNode<MemStorage> {
    let storage = MemStorage::new_with_conf_state(conf_state(region));
    let config = Config { id: 1, election_tick: 10, heartbeat_tick: 1, ..Config::default() };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    RawNode::new(&config, storage, &logger).unwrap()
}

fn any_changes(prng: &mut Prng) -> Vec<PeerChange> {
    let count = 1 + prng.below(3);
    let change = |prng: &mut Prng| match (1 + prng.below(6), prng.below(3)) {
        (id, 0) => minus(id),
        (id, 1) => plus(id, PeerRole::Learner),
        (id, _) => plus(id, PeerRole::Voter),
    };
    (0..count).map(|_| change(prng)).collect()
}

/// Replays with `STELE_SEED=<seed> cargo test -p stele-replica descriptors_and_raft_agree`.
#[test]
fn descriptors_and_raft_agree_after_every_change_and_raft_refuses_none_we_take() {
    let chosen = std::env::var("STELE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = chosen.unwrap_or(0x51e1e);
    println!("STELE_SEED={seed}");
    let mut prng = Prng::new(seed);
    let (mut taken, mut joint) = (0, 0);
    for _ in 0..60 {
        let mut now = voters(1);
        let mut raft = raft_of(&now);
        for _ in 0..60 {
            let (change, next) = match now.is_joint() {
                true => (Change::LeaveJoint, leave_joint(&now)),
                false => {
                    let changes = any_changes(&mut prng);
                    let next = change_peers(&now, &changes);
                    (Change::Members(changes), next)
                }
            };
            let Ok(next) = next else { continue };
            let record = AdminRecord { region: now.id, change };
            let entry = command(&record, std::slice::from_ref(&next)).unwrap();
            let conf = conf_change(entry.bytes()).unwrap();
            let theirs = raft.apply_conf_change(&conf).unwrap();
            assert!(raft_proto_eq(&theirs, &conf_state(&next)), "{record:?}: {theirs:?} {next:?}");
            let _ = raft_of(&next);
            taken += 1;
            joint += u32::from(next.is_joint());
            now = next;
        }
    }
    assert!(taken > 500 && joint > 50, "{taken} {joint}");
}

fn raft_proto_eq(a: &ConfState, b: &ConfState) -> bool {
    let sets = |state: &ConfState| {
        [&state.voters, &state.learners, &state.voters_outgoing, &state.learners_next]
            .map(|ids| ids.iter().copied().collect::<BTreeSet<u64>>())
    };
    sets(a) == sets(b) && a.auto_leave == b.auto_leave
}

/// Peers, lost ones, and the region afterwards.
type Lost<'a> = (&'a [(u64, PeerRole)], &'a [u64], &'a str);

#[test]
fn the_peers_that_are_left_become_the_voters_if_the_others_had_a_majority() {
    use PeerRole::{DemotingVoter, IncomingVoter, Learner, Voter};
    let lost = |ids: &[u64]| ids.iter().map(|id| StoreId(100 + id)).collect::<Vec<_>>();
    let rows: &[Lost<'_>] = &[
        (&[(1, Voter), (2, Voter), (3, Voter)], &[2, 3], "v1 @3"),
        (&[(1, Voter), (2, Voter), (3, Voter)], &[2, 3, 9], "v1 @3"),
        (&[(1, Voter), (2, Voter), (3, Voter), (4, Learner)], &[1, 2], "v3 v4 @4"),
        (&[(1, Voter), (2, Learner)], &[1], "v2 @3"),
        (&[(1, Voter), (2, Voter)], &[2], "v1 @2"),
        (&[(1, Voter), (2, Voter), (3, Voter), (4, Voter), (5, Voter)], &[1, 2, 3], "v4 v5 @4"),
        // Of a joint configuration, one of both majorities is lost.
        (&[(1, DemotingVoter), (2, Voter), (3, IncomingVoter)], &[1], "v2 v3 @3"),
        (&[(1, DemotingVoter), (2, Voter), (3, IncomingVoter)], &[3], "v1 v2 @3"),
    ];
    for (peers, gone, after) in rows {
        assert_eq!(roles(&recover(&region(peers), &lost(gone)).unwrap()), *after);
    }
    let refused =
        |peers: &[(u64, PeerRole)], gone: &[u64]| recover(&region(peers), &lost(gone)).unwrap_err();
    let three = [(1, Voter), (2, Voter), (3, Voter)];
    assert!(refused(&three, &[3]).contains("majority of its voters is not lost"));
    assert!(refused(&three, &[]).contains("majority of its voters is not lost"));
    assert!(refused(&three, &[1, 2, 3]).contains("all its peers are lost"));
    assert!(refused(&[(1, Voter), (2, Learner)], &[2]).contains("majority"));
}
