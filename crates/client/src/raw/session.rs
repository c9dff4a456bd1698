//! Sessions: changes of keys that are retried after unknown outcomes, and take effect once.
//!
//! The session numbers its requests. The node that executes one writes its record beside the key, in the
//! same command, and answers a repetition with the first result. All attempts carry one deadline, in
//! the cluster's time, after which no node executes any: the record is kept until then and longer.
//! The cluster's time is that of the last refusal, and goes on by the clock of this client.

use super::batch::{Item, PutPair, sorted};
use super::single::{Swap, Ttl, checked};
use crate::Client;
use crate::backoff::Pause;
use bytes::Bytes;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stele_proto::stele::kv::v1 as kv;
use stele_proto::stele::kv::v1::modify_request::Change;
use stele_types::session::LIFE_S_MAX;
use stele_types::{ColumnFamily, Error, Partial, Result, SessionId, Unit};

/// Time from the last attempt of a call to the deadline of its attempts, at least. The clock of this client
/// may go wrong by as much since the last refusal.
const DEADLINE_AFTER: Duration = Duration::from_secs(60);

/// Changes of keys, each of which takes effect once although it is retried after unknown outcomes.
/// Clones number their requests together.
///
/// A call fails with [`Error::Undetermined`] if its outcome is still unknown at its deadline: it then took
/// effect once, or may still do so within about a minute, or never does. Any other error says
/// that it had no effect. A cluster below level 3 refuses all calls with the remedy.
#[derive(Clone)]
pub struct Session {
    client: Client,
    id: SessionId,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    next: AtomicU64,
    /// Seconds by which the cluster's time is ahead of the clock of this client.
    ahead_s: AtomicI64,
    /// An answer has shown the cluster's time, or that deadlines of this client are right.
    knows_time: AtomicBool,
}

/// A pair to put, as a request of a session.
#[derive(Clone)]
struct Numbered {
    pair: PutPair,
    request: kv::SessionRequest,
}

impl Item for Numbered {
    type Call = kv::PutInSessionRequest;
    const UNIT: Unit = Unit::Pairs;

    fn key(&self) -> &Bytes {
        &self.pair.key
    }

    fn bytes(&self) -> usize {
        self.pair.bytes()
    }

    /// Invariant: parts are sent again in other parts, but each put keeps its number and deadline.
    /// Test: `a_session_puts_many_keys_once_each_although_parts_are_repeated`.
    fn call(items: &[Self], cf: String) -> Self::Call {
        let put = |item: &Self| kv::NumberedPut {
            key: item.pair.key.clone(),
            put: Some(kv::Put { value: item.pair.value.clone(), ttl: item.pair.ttl.seconds() }),
            // bug client.numbers_of_parts: `item.request.number` is `items.len() as u64`
            number: item.request.number,
        };
        let request = items.first().map(|item| item.request).unwrap_or_default();
        kv::PutInSessionRequest {
            context: None,
            cf,
            puts: items.iter().map(put).collect(),
            session: request.session,
            expires_at_s: request.expires_at_s,
        }
    }

    fn check(&self) -> Result<()> {
        self.pair.check()
    }
}

impl Client {
    /// Starts a session with the options and the column family of this handle. It costs the cluster
    /// nothing until a request, and ends with its last clone.
    ///
    /// ```no_run
    /// # async fn example(client: stele_client::Client) -> stele_types::Result<()> {
    /// let session = client.session();
    /// let visits = session.increment("visits", 1).await?;
    /// # Ok(()) }
    /// ```
    pub fn session(&self) -> Session {
        // Each `RandomState` has other keys, which the operating system draws.
        let id = SessionId(RandomState::new().build_hasher().finish());
        Session { client: self.clone(), id, state: Arc::default() }
    }
}

impl Session {
    /// Returns the id that the cluster sees.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Returns a handle of the same session for the keys of another column family.
    #[must_use]
    pub fn family(&self, family: ColumnFamily) -> Self {
        Self { client: self.client.family(family), ..self.clone() }
    }

    /// Sets a key. The pair does not expire.
    pub async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<()> {
        self.put_with_ttl(key, value, Ttl::Endless).await
    }

    /// Sets a key with a time to live.
    pub async fn put_with_ttl(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl: Ttl,
    ) -> Result<()> {
        let put = kv::Put { value: value.into(), ttl: ttl.seconds() };
        self.modify(key.into(), Change::Put(put)).await.map(drop)
    }

    /// Deletes a key; succeeds if it does not exist.
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<()> {
        self.modify(key.into(), Change::Delete(kv::Delete {})).await.map(drop)
    }

    /// Sets keys, as [`Client::batch_put`] does. Each is a request of its own, so that no part of the call takes
    /// effect twice. Fails with `Partial` if some are set and others are not, or may not be.
    pub async fn batch_put(&self, pairs: Vec<PutPair>) -> Result<()> {
        pairs.iter().try_for_each(Item::check)?;
        let mut pairs = sorted(pairs);
        // One request learns the cluster's time, which the others need.
        let first = match self.state.knows_time.load(Ordering::Relaxed) {
            true => None,
            false => pairs.pop(),
        };
        let (has_first, rest) = (first.is_some(), pairs.len() as u64);
        if let Some(PutPair { key, value, ttl }) = first {
            self.put_with_ttl(key, value, ttl).await?;
        }
        let expires_at_s = self.numbered().expires_at_s;
        let numbered = |pair| {
            let request = kv::SessionRequest { expires_at_s, ..self.numbered() };
            Numbered { pair, request }
        };
        let put = self.client.batch(pairs.into_iter().map(numbered).collect()).await;
        put.map(drop).map_err(|error| {
            // The cluster's time may be the reason.
            self.state.knows_time.store(false, Ordering::Relaxed);
            if has_first { after_one_pair(error, rest) } else { error }
        })
    }

    /// Sets a key to `new` (`None` deletes it) if its value is `expected` (`None`: if it does not
    /// exist).
    pub async fn compare_and_swap(
        &self,
        key: impl Into<Bytes>,
        expected: Option<Bytes>,
        new: Option<Bytes>,
        ttl: Ttl,
    ) -> Result<Swap> {
        let swap = kv::CompareAndSwap { expected, value: new, ttl: ttl.seconds() };
        let response = self.modify(key.into(), Change::CompareAndSwap(swap)).await?;
        Ok(Swap { succeeded: response.succeeded, previous: response.previous })
    }

    /// Sets a key if it has no value. Returns the value that it has; `None` if it was set.
    pub async fn put_if_absent(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl: Ttl,
    ) -> Result<Option<Bytes>> {
        let put = kv::PutIfAbsent { value: value.into(), ttl: ttl.seconds() };
        Ok(self.modify(key.into(), Change::PutIfAbsent(put)).await?.previous)
    }

    /// Sets a key if it has a value. Returns the value that it had; `None` if it had none and nothing
    /// changed.
    pub async fn put_if_present(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl: Ttl,
    ) -> Result<Option<Bytes>> {
        let put = kv::PutIfPresent { value: value.into(), ttl: ttl.seconds() };
        Ok(self.modify(key.into(), Change::PutIfPresent(put)).await?.previous)
    }

    /// Adds to the number that a key holds as decimal text, and returns the sum, as
    /// [`Client::increment`] does.
    pub async fn increment(&self, key: impl Into<Bytes>, by: i64) -> Result<i64> {
        Ok(self.modify(key.into(), Change::Increment(kv::Increment { by })).await?.number)
    }

    /// Adds bytes to the end of a value, and returns its length in bytes, as [`Client::append`] does.
    pub async fn append(&self, key: impl Into<Bytes>, bytes: impl Into<Bytes>) -> Result<u64> {
        let append = kv::Append { value: bytes.into() };
        Ok(self.modify(key.into(), Change::Append(append)).await?.length)
    }

    /// Deletes a key and returns the value that it had; `None` if it had none.
    pub async fn get_and_delete(&self, key: impl Into<Bytes>) -> Result<Option<Bytes>> {
        Ok(self.modify(key.into(), Change::GetAndDelete(kv::GetAndDelete {})).await?.previous)
    }

    /// Sends a request until its outcome is known, or until the deadline of the call.
    ///
    /// Invariant: all attempts of a request have one number and one deadline. A request gets another number
    /// only if no attempt of the former one can have taken effect.
    /// Tests: `a_session_repeats_an_unknown_outcome_with_the_same_number_and_deadline`,
    /// `a_session_learns_the_clusters_time_from_a_refusal`.
    async fn modify(&self, key: Bytes, change: Change) -> Result<kv::ModifyResponse> {
        let Client { router, options, .. } = &self.client;
        let mut tries = self.client.tries();
        let cf = self.client.family_name();
        let change = Some(change);
        let modification = kv::ModifyRequest { context: None, cf, key: key.clone(), change };
        let mut call = self.request(modification.clone());
        loop {
            // bug client.number_of_each_attempt: call = self.request(modification.clone());
            let route = router.locate(&key, &mut tries).await?;
            let answer = router.attempt(&route, &call, options, &mut tries).await?;
            let Some(response) = answer else { continue };
            if response.refusal() != kv::Refusal::Deadline {
                self.state.knows_time.store(true, Ordering::Relaxed);
                return checked(response);
            }
            self.note_cluster_time(response.cluster_time_s);
            let reason = "the deadline of the request does not allow it by the cluster's time";
            // bug client.ambiguous_attempt_renumbered: never
            if tries.is_ambiguous() {
                return Err(tries.final_error(Error::Unavailable(reason.to_owned())));
            }
            tries.pause(Pause::Region, reason).await?;
            call = self.request(modification.clone());
        }
    }

    fn request(&self, modification: kv::ModifyRequest) -> kv::ModifyInSessionRequest {
        let (modification, session) = (Some(modification), Some(self.numbered()));
        kv::ModifyInSessionRequest { context: None, modification, session }
    }

    fn numbered(&self) -> kv::SessionRequest {
        let life = (self.client.options.timeout + DEADLINE_AFTER).as_secs();
        let now_s = own_s().saturating_add(self.state.ahead_s.load(Ordering::Relaxed));
        kv::SessionRequest {
            session: self.id.0,
            number: self.state.next.fetch_add(1, Ordering::Relaxed),
            expires_at_s: now_s.max(0) as u64 + life.min(LIFE_S_MAX - 60),
        }
    }

    fn note_cluster_time(&self, cluster_s: u64) {
        let ahead_s = i64::try_from(cluster_s).unwrap_or(i64::MAX).saturating_sub(own_s());
        self.state.ahead_s.store(ahead_s, Ordering::Relaxed);
        self.state.knows_time.store(true, Ordering::Relaxed);
    }
}

/// Returns the error of a call that put one pair before the part with `rest` pairs that failed.
fn after_one_pair(error: Error, rest: u64) -> Error {
    let partial = match error {
        Error::Partial(partial) => Partial { done: partial.done + 1, ..*partial },
        first => {
            let unknown = if first.is_undetermined() { rest } else { 0 };
            let (unit, done, not_done) = (Unit::Pairs, 1, rest - unknown);
            Partial { unit, done, not_done, unknown, not_reached: None, first }
        }
    };
    // bug client.first_pair_is_forgotten: let partial = Partial { done: partial.done - 1, ..partial };
    partial.into_error()
}

/// Returns the Unix seconds of this client's clock.
fn own_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
