//! A store whose log lost entries, as a deterministic core: until it is whole it does nothing but ask
//! the other stores for copies and answer those that ask. All stores of a cluster may be in this
//! state at once.

use crate::messages::{Body, PeerMessage};
use crate::validate;
use bytes::Bytes;
use stele_storage::{LostEntry, RecoverableLog};
use stele_types::{Result, StoreId, mutant};

/// Between a question and the next, unless it was answered.
const ASK_NANOS: u64 = 200_000_000;
/// Entries asked for in one message.
const ASKED_MAX: usize = 64;
/// Bytes of payloads in one answer, save that one entry always fits.
const FOUND_BYTES_MAX: usize = 1 << 20;
/// Entries looked for because of one question, whether they are here or not.
const LOOKS_MAX: usize = 256;
/// Entries that are counted.
const COUNTED_MAX: usize = 1 << 20;

/// What stands between a store and its opening.
pub struct EntryRecovery<M> {
    store: StoreId,
    mending: M,
    /// What is asked for at present, and how many of the others are still to be asked for it: each
    /// is, before the next entries have their turn.
    asked: Vec<LostEntry>,
    left_to_ask: usize,
    /// Who is asked, counted round and round.
    turn: usize,
    next_nanos: u64,
    began_nanos: Option<u64>,
    lost_at_first: usize,
    lost: usize,
}

impl<M: RecoverableLog> EntryRecovery<M> {
    /// For the store of that number.
    pub fn new(store: StoreId, mut mending: M) -> Self {
        let lost = mending.lost_entries(COUNTED_MAX).len();
        Self {
            store,
            mending,
            asked: Vec::new(),
            left_to_ask: 0,
            turn: 0,
            next_nanos: 0,
            began_nanos: None,
            lost_at_first: lost,
            lost,
        }
    }

    /// The store.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Entries that are lost, now and at the beginning; no more than a million are counted.
    pub fn lost(&self) -> (usize, usize) {
        (self.lost, self.lost_at_first)
    }

    /// One of the entries that are asked for.
    pub fn asked(&self) -> Option<LostEntry> {
        self.asked.first().copied()
    }

    /// Nanoseconds since the first question.
    pub fn waited_nanos(&self, now_nanos: u64) -> u64 {
        now_nanos.saturating_sub(self.began_nanos.unwrap_or(now_nanos))
    }

    /// When [`EntryRecovery::poll`] has something to ask again.
    pub fn asks_at(&self) -> u64 {
        self.next_nanos
    }

    /// Whether the store can be opened. Rule: not before its last lost entry is back. It acknowledged
    /// that entry, and with a shorter log would vote for one who never had it.
    pub fn is_recovered(&self) -> bool {
        self.mending.is_recovered() || mutant::active("raftstore.half_mended_opens")
    }

    /// Asks one of the other stores, if it is time: one after the other, round and round.
    pub fn poll(&mut self, now_nanos: u64, others: &[StoreId]) -> Vec<PeerMessage> {
        self.began_nanos.get_or_insert(now_nanos);
        if now_nanos < self.next_nanos || self.is_recovered() {
            return Vec::new();
        }
        self.next_nanos = now_nanos + ASK_NANOS;
        let others: Vec<StoreId> = others.iter().copied().filter(|it| *it != self.store).collect();
        if self.asked.is_empty() || self.left_to_ask == 0 {
            self.asked = self.mending.lost_entries(ASKED_MAX);
            self.left_to_ask = others.len();
        }
        let at = self.turn.checked_rem(others.len());
        let to = at.and_then(|at| others.get(at)).filter(|_| !self.asked.is_empty());
        let Some(to) = to else { return Vec::new() };
        self.turn = self.turn.wrapping_add(1);
        self.left_to_ask = self.left_to_ask.saturating_sub(1);
        vec![PeerMessage::between_stores(
            self.store,
            *to,
            Body::EntryRecoveryRequest(self.asked.clone()),
        )]
    }

    /// Takes a message; what is to be sent. Writes to the device and fails with its errors, after which
    /// nothing more may be written.
    pub fn receive(&mut self, message: PeerMessage) -> Result<Vec<PeerMessage>> {
        if validate::check_stores(&message, self.store).is_err() {
            return Ok(Vec::new());
        }
        match message.body {
            Body::EntryRecoveryReply(found) => {
                self.take(&found)?;
                Ok(Vec::new())
            }
            Body::EntryRecoveryRequest(lost) => {
                let found = look_for(&lost, |lost| self.mending.find(lost));
                let body = Body::EntryRecoveryReply(found);
                let answer = PeerMessage::between_stores(self.store, message.from_store, body);
                let is_empty =
                    matches!(&answer.body, Body::EntryRecoveryReply(found) if found.is_empty());
                Ok(if is_empty { Vec::new() } else { vec![answer] })
            }
            // Rule: nothing else has an answer, no vote and no acknowledgement: what this store
            // promised before may be among what it lost.
            _ => Ok(Vec::new()),
        }
    }

    fn take(&mut self, found: &[(LostEntry, Bytes)]) -> Result<()> {
        let mut repaired = 0;
        for (lost, payload) in found {
            if self.mending.restore_entry(lost, payload)? {
                self.asked.retain(|asked| asked != lost);
                repaired += 1;
            }
        }
        if repaired > 0 {
            self.lost = self.lost.saturating_sub(repaired);
            if self.lost == 0 && !self.mending.is_recovered() {
                // More than the store could remember.
                self.lost = self.mending.lost_entries(COUNTED_MAX).len();
                self.lost_at_first += self.lost;
            }
            // Who answered may have more than one answer takes: it is asked again, at once.
            self.turn = self.turn.saturating_sub(1);
            self.left_to_ask += 1;
            self.next_nanos = 0;
        }
        Ok(())
    }
}

/// What can be found of entries that another store lost, up to what one answer takes.
pub(crate) fn look_for(
    lost: &[LostEntry],
    find: impl Fn(&LostEntry) -> Option<Bytes>,
) -> Vec<(LostEntry, Bytes)> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    for lost in lost.iter().take(LOOKS_MAX) {
        let Some(payload) = find(lost) else { continue };
        bytes += payload.len();
        found.push((*lost, payload));
        if bytes >= FOUND_BYTES_MAX {
            break;
        }
    }
    found
}
