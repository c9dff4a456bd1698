//! Pipelines: batches of one region, order, divided commands, and failures.

use super::super::RedisFailure;
use super::{Server, pipeline};
use std::sync::Arc;
use std::time::Duration;
use stele_redis_region::encode_request;
use tokio::sync::Semaphore;

fn failed(failures: impl IntoIterator<Item = Option<RedisFailure>>, server: &Server) {
    server.fake.failures.lock().extend(failures);
}

#[tokio::test]
async fn a_pipeline_cut_at_every_byte_has_the_same_replies() {
    let server = Server::start().await;
    let commands =
        ["SET a 1", "PING", "INCR a", "MGET a z missing", "NOTHING", "SELECT 1", "GET a"];
    let expected = ["+OK\r\n", "+PONG\r\n", ":2\r\n", "*3\r\n$1\r\n2\r\n$-1\r\n$-1\r\n"];
    let bytes = pipeline(&commands);
    for cut in 1..bytes.len() {
        let mut client = server.connect().await;
        client.send(&bytes[..cut]).await;
        tokio::task::yield_now().await;
        client.send(&bytes[cut..]).await;
        let replies = client.replies(commands.len()).await;
        assert_eq!(replies[..4], expected, "cut at {cut}");
        assert!(replies[4].starts_with("-ERR unknown") && replies[6] == "$-1\r\n", "{replies:?}");
    }
}

#[tokio::test]
async fn consecutive_commands_of_one_region_travel_together() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let replies =
        client.ask_all(&["SET a 1", "SET b 2", "SET z 3", "SET c 4", "PING", "GET a"]).await;
    assert_eq!(replies, ["+OK\r\n", "+OK\r\n", "+OK\r\n", "+OK\r\n", "+PONG\r\n", "$1\r\n1\r\n"]);
    let batches = server.fake.commands();
    assert_eq!(batches[..3], [vec!["SET a 1", "SET b 2"], vec!["SET z 3"], vec!["SET c 4"]]);
    let many: Vec<String> = (0..300).map(|number| format!("SET a{number} x")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let replies = client.ask_all(&many).await;
    assert!(replies.iter().all(|reply| reply == "+OK\r\n"));
    let largest = server.fake.commands().iter().map(Vec::len).max();
    assert!(largest.is_some_and(|largest| (2..=128).contains(&largest)), "{largest:?}");
}

#[tokio::test]
async fn a_batch_is_bounded_in_bytes() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let value = "x".repeat(30 << 10);
    let command = format!("SET a {value}");
    let replies = client.ask_all(&[command.as_str(); 9]).await;
    assert!(replies.iter().all(|reply| reply == "+OK\r\n"));
    let largest = server.fake.commands().iter().map(Vec::len).max();
    assert!(largest.is_some_and(|largest| largest <= 2), "{largest:?}");
}

#[tokio::test]
async fn commands_of_two_regions_are_executed_in_the_order_of_their_pipeline() {
    let server = Server::start().await;
    let gate = Arc::new(Semaphore::new(1));
    *server.fake.gate.lock() = Some(gate.clone());
    let mut client = server.connect().await;
    client.send(&pipeline(&["SET a data", "SET z flag", "SET b x"])).await;
    let fake = server.fake.clone();
    super::until("the first batch", || fake.commands().len() == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.fake.commands(), [["SET a data"]], "the second one waits");
    gate.add_permits(2);
    client.replies(3).await;
    assert_eq!(server.fake.commands(), [["SET a data"], ["SET z flag"], ["SET b x"]]);
}

#[tokio::test]
async fn keys_of_several_regions_are_divided_and_joined_and_all_else_is_refused() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.ask_all(&["SET a 1", "SET z 2", "SET b 3"]).await;
    let rows = [
        ("MGET z a missing b x", "*5\r\n$1\r\n2\r\n$1\r\n1\r\n$-1\r\n$1\r\n3\r\n$-1\r\n"),
        ("EXISTS a z z nothing", ":3\r\n"),
        ("TOUCH a z", ":2\r\n"),
        ("DEL a z other", ":2\r\n"),
        ("UNLINK a b z", ":1\r\n"),
        ("MSET a 1 z 2", "-CROSSSLOT Keys in request don"),
        ("RENAME a z", "-CROSSSLOT"),
        ("MSET {t}a 1 {t}z 2", "+OK\r\n"),
        ("MSET a 1 b 2", "+OK\r\n"),
    ];
    for (command, expected) in rows {
        let reply = client.ask(command).await;
        assert!(reply.starts_with(expected), "{command}: {reply}");
    }
    assert!(client.ask("MSET a 1 z 2").await.contains("give all of them the same {tag}"));
    let batches = server.fake.batches.lock().clone();
    let mget = (Some(2), vec!["MGET z x".to_owned()]);
    assert!(batches.contains(&mget), "{batches:?}");
}

#[tokio::test]
async fn more_keys_than_a_program_holds_are_divided_within_a_region() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.ask("MSET a7 seven a2000 many").await;
    let names: Vec<String> = (0..2_500).map(|number| format!("a{number}")).collect();
    let reply = client.ask(&format!("MGET {}", names.join(" "))).await;
    assert!(reply.starts_with("*2500\r\n$-1\r\n"), "{}", &reply[..40]);
    let seven = format!("*2500\r\n{}$5\r\nseven\r\n", "$-1\r\n".repeat(7));
    assert!(reply.starts_with(&seven));
    assert_eq!(client.ask(&format!("EXISTS {}", names.join(" "))).await, ":2\r\n");
}

#[tokio::test]
async fn a_batch_of_a_region_that_was_split_is_divided_again() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    failed([Some(RedisFailure::SeveralRegions)], &server);
    let replies = client.ask_all(&["SET a 1", "SET b 2", "GET a"]).await;
    assert_eq!(replies, ["+OK\r\n", "+OK\r\n", "$1\r\n1\r\n"]);
    failed([const { Some(RedisFailure::SeveralRegions) }; 5], &server);
    let replies = client.ask_all(&["SET a 1", "SET b 2"]).await;
    assert!(replies.iter().all(|reply| reply.starts_with("-CROSSSLOT")), "{replies:?}");
}

#[tokio::test]
async fn keys_of_several_regions_are_counted_once_although_a_region_is_split() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.ask_all(&["SET a 1", "SET z 2"]).await;
    failed([None, Some(RedisFailure::SeveralRegions)], &server);
    assert_eq!(client.ask("DEL a z").await, ":2\r\n");
}

#[tokio::test]
async fn a_change_of_which_a_part_is_done_has_an_unknown_outcome() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.ask_all(&["SET a 1", "SET z 2"]).await;
    let unavailable = || Some(RedisFailure::Unavailable("no leader".to_owned()));
    failed([unavailable(), unavailable()], &server);
    assert!(client.ask("DEL a z").await.starts_with("-TRYAGAIN"), "nothing is done");
    failed([None, unavailable()], &server);
    assert!(client.ask("MGET a z").await.starts_with("-TRYAGAIN"), "a read");
    failed([None, unavailable()], &server);
    let reply = client.ask("DEL a z").await;
    assert!(reply.starts_with("-UNDETERMINED") && reply.contains("no leader"), "{reply}");
}

#[tokio::test]
async fn a_failure_is_the_error_of_each_command_of_its_batch_and_the_connection_goes_on() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let rows = [
        (
            RedisFailure::Undetermined("the leader changed".to_owned()),
            "-UNDETERMINED the command may",
        ),
        (RedisFailure::Unavailable("no\r\nleader".to_owned()), "-TRYAGAIN no  leader\r\n"),
        (RedisFailure::Invalid("bad".to_owned()), "-ERR bad\r\n"),
    ];
    for (failure, expected) in rows {
        failed([Some(failure)], &server);
        let replies = client.ask_all(&["SET a 1", "GET a", "SET z 1"]).await;
        assert!(replies[0].starts_with(expected), "{replies:?}");
        assert_eq!((&replies[1], &replies[2][..]), (&replies[0], "+OK\r\n"), "{replies:?}");
    }
    failed([None, Some(RedisFailure::Undetermined("x".to_owned()))], &server);
    assert!(client.ask("DEL a z").await.starts_with("-UNDETERMINED"));
}

#[tokio::test]
async fn replies_that_need_too_much_memory_together_are_read_in_smaller_batches() {
    // A request has 9 MiB.
    let server = Server::with(crate::port::PortOptions::default(), 16 << 20).await;
    let mut client = server.connect().await;
    let value = "x".repeat(1 << 20);
    client.ask(&format!("SET a {value}")).await;
    let replies = client.ask_all(&["GET a"; 16]).await;
    assert!(replies.iter().all(|reply| reply.len() > 1 << 20), "{:?}", replies[0].get(..60));
}

#[tokio::test]
async fn a_whole_key_space_and_a_scan_of_a_name_are_batches_of_their_own() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.ask_all(&["GET a", "SCAN 0", "HSCAN z 0", "GET b"]).await;
    let batches = server.fake.batches.lock().clone();
    let regions: Vec<Option<u64>> = batches.iter().map(|(region, _)| *region).collect();
    assert_eq!(regions, [Some(1), None, Some(2), Some(1)], "{batches:?}");
}

#[tokio::test]
async fn arguments_are_any_bytes() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let value: Vec<u8> = (0..=255).collect();
    let set = [&b"SET"[..], b"a\0\r\n", &value].map(bytes::Bytes::copy_from_slice);
    let get = [&b"GET"[..], b"a\0\r\n"].map(bytes::Bytes::copy_from_slice);
    client.send(&[encode_request(&set), encode_request(&get)].concat()).await;
    let replies = client.replies(2).await;
    assert_eq!((&replies[0][..], &replies[1][..6]), ("+OK\r\n", "$256\r\n"));
}

#[tokio::test]
async fn commands_connections_and_errors_are_counted() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client
        .ask_all(&["SET a 1", "GET a", "get a", "HGET a f", "NOSUCH x", "MULTI", "HGET a f"])
        .await;
    client.ask("EXEC").await;
    let counts = &server.redis.stats.edges;
    assert_eq!(counts.redis_open(), 1);
    assert_eq!(counts.commands(), [("exec", 1), ("get", 2), ("hget", 2), ("multi", 1), ("set", 1)]);
    // That of an element of the answer to EXEC, too.
    assert_eq!(counts.errors(), [("ERR", 1), ("WRONGTYPE", 2)]);
    drop(client);
    super::until("the connection ends", || counts.redis_open() == 0).await;
}
