//! Recovery on directories of nodes that do not run, also of the placement group.

use super::replica_survey::{Origin, ReplicaSurvey};
use super::{lost_stores, show};
use crate::Outcome;
use crate::args::Recover;
use crate::store::{CHANGES_BYTES_MAX, Store};
use crate::terminal::{Output, print};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_server::recover::{
    Listed, NotRecovered, OfflineDir, Planned, RegionOutcome, check_cluster, check_lost, listed,
    open, plan, record_lost, recover_all,
};
use stele_server::store::Engine;
use stele_types::{Clock, ClusterId, Error, Result, StoreId};
use stele_vfs::{CopyOnWriteVfs, RealVfs, SystemClock, Vfs};

pub(crate) fn run(dirs: &[PathBuf], wanted: &Recover, json: bool) -> Result<Outcome> {
    let lost = lost_stores(&wanted.lost);
    let (mut opened, mut places) = (BTreeMap::new(), Vec::new());
    let mut here = ReplicaSurvey::default();
    for dir in dirs {
        let (replicas, engine) = open_dir(dir, wanted.yes, &mut here)?;
        let ident = replicas.ident();
        places.push((dir.clone(), ident, engine));
        check_cluster(places.iter().map(|(path, ident, _)| (&**path, ident.cluster)))?;
        let store = ident.store;
        if lost.contains(&store) {
            let dir = dir.display();
            return Err(Error::Refused(format!("{dir} is store {store}, which is not lost")));
        }
        if opened.insert(store, replicas).is_some() {
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
    check_lost(&lost, &here.stores(), here.origin.cluster)?;
    let planned = plan(&here.replicas, &here.recorded, &lost);
    show(&planned, |_| true, !wanted.yes)?;
    if !wanted.yes {
        return Ok(Outcome::Done);
    }
    if planned.iter().any(|it| matches!(it.verdict, RegionOutcome::GoesOn { .. })) {
        places.iter().try_for_each(|(path, ident, _)| record_lost(path, *ident, &lost))?;
    }
    let outcome = recover(&mut opened, &planned, here.origin.version);
    drop(opened);
    places.iter().try_for_each(|(_, _, engine)| engine.close())?;
    Ok(outcome)
}

/// Opens a directory and adds what it holds to the survey. A dry run opens a copy, which is dropped.
fn open_dir(
    dir: &Path,
    is_changed: bool,
    here: &mut ReplicaSurvey,
) -> Result<(OfflineDir, Arc<Engine>)> {
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
    Ok((replicas, engine))
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

fn recover(dirs: &mut BTreeMap<StoreId, OfflineDir>, planned: &[Planned], version: u64) -> Outcome {
    let failed = recover_all(dirs, planned, version, |region, stores| {
        print(&format!("region {region} goes on with {}\n", super::list(stores)));
    });
    for (region, reason) in &failed {
        eprintln!("stele: region {region} was not recovered: {}", text(reason));
    }
    if failed.is_empty() {
        print(
            "start the nodes of these directories; they refuse the lost stores. Then run `stele ctl \
             --cluster ADDRESS recover` with the same stores: it checks that they are removed from the \
             cluster, and continues regions that were not seen here\n",
        );
        return Outcome::Done;
    }
    Outcome::Failed
}

fn text(reason: &NotRecovered) -> String {
    match reason {
        NotRecovered::Elsewhere(store) => {
            format!("repeat this command where the directory of store {store} is")
        }
        NotRecovered::Unseen(stores) => format!(
            "give the directory of {}, or with `--with` the output of `stele ctl recover --json` there",
            super::list(stores)
        ),
        NotRecovered::Lost => "no replica is left".to_owned(),
        NotRecovered::Failed(error) => error.to_string(),
    }
}
