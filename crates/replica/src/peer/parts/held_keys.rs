//! Keys of which the pair is read from the device for a modification, beside the store's loop.
//!
//! Invariant: from the lookup of a key to the entry of its modification this leader proposes no other
//! change of the key, and no other leader commits in its term. Therefore the pair that the lookup
//! finds is the pair before the entry. Requests that change a held key wait behind its modification,
//! in order; all others go on.
//! Tests: `requests_that_change_a_held_key_wait_in_order_and_all_others_go_on`,
//! `a_lookup_of_an_earlier_term_counts_for_no_later_one_of_the_key`.

use super::Waiting;
use crate::input::RequestId;
use crate::output::{Lookup, LookupId};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use stele_storage::Pair;
use stele_types::session::RecordKey;
use stele_types::{Command, Op, Result};

pub(crate) type Found = Result<Option<Pair>>;

#[derive(Default)]
pub(crate) struct HeldKeys {
    holds: BTreeMap<Bytes, Hold>,
    /// Keys of the holds with a result, in the order of the results.
    found: VecDeque<Bytes>,
}

struct Hold {
    lookup: LookupId,
    reading: Reading,
    request: Waiting,
    found: Option<Found>,
    /// Requests that change the key too, in order of arrival.
    behind: Vec<Waiting>,
}

/// Pair that the lookup of a hold reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// The record of the session's request.
    Record,
    /// The pair of the held key. It is read after the record, which was not there.
    Pair,
}

/// Modification with the pair of its key, to be proposed before all requests that waited behind it.
pub(crate) struct Released {
    pub request: Waiting,
    pub found: (Reading, Found),
    pub behind: Vec<Waiting>,
}

#[derive(Default)]
pub(crate) struct Removed {
    pub gone: Vec<RequestId>,
    pub found_bytes: u64,
    pub released: Vec<Waiting>,
}

impl HeldKeys {
    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    pub(crate) fn has_found(&self) -> bool {
        !self.found.is_empty()
    }

    /// Holds the key of a modification until its lookup has a result. The record of a session's request
    /// is read while the key itself is held: no other attempt of the request goes on meanwhile.
    pub(crate) fn hold(
        &mut self,
        (lookup, reading): (LookupId, Reading),
        key: Bytes,
        request: Waiting,
    ) {
        let hold = Hold { lookup, reading, request, found: None, behind: Vec::new() };
        self.holds.insert(key, hold);
    }

    pub(crate) fn wait_behind(&mut self, key: &Bytes, request: Waiting) {
        if let Some(hold) = self.holds.get_mut(key) {
            hold.behind.push(request);
        }
    }

    pub(crate) fn key_changed_by(&self, request: &Waiting) -> Option<Bytes> {
        // bug replica.key_not_held: always
        if self.holds.is_empty() {
            return None;
        }
        match request {
            Waiting::Modify(_, modify) => self.held(&modify.key),
            Waiting::Write(_, write) => {
                let mut key = None;
                Command::each_op_of(&write.command, |op| {
                    key = key.take().or_else(|| self.key_changed_in(&op));
                });
                key
            }
            Waiting::Admin(..) => None,
        }
    }

    fn key_changed_in(&self, op: &Op<'_>) -> Option<Bytes> {
        match op {
            Op::Put { key, .. } | Op::Delete { key } => self.held(key),
            Op::DeleteRange { start, end } => {
                let from = (Bound::Included(*start), Bound::Unbounded);
                let (first, _) = self.holds.range::<[u8], _>(from).next()?;
                (end.is_empty() || first[..] < **end).then(|| first.clone())
            }
        }
    }

    fn held(&self, key: &[u8]) -> Option<Bytes> {
        self.holds.get_key_value(key).map(|(key, _)| key.clone())
    }

    /// Takes the result of a lookup. Returns whether a modification still waits for it.
    pub(crate) fn note_found(&mut self, lookup: &Lookup, found: Found) -> bool {
        let key = match RecordKey::decode(&lookup.key) {
            Some(record) => record.changed_key(),
            None => lookup.key.clone(),
        };
        let Some(hold) = self.holds.get_mut(&key) else { return false };
        // Invariant: a result counts for its own lookup only. An earlier one may have read the key in
        // an earlier term, and another leader may have changed it since.
        let is_own = hold.lookup == lookup.id;
        // bug replica.found_of_another_term: let is_own = true;
        if !is_own || hold.found.is_some() {
            return false;
        }
        hold.found = Some(found);
        self.found.push_back(key);
        true
    }

    /// Releases the next key with a result. The caller proposes or answers the modification at once.
    pub(crate) fn take_found(&mut self) -> Option<Released> {
        let key = self.found.pop_front()?;
        let Hold { request, reading, found, behind, .. } = self.holds.remove(&key)?;
        Some(Released { request, found: (reading, found?), behind })
    }

    pub(crate) fn take_expired(&mut self, now_nanos: u64) -> Removed {
        let mut expired = Removed::default();
        for hold in self.holds.values_mut() {
            let over = hold.behind.extract_if(.., |request| request.is_over(now_nanos));
            expired.gone.extend(over.map(|request| request.id()));
        }
        let over = self.holds.iter().filter(|(_, hold)| hold.request.is_over(now_nanos));
        for key in over.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            let Some(hold) = self.holds.remove(&key) else { continue };
            self.found.retain(|found| *found != key);
            expired.gone.push(hold.request.id());
            expired.found_bytes += hold.found_bytes();
            expired.released.extend(hold.behind);
        }
        expired
    }

    pub(crate) fn take_all(&mut self) -> Removed {
        self.found.clear();
        let mut all = Removed::default();
        for hold in std::mem::take(&mut self.holds).into_values() {
            all.found_bytes += hold.found_bytes();
            all.gone.push(hold.request.id());
            all.gone.extend(hold.behind.iter().map(Waiting::id));
        }
        all
    }
}

impl Hold {
    fn found_bytes(&self) -> u64 {
        self.found.as_ref().map_or(0, found_bytes)
    }
}

pub(crate) fn found_bytes(found: &Found) -> u64 {
    match found {
        Ok(Some(pair)) => pair.value.len() as u64,
        Ok(None) | Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::{Admin, AdminCall, Header, Modify, Write};
    use stele_storage::Modification;
    use stele_types::{CommandBuilder, Error, RegionId};

    fn modify(id: u64, key: &'static str, deadline_nanos: u64) -> Waiting {
        let (id, key) = (RequestId(id), Bytes::from_static(key.as_bytes()));
        let header = Header { deadline_nanos, ..Header::default() };
        let change = Modification::GetAndDelete;
        Waiting::Modify(id, Modify { header, key, change, session: None })
    }

    fn write(id: u64, ops: impl FnOnce(&mut CommandBuilder)) -> Waiting {
        let mut builder = CommandBuilder::new();
        ops(&mut builder);
        let (id, header) = (RequestId(id), Header::default());
        let command = builder.build().bytes().clone();
        Waiting::Write(id, Write { header, command, only_deletes: false })
    }

    fn lookup(id: u64, key: &'static str) -> Lookup {
        let (region, key) = (RegionId(2), Bytes::from_static(key.as_bytes()));
        Lookup { id: LookupId(id), region, key }
    }

    /// Holds of `b` (request and lookup 1) and `d` (request and lookup 2).
    fn held() -> HeldKeys {
        let mut held = HeldKeys::default();
        for (id, key) in [(1, "b"), (2, "d")] {
            let lookup = (LookupId(id), Reading::Pair);
            held.hold(lookup, Bytes::from_static(key.as_bytes()), modify(id, key, 10 * id));
        }
        held
    }

    #[test]
    fn a_request_waits_for_a_held_key_that_it_changes() {
        let put = |keys: &'static [&str]| {
            write(3, move |it| keys.iter().for_each(|key| drop(it.put(key.as_bytes(), b"", 0))))
        };
        let range = |start: &'static str, end: &'static str| {
            write(3, move |it| drop(it.delete_range(start.as_bytes(), end.as_bytes())))
        };
        let admin = AdminCall { header: Header::default(), call: Admin::Wake };
        let rows = [
            (put(&["a", "c", "e"]), None),
            (put(&["a", "b"]), Some("b")),
            (put(&["d", "b"]), Some("d")),
            (write(3, |it| drop(it.delete(b"d"))), Some("d")),
            (range("a", "b"), None),
            (range("a", "c"), Some("b")),
            (range("b", "c"), Some("b")),
            (range("c", "e"), Some("d")),
            (range("c", ""), Some("d")),
            (range("e", ""), None),
            (range("z", "a"), None),
            (modify(3, "d", 0), Some("d")),
            (modify(3, "c", 0), None),
            (Waiting::Admin(RequestId(3), admin), None),
        ];
        for (row, (request, expected)) in rows.into_iter().enumerate() {
            let found = held().key_changed_by(&request);
            assert_eq!(found, expected.map(Bytes::from), "row {row}");
            assert_eq!(HeldKeys::default().key_changed_by(&request), None);
        }
    }

    #[test]
    fn a_key_is_released_by_the_result_of_its_own_lookup_with_all_that_waits() {
        let mut held = held();
        let key = Bytes::from_static(b"b");
        held.wait_behind(&key, modify(3, "b", 0));
        held.wait_behind(&key, modify(4, "b", 0));
        assert!(!held.note_found(&lookup(9, "b"), Ok(None)), "an earlier lookup");
        assert!(!held.note_found(&lookup(1, "c"), Ok(None)));
        assert!(!held.has_found() && held.take_found().is_none());
        assert!(held.note_found(&lookup(2, "d"), Err(Error::invalid("unreadable"))));
        assert!(held.note_found(&lookup(1, "b"), Ok(None)));
        assert!(!held.note_found(&lookup(1, "b"), Ok(None)), "once");
        let mut released = std::iter::from_fn(|| held.take_found());
        let first = released.next().unwrap();
        assert_eq!((first.request.id(), first.behind.len()), (RequestId(2), 0));
        assert!(first.found.1.is_err());
        let second = released.next().unwrap();
        let behind: Vec<u64> = second.behind.iter().map(|request| request.id().0).collect();
        assert_eq!((second.request.id(), &behind[..]), (RequestId(1), &[3, 4][..]));
        assert!(released.next().is_none() && held.is_empty());
    }

    #[test]
    fn requests_expire_and_a_modification_that_does_frees_its_key() {
        // Time; expired requests; requests of which the key is free.
        let rows: [(u64, &[u64], &[u64]); 4] =
            [(9, &[], &[]), (10, &[1], &[3]), (15, &[4, 1], &[3]), (20, &[4, 1, 2], &[3])];
        for (now, expected, free) in rows {
            let mut held = held();
            let key = Bytes::from_static(b"b");
            held.wait_behind(&key, modify(3, "b", 0));
            held.wait_behind(&key, modify(4, "b", 15));
            assert!(held.note_found(&lookup(1, "b"), Ok(None)));
            let Removed { gone, mut released, .. } = held.take_expired(now);
            let gone: Vec<u64> = gone.iter().map(|id| id.0).collect();
            assert_eq!(gone, expected, "at {now}");
            released.retain(|request| request.id() != RequestId(4));
            let released: Vec<u64> = released.iter().map(|request| request.id().0).collect();
            assert_eq!(released, free, "at {now}");
            assert_eq!(held.has_found(), now < 10, "at {now}");
        }
    }

    #[test]
    fn all_requests_are_removed_with_the_bytes_of_the_pairs_that_were_found() {
        let with_pair = || {
            let mut held = held();
            held.wait_behind(&Bytes::from_static(b"b"), modify(3, "b", 0));
            let value = Bytes::from(vec![0; 500]);
            let pair = Pair { key: Bytes::from_static(b"d"), value, expires_at_s: 0 };
            assert!(held.note_found(&lookup(2, "d"), Ok(Some(pair))));
            held
        };
        let mut held = with_pair();
        let Removed { gone, found_bytes, released } = held.take_all();
        assert_eq!((gone, found_bytes), ([1, 3, 2].map(RequestId).to_vec(), 500));
        assert!(released.is_empty() && held.is_empty() && !held.has_found());
        // Time; bytes of the pairs of expired modifications.
        for (now, bytes) in [(9, 0), (10, 0), (20, 500)] {
            assert_eq!(with_pair().take_expired(now).found_bytes, bytes, "at {now}");
        }
    }
}
