//! Commands that the connection answers itself.

use super::{Server, until};

#[tokio::test]
async fn commands_of_the_connection_answer_as_in_redis() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let rows = [
        ("PING", "+PONG\r\n"),
        ("ping x", "$1\r\nx\r\n"),
        ("PING x y", "-ERR wrong number of arguments for 'ping' command\r\n"),
        ("ECHO x", "$1\r\nx\r\n"),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command\r\n"),
        ("SELECT 15", "+OK\r\n"),
        ("SELECT 16", "-ERR DB index is out of range\r\n"),
        ("SELECT -1", "-ERR DB index is out of range\r\n"),
        ("SELECT x", "-ERR value is not an integer or out of range\r\n"),
        ("WAIT 1 0", ":1\r\n"),
        ("WAIT x 0", "-ERR value is not an integer or out of range\r\n"),
        ("WAITAOF 1 1 0", "*2\r\n:1\r\n:1\r\n"),
        ("CLIENT ID", ":1\r\n"),
        ("CLIENT SETNAME a", "+OK\r\n"),
        ("CLIENT SETNAME \u{e4}", "-ERR Client names cannot contain"),
        ("CLIENT GETNAME", "$1\r\na\r\n"),
        ("CLIENT NO-EVICT on", "+OK\r\n"),
        ("CLIENT NO-EVICT maybe", "-ERR syntax error\r\n"),
        ("CLIENT SETINFO other x", "-ERR Unrecognized option 'other'\r\n"),
        ("CLIENT PAUSE 1", "-ERR unknown subcommand 'PAUSE'. Try CLIENT HELP.\r\n"),
        ("CLIENT TRACKING on", "-ERR CLIENT TRACKING is not built"),
        ("CONFIG GET nothing", "*0\r\n"),
        ("CONFIG GET data* save", "*4\r\n$9\r\ndatabases\r\n$2\r\n16\r\n$4\r\nsave\r\n$0\r\n\r\n"),
        ("CONFIG SET save x hz 10", "+OK\r\n"),
        (
            "CONFIG SET maxmemory 1",
            "-ERR Unknown option or number of arguments for CONFIG SET - 'maxmemory'",
        ),
        ("CONFIG SET save", "-ERR wrong number of arguments for 'config|set' command\r\n"),
        ("CONFIG RESETSTAT", "+OK\r\n"),
        ("COMMAND COUNT", ":"),
        (
            "COMMAND INFO get nothing",
            "*2\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n",
        ),
        ("COMMAND GETKEYS mset a 1 b 2", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("COMMAND GETKEYS ping", "-ERR The command has no key arguments\r\n"),
        ("FUNCTION FLUSH", "+OK\r\n"),
        ("FUNCTION LOAD x", "-ERR unknown subcommand 'LOAD'. Try FUNCTION HELP.\r\n"),
        ("LASTSAVE", ":"),
        ("DBSIZE", ":7\r\n"),
        ("UNWATCH", "+OK\r\n"),
        ("NOTHING a", "-ERR unknown command 'NOTHING', with args beginning with: 'a' \r\n"),
        (
            "LPUSH a b",
            "-ERR unknown command 'LPUSH', with args beginning with: 'a' 'b' . Lists are not built",
        ),
        (
            "FCALL x 0",
            "-ERR unknown command 'FCALL', with args beginning with: 'x' '0' . Functions and read-only scripts",
        ),
        ("EVAL x 0", "-ERR this script is not known: only scripts of lock libraries are"),
        ("SCRIPT LOAD x", "-ERR this script is not known"),
        ("EVALSHA x 0", "-NOSCRIPT No matching script. Please use EVAL.\r\n"),
        ("SCRIPT EXISTS C3F8721cbb97f72bc19e972846bd7aaf91901658 x", "*2\r\n:1\r\n:0\r\n"),
        ("SCRIPT FLUSH", "+OK\r\n"),
        ("COMMAND GETKEYS evalsha x 2 a b c", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("CLUSTER SHARDS", "-ERR unknown command 'CLUSTER'"),
    ];
    for (command, expected) in rows {
        let reply = client.ask(command).await;
        assert!(reply.starts_with(expected), "{command}: {reply}");
    }
}

#[tokio::test]
async fn wrong_arguments_have_the_errors_of_redis() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let rows = [
        ("WAIT -1 0", ":1\r\n"),
        ("WAIT 1 x", "-ERR timeout is not an integer or out of range\r\n"),
        ("WAIT 1 -1", "-ERR timeout is negative\r\n"),
        ("WAITAOF 2 0 0", "-ERR value is out of range, value must between 0 and 1\r\n"),
        ("WAITAOF 1 -1 0", "-ERR value is out of range, must be positive\r\n"),
        ("WAITAOF 1 x 0", "-ERR value is not an integer or out of range\r\n"),
        ("WAITAOF 1 1 -1", "-ERR timeout is negative\r\n"),
        ("SCRIPT FLUSH async", "+OK\r\n"),
        ("SCRIPT FLUSH x", "-ERR SCRIPT FLUSH only support SYNC|ASYNC option\r\n"),
        ("FUNCTION FLUSH sync", "+OK\r\n"),
        ("FUNCTION FLUSH x", "-ERR FUNCTION FLUSH only supports SYNC|ASYNC option\r\n"),
        ("COMMAND LIST FILTERBY PATTERN hel*", "*1\r\n$5\r\nhello\r\n"),
        ("COMMAND LIST FILTERBY MODULE x", "*0\r\n"),
        ("COMMAND LIST x", "-ERR syntax error\r\n"),
        ("CONFIG SET hz 10 hz", "-ERR syntax error\r\n"),
        ("CLIENT KILL TYPE other", "-ERR Unknown client type 'other'\r\n"),
        ("CLIENT LIST TYPE other", "-ERR Unknown client type 'other'\r\n"),
    ];
    for (command, expected) in rows {
        assert_eq!(client.ask(command).await, expected, "{command}");
    }
}

#[tokio::test]
async fn info_has_the_lines_that_clients_read_in_any_case_of_its_sections() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let all = client.ask("INFO").await;
    for line in [
        "redis_version:7.2.0\r\n",
        "role:master\r\n",
        "loading:0\r\n",
        "arch_bits:64\r\n",
        "cluster_enabled:0\r\n",
        "connected_clients:1\r\n",
        "uptime_in_seconds:",
        "# Server\r\n",
        "# Keyspace\r\n",
    ] {
        assert!(all.contains(line), "{line}: {all}");
    }
    let one = client.ask("INFO Replication").await;
    assert!(one.contains("role:master") && !one.contains("redis_version"), "{one}");
    assert_eq!(client.ask("INFO nothing").await, "$0\r\n\r\n");
}

#[tokio::test]
async fn connections_are_listed_and_can_be_closed_by_another_one() {
    let server = Server::start().await;
    let (mut one, mut other) = (server.connect().await, server.connect().await);
    assert_eq!(other.ask("CLIENT SETNAME other").await, "+OK\r\n");
    assert_eq!(one.ask("SELECT 3").await, "+OK\r\n");
    let list = one.ask("CLIENT LIST").await;
    assert_eq!(list.matches("id=").count(), 2, "{list}");
    assert!(list.contains("name=other") && list.contains("cmd=client|setname"), "{list}");
    assert!(list.contains("db=3") && list.contains("cmd=client|list user=default"), "{list}");
    assert!(one.ask("CLIENT INFO").await.contains("id="));
    assert!(one.ask("CLIENT LIST ID 99").await.starts_with("$0"));
    let address = other.stream.local_addr().unwrap();
    assert_eq!(one.ask(&format!("CLIENT KILL ADDR {address}")).await, ":1\r\n");
    assert_eq!(other.rest().await, "");
    assert_eq!(one.ask("CLIENT KILL ID 1").await, ":0\r\n", "it skips itself");
    assert_eq!(one.ask("CLIENT KILL 127.0.0.1:1").await, "-ERR No such client\r\n");
    let redis = server.redis.clone();
    until("the other is closed", move || redis.clients.count() == 1).await;
    assert_eq!(one.ask("CLIENT KILL ID 1 SKIPME no").await, ":1\r\n");
    assert_eq!(one.rest().await, "");
}

#[tokio::test]
async fn replies_are_left_out_as_client_reply_says() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let commands = [
        "CLIENT REPLY SKIP",
        "SET a 1",
        "GET a",
        "CLIENT REPLY OFF",
        "SET a 2",
        "PING",
        "CLIENT REPLY SKIP",
        "GET a",
        "CLIENT REPLY ON",
        "GET a",
    ];
    client.send(&super::pipeline(&commands)).await;
    assert_eq!(client.replies(3).await, ["$1\r\n1\r\n", "+OK\r\n", "$1\r\n2\r\n"]);
}
