//! Reads, and those of many pairs in order. With a lease they are served on the thread that decoded them; otherwise the store loop
//! determines when a view holds everything acknowledged before. Device reads run on a blocking
//! thread.

use super::Memory;
use super::checks::{Target, family};
use super::errors::{Failure, OnUnknown, not_leader};
use crate::memory::{Charging, Exceeded, RequestMemory, next_page, pairs_memory};
use crate::store::Engine;
use std::sync::Arc;
use stele_proto::kvrpcpb::{
    RawBatchScanRequest, RawChecksumRequest, RawChecksumResponse, RawScanRequest,
};
use stele_proto::stele::kv::v1::{ReadIndexRequest, ReadIndexResponse};
use stele_proto::{EncodedPairs, PairEncoder, ScanResponse};
use stele_replica::LinearizableRead;
use stele_replica::{Done, Reply};
use stele_storage::{
    Admitted, Cached, EngineView, FoundPair, Order, Overlaid, Pages, Pair, PairSink, ScanOptions,
    StateMachine,
};
use stele_types::{ColumnFamily, KeyRange, is_expired};
use tokio::task::JoinError;

const PAGE_BYTES_MAX: usize = 4 << 20;

type EngineState = <Engine as StateMachine>::View;
pub(super) type View = Overlaid<EngineState>;

/// Returns a view that holds everything acknowledged before the request arrived.
pub(super) async fn view(target: &Target) -> Result<Arc<View>, Failure> {
    if let Some(view) = leased_view(target)? {
        target.reader.note_reads(1, view.has_effects());
        return Ok(Arc::new(view));
    }
    let store = &target.store;
    let region = target.header.region;
    let replica = target.replica_read;
    let read = stele_replica::Read { header: target.header, replica };
    match store.submit(read, None).await {
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

/// `ReadIndex`: returns an index of the region's log that is at least that of every write acknowledged before.
///
/// Invariant: a read index is taken after the request was permitted like a read. What was acknowledged before
/// is visible here then.
/// Test: `a_read_index_covers_every_write_that_was_acknowledged_before`.
pub(super) async fn read_index(
    target: &Target,
    _: &ReadIndexRequest,
    _: &Memory,
) -> Result<ReadIndexResponse, Failure> {
    view(target).await?;
    let index = target.reader.visible().0;
    Ok(ReadIndexResponse { index, ..ReadIndexResponse::default() })
}

/// Returns such a view if a lease allows it at once.
pub(super) fn leased_view(target: &Target) -> Result<Option<View>, Failure> {
    let (store, region) = (&target.store, target.header.region);
    let now = || store.clock().monotonic_nanos();
    let Some(read) = LinearizableRead::by_lease(&target.reader, &target.header, now()) else {
        return Ok(None);
    };
    let state = read.finish(new_view(target)?, store.readers(), now());
    state.map_err(|refusal| {
        Failure::of_reply(Reply::Refused(refusal), region, store.id(), OnUnknown::Read)
    })
}

pub(super) fn new_view(target: &Target) -> Result<EngineState, Failure> {
    let store = &target.store;
    store.engine().view().map_err(|error| Failure::engine(&error, store.id()))
}

/// Result of work on the device: an inner error if it has no memory.
pub(super) type Read<T> = stele_types::Result<Result<T, Exceeded>>;

/// Runs work that may wait for the device. The work fails when it needs memory and its caller is
/// gone.
pub(super) async fn on_device<T: Send + 'static>(
    target: &Target,
    memory: &RequestMemory,
    work: impl FnOnce() -> Read<T> + Send + 'static,
) -> Result<T, Failure> {
    let (store, region) = (target.store.id(), target.header.region);
    match blocking(memory, work).await {
        Ok(Ok(Ok(read))) => Ok(read),
        Ok(Ok(Err(exceeded))) => Err(Failure::exceeded(exceeded, region)),
        Ok(Err(error)) => Err(Failure::engine(&error, store)),
        Err(panic) if panic.is_panic() => Err(Failure::Final("the read panicked".to_owned())),
        // The node is stopping.
        Err(_) => Err(not_leader(region, None)),
    }
}

async fn blocking<T: Send + 'static>(
    memory: &RequestMemory,
    work: impl FnOnce() -> Read<T> + Send + 'static,
) -> Result<Read<T>, JoinError> {
    let waiting = memory.waiting();
    let done = tokio::task::spawn_blocking(work).await;
    waiting.ended();
    done
}

pub(super) fn is_live(pair: &Pair, now_s: u64) -> bool {
    !is_expired(pair.expires_at_s, now_s)
}

/// Returns the bytes of a pair as traffic counts them, without the byte of its family.
pub(super) fn bytes_of(pair: &Pair) -> u64 {
    (pair.key.len().saturating_sub(1) + pair.value.len()) as u64
}

pub(super) fn note_pairs(target: &Target, count: usize, bytes: u64) {
    // bug server.scan_counts_as_one: let count = 1;
    target.reader.note_returned(count as u64, bytes);
}

/// `RawScan`: returns pairs of the region the request names, never beyond it.
pub(super) async fn scan(
    target: &Target,
    request: &RawScanRequest,
    memory: &Memory,
) -> Result<ScanResponse, Failure> {
    let bounds = ScanBounds::new(&request.cf, request.limit, request.key_only, request.reverse)?;
    let range = target.part_from(&scan_range(request), bounds.order)?;
    let view = view(target).await?;
    let pairs = match part_in_memory(target, &view, &bounds, &range, memory)? {
        Cached::Ready(pairs) => pairs,
        Cached::NeedsIo => part(target, &view, &bounds, &range, memory).await?,
    };
    Ok(response(target, pairs))
}

/// Returns the range of a scan: in reverse it starts at its upper bound.
pub(super) fn scan_range(request: &RawScanRequest) -> KeyRange {
    let (low, high) = match request.reverse {
        true => (&request.end_key, &request.start_key),
        false => (&request.start_key, &request.end_key),
    };
    KeyRange { start: low.clone(), end: high.clone() }
}

/// `RawBatchScan`: returns pairs of each range, at most `each_limit` per range.
pub(super) async fn batch_scan(
    target: &Target,
    request: &RawBatchScanRequest,
    memory: &Memory,
) -> Result<ScanResponse, Failure> {
    let bounds =
        ScanBounds::new(&request.cf, request.each_limit, request.key_only, request.reverse)?;
    let parts = ranges(request)?.into_iter().map(|range| target.part_from(&range, bounds.order));
    let parts: Vec<KeyRange> = parts.collect::<Result<_, _>>()?;
    let view = view(target).await?;
    let mut pairs = EncodedPairs::default();
    for range in parts {
        pairs.append(part(target, &view, &bounds, &range, memory).await?);
    }
    Ok(response(target, pairs))
}

fn response(target: &Target, encoded: EncodedPairs) -> ScanResponse {
    note_pairs(target, encoded.len(), encoded.bytes());
    ScanResponse { encoded, ..ScanResponse::default() }
}

/// Returns the ranges of a scan. A range without an end ends where the next one starts; in reverse,
/// start and end are swapped.
pub(super) fn ranges(request: &RawBatchScanRequest) -> Result<Vec<KeyRange>, Failure> {
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
            return Err(Failure::Invalid("the ranges of a batch scan must ascend".to_owned()));
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

impl ScanBounds {
    fn new(name: &str, limit: u32, keys_only: bool, reverse: bool) -> Result<Self, Failure> {
        let order = if reverse { Order::Reverse } else { Order::Forward };
        Ok(Self { family: family(name)?, limit: limit as usize, keys_only, order })
    }

    fn options(&self, range: &KeyRange) -> ScanOptions {
        let range = self.family.engine_range(range);
        let Self { limit, keys_only, order, .. } = *self;
        ScanOptions {
            order,
            bytes_max: PAGE_BYTES_MAX,
            keys_only,
            ..ScanOptions::new(range, limit)
        }
    }
}

/// Returns live pairs of `range`, which lies in the target's region, up to the limit.
///
/// Invariant: an answer holds all pairs, or is an error. Clients would take a short answer for the end of
/// the region.
/// Test: `reads_above_their_share_are_refused_by_a_region_error_and_never_cut`.
async fn part(
    target: &Target,
    view: &Arc<View>,
    bounds: &ScanBounds,
    range: &KeyRange,
    memory: &Memory,
) -> Result<EncodedPairs, Failure> {
    if range.is_empty() || bounds.limit == 0 {
        return Ok(EncodedPairs::default());
    }
    let now_s = target.store.clock().unix_seconds();
    let options = bounds.options(range);
    let (view, charged) = (view.clone(), memory.clone());
    on_device(target, memory, move || collect(&*view, options, now_s, &charged)).await
}

/// Does what [`part`] does if that needs no read of the device, on this thread: to wake another one takes
/// longer than a short scan.
fn part_in_memory(
    target: &Target,
    view: &View,
    bounds: &ScanBounds,
    range: &KeyRange,
    memory: &RequestMemory,
) -> Result<Cached<EncodedPairs>, Failure> {
    if range.is_empty() || bounds.limit == 0 {
        return Ok(Cached::Ready(EncodedPairs::default()));
    }
    let now_s = target.store.clock().unix_seconds();
    match collect_in_memory(view, &bounds.options(range), now_s, memory) {
        Ok(Cached::Ready(Ok(pairs))) => Ok(Cached::Ready(pairs)),
        Ok(Cached::Ready(Err(exceeded))) => Err(Failure::exceeded(exceeded, target.header.region)),
        Ok(Cached::NeedsIo) => Ok(Cached::NeedsIo),
        Err(error) => Err(Failure::engine(&error, target.store.id())),
    }
}

/// Returns what [`collect`] does, if memory holds all of it.
fn collect_in_memory(
    view: &impl EngineView,
    options: &ScanOptions,
    now_s: u64,
    memory: &RequestMemory,
) -> stele_types::Result<Cached<Result<EncodedPairs, Exceeded>>> {
    let mut charging = Charging::new(memory);
    let mut admit = |pairs, bytes| charging.admit(pairs_memory(pairs, bytes));
    let mut answer = Answer::new(now_s);
    let passed = match view.scan_cached(options, &mut admit, &mut answer)? {
        Cached::Ready(Admitted::Read(passed)) => passed,
        Cached::Ready(Admitted::Refused) => return Ok(Cached::Ready(Err(charging.exceeded()))),
        Cached::NeedsIo => return Ok(needs_io(&charging)),
    };
    // Pairs after those that have expired belong to the answer.
    let is_short = passed.pairs >= options.limit && answer.pairs.len() < passed.pairs;
    // bug server.scan_in_memory_cut_short: never
    if is_short {
        return Ok(needs_io(&charging));
    }
    view.note_scan(&passed);
    let pairs = answer.pairs.finish();
    let settled = charging.settle(pairs_memory(pairs.len(), pairs.bytes()));
    Ok(Cached::Ready(settled.map(|()| pairs)))
}

/// Releases what an attempt in memory was charged.
fn needs_io<T>(charging: &Charging<'_>) -> Cached<Result<T, Exceeded>> {
    match charging.settle(0) {
        Ok(()) => Cached::NeedsIo,
        Err(exceeded) => Cached::Ready(Err(exceeded)),
    }
}

/// Encodes the live pairs of a scan, without the byte of their family.
struct Answer {
    pairs: PairEncoder,
    now_s: u64,
}

impl Answer {
    fn new(now_s: u64) -> Self {
        Self { pairs: PairEncoder::default(), now_s }
    }
}

impl PairSink for Answer {
    fn expect(&mut self, pairs: usize, bytes: u64) {
        self.pairs.expect(pairs, bytes);
    }

    fn take(&mut self, pair: FoundPair<'_>) {
        // bug server.expired_pairs_are_scanned: always
        if !is_expired(pair.expires_at_s, self.now_s) {
            let key = pair.key.get(1..).unwrap_or_default();
            self.pairs.push(key, &pair.value, || pair.value.to_bytes());
        }
    }
}

/// Returns all live pairs up to the limit of the options, with their memory charged.
fn collect(
    view: &impl EngineView,
    options: ScanOptions,
    now_s: u64,
    memory: &RequestMemory,
) -> Read<EncodedPairs> {
    let wanted = options.limit;
    let mut pages = Pages::new(view, options);
    let mut answer = Answer::new(now_s);
    while answer.pairs.len() < wanted {
        let (pairs_before, bytes_before) = (answer.pairs.len(), answer.pairs.bytes());
        pages.bound(wanted - pairs_before, PAGE_BYTES_MAX);
        let mut charging = Charging::new(memory);
        let passed = match next_page(&mut pages, &mut charging, &mut answer)? {
            Ok(Some(passed)) => passed,
            Ok(None) => break,
            // bug server.scan_cut_short: `return Ok(Err(exceeded))` is `break`
            Err(exceeded) => return Ok(Err(exceeded)),
        };
        view.note_scan(&passed);
        let (added, bytes) =
            (answer.pairs.len() - pairs_before, answer.pairs.bytes() - bytes_before);
        // Pairs that have expired need no memory any more.
        if let Err(exceeded) = charging.settle(pairs_memory(added, bytes)) {
            return Ok(Err(exceeded));
        }
    }
    Ok(Ok(answer.pairs.finish()))
}

/// `RawChecksum`: returns the CRC-64/XZ of key and value of each pair, all XORed.
pub(super) async fn checksum(
    target: &Target,
    request: &RawChecksumRequest,
    memory: &Memory,
) -> Result<RawChecksumResponse, Failure> {
    let part = |range| target.part_from(&range_of(range), Order::Forward);
    let parts: Vec<KeyRange> = request.ranges.iter().map(part).collect::<Result<_, _>>()?;
    let view = view(target).await?;
    let mut total = Sums::new(0);
    let now_s = target.store.clock().unix_seconds();
    for range in parts {
        if range.is_empty() {
            continue;
        }
        let range = ColumnFamily::Default.engine_range(&range);
        let (view, charged) = (view.clone(), memory.clone());
        let sums = move || checksum_pairs(&*view, range, now_s, &charged);
        let part = on_device(target, memory, sums).await?;
        total.checksum ^= part.checksum;
        total.pairs += part.pairs;
        total.bytes += part.bytes;
    }
    let Sums { checksum, pairs: total_kvs, bytes: total_bytes, .. } = total;
    target.reader.note_returned(total_kvs, total_bytes);
    let response = RawChecksumResponse::default();
    Ok(RawChecksumResponse { checksum, total_kvs, total_bytes, ..response })
}

pub(super) fn range_of(range: &stele_proto::kvrpcpb::KeyRange) -> KeyRange {
    KeyRange { start: range.start_key.clone(), end: range.end_key.clone() }
}

/// CRC-64/XZ of key and value of each live pair, all XORed, and the number and bytes of these pairs.
#[derive(Debug)]
struct Sums {
    now_s: u64,
    checksum: u64,
    pairs: u64,
    bytes: u64,
}

impl Sums {
    fn new(now_s: u64) -> Self {
        Self { now_s, checksum: 0, pairs: 0, bytes: 0 }
    }
}

impl PairSink for Sums {
    fn take(&mut self, pair: FoundPair<'_>) {
        if is_expired(pair.expires_at_s, self.now_s) {
            return;
        }
        let key = pair.key.get(1..).unwrap_or_default();
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Xz);
        digest.update(key);
        digest.update(&pair.value);
        self.checksum ^= digest.finalize();
        self.pairs += 1;
        self.bytes += (key.len() + pair.value.len()) as u64;
    }
}

fn checksum_pairs(
    view: &impl EngineView,
    range: KeyRange,
    now_s: u64,
    memory: &RequestMemory,
) -> Read<Sums> {
    let mut pages = Pages::of_range(view, range);
    pages.bound(usize::MAX, PAGE_BYTES_MAX);
    let mut sums = Sums::new(now_s);
    loop {
        let mut charging = Charging::new(memory);
        match next_page(&mut pages, &mut charging, &mut sums)? {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(Ok(sums)),
            Err(exceeded) => return Ok(Err(exceeded)),
        }
        if let Err(exceeded) = charging.settle(0) {
            return Ok(Err(exceeded));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Class, ConnectionMemory, NodeMemory, Waiting};
    use bytes::Bytes;
    use parking_lot::Mutex;
    use prost::Message;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use stele_engine::{Options, Replay};
    use stele_simulated_disk::{SimOptions, SimVfs};
    use stele_storage::{CachedGet, LogStore, Passed};
    use stele_types::{
        CommandBuilder, EntryRecord, LogBatch, LogIndex, Mark, Record, RegionId, Term,
    };
    use stele_vfs::SystemClock;

    const REGION: RegionId = RegionId(2);

    /// Pairs without end, of which the caller goes away while the third page is read.
    struct Endless {
        pages: AtomicUsize,
        caller: Mutex<Option<Waiting<'static>>>,
    }

    impl EngineView for Endless {
        fn get(&self, _: &[u8]) -> stele_types::Result<Option<Pair>> {
            Ok(None)
        }

        fn get_cached(&self, _: &[u8]) -> stele_types::Result<CachedGet> {
            Ok(CachedGet::Ready(None))
        }

        fn scan(&self, options: &ScanOptions) -> stele_types::Result<Vec<Pair>> {
            let page = self.pages.fetch_add(1, Ordering::Relaxed);
            assert!(page < 100, "the scan goes on");
            if page == 2 {
                self.caller.lock().take();
            }
            let key = [&options.range.start[..], &[1]].concat().into();
            Ok(vec![Pair { key, value: Bytes::from_static(b"value"), expires_at_s: 0 }])
        }
    }

    /// Pairs in memory, of which the first has expired.
    struct InMemory {
        pairs: Vec<Pair>,
        noted: AtomicUsize,
    }

    impl EngineView for InMemory {
        fn get(&self, _: &[u8]) -> stele_types::Result<Option<Pair>> {
            Ok(None)
        }

        fn get_cached(&self, key: &[u8]) -> stele_types::Result<CachedGet> {
            Ok(CachedGet::needs_io(key))
        }

        fn scan(&self, _: &ScanOptions) -> stele_types::Result<Vec<Pair>> {
            panic!("this scan may wait for the device")
        }

        fn scan_cached(
            &self,
            options: &ScanOptions,
            admit: stele_storage::Admit<'_>,
            sink: &mut dyn PairSink,
        ) -> stele_types::Result<Cached<Admitted<Passed>>> {
            let pairs: Vec<Pair> = self.pairs.iter().take(options.limit).cloned().collect();
            if !admit(pairs.len(), 4000) {
                return Ok(Cached::Ready(Admitted::Refused));
            }
            pairs.iter().for_each(|pair| sink.take(pair.into()));
            Ok(Cached::Ready(Admitted::Read(Passed::of(&pairs))))
        }

        fn note_scan(&self, scanned: &Passed) {
            self.noted.fetch_add(scanned.pairs, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_scan_in_memory_returns_all_live_pairs_or_leaves_no_trace() {
        let pair = |n: u8| Pair {
            key: vec![b'r', n].into(),
            value: vec![n; 400].into(),
            expires_at_s: if n == 0 { 7 } else { 0 },
        };
        let view = InMemory { pairs: (0..10).map(pair).collect(), noted: AtomicUsize::new(0) };
        let noted = || view.noted.load(Ordering::Relaxed);
        let memory = memory();
        let scan = |limit: usize, now_s: u64| {
            let options = ScanOptions::new(KeyRange::all(), limit);
            collect_in_memory(&view, &options, now_s, &memory).unwrap()
        };
        // One more pair may be live, which was not read.
        assert_eq!(scan(9, 100), Cached::NeedsIo);
        assert_eq!((noted(), memory.used()), (0, 0));
        let Cached::Ready(Ok(pairs)) = scan(11, 100) else { panic!("all is in memory") };
        assert_eq!((pairs.len(), noted()), (9, 10));
        assert_eq!(pairs.bytes(), 9 * 401);
        assert_eq!(memory.used(), pairs_memory(9, 9 * 401));
        let answer = ScanResponse { encoded: pairs, ..ScanResponse::default() };
        let received = ScanResponse::decode(&answer.encode_to_vec()[..]).unwrap().kvs;
        assert_eq!((&received[0].key[..], received[0].value.len()), (&[1][..], 400));
        assert!(matches!(scan(5, 0), Cached::Ready(Ok(pairs)) if pairs.len() == 5));
    }

    fn memory() -> Memory {
        let connection = ConnectionMemory::new(&NodeMemory::new(256 << 20), 0);
        RequestMemory::new(&connection, Class::Data)
    }

    #[test]
    fn scans_and_checksums_end_when_their_caller_is_gone() {
        let all = || ColumnFamily::Default.engine_range(&KeyRange::all());
        for is_scan in [true, false] {
            let memory: &'static Memory = Box::leak(Box::new(memory()));
            let caller = Mutex::new(Some(memory.waiting()));
            let view = Endless { pages: AtomicUsize::new(0), caller };
            let gone = match is_scan {
                true => {
                    let options = ScanOptions::new(all(), usize::MAX);
                    collect(&view, options, 0, memory).unwrap().unwrap_err()
                }
                false => checksum_pairs(&view, all(), 0, memory).unwrap().unwrap_err(),
            };
            assert_eq!(gone, Exceeded::Abandoned);
            assert_eq!(view.pages.into_inner(), 3);
        }
    }

    #[tokio::test]
    async fn work_on_the_device_ends_when_the_request_is_dropped() {
        let memory = memory();
        let (charged, (ended, mut end)) = (memory.clone(), tokio::sync::mpsc::channel(1));
        let work = move || {
            while charged.charge(1).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            ended.blocking_send(()).unwrap();
            Ok(Ok(()))
        };
        let request = tokio::time::timeout(Duration::from_millis(20), blocking(&memory, work));
        assert!(request.await.is_err(), "its client has closed the stream");
        tokio::time::timeout(Duration::from_secs(30), end.recv()).await.unwrap().unwrap();
        assert!(blocking(&self::memory(), || Ok(Ok(()))).await.is_ok());
    }

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
        let memory = memory();
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
            checksum_pairs(&engine.view().unwrap(), all.clone(), 0, &memory).unwrap().unwrap();
        });
        assert_eq!(sorted_bytes(), 0);
        // One read returns all of them, but not ten neighbours.
        for from in (0..6).flat_map(|_| (0..200_u64).step_by(10)) {
            let range = KeyRange::new(from.to_be_bytes().to_vec(), "");
            let options = ScanOptions::new(ColumnFamily::Default.engine_range(&range), 10);
            let found = collect(&engine.view().unwrap(), options, 0, &memory).unwrap().unwrap();
            assert_eq!(found.len(), 10);
        }
        assert!(sorted_bytes() > 200 * 9000);
    }
}
