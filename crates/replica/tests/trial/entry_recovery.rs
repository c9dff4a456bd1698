//! Tests of stores that recover lost log entries.

use super::*;
use stele_storage::{LogStore, LostEntry, RecoverableLog};

pub(crate) struct Waiting {
    pub engine: Arc<ModelEngine>,
    pub recovery: EntryRecovery<Log>,
}

#[derive(Default)]
pub(crate) struct Log {
    entries: BTreeMap<LostEntry, Option<Bytes>>,
    next: usize,
}

impl Log {
    fn of(engine: &ModelEngine) -> Self {
        let progress = engine.progress(DATA).unwrap();
        let (from, to) = (progress.truncated.0.next(), progress.persisted.0.next());
        let entries = engine.entries(DATA, from, to, usize::MAX).unwrap();
        let entry = |it: CommittedEntry| {
            (lost(it.index.0, it.term.0, &it.payload), Some(it.payload.clone()))
        };
        Self { entries: entries.into_iter().map(entry).collect(), next: 0 }
    }

    fn lose(&mut self, is_lost: impl Fn(&LostEntry) -> bool) {
        let lost = self.entries.iter_mut().filter(|(entry, _)| is_lost(entry));
        lost.for_each(|(_, payload)| *payload = None);
    }
}

impl RecoverableLog for Log {
    fn lost_entries(&mut self, count_max: usize) -> Vec<LostEntry> {
        let lost = self.entries.iter().filter(|(_, payload)| payload.is_none());
        let lost: Vec<LostEntry> = lost.map(|(lost, _)| *lost).collect();
        let count = count_max.min(lost.len());
        let next = self.next;
        self.next += count;
        lost.iter().cycle().skip(next % lost.len().max(1)).take(count).copied().collect()
    }

    fn find(&self, lost: &LostEntry) -> Option<Bytes> {
        self.entries.get(lost).cloned().flatten()
    }

    fn restore_entry(&mut self, lost: &LostEntry, payload: &[u8]) -> Result<bool> {
        let Some(entry) = self.entries.get_mut(lost) else { return Ok(false) };
        let fits = entry.is_none() && lost.is_copy(payload);
        if fits {
            *entry = Some(Bytes::copy_from_slice(payload));
        }
        Ok(fits)
    }

    fn is_recovered(&self) -> bool {
        self.entries.values().all(Option::is_some)
    }
}

fn lost(index: u64, term: u64, payload: &[u8]) -> LostEntry {
    let (index, term, crc) = (LogIndex(index), Term(term), checksum::crc32c(payload));
    LostEntry { region: DATA, index, term, bytes: payload.len() as u32, crc }
}

impl Trial {
    /// Crashes a store and damages entries of its log.
    fn restart_with_damage(&mut self, id: u64, is_lost: impl Fn(&LostEntry) -> bool) {
        let store = self.stores.remove(&id).unwrap();
        let engine = Arc::new(store.engine.crash());
        drop(store);
        let mut log = Log::of(&engine);
        log.lose(is_lost);
        self.recovering
            .insert(id, Waiting { engine, recovery: EntryRecovery::new(StoreId(id), log) });
    }

    pub(super) fn poll_recovering(&mut self) -> bool {
        let mut busy = false;
        let all = self.stores.keys().chain(self.recovering.keys());
        let all: Vec<StoreId> = all.copied().map(StoreId).collect();
        for (id, mut waiting) in std::mem::take(&mut self.recovering) {
            let messages = waiting.recovery.poll(self.now, &all);
            busy |= !messages.is_empty();
            self.in_flight.extend(messages);
            match waiting.recovery.is_recovered() {
                true => self.open(id, waiting.engine),
                false => drop(self.recovering.insert(id, waiting)),
            }
        }
        busy
    }
}

fn with_writes(count: usize) -> Trial {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    for number in 0..count {
        let write = trial.write(1, put(&format!("k{number}"), "v"));
        trial.ticks(1);
        assert!(trial.is_written(write));
    }
    trial.ticks(3);
    trial
}

#[test]
fn entries_lost_in_different_places_on_every_store_are_all_found() {
    let mut trial = with_writes(200);
    for store in 1..=3 {
        trial.restart_with_damage(store, |lost| lost.index.0 % 3 != store % 3);
    }
    trial.ticks(1);
    assert!(trial.stores.is_empty(), "no store has recovered");
    trial.ticks(40);
    assert!(trial.recovering.is_empty(), "all are");
    trial.elect(DATA);
    trial.ticks(20);
    for store in 1..=3 {
        for number in 0..200 {
            let value = trial.value(store, &format!("k{number}"));
            assert_eq!(value.as_deref(), Some("v"), "k{number} on store {store}");
        }
    }
}

#[test]
fn a_store_neither_votes_nor_acknowledges_before_its_last_lost_entry_is_back() {
    let mut trial = with_writes(3);
    trial.lose = |message| matches!(message.body, Body::EntryRecoveryReply(_));
    trial.isolate(3);
    let last = trial.report(2, DATA).last;
    trial.restart_with_damage(2, |lost| lost.index == last);
    let write = trial.write(1, put("new", "v"));
    trial.ticks(100);
    assert!(!trial.is_written(write) && trial.leader(DATA).is_none());
    assert_eq!(trial.recovering[&2].recovery.lost(), (1, 1));
    trial.lose = |_| false;
    trial.ticks(10);
    let leader = trial.elect(DATA);
    let write = trial.write(leader, put("new", "v"));
    trial.ticks(10);
    assert!(trial.is_written(write));
}

#[test]
fn a_store_that_waits_answers_nothing_but_questions_for_entries() {
    let mut log = Log::default();
    let payload = put("a", "1");
    log.entries.insert(lost(1, 1, &payload), Some(payload.clone()));
    log.entries.insert(lost(2, 1, b"lost"), None);
    let mut recovery = EntryRecovery::new(StoreId(1), log);
    let mut answers = |body: Body| {
        let peers = (peer(102, 2), peer(101, 1));
        let between = PeerMessage::between_stores(StoreId(2), StoreId(1), body);
        let message = PeerMessage { region: DATA, from: peers.0, to: peers.1, ..between };
        recovery.receive(message).unwrap()
    };
    for kind in RaftKind::ALL {
        let mut raft = RaftMessage::new(kind, Term(9));
        (raft.index, raft.log_term) = (LogIndex(2), Term(1));
        assert_eq!(answers(Body::Raft(raft)), [], "{kind:?}");
    }
    let all = KeyRange::all();
    let found = Body::EntryRecoveryReply(vec![(lost(1, 1, &payload), payload.clone())]);
    let silent = [
        Body::Gone,
        Body::WakeUp,
        Body::ValueRepairRequest(Vec::new()),
        Body::RangeRepairRequest(all),
        found,
    ];
    for body in silent {
        assert_eq!(answers(body.clone()), [], "{body:?}");
    }
    let asked = vec![lost(1, 1, &payload), lost(1, 2, &payload), lost(2, 1, b"lost")];
    let [answer] = &answers(Body::EntryRecoveryRequest(asked))[..] else { panic!("no answer") };
    assert_eq!(answer.to_store, StoreId(2));
    assert_eq!(
        answer.body,
        Body::EntryRecoveryReply(vec![(lost(1, 1, &payload), payload.clone())])
    );
    assert_eq!(answers(Body::EntryRecoveryRequest(vec![lost(2, 1, b"lost")])), []);
}

#[test]
fn an_entry_of_another_term_or_of_other_bytes_is_no_answer() {
    let mut trial = with_writes(1);
    let engine = trial.store(1).engine.clone();
    let last = engine.progress(DATA).unwrap().persisted.0;
    let entry = engine.entries(DATA, last, last.next(), 0).unwrap().remove(0);
    let (index, term) = (entry.index.0, entry.term.0);
    let now = trial.clock();
    let mut answers = |from: u64, lost: LostEntry| {
        let body = Body::EntryRecoveryRequest(vec![lost]);
        let ask = PeerMessage::between_stores(StoreId(from), StoreId(1), body);
        let core = &mut trial.store(1).core;
        core.step(Input::Message(ask));
        let messages = core.poll(now).unwrap().messages;
        let answers =
            messages.into_iter().filter(|it| matches!(it.body, Body::EntryRecoveryReply(_)));
        answers.collect::<Vec<_>>()
    };
    let right = lost(index, term, &entry.payload);
    // Store 9 is not a member of any region: a store without replicas is answered as well.
    for from in [2, 9] {
        let [answer] = &answers(from, right)[..] else { panic!("store {from} got no reply") };
        assert_eq!(answer.to_store, StoreId(from));
        assert_eq!(answer.body, Body::EntryRecoveryReply(vec![(right, entry.payload.clone())]));
    }
    let wrong = [
        lost(index, term + 1, &entry.payload),
        lost(index, term - 1, &entry.payload),
        lost(index + 1, term, &entry.payload),
        lost(index, term, b"other"),
        LostEntry { crc: right.crc ^ 1, ..right },
        LostEntry { region: RegionId(77), ..right },
    ];
    for lost in wrong {
        assert_eq!(answers(2, lost), [], "{lost:?}");
    }
}

#[test]
fn every_other_store_is_asked_for_an_entry_before_the_next_entries_have_their_turn() {
    // Two messages hold all entries, and there are two other stores: each must receive both halves.
    let mut log = Log::default();
    (0..128).for_each(|index| drop(log.entries.insert(lost(index, 1, b"x"), None)));
    let mut recovery = EntryRecovery::new(StoreId(1), log);
    let others = [1, 2, 3].map(StoreId);
    let mut received: BTreeSet<(StoreId, LogIndex)> = BTreeSet::new();
    let mut now = 0;
    for _ in 0..4 {
        let messages = recovery.poll(now, &others);
        assert!(recovery.poll(now, &others).is_empty(), "one request at a time");
        for message in messages {
            let Body::EntryRecoveryRequest(lost) = message.body else {
                panic!("{:?}", message.body)
            };
            received.extend(lost.iter().map(|lost| (message.to_store, lost.index)));
        }
        now = recovery.asks_at();
    }
    assert_eq!(received.len(), 2 * 128);
    assert_eq!(recovery.waited_nanos(now), now);
    assert!(EntryRecovery::new(StoreId(1), Log::default()).is_recovered());
    assert!(recovery.poll(now, &[StoreId(1)]).is_empty(), "there is no other store");
}

#[test]
fn an_answer_holds_about_a_mebibyte_and_the_rest_is_asked_for_at_once() {
    let payload = put("a", &"x".repeat(300 << 10));
    let (mut whole, mut damaged) = (Log::default(), Log::default());
    for index in 0..20 {
        whole.entries.insert(lost(index, 1, &payload), Some(payload.clone()));
        damaged.entries.insert(lost(index, 1, &payload), None);
    }
    let mut giver = EntryRecovery::new(StoreId(2), whole);
    let mut taker = EntryRecovery::new(StoreId(1), damaged);
    let mut answers = 0;
    while !taker.is_recovered() {
        let asked = taker.poll(7, &[StoreId(2), StoreId(3)]).remove(0);
        assert_eq!(asked.to_store, StoreId(2));
        let answer = giver.receive(asked).unwrap().remove(0);
        let Body::EntryRecoveryReply(found) = &answer.body else { panic!("{:?}", answer.body) };
        assert_eq!(found.len(), 4);
        answers += 1;
        assert!(taker.receive(answer).unwrap().is_empty());
        assert_eq!(taker.lost(), (20 - 4 * answers, 20));
    }
    assert_eq!(answers, 5);
}
