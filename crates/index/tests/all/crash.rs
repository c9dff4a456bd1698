//! A fixed script stopped by a crash before, inside and after every operation of the simulated
//! disk, and again during the open that follows.

use crate::common::{Model, MoveFile, Op, Rng, Store, apply, remove_range, small_options};
use std::path::Path;
use std::sync::Arc;
use stele_index::{Edit, Index, MergeInputs, MergeSpec, rebuild};
use stele_simulated_disk::{CrashAt, CrashPoint, SimVfs};
use stele_types::{Cause, FileId, KeyRange, Result};
use stele_vfs::Vfs;

/// States allowed after a crash: that of the last finished step, or that of the interrupted step.
#[derive(Clone, Default)]
struct Durable {
    before: (Model, u32),
    after: (Model, u32),
}

impl Durable {
    fn allows(&self, found: &(Model, u32)) -> bool {
        *found == self.before || *found == self.after
    }

    fn step(&mut self, next: Model, run: impl FnOnce() -> Result<()>) -> Result<()> {
        self.after.0 = next;
        run()?;
        self.before = self.after.clone();
        Ok(())
    }
}

struct Script {
    rng: Rng,
    written: u32,
    model: Model,
    durable: Durable,
}

impl Script {
    fn new() -> Self {
        Self { rng: Rng(77), written: 0, model: Model::new(), durable: Durable::default() }
    }

    fn write(&mut self, store: &mut Store, count: u32) {
        for _ in 0..count {
            self.written += 1;
            let op = match self.rng.op(self.written) {
                Op::Put { key, value, .. } => Op::Put { key, value, expires_at_s: 0 },
                other => other,
            };
            store.apply(&op);
            apply(&mut self.model, &op);
        }
        store.publish();
    }

    fn flush(&mut self, store: &mut Store) -> Result<()> {
        store.freeze(self.written as usize);
        let next = self.model.clone();
        self.durable.step(next, || store.flush_one().map(|_| ()))
    }

    fn merge(&mut self, store: &Store, inputs: MergeInputs, moved_to: Option<u32>) -> Result<()> {
        let spec = MergeSpec { inputs, cause: Cause::Merge };
        let mover = moved_to.map(|to| {
            let to = FileId(to);
            Box::new(MoveFile { from: FileId(3), to, moved: 0, cuts: Arc::default() }) as Box<_>
        });
        let next = self.durable.before.0.clone();
        self.durable.step(next, || store.finish(store.index.start_merge(spec, mover, 0)?))
    }

    fn install(&mut self, store: &Store, range: KeyRange, pairs: &[(&[u8], u32)]) -> Result<()> {
        let mut next = self.durable.before.0.clone();
        remove_range(&mut next, &range.start, &range.end);
        next.extend(pairs.iter().map(|(key, value)| (key.to_vec(), (*value, 0))));
        self.model = next.clone();
        self.durable.step(next, || store.install(std::slice::from_ref(&range), None, pairs))
    }

    fn edit(&mut self, store: &Store, number: u32) -> Result<()> {
        self.durable.after.1 = number;
        store.index.edit(Edit::NextFile(FileId(number)))?;
        self.durable.before = self.durable.after.clone();
        Ok(())
    }

    fn run(&mut self, vfs: &SimVfs) -> Result<()> {
        let mut store = Store::open(vfs)?;
        self.write(&mut store, 60);
        self.flush(&mut store)?;
        self.write(&mut store, 70);
        self.flush(&mut store)?;
        self.edit(&store, 5)?;
        self.write(&mut store, 40);
        self.flush(&mut store)?;
        let ages = store.ages();
        self.merge(&store, MergeInputs::Tiers(ages[..2].to_vec()), None)?;
        let bottom = store.index.version().tiers().last().map(|tier| {
            let runs = tier.runs.iter().map(|run| run.id()).take(2).collect();
            MergeInputs::Runs { age: tier.age, runs }
        });
        self.merge(&store, bottom.expect("a tier"), Some(100))?;
        let pairs: [(&[u8], u32); 3] = [(b"c", 90_001), (b"d1", 90_002), (b"k", 90_003)];
        self.install(&store, KeyRange::new("c", "k1"), &pairs)?;
        self.install(&store, KeyRange::new("k2", "k21"), &[])?;
        let view = store.index.view();
        self.merge(&store, MergeInputs::Tiers(store.ages()), Some(101))?;
        self.edit(&store, 9)?;
        drop(view);
        self.write(&mut store, 50);
        self.flush(&mut store)?;
        // An empty flush only establishes a checkpoint.
        self.flush(&mut store)?;
        self.merge(&store, MergeInputs::Tiers(store.ages()), None)?;
        assert!(store.index.version().tiers().len() == 1);
        Ok(())
    }
}

fn found(store: &Store) -> (Model, u32) {
    (store.contents().unwrap(), store.opened.next_file.0)
}

fn operations() -> u64 {
    let vfs = SimVfs::default();
    Script::new().run(&vfs).unwrap();
    vfs.operations()
}

/// Crashes the script at a point; returns the disk and the states it may hold.
fn cut(operation: u64, at: CrashAt) -> (SimVfs, Durable) {
    let vfs = SimVfs::default();
    vfs.crash_at(CrashPoint { operation, at });
    let mut script = Script::new();
    let ended = script.run(&vfs);
    assert!(ended.is_err() || operation + 1 >= vfs.operations(), "operation {operation} {at:?}");
    (vfs, script.durable)
}

/// Continues with normal operation after a recovery.
fn go_on(mut store: Store, context: &str) {
    let mut model = store.contents().unwrap();
    if let Some(job) = store.index.resume_merge(None, 0).unwrap() {
        store.finish(job).unwrap();
        assert_eq!(store.contents().unwrap(), model, "{context}: after the resumed merge");
    }
    let op = Op::Put { key: b"later".to_vec(), value: 7, expires_at_s: 0 };
    store.apply(&op);
    apply(&mut model, &op);
    store.publish();
    store.freeze(10_000);
    assert!(store.flush_one().unwrap());
    let spec = MergeSpec { inputs: MergeInputs::Tiers(store.ages()), cause: Cause::Merge };
    store.finish(store.index.start_merge(spec, None, 0).unwrap()).unwrap();
    assert_eq!(store.contents().unwrap(), model, "{context}: after further writes");
    store.check_files(context);
}

#[test]
fn every_crash_point_recovers_exactly_a_durable_state() {
    let mut points = 0;
    for operation in 0..operations() {
        for at in CrashAt::ALL {
            let (crashed, durable) = cut(operation, at);
            for seed in 0..2 {
                let context = format!("operation {operation} {at:?} seed {seed}");
                let vfs = crashed.restart(seed);
                let store = Store::open(&vfs).unwrap_or_else(|e| panic!("{context}: {e}"));
                assert!(
                    durable.allows(&found(&store)),
                    "{context}: neither the state before the step nor after it"
                );
                store.check_files(&context);
                go_on(store, &context);
                points += 1;
            }
        }
    }
    println!("{points} crash points");
}

#[test]
fn every_crash_point_of_the_opening_after_a_crash_recovers_too() {
    let mut points = 0;
    for operation in (0..operations()).step_by(2) {
        let at = CrashAt::ALL[(operation / 2 % 3) as usize];
        let (crashed, durable) = cut(operation, at);
        let opening = {
            let vfs = crashed.restart(3);
            let before = vfs.operations();
            Store::open(&vfs).unwrap();
            before..vfs.operations()
        };
        for second in opening {
            for second_at in CrashAt::ALL {
                let context = format!("operation {operation} {at:?}, then {second} {second_at:?}");
                let vfs = crashed.restart(3);
                vfs.crash_at(CrashPoint { operation: second, at: second_at });
                drop(Store::open(&vfs));
                let store =
                    Store::open(&vfs.restart(4)).unwrap_or_else(|e| panic!("{context}: {e}"));
                assert!(
                    durable.allows(&found(&store)),
                    "{context}: neither the state before the step nor after it"
                );
                store.check_files(&context);
                points += 1;
            }
        }
    }
    println!("{points} crash points");
}

#[test]
fn a_lost_manifest_is_rebuilt_or_refused_at_every_crash_point() {
    let (mut rebuilt, mut refused) = (0, 0);
    let dir = Path::new(crate::common::DIR);
    for operation in 0..operations() {
        let (crashed, durable) = cut(operation, CrashAt::Before);
        let vfs = crashed.restart(1);
        let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
        if !vfs.exists(dir).unwrap() {
            continue;
        }
        for entry in vfs.list(dir).unwrap() {
            if entry.name.starts_with("manifest") {
                vfs.unlink(&dir.join(entry.name)).unwrap();
            }
        }
        let lost = Index::open(shared.clone(), dir, small_options());
        assert!(lost.is_err() || vfs.list(dir).unwrap().len() == 1);
        match rebuild(&shared, dir, &small_options()) {
            Ok(_) => {
                let store = Store::open(&vfs).unwrap();
                let contents = store.contents().unwrap();
                // An empty flush leaves no run, so only contents are compared.
                let known = contents == durable.before.0 || contents == durable.after.0;
                assert!(known, "operation {operation}");
                rebuilt += 1;
            }
            Err(error) => {
                assert!(error.is_damage(), "operation {operation}: {error}");
                refused += 1;
            }
        }
    }
    println!("{rebuilt} rebuilt, {refused} refused");
    assert!(rebuilt > refused, "{rebuilt} rebuilt, {refused} refused");
}
