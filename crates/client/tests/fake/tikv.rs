//! TiKV protocol of the fake cluster.

use super::{Fate, Service, State, Stored, error, follow, peer, region};
use bytes::Bytes;
use std::pin::Pin;
use stele_proto::kvrpcpb::*;
use stele_proto::tikvpb::batch_commands_request::request::Cmd;
use stele_proto::tikvpb::batch_commands_response::response::Cmd as Done;
use stele_proto::tikvpb::tikv_server::Tikv;
use stele_proto::tikvpb::{BatchCommandsRequest, BatchCommandsResponse, batch_commands_response};
use stele_proto::{ScanResponse, errorpb};
use stele_types::{KeyRange, Region};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

pub(super) type RpcResult<T> = Result<Response<T>, Status>;

fn check(state: &State, node: usize, context: &Context) -> Result<Region, Box<errorpb::Error>> {
    let addressed = context.peer.unwrap_or_default();
    if !state.nodes[node].stores.contains(&addressed.store_id) {
        let (request_store_id, actual_store_id) =
            (addressed.store_id, state.nodes[node].stores.first().copied().unwrap_or(0));
        let mismatch = errorpb::StoreNotMatch { request_store_id, actual_store_id };
        return Err(boxed(|error| error.store_not_match = Some(mismatch)));
    }
    let region_id = context.region_id;
    let Some(found) = state.regions.iter().find(|region| region.id.0 == region_id) else {
        let missing = errorpb::RegionNotFound { region_id };
        return Err(boxed(|error| error.region_not_found = Some(missing)));
    };
    let leader = state.leader(found);
    if leader.is_none_or(|leader| leader.store.0 != addressed.store_id) {
        let not_leader = errorpb::NotLeader { region_id, leader: leader.as_ref().map(peer) };
        return Err(boxed(|error| error.not_leader = Some(not_leader)));
    }
    if context.region_epoch.unwrap_or_default().version != found.epoch.version {
        let current_regions = state.regions.iter().map(region).collect();
        let epoch = errorpb::EpochNotMatch { current_regions };
        return Err(boxed(|error| error.epoch_not_match = Some(epoch)));
    }
    Ok(found.clone())
}

fn boxed(set: impl FnOnce(&mut errorpb::Error)) -> Box<errorpb::Error> {
    Box::new(error(set))
}

pub(super) enum End {
    Refused(Box<errorpb::Error>),
    Final(&'static str),
}

impl Service {
    /// Runs a call as scripted; `act` reads or changes the state.
    pub(super) async fn run<T: Default>(
        &self,
        method: &'static str,
        context: Option<Context>,
        act: impl Fn(&mut State, &Region) -> T,
        ended: impl Fn(&mut T, End),
    ) -> RpcResult<T> {
        let context = context.unwrap_or_default();
        let fate = {
            let mut state = self.state();
            let store = context.peer.unwrap_or_default().store_id;
            state.calls.push((method, store));
            state.fate(method)
        };
        if matches!(fate, Some(Fate::Hang)) {
            std::future::pending::<()>().await;
        }
        let mut state = self.state();
        let mut response = T::default();
        match fate {
            Some(Fate::Refuse(error)) => ended(&mut response, End::Refused(error.into())),
            Some(Fate::Fail(code)) => return Err(Status::new(code, "scripted")),
            Some(Fate::Final(text)) => ended(&mut response, End::Final(text)),
            other => match check(&state, self.node, &context) {
                Err(error) => ended(&mut response, End::Refused(error)),
                Ok(region) => {
                    response = act(&mut state, &region);
                    match other {
                        Some(Fate::ActAndRefuse(error)) => {
                            response = T::default();
                            ended(&mut response, End::Refused(error.into()));
                        }
                        Some(Fate::ActAndFail(code)) => return Err(Status::new(code, "scripted")),
                        _ => {}
                    }
                }
            },
        }
        Ok(Response::new(response))
    }
}

macro_rules! ended {
    () => {
        |response, end| match end {
            End::Refused(error) => response.region_error = Some(*error),
            End::Final(text) => response.error = text.to_owned(),
        }
    };
}

macro_rules! ended_pairs {
    ($field:ident) => {
        |response, end| match end {
            End::Refused(error) => response.region_error = Some(*error),
            End::Final(text) => {
                let abort = text.to_owned();
                let error = Some(KeyError { abort, ..KeyError::default() });
                response.$field = vec![KvPair { error, ..KvPair::default() }];
            }
        }
    };
}

fn pair((key, stored): (&(String, Bytes), &Stored)) -> KvPair {
    KvPair { key: key.1.clone(), value: stored.value.clone(), ..KvPair::default() }
}

/// Returns the pairs of a family within a region and a range, ascending.
fn within(state: &State, cf: &str, region: &Region, range: &KeyRange) -> Vec<KvPair> {
    let inside = |key: &(String, Bytes)| {
        key.0 == cf && region.range.contains(&key.1) && range.contains(&key.1)
    };
    state.pairs.iter().filter(|(key, _)| inside(key)).map(pair).collect()
}

#[tonic::async_trait]
impl Tikv for Service {
    type BatchCommandsStream =
        Pin<Box<dyn Stream<Item = Result<BatchCommandsResponse, Status>> + Send>>;

    async fn raw_get(&self, request: Request<RawGetRequest>) -> RpcResult<RawGetResponse> {
        let RawGetRequest { context, key, cf } = request.into_inner();
        let act = |state: &mut State, _: &Region| {
            let found = state.pairs.get(&(cf.clone(), key.clone()));
            let value = found.map(|stored| stored.value.clone()).unwrap_or_default();
            RawGetResponse { value, not_found: found.is_none(), ..RawGetResponse::default() }
        };
        self.run("get", context, act, ended!()).await
    }

    async fn raw_batch_get(
        &self,
        request: Request<RawBatchGetRequest>,
    ) -> RpcResult<RawBatchGetResponse> {
        let RawBatchGetRequest { context, keys, cf } = request.into_inner();
        let act = |state: &mut State, region: &Region| {
            assert!(keys.iter().all(|key| region.range.contains(key)));
            let found = keys.iter().map(|key| (cf.clone(), key.clone()));
            let pairs = found.filter_map(|key| state.pairs.get_key_value(&key)).map(pair).collect();
            RawBatchGetResponse { pairs, ..RawBatchGetResponse::default() }
        };
        self.run("batch_get", context, act, ended_pairs!(pairs)).await
    }

    async fn raw_put(&self, request: Request<RawPutRequest>) -> RpcResult<RawPutResponse> {
        let RawPutRequest { context, key, value, cf, ttl, .. } = request.into_inner();
        let act = |state: &mut State, region: &Region| {
            state.log_write(region.id.0, follow::put(&key, &value));
            state.pairs.insert((cf.clone(), key.clone()), Stored { value: value.clone(), ttl });
            RawPutResponse::default()
        };
        self.run("put", context, act, ended!()).await
    }

    async fn raw_batch_put(
        &self,
        request: Request<RawBatchPutRequest>,
    ) -> RpcResult<RawBatchPutResponse> {
        let RawBatchPutRequest { context, pairs, cf, ttls, .. } = request.into_inner();
        let act = |state: &mut State, region: &Region| {
            for (at, pair) in pairs.iter().enumerate() {
                assert!(region.range.contains(&pair.key));
                let ttl = ttls.get(at).copied().unwrap_or(0);
                let stored = Stored { value: pair.value.clone(), ttl };
                state.pairs.insert((cf.clone(), pair.key.clone()), stored);
            }
            RawBatchPutResponse::default()
        };
        self.run("batch_put", context, act, ended!()).await
    }

    async fn raw_delete(&self, request: Request<RawDeleteRequest>) -> RpcResult<RawDeleteResponse> {
        let RawDeleteRequest { context, key, cf, .. } = request.into_inner();
        let act = |state: &mut State, region: &Region| {
            state.log_write(region.id.0, follow::delete(&key));
            state.pairs.remove(&(cf.clone(), key.clone()));
            RawDeleteResponse::default()
        };
        self.run("delete", context, act, ended!()).await
    }

    async fn raw_batch_delete(
        &self,
        request: Request<RawBatchDeleteRequest>,
    ) -> RpcResult<RawBatchDeleteResponse> {
        let RawBatchDeleteRequest { context, keys, cf, .. } = request.into_inner();
        let act = |state: &mut State, _: &Region| {
            for key in &keys {
                state.pairs.remove(&(cf.clone(), key.clone()));
            }
            RawBatchDeleteResponse::default()
        };
        self.run("batch_delete", context, act, ended!()).await
    }

    async fn raw_scan(&self, request: Request<RawScanRequest>) -> RpcResult<ScanResponse> {
        let request = request.into_inner();
        let act = |state: &mut State, region: &Region| {
            let range = match request.reverse {
                false => KeyRange::new(request.start_key.clone(), request.end_key.clone()),
                true => KeyRange::new(request.end_key.clone(), request.start_key.clone()),
            };
            let mut kvs = within(state, &request.cf, region, &range);
            if request.reverse {
                kvs.reverse();
            }
            kvs.truncate(request.limit as usize);
            for pair in kvs.iter_mut().filter(|_| request.key_only) {
                pair.value = Bytes::new();
            }
            ScanResponse { kvs, ..ScanResponse::default() }
        };
        self.run("scan", request.context.clone(), act, ended_pairs!(kvs)).await
    }

    async fn raw_batch_scan(&self, _: Request<RawBatchScanRequest>) -> RpcResult<ScanResponse> {
        Err(Status::unimplemented(""))
    }

    async fn raw_delete_range(
        &self,
        request: Request<RawDeleteRangeRequest>,
    ) -> RpcResult<RawDeleteRangeResponse> {
        let RawDeleteRangeRequest { context, start_key, end_key, cf } = request.into_inner();
        let range = KeyRange::new(start_key, end_key);
        let act = |state: &mut State, region: &Region| {
            assert!(range.end.is_empty() == region.range.end.is_empty() || !range.end.is_empty());
            let write = follow::delete_range(range.start.clone(), range.end.clone());
            state.log_write(region.id.0, write);
            for pair in within(state, &cf, region, &range) {
                state.pairs.remove(&(cf.clone(), pair.key));
            }
            RawDeleteRangeResponse::default()
        };
        self.run("delete_range", context, act, ended!()).await
    }

    async fn raw_get_key_ttl(
        &self,
        request: Request<RawGetKeyTtlRequest>,
    ) -> RpcResult<RawGetKeyTtlResponse> {
        let RawGetKeyTtlRequest { context, key, cf } = request.into_inner();
        let act = |state: &mut State, _: &Region| {
            let found = state.pairs.get(&(cf.clone(), key.clone()));
            let ttl = found.map_or(0, |stored| stored.ttl);
            RawGetKeyTtlResponse { ttl, not_found: found.is_none(), ..Default::default() }
        };
        self.run("ttl", context, act, ended!()).await
    }

    async fn raw_compare_and_swap(
        &self,
        request: Request<RawCasRequest>,
    ) -> RpcResult<RawCasResponse> {
        let request = request.into_inner();
        let act = |state: &mut State, _: &Region| {
            let key = (request.cf.clone(), request.key.clone());
            let found = state.pairs.get(&key).map(|stored| stored.value.clone());
            let expected = (!request.previous_not_exist).then(|| request.previous_value.clone());
            let succeed = found == expected;
            if succeed && request.delete {
                state.pairs.remove(&key);
            } else if succeed {
                let stored = Stored { value: request.value.clone(), ttl: request.ttl };
                state.pairs.insert(key, stored);
            }
            RawCasResponse {
                succeed,
                previous_not_exist: found.is_none(),
                previous_value: found.unwrap_or_default(),
                ..RawCasResponse::default()
            }
        };
        self.run("cas", request.context.clone(), act, ended!()).await
    }

    async fn raw_checksum(
        &self,
        request: Request<RawChecksumRequest>,
    ) -> RpcResult<RawChecksumResponse> {
        let RawChecksumRequest { context, ranges, .. } = request.into_inner();
        let act = |state: &mut State, region: &Region| {
            let mut response = RawChecksumResponse::default();
            for range in &ranges {
                let range = KeyRange::new(range.start_key.clone(), range.end_key.clone());
                for pair in within(state, "", region, &range) {
                    response.checksum ^= pair.value.len() as u64 + 1;
                    response.total_kvs += 1;
                    response.total_bytes += (pair.key.len() + pair.value.len()) as u64;
                }
            }
            response
        };
        self.run("checksum", context, act, ended!()).await
    }

    /// Serves a command stream. A failed command ends the stream, as a lost connection does.
    async fn batch_commands(
        &self,
        requests: Request<Streaming<BatchCommandsRequest>>,
    ) -> RpcResult<Self::BatchCommandsStream> {
        let (service, mut requests) = (self.clone(), requests.into_inner());
        let (answers, out) = mpsc::channel(64);
        tokio::spawn(async move {
            while let Ok(Some(batch)) = requests.message().await {
                for (id, command) in batch.request_ids.into_iter().zip(batch.requests) {
                    let (service, answers) = (service.clone(), answers.clone());
                    tokio::spawn(async move {
                        let done = service.command(command.cmd.unwrap()).await;
                        let answer = done.map(|done| BatchCommandsResponse {
                            request_ids: vec![id],
                            responses: vec![batch_commands_response::Response { cmd: Some(done) }],
                            ..BatchCommandsResponse::default()
                        });
                        let _ = answers.send(answer).await;
                    });
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(out))))
    }
}

impl Service {
    async fn command(&self, command: Cmd) -> Result<Done, Status> {
        Ok(match command {
            Cmd::RawGet(call) => Done::RawGet(self.raw_get(Request::new(call)).await?.into_inner()),
            Cmd::RawPut(call) => Done::RawPut(self.raw_put(Request::new(call)).await?.into_inner()),
            Cmd::RawDelete(call) => {
                Done::RawDelete(self.raw_delete(Request::new(call)).await?.into_inner())
            }
            other => panic!("{other:?}"),
        })
    }
}
