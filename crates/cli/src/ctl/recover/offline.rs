//! Recovery on directories of nodes that do not run, also of the placement group.

use super::survey::{Origin, Survey};
use super::{lost_stores, show};
use crate::Outcome;
use crate::args::Recover;
use crate::output::{Output, print};
use crate::store::{CHANGES_BYTES_MAX, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_server::recover::{
    Listed, OfflineDir, Planned, Verdict, listed, open, plan, record_lost,
};
use stele_server::store::Engine;
use stele_types::{Clock, ClusterId, Error, RegionId, Result, StoreId, mutant};
use stele_vfs::{CopyOnWriteVfs, RealVfs, SystemClock, Vfs};

/// Open directories by store.
type Dirs = BTreeMap<StoreId, Opened>;

/// An open directory.
struct Opened {
    path: PathBuf,
    replicas: OfflineDir,
    engine: Arc<Engine>,
}

pub fn run(dirs: &[PathBuf], wanted: &Recover, json: bool) -> Result<Outcome> {
    let lost = lost_stores(&wanted.lost);
    let mut opened = Dirs::new();
    let mut here = Survey::default();
    for dir in dirs {
        let (store, dir) = open_dir(dir, wanted.yes, &mut here)?;
        let clusters = opened.values().chain([&dir]);
        check_cluster(clusters.map(|dir| (&*dir.path, dir.replicas.ident().cluster)))?;
        if lost.contains(&store) {
            let dir = dir.path.display();
            return Err(Error::Refused(format!("{dir} is store {store}, which is not lost")));
        }
        if opened.insert(store, dir).is_some() {
            return Err(Error::invalid(format!("store {store} is given twice")));
        }
    }
    if json && !wanted.yes {
        let mut out = Output::new();
        here.lines().into_iter().try_for_each(|line| out.json(line))?;
        out.finish()?;
        return Ok(Outcome::Done);
    }
    for path in &wanted.with {
        let origin = here.read(path)?;
        eprintln!("stele: {}: {}", path.display(), describe(&origin, here.origin.time_s));
    }
    check_known(&lost, &here)?;
    let planned = plan(&here.replicas, &here.recorded, &lost);
    show(&planned, |_| true, !wanted.yes)?;
    if !wanted.yes {
        return Ok(Outcome::Done);
    }
    if planned.iter().any(|it| matches!(it.verdict, Verdict::GoesOn { .. })) {
        opened.values().try_for_each(|dir| record_lost(&dir.path, dir.replicas.ident(), &lost))?;
    }
    let outcome = recover_all(&mut opened, &planned, here.origin.version);
    let engines: Vec<Arc<Engine>> = opened.into_values().map(|dir| dir.engine).collect();
    engines.iter().try_for_each(|engine| engine.close())?;
    outcome
}

/// Opens a directory and adds what it holds to the survey. A dry run opens a copy, which is dropped.
fn open_dir(dir: &Path, is_changed: bool, here: &mut Survey) -> Result<(StoreId, Opened)> {
    Store::check_exists(dir)?;
    let real: Arc<dyn Vfs> = Arc::new(RealVfs::new());
    let vfs: Arc<dyn Vfs> = match is_changed {
        true => real,
        false => Arc::new(CopyOnWriteVfs::new(real, CHANGES_BYTES_MAX)),
    };
    let (mut replicas, engine) = open(vfs, dir)?;
    let ident = replicas.ident();
    here.replicas.extend(replicas.replicas());
    here.recorded.extend(replicas.recorded_regions()?);
    let Listed { stores, version } = listed(dir, ident);
    let origin = &mut here.origin;
    (origin.cluster, origin.time_s) = (ident.cluster, SystemClock::new().unix_seconds());
    origin.version = origin.version.max(version);
    origin.members.extend(stores);
    origin.members.extend(replicas.recorded_stores()?);
    origin.members.insert(ident.store);
    Ok((ident.store, Opened { path: dir.to_path_buf(), replicas, engine }))
}

/// Fails if directories belong to two clusters.
///
/// Invariant: replicas of two clusters are never compared: their regions and stores have the same
/// numbers.
fn check_cluster<'a>(mut dirs: impl Iterator<Item = (&'a Path, ClusterId)>) -> Result<()> {
    let Some((first, cluster)) = dirs.next() else { return Ok(()) };
    let other = dirs.find(|(_, of)| *of != cluster);
    let Some((dir, other)) = other.filter(|_| !mutant::active("cli.recover_two_clusters")) else {
        return Ok(());
    };
    Err(Error::Refused(format!(
        "{} belongs to cluster {cluster}, and {} to cluster {other}: recover one cluster at a time",
        first.display(),
        dir.display()
    )))
}

/// Fails for a lost store that nothing names: a mistake would count a store that runs as the one meant.
fn check_known(lost: &BTreeSet<StoreId>, here: &Survey) -> Result<()> {
    let known = here.stores();
    let Some(unknown) = lost.iter().find(|store| !known.contains(store)) else { return Ok(()) };
    let known: Vec<StoreId> = known.into_iter().collect();
    let cluster = here.origin.cluster;
    Err(Error::Refused(format!(
        "there is no store {unknown} in cluster {cluster}: the directories name {}",
        super::list(&known)
    )))
}

/// Describes a survey. Its node must not have run since.
fn describe(origin: &Origin, now_s: u64) -> String {
    match (origin.cluster, origin.time_s) {
        (ClusterId(0), _) | (_, 0) => "a survey of an earlier version, which names neither its \
                                       cluster nor its time"
            .to_owned(),
        (cluster, time_s) => format!(
            "cluster {cluster}, surveyed {} s ago; its node must not have run since",
            now_s.saturating_sub(time_s)
        ),
    }
}

/// Recovers the regions of which the source is here. One that waits for another region is tried
/// again after that.
fn recover_all(dirs: &mut Dirs, planned: &[Planned], version: u64) -> Result<Outcome> {
    let mut left: Vec<&Planned> = planned.iter().collect();
    let mut failed: BTreeMap<RegionId, String> = BTreeMap::new();
    let mut count = usize::MAX;
    while left.len() < count {
        count = left.len();
        failed.clear();
        left.retain(|it| match recover(dirs, it, version) {
            Ok(text) => {
                text.into_iter().for_each(|text| print(&text));
                false
            }
            Err(reason) => {
                failed.insert(it.region.id, reason);
                true
            }
        });
    }
    for (region, reason) in &failed {
        eprintln!("stele: region {region} was not recovered: {reason}");
    }
    if failed.is_empty() {
        print(
            "start the nodes of these directories; they refuse the lost stores. Then run `stele ctl \
             --cluster ADDRESS recover` with the same stores: it checks that they are removed from the \
             cluster, and continues regions that were not seen here\n",
        );
        return Ok(Outcome::Done);
    }
    Ok(Outcome::Failed)
}

/// Recovers one region. Returns what was done, or the reason why nothing was.
fn recover(dirs: &mut Dirs, planned: &Planned, version: u64) -> Result<Option<String>, String> {
    let id = planned.region.id;
    match &planned.verdict {
        Verdict::HasMajority => Ok(None),
        Verdict::GoesOn { source, recovery, .. } => {
            let Some(dir) = dirs.get_mut(source) else {
                return Err(format!(
                    "repeat this command where the directory of store {source} is"
                ));
            };
            let recovered = dir.replicas.recover(id, recovery, version);
            let region = recovered.map_err(|error| error.to_string())?;
            let stores: Vec<StoreId> = region.peers.iter().map(|peer| peer.store).collect();
            Ok(Some(format!("region {id} goes on with {}\n", super::list(&stores))))
        }
        Verdict::Unseen(stores) => Err(format!(
            "give the directory of {}, or with `--with` the output of `stele ctl recover --json` there",
            super::list(stores)
        )),
        Verdict::Lost => Err("no replica is left".to_owned()),
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
        let members = [1, 2, 3].map(StoreId).into();
        let origin = Origin { cluster: ClusterId(7), members, ..Origin::default() };
        let here = Survey { origin, ..Survey::default() };
        assert!(check_known(&[1, 2].map(StoreId).into(), &here).is_ok());
        let error = check_known(&[1, 777].map(StoreId).into(), &here).unwrap_err().to_string();
        assert!(error.contains("no store 777 in cluster 7"), "{error}");
        assert!(error.contains("stores 1, 2, 3"), "{error}");
    }
}
