//! MULTI, EXEC, DISCARD, WATCH and UNWATCH at their edges.

use super::super::RedisFailure;
use super::Server;

const QUEUED: &str = "+QUEUED\r\n";
const OK: &str = "+OK\r\n";
const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";

#[tokio::test]
async fn a_transaction_is_one_batch_with_one_array_of_replies() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let replies = client.ask_all(&["MULTI", "SET a 1", "INCR a", "GET a", "EXEC", "GET a"]).await;
    let expected = [OK, QUEUED, QUEUED, QUEUED, "*3\r\n+OK\r\n:2\r\n$1\r\n2\r\n", "$1\r\n2\r\n"];
    assert_eq!(replies, expected);
    assert_eq!(server.fake.commands()[0], ["SET a 1", "INCR a", "GET a"]);
    assert_eq!(client.ask_all(&["MULTI", "EXEC"]).await, [OK, "*0\r\n"]);
}

#[tokio::test]
async fn commands_of_the_connection_are_answered_at_their_places_of_the_array() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let replies = client
        .ask_all(&["MULTI", "SET a 1", "PING", "SELECT 1", "GET a", "SET a 2", "ECHO x", "EXEC"])
        .await;
    let array = "*6\r\n+OK\r\n+PONG\r\n+OK\r\n$-1\r\n+OK\r\n$1\r\nx\r\n";
    assert_eq!(replies[7], array);
    assert_eq!(client.ask("GET a").await, "$1\r\n2\r\n", "SELECT holds after EXEC");
    let replies = client.ask_all(&["MULTI", "PING", "WAIT 1 0", "EXEC"]).await;
    assert_eq!(replies[3], "*2\r\n+PONG\r\n:1\r\n");
    let replies = client.ask_all(&["MULTI", "HELLO 3", "EXEC", "GET missing"]).await;
    assert!(replies[1] == QUEUED && replies[2].contains("proto") && replies[3] == "_\r\n");
}

#[tokio::test]
async fn control_commands_out_of_place_are_refused_and_leave_the_transaction() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let rows = [
        ("EXEC", "-ERR EXEC without MULTI\r\n"),
        ("DISCARD", "-ERR DISCARD without MULTI\r\n"),
        ("MULTI", OK),
        ("MULTI", "-ERR MULTI calls can not be nested\r\n"),
        ("WATCH a", "-ERR WATCH inside MULTI is not allowed\r\n"),
        ("SET a 1", QUEUED),
        ("EXEC", "*1\r\n+OK\r\n"),
        ("MULTI", OK),
        ("SET a 2", QUEUED),
        ("DISCARD", OK),
        ("GET a", "$1\r\n1\r\n"),
        ("MULTI", OK),
        ("SET a 2", QUEUED),
        (
            "EXEC now",
            "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n",
        ),
        ("EXEC", "-ERR EXEC without MULTI\r\n"),
        ("MULTI", OK),
        ("SET a 2", QUEUED),
        ("RESET", "+RESET\r\n"),
        ("EXEC", "-ERR EXEC without MULTI\r\n"),
        ("GET a", "$1\r\n1\r\n"),
    ];
    for (command, expected) in rows {
        assert_eq!(client.ask(command).await, expected, "{command}");
    }
}

#[tokio::test]
async fn a_refused_command_aborts_and_a_failing_one_does_not() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    for refused in ["NOTHING", "GET", "CLIENT NOTHING", "CLIENT SETNAME", "SCAN 0"] {
        let replies = client.ask_all(&["MULTI", "SET a 1", refused, "SET a 2", "EXEC"]).await;
        assert!(replies[2].starts_with("-ERR"), "{replies:?}");
        assert_eq!(replies[4], ABORTED, "{refused}");
    }
    assert_eq!(client.ask("GET a").await, "$-1\r\n");
    let failing = ["MULTI", "SET a x", "INCR a", "SET a 1 FOO", "SELECT 99", "SET b 1", "EXEC"];
    let replies = client.ask_all(&failing).await;
    assert!(replies[6].starts_with("*5\r\n+OK\r\n-ERR value is not an integer"), "{replies:?}");
    assert!(replies[6].contains("-ERR syntax error\r\n-ERR DB index is out of range\r\n+OK\r\n"));
}

#[tokio::test]
async fn a_change_of_a_watched_name_makes_exec_null() {
    let server = Server::start().await;
    let (mut client, mut other) = (server.connect().await, server.connect().await);
    let changes = ["SET a 1", "APPEND a x", "DEL a"];
    for change in changes {
        assert_eq!(client.ask("WATCH a b").await, OK);
        other.ask(change).await;
        let replies = client.ask_all(&["MULTI", "SET c 1", "EXEC"]).await;
        assert_eq!(replies[2], "*-1\r\n", "{change}");
        let replies = client.ask_all(&["MULTI", "SET c 1", "EXEC"]).await;
        assert_eq!(replies[2], "*1\r\n+OK\r\n", "EXEC forgets what was watched");
    }
    client.ask("WATCH a").await;
    let replies = client.ask_all(&["SET a own", "MULTI", "PING", "EXEC"]).await;
    assert_eq!(replies[3], "*-1\r\n", "its own write too");
    client.ask("WATCH missing").await;
    other.ask("SET z 1").await;
    assert_eq!(client.ask_all(&["MULTI", "GET a", "EXEC"]).await[2], "*1\r\n$3\r\nown\r\n");
    client.ask_all(&["HELLO 3", "WATCH a"]).await;
    other.ask("SET a 2").await;
    assert_eq!(client.ask_all(&["MULTI", "EXEC"]).await[1], "_\r\n", "without a command too");
}

#[tokio::test]
async fn unwatch_discard_and_reset_forget_what_is_watched() {
    let server = Server::start().await;
    let (mut client, mut other) = (server.connect().await, server.connect().await);
    for forget in [&["UNWATCH"][..], &["MULTI", "DISCARD"], &["RESET"]] {
        client.ask("WATCH a").await;
        other.ask("SET a 1").await;
        client.ask_all(forget).await;
        let replies = client.ask_all(&["MULTI", "GET a", "EXEC"]).await;
        assert_eq!(replies[2], "*1\r\n$1\r\n1\r\n", "{forget:?}");
    }
    client.ask("WATCH a").await;
    other.ask("SET a 1").await;
    let replies = client.ask_all(&["MULTI", "UNWATCH", "EXEC"]).await;
    assert_eq!(replies[2], "*-1\r\n", "UNWATCH is queued");
}

#[tokio::test]
async fn a_name_that_is_watched_twice_keeps_its_first_number() {
    let server = Server::start().await;
    let (mut client, mut other) = (server.connect().await, server.connect().await);
    client.ask("WATCH a").await;
    other.ask("SET a 1").await;
    client.ask("WATCH a").await;
    assert_eq!(client.ask_all(&["MULTI", "GET a", "EXEC"]).await[2], "*-1\r\n");
    let names: Vec<String> = (0..1_025).map(|number| format!("a{number}")).collect();
    let refused = client.ask(&format!("WATCH {}", names.join(" "))).await;
    assert!(refused.starts_with("-ERR a connection watches at most 1024 keys"), "{refused}");
}

#[tokio::test]
async fn keys_of_a_transaction_lie_in_one_region_with_those_that_it_watches() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let replies = client.ask_all(&["MULTI", "SET a 1", "SET z 1", "EXEC"]).await;
    assert!(replies[3].starts_with("-CROSSSLOT"), "{replies:?}");
    client.ask("WATCH z").await;
    let replies = client.ask_all(&["MULTI", "SET a 1", "EXEC"]).await;
    assert!(replies[2].starts_with("-CROSSSLOT"), "{replies:?}");
    let replies = client.ask_all(&["MULTI", "SET {x}a 1", "SET {x}z 1", "EXEC"]).await;
    assert_eq!(replies[3], "*2\r\n+OK\r\n+OK\r\n");
    assert_eq!(client.ask("GET a").await, "$-1\r\n");
}

#[tokio::test]
async fn a_failure_is_the_reply_to_exec() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let failure = RedisFailure::Undetermined("no answer".to_owned());
    server.fake.failures.lock().push_back(Some(failure));
    let replies = client.ask_all(&["MULTI", "SET a 1", "SET b 1", "EXEC", "PING"]).await;
    assert!(replies[3].starts_with("-UNDETERMINED"), "{replies:?}");
    assert_eq!(replies[4], "+PONG\r\n");
}

#[tokio::test]
async fn the_memory_of_queued_commands_is_kept_until_exec() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let value = "x".repeat(100 << 10);
    client.ask_all(&["MULTI", &format!("SET a {value}"), "SET b 1"]).await;
    let used = server.redis.memory.stats().used_bytes;
    assert!((100 << 10..200 << 10).contains(&used), "{used}");
    client.ask("EXEC").await;
    let redis = server.redis.clone();
    super::until("it is released", move || redis.memory.stats().used_bytes == 0).await;
}
