//! Liveness after faults: every region has a leader, no change is incomplete, and each region
//! accepts a write and changes of itself within bounded time.

use crate::nemesis::{destroy_stale_peers, finish_merges, new_region};
use crate::sim::{Backend, MS, SECOND, Sim};
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_replica::*;
use stele_types::*;

/// Limit from the end of all faults until every region has a leader and no incomplete change. The
/// longest waits are those for a snapshot that was refused (8 s) and of a prepared region that
/// queries the outcome of its merge.
const RECOVERY: u64 = 30 * SECOND;
/// Limit for one write or change of a region with a leader.
const CHANGE: u64 = 5 * SECOND;
const PACE: u64 = 250 * MS;

/// Waits after the end of all faults until no change is incomplete, and acts as placement
/// meanwhile.
#[track_caller]
pub(crate) fn recover<B: Backend>(sim: &mut Sim<B>) {
    let until = sim.now + RECOVERY;
    loop {
        sim.run(PACE);
        finish_merges(sim);
        destroy_stale_peers(sim);
        match stuck(sim) {
            None => return,
            Some(what) if sim.now > until => sim.fail(&format!("after the faults: {what}")),
            Some(_) => {}
        }
    }
}

/// Returns the reason for which the cluster does not serve all keys.
fn stuck<B: Backend>(sim: &mut Sim<B>) -> Option<String> {
    let regions = latest(sim);
    let mut end = Some(Bytes::new());
    let mut ordered: Vec<&Region> = regions.values().collect();
    ordered.sort_by(|a, b| a.range.start.cmp(&b.range.start));
    for region in &ordered {
        if region.is_joint() || region.phase != RegionPhase::Normal {
            return Some(format!("region {} is between two states", region.id));
        }
        if end.as_ref() != Some(&region.range.start) {
            return Some(format!("the keys before region {} have no region or two", region.id));
        }
        end = (!region.range.end.is_empty()).then(|| region.range.end.clone());
    }
    if end.is_some() {
        return Some("the last keys have no region".to_owned());
    }
    let leaderless = regions.keys().copied().find(|id| sim.serving(*id).is_none());
    leaderless.map(|id| format!("region {id} has no leader that serves"))
}

/// Returns every region as known by its newest replica.
fn latest<B: Backend>(sim: &mut Sim<B>) -> BTreeMap<RegionId, Region> {
    let mut out: BTreeMap<RegionId, Region> = BTreeMap::new();
    for store in sim.nodes.keys().copied().collect::<Vec<_>>() {
        for report in sim.reports(store) {
            let rank = |region: &Region| (region.epoch.version, region.epoch.conf_version);
            let known = out.entry(report.region.id).or_insert_with(|| report.region.clone());
            if rank(known) < rank(&report.region) {
                *known = report.region;
            }
        }
    }
    out
}

/// Checks that every region accepts a write, a change of leader and of members, a split, and a
/// merge that reverts it.
#[track_caller]
pub(crate) fn check_changes<B: Backend>(sim: &mut Sim<B>) {
    for region in latest(sim).into_values() {
        write(sim, &region);
        transfer(sim, region.id);
        change_members(sim, &region);
        let right = split(sim, &region);
        merge(sim, right, region.id);
        write(sim, &region);
    }
}

#[track_caller]
fn write<B: Backend>(sim: &mut Sim<B>, region: &Region) {
    let until = sim.now + CHANGE;
    let mut command = CommandBuilder::new();
    let key = inside(region, b'!');
    command.put(&ColumnFamily::Default.engine_key(&key), b"alive", 0).unwrap();
    let command = command.build().bytes().clone();
    while sim.now < until {
        let leader = sim.elect_within(region.id, CHANGE);
        let id = sim.write(leader, region.id, command.clone());
        sim.run(PACE);
        if sim.is_written(id) {
            return;
        }
    }
    sim.fail(&format!("region {} takes no write", region.id));
}

/// Sends the request to the current leader until it succeeds; each attempt may use other ids.
#[track_caller]
fn change<B: Backend>(
    sim: &mut Sim<B>,
    region: RegionId,
    mut call: impl FnMut(&mut Sim<B>, u64, &Region) -> Admin,
) -> Region {
    let until = sim.now + CHANGE;
    let mut last = None;
    while sim.now < until {
        let leader = sim.elect_within(region, CHANGE);
        let known = sim.report(leader, region).unwrap().region;
        let call = call(sim, leader, &known);
        let id = sim.admin(leader, region, call);
        while !sim.replies.contains_key(&id) && sim.now < until {
            sim.run(PACE / 10);
        }
        match sim.replies.get(&id).cloned() {
            Some(Reply::Done(Done::Admin { region })) => return region,
            other => last = other,
        }
    }
    sim.fail(&format!("region {region} was not changed: {last:?}"));
}

#[track_caller]
fn transfer<B: Backend>(sim: &mut Sim<B>, region: RegionId) {
    change(sim, region, |_, leader, region| {
        let mut voters = region.peers.iter().filter(|peer| peer.role == PeerRole::Voter);
        match voters.find(|peer| peer.store != StoreId(leader)) {
            Some(transfer_target) => Admin::TransferLeader(transfer_target.id),
            None => Admin::Wake,
        }
    });
    sim.elect_within(region, CHANGE);
}

/// Adds a learner on a store without a replica and removes it.
#[track_caller]
fn change_members<B: Backend>(sim: &mut Sim<B>, region: &Region) {
    let free = sim.nodes.keys().copied().find(|id| region.peer_on(StoreId(*id)).is_none());
    let Some(store) = free else { return };
    let id = PeerId(sim.fresh_id());
    let peer = Peer { id, store: StoreId(store), role: PeerRole::Learner };
    for kind in [ChangeKind::Add, ChangeKind::Remove] {
        change(sim, region.id, |_, _, _| Admin::ChangePeers(vec![PeerChange { kind, peer }]));
    }
    let until = CHANGE;
    let what = format!("the learner of region {} leaves", region.id);
    sim.run_until(until, &what, |sim| sim.report(store, region.id).is_none());
}

#[track_caller]
fn split<B: Backend>(sim: &mut Sim<B>, region: &Region) -> RegionId {
    let mut made = RegionId(0);
    let key = inside(region, b'5');
    change(sim, region.id, |sim, _, known| {
        let new = new_region(sim, known);
        made = new.region;
        Admin::Split { keys: vec![key.clone()], new_ids: vec![new] }
    });
    let what = format!("region {made} is on all its stores");
    let stores: Vec<u64> = region.peers.iter().map(|peer| peer.store.0).collect();
    sim.run_until(CHANGE, &what, |sim| {
        stores.iter().all(|store| sim.report(*store, made).is_some())
    });
    made
}

#[track_caller]
fn merge<B: Backend>(sim: &mut Sim<B>, source: RegionId, target: RegionId) {
    change(sim, source, |sim, leader, _| {
        let target = sim.report(leader, target).unwrap().region;
        Admin::PrepareMerge { target }
    });
    let until = sim.now + CHANGE;
    let stores: Vec<u64> = sim.nodes.keys().copied().collect();
    while stores.iter().any(|store| sim.report(*store, source).is_some()) {
        if sim.now > until {
            sim.fail(&format!("region {source} is not taken over"));
        }
        finish_merges(sim);
        sim.run(PACE);
    }
}

/// Returns a key directly after the region's first one, which no history uses.
fn inside(region: &Region, last: u8) -> Bytes {
    [&region.range.start[..], &[last]].concat().into()
}
