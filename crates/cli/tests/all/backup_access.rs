//! Access rules and settings of a cluster with certificates, in its backup and in the cluster that is restored from it.

use crate::common::{Ran, run, tree};
use crate::tls::Certificates;
use std::path::Path;
use std::time::{Duration, Instant};
use stele_backup::format::Base;
use stele_backup::{OpenOptions, Repository};
use stele_tls::token_hash;

const LIMIT: Duration = Duration::from_secs(30);

fn ran(line: &str) -> Ran {
    run(Path::new("."), line)
}

/// Runs a command with an address and the flags of a client before its other words.
fn at(address: &str, flags: &str, words: &str) -> Ran {
    let (command, rest) = words.split_once(' ').unwrap();
    ran(&format!("{command} --cluster {address} {flags} {rest}"))
}

/// Returns the only base of a backup.
async fn base(place: &Path) -> Base {
    let place = place.to_str().unwrap();
    let repository = Repository::open(place, &OpenOptions::default()).await.unwrap();
    let moments = repository.restorable().await.unwrap();
    repository.base(moments.last().unwrap().base.unwrap().name).await.unwrap()
}

/// Asserts that no object of a backup, as stored or decoded, has a token or its hash.
fn has_no_secret(place: &Path, token: &str) {
    let hash = token_hash(token.as_bytes());
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let secrets = [token.as_bytes(), &hash[..], hex.as_bytes()];
    let has = |bytes: &[u8], secret: &[u8]| bytes.windows(secret.len()).any(|part| part == secret);
    for (path, bytes) in tree(place) {
        assert!(!secrets.iter().any(|secret| has(&bytes, secret)), "{path:?}");
    }
    let base = tokio::runtime::Runtime::new().unwrap().block_on(base(place));
    let text = format!("{:?}", (&base.access, &base.settings));
    assert!(text.contains("token:ci") && text.contains("balance"), "{text}");
    assert!(!secrets.iter().any(|secret| has(text.as_bytes(), secret)), "{text}");
}

#[test]
fn access_rules_and_settings_are_restored_and_secrets_are_not() {
    let certificates = Certificates::new(&["n1", "n2"]);
    ["other", "second"].iter().for_each(|name| certificates.create(&format!("client {name}")));
    let [admin, app, other, second] =
        ["root", "app", "other", "second"].map(|name| certificates.of_client(name));
    let root = tempfile::tempdir().unwrap();
    let (from, place) =
        (certificates.start(&root.path().join("a"), "n1", &[]), root.path().join("b"));
    let ctl = |address: &str, words: &str| at(address, &admin, &format!("ctl {words}"));
    let grant = "access grant app --role read,write --prefix a/ --operations-per-second 900";
    ctl(&from.address, grant).ok();
    ctl(&from.address, "access grant second --role admin").ok();
    let created = ctl(&from.address, "access token ci --role read --prefix a/ --json").ok().json();
    let token = created["token"].as_str().unwrap();
    for words in ["config balance 0", "config replicas 5"] {
        ctl(&from.address, words).ok();
    }
    at(&from.address, &app, "put a/1 v").ok();
    at(&from.address, &admin, "put b/1 w").ok();
    let backup = format!("backup --to {}", place.display());
    at(&from.address, &app, &backup).fails(1, "client app");
    at(&from.address, &admin, &backup).ok();
    has_no_secret(&place, token);
    let restore = format!("restore --from {}", place.display());
    let shown = ran(&restore).ok();
    for text in ["setting balance = 0\n", "setting replicas = 5\n", "\"name\":\"app\""] {
        assert!(shown.text().contains(text), "{shown:?}");
    }
    let listed = |address: &str| ctl(address, "access list --json").ok().text().to_owned();
    let mut expected: Vec<String> = listed(&from.address).lines().map(str::to_owned).collect();
    expected.retain(|row| !row.contains("token:ci"));
    from.stop();

    let optional = ["--client-certificates", "optional"];
    let to = certificates.start(&root.path().join("c"), "n2", &optional);
    let restored = at(&to.address, &admin, &format!("{restore} --with-access --with-settings"))
        .fails(1, "token:ci needs a new token");
    assert!(!restored.text().contains("setting") && !restored.text().contains("access"));
    assert!(!restored.err.contains("refused"), "{restored:?}");
    assert_eq!(listed(&to.address).lines().collect::<Vec<_>>(), expected);
    assert_eq!(expected.len(), 2, "{expected:?}");
    for (setting, value) in [("balance", "0"), ("replicas", "5")] {
        let found = ctl(&to.address, &format!("config {setting} --json")).ok().json();
        assert_eq!(found["value"], value, "{found}");
    }
    // They come into force on every node within a heartbeat.
    let began = Instant::now();
    while at(&to.address, &other, "get a/1").code == 0 {
        assert!(began.elapsed() < LIMIT, "the access rules are not in force");
    }
    assert_eq!(at(&to.address, &app, "get a/1").ok().text().trim(), "v");
    at(&to.address, &app, "get b/1").fails(1, "client app lacks the right read");
    at(&to.address, &other, "get a/1").fails(1, "it has no grant");
    assert_eq!(at(&to.address, &second, "get b/1").ok().text().trim(), "w");
    at(&to.address, &second, "ctl stores").ok();
    let file = certificates.file("token");
    let bearer = format!("--ca {} --token-file {file}", certificates.file("ca.pem"));
    let with = |token: &str| {
        std::fs::write(&file, format!("{token}\n")).unwrap();
        at(&to.address, &bearer, "get a/1")
    };
    assert_ne!(with(token).code, 0, "the former token is worth nothing");
    let created = ctl(&to.address, "access token ci --role read --prefix a/ --json").ok().json();
    assert_eq!(with(created["token"].as_str().unwrap()).ok().text().trim(), "v");
    with(token).fails(1, "unknown or was revoked");
    to.stop();
}
