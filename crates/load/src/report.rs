//! Results of rounds over several servers, each of which is measured in turn: the comparison of the
//! targets, and a self-contained HTML page with the results and curves of a run.

use crate::args::{Wire, Workload};
use crate::driver::{self, Part, Run};
use crate::process_io::processor_seconds;
use crate::server::Target;
use crate::workload::{Records, distribution};
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
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

pub(crate) fn spread(rounds: &[Round], url: &str, value: impl Fn(&Round) -> f64) -> Spread {
    Spread::of(rounds.iter().filter(|round| round.url == url).map(value).collect())
}

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

/// Measures `targets`, the clients of the servers that `args` names in that order.
pub async fn measure<T: Target>(args: &Wire, targets: &[Arc<T>]) -> Result<Vec<Round>> {
    let records = Arc::new(Records::new(&args.load));
    for (url, target) in args.target.iter().zip(targets) {
        prepare(args, url, target, &records).await?;
    }
    let mut rounds = Vec::new();
    for number in 0..args.rounds {
        for (url, target) in args.target.iter().zip(targets) {
            eprintln!("round {} of {}: {url}", number + 1, args.rounds);
            let part = Part { workload: args.load.workload, round: number, duration: None };
            let (before, own) = (target.used().await?, processor_seconds(std::process::id())?);
            let run = driver::run(args, target, &records, part).await?;
            let generator_seconds = processor_seconds(std::process::id())? - own;
            let used = target.used_since(before, &run).await?;
            rounds.push(Round { url: url.clone(), number, run, used, generator_seconds });
        }
    }
    Ok(rounds)
}

async fn prepare<T: Target>(
    args: &Wire,
    url: &str,
    target: &Arc<T>,
    records: &Arc<Records>,
) -> Result<()> {
    let load = &args.load;
    if load.workload != Workload::Load && !load.skip_load {
        eprintln!("{url}: loading {} records", load.records);
        let part = Part { workload: Workload::Load, round: 0, duration: None };
        let run = driver::run(args, target, records, part).await?;
        if run.errors > 0 {
            let reason = run.error.unwrap_or_default();
            return Err(Error::Unavailable(format!(
                "{url}: {} inserts failed: {reason}",
                run.errors
            )));
        }
    }
    if args.warm_up > 0 && load.workload != Workload::Load {
        eprintln!("{url}: warming up for {} s", args.warm_up);
        let duration = Some(Duration::from_secs(args.warm_up));
        driver::run(args, target, records, Part { workload: load.workload, round: 0, duration })
            .await?;
    }
    Ok(())
}

const COLOURS: [&str; 6] = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a"];
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 260.0;

pub(crate) fn page(args: &Wire, rounds: &[Round]) -> String {
    let mut page = String::from(
        "<!doctype html><meta charset=utf-8><title>stele bench wire</title>\
         <style>body{font:15px sans-serif;margin:2em;max-width:60em}table{border-collapse:collapse}\
         td,th{padding:.3em .8em;border-bottom:1px solid #ccc;text-align:right}\
         td:first-child,th:first-child{text-align:left}</style><h1>stele bench wire</h1>",
    );
    let load = &args.load;
    let due = load.rate.map_or_else(String::new, |rate| {
        format!(
            " {rate} operations are due per second; the latency of each counts from its due time."
        )
    });
    let _ = write!(
        page,
        "<p>{:?}, {} clients, values of {} B, {} records, {} rounds.{due}</p><table><tr><th>target\
         <th>operations/s: median<th>least<th>most<th>p50 µs<th>p99 µs",
        load.workload, load.threads, load.value_bytes, load.records, args.rounds
    );
    for (url, colour) in args.target.iter().zip(COLOURS.iter().cycle()) {
        let speed = spread(rounds, url, Round::per_second);
        let p50 = spread(rounds, url, |round| round.run.latencies.all().p50_us);
        let p99 = spread(rounds, url, |round| round.run.latencies.all().p99_us);
        let _ = write!(
            page,
            "<tr><td><span style=color:{colour}>■</span> {}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}\
             <td>{:.0}",
            escaped(url),
            speed.median,
            speed.min,
            speed.max,
            p50.median,
            p99.median
        );
    }
    page.push_str("</table><h2>Operations in each 100 ms</h2>");
    page.push_str(&curves(args, rounds));
    page
}

fn curves(args: &Wire, rounds: &[Round]) -> String {
    let top = rounds.iter().flat_map(|round| &round.run.curve).max().copied().unwrap_or(1).max(1);
    let longest = rounds.iter().map(|round| round.run.curve.len()).max().unwrap_or(1).max(2);
    let mut svg = format!(
        "<svg viewBox='0 0 {WIDTH} {}' width={WIDTH}><text x=4 y=14>{top}</text>",
        HEIGHT + 20.0
    );
    for round in rounds {
        let place = args.target.iter().position(|url| *url == round.url).unwrap_or(0);
        let colour = COLOURS.get(place % COLOURS.len()).unwrap_or(&"black");
        let point = |(slice, count): (usize, &u64)| {
            let x = WIDTH * slice as f64 / (longest - 1) as f64;
            format!("{x:.1},{:.1}", HEIGHT * (1.0 - *count as f64 / top as f64))
        };
        let points: Vec<String> = round.run.curve.iter().enumerate().map(point).collect();
        let _ =
            write!(svg, "<polyline fill=none stroke='{colour}' points='{}'/>", points.join(" "));
    }
    let seconds = longest as f64 / 10.0;
    let _ = write!(svg, "<text x={} y={}>{seconds:.0} s</text></svg>", WIDTH - 50.0, HEIGHT + 16.0);
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
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
