//! Tests of the bound on entries in memory that are not applied.

use super::*;

const OTHER: RegionId = RegionId(10);
const BYTES_MAX: u64 = 4_000;

fn bounded() -> Trial {
    Trial::with(3, |options| options.tail_bytes_max = BYTES_MAX)
}

fn kilobyte() -> String {
    "v".repeat(1_000)
}

fn write_other(trial: &mut Trial, name: &str) -> RequestId {
    let id = trial.request();
    let (header, command) = (trial.header(OTHER), put(name, &kilobyte()));
    trial.store(1).core.step(Input::request(id, Write { header, command, only_deletes: false }));
    id
}

fn split(trial: &mut Trial) {
    let new = NewRegion { region: OTHER, peers: [201, 202, 203].map(PeerId).to_vec() };
    let keys = vec![Bytes::from_static(b"h")];
    trial.admin(1, DATA, Admin::Split { keys, new_ids: vec![new] });
    trial.settle();
    trial.ticks(2);
    assert_eq!(trial.leader(OTHER), Some(1));
}

#[test]
fn a_tail_holds_only_entries_that_are_not_applied() {
    let mut trial = bounded();
    trial.lead(DATA, 1);
    for i in 0..40 {
        let write = trial.write(1, put(&format!("k{i}"), &kilobyte()));
        trial.settle();
        assert!(trial.is_written(write), "{:?}", trial.reply(write));
        assert_eq!(trial.store(1).core.tail_bytes(), 0);
    }
    trial.send_heartbeats();
    for store in 2..=3 {
        assert_eq!(trial.store(store).core.tail_bytes(), 0, "store {store}");
        assert_eq!(trial.value(store, "k39"), Some(kilobyte()));
    }
}

// Catalogue: 64.
#[test]
fn a_leader_with_too_many_unapplied_entries_answers_busy_until_they_are_applied() {
    let mut trial = bounded();
    trial.lead(DATA, 1);
    for store in 2..=3 {
        trial.store(store).stalled = true;
    }
    let writes: Vec<_> = (0..10)
        .map(|i| {
            let write = trial.write(1, put(&format!("k{i}"), &kilobyte()));
            trial.settle();
            write
        })
        .collect();
    let busy = |trial: &Trial| {
        let reason = "too many bytes of entries are not applied yet";
        writes.iter().filter(|id| trial.busy(**id) == Some(&Busy::Wait { reason })).count()
    };
    assert_eq!(busy(&trial), 6);
    let bytes = trial.store(1).core.tail_bytes();
    assert!((BYTES_MAX..BYTES_MAX + 1_500).contains(&bytes), "{bytes} bytes");
    for store in 2..=3 {
        trial.store(store).stalled = false;
    }
    trial.ticks(4);
    assert_eq!(writes.iter().filter(|id| trial.is_written(**id)).count(), 4);
    assert_eq!(trial.store(1).core.tail_bytes(), 0);
    let write = trial.write(1, put("later", &kilobyte()));
    trial.settle();
    assert!(trial.is_written(write));
}

// Catalogue: 64.
#[test]
fn a_follower_with_full_tails_drops_entries_and_gets_them_again() {
    let mut trial = bounded();
    trial.lead(DATA, 1);
    trial.store(3).stalled = true;
    let first = trial.report(3, DATA).last;
    for i in 0..40 {
        let write = trial.write(1, put(&format!("k{i}"), &kilobyte()));
        trial.settle();
        assert!(trial.is_written(write), "two of three replicas are enough");
        let bytes = trial.store(3).core.tail_bytes();
        assert!(bytes < BYTES_MAX + 1_500, "{bytes} bytes after write {i}");
    }
    assert!(trial.report(3, DATA).last > first, "it took the first entries");
    trial.ticks(4);
    trial.store(3).stalled = false;
    trial.ticks(60);
    assert_eq!(trial.value(3, "k39"), Some(kilobyte()));
    assert_eq!(trial.store(3).core.tail_bytes(), 0);
}

// A new leader does not know what a follower holds, so its heartbeats commit nothing there.
#[test]
fn a_follower_with_full_tails_learns_from_a_new_leader_what_is_committed() {
    let mut trial = bounded();
    trial.lead(DATA, 1);
    fill_tail_of_3(&mut trial);
    trial.isolate(3);
    trial.alter = |_| {};
    trial.lead(DATA, 2);
    assert!(trial.store(3).core.tail_bytes() >= BYTES_MAX);
    trial.heal();
    trial.ticks(60);
    assert_eq!(trial.value(3, "k9"), Some(kilobyte()));
    assert_eq!(trial.store(3).core.tail_bytes(), 0);
}

#[test]
fn a_follower_with_full_tails_acknowledges_again_the_entries_that_it_holds() {
    let mut trial = bounded();
    trial.lead(DATA, 1);
    trial.lose = |message| {
        let is_answer = |raft: &RaftMessage| raft.kind == RaftKind::AppendResponse;
        message.from_store == StoreId(3)
            && matches!(&message.body, Body::Raft(raft) if is_answer(raft))
    };
    fill_tail_of_3(&mut trial);
    trial.lose = |_| false;
    trial.alter = |_| {};
    trial.ticks(60);
    assert_eq!(trial.value(3, "k9"), Some(kilobyte()));
    assert_eq!(trial.store(3).core.tail_bytes(), 0);
}

// Only an entry of the new leader's term commits the entries that fill the tails.
#[test]
fn followers_with_full_tails_of_an_earlier_term_take_the_first_entry_of_a_new_leader() {
    let mut trial = bounded();
    trial.lead(DATA, 1);
    trial.lose = |message| {
        let is_answer = |raft: &RaftMessage| raft.kind == RaftKind::AppendResponse;
        matches!(&message.body, Body::Raft(raft) if is_answer(raft))
    };
    for i in 0..10 {
        trial.write(1, put(&format!("k{i}"), &kilobyte()));
        trial.settle();
    }
    trial.lose = |_| false;
    trial.isolate(1);
    trial.ticks(40);
    for store in 2..=3 {
        let report = trial.report(store, DATA);
        assert_eq!(report.applied, report.last, "store {store}");
        assert_eq!(trial.store(store).core.tail_bytes(), 0, "store {store}");
    }
}

/// Withholds the commit index from store 3 and writes until it drops entries.
fn fill_tail_of_3(trial: &mut Trial) {
    trial.alter = |message| {
        if let Body::Raft(raft) = &mut message.body
            && message.to_store == StoreId(3)
        {
            raft.commit = LogIndex(0);
        }
    };
    for i in 0..10 {
        let write = trial.write(1, put(&format!("k{i}"), &kilobyte()));
        trial.settle();
        assert!(trial.is_written(write), "{:?}", trial.reply(write));
    }
    let (held, last) = (trial.report(3, DATA).last, trial.report(1, DATA).last);
    assert!(trial.report(3, DATA).applied < held && held < last, "it holds {held} of {last}");
    assert!(trial.store(3).core.tail_bytes() >= BYTES_MAX);
}

#[test]
fn a_region_without_a_tail_takes_entries_while_the_tails_of_others_are_full() {
    let mut trial = bounded();
    trial.lead(DATA, 1);
    split(&mut trial);
    trial.store(3).stalled = true;
    for i in 0..10 {
        trial.write(1, put(&format!("k{i}"), &kilobyte()));
        trial.settle();
    }
    let (full, before) = (trial.report(3, DATA).last, trial.report(3, OTHER).last);
    assert!(trial.store(3).core.tail_bytes() >= BYTES_MAX);
    let write = write_other(&mut trial, "z0");
    trial.settle();
    write_other(&mut trial, "z1");
    trial.settle();
    assert!(trial.is_written(write), "{:?}", trial.reply(write));
    assert_eq!(trial.report(3, OTHER).last, before.next(), "one entry for an empty tail");
    assert_eq!(trial.report(3, DATA).last, full);
    trial.store(3).stalled = false;
    trial.ticks(60);
    assert_eq!(trial.value(3, "z1"), Some(kilobyte()));
    assert_eq!(trial.value(3, "k9"), Some(kilobyte()));
}

#[test]
fn a_leader_proposes_for_a_region_without_a_tail_while_the_tails_of_others_are_full() {
    let mut trial = bounded();
    trial.lead(DATA, 1);
    split(&mut trial);
    trial.lose = |message| {
        let is_append = |raft: &RaftMessage| !raft.entries.is_empty();
        message.region == DATA && matches!(&message.body, Body::Raft(raft) if is_append(raft))
    };
    for i in 0..10 {
        trial.write(1, put(&format!("k{i}"), &kilobyte()));
        trial.settle();
    }
    assert!(trial.store(1).core.tail_bytes() >= BYTES_MAX);
    for i in 0..3 {
        let write = write_other(&mut trial, &format!("z{i}"));
        trial.settle();
        assert!(trial.is_written(write), "{:?}", trial.reply(write));
    }
}

/// Entries of a deposed leader are never committed: only their replacement empties the tail.
#[test]
fn entries_that_replace_a_full_tail_are_taken() {
    let mut trial = bounded();
    trial.lead(DATA, 1);
    trial.isolate(1);
    for i in 0..10 {
        trial.write(1, put(&format!("old{i}"), &kilobyte()));
        trial.settle();
    }
    assert!(trial.store(1).core.tail_bytes() >= BYTES_MAX);
    trial.ticks(40);
    let leader = trial.leader(DATA).filter(|leader| *leader != 1);
    let leader = leader.unwrap_or_else(|| trial.elect(DATA));
    let mut last = None;
    for i in 0..10 {
        last = Some(trial.write(leader, put(&format!("new{i}"), &kilobyte())));
        trial.settle();
    }
    assert!(last.is_some_and(|last| trial.is_written(last)));
    trial.heal();
    trial.ticks(60);
    assert_eq!(trial.value(1, "new9"), Some(kilobyte()));
    assert_eq!(trial.value(1, "old0"), None);
    assert_eq!(trial.store(1).core.tail_bytes(), 0);
}

fn small_deletes(from: u64, count: u64) -> Bytes {
    let mut builder = CommandBuilder::new();
    for key in from..from + count {
        builder.delete(&key.to_be_bytes()).unwrap();
    }
    builder.build().bytes().clone()
}

// Catalogue: 64.
#[test]
fn the_bound_of_unapplied_entries_counts_their_operations_on_leader_and_follower() {
    const OPS: u64 = 100;
    let mut trial = Trial::with(3, |options| options.tail_bytes_max = 40_000);
    trial.lead(DATA, 1);
    trial.store(3).stalled = true;
    let [before, first] = [1, 3].map(|store| trial.report(store, DATA).last);
    let write_30 = |trial: &mut Trial| -> Vec<RequestId> {
        let write = |number| {
            let write = trial.write(1, small_deletes(number * OPS, OPS));
            trial.settle();
            write
        };
        (0..30).map(write).collect()
    };
    let writes = write_30(&mut trial);
    assert!(writes.iter().all(|write| trial.is_written(*write)), "a quorum applies them");
    let taken = trial.report(3, DATA).last.0 - first.0;
    assert!((1..=6).contains(&taken), "the follower took {taken} entries of {OPS} deletes");
    trial.store(2).stalled = true;
    let writes = write_30(&mut trial);
    let busy = writes.iter().filter(|write| trial.busy(**write).is_some()).count();
    let taken = trial.report(1, DATA).last.0 - before.0 - 30;
    assert!((1..=6).contains(&taken) && busy >= 24, "{taken} were proposed, {busy} are busy");
    trial.store(2).stalled = false;
    trial.store(3).stalled = false;
    trial.ticks(60);
    for store in 1..=3 {
        assert_eq!(trial.store(store).core.tail_bytes(), 0, "store {store}");
    }
}
