//! Self-contained HTML page with the results and curves of a run.

use crate::args::Wire;
use crate::report::{Round, spread};
use std::fmt::Write;

const COLOURS: [&str; 6] = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a"];
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 260.0;

/// Returns the page.
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

/// Draws one line per round.
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
