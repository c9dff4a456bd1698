//! Runs every raw call of TiKV's own, unmodified Rust client against the cluster at ADDR.
//!
//! `stele-tests-tikv-rust ADDR`, or `stele-tests-tikv-rust ADDR CALL DIR` for one call and what its user sees. The
//! variables `TLS_CA`, `TLS_CERT` and `TLS_KEY` name the files of TLS.

mod answers;

use anyhow::{Context, Result, ensure};
use std::process::ExitCode;
use tikv_client::{ColumnFamily, Config, Key, KvPair, RawClient, Value};

/// Prefix of the keys of this program. The caller may split off the end of the key space as a
/// region of its own: this client repeats rows of a bounded scan that reaches the last region's
/// unbounded end.
const PREFIX: &str = "tikv-rust/";
const COUNT: usize = 300;

#[tokio::main]
async fn main() -> ExitCode {
    let Some(address) = std::env::args().nth(1) else {
        eprintln!("usage: stele-tests-tikv-rust ADDR [CALL DIR]");
        return ExitCode::from(2);
    };
    if let (Some(call), Some(directory)) = (std::env::args().nth(2), std::env::args().nth(3)) {
        return match answers::run(&address, &call, directory.as_ref()).await {
            Ok(line) => {
                println!("{line}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("tikv-rust: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    match run(&address).await {
        Ok(checks) => {
            println!("{{\"client\":\"rust tikv-client 0.4.0\",\"checks\":{checks},\"errors\":0}}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tikv-rust: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(address: &str) -> Result<usize> {
    let options = tls(Config::default());
    let client = RawClient::new_with_config(vec![address], options).await.context("connecting")?;
    single_keys(&client).await.context("single keys")?;
    batches(&client).await.context("batches")?;
    scans(&client).await.context("scans")?;
    column_families(&client).await.context("column families")?;
    compare_and_swap(&client.with_atomic_for_cas()).await.context("compare and swap")?;
    delete_range(&client).await.context("delete range")?;
    Ok(6)
}

/// Adds the files of TLS, if there are any.
fn tls(options: Config) -> Config {
    let file = |name: &str| std::env::var(name).unwrap_or_default();
    match file("TLS_CA") {
        none if none.is_empty() => options,
        ca => options.with_security(ca, file("TLS_CERT"), file("TLS_KEY")),
    }
}

fn key(number: usize) -> String {
    format!("{PREFIX}{number:05}")
}

fn value(number: usize) -> Vec<u8> {
    vec![number as u8; 1 + number % 700]
}

async fn single_keys(client: &RawClient) -> Result<()> {
    client.put(key(0), value(0)).await?;
    ensure!(client.get(key(0)).await? == Some(value(0)), "a put is not found");
    client.put(key(0), Vec::new()).await?;
    ensure!(client.get(key(0)).await? == Some(Vec::new()), "an empty value is not found");
    client.delete(key(0)).await?;
    ensure!(client.get(key(0)).await?.is_none(), "a deleted key is found");
    client.delete(key(0)).await?;
    client.put_with_ttl(key(1), value(1), 1).await?;
    let left = client.get_key_ttl_secs(key(1)).await?;
    ensure!(left.is_some_and(|seconds| seconds <= 1), "time to live is {left:?}");
    tokio::time::sleep(std::time::Duration::from_millis(2_100)).await;
    ensure!(client.get(key(1)).await?.is_none(), "an expired key is found");
    Ok(())
}

async fn batches(client: &RawClient) -> Result<()> {
    client.batch_put((0..COUNT).map(|number| (key(number), value(number)))).await?;
    let pairs: Vec<KvPair> = client.batch_get((0..COUNT + 5).map(key)).await?;
    ensure!(pairs.len() == COUNT, "{} of {COUNT} are found", pairs.len());
    for KvPair(found, bytes) in &pairs {
        let number = number_of(found)?;
        ensure!(*bytes == value(number), "{} has another value", key(number));
    }
    client.batch_delete((0..COUNT).step_by(3).map(key)).await?;
    let left = client.batch_get((0..COUNT).map(key)).await?.len();
    ensure!(left == COUNT - COUNT / 3, "{left} are left after a batch of deletes");
    client.batch_put((0..COUNT).step_by(3).map(|number| (key(number), value(number)))).await?;
    Ok(())
}

async fn scans(client: &RawClient) -> Result<()> {
    let pairs = client.scan(key(10)..key(60), 1_000).await?;
    let numbers: Vec<usize> = pairs.iter().map(|pair| number_of(&pair.0)).collect::<Result<_>>()?;
    ensure!(numbers == (10..60).collect::<Vec<_>>(), "a scan returned {numbers:?}");
    let limited = client.scan(key(10)..=key(60), 7).await?;
    ensure!(limited.len() == 7, "a scan of at most 7 returned {}", limited.len());
    let keys: Vec<Key> = client.scan_keys(key(0)..key(5), 10).await?;
    ensure!(keys.len() == 5, "a scan of keys returned {}", keys.len());
    let ranges = [(key(0), key(3)), (key(100), key(104))];
    let ranges = ranges.into_iter().map(|(from, to)| from..to);
    let many = client.batch_scan(ranges, 10).await?;
    ensure!(many.len() == 7, "a scan of two ranges returned {}", many.len());
    Ok(())
}

async fn column_families(client: &RawClient) -> Result<()> {
    let write = client.with_cf(ColumnFamily::Write);
    write.put(key(7), b"other".to_vec()).await?;
    ensure!(client.get(key(7)).await? == Some(value(7)), "column families share keys");
    ensure!(write.get(key(7)).await? == Some(b"other".to_vec()), "a column family lost a key");
    write.delete(key(7)).await?;
    Ok(())
}

async fn compare_and_swap(client: &RawClient) -> Result<()> {
    let place = || format!("{PREFIX}cas");
    client.delete(place()).await?;
    let swap = |from: Option<&str>, to: &str| {
        client.compare_and_swap(place(), from.map(Value::from), Value::from(to))
    };
    ensure!(swap(None, "one").await? == (None, true), "a first swap fails");
    let one = Some(Value::from("one"));
    ensure!(swap(None, "two").await? == (one.clone(), false), "a swap from nothing succeeds");
    ensure!(swap(Some("one"), "two").await? == (one, true), "a swap fails");
    ensure!(client.get(place()).await? == Some(Value::from("two")), "a swap is not seen");
    Ok(())
}

async fn delete_range(client: &RawClient) -> Result<()> {
    client.delete_range(key(20)..key(40)).await?;
    let left = client.scan(key(0)..key(60), 1_000).await?.len();
    ensure!(left == 40, "{left} are left after a range of 20 of 60 was deleted");
    client.delete_range(PREFIX.to_owned().."tikv-rust0".to_owned()).await?;
    let left = client.batch_get((0..COUNT).map(key)).await?.len();
    ensure!(left == 0, "{left} are left after all were deleted");
    Ok(())
}

fn number_of(key: &Key) -> Result<usize> {
    let bytes: &[u8] = key.into();
    let text = std::str::from_utf8(bytes)?.strip_prefix(PREFIX).context("a foreign key")?;
    Ok(text.parse()?)
}
