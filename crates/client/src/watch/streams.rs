//! Readers of the logs of a watch: each finds a store that has the next entries, and passes on responses one
//! by one.

use super::WatchOptions;
use super::cursors::{StreamId, Wanted};
use crate::Client;
use crate::backoff::{Pause, Tries};
use crate::call::Call;
use crate::connections::Connections;
use crate::delivery::{Departure, Failure};
use crate::pd_rpc_client::{is_broken, status_text};
use crate::retry_decision::{Step, decide_after_failure, decide_retry, final_error, text};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use stele_proto::stele::kv::v1::{FollowRequest, FollowResponse};
use stele_proto::{REQUEST_SOURCE, kvrpcpb, metapb};
use stele_types::{Error, Result, StoreId};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tonic::Streaming;

/// Time after which a stream without a response is opened again: the store may be cut off from the leader.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// Time of a stream while others wait to be opened.
const TURN: Duration = Duration::from_millis(200);
/// Age of a stream from which its end begins the tries of another one.
const SETTLED: Duration = Duration::from_secs(1);
/// Pauses before further attempts: the first doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What the readers of a watch share.
pub(super) struct Shared {
    pub client: Client,
    /// Connections of the watch alone: what a slow caller leaves unread delays no other call.
    connections: Connections,
    permits: Arc<Semaphore>,
    streams_max: usize,
    old_values: bool,
    readers: AtomicUsize,
}

impl Shared {
    pub(super) fn new(client: Client, options: WatchOptions) -> Self {
        let WatchOptions { streams_max, old_values, .. } = options;
        let connections = client.router.connections.beside();
        let streams_max = streams_max.max(1);
        let permits = Arc::new(Semaphore::new(streams_max));
        Self { client, connections, permits, streams_max, old_values, readers: AtomicUsize::new(0) }
    }
}

/// What a reader has for the watch.
pub(super) enum Outcome {
    Response(Box<FollowResponse>),
    /// Next entry of one store, and whether the source of the search had its keys after that.
    Sought {
        next_index: u64,
        is_source_there: bool,
    },
    /// No store has the next entry; whether the region has its keys.
    TooOld {
        has_key: bool,
    },
    Failed(Error),
}

pub(super) struct Received {
    pub stream: StreamId,
    pub generation: u64,
    pub outcome: Outcome,
}

/// End of a search for a store.
enum End {
    TooOld,
    Failed(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

struct Opened {
    responses: Streaming<FollowResponse>,
    store: StoreId,
    since: Instant,
}

/// Reader of one log.
pub(super) struct Reader {
    shared: Arc<Shared>,
    wanted: Wanted,
    stream: Option<Opened>,
    permit: Option<(OwnedSemaphorePermit, Instant)>,
    /// Tries since the log was read last.
    tries: Option<Tries>,
    /// Stores that failed since a response came.
    tried: Vec<StoreId>,
    /// Whether a store has lost the next entry, and whether one did not answer, since a response came.
    is_old: bool,
    is_unanswered: bool,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>, wanted: Wanted) -> Self {
        shared.readers.fetch_add(1, Relaxed);
        Self {
            shared,
            wanted,
            stream: None,
            permit: None,
            tries: None,
            tried: Vec::new(),
            is_old: false,
            is_unanswered: false,
        }
    }

    /// Passes responses on, each but the first after `go`. Ends with the first other outcome.
    pub(super) async fn run(mut self, id: StreamId, out: mpsc::Sender<Received>, go: Arc<Notify>) {
        let generation = self.wanted.generation;
        let received = |outcome| Received { stream: id, generation, outcome };
        if let Some(doublings) = self.wanted.attempts.checked_sub(1) {
            sleep((FIRST_PAUSE * (1 << doublings.min(8))).min(PAUSE_MAX)).await;
        }
        if let (StreamId::Seek(source), 0) = (id, self.wanted.next_index) {
            let outcome = self.seek(source.0).await;
            // The watch may be gone.
            let _ = out.send(received(outcome)).await;
            return;
        }
        loop {
            let outcome = match self.next().await {
                Ok(response) => Outcome::Response(Box::new(response)),
                Err(end) => {
                    let _ = out.send(received(self.outcome(end).await)).await;
                    return;
                }
            };
            if out.send(received(outcome)).await.is_err() {
                return;
            }
            go.notified().await;
        }
    }

    /// Returns the next entry of one store, and then whether the source has its keys.
    async fn seek(&mut self, source: u64) -> Outcome {
        let response = match self.next().await {
            Ok(response) => response,
            Err(end) => return self.outcome(end).await,
        };
        self.stream = None;
        match self.shared.client.owner(&self.wanted.first_key).await {
            Ok(owner) => {
                let first = response.entries.first().map(|entry| entry.index);
                let next_index = first.unwrap_or(response.next_index);
                Outcome::Sought { next_index, is_source_there: owner.0 == source }
            }
            Err(error) => Outcome::Failed(error),
        }
    }

    async fn outcome(&self, end: End) -> Outcome {
        match end {
            End::Failed(error) => Outcome::Failed(error),
            End::TooOld => match self.shared.client.owner(&self.wanted.first_key).await {
                Ok(owner) => Outcome::TooOld { has_key: owner == self.wanted.region },
                Err(error) => Outcome::Failed(error),
            },
        }
    }

    /// Returns the next response without an error.
    async fn next(&mut self) -> Result<FollowResponse, End> {
        loop {
            self.take_turn().await;
            let Some(mut opened) = self.stream.take() else {
                self.open().await?;
                continue;
            };
            let wait = if self.has_to_share() { TURN } else { SILENT_MAX };
            let read = timeout(wait, opened.responses.message()).await;
            if opened.since.elapsed() >= SETTLED {
                self.tries = None;
            }
            match read {
                // Opened again where the leader is now.
                Err(_) if wait == SILENT_MAX => {
                    self.shared.client.router.forget_key(&self.wanted.first_key);
                }
                Err(_) => {}
                Ok(Ok(Some(response))) => {
                    if let Some(response) = self.accept(response, opened.store).await? {
                        self.stream = Some(opened);
                        return Ok(response);
                    }
                }
                Ok(Ok(None)) => self.unanswered(opened.store, "the stream ended").await?,
                Ok(Err(status)) => {
                    let failure = Failure::of_call(status, &Departure::default());
                    self.failed(opened.store, &failure).await?;
                }
            }
        }
    }

    /// Waits for the right to have a stream open. Gives it to another reader after its time.
    async fn take_turn(&mut self) {
        if let Some((_, since)) = &self.permit
            && self.has_to_share()
            && since.elapsed() >= TURN
        {
            (self.stream, self.permit) = (None, None);
        }
        if self.permit.is_none()
            && let Ok(permit) = Arc::clone(&self.shared.permits).acquire_owned().await
        {
            self.permit = Some((permit, Instant::now()));
        }
    }

    fn has_to_share(&self) -> bool {
        self.shared.readers.load(Relaxed) > self.shared.streams_max
    }

    /// Opens a stream at the next store that may have the entry.
    async fn open(&mut self) -> Result<(), End> {
        let shared = Arc::clone(&self.shared);
        let router = &shared.client.router;
        let Some(store) = self.next_store().await? else { return self.end_round().await };
        let address = match router.pd_client.store(store).await {
            Ok(Some(address)) => address,
            Ok(None) => {
                self.tried.push(store);
                return Ok(());
            }
            Err(reason) => return self.unanswered(store, &reason).await,
        };
        let connection = match shared.connections.get(&address).await {
            Ok(connection) => connection,
            Err(reason) => return self.unanswered(store, &reason).await,
        };
        let departure = Departure::default();
        let call = self.request(store).send(&connection, &departure);
        let failure = match timeout(shared.client.options.attempt_timeout, call).await {
            Ok(Ok(responses)) => {
                self.stream = Some(Opened { responses, store, since: Instant::now() });
                return Ok(());
            }
            Ok(Err(status)) => Failure::of_call(status, &departure),
            Err(_) => Failure::of_timeout(&departure),
        };
        if is_broken(&failure.status) {
            shared.connections.forget(&connection);
        }
        self.failed(store, &failure).await
    }

    fn request(&self, store: StoreId) -> FollowRequest {
        let peer = metapb::Peer { store_id: store.0, ..metapb::Peer::default() };
        let context = kvrpcpb::Context {
            region_id: self.wanted.region.0,
            peer: Some(peer),
            cluster_id: self.shared.client.router.pd_client.cluster(),
            request_source: REQUEST_SOURCE.to_owned(),
            ..kvrpcpb::Context::default()
        };
        FollowRequest {
            context: Some(context),
            next_index: self.wanted.next_index,
            start_key: self.wanted.keys.start.clone(),
            end_key: self.wanted.keys.end.clone(),
            old_values: self.shared.old_values,
        }
    }

    /// Returns a store that was not tried: of the region's replicas its leader's first, then of those that
    /// now have its keys, then of all. Returns `None` if all were.
    async fn next_store(&mut self) -> Result<Option<StoreId>, End> {
        let router = &self.shared.client.router;
        let tries = self.tries.get_or_insert_with(|| self.shared.client.tries());
        let route = router.locate(&self.wanted.first_key, tries).await?;
        let owners = route.region.peers.iter().map(|peer| peer.store);
        let mut stores = vec![route.peer.store];
        if route.region.id != self.wanted.region {
            stores = self.wanted.stores.clone();
        }
        stores.extend(owners);
        stores.extend(router.pd_client.known_stores());
        Ok(stores.into_iter().find(|store| !self.tried.contains(store)))
    }

    /// Begins again with all stores after a pause, unless the entry is gone.
    async fn end_round(&mut self) -> Result<(), End> {
        if self.is_old && !self.is_unanswered {
            return Err(End::TooOld);
        }
        self.tried.clear();
        let has_answers = !std::mem::take(&mut self.is_unanswered);
        self.shared.client.router.forget_key(&self.wanted.first_key);
        let reason = format!("no store has the log of region {}", self.wanted.region);
        match self.pause(Pause::Region, reason).await {
            // No store knows the region, and none came to know it in time.
            Err(_) if has_answers => Err(End::TooOld),
            paused => paused,
        }
    }

    async fn pause(&mut self, pause: Pause, reason: String) -> Result<(), End> {
        let tries = self.tries.get_or_insert_with(|| self.shared.client.tries());
        match tries.pause(pause, reason).await {
            Ok(()) => Ok(()),
            Err(_) if self.is_old => Err(End::TooOld),
            Err(error) => Err(End::Failed(error)),
        }
    }

    async fn unanswered(&mut self, store: StoreId, reason: &str) -> Result<(), End> {
        self.is_unanswered = true;
        self.tried.push(store);
        self.shared.client.router.pd_client.forget_store(store);
        self.pause(Pause::Region, reason.to_owned()).await
    }

    async fn failed(&mut self, store: StoreId, failure: &Failure) -> Result<(), End> {
        let reason = status_text(&failure.status);
        match decide_after_failure(failure, &reason).step {
            Step::Fail(error) | Step::TooLong(error) => Err(End::Failed(error)),
            _ => self.unanswered(store, &reason).await,
        }
    }

    /// Returns a response without an error; otherwise notes what the store said.
    async fn accept(
        &mut self,
        response: FollowResponse,
        store: StoreId,
    ) -> Result<Option<FollowResponse>, End> {
        if response.too_old {
            self.is_old = true;
            self.tried.push(store);
            return Ok(None);
        }
        if let Some(error) = &response.region_error {
            let decision = decide_retry(error);
            match (decision.step, decision.pause) {
                (Step::Fail(error) | Step::TooLong(error), _) => return Err(End::Failed(error)),
                (Step::Stay, pause) => self.pause(pause, text(error)).await?,
                _ => self.tried.push(store),
            }
            return Ok(None);
        }
        if !response.error.is_empty() {
            return Err(End::Failed(final_error(response.error)));
        }
        if self.wanted.next_index != 0 {
            self.wanted.next_index = response.next_index;
        }
        self.tried.clear();
        (self.is_old, self.is_unanswered) = (false, false);
        self.tries = None;
        Ok(Some(response))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.readers.fetch_sub(1, Relaxed);
    }
}
