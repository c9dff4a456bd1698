//! Certificates that are created: what they state, and the files that they become.

use crate::common::{DAY, Place, days, now, now_plus};
use std::os::unix::fs::PermissionsExt;
use stele_tls::rustls::pki_types::CertificateDer;
use stele_tls::rustls::pki_types::pem::PemObject;
use stele_tls::{
    Authority, ClientName, ClusterName, Days, NodeName, NodeRequest, TlsError, UnixTime,
};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Passes the decoded certificate of a file to `check`.
fn with<T>(path: &std::path::Path, check: impl FnOnce(&X509Certificate<'_>) -> T) -> T {
    let der = CertificateDer::from_pem_file(path).unwrap();
    check(&X509Certificate::from_der(&der).unwrap().1)
}

fn node(name: &str, hosts: &[&str]) -> NodeRequest {
    NodeRequest {
        cluster: ClusterName::new("prod").unwrap(),
        node: NodeName::new(name).unwrap(),
        hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
    }
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let found = certificate.subject_alternative_name().unwrap();
    let found = found.map(|it| it.value.general_names.clone()).unwrap_or_default();
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => format!("dns {name}"),
        GeneralName::URI(name) => format!("uri {name}"),
        GeneralName::IPAddress(bytes) => format!("ip {bytes:?}"),
        other => format!("{other:?}"),
    };
    found.iter().map(text).collect()
}

#[test]
fn an_authority_signs_leaves_and_no_further_authorities() {
    let place = Place::new();
    with(&place.file("ca.pem"), |ca| {
        let constraints = ca.basic_constraints().unwrap().unwrap();
        assert!(constraints.critical && constraints.value.ca);
        assert_eq!(constraints.value.path_len_constraint, Some(0));
        let usage = ca.key_usage().unwrap().unwrap();
        assert!(usage.critical);
        assert_eq!(usage.value.flags, 1 << 5, "only keyCertSign");
        assert!(ca.extended_key_usage().unwrap().is_none());
        assert!(ca.subject().to_string().starts_with("CN=test "), "{}", ca.subject());
        assert_eq!(ca.subject(), ca.issuer());
    });
}

#[test]
fn a_node_has_all_its_names_and_both_uses() {
    let place = Place::new();
    let request = node("db1.test", &["10.0.0.1", "db1.test", "other.test", "::1", "[::1]"]);
    let created = place.authority().node(&request, Days::OF_LEAVES, now()).unwrap();
    let written = created.write(place.path()).unwrap();
    with(&written.certificate, |leaf| {
        let v6 = format!("ip {:?}", std::net::Ipv6Addr::LOCALHOST.octets());
        let uri = "uri stele://prod/node/db1.test";
        let expected = ["dns db1.test", "ip [10, 0, 0, 1]", "dns other.test", &v6, uri];
        assert_eq!(names(leaf), expected);
        let uses = leaf.extended_key_usage().unwrap().unwrap().value;
        assert!(uses.server_auth && uses.client_auth && !uses.any);
        assert!(!leaf.basic_constraints().unwrap().unwrap().value.ca);
        let usage = leaf.key_usage().unwrap().unwrap();
        assert!(usage.critical && usage.value.flags == 1, "only digitalSignature");
        assert_eq!(leaf.subject().to_string(), "CN=db1.test");
        let oid = leaf.public_key().algorithm.algorithm.to_id_string();
        assert_eq!(oid, "1.2.840.10045.2.1", "an elliptic curve");
        assert_eq!(leaf.signature_algorithm.algorithm.to_id_string(), "1.2.840.10045.4.3.2");
    });
    assert!(matches!(
        place.authority().node(&node("n1-", &[]), Days::OF_LEAVES, now()),
        Err(TlsError::Request(text)) if text.contains("--host")
    ));
    for bad in ["a:2379", "http://localhost", "10.0.0.300", "a b", "", "*.test", "10.0.0.1:1", "-a"]
    {
        let refused = place.authority().node(&node("n1", &[bad]), Days::OF_LEAVES, now());
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("neither a host name nor an IP address"), "{bad}: {text}");
    }
}

#[test]
fn a_client_has_its_name_and_one_use() {
    let place = Place::new();
    for (name, expected) in [
        ("app-1", vec!["dns app-1"]),
        ("app@team", vec![]),
        ("10.0.0.1", vec![]),
        (&"x".repeat(64), vec![]),
    ] {
        let written = place.client(name);
        with(&written.certificate, |leaf| {
            assert_eq!(names(leaf), expected);
            assert_eq!(leaf.subject().to_string(), format!("CN={name}"));
            let uses = leaf.extended_key_usage().unwrap().unwrap().value;
            assert!(uses.client_auth && !uses.server_auth && !uses.any);
            assert!(!leaf.basic_constraints().unwrap().unwrap().value.ca);
        });
    }
    for bad in ["a b", "a/b", "../a", ".a", "-a", "ca", "CA", "a\"b", "a'b", "ä", &"x".repeat(65)]
    {
        let name = ClientName::new(bad).unwrap();
        let refused = place.authority().client(&name, Days::OF_LEAVES, now());
        assert!(matches!(refused, Err(TlsError::Request(_))), "{bad}");
    }
}

#[test]
fn a_certificate_is_valid_from_an_hour_ago_to_its_last_day_and_not_past_its_authority() {
    let dir = tempfile::tempdir().unwrap();
    let at = now();
    let seconds = |at: UnixTime| i64::try_from(at.as_secs()).unwrap();
    let ca = Authority::create("test", days(30), at).unwrap().write(dir.path()).unwrap();
    let authority = Authority::open(dir.path(), at).unwrap();
    let client = |name: &str, valid: u64| {
        let name = ClientName::new(name).unwrap();
        let created = authority.client(&name, days(valid), at).unwrap();
        created.write(dir.path()).unwrap()
    };
    for (written, end) in [(ca.clone(), 30), (client("a", 10), 10), (client("b", 31), 30)] {
        assert_eq!(seconds(written.not_after), seconds(at) + end * DAY);
        with(&written.certificate, |leaf| {
            assert_eq!(leaf.validity().not_before.timestamp(), seconds(at) - 3_600);
            assert_eq!(leaf.validity().not_after.timestamp(), seconds(written.not_after));
        });
    }
    assert!(Authority::open(dir.path(), now_plus(31 * DAY)).is_err());
    assert_eq!(Days::new(0), None);
    assert_eq!(Days::new(36_501), None);
}

#[test]
fn serial_numbers_are_random_and_have_20_bytes() {
    let place = Place::new();
    let serial =
        |name: &str| with(&place.client(name).certificate, |leaf| leaf.raw_serial().to_vec());
    let (one, two) = (serial("a"), serial("b"));
    assert_ne!(one, two);
    for serial in [one, two] {
        assert_eq!(serial.len(), 20);
        assert!(serial[0] < 0x80, "negative");
    }
}

#[test]
fn only_the_owner_can_read_a_key() {
    let place = Place::new();
    let written = place.client("app");
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&written.key), 0o600);
    assert_eq!(mode(&place.file("ca.key")), 0o600);
    assert_eq!(mode(&written.certificate) & 0o400, 0o400);
}

#[test]
fn an_existing_file_is_never_overwritten() {
    let place = Place::new();
    let before = std::fs::read(place.file("ca.key")).unwrap();
    let again = Authority::create("test", days(1), now()).unwrap().write(place.path());
    let text = again.unwrap_err().to_string();
    assert!(text.contains("ca.key exists, and nothing is ever overwritten"), "{text}");
    assert_eq!(std::fs::read(place.file("ca.key")).unwrap(), before);
    // Of an existing certificate, no new key is left behind.
    std::fs::write(place.file("app.pem"), "text").unwrap();
    let name = ClientName::new("app").unwrap();
    let created = place.authority().client(&name, days(1), now()).unwrap();
    assert!(matches!(created.write(place.path()), Err(TlsError::Exists { .. })));
    assert!(!place.file("app.key").exists());
    assert_eq!(std::fs::read(place.file("app.pem")).unwrap(), b"text");
    let missing = created.write(&place.file("missing")).unwrap_err().to_string();
    assert!(missing.contains("cannot be written"), "{missing}");
}

#[test]
fn an_authority_opens_only_with_its_own_key() {
    let (place, other) = (Place::new(), Place::new());
    std::fs::copy(other.file("ca.key"), place.file("ca.key")).unwrap();
    let refused = Authority::open(place.path(), now()).unwrap_err();
    assert!(matches!(refused, TlsError::KeyMismatch { .. }), "{refused}");
    let leaf = other.client("app");
    std::fs::copy(leaf.certificate, other.file("ca.pem")).unwrap();
    std::fs::copy(leaf.key, other.file("ca.key")).unwrap();
    let refused = Authority::open(other.path(), now()).unwrap_err();
    assert!(matches!(refused, TlsError::NotAnAuthority { .. }), "{refused}");
    let empty = tempfile::tempdir().unwrap();
    let missing = Authority::open(empty.path(), now()).unwrap_err().to_string();
    assert!(
        missing.contains("ca.pem does not exist; create an authority with `stele cert ca`"),
        "{missing}"
    );
}

#[test]
fn the_name_of_an_authority_is_bounded() {
    for bad in ["", " ", "a\nb", &"x".repeat(56)] {
        assert!(
            matches!(Authority::create(bad, days(1), now()), Err(TlsError::Request(_))),
            "{bad:?}"
        );
    }
    assert!(Authority::create(&"x".repeat(55), days(1), now()).is_ok());
}
