//! Nodes and clients with certificates, as processes.

use crate::common::{Ran, run, stele};
use crate::node_process::{Node, until};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

/// Certificates of a cluster in a directory of their own.
pub(crate) struct Certificates(tempfile::TempDir);

impl Certificates {
    /// Creates an authority, a certificate of each node, and those of an administrator and an application.
    pub(crate) fn new(nodes: &[&str]) -> Self {
        let certificates = Self(tempfile::tempdir().unwrap());
        certificates.create("ca");
        for node in nodes {
            certificates.node(node);
        }
        certificates.create("client root");
        certificates.create("client app");
        certificates
    }

    pub(crate) fn create(&self, line: &str) {
        run(self.0.path(), &format!("cert {line} --dir $")).ok();
    }

    fn node(&self, name: &str) {
        self.create(&format!("node {name} --cluster-name prod --host localhost,127.0.0.1"));
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Returns the flags of a node.
    fn of_node(&self, name: &str) -> Vec<String> {
        let (certificate, key) = (format!("{name}.pem"), format!("{name}.key"));
        [("--tls-ca", "ca.pem"), ("--tls-cert", &certificate), ("--tls-key", &key)]
            .into_iter()
            .flat_map(|(flag, file)| [flag.to_owned(), self.file(file)])
            .chain(["--administrators", "root"].map(str::to_owned))
            .collect()
    }

    pub(crate) fn start(&self, dir: &Path, name: &str, more: &[&str]) -> Node {
        self.start_at(dir, (name, "127.0.0.1:0"), more)
    }

    pub(crate) fn start_at(&self, dir: &Path, (name, at): (&str, &str), more: &[&str]) -> Node {
        let mut flags = self.of_node(name);
        flags.extend(more.iter().map(|word| (*word).to_owned()));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Node::start(dir, at, &flags)
    }

    /// Returns the flags of a client.
    pub(crate) fn of_client(&self, name: &str) -> String {
        let file = |suffix: &str| self.file(&format!("{name}.{suffix}"));
        format!("--ca {} --cert {} --key {}", self.file("ca.pem"), file("pem"), file("key"))
    }
}

fn ran(line: &str) -> Ran {
    run(Path::new("."), line)
}

#[test]
fn nodes_and_clients_with_certificates_form_a_cluster_and_others_get_nothing() {
    let certificates = Certificates::new(&["n1", "n2"]);
    let root = tempfile::tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| root.path().join(name));
    let first = certificates.start(&dirs[0], "n1", &[]);
    let (app, admin) = (certificates.of_client("app"), certificates.of_client("root"));
    ran(&format!("ctl --cluster {} {app} admit n2", first.address)).fails(1, "may not call");
    ran(&format!("ctl --cluster {} {admin} admit n2", first.address)).ok();
    let second = certificates.start(&dirs[1], "n2", &["--join", &first.address.clone()]);
    let regions = format!("ctl --cluster {} {admin} --json regions", first.address);
    until(&dirs[0], &regions, |row| row.contains("\"stores\":[1,2]"));
    let at = |address: &str, command: &str| format!("{command} --cluster {address}");
    ran(&format!("{} {app} k v", at(&first.address, "put"))).ok();
    let got = ran(&format!("{} {app} k", at(&second.address, "get"))).ok();
    assert_eq!(got.text().trim(), "v");
    // An application administers nothing.
    let drain = |flags: &str| format!("ctl --cluster {} {flags} drain 2", first.address);
    let asked = Instant::now();
    ran(&drain(&app)).fails(1, "client app may not call /stele.control.v1.Control/SetStoreState");
    assert!(asked.elapsed() < LIMIT / 4, "a refusal is final");
    // The nodes of a moment are called with the certificate of the leader, also through another node.
    let moment = |flags: &str| ran(&format!("ctl --cluster {} {flags} moment", second.address));
    assert!(moment(&admin).ok().text().contains("1 region, paused in "));
    moment(&app).fails(1, "client app may not call /stele.control.v1.Control/TakeMoment");
    // Without a certificate, of another authority, and without TLS.
    let ca = certificates.file("ca.pem");
    let other = Certificates::new(&[]);
    let foreign = other.of_client("app").replace(&other.file("ca.pem"), &ca);
    for (flags, text) in [
        (format!("--ca {ca}"), "certificate"),
        (foreign, "certificate"),
        (other.of_client("app"), "UnknownIssuer"),
        (String::new(), "the node requires TLS"),
    ] {
        let line = format!("{} {flags} k", at(&first.address, "get")).replace("  ", " ");
        let refused = ran(&line);
        assert!(refused.code == 1 && refused.err.contains(text), "{flags}: {refused:?}");
    }
    // The second node takes the leaders over.
    let log = first.stop();
    for cause in ["no_certificate", "unknown_issuer", "plaintext"] {
        assert!(log.contains(&format!("failed ({cause})")), "{cause}: {log}");
    }
}

#[test]
fn a_node_waits_for_a_permission_to_join_and_a_token_is_one() {
    let certificates = Certificates::new(&["n1", "n2", "n3"]);
    let root = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "c"].map(|name| root.path().join(name));
    let first = certificates.start(&dirs[0], "n1", &[]);
    let ctl = format!("ctl --cluster {} {}", first.address, certificates.of_client("root"));
    let join = ["--join", &first.address.clone()];
    let waiting = std::thread::scope(|scope| {
        let second = scope.spawn(|| certificates.start(&dirs[1], "n2", &join));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!second.is_finished(), "it has no permission");
        ran(&format!("{ctl} admit n2 --valid 5m")).ok();
        second.join().unwrap()
    });
    let token = ran(&format!("{ctl} join-token --valid 1h")).ok().text().trim().to_owned();
    assert!(token.starts_with("stele_") && token.len() == 70, "{token}");
    std::fs::write(certificates.file("n3.join-token"), token + "\n").unwrap();
    let third = certificates.start(&dirs[2], "n3", &join);
    let members = format!("{ctl} --json members");
    let is_bound = |rows: &str| {
        ["n1", "n2", "n3"].iter().all(|it| rows.contains(&format!("\"node\":\"{it}\"")))
    };
    until(&dirs[0], &members, is_bound);
    // A node administers nothing by its own certificate, also through another one.
    let as_node = format!("ctl --cluster {} {}", waiting.address, certificates.of_client("n2"));
    for change in ["drain 1", "config replicas 5", "admit n4"] {
        let refused = ran(&format!("{as_node} {change}"));
        assert!(
            refused.code != 0 && refused.err.contains("changes nothing by itself"),
            "{refused:?}"
        );
    }
    ran(&format!("{as_node} stores")).ok();
    let as_node = format!("--cluster {} {}", waiting.address, certificates.of_client("n2"));
    ran(&format!("get {as_node} k")).fails(1, "uses no keys by its own certificate");
    // An administrator does, through any node.
    let through = format!("ctl --cluster {} {}", third.address, certificates.of_client("root"));
    ran(&format!("{through} config replicas 5")).ok();
    let log = first.stop();
    assert!(
        log.contains("node n2 is refused (join)") && log.contains("stele ctl admit n2"),
        "{log}"
    );
}

/// Waits until a put and a get succeed through each node.
fn served(dir: &Path, nodes: &[Node], flags: &str, value: &str) {
    for node in nodes {
        let at = format!("--cluster {} {flags}", node.address).trim_end().to_owned();
        until(dir, &format!("put {at} k {value}"), |_| true);
        until(dir, &format!("get {at} k"), |got| got.trim() == value);
    }
}

#[test]
fn tls_is_turned_on_node_by_node_while_clients_work() {
    let certificates = Certificates::new(&["n1", "n2", "n3"]);
    let root = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "c"].map(|name| root.path().join(name));
    let plain = |dir: &Path, more: &[&str]| Node::start(dir, "127.0.0.1:0", more);
    let first = plain(&dirs[0], &["--tick-ms", "20"]);
    let join = ["--join", &first.address.clone()];
    let mut nodes = vec![first, plain(&dirs[1], &join), plain(&dirs[2], &join)];
    let regions = format!("ctl --cluster {} --json regions", nodes[0].address);
    until(root.path(), &regions, |row| row.contains("\"stores\":[1,2,3]"));
    let mut restart = |certificates_of_clients: &str, check: &dyn Fn(&[Node], usize)| {
        for (number, dir) in dirs.iter().enumerate() {
            let node = nodes.remove(number);
            let (at, name) = (node.address.clone(), format!("n{}", number + 1));
            node.stop();
            let more = ["--client-certificates", certificates_of_clients];
            nodes.insert(number, certificates.start_at(dir, (&name, &at), &more));
            check(&nodes, number);
        }
    };
    let [app, admin] = ["app", "root"].map(|name| certificates.of_client(name));
    let dir = root.path();
    // Some nodes speak TLS and others do not, and clients do not.
    restart("transition", &|nodes, number| served(dir, nodes, "", &format!("plain{number}")));
    // No grant is in force where callers without TLS have every right.
    restart("required", &|nodes, number| {
        if number == 1 {
            let grant =
                format!("ctl --cluster {} {admin} access grant app --role read", nodes[0].address);
            ran(&grant).fails(1, "grants");
        }
        served(dir, nodes, &app, &format!("tls{number}"));
    });
    for node in &nodes {
        ran(&format!("get --cluster {} k", node.address)).fails(1, "the node requires TLS");
    }
    let members = format!("ctl --cluster {} {admin} --json members", nodes[0].address);
    let is_bound = |rows: &str| {
        ["n1", "n2", "n3"].iter().all(|it| rows.contains(&format!("\"node\":\"{it}\"")))
    };
    until(dir, &members, is_bound);
    served(dir, &nodes, &app, "bound");
}

#[test]
fn certificates_change_while_a_node_serves_and_bad_files_change_nothing() {
    let certificates = Certificates::new(&["n1"]);
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("a");
    let node = certificates.start(&dir, "n1", &[]);
    let copy = |from: &str, to: &str| {
        std::fs::copy(certificates.file(from), certificates.file(to)).unwrap();
    };
    let get = format!("get --cluster {} {} k", node.address, certificates.of_client("app"));
    ran(&get).fails(3, "");
    // A certificate without its key is refused; the pair in force stays.
    certificates.node("n2");
    copy("n2.pem", "n1.pem");
    node.signal("HUP");
    ran(&get).fails(3, "");
    // An authority of its own for each side; the bundle has both.
    let next = Certificates::new(&["n1"]);
    let bundle = [certificates.file("ca.pem"), next.file("ca.pem")];
    let bundle = bundle.map(|file| std::fs::read_to_string(file).unwrap()).concat();
    std::fs::write(certificates.file("ca.pem"), bundle).unwrap();
    for file in ["n1.pem", "n1.key"] {
        std::fs::copy(next.file(file), certificates.file(file)).unwrap();
    }
    node.signal("HUP");
    // The new client knows the new authority alone.
    let new = format!("get --cluster {} {} k", node.address, next.of_client("app"));
    let started = Instant::now();
    while ran(&new).code != 3 {
        assert!(started.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(100));
    }
    let log = node.stop();
    assert!(log.contains("the key") && log.contains("is not that of the certificate"), "{log}");
}

#[test]
fn a_node_with_certificates_answers_probes_without_one() {
    let certificates = Certificates::new(&["n1"]);
    let root = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let dir = root.path().join("a");
    let node = certificates.start(&dir, "n1", &["--health-listen", &free]);
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(&free).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("/healthz").starts_with("HTTP/1.1 200") && ask("/healthz").ends_with("\r\n\r\n"));
    assert!(ask("/metrics").starts_with("HTTP/1.1 404"));
    assert!(node.printed.iter().any(|line| line.contains("TLS; node n1 of cluster prod")));
    node.stop();
}

#[test]
fn a_node_without_tls_stays_on_loopback_unless_it_is_insecure() {
    let root = tempfile::tempdir().unwrap();
    let start = |more: &[&str]| {
        let mut server = stele();
        let all = ["server", "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:1", "--store"];
        server.args(all).arg(root.path().join("a")).args(more);
        // It ends with this process if it does start.
        server.args(["--with-parent", &std::process::id().to_string()]);
        server.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = server.spawn().unwrap();
        let started = Instant::now();
        while process.try_wait().unwrap().is_none() && started.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(10));
        }
        // Fails if it has ended, as it must.
        let _ = process.kill();
        process.wait_with_output().unwrap()
    };
    let refused = start(&[]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("each process that reaches the port may read and delete"), "{text}");
    assert!(text.contains("tls_cert") && text.contains("insecure"), "{text}");
    let certificates = Certificates::new(&["n1"]);
    let flags = certificates.of_node("n1");
    let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    flags.extend(["--client-certificates", "transition"]);
    let refused = start(&flags);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("without TLS") && text.contains("`insecure`"), "{text}");
    let refused = start(&["--tls-cert", "x.pem"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("tls_ca is not set"), "{text}");
    let node =
        Node::start(&PathBuf::from(root.path()).join("b"), "127.0.0.1:0", &["--insecure", "true"]);
    assert!(node.printed.iter().any(|line| line.contains("this machine only")));
    node.stop();
}
