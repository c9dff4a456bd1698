//! Tests of entries that are applied beside the loop: the engine holds an unknown part of what is
//! handed out, until it is reported.

use super::*;
use stele_storage::{Overlaid, Repair, Snapshots, StateMachine};

/// Returns three stores with queues, of which the first leads, with a lease, and holds its applies.
fn holding(options: fn(&mut Options)) -> Trial {
    let mut trial = Trial::with(3, options);
    trial.lead(DATA, 1);
    trial.ticks(4);
    trial.store(1).holds_applies = true;
    trial
}

fn queue(options: &mut Options) {
    options.apply_queue = true;
}

fn queue_with_short_log(options: &mut Options) {
    queue(options);
    options.log_kept = LogKept { entries: 10, pin_bytes_max: 1_000 };
}

fn queue_alone(options: &mut Options) {
    queue(options);
    (options.commit_return, options.read_acceleration) = (false, false);
}

/// Returns what a read under the lease of a store finds; an error if there is no lease.
fn leased(trial: &mut Trial, store: u64, name: &str) -> Result<Option<String>, &'static str> {
    let now = trial.now;
    let reader = trial.store(store).core.readers().get(DATA).unwrap();
    let permit = reader.permit(&Header::default(), now).ok_or("no lease")?;
    let view = trial.store(store).engine.view().unwrap();
    let effects = reader.effects(&permit, now).ok_or("applied meanwhile")?;
    let pair = Overlaid::new(view, effects).get(&key(name)).unwrap();
    Ok(pair.map(|pair| String::from_utf8(pair.value.to_vec()).unwrap()))
}

fn value(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Writes on store 1 and lets the write commit.
fn written(trial: &mut Trial, name: &str, value: &str) -> RequestId {
    let write = trial.write(1, put(name, value));
    trial.settle();
    write
}

fn change(kind: ChangeKind, peer: Peer) -> Admin {
    Admin::ChangePeers(vec![PeerChange { kind, peer }])
}

#[test]
fn a_committed_write_is_handed_out_and_the_loop_goes_on() {
    let mut trial = holding(queue);
    let before = trial.report(1, DATA).applied;
    let writes = ["1", "2", "3"].map(|value| written(&mut trial, "a", value));
    assert!(writes.iter().all(|write| trial.is_written(*write)));
    assert_eq!(trial.store(1).applies.len(), 3);
    assert_eq!(leased(&mut trial, 1, "a"), Ok(value("3")));
    assert!(trial.apply_next(1));
    // The view holds more than is reported.
    assert_eq!(trial.value(1, "a"), value("1"));
    assert_eq!(trial.report(1, DATA).applied, before);
    assert_eq!(leased(&mut trial, 1, "a"), Ok(value("3")));
    trial.apply_all(1);
    trial.settle();
    assert_eq!(trial.report(1, DATA).applied.0, before.0 + 3);
    assert_eq!(trial.store(1).core.tail_bytes(), 0);
    assert_eq!(leased(&mut trial, 1, "a"), Ok(value("3")));
}

#[test]
fn without_commit_return_a_write_is_answered_when_its_apply_is_reported() {
    let mut trial = holding(|options| {
        queue(options);
        options.commit_return = false;
    });
    let writes = ["1", "2"].map(|value| written(&mut trial, "a", value));
    assert!(trial.apply_next(1));
    trial.settle();
    assert_eq!(writes.map(|write| trial.is_written(write)), [false, false]);
    assert_eq!(leased(&mut trial, 1, "a"), Ok(value("2")), "a follower may serve it already");
    trial.report_applied(1);
    trial.settle();
    assert_eq!(writes.map(|write| trial.is_written(write)), [true, false]);
    trial.apply_all(1);
    trial.settle();
    assert!(trial.is_written(writes[1]));
}

#[test]
fn without_acceleration_a_read_waits_until_apply_is_reported() {
    let mut trial = holding(|options| {
        queue(options);
        options.read_acceleration = false;
    });
    let write = written(&mut trial, "a", "1");
    assert!(trial.is_written(write));
    assert_eq!(leased(&mut trial, 1, "a"), Err("no lease"));
    let read = trial.read(1, false);
    trial.ticks(4);
    assert_eq!(trial.reply(read), None);
    trial.apply_all(1);
    trial.settle();
    assert!(matches!(trial.reply(read), Some(Reply::Done(Done::ReadReady { .. }))));
    assert_eq!(leased(&mut trial, 1, "a"), Ok(value("1")));
}

#[test]
fn what_is_handed_out_and_not_applied_survives_a_power_cut() {
    let mut trial = holding(queue);
    let write = written(&mut trial, "a", "1");
    assert!(trial.is_written(write));
    trial.restart(1);
    let leader = trial.elect(DATA);
    trial.ticks(10);
    for store in [1, leader] {
        assert_eq!(trial.value(store, "a"), value("1"), "store {store}");
    }
}

#[test]
fn the_stages_of_a_write_and_the_wait_of_a_read_are_measured() {
    let mut trial = holding(|options| {
        queue(options);
        options.read_acceleration = false;
    });
    let before = trial.store(1).core.times().sums();
    trial.store(1).stalled = true;
    trial.isolate(3);
    trial.cut.insert((2, 1));
    let write = written(&mut trial, "a", "1");
    trial.advance(1_000);
    trial.store(1).stalled = false;
    trial.settle();
    trial.advance(2_000);
    trial.heal();
    // A follower sends its answer again when it is asked.
    let proposed = trial.now - 3_000;
    trial.ticks(2);
    assert!(trial.is_written(write));
    let committed = trial.now;
    let read = trial.read(1, false);
    trial.settle();
    let Apply { region, incarnation, entries } = trial.store(1).applies.pop_front().unwrap();
    let index = entries[0].index;
    trial.store(1).engine.apply(region, &entries).unwrap();
    let (began_nanos, ended_nanos) = (committed + 50, committed + 120);
    trial.advance(200);
    let report = Input::Applied { region, incarnation, index, began_nanos, ended_nanos };
    trial.store(1).core.step(report);
    trial.settle();
    assert!(matches!(trial.reply(read), Some(Reply::Done(Done::ReadReady { .. }))));
    let sums = trial.store(1).core.times().sums();
    let expected = StageSums {
        writes: before.writes + 1,
        append_wait_nanos: before.append_wait_nanos,
        append_nanos: before.append_nanos + 1_000,
        commit_nanos: before.commit_nanos + committed - proposed,
        apply_wait_nanos: before.apply_wait_nanos + 50,
        apply_nanos: before.apply_nanos + 70,
        waited_reads: before.waited_reads + 1,
        read_wait_nanos: before.read_wait_nanos + 200,
    };
    assert_eq!(sums, expected);
}

#[test]
fn a_report_for_another_replica_or_of_other_entries_has_no_effect() {
    let mut trial = holding(queue);
    written(&mut trial, "a", "1");
    let handed = trial.store(1).applies[0].clone();
    let (before, last) = (trial.report(1, DATA).applied, handed.entries[0].index);
    let report = |incarnation: u64, index: LogIndex| Input::Applied {
        region: DATA,
        incarnation,
        index,
        began_nanos: 0,
        ended_nanos: 0,
    };
    let incarnation = handed.incarnation;
    for (incarnation, index) in
        [(incarnation + 1, last), (incarnation, last.next()), (incarnation, before)]
    {
        trial.store(1).core.step(report(incarnation, index));
        trial.settle();
        assert_eq!(trial.report(1, DATA).applied, before, "{incarnation}, {index}");
    }
    trial.apply_all(1);
    assert_eq!(trial.report(1, DATA).applied, last);
}

#[test]
fn a_split_is_applied_when_everything_before_it_is() {
    let mut trial = holding(queue);
    written(&mut trial, "a", "1");
    written(&mut trial, "m", "1");
    let new =
        NewRegion { region: RegionId(77), peers: vec![PeerId(201), PeerId(202), PeerId(203)] };
    let keys = vec![Bytes::from_static(b"h")];
    let split = trial.admin(1, DATA, Admin::Split { keys, new_ids: vec![new] });
    trial.settle();
    trial.apply_next(1);
    trial.report_applied(1);
    trial.settle();
    assert_eq!(trial.reply(split), None, "one write before it is not applied");
    assert!(trial.store(1).core.region(RegionId(77)).is_none());
    trial.apply_all(1);
    trial.settle();
    assert!(matches!(trial.reply(split), Some(Reply::Done(Done::Admin { .. }))));
    assert_eq!(trial.value(1, "m"), value("1"));
    assert!(trial.store(1).core.region(RegionId(77)).is_some());
}

#[test]
fn a_snapshot_holds_exactly_the_entries_up_to_its_header() {
    let mut trial = Trial::with(3, queue_with_short_log);
    trial.lead(DATA, 1);
    trial.isolate(3);
    written(&mut trial, "x", "1");
    outgrow_log(&mut trial);
    trial.store(1).holds_applies = true;
    written(&mut trial, "x", "2");
    let last = trial.report(1, DATA).last;
    trial.apply_next(1);
    trial.heal();
    trial.ticks(20);
    let installed = trial.report(3, DATA).applied;
    assert!(installed >= last || trial.value(3, "x") != value("2"), "pairs of a later entry");
    // Nothing more is handed out: the state is exact once the first is reported.
    written(&mut trial, "x", "3");
    assert!(trial.store(1).applies.is_empty());
    trial.store(3).holds_applies = true;
    trial.report_applied(1);
    trial.ticks(20);
    assert_eq!(trial.value(3, "x"), value("2"));
    assert_eq!(trial.report(3, DATA).applied, last);
    for store in [1, 3] {
        trial.store(store).holds_applies = false;
        assert!(trial.apply_all(store));
    }
    trial.ticks(20);
    assert_eq!(trial.value(3, "x"), value("3"));
}

/// Returns three stores of which the last is isolated: it lacks entries that the leader has dropped, and
/// holds an entry that was handed out and is not applied.
fn in_need_of_a_snapshot() -> Trial {
    let mut trial = Trial::with(3, queue_with_short_log);
    trial.lead(DATA, 1);
    trial.store(3).holds_applies = true;
    written(&mut trial, "x", "1");
    trial.send_heartbeats();
    assert_eq!(trial.store(3).applies.len(), 1);
    trial.isolate(3);
    outgrow_log(&mut trial);
    trial
}

#[test]
fn a_snapshot_is_installed_when_what_was_handed_out_is_applied() {
    let mut trial = in_need_of_a_snapshot();
    trial.heal();
    trial.ticks(20);
    assert_eq!(trial.report(3, DATA).truncated.0, 5, "it waits for apply");
    trial.apply_all(3);
    trial.ticks(20);
    assert_eq!(trial.value(3, "b"), value("1"));
    assert!(trial.report(3, DATA).truncated.0 > 100);
}

#[test]
fn one_snapshot_of_a_region_waits_and_the_sender_of_another_is_told_to_wait() {
    let mut trial = in_need_of_a_snapshot();
    let lesser = offered(&mut trial);
    written(&mut trial, "b", "2");
    let greater = offered(&mut trial);
    // Both are on their way at once. The greater one stays.
    receive(&mut trial, &greater);
    receive(&mut trial, &lesser);
    let id = trial.request();
    trial.store(3).core.step(Input::SnapshotOffered { id, header: greater.0.clone() });
    trial.settle();
    let reason = "another snapshot of the region waits to be installed";
    assert_eq!(trial.busy(id), Some(&Busy::Wait { reason }));
    trial.apply_all(3);
    trial.settle();
    assert_eq!(trial.report(3, DATA).applied, greater.0.at.0);
    assert_eq!(trial.value(3, "b"), value("2"));
    trial.heal();
    trial.store(3).holds_applies = false;
    trial.ticks(20);
    trial.apply_all(3);
    trial.ticks(20);
    assert_eq!(trial.report(3, DATA).applied, trial.report(1, DATA).applied);
}

type Offered = (SnapshotHeader, Vec<Vec<stele_storage::Pair>>);

/// Offers store 3 a snapshot of what store 1 has applied; it accepts.
fn offered(trial: &mut Trial) -> Offered {
    let report = trial.report(1, DATA);
    let header = SnapshotHeader {
        region: report.region.clone(),
        at: (report.applied, report.term),
        leader_term: report.term,
        from: peer(101, 1),
        to: peer(103, 3),
        bytes: 0,
        merges: None,
    };
    let id = trial.request();
    trial.store(3).core.step(Input::SnapshotOffered { id, header: header.clone() });
    trial.settle();
    let Some(Reply::Done(Done::SnapshotAccepted { ranges })) = trial.reply(id) else {
        panic!("{:?}", trial.reply(id));
    };
    let ranges = ranges.clone();
    let view = trial.store(1).engine.view().unwrap();
    let pairs = |range| view.scan(&ScanOptions::new(range, usize::MAX)).unwrap();
    (header, ranges.into_iter().map(pairs).collect())
}

/// Lets store 3 receive a snapshot that it accepted.
fn receive(trial: &mut Trial, (header, parts): &Offered) {
    let store = trial.store(3);
    let mut ingest =
        store.engine.begin_ingest(crate::peer::snapshot_ranges(&header.region)).unwrap();
    parts.iter().for_each(|pairs| store.engine.receive(&mut ingest, pairs.clone()).unwrap());
    store.core.step(Input::SnapshotReceived { header: header.clone(), ingest });
    trial.settle();
}

/// Returns three stores of which the third is removed while it has entries handed out.
fn removed_while_applying() -> Trial {
    let mut trial = Trial::with(3, queue);
    trial.lead(DATA, 1);
    trial.store(3).holds_applies = true;
    written(&mut trial, "x", "1");
    trial.send_heartbeats();
    assert_eq!(trial.store(3).applies.len(), 1);
    trial.isolate(3);
    let learner = Peer { role: PeerRole::Learner, ..peer(103, 3) };
    for kind in [ChangeKind::Add, ChangeKind::Remove] {
        let change = trial.admin(1, DATA, change(kind, learner));
        trial.ticks(5);
        assert!(matches!(trial.reply(change), Some(Reply::Done(_))), "{:?}", trial.reply(change));
    }
    trial
}

#[test]
fn a_replica_is_removed_when_what_was_handed_out_is_applied() {
    let mut trial = removed_while_applying();
    trial.heal();
    trial.ticks(60);
    assert!(trial.store(3).core.region(DATA).is_some(), "it waits for apply");
    trial.apply_all(3);
    trial.ticks(2);
    assert!(trial.store(3).core.region(DATA).is_none());
    assert_eq!(trial.value(3, "x"), None);
}

#[test]
fn a_newer_peer_replaces_a_replica_when_what_was_handed_out_is_applied() {
    let mut trial = removed_while_applying();
    let newer = Peer { role: PeerRole::Learner, ..peer(203, 3) };
    trial.admin(1, DATA, change(ChangeKind::Add, newer));
    trial.ticks(5);
    trial.lose = |message| message.body == Body::Gone;
    trial.heal();
    trial.ticks(20);
    assert_eq!(trial.report(3, DATA).peer.id, PeerId(103), "it waits for apply");
    trial.apply_all(3);
    trial.ticks(40);
    assert_eq!(trial.report(3, DATA).peer.id, PeerId(203));
    assert_eq!(trial.value(3, "x"), value("1"));
}

#[test]
fn a_source_that_is_prepared_for_its_merge_hands_nothing_out() {
    let (source, target) = (RegionId(3), RegionId(4));
    let mut trial = Trial::with(0, queue);
    let regions = neighbours();
    (1..=3).for_each(|store| trial.add_store(store, &regions));
    trial.lead(source, 1);
    trial.lead(target, 1);
    let into = trial.report(1, target).region;
    trial.admin(1, source, Admin::PrepareMerge { target: into });
    trial.ticks(5);
    trial.store(1).holds_applies = true;
    // The first entry of a new leader follows the preparation.
    trial.lead(source, 2);
    trial.lead(source, 1);
    let prepared = trial.report(1, source).region;
    let RegionPhase::Merging { prepared: at, .. } = prepared.phase else { panic!("{prepared:?}") };
    trial.admin(1, target, Admin::CommitMerge { source: prepared, prepared_index: at });
    trial.ticks(5);
    assert!(trial.store(1).core.region(source).is_none());
    trial.apply_all(1);
    trial.ticks(5);
    assert!(trial.report(1, target).region.range.start.is_empty());
}

/// Returns store 1 with an applied entry `a` = 2 of which it has no report, and the entry before.
fn with_unreported_write() -> (Trial, LogIndex) {
    let mut trial = Trial::with(3, queue);
    trial.lead(DATA, 1);
    written(&mut trial, "a", "1");
    trial.send_heartbeats();
    let before = trial.report(1, DATA).applied;
    trial.store(1).holds_applies = true;
    written(&mut trial, "a", "2");
    trial.apply_next(1);
    (trial, before)
}

fn range_message(trial: &mut Trial, body: Body) -> Input<ModelEngine> {
    let region = trial.report(1, DATA).region;
    Input::Message(PeerMessage {
        from_store: StoreId(2),
        to_store: StoreId(1),
        region: DATA,
        kind: region.kind,
        range: region.range.clone(),
        epoch: region.epoch,
        from: peer(102, 2),
        to: peer(101, 1),
        body,
    })
}

#[test]
fn a_copy_of_a_range_is_of_exactly_the_entry_that_it_names() {
    let (mut trial, before) = with_unreported_write();
    let range = KeyRange::new(key("a"), key("b"));
    let copies = |trial: &mut Trial| {
        let request = range_message(trial, Body::RangeRepairRequest(range.clone()));
        let now = trial.clock();
        let core = &mut trial.store(1).core;
        core.step(request);
        let messages = core.poll(now).unwrap().messages.into_iter();
        let found = messages.filter_map(|message| match message.body {
            Body::RangeRepairReply(found) => Some((found.at, found.pairs[0].value.clone())),
            _ => None,
        });
        found.collect::<Vec<_>>()
    };
    assert_eq!(copies(&mut trial), [], "the view holds a later entry");
    trial.report_applied(1);
    assert_eq!(copies(&mut trial), [(before.next(), Bytes::from_static(b"2"))]);
}

#[test]
fn a_range_is_repaired_when_what_was_handed_out_is_applied() {
    let (mut trial, before) = with_unreported_write();
    trial.lose = |message| matches!(message.body, Body::RangeRepairRequest(_));
    let range = KeyRange::new(key("a"), key("b"));
    trial.store(1).engine.lose_range(&range);
    let copy = |trial: &mut Trial, at: LogIndex, text: &'static str| {
        let pair = stele_storage::Pair { key: key("a"), value: text.into(), expires_at_s: 0 };
        let found = RangeRepairReply { range: range.clone(), at, pairs: vec![pair] };
        let message = range_message(trial, Body::RangeRepairReply(found));
        trial.store(1).core.step(message);
        trial.ticks(1);
        let view = trial.store(1).engine.view().unwrap();
        view.get(&key("a")).ok().flatten().map(|pair| pair.value)
    };
    assert_eq!(copy(&mut trial, before, "1"), None, "the key has been changed since");
    // Nothing more is handed out until the copy is compared with an exact state.
    written(&mut trial, "c", "1");
    assert!(trial.store(1).applies.is_empty());
    trial.report_applied(1);
    trial.ticks(1);
    assert_eq!(trial.store(1).applies.len(), 1);
    assert_eq!(trial.store(1).engine.lost_ranges(), std::slice::from_ref(&range));
    trial.apply_all(1);
    assert_eq!(copy(&mut trial, before.next(), "2").as_deref(), Some(&b"2"[..]));
}

#[test]
fn tails_stay_within_their_bound_while_apply_hangs() {
    const BYTES_MAX: u64 = 4_000;
    let queues: [fn(&mut Options); 2] = [
        |options| {
            queue(options);
            options.tail_bytes_max = BYTES_MAX;
        },
        |options| {
            queue_alone(options);
            options.tail_bytes_max = BYTES_MAX;
        },
    ];
    for options in queues {
        let mut trial = Trial::with(3, options);
        trial.lead(DATA, 1);
        (1..=3).for_each(|store| trial.store(store).holds_applies = true);
        let big = "v".repeat(1_000);
        let writes: Vec<_> = (0..20)
            .map(|n| {
                let write = written(&mut trial, &format!("k{n}"), &big);
                for store in 1..=3 {
                    let bytes = trial.store(store).core.tail_bytes();
                    assert!(bytes < BYTES_MAX + 1_500, "store {store}: {bytes} bytes");
                }
                write
            })
            .collect();
        trial.ticks(20);
        let busy = writes.iter().filter(|write| trial.busy(**write).is_some()).count();
        assert!((14..=17).contains(&busy), "{busy} were refused");
        (1..=3).for_each(|store| trial.store(store).holds_applies = false);
        (1..=3).for_each(|store| assert!(trial.apply_all(store)));
        trial.ticks(20);
        let done = writes.iter().filter(|write| trial.is_written(**write)).count();
        assert_eq!(done + busy, 20);
        let write = written(&mut trial, "later", "1");
        trial.ticks(4);
        assert!(trial.is_written(write));
        for store in 1..=3 {
            assert_eq!(trial.store(store).core.tail_bytes(), 0, "store {store}");
            assert_eq!(trial.value(store, "later"), value("1"), "store {store}");
        }
    }
}
