//! Bytes that clients send when they connect, recorded from their newest releases, and what they need.

use super::{Client, Server, pipeline};

const MAINT: &str = "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip";
const NAME: &str = "CLIENT SETINFO LIB-NAME client";
const VERSION: &str = "CLIENT SETINFO LIB-VER 1.2.3";
const SET: &str = "SET key value";

const MAP: &str = "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n";
const OK: &str = "+OK\r\n";
const NO_SUBCOMMAND: &str = "-ERR unknown subcommand";
const INFO_3: &str = "=";
const INFO_2: &str = "$";
const ERROR: &str = "-ERR ";
const PONG: &str = "+PONG\r\n";

/// A write of a client: commands, each with the beginning of its reply.
type Write = &'static [(&'static str, &'static str)];

/// Clients, each with its writes in order.
const SETUPS: [(&str, &[Write]); 23] = [
    (
        "redis-py",
        &[
            &[("HELLO 3", MAP)],
            &[(MAINT, NO_SUBCOMMAND)],
            &[(NAME, OK)],
            &[(VERSION, OK)],
            &[(SET, OK)],
        ],
    ),
    (
        "redis-py asyncio",
        &[
            &[("HELLO 3", MAP)],
            &[(MAINT, NO_SUBCOMMAND)],
            &[(NAME, OK), (VERSION, OK)],
            &[(SET, OK)],
        ],
    ),
    ("valkey-py", &[&[(NAME, OK)], &[(VERSION, OK)], &[(SET, OK)]]),
    ("coredis", &[&[("HELLO 3", MAP)], &[(NAME, OK)], &[(VERSION, OK)], &[(SET, OK)]]),
    (
        "valkey-glide python",
        &[
            &[("HELLO 3", MAP)],
            &[(NAME, OK), (VERSION, OK)],
            &[("INFO REPLICATION", INFO_3)],
            &[(SET, OK)],
        ],
    ),
    (
        "valkey-glide node",
        &[
            &[("HELLO 3", MAP)],
            &[(NAME, OK), ("CLIENT SETINFO LIB-VER unknown", OK)],
            &[("INFO REPLICATION", INFO_3)],
            &[(SET, OK)],
        ],
    ),
    (
        "node-redis",
        &[&[("HELLO 3", MAP), (VERSION, OK), (NAME, OK), (MAINT, NO_SUBCOMMAND), (SET, OK)]],
    ),
    (
        "ioredis",
        &[
            &[("hello 3", MAP), (VERSION, OK), (NAME, OK)],
            &[("info", INFO_3)],
            &[("set key value", OK)],
        ],
    ),
    ("iovalkey", &[&[("info", INFO_2)], &[("set key value", OK)]]),
    (
        "go-redis",
        &[
            &[("hello 3", MAP)],
            &[("client maint_notifications on moving-endpoint-type internal-ip", NO_SUBCOMMAND)],
            &[("client setinfo LIB-NAME go", OK), ("client setinfo LIB-VER 9", OK)],
            &[("set key value", OK)],
        ],
    ),
    (
        "rueidis",
        &[&[
            ("HELLO 3", MAP),
            ("CLIENT TRACKING ON OPTIN", "-ERR CLIENT TRACKING is not built"),
            (NAME, OK),
            (VERSION, OK),
        ]],
    ),
    (
        "rueidis DisableCache",
        &[
            &[("HELLO 3", MAP), (NAME, OK), (VERSION, OK)],
            &[("CLUSTER SLOTS", ERROR)],
            &[(SET, OK)],
        ],
    ),
    ("redigo", &[&[(SET, OK)]]),
    ("jedis RedisClient", &[&[("HELLO 3", MAP)], &[(NAME, OK), (VERSION, OK)], &[(SET, OK)]]),
    ("jedis Jedis", &[&[(SET, OK)]]),
    (
        "lettuce",
        &[
            &[("HELLO 3", MAP)],
            &[("CLIENT SETINFO lib-name lettuce", OK), ("CLIENT SETINFO lib-ver 7", OK)],
            &[(MAINT, NO_SUBCOMMAND)],
            &[(SET, OK)],
        ],
    ),
    (
        "redisson",
        &[
            &[("PING", PONG)],
            &[("PING", PONG)],
            &[("EVAL return 2 test1 test2", "-ERR this script is not known")],
            &[(SET, OK)],
        ],
    ),
    ("redis-rs", &[&[(NAME, OK), (VERSION, OK)], &[(SET, OK)]]),
    ("redis-rs with RESP3", &[&[("HELLO 3", MAP), (NAME, OK), (VERSION, OK)], &[(SET, OK)]]),
    ("fred", &[&[("PING", PONG)], &[("CLIENT ID", ":")], &[("INFO server", INFO_2)], &[(SET, OK)]]),
    ("redis-cli", &[&[("COMMAND DOCS", "*")], &[("SET key value", OK)]]),
    ("redis-cli -3", &[&[("HELLO 3", MAP)], &[("COMMAND DOCS", "%")], &[(SET, OK)]]),
    (
        "redis-benchmark -3",
        &[
            &[
                ("CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
                ("CONFIG GET appendonly", "*2\r\n"),
            ],
            &[("HELLO 3", MAP), ("SET key value", OK)],
        ],
    ),
];

#[tokio::test]
async fn each_client_gets_what_its_handshake_needs() {
    let server = Server::start().await;
    for (name, writes) in SETUPS {
        let mut client = server.connect().await;
        for write in writes {
            let commands: Vec<&str> = write.iter().map(|(command, _)| *command).collect();
            let replies = client.ask_all(&commands).await;
            for ((command, expected), reply) in write.iter().zip(replies) {
                assert!(reply.starts_with(expected), "{name}, {command}: {reply}");
            }
        }
        let reads = client.ask("GET key").await;
        assert!(reads == "$5\r\nvalue\r\n" || name == "rueidis", "{name}: {reads}");
        let missing = client.ask("GET missing").await;
        let is_resp3 = writes.iter().flat_map(|write| *write).any(|(it, _)| it.ends_with("LLO 3"))
            || writes.iter().flat_map(|write| *write).any(|(it, _)| *it == "hello 3");
        assert_eq!(missing, if is_resp3 { "_\r\n" } else { "$-1\r\n" }, "{name}");
    }
}

#[tokio::test]
async fn hello_states_the_version_and_a_number_and_refuses_other_protocols() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let array = client.ask("HELLO").await;
    assert!(array.starts_with("*14\r\n") && array.contains("$5\r\nproto\r\n:2\r\n"), "{array}");
    let map = client.ask("HELLO 3 AUTH default any SETNAME me").await;
    assert!(map.contains("$7\r\nversion\r\n$5\r\n7.2.0\r\n$5\r\nproto\r\n:3\r\n"), "{map}");
    assert!(map.contains("$2\r\nid\r\n:1\r\n") && map.contains("$4\r\nrole\r\n$6\r\nmaster\r\n"));
    assert!(map.ends_with("$7\r\nmodules\r\n*0\r\n"), "{map}");
    assert_eq!(client.ask("CLIENT GETNAME").await, "$2\r\nme\r\n");
    let rows = [
        ("HELLO 4", "-NOPROTO unsupported protocol version\r\n"),
        ("HELLO x", "-ERR Protocol version is not an integer or out of range\r\n"),
        ("HELLO 3 FOO", "-ERR Syntax error in HELLO option 'FOO'\r\n"),
        ("HELLO 3 AUTH a", "-ERR Syntax error in HELLO option 'AUTH'\r\n"),
        (
            "HELLO 3 AUTH other any",
            "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
        ),
        ("AUTH any", "-ERR AUTH <password> called without any password configured"),
        ("AUTH default any", "+OK\r\n"),
        ("GET missing", "_\r\n"),
        ("RESET", "+RESET\r\n"),
        ("GET missing", "$-1\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
    ];
    for (command, expected) in rows {
        let reply = client.ask(command).await;
        assert!(reply.starts_with(expected), "{command}: {reply}");
    }
}

#[tokio::test]
async fn inline_commands_are_answered_and_quit_closes() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.send(b"PING\r\n  set \"a b\" 'c' \r\n\r\nGET \"a b\"\nQUIT\r\nPING\r\n").await;
    assert_eq!(client.rest().await, "+PONG\r\n+OK\r\n$1\r\nc\r\n+OK\r\n");
}

#[tokio::test]
async fn http_is_closed_without_an_answer() {
    let server = Server::start().await;
    for request in ["POST / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nSET a b\r\n"] {
        let mut client = server.connect().await;
        client.send(request.as_bytes()).await;
        assert!(!client.rest().await.contains("+OK"), "{request}");
    }
    assert_eq!(server.fake.commands(), Vec::<Vec<String>>::new());
}

#[tokio::test]
async fn a_handshake_is_answered_the_same_however_it_is_cut() {
    let server = Server::start().await;
    let commands = ["HELLO 3", NAME, "SET key value", "GET key", "PING"];
    let bytes = pipeline(&commands);
    let mut whole: Option<Vec<String>> = None;
    for cut in 1..bytes.len() {
        let mut client: Client = server.connect().await;
        client.send(&bytes[..cut]).await;
        tokio::task::yield_now().await;
        client.send(&bytes[cut..]).await;
        let mut replies = client.replies(commands.len()).await;
        // The number of the connection differs.
        replies[0].truncate(60);
        assert_eq!(whole.get_or_insert(replies.clone()), &replies, "cut at {cut}");
    }
}
