//! One call, and what its user sees.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::time::{Duration, Instant};
use tikv_client::{Config, RawClient, Value};

/// Connects, so that the client knows the regions, creates `ready` in the directory, waits for `go` there,
/// and makes the call. Returns one JSON object. Calls have 30 s: by default a call has 2 s.
pub async fn run(address: &str, call: &str, directory: &Path) -> Result<String> {
    let options = Config::default().with_timeout(Duration::from_secs(30));
    let client = RawClient::new_with_config(vec![address], options).await.context("connecting")?;
    client.get("answers/warm".to_owned()).await.context("the first get")?;
    std::fs::write(directory.join("ready"), "")?;
    while !directory.join("go").exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let key = || "answers/rust".to_owned();
    let started = Instant::now();
    let mut rows = 0;
    let ended = match call {
        "put" => client.put(key(), "1").await,
        "long-key" => client.put(vec![0; 9000], "1").await,
        "swap" => {
            let atomic = client.with_atomic_for_cas();
            atomic.compare_and_swap(key(), None, Value::from("1")).await.map(drop)
        }
        "reverse-scan" => {
            let range = "answers/".to_owned().."answers0".to_owned();
            client.scan_reverse(range, 10).await.map(|pairs| rows = pairs.len())
        }
        other => bail!("no call `{other}`"),
    };
    let seconds = started.elapsed().as_secs_f64();
    let error = ended.err().map(|error| format!("{error:?}")).unwrap_or_default();
    // The text of an error has no control characters, and JSON has the same escapes otherwise.
    let error = error.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ");
    Ok(format!("{{\"error\":\"{error}\",\"rows\":{rows},\"seconds\":{seconds:.3}}}"))
}
