//! Watches of the fake cluster: where they begin, what changes of regions and errors lead to, and how they end.

use crate::fake::{Fake, error};
use std::collections::BTreeMap;
use std::time::Duration;
use stele_client::{Client, OldValue, Options, Token, Watch, WatchEvent, WatchFrom, WatchOptions};
use stele_proto::errorpb;
use stele_types::{ColumnFamily, Error, KeyRange};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

async fn started() -> (Fake, Client) {
    let fake = Fake::start(3);
    let timeout = Duration::from_secs(5);
    let options = Options { timeout, repeat_undetermined: true, ..Options::default() };
    let client = Client::connect_with(&fake.addresses(), options).await.unwrap();
    (fake, client)
}

async fn next(watch: &mut Watch) -> WatchEvent {
    timeout(PATIENCE, watch.next()).await.expect("no event").expect("an end").unwrap()
}

fn put(key: &'static str, value: &'static str) -> WatchEvent {
    WatchEvent::Put {
        key: key.into(),
        value: value.into(),
        expires_at_s: 0,
        old: OldValue::Unknown,
    }
}

/// Returns the next events, in an order that does not depend on which region is read first.
async fn events(watch: &mut Watch, count: usize) -> BTreeMap<Vec<u8>, Vec<WatchEvent>> {
    let mut events: BTreeMap<Vec<u8>, Vec<WatchEvent>> = BTreeMap::new();
    for _ in 0..count {
        let event = next(watch).await;
        let (WatchEvent::Put { key, .. } | WatchEvent::Delete { key, .. }) = &event else {
            panic!("{event:?}");
        };
        events.entry(key.to_vec()).or_default().push(event);
    }
    events
}

#[tokio::test]
async fn a_watch_from_now_returns_what_is_written_after_it_was_made() {
    let (fake, client) = started().await;
    fake.state().split("m", 11);
    client.put("a", "before").await.unwrap();
    let mut watch = client.watch(KeyRange::prefix(b""), WatchFrom::Now).await.unwrap();
    client.put("a", "1").await.unwrap();
    assert_eq!(next(&mut watch).await, put("a", "1"));
    client.delete("a").await.unwrap();
    assert_eq!(
        next(&mut watch).await,
        WatchEvent::Delete { key: "a".into(), old: OldValue::Unknown }
    );
    client.put("z", "2").await.unwrap();
    assert_eq!(next(&mut watch).await, put("z", "2"));
    client.delete_range(KeyRange::new("n", "p")).await.unwrap();
    let range = WatchEvent::DeletedRange { start: "n".into(), end: "p".into() };
    assert_eq!(next(&mut watch).await, range);
}

#[tokio::test]
async fn keys_are_followed_through_splits_merges_and_leaders() {
    let (fake, client) = started().await;
    let mut watch = client.watch(KeyRange::all(), WatchFrom::Now).await.unwrap();
    let mut expected: BTreeMap<Vec<u8>, Vec<WatchEvent>> = BTreeMap::new();
    for (round, value) in ["1", "2", "3", "4", "5"].into_iter().enumerate() {
        for key in ["a", "h", "p", "x"] {
            client.put(key, value).await.unwrap();
            expected.entry(key.into()).or_default().push(put(key, value));
        }
        let mut state = fake.state();
        match round {
            0 => state.split("g", 11),
            1 => state.split("p", 12),
            2 => state.merge("h"),
            _ => state.leaders.values_mut().for_each(|leader| *leader = 1 + *leader % 3),
        }
    }
    assert_eq!(events(&mut watch, 20).await, expected);
}

#[tokio::test]
async fn a_merge_into_a_region_that_is_not_watched_is_found() {
    let (fake, client) = started().await;
    fake.state().split("m", 11);
    let mut watch = client.watch(KeyRange::new("n", "q"), WatchFrom::Now).await.unwrap();
    client.put("o", "1").await.unwrap();
    client.put("a", "1").await.unwrap();
    fake.state().merge("o");
    client.put("o", "2").await.unwrap();
    assert_eq!(next(&mut watch).await, put("o", "1"));
    assert_eq!(next(&mut watch).await, put("o", "2"));
    client.put("o", "3").await.unwrap();
    assert_eq!(next(&mut watch).await, put("o", "3"));
}

#[tokio::test]
async fn a_token_continues_without_a_gap() {
    let (fake, client) = started().await;
    let mut watch = client.watch(KeyRange::all(), WatchFrom::Now).await.unwrap();
    client.put("a", "1").await.unwrap();
    assert_eq!(next(&mut watch).await, put("a", "1"));
    let text = watch.token().unwrap().to_string();
    drop(watch);
    client.put("a", "2").await.unwrap();
    fake.state().split("m", 11);
    client.put("z", "3").await.unwrap();
    let token: Token = text.parse().unwrap();
    let again = |range, client: Client| {
        let from = WatchFrom::Token(text.parse().unwrap());
        async move { client.watch(range, from).await }
    };
    let mut watch = client.watch(KeyRange::all(), WatchFrom::Token(token)).await.unwrap();
    let seen = events(&mut watch, 2).await;
    assert_eq!(seen[&b"a"[..]], [put("a", "2")]);
    assert_eq!(seen[&b"z"[..]], [put("z", "3")]);
    for (range, client, what) in [
        (KeyRange::new("a", ""), client.clone(), "range"),
        (KeyRange::all(), client.family(ColumnFamily::Lock), "family"),
    ] {
        let refused = again(range, client).await.map(|_| ()).unwrap_err();
        assert!(matches!(&refused, Error::Invalid(text) if text.contains(what)), "{refused}");
    }
    assert!(client.watch(KeyRange::new("b", "a"), WatchFrom::Now).await.is_err());
}

#[tokio::test]
async fn entries_that_no_store_has_end_a_watch_with_the_remedy() {
    let (fake, client) = started().await;
    let watch = client.watch(KeyRange::all(), WatchFrom::Now).await.unwrap();
    let token = watch.token().unwrap();
    drop(watch);
    client.put("a", "1").await.unwrap();
    client.put("a", "2").await.unwrap();
    fake.state().logs.get_mut(&2).unwrap().lost = 1;
    let mut watch = client.watch(KeyRange::all(), WatchFrom::Token(token)).await.unwrap();
    let ended = timeout(PATIENCE, watch.next()).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(ended, Error::TooOld(_)), "{ended}");
    assert!(ended.to_string().contains("copy the data"), "{ended}");
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn region_errors_and_lost_nodes_lead_to_other_replicas() {
    let (mut fake, client) = started().await;
    let mut watch = client.watch(KeyRange::all(), WatchFrom::Now).await.unwrap();
    for (value, refused) in [
        ("1", error(|e| e.not_leader = Some(errorpb::NotLeader::default()))),
        ("2", error(|e| e.region_not_found = Some(errorpb::RegionNotFound::default()))),
        ("3", error(|e| e.server_is_busy = Some(errorpb::ServerIsBusy::default()))),
        ("4", error(|e| e.read_index_not_ready = Some(errorpb::ReadIndexNotReady::default()))),
    ] {
        client.put("a", value).await.unwrap();
        fake.state().unfollowed.extend([refused.clone(), refused]);
        assert_eq!(next(&mut watch).await, put("a", value));
    }
    fake.kill(0);
    fake.state().leaders.insert(2, 2);
    client.put("a", "5").await.unwrap();
    assert_eq!(next(&mut watch).await, put("a", "5"));
}

#[tokio::test]
async fn resolved_comes_after_every_write_that_was_acknowledged_before() {
    let (fake, client) = started().await;
    fake.state().split("m", 11);
    let interval = Duration::from_millis(30);
    let options = WatchOptions {
        resolved_interval: Some(interval),
        streams_max: 1,
        ..WatchOptions::default()
    };
    let mut watch = client.watch_with(KeyRange::all(), WatchFrom::Now, options).await.unwrap();
    let mut seen = 0;
    for round in 1..=6 {
        client.put("a", round.to_string()).await.unwrap();
        client.put("z", round.to_string()).await.unwrap();
        // The second one belongs to a mark that began after both writes.
        let mut resolved = 0;
        while resolved < 2 {
            match next(&mut watch).await {
                WatchEvent::Resolved => resolved += 1,
                _ => seen += 1,
            }
        }
        assert_eq!(seen, 2 * round, "a write comes after its `Resolved`");
    }
}
