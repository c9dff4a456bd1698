//! Two processes on one directory, a newer format, and damage.

use crate::common::{content, run, run_with, stele};
use std::io::{BufRead, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

// Catalogue: 7.
#[test]
fn the_second_process_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    run(&store, "put --store $ k v").ok();
    // The import holds the store open until its standard input is closed.
    let hold = || {
        let mut import = stele();
        import.args(["import", "--from", "-", "--store"]).arg(&store);
        import.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut holder = hold();
    let deadline = Instant::now() + Duration::from_secs(20);
    let refused = loop {
        let ran = run(&store, "get --store $ k");
        if ran.code != 0 || Instant::now() > deadline {
            break ran;
        }
        // The `get` above may have taken the lock first, in which case the import failed.
        if holder.try_wait().unwrap().is_some() {
            holder = hold();
        }
    };
    let refused = refused.fails(1, "is in use by another process");
    assert!(refused.err.contains(store.to_str().unwrap()), "{refused:?}");
    assert_eq!(refused.err.lines().count(), 1, "{refused:?}");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    run(&store, "get --store $ k").ok();
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "put --store $ k v").ok();
    let identity = dir.path().join("STORE");
    let text = std::fs::read_to_string(&identity).unwrap();
    let newer = text.replace("format 2", "format 99");
    assert_ne!(text, newer);
    std::fs::write(&identity, &newer).unwrap();
    run(dir.path(), "get --store $ k").fails(1, "use a newer version");
    run(dir.path(), "put --store $ k w").fails(1, "format 99");
    assert_eq!(std::fs::read_to_string(&identity).unwrap(), newer);
    std::fs::write(&identity, &text).unwrap();
    assert_eq!(run(dir.path(), "get --store $ k").ok().out, b"v");
}

#[test]
fn damage_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..20 {
        run_with(dir.path(), &format!("put --store $ k{number} --file -"), &content(number, 9000))
            .ok();
    }
    run(dir.path(), "verify --store $").ok();
    let log = dir.path().join("log");
    let segment = std::fs::read_dir(&log)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
        .max_by_key(|path| std::fs::metadata(path).unwrap().len())
        .unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    // The middle of a value, found by its content.
    let value = content(3, 9000);
    let at = bytes.windows(64).position(|window| window == &value[4000..4064]).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(&segment, &bytes).unwrap();
    let ran = run(dir.path(), "verify --store $ --json").fails(1, "");
    let report = ran.json();
    assert_eq!(report["ok"], false);
    assert!(report["damages"].as_u64().unwrap() >= 1, "{report}");
    assert!(report["damage"][0]["path"].as_str().unwrap().contains("log"), "{report}");
    let inspected = run(dir.path(), "inspect log --store $").ok();
    assert!(inspected.text().contains("DAMAGED"), "{inspected:?}");
}

#[test]
fn a_server_with_a_full_log_disk_serves() {
    let dir = tempfile::tempdir().unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut server = stele();
    server.args(["server", "--listen", "127.0.0.1:0", "--log-level", "debug", "--store"]);
    server.arg(dir.path()).stderr(Stdio::from(full)).stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let lines = std::io::BufReader::new(server.stdout.take().unwrap()).lines();
    let address = lines.map_while(Result::ok).find_map(|line| {
        Some(line.trim().strip_prefix("tikv/pd")?.split_whitespace().next()?.to_owned())
    });
    let address = address.unwrap();
    let line = format!("put --cluster {address} k v");
    let deadline = Instant::now() + Duration::from_secs(30);
    while run(dir.path(), &line).code != 0 {
        assert!(Instant::now() < deadline && server.try_wait().unwrap().is_none());
    }
    let mut stream = std::net::TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let lost = metrics.lines().find_map(|line| line.strip_prefix("stele_log_lines_lost_total "));
    assert!(lost.unwrap().parse::<u64>().unwrap() > 0);
    assert!(server.try_wait().unwrap().is_none(), "the server has ended");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn a_hang_up_reloads_the_file_and_a_signal_to_stop_ends_the_server_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (file, log) = (dir.path().join("stele.toml"), dir.path().join("log"));
    std::fs::write(&file, "slow_log_ms = 5000\nlog_level = \"info\"\n").unwrap();
    let mut server = stele();
    server.args(["server", "--listen", "127.0.0.1:0", "--config"]).arg(&file);
    server.arg("--store").arg(dir.path().join("store"));
    server.stderr(std::fs::File::create(&log).unwrap()).stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let mut lines = std::io::BufReader::new(server.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with("ready"), "{first}");
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &server.id().to_string()]).status().unwrap();
        assert!(sent.success());
    };
    let logged = |text: &str| {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let found = std::fs::read_to_string(&log).unwrap();
            if found.contains(text) {
                return found;
            }
            assert!(Instant::now() < deadline, "{text}: {found}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    std::fs::write(&file, "slow_log_ms = 7\nlog_level = \"warn\"\ntick_ms = 70\n").unwrap();
    signal("-HUP");
    logged("tick_ms = `70` is not the tick of the cluster; it stays `20`");
    std::fs::write(&file, "slow_log_ms = 8\nno_such_setting = 1\n").unwrap();
    signal("-HUP");
    logged("nothing changes");
    std::fs::write(&file, "slow_log_ms = 9\nlog_level = \"info\"\n").unwrap();
    signal("-HUP");
    let found = logged("slow_log_ms is `9` now; it was `7`");
    assert!(!found.contains("slow_log_ms is `7` now"), "the level was warn: {found}");
    signal("-TERM");
    let ended = server.wait().unwrap();
    assert!(ended.success(), "{ended}");
    assert!(logged("handed 0 leaders over").contains("2 stay"));
}
