//! Redis commands on names of several regions, through the listener of a node.

use crate::common::{LIMIT, config, free_addresses, start};
use bytes::Bytes;
use std::time::{Duration, Instant};
use stele_client::redis_messages::StepRequest;
use stele_client::{Client, Options};
use stele_redis::transaction::{self, KeyChange, NewHeader, Step, StepAnswer, TransactionId};
use stele_redis::{Header, Kind};
use stele_server::config::Config;
use stele_server::node::Node;
use stele_types::{CommandBuilder, redis_key};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct Served {
    node: Node,
    client: Client,
    redis: String,
}

fn header_key(name: &str) -> Bytes {
    redis_key::header_key(0, name.as_bytes())
}

/// Starts a node of which names from `h` on, and from `p` on, are in regions of their own.
async fn served(dir: &tempfile::TempDir) -> Served {
    let redis = free_addresses(1).remove(0);
    let config = Config { redis_listen: redis.clone(), ..config(&[dir.path().join("a")], &[]) };
    let node = start(config).await;
    let addresses = [node.ready.address.clone()];
    let options = Options { timeout: LIMIT, ..Options::default() };
    let client = Client::connect_with(&addresses, options).await.unwrap();
    let served = Served { node, client, redis };
    assert_eq!(served.ask(&["SET a 1", "SET h 1", "SET p 1"]).await, "+OK|+OK|+OK|");
    for name in ["h", "p"] {
        served.split(name).await;
    }
    served
}

impl Served {
    async fn region_of(&self, name: &str) -> u64 {
        let (region, _) = self.client.locate(header_key(name).slice(1..)).await.unwrap();
        region.0
    }

    async fn split(&self, name: &str) {
        let key = redis_key::border(&header_key(name).slice(1..));
        let started = Instant::now();
        let (region, _) = self.client.locate(key.clone()).await.unwrap();
        while self.client.control().split(region, vec![key.clone()]).await.is_err() {
            assert!(started.elapsed() < LIMIT);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        while self.region_of(name).await == region.0 {
            // The client learns of the split from the next refusal.
            let family = self.client.family(stele_types::ColumnFamily::Redis);
            let _ = family.get(header_key(name).slice(1..)).await;
            assert!(started.elapsed() < LIMIT);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Sends inline requests on a connection of its own; returns the replies with `|` for ends of lines.
    async fn ask(&self, lines: &[&str]) -> String {
        let mut stream = TcpStream::connect(&self.redis).await.unwrap();
        let text = lines.iter().map(|line| format!("{line}\r\n")).collect::<String>();
        stream.write_all(format!("{text}QUIT\r\n").as_bytes()).await.unwrap();
        let mut replies = Vec::new();
        stream.read_to_end(&mut replies).await.unwrap();
        let replies = String::from_utf8(replies).unwrap().replace("\r\n", "|");
        replies.strip_suffix("+OK|").unwrap_or_else(|| panic!("{replies}")).to_owned()
    }

    async fn step(&self, key: &Bytes, step: Step) -> StepAnswer {
        let step = transaction::StepRequest::Step(step).encode();
        let request = StepRequest { context: None, step };
        let answer = self.client.step_redis(&key.slice(1..), request).await.unwrap().answer;
        StepAnswer::decode(&answer).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_on_names_of_several_regions_take_effect_together() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let rows: [(&[&str], &str); 9] = [
        (&["MSET a 2 h 3 p 4", "MGET a h p"], "+OK|*3|$1|2|$1|3|$1|4|"),
        (&["MSETNX b 1 h 9", "EXISTS b", "GET h"], ":0|:0|$1|3|"),
        (&["RENAME a q", "GET q", "EXISTS a"], "+OK|$1|2|:0|"),
        (&["MULTI", "INCR h", "INCR q", "EXEC"], "+OK|+QUEUED|+QUEUED|*2|:4|:3|"),
        (&["HSET b f 1 g 2", "COPY b i", "HGETALL i"], ":2|:1|*4|$1|f|$1|1|$1|g|$1|2|"),
        (
            &["MULTI", "HINCRBY b f 1", "HDEL i g", "SADD s x", "EXEC", "HGETALL b", "HGETALL i"],
            "+OK|+QUEUED|+QUEUED|+QUEUED|*3|:2|:1|:1|*4|$1|f|$1|2|$1|g|$1|2|*2|$1|f|$1|1|",
        ),
        (
            &[
                "WATCH h q",
                "MULTI",
                "SET a 1",
                "EXEC",
                "WATCH h q",
                "SET q 0",
                "MULTI",
                "SET a 2",
                "EXEC",
            ],
            "+OK|+OK|+QUEUED|*1|+OK|+OK|+OK|+OK|+QUEUED|*-1|",
        ),
        (&["MULTI", "INCR a", "LPUSH h x", "EXEC"], "+OK|+QUEUED|-ERR unknown"),
        (&["MULTI", "INCR a", "HGET h f", "EXEC", "GET a"], "+OK|+QUEUED|+QUEUED|*2|:2|-WRONGTYPE"),
    ];
    for (lines, expected) in rows {
        let replies = served.ask(lines).await;
        assert!(replies.starts_with(expected), "{lines:?}: {replies}");
    }
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_between_regions_keep_the_sum() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    served.ask(&["MSET a 100 h 100 p 100"]).await;
    let names = ["a", "h", "p"];
    let transfers = (0..6_usize).map(|client| {
        let served = &served;
        async move {
            let mut done = 0;
            for turn in 0..15 {
                let (from, to) = (names[(client + turn) % 3], names[(client + 2 * turn + 1) % 3]);
                let (take, give) = (format!("DECRBY {from} 1"), format!("INCRBY {to} 1"));
                let replies =
                    served.ask(&["MULTI", &take, &give, "INCR p", "DECR a", "EXEC"]).await;
                done += usize::from(replies.contains("*4|"));
                let all = served.ask(&["MULTI", "MGET a h p", "EXEC"]).await;
                let Some((_, values)) = all.split_once("*1|*3|") else { continue };
                let values = values.split('|').skip(1).step_by(2);
                let sum: i64 = values.map(|value| value.parse::<i64>().unwrap()).sum();
                assert_eq!(sum, 300, "{all}");
            }
            done
        }
    });
    let done: usize = futures_util::future::join_all(transfers).await.into_iter().sum();
    assert!(done > 30, "{done} of 90 transfers");
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn intents_of_a_coordinator_that_stopped_do_not_block_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let header = Header { kind: Kind::String, stamp: 1, change: 2, count: 0, expires_at_ms: 0 };
    for (number, is_committed) in [(1, false), (2, true)] {
        let transaction = TransactionId(number);
        let (home, other) = (header_key("{a}x"), header_key("q"));
        let record_key = redis_key::record_key(&home, number);
        let header_keys = vec![home.clone(), other.clone()];
        let create = Step::Create { record_key: record_key.clone(), header_keys };
        assert_eq!(served.step(&home, create).await, StepAnswer::Done);
        let new = NewHeader::Header(header.encode(b"new"));
        let members = Vec::new();
        let change = KeyChange { header_key: other.clone(), expected: None, new, members };
        let (record, changes) = (record_key.clone(), vec![change]);
        let intend = Step::Intend { transaction, record_key: record, changes };
        assert_eq!(served.step(&other, intend).await, StepAnswer::Done);
        let mut expected = "$-1|";
        if is_committed {
            let (expected_home, operations) = (vec![(home.clone(), None)], CommandBuilder::new());
            let commit = Step::Commit { record_key, expected: expected_home, operations };
            assert_eq!(served.step(&home, commit).await, StepAnswer::Done);
            expected = "$3|new|";
        }
        let started = Instant::now();
        // A write without a condition waits for the decision too.
        assert_eq!(
            served.ask(&["GET q", "SET q mine", "GET q"]).await,
            format!("{expected}+OK|$4|mine|")
        );
        let waited = started.elapsed();
        assert_eq!(waited > Duration::from_secs(4), !is_committed, "{waited:?}");
        served.ask(&["DEL q"]).await;
    }
    served.node.stop().await;
}
