//! Space of Redis keys that expire, and of a large hash that is deleted: what the sweeper of the stores frees, and
//! how much of a processor it uses.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use stele_client::redis_messages::{Command, RunRequest};
use stele_client::{Client, Options};
use stele_types::{Prng, redis_key};
use tokio::runtime::Runtime;
use xtask::flags::Flags;
use xtask::programs::{self, STELE};
use xtask::servers::{self, Running, with_servers};
use xtask::workspace::Workspace;

/// Commands of a call.
const COMMANDS: u64 = 100;
/// Members of a call.
const MEMBERS: u64 = 1_000;
const TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two looks at the space.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// What is measured.
#[derive(Debug)]
struct Load {
    per_second: u64,
    seconds: u64,
    ttl_s: u64,
    value_bytes: usize,
    wait_s: u64,
    members: u64,
    freed_within_s: u64,
}

/// Measures expired strings, then a deleted hash.
pub(crate) fn run(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    let load = Load {
        per_second: flags.number("--per-second", 5_000)?,
        seconds: flags.number("--seconds", 300)?,
        ttl_s: flags.number("--ttl-s", 10)?,
        value_bytes: flags.number("--value-bytes", 100)? as usize,
        wait_s: flags.number("--wait-s", 60)?,
        members: flags.number("--members", 1_000_000)?,
        freed_within_s: flags.number("--freed-within-s", 600)?,
    };
    let nodes = flags.number("--nodes", 3)? as usize;
    let is_release = !flags.switch("--dev");
    flags.end()?;
    let stele = programs::build(workspace, STELE, is_release)?;
    let work = tempfile::tempdir_in(&workspace.target)?;
    let options = servers::Options { nodes, ..servers::Options::default() };
    println!("{nodes} nodes on loopback, {}, {load:?}", if is_release { "release" } else { "dev" });
    with_servers(&stele, work.path(), &options, |running| {
        Runtime::new()?.block_on(measure(work.path(), running, &load))
    })
}

async fn measure(work: &Path, running: &Running, load: &Load) -> Result<()> {
    let options = Options { timeout: TIMEOUT, ..Options::default() };
    let client = Client::connect_with(&running.addresses, options).await?;
    // The level that Redis keys need may be in use a little later than the first answer.
    let started = Instant::now();
    while let Err(error) = call(&client, vec![vec!["SET".into(), "a".into(), "v".into()]]).await {
        ensure!(started.elapsed() < TIMEOUT, "no first command: {error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    expire(work, running, &client, load).await?;
    delete(work, &client, load).await
}

/// Sets names that expire, at a constant rate, and waits after the last expiry.
async fn expire(work: &Path, running: &Running, client: &Client, load: &Load) -> Result<()> {
    let before = disk_bytes(work)?;
    let (started, names) = (Instant::now(), load.per_second * load.seconds);
    let (mut value, mut prng, mut most) = (vec![0; load.value_bytes], Prng::new(1), before);
    for first in (0..names).step_by(COMMANDS as usize) {
        let due = Duration::from_secs_f64(first as f64 / load.per_second as f64);
        tokio::time::sleep(due.saturating_sub(started.elapsed())).await;
        let commands = (first..names.min(first + COMMANDS)).map(|name| {
            value.iter_mut().for_each(|byte| *byte = prng.below(256) as u8);
            let words = ["SETEX".to_owned(), format!("session:{name}"), load.ttl_s.to_string()];
            let words = words.into_iter().map(Bytes::from);
            words.chain([Bytes::copy_from_slice(&value)]).collect()
        });
        call(client, commands.collect()).await?;
        if first % (load.per_second * POLL_INTERVAL.as_secs()) < COMMANDS {
            most = most.max(disk_bytes(work)?);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    tokio::time::sleep(Duration::from_secs(load.ttl_s + load.wait_s)).await;
    let after = disk_bytes(work)?;
    let (mut swept, mut processor_s) = (0.0, 0.0);
    for address in &running.addresses {
        let text = metrics(address)?;
        swept += sum_of(&text, "stele_redis_swept_keys_total");
        processor_s += sum_of(&text, "stele_redis_sweep_seconds_total");
    }
    let all_s = started.elapsed().as_secs_f64();
    println!(
        r#"{{"names": {names}, "seconds": {seconds:.1}, "more_mib_after": {:.1}, "more_mib_most": {:.1}, "swept": {swept:.0}, "sweep_processor_seconds": {processor_s:.3}, "sweep_share": {:.5}}}"#,
        mib(after) - mib(before),
        mib(most) - mib(before),
        processor_s / all_s,
    );
    Ok(())
}

/// Deletes a large hash, and waits until nine tenths of its space are free.
async fn delete(work: &Path, client: &Client, load: &Load) -> Result<()> {
    let before = disk_bytes(work)?;
    let (mut value, mut prng) = (vec![0; load.value_bytes], Prng::new(2));
    for first in (0..load.members).step_by(MEMBERS as usize) {
        let mut words = vec![Bytes::from("HSET"), Bytes::from("large")];
        for field in first..load.members.min(first + MEMBERS) {
            value.iter_mut().for_each(|byte| *byte = prng.below(256) as u8);
            words.extend([Bytes::from(format!("field:{field}")), Bytes::copy_from_slice(&value)]);
        }
        call(client, vec![words]).await?;
    }
    let full = disk_bytes(work)?;
    let started = Instant::now();
    call(client, vec![vec!["DEL".into(), "large".into()]]).await?;
    let delete_ms = started.elapsed().as_secs_f64() * 1000.0;
    let goal = before + full.saturating_sub(before) / 10;
    let mut after = full;
    while after > goal && started.elapsed() < Duration::from_secs(load.freed_within_s) {
        tokio::time::sleep(POLL_INTERVAL).await;
        after = disk_bytes(work)?;
    }
    println!(
        r#"{{"members": {}, "delete_ms": {delete_ms:.2}, "more_mib_full": {:.1}, "more_mib_after": {:.1}, "seconds": {:.0}}}"#,
        load.members,
        mib(full) - mib(before),
        mib(after) - mib(before),
        started.elapsed().as_secs_f64(),
    );
    Ok(())
}

/// Runs commands of one region. Fails if one of the replies is an error.
async fn call(client: &Client, commands: Vec<Vec<Bytes>>) -> Result<()> {
    let name = commands.first().and_then(|words| words.get(1)).context("a command has a name")?;
    let key = redis_key::header_key(0, name).slice(1..);
    let command = |arguments| Command { database: 0, arguments };
    let commands = commands.into_iter().map(command).collect();
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ());
    let request = RunRequest { protocol: 2, commands, seed, ..RunRequest::default() };
    let replies = client.run_redis(&key, request).await?.replies;
    let text = String::from_utf8_lossy(&replies);
    ensure!(!text.starts_with('-') && !text.contains("\r\n-"), "a command failed: {text}");
    Ok(())
}

/// Returns the bytes of all blocks of the files below a folder.
fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        // A file may be removed meanwhile.
        let Ok(metadata) = path.symlink_metadata() else { continue };
        bytes += match metadata.is_dir() {
            true => disk_bytes(&path)?,
            false => metadata.blocks() * 512,
        };
    }
    Ok(bytes)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn metrics(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: lab\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the sum of the samples of a metric.
fn sum_of(text: &str, name: &str) -> f64 {
    let samples = text.lines().filter(|line| line.starts_with(name));
    let values = samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}
