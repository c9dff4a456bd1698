//! Tests of programs: changes of several keys that are decided together.

use super::*;
use stele_storage::{Outcome, PROGRAM_KEYS_MAX, Pairs, Program, ProgramStep};

/// Adds to the numbers of its keys, and answers with the sums. With `is_read_only` it adds nothing.
#[derive(Debug)]
struct Add {
    keys: Vec<Bytes>,
    by: i64,
    is_read_only: bool,
}

impl Program for Add {
    fn keys(&self) -> &[Bytes] {
        &self.keys
    }

    fn bytes(&self) -> usize {
        self.keys.iter().map(Bytes::len).sum()
    }

    fn decide(&self, pairs: &Pairs, _: u64) -> ProgramStep {
        let missing: Vec<_> = self.keys.iter().filter(|key| !pairs.contains_key(*key)).collect();
        if !missing.is_empty() {
            return ProgramStep::Read(missing.into_iter().cloned().collect());
        }
        let mut outcome = Outcome::default();
        let mut sums = Vec::new();
        for key in &self.keys {
            let text = pairs[key].as_ref().map_or("0", |pair| str::from_utf8(&pair.value).unwrap());
            let sum = (text.parse::<i64>().unwrap() + self.by).to_string();
            if !self.is_read_only {
                outcome.command.put(key, sum.as_bytes(), 0).unwrap();
            }
            sums.push(sum);
        }
        outcome.answer = sums.join(" ").into();
        ProgramStep::Done(outcome)
    }
}

/// Answers with the value of the key that the value of its key names. It never holds that key.
#[derive(Debug)]
struct Follow {
    key: [Bytes; 1],
}

impl Program for Follow {
    fn keys(&self) -> &[Bytes] {
        &self.key
    }

    fn bytes(&self) -> usize {
        self.key[0].len()
    }

    fn decide(&self, pairs: &Pairs, _: u64) -> ProgramStep {
        let Some(first) = pairs.get(&self.key[0]) else {
            return ProgramStep::Read(self.key.to_vec());
        };
        let next = key(str::from_utf8(&first.as_ref().unwrap().value).unwrap());
        let Some(second) = pairs.get(&next) else { return ProgramStep::Read(vec![next]) };
        let answer = second.as_ref().unwrap().value.clone();
        ProgramStep::Done(Outcome { answer, ..Outcome::default() })
    }
}

/// Never comes to a decision.
#[derive(Debug)]
struct Endless {
    keys: Vec<Bytes>,
}

impl Program for Endless {
    fn keys(&self) -> &[Bytes] {
        &self.keys
    }

    fn bytes(&self) -> usize {
        0
    }

    fn decide(&self, pairs: &Pairs, _: u64) -> ProgramStep {
        let next = pairs.len();
        ProgramStep::Read((next..next + 1_000).map(|at| key(&format!("k{at}"))).collect())
    }
}

fn run(trial: &mut Trial, program: impl Program + 'static) -> RequestId {
    let (id, header) = (trial.request(), trial.header(DATA));
    let run = Run { header, program: Arc::new(program) };
    trial.store(1).core.step(Input::request(id, run));
    id
}

fn add(trial: &mut Trial, names: &[&str], by: i64) -> RequestId {
    let keys = names.iter().map(|name| key(name)).collect();
    run(trial, Add { keys, by, is_read_only: false })
}

fn answered(trial: &Trial, id: RequestId) -> Option<&str> {
    match trial.modified(id) {
        Some(Modified::Answered { answer }) => Some(str::from_utf8(answer).unwrap()),
        _ => None,
    }
}

/// Three stores of which the first leads, with `a` = 1 and `b` = 2. Its engine reads every value from the
/// device, and lookups wait for the test.
fn cold() -> Trial {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.write(1, put("a", "1"));
    trial.write(1, put("b", "2"));
    trial.settle();
    trial.store(1).engine.set_cold(true);
    trial.store(1).holds_lookups = true;
    trial
}

#[test]
fn programs_of_several_keys_see_what_was_proposed_before_them() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.store(2).stalled = true;
    trial.store(3).stalled = true;
    let write = trial.write(1, put("b", "40"));
    let first = add(&mut trial, &["a", "b"], 1);
    let second = add(&mut trial, &["b", "c"], 1);
    trial.settle();
    let third = add(&mut trial, &["a", "b", "c"], 1);
    let delete = trial.delete(1, "a");
    let last = add(&mut trial, &["a"], 7);
    trial.settle();
    assert!([write, first, last].iter().all(|id| trial.reply(*id).is_none()));
    trial.store(2).stalled = false;
    trial.settle();
    assert!(trial.is_written(write) && trial.is_written(delete));
    let answers = [first, second, third, last].map(|id| answered(&trial, id).unwrap());
    assert_eq!(answers, ["1 41", "42 1", "2 43 2", "7"]);
    trial.store(3).stalled = false;
    trial.send_heartbeats();
    for store in 1..=3 {
        let values = ["a", "b", "c"].map(|name| trial.value(store, name).unwrap());
        assert_eq!(values, ["7", "43", "2"]);
    }
}

#[test]
fn a_program_sees_what_is_answered_and_not_applied() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(4);
    trial.store(1).stalled = true;
    let write = trial.write(1, put("a", "4"));
    trial.settle();
    assert!(trial.is_written(write));
    let sum = add(&mut trial, &["a", "b"], 1);
    trial.settle();
    assert_eq!(answered(&trial, sum), Some("5 1"));
    assert_eq!(trial.value(1, "a"), None, "nothing is applied");
}

#[test]
fn a_program_that_changes_nothing_waits_for_what_it_read() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.store(2).stalled = true;
    trial.store(3).stalled = true;
    trial.write(1, put("a", "4"));
    let read = run(&mut trial, Add { keys: vec![key("a")], by: 0, is_read_only: true });
    trial.settle();
    assert_eq!(trial.reply(read), None);
    trial.store(2).stalled = false;
    trial.settle();
    assert_eq!(answered(&trial, read), Some("4"));
}

#[test]
fn a_program_holds_all_its_keys_while_one_pair_is_read() {
    let mut trial = cold();
    // `b` is in an unapplied entry, `a` on the device.
    trial.store(2).stalled = true;
    trial.store(3).stalled = true;
    trial.write(1, put("b", "20"));
    let first = add(&mut trial, &["a", "b"], 1);
    trial.settle();
    assert_eq!(trial.store(1).lookups.len(), 1);
    let behind = [trial.write(1, put("b", "50")), add(&mut trial, &["b", "c"], 1)];
    trial.store(2).stalled = false;
    trial.settle();
    assert!(behind.iter().all(|id| trial.reply(*id).is_none()));
    assert!(trial.answer_lookups(1));
    trial.settle();
    trial.answer_lookups(1);
    trial.settle();
    assert_eq!(answered(&trial, first), Some("2 21"));
    assert!(trial.is_written(behind[0]));
    assert_eq!(answered(&trial, behind[1]), Some("51 1"));
}

#[test]
fn a_program_that_waits_for_one_key_holds_no_other() {
    let mut trial = cold();
    let holder = add(&mut trial, &["b"], 1);
    trial.settle();
    let waits = add(&mut trial, &["a", "b"], 1);
    let write = trial.write(1, put("a", "7"));
    trial.settle();
    assert!(trial.is_written(write), "`a` is free");
    assert!(trial.reply(waits).is_none());
    assert!(trial.answer_lookups(1));
    trial.settle();
    trial.answer_lookups(1);
    trial.settle();
    assert_eq!((answered(&trial, holder), answered(&trial, waits)), (Some("3"), Some("8 4")));
}

#[test]
fn the_keys_of_a_program_are_free_once_it_is_decided() {
    let mut trial = cold();
    let first = add(&mut trial, &["a", "c"], 1);
    let other = add(&mut trial, &["b"], 1);
    trial.settle();
    let lookups = &mut trial.store(1).lookups;
    let late: Vec<Lookup> = lookups.extract_if(.., |lookup| lookup.key == key("b")).collect();
    assert!(trial.answer_lookups(1));
    trial.settle();
    assert_eq!(answered(&trial, first), Some("2 1"));
    let writes = ["a", "c"].map(|name| trial.write(1, put(name, "7")));
    trial.settle();
    assert!(writes.iter().all(|write| trial.is_written(*write)));
    assert!(trial.reply(other).is_none());
    trial.store(1).lookups = late;
    assert!(trial.answer_lookups(1));
    trial.settle();
    assert_eq!(answered(&trial, other), Some("3"));
}

#[test]
fn a_program_reads_the_pairs_that_others_name() {
    let mut trial = cold();
    trial.write(1, put("name", "b"));
    trial.settle();
    let follow = run(&mut trial, Follow { key: [key("name")] });
    for _ in 0..2 {
        trial.settle();
        assert!(trial.reply(follow).is_none());
        trial.answer_lookups(1);
    }
    trial.settle();
    assert_eq!(answered(&trial, follow), Some("2"));
}

#[test]
fn a_program_without_an_end_is_refused() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    let endless = run(&mut trial, Endless { keys: vec![key("a")] });
    let keys = (0..=PROGRAM_KEYS_MAX).map(|at| key(&format!("k{at:04}"))).collect();
    let wide = run(&mut trial, Add { keys, by: 1, is_read_only: false });
    trial.settle();
    for id in [endless, wide] {
        assert!(matches!(trial.refusal(id), Some(Refusal::Invalid(_))), "{:?}", trial.reply(id));
    }
}

#[test]
fn leadership_lost_while_a_program_reads_refuses_it_and_all_behind_it() {
    let mut trial = cold();
    let waiting = [add(&mut trial, &["a", "b"], 1), trial.write(1, put("b", "7"))];
    trial.settle();
    trial.lead(DATA, 2);
    for id in waiting {
        assert!(matches!(trial.refusal(id), Some(Refusal::NotLeader { .. })));
    }
    trial.answer_lookups(1);
    trial.ticks(4);
    assert_eq!(trial.value(2, "b").as_deref(), Some("2"), "nothing was proposed");
}

/// Sets its key without reading it, and answers whether it has its pair. With `is_intent` it says that it
/// puts an intent.
#[derive(Debug)]
struct SetUnread {
    key: [Bytes; 1],
    is_intent: bool,
}

impl Program for SetUnread {
    fn keys(&self) -> &[Bytes] {
        &self.key
    }

    fn bytes(&self) -> usize {
        self.key[0].len()
    }

    fn decide(&self, pairs: &Pairs, _: u64) -> ProgramStep {
        let mut outcome = Outcome::default();
        outcome.command.put(&self.key[0], b"7", 0).unwrap();
        outcome.answer = pairs.contains_key(&self.key[0]).to_string().into();
        ProgramStep::Done(outcome)
    }

    fn may_replace_unread(&self) -> bool {
        !self.is_intent
    }

    fn puts_intents(&self) -> bool {
        self.is_intent
    }
}

fn has_pair(trial: &mut Trial, is_intent: bool) -> bool {
    let id = run(trial, SetUnread { key: [key("a")], is_intent });
    trial.settle();
    answered(trial, id).unwrap() == "true"
}

/// Longer than intents are guarded.
fn wait_for_intents(trial: &mut Trial) {
    trial.now += 31_000_000_000;
}

#[test]
fn a_program_that_replaces_unread_pairs_reads_them_in_a_new_term() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(4);
    assert!(has_pair(&mut trial, false));
    wait_for_intents(&mut trial);
    trial.ticks(4);
    for leader in [2, 1] {
        trial.lead(DATA, leader);
        trial.ticks(4);
    }
    assert!(has_pair(&mut trial, false));
}

#[test]
fn a_program_that_replaces_unread_pairs_reads_them_after_intents() {
    let mut trial = Trial::new(1);
    trial.lead(DATA, 1);
    trial.ticks(4);
    assert!(has_pair(&mut trial, false));
    assert!(!has_pair(&mut trial, true), "it reads nothing itself");
    wait_for_intents(&mut trial);
    assert!(!has_pair(&mut trial, false), "the time is over");
    has_pair(&mut trial, true);
    assert!(has_pair(&mut trial, false));
}
