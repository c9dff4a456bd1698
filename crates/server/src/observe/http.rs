//! Pages on the same port: `/`, `/metrics`, `/healthz` or `/health`, `/readyz`, `/status`.

use super::Metrics;
use super::exposition::Exposition;
use super::scrape::{counts, samples, source};
use crate::access::Access;
use crate::majorities::Majorities;
use crate::memory::NodeMemory;
use crate::node::SPEED_OP_BYTES;
use crate::port;
use crate::store::full_text;
use crate::stores::Stores;
use crate::tasks::Tasks;
use crate::transport::Transport;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use std::sync::Arc;
use stele_engine::ScrubStats;
use stele_storage::Space;
use stele_types::{ClusterId, DeviceSpeed, Level, OpCost};
use stele_vfs::{FileSystem, warnings};

/// State that the routes report.
#[derive(Clone)]
pub struct Health {
    /// Cluster of this node.
    pub cluster: ClusterId,
    /// Milliseconds of the cluster's tick.
    pub tick_ms: u64,
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
    /// Regions that have lost their majority.
    pub majorities: Arc<Majorities>,
    /// Statistics of the port's connections.
    pub port: Arc<port::Stats>,
    /// TLS of the node.
    pub access: Access,
    /// Memory of requests and answers.
    pub memory: Arc<NodeMemory>,
}

/// Page at `/`: the other paths.
const PAGE: &str = concat!(
    "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Stele</title>\n",
    "<h1>Stele ",
    env!("CARGO_PKG_VERSION"),
    "</h1>\n",
    "<p>A node of a cluster. Clients of TiKV's raw key-value calls connect to this port.</p>\n<ul>\n",
    "<li><a href=\"/v1/openapi.json\">/v1/openapi.json</a>: keys and values over HTTP, as OpenAPI\n",
    "<li><a href=\"/status\">/status</a>: statistics of each store, as JSON\n",
    "<li><a href=\"/metrics\">/metrics</a>: statistics for Prometheus\n",
    "<li><a href=\"/healthz\">/healthz</a> or <a href=\"/health\">/health</a>: whether the node is healthy\n",
    "<li><a href=\"/readyz\">/readyz</a>: whether every region has a leader and every store serves\n",
    "</ul>\n</html>\n",
);

/// Returns the routes.
pub fn routes(health: Health) -> Router {
    Router::new()
        .route("/", get(async || Html(PAGE)))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/health", get(healthz))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .with_state(health)
}

/// Returns the routes of probes: the status codes of the pages, without their texts.
pub fn probes(health: Health) -> Router {
    let state = |response: Response| response.status();
    Router::new()
        .route("/healthz", get(async move |health| state(healthz(health).await.into_response())))
        .route("/readyz", get(async move |health| state(readyz(health).await.into_response())))
        .with_state(health)
}

async fn metrics(State(health): State<Health>, headers: HeaderMap) -> impl IntoResponse {
    // The header may be repeated, which means the same as one list.
    let accept: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let exposition = Exposition::of(&accept.join(","));
    let scrape = exposition.format(health.metrics.scrape(&health).await);
    ([(header::CONTENT_TYPE, exposition.content_type())], scrape)
}

/// Returns a line for each full store. It serves reads and deletes: a node that counted as failed
/// would get no delete.
fn full_stores(stores: &Stores) -> String {
    let full = stores.all().into_iter().filter(|store| store.space().is_full);
    full.map(|store| format!("{}\n", full_text(store.id(), &store.space()))).collect()
}

/// Succeeds while a store and every required task runs. Names stores and tasks that have failed, full
/// stores, and regions that have lost their majority: the node is degraded then, and a restart would
/// not help.
async fn healthz(State(health): State<Health>) -> impl IntoResponse {
    let (is_healthy, failed) = health.tasks.health();
    match is_healthy {
        true => {
            let degraded = health.majorities.degraded();
            let state = degraded.map_or("ok\n".to_owned(), |lost| format!("degraded\n{lost}\n"));
            (StatusCode::OK, format!("{state}{}{failed}", full_stores(&health.stores)))
        }
        false => (StatusCode::SERVICE_UNAVAILABLE, failed),
    }
}

/// Succeeds while every region here has a known leader, every store serves and the node does not stop. Names the stores that
/// serve and those that do not, with the reason.
async fn readyz(State(health): State<Health>) -> impl IntoResponse {
    if health.stores.is_stopping() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the node is stopping\n".to_owned());
    }
    let (mut regions, mut with_leader, mut all_serve) = (0, 0, true);
    let mut lines = String::new();
    for store in health.stores.all() {
        let id = store.id();
        if !store.is_running() {
            let reason = health.tasks.store_failure(id).unwrap_or_else(|| "it ends".to_owned());
            lines += &format!("store {id} has stopped: {reason}\n");
            all_serve = false;
            continue;
        }
        lines += &format!("store {id} serves\n");
        for region in store.readers().all() {
            regions += 1;
            let leader = store.readers().get(region.id).and_then(|reader| reader.leader());
            with_leader += usize::from(leader.is_some());
        }
    }
    let recovering = health.stores.recovering();
    for store in &recovering {
        lines += &format!("store {} waits for {} lost entries\n", store.id, store.lost());
    }
    let failed = health.stores.failed();
    failed.iter().for_each(|dir| lines += &format!("{dir}\n"));
    all_serve &= recovering.is_empty() && failed.iter().all(|dir| dir.is_expected);
    lines += &full_stores(&health.stores);
    let text = format!("{with_leader} of {regions} regions have a known leader\n{lines}");
    // A node with an empty store is ready: it accepts replicas.
    let is_ready = with_leader == regions && all_serve;
    (if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
}

/// Returns what the operations of a device cost; `null` for those of which nothing is known.
fn device(speed: DeviceSpeed) -> Value {
    let operation = |cost: OpCost, count: u64| {
        cost.per_second(SPEED_OP_BYTES).map(|per_second| {
            json!({
                "source": source(count),
                "operations_measured": count,
                "fixed_nanos": cost.fixed_nanos,
                "picos_per_byte": cost.picos_per_byte,
                "operations_per_second": per_second,
            })
        })
    };
    json!({
        "operation_bytes": SPEED_OP_BYTES,
        "write": operation(speed.write, speed.writes),
        "read": operation(speed.read, speed.reads),
    })
}

fn scrub(stats: &ScrubStats) -> Value {
    json!({
        "read_bytes": stats.bytes,
        "passes": stats.passes,
        "failed_index_reads": stats.cut_short,
        "pass_bytes": stats.pass_bytes,
        "pass_checked_bytes": stats.pass_checked_bytes,
        "age_s": stats.age_s,
    })
}

fn space(of: &Space) -> Value {
    json!({
        "free_bytes": of.free_bytes,
        "reserve_bytes": of.reserve_bytes,
        "reserve_allocated": of.is_reserve_allocated,
        "short": of.is_short,
        "full": of.is_full,
    })
}

fn file_system(of: &FileSystem) -> Value {
    json!({
        "name": of.kind.to_string(),
        "mode": of.mode(),
        "block_bytes": of.unit_bytes(),
        "can_reserve_space": of.kind.can_reserve(),
        "warnings": warnings(of),
    })
}

fn recovering(stores: &Stores) -> Vec<Value> {
    let recovering = stores.recovering();
    let stores = recovering.iter().map(|store| {
        json!({
            "store": store.id.0,
            "directory": store.dir.display().to_string(),
            "lost_entries": store.lost(),
            "lost_entries_at_first": store.lost_at_first,
        })
    });
    stores.collect()
}

async fn status(State(health): State<Health>) -> Json<Value> {
    let samples = samples(&health.stores).await;
    let stores: Vec<Value> = health
        .stores
        .all()
        .iter()
        .map(|store| {
            let stats = samples.get(&store.id()).map(|it| it.stats.clone()).unwrap_or_default();
            let (replicas, leaders) = counts(&health.stores, store.id());
            json!({
                "store": store.id().0,
                "level": store.engine().level().get(),
                "running": store.is_running(),
                "replicas": replicas,
                "leaders": leaders,
                "user_bytes": stats.user_bytes,
                "disk_bytes": stats.disk_bytes,
                "live_bytes_estimate": stats.live_bytes_estimate,
                "memory_bytes": stats.memory_bytes,
                "space": space(&store.space()),
                "index_memory_bytes": stats.index_memory_bytes,
                "index_cold_reads": stats.index_cold_reads,
                "write_amp": stats.write_amp(),
                "space_amp": stats.space_amp(),
                "written_bytes": stats.written_bytes.iter().copied()
                    .collect::<std::collections::BTreeMap<_, _>>(),
                "requests_in_work_bytes": store.request_bytes(),
                "scrub": samples.get(&store.id()).map(|it| scrub(&it.scrub)),
                "append_p99_seconds": store.engine().append_p99_nanos() as f64 / 1e9,
                "device": device(store.engine().device_speed()),
                "file_system": file_system(&store.engine().file_system()),
            })
        })
        .collect();
    let failed: Vec<Value> = health
        .stores
        .failed()
        .iter()
        .map(|failed| {
            json!({
                "store": failed.store.map(|store| store.0),
                "directory": failed.dir.as_ref().map(|dir| dir.display().to_string()),
                "reason": failed.reason,
            })
        })
        .collect();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "level_supported": Level::NEWEST.get(),
        "level_in_use": health.stores.level_in_use().get(),
        "cluster": health.cluster.0,
        "tick_ms": health.tick_ms,
        "address": health.address,
        "uptime_s": health.metrics.uptime().as_secs(),
        "stores": stores,
        "waiting_stores": recovering(&health.stores),
        "failed_stores": failed,
    }))
}
