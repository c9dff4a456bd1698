//! Keys and values over HTTP, against whole nodes.

use crate::common::http::{Answer, Ask};
use crate::common::{LIMIT, config, free_addresses, get, start, until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use stele_client::redis_messages::{Command, RunRequest};
use stele_client::{Client, Options};
use stele_server::config::Config;
use stele_server::node::Node;
use stele_types::redis_key;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

struct Served {
    node: Node,
    address: String,
    _dir: tempfile::TempDir,
}

impl Served {
    async fn start() -> Self {
        Self::start_with(Config::default().request_memory_bytes_max).await
    }

    async fn start_with(request_memory_bytes_max: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&[dir.path().join("a")], &[]);
        let node = start(Config { request_memory_bytes_max, ..config }).await;
        let address = node.ready.address.clone();
        until(&address, "/readyz", |status, _| status == 200).await;
        Self { node, address, _dir: dir }
    }

    fn ask<'a>(&'a self, method: &'a str, target: &'a str) -> Ask<'a> {
        Ask::new(&self.address, method, target)
    }

    async fn get(&self, target: &str) -> Answer {
        self.ask("GET", target).send().await
    }

    async fn put(&self, target: &str, value: &[u8]) -> String {
        let answer = self.ask("PUT", target).body(value).send().await;
        assert_eq!(answer.status, 204, "{answer:?}");
        answer.header("etag").unwrap().to_owned()
    }

    async fn client(&self) -> Client {
        let options = Options { timeout: LIMIT, ..Options::default() };
        Client::connect_with(&[&self.address], options).await.unwrap()
    }

    /// Splits the regions at these keys.
    async fn split(&self, keys: &[&'static str]) {
        let (client, began) = (self.client().await, Instant::now());
        for key in keys {
            let (region, _) = client.locate(*key).await.unwrap();
            while let Err(refused) = client.control().split(region, vec![(*key).into()]).await {
                assert!(began.elapsed() < LIMIT, "{refused}");
                sleep(Duration::from_millis(50)).await;
            }
            // The client learns of the split from the next refusal.
            while client.locate(*key).await.unwrap().0 == region {
                assert!(began.elapsed() < LIMIT);
                let _ = client.get(*key).await;
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn invalid() -> (u16, String, String) {
    (400, "invalid_request".to_owned(), "no_effect".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_method_of_a_pair_does_what_its_name_says() {
    let served = Served::start().await;
    let missing = served.get("/v1/kv/a").await;
    assert_eq!(missing.error(), (404, "not_found".into(), "no_effect".into()));
    let tag = served.put("/v1/kv/a", b"one\0\xff").await;
    let found = served.get("/v1/kv/a").await;
    assert_eq!((found.status, &found.body[..]), (200, &b"one\0\xff"[..]));
    assert_eq!(found.header("etag"), Some(&*tag));
    assert_eq!(found.header("content-type"), Some("application/octet-stream"));
    assert_eq!(found.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(found.header("stele-ttl"), None);
    assert_eq!(found.header("access-control-allow-origin"), None);
    let head = served.ask("HEAD", "/v1/kv/a").send().await;
    assert_eq!((head.status, head.header("content-length")), (200, Some("5")));
    assert_eq!(head.header("etag"), Some(&*tag));
    assert_eq!(served.ask("HEAD", "/v1/kv/b").send().await.status, 404);
    assert_eq!(served.put("/v1/kv/empty", b"").await, served.put("/v1/kv/none", b"").await);
    assert_eq!(served.get("/v1/kv/empty").await.status, 200);
    for _ in 0..2 {
        assert_eq!(served.ask("DELETE", "/v1/kv/a").send().await.status, 204);
        assert_eq!(served.get("/v1/kv/a").await.status, 404);
    }
    for (method, target, allow) in [
        ("PATCH", "/v1/kv/a", "GET, HEAD, PUT, DELETE, POST"),
        ("OPTIONS", "/v1/kv/a", "GET, HEAD, PUT, DELETE, POST"),
        ("GET", "/v1/batch", "POST"),
        ("POST", "/v1/watch", "GET"),
    ] {
        let refused = served.ask(method, target).send().await;
        assert_eq!(refused.error().1, "method_not_allowed", "{method} {target}");
        assert_eq!((refused.status, refused.header("allow")), (405, Some(allow)));
    }
    for target in [
        "/v1/kv/a?famly=lock",
        "/v1/kv/a?family=",
        "/v1/kv/a?family=x",
        "/v1/kv/a?family=lock&family=lock",
    ] {
        assert_eq!(served.get(target).await.error(), invalid(), "{target}");
    }
    let chunked = served.ask("PUT", "/v1/kv/c").with("transfer-encoding", "chunked");
    let chunked = chunked.body(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").send().await;
    assert_eq!((chunked.status, served.get("/v1/kv/c").await.text()), (204, "abcde".into()));
    let packed = served.ask("PUT", "/v1/kv/c").with("content-encoding", "gzip").body(b"x");
    assert_eq!(packed.send().await.error().1, "unsupported_encoding");
    let document = served.get("/v1/openapi.json").await;
    assert_eq!(document.json()["openapi"], "3.1.0");
    assert_eq!(served.get("/v1/other").await.error().1, "no_such_path");
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_come_as_they_are_written_in_paths_and_parameters() {
    let served = Served::start().await;
    let long = "k".repeat(8 << 10);
    let long_target = format!("/v1/kv/{long}");
    let rows: [(&str, &[u8]); 12] = [
        ("/v1/kv/a%2Fb", b"a/b"),
        ("/v1/kv/a%2fc/d", b"a/c/d"),
        ("/v1/kv//lead//twice/", b"/lead//twice/"),
        ("/v1/kv/..", b".."),
        ("/v1/kv/x/../y/./z", b"x/../y/./z"),
        ("/v1/kv/%2e", b"."),
        ("/v1/kv/a+b%20c", b"a+b c"),
        ("/v1/kv/%00%FF%25", b"\0\xff%"),
        ("/v1/kv/%E4%B8%96", "世".as_bytes()),
        ("/v1/kv/a&b=c;d", b"a&b=c;d"),
        ("/v1/kv/?key64=Li4", b".."),
        (&long_target, long.as_bytes()),
    ];
    let client = served.client().await;
    for (target, key) in rows {
        served.put(target, target.as_bytes()).await;
        let value = client.get(key.to_vec()).await.unwrap();
        assert_eq!(value.as_deref(), Some(target.as_bytes()), "{target}");
        assert_eq!(served.get(target).await.body, target.as_bytes());
    }
    // What has no other name in a path, and each method with it.
    for (key64, key) in [("_w", &b"\xff"[..]), ("Lg", b"."), ("Ly8", b"//")] {
        let target = format!("/v1/kv/?key64={key64}");
        served.put(&target, b"1").await;
        assert_eq!(client.get(key.to_vec()).await.unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(served.get(&target).await.body, b"1");
        assert_eq!(served.ask("HEAD", &target).send().await.status, 200);
        let sum = served.ask("POST", &format!("{target}&increment=2")).send().await;
        assert_eq!(sum.text(), "3");
        assert_eq!(served.ask("DELETE", &target).send().await.status, 204);
        assert_eq!(client.get(key.to_vec()).await.unwrap(), None);
    }
    let too_long = format!("/v1/kv/{long}k");
    for target in
        ["/v1/kv/", "/v1/kv/?key64=", "/v1/kv/?key64=a", "/v1/kv/%4", "/v1/kv/%zz", &too_long]
    {
        for method in ["GET", "PUT", "DELETE"] {
            assert_eq!(served.ask(method, target).send().await.error(), invalid(), "{target}");
        }
    }
    for method in ["PUT", "DELETE", "POST"] {
        assert_eq!(served.ask(method, "/v1/kv").send().await.status, 405);
    }
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_are_decided_on_the_value_that_a_write_replaces() {
    let served = Served::start().await;
    let put = async |headers: &[(&str, &str)], value: &[u8]| {
        let mut ask = served.ask("PUT", "/v1/kv/a").body(value);
        headers.iter().for_each(|(name, value)| ask.headers.push((name, value)));
        ask.send().await
    };
    let failed = put(&[("if-match", "*")], b"0").await;
    assert_eq!(failed.error(), (412, "precondition_failed".into(), "no_effect".into()));
    assert_eq!(failed.header("etag"), None);
    let created = put(&[("if-none-match", "*")], b"1").await;
    let tag = created.header("etag").unwrap();
    assert_eq!(created.status, 204);
    let failed = put(&[("if-none-match", "*")], b"2").await;
    assert_eq!((failed.status, failed.header("etag")), (412, Some(tag)));
    let weak = format!("W/{tag}");
    assert_eq!(put(&[("if-match", &weak)], b"2").await.status, 412);
    assert_eq!(put(&[("if-none-match", &weak)], b"2").await.status, 412);
    assert_eq!(put(&[("if-match", "not a tag")], b"2").await.error(), invalid());
    assert_eq!(served.get("/v1/kv/a").await.body, b"1");
    let list = format!("\"x\", {tag}");
    let ttl = put(&[("if-match", &list), ("stele-ttl", "600")], b"2").await;
    let second = ttl.header("etag").unwrap();
    assert!(served.get("/v1/kv/a").await.header("stele-ttl").is_some(), "{ttl:?}");
    assert_eq!(put(&[("if-match", tag)], b"3").await.status, 412, "it was replaced");
    let read = served.ask("GET", "/v1/kv/a").with("if-none-match", second).send().await;
    assert_eq!((read.status, read.header("etag")), (304, Some(second)));
    let read = served.ask("GET", "/v1/kv/a").with("if-match", tag).send().await;
    assert_eq!(read.error().0, 412);
    let delete = async |tag: &str| {
        served.ask("DELETE", "/v1/kv/a").with("if-match", tag).send().await.status
    };
    assert_eq!((delete(tag).await, delete(second).await, delete("*").await), (412, 204, 412));
    assert_eq!(served.get("/v1/kv/a").await.status, 404);
    // A long value is not compared in the loop of its store.
    let long = vec![b'x'; 300 << 10];
    let long_tag = served.put("/v1/kv/a", &long).await;
    assert_eq!(put(&[("if-match", tag)], b"1").await.status, 412);
    assert_eq!(put(&[("if-none-match", &long_tag)], b"1").await.status, 412);
    assert_eq!(put(&[("if-match", &long_tag)], b"1").await.status, 204);
    assert_eq!(served.get("/v1/kv/a").await.body, b"1");
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_writers_with_the_same_condition_one_wins() {
    let served = Served::start().await;
    for (round, bytes) in [10, 100 << 10].into_iter().cycle().take(12).enumerate() {
        let mut value = vec![b'v'; bytes];
        value[0] = round as u8;
        let tag = served.put("/v1/kv/a", &value).await;
        let values: Vec<Vec<u8>> = (0..4).map(|writer| [&value[..], &[writer]].concat()).collect();
        let writes = values
            .iter()
            .map(|value| served.ask("PUT", "/v1/kv/a").with("if-match", &tag).body(value).send());
        let answers = futures_util::future::join_all(writes).await;
        let done: Vec<usize> = (0..4).filter(|writer| answers[*writer].status == 204).collect();
        let failed = answers.iter().filter(|answer| answer.status == 412).count();
        assert_eq!((done.len(), failed), (1, 3), "{answers:?}");
        assert_eq!(served.get("/v1/kv/a").await.body, values[done[0]]);
    }
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_expires_after_its_time_to_live_and_states_what_is_left() {
    let served = Served::start().await;
    let put = async |ttl: &str| {
        served.ask("PUT", "/v1/kv/a").with("stele-ttl", ttl).body(b"1").send().await
    };
    assert_eq!(put("600").await.status, 204);
    let left: u64 = served.get("/v1/kv/a").await.header("stele-ttl").unwrap().parse().unwrap();
    assert!((590..=600).contains(&left), "{left}");
    assert_eq!(put("2").await.status, 204);
    assert_eq!(served.get("/v1/kv/a").await.status, 200);
    let began = Instant::now();
    while served.get("/v1/kv/a").await.status == 200 {
        assert!(began.elapsed() < LIMIT);
        sleep(Duration::from_millis(100)).await;
    }
    for bad in ["0", "-1", "1.5", "never", ""] {
        assert_eq!(put(bad).await.error(), invalid(), "{bad}");
    }
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_increment_returns_the_sum_and_refuses_what_is_no_number() {
    let served = Served::start().await;
    let add = async |by: &str| served.ask("POST", &format!("/v1/kv/n?increment={by}")).send().await;
    assert_eq!(add("41").await.text(), "41");
    let sum = add("1").await;
    assert_eq!(
        (sum.text(), sum.header("content-type")),
        ("42".into(), Some("text/plain; charset=utf-8"))
    );
    let found = served.get("/v1/kv/n").await;
    assert_eq!((found.text(), found.header("etag")), ("42".into(), sum.header("etag")));
    assert_eq!(add("-50").await.text(), "-8");
    assert_eq!(add("-9223372036854775808").await.error().1, "overflow");
    for bad in ["", "1.5", "x", "9223372036854775808"] {
        assert_eq!(add(bad).await.error(), invalid(), "{bad}");
    }
    assert_eq!(served.ask("POST", "/v1/kv/n").send().await.error(), invalid());
    served.put("/v1/kv/n", b"text").await;
    assert_eq!(add("1").await.error(), (409, "not_a_number".into(), "no_effect".into()));
    served.node.stop().await;
}

/// Returns the keys of all pages of a list.
async fn listed(served: &Served, parameters: &str, limit: usize) -> Vec<String> {
    let (mut keys, mut after) = (Vec::new(), String::new());
    loop {
        let target = format!("/v1/kv?{parameters}&limit={limit}{after}");
        let page = served.get(&target).await;
        assert_eq!(page.status, 200, "{page:?}");
        let page = page.json();
        let pairs = page["pairs"].as_array().unwrap();
        assert!(pairs.len() <= limit);
        keys.extend(pairs.iter().map(|pair| pair["key"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return keys,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_over_several_regions_has_each_key_once_however_it_is_paged() {
    let served = Served::start().await;
    let keys: Vec<String> = (0..60).map(|n| format!("user/{n:02}")).collect();
    for key in &keys {
        served.put(&format!("/v1/kv/{key}"), key.as_bytes()).await;
    }
    served.put("/v1/kv/other", b"1").await;
    served.split(&["user/20", "user/40", "user/5"]).await;
    for limit in [1, 7, 20, 59, 60, 61, 1000] {
        assert_eq!(listed(&served, "prefix=user/", limit).await, keys, "pages of {limit}");
    }
    assert_eq!(listed(&served, "keys_only&prefix=user%2F", 9).await, keys);
    let range = "start=user/10&end=user/50";
    assert_eq!(listed(&served, range, 6).await, keys[10..50]);
    assert_eq!(listed(&served, "prefix=user/5&start=user/55", 6).await, keys[55..]);
    assert_eq!(listed(&served, "prefix=none", 6).await, Vec::<String>::new());
    assert_eq!(listed(&served, "", 50).await.len(), 61);
    let page = served.get("/v1/kv?prefix=user/0&limit=1").await.json();
    assert_eq!(page["pairs"], json!([{"key": "user/00", "value": "user/00"}]));
    let page = served.get("/v1/kv?prefix=user/0&limit=1&keys_only=true").await.json();
    assert_eq!(page["pairs"], json!([{"key": "user/00"}]));
    let next = page["next"].as_str().unwrap();
    let after = served.get(&format!("/v1/kv?start=user/58&after={next}")).await.json();
    assert_eq!(after["pairs"].as_array().unwrap().len(), 2, "the later one of both");
    for bad in
        ["limit=0", "limit=1001", "limit=x", "after=a", "keys_only=2", "prefix64=YR", "key64=YQ"]
    {
        assert_eq!(served.get(&format!("/v1/kv?{bad}")).await.error(), invalid(), "{bad}");
    }
    served.put("/v1/kv/%FF", &[255]).await;
    let page = served.get("/v1/kv?prefix64=_w").await.json();
    assert_eq!(page, json!({"pairs": [{"key64": "_w", "value64": "_w"}], "next": null}));
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_writes_and_then_reads_over_several_regions() {
    let served = Served::start().await;
    served.split(&["m"]).await;
    let batch = async |operations: Value| {
        let body = json!({ "operations": operations }).to_string();
        served.ask("POST", "/v1/batch").body(body.as_bytes()).send().await
    };
    served.put("/v1/kv/x", b"old").await;
    let answer = batch(json!([
        {"get": {"key": "a"}},
        {"put": {"key": "a", "value": "1", "ttl": 600}},
        {"put": {"key64": "_w", "value64": "_w"}},
        {"delete": {"key": "x"}},
        {"get": {"key64": "_w"}},
        {"get": {"key": "x"}},
    ]))
    .await;
    let results = json!([
        {"key": "a", "value": "1"}, {}, {}, {},
        {"key64": "_w", "value64": "_w"},
        {"key": "x", "value": null},
    ]);
    assert_eq!((answer.status, answer.json()), (200, json!({ "results": results })));
    assert!(served.get("/v1/kv/a").await.header("stele-ttl").is_some());
    assert_eq!(batch(json!([])).await.json(), json!({"results": []}));
    let refused = batch(json!([{"put": {"key": "a", "value": "2"}}, {"put": {"key": ""}}])).await;
    assert_eq!(refused.error(), invalid());
    assert_eq!(served.get("/v1/kv/a").await.text(), "1", "nothing was done");
    let many: Vec<Value> = (0..513).map(|_| json!({"get": {"key": "a"}})).collect();
    assert_eq!(batch(json!(many)).await.error(), invalid());
    let long = "x".repeat(1 << 20);
    let refused = batch(json!([{"put": {"key": "a", "value": long}}])).await;
    assert_eq!(refused.error().0, 413);
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_over_http_continues_from_its_last_event_id() {
    let served = Served::start().await;
    let watched = "/v1/watch?prefix=w/";
    let mut events = served.ask("GET", watched).stream().await;
    let first = events.id().await;
    served.put("/v1/kv/w/a", b"1").await;
    served.put("/v1/kv/other", b"1").await;
    let put = |key: &str, value: &str| ("put".to_owned(), json!({"key": key, "value": value}));
    assert_eq!(events.next().await, Some(put("w/a", "1")));
    let second = events.id().await;
    assert_ne!(first, second);
    drop(events);
    served.put("/v1/kv/w/a", b"2").await;
    served.ask("DELETE", "/v1/kv/w/a").send().await;
    let deleted = ("delete".to_owned(), json!({"key": "w/a"}));
    let resumed = served.ask("GET", watched).with("last-event-id", &second);
    let mut events = resumed.stream().await;
    assert_eq!(events.next().await, Some(put("w/a", "2")));
    assert_eq!(events.next().await, Some(deleted.clone()));
    // A parameter, and regions that were split meanwhile.
    served.split(&["w/m"]).await;
    served.put("/v1/kv/w/z", &[255]).await;
    let target = format!("{watched}&after={second}&resolved");
    let mut events = served.ask("GET", &target).stream().await;
    let mut found = BTreeSet::new();
    loop {
        let (name, data) = events.next().await.unwrap();
        found.insert((name.clone(), data.to_string()));
        if name == "resolved" && found.len() == 4 {
            break;
        }
    }
    let text = |(name, data): (String, Value)| (name, data.to_string());
    let last = ("put".to_owned(), json!({"key": "w/z", "value64": "_w"}));
    let resolved = ("resolved".to_owned(), json!({}));
    let wanted = [put("w/a", "2"), deleted, last, resolved].map(text);
    assert_eq!(found, BTreeSet::from(wanted));
    for (target, id) in [
        ("/v1/watch?prefix=other", &*second),
        (watched, "watch1.00"),
        ("/v1/watch?prefix=w/&family=lock", &*second),
        ("/v1/watch?start=b&end=a", ""),
    ] {
        let refused = served.ask("GET", target).with("last-event-id", id).send().await;
        assert_eq!(refused.error(), invalid(), "{target}");
    }
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_too_long_or_has_no_memory_is_refused_before_it_is_received() {
    let served = Served::start_with(16 << 20).await;
    // Only the headers are sent.
    for (bytes, code) in [(64 << 20 | 1, "too_large"), (10 << 20, "too_large")] {
        let length = bytes.to_string();
        let refused = served.ask("PUT", "/v1/kv/a").with("content-length", &length).send().await;
        assert_eq!(refused.error(), (413, code.to_owned(), "no_effect".to_owned()), "{bytes}");
    }
    let batch = served.ask("POST", "/v1/batch").with("content-length", "9000000").send().await;
    assert_eq!(batch.error().0, 413);
    assert_eq!(served.get("/v1/kv/a").await.status, 404);
    // A value of 2 MiB passes, and its memory comes back.
    let value = vec![7; 2 << 20];
    for _ in 0..8 {
        served.put("/v1/kv/a", &value).await;
        assert!(served.get("/v1/kv/a").await.body == value);
    }
    let began = Instant::now();
    let name = "stele_request_memory_bytes{use=\"requests\"} ";
    loop {
        let (_, text) = get(&served.address, "/metrics").await;
        let used = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        if used.parse::<u64>().unwrap() < 64 << 10 {
            break;
        }
        assert!(began.elapsed() < LIMIT, "{used} bytes are in use");
        sleep(Duration::from_millis(20)).await;
    }
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_family_of_redis_keys_is_read_over_http_and_never_written() {
    let served = Served::start().await;
    let client = served.client().await;
    let arguments = ["SET", "name", "value"].map(|word| word.into()).to_vec();
    let commands = vec![Command { database: 0, arguments }];
    let request = RunRequest { protocol: 2, commands, seed: 7, ..RunRequest::default() };
    let key = redis_key::header_key(0, b"name").slice(1..);
    client.run_redis(&key, request).await.unwrap();
    let page = served.get("/v1/kv?family=redis").await.json();
    let key64 = page["pairs"][0]["key64"].as_str().unwrap();
    let target = format!("/v1/kv/?family=redis&key64={key64}");
    let found = served.get(&target).await;
    assert!(found.body.ends_with(b"value"), "{found:?}");
    let batch = json!({"operations": [{"put": {"key64": key64, "value": "x"}}]}).to_string();
    let increment = format!("{target}&increment=1");
    for ask in [
        served.ask("PUT", &target).body(b"x"),
        served.ask("PUT", &target).with("if-match", "*").body(b"x"),
        served.ask("DELETE", &target),
        served.ask("POST", &increment),
        served.ask("POST", "/v1/batch?family=redis").body(batch.as_bytes()),
    ] {
        let refused = ask.send().await;
        assert_eq!(refused.error(), invalid());
        assert!(refused.text().contains("written by Redis commands only"));
    }
    assert_eq!(served.get(&target).await.body, found.body);
    // Families are apart.
    served.put("/v1/kv/a?family=lock", b"1").await;
    assert_eq!(served.get("/v1/kv/a").await.status, 404);
    assert_eq!(served.get("/v1/kv/a?family=lock").await.body, b"1");
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_and_names_of_other_hosts_are_refused() {
    let served = Served::start().await;
    served.put("/v1/kv/a", b"1").await;
    let foreign = (403, "foreign_origin".to_owned(), "no_effect".to_owned());
    for (name, value) in [("origin", "https://example.com"), ("origin", "null")] {
        for method in ["GET", "PUT", "DELETE"] {
            let refused = served.ask(method, "/v1/kv/a").with(name, value).send().await;
            assert_eq!(refused.error(), foreign, "{method} {value}");
        }
    }
    let rebound = served.ask("GET", "/v1/kv/a").with("host", "rebound.example").send().await;
    assert_eq!(rebound.error(), foreign);
    let own = format!("http://{}", served.address);
    assert_eq!(served.ask("GET", "/v1/kv/a").with("origin", &own).send().await.body, b"1");
    let preflight = served.ask("OPTIONS", "/v1/kv/a").with("origin", "https://example.com");
    let preflight = preflight.with("access-control-request-method", "PUT").send().await;
    assert_eq!(preflight.status, 403);
    assert!(!preflight.headers.iter().any(|(name, _)| name.starts_with("access-control")));
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_and_redis_commands_are_counted_in_the_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let redis_listen = free_addresses(1).remove(0);
    let config = config(&[dir.path().join("a")], &[]);
    let node = start(Config { redis_listen: redis_listen.clone(), ..config }).await;
    let address = node.ready.address.clone();
    until(&address, "/readyz", |status, _| status == 200).await;
    for (method, target) in [
        ("PUT", "/v1/kv/a"),
        ("GET", "/v1/kv/a"),
        ("GET", "/v1/kv/b"),
        ("GET", "/v1/kv"),
        ("PATCH", "/v1/batch"),
    ] {
        Ask::new(&address, method, target).send().await;
    }
    let mut stream = TcpStream::connect(&redis_listen).await.unwrap();
    stream.write_all(b"SET a 1\r\nHGET a f\r\nQUIT\r\n").await.unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).await.unwrap();
    assert!(replies.starts_with("+OK\r\n-WRONGTYPE "), "{replies}");
    let (_, body) = get(&address, "/metrics").await;
    for line in [
        "stele_http_requests_total{route=\"/v1/kv/{key}\",status=\"204\"} 1",
        "stele_http_requests_total{route=\"/v1/kv/{key}\",status=\"200\"} 1",
        "stele_http_requests_total{route=\"/v1/kv/{key}\",status=\"404\"} 1",
        "stele_http_requests_total{route=\"/v1/kv\",status=\"200\"} 1",
        "stele_http_requests_total{route=\"/v1/batch\",status=\"405\"} 1",
        "stele_redis_commands_total{command=\"hget\"} 1",
        "stele_redis_commands_total{command=\"set\"} 1",
        "stele_redis_errors_total{error=\"WRONGTYPE\"} 1",
        "stele_redis_connections_open ",
    ] {
        assert!(body.contains(line), "{line}: {body}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_makes_no_connection_to_itself_for_its_clients() {
    let served = Served::start().await;
    let accepted = async || -> u64 {
        let (_, body) = get(&served.address, "/metrics").await;
        let prefix = "stele_connections_total{outcome=\"accepted\"} ";
        let count = body.lines().find_map(|line| line.strip_prefix(prefix));
        count.unwrap_or_else(|| panic!("{body}")).parse().unwrap()
    };
    let before = accepted().await;
    served.put("/v1/kv/a", b"v").await;
    assert_eq!(served.get("/v1/kv/a").await.status, 200);
    // Those of the two calls, and of the last look.
    assert_eq!(accepted().await - before, 3);
    served.node.stop().await;
}
