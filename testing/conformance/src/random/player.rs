//! Executes steps on an engine and on the model, and compares the two. A failing list is shrunk:
//! halves, quarters, … single elements are left out, for as long as the rest still fails.

use super::super::subject::{Subject, contents, everything, hard_state, mark, refused};
use super::super::{Check, Factory};
use super::op::{self, Op, REGIONS, WriteOp};
use crate::ModelEngine;
use crate::model::{ModelIngest, ModelView};
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_storage::{
    EngineView, LogStore, Order, Pair, Progress, ScanOptions, Snapshots, StateMachine,
};
use stele_types::{
    EntryRecord, Error, HardState, KeyRange, LogBatch, LogIndex, Mark, Prng, Record, RegionId,
    Result, Term,
};

const VIEWS_MAX: usize = 4;

pub(super) struct Player<'f, F: Factory> {
    subject: Subject<'f, F>,
    /// The model never crashes: after a crash the engine is brought back to the model's state.
    model: ModelEngine,
    views: Vec<(<F::Engine as StateMachine>::View, ModelView)>,
    owners: BTreeMap<u64, u64>,
    ingest: Option<Ingest<F>>,
}

struct Ingest<F: Factory> {
    owned: Vec<u64>,
    subject: <F::Engine as Snapshots>::Ingest,
    model: ModelIngest,
}

impl<'f, F: Factory> Player<'f, F> {
    pub(super) fn new(factory: &'f F, seed: u64) -> Check<Self> {
        let subject = Subject::new(factory, seed)?;
        let owners = (1..=REGIONS).map(|number| (number, number)).collect();
        let (model, views) = (ModelEngine::new(), Vec::new());
        Ok(Self { subject, model, views, owners, ingest: None })
    }

    pub(super) fn step(mut self, op: &Op) -> Check<Self> {
        match op {
            Op::Append { region, back, entries } => self.append(*region, *back, entries)?,
            Op::AppendAll { seed } => self.append_all(*seed)?,
            Op::Commit { region, advance } => self.commit(*region, *advance)?,
            Op::Apply { region, count } => self.apply(*region, *count)?,
            Op::CutSuffix { region, back } => self.cut_suffix(*region, *back)?,
            Op::Truncate { region, advance } => self.truncate(*region, *advance)?,
            Op::Maintain { bytes } => {
                self.subject.engine.maintain(*bytes)?;
            }
            Op::FinishMaintenance => {
                self.subject.finish_maintenance()?;
                self.compare_contents()?;
            }
            Op::Crash { seed } => self = self.crash(*seed)?,
            Op::HoldView if self.views.len() < VIEWS_MAX => {
                self.views.push((self.subject.engine.view()?, self.model.view()?));
            }
            Op::HoldView => {}
            Op::DropViews => self.drop_views()?,
            Op::Scan { .. } => self.scan(op)?,
            Op::Receive { region, keys } => self.receive(*region, keys)?,
            Op::Install { region, advance } => self.install(*region, *advance)?,
            Op::MoveKeys { from, to } => self.move_keys(*from, *to)?,
            Op::DropRange { region } => self.drop_range(*region)?,
            Op::Destroy { region } => self.destroy(*region)?,
        }
        for region in 1..=REGIONS {
            self.compare_progress(region)?;
        }
        Ok(self)
    }

    /// Compares contents at the end, then again after a crash.
    pub(super) fn finish(mut self) -> Check {
        self.drop_views()?;
        self.compare_contents()?;
        let player = self.crash(0)?;
        player.subject.finish_maintenance()?;
        player.compare_contents()
    }

    /// Returns the spaces of a region, ascending.
    fn owned(&self, region: u64) -> Vec<u64> {
        let own = self.owners.iter().filter(|(_, owner)| **owner == region);
        own.map(|(space, _)| *space).collect()
    }

    /// Returns the region's progress in the model, unless it is destroyed or unknown.
    fn existing(&self, region: u64) -> Option<Progress> {
        self.model.progress(RegionId(region)).filter(|progress| !progress.destroyed)
    }

    fn both(&self, records: Vec<Record>) -> Check {
        let batch = LogBatch { records };
        self.model.append(&batch)?;
        self.subject.engine.append(&batch)?;
        Ok(())
    }

    /// Returns the records that start a region if it does not exist: a mark and a hard state.
    fn start_records(&self, region: u64) -> (Vec<Record>, Progress) {
        match self.existing(region) {
            Some(progress) => (Vec::new(), progress),
            None => {
                let start = mark(region, Mark::Start(LogIndex(0), Term(0)));
                (vec![start, hard_state(region, 1, region, 0)], Progress::default())
            }
        }
    }

    fn append(&self, region: u64, back: u64, entries: &[Vec<WriteOp>]) -> Check {
        let (mut records, at) = self.start_records(region);
        let fixed = at.applied.max(at.hard_state.commit).0;
        let first = (at.persisted.0.0 + 1).saturating_sub(back).max(fixed + 1);
        // A replacement comes from a newer leader.
        let term = at.persisted.1.0.max(1) + u64::from(first <= at.persisted.0.0);
        let owned = self.owned(region);
        for (writes, index) in entries.iter().zip(first..) {
            records.push(entry(region, &owned, index, term, writes)?);
        }
        self.both(records)
    }

    fn append_all(&self, seed: u64) -> Check {
        let mut prng = Prng::new(seed);
        let mut records = Vec::new();
        for region in 1..=REGIONS {
            let (start_records, at) = self.start_records(region);
            records.extend(start_records);
            let (index, term) = (at.persisted.0.0 + 1, at.persisted.1.0.max(1));
            let commit = at.hard_state.commit.0;
            records.push(hard_state(region, term, prng.below(9), commit));
            let writes = op::writes(&mut prng);
            records.push(entry(region, &self.owned(region), index, term, &writes)?);
        }
        self.both(records)
    }

    fn commit(&self, region: u64, advance: u64) -> Check {
        let Some(at) = self.existing(region) else { return Ok(()) };
        let HardState { vote, commit, .. } = at.hard_state;
        let commit = (commit.max(at.applied).0 + advance).min(at.persisted.0.0);
        self.both(vec![hard_state(region, at.persisted.1.0, vote, commit)])
    }

    fn apply(&self, region: u64, count: u64) -> Check {
        let Some(at) = self.existing(region) else { return Ok(()) };
        let upto = (at.applied.0 + count).min(at.persisted.0.0);
        self.apply_model(region, upto)?;
        self.catch_up(region)
    }

    fn apply_model(&self, region: u64, upto: u64) -> Check {
        let id = RegionId(region);
        let Some(at) = self.model.progress(id) else { return Ok(()) };
        let (from, to) = (at.applied.next(), LogIndex(upto + 1));
        let entries = self.model.entries(id, from, to, usize::MAX)?;
        Ok(self.model.apply(id, &entries)?)
    }

    /// Applies on the engine what the model has applied.
    fn catch_up(&self, region: u64) -> Check {
        let id = RegionId(region);
        let Some(wanted) = self.existing(region) else { return Ok(()) };
        let from = self.subject.progress(region)?.applied.next();
        let to = wanted.applied.next();
        if from < to {
            let entries = self.subject.engine.entries(id, from, to, usize::MAX)?;
            ensure_eq!(entries.len() as u64, to.0 - from.0, "entries {from} to {to}");
            self.subject.engine.apply(id, &entries)?;
        }
        Ok(())
    }

    fn cut_suffix(&self, region: u64, back: u64) -> Check {
        let Some(at) = self.existing(region) else { return Ok(()) };
        let fixed = at.applied.max(at.hard_state.commit).0;
        let from = (at.persisted.0.0 + 1).saturating_sub(back).max(fixed + 1);
        self.both(vec![mark(region, Mark::TruncateSuffix(LogIndex(from)))])
    }

    /// The model does not take part: its checkpoint is another.
    fn truncate(&self, region: u64, advance: u64) -> Check {
        if self.existing(region).is_none() {
            return Ok(());
        }
        let at = self.subject.progress(region)?;
        let upto = LogIndex(at.truncated.0.0 + advance);
        let result = self.subject.truncate(region, upto);
        if upto > at.checkpointed {
            return refused(result, "truncating past the checkpoint");
        }
        Ok(result?)
    }

    fn crash(mut self, seed: u64) -> Check<Self> {
        self.views.clear();
        self.ingest = None;
        self.subject = self.subject.crash(seed)?;
        for region in 1..=REGIONS {
            let Some(at) = self.existing(region) else { continue };
            let applied = self.subject.progress(region)?.applied;
            let known = at.applied.max(at.hard_state.commit);
            ensure!(applied <= known, "region {region} applied {applied}, committed {known}");
            if applied > at.applied {
                self.apply_model(region, applied.0)?;
            }
            self.catch_up(region)?;
            self.compare_entries(region)?;
        }
        self.compare_contents()?;
        Ok(self)
    }

    fn drop_views(&mut self) -> Check {
        for (view, model) in self.views.drain(..) {
            ensure_eq!(contents(&view)?, contents(&model)?, "pairs of an earlier view");
        }
        Ok(())
    }

    fn scan(&self, op: &Op) -> Check {
        let Op::Scan { start, end, limit, bytes_max, reverse, keys_only } = *op else {
            return Ok(());
        };
        let options = ScanOptions {
            range: KeyRange::new(op::key_at(start), op::key_at(end)),
            order: if reverse { Order::Reverse } else { Order::Forward },
            limit: limit as usize,
            bytes_max: bytes_max as usize,
            keys_only,
            wanted: 2 * limit as usize,
        };
        let (view, model) = (self.subject.engine.view()?, self.model.view()?);
        ensure_eq!(shapes(&view.scan(&options)?), shapes(&model.scan(&options)?), "scan");
        let key = op::key_at(start);
        let found = view.get(&key)?;
        ensure_eq!(shapes(found.as_slice()), shapes(model.get(&key)?.as_slice()), "get");
        ensure!(found == model.get(&key)?, "get: a value differs");
        Ok(())
    }

    fn receive(&mut self, region: u64, keys: &[(u64, u64)]) -> Check {
        let owned = self.owned(region);
        let ranges: Vec<KeyRange> = owned.iter().map(|space| op::range(*space)).collect();
        if ranges.is_empty() {
            return Ok(());
        }
        let keys = keys.iter().filter_map(|&(number, bytes)| {
            op::key_in(&owned, number).map(|key| (key, (number, bytes)))
        });
        let keys: BTreeMap<Bytes, (u64, u64)> = keys.collect();
        let pair = |(key, (number, bytes)): (Bytes, (u64, u64))| Pair {
            key,
            value: op::value(bytes, number, bytes),
            expires_at_s: 0,
        };
        let pairs: Vec<Pair> = keys.into_iter().map(pair).collect();
        // Discards pairs staged earlier.
        self.ingest = None;
        let mut subject = self.subject.engine.begin_ingest(ranges.clone())?;
        let mut model = self.model.begin_ingest(ranges)?;
        for slice in pairs.chunks(3) {
            self.subject.engine.receive(&mut subject, slice.to_vec())?;
            self.model.receive(&mut model, slice.to_vec())?;
        }
        self.ingest = Some(Ingest { owned, subject, model });
        self.compare_contents()
    }

    fn install(&mut self, region: u64, advance: u64) -> Check {
        let owned = self.owned(region);
        let Some(ingest) = self.ingest.take_if(|ingest| ingest.owned == owned) else {
            return Ok(());
        };
        let at = self.existing(region).unwrap_or_default();
        let index = LogIndex(at.persisted.0.0.max(at.hard_state.commit.0) + advance);
        let at = (index, Term(at.persisted.1.0 + 1));
        self.subject.engine.install(RegionId(region), at, ingest.subject)?;
        self.model.install(RegionId(region), at, ingest.model)?;
        self.compare_contents()?;
        // The region may have been destroyed; a region that starts again has no vote.
        self.both(vec![hard_state(region, at.1.0, region, index.0)])
    }

    fn move_keys(&mut self, from: u64, to: u64) -> Check {
        if let Some(at) = self.existing(from) {
            let last = at.hard_state.commit.max(at.applied).0.min(at.persisted.0.0);
            self.apply_model(from, last)?;
            self.catch_up(from)?;
            let cut = Mark::TruncateSuffix(LogIndex(last + 1));
            // The hard state commits the entries, so that they are applied again in order after a
            // crash.
            let HardState { vote, .. } = at.hard_state;
            self.both(vec![mark(from, cut), hard_state(from, at.persisted.1.0, vote, last)])?;
        }
        self.ingest = None;
        self.owners.values_mut().filter(|owner| **owner == from).for_each(|owner| *owner = to);
        Ok(())
    }

    fn drop_range(&self, region: u64) -> Check {
        let ranges: Vec<KeyRange> = self.owned(region).into_iter().map(op::range).collect();
        if ranges.is_empty() {
            return Ok(());
        }
        self.subject.engine.drop_ranges(&ranges)?;
        Ok(self.model.drop_ranges(&ranges)?)
    }

    fn destroy(&self, region: u64) -> Check {
        if self.existing(region).is_none() {
            return Ok(());
        }
        self.drop_range(region)?;
        self.both(vec![mark(region, Mark::Destroy)])
    }

    fn compare_progress(&self, region: u64) -> Check {
        let wanted = self.model.progress(RegionId(region));
        let Some(wanted) = wanted else {
            ensure!(self.subject.engine.progress(RegionId(region)).is_none(), "an unknown region");
            return Ok(());
        };
        if wanted.destroyed {
            let found = self.subject.engine.progress(RegionId(region));
            ensure!(found.is_none_or(|found| found.destroyed), "region {region} is destroyed");
            return Ok(());
        }
        let found = self.subject.progress(region)?;
        ensure!(!found.destroyed, "region {region} is not destroyed");
        let of = |progress: &Progress| (progress.applied, progress.persisted, progress.hard_state);
        ensure_eq!(of(&found), of(&wanted), "progress of region {region}");
        Ok(())
    }

    fn compare_entries(&self, region: u64) -> Check {
        let first = self.subject.progress(region)?.truncated.0.next();
        let of = |engine: &dyn Fn() -> Result<Vec<stele_types::CommittedEntry>>| {
            let entries = engine()?;
            let key = |e: stele_types::CommittedEntry| (e.index, e.term, e.is_command, e.payload);
            Ok::<Vec<(LogIndex, Term, bool, Bytes)>, Error>(entries.into_iter().map(key).collect())
        };
        let (id, end) = (RegionId(region), LogIndex(u64::MAX));
        let found = of(&|| self.subject.engine.entries(id, first, end, usize::MAX))?;
        let wanted = of(&|| self.model.entries(id, first, end, usize::MAX))?;
        ensure!(found == wanted, "entries of region {region} from {first} on differ");
        Ok(())
    }

    fn compare_contents(&self) -> Check {
        let found = self.subject.engine.view()?.scan(&everything())?;
        let wanted = self.model.view()?.scan(&everything())?;
        ensure_eq!(shapes(&found), shapes(&wanted), "pairs");
        ensure!(found == wanted, "a value differs");
        Ok(())
    }
}

fn entry(region: u64, owned: &[u64], index: u64, term: u64, writes: &[WriteOp]) -> Result<Record> {
    let payload = op::payload(owned, index, term, writes)?;
    let (region, term, index) = (RegionId(region), Term(term), LogIndex(index));
    Ok(Record::Entry(EntryRecord { region, term, index, is_command: true, payload }))
}

/// Returns keys, lengths and checksums, short enough for a message.
fn shapes(pairs: &[Pair]) -> Vec<String> {
    let shape = |pair: &Pair| {
        let crc = stele_types::checksum::crc32c(&pair.value);
        format!("{}+{}~{crc:08x}", String::from_utf8_lossy(&pair.key), pair.value.len())
    };
    pairs.iter().map(shape).collect()
}

const TRIALS_MAX: usize = 600;

pub(super) fn shrink<T: Clone>(mut list: Vec<T>, fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let mut trials = 0;
    let mut chunk = list.len().div_ceil(2).max(1);
    loop {
        let mut start = 0;
        let mut shorter = false;
        while start < list.len() && trials < TRIALS_MAX {
            let end = (start + chunk).min(list.len());
            let candidate = [&list[..start], &list[end..]].concat();
            trials += 1;
            if fails(&candidate) {
                list = candidate;
                shorter = true;
            } else {
                start = end;
            }
        }
        if trials >= TRIALS_MAX || (chunk == 1 && !shorter) {
            return list;
        }
        chunk = chunk.div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_elements_that_matter_stay() {
        let fails = |list: &[u32]| list.contains(&7) && list.contains(&91);
        assert_eq!(shrink((0..100).collect(), fails), vec![7, 91]);
        assert_eq!(shrink(vec![3], |_| true), Vec::<u32>::new());
    }
}
