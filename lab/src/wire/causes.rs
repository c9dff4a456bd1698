//! Bytes that Stele's nodes wrote, by cause: from their status pages, because the kernel does not
//! know causes.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::Duration;
use stele_load::server::unavailable;
use stele_types::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Bytes by cause since a node started.
pub(super) type Causes = BTreeMap<String, u64>;

const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Reads the bytes of each node that `url` names, in that order; `None` if one does not respond.
pub(super) async fn written(url: &str) -> Option<Vec<Causes>> {
    let mut all = Vec::new();
    for address in url.split_once("://")?.1.split(',') {
        let page = timeout(ANSWER_WITHIN, status_page(address)).await.ok()?.ok()?;
        all.push(of_page(&page)?);
    }
    Some(all)
}

/// Returns the bytes written since `before` per byte of payload, for each cause that wrote.
pub(super) fn per_payload_byte(now: &Causes, before: &Causes, payload_bytes: u64) -> Value {
    let one = |(cause, bytes): (&String, &u64)| {
        let bytes = bytes.saturating_sub(before.get(cause).copied().unwrap_or(0));
        (bytes > 0 && payload_bytes > 0)
            .then(|| (cause.clone(), Value::from(bytes as f64 / payload_bytes as f64)))
    };
    Value::Object(now.iter().filter_map(one).collect::<Map<_, _>>())
}

/// Fetches the page with its header by HTTP/1.0; the connection closes after it.
async fn status_page(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await.map_err(unavailable)?;
    let request = format!("GET /status HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(unavailable)?;
    let mut page = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut page).await.map_err(unavailable)?;
    Ok(page)
}

/// Returns the sum over the stores of a node.
fn of_page(page: &str) -> Option<Causes> {
    let (_, body) = page.split_once("\r\n\r\n")?;
    let status: Value = serde_json::from_str(body).ok()?;
    let mut sum = Causes::new();
    for store in status["stores"].as_array()? {
        for (cause, bytes) in store["written_bytes"].as_object()? {
            *sum.entry(cause.clone()).or_default() += bytes.as_u64()?;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_causes_are_the_sum_over_its_stores() {
        let page = "HTTP/1.0 200 OK\r\nx: y\r\n\r\n{\"stores\": [
            {\"written_bytes\": {\"log\": 5, \"flush\": 1}}, {\"written_bytes\": {\"log\": 7}}]}";
        let causes = of_page(page).unwrap();
        assert_eq!(causes, Causes::from([("flush".to_owned(), 1), ("log".to_owned(), 12)]));
        assert_eq!(of_page("HTTP/1.0 404 Not Found\r\n\r\nno such page"), None);
        assert_eq!(of_page(""), None);
    }

    #[test]
    fn causes_that_wrote_nothing_are_left_out() {
        let before = Causes::from([("log".to_owned(), 100), ("flush".to_owned(), 30)]);
        let now = Causes::from([
            ("log".to_owned(), 150),
            ("flush".to_owned(), 30),
            ("sidecar".to_owned(), 5),
        ]);
        let shares = per_payload_byte(&now, &before, 50);
        assert_eq!(shares, serde_json::json!({"log": 1.0, "sidecar": 0.1}));
        assert_eq!(per_payload_byte(&now, &before, 0), serde_json::json!({}));
    }
}
