//! The declarations in `figures.toml`: runs of the measuring programs, and figures made from their
//! lines.

use super::bed;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Content of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    /// Series that is compared with a paper's system and with all others, unless a run names its own.
    pub ours: String,
    /// Series that need RocksDB's library.
    pub rocksdb: Vec<String>,
    /// Arguments that are multiplied by the scale.
    pub scaled: Vec<String>,
    /// Lower bound of the page cache: it also holds short-lived allocations of engines.
    pub page_cache_bytes_min: Setting,
    /// Lower bound in the tiny version, which also runs on machines with other work.
    pub page_cache_bytes_tiny: Setting,
    /// Limits of the kinds of devices of the test-bed, by letter.
    #[serde(default)]
    pub devices: BTreeMap<String, String>,
    #[serde(rename = "run")]
    pub runs: Vec<Run>,
    #[serde(rename = "figure")]
    pub figures: Vec<Figure>,
}

/// Calls of one program, for each of its points, series and rounds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Run {
    pub name: String,
    pub program: Program,
    pub series: Vec<String>,
    /// Series that takes the place of `ours` of the file.
    pub ours: Option<String>,
    /// Phases in the order in which they are measured on the same data.
    pub phases: Vec<String>,
    /// Bytes of data of a machine for each byte of its memory in the paper; here for each byte of
    /// its page cache. `None` sets no limit.
    pub data_per_memory: Option<f64>,
    pub arguments: Settings,
    pub points: Vec<Point>,
    /// Arguments that replace the others in the tiny version.
    pub tiny: Settings,
}

/// Measuring program.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Program {
    /// `lab designs`: a series is one of its systems; `phase` of a line names its phase.
    Baselines,
    /// `lab wire` on servers that are started for it: a series is a scheme of targets.
    Wire,
    /// `lab wire` on nodes with unequal devices: a series is a placement mode, a phase a
    /// workload. An argument `phase.name` is for one phase.
    TestBed,
}

/// Phase of every line of [`Program::Wire`].
pub(super) const WIRE_PHASE: &str = "wire";

/// Arguments that distinguish one point of a run, and its name in figures.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Point {
    pub x: String,
    #[serde(flatten)]
    pub arguments: Settings,
}

/// Arguments by their names without dashes.
pub(super) type Settings = BTreeMap<String, Setting>;

/// A number, a size such as `16K`, or a word.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub(super) enum Setting {
    Number(u64),
    Text(String),
}

/// One figure of a paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure {
    pub name: String,
    pub paper: String,
    pub caption: String,
    /// Workload in words that need no knowledge of the paper. The summary of the measurements
    /// contains the figures that have it.
    pub summary: Option<String>,
    pub run: String,
    /// Points of the run; empty for all.
    #[serde(default)]
    pub points: Vec<String>,
    /// Phase that is shown, with the points as x.
    pub phase: Option<String>,
    /// Alternatively phases as x, at one point.
    #[serde(default)]
    pub phases: Vec<PhaseAt>,
    /// Path of the number in a line: names joined by dots; a list counts by its mean.
    pub field: String,
    /// Path of the numbers of equal slices of time in a line, for a curve.
    pub curve: Option<String>,
    /// Length of a slice in milliseconds; 100 if it is missing.
    pub curve_slice_ms: Option<u64>,
    /// Numbers of the curve; "operations in each slice" if it is missing.
    pub curve_unit: Option<String>,
    pub unit: String,
    pub better: Better,
    /// Series to which ratios are taken.
    pub base: Option<String>,
    #[serde(default)]
    pub paper_says: Vec<Claim>,
}

/// A phase and its name in a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PhaseAt {
    pub x: String,
    pub phase: String,
}

/// Good direction of a number.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Better {
    More,
    Less,
}

/// A number of a paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claim {
    pub series: String,
    /// The paper's name of the system, if it is another.
    pub of: Option<String>,
    /// Ratio to the base; alternatively `value`, in the figure's unit.
    pub ratio: Option<f64>,
    pub value: Option<f64>,
    /// The only x of the claim; `None` for all.
    pub x: Option<String>,
    /// Places that a claim about all leaves out.
    #[serde(default)]
    pub without: Vec<String>,
    #[serde(default)]
    pub over: Over,
}

/// Summary of a claim over all x.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Over {
    #[default]
    Mean,
    Least,
    Most,
}

/// A place on the x axis of a figure, and the point and phase of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub x: &'a str,
    pub point: &'a str,
    pub phase: &'a str,
}

impl Spec {
    /// Reads the file's text and checks that all names in it are declared.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let spec: Self = toml::from_str(text)?;
        spec.page_cache_bytes_min.bytes()?;
        spec.page_cache_bytes_tiny.bytes()?;
        let kinds = bed::kinds(&spec.devices)?;
        let mut names = BTreeSet::new();
        for figure in &spec.figures {
            ensure!(names.insert(&figure.name), "figure {} is declared twice", figure.name);
            spec.check(figure).with_context(|| format!("figure {}", figure.name))?;
        }
        for run in &spec.runs {
            let is_used = spec.figures.iter().any(|figure| figure.run == run.name);
            ensure!(is_used, "run {}: no figure shows it", run.name);
            let ours = spec.ours(run).to_owned();
            ensure!(
                run.series.contains(&ours),
                "run {}: {ours} is not one of its series",
                run.name
            );
            for point in run.points.iter().filter(|_| run.program == Program::TestBed) {
                let cluster = point.arguments.get("cluster").or(run.arguments.get("cluster"));
                let cluster = cluster.with_context(|| format!("run {}: no `cluster`", run.name))?;
                bed::nodes(&kinds, &cluster.to_string())?;
            }
        }
        Ok(spec)
    }

    /// Returns the run with this name.
    pub(super) fn run(&self, name: &str) -> Result<&Run> {
        let mut named = self.runs.iter().filter(|run| run.name == name);
        let run = named.next().with_context(|| format!("no run `{name}`"))?;
        ensure!(named.next().is_none(), "run {name} is declared twice");
        Ok(run)
    }

    /// Returns the series of a run that is compared with the others.
    pub(super) fn ours<'a>(&'a self, run: &'a Run) -> &'a str {
        run.ours.as_ref().unwrap_or(&self.ours)
    }

    fn check(&self, figure: &Figure) -> Result<()> {
        let run = self.run(&figure.run)?;
        ensure!(!run.points.is_empty(), "its run has no points");
        let one_of_them = figure.phase.is_some() == figure.phases.is_empty();
        ensure!(one_of_them, "it needs `phase` or `phases`");
        let is_point = |name: &&String| run.points.iter().any(|point| point.x == **name);
        let unknown = figure.points.iter().find(|name| !is_point(name));
        ensure!(unknown.is_none(), "its run has no point {unknown:?}");
        let places = figure.places(run);
        let unknown = places.iter().find(|at| !run.phases.iter().any(|phase| phase == at.phase));
        ensure!(unknown.is_none(), "its run has no such phase: {unknown:?}");
        let is_series = |name: &String| run.series.contains(name);
        ensure!(figure.base.as_ref().is_none_or(is_series), "its base is not a series of the run");
        ensure!(figure.summary.is_none() || figure.base.is_some(), "a summary needs a base");
        for claim in &figure.paper_says {
            ensure!(is_series(&claim.series), "{} is not a series of the run", claim.series);
            let one_of_them = claim.ratio.is_some() != claim.value.is_some();
            ensure!(one_of_them, "{}: it needs either `ratio` or `value`", claim.series);
            ensure!(claim.ratio.is_none() || figure.base.is_some(), "ratios need a base");
            let is_place = |x: &String| places.iter().any(|place| place.x == *x);
            let unknown = claim.x.iter().chain(&claim.without).find(|x| !is_place(x));
            ensure!(unknown.is_none(), "no place {unknown:?}");
        }
        Ok(())
    }
}

impl Figure {
    /// Returns the places in their order.
    pub(super) fn places<'a>(&'a self, run: &'a Run) -> Vec<Place<'a>> {
        let all = run.points.iter().map(|point| point.x.as_str());
        let mut points =
            all.filter(|x| self.points.is_empty() || self.points.iter().any(|point| point == x));
        match &self.phase {
            Some(phase) => points.map(|x| Place { x, point: x, phase }).collect(),
            None => {
                let Some(point) = points.next() else { return Vec::new() };
                let at = |at: &'a PhaseAt| Place { x: &at.x, point, phase: &at.phase };
                self.phases.iter().map(at).collect()
            }
        }
    }
}

impl Better {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::More => "more",
            Self::Less => "less",
        }
    }
}

impl Setting {
    /// Parses a number, of bytes or of anything else.
    pub(super) fn bytes(&self) -> Result<u64> {
        let text = match self {
            Self::Number(number) => return Ok(*number),
            Self::Text(text) => text,
        };
        let digits = text.trim_end_matches(['K', 'M', 'G']);
        let shift = match text.get(digits.len()..) {
            Some("") => 0,
            Some("K") => 10,
            Some("M") => 20,
            Some("G") => 30,
            _ => return Err(anyhow::anyhow!("`{text}` is not a size")),
        };
        let number: u64 = digits.parse().with_context(|| format!("`{text}` is not a size"))?;
        Ok(number << shift)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) const SAMPLE: &str = include_str!("sample.toml");

    #[test]
    fn the_declared_figures_are_consistent() {
        let spec = Spec::parse(include_str!("../../figures.toml")).unwrap();
        assert!(spec.figures.len() >= 15, "{}", spec.figures.len());
    }

    #[test]
    fn what_is_not_declared_is_named() {
        let refused = |from: &str, to: &str| {
            assert!(SAMPLE.contains(from), "{from}");
            format!("{:#}", Spec::parse(&SAMPLE.replace(from, to)).unwrap_err())
        };
        assert!(refused("run = \"values\"", "run = \"others\"").contains("no run `others`"));
        assert!(refused("base = \"original\"", "base = \"x\"").contains("its base"));
        assert!(refused("phase = \"put\"", "phase = \"get\"").contains("no such phase"));
        assert!(refused("unit = ", "colour = ").contains("unknown field"));
        let claim = refused("series = \"stele\", of", "series = \"fast\", of");
        assert!(claim.contains("fast is not a series"), "{claim}");
        let twice = format!("{SAMPLE}\n{}", &SAMPLE[SAMPLE.find("[[figure]]").unwrap()..]);
        assert!(format!("{:#}", Spec::parse(&twice).unwrap_err()).contains("declared twice"));
    }

    #[test]
    fn places_are_points_or_phases() {
        let spec = Spec::parse(SAMPLE).unwrap();
        let run = spec.run("values").unwrap();
        let xs = |figure: &Figure| -> Vec<String> {
            figure.places(run).iter().map(|at| format!("{}={}", at.x, at.phase)).collect()
        };
        assert_eq!(xs(&spec.figures[0]), ["1 KiB=put", "16 KiB=put"]);
        assert_eq!(xs(&spec.figures[1]), ["load=put"]);
        assert_eq!(spec.figures[1].places(run)[0].point, "16 KiB");
    }

    #[test]
    fn sizes_have_binary_units() {
        let size = |text: &str| Setting::Text(text.to_owned()).bytes();
        assert_eq!(size("16K").unwrap(), 16 << 10);
        assert_eq!(size("3M").unwrap(), 3 << 20);
        assert_eq!(size("12").unwrap(), 12);
        assert_eq!(Setting::Number(7).bytes().unwrap(), 7);
        for wrong in ["", "K", "1KK", "1.5M", "40%"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
