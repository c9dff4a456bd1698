//! Results of rounds, and the comparison of targets.

use crate::args::Wire;
use crate::choice::distribution;
use crate::driver::Run;
use crate::page::page;
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use stele_types::{Error, Result};

/// Result of one target in one round.
pub struct Round {
    /// Name of the target.
    pub url: String,
    /// Counted from 0.
    pub number: u64,
    /// What the clients measured.
    pub run: Run,
    /// Resources that its processes used.
    pub used: Value,
    /// Processor time of the generator, in seconds.
    pub generator_seconds: f64,
}

impl Round {
    /// Returns the operations a second.
    pub fn per_second(&self) -> f64 {
        self.run.operations as f64 / self.run.seconds
    }

    /// Returns the result as one JSON object.
    pub fn to_json(&self, args: &Wire) -> Value {
        let run = &self.run;
        let busy = run.curve.len().saturating_sub(1);
        let whole_slices = run.curve.get(..busy).unwrap_or_default();
        json!({
            "target": self.url,
            "round": self.number + 1,
            "configuration": configuration(args),
            "seconds": run.seconds,
            "operations": run.operations,
            "operations_per_second": self.per_second(),
            "errors": run.errors,
            "error": run.error,
            "not_found": run.not_found,
            "payload_bytes": run.payload_bytes,
            "read_bytes": run.read_bytes,
            "latency": run.latencies.to_json(),
            "latency_all": run.latencies.all().to_json(),
            "latency_writes": run.latencies.writes().to_json(),
            "slowest_100_ms_operations": whole_slices.iter().min(),
            "per_100_ms": whole_slices,
            "per_second": {
                "mean_us": run.per_second.iter().map(|it| it.mean_us).collect::<Vec<_>>(),
                "p99_us": run.per_second.iter().map(|it| it.p99_us).collect::<Vec<_>>(),
            },
            "servers": self.used,
            "generator_processor_us_per_operation":
                self.generator_seconds * 1e6 / run.operations.max(1) as f64,
        })
    }
}

fn configuration(args: &Wire) -> Value {
    let load = &args.load;
    let name = |value: Option<clap::builder::PossibleValue>| {
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    };
    json!({
        "workload": name(load.workload.to_possible_value()),
        "distribution": name(distribution(load).to_possible_value()),
        "records": load.records,
        "clients": load.threads,
        "connections": args.connections,
        "rate": load.rate,
        "loop": if load.rate.is_some() { "open" } else { "closed" },
        "value_bytes": load.value_bytes,
        "key_bytes": load.key_bytes,
        "deletes_percent": load.deletes,
        "scan_length_max": load.scan_length_max,
        "warm_up_s": args.warm_up,
        "redis_replicas": args.redis_replicas,
        "seed": load.seed,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// Prints a line for each round and one for their summary, and writes the page that `args` requests.
pub fn print(
    args: &Wire,
    rounds: &[Round],
    mut line: impl FnMut(&str) -> Result<()>,
) -> Result<()> {
    for round in rounds {
        line(&round.to_json(args).to_string())?;
    }
    line(&summary(args, rounds).to_string())?;
    let Some(path) = &args.html else { return Ok(()) };
    std::fs::write(path, page(args, rounds)).map_err(|error| Error::io("write", path, error))
}

/// Returns whether an operation failed.
pub fn failed(rounds: &[Round]) -> bool {
    rounds.iter().any(|round| round.run.errors > 0)
}

/// Median, minimum and maximum over all rounds.
pub(crate) struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (at(middle.saturating_sub(1)) + at(middle)) / 2.0,
            _ => at(middle),
        };
        Self { median, min: at(0), max: at(values.len().saturating_sub(1)) }
    }

    fn to_json(&self) -> Value {
        json!({"median": self.median, "min": self.min, "max": self.max})
    }
}

/// Returns the spread of a value of one target over its rounds.
pub(crate) fn spread(rounds: &[Round], url: &str, value: impl Fn(&Round) -> f64) -> Spread {
    Spread::of(rounds.iter().filter(|round| round.url == url).map(value).collect())
}

/// Returns the spread of each target, and the ratio of the first target to each other, round by
/// round.
pub(crate) fn summary(args: &Wire, rounds: &[Round]) -> Value {
    let mut targets = Map::new();
    for url in &args.target {
        let p99 = |round: &Round| round.run.latencies.all().p99_us;
        let p50 = |round: &Round| round.run.latencies.all().p50_us;
        let spreads = json!({
            "operations_per_second": spread(rounds, url, Round::per_second).to_json(),
            "p50_us": spread(rounds, url, p50).to_json(),
            "p99_us": spread(rounds, url, p99).to_json(),
            "errors": rounds.iter().filter(|round| round.url == *url)
                .map(|round| round.run.errors).sum::<u64>(),
        });
        targets.insert(url.clone(), spreads);
    }
    let mut ratios = Map::new();
    if let Some((first, others)) = args.target.split_first() {
        let of = |url: &str| -> Vec<f64> {
            rounds.iter().filter(|round| round.url == url).map(Round::per_second).collect()
        };
        for other in others {
            let pairs = of(first).into_iter().zip(of(other));
            let ratio = Spread::of(pairs.map(|(mine, theirs)| mine / theirs).collect());
            ratios.insert(other.clone(), ratio.to_json());
        }
    }
    json!({
        "summary": targets,
        "first_to_others": ratios,
        "rounds": args.rounds,
        "configuration": configuration(args),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_two() {
        let spread = Spread::of(vec![4.0, 1.0, 2.0, 3.0]);
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
        assert_eq!(Spread::of(vec![3.0, 9.0, 1.0]).median, 3.0);
        assert_eq!(Spread::of(Vec::new()).median, 0.0);
    }
}
