//! A client that makes one attempt of each operation.

use super::Outcome;
use super::route::{Route, Routes};
use crate::cluster::channels::Channels;
use anyhow::Result;
use bytes::Bytes;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;
use stele_proto::errorpb;
use stele_proto::kvrpcpb as kv;
use stele_proto::tikvpb::tikv_client::TikvClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Options of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Known nodes; the first is preferred for lookups.
    pub nodes: Vec<String>,
    /// Time limit of a call.
    pub limit: Duration,
}

/// A client with its cached regions.
#[derive(Debug)]
pub struct Session {
    channels: Arc<Channels>,
    routes: Routes,
    limit: Duration,
}

/// Result of a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Whether the value was replaced.
    pub succeeded: bool,
    /// Previous value.
    pub found: Option<Bytes>,
}

type Pairs = Vec<(Bytes, Bytes)>;
type Target = (TikvClient<Channel>, Option<kv::Context>, Route);

impl Session {
    /// Creates a client with an empty cache.
    pub fn new(channels: Arc<Channels>, options: SessionOptions) -> Self {
        let routes = Routes::new(Arc::clone(&channels), options.nodes);
        Self { channels, routes, limit: options.limit }
    }

    pub async fn put(&mut self, key: &[u8], value: Bytes) -> Outcome<()> {
        let (mut client, context, _) = match self.target(key, None).await {
            Ok(target) => target,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        let key_bytes = Bytes::copy_from_slice(key);
        let request = kv::RawPutRequest { context, key: key_bytes, value, ..Default::default() };
        match client.raw_put(request).await.map(tonic::Response::into_inner) {
            Ok(answer) => self.classify_response(key, answer.region_error, answer.error, ()),
            Err(status) => self.classify_failure(key, &status),
        }
    }

    /// Puts pairs that must lie in one region.
    pub async fn put_many(&mut self, pairs: Vec<kv::KvPair>) -> Outcome<()> {
        let key = pairs.first().map(|pair| pair.key.clone()).unwrap_or_default();
        let (mut client, context, _) = match self.target(&key, None).await {
            Ok(target) => target,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        let request = kv::RawBatchPutRequest { context, pairs, ..Default::default() };
        match client.raw_batch_put(request).await.map(tonic::Response::into_inner) {
            Ok(answer) => self.classify_response(&key, answer.region_error, answer.error, ()),
            Err(status) => self.classify_failure(&key, &status),
        }
    }

    pub async fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        let (mut client, context, _) = match self.target(key, None).await {
            Ok(target) => target,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        let key_bytes = Bytes::copy_from_slice(key);
        let request = kv::RawDeleteRequest { context, key: key_bytes, ..Default::default() };
        match client.raw_delete(request).await.map(tonic::Response::into_inner) {
            Ok(answer) => self.classify_response(key, answer.region_error, answer.error, ()),
            Err(status) => self.classify_failure(key, &status),
        }
    }

    /// Deletes all keys from `start` to `end`, exclusive, that the region of `start` holds.
    pub async fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Outcome<()> {
        let (mut client, context, _) = match self.target(start, None).await {
            Ok(target) => target,
            Err(error) => return Outcome::Refused(error.to_string()),
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
    pub async fn get(&mut self, key: &[u8], replica: Option<usize>) -> Outcome<Option<Bytes>> {
        let (mut client, context, _) = match self.target(key, replica).await {
            Ok(target) => target,
            Err(error) => return Outcome::Refused(error.to_string()),
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
    pub async fn swap(
        &mut self,
        key: &[u8],
        expected: Option<Bytes>,
        value: Option<Bytes>,
    ) -> Outcome<Swap> {
        let (mut client, context, _) = match self.target(key, None).await {
            Ok(target) => target,
            Err(error) => return Outcome::Refused(error.to_string()),
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
    pub async fn scan(
        &mut self,
        start: &[u8],
        end: &[u8],
        limit: u32,
        reverse: bool,
        replica: Option<usize>,
    ) -> Outcome<Pairs> {
        let (mut client, context, route) = match self.target(start, replica).await {
            Ok(target) => target,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        if !route.covers(start, end) {
            return Outcome::Refused("the range spans several regions".to_owned());
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

    /// Returns the route of a key.
    pub async fn route(&mut self, key: &[u8]) -> Result<Route> {
        self.routes.of(key).await
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
        if let Some(region_error) = region_error {
            self.routes.learn(key, &region_error);
            let known = region_error.stale_command.is_none()
                && region_error.undetermined_result.is_none()
                && is_specific(&region_error);
            let text = format!("{region_error:?}");
            return if known { Outcome::Refused(text) } else { Outcome::Ambiguous(text) };
        }
        if !error.is_empty() {
            return Outcome::Ambiguous(error);
        }
        self.routes.succeed(key);
        Outcome::Done(answer)
    }

    fn classify_failure<T>(&mut self, key: &[u8], status: &Status) -> Outcome<T> {
        self.routes.try_next_peer(key);
        let text = format!("{status:?}");
        let never_sent = is_refused_connection(status) || status.code() == Code::InvalidArgument;
        if never_sent { Outcome::Refused(text) } else { Outcome::Ambiguous(text) }
    }
}

/// Returns whether the error has a variant that gives a reason; a text alone proves nothing.
fn is_specific(error: &errorpb::Error) -> bool {
    error.not_leader.is_some()
        || error.region_not_found.is_some()
        || error.key_not_in_region.is_some()
        || error.epoch_not_match.is_some()
        || error.server_is_busy.is_some()
        || error.store_not_match.is_some()
        || error.raft_entry_too_large.is_some()
        || error.read_index_not_ready.is_some()
        || error.proposal_in_merging_mode.is_some()
        || error.region_not_initialized.is_some()
        || error.disk_full.is_some()
        || error.mismatch_peer_id.is_some()
}

/// Returns whether no connection was made, so that the request was never sent.
fn is_refused_connection(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        let connecting = error.to_string().contains("tcp connect error");
        let refused = error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        if connecting || refused {
            return true;
        }
        cause = error.source();
    }
    false
}
