//! Which seeds a scenario's test runs.

use std::ops::RangeInclusive;

/// `STELE_SEED=7` is that seed alone, `STELE_SEED=1..500` all of these.
pub fn seeds() -> RangeInclusive<u64> {
    let Ok(text) = std::env::var("STELE_SEED") else { return 1..=8 };
    let (first, last) = text.split_once("..").unwrap_or((&text, &text));
    first.parse().unwrap()..=last.parse().unwrap()
}
