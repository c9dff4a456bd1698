//! `stele watch` of a node with certificates: what a caller sees depends on its grant.

use crate::common::{Ran, run};
use crate::tls::Certificates;
use crate::watch::{Watching, token_in};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time until a refusal or the end of a right is seen.
const LIMIT: Duration = Duration::from_secs(10);

fn ran(line: &str) -> Ran {
    run(Path::new("."), line)
}

/// Clients of one node, by the names in their certificates.
struct Clients<'a> {
    certificates: &'a Certificates,
    address: &'a str,
    dir: &'a Path,
}

impl Clients<'_> {
    /// Runs a command with an address and certificates before its other words.
    fn run(&self, name: &str, words: &str) -> Ran {
        let (command, rest) = words.split_once(' ').unwrap();
        let flags = self.certificates.of_client(name);
        ran(&format!("{command} --cluster {} {flags} {rest}", self.address))
    }

    fn grant(&self, words: &str) {
        self.run("root", &format!("ctl access grant {words}")).ok();
    }

    /// Starts a watch with these words, which saves its token in a new file. Waits until it watches.
    fn watch(&self, name: &str, file: &str, options: &[&str]) -> Watching {
        let file = self.dir.join(file);
        let flags = self.certificates.of_client(name);
        let mut words: Vec<&str> = flags.split(' ').collect();
        words.extend(["--save-token", file.to_str().unwrap()]);
        words.extend(options);
        let watching = Watching::at(self.address, &words);
        token_in(&file, "");
        watching
    }

    /// Asserts that a watch is refused soon, and why.
    fn refused(&self, name: &str, words: &str, reason: &str) {
        let asked = Instant::now();
        let refused = self.run(name, &format!("watch {words}")).fails(1, reason);
        assert!(asked.elapsed() < LIMIT, "a refusal is final: {refused:?}");
        assert_eq!(refused.text(), "", "{refused:?}");
    }
}

fn put(key: &str, value: &str) -> String {
    format!("{{\"event\":\"put\",\"key\":\"{key}\",\"value\":\"{value}\"}}\n")
}

#[test]
fn a_watch_shows_what_its_caller_may_read_and_ends_with_the_right() {
    let certificates = Certificates::new(&["n1"]);
    ["other", "writer"].iter().for_each(|name| certificates.create(&format!("client {name}")));
    let root = tempfile::tempdir().unwrap();
    let node = certificates.start(&root.path().join("a"), "n1", &[]);
    let clients = Clients { certificates: &certificates, address: &node.address, dir: root.path() };
    clients.run("root", "put a/0 before").ok();
    clients.grant("app --role read --prefix a/");
    clients.grant("writer --role write --prefix a/");

    let mut app = clients.watch("app", "app", &["a/"]);
    let mut all = clients.watch("root", "all", &[""]);
    clients.run("writer", "put a/1 v").ok();
    clients.run("root", "put b/1 hidden").ok();
    clients.run("writer", "put a/2 w").ok();
    assert_eq!(app.line(), put("a/1", "v"));
    assert_eq!(app.line(), put("a/2", "w"));
    for line in [put("a/1", "v"), put("b/1", "hidden"), put("a/2", "w")] {
        assert_eq!(all.line(), line);
    }
    let token = token_in(&root.path().join("app"), "");
    let mut resolved = clients.watch("app", "resolved", &["a/1", "--resolved"]);
    assert_eq!(resolved.line(), "{\"event\":\"resolved\"}\n", "leaders confirm it to a reader");
    resolved.signal();
    resolved.end();

    // Keys beside and around those of the grant, no right to read, no grant, and no certificate.
    let lacks = "client app lacks the right read";
    ["b/", "a"].iter().for_each(|prefix| clients.refused("app", prefix, lacks));
    clients.refused("writer", "a/", "client writer lacks the right read");
    clients.refused("other", "a/", "it has no grant");
    clients.refused("other", &format!("a/ --from {}", token.trim()), "it has no grant");
    let without =
        format!("watch --cluster {} --ca {} a/", node.address, certificates.file("ca.pem"));
    ran(&without).fails(1, "certificate");

    clients.grant("app --role read --prefix x/");
    let changed = Instant::now();
    let (code, text) = app.ended();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(lacks) && text.contains("watch1."), "{text}");
    assert!(changed.elapsed() < LIMIT, "{text}");
    clients.run("root", "put a/3 x").ok();
    assert_eq!(all.line(), put("a/3", "x"), "others go on");
    all.signal();
    all.end();
    // What was written meanwhile comes with the right.
    clients.grant("app --role read --prefix a/");
    let mut app = clients.watch("app", "again", &["a/", "--from", token.trim()]);
    let mut line = app.line();
    // The token may be from before the last lines.
    while line == put("a/1", "v") || line == put("a/2", "w") {
        line = app.line();
    }
    assert_eq!(line, put("a/3", "x"));
    app.signal();
    app.end();
    node.stop();
}
