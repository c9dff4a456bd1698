//! Log entry recovery of a store that lost entries, as a deterministic core. Until the log is
//! complete it only requests copies from the other stores and answers their requests. All stores of
//! a cluster may be in this state at once.

use crate::messages::{Body, PeerMessage};
use crate::validate;
use bytes::Bytes;
use stele_storage::{LostEntry, RecoverableLog};
use stele_types::{Result, StoreId};

/// Nanoseconds between two requests, unless the first was answered.
const REQUEST_INTERVAL_NANOS: u64 = 200_000_000;
const REQUESTED_MAX: usize = 64;
/// Most bytes of payloads in one reply; one entry always fits.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// Most entries looked up for one request, found or not.
const READS_MAX: usize = 256;
const COUNTED_MAX: usize = 1 << 20;

/// Recovery of a store's log, before the store opens.
pub struct EntryRecovery<M> {
    store: StoreId,
    log: M,
    /// Entries requested now, and the number of other stores not yet asked for them. Every other
    /// store is asked before the next entries are requested.
    asked: Vec<LostEntry>,
    stores_left: usize,
    /// Position of the next store to ask, modulo the number of stores.
    next_store: usize,
    next_nanos: u64,
    began_nanos: Option<u64>,
    lost_at_first: usize,
    lost: usize,
}

impl<M: RecoverableLog> EntryRecovery<M> {
    /// Starts the recovery of a store's log.
    pub fn new(store: StoreId, mut log: M) -> Self {
        let lost = log.lost_entries(COUNTED_MAX).len();
        Self {
            store,
            log,
            asked: Vec::new(),
            stores_left: 0,
            next_store: 0,
            next_nanos: 0,
            began_nanos: None,
            lost_at_first: lost,
            lost,
        }
    }

    /// Returns the id of the store being recovered.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Returns the number of lost entries, now and at the start; counts at most 2^20.
    pub fn lost(&self) -> (usize, usize) {
        (self.lost, self.lost_at_first)
    }

    /// Returns one of the requested entries.
    pub fn asked(&self) -> Option<LostEntry> {
        self.asked.first().copied()
    }

    /// Returns the nanoseconds since the first poll.
    pub fn waited_nanos(&self, now_nanos: u64) -> u64 {
        now_nanos.saturating_sub(self.began_nanos.unwrap_or(now_nanos))
    }

    /// Returns the monotonic nanoseconds at which [`EntryRecovery::poll`] sends the next request.
    pub fn asks_at(&self) -> u64 {
        self.next_nanos
    }

    /// Returns whether the store can be opened. Invariant: a store does not open before its last lost entry
    /// is restored. It acknowledged that entry, and with a shorter log it would vote for a
    /// candidate that never had it.
    /// Test: `a_store_neither_votes_nor_acknowledges_before_its_last_lost_entry_is_back`.
    pub fn is_recovered(&self) -> bool {
        // bug replica.half_mended_opens: `self.log.is_recovered()` is `true`
        self.log.is_recovered()
    }

    /// Requests entries from one of the other stores, in turn, if a request is due.
    pub fn poll(&mut self, now_nanos: u64, others: &[StoreId]) -> Vec<PeerMessage> {
        self.began_nanos.get_or_insert(now_nanos);
        if now_nanos < self.next_nanos || self.is_recovered() {
            return Vec::new();
        }
        self.next_nanos = now_nanos + REQUEST_INTERVAL_NANOS;
        let others: Vec<StoreId> = others.iter().copied().filter(|it| *it != self.store).collect();
        if self.asked.is_empty() || self.stores_left == 0 {
            self.asked = self.log.lost_entries(REQUESTED_MAX);
            self.stores_left = others.len();
        }
        let at = self.next_store.checked_rem(others.len());
        let to = at.and_then(|at| others.get(at)).filter(|_| !self.asked.is_empty());
        let Some(to) = to else { return Vec::new() };
        self.next_store = self.next_store.wrapping_add(1);
        self.stores_left = self.stores_left.saturating_sub(1);
        vec![PeerMessage::between_stores(
            self.store,
            *to,
            Body::EntryRecoveryRequest(self.asked.clone()),
        )]
    }

    /// Handles a message and returns the messages to send. Writes to the device and fails with its
    /// errors; after an error nothing more may be written.
    pub fn receive(&mut self, message: PeerMessage) -> Result<Vec<PeerMessage>> {
        if validate::check_stores(&message, self.store).is_err() {
            return Ok(Vec::new());
        }
        match message.body {
            Body::EntryRecoveryReply(found) => {
                self.restore(&found)?;
                Ok(Vec::new())
            }
            Body::EntryRecoveryRequest(lost) => {
                let found = find_entries(&lost, |lost| self.log.find(lost));
                let body = Body::EntryRecoveryReply(found);
                let answer = PeerMessage::between_stores(self.store, message.from_store, body);
                let is_empty =
                    matches!(&answer.body, Body::EntryRecoveryReply(found) if found.is_empty());
                Ok(if is_empty { Vec::new() } else { vec![answer] })
            }
            // Invariant: no other message is answered, with a vote or an acknowledgement: what this
            // store promised before may be among the lost entries.
            _ => Ok(Vec::new()),
        }
    }

    fn restore(&mut self, found: &[(LostEntry, Bytes)]) -> Result<()> {
        let mut repaired = 0;
        for (lost, payload) in found {
            if self.log.restore_entry(lost, payload)? {
                self.asked.retain(|asked| asked != lost);
                repaired += 1;
            }
        }
        if repaired > 0 {
            self.lost = self.lost.saturating_sub(repaired);
            if self.lost == 0 && !self.log.is_recovered() {
                // More entries were lost than the store could list.
                self.lost = self.log.lost_entries(COUNTED_MAX).len();
                self.lost_at_first += self.lost;
            }
            // The store that answered may have more entries than fit in one reply: it is asked
            // again at once.
            self.next_store = self.next_store.saturating_sub(1);
            self.stores_left += 1;
            self.next_nanos = 0;
        }
        Ok(())
    }
}

pub(crate) fn find_entries(
    lost: &[LostEntry],
    find: impl Fn(&LostEntry) -> Option<Bytes>,
) -> Vec<(LostEntry, Bytes)> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    for lost in lost.iter().take(READS_MAX) {
        let Some(payload) = find(lost) else { continue };
        bytes += payload.len();
        found.push((*lost, payload));
        if bytes >= REPLY_BYTES_MAX {
            break;
        }
    }
    found
}
