//! Store of this node that stops beside another run of it: recorded in its directory, with what both
//! directories hold.

use super::seeds::connect;
use crate::control::summary_of;
use crate::members::Members;
use crate::stores::Stores;
use crate::tasks::Tasks;
use crate::transport::RefusedStore;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use stele_node::succession::RunSummary;
use stele_proto::stele::control::v1::{DescribeRunRequest, RequestHeader};
use stele_storage::LogStore;
use stele_types::{ClusterId, Error, Result, StoreId};
use stele_vfs::{RealVfs, Vfs};

/// Longest wait for the description of the other directory.
const ANSWER_WAIT: Duration = Duration::from_secs(3);

/// Describes the directory of a store of this node. Fails with `Invalid` for another store.
pub(super) fn summary(members: &Members, stores: &Stores, store: StoreId) -> Result<RunSummary> {
    let dir = members.own().remove(&store).flatten();
    let known = members.known_run(store).unwrap_or_default();
    let found = dir.zip(stores.get(store));
    let (dir, handle) =
        found.ok_or_else(|| Error::invalid(format!("store {store} is not open on this node")))?;
    let last_entry = |region: stele_types::RegionId| {
        let progress = handle.engine().progress(region).filter(|it| !it.destroyed)?;
        let (index, term) = progress.persisted;
        Some((region, (term, index)))
    };
    let regions = handle.readers().all();
    Ok(RunSummary {
        directory: dir.display().to_string(),
        address: known.address,
        run: known.run,
        last_write_s: last_write_s(&dir.join("log")).unwrap_or_default(),
        regions: regions.iter().filter_map(|region| last_entry(region.id)).collect(),
    })
}

/// Returns the time of the last write to a file of a directory, in seconds since 1970.
fn last_write_s(dir: &Path) -> Option<u64> {
    let written = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.ok()?.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()
    };
    std::fs::read_dir(dir).ok()?.filter_map(written).max().map(|time| time.as_secs())
}

/// A store of this node that does not serve beside another run of it.
pub(super) struct StoppedRun {
    pub refused: RefusedStore,
    pub dir: PathBuf,
    /// What the directory holds; `None` if the store was not open.
    pub summary: Option<RunSummary>,
    pub cluster: ClusterId,
    pub tasks: Tasks,
    /// Held while the directory's record of the stop changes.
    pub record: Arc<Mutex<()>>,
}

impl StoppedRun {
    /// Records in the directory that the store does not serve, and why, then what both directories hold,
    /// if the node of the other one answers.
    ///
    /// Invariant: the stop is durable before the other node is asked: a start meanwhile does not serve.
    pub(super) async fn record(self) -> Result<()> {
        let Self { refused, dir, summary, cluster, tasks, record } = self;
        let (store, rival_at) = (refused.store, refused.rival_at.clone());
        let (at, lock) = (dir.clone(), record.clone());
        in_background(move |files| {
            let _held = lock.lock();
            stele_engine::stop_beside(files, &at, &refused.rival, &refused.text)
        })
        .await?;
        let Some(own) = summary else { return Ok(()) };
        let Some(other) = ask(&rival_at, cluster, store).await else { return Ok(()) };
        let detail = own.beside(store, &other);
        in_background(move |files| {
            let _held = record.lock();
            // The operator may have chosen meanwhile.
            if stele_engine::describe_stop(files, &dir, &detail)? {
                tasks.store_stopped(store, &Error::WrongStore { path: dir, detail });
            }
            Ok(())
        })
        .await
    }
}

async fn in_background(
    change: impl FnOnce(&Arc<dyn Vfs>) -> Result<()> + Send + 'static,
) -> Result<()> {
    let files: Arc<dyn Vfs> = Arc::new(RealVfs::new());
    // Fails only by a panic, which has been logged, or when the node stops.
    tokio::task::spawn_blocking(move || change(&files)).await.unwrap_or(Ok(()))
}

/// Asks the node at an address for what its directory of the store holds.
async fn ask(address: &str, cluster: ClusterId, store: StoreId) -> Option<RunSummary> {
    let header = Some(RequestHeader { cluster_id: cluster.0, forwarded: false });
    let asked = async {
        let mut client = connect(address).await?;
        client.describe_run(DescribeRunRequest { header, store_id: store.0 }).await
    };
    match tokio::time::timeout(ANSWER_WAIT, asked).await {
        Ok(Ok(answer)) => Some(summary_of(answer.into_inner())),
        Ok(Err(status)) => {
            tracing::warn!("{address} does not describe its store {store}: {}", status.message());
            None
        }
        Err(_) => {
            tracing::warn!("{address} does not describe its store {store} in time");
            None
        }
    }
}
