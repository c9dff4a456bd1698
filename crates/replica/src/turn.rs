//! The turn of a store's loop. A turn steps all waiting items, then lets the core do what is due.
//! [`Outputs::carry_out`] carries its results out in this order: send, append, reply.
//!
//! Items that arrive while a batch is written wait for the next turn, or are stepped meanwhile if
//! another thread writes: this is the group commit.

use crate::queue::{Admitted, Item};
use crate::{
    Append, Event, Input, Lookup, Now, Outputs, PeerMessage, RaftStore, ReadGate, Reply, Request,
    RequestId, SendSnapshot, Unknown,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{Error, RegionId};

/// What carries out the results of a turn: threads of a server, or a simulation.
pub trait CarryOut<E: StorageEngine, A> {
    /// Sends messages to other stores.
    fn send(&mut self, messages: Vec<PeerMessage>);
    /// Begins to write a batch.
    fn append(&mut self, append: Append);
    /// Answers callers.
    fn reply(&mut self, replies: Vec<(A, Reply)>);
    /// Begins to send a snapshot.
    fn send_snapshot(&mut self, snapshot: SendSnapshot<E>);
    /// Begins to read a key.
    fn look_up(&mut self, lookup: Lookup);
    /// Handles changes of regions.
    fn handle(&mut self, events: Vec<Event>);
    /// Lets maintenance checkpoint the engine soon.
    fn want_checkpoint(&mut self);
}

impl<E: StorageEngine, A> Outputs<E, A> {
    /// Carries the results of a turn out.
    ///
    /// Invariant: messages leave before the batch is written, so that followers persist while this
    /// store does; the write is ordered before callers are answered, so that no answer delays a thread
    /// that writes. An owner that writes itself does so after the answers: they need not wait for it.
    pub fn carry_out(self, owner: &mut impl CarryOut<E, A>) {
        let Self { messages, append, replies, .. } = self;
        if !messages.is_empty() {
            owner.send(messages);
        }
        // bug replica.replies_before_append: let replies = { owner.reply(replies); Vec::new() };
        if let Some(append) = append {
            owner.append(append);
        }
        // bug replica.replies_before_append: skip
        owner.reply(replies);
        self.snapshots.into_iter().for_each(|snapshot| owner.send_snapshot(snapshot));
        self.lookups.into_iter().for_each(|lookup| owner.look_up(lookup));
        if !self.events.is_empty() {
            owner.handle(self.events);
        }
        if self.wants_checkpoint {
            owner.want_checkpoint();
        }
    }
}

/// End of a store's loop by an error. Durable data stays.
#[derive(Debug)]
pub struct Ended<A> {
    /// Reason.
    pub error: Error,
    /// Replies to the callers of all requests that the loop had.
    pub replies: Vec<(A, Reply)>,
}

/// Loop of one store.
pub struct StoreLoop<E: StorageEngine, A> {
    core: RaftStore<E>,
    readers: Arc<ReadGate>,
    requests: BTreeMap<RequestId, Pending<A>>,
    /// Monotonic nanoseconds of the next check of deadlines.
    next_check_nanos: u64,
}

struct Pending<A> {
    /// `None` once the caller was answered: its deadline passed.
    caller: Option<A>,
    /// Invariant: the bytes of a request count until the core answers. A proposal uses memory also
    /// when its caller no longer waits for it.
    /// Test: `a_request_past_its_deadline_is_answered_and_its_bytes_count_until_its_outcome_is_known`.
    _admitted: Admitted,
    /// Deadline of a write; 0 without one.
    deadline_nanos: u64,
}

/// Ticks after which a request past its deadline counts as proposed: the core refuses the others at
/// its next tick.
const PROPOSED_AFTER_TICKS: u64 = 2;

/// Invariant: no reader of a loop that has ended leads, however it ended: nothing would depose it
/// when another store leads, and the node would take itself for the leader.
/// Test: `a_loop_that_has_ended_leads_nothing_and_knows_no_leader`.
impl<E: StorageEngine, A> Drop for StoreLoop<E, A> {
    fn drop(&mut self) {
        self.depose();
    }
}

impl<E: StorageEngine, A> StoreLoop<E, A> {
    /// Creates the loop of an open core.
    pub fn new(core: RaftStore<E>) -> Self {
        let readers = core.readers();
        Self { core, readers, requests: BTreeMap::new(), next_check_nanos: 0 }
    }

    /// Returns the core, for inspection.
    pub fn core(&mut self) -> &mut RaftStore<E> {
        &mut self.core
    }

    /// Returns the replicas that may serve reads outside the loop.
    pub fn readers(&self) -> &Arc<ReadGate> {
        &self.readers
    }

    /// Returns whether a record of the region is in flight or waits for the next batch.
    pub fn has_records_of(&self, region: RegionId) -> bool {
        self.core.has_records_of(region)
    }

    /// Returns the monotonic nanoseconds at which a turn is due without items; `None` for never.
    pub fn next_turn_nanos(&self) -> Option<u64> {
        self.core.next_tick_nanos()
    }

    /// Steps `items` and does what is due. Leaves `items` empty. After an error the loop has ended.
    pub fn turn(
        &mut self,
        items: &mut Vec<Item<E, A>>,
        now: Now,
    ) -> Result<Outputs<E, A>, Ended<A>> {
        // bug replica.inputs_in_the_past: skip
        self.core.begin_turn(now);
        let mut items = items.drain(..);
        for item in items.by_ref() {
            if let Err(error) = self.step(item) {
                return Err(self.ended(error, items.filter_map(Item::refused).collect()));
            }
        }
        match self.core.poll(now) {
            Ok(outputs) => {
                let mut outputs = self.for_callers(outputs);
                outputs.replies.extend(self.overdue(now.monotonic_nanos));
                Ok(outputs)
            }
            Err(error) => Err(self.ended(error, Vec::new())),
        }
    }

    /// Returns the replies to requests of which the deadline passed after they were proposed.
    fn overdue(&mut self, now_nanos: u64) -> Vec<(A, Reply)> {
        if now_nanos < self.next_check_nanos {
            return Vec::new();
        }
        let tick_nanos = self.core.tick_nanos();
        self.next_check_nanos = now_nanos + tick_nanos;
        let proposed_by = now_nanos.saturating_sub(PROPOSED_AFTER_TICKS * tick_nanos);
        let is_overdue = |request: &&mut Pending<A>| {
            // bug replica.deadline_ends_with_proposal: return false;
            request.deadline_nanos != 0 && request.deadline_nanos <= proposed_by
        };
        let overdue = self.requests.values_mut().filter(is_overdue);
        let reply = Reply::Unknown(Unknown::DeadlinePassed);
        let answered =
            overdue.filter_map(|request| Some((request.caller.take()?, reply.clone()))).collect();
        // bug replica.deadline_frees_memory: self.requests.retain(|_, request| request.caller.is_some());
        answered
    }

    fn step(&mut self, item: Item<E, A>) -> Result<(), Error> {
        match item {
            Item::Input(input) => self.core.step(input),
            Item::Message { message, .. } => {
                self.core.step(Input::Message(message));
            }
            Item::Request { id, request, caller, admitted } => {
                let deadline_nanos = deadline_of(&request);
                let pending = Pending { caller: Some(caller), _admitted: admitted, deadline_nanos };
                self.requests.insert(id, pending);
                self.core.step(Input::Request { id, request });
            }
            Item::Call(call) => call(&mut self.core),
            Item::Stopped(error) => return Err(error),
        }
        Ok(())
    }

    fn for_callers(&mut self, outputs: Outputs<E>) -> Outputs<E, A> {
        let Outputs { messages, append, replies, snapshots, lookups, events, wants_checkpoint } =
            outputs;
        let replies = replies.into_iter().filter_map(|(id, reply)| {
            let caller = self.requests.remove(&id)?.caller?;
            Some((caller, reply))
        });
        let replies = replies.collect();
        Outputs { messages, append, replies, snapshots, lookups, events, wants_checkpoint }
    }

    fn ended(&mut self, error: Error, refused: Vec<(A, Reply)>) -> Ended<A> {
        let mut replies = self.end();
        replies.extend(refused);
        Ended { error, replies }
    }

    /// Ends the loop. Returns the replies of the requests that it had taken: they may have been
    /// executed, and another store may still commit them.
    pub fn end(&mut self) -> Vec<(A, Reply)> {
        self.depose();
        let taken = std::mem::take(&mut self.requests).into_values();
        let callers = taken.filter_map(|request| request.caller);
        callers.map(|caller| (caller, Reply::Unknown(Unknown::StoreStopped))).collect()
    }

    fn depose(&self) {
        // bug replica.readers_outlive_loop: skip
        self.readers.depose_all();
    }
}

/// Returns the deadline of a write; 0 for any other request, which the core ends.
fn deadline_of(request: &Request) -> u64 {
    match request {
        Request::Write(write) => write.header.deadline_nanos,
        Request::Modify(modify) => modify.header.deadline_nanos,
        Request::Run(run) => run.header.deadline_nanos,
        Request::Read(_) | Request::Admin(_) | Request::SnapshotOffered(_) | Request::Moment(_) => {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Queue;
    use crate::{
        Admin, AdminCall, Busy, Done, Header, Modification, Modify, Options, Refusal, Write,
    };
    use bytes::Bytes;
    use stele_conformance::ModelEngine;
    use stele_storage::{EngineView, LogStore, StateMachine};
    use stele_types::{
        ClusterId, CommandBuilder, Peer, PeerId, PeerRole, Region, StoreId, StoreIdent,
    };

    const REGION: RegionId = RegionId(2);

    struct Trial {
        engine: Arc<ModelEngine>,
        store_loop: StoreLoop<ModelEngine, u8>,
        queue: Queue<ModelEngine, u8>,
        now: u64,
    }

    impl Trial {
        fn new() -> Self {
            let (store, cluster) = (StoreId(1), ClusterId(5));
            let peers = vec![Peer { id: PeerId(11), store, role: PeerRole::Voter }];
            let region = Region { id: REGION, peers, ..Region::default() };
            let engine = Arc::new(ModelEngine::default());
            RaftStore::bootstrap(&*engine, &StoreIdent::new(cluster, store), &[region]).unwrap();
            let options = Options::new(store, cluster, 1, 1);
            let core = RaftStore::open(engine.clone(), options, Now::default()).unwrap();
            let (store_loop, queue) = (StoreLoop::new(core), Queue::new(1 << 20));
            let mut trial = Self { engine, store_loop, queue, now: 0 };
            let header = Header { region: REGION, ..Header::default() };
            let campaign = AdminCall { header, call: Admin::Campaign };
            trial.queue.submit(campaign.into(), 0, None).unwrap();
            trial.settle();
            trial
        }

        fn put(&self, caller: u8) {
            self.put_until(caller, 0);
        }

        fn put_until(&self, caller: u8, deadline_nanos: u64) {
            let header = Header { region: REGION, deadline_nanos, ..Header::default() };
            let mut command = CommandBuilder::new();
            command.put(b"k", &[caller], 0).unwrap();
            let command = command.build().bytes().clone();
            let write = Write { header, command, only_deletes: false };
            self.queue.submit(write.into(), caller, None).unwrap();
        }

        fn turn(&mut self) -> Result<Outputs<ModelEngine, u8>, Ended<u8>> {
            self.now += 1_000_000;
            let mut items = Vec::new();
            self.queue.take(&mut items);
            let now = Now { monotonic_nanos: self.now, unix_millis: 0 };
            self.store_loop.turn(&mut items, now)
        }

        fn write(&self, append: Append) {
            let result = self.engine.append(&append.batch);
            let written = Input::Appended { ticket: append.ticket, result };
            self.queue.push(Item::Input(written)).unwrap();
        }

        /// Takes turns until nothing is written. Returns the replies.
        fn settle(&mut self) -> Vec<(u8, Reply)> {
            let mut replies = Vec::new();
            loop {
                let turn = self.turn().unwrap();
                replies.extend(turn.replies);
                match turn.append {
                    Some(append) => self.write(append),
                    None => return replies,
                }
            }
        }
    }

    #[test]
    fn requests_that_arrive_while_a_batch_is_written_are_taken_and_answered_after_theirs() {
        let mut trial = Trial::new();
        trial.put(1);
        let append = trial.turn().unwrap().append.unwrap();
        trial.put(2);
        let turn = trial.turn().unwrap();
        assert!(turn.append.is_none(), "one batch at a time");
        assert!(turn.replies.is_empty());
        trial.write(append);
        let replies = trial.settle();
        let callers: Vec<u8> = replies.iter().map(|(caller, _)| *caller).collect();
        assert_eq!(callers, [1, 2]);
        assert!(
            replies.iter().all(|(_, reply)| matches!(reply, Reply::Done(Done::Written { .. })))
        );
        assert_eq!(trial.queue.request_bytes(), 0);
    }

    #[derive(Default)]
    struct Recorded(Vec<&'static str>);

    impl CarryOut<ModelEngine, u8> for Recorded {
        fn send(&mut self, _: Vec<PeerMessage>) {
            self.0.push("send");
        }

        fn append(&mut self, _: Append) {
            self.0.push("append");
        }

        fn reply(&mut self, _: Vec<(u8, Reply)>) {
            self.0.push("reply");
        }

        fn send_snapshot(&mut self, _: SendSnapshot<ModelEngine>) {
            self.0.push("snapshot");
        }

        fn look_up(&mut self, _: Lookup) {
            self.0.push("look up");
        }

        fn handle(&mut self, _: Vec<Event>) {
            self.0.push("events");
        }

        fn want_checkpoint(&mut self) {
            self.0.push("checkpoint");
        }
    }

    #[test]
    fn a_turn_sends_then_appends_then_replies() {
        let mut trial = Trial::new();
        trial.put(1);
        let mut turn = trial.turn().unwrap();
        let body = crate::Body::Gone;
        turn.messages.push(PeerMessage::between_stores(StoreId(1), StoreId(2), body));
        turn.events.push(Event::RegionChanged(Region::default()));
        turn.wants_checkpoint = true;
        let mut recorded = Recorded::default();
        turn.carry_out(&mut recorded);
        assert_eq!(recorded.0, ["send", "append", "reply", "events", "checkpoint"]);
    }

    #[test]
    fn a_loop_that_ends_answers_what_it_took_as_unknown_and_refuses_what_it_did_not_take() {
        let mut trial = Trial::new();
        trial.put(1);
        trial.turn().unwrap();
        trial.put(2);
        trial.queue.push(Item::Stopped(Error::invalid("a sync failed"))).unwrap();
        trial.put(3);
        let Err(ended) = trial.turn() else { panic!("it must end") };
        let unknown = Reply::Unknown(Unknown::StoreStopped);
        let refused = Reply::Refused(Refusal::StoreStopped);
        assert_eq!(ended.replies, [(1, unknown.clone()), (2, unknown), (3, refused)]);
    }

    #[test]
    fn a_turn_steps_its_items_at_its_own_time() {
        let mut trial = Trial::new();
        trial.now += 40_000_000;
        trial.put(1);
        let (sender, stepped_at) = std::sync::mpsc::channel();
        // A store with work of its items is due at their time.
        let ask = move |core: &mut RaftStore<_>| sender.send(core.next_tick_nanos()).unwrap();
        trial.queue.push(Item::Call(Box::new(ask))).unwrap();
        trial.turn().unwrap();
        assert_eq!(stepped_at.recv().unwrap(), Some(trial.now));
    }

    #[test]
    fn a_request_past_its_deadline_is_answered_and_its_bytes_count_until_its_outcome_is_known() {
        let mut trial = Trial::new();
        let tick_nanos = trial.store_loop.core().tick_nanos();
        let deadline_nanos = trial.now + 10 * tick_nanos;
        trial.put_until(1, deadline_nanos);
        let append = trial.turn().unwrap().append.unwrap();
        let bytes = trial.queue.request_bytes();
        assert!(bytes > 0);
        trial.now = deadline_nanos - tick_nanos;
        assert!(trial.turn().unwrap().replies.is_empty());
        trial.now = deadline_nanos + 3 * tick_nanos;
        let replies = trial.turn().unwrap().replies;
        assert_eq!(replies, [(1, Reply::Unknown(Unknown::DeadlinePassed))]);
        assert_eq!(trial.queue.request_bytes(), bytes, "its entry is in memory");
        trial.now += 3 * tick_nanos;
        assert!(trial.turn().unwrap().replies.is_empty(), "once");
        trial.write(append);
        assert!(trial.settle().is_empty(), "its caller was answered");
        assert_eq!(trial.queue.request_bytes(), 0);
        // One that was not proposed has no effect.
        trial.put_until(2, trial.now);
        assert_eq!(trial.settle(), [(2, Reply::Busy(Busy::DeadlinePassed))]);
    }

    #[test]
    fn requests_that_wait_for_a_held_key_count_until_they_are_answered() {
        let mut trial = Trial::new();
        trial.put(1);
        trial.settle();
        trial.engine.set_cold(true);
        let header = Header { region: REGION, ..Header::default() };
        let (key, change) = (Bytes::from_static(b"k"), Modification::GetAndDelete);
        trial.queue.submit(Modify { header, key, change, session: None }.into(), 2, None).unwrap();
        let lookup = trial.turn().unwrap().lookups.pop().unwrap();
        trial.put(3);
        let bytes = trial.queue.request_bytes();
        assert!(trial.settle().is_empty());
        assert_eq!(trial.queue.request_bytes(), bytes);
        let result = trial.engine.view().unwrap().get(&lookup.key);
        trial.queue.push(Item::Input(Input::Found { lookup, result })).unwrap();
        let callers: Vec<u8> = trial.settle().iter().map(|(caller, _)| *caller).collect();
        assert_eq!((callers, trial.queue.request_bytes()), (vec![2, 3], 0));
    }

    #[test]
    fn a_loop_that_has_ended_leads_nothing_and_knows_no_leader() {
        let mut trial = Trial::new();
        let readers = trial.store_loop.readers().clone();
        let leader = |readers: &ReadGate| {
            let reader = readers.get(REGION).unwrap();
            (reader.leading_term().is_some(), reader.leader().is_some())
        };
        assert_eq!(leader(&readers), (true, true));
        trial.queue.push(Item::Stopped(Error::invalid("a sync failed"))).unwrap();
        assert!(trial.turn().is_err());
        assert_eq!(leader(&readers), (false, false));
        let dropped = Trial::new();
        let readers = dropped.store_loop.readers().clone();
        drop(dropped);
        assert_eq!(leader(&readers), (false, false), "also when its thread panics");
    }
}
