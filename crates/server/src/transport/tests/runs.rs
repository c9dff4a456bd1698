//! Runs of one store from two directories: which of them is heard.

use super::common::*;
use crate::members::{Members, wire_store};
use std::path::Path;
use std::sync::Arc;
use stele_node::succession::{Evidence, Probe, Refusal, Verdict};
use stele_types::{StoreId, StoreRun};

const ANY_PORT: &str = "127.0.0.1:0";

async fn node(runs: &[(u64, StoreRun)], at: &str) -> (TestNode, Arc<Members>) {
    let members = Arc::new(Members::default());
    let node = TestNode::start_runs(members.clone(), runs, (1, TIMES), options(), at).await;
    for (store, run) in runs {
        members.add_own(StoreId(*store), &node.address, Path::new("/data"), run.clone());
    }
    (node, members)
}

fn knows(members: &Members, store: u64, run: &StoreRun, node: &TestNode) {
    let stated = Probe::Answered(run.lineage.clone());
    let evidence = Evidence { probe: Probe::Silent, stated, ..Evidence::default() };
    members.admit(StoreId(store), run, &node.address, &evidence);
}

/// Sends heartbeats with this index until `holds`.
async fn send_until(
    from: &TestNode,
    (store, to): (u64, u64),
    index: u64,
    holds: impl Fn() -> bool,
) {
    for _ in 0..2000 {
        from.send(heartbeat(store, to, index));
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        if holds() {
            return;
        }
    }
    panic!("waited in vain for {index}");
}

fn heard(node: &TestNode, index: u64) -> bool {
    node.seen.messages.lock().iter().any(|message| index_of(message) == index)
}

fn is_refused(node: &TestNode, store: u64, refusal: Refusal) -> bool {
    node.seen.refused.lock().contains(&(StoreId(store), refusal))
}

#[tokio::test]
async fn a_copy_is_not_heard_while_the_original_runs_and_the_other_stores_of_its_node_are() {
    let (one, original, copied) =
        (start_of(1, &[1]), start_of(3, &[5, 4]), start_of(3, &[6, 5, 4]));
    let (a, at_a) = node(&[(1, one.clone())], ANY_PORT).await;
    let (c, at_c) = node(&[(3, original)], ANY_PORT).await;
    let (y, at_y) = node(&[(3, copied), (7, start_of(7, &[1]))], ANY_PORT).await;
    knows(&at_c, 1, &one, &a);
    knows(&at_y, 1, &one, &a);
    send_until(&c, (3, 1), 10, || heard(&a, 10)).await;
    send_until(&y, (7, 1), 20, || heard(&a, 20)).await;
    send_until(&y, (3, 1), 30, || is_refused(&y, 3, Refusal::Copy)).await;
    send_until(&y, (7, 1), 21, || heard(&a, 21)).await;
    send_until(&c, (3, 1), 11, || heard(&a, 11)).await;
    assert!(!heard(&a, 30), "the copy is not heard");
    assert_eq!(at_a.known_run(StoreId(3)).unwrap().address, c.address);
    assert!(at_y.known_run(StoreId(7)).is_some());
}

#[tokio::test]
async fn a_copy_is_not_heard_if_the_original_answers_although_it_has_no_connection() {
    let (one, original, copied) =
        (start_of(1, &[1]), start_of(3, &[5, 4]), start_of(3, &[6, 5, 4]));
    let (a, at_a) = node(&[(1, one.clone())], ANY_PORT).await;
    let (c, _) = node(&[(3, original.clone())], ANY_PORT).await;
    let (y, at_y) = node(&[(3, copied)], ANY_PORT).await;
    knows(&at_a, 3, &original, &c);
    knows(&at_y, 1, &one, &a);
    send_until(&y, (3, 1), 30, || is_refused(&y, 3, Refusal::Copy)).await;
    c.stop().await;
    send_until(&y, (3, 1), 31, || heard(&a, 31)).await;
    assert!(!heard(&a, 30));
    assert_eq!(at_a.known_run(StoreId(3)).unwrap().address, y.address, "the original ended");
}

#[tokio::test]
async fn a_run_that_was_displaced_and_answers_again_is_heard_no_more_than_its_successor() {
    let (one, original, copied) =
        (start_of(1, &[1]), start_of(3, &[5, 4]), start_of(3, &[6, 5, 4]));
    let (a, at_a) = node(&[(1, one.clone())], ANY_PORT).await;
    let (c, _) = node(&[(3, original.clone())], ANY_PORT).await;
    let (y, at_y) = node(&[(3, copied)], ANY_PORT).await;
    knows(&at_a, 3, &original, &c);
    knows(&at_y, 1, &one, &a);
    let address = c.stop().await;
    send_until(&y, (3, 1), 30, || heard(&a, 30)).await;
    let (c, at_c) = node(&[(3, start_of(3, &[60, 5, 4]))], &address).await;
    knows(&at_c, 1, &one, &a);
    send_until(&c, (3, 1), 40, || is_refused(&c, 3, Refusal::Conflict)).await;
    send_until(&y, (3, 1), 31, || is_refused(&y, 3, Refusal::Conflict)).await;
    y.send(heartbeat(3, 1, 32));
    assert!(!heard(&a, 40) && !heard(&a, 32));
}

#[tokio::test]
async fn the_connections_of_a_displaced_run_end_and_its_messages_are_not_delivered() {
    let (one, first, next) = (start_of(1, &[1]), start_of(3, &[5]), start_of(3, &[6, 5]));
    let (a, at_a) = node(&[(1, one.clone())], ANY_PORT).await;
    let (c, at_c) = node(&[(3, first)], ANY_PORT).await;
    let (moved, at_moved) = node(&[(3, next.clone())], ANY_PORT).await;
    knows(&at_c, 1, &one, &a);
    knows(&at_moved, 1, &one, &a);
    send_until(&c, (3, 1), 10, || heard(&a, 10)).await;
    send_until(&a, (1, 3), 11, || heard(&c, 11)).await;
    // Not because the first one did not answer: it is refused alone.
    let probe = Probe::Answered(next.lineage.clone());
    let evidence = Evidence { probe, ..Evidence::default() };
    let accepted = at_a.admit(StoreId(3), &next, &moved.address, &evidence);
    assert_eq!(accepted, Verdict::Successor);
    a.transport.members_changed();
    c.send(heartbeat(3, 1, 12));
    until("the end of its connection", || a.closed("displaced") > 0).await;
    send_until(&a, (1, 3), 13, || heard(&moved, 13)).await;
    send_until(&moved, (3, 1), 14, || heard(&a, 14)).await;
    assert!(!heard(&a, 12), "it ended before");
    assert!(!heard(&c, 13));
}

#[tokio::test]
async fn an_earlier_state_at_the_known_address_is_sent_no_messages() {
    let (one, known) = (start_of(1, &[1]), start_of(3, &[5, 4]));
    let (a, at_a) = node(&[(1, one.clone())], ANY_PORT).await;
    let (c, at_c) = node(&[(3, start_of(3, &[9, 4]))], ANY_PORT).await;
    knows(&at_a, 3, &known, &c);
    knows(&at_c, 1, &one, &a);
    send_until(&c, (3, 1), 10, || is_refused(&c, 3, Refusal::EarlierState)).await;
    for index in 20..60 {
        a.send(heartbeat(1, 3, index));
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(a.seen.last_reported(3), Some("unreachable"));
    assert_eq!(c.seen.count(), 0);
}

#[tokio::test]
async fn a_peer_of_an_earlier_version_is_heard_before_and_after_its_upgrade() {
    let one = start_of(1, &[1]);
    let (a, at_a) = node(&[(1, one.clone())], ANY_PORT).await;
    // It states no start and no number, as the first version does, then a number, then starts.
    let numbered = StoreRun::from(start_of(3, &[5]).boot);
    let mut address = ANY_PORT.to_owned();
    for (index, stated) in
        (10..).zip([StoreRun::default(), numbered, start_of(3, &[6]), start_of(3, &[7, 6])])
    {
        let (c, at_c) = node(&[(3, stated.clone())], &address).await;
        knows(&at_c, 1, &one, &a);
        at_a.update(index, &[listed_at(&c.address)], &a.address);
        a.transport.members_changed();
        send_until(&c, (3, 1), index, || heard(&a, index)).await;
        send_until(&a, (1, 3), index, || heard(&c, index)).await;
        address = c.stop().await;
    }
    // A start with the earlier version at that address is heard, at another one it is not.
    let (c, at_c) = node(&[(3, StoreRun::default())], &address).await;
    knows(&at_c, 1, &one, &a);
    send_until(&c, (3, 1), 20, || heard(&a, 20)).await;
    c.stop().await;
    let (y, at_y) = node(&[(3, StoreRun::default())], ANY_PORT).await;
    knows(&at_y, 1, &one, &a);
    send_until(&y, (3, 1), 30, || is_refused(&y, 3, Refusal::NoStart)).await;
    assert!(!heard(&a, 30));
}

/// Returns the entry of store 3 in a list of the placement group that records no run of it.
fn listed_at(address: &str) -> stele_proto::stele::control::v1::Member {
    let state = stele_proto::stele::control::v1::StoreState::Up as i32;
    let store = wire_store(StoreId(3), state, &StoreRun::default());
    let (address, stores) = (address.to_owned(), vec![store]);
    stele_proto::stele::control::v1::Member { address, stores, ..Default::default() }
}

#[tokio::test]
async fn a_late_hello_of_an_ended_run_does_not_stop_its_successor() {
    let (one, first, moved) = (start_of(1, &[1]), start_of(3, &[5, 4]), start_of(3, &[6, 5, 4]));
    let (a, at_a) = node(&[(1, one.clone())], ANY_PORT).await;
    let (c, _) = node(&[(3, first.clone())], ANY_PORT).await;
    let (y, at_y) = node(&[(3, moved)], ANY_PORT).await;
    knows(&at_a, 3, &first, &c);
    knows(&at_y, 1, &one, &a);
    let ended = c.stop().await;
    send_until(&y, (3, 1), 30, || heard(&a, 30)).await;
    // The hello of the first run was under way when its node ended.
    let verdict = a.transport.admit(StoreId(3), &first, &ended).await;
    assert_eq!(verdict, Verdict::Refused(Refusal::EarlierState));
    send_until(&y, (3, 1), 31, || heard(&a, 31)).await;
    assert_eq!(at_a.known_run(StoreId(3)).unwrap().rival, None);
}
