//! Stele's own calls of the fake cluster.

use super::tikv::{End, RpcResult};
use super::{Region, Service, State, Stored};
use bytes::Bytes;
use std::pin::Pin;
use stele_proto::stele::kv::v1::kv_server::Kv;
use stele_proto::stele::kv::v1::modify_request::Change;
use stele_proto::stele::kv::v1::{
    CopiedPair, CopyRequest, CopyResponse, ExistRequest, ExistResponse, FollowRequest,
    GetPairRequest, GetPairResponse, ModifyInSessionRequest, ModifyRequest, ModifyResponse,
    PutInSessionRequest, ReadIndexRequest, ReadIndexResponse, Refusal, SessionRequest, Values,
    WriteIfRequest, WriteIfResponse, WriteRequest, WriteResponse,
};
use stele_types::KeyRange;
use stele_types::command::{Unfit, appended, incremented};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

fn refused(unfit: Unfit) -> ModifyResponse {
    let (refusal, length) = match unfit {
        Unfit::NotANumber => (Refusal::NotANumber, 0),
        Unfit::Overflow => (Refusal::Overflow, 0),
        Unfit::TooLong { bytes } => (Refusal::TooLong, bytes),
    };
    ModifyResponse { refusal: refusal as i32, length, ..ModifyResponse::default() }
}

fn modified(state: &mut State, request: &ModifyRequest) -> ModifyResponse {
    let key = (request.cf.clone(), request.key.clone());
    let found = state.pairs.get(&key).cloned();
    let before = found.as_ref().map(|stored| &stored.value[..]);
    let ttl = found.as_ref().map_or(0, |stored| stored.ttl);
    let mut response = ModifyResponse::default();
    let stored = match request.change.as_ref().unwrap() {
        Change::PutIfAbsent(put) if before.is_none() => {
            Stored { value: put.value.clone(), ttl: put.ttl }
        }
        Change::PutIfAbsent(_) => {
            response.previous = found.map(|stored| stored.value);
            return response;
        }
        Change::PutIfPresent(_) if before.is_none() => return response,
        Change::PutIfPresent(put) => {
            response.previous = found.map(|stored| stored.value);
            Stored { value: put.value.clone(), ttl: put.ttl }
        }
        Change::Increment(increment) => match incremented(before, increment.by) {
            Ok(sum) => {
                response.number = sum;
                Stored { value: Bytes::from(sum.to_string()), ttl }
            }
            Err(unfit) => return refused(unfit),
        },
        Change::Append(append) => match appended(before, &append.value) {
            Ok(value) => {
                response.length = value.len() as u64;
                Stored { value: value.into(), ttl }
            }
            Err(unfit) => return refused(unfit),
        },
        Change::Put(put) => Stored { value: put.value.clone(), ttl: put.ttl },
        Change::Delete(_) => {
            state.pairs.remove(&key);
            return response;
        }
        Change::CompareAndSwap(swap) => {
            response.succeeded = before == swap.expected.as_deref();
            response.previous = found.map(|stored| stored.value);
            match (&swap.value, response.succeeded) {
                (_, false) => return response,
                (Some(value), true) => Stored { value: value.clone(), ttl: swap.ttl },
                (None, true) => {
                    state.pairs.remove(&key);
                    return response;
                }
            }
        }
        Change::GetAndDelete(_) => {
            response.previous = state.pairs.remove(&key).map(|stored| stored.value);
            return response;
        }
    };
    state.pairs.insert(key, stored);
    response
}

/// Decides a write under conditions. The digest of a value is the value: the client does not look at it.
fn written_if(state: &mut State, request: &WriteIfRequest) -> WriteIfResponse {
    let key = (request.cf.clone(), request.key.clone());
    let digest = state.pairs.get(&key).map(|stored| stored.value.clone());
    let has = |values: &Values| {
        digest.as_ref().is_some_and(|digest| values.all || values.digests.contains(digest))
    };
    let done = request.if_match.as_ref().is_none_or(has)
        && !request.if_none_match.as_ref().is_some_and(has);
    match &request.put {
        _ if !done => {}
        Some(put) => {
            state.pairs.insert(key, Stored { value: put.value.clone(), ttl: put.ttl });
        }
        None => {
            state.pairs.remove(&key);
        }
    }
    WriteIfResponse { done, digest, ..WriteIfResponse::default() }
}

/// Pairs of a response of a copy.
const COPIED_AT_ONCE: usize = 2;

type CopyResponses = Pin<Box<dyn Stream<Item = Result<CopyResponse, Status>> + Send>>;

/// Returns the responses of a copy; only the first one if it is to be interrupted.
fn copied(state: &mut State, region: &Region, request: &CopyRequest) -> Vec<CopyResponse> {
    let wanted = KeyRange { start: request.start_key.clone(), end: request.end_key.clone() };
    assert!(region.range.contains(&wanted.start), "a key of another region");
    let part = wanted.within(&region.range);
    let of_part =
        state.pairs.iter().filter(|((cf, key), _)| *cf == request.cf && part.contains(key));
    let pairs = of_part.map(|((_, key), stored)| CopiedPair {
        key: key.clone(),
        value: stored.value.clone(),
        expires_at_s: stored.ttl,
    });
    let pairs: Vec<CopiedPair> = pairs.collect();
    let response =
        |pairs: &[CopiedPair]| CopyResponse { pairs: pairs.to_vec(), ..Default::default() };
    let mut responses: Vec<CopyResponse> = pairs.chunks(COPIED_AT_ONCE).map(response).collect();
    responses.push(CopyResponse { is_last: true, ..Default::default() });
    responses[0].index = state.logs.get(&region.id.0).map_or(5, |log| log.next_index() - 1);
    if state.interrupted_copies > 0 {
        state.interrupted_copies -= 1;
        responses.truncate(1);
    }
    responses
}

impl Service {
    async fn copied(&self, request: CopyRequest) -> Result<CopyResponses, Status> {
        let ended = |responses: &mut Vec<CopyResponse>, end| {
            let mut response = CopyResponse::default();
            match end {
                End::Refused(error) => response.region_error = Some(*error),
                End::Final(text) => response.error = text.to_owned(),
            }
            responses.push(response);
        };
        let act = |state: &mut State, region: &Region| copied(state, region, &request);
        let responses = self.run("copy", request.context.clone(), act, ended).await?.into_inner();
        Ok(Box::pin(tokio_stream::iter(responses.into_iter().map(Ok))))
    }
}

fn modified_once(state: &mut State, request: &ModifyInSessionRequest) -> ModifyResponse {
    let (session, modification) =
        (request.session.unwrap(), request.modification.as_ref().unwrap());
    state.sessions.push(session);
    let now_s = state.cluster_time_s;
    if now_s > 0 && !(now_s..=now_s + 3_600).contains(&session.expires_at_s) {
        let refusal = Refusal::Deadline as i32;
        return ModifyResponse { refusal, cluster_time_s: now_s, ..ModifyResponse::default() };
    }
    let id = (session.session, session.number);
    if let Some(first) = state.records.get(&id) {
        return first.clone();
    }
    let response = modified(state, modification);
    state.records.insert(id, response.clone());
    if let Some(far_s) = state.advances_to_s.take() {
        state.cluster_time_s = far_s;
    }
    response
}

fn put_once(state: &mut State, request: &PutInSessionRequest) -> ModifyResponse {
    for numbered in &request.puts {
        let modification = ModifyRequest {
            key: numbered.key.clone(),
            cf: request.cf.clone(),
            change: numbered.put.clone().map(Change::Put),
            ..ModifyRequest::default()
        };
        let session = SessionRequest {
            session: request.session,
            number: numbered.number,
            expires_at_s: request.expires_at_s,
        };
        let (modification, session) = (Some(modification), Some(session));
        let one = ModifyInSessionRequest { modification, session, ..Default::default() };
        let response = modified_once(state, &one);
        if response.refusal() == Refusal::Deadline {
            return response;
        }
    }
    ModifyResponse::default()
}

#[tonic::async_trait]
impl Kv for Service {
    async fn modify(&self, request: Request<ModifyRequest>) -> RpcResult<ModifyResponse> {
        let request = request.into_inner();
        let ended = |response: &mut ModifyResponse, end| match end {
            End::Refused(error) => response.region_error = Some(*error),
            End::Final(text) => response.error = text.to_owned(),
        };
        let act = |state: &mut State, _: &_| modified(state, &request);
        self.run("modify", request.context.clone(), act, ended).await
    }

    async fn modify_in_session(
        &self,
        request: Request<ModifyInSessionRequest>,
    ) -> RpcResult<ModifyResponse> {
        let request = request.into_inner();
        let ended = |response: &mut ModifyResponse, end| match end {
            End::Refused(error) => response.region_error = Some(*error),
            End::Final(text) => response.error = text.to_owned(),
        };
        let act = |state: &mut State, _: &_| modified_once(state, &request);
        self.run("modify_in_session", request.context.clone(), act, ended).await
    }

    async fn put_in_session(
        &self,
        request: Request<PutInSessionRequest>,
    ) -> RpcResult<ModifyResponse> {
        let request = request.into_inner();
        let ended = |response: &mut ModifyResponse, end| match end {
            End::Refused(error) => response.region_error = Some(*error),
            End::Final(text) => response.error = text.to_owned(),
        };
        let act = |state: &mut State, region: &Region| {
            assert!(
                request.puts.iter().all(|put| region.range.contains(&put.key)),
                "another region"
            );
            put_once(state, &request)
        };
        self.run("put_in_session", request.context.clone(), act, ended).await
    }

    async fn exist(&self, request: Request<ExistRequest>) -> RpcResult<ExistResponse> {
        let ExistRequest { context, cf, keys } = request.into_inner();
        let ended = |response: &mut ExistResponse, end| match end {
            End::Refused(error) => response.region_error = Some(*error),
            End::Final(text) => response.error = text.to_owned(),
        };
        let act = |state: &mut State, region: &Region| {
            assert!(keys.iter().all(|key| region.range.contains(key)), "a key of another region");
            let has = |key: &&Bytes| state.pairs.contains_key(&(cf.clone(), (*key).clone()));
            let keys = keys.iter().filter(has).cloned().collect();
            ExistResponse { keys, ..ExistResponse::default() }
        };
        self.run("exist", context, act, ended).await
    }

    async fn get_pair(&self, request: Request<GetPairRequest>) -> RpcResult<GetPairResponse> {
        let GetPairRequest { context, cf, key } = request.into_inner();
        let ended = |response: &mut GetPairResponse, end| match end {
            End::Refused(error) => response.region_error = Some(*error),
            End::Final(text) => response.error = text.to_owned(),
        };
        let act = |state: &mut State, _: &_| match state.pairs.get(&(cf.clone(), key.clone())) {
            Some(Stored { value, ttl }) => {
                GetPairResponse { value: value.clone(), ttl: *ttl, ..GetPairResponse::default() }
            }
            None => GetPairResponse { not_found: true, ..GetPairResponse::default() },
        };
        self.run("get_pair", context, act, ended).await
    }

    async fn write_if(&self, request: Request<WriteIfRequest>) -> RpcResult<WriteIfResponse> {
        let request = request.into_inner();
        let ended = |response: &mut WriteIfResponse, end| match end {
            End::Refused(error) => response.region_error = Some(*error),
            End::Final(text) => response.error = text.to_owned(),
        };
        let act = |state: &mut State, _: &_| written_if(state, &request);
        self.run("write_if", request.context.clone(), act, ended).await
    }

    async fn write(&self, request: Request<WriteRequest>) -> RpcResult<WriteResponse> {
        let WriteRequest { context, cf, writes } = request.into_inner();
        let ended = |response: &mut WriteResponse, end| match end {
            End::Refused(error) => response.region_error = Some(*error),
            End::Final(text) => response.error = text.to_owned(),
        };
        let act = |state: &mut State, region: &Region| {
            for write in &writes {
                assert!(region.range.contains(&write.key), "a key of another region");
                let key = (cf.clone(), write.key.clone());
                let stored =
                    write.put.as_ref().map(|put| Stored { value: put.value.clone(), ttl: 0 });
                match stored {
                    Some(stored) => state.pairs.insert(key, stored),
                    None => state.pairs.remove(&key),
                };
            }
            WriteResponse::default()
        };
        self.run("write", context, act, ended).await
    }

    type FollowStream = super::follow::Responses;

    async fn follow(&self, request: Request<FollowRequest>) -> RpcResult<Self::FollowStream> {
        Ok(Response::new(self.followed(request.into_inner())))
    }

    type CopyStream = CopyResponses;

    async fn copy(&self, request: Request<CopyRequest>) -> RpcResult<Self::CopyStream> {
        Ok(Response::new(self.copied(request.into_inner()).await?))
    }

    async fn read_index(&self, request: Request<ReadIndexRequest>) -> RpcResult<ReadIndexResponse> {
        let ended = |response: &mut ReadIndexResponse, end| match end {
            End::Refused(error) => response.region_error = Some(*error),
            End::Final(text) => response.error = text.to_owned(),
        };
        let act = |state: &mut State, region: &Region| {
            let index = state.logs.entry(region.id.0).or_default().next_index() - 1;
            ReadIndexResponse { index, ..ReadIndexResponse::default() }
        };
        self.run("read_index", request.into_inner().context, act, ended).await
    }
}
