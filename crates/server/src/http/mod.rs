//! Keys and values over HTTP with JSON, on the address for clients. docs/http.md describes it for users, and
//! `openapi.json` for programs.
//!
//! 1. The layer below all services identifies the caller, and charges the headers (memory/layer.rs).
//! 2. A request that a page of another site makes is refused ([`browser`]).
//! 3. Path, method and parameters are compared with one table ([`routes`]). What it lacks is refused.
//! 4. The rights of the caller are checked for each key and range, on this node.
//! 5. The body is charged and received.
//! 6. The node makes the call as a client of its cluster (cluster_client.rs): it need not lead the region.
//!
//! Nothing is done before step 6. An answer states whether the request may have taken effect ([`failure`]).
//!
//! Invariant: a request of which one key is not granted does nothing at all, and its body is not received.
//! Test: `a_caller_over_http_uses_the_keys_and_the_rights_of_its_grant`.

mod batch;
mod browser;
mod encoding;
mod etag;
mod failure;
mod list;
mod pair;
mod query;
mod routes;
mod watch;

pub(crate) use failure::HttpFailure;

use crate::access::Rights;
use crate::cluster_client::ClusterClient;
use crate::memory::{Arrived, IsHeld, Piece, PlainBody, RequestMemory};
use crate::port::Stats;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::{Bytes, BytesMut};
use query::Query;
use routes::Action;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use stele_client::Client;
use stele_placement::Permissions;
use stele_types::size::VALUE_BYTES_MAX;
use stele_types::{Clock, ColumnFamily, KeyRange};
use tokio::sync::{Semaphore, watch as signal};
use tonic::{Code, Status};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Description of the paths, parameters and answers. A test compares it with the table of routes.
const DOCUMENT: &str = include_str!("openapi.json");

/// Service of the paths below `/v1/`.
#[derive(Clone)]
pub(crate) struct HttpService(Arc<Shared>);

struct Shared {
    client: Arc<ClusterClient>,
    clock: Arc<dyn Clock>,
    stats: Arc<Stats>,
    /// The node is reached from its own machine alone.
    is_local: bool,
    watches: Arc<Semaphore>,
    /// Turns true when the node stops.
    stop: signal::Receiver<bool>,
}

impl HttpService {
    /// Creates the service. `is_local` states that the node is reached from its own machine alone.
    pub(crate) fn new(
        client: Arc<ClusterClient>,
        (clock, stats): (Arc<dyn Clock>, Arc<Stats>),
        is_local: bool,
        stop: signal::Receiver<bool>,
    ) -> Self {
        let watches = Arc::new(Semaphore::new(watch::WATCHES_MAX));
        Self(Arc::new(Shared { client, clock, stats, is_local, watches, stop }))
    }

    pub(crate) fn routes(self) -> Router {
        let paths = ["/v1/kv", "/v1/kv/", "/v1/kv/{*key}", "/v1/batch", "/v1/watch"];
        let paths = paths.into_iter().chain(["/v1/openapi.json"]);
        let router = paths.fold(Router::new(), |router, path| router.route(path, any(serve)));
        router.with_state(self)
    }

    async fn answer(&self, request: Request) -> Result<Response, HttpFailure> {
        let (parts, body) = request.into_parts();
        let missing = || HttpFailure::internal("a request without rights or memory");
        let rights: Rights = parts.extensions.get().cloned().ok_or_else(missing)?;
        let arrived: Arc<Arrived> = parts.extensions.get().cloned().ok_or_else(missing)?;
        if let Some(exceeded) = arrived.refusal() {
            return Err(exceeded.into());
        }
        browser::check(&parts.headers, &parts.uri, self.0.is_local)?;
        let path = parts.uri.path();
        let (route, key) = routes::find(path).ok_or_else(|| HttpFailure::no_such_path(path))?;
        let operation = route.operation(parts.method.as_str());
        let operation = operation.ok_or_else(|| HttpFailure::method_not_allowed(route))?;
        let query = Query::parse(parts.uri.query(), operation.parameters)?;
        let action = operation.action;
        let key = match routes::has_key(action) {
            true => Some(pair::key(key, &query)?),
            false => None,
        };
        let memory = arrived.take();
        let headers = parts.headers;
        let asked = Asked { rights, arrived, memory, headers, query, key, body };
        match action {
            Action::Get => self.get(asked, false).await,
            Action::Head => self.get(asked, true).await,
            Action::Put => self.put(asked).await,
            Action::Delete => self.delete(asked).await,
            Action::Increment => self.increment(asked).await,
            Action::List => self.list(asked).await,
            Action::Batch => self.batch(asked).await,
            Action::Watch => self.watch(asked).await,
            Action::Document => Ok(json(DOCUMENT.into(), &asked.memory)),
        }
    }

    /// Returns a handle for the keys of a family.
    async fn client(&self, family: ColumnFamily) -> Result<Client, HttpFailure> {
        Ok(self.0.client.get().await?.family(family))
    }
}

async fn serve(State(service): State<HttpService>, request: Request) -> Response {
    let route = routes::find(request.uri().path()).map_or("other", |(route, _)| route.path);
    let answered = service.answer(request).await;
    let response = answered.unwrap_or_else(IntoResponse::into_response);
    service.0.stats.edges.note_http(route, response.status().as_u16());
    response
}

/// Returns the bounds of the body of a request at a path of this service.
pub(crate) fn body_bounds(path: &str, headers: &HeaderMap) -> PlainBody {
    let announced = announced_bytes(headers);
    let (bytes_max, memory_factor) = match path {
        // Its strings, and what they become.
        "/v1/batch" => (batch::BODY_BYTES_MAX, 3),
        // A buffer of unknown length doubles.
        _ if announced == 0 => (VALUE_BYTES_MAX as u64, 2),
        _ => (VALUE_BYTES_MAX as u64, 1),
    };
    PlainBody::new(bytes_max, memory_factor, announced)
}

fn announced_bytes(headers: &HeaderMap) -> u64 {
    let text = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A request of which path, method and parameters were checked.
struct Asked {
    rights: Rights,
    arrived: Arc<Arrived>,
    /// Memory of what is read for the answer.
    memory: Arc<RequestMemory>,
    headers: HeaderMap,
    query: Query,
    /// Key of the path, or of the parameter in its place; `None` for requests of many keys.
    key: Option<Bytes>,
    body: Body,
}

impl Asked {
    /// Returns the key of a request of one pair.
    fn key(&self) -> Result<Bytes, HttpFailure> {
        self.key.clone().ok_or_else(|| HttpFailure::internal("a request without a key"))
    }

    /// Returns the family that is read.
    fn family(&self) -> Result<ColumnFamily, HttpFailure> {
        let name = self.query.text("family")?.unwrap_or("default");
        let family = ColumnFamily::from_name(name).filter(|_| !name.is_empty());
        family.ok_or_else(|| {
            HttpFailure::invalid(format!(
                "there is no family `{name}`: use default, lock or write, and redis for reads"
            ))
        })
    }

    /// Returns the family that is written.
    ///
    /// Invariant: only Redis commands write the pairs of Redis keys.
    /// Test: `the_family_of_redis_keys_is_read_over_http_and_never_written`.
    fn written_family(&self) -> Result<ColumnFamily, HttpFailure> {
        let family = self.family()?;
        // bug server.http_writes_redis: never
        if family == ColumnFamily::Redis {
            let reason = "the family `redis` is written by Redis commands only";
            return Err(HttpFailure::invalid(reason.to_owned()));
        }
        Ok(family)
    }

    /// Fails unless the caller has these rights for all keys.
    fn check_keys<'a>(
        &self,
        wanted: Permissions,
        keys: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), HttpFailure> {
        // bug server.http_rights_unchecked: return Ok(());
        match self.rights.standing() {
            Some(standing) => self.granted(standing.check_keys(wanted, keys)),
            None => Ok(()),
        }
    }

    /// Fails unless the caller may read all keys of a range.
    fn check_range(&self, range: &KeyRange) -> Result<(), HttpFailure> {
        may_read(&self.rights, range)
    }

    fn granted(&self, checked: Result<(), String>) -> Result<(), HttpFailure> {
        checked.map_err(|reason| {
            self.rights.note_ungranted();
            HttpFailure::forbidden(reason)
        })
    }

    /// Receives the body, of at most `bytes_max`.
    ///
    /// Invariant: a body that is announced as too long, or has no memory, is refused before it is received.
    /// Test: `a_value_that_is_too_long_or_has_no_memory_is_refused_before_it_is_received`.
    async fn body(&mut self, bytes_max: u64) -> Result<Bytes, HttpFailure> {
        let coding = self.headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes);
        if let Some(coding) = coding.filter(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
            let coding = String::from_utf8_lossy(coding);
            return Err(HttpFailure::unsupported_encoding(&coding));
        }
        let announced = announced_bytes(&self.headers);
        if announced > bytes_max {
            return Err(HttpFailure::body_too_long(bytes_max));
        }
        let mut all = BytesMut::new();
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await {
            let frame = frame.map_err(|error| self.cut(error, bytes_max))?;
            let Ok(data) = frame.into_data() else { continue };
            if all.is_empty() {
                // Charged when the first bytes are passed on.
                all.reserve((announced as usize).max(data.len()));
            }
            all.extend_from_slice(&data);
        }
        Ok(all.freeze())
    }

    /// Returns the reason for which a body has no end.
    fn cut(&self, error: axum::Error, bytes_max: u64) -> HttpFailure {
        if let Some(exceeded) = self.arrived.refusal() {
            return HttpFailure::of_body(exceeded, bytes_max);
        }
        match error.into_inner().downcast::<Status>() {
            Ok(status) if status.code() == Code::DeadlineExceeded => {
                HttpFailure::body_timeout(status.message())
            }
            Ok(status) => HttpFailure::invalid(format!("the body is cut: {}", status.message())),
            Err(error) => HttpFailure::invalid(format!("the body is cut: {error}")),
        }
    }
}

/// Fails unless a caller may read all keys of a range now.
fn may_read(rights: &Rights, range: &KeyRange) -> Result<(), HttpFailure> {
    let Some(standing) = rights.standing() else { return Ok(()) };
    standing.check_range(Permissions::READ, range).map_err(|reason| {
        rights.note_ungranted();
        HttpFailure::forbidden(reason)
    })
}

/// Returns an answer with a body, which keeps `memory` until it is sent.
fn held(body: Bytes, memory: &Arc<RequestMemory>) -> Response {
    let memory = Arc::new(vec![memory.clone()]);
    let mut response = Response::new(Body::from(Piece::bytes(body, &memory)));
    response.extensions_mut().insert(IsHeld);
    response
}

/// Returns an answer in JSON.
fn json(text: Bytes, memory: &Arc<RequestMemory>) -> Response {
    let mut response = held(text, memory);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns an answer without a body.
fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
