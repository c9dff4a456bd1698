//! A node's report to the placement leader, and its answer: settings, steps, removed peers. The
//! node keeps the settings of the cluster as it last received them, and the regions of its stores
//! as these last reported them.

pub mod split;
pub mod steps;
#[cfg(test)]
mod tests;

pub use steps::{Obstacle, StepKey};

use split::Sizes;
use std::collections::{BTreeMap, BTreeSet};
use stele_placement::{
    DownPeer, FollowedFrom, Instruction, NodeReport, Refused, RegionReport, StoreReport, Traffic,
};
use stele_replica::{
    Admin, AdminCall, Changes, Collection, Header, RegionReport as CoreReport, Slowdowns,
};
use stele_storage::RangeSize;
use stele_types::{PeerId, RegionEpoch, RegionId, StoreId, Term};

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
    pub fn destroy(&self) -> AdminCall {
        let header = Header { region: self.region, ..Header::default() };
        AdminCall { header, call: Admin::Destroy(self.peer) }
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
pub struct ReportAnswer {
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
    /// First entry of each region that a reader of its log needs somewhere in the cluster; `None` if it is not
    /// known: then the node keeps what it kept.
    pub followed: Option<FollowedFrom>,
}

/// State that a node keeps between its reports.
#[derive(Debug)]
pub struct Reporter {
    /// Settings of the cluster.
    pub settings: Settings,
    stale_after_s: u64,
    sequence: u64,
    sends_all: bool,
    here: KnownRegions,
    /// Regions to compare with what the leader knows: they may have changed.
    due: BTreeSet<RegionId>,
    /// Regions of the last answered report.
    known: BTreeMap<RegionId, RegionReport>,
    /// What the last report held, until it is answered.
    sent: Option<Sent>,
    /// Regions led here that have no measured size.
    unmeasured: BTreeSet<RegionId>,
    refusals: Vec<Refused>,
    /// Refusals at the start of `refusals` that the last report held.
    refusals_sent: usize,
    running: BTreeSet<StepKey>,
}

#[derive(Clone, Debug)]
struct Sent {
    /// Regions that were compared.
    due: BTreeSet<RegionId>,
    changed: Vec<RegionReport>,
    /// Compared regions that are not led here.
    not_led: Vec<RegionId>,
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
            here: KnownRegions::default(),
            due: BTreeSet::new(),
            known: BTreeMap::new(),
            sent: None,
            unmeasured: BTreeSet::new(),
            refusals: Vec::new(),
            refusals_sent: 0,
            running: BTreeSet::new(),
        }
    }

    /// Returns the number of the last report.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns whether a region without a measured size is led here, as of the last report.
    pub fn has_unmeasured(&self) -> bool {
        !self.unmeasured.is_empty()
    }

    /// Returns the collection from which the next list of a store's changes counts.
    pub fn collected(&self, store: StoreId) -> Collection {
        self.here.at(store)
    }

    /// Takes a list of a store's changes.
    pub fn collect(&mut self, store: StoreId, changes: &Changes) {
        self.due.extend(self.here.take(store, changes));
    }

    /// Returns the reports of a store's regions, as collected.
    pub fn regions_of(&self, store: StoreId) -> impl Iterator<Item = &CoreReport> {
        self.here.of(store)
    }

    /// Drops the regions of stores that are not in `kept`.
    pub fn keep_stores(&mut self, kept: &BTreeSet<StoreId>) {
        self.due.extend(self.here.keep(kept));
    }

    /// Notes regions of which the measured size changed.
    pub fn note_sizes(&mut self, regions: impl IntoIterator<Item = RegionId>) {
        self.due.extend(regions);
    }

    /// Returns whether the device of a store refuses entries.
    pub fn refuses_entries(&self, store: StoreId) -> bool {
        self.here.refuses_entries(store)
    }

    /// Builds the next report from the regions that were collected.
    ///
    /// Invariant: a region that changed is compared in every report until the leader has answered one of
    /// them. All others cost nothing: a node may lead ten thousand.
    /// Test: `a_changed_region_is_reported_until_an_answer_and_a_new_leader_gets_all`.
    pub fn report(&mut self, node: NodeReport, stores: Vec<StoreReport>, sizes: &Sizes) -> Report {
        let mut due = std::mem::take(&mut self.due);
        let unanswered = self.sent.take();
        // bug node.unanswered_forgotten: let unanswered = None;
        due.extend(unanswered.into_iter().flat_map(|sent| sent.due));
        if self.sends_all {
            due.extend(self.here.ids());
        }
        let since = node.started_at.max(1);
        let (mut changed, mut not_led) = (Vec::new(), Vec::new());
        for id in due.iter().copied() {
            // A new leader would report all its followers as pending, and every operator would be
            // refused: its region is reported later.
            let known = self.known.get(&id).filter(|_| !self.sends_all);
            let (mut is_led, mut is_unmeasured) = (false, false);
            for report in self.here.leading(id) {
                let size = measured_size(report, sizes);
                (is_led, is_unmeasured) = (true, is_unmeasured || size.bytes == 0);
                if known.is_none_or(|known| !is_same(known, report, size, since)) {
                    changed.push(region_report(report, size, since));
                }
            }
            match is_unmeasured {
                true => self.unmeasured.insert(id),
                false => self.unmeasured.remove(&id),
            };
            not_led.extend((!is_led).then_some(id));
        }
        self.sent = Some(Sent { due, changed: changed.clone(), not_led });
        self.sequence += 1;
        self.refusals_sent = self.refusals.len();
        Report {
            node,
            sequence: self.sequence,
            stores,
            regions: changed,
            is_full: self.sends_all,
            refusals: self.refusals.clone(),
            stale_peers: stale_peers(&self.here, self.stale_after_s),
        }
    }

    /// Records that the last report got no answer, or a refusal. Invariant: the next report then
    /// holds every region, because another leader may receive it.
    pub fn failed(&mut self) {
        self.sends_all = true;
    }

    /// Takes an answer. Returns the steps to start and the replicas to destroy. Invariant: only the
    /// answer to the last report shows what the leader knows of regions and refusals.
    pub fn answered(&mut self, answer: ReportAnswer) -> (Vec<Instruction>, Vec<StalePeer>) {
        self.settings.accept(&answer);
        // bug node.any_answer_counts: always
        if answer.sequence == self.sequence {
            if let Some(Sent { changed, not_led, .. }) = self.sent.take() {
                not_led.iter().for_each(|region| _ = self.known.remove(region));
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
        // bug node.step_twice: self.running.insert(key); return true;
        self.running.insert(key)
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
fn stale_peers(here: &KnownRegions, stale_after_s: u64) -> Vec<StalePeer> {
    let stale = here.leaderless().filter(|(_, report)| report.leaderless_seconds >= stale_after_s);
    let peer = |(store, report): (StoreId, &CoreReport)| StalePeer {
        store,
        region: report.region.id,
        peer: report.peer.id,
        epoch: report.region.epoch,
    };
    stale.map(peer).collect()
}

/// Settings of the cluster on a node.
#[derive(Debug, Default)]
pub struct Settings {
    /// Term of the placement leader that stated them.
    term: Term,
    leases: Option<bool>,
    undetermined_writes_fail: Option<bool>,
    /// Incarnation of each store, and the value of `leases` that it received.
    sent: BTreeMap<StoreId, (u64, bool)>,
}

impl Settings {
    /// Takes the settings from an answer. Invariant: a deposed placement leader that still answers
    /// does not turn leases on again.
    fn accept(&mut self, answer: &ReportAnswer) {
        // bug node.deposed_leader_sets: never
        if answer.term < self.term {
            return;
        }
        self.undetermined_writes_fail =
            answer.undetermined_writes_fail.or(self.undetermined_writes_fail);
        if answer.leases.is_some() {
            (self.term, self.leases) = (answer.term, answer.leases);
        }
    }

    /// Returns whether leases are on; `None` before a leader stated it: stores start without
    /// leases.
    pub fn leases(&self) -> Option<bool> {
        self.leases
    }

    /// Returns whether writes of unknown outcome are answered with an error; `None` before a leader
    /// stated it.
    pub fn undetermined_writes_fail(&self) -> Option<bool> {
        self.undetermined_writes_fail
    }

    /// Returns whether leases are on, if this incarnation of the store has not received it yet.
    pub fn take_leases_for(&mut self, store: StoreId, incarnation: u64) -> Option<bool> {
        let value = self.leases?;
        let sent = self.sent.insert(store, (incarnation, value));
        (sent != Some((incarnation, value))).then_some(value)
    }
}

#[cfg(test)]
mod settings_tests {
    use super::*;

    #[test]
    fn stores_receive_changes_and_a_deposed_placement_leader_changes_nothing() {
        let mut settings = Settings::default();
        let mut received = |term, leases, store, incarnation| {
            settings.accept(&ReportAnswer { term: Term(term), leases, ..ReportAnswer::default() });
            settings.take_leases_for(StoreId(store), incarnation)
        };
        assert_eq!(received(4, None, 1, 0), None, "a leader of an earlier version");
        assert_eq!(received(5, Some(true), 1, 0), Some(true));
        assert_eq!(received(5, Some(true), 1, 0), None, "it has it");
        assert_eq!(received(5, Some(true), 1, 1), Some(true), "it has restarted");
        assert_eq!(received(6, Some(false), 1, 1), Some(false));
        assert_eq!(received(5, Some(true), 1, 1), None, "deposed");
        assert_eq!(received(6, None, 1, 1), None);
        assert_eq!(received(6, Some(false), 2, 0), Some(false), "it has just joined");
        assert_eq!(received(6, Some(true), 2, 0), Some(true));
    }
}

#[derive(Debug, Default)]
struct KnownRegions {
    stores: BTreeMap<StoreId, OfStore>,
}

#[derive(Debug, Default)]
struct OfStore {
    at: Collection,
    regions: BTreeMap<RegionId, CoreReport>,
    leaderless: BTreeSet<RegionId>,
    /// Regions of which the device refused entries.
    lacking_room: BTreeSet<RegionId>,
}

impl OfStore {
    fn insert(&mut self, report: CoreReport) {
        let id = report.region.id;
        note(&mut self.leaderless, id, report.leaderless_seconds > 0);
        note(&mut self.lacking_room, id, report.lacks_room);
        self.regions.insert(id, report);
    }

    fn remove(&mut self, id: RegionId) {
        self.leaderless.remove(&id);
        self.lacking_room.remove(&id);
        self.regions.remove(&id);
    }
}

fn note(set: &mut BTreeSet<RegionId>, id: RegionId, is_in: bool) {
    match is_in {
        true => set.insert(id),
        false => set.remove(&id),
    };
}

impl KnownRegions {
    /// Returns the collection from which the next list of a store's changes counts.
    fn at(&self, store: StoreId) -> Collection {
        self.stores.get(&store).map(|known| known.at).unwrap_or_default()
    }

    /// Takes a list of a store's changes; returns the regions in it.
    ///
    /// Invariant: a list counts only if it begins at what is known, or before. A store that hangs answers
    /// an earlier question later, or the answer before is repeated: neither removes what a later list
    /// stated, and neither leaves a change out.
    fn take(&mut self, store: StoreId, changes: &Changes) -> BTreeSet<RegionId> {
        let known = self.stores.entry(store).or_default();
        let is_of_same_process = changes.now.incarnation == known.at.incarnation;
        let is_later = !is_of_same_process || changes.now.number > known.at.number;
        let begins_in_time =
            |since: Collection| is_of_same_process && since.number <= known.at.number;
        let continues = is_later && changes.since.is_none_or(begins_in_time);
        // bug node.repeated_changes_count: never
        if !continues {
            return BTreeSet::new();
        }
        let mut changed: BTreeSet<RegionId> = changes.gone.iter().copied().collect();
        if changes.since.is_none() {
            changed.extend(known.regions.keys());
            *known = OfStore::default();
        }
        changes.gone.iter().for_each(|region| known.remove(*region));
        changed.extend(changes.regions.iter().map(|report| report.region.id));
        changes.regions.iter().for_each(|report| known.insert(report.clone()));
        known.at = changes.now;
        changed
    }

    /// Drops the stores that are not in `kept`; returns their regions.
    fn keep(&mut self, kept: &BTreeSet<StoreId>) -> BTreeSet<RegionId> {
        let gone: Vec<StoreId> =
            self.stores.keys().copied().filter(|store| !kept.contains(store)).collect();
        let gone = gone.iter().filter_map(|store| self.stores.remove(store));
        gone.flat_map(|known| known.regions.into_keys()).collect()
    }

    fn of(&self, store: StoreId) -> impl Iterator<Item = &CoreReport> {
        self.stores.get(&store).into_iter().flat_map(|known| known.regions.values())
    }

    fn ids(&self) -> impl Iterator<Item = RegionId> {
        self.stores.values().flat_map(|known| known.regions.keys().copied())
    }

    fn leading(&self, region: RegionId) -> impl Iterator<Item = &CoreReport> {
        let here = self.stores.values().filter_map(move |known| known.regions.get(&region));
        here.filter(|report| report.is_leading)
    }

    fn leaderless(&self) -> impl Iterator<Item = (StoreId, &CoreReport)> {
        self.stores.iter().flat_map(|(store, known)| {
            let reports = known.leaderless.iter().filter_map(|region| known.regions.get(region));
            reports.map(|report| (*store, report))
        })
    }

    fn refuses_entries(&self, store: StoreId) -> bool {
        self.stores.get(&store).is_some_and(|known| !known.lacking_room.is_empty())
    }
}
