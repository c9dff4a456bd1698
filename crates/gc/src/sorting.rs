//! Sorts in parts, each a job of its own. Scans get faster from the first part on, values that are
//! replaced in the meantime do not move, and urgent jobs run between parts.

use crate::PolicyKind;
use crate::gc::Shared;
use crate::mover::Plan;
use crate::work::Work;
use std::collections::BTreeSet;
use std::sync::Arc;
use stele_index::{Direction, MergeInputs, MergeSpec, Run, ValueSlice, Version, View};
use stele_types::{Cause, FileId, KeyRange, Result, RunId};

/// Places at which the sorted files that a scan meets are counted, and pairs of each.
const SAMPLES: usize = 8;
const SAMPLE_PAIRS: usize = 100;
/// Limit for the parts that rewrite the same run: a part rewrites the runs that refer to its
/// values.
const PARTS_OF_RUN: u64 = 4;

/// Sort in progress. Lost at a restart: scans must pay again for the unsorted rest.
#[derive(Debug)]
pub(crate) struct Sorting {
    whole: KeyRange,
    pub rest: KeyRange,
    /// Files in key order; their values stay.
    keep: BTreeSet<FileId>,
}

impl Work {
    /// Continues the running sort, or starts one of `range`. Values sorted before stay in place
    /// unless a scan meets too many sorted files.
    pub(crate) fn start_sort(&mut self, shared: &Shared, range: KeyRange) -> Result<()> {
        if self.sorting.is_none() {
            let rewrites_sorted = shared.options().policy == PolicyKind::Nezha
                || self.observe(shared).rewrites_sorted(self.sorted_files_met(shared, &range));
            let keep = if rewrites_sorted { BTreeSet::new() } else { self.saved.sorted.clone() };
            self.sorting = Some(Sorting { whole: range.clone(), rest: range, keep });
        }
        let Some(sorting) = &self.sorting else { return Ok(()) };
        let rest = sorting.rest.clone();
        let version = shared.index.version();
        if !version.runs().any(|run| touches(run, &rest)) {
            // The whole range was deleted in the meantime.
            self.finish_part(shared, &rest);
            return Ok(());
        }
        let part = match shared.options().policy {
            PolicyKind::Nezha => rest,
            _ => part_of(shared, &version, &rest)?,
        };
        let is_first = sorting.rest == sorting.whole;
        let inputs = match is_first && sorting.whole == KeyRange::all() {
            true => all_tiers(&version),
            false => covering(&version, &part),
        };
        let plan = Plan::Range { range: part, keep: sorting.keep.clone() };
        self.start_job(shared, &version, MergeSpec { inputs, cause: Cause::Sort }, Some(plan))
    }

    /// Returns the sorted files that a scan of 100 values of `range` meets on average, out of a few
    /// scans.
    fn sorted_files_met(&self, shared: &Shared, range: &KeyRange) -> f64 {
        let version = shared.index.version();
        let tier = version.tiers().last().map_or(&[][..], |tier| &tier.runs);
        let runs: Vec<&Arc<Run>> = tier.iter().filter(|run| touches(run, range)).collect();
        let step = runs.len().div_ceil(SAMPLES).max(1);
        let (view, mut met, mut samples) = (shared.index.view(), 0, 0);
        for run in runs.iter().step_by(step) {
            let start = run.meta().first_key.clone().max(range.start.clone());
            let from = KeyRange { start, end: range.end.clone() };
            // A block that cannot be read is for the sort to report.
            let Ok(files) = files_met(&view, from) else { continue };
            met += files.intersection(&self.saved.sorted).count();
            samples += 1;
        }
        met as f64 / f64::from(samples.max(1))
    }

    /// Starts to rewrite all values in key order, in one job.
    pub(crate) fn start_sort_of_all(&mut self, shared: &Shared) -> Result<()> {
        let (whole, keep) = (KeyRange::all(), BTreeSet::new());
        self.sorting = Some(Sorting { whole: whole.clone(), rest: whole.clone(), keep });
        let version = shared.index.version();
        let spec = MergeSpec { inputs: all_tiers(&version), cause: Cause::Sort };
        let plan = Plan::Range { range: whole, keep: BTreeSet::new() };
        self.start_job(shared, &version, spec, Some(plan))
    }

    /// Ends the sort of `part`. The last part spends what scans paid.
    pub(crate) fn finish_part(&mut self, shared: &Shared, part: &KeyRange) {
        let whole = match self.sorting.take() {
            Some(mut sorting) if sorting.rest.end != part.end => {
                sorting.rest.start = part.end.clone();
                self.sorting = Some(sorting);
                return;
            }
            Some(sorting) => sorting.whole,
            None => part.clone(),
        };
        if whole == KeyRange::all() {
            self.saved.sorted_at_s = shared.clock.unix_seconds();
        }
        shared.heat.lock().spend(&whole);
    }
}

/// Returns the value files that a scan of 100 values meets.
fn files_met(view: &View, range: KeyRange) -> Result<BTreeSet<FileId>> {
    let (mut pairs, mut files) = (view.iter(range, Direction::Forward)?, BTreeSet::new());
    for _ in 0..SAMPLE_PAIRS {
        if !pairs.advance()? {
            break;
        }
        if let ValueSlice::At(at) = pairs.value() {
            files.insert(at.file);
        }
    }
    Ok(files)
}

/// Returns the first part of `rest`: values of half a value file, or a quarter of a run if that is
/// more.
fn part_of(shared: &Shared, version: &Version, rest: &KeyRange) -> Result<KeyRange> {
    let bytes_min = shared.options().value_file_bytes_max / 2;
    let runs = version.tiers().last().map_or(&[][..], |tier| &tier.runs);
    let mut part = rest.clone();
    let (mut bytes, mut bytes_max) = (0, bytes_min);
    for run in runs.iter().filter(|run| touches(run, rest)) {
        if bytes >= bytes_min {
            part.end = run.meta().first_key.clone();
            break;
        }
        let of_run = run.meta().refs.values().map(|live| live.bytes).sum::<u64>();
        bytes += of_run;
        bytes_max = bytes_max.max(of_run / PARTS_OF_RUN);
    }
    if let Some(end) = shared.index.view().first_part(&part, bytes_max as f64)? {
        part.end = end;
    }
    Ok(part)
}

fn touches(run: &Run, range: &KeyRange) -> bool {
    let meta = run.meta();
    meta.entries > 0 && range.start <= meta.last_key && range.is_below_end(&meta.first_key)
}

pub(crate) fn all_tiers(version: &Version) -> MergeInputs {
    MergeInputs::Tiers(version.tiers().iter().map(|tier| tier.age).collect())
}

/// Returns the runs to rewrite so that the values of `range` come into key order: runs of the large
/// level, or all tiers if these are the whole level.
fn covering(version: &Version, range: &KeyRange) -> MergeInputs {
    let Some(oldest) = version.tiers().last() else { return all_tiers(version) };
    let inside = oldest.runs.iter().filter(|run| touches(run, range));
    let runs: Vec<RunId> = inside.map(|run| run.id()).collect();
    if runs.is_empty() || runs.len() == oldest.runs.len() {
        return all_tiers(version);
    }
    MergeInputs::Runs { age: oldest.age, runs }
}
