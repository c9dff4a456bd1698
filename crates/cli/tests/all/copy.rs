//! Copies of regions of a node in a process of its own.

use crate::node_process::Node;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use stele_client::{Client, Copied, CopiedPair, PutPair, Ttl};
use stele_types::{ColumnFamily, KeyRange};

const LIMIT: Duration = Duration::from_secs(60);

pub(crate) type Pairs = BTreeMap<Bytes, (Bytes, u64)>;

/// Copies all pairs of a family, while `between` runs after each response. Returns also the number of parts.
pub(crate) async fn copied(
    client: &Client,
    family: ColumnFamily,
    mut between: impl AsyncFnMut(usize),
) -> (Pairs, usize) {
    let mut copy = client.family(family).copy(KeyRange::all());
    let (mut all, mut parts, mut seen, mut next) = (Pairs::new(), 0, 0, Bytes::new());
    let mut last: Option<Bytes> = None;
    while let Some(copied) = copy.next().await.unwrap() {
        match copied {
            Copied::Begin { start, index, .. } => {
                assert_eq!(start, next);
                assert!(index > 5, "the index of the view");
            }
            Copied::Pairs(pairs) => {
                for CopiedPair { key, value, expires_at_s } in pairs {
                    assert!(last.as_ref().is_none_or(|last| *last < key), "pairs ascend");
                    last = Some(key.clone());
                    all.insert(key, (value, expires_at_s));
                }
                between(seen).await;
                seen += 1;
            }
            Copied::End { end } => {
                parts += usize::from(end.is_some());
                next = end.unwrap_or(next);
            }
        }
    }
    assert!(next.is_empty());
    (all, parts)
}

fn key(number: u32) -> Bytes {
    Bytes::from(format!("key{number:06}"))
}

/// Value of a size that makes pairs of all kinds: in the index, in memory, above a page.
fn value(number: u32, version: u8) -> Bytes {
    let bytes = match number % 50 {
        0 => 200_000,
        1..=9 => 20,
        _ => 1_500,
    };
    Bytes::from(vec![version; bytes])
}

async fn put_all(client: &Client, numbers: impl Iterator<Item = u32>, version: u8) {
    let pairs: Vec<PutPair> =
        numbers.map(|number| PutPair::new(key(number), value(number, version))).collect();
    client.batch_put(pairs).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_one_view_of_each_region_in_every_family_while_others_write_and_split() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("node");
    let node = Node::start(&store, "127.0.0.1:0", &["--tick-ms", "20"]);
    let client = Client::connect(&[&node.address]).await.unwrap();
    put_all(&client, 0..1_000, 1).await;
    client.put_with_ttl("ttl", "soon", Ttl::Seconds(1_000)).await.unwrap();
    client.family(ColumnFamily::Lock).put("lock", "other").await.unwrap();
    let (before, parts) = copied(&client, ColumnFamily::Default, async |_| ()).await;
    assert_eq!((before.len(), parts), (1_001, 1));
    assert!((0..1_000).all(|number| before[&key(number)] == (value(number, 1), 0)));
    let expires_at_s = before[&b"ttl"[..]].1;
    assert!(expires_at_s > 1_700_000_000, "{expires_at_s} is not absolute");
    let (locks, _) = copied(&client, ColumnFamily::Lock, async |_| ()).await;
    assert_eq!(locks.into_keys().collect::<Vec<_>>(), ["lock"]);
    assert!(copied(&client, ColumnFamily::Write, async |_| ()).await.0.is_empty());
    // All that is changed after the view was taken is not in it.
    let change = async |seen| {
        if seen == 0 {
            put_all(&client, 500..1_200, 2).await;
            let region = client.locate(key(0)).await.unwrap().0;
            client.control().split(region, vec![key(600)]).await.unwrap();
        }
    };
    assert_eq!(copied(&client, ColumnFamily::Default, change).await, (before, 1));
    let began = Instant::now();
    let after = loop {
        let (after, parts) = copied(&client, ColumnFamily::Default, async |_| ()).await;
        assert!((500..1_200).all(|number| after[&key(number)] == (value(number, 2), 0)));
        if parts == 2 {
            break after;
        }
        assert!(began.elapsed() < LIMIT, "the split is missing");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    // The same from the files of a store that was stopped.
    let address = node.address.clone();
    node.stop();
    let node = Node::start(&store, &address, &["--tick-ms", "20"]);
    assert_eq!(copied(&client, ColumnFamily::Default, async |_| ()).await, (after, 2));
    node.stop();
}
