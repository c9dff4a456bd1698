//! HTTP on the same port: `/metrics`, `/healthz`, `/readyz`, `/status`.

use super::Metrics;
use super::scrape::counts;
use crate::port;
use crate::stores::Stores;
use crate::tasks::Tasks;
use crate::transport::Transport;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use std::sync::Arc;
use stele_storage::StateMachine;
use stele_types::ClusterId;

/// State that the routes report.
#[derive(Clone)]
pub struct Health {
    /// Cluster of this node.
    pub cluster: ClusterId,
    /// Address that clients connect to.
    pub address: String,
    /// Stores of this node.
    pub stores: Arc<Stores>,
    /// Background tasks of this node.
    pub tasks: Tasks,
    /// Counters and histograms.
    pub metrics: Arc<Metrics>,
    /// Transport between nodes.
    pub transport: Transport,
    /// Statistics of the port's connections.
    pub port: Arc<port::Stats>,
}

/// Returns the routes.
pub fn routes(health: Health) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .with_state(health)
}

async fn metrics(State(health): State<Health>) -> impl IntoResponse {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, TYPE)], health.metrics.scrape(&health))
}

/// Succeeds while every store and every required task runs. Names those that have failed, also
/// tasks that are not required.
async fn healthz(State(health): State<Health>) -> impl IntoResponse {
    let (is_healthy, failed) = health.tasks.health();
    match is_healthy {
        true => (StatusCode::OK, format!("ok\n{failed}")),
        false => (StatusCode::SERVICE_UNAVAILABLE, failed),
    }
}

/// Succeeds while every region here has a known leader and every store is open.
async fn readyz(State(health): State<Health>) -> impl IntoResponse {
    let (mut regions, mut with_leader) = (0, 0);
    for store in health.stores.all().iter().filter(|store| store.is_running()) {
        for region in store.readers().all() {
            regions += 1;
            let leader = store.readers().get(region.id).and_then(|reader| reader.leader());
            with_leader += usize::from(leader.is_some());
        }
    }
    let mut text = format!("{with_leader} of {regions} regions have a known leader\n");
    let recovering = health.stores.recovering();
    for store in &recovering {
        text += &format!("store {} waits for {} lost entries\n", store.id, store.lost());
    }
    // A node with an empty store is ready: it accepts replicas.
    let is_ready = with_leader == regions && recovering.is_empty();
    (if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
}

async fn status(State(health): State<Health>) -> Json<Value> {
    let stores: Vec<Value> = health
        .stores
        .all()
        .iter()
        .map(|store| {
            let stats = store.engine().stats();
            let (replicas, leaders) = counts(&health.stores, store.id());
            json!({
                "store": store.id().0,
                "running": store.is_running(),
                "replicas": replicas,
                "leaders": leaders,
                "user_bytes": stats.user_bytes,
                "disk_bytes": stats.disk_bytes,
                "live_bytes": stats.live_bytes,
                "memory_bytes": stats.memory_bytes,
                "index_memory_bytes": stats.index_memory_bytes,
                "index_cold_reads": stats.index_cold_reads,
                "write_amp": stats.write_amp(),
                "space_amp": stats.space_amp(),
                "written_bytes": stats.written_bytes.iter().copied()
                    .collect::<std::collections::BTreeMap<_, _>>(),
                "requests_in_work_bytes": store.request_bytes(),
                "append_p99_seconds": store.append_p99_nanos() as f64 / 1e9,
            })
        })
        .collect();
    let recovering: Vec<Value> = health
        .stores
        .recovering()
        .iter()
        .map(|store| {
            json!({
                "store": store.id.0,
                "directory": store.dir.display().to_string(),
                "lost_entries": store.lost(),
                "lost_entries_at_first": store.lost_at_first,
            })
        })
        .collect();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "cluster": health.cluster.0,
        "address": health.address,
        "uptime_s": health.metrics.uptime().as_secs(),
        "stores": stores,
        "waiting_stores": recovering,
    }))
}
