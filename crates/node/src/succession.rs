//! Succession of a store's runs: whether a run that another node states goes on where the known one
//! ended, or is a run of another directory of the same store.
//!
//! Each node judges for itself, from what it knows of the store, whether the known run is connected to
//! it, and the answer of that run's address. The placement group records the result, as a second line.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use stele_types::{BootOrder, Lineage, LogIndex, RegionId, StoreId, StoreRun, Term};

/// What a node knows of a store's runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownRun {
    /// Last accepted run.
    pub run: StoreRun,
    /// `host:port` of its node.
    pub address: String,
    /// Run before it and its address, if it was accepted because that address did not answer.
    pub displaced: Option<(Lineage, String)>,
    /// Other run of the store, and its address, if both answered although neither came after the other.
    pub rival: Option<(Lineage, String)>,
}

impl KnownRun {
    /// Judges the run that a node at `address` states, and records it if it goes on after the known one,
    /// or if both must stop. Returns whether the record changed.
    pub fn admit(&mut self, run: &StoreRun, address: &str, evidence: &Evidence) -> (Verdict, bool) {
        let verdict = judge(self, run, address, evidence);
        let is_changed = match verdict {
            Verdict::Successor => {
                *self = self.succeeded(run, address, evidence);
                true
            }
            Verdict::Refused(Refusal::Conflict) if self.rival.is_none() => {
                self.note_rival(run, address, evidence);
                true
            }
            _ => false,
        };
        (verdict, is_changed)
    }

    fn succeeded(&self, run: &StoreRun, address: &str, evidence: &Evidence) -> Self {
        let was_silent = evidence.probe == Probe::Silent && self.address != address;
        let displaced = was_silent.then(|| (self.run.lineage.clone(), self.address.clone()));
        Self { run: run.clone(), address: address.to_owned(), displaced, rival: None }
    }

    /// Records that two runs of a store answer although neither came after the other.
    fn note_rival(&mut self, run: &StoreRun, address: &str, evidence: &Evidence) {
        if let Probe::Answered(there) = &evidence.probe {
            self.run.boot.count = self.run.boot.count.max(run.boot.count);
            self.run.lineage = there.clone();
        }
        self.rival = Some((run.lineage.clone(), address.to_owned()));
    }
}

/// Answer of the known run's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Probe {
    /// It was not asked.
    #[default]
    NotMade,
    /// It did not answer in time, or without a run of the store.
    Silent,
    /// A node there runs the store, with this lineage.
    Answered(Lineage),
}

/// What a node observes of the known run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// It is a run of the judging node.
    pub is_own: bool,
    /// It has a connection to or from the judging node.
    pub is_connected: bool,
    /// The stated run was named by another node than its own, which may not know that it ended.
    pub is_hearsay: bool,
    /// Answer of its address.
    pub probe: Probe,
    /// Answer of the address that the stated run names.
    pub stated: Probe,
}

/// Judgement of a stated run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the known run, or one that states nothing to compare.
    Same,
    /// It goes on after the known run, which has ended.
    Successor,
    /// The known run's address must be asked first.
    Undecided,
    /// The address of the stated run must be asked first.
    Unverified,
    /// It is not heard.
    Refused(Refusal),
}

/// Reason not to hear a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The known run lives: this is a run of a copy of its directory.
    Copy = 1,
    /// It does not come after the known run: its directory lacks what that run acknowledged.
    EarlierState = 2,
    /// Both runs came after the same one and both answer: neither is heard.
    Conflict = 3,
    /// It states no start, although the known run did.
    NoStart = 4,
    /// The certificate of its node is not that of the store's node.
    OtherNode = 5,
    /// The judging node has no list yet in which the store is.
    NotListed = 6,
}

impl Refusal {
    /// Returns the reason with this number on the wire.
    pub fn from_number(number: u8) -> Option<Self> {
        let all = [
            Self::Copy,
            Self::EarlierState,
            Self::Conflict,
            Self::NoStart,
            Self::OtherNode,
            Self::NotListed,
        ];
        all.into_iter().find(|reason| *reason as u8 == number)
    }

    /// Returns the message for the operator of the node at `address`, where the run is that is refused.
    pub fn text(self, store: StoreId, run: &StoreRun, address: &str, known: &KnownRun) -> String {
        let (at, other) = (&known.address, &known.run);
        match self {
            Self::Copy => format!(
                "store {store} runs at {at} as {other}, and {address} runs a copy of its directory as \
                 {run}: stop the node that has the copy, and start it without that directory"
            ),
            Self::EarlierState => format!(
                "store {store} ran at {at} as {other}, and the directory at {address} does not come \
                 after it ({run}): it is an earlier state or another copy, and lacks entries that were \
                 acknowledged; start the directory of {at}"
            ),
            Self::Conflict => {
                let (rival, rival_at) = match &known.rival {
                    Some((rival, at)) if rival.id() != run.lineage.id() => (rival.id(), at),
                    _ => (other.lineage.id(), at),
                };
                format!(
                    "store {store} runs from two directories that both go on after the same run: {run} \
                     at {address}, and start {rival} at {rival_at}. Neither serves, because each may \
                     hold writes that the other one lacks. Compare the nodes with `stele ctl stores`, \
                     and choose the one to keep with `stele ctl keep-run {store} ADDRESS`"
                )
            }
            Self::OtherNode => format!(
                "store {store} is one of another node than that at {address}: use the certificate of its node"
            ),
            Self::NotListed => format!(
                "store {store} of {address} is in no list of members here yet; its node tries again"
            ),
            Self::NoStart => format!(
                "store {store} ran at {at} as {other}, and {address} states no start of its \
                 directory: start it with this version of the program, on a device with free space"
            ),
        }
    }
}

/// Judges the run that a node at `address` states, where `known` is the last accepted run of its store.
///
/// Invariant: of two runs of one store at most one is heard. Both would vote in one term, and
/// acknowledge entries that only one of them holds.
/// Test: `a_run_goes_on_after_the_known_one_only_if_it_comes_after_it_and_that_one_has_ended`.
pub fn judge(known: &KnownRun, run: &StoreRun, address: &str, evidence: &Evidence) -> Verdict {
    if !known.run.is_known() {
        return match (run.is_known(), evidence.is_own) {
            (false, _) => Verdict::Same,
            (true, true) => Verdict::Refused(Refusal::Copy),
            // Invariant: the address of a store is asked also if only the address is known, as from a list
            // that names no run.
            // bug node.unknown_run_not_asked: never
            (true, false) if !known.address.is_empty() => candidate(known, run, address, evidence),
            (true, false) => Verdict::Successor,
        };
    }
    if !run.lineage.is_known() {
        return without_start(known, run, address, evidence);
    }
    if !known.run.lineage.is_known() {
        // The known run is of a node of an earlier version, which states only a number.
        return match run.boot.relative_to(&known.run.boot) {
            BootOrder::Before => Verdict::Refused(Refusal::EarlierState),
            BootOrder::Copy => Verdict::Refused(Refusal::Copy),
            BootOrder::Same if known.address == address => Verdict::Successor,
            _ => candidate(known, run, address, evidence),
        };
    }
    let start = known.run.lineage.id();
    if let Some((rival, _)) = &known.rival {
        // Only a run that was kept comes after both.
        let comes_after = run.lineage.holds(start) && run.lineage.holds(rival.id());
        // bug node.rival_heard: never
        if !comes_after {
            return Verdict::Refused(Refusal::Conflict);
        }
    }
    if run.lineage.id() == start {
        // A start that could not be written states the one before it.
        // A node dials itself too, for a snapshot between two of its stores: its process has one number.
        let is_this = !evidence.is_own || run.boot == known.run.boot;
        let is_same = known.address == address && is_this;
        return if is_same { Verdict::Same } else { candidate(known, run, address, evidence) };
    }
    let comes_after = run.lineage.holds(start) || is_out_of_reach(known, run);
    // bug node.earlier_state_heard: always
    if comes_after {
        return candidate(known, run, address, evidence);
    }
    // Invariant: only its own node says that a displaced run goes on. Others list a run until they learn
    // of its successor.
    let is_stated = !evidence.is_hearsay;
    // bug node.listed_run_answers: let is_stated = true;
    let is_displaced = known.displaced.as_ref().is_some_and(|(before, at)| {
        let is_of_it = !before.is_known() || run.lineage.is_related_to(before);
        at == address && is_of_it && !before.holds(run.lineage.id())
    });
    let goes_on = is_displaced && is_stated && !evidence.is_own;
    // bug node.displaced_run_unheard: let goes_on = false;
    match goes_on {
        true => beside(&known.run.lineage, run, evidence, Refusal::EarlierState),
        false => Verdict::Refused(Refusal::EarlierState),
    }
}

/// Judges a run that neither came before `other` nor after it: do both answer? It is refused as
/// `otherwise` if it has ended.
///
/// Invariant: two runs stop beside each other only if both answer now. A hello of a run that has ended
/// may arrive after its successor was accepted.
fn beside(other: &Lineage, run: &StoreRun, evidence: &Evidence, otherwise: Refusal) -> Verdict {
    // bug node.ended_run_conflicts: return Verdict::Refused(Refusal::Conflict);
    let id = run.lineage.id();
    match &evidence.stated {
        Probe::NotMade => Verdict::Unverified,
        Probe::Silent => Verdict::Refused(otherwise),
        Probe::Answered(there) => {
            let is_it = there.id() == id || there.holds(id);
            let is_other = there.id() == other.id() || there.holds(other.id());
            match is_it && !is_other {
                true => Verdict::Refused(Refusal::Conflict),
                false => Verdict::Refused(otherwise),
            }
        }
    }
}

/// Judges a run of a node of an earlier version, which states a number or nothing.
fn without_start(known: &KnownRun, run: &StoreRun, address: &str, evidence: &Evidence) -> Verdict {
    if known.run.lineage.is_known() {
        // Invariant: a store that stated a start and states none is heard only at the known address.
        let is_there = known.address == address;
        // bug node.no_start_heard: let is_there = true;
        return match is_there && !evidence.is_own {
            true => Verdict::Same,
            false => Verdict::Refused(Refusal::NoStart),
        };
    }
    match run.boot.relative_to(&known.run.boot) {
        BootOrder::Before => Verdict::Refused(Refusal::EarlierState),
        BootOrder::Copy => Verdict::Refused(Refusal::Copy),
        BootOrder::After if evidence.is_own => Verdict::Refused(Refusal::Copy),
        BootOrder::After => Verdict::Successor,
        BootOrder::Same | BootOrder::Unknown => Verdict::Same,
    }
}

/// Judges a run that comes after the known one, or continues it: has that one ended?
///
/// Invariant: a run that lives is displaced by no copy of its directory, however often the copy was
/// started since.
fn candidate(known: &KnownRun, run: &StoreRun, address: &str, evidence: &Evidence) -> Verdict {
    // bug node.greater_count_displaces: `Verdict::Refused(refusal)` is `Verdict::Successor`
    let refused = |refusal| Verdict::Refused(refusal);
    if evidence.is_own {
        return refused(Refusal::Copy);
    }
    // One process has an address, unless a copy of the configuration states it too.
    let is_there = known.address == address;
    match &evidence.probe {
        Probe::NotMade if is_there && !evidence.is_connected => Verdict::Successor,
        Probe::NotMade if evidence.is_connected && !is_there => refused(Refusal::Copy),
        // bug node.known_run_not_probed: `Verdict::Undecided` is `Verdict::Successor`
        Probe::NotMade => Verdict::Undecided,
        // It connected while its address was asked.
        Probe::Silent if evidence.is_connected && !is_there => refused(Refusal::Copy),
        Probe::Silent if !is_there => moved(run, &evidence.stated),
        Probe::Silent => Verdict::Successor,
        Probe::Answered(there) => answered(known, run, there, evidence, refused),
    }
}

/// Judges a run at another address than the known one, which does not answer.
///
/// Invariant: a run displaces another one only if it answers at its own address. A message of a copy that
/// has ended may arrive while the original is down, and would keep the original from being heard again.
fn moved(run: &StoreRun, stated: &Probe) -> Verdict {
    let id = run.lineage.id();
    // bug node.moved_run_not_asked: return Verdict::Successor;
    match stated {
        Probe::NotMade => Verdict::Unverified,
        Probe::Answered(there) if there.id() == id => Verdict::Successor,
        Probe::Answered(_) | Probe::Silent => Verdict::Refused(Refusal::Copy),
    }
}

fn answered(
    known: &KnownRun,
    run: &StoreRun,
    there: &Lineage,
    evidence: &Evidence,
    refused: impl Fn(Refusal) -> Verdict,
) -> Verdict {
    let id = run.lineage.id();
    if there.id() == known.run.lineage.id() || !there.is_known() {
        return refused(Refusal::Copy);
    }
    if there.id() == id {
        return Verdict::Successor;
    }
    if there.holds(id) {
        return refused(Refusal::EarlierState);
    }
    // bug node.greater_count_displaces: `run.lineage.holds(there.id())` is `true`
    match run.lineage.holds(there.id()) {
        true => refused(Refusal::Copy),
        false => beside(there, run, evidence, Refusal::Copy),
    }
}

/// Whether a run has had so many starts since the known one that it no longer names it.
fn is_out_of_reach(known: &KnownRun, run: &StoreRun) -> bool {
    let named = run.lineage.ids().len() as u64;
    run.boot.count > known.run.boot.count.saturating_add(named)
}

const REGIONS_MAX: usize = 3;
const DAY_S: u64 = 86_400;

/// What the directory of a run holds, beside that of another run of the same store: for the
/// operator's choice between them.
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
mod summary_tests {
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
