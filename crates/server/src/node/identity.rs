//! Cluster and stores of this node's directories: read back, bootstrapped or joined.

use super::open;
use super::waiting::WaitLog;
use crate::access::Access;
use crate::config::Config;
use crate::members::Members;
use crate::placement;
use crate::store::Engine;
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_node::start;
use stele_placement::Bootstrap;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{JoinRequest, JoinResponse, NewStore};
use stele_replica::RaftStore;
use stele_storage::StateMachine;
use stele_types::{ClusterId, Error, Level, Result, StoreId, StoreIdent, StoreRun, TickMillis};

const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a connection: a node that does not answer does not keep the next one from being asked.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct OpenDir {
    pub dir: PathBuf,
    pub engine: Arc<Engine>,
    /// `None` in a new directory.
    pub ident: Option<StoreIdent>,
    pub run: StoreRun,
}

pub(super) type Opened = Vec<OpenDir>;

/// Makes the directories the first stores of a cluster of the newest level.
///
/// Invariant: a directory records the level of its cluster before it belongs to it.
/// Tests: `a_new_cluster_begins_with_the_newest_level_and_so_do_the_nodes_that_join`.
pub(super) fn bootstrap(
    opened: &mut Opened,
    bootstrap: &Bootstrap,
    tick: TickMillis,
) -> Result<()> {
    let engines: Vec<_> = opened.iter().map(|open| open.engine.clone()).collect();
    // bug server.new_cluster_of_the_oldest_level: skip
    engines.iter().try_for_each(|engine| engine.record_level(Level::NEWEST))?;
    let idents = start::bootstrap(&engines, bootstrap, Some(tick))?;
    for (open, own) in opened.iter_mut().zip(idents) {
        open.ident = Some(own);
    }
    Ok(())
}

/// Requests ids for the directories without one from the nodes at `addresses`, until one answers,
/// and writes the ids to the directories.
pub(super) async fn join(
    (config, access): (&Config, &Access),
    opened: &mut Opened,
    addresses: &[String],
    own_address: &str,
    members: &Members,
) -> Result<ClusterId> {
    let stores = opened.iter().filter(|open| open.ident.is_none());
    let request = JoinRequest {
        address: own_address.to_owned(),
        stores: stores.map(|open| new_store(config, &open.engine)).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        // A node that states no tick takes that of the cluster.
        lease_times: config.tick().map(|tick| placement::wire_times(&open::lease_times(tick))),
        join_token: join_token(config)?,
        level: Level::NEWEST.get(),
        ..JoinRequest::default()
    };
    let answer = join_with_retry(access, addresses, &request).await?;
    let (cluster, tick) = (ClusterId(answer.cluster_id), tick_of(&answer)?);
    let mut ids = answer.store_ids.iter().copied().map(StoreId);
    for open in opened.iter_mut().filter(|open| open.ident.is_none()) {
        let Some(store) = ids.next() else {
            return Err(Error::invalid("the cluster allocated fewer store ids than requested"));
        };
        let own = StoreIdent { cluster, store, tick };
        // bug server.joined_without_the_level: skip
        open.engine.record_level(Level::new(answer.level))?;
        RaftStore::write_ident(&*open.engine, &own)?;
        open.ident = Some(own);
    }
    if let Some(text) = placement::warning_of_two(&answer.members) {
        tracing::warn!("{text}");
    }
    members.update(answer.members_version, &answer.members, own_address);
    Ok(cluster)
}

/// Returns the tick of the cluster that a store joined; `None` from a leader of an earlier version. Fails
/// with `Invalid` if this node cannot have its times.
///
/// Invariant: a store records the tick that its cluster has, and none that it only supposes.
/// Tests: `a_store_records_the_tick_that_the_cluster_states_and_no_other`,
/// `a_new_cluster_has_the_short_tick_on_every_node_and_keeps_it`.
pub(super) fn tick_of(answer: &JoinResponse) -> Result<Option<TickMillis>> {
    // bug server.join_ignores_the_tick: return Ok(None);
    let Some(times) = answer.lease_times.as_ref().map(placement::times_of) else { return Ok(None) };
    let tick = TickMillis::new(times.tick_nanos / 1_000_000);
    let tick = tick.filter(|tick| open::lease_times(*tick) == times);
    let unknown = || {
        Error::invalid(format!(
            "the cluster has a tick of {} ns, and an election begins after {} ticks: this version runs \
             no such cluster; run the version of its nodes",
            times.tick_nanos, times.election_ticks_min
        ))
    };
    Ok(Some(tick.ok_or_else(unknown)?))
}

/// Reads the token that allows this node to join, from the file beside its certificate with the extension
/// `join-token`; empty without one.
pub(super) fn join_token(config: &Config) -> Result<Bytes> {
    if config.tls_cert.is_empty() {
        return Ok(Bytes::new());
    }
    let path = Path::new(&config.tls_cert).with_extension("join-token");
    match std::fs::read_to_string(&path) {
        Ok(token) => Ok(Bytes::from(token.trim().to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Bytes::new()),
        Err(error) => Err(Error::io("read", &path, error)),
    }
}

async fn join_with_retry(
    access: &Access,
    addresses: &[String],
    request: &JoinRequest,
) -> Result<JoinResponse> {
    let mut waiting = WaitLog::since(Instant::now());
    loop {
        let mut reasons = Vec::new();
        for address in addresses {
            match request_join(access, address, request).await {
                Ok(answer) => return Ok(answer),
                Err(status) if status.code() == tonic::Code::FailedPrecondition => {
                    return Err(Error::invalid(format!("{address}: {}", status.message())));
                }
                Err(status) => reasons.push(format!("{address}: {}", status.message())),
            }
        }
        let line = waiting.line(&reasons.join("; "), Instant::now());
        line.into_iter().for_each(|line| tracing::info!("{line}"));
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Asks a node, and then the leader that its refusal names: the leader decides a join only for the node that calls
/// it.
async fn request_join(
    access: &Access,
    address: &str,
    request: &JoinRequest,
) -> Result<JoinResponse, tonic::Status> {
    let refusal = match request_join_of(access, address, request).await {
        Ok(answer) => return Ok(answer),
        Err(refusal) => refusal,
    };
    match placement::named_leader(&refusal).filter(|leader| leader != address) {
        Some(leader) => request_join_of(access, &leader, request).await,
        None => Err(refusal),
    }
}

async fn request_join_of(
    access: &Access,
    address: &str,
    request: &JoinRequest,
) -> Result<JoinResponse, tonic::Status> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| tonic::Status::failed_precondition(error.to_string()))?
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(JOIN_TIMEOUT);
    let unreachable = |error: tonic::transport::Error| {
        tonic::Status::unavailable(format!("not reached: {error}"))
    };
    let mut client = ControlClient::new(access.connect(&endpoint).await.map_err(unreachable)?);
    Ok(client.join(request.clone()).await?.into_inner())
}

pub(super) fn new_store(config: &Config, engine: &Arc<Engine>) -> NewStore {
    NewStore {
        token: engine.id().0.to_be_bytes().to_vec().into(),
        capacity: engine.stats().device_bytes,
        labels: placement::labels_of(&config.label_pairs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_proto::stele::control::v1::LeaseTimes;

    #[test]
    fn a_store_records_the_tick_that_the_cluster_states_and_no_other() {
        let of = |lease_times| tick_of(&JoinResponse { lease_times, ..JoinResponse::default() });
        let times = |tick_nanos, election_ticks_min| LeaseTimes { tick_nanos, election_ticks_min };
        assert_eq!(of(None).unwrap(), None, "an earlier version");
        for millis in [5, 20, 50, 1_000] {
            let found = of(Some(times(millis * 1_000_000, 10))).unwrap();
            assert_eq!(found.map(TickMillis::get), Some(millis));
        }
        for other in
            [times(20_000_000, 12), times(20_500_000, 10), times(0, 10), times(4_000_000, 10)]
        {
            let refused = of(Some(other)).unwrap_err().to_string();
            assert!(refused.contains("run the version of its nodes"), "{refused}");
        }
    }
}
