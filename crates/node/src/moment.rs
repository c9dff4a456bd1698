//! Coordinator of a moment: a cut of all data regions at one instant, chosen without clocks
//! (spec/Moment.tla, decision 0062).
//!
//! The placement leader asks every node to pause the regions that it leads. Each leader answers with the end
//! of its log. Once the ranges of the answers tile the keys, the placement leader asks for a seal of exactly
//! these, and confirms at last that it still leads the placement group. All else abandons the moment, and the
//! pauses end by the clocks of the leaders.
//!
//! The owner does the I/O: it calls the nodes, reports what they answer, and calls [`Coordinator::step`] after
//! each report. `N` names a node.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use stele_types::{KeyRange, LogIndex, MomentId, RegionId, Term};

/// Most regions of a moment.
pub const REGIONS_MAX: usize = 1 << 20;

/// Part of one region in a cut: its log up to an entry, with all that its origins wrote before they
/// became part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutPart {
    /// The region.
    pub region: RegionId,
    /// Its range after the entry.
    pub range: KeyRange,
    /// Term of the leader that answered, and of the entry.
    pub term: Term,
    /// Index of the last entry.
    pub last: LogIndex,
}

/// Complete moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Its number. A later moment holds all of an earlier one.
    pub number: MomentId,
    /// One part for each data region, ascending by key. Their ranges are all keys, each once.
    pub parts: Vec<CutPart>,
}

/// Reason why a node did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call failed, or was not answered in time.
    NoAnswer(String),
    /// The node runs a version of the program without moments.
    EarlierVersion,
}

/// Reason for which a moment was abandoned. It has no effect but the pauses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// The regions that this node may lead are missing.
    NoAnswer {
        /// The node.
        node: String,
        /// Failure of the call.
        reason: String,
    },
    /// The regions that this node may lead are missing.
    EarlierVersion {
        /// The node.
        node: String,
    },
    /// No leader answered for the keys from here.
    NoLeader {
        /// First missing key.
        from: Bytes,
    },
    /// A leader did not answer in its pause.
    NotPaused {
        /// Its region.
        region: RegionId,
        /// Its reason.
        reason: String,
    },
    /// Two regions answered for the same keys: a split or a merge is under way.
    Overlap {
        /// The regions.
        regions: [RegionId; 2],
    },
    /// A region was not sealed.
    NotSealed {
        /// The region.
        region: RegionId,
        /// Reason.
        reason: String,
    },
    /// Another node may lead the placement group.
    Deposed {
        /// Reason.
        reason: String,
    },
    /// The cluster has more regions than a moment may have.
    TooManyRegions,
}

impl Abandoned {
    /// Returns whether another attempt may succeed without a change of the cluster by an operator.
    pub fn may_pass(&self) -> bool {
        !matches!(self, Self::EarlierVersion { .. } | Self::TooManyRegions)
    }
}

impl fmt::Display for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer { node, reason } => write!(
                f,
                "node {node} did not answer ({reason}), and regions are missing: start it, or wait until \
                 other nodes lead them"
            ),
            Self::EarlierVersion { node } => write!(
                f,
                "node {node} runs an earlier version without moments, and regions are missing: upgrade it"
            ),
            Self::NoLeader { from } => write!(
                f,
                "no leader answered for the keys from \"{}\": wait for an election, or see `stele ctl \
                 regions` for regions without a majority",
                from.escape_ascii()
            ),
            Self::NotPaused { region, reason } => write!(
                f,
                "region {region} did not answer in its pause ({reason}): repeat, or see whether its \
                 followers are slow"
            ),
            Self::Overlap { regions: [one, two] } => write!(
                f,
                "regions {one} and {two} answered for the same keys, because a split or a merge is under \
                 way: repeat"
            ),
            Self::NotSealed { region, reason } => {
                write!(f, "region {region} was not sealed ({reason}): repeat")
            }
            Self::Deposed { reason } => {
                write!(f, "the leader of the placement group may have changed ({reason}): repeat")
            }
            Self::TooManyRegions => {
                write!(f, "the cluster has more than {REGIONS_MAX} regions: merge some")
            }
        }
    }
}

/// Next step of a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<N> {
    /// Nothing before the next report.
    Wait,
    /// Ask these nodes to seal these regions, each in the term of its answer.
    Seal(Vec<(N, Vec<(RegionId, Term)>)>),
    /// Confirm that no later leader of the placement group was elected before now.
    Confirm,
    /// The moment is complete.
    Complete(Moment),
    /// The moment has failed.
    Abandoned(Abandoned),
}

#[derive(Debug)]
enum Asked {
    Waits,
    Answered,
    Failed(Fault),
}

/// State of one moment.
///
/// Invariant: numbers of moments ascend, also across leaders of the placement group and restarts of its
/// members: they are ids of the placement group, of which a later leader starts above all that an earlier one
/// may have allocated. The owner has one moment under way.
/// Test: `numbers_of_moments_ascend_across_leaders`.
#[derive(Debug)]
pub struct Coordinator<N> {
    number: MomentId,
    nodes: BTreeMap<N, Asked>,
    /// Answers, with the node of each.
    answers: BTreeMap<RegionId, (N, CutPart)>,
    not_paused: Option<(RegionId, String)>,
    /// Parts of the cut, ascending by key, once seals are requested.
    parts: Vec<CutPart>,
    /// Regions that are not sealed, with the term to confirm.
    unsealed: BTreeMap<RegionId, Term>,
    is_confirmed: bool,
    failed: Option<Abandoned>,
}

impl<N: Clone + Ord + fmt::Display> Coordinator<N> {
    /// Begins a moment. All of `nodes` must be asked to pause.
    pub fn new(number: MomentId, nodes: impl IntoIterator<Item = N>) -> Self {
        Self {
            number,
            nodes: nodes.into_iter().map(|node| (node, Asked::Waits)).collect(),
            answers: BTreeMap::new(),
            not_paused: None,
            parts: Vec::new(),
            unsealed: BTreeMap::new(),
            is_confirmed: false,
            failed: None,
        }
    }

    /// Returns the number of the moment.
    pub fn number(&self) -> MomentId {
        self.number
    }

    /// Takes the answer of a node to *pause* for a moment: the parts of its regions, and those that did not
    /// answer.
    ///
    /// Invariant: an answer counts for its own moment only. The pause of an earlier one has ended, and more
    /// was written since.
    /// Test: `an_answer_to_an_earlier_moment_counts_for_nothing`.
    pub fn paused(
        &mut self,
        node: &N,
        number: MomentId,
        parts: Vec<CutPart>,
        not_paused: Option<(RegionId, String)>,
    ) {
        let is_other = number != self.number || !self.parts.is_empty();
        // bug node.moment_older_answer: let is_other = !self.parts.is_empty();
        if is_other {
            return;
        }
        if self.answers.len() + parts.len() > REGIONS_MAX {
            self.failed.get_or_insert(Abandoned::TooManyRegions);
            return;
        }
        for part in parts {
            // An earlier leader may not know of the later one.
            let known = self.answers.get(&part.region);
            if known.is_none_or(|(_, known)| known.term < part.term) {
                self.answers.insert(part.region, (node.clone(), part));
            }
        }
        self.not_paused = self.not_paused.take().or(not_paused);
        self.nodes.insert(node.clone(), Asked::Answered);
    }

    /// Notes that a node did not answer.
    pub fn failed(&mut self, node: &N, fault: Fault) {
        if let Some(asked) = self.nodes.get_mut(node)
            && matches!(asked, Asked::Waits)
        {
            *asked = Asked::Failed(fault);
        }
    }

    /// Notes that what has not answered is late.
    pub fn end_wait(&mut self) {
        if let Some(region) = self.unsealed.keys().next() {
            self.not_sealed(*region, "its node is late".to_owned());
        }
        for asked in self.nodes.values_mut().filter(|asked| matches!(asked, Asked::Waits)) {
            *asked = Asked::Failed(Fault::NoAnswer("it is late".to_owned()));
        }
    }

    /// Takes the answer of a node to *seal*: regions of which the leader of this term is confirmed.
    ///
    /// Invariant: pause and seal of a region are of one term. The leader of a later one proposed entries that
    /// the answer lacks, and may have answered writes before the others paused.
    /// Test: `a_seal_of_another_term_counts_for_nothing`.
    pub fn sealed(&mut self, number: MomentId, regions: &[(RegionId, Term)]) {
        if number != self.number {
            return;
        }
        for (region, term) in regions {
            let is_of_term = self.unsealed.get(region) == Some(term);
            // bug node.moment_seal_of_any_term: let is_of_term = true;
            if is_of_term {
                self.unsealed.remove(region);
            }
        }
    }

    /// Notes that a region is not sealed.
    pub fn not_sealed(&mut self, region: RegionId, reason: String) {
        if self.unsealed.contains_key(&region) {
            self.failed.get_or_insert(Abandoned::NotSealed { region, reason });
        }
    }

    /// Notes whether a confirmation that began after [`Next::Confirm`] found no later leader of the placement
    /// group.
    pub fn confirmed(&mut self, outcome: Result<(), String>) {
        match outcome {
            // bug node.moment_no_seal: `self.unsealed.is_empty()` is `true`
            Ok(()) => self.is_confirmed = self.unsealed.is_empty(),
            Err(reason) => _ = self.failed.get_or_insert(Abandoned::Deposed { reason }),
        }
    }

    /// Returns what follows from the reports.
    ///
    /// Invariant: a moment is complete only when each region of its cut is sealed after the answers of all of
    /// them. An earlier leader that does not know of the later one answers, and seals nothing.
    /// Test: `a_moment_is_complete_when_the_last_region_is_sealed`.
    ///
    /// Invariant: a moment is complete only if no later leader of the placement group was elected before the last
    /// seal. A former one could end its moment after a later one has ended its own, and the cut with the lesser
    /// number would be the later one.
    /// Test: `a_moment_is_complete_when_its_placement_leader_is_confirmed_after_the_seals`.
    pub fn step(&mut self) -> Next<N> {
        if let Some(failed) = &self.failed {
            return Next::Abandoned(failed.clone());
        }
        if self.parts.is_empty() {
            return self.step_paused();
        }
        // bug node.moment_no_seal: never
        if !self.unsealed.is_empty() {
            return Next::Wait;
        }
        // bug node.moment_former_leader: always
        if self.is_confirmed {
            return Next::Complete(Moment { number: self.number, parts: self.parts.clone() });
        }
        Next::Confirm
    }

    fn step_paused(&mut self) -> Next<N> {
        let waits = self.nodes.values().any(|asked| matches!(asked, Asked::Waits));
        let mut parts: Vec<CutPart> = self.answers.values().map(|(_, part)| part.clone()).collect();
        parts.sort_by(|one, two| one.range.start.cmp(&two.range.start));
        match check_tiles(&parts) {
            Ok(()) => {
                self.unsealed = parts.iter().map(|part| (part.region, part.term)).collect();
                self.parts = parts;
                Next::Seal(self.seals())
            }
            Err(_) if waits => Next::Wait,
            Err(failure) => {
                let failure = self.cause().unwrap_or(failure);
                self.failed = Some(failure.clone());
                Next::Abandoned(failure)
            }
        }
    }

    fn seals(&self) -> Vec<(N, Vec<(RegionId, Term)>)> {
        let mut seals: BTreeMap<N, Vec<(RegionId, Term)>> = BTreeMap::new();
        for (node, part) in self.answers.values() {
            seals.entry(node.clone()).or_default().push((part.region, part.term));
        }
        seals.into_iter().collect()
    }

    /// Returns the reason why parts may be missing, if one is known.
    fn cause(&self) -> Option<Abandoned> {
        let failed = self.nodes.iter().filter_map(|(node, asked)| match asked {
            Asked::Failed(Fault::EarlierVersion) => {
                Some(Abandoned::EarlierVersion { node: node.to_string() })
            }
            Asked::Failed(Fault::NoAnswer(reason)) => {
                Some(Abandoned::NoAnswer { node: node.to_string(), reason: reason.clone() })
            }
            Asked::Waits | Asked::Answered => None,
        });
        let not_paused = self.not_paused.iter().cloned();
        let not_paused = not_paused.map(|(region, reason)| Abandoned::NotPaused { region, reason });
        failed.chain(not_paused).next()
    }
}

/// Returns the first fault of parts, ascending by key, that do not hold all keys once.
///
/// Invariant: seals are requested once the ranges of one answer for each region tile the keys exactly. No list of
/// regions is needed: it may be old, and a region that a split made answers writes before it is in a list.
/// Test: `seals_are_requested_when_the_ranges_tile_all_keys_exactly`.
fn check_tiles(parts: &[CutPart]) -> Result<(), Abandoned> {
    // bug node.moment_untiled: if !parts.is_empty() { return Ok(()); }
    let mut next = Some(Bytes::new());
    let mut before: Option<&CutPart> = None;
    for part in parts {
        match (&next, before) {
            (Some(next), _) if *next == part.range.start => {}
            (Some(next), _) if *next < part.range.start => {
                return Err(Abandoned::NoLeader { from: next.clone() });
            }
            (_, before) => {
                let regions = [before.map_or(part.region, |it| it.region), part.region];
                return Err(Abandoned::Overlap { regions });
            }
        }
        next = Some(part.range.end.clone()).filter(|end| !end.is_empty());
        before = Some(part);
    }
    match next {
        Some(from) => Err(Abandoned::NoLeader { from }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
