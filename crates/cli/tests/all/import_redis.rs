//! Redis data moves into a node: RDB files of real servers, which `cargo test` does not need, are in `tests/rdb`.

use crate::common::run;
use crate::node_process::Node;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Returns a port that was free.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Sends an inline command; returns the first line of its reply, or the string.
fn ask(address: &str, command: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let (mut reader, mut line) = (BufReader::new(stream), String::new());
    reader.read_line(&mut line).unwrap();
    match line.strip_prefix('$').and_then(|bytes| bytes.trim().parse().ok()) {
        Some(bytes) => {
            let mut text = vec![0; bytes];
            reader.read_exact(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        }
        None => line.trim_end().to_owned(),
    }
}

#[test]
fn an_rdb_file_moves_into_a_node_and_is_compared_with_it() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("node");
    let address = format!("127.0.0.1:{}", port());
    let _node = Node::start(&dir, "127.0.0.1:0", &["--redis-listen", &address]);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rdb/redis-7.0.15.rdb");
    let line = format!("import --from {} --to redis://{address}", file.display());
    let started = Instant::now();
    // The node has no leader at first. The file also has types that are not stored.
    let ran = loop {
        let ran = run(&dir, &line);
        if ran.code == 1 && ran.err.contains("not stored") {
            break ran;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{ran:?}");
    };
    assert!(ran.err.contains("1 list, 1 stream, 1 zset"), "{ran:?}");
    assert_eq!(ask(&address, "GET text"), "plain");
    assert_eq!(ask(&address, "HGET hash:small f2"), "v2");
    assert_eq!(ask(&address, "SCARD set:large"), ":700");
    assert_eq!(ask(&address, "PEXPIRETIME text:expiring"), ":4102444800123");
    let check = format!("{line} --check");
    let ran = run(&dir, &check).fails(1, "not stored");
    assert!(!ran.err.contains("differing"), "{ran:?}");
    assert_eq!(ask(&address, "HSET hash:large f77 other"), ":0");
    run(&dir, &check).fails(1, "1 differing");
    run(&dir, &line).fails(1, "not stored");
    assert!(!run(&dir, &check).err.contains("differing"));
}
