//! A majority of the stores is lost permanently, at the end of a run. The directories that are left are
//! recovered by the code of `stele ctl recover` (`stele_node::recover`), and the cluster goes on with
//! what they hold. Everything was applied on them, so nothing that was acknowledged is lost.

use crate::faults::Fault;
use crate::plan::{CLUSTER, fork};
use crate::world::{DIR, Stop, World};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use stele_engine::Store as Engine;
use stele_node::recover::{
    Offline, Planned, RegionOutcome, check_cluster, check_lost, plan, recover_all,
};
use stele_placement::StoreState;
use stele_types::{ClusterId, Error, LogIndex, Prng, Region, RegionId, Result, StoreId};

/// Number of draws of the nodes that are left.
const DRAWS: u64 = 10;
/// A store that no cluster of a run has.
const NO_STORE: StoreId = StoreId(1 << 40);

struct Left {
    dirs: BTreeMap<StoreId, Offline<Engine>>,
    engines: Vec<Arc<Engine>>,
    known: Vec<Region>,
    stores: BTreeSet<StoreId>,
}

/// Loses a majority, recovers the cluster and starts it again. Returns whether it did: not in a plan
/// without this fault, nor if a region would be lost with all its replicas.
pub(crate) fn play(world: &mut World) -> bool {
    let is_drawn = world.plan.faults.has(Fault::LoseMajority);
    if !is_drawn || world.violation.is_some() || world.counts.overspent > 0 || !world.is_settled() {
        return false;
    }
    let mut prng = fork(world.plan.seed, "lost majority");
    let Some(lost) = lost_slots(world, &mut prng) else { return false };
    world.counts.lost_majorities += 1;
    let nodes: Vec<u64> = world.nodes.keys().copied().collect();
    nodes.iter().for_each(|node| world.stop_node(*node, Stop::Power));
    let ids: BTreeSet<StoreId> = lost.iter().filter_map(|slot| world.slots.get(slot)?.id).collect();
    world.trace.note(world.now, 0, 0, || format!("stores {ids:?} are lost"));
    if let Err(text) = recover(world, &lost, &ids, &mut prng) {
        world.fail(text);
        return false;
    }
    let left: Vec<u64> = world.homes.values().copied().filter(|it| !lost.contains(it)).collect();
    left.into_iter()
        .for_each(|number| world.record_lost(number, &ids, StoreState::Tombstone as i32));
    lost.iter().for_each(|slot| world.replace_disk(*slot));
    nodes.iter().for_each(|node| world.start_node(*node));
    true
}

/// Draws the stores to lose: those of all nodes but a minority. A region loses its majority, and every
/// region keeps a replica. No device that is left has unreadable data: only a lost store may have its copy.
fn lost_slots(world: &mut World, prng: &mut Prng) -> Option<Vec<u64>> {
    let regions: Vec<Region> = world
        .reports_by_region()
        .into_values()
        .filter_map(|reports| Some(reports.into_iter().next()?.1.region))
        .collect();
    let nodes = world.plan.nodes;
    (0..DRAWS).find_map(|_| {
        let count = 1 + prng.below((nodes - 1) / 2);
        let mut left = BTreeSet::new();
        while (left.len() as u64) < count {
            left.insert(1 + prng.below(nodes));
        }
        let is_left = |store: StoreId| {
            let slot = world.homes.get(&store).and_then(|home| world.slots.get(home));
            slot.is_some_and(|slot| left.contains(&slot.node))
        };
        let held = |region: &Region| region.peers.iter().filter(|it| is_left(it.store)).count();
        let is_kept = regions.iter().all(|region| held(region) > 0);
        let is_lost = regions.iter().any(|region| 2 * held(region) <= region.peers.len());
        let is_whole = world
            .homes
            .values()
            .filter_map(|slot| world.slots.get(slot))
            .all(|slot| !left.contains(&slot.node) || !slot.is_unreadable);
        let is_gone =
            |slot: &&u64| world.slots.get(slot).is_some_and(|it| !left.contains(&it.node));
        let slots = world.homes.values().filter(is_gone).copied().collect();
        (is_kept && is_lost && is_whole).then_some(slots)
    })
}

fn recover(
    world: &mut World,
    lost: &[u64],
    ids: &BTreeSet<StoreId>,
    prng: &mut Prng,
) -> Result<(), String> {
    let failed = |error: Error| format!("a directory that is left does not open: {error}");
    let mut left = open(world, lost, prng).map_err(failed)?;
    let replicas: Vec<_> = left.dirs.values_mut().flat_map(Offline::replicas).collect();
    let committed = |region: RegionId, of: &[stele_node::recover::SurvivingReplica]| -> LogIndex {
        let here = of.iter().filter(|it| it.region.id == region);
        here.map(|it| it.committed).max().unwrap_or_default()
    };
    let mut known = left.stores.clone();
    known.extend(left.known.iter().flat_map(|region| &region.peers).map(|peer| peer.store));
    known.extend(replicas.iter().flat_map(|it| &it.region.peers).map(|peer| peer.store));
    check_refusals(&left, &known, ids)?;
    let seen: BTreeSet<StoreId> = left.dirs.keys().copied().collect();
    for forgotten in ids {
        let fewer: BTreeSet<StoreId> = ids.iter().copied().filter(|id| id != forgotten).collect();
        let planned = plan(&replicas, &left.known, &fewer);
        if let Some(region) = planned.iter().find(|it| goes_on_without(it, &seen, &fewer)) {
            let id = region.region.id;
            return Err(format!(
                "region {id} goes on without store {forgotten}, which is not lost"
            ));
        }
    }
    let planned = plan(&replicas, &left.known, ids);
    let refused = recover_all(&mut left.dirs, &planned, 0, |_, _| {});
    if let Some((region, reason)) = refused.first_key_value() {
        return Err(format!("region {region} is not recovered: {reason:?}"));
    }
    let after: Vec<_> = left.dirs.values_mut().flat_map(Offline::replicas).collect();
    for it in planned.iter().filter(|it| matches!(it.verdict, RegionOutcome::GoesOn { .. })) {
        let id = it.region.id;
        if committed(id, &after) < committed(id, &replicas) {
            return Err(format!("region {id} goes on without entries that a store had committed"));
        }
        let RegionOutcome::GoesOn { source, recovery, .. } = &it.verdict else { continue };
        let again = left.dirs.get_mut(source).map(|dir| dir.recover(id, recovery, 0));
        if !matches!(again, Some(Err(Error::Refused(_)))) {
            return Err(format!("region {id} is recovered twice"));
        }
    }
    left.dirs.clear();
    let closed = left.engines.iter().try_for_each(|engine| engine.close());
    closed.map_err(|error| format!("a recovered directory does not close: {error}"))
}

fn open(world: &mut World, lost: &[u64], prng: &mut Prng) -> Result<Left> {
    let homes: Vec<u64> = world.homes.values().copied().collect();
    let (dirs, engines, known, stores) = Default::default();
    let mut left = Left { dirs, engines, known, stores };
    for number in homes.into_iter().filter(|number| !lost.contains(number)) {
        let engine = Arc::new(world.engine_of(number)?);
        let node = world.slots.get(&number).and_then(|slot| world.nodes.get(&slot.node));
        let now = node.map(|node| node.now(world.now)).unwrap_or_default();
        let mut dir = Offline::open(engine.clone(), now, prng.draw())?;
        left.known.extend(dir.recorded_regions()?);
        left.stores.extend(dir.recorded_stores()?);
        left.engines.push(engine);
        left.dirs.insert(dir.ident().store, dir);
    }
    Ok(left)
}

/// Checks that a store that is no store of the cluster, and a directory of another cluster, are refused.
fn check_refusals(
    left: &Left,
    known: &BTreeSet<StoreId>,
    ids: &BTreeSet<StoreId>,
) -> Result<(), String> {
    let check = |lost: &BTreeSet<StoreId>| check_lost(lost, known, CLUSTER);
    check(ids).map_err(|error| format!("the lost stores are refused: {error}"))?;
    let wrong = ids.iter().copied().chain([NO_STORE]).collect();
    if check(&wrong).is_ok() {
        return Err(format!("store {NO_STORE} counts as lost, and there is none"));
    }
    let clusters = || left.dirs.values().map(|dir| (Path::new(DIR), dir.ident().cluster));
    let own = check_cluster(clusters());
    own.map_err(|error| format!("directories of one cluster are refused: {error}"))?;
    let other = (Path::new("/other"), ClusterId(CLUSTER.0 + 1));
    match check_cluster(clusters().chain([other])) {
        Ok(()) => Err("directories of two clusters are recovered together".to_owned()),
        Err(_) => Ok(()),
    }
}

/// Returns whether a region goes on although a member is neither lost nor seen.
fn goes_on_without(planned: &Planned, seen: &BTreeSet<StoreId>, lost: &BTreeSet<StoreId>) -> bool {
    let mut members = planned.region.peers.iter().map(|peer| peer.store);
    matches!(planned.verdict, RegionOutcome::GoesOn { .. })
        && members.any(|store| !seen.contains(&store) && !lost.contains(&store))
}
