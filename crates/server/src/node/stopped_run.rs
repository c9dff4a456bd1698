//! Two runs of one store beside each other. The store of this node stops, which is recorded in its
//! directory with what both directories hold. The operator then chooses between the two runs: the
//! kept one goes on, and comes after both.

use super::seeds::connect;
use super::{Parts, open, random, stopped_run};
use crate::access::Access;
use crate::members::Members;
use crate::store::Engine;
use crate::stores::Stores;
use crate::tasks::{Tasks, blocking};
use crate::transport::{BoxFuture, RefusedStore};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};
use stele_engine::{DirStart, keep_run};
use stele_node::succession::RunSummary;
use stele_proto::stele::control::v1 as wire;
use stele_proto::stele::control::v1::{DescribeRunRequest, RequestHeader};
use stele_storage::LogStore;
use stele_types::{
    Boot, ClusterId, Error, Lineage, LogIndex, RegionId, Result, StartId, StoreId, StoreIdent,
    StoreRun, Term,
};
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
    pub access: Access,
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
        let Self { refused, dir, summary, cluster, access, tasks, record } = self;
        let (store, rival_at) = (refused.store, refused.rival_at.clone());
        let (at, lock) = (dir.clone(), record.clone());
        in_background(move |files| {
            let _held = lock.lock();
            stele_engine::stop_beside(files, &at, &refused.rival, &refused.text)
        })
        .await?;
        let Some(own) = summary else { return Ok(()) };
        let Some(other) = ask(&access, &rival_at, cluster, store).await else { return Ok(()) };
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

async fn ask(
    access: &Access,
    address: &str,
    cluster: ClusterId,
    store: StoreId,
) -> Option<RunSummary> {
    let header = Some(RequestHeader { cluster_id: cluster.0, forwarded: false });
    let asked = async {
        let mut client = connect(access, address).await?;
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

/// Longest wait for the readers of the stopped store, which hold its directory.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(20);

impl KeepRun for Parts {
    fn keep_run(self: Arc<Self>, store: StoreId) -> BoxFuture<'static, Result<StoreRun>> {
        Box::pin(blocking(move || self.keep(store)))
    }

    fn describe_run(&self, store: StoreId) -> Result<RunSummary> {
        stopped_run::summary(&self.members, &self.stores, store)
    }
}

impl Parts {
    fn keep(&self, store: StoreId) -> Result<StoreRun> {
        let dir = self.members.own().remove(&store).flatten();
        let dir = dir.filter(|_| self.router.is_stopped_beside(store)).ok_or_else(|| {
            Error::invalid(format!(
                "store {store} of this node was not stopped beside another run of it: name the \
                 address of a node where it was"
            ))
        })?;
        if let Some(handle) = self.stores.remove(store) {
            // It has stopped: what remains are its threads.
            let _ = handle.stop();
        }
        let engine = Arc::new(self.reopen(&dir)?);
        let files = open::files(&self.config);
        {
            let _held = self.router.stop_records.lock();
            keep_run(&files, &dir)?;
        }
        let start = DirStart {
            id: StartId(u128::from(random()) << 64 | u128::from(random())),
            nonce: self.boots.nonce(),
            known: self.boots.get(store),
            may_have_moved: false,
        };
        let run = start.count(&files, &dir)?.run;
        self.boots.add(store, run.clone());
        self.members.add_own(store, &self.address, &dir, run.clone());
        self.members.announce();
        let ident = StoreIdent::new(self.cluster, store);
        let started = self.start_store(engine, ident)?;
        self.router.goes_on(store);
        self.stores.add(started);
        self.transport.store_serves(store);
        self.router.report_due.notify_one();
        tracing::warn!("store {store} goes on as {run}: the operator chose its directory");
        Ok(run)
    }

    /// Opens the directory when no reader of the stopped store holds it any longer.
    fn reopen(&self, dir: &Path) -> Result<Engine> {
        let started = Instant::now();
        loop {
            match open::engine(&self.config, dir) {
                Err(Error::Locked(_)) if started.elapsed() < CLOSE_LIMIT => {
                    std::thread::sleep(RETRY_PAUSE);
                }
                opened => return opened,
            }
        }
    }
}

/// The operator's choice between two runs of a store that stopped beside each other.
pub trait KeepRun: Send + Sync {
    /// Makes the store of this node go on; returns its new run. Fails with `Invalid` if it was not
    /// stopped so.
    fn keep_run(self: std::sync::Arc<Self>, store: StoreId)
    -> BoxFuture<'static, Result<StoreRun>>;

    /// Describes the directory of a store of this node. Fails with `Invalid` for another store.
    fn describe_run(&self, store: StoreId) -> Result<RunSummary>;
}

pub(crate) fn described(summary: RunSummary) -> wire::DescribeRunResponse {
    let Boot { count, nonce } = summary.run.boot;
    let starts = summary.run.lineage.to_bytes().into();
    let last_entry = |(region, (term, index)): (RegionId, (Term, LogIndex))| wire::LastEntry {
        region_id: region.0,
        term: term.0,
        index: index.0,
    };
    wire::DescribeRunResponse {
        directory: summary.directory,
        address: summary.address,
        boot: Some(wire::Boot { count, nonce, starts }),
        last_write_s: summary.last_write_s,
        regions: summary.regions.into_iter().map(last_entry).collect(),
    }
}

/// Decodes the description of a directory.
pub fn summary_of(answer: wire::DescribeRunResponse) -> RunSummary {
    let boot = answer.boot.unwrap_or_default();
    let last = |it: wire::LastEntry| (RegionId(it.region_id), (Term(it.term), LogIndex(it.index)));
    RunSummary {
        directory: answer.directory,
        address: answer.address,
        run: StoreRun {
            boot: Boot { count: boot.count, nonce: boot.nonce },
            lineage: Lineage::from_bytes(&boot.starts).unwrap_or_default(),
        },
        last_write_s: answer.last_write_s,
        regions: answer.regions.into_iter().map(last).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::StartId;

    #[test]
    fn a_description_survives_the_round_trip() {
        let summary = RunSummary {
            directory: "/data/3".to_owned(),
            address: "c:1".to_owned(),
            run: StoreRun {
                boot: Boot { count: 9, nonce: 7 },
                lineage: Lineage::new([StartId(5), StartId(u128::MAX)]),
            },
            last_write_s: 1_700_000_000,
            regions: [(RegionId(2), (Term(3), LogIndex(4)))].into(),
        };
        assert_eq!(summary_of(described(summary.clone())), summary);
        assert_eq!(summary_of(wire::DescribeRunResponse::default()), RunSummary::default());
    }
}
