//! Recovery of the directories of one cluster that no node runs, together and by the core without a
//! network: what is refused, and the order.

use super::{Planned, RegionOutcome, SurvivingReplica};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use stele_placement::{Cluster, Millis, SYSTEM_REGION, pairs};
use stele_replica::{
    Admin, AdminCall, Busy, Done, Header, Input, Now, Options, RaftStore, Recovery, Refusal, Reply,
    RequestId,
};
use stele_storage::{Pages, StorageEngine};
use stele_types::{
    ClusterId, Command, CommandBuilder, Error, LogIndex, Op, Region, RegionId, Result, StoreId,
    StoreIdent, TickMillis,
};

/// Limit for the polls of one region's recovery: far above what its entries need.
const POLLS_MAX: usize = 100_000;
const FETCH_BYTES: usize = 1 << 20;

/// A store that no node runs.
pub struct Offline<E: StorageEngine> {
    engine: Arc<E>,
    core: RaftStore<E>,
    ident: StoreIdent,
    now: Now,
    requests: u64,
}

impl<E: StorageEngine> Offline<E> {
    /// Opens a store. `seed` must be random. Fails with `Invalid` if it never joined a cluster.
    pub fn open(engine: Arc<E>, now: Now, seed: u64) -> Result<Self> {
        let Some(ident) = RaftStore::ident(&*engine)? else {
            return Err(Error::invalid("the store is no member of a cluster"));
        };
        let mut options = Options::new(ident.store, ident.cluster, seed, seed);
        options.tick_nanos = ident.tick.unwrap_or(TickMillis::UNLESS_RECORDED).nanos();
        let core = RaftStore::open(engine.clone(), options, now)?;
        Ok(Self { engine, core, ident, now, requests: 0 })
    }

    /// Returns the store and its cluster.
    pub fn ident(&self) -> StoreIdent {
        self.ident
    }

    /// Returns the replicas of the store.
    pub fn replicas(&mut self) -> Vec<SurvivingReplica> {
        let store = self.ident.store;
        let replica = |report: stele_replica::RegionReport| {
            let last_term = self.engine.term(report.region.id, report.last).unwrap_or_default();
            let (term, last) = (report.term, (report.last, last_term));
            SurvivingReplica {
                store,
                region: report.region,
                term,
                last,
                committed: report.committed,
            }
        };
        self.core.regions().into_iter().map(replica).collect()
    }

    /// Returns the regions that the placement group has recorded, if it has a replica here.
    pub fn recorded_regions(&self) -> Result<Vec<Region>> {
        let view = self.engine.view()?;
        let mut pages = Pages::of_range(&view, pairs::state_range());
        let mut regions = Vec::new();
        while let Some(page) = pages.next_page()? {
            for pair in page {
                regions.extend(pairs::recorded_region(&pair.key, &pair.value)?);
            }
        }
        Ok(regions)
    }

    /// Returns the stores that the placement group has recorded, removed ones too, if it has a replica
    /// here.
    pub fn recorded_stores(&mut self) -> Result<BTreeSet<StoreId>> {
        let cluster = self.placement()?;
        Ok(cluster.iter().flat_map(Cluster::stores).map(|store| store.id).collect())
    }

    /// Returns the state of the placement group after all entries of this replica's log; `None` without
    /// a replica. Entries that are not committed count, as they will after the recovery.
    fn placement(&mut self) -> Result<Option<Cluster>> {
        let mut found: BTreeMap<Bytes, Bytes> = BTreeMap::new();
        let view = self.engine.view()?;
        let mut pages = Pages::of_range(&view, pairs::state_range());
        while let Some(page) = pages.next_page()? {
            found.extend(page.into_iter().map(|pair| (pair.key, pair.value)));
        }
        let Some(report) = self.core.region(SYSTEM_REGION) else { return Ok(None) };
        let (mut from, end) = (report.applied.next(), report.last.next());
        // bug node.recovery_without_the_tail: never
        while from < end {
            let entries = self.engine.entries(SYSTEM_REGION, from, end, FETCH_BYTES)?;
            let Some(last) = entries.last().map(|entry| entry.index) else { break };
            entries.iter().for_each(|entry| fold(&mut found, &entry.payload));
            from = last.next();
        }
        // The descriptor of the region and what the log keeps for itself have keys elsewhere.
        found.retain(|key, _| pairs::state_range().contains(key));
        Cluster::load(found, Millis(0), self.now.unix_seconds())
    }

    fn removal(&mut self, lost: &[StoreId], members_version: u64) -> Result<Option<Bytes>> {
        let lost = lost.iter().copied().collect();
        let changes = self.placement()?.map(|cluster| cluster.plan_lost(&lost, members_version));
        let changes = changes.unwrap_or_default();
        // bug node.lost_stores_not_recorded: always
        if changes.is_empty() {
            return Ok(None);
        }
        let mut command = CommandBuilder::new();
        for change in changes {
            match change.value {
                Some(value) => command.put(&change.key, &value, 0)?,
                None => command.delete(&change.key)?,
            };
        }
        Ok(Some(command.build().bytes().clone()))
    }

    /// Makes the replica on this store the region's; durable and applied on return. Fails with
    /// `Refused` and changes nothing if it is not the replica that was compared. `members_version` is
    /// the greatest version of the list of members that is known.
    ///
    /// Invariant: the placement group goes on with the lost stores removed. So a lost store that starts
    /// in spite of all is refused from the first second.
    pub fn recover(
        &mut self,
        region: RegionId,
        recovery: &Recovery,
        members_version: u64,
    ) -> Result<Region> {
        self.requests += 1;
        let id = RequestId(self.requests);
        let header = Header { region, ..Header::default() };
        let command = match region == SYSTEM_REGION {
            true => self.removal(&recovery.lost, members_version)?,
            false => None,
        };
        let recovery = Recovery { command, ..recovery.clone() };
        let entries = 1 + u64::from(recovery.command.is_some());
        let end = LogIndex(recovery.last.0.0 + entries);
        self.core.step(Input::request(id, AdminCall { header, call: Admin::Recover(recovery) }));
        let mut accepted = None;
        for _ in 0..POLLS_MAX {
            if let Some(reply) = self.poll(id)? {
                accepted = Some(accepted_region(region, reply)?);
            }
            let applied = self.core.region(region).map(|report| report.applied);
            if let Some(region) = accepted.take_if(|_| applied.is_some_and(|it| it >= end)) {
                return Ok(region);
            }
        }
        let applied = self.core.region(region).map_or(LogIndex(0), |report| report.applied);
        Err(Error::Refused(format!(
            "region {region} is applied up to entry {applied} only, because an entry waits for \
             another region; recover that one first"
        )))
    }

    /// Does all work that is due. Returns the reply to a request, if it came.
    fn poll(&mut self, id: RequestId) -> Result<Option<Reply>> {
        let outputs = self.core.poll(self.now)?;
        if let Some(append) = outputs.append {
            let result = self.engine.append(&append.batch);
            self.core.step(Input::Appended { ticket: append.ticket, result });
        }
        Ok(outputs.replies.into_iter().find(|(of, _)| *of == id).map(|(_, reply)| reply))
    }
}

fn fold(pairs: &mut BTreeMap<Bytes, Bytes>, payload: &Bytes) {
    for op in Command::ops_of(payload).into_iter().flatten() {
        match op {
            Op::Put { key, value, .. } => {
                pairs.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            }
            Op::Delete { key } => {
                pairs.remove(key);
            }
            Op::DeleteRange { start, end } => {
                pairs.retain(|key, _| key < start || (!end.is_empty() && key >= end))
            }
        }
    }
}

fn accepted_region(region: RegionId, reply: Reply) -> Result<Region> {
    let refused = |reason: String| Err(Error::Refused(format!("region {region}: {reason}")));
    match reply {
        Reply::Done(Done::Admin { region }) => Ok(region),
        Reply::Refused(Refusal::Invalid(reason)) => refused(reason),
        Reply::Busy(Busy::Wait { reason }) => refused(reason.to_owned()),
        other => refused(format!("{other:?}")),
    }
}

/// Reason why a region was not recovered.
#[derive(Debug)]
pub enum NotRecovered {
    /// The replica that goes on is on this store, of which the directory is not given.
    Elsewhere(StoreId),
    /// Replicas on these stores are neither lost nor known.
    Unseen(Vec<StoreId>),
    /// No replica is left.
    Lost,
    /// The replica did not take the request.
    Failed(Error),
}

/// Fails if directories belong to two clusters.
///
/// Invariant: replicas of two clusters are never compared: their regions and stores have the same
/// numbers.
pub fn check_cluster<'a>(mut dirs: impl Iterator<Item = (&'a Path, ClusterId)>) -> Result<()> {
    let Some((first, cluster)) = dirs.next() else { return Ok(()) };
    // bug node.recover_two_clusters: `dirs.find(|(_, of)| *of != cluster)` is `None`
    let Some((dir, other)) = dirs.find(|(_, of)| *of != cluster) else { return Ok(()) };
    Err(Error::Refused(format!(
        "{} belongs to cluster {cluster}, and {} to cluster {other}: recover one cluster at a time",
        first.display(),
        dir.display()
    )))
}

/// Fails for a lost store that nothing names: a mistake would count a store that runs as the one meant.
/// `known` are the stores of the cluster that the directories name.
pub fn check_lost(
    lost: &BTreeSet<StoreId>,
    known: &BTreeSet<StoreId>,
    cluster: ClusterId,
) -> Result<()> {
    // bug node.unknown_lost_store: `lost.iter().find(|store| !known.contains(store))` is `None`
    let Some(unknown) = lost.iter().find(|store| !known.contains(store)) else { return Ok(()) };
    let known: Vec<String> = known.iter().map(ToString::to_string).collect();
    let stores = if known.len() == 1 { "store" } else { "stores" };
    Err(Error::Refused(format!(
        "there is no store {unknown} in cluster {cluster}: the directories name {stores} {}",
        known.join(", ")
    )))
}

/// Recovers the regions of which the replica that goes on is in one of the directories, by store, and
/// calls `went_on` with the stores of each. One that waits for another region is tried again after
/// that. Returns the regions that were not recovered. `version` is the greatest version of the list of
/// members that is known.
pub fn recover_all<E: StorageEngine>(
    dirs: &mut BTreeMap<StoreId, Offline<E>>,
    planned: &[Planned],
    version: u64,
    mut went_on: impl FnMut(RegionId, &[StoreId]),
) -> BTreeMap<RegionId, NotRecovered> {
    let mut left: Vec<&Planned> = planned.iter().collect();
    let mut failed = BTreeMap::new();
    let mut count = usize::MAX;
    while left.len() < count {
        count = left.len();
        failed.clear();
        left.retain(|it| match recover(dirs, it, version) {
            Ok(stores) => {
                stores.into_iter().for_each(|stores| went_on(it.region.id, &stores));
                false
            }
            Err(reason) => {
                failed.insert(it.region.id, reason);
                true
            }
        });
    }
    failed
}

/// Recovers one region. Returns the stores with which it goes on; `None` if it has a majority.
fn recover<E: StorageEngine>(
    dirs: &mut BTreeMap<StoreId, Offline<E>>,
    planned: &Planned,
    version: u64,
) -> Result<Option<Vec<StoreId>>, NotRecovered> {
    match &planned.verdict {
        RegionOutcome::HasMajority => Ok(None),
        RegionOutcome::GoesOn { source, recovery, .. } => {
            let dir = dirs.get_mut(source).ok_or(NotRecovered::Elsewhere(*source))?;
            let recovered = dir.recover(planned.region.id, recovery, version);
            let region = recovered.map_err(NotRecovered::Failed)?;
            Ok(Some(region.peers.iter().map(|peer| peer.store).collect()))
        }
        RegionOutcome::Unseen(stores) => Err(NotRecovered::Unseen(stores.clone())),
        RegionOutcome::Lost => Err(NotRecovered::Lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_two_clusters_are_refused_with_both_clusters() {
        let check = |clusters: &[u64]| {
            let paths = ["/a", "/b", "/c"].map(Path::new).into_iter();
            check_cluster(paths.zip(clusters.iter().copied().map(ClusterId)))
        };
        assert!(check(&[]).is_ok() && check(&[7]).is_ok() && check(&[7, 7, 7]).is_ok());
        let error = check(&[7, 7, 8]).unwrap_err().to_string();
        assert!(error.contains("/a belongs to cluster 7, and /c to cluster 8"), "{error}");
    }

    #[test]
    fn a_lost_store_that_nothing_names_is_refused_with_the_stores_that_are_known() {
        let known = [1, 2, 3].map(StoreId).into();
        let check = |lost: [u64; 2]| check_lost(&lost.map(StoreId).into(), &known, ClusterId(7));
        assert!(check([1, 2]).is_ok());
        let error = check([1, 777]).unwrap_err().to_string();
        assert!(error.contains("no store 777 in cluster 7"), "{error}");
        assert!(error.contains("stores 1, 2, 3"), "{error}");
    }
}
