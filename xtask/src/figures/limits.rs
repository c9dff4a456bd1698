//! Honest limits: where our series is behind what a paper says of its system, or behind another series.

use super::numbers::Shown;
use super::plot::short;
use super::spec::{Claim, Over};

/// One sentence for each, from the numbers alone.
pub fn behind(shown: &[Shown<'_>], ours: &str) -> Vec<String> {
    let mut found = Vec::new();
    for figure in shown {
        let claims = figure.figure.paper_says.iter().filter(|claim| claim.series == ours);
        found.extend(claims.filter_map(|claim| behind_paper(figure, claim)));
        let others = figure.series.iter().filter(|series| **series != ours);
        found.extend(others.filter_map(|other| behind_series(figure, ours, other)));
    }
    found
}

/// What a claim says of a number, such as "3.00 times original".
pub fn words(shown: &Shown<'_>, claim: &Claim, number: f64) -> String {
    let over = match (&claim.x, claim.over, shown.places.len()) {
        (Some(x), ..) => format!(" at {x}"),
        (None, Over::Least, _) => " at least".to_owned(),
        (None, Over::Most, _) => " at most".to_owned(),
        (None, Over::Mean, 0 | 1) => String::new(),
        (None, Over::Mean, _) => " on average".to_owned(),
    };
    match (&shown.figure.base, claim.ratio) {
        (Some(base), Some(_)) => format!("{number:.2} times {base}{over}"),
        _ => format!("{} {}{over}", short(number), shown.figure.unit),
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

fn behind_series(shown: &Shown<'_>, ours: &str, other: &str) -> Option<String> {
    let at = |place: &super::spec::Place<'_>| {
        let ratio = shown.ratio(ours, other, place)?;
        let unsure = if shown.overlap(ours, other, place) { ", rounds overlap" } else { "" };
        shown.is_worse(ratio, 1.0).then(|| format!("{} ({ratio:.2} times{unsure})", place.x))
    };
    let places: Vec<String> = shown.places.iter().filter_map(at).collect();
    let name = &shown.figure.name;
    let paper = &shown.figure.paper;
    (!places.is_empty())
        .then(|| format!("{name}, {paper}: {ours} is behind {other} at {}", places.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::numbers::tests::{sample, shown};
    use super::*;

    #[test]
    fn what_is_behind_is_said_with_both_numbers() {
        let (spec, results) = sample();
        let found = behind(&shown(&spec, &results), "stele");
        assert_eq!(
            found,
            [
                "puts, A paper, figure 1: stele has 2.25 times original on average; the paper's \
                 Theirs 3.00 times original on average",
                "puts, A paper, figure 1: stele is behind original at 1 KiB (0.50 times, rounds \
                 overlap)",
            ]
        );
    }

    #[test]
    fn who_is_ahead_has_no_limits() {
        let (mut spec, results) = sample();
        spec.figures[0].paper_says[0].ratio = Some(2.0);
        spec.figures[0].points = vec!["16 KiB".to_owned()];
        assert_eq!(behind(&shown(&spec, &results), "stele"), Vec::<String>::new());
        // Without the base nothing is claimed of ratios to it.
        spec.figures[0].paper_says[0].ratio = Some(9.0);
        assert_eq!(behind(&shown(&spec, &results), "stele").len(), 1);
        let mut results = results;
        results.measured.retain(|it| it.series == "stele");
        assert_eq!(behind(&shown(&spec, &results), "stele"), Vec::<String>::new());
    }
}
