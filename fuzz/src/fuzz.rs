//! Runs one target over many inputs.

use crate::coverage::Coverage;
use crate::mutate::{self, mutate};
use crate::{Target, memory};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use stele_types::Prng;

/// A run that takes longer is a finding.
const RUN_TIME_MAX: Duration = Duration::from_secs(5);
/// Inputs kept; beyond them new ones replace old ones.
const INPUTS_MAX: usize = 20_000;
const MINIMISE_TIME_MAX: Duration = Duration::from_secs(10);

thread_local! {
    /// The first panic since the last look, also of a task whose runtime caught it.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
    static IS_FUZZING: RefCell<bool> = const { RefCell::new(false) };
}

/// What a target does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It panicked: where, and the words.
    Panic(String),
    /// It held so many bytes, more than it may.
    Memory(usize, usize),
    /// It took so long.
    Slow(Duration),
}

impl Finding {
    /// Whether both have one cause, as far as one can tell.
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

/// How long to go on, and with which choices.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Runs, at most.
    pub runs: u64,
    /// Time, at most.
    pub time: Duration,
    /// Decides every mutation.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    /// Inputs run.
    pub runs: u64,
    /// How long that took.
    pub took: Duration,
    /// Inputs kept to make others from.
    pub inputs: usize,
    /// Places reached, when the build counts them.
    pub places: usize,
    /// Most memory that a run held.
    pub held_bytes: usize,
    /// The first input that shows a fault, as small as it could be made, and the fault.
    pub failed: Option<(Vec<u8>, Finding)>,
}

/// Notes panics of this thread in place of printing them. Called once for the process.
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
            let words = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let words = words.or_else(|| payload.downcast_ref::<String>().cloned());
            let words = words.unwrap_or_else(|| "no words".to_owned());
            PANICKED.with_borrow_mut(|first| {
                first.get_or_insert_with(|| format!("{place} {words}"));
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

/// Runs seeds, then mutations of them, until a limit or the first finding. `before` sees each input
/// before it is run.
pub fn fuzz(target: &Target, limits: &Limits, mut before: impl FnMut(&[u8])) -> Report {
    catch_panics();
    let started = Instant::now();
    let mut inputs = (target.seeds)();
    if inputs.is_empty() {
        inputs.push(Vec::new());
    }
    // What is made once and kept, such as a runtime, is no run's own memory.
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
        let news = coverage.is_counted() && coverage.is_news();
        if news && !is_seed {
            keep(&mut inputs, input, seeds, &mut chance);
        }
    }
    (report.took, report.inputs) = (started.elapsed(), inputs.len());
    report.places = coverage.places();
    report
}

fn next_input(target: &Target, inputs: &[Vec<u8>], seeds: usize, chance: &mut Prng) -> Vec<u8> {
    let mut pick = || {
        // The newest inputs reached what others did not.
        let (count, late) = (inputs.len() as u64, inputs.len().saturating_sub(seeds) as u64);
        let at = match chance.below(3) {
            0 => count - 1 - chance.below(late.clamp(1, 50)),
            _ => chance.below(count),
        };
        inputs.get(at as usize).map_or(&[][..], Vec::as_slice)
    };
    let (mut input, other) = (pick().to_vec(), pick());
    mutate(&mut input, other, chance);
    if let Some(reseal) = target.reseal
        && chance.below(8) > 0
    {
        reseal(&mut input);
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

/// Leaves out what the finding does not need.
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
            let resealed = target.reseal.map(|reseal| {
                let mut resealed = candidate.clone();
                reseal(&mut resealed);
                resealed
            });
            let smaller = resealed.filter(|it| it.len() < input.len());
            if try_it(&candidate, &mut last) {
                input = candidate;
            } else if let Some(resealed) = smaller.filter(|it| try_it(it, &mut last)) {
                input = resealed;
            } else {
                at += step;
            }
        }
        step /= 2;
    }
    (input, last)
}
