//! In-memory state of the placement leader, and its regular work between commits. The caller reads
//! the state, commits what is due, and sends the replies.

use crate::followed::{Followed, FollowedFrom};
use crate::operator::OperatorId;
use crate::schedule::{Pace, round};
use crate::{
    Cluster, Instruction, Millis, NodeReport, Operators, PairChange, RegionInfo, RegionReport,
    StaleReport, StoreReport,
};
use std::collections::HashMap;
use stele_types::{RegionId, Result, StoreId, Term};

/// State of the placement leader for one term.
pub struct LeaderState {
    /// Term in which the state was loaded. Only proposals of this term change it.
    pub term: Term,
    /// Committed decisions and reported facts.
    pub cluster: Cluster,
    /// Operators under way.
    pub operators: Operators,
    /// Run of the process and sequence number of each node's last report, by name or else address.
    reports: HashMap<String, (u64, u64)>,
    followed: Followed,
    pace: Pace,
    /// The cluster's time, and when it was determined.
    time: (Millis, u64),
}

/// Time in which all nodes get the same time of the cluster.
const TIME_MILLIS: u64 = 1000;
const UNSAVED_BYTES_MAX: usize = 256 << 10;
/// Numbers kept in reserve, so that splits and moves need no commit of their own.
const IDS_RESERVED_MIN: u64 = 64;
/// Limit for the last reports remembered, one for each node.
const NODES_MAX: usize = 4096;

/// Report of a node.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// The node's own state.
    pub node: &'a NodeReport,
    /// Number that grows with each report until the node restarts.
    pub sequence: u64,
    /// The node's stores.
    pub stores: &'a [StoreReport],
    /// Regions that these stores lead.
    pub regions: Vec<RegionReport>,
    /// Whether `regions` holds all regions that they lead.
    pub is_full: bool,
    /// Steps that leaders on these stores refused.
    pub refusals: Vec<Refused>,
}

/// Refusal of an operator's step by the region's leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Operator of the step.
    pub operator: OperatorId,
    /// Index of the step, from 0.
    pub step: usize,
    /// Reason, for people.
    pub reason: String,
    /// The step can never succeed.
    pub is_final: bool,
}

/// Reply to a node's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportReply {
    /// Instructions for leaders on the node's stores.
    pub due: Vec<Instruction>,
    /// These stores lead a region with an operator, so the next report must come soon.
    pub is_busy: bool,
    /// The next report must hold every region.
    pub all_wanted: bool,
    /// The node's stores may serve reads under leases.
    pub leases: bool,
    /// The node answers puts and deletes of unknown outcome with an error.
    pub undetermined_writes_fail: bool,
    /// The cluster's time in Unix seconds; 0 if it is unknown.
    pub unix_s: u64,
    /// Stores of the node that measure their devices now.
    pub measured: Vec<StoreId>,
    /// First entry of each region that a reader needs, of the regions that the node's stores may have entries
    /// of; `None` while a node may not have reported what its readers need.
    pub followed: Option<FollowedFrom>,
}

impl LeaderState {
    /// Wraps the state that a leader of `term` loaded.
    pub fn new(term: Term, cluster: Cluster) -> Self {
        let (operators, reports) = (Operators::default(), HashMap::new());
        let mut pace = Pace::default();
        pace.note_urgent();
        let followed = Followed::default();
        Self { term, cluster, operators, reports, followed, pace, time: (Millis(0), 0) }
    }

    /// Applies committed changes. Fails with `Invalid` on a change that no plan produced.
    pub fn apply(&mut self, changes: &[PairChange]) -> Result<()> {
        self.pace.note_urgent();
        self.cluster.apply(changes)
    }

    /// Takes note that these changes were refused: regions in them are still to be persisted.
    pub fn note_refused(&mut self, changes: &[PairChange]) {
        self.cluster.put_back(changes);
    }

    /// Takes region descriptors that are not persisted yet, for the next [`LeaderState::plan_due`].
    pub fn take_unsaved_regions(&mut self) -> Vec<PairChange> {
        self.cluster.take_region_changes(UNSAVED_BYTES_MAX)
    }

    /// Returns what must be committed now, besides requested decisions. Fails with `Invalid`.
    pub fn plan_due(
        cluster: &Cluster,
        behind: Vec<PairChange>,
        now: Millis,
        unix_seconds: u64,
    ) -> Result<Vec<PairChange>> {
        let mut changes = behind;
        changes.extend(cluster.plan_tombstones(now));
        changes.extend(cluster.plan_disconnections(now));
        changes.extend(cluster.plan_speeds(now, unix_seconds));
        changes.extend(cluster.plan_cancelled_merges(now));
        changes.extend(cluster.plan_level_in_use());
        if cluster.ids_reserved() < IDS_RESERVED_MIN {
            changes.extend(cluster.plan_ids(IDS_RESERVED_MIN)?);
        }
        Ok(changes)
    }

    /// Runs the schedulers if they are due.
    pub fn schedule(&mut self, now: Millis) {
        if !self.pace.begins(&self.cluster, &self.operators, now) {
            return;
        }
        self.cluster.note_drains(now);
        self.cluster.note_cancelled_merges(now);
        round(&mut self.cluster, &mut self.operators, now);
    }

    /// Records a node's report. Ignores its regions if a later report of the same node came first.
    ///
    /// Invariant: a node that restarted is heard, whatever its wall clock shows. Reports of one run of
    /// a process are ordered by their numbers, and runs by the boot counts of the stores.
    /// Tests: `a_node_that_restarts_with_its_clock_set_back_is_heard_again`,
    /// `a_report_of_an_earlier_run_of_a_store_takes_back_neither_state_nor_address`.
    ///
    /// The changes of [`Cluster::plan_heartbeat`] must be committed before. Returns the region
    /// reports that are older than the known state.
    pub fn accept_report(&mut self, report: Report<'_>, now: Millis) -> Vec<StaleReport> {
        let is_earlier_run = self.cluster.are_of_earlier_boots(report.node, report.stores);
        // A store that has become slow loses its leaders now, not at the next interval.
        if self.cluster.record_heartbeat(report.node, report.stores, now) {
            self.pace.note_urgent();
        }
        let address = &report.node.address;
        // A node with a name states its address, and that of another one as well.
        let sender = report.node.name.as_ref().unwrap_or(address);
        let this = (report.node.run(), report.sequence);
        let last = self.reports.get(sender).copied();
        // bug placement.runs_in_order_of_numbers: `this.0 == last.0 && this.1 <= last.1` is `this <= last`
        let is_late = |last: (u64, u64)| this.0 == last.0 && this.1 <= last.1;
        if is_earlier_run || last.is_some_and(is_late) {
            return Vec::new();
        }
        // Regions may wait for a node that reports for the first time.
        if last.is_none() {
            self.pace.note_urgent();
        }
        if self.reports.len() >= NODES_MAX {
            self.reports.clear();
        }
        self.reports.insert(sender.clone(), this);
        self.followed.report(sender, &report.node.followed, now);
        let mut stale = Vec::new();
        for region in report.regions {
            let known = self.cluster.regions().get(region.region.id);
            let before = known.map(|info| (info.region.epoch, info.leader));
            let next = Some((region.region.epoch, Some(region.leader)));
            let is_same = |it: &RegionInfo| it.down == region.down && it.pending == region.pending;
            let has_news = !known.is_some_and(is_same);
            match self.cluster.observe(region, now) {
                Ok(()) if before != next => self.pace.note_urgent(),
                Ok(()) if has_news => self.pace.note_news(),
                Ok(()) => {}
                Err(reason) => stale.push(reason),
            }
        }
        if report.is_full {
            self.cluster.note_full_report(address);
        }
        for Refused { operator, step, reason, is_final } in report.refusals {
            self.operators.note_refusal(operator, step, reason, is_final, now);
        }
        stale
    }

    /// Returns the reply to the node with these stores.
    pub fn reply_to(&mut self, address: &str, stores: &[StoreId], now: Millis) -> ReportReply {
        let due = self.operators.instructions(&self.cluster, stores, now);
        let is_led_here = |region: RegionId| {
            let leader = self.cluster.regions().get(region).and_then(|info| info.leader);
            leader.is_some_and(|leader| stores.contains(&leader.store))
        };
        let is_busy = self.operators.running().any(|operator| is_led_here(operator.region));
        let all_wanted = !self.cluster.is_informed_by(address);
        let config = self.cluster.config();
        let (leases, fail) = (config.has_leases(), config.undetermined_writes_fail != 0);
        let unix_s = self.unix_s(now);
        let measured = self.cluster.take_measurements(stores, now);
        let undetermined_writes_fail = fail;
        let followed = self.followed_on(stores, now);
        ReportReply {
            due,
            is_busy,
            all_wanted,
            leases,
            undetermined_writes_fail,
            unix_s,
            measured,
            followed,
        }
    }

    /// Returns what the stores keep for readers of logs: of regions with a replica there, and of those that
    /// are merged away, which stores had is not known.
    ///
    /// Invariant: what readers need is not stated before all nodes have reported. What one of them needs would be
    /// given up.
    /// Test: `what_readers_need_is_stated_once_all_nodes_have_reported`.
    fn followed_on(&mut self, stores: &[StoreId], now: Millis) -> Option<FollowedFrom> {
        // bug placement.followed_unsettled: never
        if !self.cluster.is_settled(now) {
            return None;
        }
        let mut needed = self.followed.needed(now);
        needed.retain(|region, _| {
            let known = self.cluster.regions().get(*region);
            let is_here = |info: &RegionInfo| {
                stores.iter().any(|store| info.region.peer_on(*store).is_some())
            };
            known.is_none_or(is_here)
        });
        Some(needed)
    }

    /// Returns the cluster's time; 0 if it is unknown. It may be a second old.
    fn unix_s(&mut self, now: Millis) -> u64 {
        let (determined, unix_s) = self.time;
        if unix_s == 0 || now.since(determined) >= TIME_MILLIS {
            self.time = (now, self.cluster.unix_s());
        }
        self.time.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bootstrap, NewStore};
    use stele_types::{ClusterId, LogIndex};

    fn leader() -> LeaderState {
        let bootstrap =
            Bootstrap { cluster: ClusterId(7), address: "n1:1".into(), capacities_bytes: vec![1] };
        let pairs = bootstrap.pairs().into_iter().filter_map(|it| Some((it.key, it.value?)));
        let cluster = Cluster::load(pairs, Millis(0), 0).unwrap().unwrap();
        LeaderState::new(Term(3), cluster)
    }

    /// Sends a report with the next term of a region; returns whether the leader took it.
    fn is_heard(leader: &mut LeaderState, node: &NodeReport, count: u64, sequence: u64) -> bool {
        let store = StoreReport { id: StoreId(1), boot_count: count, ..StoreReport::default() };
        let info = leader.cluster.regions().get(RegionId(2)).unwrap();
        let (region, term) = (info.region.clone(), Term(info.term.0 + 1));
        let peer = region.peers[0];
        let regions = vec![RegionReport { region, leader: peer, term, ..RegionReport::default() }];
        let changes = leader.cluster.plan_heartbeat(node, &[store]).unwrap();
        leader.apply(&changes).unwrap();
        let (stores, refusals) = (&[store][..], Vec::new());
        let report = Report { node, sequence, stores, regions, is_full: true, refusals };
        leader.accept_report(report, Millis(1));
        leader.cluster.regions().get(RegionId(2)).unwrap().term == term
    }

    #[test]
    fn what_readers_need_is_stated_once_all_nodes_have_reported() {
        let mut leader = leader();
        let joined = leader.cluster.plan_join("n2:1", &[NewStore::default()]).unwrap();
        leader.apply(&joined.1).unwrap();
        let needs = |next| FollowedFrom::from([(RegionId(2), LogIndex(next))]);
        let node = |name: &str, followed| NodeReport {
            address: name.into(),
            followed,
            ..NodeReport::default()
        };
        let report = |leader: &mut LeaderState, node: &NodeReport, sequence| {
            let (stores, regions, refusals) = (&[][..], Vec::new(), Vec::new());
            let report = Report { node, sequence, stores, regions, is_full: true, refusals };
            leader.accept_report(report, Millis(1));
            leader.reply_to(&node.address, &[StoreId(1)], Millis(1)).followed
        };
        assert_eq!(report(&mut leader, &node("n1:1", needs(70)), 1), None);
        assert_eq!(report(&mut leader, &node("n2:1", needs(50)), 1), Some(needs(50)));
        assert_eq!(report(&mut leader, &node("n1:1", needs(80)), 2), Some(needs(50)));
        assert_eq!(report(&mut leader, &node("n2:1", FollowedFrom::new()), 2), Some(needs(80)));
        // A store without a replica of the region has nothing to keep.
        let reply = leader.reply_to("n2:1", &[StoreId(2)], Millis(1));
        assert_eq!(reply.followed, Some(FollowedFrom::new()));
        // Of a region that is merged away any store may have entries.
        let merged = FollowedFrom::from([(RegionId(99), LogIndex(7))]);
        assert_eq!(report(&mut leader, &node("n1:1", merged.clone()), 3), Some(merged));
    }

    #[test]
    fn a_node_that_restarts_with_its_clock_set_back_is_heard_again() {
        let run = |boot_nonce, started_at| NodeReport {
            address: "n1:1".into(),
            boot_nonce,
            started_at,
            ..NodeReport::default()
        };
        let (ahead, right) = (run(900, 1_700_086_400), run(4, 1_700_000_000));
        let mut leader = leader();
        assert!(is_heard(&mut leader, &ahead, 1, 7));
        assert!(is_heard(&mut leader, &right, 2, 1), "the restarted process");
        assert!(is_heard(&mut leader, &right, 2, 3));
        assert!(!is_heard(&mut leader, &right, 2, 2), "it arrived after a later one");
        assert!(!is_heard(&mut leader, &ahead, 1, 9), "it comes from the process that ended");
        // A node of an earlier version states its start time only.
        let (ahead, right) = (run(0, 1_700_086_400), run(0, 1_700_000_000));
        assert!(is_heard(&mut leader, &ahead, 0, 7));
        assert!(is_heard(&mut leader, &right, 0, 1));
        assert!(!is_heard(&mut leader, &right, 0, 1));
    }
}
