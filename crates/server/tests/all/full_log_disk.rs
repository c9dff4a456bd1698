//! A node with a log that cannot be written.

use crate::common::{config, get, start, until};
use std::io::{self, Write};
use stele_server::observe::LogWriter;
use stele_types::Error;

struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_log_disk_does_not_stop_the_node_and_lost_lines_are_counted() {
    tracing_subscriber::fmt().with_writer(|| LogWriter(Full)).init();
    let dir = tempfile::tempdir().unwrap();
    let node = start(config(&[dir.path().join("a")], &[])).await;
    let address = node.ready.address.clone();
    until(&address, "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    let lost = |text: &str| -> u64 {
        let count = text.lines().find_map(|line| line.strip_prefix("stele_log_lines_lost_total "));
        count.unwrap().parse().unwrap()
    };
    let before = lost(&get(&address, "/metrics").await.1);
    let refused = async { Err(Error::Refused("nothing to do".to_owned())) };
    node.tasks().spawn_finite("report", refused);
    until(&address, "/healthz", |_, body| body.contains("report failed")).await;
    let after = lost(&get(&address, "/metrics").await.1);
    assert!(after > before, "{before} lines lost, then {after}");
    assert_eq!(get(&address, "/healthz").await.0, 200);
    node.stop().await;
}
