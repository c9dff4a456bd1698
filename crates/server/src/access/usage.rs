//! Use of a node by the identities with limits in their grants. Each has an account of its own: what it uses
//! beyond its limits waits, and then is refused, and takes nothing from the others.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_placement::{Grant, GrantLimits, Grants};

/// Longest wait of a request for its turn. One that would wait longer is refused after it: a client that repeats a
/// refused request at once takes processor time from the others.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(1);

/// Accounts by the name of a grant; only those with limits.
#[derive(Debug, Default)]
pub(super) struct Usages(Mutex<BTreeMap<String, Arc<Usage>>>);

/// What an identity uses of this node, over all its connections.
#[derive(Debug)]
pub struct Usage(Mutex<Used>);

#[derive(Debug)]
struct Used {
    limits: GrantLimits,
    /// Times at which the operations and the bytes so far are within the limits.
    operations_until: Instant,
    bytes_until: Instant,
    connections: u64,
}

/// The identity has used so much that a request would wait too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit;

/// A counted connection, until it is dropped.
#[derive(Debug)]
pub struct CountedConnection(Arc<Usage>);

impl Usages {
    /// Returns the account of a grant; `None` without limits.
    pub(super) fn of(&self, grant: &Grant) -> Option<Arc<Usage>> {
        if grant.limits == GrantLimits::default() {
            return None;
        }
        let mut usages = self.0.lock();
        let usage = usages.entry(grant.name.clone()).or_insert_with(|| Arc::new(Usage::new()));
        usage.0.lock().limits = grant.limits;
        Some(usage.clone())
    }

    /// Drops the accounts of identities without a grant.
    pub(super) fn retain(&self, grants: &Grants) {
        self.0.lock().retain(|name, _| grants.by_name.contains_key(name));
    }
}

impl Usage {
    fn new() -> Self {
        let now = Instant::now();
        let limits = GrantLimits::default();
        Self(Mutex::new(Used { limits, operations_until: now, bytes_until: now, connections: 0 }))
    }

    /// Counts operations that begin after the returned time, or fails and counts none.
    ///
    /// Invariant: what waits for its turn is bounded: by a second's worth of the limits, and by the memory of
    /// its connection.
    /// Tests: `what_exceeds_a_limit_waits_up_to_a_second_and_is_then_refused`.
    pub fn admit(&self, operations: u64) -> Result<Duration, OverLimit> {
        let (now, mut used) = (Instant::now(), self.0.lock());
        let wait = used.operations_until.max(used.bytes_until).saturating_duration_since(now);
        // bug server.limits_unchecked: never
        if wait > WAIT_MAX {
            return Err(OverLimit);
        }
        let limit = used.limits.operations_per_second;
        used.operations_until = after(used.operations_until.max(now), operations, limit);
        Ok(wait)
    }

    /// Counts bytes that were received or sent. Operations after them wait.
    pub fn note_bytes(&self, bytes: u64) {
        let (now, mut used) = (Instant::now(), self.0.lock());
        let limit = used.limits.bytes_per_second;
        used.bytes_until = after(used.bytes_until.max(now), bytes, limit);
    }

    /// Counts a connection; `None` if there are as many as the limit.
    pub fn connect(self: &Arc<Self>) -> Option<CountedConnection> {
        let mut used = self.0.lock();
        let limit = used.limits.connections;
        if limit > 0 && used.connections >= limit {
            return None;
        }
        used.connections += 1;
        Some(CountedConnection(self.clone()))
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.0.lock().connections -= 1;
    }
}

/// Returns the time at which `count` more are within a limit for a second.
fn after(from: Instant, count: u64, limit: u64) -> Instant {
    match limit {
        0 => from,
        limit => from + Duration::from_secs_f64((count as f64 / limit as f64).min(3600.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(limits: GrantLimits) -> Grant {
        Grant { name: "app".to_owned(), limits, ..Grant::default() }
    }

    #[test]
    fn what_exceeds_a_limit_waits_up_to_a_second_and_is_then_refused() {
        let usages = Usages::default();
        let limits = GrantLimits { operations_per_second: 10, ..GrantLimits::default() };
        let usage = usages.of(&grant(limits)).unwrap();
        let waits: Vec<_> = (0..100).map_while(|_| usage.admit(1).ok()).collect();
        assert!((10..=12).contains(&waits.len()), "{waits:?}");
        assert!(waits[0].is_zero() && waits.is_sorted() && waits.iter().all(|it| *it <= WAIT_MAX));
        assert_eq!(usage.admit(1), Err(OverLimit));
        // The same account for another connection, and none without limits.
        assert_eq!(usages.of(&grant(limits)).unwrap().admit(1), Err(OverLimit));
        assert!(usages.of(&grant(GrantLimits::default())).is_none());
        usages.retain(&Grants::default());
        assert!(usages.of(&grant(limits)).unwrap().admit(1).is_ok());
    }

    #[test]
    fn a_request_of_more_bytes_than_a_second_has_is_served_and_those_after_it_wait() {
        let limits = GrantLimits { bytes_per_second: 1000, ..GrantLimits::default() };
        let usage = Usages::default().of(&grant(limits)).unwrap();
        assert_eq!(usage.admit(1), Ok(Duration::ZERO));
        usage.note_bytes(500);
        assert!(usage.admit(1).unwrap() > Duration::from_millis(400));
        usage.note_bytes(1_000_000);
        assert_eq!(usage.admit(1), Err(OverLimit));
    }

    #[test]
    fn connections_are_counted_until_they_end() {
        let limits = GrantLimits { connections: 2, ..GrantLimits::default() };
        let usage = Usages::default().of(&grant(limits)).unwrap();
        let (first, second) = (usage.connect(), usage.connect());
        assert!(first.is_some() && second.is_some() && usage.connect().is_none());
        drop(first);
        assert!(usage.connect().is_some());
    }
}
