//! Operations on many keys. They are split at region boundaries and at the maximum length of a
//! message, and the parts are sent concurrently. Each part is atomic, the whole is not.

use crate::Client;
use crate::backoff::Tries;
use crate::call::RawCall;
use crate::raw::Ttl;
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use stele_proto::kvrpcpb;
use stele_proto::stele::kv::v1 as kv;
use stele_types::{Error, KeyRange, Result};
use tokio::task::JoinSet;

/// Maximum number of keys and bytes in one message.
const PART_KEYS_MAX: usize = 512;
const PART_BYTES_MAX: usize = 1 << 20;
/// Maximum number of parts in flight.
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

/// Part of a request for one key.
trait Item: Clone + Send + 'static {
    type Call: RawCall;

    fn key(&self) -> &Bytes;
    fn bytes(&self) -> usize;
    fn call(items: &[Self], cf: String) -> Self::Call;
}

#[derive(Clone)]
struct GetKey(Bytes);

#[derive(Clone)]
struct ExistKey(Bytes);

#[derive(Clone)]
struct DeleteKey(Bytes);

impl Item for GetKey {
    type Call = kvrpcpb::RawBatchGetRequest;

    fn key(&self) -> &Bytes {
        &self.0
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn call(items: &[Self], cf: String) -> Self::Call {
        let keys = items.iter().map(|item| item.0.clone()).collect();
        kvrpcpb::RawBatchGetRequest { keys, cf, context: None }
    }
}

impl Item for ExistKey {
    type Call = kv::ExistRequest;

    fn key(&self) -> &Bytes {
        &self.0
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn call(items: &[Self], cf: String) -> Self::Call {
        let keys = items.iter().map(|item| item.0.clone()).collect();
        kv::ExistRequest { keys, cf, context: None }
    }
}

impl Item for DeleteKey {
    type Call = kvrpcpb::RawBatchDeleteRequest;

    fn key(&self) -> &Bytes {
        &self.0
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn call(items: &[Self], cf: String) -> Self::Call {
        let keys = items.iter().map(|item| item.0.clone()).collect();
        kvrpcpb::RawBatchDeleteRequest { keys, cf, ..kvrpcpb::RawBatchDeleteRequest::default() }
    }
}

impl Item for PutPair {
    type Call = kvrpcpb::RawBatchPutRequest;

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
}

impl Client {
    /// Returns the values of keys, in their order. Each is the value at some moment of the call.
    pub async fn batch_get(&self, keys: Vec<Bytes>) -> Result<Vec<Option<Bytes>>> {
        let items = keys.iter().cloned().map(GetKey).collect();
        let mut values = HashMap::new();
        for response in self.batch(items).await? {
            values.extend(response.pairs.into_iter().map(|pair| (pair.key, pair.value)));
        }
        Ok(keys.iter().map(|key| values.get(key).cloned()).collect())
    }

    /// Returns for each of `keys` whether it exists, in their order, each at some moment of the call.
    /// Reads no value.
    pub async fn exist(&self, keys: Vec<Bytes>) -> Result<Vec<bool>> {
        let items = keys.iter().cloned().map(ExistKey).collect();
        let answers = self.batch(items).await?;
        let found: HashSet<Bytes> = answers.into_iter().flat_map(|answer| answer.keys).collect();
        Ok(keys.iter().map(|key| found.contains(key)).collect())
    }

    /// Sets keys. Of several pairs with the same key the last takes effect. On an error some may be
    /// set.
    pub async fn batch_put(&self, pairs: Vec<PutPair>) -> Result<()> {
        self.batch(pairs).await.map(drop)
    }

    /// Deletes keys. On an error some may be deleted.
    pub async fn batch_delete(&self, keys: Vec<Bytes>) -> Result<()> {
        self.batch(keys.into_iter().map(DeleteKey).collect()).await.map(drop)
    }

    async fn batch<I: Item>(&self, items: Vec<I>) -> Result<Vec<Answer<I>>> {
        let mut rest = sorted(items);
        let mut tries = self.tries();
        let mut parts = JoinSet::new();
        let mut answers = Vec::new();
        while let Some(first) = rest.first() {
            let route = self.router.locate(first.key(), &mut tries).await?;
            let part = take_part(&mut rest, &route.region.range);
            if parts.len() >= PARTS_AT_ONCE {
                answers.extend(joined(parts.join_next().await)?);
            }
            parts.spawn(self.clone().part(part));
        }
        while !parts.is_empty() {
            answers.extend(joined(parts.join_next().await)?);
        }
        Ok(answers)
    }

    /// Sends items that were in one region when they were split off.
    async fn part<I: Item>(self, items: Vec<I>) -> Result<Vec<Answer<I>>> {
        let mut tries = self.tries();
        let mut waiting = vec![items];
        let mut answers = Vec::new();
        while let Some(mut items) = waiting.pop() {
            let Some(first) = items.first() else { continue };
            let route = self.router.locate(first.key(), &mut tries).await?;
            let part = take_part(&mut items, &route.region.range);
            if !items.is_empty() {
                waiting.push(items);
            }
            let call = I::call(&part, self.family_name());
            let answer = self.router.attempt(&route, &call, &self.options, &mut tries).await;
            match answer {
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => waiting.push(part),
                Err(error) => waiting.extend(split_part(part, error, &mut tries)?),
            }
        }
        Ok(answers)
    }
}

type Answer<I> = <<I as Item>::Call as crate::call::Call>::Response;

/// Sorts items by key and keeps the last of those with the same key.
fn sorted<I: Item>(mut items: Vec<I>) -> Vec<I> {
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

/// Splits a part that was too long for one message in two. Returns any other error.
fn split_part<I: Item>(mut part: Vec<I>, error: Error, tries: &mut Tries) -> Result<Vec<Vec<I>>> {
    let is_too_long = tries.take_too_long() && matches!(error, Error::Invalid(_));
    if part.len() < 2 || !is_too_long || tries.left().is_zero() {
        return Err(error);
    }
    let upper = part.split_off(part.len() / 2);
    Ok(vec![upper, part])
}

fn joined<T>(part: Option<Result<Result<Vec<T>>, tokio::task::JoinError>>) -> Result<Vec<T>> {
    match part {
        Some(Ok(answers)) => answers,
        Some(Err(error)) => Err(Error::Unavailable(format!("a part of the call failed: {error}"))),
        None => Ok(Vec::new()),
    }
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
        let mut items: Vec<GetKey> = ["a", "b", "m"].map(|key| GetKey(key.into())).into();
        let part = take_part(&mut items, &KeyRange::new("", "m"));
        assert_eq!((part.len(), items.len()), (2, 1));
        let large = |key: &'static str| PutPair::new(key, vec![0; PART_BYTES_MAX]);
        let mut items = vec![large("a"), large("b")];
        assert_eq!(take_part(&mut items, &KeyRange::all()).len(), 1);
        assert_eq!(take_part(&mut items, &KeyRange::all()).len(), 1);
        assert!(items.is_empty());
    }
}
