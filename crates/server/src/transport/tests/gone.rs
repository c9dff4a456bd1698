//! Stores that do not serve although their node runs.

use super::common::{Book, TestNode, heartbeat, until, until_heard};
use super::network::{Proxy, Weather};
use std::sync::Arc;
use std::time::Duration;
use stele_types::StoreId;

#[tokio::test]
async fn a_store_that_fails_while_its_node_runs_is_unreachable_at_once_and_the_others_are_not() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let b = TestNode::start(&book, &[2, 3]).await;
    let proxy = Proxy::start(&b.address).await;
    [2, 3].iter().for_each(|store| book.set(*store, &proxy.address));
    until_heard(&a, &b, (1, 2)).await;
    until_heard(&a, &b, (1, 3)).await;
    b.transport.store_gone(StoreId(3));
    until("the failure", || a.seen.last_reported(3) == Some("unreachable")).await;
    assert_eq!(a.seen.last_reported(2), Some("reachable"));
    until_heard(&a, &b, (1, 2)).await;
    let heard = b.seen.count();
    a.send(heartbeat(1, 3, 7));
    // Several keepalives pass, and a new connection is made.
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.set_all(Weather::Held);
    until("the cut", || a.seen.last_reported(2) == Some("unreachable")).await;
    proxy.set_all(Weather::Clear);
    until("the end of the cut", || a.seen.last_reported(2) == Some("reachable")).await;
    assert_eq!(a.seen.last_reported(3), Some("unreachable"));
    assert!(b.seen.messages.lock().iter().skip(heard).all(|it| it.to_store != StoreId(3)));
}

#[tokio::test]
async fn a_store_that_failed_before_its_node_was_dialled_is_known_and_unreachable() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let b = TestNode::start(&book, &[2]).await;
    book.set(3, &b.address);
    b.transport.store_gone(StoreId(3));
    a.send(heartbeat(1, 3, 1));
    until("a connection", || a.seen.last_reported(3) == Some("unreachable")).await;
    assert!(!a.seen.saw_closed("is not on this node"), "it is a store of the node");
    until_heard(&a, &b, (1, 2)).await;
    assert_eq!(a.seen.last_reported(3), Some("unreachable"));
}
