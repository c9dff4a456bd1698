//! Operations on many keys. They are split at region boundaries and at the maximum length of a
//! message, and the parts are sent concurrently. Each part is atomic, the whole is not: a write that fails
//! says how much of it is done.

use crate::Client;
use crate::backoff::Tries;
use crate::call::{RawCall, Repetition};
use crate::raw::Ttl;
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use stele_proto::kvrpcpb;
use stele_proto::stele::kv::v1 as kv;
use stele_types::command::{check_user_key, check_user_pair};
use stele_types::{Error, KeyRange, Partial, Result, Unit};
use tokio::task::{JoinError, JoinSet};

/// Maximum number of keys and bytes in one message.
const PART_KEYS_MAX: usize = 512;
const PART_BYTES_MAX: usize = 1 << 20;
const PARTS_AT_ONCE: usize = 16;

/// A pair to put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutPair {
    /// Key of the pair.
    pub key: Bytes,
    /// Value of the pair.
    pub value: Bytes,
    /// Time to live.
    pub ttl: Ttl,
}

impl PutPair {
    /// Makes a pair that does not expire.
    pub fn new(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { key: key.into(), value: value.into(), ttl: Ttl::Endless }
    }
}

/// A write of one key, of which the expiry is an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyWrite {
    /// Key that is written.
    pub key: Bytes,
    /// Value, and the Unix seconds at which the pair expires, 0 for never; `None` deletes the key.
    pub put: Option<(Bytes, u64)>,
}

pub(super) trait Item: Clone + Send + 'static {
    type Call: RawCall;
    const UNIT: Unit = Unit::Keys;

    fn key(&self) -> &Bytes;
    fn bytes(&self) -> usize;
    fn call(items: &[Self], cf: String) -> Self::Call;

    /// Fails if no store accepts the item.
    fn check(&self) -> Result<()> {
        check_user_key(self.key())
    }
}

trait KeysCall: RawCall {
    fn of(keys: Vec<Bytes>, cf: String) -> Self;
}

impl KeysCall for kvrpcpb::RawBatchGetRequest {
    fn of(keys: Vec<Bytes>, cf: String) -> Self {
        Self { keys, cf, context: None }
    }
}

impl KeysCall for kv::ExistRequest {
    fn of(keys: Vec<Bytes>, cf: String) -> Self {
        Self { keys, cf, context: None }
    }
}

impl KeysCall for kvrpcpb::RawBatchDeleteRequest {
    fn of(keys: Vec<Bytes>, cf: String) -> Self {
        Self { keys, cf, ..Self::default() }
    }
}

#[derive(Clone)]
struct KeyOf<C>(Bytes, PhantomData<C>);

impl<C> KeyOf<C> {
    fn each(keys: Vec<Bytes>) -> Vec<Self> {
        keys.into_iter().map(|key| Self(key, PhantomData)).collect()
    }
}

impl<C: KeysCall> Item for KeyOf<C> {
    type Call = C;

    fn key(&self) -> &Bytes {
        &self.0
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn call(items: &[Self], cf: String) -> C {
        C::of(items.iter().map(|item| item.0.clone()).collect(), cf)
    }
}

impl Item for PutPair {
    type Call = kvrpcpb::RawBatchPutRequest;
    const UNIT: Unit = Unit::Pairs;

    fn key(&self) -> &Bytes {
        &self.key
    }

    fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }

    fn call(items: &[Self], cf: String) -> Self::Call {
        let pair = |item: &Self| kvrpcpb::KvPair {
            key: item.key.clone(),
            value: item.value.clone(),
            ..kvrpcpb::KvPair::default()
        };
        let has_ttl = items.iter().any(|item| item.ttl != Ttl::Endless);
        let ttls = if has_ttl {
            items.iter().map(|item| item.ttl.seconds()).collect()
        } else {
            Vec::new()
        };
        let pairs = items.iter().map(pair).collect();
        kvrpcpb::RawBatchPutRequest { pairs, ttls, cf, ..kvrpcpb::RawBatchPutRequest::default() }
    }

    fn check(&self) -> Result<()> {
        check_user_pair(&self.key, &self.value)
    }
}

impl Item for KeyWrite {
    type Call = kv::WriteRequest;

    fn key(&self) -> &Bytes {
        &self.key
    }

    fn bytes(&self) -> usize {
        self.key.len() + self.put.as_ref().map_or(0, |(value, _)| value.len())
    }

    fn call(items: &[Self], cf: String) -> Self::Call {
        let put = |(value, expires_at_s): &(Bytes, u64)| kv::FollowedPut {
            value: value.clone(),
            expires_at_s: *expires_at_s,
        };
        let write =
            |item: &Self| kv::KeyWrite { key: item.key.clone(), put: item.put.as_ref().map(put) };
        kv::WriteRequest { writes: items.iter().map(write).collect(), cf, context: None }
    }

    fn check(&self) -> Result<()> {
        match &self.put {
            Some((value, _)) => check_user_pair(&self.key, value),
            None => check_user_key(&self.key),
        }
    }
}

impl Client {
    /// Returns the values of keys, in their order. Each is the value at some moment of the call.
    pub async fn batch_get(&self, keys: Vec<Bytes>) -> Result<Vec<Option<Bytes>>> {
        let items = KeyOf::<kvrpcpb::RawBatchGetRequest>::each(keys.clone());
        let mut values = HashMap::new();
        for response in self.batch(items).await? {
            values.extend(response.pairs.into_iter().map(|pair| (pair.key, pair.value)));
        }
        Ok(keys.iter().map(|key| values.get(key).cloned()).collect())
    }

    /// Returns for each of `keys` whether it exists, in their order, each at some moment of the call.
    /// Reads no value.
    pub async fn exist(&self, keys: Vec<Bytes>) -> Result<Vec<bool>> {
        let answers = self.batch(KeyOf::<kv::ExistRequest>::each(keys.clone())).await?;
        let found: HashSet<Bytes> = answers.into_iter().flat_map(|answer| answer.keys).collect();
        Ok(keys.iter().map(|key| found.contains(key)).collect())
    }

    /// Sets keys. Of several pairs with the same key the last takes effect. All are checked before any
    /// is sent. Fails with `Partial` if some are set and others are not, or may not be.
    pub async fn batch_put(&self, pairs: Vec<PutPair>) -> Result<()> {
        self.batch(pairs).await.map(drop)
    }

    /// Deletes keys. All are checked before any is sent. Fails with `Partial` if some are deleted and
    /// others are not, or may not be.
    pub async fn batch_delete(&self, keys: Vec<Bytes>) -> Result<()> {
        self.batch(KeyOf::<kvrpcpb::RawBatchDeleteRequest>::each(keys)).await.map(drop)
    }

    /// Sets and deletes keys; what expires does so at a stated instant. Of several writes of a key the last
    /// takes effect. All are checked before any is sent. Fails with `Partial` if some are done and others
    /// are not, or may not be.
    pub async fn write(&self, writes: Vec<KeyWrite>) -> Result<()> {
        self.batch(writes).await.map(drop)
    }

    pub(super) async fn batch<I: Item>(&self, items: Vec<I>) -> Result<Vec<ResponseOf<I>>> {
        // bug client.bad_key_is_sent: skip
        items.iter().try_for_each(Item::check)?;
        let mut rest = sorted(items);
        let items_count = rest.len();
        let mut tries = self.tries();
        let mut parts = JoinSet::new();
        let mut ended = Ended::<I>::default();
        while let Some(first) = rest.first()
            && ended.failure.is_none()
        {
            match self.router.locate(first.key(), &mut tries).await {
                Ok(route) => {
                    let part = take_part(&mut rest, &route.region.range);
                    parts.spawn(self.clone().part(part, tries.of_part()));
                }
                Err(error) => ended.fail(error),
            }
            if parts.len() >= PARTS_AT_ONCE {
                ended.add(parts.join_next().await);
            }
        }
        // Invariant: each part of a write that was sent is awaited to its end, after a failure too.
        while !parts.is_empty()
            && (ended.failure.is_none() || <I::Call as RawCall>::REPETITION != Repetition::Read)
        {
            ended.add(parts.join_next().await);
            // bug client.parts_aborted: if ended.failure.is_some() { parts.abort_all(); }
        }
        ended.not_done += rest.len();
        ended.into_result(items_count)
    }

    async fn part<I: Item>(self, items: Vec<I>, mut tries: Tries) -> Ended<I> {
        let mut waiting = vec![Part { items, is_ambiguous: false }];
        let mut ended = Ended::default();
        while let Some(mut whole) = waiting.pop() {
            let Some(first) = whole.items.first() else { continue };
            tries.continue_with(whole.is_ambiguous);
            let route = match self.router.locate(first.key(), &mut tries).await {
                Ok(route) => route,
                Err(error) => {
                    waiting.push(whole);
                    ended.fail(error);
                    break;
                }
            };
            let items = take_part(&mut whole.items, &route.region.range);
            waiting.push(whole);
            let call = I::call(&items, self.family_name());
            let answer = self.router.attempt(&route, &call, &self.options, &mut tries).await;
            let part = Part { items, is_ambiguous: tries.is_ambiguous() };
            match answer {
                Ok(Some(answer)) => {
                    ended.done += part.items.len();
                    ended.answers.push(answer);
                }
                Ok(None) => waiting.push(part),
                Err(Error::Invalid(_))
                    if tries.take_too_long() && part.items.len() > 1 && !tries.left().is_zero() =>
                {
                    waiting.extend(part.halves());
                }
                Err(error) => {
                    waiting.push(part);
                    ended.fail(error);
                    break;
                }
            }
        }
        let certain = waiting.iter().filter(|part| !part.is_ambiguous);
        ended.not_done += certain.map(|part| part.items.len()).sum::<usize>();
        ended
    }
}

pub(super) type ResponseOf<I> = <<I as Item>::Call as crate::call::Call>::Response;

struct Part<I> {
    items: Vec<I>,
    is_ambiguous: bool,
}

impl<I> Part<I> {
    fn halves(self) -> [Self; 2] {
        let Self { mut items, is_ambiguous } = self;
        let upper = items.split_off(items.len() / 2);
        [Self { items: upper, is_ambiguous }, Self { items, is_ambiguous }]
    }
}

/// What became of items. The outcome of those that are neither done nor not done is unknown.
struct Ended<I: Item> {
    answers: Vec<ResponseOf<I>>,
    done: usize,
    not_done: usize,
    failure: Option<Error>,
}

impl<I: Item> Default for Ended<I> {
    fn default() -> Self {
        Self { answers: Vec::new(), done: 0, not_done: 0, failure: None }
    }
}

impl<I: Item> Ended<I> {
    /// Records a failure, unless it is not the first.
    fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    fn add(&mut self, part: Option<Result<Self, JoinError>>) {
        match part {
            Some(Ok(part)) => {
                self.answers.extend(part.answers);
                self.done += part.done;
                self.not_done += part.not_done;
                part.failure.into_iter().for_each(|error| self.fail(error));
            }
            Some(Err(error)) => {
                self.fail(Error::Undetermined(format!("a part of the call failed: {error}")));
            }
            None => {}
        }
    }

    /// Returns the answers for so many items, or how much of a write is done.
    fn into_result(self, items: usize) -> Result<Vec<ResponseOf<I>>> {
        let Some(first) = self.failure else { return Ok(self.answers) };
        if <I::Call as RawCall>::REPETITION == Repetition::Read {
            return Err(first);
        }
        let unknown = items.saturating_sub(self.done + self.not_done);
        // bug client.unknown_part_is_not_done: let unknown = 0;
        let not_done = (items - self.done - unknown) as u64;
        let (done, unknown) = (self.done as u64, unknown as u64);
        let unit = I::UNIT;
        Err(Partial { unit, done, not_done, unknown, not_reached: None, first }.into_error())
    }
}

/// Sorts items by key and keeps the last of those with the same key.
pub(super) fn sorted<I: Item>(mut items: Vec<I>) -> Vec<I> {
    items.reverse();
    items.sort_by(|a, b| a.key().cmp(b.key()));
    items.dedup_by(|later, kept| later.key() == kept.key());
    items
}

/// Removes from the front the items that lie in `range` and fit into a message, at least one.
fn take_part<I: Item>(items: &mut Vec<I>, range: &KeyRange) -> Vec<I> {
    let mut bytes = 0;
    let fits = |(at, item): &(usize, &I)| {
        bytes += item.bytes();
        let is_small = *at < PART_KEYS_MAX && bytes <= PART_BYTES_MAX;
        *at == 0 || (is_small && range.contains(item.key()))
    };
    let count = items.iter().enumerate().take_while(fits).count();
    let rest = items.split_off(count);
    std::mem::replace(items, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_equal_keys_counts() {
        let pairs = vec![PutPair::new("b", "1"), PutPair::new("a", "2"), PutPair::new("b", "3")];
        let sorted = sorted(pairs);
        assert_eq!(sorted, [PutPair::new("a", "2"), PutPair::new("b", "3")]);
    }

    #[test]
    fn parts_end_with_the_region_and_with_the_message() {
        let keys = ["a", "b", "m"].map(Bytes::from).into();
        let mut items = KeyOf::<kvrpcpb::RawBatchGetRequest>::each(keys);
        let part = take_part(&mut items, &KeyRange::new("", "m"));
        assert_eq!((part.len(), items.len()), (2, 1));
        let large = |key: &'static str| PutPair::new(key, vec![0; PART_BYTES_MAX]);
        let mut items = vec![large("a"), large("b")];
        assert_eq!(take_part(&mut items, &KeyRange::all()).len(), 1);
        assert_eq!(take_part(&mut items, &KeyRange::all()).len(), 1);
        assert!(items.is_empty());
    }
}
