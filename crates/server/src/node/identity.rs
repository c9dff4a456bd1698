//! Which cluster and stores the directories of this node belong to: read back, founded or joined.

use crate::members::Members;
use crate::store::Engine;
use std::sync::Arc;
use std::time::Duration;
use stele_placement::Bootstrap;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{JoinRequest, JoinResponse, NewStore};
use stele_raftstore::RaftStore;
use stele_storage::StorageEngine;
use stele_types::{ClusterId, Error, Result, StoreId, StoreIdent};

/// How long one node is asked before the next.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before all nodes are asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Engines and what each says of itself.
pub(super) type Opened = Vec<(Arc<Engine>, Option<StoreIdent>)>;

/// The cluster the directories belong to, if any does. Fails with `WrongStore` when they belong to
/// different ones.
pub(super) fn cluster_of(
    idents: impl IntoIterator<Item = StoreIdent>,
) -> Result<Option<ClusterId>> {
    let mut found: Option<StoreIdent> = None;
    for ident in idents {
        match found {
            Some(first) if first.cluster != ident.cluster => {
                return Err(Error::WrongStore {
                    path: format!("store {}", ident.store).into(),
                    detail: format!(
                        "it belongs to cluster {}, another directory to {}; start them apart",
                        ident.cluster, first.cluster
                    ),
                });
            }
            _ => found = Some(ident),
        }
    }
    Ok(found.map(|ident| ident.cluster))
}

/// Makes the directories the first stores of a new cluster.
pub(super) fn found(opened: &mut Opened, birth: &Bootstrap) -> Result<()> {
    let ids: Vec<StoreId> = birth.stores().collect();
    // The first store carries the regions and is written last: until then nothing was founded.
    for ((engine, ident), store) in opened.iter_mut().zip(ids).rev() {
        let own = StoreIdent { cluster: birth.cluster, store };
        match store {
            StoreId(1) => RaftStore::bootstrap(&**engine, &own, &Bootstrap::regions())?,
            _ => RaftStore::write_ident(&**engine, &own)?,
        }
        *ident = Some(own);
    }
    Ok(())
}

/// Asks the nodes at `addresses` for numbers for the directories that have none, until one answers,
/// and writes them down.
pub(super) async fn join(
    opened: &mut Opened,
    addresses: &[String],
    own_address: &str,
    members: &Members,
) -> Result<ClusterId> {
    let stores = opened.iter().filter(|(_, ident)| ident.is_none());
    let request = JoinRequest {
        address: own_address.to_owned(),
        stores: stores.map(|(engine, _)| new_store(engine)).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..JoinRequest::default()
    };
    let answer = ask_until_answered(addresses, &request).await?;
    let cluster = ClusterId(answer.cluster_id);
    let mut ids = answer.store_ids.iter().copied().map(StoreId);
    for (engine, ident) in opened.iter_mut().filter(|(_, ident)| ident.is_none()) {
        let Some(store) = ids.next() else {
            return Err(Error::invalid("the cluster gave fewer store numbers than asked for"));
        };
        let own = StoreIdent { cluster, store };
        RaftStore::write_ident(&**engine, &own)?;
        *ident = Some(own);
    }
    members.update(answer.members_version, &answer.members)?;
    Ok(cluster)
}

async fn ask_until_answered(addresses: &[String], request: &JoinRequest) -> Result<JoinResponse> {
    let mut told = String::new();
    loop {
        for address in addresses {
            match ask(address, request).await {
                Ok(answer) => return Ok(answer),
                Err(status) if status.code() == tonic::Code::FailedPrecondition => {
                    return Err(Error::invalid(format!("{address}: {}", status.message())));
                }
                Err(status) => {
                    let reason = format!("{address}: {}", status.message());
                    if told != reason {
                        tracing::info!("waiting to join: {reason}");
                        told = reason;
                    }
                }
            }
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

async fn ask(address: &str, request: &JoinRequest) -> Result<JoinResponse, tonic::Status> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| tonic::Status::failed_precondition(error.to_string()))?
        .connect_timeout(ASK_TIMEOUT)
        .timeout(ASK_TIMEOUT);
    let unreachable = |error: tonic::transport::Error| {
        tonic::Status::unavailable(format!("not reached: {error}"))
    };
    let mut client = ControlClient::new(endpoint.connect().await.map_err(unreachable)?);
    Ok(client.join(request.clone()).await?.into_inner())
}

pub(super) fn new_store(engine: &Arc<Engine>) -> NewStore {
    NewStore {
        token: engine.id().0.to_be_bytes().to_vec().into(),
        capacity: engine.stats().device_bytes,
        ..NewStore::default()
    }
}
