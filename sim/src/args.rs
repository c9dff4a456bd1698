//! Command line of the simulation.

use crate::faults::{Fault, FaultSet};
use crate::plan::{Mode, Plan, SECOND};
use std::ops::Range;
use std::path::PathBuf;

/// Usage text of the command line.
pub const USAGE: &str = "usage: cargo run -p stele-sim -- [--seed N | --seeds A..B] [options]

  --seed N            one run
  --seeds A..B        one run for each seed from A to B, B exclusive
  --minutes M         stop after M minutes of real time; without seeds, start at seed 1
  --mode MODE         safety (default) or liveness
  --faults A,B        these faults instead of those that the seed draws; none for no faults
  --without A,B       without these faults
  --stores N          stores of each node, instead of the seed's
  --seconds S         virtual seconds of faults, instead of the seed's
  --ops N             operations of clients at most, instead of the seed's
  --trace [FILE]      print every event; with FILE, write a trace for Perfetto
  --history FILE      write the history for cluster-tests/porcupine
  --plant             with --history: plant a stale read in each group
  --keep-going        continue after a violation
  --no-minimise       do not minimise the plan after a violation
  --quiet             print violations and totals only
";

/// Parsed command line.
#[derive(Clone, Debug, Default)]
pub struct Args {
    /// Seeds to run, end exclusive.
    pub seeds: Range<u64>,
    /// Limit of real time in minutes; `None` for no limit.
    pub minutes: Option<f64>,
    /// Property that the runs check.
    pub mode: Mode,
    faults: Option<FaultSet>,
    without: FaultSet,
    stores: Option<u64>,
    nanos: Option<u64>,
    ops: Option<u64>,
    /// Print trace lines as they happen.
    pub lines: bool,
    /// File of the trace for Perfetto.
    pub trace: Option<PathBuf>,
    /// File of the history for Porcupine.
    pub history: Option<PathBuf>,
    /// Plant stale reads in the history.
    pub plants: bool,
    /// Continue after a violation.
    pub keeps_going: bool,
    /// Minimise the plan after a violation.
    pub minimises: bool,
    /// Print violations and totals only.
    pub is_quiet: bool,
}

impl Args {
    /// Parses a command line. Fails with a text that names the invalid argument.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut args = Self { seeds: 1..2, minimises: true, ..Self::default() };
        let mut rest = arguments.into_iter().peekable();
        let mut bounded = false;
        while let Some(flag) = rest.next() {
            let mut value = || rest.next().ok_or(format!("{flag} needs a value"));
            match flag.as_str() {
                "--seed" => {
                    let seed = number(&value()?)?;
                    (args.seeds, bounded) = (seed..seed + 1, true);
                }
                "--seeds" => (args.seeds, bounded) = (range(&value()?)?, true),
                "--minutes" => {
                    let minutes = value()?.parse().map_err(|_| "--minutes needs a number")?;
                    args.minutes = Some(minutes);
                }
                "--mode" => args.mode = mode(&value()?)?,
                "--faults" => args.faults = Some(faults(&value()?)?),
                "--without" => args.without = faults(&value()?)?,
                "--stores" => args.stores = Some(number(&value()?)?),
                "--seconds" => args.nanos = Some(number(&value()?)? * SECOND),
                "--nanos" => args.nanos = Some(number(&value()?)?),
                "--ops" => args.ops = Some(number(&value()?)?),
                "--trace" => match rest.next_if(|next| !next.starts_with("--")) {
                    Some(path) => args.trace = Some(path.into()),
                    None => args.lines = true,
                },
                "--history" => args.history = Some(value()?.into()),
                "--plant" => args.plants = true,
                "--keep-going" => args.keeps_going = true,
                "--no-minimise" => args.minimises = false,
                "--quiet" => args.is_quiet = true,
                other => return Err(format!("unknown option {other}\n\n{USAGE}")),
            }
        }
        if !bounded && args.minutes.is_some() {
            args.seeds = 1..u64::MAX;
        }
        Ok(args)
    }

    /// Returns the plan of a seed with the options of the command line applied.
    pub fn plan(&self, seed: u64) -> Plan {
        let mut plan = crate::helical::plan_of(seed, self.mode);
        plan.faults = self.faults.unwrap_or(plan.faults);
        self.without.iter().for_each(|fault| plan.faults.remove(fault));
        if self.faults.is_some() {
            plan.spread_stores();
            plan.lengthen();
        }
        plan.stores_per_node = self.stores.unwrap_or(plan.stores_per_node);
        plan.nanos = self.nanos.unwrap_or(plan.nanos);
        plan.ops_max = self.ops.unwrap_or(plan.ops_max);
        plan
    }
}

/// Returns the command that repeats a run.
pub fn replay(plan: &Plan) -> String {
    let mode = match plan.mode {
        Mode::Safety => "safety",
        Mode::Liveness => "liveness",
    };
    let faults = match plan.faults.names() {
        names if names.is_empty() => "none".to_owned(),
        names => names,
    };
    format!(
        "cargo run -p stele-sim -- --seed {} --mode {mode} --faults {faults} --stores {} \
         --nanos {} --ops {}",
        plan.seed, plan.stores_per_node, plan.nanos, plan.ops_max
    )
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or(format!("`{text}` is not a range A..B"))?;
    Ok(number(from)?..number(to)?)
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "safety" => Ok(Mode::Safety),
        "liveness" => Ok(Mode::Liveness),
        other => Err(format!("unknown mode `{other}`; use safety or liveness")),
    }
}

fn faults(text: &str) -> Result<FaultSet, String> {
    let mut set = FaultSet::default();
    for name in text.split(',').filter(|name| !name.is_empty() && *name != "none") {
        let known = || Fault::ALL.iter().map(|fault| fault.name()).collect::<Vec<_>>().join(" ");
        let fault = Fault::from_name(name);
        set.insert(
            fault.ok_or_else(|| format!("unknown fault `{name}`; known faults: {}", known()))?,
        );
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_line_repeats_the_plan() {
        let mut plan = Plan::draw(77, Mode::Liveness);
        plan.faults.insert(Fault::Merge);
        plan.nanos = 123;
        let line = replay(&plan);
        let words = line.split(' ').skip_while(|word| *word != "--").skip(1).map(str::to_owned);
        let again = Args::parse(words).unwrap().plan(77);
        assert_eq!(format!("{again:?}"), format!("{plan:?}"));
    }

    #[test]
    fn what_is_not_known_is_named() {
        let parse = |text: &str| Args::parse(text.split(' ').map(str::to_owned));
        assert!(parse("--faults rain").unwrap_err().contains("rain"));
        assert!(parse("--seeds 7").unwrap_err().contains("A..B"));
        assert!(parse("--colour").unwrap_err().contains("--colour"));
        assert_eq!(parse("--minutes 2").unwrap().seeds, 1..u64::MAX);
    }
}
