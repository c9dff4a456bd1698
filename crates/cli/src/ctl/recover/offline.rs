//! Recovery on directories of nodes that do not run, also of the placement group.

use super::survey::Survey;
use super::{lost_stores, show};
use crate::Outcome;
use crate::args::Recover;
use crate::output::{Output, print};
use crate::store::{CHANGES_BYTES_MAX, Store};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use stele_server::recover::{OfflineDir, Planned, Verdict, open, plan};
use stele_types::{Error, RegionId, Result, StoreId};
use stele_vfs::{CopyOnWriteVfs, RealVfs, Vfs};

/// Open directories by store.
type Dirs = BTreeMap<StoreId, OfflineDir>;

pub fn run(dirs: &[PathBuf], wanted: &Recover, json: bool) -> Result<Outcome> {
    let lost = lost_stores(&wanted.lost);
    let mut opened = Dirs::new();
    let mut engines = Vec::new();
    let mut here = Survey::default();
    for dir in dirs {
        Store::check_exists(dir)?;
        // A dry run opens a copy, which is dropped.
        let vfs: Arc<dyn Vfs> = match wanted.yes {
            true => Arc::new(RealVfs::new()),
            false => Arc::new(CopyOnWriteVfs::new(Arc::new(RealVfs::new()), CHANGES_BYTES_MAX)),
        };
        let (mut offline, engine) = open(vfs, dir)?;
        let store = offline.ident().store;
        if lost.contains(&store) {
            let dir = dir.display();
            return Err(Error::invalid(format!("{dir} is store {store}, which is not lost")));
        }
        here.replicas.extend(offline.replicas());
        here.recorded.extend(offline.recorded_regions()?);
        engines.push(engine);
        if opened.insert(store, offline).is_some() {
            return Err(Error::invalid(format!("store {store} is given twice")));
        }
    }
    if json && !wanted.yes {
        let mut out = Output::new();
        here.lines().into_iter().try_for_each(|line| out.json(line))?;
        out.finish()?;
        return Ok(Outcome::Done);
    }
    wanted.with.iter().try_for_each(|path| here.read(path))?;
    let planned = plan(&here.replicas, &here.recorded, &lost);
    show(&planned, |_| true, !wanted.yes)?;
    if !wanted.yes {
        return Ok(Outcome::Done);
    }
    let outcome = recover_all(&mut opened, &planned);
    drop(opened);
    engines.iter().try_for_each(|engine| engine.close())?;
    outcome
}

/// Recovers the regions of which the source is here. One that waits for another region is tried
/// again after that.
fn recover_all(dirs: &mut Dirs, planned: &[Planned]) -> Result<Outcome> {
    let mut left: Vec<&Planned> = planned.iter().collect();
    let mut failed: BTreeMap<RegionId, String> = BTreeMap::new();
    let mut count = usize::MAX;
    while left.len() < count {
        count = left.len();
        failed.clear();
        left.retain(|it| match recover(dirs, it) {
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
            "start the nodes of these directories, then run `stele ctl --cluster ADDRESS recover` \
             with the same stores: it removes the lost stores from the cluster\n",
        );
        return Ok(Outcome::Done);
    }
    Ok(Outcome::Failed)
}

/// Recovers one region. Returns what was done, or the reason why nothing was.
fn recover(dirs: &mut Dirs, planned: &Planned) -> Result<Option<String>, String> {
    let id = planned.region.id;
    match &planned.verdict {
        Verdict::HasMajority => Ok(None),
        Verdict::GoesOn { source, recovery, .. } => {
            let Some(dir) = dirs.get_mut(source) else {
                return Err(format!(
                    "repeat this command where the directory of store {source} is"
                ));
            };
            let region = dir.recover(id, recovery).map_err(|error| error.to_string())?;
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
