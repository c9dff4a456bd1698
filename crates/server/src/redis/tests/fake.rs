//! Regions in memory: names that begin with a letter from `n` on are in region 2.

use super::super::{Execute, Executing, RedisBatch, RedisFailure, Watched};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use stele_redis::{Protocol, Reply};
use stele_redis_region::MemoryRegion;
use stele_types::{RegionId, redis_key};
use tokio::sync::Semaphore;

const NOW_MS: u64 = 1_900_000_000_000;

pub(super) struct FakeRegions {
    pairs: Mutex<MemoryRegion>,
    /// Batches so far: the region, and the commands.
    pub batches: Mutex<Vec<(Option<u64>, Vec<String>)>>,
    /// Failures of the next batches; `None` executes one.
    pub failures: Mutex<VecDeque<Option<RedisFailure>>>,
    /// Names from this letter on are in region 2.
    pub border: Mutex<u8>,
    /// Batches wait for a permit each.
    pub gate: Mutex<Option<Arc<Semaphore>>>,
}

impl Default for FakeRegions {
    fn default() -> Self {
        Self {
            pairs: Mutex::new(MemoryRegion::new(1, Protocol::Resp2)),
            batches: Mutex::default(),
            failures: Mutex::default(),
            border: Mutex::new(b'n'),
            gate: Mutex::default(),
        }
    }
}

impl FakeRegions {
    fn region(&self, header_key: &[u8]) -> u64 {
        let name = redis_key::decode(header_key).expect("a header key").name;
        // A tag decides on the region, as its keys stay together.
        let tag = redis_key::tag(&name).unwrap_or(&name);
        1 + u64::from(tag.first().is_some_and(|first| *first >= *self.border.lock()))
    }

    fn change(&self, database: u8, name: &[u8]) -> Option<u64> {
        let header = self.pairs.lock().stored(database, name).0?;
        let is_live = header.expires_at_ms == 0 || header.expires_at_ms > NOW_MS;
        is_live.then_some(header.change)
    }

    fn execute(&self, batch: &RedisBatch) -> Bytes {
        let mut pairs = self.pairs.lock();
        pairs.protocol = batch.protocol;
        pairs.execute_all(&batch.requests, batch.transaction.is_some(), NOW_MS)
    }

    pub(super) fn commands(&self) -> Vec<Vec<String>> {
        self.batches.lock().iter().map(|(_, commands)| commands.clone()).collect()
    }

    async fn answer(&self, batch: &RedisBatch) -> Result<Bytes, RedisFailure> {
        let gate = self.gate.lock().clone();
        if let Some(gate) = gate {
            gate.acquire().await.expect("open").forget();
        }
        let text = |words: &[Bytes]| {
            let words = words.iter().map(|word| String::from_utf8_lossy(word).into_owned());
            words.collect::<Vec<_>>().join(" ")
        };
        let commands: Vec<String> = batch.requests.iter().map(|it| text(it.arguments())).collect();
        let failure = self.failures.lock().pop_front().flatten();
        if let Some(failure) = failure {
            return Err(failure);
        }
        for key in batch.requests.iter().flat_map(|request| request.header_keys()) {
            if batch.region != Some(RegionId(self.region(&key))) {
                return Err(RedisFailure::SeveralRegions);
            }
        }
        self.batches.lock().push((batch.region.map(|region| region.0), commands));
        if batch.requests.iter().any(|request| !request.spec().is_program()) {
            return Ok(Reply::Integer(7).encoded(batch.protocol));
        }
        let has_changed = |it: &Watched| self.change(it.database, &it.name) != it.change;
        if batch.transaction.iter().flatten().any(has_changed) {
            return Ok(Reply::NullArray.encoded(batch.protocol));
        }
        Ok(self.execute(batch))
    }
}

impl Execute for FakeRegions {
    fn regions<'a>(&'a self, header_keys: &'a [Bytes]) -> Executing<'a, Vec<RegionId>> {
        let regions = header_keys.iter().map(|key| RegionId(self.region(key))).collect();
        Box::pin(std::future::ready(Ok(regions)))
    }

    fn run<'a>(&'a self, batch: &'a RedisBatch) -> Executing<'a, Bytes> {
        Box::pin(self.answer(batch))
    }

    fn changes<'a>(&'a self, database: u8, names: &'a [Bytes]) -> Executing<'a, Vec<Option<u64>>> {
        let changes = names.iter().map(|name| self.change(database, name)).collect();
        Box::pin(std::future::ready(Ok(changes)))
    }

    fn followers_of_a_write(&self) -> u64 {
        1
    }
}
