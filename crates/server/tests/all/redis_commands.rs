//! Redis commands between nodes: their execution on the leader of a region, against a whole node.

use crate::common::{LIMIT, config, start, until};
use bytes::Bytes;
use std::time::{Duration, Instant};
use stele_client::redis_messages::{Command, RunRequest, RunResponse, WatchedName};
use stele_client::{Client, Options, PutPair, ScanOptions};
use stele_server::config::Config;
use stele_server::node::Node;
use stele_types::{ColumnFamily, Error, KeyRange, RegionId, redis_key};

struct Served {
    node: Node,
    client: Client,
}

async fn served(dir: &tempfile::TempDir) -> Served {
    served_with(dir, |_| {}).await
}

async fn served_with(dir: &tempfile::TempDir, change: impl FnOnce(&mut Config)) -> Served {
    let mut config = config(&[dir.path().join("a")], &[]);
    change(&mut config);
    let node = start(config).await;
    let addresses = [node.ready.address.clone()];
    let options = Options { timeout: LIMIT, ..Options::default() };
    let client = Client::connect_with(&addresses, options).await.unwrap();
    Served { node, client }
}

fn request(lines: &[&str]) -> RunRequest {
    let command = |line: &&str| Command {
        database: 0,
        arguments: line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect(),
    };
    let commands = lines.iter().map(command).collect();
    RunRequest { protocol: 2, commands, seed: 7, ..RunRequest::default() }
}

fn user_key(name: &str) -> Bytes {
    redis_key::header_key(0, name.as_bytes()).slice(1..)
}

impl Served {
    async fn run(&self, name: &str, request: RunRequest) -> Result<RunResponse, Error> {
        self.client.run_redis(&user_key(name), request).await
    }

    /// Returns the replies to commands of which the first name is `name`.
    async fn replies(&self, name: &str, lines: &[&str]) -> String {
        let response = self.run(name, request(lines)).await.unwrap();
        String::from_utf8(response.replies.to_vec()).unwrap()
    }

    /// Orders a split, once the placement leader knows the leader of the region.
    async fn order_split(&self, region: RegionId, key: &Bytes) {
        let started = Instant::now();
        while let Err(refused) = self.client.control().split(region, vec![key.clone()]).await {
            assert!(started.elapsed() < LIMIT, "{refused}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn split(&self, name: &str) {
        let key = redis_key::border(&user_key(name));
        let (region, _) = self.client.locate(key.clone()).await.unwrap();
        self.order_split(region, &key).await;
        let started = Instant::now();
        loop {
            // The client learns of the split from the next refusal.
            let _ = self.client.family(ColumnFamily::Redis).get(user_key(name)).await;
            if self.client.locate(key.clone()).await.unwrap().0 != region {
                return;
            }
            assert!(started.elapsed() < LIMIT);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_one_region_are_executed_in_order_as_one_change() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let replies = served.replies("a", &["SET a 1", "INCR a", "HSET h f v g w", "GET a"]).await;
    assert_eq!(replies, "+OK\r\n:2\r\n:2\r\n$1\r\n2\r\n");
    let replies = served.replies("h", &["HGET h f", "HLEN h", "TYPE a", "HGET a f"]).await;
    assert!(replies.starts_with("$1\r\nv\r\n:2\r\n+string\r\n-WRONGTYPE "), "{replies}");
    assert_eq!(
        served.replies("h", &["HGETALL h"]).await,
        "*4\r\n$1\r\nf\r\n$1\r\nv\r\n$1\r\ng\r\n$1\r\nw\r\n"
    );
    // Reads of whole collections inside a change are read at a view, and checked.
    let replies = served.replies("h", &["HKEYS h", "HDEL h f", "HVALS h"]).await;
    assert_eq!(replies, "*2\r\n$1\r\nf\r\n$1\r\ng\r\n:1\r\n*1\r\n$1\r\nw\r\n");
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_is_needed_only_after_another_one_was_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let replies = served.replies("a", &["SADD a x", "HSET b f v", "SADD c y", "SADD d z"]).await;
    assert_eq!(replies, ":1\r\n:1\r\n:1\r\n:1\r\n");
    // Each name is free only after the command before it.
    let chain = ["RENAME a e", "RENAMENX b a", "RENAMENX c b", "RENAMENX d c", "HGET a f"];
    let replies = served.replies("a", &chain).await;
    assert_eq!(replies, "+OK\r\n:1\r\n:1\r\n:1\r\n$1\r\nv\r\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_executed_only_if_no_watched_name_has_changed() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    served.replies("a", &["SET a 1"]).await;
    let watching = |change| WatchedName { database: 0, name: Bytes::from_static(b"a"), change };
    let watch = RunRequest { watched: vec![watching(None)], protocol: 2, ..RunRequest::default() };
    let found = served.client.read_redis(&user_key("a"), watch).await.unwrap().found;
    let change = found[0].change;
    assert!(change.is_some());
    let exec = |watched| RunRequest {
        is_transaction: true,
        watched,
        seed: 9,
        ..request(&["INCR a", "GET a"])
    };
    for refused in [None, change.map(|change| change + 1)] {
        let response = served.run("a", exec(vec![watching(refused)])).await.unwrap();
        assert_eq!(response.replies, "*-1\r\n");
    }
    let response = served.run("a", exec(vec![watching(change)])).await.unwrap();
    assert_eq!(response.replies, "*2\r\n:2\r\n$1\r\n2\r\n");
    let response = served.run("a", exec(vec![watching(change)])).await.unwrap();
    assert_eq!(response.replies, "*-1\r\n", "its own change counts");
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_whose_names_lie_in_several_regions_are_refused_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    served.replies("a", &["SET a 1", "SET {t}b 2", "SET {t}c 3"]).await;
    served.split("b").await;
    let error = served.run("a", request(&["MSET a 5 c 6"])).await.unwrap_err();
    assert!(error.to_string().contains("several regions"), "{error}");
    assert_eq!(served.replies("a", &["GET a"]).await, "$1\r\n1\r\n");
    // A split inside a tag is made at its border.
    let inside = user_key("{t}c");
    let (region, _) = served.client.locate(inside.clone()).await.unwrap();
    served.order_split(region, &inside).await;
    let replies = served.replies("{t}b", &["MSET {t}b 7 {t}c 8", "GET {t}c"]).await;
    assert_eq!(replies, "+OK\r\n$1\r\n8\r\n");
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_redis_commands_write_the_family_of_their_keys() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    served.replies("a", &["SET a 1"]).await;
    let raw = served.client.family(ColumnFamily::Redis);
    let key = user_key("a");
    assert!(raw.get(key.clone()).await.unwrap().is_some_and(|value| value.ends_with(b"1")));
    let refusals = [
        raw.put(key.clone(), "x").await,
        raw.delete(key.clone()).await,
        raw.put_if_absent(key.clone(), "x").await.map(drop),
        raw.batch_put(vec![PutPair::new(key.clone(), "x")]).await,
        raw.batch_delete(vec![key.clone()]).await,
        raw.delete_range(KeyRange::of_key(key)).await,
    ];
    for refused in refusals {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("written by Redis commands only"), "{text}");
    }
    assert_eq!(served.replies("a", &["GET a"]).await, "$1\r\n1\r\n");
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_names_and_members_of_deleted_hashes_leave_the_store() {
    const NAMES: usize = 3_000;
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    for from in (0..10_000).step_by(1_000) {
        let fields: Vec<String> =
            (from..from + 1_000).map(|field| format!("f{field} v{field}")).collect();
        served.replies("h", &[&format!("HSET h {}", fields.join(" "))]).await;
    }
    served.replies("kept", &["HSET kept f v", "SET later v EX 1000"]).await;
    assert_eq!(served.replies("h", &["HLEN h", "DEL h"]).await, ":10000\r\n:1\r\n");
    for from in (0..NAMES).step_by(100) {
        let lines: Vec<String> =
            (from..from + 100).map(|name| format!("SETEX k{name} 1 v")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        served.replies(&format!("k{from}"), &lines).await;
    }
    let swept = |what: &str, count: usize| {
        format!("stele_redis_swept_{what}_total{{store=\"1\"}} {count}\n")
    };
    let is_swept =
        |body: &str| body.contains(&swept("keys", NAMES)) && body.contains(&swept("stamps", 1));
    until(&served.node.ready.address, "/metrics", |_, body| is_swept(body)).await;
    let options = ScanOptions { keys_only: true, ..ScanOptions::default() };
    let raw = served.client.family(ColumnFamily::Redis);
    let left = raw.scan(KeyRange::all(), options).next_page().await.unwrap().unwrap();
    let left: Vec<Bytes> = left.into_iter().map(|pair| pair.key).collect();
    assert_eq!(left.len(), 3, "{left:?}");
    assert_eq!((&left[0], &left[2]), (&user_key("kept"), &user_key("later")));
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn collections_that_are_replaced_again_and_again_keep_their_members() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let (started, mut seed) = (Instant::now(), 0);
    while started.elapsed() < Duration::from_secs(5) {
        for (lines, replies) in [
            (["DEL {t}a", "SADD {t}a 1 2 3 4 5"], ""),
            (["RENAME {t}a {t}b", "SADD {t}a 6 7"], "+OK\r\n:2\r\n"),
            (["COPY {t}b {t}a REPLACE", "SADD {t}a 8"], ":1\r\n:1\r\n"),
            (["SET {t}c v", "RENAME {t}a {t}c"], "+OK\r\n+OK\r\n"),
            (["PEXPIRE {t}c 1", "SCARD {t}b"], ":1\r\n:5\r\n"),
        ] {
            seed += 1;
            let response =
                served.run("{t}a", RunRequest { seed, ..request(&lines) }).await.unwrap();
            let text = String::from_utf8(response.replies.to_vec()).unwrap();
            assert!(replies.is_empty() || text == replies, "{lines:?}: {text}");
        }
        let members = served.replies("{t}b", &["SMEMBERS {t}b"]).await;
        assert_eq!(members, "*5\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n$1\r\n5\r\n");
    }
    let swept =
        |line: &str| line.starts_with("stele_redis_swept_stamps_total") && !line.ends_with(" 0");
    let is_swept = |body: &str| body.lines().any(swept);
    until(&served.node.ready.address, "/metrics", |_, body| is_swept(body)).await;
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_tag_larger_than_a_region_is_named_in_the_details_of_its_region() {
    let dir = tempfile::tempdir().unwrap();
    let served = served_with(&dir, |config| config.region_bytes_max = 1 << 20).await;
    let control = served.client.control();
    let oversized = async || {
        let row = control.region_of(user_key("{t}0")).await.unwrap();
        let details = control.region_detail(&row.region).await.unwrap();
        details.into_iter().find_map(|detail| detail.oversized_group)
    };
    let value = "v".repeat(100_000);
    let set = async |number: u32| {
        let line = format!("SET {{t}}{number} {value}");
        assert_eq!(served.replies("{t}0", &[&line]).await, "+OK\r\n");
    };
    set(0).await;
    assert_eq!(oversized().await, None);
    for number in 1..16 {
        set(number).await;
    }
    let found = oversized().await.unwrap();
    assert_eq!((found.database, &found.text[..], found.is_tag), (0, &b"t"[..], true));
    assert!(found.approximate_bytes > 1_400_000, "{found:?}");
    assert_eq!(found.region_bytes_max, 1 << 20);
    served.node.stop().await;
}
