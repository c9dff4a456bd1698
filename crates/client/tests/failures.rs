//! Scripted errors: which calls are retried, where they are sent, and how they end.

use crate::fake::{self, Fake, Fate, error};
use std::time::{Duration, Instant};
use stele_client::{Client, Options, Ttl, WriteIfRequest};
use stele_proto::errorpb::{self, Error as Refusal};
use stele_types::{Error, KeyRange, PeerId, Region, StoreId};
use tonic::Code;

async fn started() -> (Fake, Client) {
    let fake = Fake::start(3);
    let client = Client::connect_with(&fake.addresses(), quick()).await.unwrap();
    (fake, client)
}

fn quick() -> Options {
    Options {
        timeout: Duration::from_secs(3),
        attempt_timeout: Duration::from_millis(300),
        ..Options::default()
    }
}

/// Errors detected before a proposal: every call is retried.
fn certain() -> Vec<Refusal> {
    let busy = errorpb::ServerIsBusy { backoff_ms: 5, ..Default::default() };
    vec![
        error(|e| e.not_leader = Some(errorpb::NotLeader::default())),
        error(|e| e.region_not_found = Some(errorpb::RegionNotFound::default())),
        error(|e| e.key_not_in_region = Some(errorpb::KeyNotInRegion::default())),
        error(|e| e.epoch_not_match = Some(errorpb::EpochNotMatch::default())),
        error(|e| e.server_is_busy = Some(busy)),
        error(|e| e.store_not_match = Some(errorpb::StoreNotMatch::default())),
        error(|e| e.read_index_not_ready = Some(errorpb::ReadIndexNotReady::default())),
        error(|e| e.proposal_in_merging_mode = Some(errorpb::ProposalInMergingMode::default())),
        error(|e| e.region_not_initialized = Some(errorpb::RegionNotInitialized::default())),
        error(|e| e.mismatch_peer_id = Some(errorpb::MismatchPeerId::default())),
    ]
}

/// Answer that no client repeats.
fn final_answer(text: &str) -> Refusal {
    let error = error(|e| e.raft_entry_too_large = Some(errorpb::RaftEntryTooLarge::default()));
    Refusal { message: text.to_owned(), ..error }
}

/// Errors after which the write may have taken effect.
fn uncertain() -> Vec<Refusal> {
    vec![
        error(|e| e.stale_command = Some(errorpb::StaleCommand {})),
        error(|e| e.undetermined_result = Some(errorpb::UndeterminedResult::default())),
        error(|_| {}),
    ]
}

#[tokio::test]
async fn a_refusal_before_the_proposal_is_repeated_even_for_a_swap() {
    let (fake, strict) = started().await;
    for refusal in certain() {
        fake.state().fail("", Fate::Refuse(refusal.clone()));
        strict.put("k", "v").await.unwrap();
        fake.state().fail("", Fate::Refuse(refusal.clone()));
        assert_eq!(strict.get("k").await.unwrap().unwrap(), "v", "{refusal:?}");
        fake.state().fail("", Fate::Refuse(refusal.clone()));
        let swap = strict.compare_and_swap("k", Some("v".into()), None, Ttl::Endless).await;
        assert!(swap.unwrap().succeeded, "{refusal:?}");
        fake.state().fail("", Fate::Refuse(refusal.clone()));
        assert_eq!(strict.put_if_absent("k", "v").await.unwrap(), None, "{refusal:?}");
    }
}

// Catalogue: 19.
#[tokio::test]
async fn a_put_for_which_the_device_is_full_is_refused_at_once_with_the_reason() {
    let (fake, strict) = started().await;
    let reason = "disk full at store 3: delete pairs or add space".to_owned();
    fake.state().fail("", Fate::Refuse(final_answer(&reason)));
    let calls = fake.state().calls.len();
    let ended = strict.put("k", "v").await.unwrap_err();
    assert!(matches!(&ended, Error::Refused(text) if text.contains(&reason)), "{ended}");
    let puts = fake.state().calls.iter().skip(calls).filter(|(method, _)| *method == "put").count();
    assert_eq!(puts, 1, "repeated");
    strict.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn a_put_for_which_a_leader_may_find_room_is_repeated_and_at_its_deadline_refused() {
    let (fake, strict) = started().await;
    let full = errorpb::DiskFull { store_id: vec![1], reason: "store 1 is full".to_owned() };
    let full = error(|e| e.disk_full = Some(full));
    fake.state().fail("put", Fate::Refuse(full.clone()));
    fake.state().leaders.insert(2, 3);
    strict.put("k", "v").await.unwrap();
    (0..400).for_each(|_| fake.state().fail("put", Fate::Refuse(full.clone())));
    // The outcome of an attempt that the deadline cuts off is unknown: on a busy machine a call may end so.
    let mut ended = Vec::new();
    for tenths in [3, 6, 12] {
        let timeout = Duration::from_millis(tenths * 100);
        let brief = strict.with(Options { timeout, ..quick() });
        ended.push(brief.put("k", "w").await.unwrap_err());
        match ended.last() {
            Some(Error::Refused(text)) if text.contains("is full") => return,
            Some(Error::Undetermined(text)) if text.contains("no answer") => {}
            _ => break,
        }
    }
    panic!("{ended:?}");
}

#[tokio::test]
async fn an_invalid_request_is_not_split_and_its_reason_is_that_of_the_server() {
    let (fake, client) = started().await;
    let too_long = "max key size exceeded, size: 9000, limit: 8192";
    let answer = final_answer(&format!("invalid request: {too_long}"));
    let pairs = ["a", "b", "c", "d"].map(|key| stele_client::PutPair::new(key, "1"));
    fake.state().fail("batch_put", Fate::Refuse(answer.clone()));
    let before = fake.state().calls.len();
    let ended = client.batch_put(pairs.to_vec()).await.unwrap_err();
    assert!(matches!(&ended, Error::Invalid(text) if text == too_long), "{ended}");
    assert_eq!(fake.state().calls.len(), before + 1);
    fake.state().fail("scan", Fate::Refuse(answer));
    let scan = client.scan(KeyRange::all(), stele_client::ScanOptions::default());
    assert!(matches!(scan.collect().await, Err(Error::Invalid(_))));
    assert_eq!(fake.state().calls.len(), before + 2);
}

// Catalogue: 61.
#[tokio::test]
async fn a_write_that_may_have_happened_is_repeated_only_if_wanted() {
    let (fake, strict) = started().await;
    let client = strict.with(Options { repeat_undetermined: true, ..quick() });
    for refusal in uncertain() {
        fake.state().fail("put", Fate::ActAndRefuse(refusal.clone()));
        client.put("k", "v").await.unwrap();
        fake.state().fail("put", Fate::ActAndRefuse(refusal.clone()));
        let ended = strict.put("k", "w").await.unwrap_err();
        assert!(matches!(ended, Error::Undetermined(_)), "{refusal:?}: {ended}");
        assert_eq!(fake.state().value("k"), Some(&b"w"[..]));
        fake.state().fail("get", Fate::Refuse(refusal.clone()));
        strict.get("k").await.unwrap();
    }
}

#[tokio::test]
async fn a_swap_that_may_have_happened_is_never_repeated() {
    let (fake, client) = started().await;
    let mut fates: Vec<Fate> = uncertain().into_iter().map(Fate::ActAndRefuse).collect();
    fates.extend([Fate::ActAndFail(Code::Unavailable), Fate::ActAndFail(Code::Unknown)]);
    let unknown = "undetermined: may or may not have taken effect";
    fates.extend([Fate::Hang, Fate::Final(unknown), Fate::ActAndRefuse(final_answer(unknown))]);
    for fate in fates {
        // Restores the cached leader.
        client.get("k").await.unwrap();
        let before = fake.state().calls.len();
        fake.state().fail("cas", fate.clone());
        let ended = client.compare_and_swap("k", None, Some("v".into()), Ttl::Endless).await;
        assert!(matches!(ended, Err(Error::Undetermined(_))), "{fate:?}: {ended:?}");
        assert_eq!(fake.state().calls.len(), before + 1, "{fate:?}");
        fake.state().pairs.clear();
    }
}

#[tokio::test]
async fn a_modification_that_may_have_happened_is_never_repeated() {
    let (fake, strict) = started().await;
    let client = strict.with(Options { repeat_undetermined: true, ..quick() });
    let mut fates: Vec<Fate> = uncertain().into_iter().map(Fate::ActAndRefuse).collect();
    fates.extend([Fate::ActAndFail(Code::Unavailable), Fate::Hang]);
    fates.push(Fate::Final("undetermined: may or may not have taken effect"));
    for (fate, number) in fates.into_iter().flat_map(|fate| (0..6).map(move |i| (fate.clone(), i)))
    {
        // Restores the cached leader.
        client.get("k").await.unwrap();
        let before = fake.state().calls.len();
        let call = if number == 5 { "write_if" } else { "modify" };
        fake.state().fail(call, fate.clone());
        let ended = match number {
            0 => client.put_if_absent("k", "v").await.map(drop),
            1 => client.increment("k", 1).await.map(drop),
            2 => client.append("k", "v").await.map(drop),
            3 => client.put_if_present("k", "v").await.map(drop),
            5 => {
                let request = WriteIfRequest { key: "k".into(), ..WriteIfRequest::default() };
                client.write_if(request).await.map(drop)
            }
            _ => client.get_and_delete("k").await.map(drop),
        };
        assert!(matches!(ended, Err(Error::Undetermined(_))), "{fate:?}, {number}: {ended:?}");
        assert_eq!(fake.state().calls.len(), before + 1, "{fate:?}, {number}");
        fake.state().pairs.clear();
    }
}

// Catalogue: 61.
#[tokio::test]
async fn a_lost_answer_is_undetermined_and_a_refused_connection_is_not() {
    let (mut fake, strict) = started().await;
    let client = strict.with(Options { repeat_undetermined: true, ..quick() });
    strict.put("k", "v").await.unwrap();
    for fate in [Fate::ActAndFail(Code::Unavailable), Fate::Hang] {
        fake.state().fail("put", fate);
        let ended = strict.put("k", "w").await.unwrap_err();
        assert!(matches!(ended, Error::Undetermined(_)), "{ended}");
        fake.state().fail("put", Fate::ActAndFail(Code::Unavailable));
        client.put("k", "v").await.unwrap();
    }
    // A new client calls a dead leader first.
    fake.kill(0);
    let cold = Client::connect_with(&fake.addresses(), quick()).await.unwrap();
    fake.state().leaders.insert(2, 3);
    cold.put("k", "x").await.unwrap();
}

#[tokio::test]
async fn an_earlier_ambiguous_try_decides_how_the_call_ends() {
    let (fake, client) = started().await;
    let client = client.with(Options { repeat_undetermined: true, ..quick() });
    fake.state().fail("put", Fate::ActAndFail(Code::Unavailable));
    fake.state().fail("put", Fate::Final("key too long"));
    let ended = client.put("k", "v").await.unwrap_err();
    assert!(matches!(ended, Error::Undetermined(_)), "{ended}");
    fake.state().fail("put", Fate::Final("key too long"));
    let ended = client.put("k", "v").await.unwrap_err();
    assert!(matches!(&ended, Error::Refused(text) if text == "key too long"), "{ended}");
}

#[tokio::test]
async fn too_large_an_entry_ends_at_once() {
    let (fake, client) = started().await;
    let large = errorpb::RaftEntryTooLarge { region_id: 2, entry_size: 9 << 20 };
    fake.state().fail("put", Fate::Refuse(error(|e| e.raft_entry_too_large = Some(large))));
    let ended = client.put("k", "v").await.unwrap_err();
    assert!(matches!(&ended, Error::Invalid(text) if text.contains("9437184")), "{ended}");
}

#[tokio::test]
async fn failures_of_answers_made_of_pairs_are_seen() {
    let (fake, client) = started().await;
    fake.state().fail("scan", Fate::Final("damaged"));
    let scan = client.scan(KeyRange::all(), stele_client::ScanOptions::default());
    assert!(matches!(scan.collect().await, Err(Error::Refused(_))));
    fake.state().fail("batch_get", Fate::Final("damaged"));
    assert!(client.batch_get(vec!["k".into()]).await.is_err());
}

#[tokio::test]
async fn a_new_leader_is_followed_at_once() {
    let (fake, client) = started().await;
    client.put("k", "v").await.unwrap();
    fake.state().leaders.insert(2, 3);
    client.put("k", "w").await.unwrap();
    let calls: Vec<u64> = fake.state().calls.iter().map(|(_, store)| *store).collect();
    assert_eq!(calls, [1, 1, 3]);
    client.put("k", "x").await.unwrap();
    assert_eq!(fake.state().calls.last(), Some(&("put", 3)), "the leader is cached");
}

#[tokio::test]
async fn a_dead_leaders_region_is_found_on_another_node() {
    let (mut fake, client) = started().await;
    // The put to the dead node has an unknown outcome.
    let client = client.with(Options { repeat_undetermined: true, ..quick() });
    client.put("k", "v").await.unwrap();
    fake.kill(0);
    let election = async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        fake.state().leaders.insert(2, 2);
    };
    let (put, ()) = tokio::join!(client.put("k", "w"), election);
    put.unwrap();
    assert_eq!(fake.state().value("k"), Some(&b"w"[..]));
}

#[tokio::test]
async fn without_a_leader_the_call_ends_at_its_deadline_with_a_reason() {
    let (fake, client) = started().await;
    fake.state().leaders.clear();
    let client = client.with(Options { timeout: Duration::from_millis(500), ..quick() });
    let started = Instant::now();
    let ended = client.get("k").await.unwrap_err();
    assert!(started.elapsed() < quick().timeout, "{:?}", started.elapsed());
    assert!(matches!(&ended, Error::Unavailable(text) if text.contains("scripted")), "{ended}");
}

#[tokio::test]
async fn a_directory_that_lags_behind_is_asked_again() {
    let (fake, client) = started().await;
    let old = fake.state().regions.clone();
    fake.state().split("m", 11);
    client.put("a", "1").await.unwrap();
    fake.state().pd_regions = Some(old);
    // Only PD is left to look up the region, and its state is older than what stores have returned.
    let refusal = error(|e| e.region_not_found = Some(errorpb::RegionNotFound::default()));
    fake.state().fail("put", Fate::Refuse(refusal));
    let heal = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        fake.state().pd_regions = None;
    };
    let (put, ()) = tokio::join!(client.put("a", "2"), heal);
    put.unwrap();
    client.put("z", "3").await.unwrap();
}

#[tokio::test]
async fn a_store_that_answers_with_an_older_epoch_is_given_time() {
    let (fake, client) = started().await;
    client.put("a", "1").await.unwrap();
    let mut older: Region = fake.state().regions[0].clone();
    fake.state().split("m", 11);
    client.put("z", "2").await.unwrap();
    older.epoch.version = 1;
    let current_regions = vec![fake::region(&older)];
    let epoch = errorpb::EpochNotMatch { current_regions };
    fake.state().fail("put", Fate::Refuse(error(|e| e.epoch_not_match = Some(epoch))));
    client.put("z", "3").await.unwrap();
    assert_eq!(fake.state().value("z"), Some(&b"3"[..]));
}

#[tokio::test]
async fn a_moved_store_is_found_at_its_new_address() {
    let (mut fake, client) = started().await;
    // The put to the dead node has an unknown outcome.
    let client = client.with(Options { repeat_undetermined: true, ..quick() });
    client.put("k", "v").await.unwrap();
    fake.kill(0);
    fake.state().nodes[0].stores.clear();
    fake.add_node(vec![1]);
    client.put("k", "w").await.unwrap();
    assert_eq!(fake.state().value("k"), Some(&b"w"[..]));
}

#[tokio::test]
async fn a_replica_that_moved_to_another_store_is_found() {
    let (mut fake, client) = started().await;
    client.put("k", "v").await.unwrap();
    fake.add_node(vec![4]);
    {
        let mut state = fake.state();
        let region = &mut state.regions[0];
        region.epoch.conf_version += 2;
        region.peers[0] =
            stele_types::Peer { id: PeerId(24), store: StoreId(4), ..region.peers[0] };
        state.leaders.insert(2, 4);
        state.nodes[0].stores.clear();
    }
    client.put("k", "w").await.unwrap();
    assert_eq!(fake.state().calls.last(), Some(&("put", 4)));
}

#[tokio::test]
async fn no_node_at_all_is_one_clear_error() {
    let options = Options { timeout: Duration::from_millis(300), ..quick() };
    let ended = Client::connect_with(&["127.0.0.1:1"], options).await.err().unwrap();
    assert!(matches!(&ended, Error::Unavailable(text) if text.contains("127.0.0.1:1")), "{ended}");
    assert!(Client::connect(&[""]).await.is_err());
}
