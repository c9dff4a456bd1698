//! Load on the playground's cluster: puts in closed loops.

use super::cluster::Cluster;
use bytes::Bytes;
use std::time::{Duration, Instant};
use stele_client::Client;
use stele_types::{Error, Result};

const CLIENTS: u64 = 8;
/// Keys of each client, which are overwritten, so that the load uses little space.
const KEYS: u64 = 64;
const VALUE_BYTES: usize = 16 << 10;
const SECONDS_MAX: u64 = 600;

/// Puts values for some seconds; returns the number and rate of the puts.
pub(super) async fn run(cluster: &Cluster, seconds: u64) -> Result<String> {
    if !(1..=SECONDS_MAX).contains(&seconds) {
        return Err(Error::invalid(format!("write 1 to {SECONDS_MAX} seconds")));
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(put_until(cluster.client.clone(), number, end)))
        .collect();
    let (mut puts, mut failure) = (0, None);
    for client in clients {
        match client.await {
            Ok((done, failed)) => (puts, failure) = (puts + done, failure.or(failed)),
            Err(_) => return Err(Error::Busy("a client of the load stopped".to_owned())),
        }
    }
    let rate = puts / seconds;
    let failed = failure.map_or(String::new(), |error| format!(" · a put failed: {error}"));
    Ok(format!("{puts} puts of 16 KiB, {rate} per second{failed}"))
}

async fn put_until(client: Client, number: u64, end: Instant) -> (u64, Option<Error>) {
    let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
    let (mut done, mut failure) = (0, None);
    while Instant::now() < end {
        let key = format!("load/{number}/{:02}", done % KEYS);
        match client.put(key, value.clone()).await {
            Ok(()) => done += 1,
            Err(error) => failure = Some(error),
        }
    }
    (done, failure)
}
