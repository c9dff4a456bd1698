//! Requests of sessions against the fake cluster, which keeps their records as a cluster does.

use crate::fake::{Fake, Fate, error};
use std::collections::BTreeSet;
use std::time::Duration;
use stele_client::{Client, Options, PutPair, Ttl};
use stele_proto::errorpb;
use stele_types::Error;
use tonic::Code;

async fn started() -> (Fake, Client) {
    let fake = Fake::start(3);
    let options = Options {
        timeout: Duration::from_secs(3),
        attempt_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    let client = Client::connect_with(&fake.addresses(), options).await.unwrap();
    (fake, client)
}

fn lost() -> Vec<Fate> {
    let undetermined = errorpb::UndeterminedResult::default();
    vec![
        Fate::ActAndRefuse(error(|e| e.stale_command = Some(errorpb::StaleCommand {}))),
        Fate::ActAndRefuse(error(|e| e.undetermined_result = Some(undetermined))),
        Fate::ActAndFail(Code::Unavailable),
        Fate::ActAndFail(Code::Unknown),
        Fate::Hang,
    ]
}

// Catalogue: 61.
#[tokio::test]
async fn a_session_repeats_an_unknown_outcome_with_the_same_number_and_deadline() {
    let (fake, client) = started().await;
    let session = client.session();
    let mut sum = 0;
    for fate in lost() {
        fake.state().sessions.clear();
        fake.state().fail("modify_in_session", fate.clone());
        fake.state().fail("modify_in_session", fate.clone());
        sum += 1;
        assert_eq!(session.increment("k", 1).await.unwrap(), sum, "{fate:?}");
        let attempts = fake.state().sessions.clone();
        assert!(attempts.len() > usize::from(!matches!(fate, Fate::Hang)), "{fate:?}");
        assert!(attempts.windows(2).all(|pair| pair[0] == pair[1]), "{fate:?}: {attempts:?}");
        assert_eq!(attempts[0].session, session.id().0);
    }
    fake.state().sessions.clear();
    session.increment("k", 1).await.unwrap();
    session.clone().increment("k", 1).await.unwrap();
    let numbers: Vec<u64> = fake.state().sessions.iter().map(|it| it.number).collect();
    assert_eq!(numbers[1], numbers[0] + 1, "clones number together");
    assert_ne!(client.session().id(), session.id());
}

#[tokio::test]
async fn every_call_of_a_session_has_its_result_after_a_lost_answer() {
    let (fake, client) = started().await;
    let session = client.session();
    let lose = || fake.state().fail("modify_in_session", Fate::ActAndFail(Code::Unavailable));
    lose();
    session.put("k", "1").await.unwrap();
    lose();
    assert_eq!(session.put_if_absent("k", "2", Ttl::Endless).await.unwrap().unwrap(), "1");
    lose();
    assert_eq!(session.put_if_present("k", "3", Ttl::Seconds(9)).await.unwrap().unwrap(), "1");
    lose();
    assert_eq!(session.append("k", "4").await.unwrap(), 2);
    lose();
    let swap = session.compare_and_swap("k", Some("34".into()), Some("5".into()), Ttl::Endless);
    let swap = swap.await.unwrap();
    assert_eq!((swap.succeeded, swap.previous.unwrap()), (true, "34".into()));
    lose();
    let swap = session.compare_and_swap("k", None, None, Ttl::Endless).await.unwrap();
    assert_eq!((swap.succeeded, swap.previous.unwrap()), (false, "5".into()));
    lose();
    assert_eq!(session.get_and_delete("k").await.unwrap().unwrap(), "5");
    lose();
    session.put("a", "x").await.unwrap();
    session.put("b", "1").await.unwrap();
    assert!(matches!(session.increment("a", 1).await, Err(Error::Invalid(_))));
    lose();
    session.delete("a").await.unwrap();
    let state = fake.state();
    assert_eq!((state.value("a"), state.value("b")), (None, Some(&b"1"[..])));
}

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";

// Catalogue: 61.
#[tokio::test]
async fn a_session_puts_many_keys_once_each_although_parts_are_repeated() {
    let (fake, client) = started().await;
    fake.state().split("m", 9);
    let session = client.session();
    // Suffixes, each of which is another key.
    let keys: Vec<&str> = (0..LETTERS.len()).map(|at| LETTERS.split_at(at).1).collect();
    let pairs = |value: &str| {
        let pair = |key: &&'static str| PutPair::new(*key, value.to_owned());
        keys.iter().chain([&keys[0]]).map(pair).collect::<Vec<_>>()
    };
    session.batch_put(pairs("0")).await.unwrap();
    for fate in lost() {
        fake.state().sessions.clear();
        fake.state().fail("put_in_session", fate.clone());
        fake.state().fail("put_in_session", fate.clone());
        let text = format!("{fate:?}");
        session.batch_put(pairs(&text)).await.unwrap();
        let attempts = fake.state().sessions.clone();
        let numbers: BTreeSet<u64> = attempts.iter().map(|it| it.number).collect();
        assert_eq!(numbers.len(), LETTERS.len(), "{fate:?}: one number for a key");
        assert!(matches!(fate, Fate::Hang) || attempts.len() > LETTERS.len(), "{fate:?}: repeated");
        assert!(attempts.iter().all(|it| it.expires_at_s == attempts[0].expires_at_s));
        let state = fake.state();
        assert!(keys.iter().all(|key| state.value(key) == Some(text.as_bytes())));
    }
    let too_long = vec![PutPair::new("a", "x"), PutPair::new(vec![b'k'; 1 << 20], "x")];
    assert!(matches!(session.batch_put(too_long).await, Err(Error::Invalid(_))));
    assert_ne!(fake.state().value("a"), Some(&b"x"[..]), "all are checked first");
}

#[tokio::test]
async fn a_batch_of_a_session_says_how_much_of_it_is_done() {
    let (fake, client) = started().await;
    let session = client.session();
    let pairs = || ["a", "b", "c"].map(|key| PutPair::new(key, "1")).to_vec();
    let counts = |error| match error {
        Error::Partial(it) => (it.done, it.not_done, it.unknown),
        other => panic!("{other:?}"),
    };
    // The first call learns the cluster's time by one pair.
    fake.state().cluster_time_s = 1_000_000;
    fake.state().fail("put_in_session", Fate::Final("refused"));
    let ended = session.batch_put(pairs()).await.unwrap_err();
    assert_eq!(counts(ended), (1, 2, 0));
    session.batch_put(pairs()).await.unwrap();
    // The cluster's time has changed: no pair is put, and the next call learns it.
    fake.state().cluster_time_s = 2_000_000;
    let ended = session.batch_put(pairs()).await.unwrap_err();
    assert!(!ended.is_undetermined() && !matches!(ended, Error::Partial(_)), "{ended:?}");
    session.batch_put(pairs()).await.unwrap();
    // A part that was executed before its refusal.
    fake.state().advances_to_s = Some(3_000_000);
    fake.state().fail("put_in_session", Fate::ActAndFail(Code::Unavailable));
    let ended = session.batch_put(pairs()).await.unwrap_err();
    assert!(ended.is_undetermined(), "{ended:?}");
}

#[tokio::test]
async fn a_session_gives_up_well_before_the_deadline_of_its_attempts() {
    let (fake, client) = started().await;
    let session = client.session();
    (0..200)
        .for_each(|_| fake.state().fail("modify_in_session", Fate::ActAndFail(Code::Unavailable)));
    let ended = session.increment("k", 1).await.unwrap_err();
    assert!(matches!(ended, Error::Undetermined(_)), "{ended}");
    let expires_at_s = fake.state().sessions[0].expires_at_s;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(expires_at_s >= now.as_secs() + 50, "a minute is left");
    assert!(expires_at_s <= now.as_secs() + 70);
}

#[tokio::test]
async fn a_session_learns_the_clusters_time_from_a_refusal() {
    let (fake, client) = started().await;
    let session = client.session();
    for cluster_s in [1_000_000, 9_000_000_000] {
        fake.state().cluster_time_s = cluster_s;
        fake.state().sessions.clear();
        session.increment("k", 1).await.unwrap();
        let attempts = fake.state().sessions.clone();
        assert_eq!(attempts.len(), 2, "{attempts:?}");
        assert_ne!(attempts[0].number, attempts[1].number);
        assert!((cluster_s + 50..cluster_s + 70).contains(&attempts[1].expires_at_s));
        session.increment("k", 1).await.unwrap();
        assert_eq!(fake.state().sessions.len(), 3, "it is remembered");
    }
    // An attempt of the request may have taken effect before the refusal of the next one.
    let far_s = 1 << 40;
    fake.state().advances_to_s = Some(far_s);
    fake.state().fail("modify_in_session", Fate::ActAndFail(Code::Unavailable));
    let ended = session.increment("k", 1).await;
    assert!(matches!(ended, Err(Error::Undetermined(_))), "{ended:?}");
    assert_eq!(fake.state().value("k"), Some(&b"5"[..]));
}

#[tokio::test]
async fn a_cluster_that_keeps_no_records_executes_no_request_of_a_session() {
    let (fake, client) = started().await;
    fake.state().fail("modify_in_session", Fate::Fail(Code::Unimplemented));
    let ended = client.session().increment("k", 1).await.unwrap_err();
    assert!(matches!(ended, Error::Refused(_)), "{ended}");
    assert_eq!(fake.state().value("k"), None);
}
