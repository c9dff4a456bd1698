//! Tests of answers at commit and of reads through the window (BUC-Raft): the disk of the leader or of
//! a follower stands still.

use super::*;
use stele_storage::{Overlaid, StateMachine};

fn reader(trial: &mut Trial, store: u64) -> Arc<Reader> {
    trial.store(store).core.readers().get(DATA).unwrap()
}

fn found(trial: &mut Trial, store: u64, permit: ReadPermit, name: &str) -> Option<String> {
    let view = trial.store(store).engine.view().unwrap();
    let effects = reader(trial, store).effects(&permit, trial.now)?;
    let pair = Overlaid::new(view, effects).get(&key(name)).unwrap()?;
    Some(String::from_utf8(pair.value.to_vec()).unwrap())
}

/// Returns what a read under the lease of a store finds; an error if there is no lease.
fn leased(trial: &mut Trial, store: u64, name: &str) -> Result<Option<String>, &'static str> {
    let now = trial.now;
    let permit = reader(trial, store).permit(&Header::default(), now).ok_or("no lease")?;
    Ok(found(trial, store, permit, name))
}

/// Reads through the core; `None` if it does not answer.
fn by_core(trial: &mut Trial, store: u64, name: &str) -> Option<Option<String>> {
    let read = trial.read(store, store != 1);
    trial.ticks(4);
    matches!(trial.reply(read), Some(Reply::Done(Done::ReadReady { .. }))).then(|| {
        let permit = reader(trial, store).permit_confirmed();
        found(trial, store, permit, name)
    })
}

fn value(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Returns three stores of which the first leads, with a lease, and its disk stands still.
fn with_slow_leader(options: fn(&mut Options)) -> Trial {
    let mut trial = Trial::with(3, options);
    trial.lead(DATA, 1);
    trial.ticks(4);
    trial.store(1).stalled = true;
    trial
}

#[test]
fn a_write_on_two_other_disks_is_answered_and_read_while_the_leaders_disk_stands_still() {
    let mut trial = with_slow_leader(|_| {});
    let writes: Vec<_> = (1..=5).map(|n| trial.write(1, put("a", &n.to_string()))).collect();
    trial.settle();
    let late = trial.write(1, put("b", "1"));
    trial.settle();
    assert!(writes.iter().all(|write| trial.is_written(*write)) && trial.is_written(late));
    assert_eq!(trial.value(1, "a"), None, "it is not durable here, so it is not applied");
    assert_eq!(leased(&mut trial, 1, "a"), Ok(value("5")));
    assert_eq!(by_core(&mut trial, 1, "b"), Some(value("1")));
    trial.store(1).stalled = false;
    trial.settle();
    assert_eq!(trial.value(1, "a"), value("5"));
    assert_eq!(leased(&mut trial, 1, "a"), Ok(value("5")));
}

#[test]
fn what_a_leader_answered_survives_its_power_cut_before_its_own_sync() {
    let mut trial = with_slow_leader(|_| {});
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert!(trial.is_written(write));
    trial.restart(1);
    trial.ticks(60);
    let leader = trial.elect(DATA);
    assert_eq!(trial.value(leader, "a"), value("1"));
    assert_eq!(trial.value(1, "a"), value("1"));
}

#[test]
fn without_commit_return_a_write_waits_for_the_leaders_disk_and_without_acceleration_a_read_does() {
    let mut trial = with_slow_leader(|options| options.commit_return = false);
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert_eq!(trial.reply(write), None);
    assert_eq!(leased(&mut trial, 1, "a"), Ok(value("1")), "a follower may serve it already");
    let mut trial = with_slow_leader(|options| options.read_acceleration = false);
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert!(trial.is_written(write));
    assert_eq!(leased(&mut trial, 1, "a"), Err("no lease"));
    assert_eq!(by_core(&mut trial, 1, "a"), None);
    trial.store(1).stalled = false;
    trial.ticks(1);
    assert_eq!(leased(&mut trial, 1, "a"), Ok(value("1")));
}

#[test]
fn the_stages_of_a_write_and_the_wait_of_a_read_are_measured() {
    let mut trial = with_slow_leader(|options| options.read_acceleration = false);
    let before = trial.store(1).core.times().sums();
    (2..=3).for_each(|store| trial.isolate(store));
    let (write, proposed) = (trial.write(1, put("a", "1")), trial.now);
    trial.settle();
    trial.advance(3_000);
    trial.heal();
    // A follower sends its answer again when it is asked.
    trial.send_heartbeats();
    assert!(trial.is_written(write));
    let committed = trial.now;
    let read = trial.read(1, false);
    trial.settle();
    trial.advance(200);
    trial.store(1).stalled = false;
    trial.settle();
    assert!(matches!(trial.reply(read), Some(Reply::Done(Done::ReadReady { .. }))));
    let sums = trial.store(1).core.times().sums();
    let stages = sums.write_nanos.since(&before.write_nanos);
    let expected = [0, 0, committed - proposed, 0, 200];
    assert_eq!(stages.iter().map(|(_, nanos)| nanos).collect::<Vec<_>>(), expected);
    assert_eq!(sums.writes - before.writes, 1);
    assert_eq!(sums.waited_reads - before.waited_reads, 1);
    assert_eq!(sums.read_wait_nanos - before.read_wait_nanos, 200);
}

#[test]
fn a_comparison_sees_what_is_answered_and_not_applied() {
    let mut trial = with_slow_leader(|_| {});
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert!(trial.is_written(write));
    let (kept, replaced) = (trial.cas(1, "a", None, "2"), trial.cas(1, "a", Some("1"), "3"));
    trial.settle();
    assert!(matches!(trial.modified(kept), Some(Modified::Unchanged { .. })));
    assert!(matches!(trial.modified(replaced), Some(Modified::Replaced { .. })));
    assert_eq!(trial.value(1, "a"), None, "nothing is applied");
}

#[test]
fn a_follower_serves_what_it_knows_to_be_committed_before_its_disk_has_it() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.store(2).stalled = true;
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert!(trial.is_written(write));
    assert_eq!(by_core(&mut trial, 2, "a"), Some(value("1")));
    assert_eq!(trial.value(2, "a"), None);
}

#[test]
fn answers_to_heartbeats_do_not_wait_for_a_followers_disk() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.store(2).stalled = true;
    trial.isolate(3);
    let write = trial.write(1, put("a", "1"));
    // Longer than a lease.
    trial.ticks(30);
    assert_eq!(trial.reply(write), None, "one disk of three has it");
    assert_eq!(leased(&mut trial, 1, "a"), Ok(None), "store 2 renews the lease");
}

#[test]
fn a_view_that_misses_what_was_applied_meanwhile_is_not_read() {
    let mut trial = with_slow_leader(|_| {});
    trial.write(1, put("a", "1"));
    trial.settle();
    let now = trial.now;
    let permit = reader(&mut trial, 1).permit(&Header::default(), now).unwrap();
    let view = trial.store(1).engine.view().unwrap();
    trial.store(1).stalled = false;
    trial.settle();
    trial.store(1).stalled = true;
    trial.write(1, put("b", "2"));
    trial.settle();
    // The window holds `b` alone, and the view neither `a` nor `b`.
    assert!(reader(&mut trial, 1).effects(&permit, now).is_none());
    assert_eq!(view.get(&key("a")).unwrap(), None);
    assert_eq!(leased(&mut trial, 1, "a"), Ok(value("1")));
}

#[test]
fn an_old_effect_never_hides_what_was_applied_after_it() {
    let mut trial = with_slow_leader(|_| {});
    for round in 0..3 {
        let name = format!("k{round}");
        trial.write(1, put("a", &name));
        trial.settle();
        assert_eq!(leased(&mut trial, 1, "a"), Ok(value(&name)));
        trial.store(1).stalled = false;
        trial.write(1, put("a", "applied"));
        trial.settle();
        assert_eq!(leased(&mut trial, 1, "a"), Ok(value("applied")));
        trial.store(1).stalled = true;
        trial.write(1, put("b", &name));
        trial.settle();
        assert_eq!(leased(&mut trial, 1, "a"), Ok(value("applied")));
    }
}

#[test]
fn what_commits_and_is_applied_at_once_is_in_an_open_window_before() {
    let mut trial = with_slow_leader(|_| {});
    // The first is being written, and the others share the next batch.
    for value in ["0", "1"] {
        trial.write(1, put("a", value));
        trial.settle();
    }
    trial.isolate(3);
    // Store 2 has it, and this disk is the second of three.
    let second = trial.write(1, put("a", "2"));
    trial.settle();
    assert_eq!(trial.reply(second), None);
    trial.store(1).stalled = false;
    trial.settle();
    assert!(trial.is_written(second));
    assert_eq!(leased(&mut trial, 1, "a"), Ok(value("2")));
}

#[test]
fn a_window_ends_before_an_administrative_entry_which_is_answered_when_it_is_applied() {
    let mut trial = with_slow_leader(|_| {});
    let before = trial.write(1, put("a", "1"));
    trial.settle();
    let new =
        NewRegion { region: RegionId(77), peers: vec![PeerId(201), PeerId(202), PeerId(203)] };
    let keys = vec![Bytes::from_static(b"m")];
    let split = trial.admin(1, DATA, Admin::Split { keys, new_ids: vec![new] });
    trial.settle();
    assert!(trial.is_written(before));
    assert_eq!(trial.reply(split), None, "it has no effect here yet");
    assert_eq!(leased(&mut trial, 1, "a"), Err("no lease"), "more is committed than is visible");
    assert_eq!(by_core(&mut trial, 1, "a"), None, "it waits for the split");
    trial.store(1).stalled = false;
    trial.ticks(1);
    assert!(matches!(trial.reply(split), Some(Reply::Done(Done::Admin { .. }))));
    assert_eq!(leased(&mut trial, 1, "a"), Ok(value("1")));
}

#[test]
fn an_entry_that_changes_the_region_is_applied_after_the_writes_before_it() {
    let mut trial = with_slow_leader(|_| {});
    let writes = ["a", "z"].map(|key| trial.write(1, put(key, "1")));
    let new =
        NewRegion { region: RegionId(77), peers: vec![PeerId(201), PeerId(202), PeerId(203)] };
    let keys = vec![Bytes::from_static(b"m")];
    let split = trial.admin(1, DATA, Admin::Split { keys, new_ids: vec![new] });
    trial.settle();
    let last = trial.write(1, put("b", "2"));
    // The disk holds all of them at once.
    trial.store(1).stalled = false;
    trial.ticks(3);
    assert!(writes.iter().all(|write| trial.is_written(*write)));
    assert!(matches!(trial.reply(split), Some(Reply::Done(Done::Admin { .. }))));
    assert!(trial.reply(last).is_some());
    for (key, found) in [("a", "1"), ("z", "1")] {
        assert_eq!(trial.value(1, key).as_deref(), Some(found));
        assert_eq!(trial.value(2, key).as_deref(), Some(found));
    }
}

#[test]
fn a_new_leader_serves_when_others_have_its_first_entry() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert!(trial.is_written(write));
    trial.admin(1, DATA, Admin::TransferLeader(PeerId(102)));
    // The target votes for itself, durably, and then its disk stands still.
    while trial.leader(DATA) != Some(2) {
        trial.ticks(1);
    }
    let mut trial = trial;
    trial.store(2).stalled = true;
    let next = trial.write(2, put("a", "2"));
    trial.ticks(6);
    assert!(trial.is_written(next), "{:?}", trial.reply(next));
    assert_eq!(leased(&mut trial, 2, "a"), Ok(value("2")));
}

#[test]
fn answered_writes_count_until_they_are_applied() {
    let mut trial = with_slow_leader(|options| options.uncommitted_bytes_max = 10_000);
    let value = "v".repeat(3_000);
    let writes: Vec<_> = (0..10)
        .map(|n| {
            let write = trial.write(1, put(&format!("k{n}"), &value));
            trial.settle();
            write
        })
        .collect();
    let done = writes.iter().filter(|write| trial.is_written(**write)).count();
    assert!((3..=4).contains(&done), "{done} were answered");
    trial.store(1).stalled = false;
    trial.settle();
    assert!(writes.iter().all(|write| trial.is_written(*write)));
}

#[test]
fn a_write_that_another_leader_replaced_is_never_answered_as_done() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.isolate(1);
    let lost = trial.write(1, put("a", "lost"));
    trial.settle();
    let still = trial.stores.remove(&1).unwrap();
    let leader = trial.elect(DATA);
    let kept: Vec<_> = (0..5).map(|n| trial.write(leader, put("a", &n.to_string()))).collect();
    trial.settle();
    trial.send_heartbeats();
    assert!(kept.iter().all(|write| trial.is_written(*write)));
    // The old leader hears of entries and of their commit at once.
    trial.stores.insert(1, still);
    trial.heal();
    trial.ticks(10);
    assert_eq!(trial.value(1, "a"), value("4"));
    assert!(!trial.is_written(lost), "{:?}", trial.reply(lost));
}

#[test]
fn modifications_beside_many_unapplied_operations_do_not_hold_the_loop_up() {
    let mut trial = with_slow_leader(|_| {});
    for number in 0..3 {
        let mut builder = CommandBuilder::new();
        for key in 0..50_000_u64 {
            builder.delete(&key.to_be_bytes()).unwrap();
        }
        let write = trial.write(1, builder.build().bytes().clone());
        trial.settle();
        assert!(trial.is_written(write), "write {number}");
    }
    let before = trial.report(1, DATA).last;
    let calls: Vec<_> = (0..20).map(|n| trial.cas(1, &format!("m{n}"), None, "1")).collect();
    trial.poll(1);
    let proposed = trial.report(1, DATA).last.0 - before.0;
    assert!((1..=3).contains(&proposed), "{proposed} in one poll");
    trial.settle();
    assert!(calls.iter().all(|call| trial.modified(*call).is_some()));
}
