//! Group commit. Callers add their operations to the open group. One of them becomes the leader: it
//! takes the group, makes it durable with one write and one sync, applies it and completes all its
//! calls. Callers that arrive in the meantime form the next group.
//!
//! Invariants: a group is applied only after its sync, and groups are applied in log order.

use super::completion::{Completion, Outcome};
use super::workers::Signal;
use crate::store::Store;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use stele_gc::Pressure;
use stele_storage::{LogStore, StateMachine};
use stele_types::{
    CommandBuilder, CommittedEntry, EntryRecord, Error, LogBatch, LogIndex, Record, RegionId,
    Result, Term,
};

/// The one region of an embedded store.
pub(crate) const EMBEDDED_REGION: RegionId = RegionId(1);
/// An embedded store has no elections.
const EMBEDDED_TERM: Term = Term(1);
/// Size above which a group takes no further member.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// Times that a leader yields before it takes a group smaller than the last one.
const YIELDS_MAX: usize = 2;

pub(crate) struct CommitQueue {
    store: Arc<Store>,
    waiting: Mutex<Waiting>,
    room: Condvar,
    leader: Mutex<Leader>,
    /// Raised when a group has operations and no member waits for it.
    unattended: Arc<Signal>,
    bytes_max: usize,
}

impl std::fmt::Debug for CommitQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitQueue").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

struct Waiting {
    groups: VecDeque<Group>,
    bytes: usize,
    leading: bool,
}

struct Group {
    builder: CommandBuilder,
    outcome: Arc<Outcome>,
}

impl Group {
    fn new() -> Self {
        Self { builder: CommandBuilder::new(), outcome: Arc::default() }
    }
}

#[derive(Default)]
struct Leader {
    last_group_ops: usize,
}

impl CommitQueue {
    pub fn new(store: Arc<Store>, bytes_max: usize, unattended: Arc<Signal>) -> Arc<Self> {
        let waiting = Waiting { groups: VecDeque::new(), bytes: 0, leading: false };
        Arc::new(Self {
            store,
            waiting: Mutex::new(waiting),
            room: Condvar::new(),
            leader: Mutex::default(),
            unattended,
            bytes_max,
        })
    }

    /// Adds operations to the open group; `add` must add all of them, or fail and add none. Waits
    /// while the queue is full, so its memory is bounded.
    pub fn submit(
        self: &Arc<Self>,
        bytes: usize,
        add: impl FnOnce(&mut CommandBuilder) -> Result<()>,
    ) -> Result<Completion> {
        let mut waiting = self.waiting.lock();
        while waiting.bytes > 0 && waiting.bytes + bytes > self.bytes_max {
            if waiting.leading {
                self.room.wait(&mut waiting);
            } else {
                drop(waiting);
                self.lead_once();
                waiting = self.waiting.lock();
            }
        }
        let fits = |group: &Group| {
            group.builder.is_empty() || group.builder.encoded_bytes() + bytes <= GROUP_BYTES_MAX
        };
        if !waiting.groups.back().is_some_and(fits) {
            waiting.groups.push_back(Group::new());
        }
        let Some(group) = waiting.groups.back_mut() else {
            return Err(Error::Busy("no open group".into()));
        };
        let before = group.builder.encoded_bytes();
        add(&mut group.builder)?;
        let added = group.builder.encoded_bytes() - before;
        // A call without operations is done at once; an empty group is never committed.
        let outcome = if added == 0 { Outcome::done() } else { group.outcome.clone() };
        waiting.bytes += added;
        Ok(Completion { outcome, queue: self.clone() })
    }

    /// Waits for a group, and leads commits while there is no other leader.
    pub fn wait(&self, outcome: &Outcome) -> Result<()> {
        loop {
            if let Some(result) = outcome.result() {
                return result;
            }
            if !self.lead_once() {
                outcome.park();
            }
        }
    }

    /// Commits all that was submitted before the call. Failures are reported to the members.
    pub fn drain(&self) {
        loop {
            let last = {
                let waiting = self.waiting.lock();
                let filled = waiting.groups.iter().rev().find(|group| !group.builder.is_empty());
                filled.map(|group| group.outcome.clone())
            };
            match last {
                Some(outcome) => drop(self.wait(&outcome)),
                None => {
                    // The last group taken may not be committed yet.
                    drop(self.leader.lock());
                    return;
                }
            }
        }
    }

    /// Commits the oldest group, unless another thread is committing or nothing waits.
    pub fn lead_once(&self) -> bool {
        {
            let mut waiting = self.waiting.lock();
            let nothing = waiting.groups.front().is_none_or(|group| group.builder.is_empty());
            if waiting.leading || nothing {
                return false;
            }
            waiting.leading = true;
        }
        let mut leader = self.leader.lock();
        self.let_others_join(&leader);
        let group = self.take_group();
        if let Some(Group { builder, outcome }) = group {
            leader.last_group_ops = builder.len();
            let result = self.commit(builder);
            drop(leader);
            self.step_down();
            outcome.finish(result);
        } else {
            drop(leader);
            self.step_down();
        }
        true
    }

    /// Yields to writers that were completed just now and are about to write again. This makes the
    /// group as large as the last and the number of syncs smaller.
    fn let_others_join(&self, leader: &Leader) {
        for _ in 0..YIELDS_MAX {
            let ops = self.waiting.lock().groups.front().map_or(0, |group| group.builder.len());
            if ops >= leader.last_group_ops {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn take_group(&self) -> Option<Group> {
        let mut waiting = self.waiting.lock();
        let group = waiting.groups.pop_front()?;
        waiting.bytes = waiting.bytes.saturating_sub(group.builder.encoded_bytes());
        self.room.notify_all();
        Some(group)
    }

    fn step_down(&self) {
        let mut waiting = self.waiting.lock();
        waiting.leading = false;
        let next = waiting.groups.front().filter(|group| !group.builder.is_empty());
        let next = next.map(|group| group.outcome.clone());
        drop(waiting);
        self.room.notify_one();
        if let Some(next) = next
            && !next.nudge()
        {
            self.unattended.raise();
        }
    }

    fn commit(&self, builder: CommandBuilder) -> Result<()> {
        let store = &self.store;
        let bytes = builder.encoded_bytes() as u64;
        self.assist(bytes)?;
        let payload = builder.build().bytes().clone();
        let last = store.log().region(EMBEDDED_REGION).map_or(LogIndex(0), |region| region.last);
        let (index, term) = (last.next(), EMBEDDED_TERM);
        let region = EMBEDDED_REGION;
        let entry = EntryRecord { region, term, index, is_command: true, payload: payload.clone() };
        let mut records = Vec::with_capacity(2);
        records.extend(store.truncation_due(region));
        records.push(Record::Entry(entry));
        store.append(&LogBatch { records })?;
        let entry = CommittedEntry { term, index, is_command: true, payload };
        store.apply(region, std::slice::from_ref(&entry))
    }

    /// Makes writers do garbage collection in proportion to what they write while it lags behind.
    /// Writers slow down early and never stop.
    fn assist(&self, bytes: u64) -> Result<()> {
        match self.store.gc().pressure() {
            Pressure::None => Ok(()),
            Pressure::Assist(per_byte) => {
                let share = (bytes as f64 * per_byte) as u64;
                self.store.maintain(share.max(1)).map(|_| ())
            }
        }
    }
}
