//! The operator's choice between two runs of a store that stopped beside each other: the kept one goes
//! on, and comes after both.

use super::{Parts, open, random, stopped_run};
use crate::control::KeepRun;
use crate::store::Engine;
use crate::tasks::blocking;
use crate::transport::BoxFuture;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_engine::{DirStart, keep_run};
use stele_node::succession::RunSummary;
use stele_types::{Error, Result, StartId, StoreId, StoreIdent, StoreRun};

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
        let ident = StoreIdent { cluster: self.cluster, store };
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
