//! Keys of which pairs are read from the device for a modification or a program, beside the store's loop.
//!
//! Invariant: from the first lookup for a request to its entry this leader proposes no other change of
//! the request's keys, and no other leader commits in its term. Therefore the pairs that the lookups
//! find are those before the entry. Requests that change a held key wait behind its holder,
//! in order; all others go on.
//! Tests: `requests_that_change_a_held_key_wait_in_order_and_all_others_go_on`,
//! `a_lookup_of_an_earlier_term_counts_for_no_later_one_of_the_key`,
//! `a_program_holds_all_its_keys_while_one_pair_is_read`.
//!
//! Invariant: a request holds all its keys or none. One that waits behind a holder holds nothing, so no two
//! wait for each other.
//! Tests: `a_program_that_waits_for_one_key_holds_no_other`, `the_keys_of_a_program_are_free_once_it_is_decided`.

use super::Waiting;
use crate::input::RequestId;
use crate::output::{Lookup, LookupId};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use stele_storage::Pair;
use stele_types::{Command, Op, Result};

pub(crate) type Found = Result<Option<Pair>>;

/// Engine keys with what was read for them.
pub(crate) type FoundPairs = Vec<(Bytes, Found)>;

#[derive(Default)]
pub(crate) struct HeldKeys {
    keys: BTreeMap<Bytes, HoldId>,
    holds: BTreeMap<HoldId, Hold>,
    /// Lookups without a result.
    lookups: BTreeMap<LookupId, HoldId>,
    /// Holds with all results, in the order of the last ones.
    found: VecDeque<HoldId>,
}

/// Id of the hold's first lookup.
type HoldId = LookupId;

struct Hold {
    request: Waiting,
    pairs: FoundPairs,
    /// Lookups without a result.
    missing: usize,
    /// Requests that change one of its keys too, in order of arrival.
    behind: Vec<Waiting>,
}

/// Request with the pairs that were read for it, to be proposed before all requests that waited behind it.
pub(crate) struct Released {
    pub request: Waiting,
    pub found: FoundPairs,
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

    /// Holds the keys of a request until its lookups, at least one, have results. `pairs` are those
    /// that it needs no lookup for. The record of a session's request is read while the key itself is
    /// held: no other attempt of the request goes on meanwhile.
    pub(crate) fn hold(&mut self, lookups: &[LookupId], pairs: FoundPairs, request: Waiting) {
        let Some(id) = lookups.first().copied() else { return };
        self.keys.extend(request.keys().iter().map(|key| (key.clone(), id)));
        self.lookups.extend(lookups.iter().map(|lookup| (*lookup, id)));
        let hold = Hold { request, pairs, missing: lookups.len(), behind: Vec::new() };
        self.holds.insert(id, hold);
    }

    pub(crate) fn wait_behind(&mut self, key: &Bytes, request: Waiting) {
        if let Some(hold) = self.keys.get(key).and_then(|id| self.holds.get_mut(id)) {
            hold.behind.push(request);
        }
    }

    pub(crate) fn key_changed_by(&self, request: &Waiting) -> Option<Bytes> {
        // bug replica.key_not_held: always
        if self.holds.is_empty() {
            return None;
        }
        match request {
            Waiting::Modify(..) | Waiting::Run(..) => {
                request.keys().iter().find_map(|key| self.held(key))
            }
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
                let (first, _) = self.keys.range::<[u8], _>(from).next()?;
                (end.is_empty() || first[..] < **end).then(|| first.clone())
            }
        }
    }

    fn held(&self, key: &[u8]) -> Option<Bytes> {
        self.keys.get_key_value(key).map(|(key, _)| key.clone())
    }

    /// Takes the result of a lookup. Returns whether a request still waits for it.
    pub(crate) fn note_found(&mut self, lookup: &Lookup, found: Found) -> bool {
        // Invariant: a result counts for its own lookup only. An earlier one may have read the key in
        // an earlier term, and another leader may have changed it since.
        let id = self.lookups.remove(&lookup.id);
        // bug replica.found_of_another_term: let id = self.keys.get(&lookup.key).copied();
        let Some(id) = id else { return false };
        let Some(hold) = self.holds.get_mut(&id) else { return false };
        hold.pairs.push((lookup.key.clone(), found));
        hold.missing = hold.missing.saturating_sub(1);
        if hold.missing == 0 {
            self.found.push_back(id);
        }
        true
    }

    /// Releases the keys of the next request with all its results. The caller proposes or answers it at once.
    pub(crate) fn take_found(&mut self) -> Option<Released> {
        let id = self.found.pop_front()?;
        let Hold { request, pairs, behind, .. } = self.remove(id)?;
        Some(Released { request, found: pairs, behind })
    }

    fn remove(&mut self, id: HoldId) -> Option<Hold> {
        let hold = self.holds.remove(&id)?;
        for key in hold.request.keys() {
            // bug replica.one_key_released: break;
            self.keys.remove(key);
        }
        if hold.missing > 0 {
            self.lookups.retain(|_, of| *of != id);
        }
        Some(hold)
    }

    pub(crate) fn take_expired(&mut self, now_nanos: u64) -> Removed {
        let mut expired = Removed::default();
        for hold in self.holds.values_mut() {
            let over = hold.behind.extract_if(.., |request| request.is_over(now_nanos));
            expired.gone.extend(over.map(|request| request.id()));
        }
        let over = self.holds.iter().filter(|(_, hold)| hold.request.is_over(now_nanos));
        for id in over.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(hold) = self.remove(id) else { continue };
            self.found.retain(|found| *found != id);
            expired.gone.push(hold.request.id());
            expired.found_bytes += found_bytes(&hold.pairs);
            expired.released.extend(hold.behind);
        }
        expired
    }

    pub(crate) fn take_all(&mut self) -> Removed {
        let Self { holds, .. } = std::mem::take(self);
        let mut all = Removed::default();
        for hold in holds.into_values() {
            all.found_bytes += found_bytes(&hold.pairs);
            all.gone.push(hold.request.id());
            all.gone.extend(hold.behind.iter().map(Waiting::id));
        }
        all
    }
}

/// Returns the bytes of the values among what was read.
pub(crate) fn found_bytes(pairs: &FoundPairs) -> u64 {
    pairs.iter().map(|(_, found)| value_bytes(found)).sum()
}

pub(crate) fn value_bytes(found: &Found) -> u64 {
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
            held.hold(&[LookupId(id)], Vec::new(), modify(id, key, 10 * id));
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
        assert!(!held.has_found() && held.take_found().is_none());
        assert!(held.note_found(&lookup(2, "d"), Err(Error::invalid("unreadable"))));
        assert!(held.note_found(&lookup(1, "b"), Ok(None)));
        assert!(!held.note_found(&lookup(1, "b"), Ok(None)), "once");
        let mut released = std::iter::from_fn(|| held.take_found());
        let first = released.next().unwrap();
        assert_eq!((first.request.id(), first.behind.len()), (RequestId(2), 0));
        assert!(first.found[0].1.is_err());
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
