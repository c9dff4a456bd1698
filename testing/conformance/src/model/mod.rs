//! The engine as a map in memory: the shortest implementation of what every engine must do, and the
//! reference of differential tests. It is a subject of its own suite too.

mod region;

use crate::Factory;
use bytes::Bytes;
use parking_lot::Mutex;
use region::Region;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stele_storage::{
    CachedGet, EngineStats, EngineView, LogStore, LostValue, Maintained, Order, Pair, Progress,
    RangeSize, Repair, ScanOptions, Snapshots, Space, StateMachine,
};
use stele_types::{
    Command, CommittedEntry, Error, KeyRange, LogBatch, LogIndex, Mark, Op, Record, RegionId,
    Result, Term, checksum,
};

/// Key → (value, expiry in Unix seconds or 0).
type Pairs = BTreeMap<Bytes, (Bytes, u64)>;

/// An engine in memory. A crash ([`ModelEngine::crash`]) keeps what was appended, installed and
/// dropped. It keeps applied effects that a checkpoint or the persisted commit index covers.
#[derive(Debug, Default)]
pub struct ModelEngine {
    state: Mutex<State>,
    /// Bytes of the largest put that has room; `None` without a limit.
    room_bytes: Mutex<Option<u64>>,
    is_short: AtomicBool,
    wants_truncation: AtomicBool,
    is_cold: AtomicBool,
    lost: Mutex<Arc<BTreeSet<Bytes>>>,
    lost_ranges: Mutex<Arc<Vec<KeyRange>>>,
    entries_lost: Mutex<BTreeMap<RegionId, LogIndex>>,
}

#[derive(Clone, Debug, Default)]
struct State {
    regions: BTreeMap<RegionId, Region>,
    visible: Arc<Pairs>,
    /// State that a crash leaves: `visible` as of the last checkpoint.
    checkpoint: Arc<Pairs>,
    /// Number of entries ever appended: the place of the next one.
    appended: u64,
    user_bytes: u64,
}

impl ModelEngine {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the store as a crash now would leave it, opened again.
    pub fn crash(&self) -> Self {
        let mut state = self.state.lock().clone();
        state.visible = Arc::clone(&state.checkpoint);
        for region in state.regions.values_mut() {
            region.applied = region.checkpointed;
        }
        state.replay();
        Self { state: Mutex::new(state), ..Self::default() }
    }

    /// Makes gets of this key fail with a damaged value until it is repaired.
    pub fn lose(&self, key: &Bytes) {
        Arc::make_mut(&mut self.lost.lock()).insert(key.clone());
    }

    /// Makes the contents of a range unknown until it is repaired.
    pub fn lose_range(&self, range: &KeyRange) {
        Arc::make_mut(&mut self.lost_ranges.lock()).push(range.clone());
    }

    /// Damages entries of a region up to and including `upto`.
    pub fn lose_entries(&self, region: RegionId, upto: LogIndex) {
        self.entries_lost.lock().insert(region, upto);
    }

    /// Sets whether every get counts as a read of the device.
    pub fn set_cold(&self, is_cold: bool) {
        self.is_cold.store(is_cold, Ordering::Relaxed);
    }

    /// Sets whether the device counts as nearly full.
    pub fn set_full(&self, is_full: bool) {
        self.set_room(is_full.then_some(0));
    }

    /// Sets the bytes of the largest put that has room; `None` for no limit.
    pub fn set_room(&self, bytes: Option<u64>) {
        *self.room_bytes.lock() = bytes;
    }

    fn is_full(&self) -> bool {
        *self.room_bytes.lock() == Some(0)
    }

    /// Sets whether the device counts as short of space.
    pub fn set_short(&self, is_short: bool) {
        self.is_short.store(is_short, Ordering::Relaxed);
    }

    /// Requests that the logs of regions are truncated, as garbage collection does.
    pub fn request_truncation(&self) {
        self.wants_truncation.store(true, Ordering::Relaxed);
    }
}

impl State {
    fn make_checkpoint(&mut self) {
        self.checkpoint = Arc::clone(&self.visible);
        for region in self.regions.values_mut() {
            region.checkpointed = region.applied;
        }
    }

    /// Applies what is committed and not checkpointed, in log order over all regions.
    fn replay(&mut self) {
        let mut due: Vec<(u64, RegionId, CommittedEntry)> = Vec::new();
        for (&id, region) in self.regions.iter().filter(|(_, region)| !region.destroyed) {
            let committed = region.hard_state.commit;
            let unapplied = region.unapplied_upto(committed);
            due.extend(unapplied.map(|(at, entry)| (*at, id, entry.clone())));
        }
        due.sort_by_key(|(at, ..)| *at);
        for (_, id, entry) in due {
            let command = entry.is_command.then(|| Command::parse(entry.payload).ok()).flatten();
            if let Some(command) = command {
                apply_command(Arc::make_mut(&mut self.visible), &command);
            }
            if let Some(region) = self.regions.get_mut(&id) {
                region.applied = entry.index;
            }
        }
    }

    fn region(&self, id: RegionId) -> Result<&Region> {
        let region = self.regions.get(&id);
        region.ok_or_else(|| Error::invalid(format!("region {id} is not on this store")))
    }
}

impl LogStore for ModelEngine {
    fn append(&self, batch: &LogBatch) -> Result<()> {
        let mut state = self.state.lock();
        // The effects of a region are kept when its log is removed: nothing could apply it again.
        if batch
            .records
            .iter()
            .any(|r| matches!(r, Record::Mark(_, Mark::Destroy | Mark::Start(..))))
        {
            state.make_checkpoint();
        }
        // All or nothing: a refused record discards the records before it.
        let mut touched: BTreeMap<RegionId, Region> = BTreeMap::new();
        let mut appended = state.appended;
        for record in &batch.records {
            let id = match record {
                Record::Entry(entry) => entry.region,
                Record::HardState(id, _) | Record::Mark(id, _) => *id,
            };
            let known = || state.regions.get(&id).cloned().unwrap_or_default();
            let region = touched.entry(id).or_insert_with(known);
            match record {
                Record::Entry(entry) => {
                    region.push(entry, appended)?;
                    appended += 1;
                }
                Record::HardState(_, hard_state) => {
                    region.check_not_destroyed(id)?;
                    region.hard_state = *hard_state;
                }
                Record::Mark(_, mark) => region.mark(id, mark)?,
            }
        }
        state.regions.extend(touched);
        state.appended = appended;
        Ok(())
    }

    fn entries(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<CommittedEntry>> {
        if self.entries_lost.lock().get(&region).is_some_and(|upto| from <= *upto) {
            return Err(Error::corrupt("model", 0, "marked as lost"));
        }
        let state = self.state.lock();
        let region = state.region(region)?;
        if from <= region.truncated.0 {
            return Err(Error::invalid(format!("entry {from} is truncated")));
        }
        let mut out: Vec<CommittedEntry> = Vec::new();
        let mut bytes = 0;
        let mut index = from;
        while index < to
            && let Some(entry) = region.entry(index)
        {
            bytes += entry.payload.len();
            if !out.is_empty() && bytes > bytes_max {
                break;
            }
            out.push(entry.clone());
            index = index.next();
        }
        Ok(out)
    }

    fn term(&self, region: RegionId, index: LogIndex) -> Option<Term> {
        self.state.lock().regions.get(&region)?.term(index)
    }

    fn progress(&self, region: RegionId) -> Option<Progress> {
        self.state.lock().regions.get(&region).map(Region::progress)
    }

    fn admit(&self, bytes: u64) -> Result<()> {
        if self.room_bytes.lock().is_some_and(|room| room < bytes.max(1)) {
            return Err(Error::NoSpace("model".into()));
        }
        Ok(())
    }

    fn admit_append(&self, bytes: u64) -> bool {
        self.admit(bytes).is_ok()
    }

    fn space(&self) -> Space {
        let is_full = self.is_full();
        let is_short = is_full || self.is_short.load(Ordering::Relaxed);
        Space { is_short, is_full, ..Space::default() }
    }

    fn take_truncation_request(&self) -> bool {
        self.wants_truncation.swap(false, Ordering::Relaxed)
    }
}

impl StateMachine for ModelEngine {
    type View = ModelView;

    fn apply(&self, id: RegionId, entries: &[CommittedEntry]) -> Result<()> {
        let mut state = self.state.lock();
        let region = state.region(id)?;
        region.check_not_destroyed(id)?;
        let mut next = region.applied.next();
        let mut commands = Vec::new();
        for entry in entries {
            if entry.index != next || region.entry(next) != Some(entry) {
                return Err(Error::invalid(format!(
                    "region {id}: entry {} of term {} is not the persisted entry {next}",
                    entry.index, entry.term
                )));
            }
            if entry.is_command {
                commands.push(Command::parse(entry.payload.clone())?);
            }
            next = next.next();
        }
        for command in &commands {
            let bytes = apply_command(Arc::make_mut(&mut state.visible), command);
            state.user_bytes += bytes;
        }
        if let Some(region) = state.regions.get_mut(&id) {
            region.applied = LogIndex(next.0 - 1);
        }
        Ok(())
    }

    fn view(&self) -> Result<ModelView> {
        let lost = Arc::clone(&self.lost.lock());
        let lost_ranges = Arc::clone(&self.lost_ranges.lock());
        let is_cold = self.is_cold.load(Ordering::Relaxed);
        Ok(ModelView { pairs: Arc::clone(&self.state.lock().visible), lost, lost_ranges, is_cold })
    }

    fn drop_ranges(&self, ranges: &[KeyRange]) -> Result<()> {
        stele_storage::check_ranges(ranges)?;
        if self.is_full() {
            return Err(Error::NoSpace("the device is full".into()));
        }
        let mut state = self.state.lock();
        for range in ranges {
            remove_range(Arc::make_mut(&mut state.visible), range);
        }
        // Entries applied before the drop must not restore its pairs when applied again after a
        // crash, so the drop is a checkpoint.
        state.make_checkpoint();
        Ok(())
    }

    fn range_size(&self, range: &KeyRange) -> Result<RangeSize> {
        let view = self.view()?;
        let sizes = view.range(range).map(|pair| (pair.key.len() + pair.value.len()) as u64);
        Ok(sizes.fold(RangeSize::default(), |sum, bytes| RangeSize {
            bytes: sum.bytes + bytes,
            keys: sum.keys + 1,
        }))
    }

    fn split_key(&self, range: &KeyRange) -> Result<Option<Bytes>> {
        let half = self.range_size(range)?.bytes.div_ceil(2);
        let (mut before, mut middle) = (0, None);
        for (number, pair) in self.view()?.range(range).enumerate() {
            before += (pair.key.len() + pair.value.len()) as u64;
            if number > 0 {
                middle = Some(pair.key);
                if before >= half {
                    break;
                }
            }
        }
        Ok(middle)
    }

    fn checkpoint(&self) -> Result<()> {
        self.state.lock().make_checkpoint();
        Ok(())
    }

    fn maintain(&self, _bytes_max: u64) -> Result<Maintained> {
        self.checkpoint()?;
        Ok(Maintained::default())
    }

    fn stats(&self) -> EngineStats {
        let state = self.state.lock();
        let bytes: usize =
            state.visible.iter().map(|(key, (value, _))| key.len() + value.len()).sum();
        EngineStats {
            user_bytes: state.user_bytes,
            live_bytes_estimate: bytes as u64,
            memory_bytes: bytes as u64,
            ..EngineStats::default()
        }
    }
}

impl Snapshots for ModelEngine {
    type Ingest = ModelIngest;

    fn begin_ingest(&self, ranges: Vec<KeyRange>) -> Result<ModelIngest> {
        ModelIngest::new(ranges)
    }

    fn receive(&self, ingest: &mut ModelIngest, pairs: Vec<Pair>) -> Result<()> {
        ingest.receive(pairs)
    }

    fn install(&self, region: RegionId, at: (LogIndex, Term), ingest: ModelIngest) -> Result<()> {
        let (ranges, fresh) = ingest.finish()?;
        self.admit(0)?;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let visible = Arc::make_mut(&mut state.visible);
        for range in &ranges {
            remove_range(visible, range);
        }
        visible.extend(fresh);
        state.regions.entry(region).or_default().start(at.0, at.1);
        state.make_checkpoint();
        Ok(())
    }
}

impl Repair for ModelEngine {
    fn has_lost(&self) -> bool {
        !self.lost.lock().is_empty() || !self.lost_ranges.lock().is_empty()
    }

    fn lost_values(&self, count_max: usize) -> Vec<LostValue> {
        let pairs = Arc::clone(&self.state.lock().visible);
        let lost = |key: &Bytes| {
            let (value, _) = pairs.get(key)?;
            let (length, crc) = (value.len() as u32, checksum::crc32c(value));
            Some(LostValue { key: key.clone(), length, crc })
        };
        self.lost.lock().iter().filter_map(lost).take(count_max).collect()
    }

    fn lost_ranges(&self) -> Vec<KeyRange> {
        self.lost_ranges.lock().to_vec()
    }

    fn repair_range(&self, range: &KeyRange, pairs: Vec<Pair>) -> Result<()> {
        let mut state = self.state.lock();
        let visible = Arc::make_mut(&mut state.visible);
        remove_range(visible, range);
        visible.extend(pairs.into_iter().map(|pair| (pair.key, (pair.value, pair.expires_at_s))));
        state.make_checkpoint();
        let mut lost = self.lost_ranges.lock();
        let left = lost.iter().flat_map(|lost| lost.without(range)).collect();
        *lost = Arc::new(left);
        Ok(())
    }

    fn repair_value(&self, key: &Bytes, value: Bytes) {
        let lost = self.lost_values(usize::MAX);
        if lost.iter().any(|lost| lost.key == *key && lost.is_copy(&value)) {
            Arc::make_mut(&mut self.lost.lock()).remove(key);
        }
    }
}

fn apply_command(pairs: &mut Pairs, command: &Command) -> u64 {
    let mut bytes = 0;
    for op in command.ops() {
        match op {
            Op::Put { key, value, expires_at_s, value_offset, .. } => {
                let at = value_offset as usize;
                let value = command.bytes().slice(at..at + value.len());
                bytes += key.len() + value.len();
                pairs.insert(Bytes::copy_from_slice(key), (value, expires_at_s));
            }
            Op::Delete { key } => {
                bytes += key.len();
                pairs.remove(key);
            }
            Op::DeleteRange { start, end } => {
                bytes += start.len() + end.len();
                remove_range(pairs, &KeyRange::new(start.to_vec(), end.to_vec()));
            }
        }
    }
    bytes as u64
}

fn remove_range(pairs: &mut Pairs, range: &KeyRange) {
    pairs.retain(|key, _| !range.contains(key));
}

/// Factory of model engines; a device is the state that the last crash left.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelFactory;

impl Factory for ModelFactory {
    type Engine = ModelEngine;
    type Disk = ModelEngine;

    fn disk(&self, _seed: u64) -> ModelEngine {
        ModelEngine::new()
    }

    fn open(&self, disk: &ModelEngine) -> Result<ModelEngine> {
        Ok(disk.crash())
    }

    fn crash(&self, _disk: ModelEngine, engine: ModelEngine, _seed: u64) -> ModelEngine {
        engine.crash()
    }

    fn replay_command(&self) -> String {
        "cargo test -p stele-storage --test all conformance model_passes_random_histories".into()
    }
}

/// Pairs received so far, and the ranges they will replace.
#[derive(Debug)]
pub struct ModelIngest {
    ranges: Vec<KeyRange>,
    pairs: Pairs,
    is_broken: bool,
}

impl ModelIngest {
    fn new(ranges: Vec<KeyRange>) -> Result<Self> {
        stele_storage::check_ranges(&ranges)?;
        Ok(Self { ranges, pairs: Pairs::new(), is_broken: false })
    }

    fn receive(&mut self, pairs: Vec<Pair>) -> Result<()> {
        for Pair { key, value, expires_at_s } in pairs {
            let ascending = self.pairs.last_key_value().is_none_or(|(last, _)| *last < key);
            if !ascending || !self.ranges.iter().any(|range| range.contains(&key)) {
                self.is_broken = true;
                return Err(Error::invalid("installed keys must ascend inside the ranges"));
            }
            self.pairs.insert(key, (value, expires_at_s));
        }
        Ok(())
    }

    fn finish(self) -> Result<(Vec<KeyRange>, Pairs)> {
        if self.is_broken {
            return Err(Error::invalid(
                "an ingest with a refused pair cannot be installed; begin a new one",
            ));
        }
        Ok((self.ranges, self.pairs))
    }
}

/// The model's pairs at one point in time.
#[derive(Clone, Debug)]
pub struct ModelView {
    pairs: Arc<Pairs>,
    lost: Arc<BTreeSet<Bytes>>,
    lost_ranges: Arc<Vec<KeyRange>>,
    /// Gets count as reads of the device.
    is_cold: bool,
}

impl ModelView {
    fn range(&self, range: &KeyRange) -> impl DoubleEndedIterator<Item = Pair> {
        let start = Bound::Included(range.start.clone());
        let end = match range.end.is_empty() {
            true => Bound::Unbounded,
            // An inverted range is empty; BTreeMap would panic on it.
            false => Bound::Excluded(range.end.clone().max(range.start.clone())),
        };
        self.pairs.range((start, end)).map(|(key, (value, expires_at_s))| Pair {
            key: key.clone(),
            value: value.clone(),
            expires_at_s: *expires_at_s,
        })
    }
}

impl EngineView for ModelView {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        if self.lost.contains(key) || self.lost_ranges.iter().any(|lost| lost.contains(key)) {
            return Err(Error::corrupt("model", 0, "marked as lost"));
        }
        Ok(self.pairs.get_key_value(key).map(|(key, (value, expires_at_s))| Pair {
            key: key.clone(),
            value: value.clone(),
            expires_at_s: *expires_at_s,
        }))
    }

    fn get_cached(&self, key: &[u8]) -> Result<CachedGet> {
        match self.is_cold {
            true => Ok(CachedGet::needs_io(key)),
            false => self.get(key).map(CachedGet::Ready),
        }
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        if self.lost_ranges.iter().any(|lost| lost.overlaps(&options.range)) {
            return Err(Error::corrupt("model", 0, "marked as lost"));
        }
        let range = self.range(&options.range);
        let mut pairs: Box<dyn Iterator<Item = Pair>> = match options.order {
            Order::Forward => Box::new(range),
            Order::Reverse => Box::new(range.rev()),
        };
        let mut out = Vec::new();
        let mut bytes = 0;
        while out.len() < options.limit
            && let Some(mut pair) = pairs.next()
        {
            if options.keys_only {
                pair.value = Bytes::new();
            } else if self.lost.contains(&pair.key) {
                return Err(Error::corrupt("model", 0, "marked as lost"));
            }
            bytes += pair.key.len() + pair.value.len();
            if !out.is_empty() && bytes > options.bytes_max {
                break;
            }
            out.push(pair);
        }
        Ok(out)
    }
}
