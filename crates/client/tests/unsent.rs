//! Requests that never left the client: they are sent elsewhere, and no outcome is unknown for them.

use crate::fake::Fake;
use crate::unserving::{Node, Unserving};
use std::time::Duration;
use stele_client::{Client, Options, Ttl};
use stele_types::{Error, Result};

fn quick() -> Options {
    Options {
        timeout: Duration::from_secs(20),
        attempt_timeout: Duration::from_secs(1),
        connections_per_node: 1,
        ..Options::default()
    }
}

/// A value that is not sent in a batch with others.
fn long() -> Vec<u8> {
    vec![7; 100 << 10]
}

/// Makes one write of each kind: on the shared stream, alone, and one that is never repeated.
async fn write(client: &Client, kind: usize) -> Result<()> {
    match kind {
        0 => client.put("k", "v").await,
        1 => client.put("k", long()).await,
        2 => {
            let swap = client.compare_and_swap("k", None, Some("v".into()), Ttl::Endless).await?;
            assert!(swap.succeeded);
            Ok(())
        }
        _ => client.increment("k", 1).await.map(|sum| assert_eq!(sum, 1)),
    }
}

/// Starts a cluster of which the leader is the node that serves nothing. PD is elsewhere.
async fn led_by(unserving: Unserving) -> (Fake, Node, Client) {
    let fake = Fake::start(3);
    let mut node = unserving.start().await;
    let directory = fake.addresses()[1..].to_vec();
    fake.state().nodes[0].address.clone_from(&node.address);
    let client = Client::connect_with(&directory, quick()).await.unwrap();
    if unserving == Unserving::TakesNoMore {
        // One fills the connection, the other is the next of the shared stream.
        for (streams, value) in [(1, long()), (2, vec![7])] {
            let filling = client.with(Options { attempt_timeout: quick().timeout, ..quick() });
            tokio::spawn(async move { filling.put("filling", value).await });
            node.has_streams(streams).await;
        }
        node.full().await;
    }
    (fake, node, client)
}

#[tokio::test]
async fn a_write_after_the_idle_leader_restarted_succeeds() {
    for kind in 0..4 {
        let mut fake = Fake::start(3);
        let client = Client::connect_with(&fake.addresses(), quick()).await.unwrap();
        client.put("other", "v").await.unwrap();
        fake.kill(0);
        fake.state().leaders.insert(2, 2);
        // The client notices that the connection is closed.
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        write(&client, kind).await.unwrap_or_else(|error| panic!("kind {kind}: {error}"));
        assert!(fake.state().value("k").is_some());
    }
}

#[tokio::test]
async fn a_write_whose_stream_is_refused_is_sent_to_the_next_leader() {
    for unserving in [Unserving::RefusesStreams, Unserving::GoesAway, Unserving::TakesNoMore] {
        for kind in 0..4 {
            let (fake, _node, client) = led_by(unserving).await;
            let election = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                fake.state().leaders.insert(2, 3);
            };
            let (written, ()) = tokio::join!(write(&client, kind), election);
            written.unwrap_or_else(|error| panic!("{unserving:?}, kind {kind}: {error}"));
            assert!(fake.state().value("k").is_some());
        }
    }
}

#[tokio::test]
async fn a_call_that_times_out_in_the_queue_of_the_client_is_certainly_not_done() {
    let limits = Options { timeout: Duration::from_millis(150), ..quick() };
    for kind in 0..4 {
        let (_fake, _node, client) = led_by(Unserving::TakesNoMore).await;
        let error = write(&client.with(limits), kind).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "kind {kind}: {error}");
        assert!(error.to_string().contains("was not sent"), "kind {kind}: {error}");
    }
}

#[tokio::test]
async fn a_write_that_was_sent_and_whose_stream_was_reset_is_undetermined() {
    let (_fake, _node, client) = led_by(Unserving::Resets).await;
    for kind in 0..4 {
        // Restores the cached leader.
        let _ =
            client.with(Options { timeout: Duration::from_millis(20), ..quick() }).get("k").await;
        let error = write(&client, kind).await.unwrap_err();
        assert!(matches!(error, Error::Undetermined(_)), "kind {kind}: {error}");
    }
}
