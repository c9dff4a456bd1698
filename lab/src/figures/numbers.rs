//! Medians of rounds, ratios to the base, and the numbers of papers beside them.

use super::measure::Results;
use super::plan::{Amounts, places};
use super::spec::{Better, Claim, Figure, Over, Place, Run};
use super::trial::Failure;
use serde_json::Value;

/// Field with the share of the processors that servers and load generator used.
pub(super) const BUSY: &str = "processors_busy";

/// Median, minimum and maximum of the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Summarises the values; `None` without values.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (low, high) = (values.get((values.len() - 1) / 2)?, values.get(values.len() / 2)?);
        Some(Self { median: (low + high) / 2.0, min, max })
    }
}

/// Returns the number at a path of names joined by dots; for a list, its mean.
pub(super) fn number(line: &Value, path: &str) -> Option<f64> {
    let found = path.split('.').try_fold(line, |value, name| value.get(name))?;
    let Some(list) = found.as_array() else { return found.as_f64() };
    let numbers: Option<Vec<f64>> = list.iter().map(Value::as_f64).collect();
    mean(&numbers?)
}

fn mean(numbers: &[f64]) -> Option<f64> {
    (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
}

/// A figure with the lines measured for it.
#[derive(Debug)]
pub(super) struct Shown<'a> {
    pub figure: &'a Figure,
    pub places: Vec<Place<'a>>,
    pub series: Vec<&'a str>,
    pub ours: &'a str,
    results: &'a Results,
}

impl<'a> Shown<'a> {
    pub(super) fn new(
        figure: &'a Figure,
        run: &'a Run,
        ours: &'a str,
        amounts: Amounts,
        results: &'a Results,
        is_there: impl Fn(&str) -> bool,
    ) -> Self {
        let series = run.series.iter().map(String::as_str).filter(|name| is_there(name)).collect();
        Self { figure, places: places(figure, run, amounts), series, ours, results }
    }

    fn lines(&self, series: &str, place: &Place<'_>) -> impl Iterator<Item = (u64, &'a Value)> {
        let (series, run) = (series.to_owned(), &self.figure.run);
        let (point, phase) = (place.point.to_owned(), place.phase.to_owned());
        let is_it = move |it: &&'a super::measure::Measurement| {
            it.run == *run && it.point == point && it.phase == phase && it.series == series
        };
        self.results.measured.iter().filter(is_it).map(|it| (it.round, &it.line))
    }

    fn rounds(&self, series: &str, place: &Place<'_>) -> Vec<(u64, f64)> {
        let of = |(round, line)| Some((round, number(line, &self.figure.field)?));
        self.lines(series, place).filter_map(of).collect()
    }

    pub(super) fn spread(&self, series: &str, place: &Place<'_>) -> Option<Spread> {
        Spread::of(self.rounds(series, place).into_iter().map(|(_, value)| value).collect())
    }

    /// Returns the median share of the processors that was used, in percent, if it was measured.
    pub(super) fn processors_busy(&self, series: &str, place: &Place<'_>) -> Option<f64> {
        let shares = self.lines(series, place).filter_map(|(_, line)| number(line, BUSY)).collect();
        Spread::of(shares).map(|spread| spread.median * 100.0)
    }

    /// Returns the median of the rounds' ratios: a change between rounds affects both series.
    pub(super) fn ratio(&self, series: &str, to: &str, place: &Place<'_>) -> Option<f64> {
        self.ratios(series, to, place).map(|spread| spread.median)
    }

    pub(super) fn ratios(&self, series: &str, to: &str, place: &Place<'_>) -> Option<Spread> {
        let others = self.rounds(to, place);
        let pair = |(round, value): (u64, f64)| {
            let (_, other) = others.iter().find(|(of, _)| *of == round)?;
            (*other > 0.0).then(|| value / other)
        };
        Spread::of(self.rounds(series, place).into_iter().filter_map(pair).collect())
    }

    /// Returns the ratio to the figure's base.
    pub(super) fn ratio_to_base(&self, series: &str, place: &Place<'_>) -> Option<f64> {
        self.ratio(series, self.figure.base.as_ref()?, place)
    }

    pub(super) fn ours(&self, claim: &Claim) -> Option<f64> {
        let is_meant = |place: &&Place<'_>| {
            claim.x.as_ref().is_none_or(|x| x == place.x)
                && !claim.without.iter().any(|x| x == place.x)
        };
        let at = |place: &Place<'_>| match claim.ratio {
            Some(_) => self.ratio_to_base(&claim.series, place),
            None => self.spread(&claim.series, place).map(|spread| spread.median),
        };
        let numbers: Vec<f64> = self.places.iter().filter(is_meant).filter_map(at).collect();
        match claim.over {
            Over::Mean => mean(&numbers),
            Over::Least => Spread::of(numbers).map(|spread| spread.min),
            Over::Most => Spread::of(numbers).map(|spread| spread.max),
        }
    }

    /// Returns whether `number` is worse than `than`.
    pub(super) fn is_worse(&self, number: f64, than: f64) -> bool {
        match self.figure.better {
            Better::More => number < than,
            Better::Less => number > than,
        }
    }

    /// Returns the numbers of the slices of time in the first round at the first place.
    pub(super) fn curve(&self, series: &str) -> Vec<f64> {
        let (Some(name), Some(place)) = (&self.figure.curve, self.places.first()) else {
            return Vec::new();
        };
        let Some((_, line)) = self.lines(series, place).next() else { return Vec::new() };
        let found = name.split('.').try_fold(line, |value, name| value.get(name));
        let counts = found.and_then(Value::as_array);
        counts.into_iter().flatten().filter_map(Value::as_f64).collect()
    }

    /// Returns whether a number was dropped on purpose.
    fn is_dropped(&self, series: &str, place: &Place<'_>) -> bool {
        self.results.dropped.iter().any(|it| {
            (it.run == self.figure.run && it.series == series)
                && (it.point == place.point && it.phase == place.phase)
        })
    }

    /// Returns the reason for which a number is missing.
    fn reason(&self, series: &str, place: &Place<'_>) -> String {
        let run = &self.figure.run;
        let explains = |it: &&Failure| it.explains(run, place.point, series, place.phase);
        let failures: Vec<&Failure> = self.results.failed.iter().filter(explains).collect();
        match failures.last() {
            Some(last) => format!("{} calls failed, the last one: {}", failures.len(), last.reason),
            None => match self.lines(series, place).count() {
                0 => format!("no call failed, and none printed a line of phase `{}`", place.phase),
                lines => format!("no number `{}` in {lines} lines", self.figure.field),
            },
        }
    }

    /// Lists series and places without a number, except those that were dropped on purpose, each with
    /// the reason.
    pub(super) fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for series in &self.series {
            let is_dropped = |place: &&Place<'_>| self.is_dropped(series, place);
            for place in self.places.iter().filter(|place| !is_dropped(place)) {
                if self.spread(series, place).is_none() {
                    let (name, reason) = (&self.figure.name, self.reason(series, place));
                    missing.push(format!("{name}: {series} at {}: {reason}", place.x));
                }
            }
            let needs_curve = self.figure.curve.is_some()
                && !self.places.first().is_some_and(|it| is_dropped(&it));
            if needs_curve && self.curve(series).is_empty() {
                missing.push(format!("{}: the curve of {series}", self.figure.name));
            }
        }
        missing
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::measure::Measurement;
    use super::super::spec::Spec;
    use super::*;
    use serde_json::json;

    /// Returns three rounds of two systems at two sizes; in round 2 the machine was half as fast.
    pub(crate) fn sample() -> (Spec, Results) {
        let spec = Spec::parse(include_str!("sample.toml")).unwrap();
        let mut results = Results::default();
        let speeds = [("1 KiB", 100.0, 50.0), ("16 KiB", 10.0, 40.0)];
        for (point, original, stele) in speeds {
            for (round, factor) in [1.0, 0.5, 1.1].into_iter().enumerate() {
                for (series, speed) in [("original", original), ("stele", stele)] {
                    let speed = speed * factor;
                    results.measured.push(Measurement {
                        run: "values".to_owned(),
                        point: point.to_owned(),
                        series: series.to_owned(),
                        round: round as u64,
                        phase: "put".to_owned(),
                        line: json!({"ops_per_s": speed, "mean_us": 1e3 / speed, "per_100_ms": [1, 2]}),
                    });
                }
            }
        }
        (spec, results)
    }

    pub(crate) fn shown<'a>(spec: &'a Spec, results: &'a Results) -> Vec<Shown<'a>> {
        let amounts = Amounts { scale: 1.0, is_tiny: false };
        let run = &spec.runs[0];
        let ours = spec.ours(run);
        spec.figures
            .iter()
            .map(|it| Shown::new(it, run, ours, amounts, results, |_| true))
            .collect()
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_two() {
        let spread = Spread::of(vec![4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
        assert_eq!(Spread::of(vec![3.0, 9.0, 1.0]).unwrap().median, 3.0);
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn numbers_are_found_by_path_and_lists_give_their_mean() {
        let line = json!({"a": {"b": [1.0, 2.0, 6.0], "c": 4}, "d": null});
        assert_eq!(number(&line, "a.b"), Some(3.0));
        assert_eq!(number(&line, "a.c"), Some(4.0));
        assert_eq!(number(&line, "d"), None);
        assert_eq!(number(&line, "a.x.y"), None);
        assert_eq!(number(&json!({"a": []}), "a"), None);
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let (spec, results) = sample();
        let shown = shown(&spec, &results);
        let (puts, places) = (&shown[0], &shown[0].places);
        let near = |number: Option<f64>, to: f64| (number.unwrap() - to).abs() < 1e-9;
        assert!(near(puts.ratio_to_base("stele", &places[0]), 0.5));
        assert!(near(puts.ratio_to_base("stele", &places[1]), 4.0));
        assert_eq!(puts.spread("stele", &places[1]).unwrap().min, 20.0);
        assert!(near(puts.ours(&puts.figure.paper_says[0]), 2.25));
        let claim = |over| Claim { over, ..puts.figure.paper_says[0].clone() };
        assert!(near(puts.ours(&claim(Over::Least)), 0.5));
        assert!(near(puts.ours(&claim(Over::Most)), 4.0));
        let one = Claim { x: Some("16 KiB".to_owned()), ..claim(Over::Mean) };
        assert!(near(puts.ours(&one), 4.0));
        let without = Claim { without: vec!["16 KiB".to_owned()], ..claim(Over::Most) };
        assert!(near(puts.ours(&without), 0.5));
        assert!(puts.is_worse(1.0, 2.0) && !shown[1].is_worse(1.0, 2.0));
    }

    #[test]
    fn a_round_without_its_pair_has_no_ratio() {
        let (spec, mut results) = sample();
        results.measured.retain(|it| it.series != "original" || it.round == 1);
        let puts = &shown(&spec, &results)[0];
        assert_eq!(puts.ratio_to_base("stele", &puts.places[1]), Some(4.0));
        results.measured.retain(|it| it.series != "original");
        let puts = &shown(&spec, &results)[0];
        assert_eq!(puts.ratio_to_base("stele", &puts.places[1]), None);
        let reason = "no call failed, and none printed a line of phase `put`";
        let expected =
            ["1 KiB", "16 KiB"].map(|place| format!("puts: original at {place}: {reason}"));
        assert_eq!(puts.missing(), expected);
    }

    #[test]
    fn a_missing_number_is_named_with_the_reason() {
        let (spec, mut results) = sample();
        results.measured.retain(|it| it.series != "original" || it.point != "1 KiB");
        results.measured.iter_mut().filter(|it| it.point == "16 KiB").for_each(|it| {
            it.line = json!({"other": 1});
        });
        let failure = |series: &str, phase: Option<&str>, reason: &str| Failure {
            run: "values".to_owned(),
            point: "1 KiB".to_owned(),
            series: series.to_owned(),
            phase: phase.map(str::to_owned),
            round: 0,
            call: 1,
            reason: reason.to_owned(),
        };
        results.failed = vec![
            failure("original", None, "no leader"),
            failure("original", Some("put"), "busy"),
            failure("original", Some("get"), "of another phase"),
            failure("stele", None, "of another series"),
        ];
        let no_number = "no number `ops_per_s` in 3 lines";
        let expected = [
            "puts: original at 1 KiB: 2 calls failed, the last one: busy".to_owned(),
            format!("puts: original at 16 KiB: {no_number}"),
            format!("puts: stele at 16 KiB: {no_number}"),
        ];
        assert_eq!(shown(&spec, &results)[0].missing(), expected);
    }
}
