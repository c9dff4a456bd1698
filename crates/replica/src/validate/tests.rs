//! Tests of each panic of Raft that a message can cause: first shown on Raft itself, then refused
//! here.

use super::*;
use crate::messages::RaftEntry;
use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{ConfState, Entry, HardState, Message, MessageType, Snapshot};
use raft::storage::MemStorage;
use raft::{Config, RawNode, StateRole};
use std::panic::{AssertUnwindSafe, catch_unwind};
use stele_types::{KeyRange, PeerRole, Region, RegionEpoch, RegionId, RegionKind};

const TERM: u64 = 5;
const LAST: u64 = 10;

/// Returns peer 1 of 1, 2, 3 in term 5, with durable entries 1 to 10 of term 5, of which 4 are
/// committed.
fn follower() -> RawNode<MemStorage> {
    let mut members = ConfState::default();
    members.set_voters(vec![1, 2, 3]);
    let storage = MemStorage::new_with_conf_state(members);
    let mut state = HardState::default();
    (state.term, state.commit) = (TERM, 4);
    let entries: Vec<Entry> = (1..=LAST).map(|index| raw_entry(index, TERM)).collect();
    storage.wl().append(&entries).unwrap();
    storage.wl().set_hardstate(state);
    let config = Config {
        id: 1,
        election_tick: 10,
        heartbeat_tick: 1,
        check_quorum: true,
        ..Config::default()
    };
    RawNode::new(&config, storage, &slog::Logger::root(slog::Discard, slog::o!())).unwrap()
}

fn leader() -> RawNode<MemStorage> {
    let mut node = follower();
    node.campaign().unwrap();
    let mut vote = raw(MessageType::MsgRequestVoteResponse, 6);
    vote.from = 2;
    node.step(vote).unwrap();
    assert_eq!(node.raft.state, StateRole::Leader);
    node
}

fn raw(kind: MessageType, term: u64) -> Message {
    let mut message = Message::default();
    message.set_msg_type(kind);
    (message.from, message.to, message.term) = (2, 1, term);
    message
}

fn raw_entry(index: u64, term: u64) -> Entry {
    let mut entry = Entry::default();
    (entry.index, entry.term) = (index, term);
    entry
}

fn stops(node: &mut RawNode<MemStorage>, message: Message) -> bool {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let _ = node.step(message);
    }));
    std::panic::set_hook(hook);
    outcome.is_err()
}

fn state() -> PeerState {
    PeerState {
        receiver: PeerId(1),
        term: Term(TERM),
        last: LogIndex(LAST),
        persisted: LogIndex(LAST),
        from_is_member: true,
        ..PeerState::default()
    }
}

fn leads() -> PeerState {
    PeerState { leader: Some(PeerId(1)), is_leader: true, ..state() }
}

fn message(kind: RaftKind) -> RaftMessage {
    let term = if has_no_term(kind) { 0 } else { TERM };
    RaftMessage::new(kind, Term(term))
}

fn entry(index: u64, term: u64) -> RaftEntry {
    RaftEntry { term: Term(term), index: LogIndex(index), payload: Bytes::new() }
}

#[track_caller]
fn refused(message: &RaftMessage, state: &PeerState, expected: &str) {
    let reason = check(message, PeerId(2), state).expect_err("passed");
    assert!(reason.contains(expected), "{reason}");
}

#[track_caller]
fn passes(message: &RaftMessage, state: &PeerState) {
    assert_eq!(check(message, PeerId(2), state), Ok(()));
}

#[test]
fn a_heartbeat_that_commits_what_is_not_here_stops_raft() {
    let mut beat = raw(MessageType::MsgHeartbeat, TERM);
    beat.commit = LAST + 1;
    assert!(stops(&mut follower(), beat.clone()));
    beat.commit = LAST;
    assert!(!stops(&mut follower(), beat));

    let mut beat = message(RaftKind::Heartbeat);
    beat.commit = LogIndex(LAST);
    passes(&beat, &state());
    beat.commit = LogIndex(LAST + 1);
    refused(&beat, &state(), "beyond the log");
    beat.term = Term(TERM - 1);
    passes(&beat, &state());
}

#[test]
fn entries_with_a_gap_stop_raft() {
    let mut append = raw(MessageType::MsgAppend, TERM);
    (append.index, append.log_term) = (LAST, TERM);
    append.set_entries(vec![raw_entry(LAST + 3, TERM)].into());
    assert!(stops(&mut follower(), append));

    let mut append = message(RaftKind::Append);
    (append.index, append.log_term) = (LogIndex(LAST), Term(TERM));
    append.entries = vec![entry(LAST + 1, TERM), entry(LAST + 2, TERM)];
    passes(&append, &state());
    append.entries.remove(0);
    refused(&append, &state(), "gap");
    append.entries = vec![entry(LAST + 1, TERM), entry(LAST + 1, TERM)];
    refused(&append, &state(), "gap");
}

#[test]
fn an_append_after_no_entry_stops_raft() {
    let mut append = raw(MessageType::MsgAppend, TERM);
    (append.index, append.commit) = (LAST + 5, LAST + 5);
    assert!(stops(&mut follower(), append), "an absent entry has term 0");

    let mut append = message(RaftKind::Append);
    append.index = LogIndex(LAST + 5);
    refused(&append, &state(), "no entry");
    append.index = LogIndex(0);
    passes(&append, &state());
    append.log_term = Term(1);
    refused(&append, &state(), "no entry");
}

#[test]
fn an_entry_of_term_0_stops_raft() {
    let mut append = raw(MessageType::MsgAppend, TERM);
    (append.index, append.log_term, append.commit) = (LAST, TERM, LAST + 1);
    append.set_entries(vec![raw_entry(LAST + 1, 0)].into());
    assert!(stops(&mut follower(), append));

    let mut append = message(RaftKind::Append);
    (append.index, append.log_term) = (LogIndex(LAST), Term(TERM));
    for term in [0, TERM - 1, TERM + 1] {
        append.entries = vec![entry(LAST + 1, term)];
        refused(&append, &state(), "falling or future");
    }
    append.log_term = Term(TERM + 1);
    refused(&append, &state(), "ahead");
    (append.index, append.log_term) = (LogIndex(0), Term(0));
    append.entries = vec![entry(1, 0)];
    refused(&append, &state(), "falling or future");
}

#[test]
fn the_last_term_stops_raft_at_the_next_campaign() {
    let mut node = follower();
    assert!(!stops(&mut node, raw(MessageType::MsgRequestVote, u64::MAX)));
    let mut now = raw(MessageType::MsgTimeoutNow, u64::MAX);
    now.from = 3;
    if cfg!(debug_assertions) {
        assert!(stops(&mut node, now));
    }
    for term in [NUMBER_MAX, u64::MAX] {
        let mut vote = message(RaftKind::RequestVote);
        vote.term = Term(term);
        refused(&vote, &state(), "implausible term");
        let mut append = message(RaftKind::Append);
        (append.index, append.log_term) = (LogIndex(term), Term(1));
        refused(&append, &state(), "implausible index");
    }
    let mut append = message(RaftKind::Append);
    (append.index, append.log_term) = (LogIndex(NUMBER_MAX - 1), Term(1));
    append.entries = vec![entry(NUMBER_MAX, TERM)];
    refused(&append, &state(), "implausible index");
}

#[test]
fn a_missing_term_is_taken_for_a_local_message_and_stops_raft() {
    let mut vote = raw(MessageType::MsgRequestVote, 0);
    (vote.index, vote.log_term) = (LAST, TERM);
    assert!(stops(&mut follower(), vote));
    let mut confirmed = raw(MessageType::MsgReadIndexResp, 0);
    confirmed.index = LAST + 1;
    confirmed.set_entries(vec![Entry::default()].into());
    assert!(stops(&mut follower(), confirmed));

    for kind in RaftKind::ALL.into_iter().filter(|kind| !has_no_term(*kind)) {
        let mut local = message(kind);
        local.term = Term(0);
        refused(&local, &state(), "none where one belongs");
    }
}

#[test]
fn a_term_where_none_belongs_stops_raft_when_it_passes_the_message_on() {
    let mut node = follower();
    assert!(!stops(&mut node, raw(MessageType::MsgHeartbeat, TERM)));
    let mut read = raw(MessageType::MsgReadIndex, TERM);
    read.from = 3;
    read.set_entries(vec![Entry::default()].into());
    assert!(stops(&mut node, read));

    for kind in [RaftKind::ReadIndex, RaftKind::TransferLeader] {
        let mut probe = message(kind);
        probe.context = Bytes::from_static(b"read");
        passes(&probe, &leads());
        refused(&probe, &state(), "non-leader");
        probe.term = Term(TERM);
        refused(&probe, &leads(), "a term where none belongs");
    }
}

#[test]
fn an_acknowledgement_beyond_the_log_is_believed_by_raft() {
    let mut node = leader();
    let mut ack = raw(MessageType::MsgAppendResponse, 6);
    ack.index = LAST + 100;
    assert!(!stops(&mut node, ack));
    assert_eq!(node.raft.prs().get(2).unwrap().matched, LAST + 100);
    let mut ack = raw(MessageType::MsgAppendResponse, 6);
    ack.index = u64::MAX;
    if cfg!(debug_assertions) {
        assert!(stops(&mut node, ack));
    }

    for kind in [RaftKind::AppendResponse, RaftKind::HeartbeatResponse] {
        let fields: [fn(&mut RaftMessage) -> &mut LogIndex; 4] = [
            |answer| &mut answer.index,
            |answer| &mut answer.commit,
            |answer| &mut answer.reject_hint,
            |answer| &mut answer.request_snapshot,
        ];
        for field in fields {
            let mut answer = message(kind);
            *field(&mut answer) = LogIndex(LAST);
            passes(&answer, &leads());
            *field(&mut answer) = LogIndex(LAST + 1);
            refused(&answer, &leads(), "beyond the log");
            passes(&answer, &state());
        }
    }
}

#[test]
fn a_vote_that_wins_while_entries_are_unsaved_stops_raft() {
    let mut node = follower();
    let mut append = raw(MessageType::MsgAppend, TERM);
    (append.index, append.log_term) = (LAST, TERM);
    append.set_entries(vec![raw_entry(LAST + 1, TERM)].into());
    node.step(append).unwrap();
    node.step(raw(MessageType::MsgTimeoutNow, TERM)).unwrap();
    assert!(stops(&mut node, raw(MessageType::MsgRequestVoteResponse, TERM + 1)));

    let unsaved = PeerState { last: LogIndex(LAST + 1), leader: Some(PeerId(2)), ..state() };
    for kind in [RaftKind::RequestVoteResponse, RaftKind::RequestPreVoteResponse] {
        refused(&message(kind), &unsaved, "in flight");
        passes(&message(kind), &state());
    }
    refused(&message(RaftKind::TimeoutNow), &unsaved, "in flight");
}

#[test]
fn leadership_is_handed_over_by_the_leader_of_this_term_only() {
    let follows = |leader| PeerState { leader: Some(PeerId(leader)), ..state() };
    passes(&message(RaftKind::TimeoutNow), &follows(2));
    refused(&message(RaftKind::TimeoutNow), &follows(3), "non-leader");
    refused(&message(RaftKind::TimeoutNow), &state(), "non-leader");
    let mut later = message(RaftKind::TimeoutNow);
    later.term = Term(TERM + 1);
    refused(&later, &follows(2), "non-leader");
}

#[test]
fn one_term_has_one_leader() {
    let follows = PeerState { leader: Some(PeerId(3)), ..state() };
    for kind in [RaftKind::Append, RaftKind::Heartbeat] {
        let mut probe = message(kind);
        refused(&probe, &follows, "second leader");
        refused(&probe, &leads(), "second leader");
        probe.term = Term(TERM + 1);
        passes(&probe, &follows);
    }
}

// Catalogue: 60.
#[test]
fn answers_come_from_members_and_never_from_ourselves() {
    let unknown = PeerState { from_is_member: false, ..leads() };
    for kind in RaftKind::ALL {
        assert!(check(&message(kind), PeerId(1), &leads()).is_err(), "{kind:?}");
        assert!(check(&message(kind), PeerId(0), &leads()).is_err(), "{kind:?}");
        if is_for_members_only(kind) {
            refused(&message(kind), &unknown, "not a member");
        }
    }
    // A member of a later membership may be unknown here.
    passes(&message(RaftKind::RequestVote), &unknown);
    let mut append = message(RaftKind::Append);
    append.term = Term(TERM + 1);
    passes(&append, &PeerState { from_is_member: false, ..state() });
}

#[test]
fn reads_name_themselves_and_are_bounded() {
    let mut read = message(RaftKind::ReadIndex);
    refused(&read, &leads(), "without context");
    read.context = Bytes::from_static(b"1-1-1");
    passes(&read, &leads());
    refused(&read, &PeerState { pending_reads: PENDING_READS_MAX, ..leads() }, "too many reads");
    read.context = Bytes::from(vec![1; CONTEXT_BYTES_MAX + 1]);
    refused(&read, &leads(), "context too long");
    let confirmed = message(RaftKind::ReadIndexResponse);
    passes(&confirmed, &PeerState { leader: Some(PeerId(2)), ..state() });
    refused(&confirmed, &PeerState { leader: Some(PeerId(3)), ..state() }, "non-leader");
}

#[test]
fn only_appends_have_entries_and_admin_entries_can_be_read() {
    for kind in RaftKind::ALL.into_iter().filter(|kind| *kind != RaftKind::Append) {
        let mut full = message(kind);
        full.entries = vec![entry(1, 1)];
        refused(&full, &leads(), "too many entries");
    }
    let record = admin::AdminRecord { region: RegionId(7), change: admin::Change::LeaveJoint };
    let whole = admin::command(&record, &[]).unwrap().bytes().clone();
    let mut append = message(RaftKind::Append);
    append.entries = vec![RaftEntry { payload: whole.clone(), ..entry(1, 1) }];
    passes(&append, &state());
    append.entries[0].payload = whole.slice(..whole.len() - 1);
    refused(&append, &state(), "malformed admin");
}

fn peer(id: u64) -> Peer {
    Peer { id: PeerId(id), store: StoreId(100 + id), role: PeerRole::Voter }
}

fn header() -> SnapshotHeader {
    SnapshotHeader {
        region: Region {
            id: RegionId(7),
            peers: vec![peer(1), peer(2), peer(3)],
            ..Region::default()
        },
        at: (LogIndex(LAST + 1), Term(TERM)),
        leader_term: Term(TERM),
        from: peer(2),
        to: peer(1),
        bytes: 0,
        merges: None,
    }
}

#[test]
fn a_snapshot_with_members_that_contradict_each_other_stops_raft() {
    let mut snapshot = Snapshot::default();
    (snapshot.mut_metadata().index, snapshot.mut_metadata().term) = (LAST + 1, TERM);
    let members = snapshot.mut_metadata().mut_conf_state();
    members.set_voters(vec![1, 2]);
    members.set_learners(vec![1, 2]);
    let mut install = raw(MessageType::MsgSnapshot, TERM);
    install.set_snapshot(snapshot);
    assert!(install.compute_size() > 0 && stops(&mut follower(), install));

    let applied = LogIndex(LAST);
    let changed = |change: fn(&mut SnapshotHeader)| {
        let mut header = header();
        change(&mut header);
        check_snapshot(&header, Term(TERM), applied)
    };
    assert_eq!(changed(|_| {}), Ok(()));
    let broken: [fn(&mut SnapshotHeader); 11] = [
        |header| header.region.peers.push(peer(1)),
        |header| header.region.peers.iter_mut().for_each(|peer| peer.role = PeerRole::Learner),
        |header| header.region.peers.retain(|peer| peer.id != PeerId(1)),
        |header| header.region.phase = RegionPhase::Tombstone,
        |header| header.region.range = KeyRange::new("b", "a"),
        |header| header.at = (LogIndex(0), Term(0)),
        |header| header.at.1 = Term(TERM + 1),
        |header| header.at.0 = LogIndex(LAST),
        |header| header.leader_term = Term(TERM - 1),
        |header| header.at.0 = LogIndex(u64::MAX),
        |header| header.from = header.to,
    ];
    for (number, change) in broken.into_iter().enumerate() {
        assert!(changed(change).is_err(), "number {number}");
    }
}

#[test]
fn an_envelope_names_two_peers_on_two_stores() {
    let whole = PeerMessage {
        from_store: StoreId(102),
        to_store: StoreId(101),
        region: RegionId(7),
        kind: RegionKind::Data,
        range: KeyRange::all(),
        epoch: RegionEpoch::default(),
        from: peer(2),
        to: peer(1),
        body: crate::messages::Body::WakeUp,
    };
    assert_eq!(check_envelope(&whole, StoreId(101)), Ok(()));
    let broken: [fn(&mut PeerMessage); 7] = [
        |message| message.to_store = StoreId(9),
        |message| message.from_store = StoreId(9),
        |message| message.region = RegionId(0),
        |message| message.from = message.to,
        |message| message.from.id = PeerId(0),
        |message| message.to.store = StoreId(9),
        |message| message.range = KeyRange::new("b", "b"),
    ];
    for (number, change) in broken.into_iter().enumerate() {
        let mut message = whole.clone();
        change(&mut message);
        assert!(check_envelope(&message, StoreId(101)).is_err(), "number {number}");
    }
}

#[test]
fn a_message_between_stores_comes_from_another_store_to_this_one() {
    let lost = crate::messages::Body::EntryRecoveryRequest(Vec::new());
    let between = |from, to| {
        let message = PeerMessage::between_stores(StoreId(from), StoreId(to), lost.clone());
        check_stores(&message, StoreId(101))
    };
    assert_eq!(between(102, 101), Ok(()));
    for (from, to) in [(102, 103), (101, 101), (0, 101)] {
        assert!(between(from, to).is_err(), "from {from} to {to}");
    }
}
