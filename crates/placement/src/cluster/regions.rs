//! Regions by number and by key, and the region merges that an administrator cancelled.
//!
//! Invariants: regions of user data never overlap here, and at every key the version only grows. A
//! client can thus rely on the greater version being later. What is persisted of a region is the least
//! that a later leader knows: it accepts no report of an earlier epoch or term.
//!
//! Invariant: a merge that was cancelled is abandoned by every later placement leader too, and no
//! scheduler plans one with that region again for `PAUSE_S` seconds after it has ended. So the
//! record is committed before the answer, and kept while the region is prepared to merge: an order to
//! prepare may have been on its way.

use super::Cluster;
use crate::Millis;
use crate::pairs::{self, PairChange, PlacementRecord};
use crate::region_info::RegionInfo;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use stele_types::{
    Error, KeyRange, Peer, Region, RegionEpoch, RegionId, RegionKind, RegionPhase, Result, Term,
};

/// Reason why a report was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StaleReport {
    /// The same region is known with a later epoch.
    Epoch(RegionId),
    /// The same region is known with a leader of a later term.
    Term(RegionId, Term),
    /// A region that is as new or newer holds some of the keys.
    Overlaps(RegionId),
    /// The report does not describe a region that can serve.
    Malformed(&'static str),
}

impl fmt::Display for StaleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Epoch(id) => write!(f, "region {id} is known with a later epoch"),
            Self::Term(id, term) => write!(f, "region {id} is led in term {term}"),
            Self::Overlaps(id) => write!(f, "region {id}, as new or newer, holds some of its keys"),
            Self::Malformed(what) => f.write_str(what),
        }
    }
}

/// All known regions.
#[derive(Clone, Debug, Default)]
pub struct Regions {
    by_id: BTreeMap<RegionId, RegionInfo>,
    /// Regions of user data, by their first key.
    by_start: BTreeMap<Bytes, RegionId>,
    /// Regions with a descriptor, or an absence, that must be persisted.
    unsaved: BTreeSet<RegionId>,
    /// Regions with a term that must be persisted.
    unsaved_terms: BTreeSet<RegionId>,
    saved: BTreeMap<RegionId, Saved>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Saved {
    epoch: RegionEpoch,
    term: Term,
}

impl Regions {
    /// Iterates over all regions, by number.
    pub fn iter(&self) -> impl Iterator<Item = &RegionInfo> {
        self.by_id.values()
    }

    /// Returns the number of regions.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are no regions.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns the region with this number.
    pub fn get(&self, id: RegionId) -> Option<&RegionInfo> {
        self.by_id.get(&id)
    }

    /// Returns the region of user data that holds `key`.
    pub fn by_key(&self, key: &[u8]) -> Option<&RegionInfo> {
        self.at_or_before(key).filter(|info| info.region.range.contains(key))
    }

    /// Returns the region that ends where the region of `key` begins.
    pub fn before_key(&self, key: &[u8]) -> Option<&RegionInfo> {
        self.left_of(&self.by_key(key)?.region)
    }

    pub(crate) fn left_of(&self, region: &Region) -> Option<&RegionInfo> {
        let start = &region.range.start;
        let below = (Bound::Unbounded, Bound::Excluded(&start[..]));
        let (_, id) = self.by_start.range::<[u8], _>(below).next_back()?;
        self.by_id.get(id).filter(|info| info.region.range.end == *start)
    }

    pub(crate) fn right_of(&self, region: &Region) -> Option<&RegionInfo> {
        let end = &region.range.end;
        if end.is_empty() {
            return None;
        }
        self.by_id.get(self.by_start.get(end)?)
    }

    /// Whether the epoch and the term of the region are persisted, so that a later leader knows no
    /// earlier ones.
    pub fn is_saved(&self, id: RegionId) -> bool {
        let Some(info) = self.by_id.get(&id) else { return true };
        self.saved.get(&id) == Some(&Saved { epoch: info.region.epoch, term: info.term })
    }

    fn at_or_before(&self, key: &[u8]) -> Option<&RegionInfo> {
        let (_, id) =
            self.by_start.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
        self.by_id.get(id)
    }

    /// Iterates over regions of user data that hold keys of `range`, ascending.
    pub fn in_range(&self, range: &KeyRange) -> impl Iterator<Item = &RegionInfo> {
        let first = self.by_key(&range.start).map(|info| info.region.range.start.clone());
        let from = first.unwrap_or_else(|| range.start.clone());
        let end = range.end.clone();
        self.by_start
            .range::<[u8], _>((Bound::Included(&from[..]), Bound::Unbounded))
            .take_while(move |(start, _)| end.is_empty() || **start < end)
            .filter_map(|(_, id)| self.by_id.get(id))
    }

    /// Whether the regions hold every key of `range`, without a gap.
    pub(crate) fn cover(&self, range: &KeyRange) -> bool {
        let mut covered = range.start.clone();
        for info in self.in_range(range) {
            if info.region.range.start > covered {
                return false;
            }
            covered = info.region.range.end.clone();
            if covered.is_empty() {
                return true;
            }
        }
        !range.end.is_empty() && covered >= range.end
    }

    /// Records a report if it is newer than the known state.
    pub(super) fn put(&mut self, mut info: RegionInfo) -> Result<(), StaleReport> {
        check_shape(&info)?;
        let reporter = info.leader;
        let known = self.by_id.get(&info.region.id);
        let newer = match known {
            Some(known) => merge_known(known, &mut info)?,
            None => true,
        };
        // bug placement.changed_range_is_empty: never
        if !info.is_measured {
            (info.size_bytes, info.keys) = self.estimate(&info.region);
        }
        if newer {
            self.evict_older(&info.region)?;
            self.unsaved.insert(info.region.id);
        }
        if self.saved.get(&info.region.id).is_none_or(|saved| saved.term < info.term) {
            self.unsaved_terms.insert(info.region.id);
        }
        self.warm(&mut info, reporter);
        self.insert(info);
        Ok(())
    }

    /// Estimates the size and the keys of a range that its leader has not measured, by the regions that
    /// are known to hold it: all of a region inside it, and half of one of which it is a part. Where
    /// nothing is known, the other part of the same split is as large.
    ///
    /// Invariant: a change of ranges makes no store seem emptier. Otherwise regions would move to it
    /// until the leaders measure the new ranges, and return afterwards.
    fn estimate(&self, region: &Region) -> (u64, u64) {
        if region.kind == RegionKind::System {
            let known = self.by_id.get(&region.id);
            return known.map(|known| (known.size_bytes, known.keys)).unwrap_or_default();
        }
        let held = |info: &RegionInfo| {
            let parts = if is_within(&info.region.range, &region.range) { 1 } else { 2 };
            (info.size_bytes / parts, info.keys / parts)
        };
        let add = |sum: (u64, u64), it: (u64, u64)| {
            (sum.0.saturating_add(it.0), sum.1.saturating_add(it.1))
        };
        if let Some(sum) = self.in_range(&region.range).map(held).reduce(add) {
            return sum;
        }
        let neighbours = [self.left_of(region), self.right_of(region)].into_iter().flatten();
        let mut parts = neighbours.filter(|it| it.region.epoch.version == region.epoch.version);
        parts.next().map(|it| (it.size_bytes, it.keys)).unwrap_or_default()
    }

    /// Adds the reported traffic to the heat of the known region.
    /// Invariant: heat outlasts reports and leaders. A refused report adds nothing: the next one
    /// that is accepted contains its counts.
    fn warm(&mut self, info: &mut RegionInfo, reporter: Option<Peer>) {
        // bug placement.heat_rebuilt: never
        if let Some(known) = self.by_id.get_mut(&info.region.id) {
            info.heat = std::mem::take(&mut known.heat);
        }
        if let (Some(reporter), Some(now)) = (reporter, info.reported) {
            info.heat.note(reporter.id, &info.traffic, &info.region.peers, now);
        }
    }

    /// Removes the regions that overlap `region` if all of them are older. Regions of the same
    /// version existed at the same time and do not overlap, so if they seem to, the known one
    /// stays.
    fn evict_older(&mut self, region: &Region) -> Result<(), StaleReport> {
        if region.kind == RegionKind::System {
            return Ok(());
        }
        let others: Vec<&Region> = self
            .in_range(&region.range)
            .map(|info| &info.region)
            .filter(|other| other.id != region.id)
            .collect();
        if let Some(other) = others.iter().find(|o| o.epoch.version >= region.epoch.version) {
            return Err(StaleReport::Overlaps(other.id));
        }
        let gone: Vec<RegionId> = others.iter().map(|other| other.id).collect();
        for id in gone {
            self.remove(id);
            self.unsaved.insert(id);
        }
        Ok(())
    }

    /// Records a persisted descriptor. One that overlaps newer ones is due to be deleted.
    ///
    /// Invariant: a descriptor that was proposed before this leader learned that its region is gone does
    /// not bring the region back: the keys may have none until the next report.
    pub(super) fn restore(&mut self, region: Region) {
        self.saved.entry(region.id).or_default().epoch = region.epoch;
        if self.by_id.get(&region.id).is_some_and(|known| known.region == region) {
            self.unsaved.remove(&region.id);
        }
        let is_newer = match self.by_id.get(&region.id) {
            Some(known) => is_later(&region, &known.region),
            None => {
                let is_gone = self.unsaved.contains(&region.id);
                // bug placement.gone_region_returns: `!is_gone` is `true`
                !is_gone
            }
        };
        if !is_newer {
            return;
        }
        match self.evict_older(&region) {
            Ok(()) => self.insert(RegionInfo::new(region)),
            Err(_) => {
                self.unsaved.insert(region.id);
            }
        }
    }

    /// Records a persisted term, which every later report has at least.
    pub(super) fn restore_term(&mut self, id: RegionId, term: Term) {
        self.saved.entry(id).or_default().term = term;
        let Some(info) = self.by_id.get_mut(&id) else { return };
        if info.term <= term {
            self.unsaved_terms.remove(&id);
        }
        // bug placement.term_forgotten: never
        if info.term < term {
            (info.term, info.leader) = (term, None);
        }
    }

    /// Removes a region after its record was deleted, unless it has been reported again.
    pub(super) fn forget(&mut self, id: RegionId) {
        self.saved.remove(&id);
        match self.by_id.get(&id).map(|info| info.reported) {
            Some(None) => self.remove(id),
            Some(Some(_)) => {
                self.unsaved.insert(id);
                self.unsaved_terms.insert(id);
            }
            None => {}
        }
    }

    fn insert(&mut self, info: RegionInfo) {
        let id = info.region.id;
        self.remove(id);
        if info.region.kind == RegionKind::Data {
            self.by_start.insert(info.region.range.start.clone(), id);
        }
        self.by_id.insert(id, info);
    }

    fn remove(&mut self, id: RegionId) {
        if let Some(info) = self.by_id.remove(&id)
            && info.region.kind == RegionKind::Data
        {
            self.by_start.remove(&info.region.range.start);
        }
    }

    pub(super) fn take_unsaved(&mut self, bytes_max: usize) -> Vec<PairChange> {
        let mut batch = BoundedChanges::default();
        while batch.bytes < bytes_max
            && let Some(id) = self.unsaved.pop_first()
        {
            match self.by_id.get(&id) {
                Some(info) => batch.push(pairs::region(&info.region)),
                None => {
                    batch.push(pairs::no_region(id));
                    batch.push(pairs::term(id, None));
                }
            }
        }
        while batch.bytes < bytes_max
            && let Some(id) = self.unsaved_terms.pop_first()
        {
            // The record of a region that is gone is deleted with its descriptor.
            if let Some(info) = self.by_id.get(&id) {
                batch.push(pairs::term(id, Some(info.term)));
            }
        }
        batch.changes
    }

    /// Makes the region of a record that was taken due again.
    pub(super) fn put_back(&mut self, record: &PlacementRecord) {
        match record {
            PlacementRecord::Region(id, _) => {
                self.unsaved.insert(*id);
            }
            PlacementRecord::Term(id, Some(_)) => {
                self.unsaved_terms.insert(*id);
            }
            _ => {}
        }
    }

    /// Returns the records of these regions that are not persisted.
    pub(super) fn plan_saves(&self, ids: &[RegionId], bytes_max: usize) -> Vec<PairChange> {
        let mut batch = BoundedChanges::default();
        let unsaved = ids.iter().filter(|id| !self.is_saved(**id));
        for info in unsaved.filter_map(|id| self.by_id.get(id)) {
            if batch.bytes >= bytes_max {
                break;
            }
            batch.push(pairs::region(&info.region));
            batch.push(pairs::term(info.region.id, Some(info.term)));
        }
        batch.changes
    }
}

#[derive(Default)]
struct BoundedChanges {
    changes: Vec<PairChange>,
    bytes: usize,
}

impl BoundedChanges {
    fn push(&mut self, change: PairChange) {
        self.bytes += change.key.len() + change.value.as_ref().map_or(0, Bytes::len);
        self.changes.push(change);
    }
}

fn check_shape(info: &RegionInfo) -> Result<(), StaleReport> {
    let region = &info.region;
    if region.range.is_empty() {
        return Err(StaleReport::Malformed("its range is empty"));
    }
    if region.phase == RegionPhase::Tombstone || region.peers.is_empty() {
        return Err(StaleReport::Malformed("it is a tombstone"));
    }
    match info.leader {
        Some(leader) if region.peer(leader.id).is_none() => {
            Err(StaleReport::Malformed("its leader is not a member"))
        }
        _ => Ok(()),
    }
}

/// Whether the descriptor in `info` is later than the known one. If the report is of an earlier
/// term, replaces its leader and term by the known ones.
fn merge_known(known: &RegionInfo, info: &mut RegionInfo) -> Result<bool, StaleReport> {
    let (old, new) = (known.region.epoch, info.region.epoch);
    let is_earlier = new.version < old.version || new.conf_version < old.conf_version;
    // bug placement.accept_stale_epoch: never
    if is_earlier {
        return Err(StaleReport::Epoch(known.region.id));
    }
    let is_newer = is_later(&info.region, &known.region);
    // A leader reports 0 until it has measured its region.
    if !info.is_measured && new.version == old.version {
        (info.size_bytes, info.keys) = (known.size_bytes, known.keys);
        info.is_measured = known.is_measured;
    }
    if info.term < known.term {
        if !is_newer {
            return Err(StaleReport::Term(known.region.id, known.term));
        }
        let still = known.leader.and_then(|leader| info.region.peer(leader.id));
        (info.leader, info.term) = (still.copied(), known.term);
    }
    Ok(is_newer || info.region != known.region)
}

fn is_within(inner: &KeyRange, outer: &KeyRange) -> bool {
    let ends_within = outer.end.is_empty() || (!inner.end.is_empty() && inner.end <= outer.end);
    outer.start <= inner.start && ends_within
}

fn is_later(region: &Region, known: &Region) -> bool {
    let (new, old) = (region.epoch, known.epoch);
    new.version >= old.version && new.conf_version >= old.conf_version && new != old
}

/// Seconds in which no scheduler merges a region of which a merge was cancelled. Each leader counts
/// by its own clock from when it first knows that the region is not prepared to merge.
pub(crate) const PAUSE_S: u64 = 600;
/// Limit for the descriptor that is recorded with a cancelled merge.
const REGION_BYTES_MAX: usize = 256 << 10;
const CANCELLED_MAX: usize = 1 << 12;

impl Cluster {
    /// Whether an administrator cancelled the merge of the region into another one lately.
    pub fn has_cancelled_merge(&self, region: RegionId) -> bool {
        self.cancelled_merges.contains_key(&region)
    }

    /// Plans to record that the merge of a region into another one is cancelled. Fails with `Busy`
    /// beyond the limit.
    pub fn plan_cancelled_merge(&self, region: RegionId) -> Result<Vec<PairChange>> {
        if self.has_cancelled_merge(region) {
            return Ok(Vec::new());
        }
        if self.cancelled_merges.len() >= CANCELLED_MAX {
            return Err(Error::Busy(format!(
                "{CANCELLED_MAX} merges were cancelled in the last {PAUSE_S} s; try again later"
            )));
        }
        // A record of a region that the next leader does not know would be deleted.
        let mut changes = self.plan_regions(&[region], REGION_BYTES_MAX);
        changes.push(pairs::cancelled_merge(region, true));
        Ok(changes)
    }

    /// Plans to forget that the merge of a region was cancelled: an administrator orders another one.
    pub fn plan_merge_again(&self, region: RegionId) -> Vec<PairChange> {
        let is_cancelled = self.has_cancelled_merge(region);
        is_cancelled.then(|| pairs::cancelled_merge(region, false)).into_iter().collect()
    }

    /// Notes since when the regions of cancelled merges are not prepared to merge. Called periodically.
    pub(crate) fn note_cancelled_merges(&mut self, now: Millis) {
        for (region, ended) in &mut self.cancelled_merges {
            let info = self.regions.get(*region);
            match info.map(|info| info.region.phase) {
                Some(RegionPhase::Merging { .. }) => *ended = None,
                _ => _ = ended.get_or_insert(now),
            }
        }
    }

    /// Plans the deletion of records that are no longer needed. Called periodically.
    pub(crate) fn plan_cancelled_merges(&self, now: Millis) -> Vec<PairChange> {
        let is_over = |ended: Millis| now.seconds_since(ended) >= PAUSE_S;
        let ended = self.cancelled_merges.iter().filter(|(region, ended)| {
            self.regions.get(**region).is_none() || ended.is_some_and(is_over)
        });
        ended.map(|(region, _)| pairs::cancelled_merge(*region, false)).collect()
    }

    pub(super) fn fold_cancelled_merge(&mut self, region: RegionId, is_cancelled: bool) {
        match is_cancelled {
            true => _ = self.cancelled_merges.entry(region).or_default(),
            false => _ = self.cancelled_merges.remove(&region),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::founded;
    use crate::region_info::RegionReport;
    use stele_types::{LogIndex, RegionEpoch, Term};

    const REGION: RegionId = RegionId(2);

    fn report(cluster: &mut Cluster, version: u64, phase: RegionPhase) {
        let mut region = cluster.regions().get(REGION).unwrap().region.clone();
        (region.epoch.version, region.phase) = (version, phase);
        let leader = region.peers[0];
        let report = RegionReport { region, leader, term: Term(5), ..RegionReport::default() };
        cluster.observe(report, Millis(1)).unwrap();
    }

    fn deleted(cluster: &mut Cluster, second: u64) -> usize {
        let now = Millis(second * 1000);
        cluster.note_cancelled_merges(now);
        cluster.plan_cancelled_merges(now).len()
    }

    #[test]
    fn a_record_of_a_cancelled_merge_stays_while_it_is_prepared_and_for_a_pause_after_it() {
        let (_, mut cluster) = founded();
        let changes = cluster.plan_cancelled_merge(REGION).unwrap();
        cluster.apply(&changes).unwrap();
        assert!(cluster.plan_cancelled_merge(REGION).unwrap().is_empty(), "it is recorded");
        // The order to prepare was on its way.
        assert_eq!(deleted(&mut cluster, 1), 0);
        let (prepared, term) = (LogIndex(8), Term(5));
        let target_epoch = RegionEpoch::default();
        let phase = RegionPhase::Merging { target: RegionId(9), prepared, term, target_epoch };
        report(&mut cluster, 50, phase);
        assert_eq!(deleted(&mut cluster, 2 * PAUSE_S), 0);
        report(&mut cluster, 51, RegionPhase::Normal);
        assert_eq!(deleted(&mut cluster, 3 * PAUSE_S), 0);
        assert_eq!(deleted(&mut cluster, 4 * PAUSE_S - 1), 0);
        assert_eq!(deleted(&mut cluster, 4 * PAUSE_S), 1);
        let changes = cluster.plan_merge_again(REGION);
        cluster.apply(&changes).unwrap();
        assert!(
            !cluster.has_cancelled_merge(REGION) && cluster.plan_merge_again(REGION).is_empty()
        );
        // A region that is gone needs none.
        let changes = cluster.plan_cancelled_merge(RegionId(77)).unwrap();
        cluster.apply(&changes).unwrap();
        assert_eq!(deleted(&mut cluster, 4 * PAUSE_S), 1);
    }

    #[test]
    fn cancelled_merges_are_bounded() {
        let (_, mut cluster) = founded();
        for region in 0..CANCELLED_MAX as u64 {
            cluster.fold_cancelled_merge(RegionId(100 + region), true);
        }
        assert!(matches!(cluster.plan_cancelled_merge(REGION), Err(Error::Busy(_))));
    }
}
