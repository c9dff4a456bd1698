mod answers;
mod tls;

use super::three;
use crate::args::{Setup, need};
use crate::cluster::Cluster;
use crate::programs;
use crate::report::Report;
use anyhow::Result;
use bytes::Bytes;
use std::process::Command;

/// Region boundaries within the keys that the programs use, and after them.
const SPLITS: [&[u8]; 5] =
    [b"python/00030", b"python/00150", b"tikv-rust/00030", b"tikv-rust/00150", b"tikv-rust0"];

/// Runs TiKV's own Rust and Python clients: every raw call they offer, on one region and across
/// several. Then runs TiKV's clients over TLS, and provokes what their users see of answers other than success.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rust = need(&setup.programs.tikv_rust, "--tikv-rust")?;
    let python = need(&setup.programs.python, "--python")?;
    let script = need(&setup.programs.python_script, "--python-script")?;
    let cluster = Cluster::start(three(setup, &[])).await?;
    let region = cluster.region_of(b"").await?.region.id;
    // The Rust client repeats rows where the last region's end is unbounded, so that region is
    // split off.
    cluster.split(region, vec![Bytes::from_static(b"zzz")]).await?;
    for part in ["one region", "six regions"] {
        for (at, node) in cluster.nodes.iter().enumerate() {
            let mut command = Command::new(rust);
            command.arg(node.address());
            let printed = programs::start(command).await??;
            report
                .require(printed.succeeded, format!("rust, node {at}, {part}: {}", printed.errors));
            let mut command = Command::new(python);
            command.arg(script).arg(node.address());
            let printed = programs::start(command).await??;
            report.require(
                printed.succeeded,
                format!("python, node {at}, {part}: {}", printed.errors),
            );
        }
        if part == "one region" {
            let region = cluster.region_of(b"").await?.region.id;
            cluster
                .split(region, SPLITS.iter().map(|key| Bytes::from_static(key)).collect())
                .await?;
        }
    }
    report.record("runs", 12);
    drop(cluster);
    tls::run(setup, report).await?;
    answers::run(setup, report).await
}
