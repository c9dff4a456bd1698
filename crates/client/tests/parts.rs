//! Writes of several parts of which some fail.

use crate::fake::{Fake, Fate, error};
use crate::operations::{letters, start_three_regions};
use bytes::Bytes;
use std::time::Duration;
use stele_client::{Client, Options, PutPair};
use stele_proto::errorpb;
use stele_types::size::USER_KEY_BYTES_MAX;
use stele_types::{Error, KeyRange, Partial};
use tonic::Code;

async fn three_regions() -> (Fake, Client) {
    let fake = start_three_regions();
    let options = Options {
        timeout: Duration::from_secs(2),
        attempt_timeout: Duration::from_millis(500),
        ..Options::default()
    };
    let client = Client::connect_with(&fake.addresses(), options).await.unwrap();
    (fake, client)
}

fn partial(result: stele_types::Result<()>) -> Box<Partial> {
    match result {
        Err(Error::Partial(partial)) => partial,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn one_bad_key_of_many_pairs_is_found_before_any_is_sent() {
    let (fake, client) = three_regions().await;
    let mut pairs: Vec<PutPair> =
        (0..20_480).map(|at| PutPair::new(format!("a{at:05}"), "v")).collect();
    pairs.push(PutPair::new(vec![b'z'; USER_KEY_BYTES_MAX + 1], "v"));
    let keys = pairs.iter().map(|pair| pair.key.clone()).collect::<Vec<Bytes>>();
    let long = keys.last().unwrap().clone();
    for ended in [
        client.batch_put(pairs).await,
        client.batch_delete(keys).await,
        client.delete_range(KeyRange::new("a", long.clone())).await,
        client.delete_range(KeyRange::new(long, "")).await,
    ] {
        assert!(matches!(&ended, Err(Error::Invalid(text)) if text.contains("8193")), "{ended:?}");
    }
    assert!(fake.state().calls.is_empty() && fake.state().pairs.is_empty());
}

#[tokio::test]
async fn the_first_failure_of_a_batch_leaves_its_other_parts_to_their_end() {
    let (fake, client) = three_regions().await;
    let keys: Vec<Bytes> = letters().into_iter().map(|pair| pair.key).collect();
    // Warms the cache, so that all parts are sent at once.
    client.batch_put(letters()).await.unwrap();
    // The parts after the one that fails take longer.
    let fail_first = |method| {
        let busy = errorpb::ServerIsBusy { backoff_ms: 100, ..Default::default() };
        let busy = error(|e| e.server_is_busy = Some(busy));
        let mut state = fake.state();
        state.fail(method, Fate::Final("no room"));
        state.fail(method, Fate::Refuse(busy.clone()));
        state.fail(method, Fate::Refuse(busy));
    };
    fake.state().pairs.clear();
    fail_first("batch_put");
    let ended = partial(client.batch_put(letters()).await);
    assert_eq!(fake.state().pairs.len() as u64, ended.done, "{ended}");
    assert_eq!((ended.done + ended.not_done, ended.unknown), (26, 0), "{ended}");
    assert!(ended.done >= 10 && matches!(ended.first, Error::Refused(_)), "{ended}");
    let text = ended.to_string();
    assert!(text.contains("pairs done") && text.ends_with("refused: no room"), "{text}");

    client.batch_put(letters()).await.unwrap();
    fail_first("batch_delete");
    let ended = partial(client.batch_delete(keys).await);
    assert_eq!(fake.state().pairs.len() as u64, ended.not_done, "{ended}");
    assert_eq!((ended.done + ended.not_done, ended.unknown), (26, 0), "{ended}");
}

#[tokio::test]
async fn a_part_whose_answer_is_lost_is_unknown_and_the_others_are_done() {
    let (fake, client) = three_regions().await;
    client.batch_put(letters()).await.unwrap();
    fake.state().fail("batch_put", Fate::ActAndFail(Code::Unavailable));
    let ended = partial(client.batch_put(letters()).await);
    assert!(ended.unknown > 0 && ended.done > 0 && ended.not_done == 0, "{ended}");
    assert!(Error::Partial(ended).is_undetermined());
    // A batch of one part has one outcome.
    fake.state().fail("batch_put", Fate::ActAndFail(Code::Unavailable));
    let ended = client.batch_put(vec![PutPair::new("a", "v")]).await;
    assert!(matches!(ended, Err(Error::Undetermined(_))), "{ended:?}");
}

#[tokio::test]
async fn a_range_whose_second_region_fails_tells_what_is_deleted_and_what_was_not_reached() {
    for (fate, unknown) in [(Fate::Final("no"), 0), (Fate::ActAndFail(Code::Unavailable), 1)] {
        let (fake, client) = three_regions().await;
        client.batch_put(letters()).await.unwrap();
        fake.state().fail(
            "delete_range",
            Fate::Refuse(error(|e| {
                e.server_is_busy =
                    Some(errorpb::ServerIsBusy { backoff_ms: 1, ..Default::default() });
            })),
        );
        client.delete_range(KeyRange::new("a", "b")).await.unwrap();
        let calls = fake.state().calls.len();
        fake.state().fail_after("delete_range", 1, fate);
        let ended = partial(client.delete_range(KeyRange::new("", "z")).await);
        assert_eq!(
            (ended.done, ended.not_done, ended.unknown),
            (1, 1 - unknown, unknown),
            "{ended}"
        );
        assert_eq!(ended.not_reached, Some(KeyRange::new("p", "z")), "{ended}");
        assert_eq!(fake.state().calls.len(), calls + 2);
        assert!(fake.state().value("f").is_none() && fake.state().value("p").is_some());
    }
}

#[tokio::test]
async fn a_range_has_one_time_limit_however_many_regions_it_has() {
    let (fake, client) = three_regions().await;
    // Makes the connections.
    client.delete_range(KeyRange::all()).await.unwrap();
    let client = client.with(Options { timeout: Duration::from_secs(2), ..Options::default() });
    // A time limit for each region would be enough.
    let busy = |backoff_ms| {
        let busy = errorpb::ServerIsBusy { backoff_ms, ..Default::default() };
        Fate::Refuse(error(|e| e.server_is_busy = Some(busy)))
    };
    for region in 0..3 {
        fake.state().fail_after("delete_range", region.min(1), busy(800));
    }
    let ended = partial(client.delete_range(KeyRange::all()).await);
    assert_eq!((ended.done, ended.not_done, ended.unknown), (2, 1, 0), "{ended}");
}
