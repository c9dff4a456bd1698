//! Tests of pause and seal: the part of a region in a moment. spec/README.md has the laws.

use super::*;

const MILLI: u64 = 1_000_000;

fn moment(trial: &mut Trial, store: u64, number: u64, step: MomentStep) -> RequestId {
    let id = trial.request();
    let call = MomentCall { header: trial.header(DATA), moment: MomentId(number), step };
    trial.store(store).core.step(Input::request(id, call));
    id
}

fn pause(trial: &mut Trial, store: u64, number: u64) -> RequestId {
    moment(trial, store, number, MomentStep::Pause)
}

fn seal(trial: &mut Trial, store: u64, number: u64) -> RequestId {
    moment(trial, store, number, MomentStep::Seal)
}

fn paused(trial: &Trial, id: RequestId) -> Option<(KeyRange, LogIndex, Term)> {
    match trial.reply(id)? {
        Reply::Done(Done::Paused { range, last, term }) => Some((range.clone(), *last, *term)),
        other => panic!("{other:?}"),
    }
}

fn is_sealed(trial: &Trial, id: RequestId) -> bool {
    matches!(trial.reply(id), Some(Reply::Done(Done::Sealed { .. })))
}

fn is_refused(trial: &Trial, id: RequestId) -> bool {
    matches!(trial.reply(id), Some(Reply::Refused(Refusal::Invalid(_))))
}

/// Lets time pass in steps, so that every store sees its ticks.
fn pass(trial: &mut Trial, millis: u64, step_millis: u64) {
    for _ in 0..millis / step_millis {
        trial.now += step_millis * MILLI;
        trial.settle();
    }
}

fn led() -> Trial {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    let write = trial.write(1, put("a", "1"));
    trial.ticks(4);
    assert!(trial.is_written(write));
    trial
}

#[test]
fn in_a_pause_nothing_is_proposed_and_reads_go_on() {
    let mut trial = led();
    let asked = pause(&mut trial, 1, 1);
    trial.settle();
    let last = trial.report(1, DATA).last;
    let (range, index, term) = paused(&trial, asked).unwrap();
    assert_eq!((range, index, term), (KeyRange::all(), last, trial.report(1, DATA).term));
    let peers = [201, 202, 203].map(PeerId).to_vec();
    let new_ids = vec![NewRegion { region: RegionId(10), peers }];
    let split = Admin::Split { keys: vec![Bytes::from_static(b"h")], new_ids };
    let waiting = [
        trial.write(1, put("b", "1")),
        trial.cas(1, "a", Some("1"), "2"),
        trial.admin(1, DATA, split),
    ];
    let read = trial.read(1, false);
    trial.settle();
    assert!(matches!(trial.reply(read), Some(Reply::Done(Done::ReadReady { .. }))));
    trial.now += 199 * MILLI;
    trial.settle();
    assert_eq!(trial.report(1, DATA).last, last);
    waiting.iter().for_each(|id| assert_eq!(trial.reply(*id), None));
    trial.now += MILLI;
    trial.settle();
    let is_done = |id: &RequestId| matches!(trial.reply(*id), Some(Reply::Done(_)));
    assert!(waiting.iter().all(is_done), "they go on after the pause");
}

#[test]
fn in_a_pause_a_leader_does_not_leave_a_joint_configuration() {
    let mut trial = led();
    let learner = Peer { role: PeerRole::Learner, ..peer(104, 4) };
    trial.add_store(4, &[]);
    let add = |peer| PeerChange { kind: ChangeKind::Add, peer };
    trial.admin(1, DATA, Admin::ChangePeers(vec![add(learner)]));
    trial.ticks(10);
    let demoted = Peer { role: PeerRole::Learner, ..peer(103, 3) };
    trial.admin(1, DATA, Admin::ChangePeers(vec![add(peer(104, 4)), add(demoted)]));
    // The change is proposed, and committed in the pause.
    trial.poll(1);
    let asked = pause(&mut trial, 1, 1);
    trial.settle();
    let (_, last, _) = paused(&trial, asked).unwrap();
    assert!(trial.report(1, DATA).region.is_joint());
    trial.ticks(3);
    assert_eq!(trial.report(1, DATA).last, last);
    trial.ticks(3);
    assert!(!trial.report(1, DATA).region.is_joint(), "it leaves after the pause");
}

#[test]
fn a_pause_is_answered_when_all_that_was_proposed_is_committed() {
    let mut trial = led();
    trial.isolate(1);
    let write = trial.write(1, put("b", "1"));
    trial.settle();
    let asked = pause(&mut trial, 1, 1);
    trial.ticks(1);
    assert_eq!(trial.reply(asked), None, "no other store has the write");
    trial.heal();
    trial.ticks(2);
    let (_, index, term) = paused(&trial, asked).unwrap();
    let Some(Reply::Done(Done::Written { index: written, term: at, .. })) = trial.reply(write)
    else {
        panic!("{:?}", trial.reply(write));
    };
    assert_eq!((*written, *at), (index, term));
}

#[test]
fn a_pause_is_answered_with_the_range_after_a_split_that_is_committed() {
    let mut trial = led();
    trial.store(1).stalled = true;
    let peers = [201, 202, 203].map(PeerId).to_vec();
    let new_ids = vec![NewRegion { region: RegionId(10), peers }];
    let split = Admin::Split { keys: vec![Bytes::from_static(b"h")], new_ids };
    trial.admin(1, DATA, split);
    trial.settle();
    let report = trial.report(1, DATA);
    assert!(report.committed == report.last && report.applied < report.last, "{report:?}");
    let asked = pause(&mut trial, 1, 1);
    trial.settle();
    assert_eq!(trial.reply(asked), None, "the split is not applied here");
    trial.store(1).stalled = false;
    trial.settle();
    let (range, index, _) = paused(&trial, asked).unwrap();
    assert_eq!((range, index), (KeyRange::new("", "h"), report.last));
}

#[test]
fn a_leader_pauses_once_for_a_moment_and_for_no_earlier_one() {
    let mut trial = led();
    let first = pause(&mut trial, 1, 5);
    trial.settle();
    paused(&trial, first).unwrap();
    for number in [5, 4] {
        let again = pause(&mut trial, 1, number);
        trial.settle();
        assert!(is_refused(&trial, again), "moment {number}");
    }
    // What came twice does not make the pause longer, and does not begin another one.
    trial.now += 200 * MILLI;
    let write = trial.write(1, put("b", "1"));
    let again = pause(&mut trial, 1, 5);
    trial.settle();
    assert!(is_refused(&trial, again) && trial.is_written(write));
    let later = pause(&mut trial, 1, 6);
    trial.settle();
    paused(&trial, later).unwrap();
    pass(&mut trial, 250, 50);
    trial.lead(DATA, 2);
    let asked = pause(&mut trial, 2, 6);
    trial.settle();
    paused(&trial, asked).unwrap();
}

#[test]
fn a_later_moment_ends_the_pause_of_an_earlier_one() {
    let mut trial = led();
    trial.isolate(1);
    trial.write(1, put("b", "1"));
    trial.settle();
    let [first, second] = [1, 2].map(|number| pause(&mut trial, 1, number));
    trial.settle();
    assert!(matches!(trial.busy(first), Some(Busy::Wait { .. })));
    trial.heal();
    trial.ticks(2);
    paused(&trial, second).unwrap();
    let seals = [1, 2].map(|number| seal(&mut trial, 1, number));
    trial.settle();
    assert!(is_refused(&trial, seals[0]) && is_sealed(&trial, seals[1]));
}

#[test]
fn a_seal_ends_the_pause_and_comes_once() {
    let mut trial = led();
    let early = seal(&mut trial, 1, 1);
    let asked = pause(&mut trial, 1, 1);
    trial.settle();
    assert!(is_refused(&trial, early));
    paused(&trial, asked).unwrap();
    let write = trial.write(1, put("b", "1"));
    let sealed = seal(&mut trial, 1, 1);
    trial.settle();
    assert!(is_sealed(&trial, sealed) && trial.is_written(write));
    let again = seal(&mut trial, 1, 1);
    trial.settle();
    assert!(is_refused(&trial, again));
}

#[test]
fn a_seal_after_the_end_of_a_pause_is_refused() {
    let mut trial = led();
    let asked = pause(&mut trial, 1, 1);
    trial.settle();
    paused(&trial, asked).unwrap();
    let write = trial.write(1, put("b", "1"));
    pass(&mut trial, 200, 50);
    assert!(trial.is_written(write));
    let late = seal(&mut trial, 1, 1);
    trial.settle();
    assert!(is_refused(&trial, late), "the answer lacks the write");
}

#[test]
fn a_pause_ends_by_the_clock_of_its_leader_and_requests_keep_their_deadlines() {
    // A tick is longer than a pause.
    let mut trial = Trial::with(3, |options| options.tick_nanos = 500 * MILLI);
    trial.elect(DATA);
    while trial.leader(DATA) != Some(1) {
        let leader = trial.elect(DATA);
        trial.admin(leader, DATA, Admin::TransferLeader(PeerId(101)));
        pass(&mut trial, 2_000, 500);
    }
    pass(&mut trial, 2_000, 500);
    let asked = pause(&mut trial, 1, 1);
    trial.settle();
    paused(&trial, asked).unwrap();
    let ends = trial.now + 200 * MILLI;
    let due = trial.store(1).core.next_tick_nanos().unwrap();
    assert!(due <= ends, "{due} is after {ends}");
    let write = trial.write(1, put("b", "1"));
    let id = trial.request();
    let header = Header { deadline_nanos: trial.now + 100 * MILLI, ..trial.header(DATA) };
    let command = put("c", "1");
    let hurried = Write { header, command, only_deletes: false };
    trial.store(1).core.step(Input::request(id, hurried));
    pass(&mut trial, 250, 50);
    assert!(trial.is_written(write));
    assert_eq!(trial.busy(id), Some(&Busy::DeadlinePassed));
}

#[test]
fn a_pause_that_cannot_be_answered_ends_as_busy_and_with_leadership_as_refused() {
    let mut trial = led();
    trial.isolate(1);
    trial.write(1, put("b", "1"));
    trial.settle();
    let late = pause(&mut trial, 1, 1);
    pass(&mut trial, 200, 50);
    assert!(matches!(trial.busy(late), Some(Busy::Wait { .. })), "{:?}", trial.reply(late));
    // It is a leader until it misses its followers.
    let mut lost = Vec::new();
    for number in 2..30 {
        lost.push(pause(&mut trial, 1, number));
        trial.ticks(1);
    }
    let is_not_leader =
        |id: &RequestId| matches!(trial.refusal(*id), Some(Refusal::NotLeader { .. }));
    assert!(lost.iter().any(is_not_leader));
    assert!(lost.iter().all(|id| trial.reply(*id).is_some()), "each request has a reply");
}

/// Elections take half of the longest pause.
fn short_ticks(options: &mut Options) {
    options.tick_nanos = 10 * MILLI;
}

#[test]
fn a_leader_that_was_deposed_after_its_answer_seals_nothing() {
    let mut trial = Trial::with(3, short_ticks);
    trial.lead(DATA, 1);
    pass(&mut trial, 100, 10);
    let asked = pause(&mut trial, 1, 1);
    trial.settle();
    let (_, last, _) = paused(&trial, asked).unwrap();
    // The process of store 1 does not run, until another store leads and has answered a write.
    let stopped = trial.stores.remove(&1).unwrap();
    while trial.leader(DATA).is_none() {
        pass(&mut trial, 10, 10);
    }
    let leader = trial.leader(DATA).unwrap();
    let write = trial.write(leader, put("b", "1"));
    pass(&mut trial, 10, 10);
    assert!(trial.is_written(write));
    trial.stores.insert(1, stopped);
    assert_eq!(trial.report(1, DATA).last, last);
    let late = seal(&mut trial, 1, 1);
    let began = trial.now;
    trial.settle();
    let is_refused = matches!(trial.refusal(late), Some(Refusal::NotLeader { .. }));
    assert!(is_refused, "{:?} at {began}", trial.reply(late));
}

#[test]
fn a_seal_without_a_lease_needs_a_round() {
    let mut trial = Trial::with(3, |options| options.leases = false);
    trial.lead(DATA, 1);
    trial.ticks(4);
    let asked = pause(&mut trial, 1, 1);
    trial.settle();
    paused(&trial, asked).unwrap();
    let sealed = seal(&mut trial, 1, 1);
    trial.settle();
    assert!(is_sealed(&trial, sealed));
    let asked = pause(&mut trial, 1, 2);
    trial.settle();
    paused(&trial, asked).unwrap();
    trial.isolate(1);
    let alone = seal(&mut trial, 1, 2);
    trial.settle();
    assert_eq!(trial.reply(alone), None, "no majority confirms it");
    trial.ticks(60);
    assert!(matches!(trial.refusal(alone), Some(Refusal::NotLeader { .. })));
}

#[test]
fn a_leader_proposes_again_while_the_round_of_its_seal_is_under_way() {
    let mut trial = Trial::with(3, |options| options.leases = false);
    trial.lead(DATA, 1);
    trial.ticks(4);
    let asked = pause(&mut trial, 1, 1);
    trial.settle();
    let (_, last, _) = paused(&trial, asked).unwrap();
    trial.write(1, put("b", "1"));
    trial.isolate(1);
    let sealed = seal(&mut trial, 1, 1);
    trial.settle();
    assert_eq!(trial.reply(sealed), None);
    assert!(trial.report(1, DATA).last > last);
    trial.heal();
    trial.ticks(4);
    assert!(is_sealed(&trial, sealed));
}

#[test]
fn a_hibernating_region_wakes_for_a_moment_and_is_sealed_by_a_round() {
    let mut trial = Trial::with(3, |options| options.hibernate_after_ticks = 20);
    trial.lead(DATA, 1);
    trial.ticks(80);
    assert!(trial.is_hibernating(1));
    let asked = pause(&mut trial, 1, 1);
    trial.settle();
    paused(&trial, asked).unwrap();
    trial.isolate(1);
    let sealed = seal(&mut trial, 1, 1);
    trial.settle();
    assert_eq!(trial.reply(sealed), None, "its lease ran out");
    trial.heal();
    trial.ticks(4);
    assert!(is_sealed(&trial, sealed));
}

#[test]
fn a_follower_refuses_the_steps_of_a_moment() {
    let mut trial = led();
    let steps = [pause(&mut trial, 2, 1), seal(&mut trial, 2, 1)];
    trial.settle();
    for id in steps {
        let refusal = trial.refusal(id);
        assert!(matches!(refusal, Some(Refusal::NotLeader { leader: Some(_) })), "{refusal:?}");
    }
}
