//! `Copy`: the pairs of one region and column family on a stream, from one view of the leader.
//!
//! A task reads the next page while the one before it is on its way, so that a slow client holds one page and
//! its window. The scans add nothing to the value cache and are not counted for what gets sorted: a copy of all
//! data says nothing about what users read.

use super::checks::{self, Target, family};
use super::errors::Failure;
use super::reads::{self, View, on_device};
use super::streams::{self, CHECK, Stream, StreamCall};
use super::{REPAIR_PAUSE, REPAIR_TRIES};
use crate::memory::{Charging, Exceeded, Held, RequestMemory, next_page, pairs_memory};
use crate::store::StoreHandle;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::Context;
use stele_proto::stele::kv::v1::{CopiedPair, CopyRequest, CopyResponse};
use stele_storage::{FoundPair, Order, Pages, PairSink, ScanOptions};
use stele_types::{KeyRange, key_after};
use tokio::sync::mpsc::Permit;
use tonic::Status;

/// Most bytes of the pairs of a response, unless one pair has more.
const RESPONSE_BYTES_MAX: usize = 1 << 20;
/// Longest time for which a view is held while the client takes nothing.
const PROGRESS_MAX: Duration = Duration::from_secs(60);
/// Pause before memory is asked for again that others use.
const MEMORY_PAUSE: Duration = Duration::from_millis(10);

type End = streams::End<CopyRequest>;
type Room<'a> = Permit<'a, Result<Held<CopyResponse>, Status>>;

impl StreamCall for CopyRequest {
    type Answer = CopyResponse;
    const PATH: &'static str = "/stele.kv.v1.Kv/Copy";

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn failed(failure: Failure) -> CopyResponse {
        CopyResponse { region_error: Some(failure.into_error()), ..CopyResponse::default() }
    }

    async fn send(stream: &Stream<Self>) -> Result<(), End> {
        stream.copy().await
    }
}

/// A page, with the memory of its pairs.
struct Page {
    pairs: Vec<CopiedPair>,
    memory: Arc<RequestMemory>,
}

impl Stream<CopyRequest> {
    async fn copy(&self) -> Result<(), End> {
        let CopyRequest { context, cf, start_key, end_key } = &self.request;
        let target = checks::target(&self.service.stores, context.as_ref())?;
        let (family, wanted) = (family(cf)?, KeyRange::new(start_key.clone(), end_key.clone()));
        if wanted.is_empty() {
            let text = "the end of the keys is not after their start".to_owned();
            return Err(Failure::Invalid(text).into());
        }
        let part = target.part_from(&wanted, Order::Forward)?;
        let view = reads::view(&target).await?;
        // Invariant: the index is taken after the view, so that no write of a later entry is in the view.
        let mut index = target.reader.visible().0;
        let mut rest = family.engine_range(&part);
        loop {
            let Some(room) = self.room(&target.store).await? else { return Ok(()) };
            let Page { pairs, memory } = self.page(&target, &view, &rest).await?;
            // The rights may have changed while the pairs were read.
            self.check(&target.store)?;
            let last = pairs.last().map(|pair| key_after(&family.engine_key(&pair.key)));
            let is_last = last.is_none();
            rest.start = last.unwrap_or_default();
            let index = std::mem::take(&mut index);
            let message = CopyResponse { pairs, index, is_last, ..CopyResponse::default() };
            room.send(Ok(Held { message, memory: vec![memory] }));
            if is_last {
                return Ok(());
            }
        }
    }

    /// Waits until the client has taken the response before the last one; `None` if it is gone.
    async fn room(&self, store: &StoreHandle) -> Result<Option<Room<'_>>, End> {
        let since = Instant::now();
        loop {
            self.check(store)?;
            tokio::select! {
                room = self.sender.reserve() => return Ok(room.ok()),
                () = tokio::time::sleep(CHECK) => {}
            }
            if since.elapsed() >= PROGRESS_MAX {
                let text = "the client took nothing for a minute: ask again for the rest";
                return Err(End::Status(Box::new(Status::aborted(text))));
            }
        }
    }

    /// Reads the next pairs; none at the end. Repeats the read of damaged data, while other replicas send copies,
    /// and one for which other requests use the memory.
    async fn page(
        &self,
        target: &Target,
        view: &Arc<View>,
        rest: &KeyRange,
    ) -> Result<Page, Failure> {
        let (since, mut tries) = (Instant::now(), 0);
        loop {
            let memory = RequestMemory::part_of(&self.memory);
            let (view, rest, charged) = (view.clone(), rest.clone(), memory.clone());
            let is_shared = |exceeded: Exceeded| match exceeded {
                Exceeded::Shared => Ok(None),
                other => Err(other),
            };
            let read = move || {
                let read = read(&view, rest, &charged)?;
                Ok(read.map(Some).or_else(is_shared))
            };
            match on_device(target, &memory, read).await {
                Ok(Some(pairs)) => return Ok(Page { pairs, memory }),
                Ok(None) if since.elapsed() < PROGRESS_MAX => {
                    tokio::time::sleep(MEMORY_PAUSE).await;
                }
                Ok(None) => return Err(Failure::exceeded(Exceeded::Shared, self.region())),
                Err(Failure::Damaged(_)) if tries < REPAIR_TRIES => {
                    tries += 1;
                    tokio::time::sleep(REPAIR_PAUSE).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }
}

struct Copied(Vec<CopiedPair>);

impl PairSink for Copied {
    fn expect(&mut self, pairs: usize, _: u64) {
        self.0.reserve(pairs);
    }

    fn take(&mut self, pair: FoundPair<'_>) {
        // Without the byte of the family.
        let FoundPair { key, value, expires_at_s } = pair;
        let key = key.to_bytes();
        let key = key.slice(1.min(key.len())..);
        self.0.push(CopiedPair { key, value: value.to_bytes(), expires_at_s });
    }
}

fn read(view: &View, rest: KeyRange, memory: &RequestMemory) -> reads::Read<Vec<CopiedPair>> {
    let mut pages = Pages::new(view, ScanOptions::new(rest, usize::MAX));
    pages.bound(usize::MAX, RESPONSE_BYTES_MAX);
    let (mut charging, mut copied) = (Charging::new(memory), Copied(Vec::new()));
    if let Err(exceeded) = next_page(&mut pages, &mut charging, &mut copied)? {
        return Ok(Err(exceeded));
    }
    let bytes = copied.0.iter().map(|pair| (pair.key.len() + pair.value.len()) as u64).sum();
    let settled = charging.settle(pairs_memory(copied.0.len(), bytes));
    Ok(settled.map(|()| copied.0))
}
