//! Directories that are new on a node that is a member already. They join while its stores run, through
//! its own placement service, which is the leader or asks it.

use super::edge::Edge;
use super::{identity, start_store};
use crate::config::Config;
use crate::members::Members;
use crate::placement::PlacementService;
use crate::store::Engine;
use crate::stores::Stores;
use crate::transport::Transport;
use std::sync::Arc;
use std::time::Duration;
use stele_proto::stele::control::v1::{JoinRequest, JoinResponse};
use stele_raftstore::RaftStore;
use stele_types::{Clock, ClusterId, Error, Result, StoreId, StoreIdent};
use tokio::sync::watch;
use tonic::Code;

/// Pause before the placement group is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);

pub(super) struct StoreJoin {
    pub config: Arc<Config>,
    pub cluster: ClusterId,
    pub address: String,
    pub members: Arc<Members>,
    pub stores: Arc<Stores>,
    pub edge: Arc<Edge>,
    pub clock: Arc<dyn Clock>,
    pub placement: Arc<PlacementService>,
    pub transport: Transport,
}

impl StoreJoin {
    /// Until all have joined, or `stopping` says so.
    pub async fn run(self, new: Vec<Arc<Engine>>, mut stopping: watch::Receiver<bool>) {
        let adopted = tokio::select! {
            adopted = self.adopt(new) => adopted,
            // The sender gone means the same.
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        if let Err(error) = adopted {
            tracing::error!("a new directory has not joined: {error}");
        }
    }

    async fn adopt(&self, new: Vec<Arc<Engine>>) -> Result<()> {
        let request = JoinRequest {
            address: self.address.clone(),
            stores: new.iter().map(identity::new_store).collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..JoinRequest::default()
        };
        let answer = self.ask_until_answered(&request).await?;
        if answer.store_ids.len() != new.len() {
            return Err(Error::invalid("the cluster gave another number of stores than asked for"));
        }
        for (engine, id) in new.into_iter().zip(answer.store_ids) {
            let ident = StoreIdent { cluster: self.cluster, store: StoreId(id) };
            self.start(engine, ident).await?;
        }
        self.members.update(answer.members_version, &answer.members)?;
        self.edge.news.notify_one();
        Ok(())
    }

    async fn ask_until_answered(&self, request: &JoinRequest) -> Result<JoinResponse> {
        loop {
            match self.placement.join(request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(status)
                    if matches!(
                        status.code(),
                        Code::FailedPrecondition | Code::InvalidArgument
                    ) =>
                {
                    return Err(Error::invalid(status.message().to_owned()));
                }
                Err(status) => {
                    tracing::debug!("waiting to join: {}", status.message());
                    tokio::time::sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    async fn start(&self, engine: Arc<Engine>, ident: StoreIdent) -> Result<()> {
        // The number is on disk before anything is done under it.
        let marked = engine.clone();
        let mark = tokio::task::spawn_blocking(move || RaftStore::write_ident(&*marked, &ident));
        mark.await.map_err(|_| Error::Busy("the server is stopping".to_owned()))??;
        self.members.add_own(ident.store, &self.address)?;
        self.transport.add_store(ident.store);
        self.stores.add(start_store(&self.config, engine, ident, &self.clock, &self.edge)?);
        tracing::info!("store {} has joined", ident.store);
        Ok(())
    }
}
