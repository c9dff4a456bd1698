//! New directories of a node that is already a member. They join while its stores run, through the
//! node's own placement service, which leads or forwards to the leader.

use super::identity::{self, OpenDir, Opened};
use super::waiting::WaitLog;
use super::{Parts, open};
use crate::placement::{PlacementService, wire_times};
use crate::tasks::blocking;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::{JoinRequest, JoinResponse};
use stele_replica::RaftStore;
use stele_types::{Error, Level, Result, StoreId, StoreIdent};
use tokio::sync::watch;
use tonic::Code;

const RETRY_PAUSE: Duration = Duration::from_millis(200);

impl Parts {
    /// Runs until all new directories have joined or `stopping` is set.
    pub(super) async fn join_new(
        self,
        placement: Arc<PlacementService>,
        new: Opened,
        mut stopping: watch::Receiver<bool>,
    ) -> Result<()> {
        tokio::select! {
            joined = self.join(&placement, new) => joined,
            // A dropped sender also means stopping.
            _ = stopping.wait_for(|stopping| *stopping) => Ok(()),
        }
    }

    async fn join(&self, placement: &Arc<PlacementService>, new: Opened) -> Result<()> {
        let request = JoinRequest {
            address: self.address.clone(),
            stores: new
                .iter()
                .map(|open| identity::new_store(&self.config, &open.engine))
                .collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            lease_times: Some(wire_times(&open::times_of(&self.config))),
            join_token: identity::join_token(&self.config)?,
            level: Level::NEWEST.get(),
            ..JoinRequest::default()
        };
        let answer = join_with_retry(placement, &request).await?;
        if answer.store_ids.len() != new.len() {
            return Err(Error::invalid(
                "the cluster allocated another number of store ids than requested",
            ));
        }
        let (tick, level) = (identity::tick_of(&answer)?, Level::new(answer.level));
        for (open, id) in new.into_iter().zip(answer.store_ids) {
            let ident = StoreIdent { cluster: self.cluster, store: StoreId(id), tick };
            self.start(open, ident, level).await?;
        }
        self.members.update(answer.members_version, &answer.members, &self.address);
        // The new directories have no copy of the list yet.
        self.members.announce();
        self.router.report_due.notify_one();
        Ok(())
    }

    async fn start(&self, open: OpenDir, ident: StoreIdent, level: Level) -> Result<()> {
        let OpenDir { dir, engine, run, .. } = open;
        // Level and id are durable before the store uses them.
        let marked = engine.clone();
        let mark = move || {
            marked.record_level(level)?;
            RaftStore::write_ident(&*marked, &ident)
        };
        blocking(mark).await?;
        self.members.keep_in(&dir);
        self.members.add_own(ident.store, &self.address, &dir, run.clone());
        self.boots.add(ident.store, run);
        self.transport.add_store(ident.store);
        self.stores.add(self.start_store(engine, ident)?);
        tracing::info!("store {} has joined", ident.store);
        Ok(())
    }
}

async fn join_with_retry(
    placement: &Arc<PlacementService>,
    request: &JoinRequest,
) -> Result<JoinResponse> {
    let mut waiting = WaitLog::since(Instant::now());
    loop {
        match placement.join(request.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(status)
                if matches!(status.code(), Code::FailedPrecondition | Code::InvalidArgument) =>
            {
                return Err(Error::invalid(status.message().to_owned()));
            }
            Err(status) => {
                let line = waiting.line(status.message(), Instant::now());
                line.into_iter().for_each(|line| tracing::info!("new directories: {line}"));
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}
