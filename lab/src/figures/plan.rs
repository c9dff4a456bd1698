//! The plan of the calls: the points, phases and series of each run that the chosen figures show.

use super::spec::{Figure, Point, Program, Run, Spec};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Values of a call, at least: the programs refuse fewer.
const VALUES_MIN: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Amounts {
    pub scale: f64,
    /// Whether to make a trial run: one point of each figure, with separate small amounts.
    pub is_tiny: bool,
}

/// The part of one run that the figures need.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub run: &'a Run,
    pub points: Vec<&'a Point>,
    pub phases: Vec<&'a str>,
    pub series: Vec<&'a str>,
}

/// Returns the places of a figure that are measured.
pub(super) fn places<'a>(
    figure: &'a Figure,
    run: &'a Run,
    amounts: Amounts,
) -> Vec<super::spec::Place<'a>> {
    let mut places = figure.places(run);
    if amounts.is_tiny {
        let first = places.first().map(|place| place.point);
        places.retain(|place| Some(place.point) == first);
    }
    places
}

/// Returns the jobs of these figures, for the series that are available.
pub(super) fn jobs<'a>(
    spec: &'a Spec,
    figures: &[&'a Figure],
    amounts: Amounts,
    is_there: impl Fn(&str) -> bool,
) -> Vec<Job<'a>> {
    let mut jobs = Vec::new();
    for run in &spec.runs {
        let shown = figures.iter().filter(|figure| figure.run == run.name);
        let places: Vec<_> = shown.flat_map(|figure| places(figure, run, amounts)).collect();
        let has_point = |point: &&Point| places.iter().any(|place| place.point == point.x);
        let has_phase = |phase: &&str| places.iter().any(|place| place.phase == *phase);
        let job = Job {
            run,
            points: run.points.iter().filter(has_point).collect(),
            phases: run.phases.iter().map(String::as_str).filter(has_phase).collect(),
            series: series(spec, run, amounts).filter(|name| is_there(name)).collect(),
        };
        if !job.points.is_empty() && !job.series.is_empty() {
            jobs.push(job);
        }
    }
    jobs
}

/// Returns the series to measure: a trial run starts clusters of processes for two of them only.
fn series<'a>(spec: &'a Spec, run: &'a Run, amounts: Amounts) -> impl Iterator<Item = &'a str> {
    let (first, ours) = (run.series.first(), spec.ours(run));
    let is_short = amounts.is_tiny && run.program == Program::TestBed;
    let is_meant = move |name: &&String| !is_short || Some(*name) == first || **name == ours;
    run.series.iter().filter(is_meant).map(String::as_str)
}

/// Returns the arguments at one point by name. Those of the point take precedence over those of the
/// run, those of the tiny version over both. Numbers are scaled; percentages are of `bytes`.
pub(super) fn arguments(
    spec: &Spec,
    run: &Run,
    point: &Point,
    amounts: Amounts,
) -> Result<BTreeMap<String, String>> {
    let mut settings = run.arguments.clone();
    settings.extend(point.arguments.clone());
    if amounts.is_tiny {
        settings.extend(run.tiny.clone());
    }
    let value = settings.get("value").map_or(Ok(0), super::spec::Setting::bytes)?;
    let mut plain: BTreeMap<String, String> = BTreeMap::new();
    for (name, setting) in &settings {
        let mut text = setting.to_string();
        if let Ok(number) = setting.bytes() {
            let is_scaled = !amounts.is_tiny && spec.scaled.contains(name);
            let number = if is_scaled { scaled(number, amounts.scale) } else { number };
            let least = if name == "bytes" { VALUES_MIN * value } else { 1 };
            text = number.max(least).to_string();
        }
        plain.insert(name.clone(), text);
    }
    let bytes = plain.get("bytes").and_then(|it| it.parse::<u64>().ok());
    for text in plain.values_mut() {
        if let Some(percent) = text.strip_suffix('%') {
            let percent: u64 = percent.parse().with_context(|| format!("{}: {text}", run.name))?;
            let of = bytes.with_context(|| format!("{}: percentages need `bytes`", run.name))?;
            *text = (of / 100 * percent).to_string();
        }
    }
    Ok(plain)
}

fn scaled(number: u64, scale: f64) -> u64 {
    (number as f64 * scale) as u64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageCache {
    pub bytes: u64,
    /// Whether it is the minimum, which is more than the paper's share of the data.
    pub is_least: bool,
}

/// Returns the limit of the page cache with these arguments, if there is one.
pub(super) fn page_cache(
    spec: &Spec,
    run: &Run,
    args: &BTreeMap<String, String>,
    amounts: Amounts,
) -> Result<Option<PageCache>> {
    let (Some(ratio), Program::Baselines) = (run.data_per_memory, run.program) else {
        return Ok(None);
    };
    let data = args.get("bytes").and_then(|text| text.parse::<u64>().ok());
    let data = data.with_context(|| format!("{}: `bytes` is missing", run.name))?;
    let share = scaled(data, 1.0 / ratio);
    let (min, tiny) = (&spec.page_cache_bytes_min, &spec.page_cache_bytes_tiny);
    let least = if amounts.is_tiny { tiny } else { min }.bytes()?;
    Ok(Some(PageCache { bytes: share.max(least), is_least: share < least }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Amounts = Amounts { scale: 1.0, is_tiny: false };
    const TINY: Amounts = Amounts { scale: 1.0, is_tiny: true };

    fn sample() -> Spec {
        Spec::parse(include_str!("sample.toml")).unwrap()
    }

    #[test]
    fn a_run_is_made_once_as_far_as_figures_show_it() {
        let spec = sample();
        let all: Vec<&Figure> = spec.figures.iter().collect();
        let made = |figures: &[&Figure], amounts, there: &[&str]| -> Vec<String> {
            let jobs = jobs(&spec, figures, amounts, |name| there.contains(&name));
            let points = |job: &Job<'_>| -> Vec<String> {
                job.points.iter().map(|point| point.x.clone()).collect()
            };
            let text = |job: &Job<'_>| format!("{:?} {:?}", points(job), job.series);
            jobs.iter().map(text).collect()
        };
        let both = ["original", "stele"];
        assert_eq!(made(&all, FULL, &both), [r#"["1 KiB", "16 KiB"] ["original", "stele"]"#]);
        assert_eq!(made(&all[1..], FULL, &both), [r#"["16 KiB"] ["original", "stele"]"#]);
        assert_eq!(made(&all[..1], TINY, &["stele"]), [r#"["1 KiB"] ["stele"]"#]);
        assert_eq!(made(&all, FULL, &[]), Vec::<String>::new());
        assert_eq!(made(&[], FULL, &both), Vec::<String>::new());
    }

    #[test]
    fn amounts_are_scaled_and_shares_follow_them() {
        let spec = sample();
        let run = spec.run("values").unwrap();
        let at = |point: usize, amounts| -> String {
            let args = arguments(&spec, run, &run.points[point], amounts).unwrap();
            args.iter().map(|(name, text)| format!("{name}={text} ")).collect()
        };
        let full = "bytes=134217728 ops=1000 sort-threshold=53687080 value=1024 ";
        assert_eq!(at(0, FULL), full);
        let half = Amounts { scale: 0.5, ..FULL };
        assert_eq!(
            at(1, half),
            "bytes=67108864 ops=500 sort-threshold=26843520 stores=5 value=16384 "
        );
        // A hundred values are the minimum.
        let nothing = Amounts { scale: 0.001, ..FULL };
        assert!(at(1, nothing).starts_with("bytes=1638400 ops=1 "), "{}", at(1, nothing));
        assert!(at(0, TINY).starts_with("bytes=1048576 ops=10 "));
    }

    #[test]
    fn the_page_cache_has_the_papers_share_of_the_data() {
        let spec = sample();
        let run = spec.run("values").unwrap();
        let at = |amounts| {
            let args = arguments(&spec, run, &run.points[0], amounts).unwrap();
            page_cache(&spec, run, &args, amounts).unwrap().unwrap()
        };
        assert_eq!(at(FULL), PageCache { bytes: 64 << 20, is_least: false });
        let quarter = Amounts { scale: 0.25, ..FULL };
        assert_eq!(at(quarter), PageCache { bytes: 32 << 20, is_least: true });
        assert_eq!(at(TINY), PageCache { bytes: 128 << 20, is_least: true });
        let unlimited = Run { data_per_memory: None, ..run.clone() };
        assert_eq!(page_cache(&spec, &unlimited, &BTreeMap::new(), FULL).unwrap(), None);
    }
}
