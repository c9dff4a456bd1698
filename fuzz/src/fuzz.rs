//! Fuzzing loop: runs one target with many inputs.

use crate::coverage::Coverage;
use crate::mutate::{self, mutate};
use crate::{Target, memory};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use stele_types::Prng;

/// Time limit of a run; a longer run is a finding.
const RUN_TIME_MAX: Duration = Duration::from_secs(5);
/// Limit of kept inputs; beyond it new ones replace old ones.
const INPUTS_MAX: usize = 20_000;
const MINIMISE_TIME_MAX: Duration = Duration::from_secs(10);

thread_local! {
    /// First panic since the last check, including panics of tasks that their runtime caught.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
    static IS_FUZZING: RefCell<bool> = const { RefCell::new(false) };
}

/// Violation found in a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Panic: location and message.
    Panic(String),
    /// Memory above the bound: bytes held, bound.
    Memory(usize, usize),
    /// Run time above the limit.
    Slow(Duration),
}

impl Finding {
    /// Returns true if both probably have the same cause.
    fn is_like(&self, other: &Self) -> bool {
        let place = |text: &str| text.split(' ').next().map(str::to_owned);
        match (self, other) {
            (Self::Panic(one), Self::Panic(two)) => place(one) == place(two),
            (one, two) => std::mem::discriminant(one) == std::mem::discriminant(two),
        }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Panic(what) => write!(f, "panic at {what}"),
            Self::Memory(held, bound) => write!(f, "{held} bytes held, the bound is {bound}"),
            Self::Slow(took) => write!(f, "one run took {:.1} s", took.as_secs_f64()),
        }
    }
}

/// Limits and seed of fuzzing.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Limit of runs.
    pub runs: u64,
    /// Limit of time.
    pub time: Duration,
    /// Seed of all mutations.
    pub seed: u64,
}

/// Result of fuzzing.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of runs.
    pub runs: u64,
    /// Elapsed time.
    pub took: Duration,
    /// Number of kept inputs.
    pub inputs: usize,
    /// Number of reached locations, if the build counts them.
    pub places: usize,
    /// Peak memory of a run.
    pub held_bytes: usize,
    /// First input with a finding, minimised, and the finding.
    pub failed: Option<(Vec<u8>, Finding)>,
}

/// Records panics of this thread instead of printing them. Must be called once per process.
pub fn catch_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_FUZZING.with_borrow(|is| *is) {
                return print(info);
            }
            let place = info.location().map_or("unknown".to_owned(), ToString::to_string);
            let payload = info.payload();
            let message = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message = message.or_else(|| payload.downcast_ref::<String>().cloned());
            let message = message.unwrap_or_else(|| "no message".to_owned());
            PANICKED.with_borrow_mut(|first| {
                first.get_or_insert_with(|| format!("{place} {message}"));
            });
        }));
    });
}

/// Runs one input.
pub fn run_one(target: &Target, input: &[u8]) -> (usize, Option<Finding>) {
    IS_FUZZING.set(true);
    PANICKED.take();
    let started = Instant::now();
    let held = memory::peak_of(|| {
        let _ = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    });
    let took = started.elapsed();
    IS_FUZZING.set(false);
    let bound = target.bound.of(input.len());
    let finding = match PANICKED.take() {
        Some(what) => Some(Finding::Panic(what)),
        None if held > bound => Some(Finding::Memory(held, bound)),
        None if took > RUN_TIME_MAX => Some(Finding::Slow(took)),
        None => None,
    };
    (held, finding)
}

/// Runs seeds, then mutations, until a limit or the first finding. `before` gets each input before
/// it runs.
pub fn fuzz(target: &Target, limits: &Limits, mut before: impl FnMut(&[u8])) -> Report {
    catch_panics();
    let started = Instant::now();
    let mut inputs = (target.seeds)();
    if inputs.is_empty() {
        inputs.push(Vec::new());
    }
    // State created once, such as a runtime, does not count as a run's memory.
    for input in &inputs {
        before(input);
        run_one(target, input);
    }
    let mut coverage = Coverage::new();
    coverage.clear();
    let (mut chance, seeds) = (Prng::new(limits.seed), inputs.len());
    let mut report = Report::default();
    let mut first = inputs.clone().into_iter();
    while report.runs < limits.runs && started.elapsed() < limits.time {
        let is_seed = first.len() > 0;
        let input = first.next().unwrap_or_else(|| next_input(target, &inputs, seeds, &mut chance));
        before(&input);
        let (held, finding) = run_one(target, &input);
        report.runs += 1;
        report.held_bytes = report.held_bytes.max(held);
        if let Some(finding) = finding {
            report.failed = Some(minimised(target, input, finding, &mut before));
            break;
        }
        let is_new = coverage.is_counted() && coverage.record_new();
        if is_new && !is_seed {
            keep(&mut inputs, input, seeds, &mut chance);
        }
    }
    (report.took, report.inputs) = (started.elapsed(), inputs.len());
    report.places = coverage.places();
    report
}

fn next_input(target: &Target, inputs: &[Vec<u8>], seeds: usize, chance: &mut Prng) -> Vec<u8> {
    let mut pick = || {
        // The newest inputs reached code that others did not.
        let (count, late) = (inputs.len() as u64, inputs.len().saturating_sub(seeds) as u64);
        let at = match chance.below(3) {
            0 => count - 1 - chance.below(late.clamp(1, 50)),
            _ => chance.below(count),
        };
        inputs.get(at as usize).map_or(&[][..], Vec::as_slice)
    };
    let (mut input, other) = (pick().to_vec(), pick());
    mutate(&mut input, other, chance);
    if let Some(fix_checksums) = target.fix_checksums
        && chance.below(8) > 0
    {
        fix_checksums(&mut input);
        input.truncate(mutate::INPUT_BYTES_MAX);
    }
    input
}

fn keep(inputs: &mut Vec<Vec<u8>>, input: Vec<u8>, seeds: usize, chance: &mut Prng) {
    if inputs.len() < INPUTS_MAX {
        inputs.push(input);
        return;
    }
    let at = seeds + chance.below((inputs.len() - seeds) as u64) as usize;
    if let Some(old) = inputs.get_mut(at) {
        *old = input;
    }
}

/// Removes parts of the input that the finding does not need.
fn minimised(
    target: &Target,
    mut input: Vec<u8>,
    finding: Finding,
    before: &mut impl FnMut(&[u8]),
) -> (Vec<u8>, Finding) {
    if matches!(finding, Finding::Slow(_)) {
        return (input, finding);
    }
    let started = Instant::now();
    let mut last = finding;
    let mut try_it = |candidate: &[u8], last: &mut Finding| {
        before(candidate);
        let found = run_one(target, candidate).1.filter(|found| found.is_like(last));
        let holds = found.is_some() && started.elapsed() < MINIMISE_TIME_MAX;
        if let Some(found) = found.filter(|_| holds) {
            *last = found;
        }
        holds
    };
    let mut step = input.len().div_ceil(2);
    while step > 0 {
        let mut at = 0;
        while at < input.len() {
            let mut candidate = input.clone();
            candidate.drain(at..(at + step).min(input.len()));
            let fixed = target.fix_checksums.map(|fix_checksums| {
                let mut fixed = candidate.clone();
                fix_checksums(&mut fixed);
                fixed
            });
            let smaller = fixed.filter(|it| it.len() < input.len());
            if try_it(&candidate, &mut last) {
                input = candidate;
            } else if let Some(fixed) = smaller.filter(|it| try_it(it, &mut last)) {
                input = fixed;
            } else {
                at += step;
            }
        }
        step /= 2;
    }
    (input, last)
}
