//! Random histories compared with a sorted map.

use crate::common::{
    Model, MoveFile, Op, Rng, Store, apply, contents, get, remove_range, small_options,
};
use std::sync::Arc;
use stele_index::{Direction, IndexOptions, JobStep, MergeInputs, MergeSpec, View};
use stele_simulated_disk::SimVfs;
use stele_types::{Cause, Error, FileId, KeyRange};

struct History {
    rng: Rng,
    vfs: SimVfs,
    store: Store,
    log: Vec<Op>,
    model: Model,
    /// Open views, and what each must keep showing.
    views: Vec<(View, Model)>,
    /// Pairs that expired by this second may be gone.
    now_s: u64,
    moves: u32,
}

/// Returns options with pinned runs, a limit for some of them, or cold ones.
fn options(kind: u64) -> IndexOptions {
    let (index_memory_bytes_max, block_cache_bytes_max) =
        [(64 << 20, 16 << 10), (1500, 16 << 10), (0, 0)][kind as usize % 3];
    IndexOptions { index_memory_bytes_max, block_cache_bytes_max, ..small_options() }
}

impl History {
    fn new(seed: u64) -> Self {
        let vfs = SimVfs::default();
        let store = Store::open_with(&vfs, options(seed)).unwrap();
        Self {
            rng: Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            vfs,
            store,
            log: Vec::new(),
            model: Model::new(),
            views: Vec::new(),
            now_s: 0,
            moves: 0,
        }
    }

    fn write(&mut self) {
        let first = self.log.len();
        for _ in 0..1 + self.rng.below(60) {
            let op = self.rng.op(self.log.len() as u32);
            apply(&mut self.model, &op);
            self.log.push(op);
        }
        let ops = &self.log[first..];
        match self.rng.below(2) {
            0 => ops.iter().for_each(|op| self.store.apply(op)),
            _ => self.store.apply_together(ops),
        }
        self.store.publish();
    }

    fn spec(&mut self) -> Option<MergeSpec> {
        let version = self.store.index.version();
        let tiers = version.tiers();
        if tiers.is_empty() {
            return None;
        }
        let from = self.rng.below(tiers.len() as u64) as usize;
        let inputs = if self.rng.below(2) == 0 {
            let count = 1 + self.rng.below((tiers.len() - from) as u64) as usize;
            MergeInputs::Tiers(tiers[from..from + count].iter().map(|tier| tier.age).collect())
        } else {
            let mut runs: Vec<_> = tiers[from].runs.iter().map(|run| run.id()).collect();
            runs.retain(|_| self.rng.below(2) == 0);
            if runs.is_empty() {
                return None;
            }
            MergeInputs::Runs { age: tiers[from].age, runs }
        };
        let cause = [Cause::Merge, Cause::Relocate, Cause::Sort][self.rng.below(3) as usize];
        Some(MergeSpec { inputs, cause })
    }

    fn merge(&mut self) {
        let Some(spec) = self.spec() else { return };
        self.now_s += self.rng.below(20);
        self.moves += 1;
        let mover = MoveFile {
            from: FileId(1 + self.rng.below(8) as u32),
            to: FileId(100 + self.moves),
            moved: 0,
            cuts: Arc::default(),
        };
        let mut job =
            self.store.index.start_merge(spec, Some(Box::new(mover)), self.now_s).unwrap();
        // Writes, flushes and reads continue while a merge runs.
        let mut steps = 0;
        loop {
            match job.step(600).unwrap() {
                JobStep::Done(done) => break self.store.index.commit(done).unwrap(),
                JobStep::More { .. } => steps += 1,
            }
            if steps == 2 {
                self.write();
                self.store.freeze(self.log.len());
                self.store.flush_one().unwrap();
            }
        }
    }

    fn install(&mut self) {
        let (a, b) = (self.rng.key(), self.rng.key());
        let (start, end) = (a.clone().min(b.clone()), a.max(b));
        let range = KeyRange::new(start.clone(), end.clone());
        let drop_only = self.rng.below(2) == 0;
        self.store.freeze(self.log.len());
        let busy = self.store.index.drop_ranges(std::slice::from_ref(&range));
        assert!(busy.is_ok() || matches!(busy, Err(Error::Busy(_))), "{busy:?}");
        while self.store.flush_one().unwrap() {}
        let mut pairs: Vec<(Vec<u8>, u32)> = Vec::new();
        if !drop_only {
            let keys: std::collections::BTreeSet<_> = (0..40).map(|_| self.rng.key()).collect();
            pairs.extend(keys.into_iter().filter(|key| range.contains(key)).zip(50_000..));
        }
        let items: Vec<(&[u8], u32)> =
            pairs.iter().map(|(key, value)| (&key[..], *value)).collect();
        self.store.install(std::slice::from_ref(&range), None, &items).unwrap();
        if range.is_empty() {
            return;
        }
        remove_range(&mut self.model, &start, &end);
        self.model.extend(pairs.into_iter().map(|(key, value)| (key, (value, 0))));
        // The list of operations serves as the log; installed pairs are not replayed.
        self.store.freeze(self.log.len());
        self.store.flush_one().unwrap();
    }

    fn reopen(&mut self) {
        self.views.clear();
        let store = Store::open_with(&self.vfs.fork(), options(self.rng.below(3))).unwrap();
        self.vfs = store.vfs.clone();
        self.store = store;
        for op in &self.log[self.store.position()..] {
            self.store.apply(op);
        }
        self.store.publish();
    }

    fn expected(&self, model: &Model) -> Model {
        let alive = |end: u64| end == 0 || end > self.now_s;
        model.iter().filter(|(_, (_, end))| alive(*end)).map(|(k, v)| (k.clone(), *v)).collect()
    }

    fn check_view(&mut self, view: &View, model: &Model) {
        let alive = |end: u64| end == 0 || end > self.now_s;
        let (a, b) = (self.rng.key(), self.rng.key());
        for range in [KeyRange::all(), KeyRange::new(a.clone().min(b.clone()), a.max(b))] {
            let mut expected: Vec<_> = self.expected(model).into_iter().collect();
            expected.retain(|(key, _)| range.contains(key));
            for direction in [Direction::Forward, Direction::Reverse] {
                let mut got = contents(view, range.clone(), direction).unwrap();
                got.retain(|(_, (_, end))| alive(*end));
                assert_eq!(got, expected, "{direction:?} {range:?}");
                expected.reverse();
            }
        }
        for _ in 0..30 {
            let key = self.rng.key();
            let got = get(view, &key).unwrap().filter(|(_, end)| alive(*end));
            assert_eq!(got, self.expected(model).get(&key).copied(), "get {key:?}");
        }
    }

    fn check(&mut self) {
        let (view, model) = (self.store.index.view(), self.model.clone());
        self.check_view(&view, &model);
        let held = std::mem::take(&mut self.views);
        for (view, model) in &held {
            self.check_view(view, model);
        }
        self.views = held;
        let mut damage = Vec::new();
        self.store.index.verify(&mut |error| damage.push(error.to_string())).unwrap();
        assert!(damage.is_empty(), "{damage:?}");
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.rng.below(12) {
                0..=3 => self.write(),
                4 => self.store.freeze(self.log.len()),
                5 | 6 => {
                    self.store.flush_one().unwrap();
                }
                7 | 8 => self.merge(),
                9 => self.install(),
                10 => {
                    self.views.push((self.store.index.view(), self.model.clone()));
                    if self.views.len() > 3 {
                        self.views.remove(0);
                    }
                }
                _ => self.reopen(),
            }
            self.check();
        }
        self.views.clear();
        while self.store.flush_one().unwrap() {}
        self.store.index.purge().unwrap();
        self.store.check_files("at the end");
    }
}

#[test]
fn random_histories_equal_a_sorted_map() {
    let seeds: Vec<u64> = match std::env::var("STELE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=40).collect(),
    };
    for seed in seeds {
        println!(
            "replay: STELE_SEED={seed} cargo test -p stele-index --test all model random_histories"
        );
        History::new(seed).run(45);
    }
}
