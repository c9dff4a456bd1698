//! Recovery on a cluster of which the placement group has a majority.

use super::{lost_stores, show};
use crate::Outcome;
use crate::args::Recover;
use crate::terminal::print;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use stele_client::messages::{RecoverReplicaRequest, ReplicaDetail, StoreInfo, StoreState};
use stele_client::{Control, RegionRow};
use stele_server::recover::{Planned, RegionOutcome, SurvivingReplica, plan};
use stele_types::{Error, LogIndex, Region, RegionId, Result, StoreId, Term};

/// Time for the nodes to learn that stores are lost, and for a region to elect a leader.
const WITHIN: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) async fn run(control: &Control, wanted: &Recover, json: bool) -> Result<Outcome> {
    if json || !wanted.with.is_empty() {
        return Err(Error::invalid("--json and --with belong to directories: add --store"));
    }
    let lost = lost_stores(&wanted.lost);
    let known = control.stores(&Vec::from_iter(lost.iter().copied())).await;
    let known = known.map_err(|error| without_quorum(error, &wanted.lost))?;
    check_known(&lost, &known)?;
    if wanted.yes {
        // Invariant: a lost store is removed before a region goes on without it.
        declare_lost(control, &lost, &known).await?;
    }
    let planned = survey(control, &lost).await?;
    show(&planned, |it| it.verdict != RegionOutcome::HasMajority, !wanted.yes)?;
    if !wanted.yes {
        return Ok(Outcome::Done);
    }
    let mut is_done = true;
    for it in &planned {
        match recover(control, it).await {
            Ok(text) => text.into_iter().for_each(|text| print(&text)),
            Err(error) => {
                eprintln!("stele: region {} was not recovered: {error}", it.region.id);
                is_done = false;
            }
        }
    }
    Ok(if is_done { Outcome::Done } else { Outcome::Failed })
}

/// Names the offline form if no placement leader answers: it is the one that is left then.
pub(crate) fn without_quorum(error: Error, lost: &[u64]) -> Error {
    match error {
        Error::Unavailable(reason) => {
            let lost: Vec<String> = lost.iter().map(ToString::to_string).collect();
            Error::Unavailable(format!(
                "{reason}. If the placement group has lost its majority, stop the nodes that are left \
                 and run `stele ctl --store DIR recover --lost {}` with their directories",
                lost.join(",")
            ))
        }
        error => error,
    }
}

fn check_known(lost: &BTreeSet<StoreId>, known: &[StoreInfo]) -> Result<()> {
    let is_known = |store: &&StoreId| known.iter().any(|it| id_of(it) == Some(store.0));
    match lost.iter().find(|store| !is_known(store)) {
        None => Ok(()),
        Some(store) => Err(Error::Refused(format!(
            "there is no store {store} in this cluster; `stele ctl stores` lists its stores"
        ))),
    }
}

fn id_of(store: &StoreInfo) -> Option<u64> {
    store.stats.as_ref().map(|stats| stats.id)
}

async fn declare_lost(
    control: &Control,
    lost: &BTreeSet<StoreId>,
    known: &[StoreInfo],
) -> Result<()> {
    let is_removed = |store: &StoreId| {
        let state = StoreState::Removed as i32;
        known.iter().any(|it| it.state == state && id_of(it) == Some(store.0))
    };
    for store in lost.iter().filter(|store| !is_removed(store)) {
        control.declare_lost(*store).await?;
        print(&format!("store {store} is removed from the cluster\n"));
    }
    Ok(())
}

/// Asks the stores that are not lost for their replicas of the regions that lost a majority.
async fn survey(control: &Control, lost: &BTreeSet<StoreId>) -> Result<Vec<Planned>> {
    let rows = control.regions(&stele_types::KeyRange::all(), true).await?;
    let regions: Vec<Region> = rows.into_iter().map(|row: RegionRow| row.region).collect();
    let mut replicas = Vec::new();
    // Without replicas, those with a majority are known by their descriptors alone.
    for it in plan(&[], &regions, lost) {
        if it.verdict == RegionOutcome::HasMajority {
            continue;
        }
        for peer in it.region.peers.iter().filter(|peer| !lost.contains(&peer.store)) {
            // One that does not answer is shown as missing.
            if let Ok(Some(detail)) = control.replica(it.region.id, peer.store).await {
                replicas.push(replica(&detail)?);
            }
        }
    }
    Ok(plan(&replicas, &regions, lost))
}

fn replica(detail: &ReplicaDetail) -> Result<SurvivingReplica> {
    Ok(SurvivingReplica {
        store: StoreId(detail.store_id),
        region: Region::decode(&detail.region)?,
        term: Term(detail.term),
        last: (LogIndex(detail.last_index), Term(detail.last_term)),
        committed: LogIndex(detail.committed_index),
    })
}

async fn recover(control: &Control, planned: &Planned) -> Result<Option<String>> {
    let id = planned.region.id;
    match &planned.verdict {
        RegionOutcome::HasMajority => Ok(None),
        RegionOutcome::GoesOn { source, recovery, .. } => {
            let request = RecoverReplicaRequest {
                header: None,
                region_id: id.0,
                store_id: source.0,
                lost_stores: recovery.lost.iter().map(|store| store.0).collect(),
                last_index: recovery.last.0.0,
                last_term: recovery.last.1.0,
                term: recovery.term.0,
            };
            let region = until_done(control, request).await?;
            let stores: Vec<StoreId> = region.peers.iter().map(|peer| peer.store).collect();
            until_led(control, id, &stores).await?;
            Ok(Some(format!("region {id} goes on with {}\n", super::list(&stores))))
        }
        RegionOutcome::Unseen(stores) => {
            Err(Error::Refused(format!("{} must answer first", super::list(stores))))
        }
        RegionOutcome::Lost => Err(Error::Refused("no replica is left".to_owned())),
    }
}

/// Repeats the request until the node knows that the stores are lost.
async fn until_done(control: &Control, request: RecoverReplicaRequest) -> Result<Region> {
    let started = Instant::now();
    loop {
        match control.recover_replica(request.clone()).await {
            Err(Error::Unavailable(_)) if started.elapsed() < WITHIN => {
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

async fn until_led(control: &Control, id: RegionId, stores: &[StoreId]) -> Result<()> {
    let started = Instant::now();
    loop {
        for store in stores {
            let detail = control.replica(id, *store).await.ok().flatten();
            if detail.is_some_and(|detail| {
                detail.role == stele_client::messages::RaftRole::Leader as i32
            }) {
                return Ok(());
            }
        }
        if started.elapsed() > WITHIN {
            return Err(Error::Unavailable(format!("region {id} has elected no leader yet")));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_placement_leader_the_command_for_directories_is_named() {
        let error = without_quorum(Error::Unavailable("no leader".to_owned()), &[1, 2]);
        let text = error.to_string();
        assert!(
            text.contains("no leader") && text.contains("--store DIR recover --lost 1,2"),
            "{text}"
        );
        let other = without_quorum(Error::invalid("bad"), &[1]).to_string();
        assert!(!other.contains("--store"), "{other}");
    }
}
