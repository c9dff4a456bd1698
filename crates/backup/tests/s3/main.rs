//! A repository over HTTP. Its server resets connections, loses answers, slows down, and cuts and changes bodies.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod exercise;
mod server;

use exercise::{log, write_check_prune};
use futures_util::future::join_all;
use server::{Fault, Server};
use std::collections::BTreeSet;
use stele_backup::{OpenOptions, Repository, install_tls_provider};
use stele_types::{ClusterId, Prng};

const CLUSTER: ClusterId = ClusterId(7);
const URL: &str = "s3://bucket/backups/a";

fn options(server: &Server) -> OpenOptions {
    install_tls_provider();
    let settings = [
        ("AWS_ENDPOINT_URL", format!("http://{}", server.address)),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "eu-west-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "key".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value)).to_vec();
    OpenOptions { settings, ..OpenOptions::default() }
}

fn seeds(seeds: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let replayed = std::env::var("STELE_SEED").ok().map(|seed| seed.parse().unwrap());
    replayed.map_or(seeds, |seed: u64| seed..seed + 1)
}

#[tokio::test]
async fn a_repository_is_right_whatever_its_server_does() {
    let outcomes = join_all(seeds(0..6).map(under_faults)).await;
    let faults: BTreeSet<Fault> = outcomes.into_iter().flatten().collect();
    if std::env::var_os("STELE_SEED").is_none() {
        assert_eq!(faults.len(), 7, "{faults:?}");
    }
}

/// Returns the faults that happened.
async fn under_faults(seed: u64) -> Vec<Fault> {
    let server = Server::start(seed, 10).await;
    let done = async {
        let repository = Repository::create_or_open(URL, &options(&server), CLUSTER).await?;
        write_check_prune(&repository, &mut Prng::new(seed)).await
    };
    let replay = format!("seed {seed}: replay with STELE_SEED={seed} cargo test -p stele-backup");
    done.await.unwrap_or_else(|error| panic!("{replay}: {error}"));
    let state = server.state.lock().unwrap();
    assert!(!state.objects.keys().any(|key| key.contains("prune") || key.contains("making")));
    state.faults.keys().copied().collect()
}

#[tokio::test]
async fn more_refusals_in_a_row_than_the_library_bears_are_waited_for() {
    let server = Server::start(1, 0).await;
    let repository = Repository::create_or_open(URL, &options(&server), CLUSTER).await.unwrap();
    // The library makes four requests of each of ours.
    server.state.lock().unwrap().slow = 11;
    repository.put_log(&log(0)).await.unwrap();
    let state = server.state.lock().unwrap();
    assert_eq!((state.slow, state.faults[&Fault::SlowDown]), (0, 11));
}

#[tokio::test]
async fn an_address_without_tls_must_be_allowed() {
    let server = Server::start(1, 0).await;
    let mut options = options(&server);
    options.settings.retain(|(name, _)| name != "AWS_ALLOW_HTTP");
    options.retry_for = std::time::Duration::ZERO;
    let opened = Repository::create_or_open(URL, &options, CLUSTER).await;
    assert!(opened.is_err());
    assert!(server.state.lock().unwrap().objects.is_empty());
}
