//! What a node with certificates shows: no key anywhere, refusals and administration in the audit log, failed handshakes
//! in the metrics.

use crate::common::{run, stele};
use crate::node_process::Node;
use crate::tls::Certificates;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stele_tls::rustls::pki_types::ServerName;
use stele_tls::rustls::{ClientConnection, StreamOwned};
use stele_tls::{
    Authority, ClientFiles, ClientName, ClientTls, Days, Protocol, ServerCheck, UnixTime,
};

const LIMIT: Duration = Duration::from_secs(20);
const DRAIN: &str = "/stele.control.v1.Control/SetStoreState";

/// Texts and bytes that must not be found, each with the name of its secret. Further secrets are added by
/// [`Secrets::plant`].
#[derive(Default)]
struct Secrets(Vec<(String, Vec<u8>)>);

impl Secrets {
    /// Adds all forms in which a secret may be written.
    fn plant(&mut self, name: &str, secret: &[u8]) {
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let list = format!("{:?}", &secret[..8]);
        let shifted = (0..3).map(|skipped| STANDARD.encode(&secret[skipped..])[..16].to_owned());
        let texts = [hex[..20].to_owned(), hex.to_uppercase()[..20].to_owned()].into_iter();
        let texts = texts.chain([list.trim_matches(['[', ']']).to_owned()]).chain(shifted);
        let forms = texts.map(String::into_bytes).chain([secret[..16].to_vec()]);
        self.0.extend(forms.map(|form| (name.to_owned(), form)));
    }

    /// Adds the number that is the secret part of a key of `stele cert`.
    fn plant_key(&mut self, certificates: &Certificates, name: &str) {
        let pem = std::fs::read_to_string(certificates.file(&format!("{name}.key"))).unwrap();
        let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let der = STANDARD.decode(body).unwrap();
        // PKCS 8 of P-256: the number is an octet string of 32 bytes.
        assert_eq!(der[34..36], [4, 32]);
        self.plant(name, &der[36..68]);
    }

    fn of(certificates: &Certificates) -> Self {
        let mut secrets = Self(vec![("any".to_owned(), b"PRIVATE KEY".to_vec())]);
        for name in ["ca", "n1", "app", "root"] {
            secrets.plant_key(certificates, name);
            let file = std::fs::read(certificates.file(&format!("{name}.key"))).unwrap();
            assert!(secrets.found_in(&file).contains(&name), "a planted key is found");
        }
        secrets
    }

    fn found_in(&self, text: &[u8]) -> Vec<&str> {
        let has = |form: &[u8]| text.windows(form.len()).any(|window| window == form);
        self.0.iter().filter(|(_, form)| has(form)).map(|(name, _)| name.as_str()).collect()
    }

    #[track_caller]
    fn check(&self, place: &str, text: impl AsRef<[u8]>) {
        let found = self.found_in(text.as_ref());
        assert_eq!(found, [""; 0], "{place}: {}", String::from_utf8_lossy(text.as_ref()));
    }

    /// Searches the command lines of all processes.
    #[track_caller]
    fn check_processes(&self, node: &Node) {
        let own = std::fs::read(format!("/proc/{}/cmdline", node.id())).unwrap();
        assert!(!own.is_empty());
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            // Others may end meanwhile, and may not be readable.
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            self.check("a command line", line);
        }
    }
}

/// Returns what a client with these files connects with.
fn client(certificates: &Certificates, pair: Option<[PathBuf; 2]>, now: UnixTime) -> ClientTls {
    let authorities = certificates.file("ca.pem").into();
    let pair = pair.map(|[certificate, key]| (certificate, key));
    ClientTls::open(ClientFiles { authorities, pair }, ServerCheck::HostName, now).unwrap()
}

fn pair(certificates: &Certificates, name: &str) -> Option<[PathBuf; 2]> {
    Some(["pem", "key"].map(|suffix| certificates.file(&format!("{name}.{suffix}")).into()))
}

/// Returns the time of `days` days ago.
fn ago(days: u64) -> UnixTime {
    let seconds = UnixTime::now().as_secs() - days * 86_400;
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// Creates the certificate of a client that has ended.
fn expired(certificates: &Certificates) -> ClientTls {
    let dir = PathBuf::from(certificates.file("old"));
    std::fs::create_dir(&dir).unwrap();
    let ca = Path::new(&certificates.file("ca.pem")).parent().unwrap().to_owned();
    let authority = Authority::open(&ca, UnixTime::now()).unwrap();
    let name = ClientName::new("old").unwrap();
    let written = authority.client(&name, Days::new(1).unwrap(), ago(3)).unwrap().write(&dir);
    let written = written.unwrap();
    // The client's own check sees a time at which its certificate was valid.
    client(certificates, Some([written.certificate, written.key]), ago(3))
}

/// Returns the answer to a request over TLS, or the error.
fn get(address: &str, tls: &ClientTls, path: &str) -> String {
    let exchange = || {
        let tcp = TcpStream::connect(address)?;
        tcp.set_read_timeout(Some(LIMIT))?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let session = ClientConnection::new(tls.config(Protocol::Http1), name);
        let mut stream = StreamOwned::new(session.map_err(std::io::Error::other)?, tcp);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    exchange().unwrap_or_else(|error| error.to_string())
}

/// Connects in ways that a node refuses; returns the errors.
fn provoke(certificates: &Certificates, node: &Node) -> Vec<String> {
    let other = Certificates::new(&[]);
    let files = |ca: &Certificates, pair| {
        let authorities = ca.file("ca.pem").into();
        let files = ClientFiles { authorities, pair };
        ClientTls::open(files, ServerCheck::HostName, UnixTime::now()).unwrap()
    };
    let [certificate, key] = pair(&other, "app").unwrap();
    let foreign = files(certificates, Some((certificate, key)));
    let connect = |tls: &ClientTls| get(&node.address, tls, "/status");
    let mut errors = vec![
        connect(&client(certificates, None, UnixTime::now())),
        connect(&foreign),
        connect(&expired(certificates)),
    ];
    let mut plain = TcpStream::connect(&node.address).unwrap();
    plain.write_all(b"GET /status HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    plain.read_to_end(&mut answer).unwrap();
    for error in &errors {
        assert!(!error.contains("200 OK"), "{error}");
    }
    errors.push(String::from_utf8_lossy(&answer).into_owned());
    errors
}

#[test]
fn no_key_is_in_logs_pages_errors_or_command_lines() {
    let certificates = Certificates::new(&["n1"]);
    let secrets = Secrets::of(&certificates);
    let root = tempfile::tempdir().unwrap();
    let audit = root.path().join("audit").display().to_string();
    let more = ["--log-level", "trace", "--audit-log", &audit];
    let node = certificates.start(&root.path().join("a"), "n1", &more);
    for error in provoke(&certificates, &node) {
        secrets.check("an error", error);
    }
    let [app, admin] = ["app", "root"].map(|name| certificates.of_client(name));
    let cluster = format!("--cluster {}", node.address);
    for line in [
        format!("ctl {cluster} {admin} config"),
        format!("ctl {cluster} {admin} config tls_key x"),
        format!("ctl {cluster} {app} drain 1"),
        format!("get {cluster} {app} k"),
        format!("get {cluster} {} k", app.replace("app.key", "root.key")),
        format!("get {cluster} {} k", app.replace("app.pem", "app.key")),
        format!("get {cluster} {} k", app.replace("ca.pem", "app.key")),
    ] {
        let ran = run(root.path(), &line);
        secrets.check(&line, [ran.out, ran.err.into_bytes()].concat());
    }
    let config = run(root.path(), &format!("ctl {cluster} {admin} config")).ok();
    assert!(config.text().contains("n1.key"), "the path is shown: {config:?}");
    let tls = client(&certificates, pair(&certificates, "root"), UnixTime::now());
    for path in ["/", "/status", "/metrics", "/healthz", "/readyz"] {
        let answer = get(&node.address, &tls, path);
        assert!(answer.contains("200 OK"), "{path}: {answer}");
        secrets.check(path, answer);
    }
    secrets.check_processes(&node);
    // Files that cannot be used: the key of another certificate, and a part of a key.
    let key = std::fs::read_to_string(certificates.file("n1.key")).unwrap();
    std::fs::copy(certificates.file("app.key"), certificates.file("n1.key")).unwrap();
    node.signal("HUP");
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(certificates.file("n1.key"), &key[..key.len() / 2]).unwrap();
    node.signal("HUP");
    std::thread::sleep(Duration::from_millis(300));
    secrets.check("printed", node.printed.join("\n"));
    let log = node.stop();
    assert!(log.contains("n1.key"), "the files were read: {log}");
    secrets.check("the log", log);
    let lines = std::fs::read_to_string(audit).unwrap();
    assert!(lines.lines().count() > 3, "{lines}");
    secrets.check("the audit log", lines);
}

#[test]
fn a_key_in_place_of_its_path_is_refused_and_not_repeated() {
    let certificates = Certificates::new(&["n1"]);
    let secrets = Secrets::of(&certificates);
    let root = tempfile::tempdir().unwrap();
    let key = std::fs::read_to_string(certificates.file("n1.key")).unwrap();
    let mut server = stele();
    server.args(["server", "--listen", "127.0.0.1:0", "--store"]).arg(root.path().join("a"));
    server.args(["--with-parent", &std::process::id().to_string(), "--log-level", "trace"]);
    for (variable, file) in [("STELE_TLS_CA", "ca.pem"), ("STELE_TLS_CERT", "n1.pem")] {
        server.env(variable, certificates.file(file));
    }
    let mut get = stele();
    get.args(["get", "--cluster", "127.0.0.1:1", "k"]);
    get.env("STELE_CA", certificates.file("ca.pem"));
    get.env("STELE_CERT", certificates.file("n1.pem"));
    for (command, variable) in [(&mut server, "STELE_TLS_KEY"), (&mut get, "STELE_KEY")] {
        let ended = command.env(variable, &key).output().unwrap();
        let text = [ended.stdout, ended.stderr].concat();
        assert!(!ended.status.success());
        secrets.check(variable, &text);
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("the content of a file"), "{variable}: {text}");
    }
}

#[test]
fn metrics_count_failed_handshakes_by_cause_and_the_days_of_the_certificate() {
    let certificates = Certificates::new(&[]);
    certificates.create("node n1 --cluster-name prod --host localhost,127.0.0.1 --days 30");
    let root = tempfile::tempdir().unwrap();
    let node = certificates.start(&root.path().join("a"), "n1", &[]);
    let tls = client(&certificates, pair(&certificates, "app"), UnixTime::now());
    let value = |sample: &str| {
        let metrics = get(&node.address, &tls, "/metrics");
        let text = metrics.lines().find_map(|line| Some(line.strip_prefix(sample)?.to_owned()));
        text.map(|text| text.trim().parse::<f64>().unwrap())
    };
    let days = value("stele_tls_certificate_days_left ").unwrap();
    assert!((29.0..=30.0).contains(&days), "{days}");
    let of =
        |cause: &str| value(&format!("stele_tls_handshakes_failed_total{{cause=\"{cause}\"}} "));
    let causes = ["no_certificate", "unknown_issuer", "expired", "plaintext"];
    assert_eq!(causes.map(of), [None; 4]);
    for _ in 0..2 {
        provoke(&certificates, &node);
        let _ = std::fs::remove_dir_all(certificates.file("old"));
    }
    assert_eq!(causes.map(of), [Some(2.0); 4]);
    assert_eq!(of("timeout"), None);
    node.stop();
}

#[test]
fn refusals_and_administration_are_lines_of_the_audit_log() {
    let certificates = Certificates::new(&["n1"]);
    let root = tempfile::tempdir().unwrap();
    let audit = root.path().join("audit").display().to_string();
    let node = certificates.start(&root.path().join("a"), "n1", &["--audit-log", &audit]);
    let [app, admin] = ["app", "root"].map(|name| certificates.of_client(name));
    let cluster = format!("--cluster {}", node.address);
    run(root.path(), &format!("ctl {cluster} {app} drain 1")).fails(1, "may not call");
    run(root.path(), &format!("put {cluster} {app} the-key the-value")).ok();
    run(root.path(), &format!("ctl {cluster} {admin} config balance 0")).ok();
    run(root.path(), &format!("ctl {cluster} {admin} config balance a-wrong-value")).fails(1, "");
    run(root.path(), &format!("ctl {cluster} {admin} stores")).ok();
    provoke(&certificates, &node);
    let tls = client(&certificates, pair(&certificates, "root"), UnixTime::now());
    let metrics = get(&node.address, &tls, "/metrics");
    assert!(metrics.contains("\nstele_audit_lines_lost_total 0\n"), "{metrics}");
    node.stop();
    let text = std::fs::read_to_string(audit).unwrap();
    for absent in ["the-key", "the-value", "a-wrong-value", "RawPut", "ListStores"] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let has = |fields: &[(&str, &str)]| {
        let is = |line: &Value| fields.iter().all(|(field, text)| line[*field] == *text);
        assert!(lines.iter().any(is), "{fields:?}: {text}");
    };
    for name in ["app", "root"] {
        has(&[("event", "first_seen"), ("caller", "client"), ("name", name)]);
    }
    let refused = ("outcome", "refused");
    has(&[("event", "refused"), ("name", "app"), ("call", DRAIN), refused]);
    let set = ("call", "/stele.control.v1.Control/SetConfig");
    let (root, balance) = (("name", "root"), ("arguments", "setting balance"));
    has(&[("event", "administration"), root, set, balance, ("outcome", "ok")]);
    has(&[("event", "administration"), root, set, balance, ("outcome", "failed")]);
    for cause in ["no_certificate", "unknown_issuer", "expired", "plaintext"] {
        let reason = |line: &Value| line["reason"].as_str().unwrap_or_default().to_owned();
        let is = |line: &Value| {
            line["event"] == "handshake_failed" && reason(line).starts_with(&format!("{cause}: "))
        };
        assert!(lines.iter().any(is), "{cause}: {text}");
    }
}
