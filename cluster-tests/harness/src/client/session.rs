//! A client that makes one attempt of each operation.

use super::route::{Route, Routes};
use super::{FailedAnswer, Outcome};
use crate::cluster::channels::Channels;
use anyhow::Result;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use stele_proto::errorpb;
use stele_proto::kvrpcpb as kv;
use stele_proto::tikvpb::tikv_client::TikvClient;
use tonic::Status;
use tonic::transport::Channel;

#[derive(Clone, Debug)]
pub(crate) struct SessionOptions {
    /// Known nodes; the first is preferred for lookups.
    pub nodes: Vec<String>,
    /// Time limit of a call.
    pub limit: Duration,
}

#[derive(Debug)]
pub(crate) struct Session {
    channels: Arc<Channels>,
    routes: Routes,
    limit: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Swap {
    pub succeeded: bool,
    pub found: Option<Bytes>,
}

type Pairs = Vec<(Bytes, Bytes)>;
type Target = (TikvClient<Channel>, Option<kv::Context>, Route);

impl Session {
    pub(crate) fn new(channels: Arc<Channels>, options: SessionOptions) -> Self {
        let routes = Routes::new(Arc::clone(&channels), options.nodes);
        Self { channels, routes, limit: options.limit }
    }

    pub(crate) async fn put(&mut self, key: &[u8], value: Bytes) -> Outcome<()> {
        let (mut client, context, _) = match self.target(key, None).await {
            Ok(target) => target,
            Err(error) => return FailedAnswer::no_route(error).into_outcome(),
        };
        let key_bytes = Bytes::copy_from_slice(key);
        let request = kv::RawPutRequest { context, key: key_bytes, value, ..Default::default() };
        match client.raw_put(request).await.map(tonic::Response::into_inner) {
            Ok(answer) => self.classify_response(key, answer.region_error, answer.error, ()),
            Err(status) => self.classify_failure(key, &status),
        }
    }

    /// Puts pairs that must lie in one region.
    pub(crate) async fn put_many(&mut self, pairs: Vec<kv::KvPair>) -> Outcome<()> {
        let key = pairs.first().map(|pair| pair.key.clone()).unwrap_or_default();
        let (mut client, context, _) = match self.target(&key, None).await {
            Ok(target) => target,
            Err(error) => return FailedAnswer::no_route(error).into_outcome(),
        };
        let request = kv::RawBatchPutRequest { context, pairs, ..Default::default() };
        match client.raw_batch_put(request).await.map(tonic::Response::into_inner) {
            Ok(answer) => self.classify_response(&key, answer.region_error, answer.error, ()),
            Err(status) => self.classify_failure(&key, &status),
        }
    }

    /// Deletes keys that must lie in one region.
    pub(crate) async fn delete_many(&mut self, keys: Vec<Bytes>) -> Outcome<()> {
        let key = keys.first().cloned().unwrap_or_default();
        let (mut client, context, _) = match self.target(&key, None).await {
            Ok(target) => target,
            Err(error) => return FailedAnswer::no_route(error).into_outcome(),
        };
        let request = kv::RawBatchDeleteRequest { context, keys, ..Default::default() };
        match client.raw_batch_delete(request).await.map(tonic::Response::into_inner) {
            Ok(answer) => self.classify_response(&key, answer.region_error, answer.error, ()),
            Err(status) => self.classify_failure(&key, &status),
        }
    }

    pub(crate) async fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        let (mut client, context, _) = match self.target(key, None).await {
            Ok(target) => target,
            Err(error) => return FailedAnswer::no_route(error).into_outcome(),
        };
        let key_bytes = Bytes::copy_from_slice(key);
        let request = kv::RawDeleteRequest { context, key: key_bytes, ..Default::default() };
        match client.raw_delete(request).await.map(tonic::Response::into_inner) {
            Ok(answer) => self.classify_response(key, answer.region_error, answer.error, ()),
            Err(status) => self.classify_failure(key, &status),
        }
    }

    /// Deletes all keys from `start` to `end`, exclusive, that the region of `start` holds.
    pub(crate) async fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Outcome<()> {
        let (mut client, context, _) = match self.target(start, None).await {
            Ok(target) => target,
            Err(error) => return FailedAnswer::no_route(error).into_outcome(),
        };
        let request = kv::RawDeleteRangeRequest {
            context,
            start_key: Bytes::copy_from_slice(start),
            end_key: Bytes::copy_from_slice(end),
            ..Default::default()
        };
        match client.raw_delete_range(request).await.map(tonic::Response::into_inner) {
            Ok(answer) => self.classify_response(start, answer.region_error, answer.error, ()),
            Err(status) => self.classify_failure(start, &status),
        }
    }

    /// Reads from the leader, or from the replica with this index among the region's peers.
    pub(crate) async fn get(
        &mut self,
        key: &[u8],
        replica: Option<usize>,
    ) -> Outcome<Option<Bytes>> {
        let (mut client, context, _) = match self.target(key, replica).await {
            Ok(target) => target,
            Err(error) => return FailedAnswer::no_route(error).into_outcome(),
        };
        let key_bytes = Bytes::copy_from_slice(key);
        let request = kv::RawGetRequest { context, key: key_bytes, ..Default::default() };
        match client.raw_get(request).await.map(tonic::Response::into_inner) {
            Ok(answer) => {
                let found = (!answer.not_found).then_some(answer.value);
                self.classify_response(key, answer.region_error, answer.error, found)
            }
            Err(status) => self.classify_failure(key, &status),
        }
    }

    /// Sets a key to `value` (`None` deletes it) if it holds `expected` (`None`: if it does not
    /// exist).
    pub(crate) async fn swap(
        &mut self,
        key: &[u8],
        expected: Option<Bytes>,
        value: Option<Bytes>,
    ) -> Outcome<Swap> {
        let (mut client, context, _) = match self.target(key, None).await {
            Ok(target) => target,
            Err(error) => return FailedAnswer::no_route(error).into_outcome(),
        };
        let request = kv::RawCasRequest {
            context,
            key: Bytes::copy_from_slice(key),
            previous_not_exist: expected.is_none(),
            previous_value: expected.unwrap_or_default(),
            delete: value.is_none(),
            value: value.unwrap_or_default(),
            ..Default::default()
        };
        match client.raw_compare_and_swap(request).await.map(tonic::Response::into_inner) {
            Ok(answer) => {
                let found = (!answer.previous_not_exist).then_some(answer.previous_value);
                let swap = Swap { succeeded: answer.succeed, found };
                self.classify_response(key, answer.region_error, answer.error, swap)
            }
            Err(status) => self.classify_failure(key, &status),
        }
    }

    /// Reads at most `limit` pairs from `start` to `end`, exclusive; one region must hold the
    /// range.
    pub(crate) async fn scan(
        &mut self,
        start: &[u8],
        end: &[u8],
        limit: u32,
        reverse: bool,
        replica: Option<usize>,
    ) -> Outcome<Pairs> {
        let (mut client, context, route) = match self.target(start, replica).await {
            Ok(target) => target,
            Err(error) => return FailedAnswer::no_route(error).into_outcome(),
        };
        if !route.covers(start, end) {
            return FailedAnswer::no_route("the range spans several regions").into_outcome();
        }
        let (from, to) = if reverse { (end, start) } else { (start, end) };
        let request = kv::RawScanRequest {
            context,
            start_key: Bytes::copy_from_slice(from),
            end_key: Bytes::copy_from_slice(to),
            limit,
            reverse,
            ..Default::default()
        };
        match client.raw_scan(request).await.map(tonic::Response::into_inner) {
            Ok(answer) => {
                let failed = answer.kvs.iter().find_map(|pair| pair.error.as_ref());
                let error = failed.map(|error| error.abort.clone()).unwrap_or_default();
                let pairs = answer.kvs.into_iter().map(|pair| (pair.key, pair.value)).collect();
                self.classify_response(start, answer.region_error, error, pairs)
            }
            Err(status) => self.classify_failure(start, &status),
        }
    }

    pub(crate) async fn route(&mut self, key: &[u8]) -> Result<Route> {
        self.routes.of(key).await
    }

    pub(crate) async fn leader(&mut self, key: &[u8]) -> Result<(String, kv::Context)> {
        let route = self.routes.of(key).await?;
        let peer = route.region.peers.get(route.leader).copied().unwrap_or_default();
        Ok((self.routes.address(peer.store_id).await?, route.context(&peer, false)))
    }

    async fn target(&mut self, key: &[u8], replica: Option<usize>) -> Result<Target> {
        let route = self.routes.of(key).await?;
        let at = replica.map_or(route.leader, |number| number % route.region.peers.len());
        let peer = route.region.peers.get(at).copied().unwrap_or_default();
        let address = self.routes.address(peer.store_id).await?;
        let context = route.context(&peer, replica.is_some());
        Ok((self.channels.tikv(&address, self.limit)?, Some(context), route))
    }

    fn classify_response<T>(
        &mut self,
        key: &[u8],
        region_error: Option<errorpb::Error>,
        error: String,
        answer: T,
    ) -> Outcome<T> {
        if let Some(region_error) = &region_error {
            self.routes.learn(key, region_error);
        }
        if let Some(failure) = FailedAnswer::of_response(region_error.as_ref(), &error) {
            return failure.into_outcome();
        }
        self.routes.succeed(key);
        Outcome::Done(answer)
    }

    fn classify_failure<T>(&mut self, key: &[u8], status: &Status) -> Outcome<T> {
        self.routes.try_next_peer(key);
        FailedAnswer::of_status(status).into_outcome()
    }
}
