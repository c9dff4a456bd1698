//! Replaced files: good ones come into force, bad ones change nothing.

use crate::common::{DAY, Place, days, meet, now, now_plus, replace};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use stele_tls::{
    Authority, ClientCertificates, ClusterName, Identity, NodeName, NodeRequest, ServerCheck,
    ServerTls, Warning, Written, peer_identity,
};

fn served(place: &Place, server: &ServerTls) -> String {
    let met = meet(&place.connect(Some(&place_client(place))), server).ok();
    peer_identity(met.client.peer_certificates()).unwrap().unwrap().to_string()
}

fn place_client(place: &Place) -> Written {
    let (certificate, key) = (place.file("app.pem"), place.file("app.key"));
    if certificate.exists() {
        return Written { certificate, key, not_after: now() };
    }
    place.client("app")
}

#[test]
fn a_reload_takes_new_files_over_and_says_whether_anything_changed() {
    let place = Place::new();
    let (node, renewed) = (place.node("n1"), place.node("n1-renewed"));
    let server = place.server(&node, ClientCertificates::Required);
    assert!(!server.reload(now()).unwrap());
    let old = server.config();
    replace(&node, &renewed);
    assert!(server.reload(now()).unwrap());
    assert!(!server.reload(now()).unwrap());
    assert!(!Arc::ptr_eq(&old, &server.config()));
    assert_eq!(served(&place, &server), "node n1-renewed of cluster prod");
}

/// Certificate, key and authorities that are put in place, and the reason for which they are refused.
type Case = (Vec<u8>, Vec<u8>, Vec<u8>, &'static str);

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

/// Returns certificates, keys and authorities that must be refused in place of `good`: the file of the authorities, a
/// certificate and its key.
fn bad_files(place: &Place, other: &Written, good: &[Vec<u8>; 3]) -> Vec<Case> {
    let at = |name: &str, shift: i64| {
        let request = NodeRequest {
            cluster: ClusterName::new("prod").unwrap(),
            node: NodeName::new(name).unwrap(),
            hosts: vec!["localhost".to_owned()],
        };
        let created = place.authority().node(&request, days(10), now_plus(shift)).unwrap();
        let written = created.write(place.path()).unwrap();
        (read(&written.certificate), read(&written.key))
    };
    let (expired, future) = (at("expired", -20 * DAY), at("future", 10 * DAY));
    let client = place.client("a-client");
    let client = (read(&client.certificate), read(&client.key));
    let (other_leaf, other_key) = (read(&other.certificate), read(&other.key));
    let pem = |body: &str| {
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n").into_bytes()
    };
    let encrypted =
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let [ca, leaf, key] = good;
    let pair = |(leaf, key): (Vec<u8>, Vec<u8>), reason| (leaf, key, ca.clone(), reason);
    let of_leaf = |leaf: Vec<u8>, reason| (leaf, key.clone(), ca.clone(), reason);
    let of_key = |key: Vec<u8>, reason| (leaf.clone(), key, ca.clone(), reason);
    let of_ca = |ca: Vec<u8>, reason| (leaf.clone(), key.clone(), ca, reason);
    vec![
        pair(expired, "expired on"),
        pair(future, "is not valid before"),
        pair(client, "not valid for servers"),
        pair((ca.clone(), read(&place.file("ca.key"))), "the certificate of an authority"),
        of_leaf(other_leaf, "is not that of the certificate"),
        of_leaf(b"text".to_vec(), "no line `-----BEGIN CERTIFICATE-----`"),
        of_leaf(pem("!"), "holds no usable certificate"),
        of_leaf(pem("AAAA"), "holds no usable certificate: it cannot be decoded"),
        of_leaf(leaf.repeat(9), "9 certificates, at most 8"),
        of_leaf(vec![b' '; (1 << 20) + 1], "more than 1048576 bytes"),
        of_key(other_key, "is not that of the certificate"),
        of_key(Vec::new(), "holds no usable key"),
        of_key(encrypted.to_vec(), "it is encrypted"),
        of_ca(Vec::new(), "no line `-----BEGIN CERTIFICATE-----`"),
        of_ca(leaf.clone(), "is not an authority"),
    ]
}

#[test]
fn a_reload_refuses_each_bad_file_and_keeps_the_old_configuration() {
    let place = Place::new();
    let (node, other) = (place.node("n1"), place.node("other"));
    let server = place.server(&node, ClientCertificates::Required);
    let [ca, certificate, key] = [place.file("ca.pem"), node.certificate.clone(), node.key.clone()];
    let good = [&ca, &certificate, &key].map(|file| read(file));
    let cases = bad_files(&place, &other, &good);
    let config = server.config();
    for (new_certificate, new_key, new_ca, reason) in &cases {
        std::fs::write(&certificate, new_certificate).unwrap();
        std::fs::write(&key, new_key).unwrap();
        std::fs::write(&ca, new_ca).unwrap();
        let error = server.reload(now()).expect_err(reason).to_string();
        assert!(error.contains(reason), "{reason}: {error}");
        assert!(error.contains(place.path().to_str().unwrap()), "{error}");
        assert!(Arc::ptr_eq(&config, &server.config()), "{reason}");
    }
    for file in [&ca, &certificate, &key] {
        for (path, bytes) in [&ca, &certificate, &key].into_iter().zip(&good) {
            std::fs::write(path, bytes).unwrap();
        }
        std::fs::remove_file(file).unwrap();
        let error = server.reload(now()).unwrap_err().to_string();
        assert!(error.contains("cannot be read") && error.contains(file.to_str().unwrap()));
        std::fs::create_dir(file).unwrap();
        let error = server.reload(now()).unwrap_err().to_string();
        assert!(error.contains("is not a regular file"), "{error}");
        std::fs::remove_dir(file).unwrap();
    }
    assert!(Arc::ptr_eq(&config, &server.config()));
    // The old files again are no change, and others come into force.
    std::fs::write(&key, &good[2]).unwrap();
    assert!(!server.reload(now()).unwrap());
    replace(&node, &other);
    assert!(server.reload(now()).unwrap());
    assert_eq!(served(&place, &server), "node other of cluster prod");
}

#[test]
fn a_half_replaced_pair_keeps_the_old_pair() {
    let place = Place::new();
    let (node, client, renewed) = (place.node("n1"), place.client("app"), place.client("renewed"));
    let server = place.server(&node, ClientCertificates::Required);
    let connect = place.connect(Some(&client));
    let seen = || {
        let met = meet(&connect, &server).ok();
        peer_identity(met.server.peer_certificates()).unwrap().unwrap().to_string()
    };
    for first in [true, false] {
        let (from, to) = match first {
            true => (&renewed.certificate, &client.certificate),
            false => (&renewed.key, &client.key),
        };
        let kept = std::fs::read(to).unwrap();
        std::fs::copy(from, to).unwrap();
        let error = connect.reload(now()).unwrap_err().to_string();
        assert!(error.contains("is not that of the certificate"), "{error}");
        assert_eq!(seen(), "client app");
        std::fs::write(to, kept).unwrap();
    }
    assert!(!connect.reload(now()).unwrap());
    replace(&client, &renewed);
    assert!(connect.reload(now()).unwrap());
    assert_eq!(seen(), "client renewed");
}

#[test]
fn a_key_that_others_can_read_is_named() {
    let place = Place::new();
    let (node, client) = (place.node("n1"), place.client("app"));
    let server = place.server(&node, ClientCertificates::Required);
    assert_eq!(server.warnings(), []);
    for mode in [0o640, 0o604, 0o644] {
        for key in [&node.key, &client.key] {
            std::fs::set_permissions(key, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        assert!(!server.reload(now()).unwrap());
        let connect = place.connect(Some(&client));
        for (warnings, key) in [(server.warnings(), &node.key), (connect.warnings(), &client.key)] {
            let [Warning::KeyReadableByOthers { path, mode: seen }] = warnings.as_slice() else {
                panic!("{mode:o}: {warnings:?}")
            };
            assert_eq!((path, seen & 0o777), (key, mode));
            assert!(warnings[0].to_string().contains("chmod 600"));
        }
    }
}

#[test]
fn a_certificate_of_an_absent_authority_is_named() {
    let (place, other) = (Place::new(), Place::new());
    let mut files = place.server_files(&place.node("n1"));
    files.authorities = other.file("ca.pem");
    let server = ServerTls::open(files, ClientCertificates::Required, now()).unwrap();
    let warnings = server.warnings();
    assert!(
        matches!(warnings.as_slice(), [Warning::NotIssuedByAuthorities { .. }]),
        "{warnings:?}"
    );
}

#[test]
fn the_days_to_the_end_of_a_certificate_are_counted() {
    let place = Place::new();
    let node = place.node("n1");
    let server = place.server(&node, ClientCertificates::Required);
    assert_eq!(server.not_after(), node.not_after);
    let of_end = |shift: i64| {
        let end = i64::try_from(node.not_after.as_secs()).unwrap();
        let now = i64::try_from(now().as_secs()).unwrap();
        server.days_left(now_plus(end - now + shift))
    };
    assert_eq!([of_end(-2 * DAY), of_end(-1), of_end(1), of_end(DAY)], [2, 0, -1, -1]);
    let authority = Authority::open(place.path(), now()).unwrap();
    assert!(format!("{authority:?}").contains("ca.pem"));
    let identity = server.identity().unwrap();
    assert!(matches!(identity, Identity::Node { .. }));
    let cluster = ServerCheck::NodeOf(ClusterName::new("prod").unwrap());
    assert!(place.connect_as(Some(&node), cluster).is_ok());
}
