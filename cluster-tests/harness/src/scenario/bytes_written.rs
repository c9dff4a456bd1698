use super::three;
use crate::args::{Setup, need};
use crate::cluster::node::get;
use crate::cluster::{Cluster, process};
use crate::programs;
use crate::report::{Report, rounded};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::time::Duration;
use stele_proto::stele::control::v1::LocalChecksumRequest;
use stele_types::RegionKind;

/// Value bytes, and the maximum of bytes written in the foreground per byte of payload.
const SIZES: [(u64, f64); 2] = [(16 << 10, 1.03), (1 << 10, 1.10)];
const FULL_BYTES: u64 = 768 << 20;
const SHORT_BYTES: u64 = 64 << 20;
const THREADS: u64 = 64;

/// go-ycsb loads records. The bytes that each process wrote to the storage layer are compared with
/// the keys and values that it then holds: in total, and in the foreground, before a write is
/// acknowledged. Only the foreground has a limit, and only in a full run: a short one is too small.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let ycsb = need(&setup.programs.ycsb, "--ycsb")?;
    for (value_bytes, bytes_max) in SIZES {
        let mut spec = three(setup, &[]);
        spec.work = setup.work().join(value_bytes.to_string());
        std::fs::create_dir_all(&spec.work)?;
        let mut cluster = Cluster::start(spec).await?;
        let before = written(&cluster).await?;
        let held_before = held(&cluster).await?;
        let total = if setup.short { SHORT_BYTES } else { FULL_BYTES };
        let records = total / value_bytes;
        let settings = [
            ("recordcount", records.to_string()),
            ("threadcount", THREADS.to_string()),
            ("fieldcount", "1".to_owned()),
            ("fieldlength", value_bytes.to_string()),
        ];
        let command = programs::ycsb(ycsb, cluster.nodes[0].address(), "load", &settings);
        let printed = programs::start(command).await??;
        ensure!(printed.succeeded, "go-ycsb: {}", printed.errors);
        cluster.wait_replicated(3, Duration::from_secs(60)).await?;
        let (after, held) = (written(&cluster).await?, held(&cluster).await?);
        let (mut foreground, mut total) = (Vec::new(), Vec::new());
        for node in 0..3 {
            let payload = (held[node] - held_before[node]).max(1) as f64;
            let all = after[node].process - before[node].process;
            let background = after[node].background - before[node].background;
            foreground.push(rounded((all - background) as f64 / payload));
            total.push(rounded(all as f64 / payload));
        }
        let worst = foreground.iter().copied().fold(0.0, f64::max);
        report.record(&format!("{value_bytes}_foreground_bytes_per_payload_byte"), foreground);
        report.record(&format!("{value_bytes}_all_bytes_per_payload_byte"), total);
        report.record(&format!("{value_bytes}_puts_per_s"), printed.number("per_second").round());
        let what = format!(
            "at most {bytes_max} foreground bytes per byte of payload at {value_bytes}-byte values: {worst}"
        );
        report.require(setup.short || worst <= bytes_max, what);
    }
    Ok(())
}

/// Bytes that a node has written since it started.
struct Written {
    /// Bytes of the process, as the kernel counts them.
    process: u64,
    /// Bytes of maintenance among them: those that the node reports for every cause except the log.
    background: u64,
}

async fn written(cluster: &Cluster) -> Result<Vec<Written>> {
    let mut all = Vec::new();
    for node in &cluster.nodes {
        let (_, body) = get(node.address(), "/status", Duration::from_secs(10)).await?;
        let status: Value = serde_json::from_str(&body)?;
        let by_cause = status.pointer("/stores/0/written_bytes").and_then(Value::as_object);
        let by_cause = by_cause.context("/status reports no bytes")?;
        let maintenance = by_cause.iter().filter(|(cause, _)| *cause != "log");
        let background = maintenance.filter_map(|(_, bytes)| bytes.as_u64()).sum();
        all.push(Written { process: process::written_bytes(node.process()?)?, background });
    }
    Ok(all)
}

/// Returns the bytes of keys and values in the regions of each node.
async fn held(cluster: &Cluster) -> Result<Vec<u64>> {
    let regions = cluster.regions().await?;
    let mut all = Vec::new();
    for node in 0..cluster.nodes.len() {
        let mut bytes = 0;
        for known in regions.iter().filter(|one| one.region.kind == RegionKind::Data) {
            let region_id = known.region.id.0;
            let request = LocalChecksumRequest { region_id, ..Default::default() };
            let mut control =
                cluster.channels.control(cluster.nodes[node].address(), Duration::from_secs(60))?;
            bytes += control.local_checksum(request).await?.into_inner().bytes;
        }
        all.push(bytes);
    }
    Ok(all)
}
