//! Comparison of our series with the numbers of a paper and with other series.

use super::numbers::Shown;
use super::plot::short;
use super::spec::{Claim, Figure, Over, Place};

/// Lists other series than the base that ours does not reach, one sentence for each figure and
/// series.
pub(super) fn behind_others(shown: &[Shown<'_>]) -> Vec<String> {
    behind(shown, |figure, series| figure.base.as_deref() != Some(series))
}

/// Lists all other series that ours does not reach.
pub(super) fn behind_all(shown: &[Shown<'_>]) -> Vec<String> {
    behind(shown, |_, _| true)
}

fn behind(shown: &[Shown<'_>], is_meant: impl Fn(&Figure, &str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for figure in shown {
        let is_other = |series: &&&str| **series != figure.ours && is_meant(figure.figure, series);
        let others = figure.series.iter().filter(is_other);
        found.extend(others.filter_map(|other| behind_series(figure, other)));
    }
    found
}

/// Lists claims of papers that a series of ours does not reach, the paper's own design on our consensus
/// included, one sentence for each.
pub(super) fn behind_papers(shown: &[Shown<'_>]) -> Vec<String> {
    let claims = |figure: &Shown<'_>| {
        let claims = figure.figure.paper_says.iter();
        claims.filter_map(|claim| behind_paper(figure, claim)).collect::<Vec<_>>()
    };
    shown.iter().flat_map(claims).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Ahead,
    /// Ours is ahead in some rounds and behind in others, or the ratio rounds to one.
    Even,
    Behind,
}

pub(super) fn compare(shown: &Shown<'_>, other: &str, place: &Place<'_>) -> Option<(f64, Verdict)> {
    let ratios = shown.ratios(shown.ours, other, place)?;
    let is_worse = |ratio| shown.is_worse(ratio, 1.0);
    let is_noise = is_worse(ratios.min) != is_worse(ratios.max);
    let verdict = match is_worse(ratios.median) {
        _ if is_noise || (ratios.median - 1.0).abs() < 0.005 => Verdict::Even,
        true => Verdict::Behind,
        false => Verdict::Ahead,
    };
    Some((ratios.median, verdict))
}

/// Phrases a number as a claim does, such as "3.00 times original".
pub(super) fn words(shown: &Shown<'_>, claim: &Claim, number: f64) -> String {
    let over = match (&claim.x, claim.over, shown.places.len()) {
        (Some(x), ..) => format!(" at {x}"),
        (None, Over::Least, _) => " at least".to_owned(),
        (None, Over::Most, _) => " at most".to_owned(),
        (None, Over::Mean, 0 | 1) => String::new(),
        (None, Over::Mean, _) => " on average".to_owned(),
    };
    let without = match claim.without.is_empty() {
        true => String::new(),
        false => format!(" without {}", claim.without.join(", ")),
    };
    match (&shown.figure.base, claim.ratio) {
        (Some(base), Some(_)) => format!("{number:.2} times {base}{over}{without}"),
        _ => format!("{} {}{over}{without}", short(number), shown.figure.unit),
    }
}

fn behind_paper(shown: &Shown<'_>, claim: &Claim) -> Option<String> {
    let (ours, theirs) = (shown.ours(claim)?, claim.ratio.or(claim.value)?);
    shown.is_worse(ours, theirs).then(|| {
        format!(
            "{}, {}: {} has {}; the paper's {} {}",
            shown.figure.name,
            shown.figure.paper,
            claim.series,
            words(shown, claim, ours),
            claim.of.as_ref().unwrap_or(&claim.series),
            words(shown, claim, theirs)
        )
    })
}

fn behind_series(shown: &Shown<'_>, other: &str) -> Option<String> {
    let at = |place: &Place<'_>| {
        let (ratio, verdict) = compare(shown, other, place)?;
        (verdict == Verdict::Behind).then(|| format!("{} ({ratio:.2} times)", place.x))
    };
    let places: Vec<String> = shown.places.iter().filter_map(at).collect();
    let title = match &shown.figure.summary {
        Some(workload) => workload.clone(),
        None => format!("{}, {}", shown.figure.name, shown.figure.paper),
    };
    (!places.is_empty())
        .then(|| format!("{title}: {} is behind {other} at {}", shown.ours, places.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::measure::{Measurement, Results};
    use super::super::numbers::tests::{sample, shown};
    use super::super::spec::Spec;
    use super::*;
    use serde_json::json;

    #[test]
    fn a_difference_inside_the_noise_is_not_listed_as_behind() {
        let (spec, mut results) = sample();
        let at = |results: &Results, place: usize| {
            let shown = &shown(&spec, results)[0];
            compare(shown, "original", &shown.places[place])
        };
        assert_eq!(at(&results, 0), Some((0.5, Verdict::Behind)));
        assert_eq!(at(&results, 1), Some((4.0, Verdict::Ahead)));
        // In one round of three ours is ahead.
        let ours = |it: &&mut Measurement| it.series == "stele" && it.point == "1 KiB";
        let round = results.measured.iter_mut().filter(ours).find(|it| it.round == 0).unwrap();
        round.line["ops_per_s"] = json!(101.0);
        assert_eq!(at(&results, 0), Some((0.5, Verdict::Even)));
        assert_eq!(behind_series(&shown(&spec, &results)[0], "original"), None);
    }

    #[test]
    fn what_is_behind_is_listed_with_both_numbers() {
        let (spec, results) = sample();
        let shown = shown(&spec, &results);
        let found = [behind_papers(&shown), behind_all(&shown)].concat();
        assert_eq!(behind_others(&shown), [""; 0]);
        assert_eq!(
            found,
            [
                "puts, A paper, figure 1: stele has 2.25 times original on average; the paper's \
                 Theirs 3.00 times original on average",
                "puts, by value size: stele is behind original at 1 KiB (0.50 times)",
            ]
        );
    }

    #[test]
    fn a_claim_that_another_series_of_ours_misses_is_listed_as_well() {
        let (mut spec, results) = sample();
        spec.figures[0].paper_says[0].series = "original".to_owned();
        spec.figures[0].paper_says[0].ratio = Some(2.0);
        let found = behind_papers(&shown(&spec, &results));
        let begins = "puts, A paper, figure 1: original has 1.00 times original on average";
        assert!(matches!(&*found, [one] if one.starts_with(begins)), "{found:?}");
    }

    #[test]
    fn a_series_that_is_ahead_is_not_listed() {
        let (mut spec, results) = sample();
        spec.figures[0].paper_says[0].ratio = Some(2.0);
        spec.figures[0].points = vec!["16 KiB".to_owned()];
        let behind = |spec: &Spec, results: &Results| {
            let shown = shown(spec, results);
            [behind_papers(&shown), behind_all(&shown)].concat()
        };
        assert_eq!(behind(&spec, &results), [""; 0]);
        // Without the base there is no ratio to it.
        spec.figures[0].paper_says[0].ratio = Some(9.0);
        assert_eq!(behind(&spec, &results).len(), 1);
        let mut results = results;
        results.measured.retain(|it| it.series == "stele");
        assert_eq!(behind(&spec, &results), [""; 0]);
    }
}
