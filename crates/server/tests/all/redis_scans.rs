//! Scans of a key space and of large collections, from clients of the Redis protocol to whole nodes.

use crate::common::{LIMIT, config, free_addresses, start};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use stele_client::{Client, Options};
use stele_server::config::Config;
use stele_server::node::Node;
use stele_types::{ColumnFamily, RegionId, redis_key};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    /// Status, error or number, with its first byte.
    Line(String),
    Bulk(String),
    Null,
    Array(Vec<Value>),
}

impl Value {
    fn text(&self) -> &str {
        match self {
            Self::Line(text) | Self::Bulk(text) => text,
            other => panic!("{other:?} has no text"),
        }
    }

    fn texts(&self) -> Vec<String> {
        match self {
            Self::Array(values) => values.iter().map(|value| value.text().to_owned()).collect(),
            other => panic!("{other:?} is no array"),
        }
    }
}

/// Connection of the Redis protocol.
struct Redis(BufReader<TcpStream>);

impl Redis {
    async fn connect(address: &str) -> Self {
        Self(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        line.trim_end().to_owned()
    }

    async fn value(&mut self) -> Value {
        let line = self.line().await;
        let length = || line[1..].parse::<i64>().unwrap();
        match &line[..1] {
            "$" if length() < 0 => Value::Null,
            "$" => Value::Bulk(self.bulk(length() as usize).await),
            "*" => {
                let mut values = Vec::new();
                for _ in 0..length() {
                    values.push(Box::pin(self.value()).await);
                }
                Value::Array(values)
            }
            _ => Value::Line(line),
        }
    }

    async fn bulk(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).await.unwrap();
        bytes.truncate(length);
        String::from_utf8(bytes).unwrap()
    }

    /// Sends a command; tries again while the region has no leader.
    async fn ask(&mut self, command: &str) -> Value {
        let started = Instant::now();
        loop {
            self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
            let value = self.value().await;
            match &value {
                Value::Line(text) if text.starts_with("-TRYAGAIN") && started.elapsed() < LIMIT => {
                }
                _ => return value,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn check(&mut self, rows: &[(&str, &str)]) {
        for (command, expected) in rows {
            let value = self.ask(command).await;
            assert!(value.text().starts_with(expected), "{command}: {value:?}");
        }
    }

    /// Returns one page of a scan: the cursor, and what was found.
    async fn scan(&mut self, command: &str) -> (String, Vec<String>) {
        match self.ask(command).await {
            Value::Array(parts) if parts.len() == 2 => {
                (parts[0].text().to_owned(), parts[1].texts())
            }
            other => panic!("{command}: {other:?}"),
        }
    }

    /// Returns what a whole SCAN finds, and the number of its pages.
    async fn scan_all(&mut self, options: &str) -> (Vec<String>, usize) {
        let (mut cursor, mut found, mut pages) = ("0".to_owned(), Vec::new(), 0);
        loop {
            let page;
            (cursor, page) = self.scan(&format!("SCAN {cursor} {options}")).await;
            found.extend(page);
            pages += 1;
            if cursor == "0" {
                return (found, pages);
            }
        }
    }
}

fn with_redis(dir: &Path, redis_flush: bool, join: &[String]) -> (Config, String) {
    let redis_listen = free_addresses(1).remove(0);
    let config = config(&[dir.to_owned()], join);
    (Config { redis_listen: redis_listen.clone(), redis_flush, ..config }, redis_listen)
}

async fn client(node: &Node) -> Client {
    let options = Options { timeout: LIMIT, ..Options::default() };
    Client::connect_with(std::slice::from_ref(&node.ready.address), options).await.unwrap()
}

/// Splits the region of a name at the name.
async fn split(client: &Client, name: &str) {
    let key = redis_key::border(&redis_key::header_key(0, name.as_bytes()).slice(1..));
    let (region, _): (RegionId, _) = client.locate(key.clone()).await.unwrap();
    let started = Instant::now();
    while let Err(refused) = client.control().split(region, vec![key.clone()]).await {
        assert!(started.elapsed() < LIMIT, "{refused}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    loop {
        // The client learns of the split from the next refusal.
        let _ = client.family(ColumnFamily::Redis).get(key.clone()).await;
        if client.locate(key.clone()).await.unwrap().0 != region {
            return;
        }
        assert!(started.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn set(names: &[String]) -> BTreeSet<String> {
    names.iter().cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_returns_each_name_although_regions_are_split() {
    let dir = tempfile::tempdir().unwrap();
    let (config, address) = with_redis(&dir.path().join("a"), false, &[]);
    let node = start(config).await;
    let (client, mut redis) = (client(&node).await, Redis::connect(&address).await);
    let mut expected = BTreeSet::new();
    for number in 0..300 {
        let name = match number % 3 {
            0 => format!("n:{number:03}"),
            1 => format!("{{t{}}}:{number:03}", number % 7),
            _ => format!("o:{number:03}"),
        };
        redis.check(&[(&format!("SET {name} x"), "+OK")]).await;
        expected.insert(name);
    }
    // Splits happen in front of the scan, and behind it.
    let splits = ["n:150", "{t3}", "n:060", "o:200", "{t1}"];
    let (mut cursor, mut found, mut page) = ("0".to_owned(), Vec::new(), 0);
    loop {
        let names;
        (cursor, names) = redis.scan(&format!("SCAN {cursor} COUNT 20")).await;
        found.extend(names);
        if cursor == "0" {
            break;
        }
        if let Some(name) = splits.get(page) {
            split(&client, name).await;
        }
        page += 1;
    }
    assert_eq!(set(&found), expected);
    assert_eq!(found.len(), expected.len(), "no name twice, as none changed");
    // Several regions now.
    let (found, pages) = redis.scan_all("COUNT 7").await;
    assert_eq!((found.len(), set(&found)), (300, expected.clone()));
    assert!(pages >= 43, "{pages}");
    for (pattern, count) in
        [("n:*", 100), ("{t3}*", 14), ("{t*", 100), ("*", 300), ("?:1[0-4]*", 33), ("n:000", 1)]
    {
        let (found, _) = redis.scan_all(&format!("MATCH {pattern} COUNT 50")).await;
        let mut keys = redis.ask(&format!("KEYS {pattern}")).await.texts();
        keys.sort();
        assert_eq!(set(&found).into_iter().collect::<Vec<_>>(), keys, "{pattern}");
        let matching = keys.len();
        assert!(matching == count || pattern.starts_with('?'), "{pattern}: {matching}");
    }
    redis.check(&[("DBSIZE", ":300"), ("SELECT 1", "+OK"), ("DBSIZE", ":0")]).await;
    assert_eq!(redis.ask("RANDOMKEY").await, Value::Null);
    redis.check(&[("SELECT 0", "+OK")]).await;
    let mut chosen = BTreeSet::new();
    for _ in 0..200 {
        chosen.insert(redis.ask("RANDOMKEY").await.text().to_owned());
    }
    assert!(chosen.is_subset(&expected) && chosen.len() > 60, "{} names", chosen.len());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_see_types_and_no_expired_names() {
    let dir = tempfile::tempdir().unwrap();
    let (config, address) = with_redis(&dir.path().join("a"), false, &[]);
    let node = start(config).await;
    let mut redis = Redis::connect(&address).await;
    redis
        .check(&[
            ("SET string x", "+OK"),
            ("HSET hash f v", ":1"),
            ("SADD set m", ":1"),
            ("SET brief x PX 300", "+OK"),
        ])
        .await;
    tokio::time::sleep(Duration::from_millis(310)).await;
    redis.check(&[("DBSIZE", ":3")]).await;
    assert_eq!(redis.ask("GET brief").await, Value::Null);
    assert_eq!(redis.scan_all("").await.0, ["hash", "set", "string"]);
    assert_eq!(redis.scan_all("TYPE hash").await.0, ["hash"]);
    assert_eq!(redis.scan_all("TYPE STRING").await.0, ["string"]);
    assert!(redis.scan_all("TYPE zset").await.0.is_empty());
    for (command, expected) in [
        ("SCAN x", "-ERR invalid cursor"),
        ("SCAN 0 COUNT 0", "-ERR syntax error"),
        ("SCAN 12345", "-ERR the cursor is not known"),
        ("HSCAN set 0", "-WRONGTYPE"),
        ("MULTI", "+OK"),
        ("SCAN 0", "-ERR 'scan' is not executed in a transaction"),
        ("EXEC", "-EXECABORT"),
        ("DBSIZE", ":3"),
    ] {
        redis.check(&[(command, expected)]).await;
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_is_refused_without_the_setting() {
    let dir = tempfile::tempdir().unwrap();
    let (config, address) = with_redis(&dir.path().join("a"), false, &[]);
    let node = start(config).await;
    let mut redis = Redis::connect(&address).await;
    let rows = [
        ("SET a 1", "+OK"),
        ("FLUSHDB", "-ERR 'flushdb' deletes all keys of Redis clients"),
        ("FLUSHALL ASYNC", "-ERR 'flushall' deletes all keys of Redis clients"),
        ("FLUSHALL now", "-ERR syntax error"),
        ("DBSIZE", ":1"),
    ];
    redis.check(&rows).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_more_than_100_000_keys_is_not_listed_but_scanned() {
    let dir = tempfile::tempdir().unwrap();
    let (config, address) = with_redis(&dir.path().join("a"), false, &[]);
    let node = start(config).await;
    let mut redis = Redis::connect(&address).await;
    for thousand in 0..100 {
        let pairs: Vec<String> = (0..1000).map(|one| format!("k{thousand}:{one} x")).collect();
        redis.check(&[(&format!("MSET {}", pairs.join(" ")), "+OK")]).await;
    }
    redis.check(&[("DBSIZE", ":100000"), ("SET one x", "+OK")]).await;
    for command in ["DBSIZE", "KEYS *"] {
        let refused = redis.ask(command).await;
        assert!(refused.text().starts_with("-ERR more than 100000 keys"), "{refused:?}");
        assert!(refused.text().ends_with("Use SCAN"), "{refused:?}");
    }
    assert_eq!(redis.ask("KEYS k7:1*").await.texts().len(), 111);
    let (found, pages) = redis.scan_all("COUNT 1000 MATCH k1*").await;
    assert_eq!((found.len(), pages), (11_000, 12));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_scanned_page_by_page() {
    let dir = tempfile::tempdir().unwrap();
    let (config, address) = with_redis(&dir.path().join("a"), false, &[]);
    let node = start(config).await;
    let mut redis = Redis::connect(&address).await;
    redis.check(&[("HSET small f v g w", ":2")]).await;
    let (cursor, found) = redis.scan("HSCAN small 0 COUNT 1").await;
    assert_eq!((&cursor[..], &found.join(" ")[..]), ("0", "f v g w"));
    assert_eq!(redis.scan("HSCAN small 0 NOVALUES MATCH g*").await.1, ["g"]);
    assert_eq!(redis.scan("SSCAN missing 0").await, ("0".to_owned(), Vec::new()));
    for hundred in 0..7 {
        let members: Vec<String> = (0..100).map(|one| format!("m{hundred}{one:02}")).collect();
        redis.check(&[(&format!("SADD large {}", members.join(" ")), ":100")]).await;
    }
    let (mut cursor, mut found, mut pages) = ("0".to_owned(), BTreeSet::new(), 0);
    loop {
        let members;
        (cursor, members) = redis.scan(&format!("SSCAN large {cursor} COUNT 100")).await;
        found.extend(members);
        pages += 1;
        if cursor == "0" {
            break;
        }
    }
    assert_eq!((found.len(), pages), (700, 8));
    // The cursor of another name, and of names, is not one of this name.
    let (cursor, _) = redis.scan("SSCAN large 0").await;
    let refused = "-ERR the cursor is not known";
    redis.check(&[(&format!("SSCAN other {cursor}"), refused)]).await;
    redis.check(&[(&format!("SCAN {cursor}"), refused)]).await;
    redis.check(&[("DEL large", ":1"), ("SADD large x", ":1")]).await;
    assert_eq!(redis.scan(&format!("SSCAN large {cursor}")).await, ("0".to_owned(), Vec::new()));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flushdb_deletes_one_database_and_no_other_key() {
    let dir = tempfile::tempdir().unwrap();
    let (config, address) = with_redis(&dir.path().join("a"), true, &[]);
    let node = start(config).await;
    let (client, mut redis) = (client(&node).await, Redis::connect(&address).await);
    let raw_keys: Vec<Bytes> =
        [0xd0u8, 0xd1, 0xe0].map(|byte| Bytes::from(vec![byte, 0, 1])).into();
    for key in &raw_keys {
        client.put(key.clone(), "raw").await.unwrap();
    }
    let setup = [("SET a 1", "+OK"), ("HSET {t}h f v", ":1"), ("SET z 1", "+OK")];
    redis.check(&setup).await;
    redis.check(&[("SELECT 1", "+OK"), ("SET other 1", "+OK"), ("SELECT 0", "+OK")]).await;
    split(&client, "m").await;
    split(&client, "{s}").await;
    redis.check(&[("DBSIZE", ":3"), ("WATCH a", "+OK"), ("FLUSHDB ASYNC", "+OK")]).await;
    redis.check(&[("DBSIZE", ":0"), ("MULTI", "+OK"), ("SET a 2", "+QUEUED")]).await;
    // The reply of a watched transaction that was not executed.
    let exec = redis.ask("EXEC").await;
    assert!(matches!(exec, Value::Array(ref values) if values.is_empty()), "{exec:?}");
    redis.check(&[("EXISTS a", ":0"), ("SELECT 1", "+OK"), ("DBSIZE", ":1")]).await;
    redis.check(&[("SELECT 0", "+OK"), ("SET a 1", "+OK"), ("FLUSHALL", "+OK")]).await;
    redis.check(&[("DBSIZE", ":0"), ("SELECT 1", "+OK"), ("DBSIZE", ":0")]).await;
    for key in raw_keys {
        assert_eq!(client.get(key).await.unwrap().unwrap(), "raw");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_continues_through_another_node_and_begins_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (config, first_address) = with_redis(&dir.path().join("a"), false, &[]);
    let first = start(config).await;
    let join = [first.ready.address.clone()];
    let (config, second_address) = with_redis(&dir.path().join("b"), false, &join);
    let second = start(config.clone()).await;
    let mut redis = [Redis::connect(&first_address).await, Redis::connect(&second_address).await];
    let mut expected = BTreeSet::new();
    for number in 0..50 {
        redis[0].check(&[(&format!("SET n{number} x"), "+OK")]).await;
        expected.insert(format!("n{number}"));
    }
    let (mut cursor, mut found, mut page) = ("0".to_owned(), Vec::new(), 0);
    loop {
        let names;
        let command = format!("SCAN {cursor} COUNT 4");
        (cursor, names) = redis[page % 2].scan(&command).await;
        found.extend(names);
        page += 1;
        if cursor == "0" {
            break;
        }
    }
    assert_eq!((found.len(), set(&found)), (50, expected));
    let (cursor, _) = redis[1].scan("SCAN 0 COUNT 4").await;
    assert_eq!(redis[0].scan(&format!("SCAN {cursor} COUNT 4")).await.1.len(), 4);
    second.stop().await;
    let second = start(config).await;
    let started = Instant::now();
    loop {
        let refused = redis[0].ask(&format!("SCAN {cursor}")).await;
        if refused.text().starts_with("-ERR the cursor is not known") {
            break;
        }
        assert!(started.elapsed() < LIMIT, "{refused:?}");
    }
    second.stop().await;
    first.stop().await;
}
