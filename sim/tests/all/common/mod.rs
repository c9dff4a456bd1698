//! Seeds of a scenario's test.

use std::ops::RangeInclusive;

/// Returns the seeds of `STELE_SEED`: `7` for one, `1..500` for a range, both ends inclusive. The
/// default is 1 to 8.
pub(crate) fn seeds() -> RangeInclusive<u64> {
    let Ok(text) = std::env::var("STELE_SEED") else { return 1..=8 };
    let (first, last) = text.split_once("..").unwrap_or((&text, &text));
    first.parse().unwrap()..=last.parse().unwrap()
}
