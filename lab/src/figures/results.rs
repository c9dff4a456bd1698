//! Measured figures that the repository keeps: the rounds of each series at each place, without
//! curves.

use super::limits::{Verdict, behind_others, behind_papers, compare, words};
use super::measure::{Measurement, Results};
use super::numbers::{BUSY, Shown, number};
use super::plan::Amounts;
use super::plot::short;
use super::spec::Spec;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Fields that are kept besides those that figures show.
const BESIDE: [&str; 3] = ["p99_us", "cpu_us_per_op", BUSY];

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub(crate) struct Kept {
    pub commit: String,
    pub date: String,
    pub device: String,
    pub run: String,
    pub x: String,
    pub series: String,
    pub phase: String,
    /// Number of each round, by the path of its field; `None` where a call failed.
    pub rounds: BTreeMap<String, Vec<Option<f64>>>,
}

impl Kept {
    /// Returns the key by which a later measurement replaces this one.
    fn place(&self) -> (&str, &str, &str, &str, &str) {
        (&self.device, &self.run, &self.x, &self.series, &self.phase)
    }
}

/// Reads the lines to keep from a `figures.jsonl`.
pub(super) fn read(spec: &Spec, text: &str, date: &str) -> Result<Vec<Kept>> {
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let setup = lines.iter().find_map(|line| line["setup"].as_array());
    let setup: Vec<&str> =
        setup.context("it has no setup")?.iter().filter_map(Value::as_str).collect();
    let setting = |name: &str| setup.iter().find_map(|line| line.strip_prefix(name));
    ensure!(setting("build: ") == Some("release"), "it is not from a release build");
    let commit = setting("commit: ").context("it does not name its commit")?;
    // Leaves out the name of the device.
    let device = setting("device: ").context("it does not name its device")?;
    let device = device.split(" (").next().unwrap_or(device);
    let scale = setting("scale ").and_then(|scale| scale.split(',').next()).unwrap_or("1");
    let with_scale = |device: &str| match scale {
        "1" => device.to_owned(),
        scale => format!("{device}, {scale} times the data"),
    };
    let mut kept: Vec<Kept> = Vec::new();
    for line in lines.iter().filter(|line| line["measured"].is_object()) {
        let text = |name: &str| line[name].as_str().map(str::to_owned).context(name.to_owned());
        let new = Kept {
            commit: commit.to_owned(),
            date: date.to_owned(),
            // A line of the test-bed names its devices.
            device: with_scale(line["measured"]["device"].as_str().unwrap_or(device)),
            run: text("run")?,
            x: text("x")?,
            series: text("series")?,
            phase: text("phase")?,
            rounds: BTreeMap::new(),
        };
        let round = line["round"].as_u64().context("round")?.saturating_sub(1) as usize;
        let at = match kept.iter().position(|it| it.place() == new.place()) {
            Some(at) => at,
            None => {
                kept.push(new);
                kept.len() - 1
            }
        };
        for field in fields(spec, &kept[at].run) {
            let Some(found) = number(&line["measured"], &field) else { continue };
            let rounds = kept[at].rounds.entry(field).or_default();
            rounds.resize(rounds.len().max(round + 1), None);
            rounds[round] = Some(rounded(found));
        }
    }
    Ok(kept)
}

fn fields(spec: &Spec, run: &str) -> BTreeSet<String> {
    let shown = spec.figures.iter().filter(|figure| figure.run == run);
    shown.map(|figure| figure.field.clone()).chain(BESIDE.map(str::to_owned)).collect()
}

pub(crate) fn rounded(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}

/// Keeps the newest line of each place, in the order of the lines.
pub(crate) fn newest(lines: Vec<Kept>) -> Vec<Kept> {
    let is_newest = |at: usize| !lines[at + 1..].iter().any(|it| it.place() == lines[at].place());
    (0..lines.len()).filter(|at| is_newest(*at)).map(|at| lines[at].clone()).collect()
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub workload: String,
    pub beside: String,
    /// Ratios of ours to it where ours is ahead, each with its place.
    pub ahead: Vec<String>,
    pub even: Vec<String>,
    pub behind: Vec<String>,
}

/// Content of the page about kept figures.
#[derive(Debug, Default)]
pub(crate) struct Digest {
    /// Comparisons of the figures with a `summary` to their base.
    pub comparisons: Vec<Comparison>,
    /// Claims of papers that ours does not reach.
    pub behind_papers: Vec<String>,
    /// Series other than the base that ours does not reach.
    pub behind_others: Vec<String>,
    /// All figures as tables.
    pub tables: String,
}

pub(super) fn digest(spec: &Spec, lines: &[Kept]) -> Result<Digest> {
    let mut digest = Digest::default();
    let devices: BTreeSet<&str> = lines.iter().map(|line| line.device.as_str()).collect();
    for device in devices {
        let of_device: Vec<&Kept> = lines.iter().filter(|line| line.device == device).collect();
        let results = results(&of_device);
        let shown = shown(spec, &of_device, &results)?;
        digest.comparisons.extend(shown.iter().filter_map(|it| comparison(it, device)));
        digest.behind_papers.extend(behind_papers(&shown));
        digest.behind_others.extend(behind_others(&shown));
        let _ = writeln!(digest.tables, "\n## {device}");
        for figure in &shown {
            section(&mut digest.tables, figure, &of_device);
        }
    }
    Ok(digest)
}

/// Returns the figures that have a number among the lines of one device.
fn shown<'a>(spec: &'a Spec, lines: &[&Kept], results: &'a Results) -> Result<Vec<Shown<'a>>> {
    let mut all = Vec::new();
    for figure in &spec.figures {
        let run = spec.run(&figure.run)?;
        let is_there =
            |series: &str| lines.iter().any(|it| it.run == run.name && it.series == series);
        let amounts = Amounts { scale: 1.0, is_tiny: false };
        let mut figure = Shown::new(figure, run, spec.ours(run), amounts, results, is_there);
        let has = |series: &str, figure: &Shown<'_>| {
            figure.places.iter().any(|place| figure.spread(series, place).is_some())
        };
        figure.series = figure.series.iter().copied().filter(|it| has(it, &figure)).collect();
        all.extend((!figure.series.is_empty()).then_some(figure));
    }
    Ok(all)
}

/// Device that the summary does not name.
const PLAIN_DEVICE: &str = "the disk as it is";

fn comparison(shown: &Shown<'_>, device: &str) -> Option<Comparison> {
    let (mut workload, base) = (shown.figure.summary.clone()?, shown.figure.base.clone()?);
    if device != PLAIN_DEVICE {
        let _ = write!(workload, ", on {}", device.split(';').next().unwrap_or(device));
    }
    let mut comparison = Comparison { workload, beside: base.clone(), ..Comparison::default() };
    for place in &shown.places {
        let Some((ratio, verdict)) = compare(shown, &base, place) else { continue };
        let list = match verdict {
            Verdict::Ahead => &mut comparison.ahead,
            Verdict::Even => &mut comparison.even,
            Verdict::Behind => &mut comparison.behind,
        };
        list.push(format!("{} {ratio:.2}×", place.x));
    }
    Some(comparison)
}

fn results(lines: &[&Kept]) -> Results {
    let mut results = Results::default();
    for kept in lines {
        let rounds = kept.rounds.values().map(Vec::len).max().unwrap_or(0);
        for round in 0..rounds {
            let mut line = json!({});
            for (field, numbers) in &kept.rounds {
                if let Some(Some(number)) = numbers.get(round) {
                    let at = field.split('.').fold(&mut line, |value, name| &mut value[name]);
                    *at = json!(number);
                }
            }
            results.measured.push(Measurement {
                run: kept.run.clone(),
                point: kept.x.clone(),
                series: kept.series.clone(),
                round: round as u64,
                phase: kept.phase.clone(),
                line,
            });
        }
    }
    results
}

fn section(text: &mut String, shown: &Shown<'_>, lines: &[&Kept]) {
    let figure = shown.figure;
    let of_run = || lines.iter().filter(|line| line.run == figure.run);
    let commits: BTreeSet<&str> = of_run().map(|line| line.commit.as_str()).collect();
    let rounds = of_run().flat_map(|line| line.rounds.values().map(Vec::len)).min().unwrap_or(0);
    let commits: Vec<&str> = commits.into_iter().collect();
    let _ = writeln!(
        text,
        "\n### {}: {}\n\n{} In {}; {} is better. {rounds} rounds, {}.\n",
        figure.name,
        figure.paper,
        figure.caption,
        figure.unit,
        figure.better.word(),
        commits.join(", "),
    );
    let _ = write!(text, "| series |");
    shown.places.iter().for_each(|place| {
        let _ = write!(text, " {} |", place.x);
    });
    let _ = writeln!(text, "\n|---|{}", "--:|".repeat(shown.places.len()));
    for series in &shown.series {
        let _ = write!(text, "| {series} |");
        for place in &shown.places {
            let Some(spread) = shown.spread(series, place) else {
                text.push_str(" |");
                continue;
            };
            let _ = write!(text, " {}", short(spread.median));
            let base = figure.base.as_deref();
            let ratio = base.filter(|base| base != series);
            if let Some(ratio) = ratio.and_then(|base| shown.ratio(series, base, place)) {
                let _ = write!(text, " ({ratio:.2}×)");
            }
            text.push_str(" |");
        }
        text.push('\n');
    }
    text.push_str(&processors(shown));
    for claim in &figure.paper_says {
        let theirs = claim.ratio.or(claim.value);
        if let (Some(ours), Some(theirs)) = (shown.ours(claim), theirs) {
            let _ = writeln!(
                text,
                "\n{}: {}; the paper's {}: {}.",
                claim.series,
                words(shown, claim, ours),
                claim.of.as_ref().unwrap_or(&claim.series),
                words(shown, claim, theirs)
            );
        }
    }
}

/// Describes the use of the processors by each series, place by place; empty if it was not measured.
fn processors(shown: &Shown<'_>) -> String {
    let of = |series: &&str| {
        let shares = shown.places.iter().filter_map(|place| shown.processors_busy(series, place));
        let shares: Vec<String> = shares.map(|share| format!("{share:.0} %")).collect();
        (!shares.is_empty()).then(|| format!("{series} {}", shares.join(", ")))
    };
    let all: Vec<String> = shown.series.iter().filter_map(of).collect();
    match all.is_empty() {
        true => String::new(),
        false => format!("\nProcessors in use, place by place: {}.\n", all.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec::parse(include_str!("sample.toml")).unwrap()
    }

    fn measured(round: u64, series: &str, ops_per_s: f64) -> String {
        let line = json!({"run": "values", "x": "1 KiB", "series": series, "round": round, "phase": "put",
            "measured": {"ops_per_s": ops_per_s, "mean_us": 1e6 / ops_per_s, "per_100_ms": [1, 2]}});
        line.to_string()
    }

    fn file(lines: &[String]) -> String {
        let setup =
            json!({"setup": ["commit: abc", "build: release", "device: a disk (/dev/x, ext4)"]});
        format!("{setup}\n{}\n", lines.join("\n"))
    }

    #[test]
    fn rounds_are_kept_by_place_and_the_newest_measurement_counts() {
        let rounds = [
            measured(1, "original", 100.0),
            measured(1, "stele", 50.0),
            measured(2, "original", 123.456),
        ];
        let mut kept = read(&spec(), &file(&rounds), "2026-01-01").unwrap();
        assert_eq!(kept.len(), 2);
        assert_eq!((kept[0].device.as_str(), kept[0].commit.as_str()), ("a disk", "abc"));
        assert_eq!(kept[0].rounds["ops_per_s"], [Some(100.0), Some(123.5)]);
        assert!(!kept[0].rounds.contains_key("per_100_ms"));
        kept.extend(read(&spec(), &file(&[measured(1, "stele", 300.0)]), "2026-01-02").unwrap());
        let kept = newest(kept);
        assert_eq!((kept.len(), kept[1].date.as_str()), (2, "2026-01-02"));
        let Digest { behind_papers, tables, .. } = digest(&spec(), &kept).unwrap();
        assert_eq!(behind_papers.len(), 0, "{behind_papers:?}");
        assert!(tables.contains("| original | 112 | |\n| stele | 300 (3.00×) | |\n"), "{tables}");
    }

    #[test]
    fn a_figure_with_a_summary_is_compared_with_its_base() {
        let rounds = [measured(1, "original", 100.0), measured(1, "stele", 50.0)];
        let kept = read(&spec(), &file(&rounds), "2026-01-01").unwrap();
        let found = digest(&spec(), &kept).unwrap().comparisons;
        let expected = Comparison {
            workload: "puts, by value size, on a disk".to_owned(),
            beside: "original".to_owned(),
            behind: vec!["1 KiB 0.50×".to_owned()],
            ..Comparison::default()
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_line_of_the_test_bed_names_its_devices_and_the_use_of_processors() {
        let mut line: Value = serde_json::from_str(&measured(1, "stele", 300.0)).unwrap();
        line["measured"]["device"] = json!("unequal devices");
        line["measured"][BUSY] = json!(0.254);
        let kept = read(&spec(), &file(&[line.to_string()]), "2026-01-01").unwrap();
        assert_eq!(kept[0].device, "unequal devices");
        let tables = digest(&spec(), &kept).unwrap().tables;
        assert!(tables.contains("## unequal devices"), "{tables}");
        assert!(tables.contains("\nProcessors in use, place by place: stele 25 %.\n"), "{tables}");
    }

    #[test]
    fn the_device_names_a_smaller_amount_of_data() {
        let half = "\"scale 0.5, 5 rounds\",\"build: release\"";
        let text = file(&[measured(1, "stele", 1.0)]).replace("\"build: release\"", half);
        assert_eq!(read(&spec(), &text, "").unwrap()[0].device, "a disk, 0.5 times the data");
    }

    #[test]
    fn a_development_build_is_not_kept() {
        let text = file(&[measured(1, "stele", 1.0)]).replace("release", "development");
        assert!(read(&spec(), &text, "").unwrap_err().to_string().contains("release"));
    }
}
