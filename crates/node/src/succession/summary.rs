//! What the directory of a run holds, beside that of another run of the same store: for the operator's
//! choice between them.

use std::collections::{BTreeMap, BTreeSet};
use stele_types::{LogIndex, RegionId, StoreId, StoreRun, Term};

/// Regions that a comparison names.
const REGIONS_MAX: usize = 3;
const DAY_S: u64 = 86_400;

/// What the directory of a run holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSummary {
    /// Path of the directory on its node.
    pub directory: String,
    /// `host:port` of the node.
    pub address: String,
    /// The run.
    pub run: StoreRun,
    /// Time of the last write to the log in seconds since 1970; 0 if unknown.
    pub last_write_s: u64,
    /// Last durable entry of each region: its term and index.
    pub regions: BTreeMap<RegionId, (Term, LogIndex)>,
}

impl RunSummary {
    /// Returns the message for the operator, where both runs stopped beside each other.
    ///
    /// Invariant: no message tells the operator to delete or empty one of the two directories: each may
    /// be the one with the acknowledged writes.
    pub fn beside(&self, store: StoreId, other: &Self) -> String {
        let after = self.run.lineage.ids().iter().find(|id| other.run.lineage.holds(**id));
        let after = after.map(|id| format!(" after start {id}")).unwrap_or_default();
        format!(
            "store {store} runs from two directories that both go on{after}, and neither serves, because \
             each may hold writes that the other one lacks: {self}; and {other}. {}. Choose the one to \
             keep with `stele ctl keep-run {store} ADDRESS`, and keep both directories until it serves",
            self.differences(other)
        )
    }

    /// Describes the regions of which the two directories differ most.
    fn differences(&self, other: &Self) -> String {
        let ids: BTreeSet<RegionId> =
            self.regions.keys().chain(other.regions.keys()).copied().collect();
        let mut regions: Vec<Difference> = ids
            .into_iter()
            .filter_map(|id| Difference::of(id, self.regions.get(&id), other.regions.get(&id)))
            .collect();
        if regions.is_empty() {
            return "Their logs end with the same entries".to_owned();
        }
        // The greatest difference first; of equals, the smaller number.
        regions.sort_by_key(|it| (std::cmp::Reverse(it.entries), it.region));
        let count = regions.len();
        let named: Vec<String> = regions
            .iter()
            .take(REGIONS_MAX)
            .map(|it| it.text(&self.address, &other.address))
            .collect();
        format!("Of {count} regions that differ, these differ most: {}", named.join(", "))
    }
}

impl std::fmt::Display for RunSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (starts, regions) = (self.run.boot.count, self.regions.len());
        let last_write = match self.last_write_s {
            0 => "unknown".to_owned(),
            seconds => utc(seconds),
        };
        write!(
            f,
            "{} at {}, start {}, {starts} starts, last write {last_write}, {regions} regions",
            self.directory,
            self.address,
            self.run.lineage.id()
        )
    }
}

/// Last entries of a region on two stores.
struct Difference {
    region: RegionId,
    here: Option<(Term, LogIndex)>,
    there: Option<(Term, LogIndex)>,
    entries: u64,
}

impl Difference {
    fn of(
        region: RegionId,
        here: Option<&(Term, LogIndex)>,
        there: Option<&(Term, LogIndex)>,
    ) -> Option<Self> {
        let (here, there) = (here.copied(), there.copied());
        let index = |last: Option<(Term, LogIndex)>| last.map_or(0, |(_, index)| index.0);
        let entries = index(here).abs_diff(index(there));
        (here != there).then_some(Self { region, here, there, entries })
    }

    fn text(&self, here: &str, there: &str) -> String {
        let last = |(term, index): (Term, LogIndex)| format!("entry {index} of term {term}");
        match (self.here, self.there) {
            (Some(one), Some(other)) => format!(
                "region {} (last {} at {here}, {} at {there})",
                self.region,
                last(one),
                last(other)
            ),
            (Some(_), None) => format!("region {} (only at {here})", self.region),
            (None, _) => format!("region {} (only at {there})", self.region),
        }
    }
}

/// Returns a time as `2026-01-31 07:05:09 UTC`.
fn utc(seconds: u64) -> String {
    let (mut days, second) = (seconds / DAY_S, seconds % DAY_S);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}:{:02} UTC", days + 1, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{Boot, Lineage, StartId};

    fn summary(
        directory: &str,
        address: &str,
        starts: &[u128],
        regions: &[(u64, u64, u64)],
    ) -> RunSummary {
        let lineage = Lineage::new(starts.iter().copied().map(StartId));
        RunSummary {
            directory: directory.to_owned(),
            address: address.to_owned(),
            run: StoreRun { boot: Boot { count: starts.len() as u64, nonce: 1 }, lineage },
            last_write_s: 1_700_000_000,
            regions: regions
                .iter()
                .map(|(id, term, index)| (RegionId(*id), (Term(*term), LogIndex(*index))))
                .collect(),
        }
    }

    #[test]
    fn the_message_names_both_directories_and_the_regions_where_they_differ_most() {
        let one =
            summary("/data/c", "c:1", &[6, 5, 4], &[(1, 3, 7), (2, 3, 50), (3, 2, 9), (4, 1, 1)]);
        let other =
            summary("/data/y", "y:1", &[60, 5, 4], &[(1, 3, 7), (2, 4, 80), (3, 2, 8), (5, 1, 9)]);
        let text = one.beside(StoreId(3), &other);
        for part in [
            "/data/c at c:1, start 00000000000000000000000000000006, 3 starts, last write 2023-11-14 \
             22:13:20 UTC, 4 regions",
            "/data/y at y:1, start 0000000000000000000000000000003c, 3 starts",
            "after start 00000000000000000000000000000005",
            "Of 4 regions that differ, these differ most: region 2 (last entry 50 of term 3 at c:1, entry \
             80 of term 4 at y:1), region 5 (only at y:1), region 3 (last",
            "stele ctl keep-run 3 ADDRESS",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
        assert!(!text.contains("region 1 ") && !text.contains("region 4 "), "{text}");
        assert!(!text.contains("empty") && !text.contains("delete"), "{text}");
        let same = RunSummary { address: "y:1".to_owned(), last_write_s: 0, ..one.clone() };
        let text = one.beside(StoreId(3), &same);
        assert!(text.contains("same entries") && text.contains("last write unknown"), "{text}");
    }

    #[test]
    fn a_time_is_written_as_people_read_it() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), expected);
        }
    }
}
