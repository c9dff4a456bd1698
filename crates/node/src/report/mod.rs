//! A node's report to the placement leader, and its answer: settings, steps, removed peers.

pub mod settings;
pub mod split;
pub mod steps;

#[cfg(test)]
mod tests;

pub use settings::Settings;
pub use steps::{Obstacle, StepKey};

use crate::store::Slowdowns;
use split::Sizes;
use std::collections::{BTreeMap, BTreeSet};
use stele_placement::{
    DownPeer, Instruction, NodeReport, Refused, RegionReport, StoreReport, Traffic,
};
use stele_raftstore::{Admin, AdminCall, Header, RegionReport as CoreReport, RequestId};
use stele_storage::RangeSize;
use stele_types::{PeerId, RegionEpoch, RegionId, StoreId, Term, mutant};

/// Replica without a leader for long, or a removed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalePeer {
    /// Store of the replica.
    pub store: StoreId,
    /// Region of the replica.
    pub region: RegionId,
    /// Peer id of the replica.
    pub peer: PeerId,
    /// Epoch of the region known to the replica; in an answer, the epoch that excludes it.
    pub epoch: RegionEpoch,
}

impl StalePeer {
    /// Returns the request that destroys the replica.
    pub fn destroy(&self, id: RequestId) -> AdminCall {
        let header = Header { region: self.region, ..Header::default() };
        AdminCall { id, header, call: Admin::Destroy(self.peer) }
    }
}

/// Report of a node.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Node that reports.
    pub node: NodeReport,
    /// Number of the report; it grows until the node restarts.
    pub sequence: u64,
    /// Stores of the node.
    pub stores: Vec<StoreReport>,
    /// Regions led on the node that changed since the last answered report, or all.
    pub regions: Vec<RegionReport>,
    /// `regions` is complete.
    pub is_full: bool,
    /// Steps that were refused.
    pub refusals: Vec<Refused>,
    /// Replicas that may have been removed.
    pub stale_peers: Vec<StalePeer>,
}

/// Answer of the placement leader to a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Term of the placement leader.
    pub term: Term,
    /// Number of the report.
    pub sequence: u64,
    /// Steps for leaders on the node.
    pub steps: Vec<Instruction>,
    /// A region led on the node has an operator: the next report must come soon.
    pub is_busy: bool,
    /// The next report must hold every region.
    pub all_wanted: bool,
    /// The stores may serve reads under leases; `None` from a leader without the setting.
    pub leases: Option<bool>,
    /// Writes of unknown outcome are answered with an error; `None` from a leader without the
    /// setting.
    pub undetermined_writes_fail: Option<bool>,
    /// Replicas to destroy.
    pub removed: Vec<StalePeer>,
    /// The cluster's time in Unix seconds; 0 if it is unknown.
    pub unix_s: u64,
    /// Stores that measure their devices now: they write and sync a few blocks that hold nothing.
    pub measured: Vec<StoreId>,
    /// Stores of the cluster of which garbage collection lags: their writers wait.
    pub slowdowns: Slowdowns,
}

/// State that a node keeps between its reports.
#[derive(Debug)]
pub struct Reporter {
    /// Settings of the cluster.
    pub settings: Settings,
    stale_after_s: u64,
    sequence: u64,
    sends_all: bool,
    /// Regions of the last answered report.
    known: BTreeMap<RegionId, RegionReport>,
    /// What the last report held, until it is answered.
    sent: Option<Sent>,
    has_unmeasured: bool,
    refusals: Vec<Refused>,
    /// Refusals at the start of `refusals` that the last report held.
    refusals_sent: usize,
    running: BTreeSet<StepKey>,
}

/// Regions of a report.
#[derive(Clone, Debug)]
struct Sent {
    changed: Vec<RegionReport>,
    /// All regions led here, ascending.
    leading: Vec<RegionId>,
}

impl Reporter {
    /// Creates the state of a node that starts. Its reports are numbered after `sequence`. A peer
    /// without a leader for `stale_after_s` is reported as stale.
    pub fn new(sequence: u64, stale_after_s: u64) -> Self {
        Self {
            settings: Settings::default(),
            stale_after_s,
            sequence,
            sends_all: true,
            known: BTreeMap::new(),
            sent: None,
            has_unmeasured: true,
            refusals: Vec::new(),
            refusals_sent: 0,
            running: BTreeSet::new(),
        }
    }

    /// Returns the number of the last report.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns whether the last report held a region without a measured size.
    pub fn has_unmeasured(&self) -> bool {
        self.has_unmeasured
    }

    /// Builds the next report from the regions of all stores.
    pub fn report(
        &mut self,
        node: NodeReport,
        stores: Vec<StoreReport>,
        regions: &[(StoreId, CoreReport)],
        sizes: &Sizes,
    ) -> Report {
        // A new leader would report all its followers as pending, and every operator would be
        // refused: its region is reported later.
        let leading = || regions.iter().map(|(_, report)| report).filter(|it| it.is_leading);
        let size = |report: &CoreReport| measured_size(report, sizes);
        let since = node.started_at.max(1);
        // Invariant: a region that did not change costs a comparison and no copy: a node may lead ten
        // thousand of them.
        let is_wanted = |report: &&CoreReport| {
            let known = self.known.get(&report.region.id).filter(|_| !self.sends_all);
            known.is_none_or(|known| !is_same(known, report, size(report), since))
        };
        let changed = leading().filter(is_wanted);
        let changed: Vec<_> = changed.map(|it| region_report(it, size(it), since)).collect();
        let mut ids: Vec<RegionId> = leading().map(|report| report.region.id).collect();
        ids.sort_unstable();
        self.has_unmeasured = leading().any(|report| size(report).bytes == 0);
        self.sent = Some(Sent { changed: changed.clone(), leading: ids });
        self.sequence += 1;
        self.refusals_sent = self.refusals.len();
        Report {
            node,
            sequence: self.sequence,
            stores,
            regions: changed,
            is_full: self.sends_all,
            refusals: self.refusals.clone(),
            stale_peers: stale_peers(regions, self.stale_after_s),
        }
    }

    /// Records that the last report got no answer, or a refusal. Invariant: the next report then
    /// holds every region, because another leader may receive it.
    pub fn failed(&mut self) {
        self.sends_all = true;
    }

    /// Takes an answer. Returns the steps to start and the replicas to destroy. Invariant: only the
    /// answer to the last report shows what the leader knows of regions and refusals.
    pub fn answered(&mut self, answer: Answer) -> (Vec<Instruction>, Vec<StalePeer>) {
        self.settings.accept(&answer);
        if answer.sequence == self.sequence || mutant::active("node.any_answer_counts") {
            if let Some(Sent { changed, leading }) = self.sent.take() {
                self.known.retain(|region, _| leading.binary_search(region).is_ok());
                self.known.extend(changed.into_iter().map(|report| (report.region.id, report)));
            }
            self.sends_all = answer.all_wanted;
            self.refusals.drain(..std::mem::take(&mut self.refusals_sent));
        }
        let steps = answer.steps.into_iter().filter(|step| self.begin(StepKey::of(step)));
        (steps.collect(), answer.removed)
    }

    /// Notes that a step starts. Invariant: an operator's step is carried out once at a time; a
    /// leader repeats instructions until it sees their effect.
    fn begin(&mut self, key: StepKey) -> bool {
        self.running.insert(key) || mutant::active("node.step_twice")
    }

    /// Records the end of a step; the next report holds its refusal.
    pub fn ended(&mut self, key: StepKey, step: usize, outcome: Result<(), Obstacle>) {
        self.running.remove(&key);
        if let Err(Obstacle { reason, is_final }) = outcome {
            self.refuse(Refused { operator: key.operator, step, reason, is_final });
        }
    }

    /// Records the refusal of a step that did not start.
    pub fn refuse(&mut self, refused: Refused) {
        self.refusals.push(refused);
    }
}

/// Returns the measured size of a region as it is now; zero means that this range was not measured.
fn measured_size(report: &CoreReport, sizes: &Sizes) -> RangeSize {
    let measured = sizes.get(&report.region.id);
    let measured = measured.filter(|measured| measured.version == report.region.epoch.version);
    measured
        .map(|of| RangeSize { bytes: of.size.bytes.max(1), keys: of.size.keys })
        .unwrap_or_default()
}

/// Builds the report of a region of which the traffic is counted by a process that started at
/// `since`.
fn region_report(report: &CoreReport, size: RangeSize, since: u64) -> RegionReport {
    RegionReport {
        region: report.region.clone(),
        leader: report.peer,
        term: report.term,
        down: down_peers(report).collect(),
        pending: pending_peers(report).collect(),
        size_bytes: size.bytes,
        keys: size.keys,
        traffic: traffic(report, since),
    }
}

/// Returns whether [`region_report`] of the same arguments equals `known`.
fn is_same(known: &RegionReport, report: &CoreReport, size: RangeSize, since: u64) -> bool {
    let RegionReport { region, leader, term, down, pending, size_bytes, keys, traffic: counted } =
        known;
    *region == report.region
        && *leader == report.peer
        && *term == report.term
        && down.iter().copied().eq(down_peers(report))
        && pending.iter().copied().eq(pending_peers(report))
        && (*size_bytes, *keys) == (size.bytes, size.keys)
        && *counted == traffic(report, since)
}

fn down_peers(report: &CoreReport) -> impl Iterator<Item = DownPeer> {
    report.down_peers.iter().map(|(peer, seconds)| DownPeer { peer: peer.id, seconds: *seconds })
}

fn pending_peers(report: &CoreReport) -> impl Iterator<Item = PeerId> {
    report.pending_peers.iter().map(|peer| peer.id)
}

fn traffic(report: &CoreReport, since: u64) -> Traffic {
    Traffic {
        reads: report.traffic.read_ops,
        writes: report.traffic.write_ops,
        written_bytes: report.traffic.write_bytes,
        read_bytes: report.traffic.read_bytes,
        counted_since: since,
    }
}

/// Returns replicas without a leader for long: their region may have continued without them.
fn stale_peers(regions: &[(StoreId, CoreReport)], stale_after_s: u64) -> Vec<StalePeer> {
    let stale = regions.iter().filter(|(_, report)| report.leaderless_seconds >= stale_after_s);
    let peer = |(store, report): &(StoreId, CoreReport)| StalePeer {
        store: *store,
        region: report.region.id,
        peer: report.peer.id,
        epoch: report.region.epoch,
    };
    stale.map(peer).collect()
}
