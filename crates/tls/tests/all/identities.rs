//! Identities of certificates, also of those that other programs created.

use crate::common::Place;
use stele_tls::rustls::pki_types::CertificateDer;
use stele_tls::rustls::pki_types::pem::PemObject;
use stele_tls::{ClientName, ClusterName, Identity, IdentityError, NodeName, peer_identity};

use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair, SanType};

/// Creates a certificate with alternative names and common names.
fn certificate(names: &[SanType], common_names: &[&str]) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names.to_vec();
    let mut subject = DistinguishedName::new();
    for name in common_names {
        subject.push(DnType::CommonName, *name);
    }
    params.distinguished_name = subject;
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

fn dns(text: &str) -> SanType {
    SanType::DnsName(text.try_into().unwrap())
}

fn of(names: &[SanType], common_names: &[&str]) -> Result<Identity, IdentityError> {
    Identity::of_certificate(&certificate(names, common_names))
}

#[test]
fn a_node_is_named_by_its_uri_and_a_client_by_its_dns_name_or_else_its_common_name() {
    let node = Identity::Node {
        cluster: ClusterName::new("prod").unwrap(),
        node: NodeName::new("n_1.a-b").unwrap(),
    };
    let of_node = uri("stele://prod/node/n_1.a-b");
    assert_eq!(of(&[dns("a.test"), of_node.clone()], &["x"]), Ok(node.clone()));
    assert_eq!(of(&[of_node, uri("spiffe://trust/service")], &[]), Ok(node));
    let client = |name: &str| Ok(Identity::Client(ClientName::new(name).unwrap()));
    assert_eq!(of(&[dns("a.test"), dns("b.test")], &["x"]), client("a.test"));
    assert_eq!(
        of(&[uri("https://example.com/stele://prod/node/n1")], &["Jo Day"]),
        client("Jo Day")
    );
    assert_eq!(of(&[], &["x"]), client("x"));
}

#[test]
fn a_malformed_or_second_stele_uri_is_refused_and_never_a_client() {
    for text in [
        "stele:",
        "stele://",
        "stele://prod",
        "stele://prod/node/",
        "stele:///node/n1",
        "stele://prod/node/n1/",
        "stele://prod/node/a/node/b",
        "stele://prod/client/n1",
        "stele://prod/node/n1?x",
        "stele://prod/node/n%31",
        "stele://prod/node/a b",
        "stele://prod:1/node/n1",
        "stele://me@prod/node/n1",
        "stele://.prod/node/n1",
        "stele://prod/node/..",
        "stele://prod/Node/n1",
        "STELE://prod/node/n1",
        " stele://prod/node/n1",
        &format!("stele://prod/node/{}", "n".repeat(65)),
    ] {
        let refused = of(&[dns("a.test"), uri(text)], &["x"]);
        assert!(matches!(refused, Err(IdentityError::MalformedUri(_))), "{text}: {refused:?}");
    }
    let (one, two) = (uri("stele://prod/node/n1"), uri("stele://prod/node/n2"));
    assert_eq!(of(&[one.clone(), two], &["x"]), Err(IdentityError::SeveralNodes));
    assert_eq!(of(&[one.clone(), one], &["x"]), Err(IdentityError::SeveralNodes));
}

#[test]
fn a_certificate_without_one_usable_name_is_refused() {
    assert_eq!(of(&[], &[]), Err(IdentityError::Nameless));
    assert_eq!(of(&[uri("https://example.com")], &[]), Err(IdentityError::Nameless));
    let is_name = |refused| matches!(refused, Err(IdentityError::Name { kind: "client", .. }));
    let long = "x".repeat(256);
    for bad in ["", "  ", "a\nb", "a\u{0}b", long.as_str()] {
        assert!(is_name(of(&[], &[bad])), "{bad:?}");
    }
    assert!(is_name(of(&[dns(&long)], &["x"])));
    let text = of(&[], &["a\u{1b}[31m"]).unwrap_err().to_string();
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let der = certificate(&[], &["x"]);
    assert!(Identity::of_certificate(&[]).is_err());
    assert!(Identity::of_certificate(der.get(..der.len() - 1).unwrap()).is_err());
    assert!(Identity::of_certificate(&[der, vec![0]].concat()).is_err());
}

#[test]
fn undecodable_alternative_names_do_not_count_as_absent() {
    // A list of names that is cut, a name that is not UTF-8, and two lists.
    let list =
        |content: &[u8]| CustomExtension::from_oid_content(&[2, 5, 29, 17], content.to_vec());
    let name = b"\x30\x03\x82\x01a";
    for lists in [
        vec![list(b"\x30\x05\x82\x01a")],
        vec![list(b"\x04\x01a")],
        vec![list(b"\x30\x03\x86\x01\xff")],
        vec![list(name), list(name)],
    ] {
        let mut params = CertificateParams::default();
        params.custom_extensions = lists;
        let signed = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let refused = Identity::of_certificate(signed.der());
        assert!(matches!(refused, Err(IdentityError::Unreadable(_))), "{refused:?}");
    }
}

#[test]
fn the_peer_is_the_leaf_and_without_certificates_there_is_none() {
    let place = Place::new();
    let leaf = CertificateDer::from_pem_file(place.client("app").certificate).unwrap();
    let authority = CertificateDer::from_pem_file(place.file("ca.pem")).unwrap();
    let named = peer_identity(Some(&[leaf, authority])).unwrap().unwrap();
    assert_eq!(named.to_string(), "client app");
    assert_eq!(peer_identity(None), Ok(None));
    assert_eq!(peer_identity(Some(&[])), Ok(None));
}

#[test]
fn names_of_nodes_and_clusters_are_hosts_of_a_uri() {
    for good in ["n", "n1", "N-1_x", "db1.example.com", &"n".repeat(64)] {
        assert_eq!(NodeName::new(good).unwrap().as_str(), good);
        assert_eq!(ClusterName::new(good).unwrap().to_string(), good);
    }
    for bad in [
        "",
        ".",
        "..",
        "a.",
        ".a",
        "a..b",
        "a b",
        "a/b",
        "a\\b",
        "a\"b",
        "a:1",
        "ä",
        &"n".repeat(65),
    ] {
        let text = NodeName::new(bad).unwrap_err().to_string();
        assert!(text.contains("cannot be the name of a node: use 1 to 64 letters"), "{text}");
        assert!(ClusterName::new(bad).is_err(), "{bad}");
    }
}
