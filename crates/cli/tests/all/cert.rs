//! `stele cert`, through the built binary.

use crate::common::{Ran, run, tree};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use stele_tls::{
    ClientCertificates, ClientFiles, ClientTls, ServerCheck, ServerFiles, ServerTls, UnixTime,
};

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("new").join("certs");
    (dir, certs)
}

/// Runs `stele cert` with the directory.
fn cert(dir: &Path, line: &str) -> Ran {
    run(dir, &format!("cert {line} --dir $"))
}

#[test]
fn certificates_of_an_authority_a_node_and_a_client_are_written_and_can_be_used() {
    let (_dir, certs) = place();
    let ca = cert(&certs, "ca").ok();
    assert!(ca.text().contains("/ca.key, valid until 20"), "{ca:?}");
    assert!(ca.text().contains("next: keep ca.key secret"), "{ca:?}");
    let command = format!("`stele cert node NAME --host HOST --dir {}`", certs.display());
    assert!(ca.text().contains(&command), "{ca:?}");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&certs), mode(&certs.join("ca.key"))), (0o700, 0o600));
    let node = cert(&certs, "node n1 --host localhost,127.0.0.1 --host ::1").ok();
    assert!(node.text().contains("copy ca.pem, n1.pem and n1.key to the node"), "{node:?}");
    cert(&certs, "client app-1 --days 10").ok();
    let now = UnixTime::now();
    let file = |name: &str| certs.join(name);
    let files = ServerFiles {
        authorities: file("ca.pem"),
        certificate: file("n1.pem"),
        key: file("n1.key"),
    };
    let server = ServerTls::open(files, ClientCertificates::Required, now).unwrap();
    assert_eq!(server.identity().unwrap().to_string(), "node n1 of cluster stele");
    assert_eq!((server.days_left(now), server.warnings().len()), (365, 0));
    let pair = Some((file("app-1.pem"), file("app-1.key")));
    let files = ClientFiles { authorities: file("ca.pem"), pair };
    let client = ClientTls::open(files, ServerCheck::HostName, now).unwrap();
    assert_eq!(client.warnings(), []);
}

#[test]
fn files_are_named_in_json_with_the_end_of_their_validity() {
    let (_dir, certs) = place();
    let path = |name: &str| certs.join(name).display().to_string();
    let now = UnixTime::now().as_secs();
    for (line, stem, days) in [
        ("ca --name My --json", "ca", 3_650),
        ("node n1.test --cluster-name prod --days 7 --json", "n1.test", 7),
        ("client app --days 36500 --json", "app", 3_650),
    ] {
        let ran = cert(&certs, line).ok();
        assert_eq!(ran.text().lines().count(), 1);
        let json = ran.json();
        assert_eq!(json["certificate"], path(&format!("{stem}.pem")));
        assert_eq!(json["key"], path(&format!("{stem}.key")));
        let end = json["not_after_s"].as_u64().unwrap();
        assert!(end.abs_diff(now + days * 86_400) < 60, "{stem}: {end}");
        assert!(json["next"].is_string());
    }
}

#[test]
fn nothing_is_overwritten_and_every_refusal_leaves_the_directory_as_it_was() {
    let (dir, certs) = place();
    cert(&certs, "node n1 --host a").fails(1, "ca.pem does not exist; create an authority");
    assert!(!certs.exists());
    cert(&certs, "ca").ok();
    cert(&certs, "client app").ok();
    let before = tree(dir.path());
    for (line, code, words) in [
        ("ca", 1, "ca.key exists, and nothing is ever overwritten"),
        ("client app", 1, "app.key exists"),
        ("client ca", 2, "cannot name a certificate"),
        ("client ../app", 2, "cannot name a certificate"),
        ("client new --days 0", 2, "not a number of days from 1 to 36500"),
        ("node n-", 2, "add `--host`"),
        ("node n1 --host a:2379", 2, "neither a host name nor an IP address"),
        ("node a/b --host a", 2, "cannot be the name of a node"),
        ("node n1 --host a --cluster-name a:1", 2, "cannot be the name of a cluster"),
    ] {
        let ran = cert(&certs, line).fails(code, words);
        assert!(ran.out.is_empty(), "{ran:?}");
    }
    assert_eq!(tree(dir.path()), before);
}
