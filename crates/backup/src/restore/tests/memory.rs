//! Target in memory. It takes its time, so that writes that overlap and must not are found.

use super::super::{RestoredKeys, Target};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use stele_client::KeyWrite;
use stele_types::{ColumnFamily, Error, KeyRange, Prng, Result};

/// Pairs by the space of their family and their key: value, and Unix seconds of the expiry.
pub(super) type Pairs = BTreeMap<(u8, Bytes), (Bytes, u64)>;

#[derive(Default)]
struct State {
    pairs: Pairs,
    /// Keys with a write that has not ended.
    writing: BTreeSet<(u8, Bytes)>,
    fails_after: Option<u64>,
    /// Keys of each call of a write, in the order in which the calls ended.
    written: Vec<Vec<Bytes>>,
}

pub(super) struct Memory {
    state: Mutex<State>,
    rng: Mutex<Prng>,
}

impl Memory {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: Mutex::default(), rng: Mutex::new(Prng::new(seed)) }
    }

    pub(super) fn pairs(&self) -> Pairs {
        self.state.lock().pairs.clone()
    }

    /// Returns the number of the write that wrote a key first, in the order in which writes ended.
    pub(super) fn place_of(&self, key: &Bytes) -> Option<usize> {
        self.state.lock().written.iter().position(|keys| keys.contains(key))
    }

    /// Fails every call after so many.
    pub(super) fn fail_after(&self, calls: Option<u64>) {
        let mut state = self.state.lock();
        state.fails_after = calls;
        state.writing.clear();
    }

    fn begin(&self) -> Result<()> {
        match &mut self.state.lock().fails_after {
            Some(0) => Err(Error::Busy("the target was stopped".to_owned())),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn pause(&self) {
        let yields = self.rng.lock().below(6);
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
    }
}

impl Target for Memory {
    async fn write(&self, family: ColumnFamily, writes: Vec<KeyWrite>) -> Result<()> {
        self.begin()?;
        let space = family.space();
        for write in &writes {
            let is_first = self.state.lock().writing.insert((space, write.key.clone()));
            assert!(is_first, "two writes of {:?} at once", write.key);
        }
        self.pause().await;
        let keys = writes.iter().map(|write| write.key.clone()).collect();
        self.state.lock().written.push(keys);
        for write in writes {
            let key = (space, write.key);
            let mut state = self.state.lock();
            match write.put {
                Some(put) => state.pairs.insert(key.clone(), put),
                None => state.pairs.remove(&key),
            };
            state.writing.remove(&key);
        }
        Ok(())
    }

    async fn missing(&self, family: ColumnFamily, mut writes: Vec<KeyWrite>) -> Vec<KeyWrite> {
        self.pause().await;
        let state = self.state.lock();
        let there = |write: &KeyWrite| state.pairs.get(&(family.space(), write.key.clone()));
        writes.retain(|write| there(write) != write.put.as_ref());
        writes
    }

    async fn delete_range(
        &self,
        family: ColumnFamily,
        range: KeyRange,
        keys: &RestoredKeys,
    ) -> Result<()> {
        self.begin()?;
        self.pause().await;
        let mut state = self.state.lock();
        let within = |key: &(u8, Bytes)| {
            key.0 == family.space() && range.contains(&key.1) && keys.delete(family, &key.1)
        };
        assert!(!state.writing.iter().any(within), "a write overlaps a delete of its range");
        state.pairs.retain(|key, _| !within(key));
        Ok(())
    }
}
