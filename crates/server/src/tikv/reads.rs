//! Reads. With a lease they are served on the thread that decoded them; otherwise the store loop
//! determines when a view holds everything acknowledged before. Device reads run on a blocking
//! thread.

use super::checks::{Target, family, target};
use super::errors::{Failure, OnUnknown};
use crate::convert;
use crate::store::Engine;
use crate::stores::Stores;
use bytes::Bytes;
use std::sync::Arc;
use stele_node::pages::Pages;
use stele_node::store::LinearizableRead;
use stele_proto::kvrpcpb::{
    self, KvPair, RawBatchGetRequest, RawBatchScanRequest, RawChecksumRequest, RawGetKeyTtlRequest,
    RawGetRequest, RawScanRequest,
};
use stele_proto::stele::kv::v1::ExistRequest;
use stele_raftstore::{Done, Read, Reply, RequestId};
use stele_storage::{Cached, EngineView, Order, Overlaid, Pair, ScanOptions, StateMachine};
use stele_types::{ColumnFamily, KeyRange, keyspace, mutant};

/// Bytes of one scan's answer; clients would take a short page for the region's end.
const SCAN_BYTES_MAX: usize = 256 << 20;

type EngineState = <Engine as StateMachine>::View;
type View = Overlaid<EngineState>;

/// Returns a view that holds everything acknowledged before the request arrived.
async fn view(target: &Target) -> Result<Arc<View>, Failure> {
    if let Some(view) = leased_view(target)? {
        target.reader.note_reads(1, view.has_effects());
        return Ok(Arc::new(view));
    }
    let store = &target.store;
    let region = target.header.region;
    let replica = target.replica_read;
    let read = Read { id: RequestId::default(), header: target.header, replica };
    match store.read(read).await {
        Reply::Done(Done::ReadReady { .. }) => {}
        other => return Err(Failure::of_reply(other, region, store.id(), OnUnknown::Read)),
    }
    let (reader, header, readers) = (&target.reader, &target.header, store.readers());
    let confirmed =
        LinearizableRead::confirmed_state(reader, header, readers, || new_view(target))?;
    let view =
        confirmed.map_err(|reply| Failure::of_reply(reply, region, store.id(), OnUnknown::Read))?;
    Ok(Arc::new(view))
}

/// Returns such a view if a lease allows it at once.
pub fn leased_view(target: &Target) -> Result<Option<View>, Failure> {
    let now = || target.store.clock().monotonic_nanos();
    LinearizableRead::leased_state(&target.reader, &target.header, now, || new_view(target))
}

fn new_view(target: &Target) -> Result<EngineState, Failure> {
    let store = &target.store;
    store.engine().view().map_err(|error| Failure::engine(&error, store.id()))
}

/// Runs work that may wait for the device.
async fn on_device<T: Send + 'static>(
    target: &Target,
    work: impl FnOnce() -> stele_types::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let store = target.store.id();
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| Failure::engine(&error, store)),
        Err(_) => Err(Failure::Final("the server is stopping".to_owned())),
    }
}

async fn live_pair(target: &Target, view: &Arc<View>, key: Bytes) -> Result<Option<Pair>, Failure> {
    let store = target.store.id();
    let found = view.get_cached(&key).map_err(|error| Failure::engine(&error, store))?;
    let pair = match found {
        Cached::Here(pair) => pair,
        Cached::NeedsIo => {
            let view = view.clone();
            on_device(target, move || view.get(&key)).await?
        }
    };
    let now = target.store.clock().unix_seconds();
    Ok(pair.filter(|pair| is_live(pair, now)))
}

fn is_live(pair: &Pair, now_s: u64) -> bool {
    pair.expires_at_s == 0 || pair.expires_at_s > now_s
}

/// `RawGet`: returns the value, if there is one.
pub async fn get(stores: &Stores, request: &RawGetRequest) -> Result<Option<Bytes>, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let family = family(&request.cf)?;
    target.check_key(&request.key)?;
    let view = view(&target).await?;
    let pair = live_pair(&target, &view, family.engine_key(&request.key)).await?;
    target.reader.note_returned(1, pair.as_ref().map_or(0, bytes_of));
    Ok(pair.map(|pair| pair.value))
}

/// Returns the bytes of a pair as traffic counts them, without the byte of its family.
fn bytes_of(pair: &Pair) -> u64 {
    (pair.key.len().saturating_sub(1) + pair.value.len()) as u64
}

/// Counts pairs that are returned together.
fn note_pairs(target: &Target, pairs: &[KvPair]) {
    let bytes = pairs.iter().map(|pair| (pair.key.len() + pair.value.len()) as u64).sum();
    let count = if mutant::active("server.scan_counts_as_one") { 1 } else { pairs.len() as u64 };
    target.reader.note_returned(count, bytes);
}

/// Returns what a get of the target's region finds in `view`; `None` if that needs the device or
/// fails.
pub fn get_cached_value(
    target: &Target,
    view: &View,
    request: &RawGetRequest,
) -> Option<Option<Bytes>> {
    let family = family(&request.cf).ok()?;
    target.check_key(&request.key).ok()?;
    let Ok(Cached::Here(pair)) = view.get_cached(&family.engine_key(&request.key)) else {
        return None;
    };
    let now_s = target.store.clock().unix_seconds();
    let pair = pair.filter(|pair| is_live(pair, now_s));
    target.reader.note_returned(1, pair.as_ref().map_or(0, bytes_of));
    Some(pair.map(|pair| pair.value))
}

/// `RawGetKeyTTL`: returns the seconds left, 0 for no expiry; `None` when there is no such key.
pub async fn ttl(stores: &Stores, request: &RawGetKeyTtlRequest) -> Result<Option<u64>, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let family = family(&request.cf)?;
    target.check_key(&request.key)?;
    let view = view(&target).await?;
    let pair = live_pair(&target, &view, family.engine_key(&request.key)).await?;
    target.reader.note_returned(1, pair.as_ref().map_or(0, bytes_of));
    let now = target.store.clock().unix_seconds();
    Ok(pair.map(|pair| match pair.expires_at_s {
        0 => 0,
        at => at.saturating_sub(now),
    }))
}

/// `RawBatchGet`: returns the pairs found, in request order.
pub async fn batch_get(
    stores: &Stores,
    request: &RawBatchGetRequest,
) -> Result<Vec<KvPair>, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let family = family(&request.cf)?;
    for key in &request.keys {
        target.check_key(key)?;
    }
    let view = view(&target).await?;
    let mut pairs = Vec::new();
    for key in &request.keys {
        if let Some(pair) = live_pair(&target, &view, family.engine_key(key)).await? {
            let (key, value) = (key.clone(), pair.value);
            pairs.push(KvPair { key, value, ..KvPair::default() });
        }
    }
    note_pairs(&target, &pairs);
    Ok(pairs)
}

/// `Exist`: returns the keys that exist. Reads no value from the device.
pub async fn exist(stores: &Stores, request: &ExistRequest) -> Result<Vec<Bytes>, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let family = family(&request.cf)?;
    for key in &request.keys {
        target.check_key(key)?;
    }
    let view = view(&target).await?;
    let keys = request.keys.clone();
    let now_s = target.store.clock().unix_seconds();
    target.reader.note_returned(keys.len() as u64, keys.iter().map(|key| key.len() as u64).sum());
    on_device(&target, move || {
        let mut found = Vec::new();
        for key in keys {
            let engine_key = family.engine_key(&key);
            let only = KeyRange::new(engine_key.clone(), [&engine_key[..], &[0]].concat());
            let options = ScanOptions { keys_only: true, ..ScanOptions::new(only, 1) };
            if view.scan(&options)?.first().is_some_and(|pair| is_live(pair, now_s)) {
                found.push(key);
            }
        }
        Ok(found)
    })
    .await
}

/// `RawScan`: returns pairs of the region the request names, never beyond it.
pub async fn scan(stores: &Stores, request: &RawScanRequest) -> Result<Vec<KvPair>, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let bounds = ScanBounds {
        family: family(&request.cf)?,
        limit: request.limit as usize,
        keys_only: request.key_only,
        order: if request.reverse { Order::Reverse } else { Order::Forward },
    };
    let (low, high) = match request.reverse {
        true => (&request.end_key, &request.start_key),
        false => (&request.start_key, &request.end_key),
    };
    let range = KeyRange { start: low.clone(), end: high.clone() };
    let view = view(&target).await?;
    let mut bytes_left = SCAN_BYTES_MAX;
    let pairs = page(&target, &view, &bounds, &range, &mut bytes_left).await?;
    note_pairs(&target, &pairs);
    Ok(pairs)
}

/// `RawBatchScan`: returns pairs of each range, at most `each_limit` per range.
pub async fn batch_scan(
    stores: &Stores,
    request: &RawBatchScanRequest,
) -> Result<Vec<KvPair>, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let bounds = ScanBounds {
        family: family(&request.cf)?,
        limit: request.each_limit as usize,
        keys_only: request.key_only,
        order: if request.reverse { Order::Reverse } else { Order::Forward },
    };
    let view = view(&target).await?;
    let mut pairs = Vec::new();
    let mut bytes_left = SCAN_BYTES_MAX;
    for range in ranges(request)? {
        pairs.extend(page(&target, &view, &bounds, &range, &mut bytes_left).await?);
    }
    note_pairs(&target, &pairs);
    Ok(pairs)
}

/// Returns the ranges of a scan. A range without an end ends where the next one starts; in reverse,
/// start and end are swapped.
fn ranges(request: &RawBatchScanRequest) -> Result<Vec<KeyRange>, Failure> {
    let mut ranges = Vec::new();
    let mut requested = request.ranges.iter().peekable();
    while let Some(range) = requested.next() {
        let next = requested.peek().map(|next| &next.start_key);
        if request.reverse {
            let (start, end) = (range.end_key.clone(), range.start_key.clone());
            ranges.push(KeyRange { start, end });
            continue;
        }
        if next.is_some_and(|next| *next < range.start_key) {
            return Err(Failure::Final("the ranges of a batch scan must ascend".to_owned()));
        }
        let end = match (range.end_key.is_empty(), next) {
            (true, Some(next)) => next.clone(),
            _ => range.end_key.clone(),
        };
        ranges.push(KeyRange { start: range.start_key.clone(), end });
    }
    Ok(ranges)
}

struct ScanBounds {
    family: ColumnFamily,
    limit: usize,
    keys_only: bool,
    order: Order,
}

/// Returns live pairs of `range` in the target's region, up to the limit.
async fn page(
    target: &Target,
    view: &Arc<View>,
    bounds: &ScanBounds,
    range: &KeyRange,
    bytes_left: &mut usize,
) -> Result<Vec<KvPair>, Failure> {
    let range = convert::clamp(range, &target.region.range);
    if range.is_empty() || bounds.limit == 0 {
        return Ok(Vec::new());
    }
    let now_s = target.store.clock().unix_seconds();
    let range = bounds.family.engine_range(&range);
    let (limit, order, keys_only) = (bounds.limit, bounds.order, bounds.keys_only);
    let (view, budget) = (view.clone(), *bytes_left);
    let found = on_device(target, move || {
        collect(&*view, ScanOptions { range, order, limit, bytes_max: budget, keys_only }, now_s)
    });
    let (pairs, bytes, is_whole) = found.await?;
    *bytes_left = bytes_left.saturating_sub(bytes);
    if is_whole {
        return Ok(pairs);
    }
    let error = kvrpcpb::KeyError {
        abort: format!("the answer would exceed {SCAN_BYTES_MAX} bytes: request fewer pairs"),
        ..kvrpcpb::KeyError::default()
    };
    Ok(vec![KvPair { error: Some(error), ..KvPair::default() }])
}

/// Returns live pairs, their bytes, and whether they are complete.
fn collect(
    view: &impl EngineView,
    options: ScanOptions,
    now_s: u64,
) -> stele_types::Result<(Vec<KvPair>, usize, bool)> {
    let (wanted, budget) = (options.limit, options.bytes_max);
    let mut pages = Pages::new(view, options);
    let (mut pairs, mut bytes) = (Vec::new(), 0);
    while pairs.len() < wanted {
        pages.bound(wanted - pairs.len(), budget.saturating_sub(bytes));
        let Some(page) = pages.next_page()? else { break };
        view.note_scan(&page);
        for pair in page {
            if !is_live(&pair, now_s) {
                continue;
            }
            bytes += pair.key.len() + pair.value.len();
            let key = keyspace::user_key(&pair.key).unwrap_or_default();
            pairs.push(KvPair { key, value: pair.value, ..KvPair::default() });
        }
        if bytes > budget {
            return Ok((pairs, bytes, false));
        }
    }
    Ok((pairs, bytes, true))
}

/// Returns checksum, pairs and bytes of `RawChecksum`: CRC-64/XZ of key and value of each pair, all
/// XORed.
pub async fn checksum(
    stores: &Stores,
    request: &RawChecksumRequest,
) -> Result<(u64, u64, u64), Failure> {
    let target = target(stores, request.context.as_ref())?;
    let view = view(&target).await?;
    let mut totals = (0, 0, 0);
    let now_s = target.store.clock().unix_seconds();
    for range in &request.ranges {
        let range = KeyRange { start: range.start_key.clone(), end: range.end_key.clone() };
        let range = convert::clamp(&range, &target.region.range);
        if range.is_empty() {
            continue;
        }
        let range = ColumnFamily::Default.engine_range(&range);
        let view = view.clone();
        let part = on_device(&target, move || checksum_pairs(&*view, range, now_s)).await?;
        totals = (totals.0 ^ part.0, totals.1 + part.1, totals.2 + part.2);
    }
    target.reader.note_returned(totals.1, totals.2);
    Ok(totals)
}

fn checksum_pairs(
    view: &impl EngineView,
    range: KeyRange,
    now_s: u64,
) -> stele_types::Result<(u64, u64, u64)> {
    let mut pages = Pages::of_range(view, range);
    let (mut checksum, mut pairs, mut bytes) = (0, 0, 0);
    while let Some(page) = pages.next_page()? {
        for pair in page.iter().filter(|pair| is_live(pair, now_s)) {
            let key = pair.key.get(1..).unwrap_or_default();
            let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Xz);
            digest.update(key);
            digest.update(&pair.value);
            checksum ^= digest.finalize();
            pairs += 1;
            bytes += (key.len() + pair.value.len()) as u64;
        }
    }
    Ok((checksum, pairs, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_engine::{Options, Replay};
    use stele_storage::LogStore;
    use stele_types::{
        CommandBuilder, EntryRecord, LogBatch, LogIndex, Mark, Record, RegionId, Term,
    };
    use stele_vfs::{SimOptions, SimVfs, SystemClock};

    const REGION: RegionId = RegionId(2);

    fn put(engine: &Engine, index: LogIndex, key: &[u8]) {
        let mut command = CommandBuilder::new();
        command.put(&ColumnFamily::Default.engine_key(key), &[7; 9000], 0).unwrap();
        let payload = command.build().bytes().clone();
        let entry = EntryRecord { region: REGION, term: Term(1), index, is_command: true, payload };
        engine.append(&LogBatch { records: vec![Record::Entry(entry)] }).unwrap();
        let entries = engine.entries(REGION, index, index.next(), usize::MAX).unwrap();
        engine.apply(REGION, &entries).unwrap();
    }

    #[test]
    fn what_clients_scan_counts_for_what_gets_sorted_and_what_is_summed_does_not() {
        let disk = Arc::new(SimVfs::new(SimOptions::default()));
        let (clock, dir) = (Arc::new(SystemClock::new()), std::path::Path::new("/store"));
        let options = Options { background: false, ..Options::default() };
        let opened = Engine::open(disk, clock, dir, options, Replay::Committed);
        let (engine, _) = opened.unwrap();
        let start = Record::Mark(REGION, Mark::Start(LogIndex(0), Term(1)));
        engine.append(&LogBatch { records: vec![start] }).unwrap();
        (1..=200_u64).for_each(|at| put(&engine, LogIndex(at), &(at * 71 % 200).to_be_bytes()));
        engine.checkpoint().unwrap();
        let sorted_bytes = || {
            while engine.maintain(1 << 20).unwrap().more {}
            engine.gc_stats().bytes.sort
        };
        let all = ColumnFamily::Default.engine_range(&KeyRange::all());
        (0..20).for_each(|_| {
            checksum_pairs(&engine.view().unwrap(), all.clone(), 0).unwrap();
        });
        assert_eq!(sorted_bytes(), 0);
        // One read returns all of them, but not ten neighbours.
        for from in (0..3).flat_map(|_| (0..200_u64).step_by(10)) {
            let range = KeyRange::new(from.to_be_bytes().to_vec(), "");
            let options = ScanOptions::new(ColumnFamily::Default.engine_range(&range), 10);
            let found = collect(&engine.view().unwrap(), options, 0).unwrap();
            assert_eq!(found.0.len(), 10);
        }
        assert!(sorted_bytes() > 200 * 9000);
    }
}
