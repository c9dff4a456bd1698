//! Cuts of all regions at one moment: what they hold of acknowledged writes. spec/Moment.tla has the laws.

use crate::world::World;
use std::collections::BTreeMap;
use stele_node::moment::Moment;
use stele_types::{LogIndex, RegionId, Term};

/// Acknowledged write. Events are numbered in the order in which they happen.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Region that answered.
    pub region: RegionId,
    /// Index of its entry.
    pub index: LogIndex,
    /// Event of its request.
    pub called: u64,
    /// Event of its answer.
    pub returned: u64,
}

/// Complete moment.
#[derive(Clone, Debug)]
pub struct Complete {
    number: u64,
    last: BTreeMap<RegionId, (LogIndex, Term)>,
    /// Event of its request.
    requested: u64,
    /// Event of its end.
    completed: u64,
}

impl Complete {
    /// Creates a moment that was requested and ended with these events.
    pub fn new(moment: &Moment, requested: u64, completed: u64) -> Self {
        let parts = moment.parts.iter();
        let last = parts.map(|part| (part.region, (part.last, part.term))).collect();
        Self { number: moment.number.0, last, requested, completed }
    }

    /// Returns whether the cut holds a write; `None` if that is not known. A region that existed before the
    /// moment and is not in it was merged, with all its writes. `since` is the event with which the region of
    /// the write was seen first.
    fn holds(&self, write: &Written, since: u64) -> Option<bool> {
        match self.last.get(&write.region) {
            Some((last, _)) => Some(write.index <= *last),
            None if since < self.requested => Some(true),
            None if since > self.completed => Some(false),
            None => None,
        }
    }
}

/// Returns the first fault of complete moments.
fn fault(
    complete: &[Complete],
    written: &[Written],
    since: &BTreeMap<RegionId, u64>,
) -> Option<String> {
    let holds = |moment: &Complete, write: &Written| {
        moment.holds(write, since.get(&write.region).copied().unwrap_or_default())
    };
    for moment in complete {
        let held = written.iter().filter(|write| holds(moment, write) == Some(true));
        // What was acknowledged before this event is in the cut.
        let latest = held.map(|write| write.called).max().unwrap_or_default();
        let latest = latest.max(moment.requested);
        for write in written {
            let number = moment.number;
            match holds(moment, write) {
                Some(false) if write.returned < latest => {
                    return Some(format!(
                        "moment {number} lacks {write:?}, which was acknowledged before event {latest}: the \
                         request of the moment, or the begin of a write that it holds: {moment:?}"
                    ));
                }
                Some(true) if write.called > moment.completed => {
                    return Some(format!(
                        "moment {number} holds {write:?}, which began after its end: {moment:?}"
                    ));
                }
                _ => {}
            }
        }
    }
    let mut ascending: Vec<&Complete> = complete.iter().collect();
    ascending.sort_by_key(|moment| moment.number);
    for pair in ascending.windows(2) {
        let [earlier, later] = pair else { continue };
        let lost = written.iter().find(|write| {
            holds(earlier, write) == Some(true) && holds(later, write) == Some(false)
        });
        if let Some(write) = lost {
            return Some(format!(
                "moment {} lacks {write:?}, which moment {} holds",
                later.number, earlier.number
            ));
        }
    }
    None
}

impl World {
    /// Checks all moments of the run against the acknowledged writes. Lost disks may lose writes.
    pub(super) fn check_moments(&mut self) {
        if self.counts.overspent > 0 || self.counts.lost_majorities > 0 {
            return;
        }
        let moments = &self.moments;
        let fault = fault(&moments.complete, &moments.written, &moments.since);
        let complete = moments.complete.iter();
        let replaced = complete.flat_map(|moment| &moment.last).find_map(|(region, last)| {
            let (index, term) = *last;
            let committed = self.checks.logs.committed_term(*region, index)?;
            (committed != term).then(|| {
                format!(
                    "a moment ends region {region} with entry {index} of term {term}; the committed one has \
                     term {committed}"
                )
            })
        });
        if let Some(text) = fault.or(replaced) {
            self.fail(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(region: u64, index: u64, called: u64, returned: u64) -> Written {
        Written { region: RegionId(region), index: LogIndex(index), called, returned }
    }

    fn moment(number: u64, (requested, completed): (u64, u64), last: &[(u64, u64)]) -> Complete {
        let last =
            last.iter().map(|(region, last)| (RegionId(*region), (LogIndex(*last), Term(1))));
        Complete { number, last: last.collect(), requested, completed }
    }

    #[test]
    fn each_law_of_a_cut_is_checked() {
        // Regions 2 and 3 since event 0, region 9 since event 150.
        let since = BTreeMap::from([(RegionId(9), 150)]);
        let one = |last: &[(u64, u64)]| vec![moment(1, (100, 200), last)];
        let two = |later: &[(u64, u64)]| {
            vec![moment(1, (100, 200), &[(2, 7)]), moment(2, (300, 400), later)]
        };
        let rows = [
            ("all", one(&[(2, 5), (3, 5)]), vec![write(2, 5, 10, 20), write(3, 5, 30, 40)], None),
            ("acknowledged before", one(&[(2, 5)]), vec![write(2, 6, 10, 99)], Some("lacks")),
            ("during", one(&[(2, 5)]), vec![write(2, 6, 10, 101)], None),
            ("began after", one(&[(2, 5)]), vec![write(2, 5, 201, 210)], Some("holds")),
            (
                "a pair",
                one(&[(2, 5), (3, 5)]),
                vec![write(2, 6, 110, 120), write(3, 5, 130, 140)],
                Some("lacks"),
            ),
            ("merged", one(&[(2, 5)]), vec![write(3, 8, 10, 20)], None),
            ("not known", one(&[(2, 5)]), vec![write(9, 8, 160, 170)], None),
            (
                "a merged one began after",
                one(&[(2, 5)]),
                vec![write(3, 8, 201, 202)],
                Some("holds"),
            ),
            ("ascending", two(&[(2, 7)]), vec![write(2, 7, 150, 500)], None),
            ("not ascending", two(&[(2, 6)]), vec![write(2, 7, 150, 500)], Some("lacks")),
        ];
        for (name, complete, written, expected) in rows {
            let found = fault(&complete, &written, &since);
            assert_eq!(found.is_some(), expected.is_some(), "{name}: {found:?}");
            let has_word = |word: &str| found.as_ref().is_some_and(|text| text.contains(word));
            assert!(expected.is_none_or(has_word), "{name}: {found:?}");
        }
    }
}
