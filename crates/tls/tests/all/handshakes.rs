//! Connections between servers, clients and nodes.

use crate::common::{DAY, Met, Place, days, meet, meet_at, now, now_plus, send};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use std::sync::{Arc, Mutex};
use stele_tls::rustls::client::{ResolvesClientCert, Resumption};
use stele_tls::rustls::crypto::ring;
use stele_tls::rustls::sign::CertifiedKey;
use stele_tls::rustls::{
    CertificateError, ClientConfig, Error, HandshakeKind, ProtocolVersion, RootCertStore,
    SignatureScheme, version,
};
use stele_tls::{
    Authority, Cause, ClientCertificates, ClientTls, ClusterName, HandshakeFailure, Identity,
    Protocol, ServerCheck, peer_identity,
};

fn identity_of_client(met: &Met) -> Option<Identity> {
    peer_identity(met.server.peer_certificates()).unwrap()
}

fn node_mode(cluster: &str) -> ServerCheck {
    ServerCheck::NodeOf(ClusterName::new(cluster).unwrap())
}

#[test]
fn a_client_and_a_server_prove_themselves_to_each_other() {
    let place = Place::new();
    let (node, client) = (place.node("n1"), place.client("app-1"));
    let server = place.server(&node, ClientCertificates::Required);
    let mut met = meet(&place.connect(Some(&client)), &server).ok();
    assert_eq!(identity_of_client(&met).unwrap().to_string(), "client app-1");
    let shown = peer_identity(met.client.peer_certificates()).unwrap().unwrap();
    assert_eq!(shown.to_string(), "node n1 of cluster prod");
    assert_eq!(server.identity().unwrap(), shown);
    assert_eq!(met.server.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(send(&mut met, b"text"), b"text");
    // An address works as well as a name, and another name does not.
    let config = |protocol| place.connect(Some(&client)).config(protocol);
    meet_at(config(Protocol::Http2), server.config(), "127.0.0.1").ok();
    for other in ["127.0.0.2", "example.com"] {
        let error = meet_at(config(Protocol::Http2), server.config(), other).refused_by_client();
        assert_eq!(HandshakeFailure::of_tls(&error).cause, Cause::WrongName, "{error}");
    }
}

#[test]
fn a_client_without_a_certificate_is_refused_unless_certificates_are_optional() {
    let place = Place::new();
    let node = place.node("n1");
    let required = place.server(&node, ClientCertificates::Required);
    let refused = meet(&place.connect(None), &required);
    assert_eq!(refused.refused_by_server(), Error::NoCertificatesPresented);
    let optional = place.server(&node, ClientCertificates::Optional);
    assert_eq!(identity_of_client(&meet(&place.connect(None), &optional).ok()), None);
    let named = meet(&place.connect(Some(&place.client("app"))), &optional).ok();
    assert_eq!(identity_of_client(&named).unwrap().to_string(), "client app");
}

#[test]
fn certificates_of_another_authority_are_refused_at_both_ends() {
    let (place, other) = (Place::new(), Place::new());
    let (node, foreign) = (place.node("n1"), other.client("app"));
    let mut files = place.client_files(Some(&foreign));
    let intruder = ClientTls::open(files.clone(), ServerCheck::HostName, now()).unwrap();
    for clients in [ClientCertificates::Required, ClientCertificates::Optional] {
        let server = place.server(&node, clients);
        let error = meet(&intruder, &server).refused_by_server();
        assert_eq!(error, CertificateError::UnknownIssuer.into());
    }
    let server = place.server(&node, ClientCertificates::Optional);
    for check in [ServerCheck::HostName, node_mode("prod")] {
        files.authorities = other.file("ca.pem");
        let client = ClientTls::open(files.clone(), check, now()).unwrap();
        let error = meet(&client, &server).refused_by_client();
        assert_eq!(error, CertificateError::UnknownIssuer.into());
    }
}

#[test]
fn a_certificate_that_expires_while_it_is_in_force_is_refused_in_the_handshake() {
    let place = Place::new();
    let (node, client) = (place.node("n1"), place.client_of("app", -30 * DAY, 10));
    let then = now_plus(-25 * DAY);
    let files = place.client_files(Some(&client));
    let expired = ClientTls::open(files.clone(), ServerCheck::HostName, then).unwrap();
    let error =
        meet(&expired, &place.server(&node, ClientCertificates::Required)).refused_by_server();
    assert_eq!(HandshakeFailure::of_tls(&error).cause, Cause::Expired, "{error}");
    let refused = ClientTls::open(files, ServerCheck::HostName, now()).unwrap_err().to_string();
    assert!(refused.contains("app.pem expired on "), "{refused}");
}

#[test]
fn node_mode_refuses_clients_and_nodes_of_another_cluster() {
    let place = Place::new();
    let (one, two) =
        (place.node_of("prod", "n1", &["a.test"]), place.node_of("prod", "n2", &["b.test"]));
    let foreign = place.node_of("staging", "n3", &["c.test"]);
    let client = place.client("app");
    let from_two = place.connect_as(Some(&two), node_mode("prod")).unwrap();
    let config = || from_two.config(Protocol::Node);
    // The dialled address is in no certificate.
    let server = place.server(&one, ClientCertificates::Required);
    let met = meet_at(config(), server.config(), "10.1.2.3").ok();
    assert_eq!(met.server.alpn_protocol(), Some(b"stele/1".as_slice()));
    let peer = peer_identity(met.client.peer_certificates()).unwrap().unwrap();
    assert_eq!(peer.to_string(), "node n1 of cluster prod");
    assert_eq!(identity_of_client(&met).unwrap().to_string(), "node n2 of cluster prod");
    let server = place.server(&foreign, ClientCertificates::Required);
    let error = meet_at(config(), server.config(), "10.1.2.3").refused_by_client();
    assert_eq!(HandshakeFailure::of_tls(&error).cause, Cause::WrongIdentity, "{error}");
    let text = error.to_string();
    assert!(text.contains("OtherCluster") || text.contains("not of cluster prod"), "{text}");
    // A server cannot be opened with a client's certificate, and a client is not a node.
    let identity = Identity::Client(stele_tls::ClientName::new("app").unwrap());
    assert!(identity.is_node_of(&ClusterName::new("prod").unwrap()).is_err());
    let opened = stele_tls::ServerTls::open(
        place.server_files(&client),
        ClientCertificates::Required,
        now(),
    );
    assert!(opened.unwrap_err().to_string().contains("not valid for servers"));
    let error =
        meet_at(config(), client_as_server(&place, &client), "10.1.2.3").refused_by_client();
    assert_eq!(HandshakeFailure::of_tls(&error).cause, Cause::WrongUse, "{error}");
}

/// Returns a server that this crate would not open: with a certificate of a client.
fn client_as_server(
    place: &Place,
    client: &stele_tls::Written,
) -> Arc<stele_tls::rustls::ServerConfig> {
    use stele_tls::rustls::pki_types::pem::PemObject;
    use stele_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let chain = vec![CertificateDer::from_pem_file(&client.certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(place.file("app.key")).unwrap();
    let provider = Arc::new(ring::default_provider());
    let builder = stele_tls::rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .unwrap();
    Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap())
}

#[test]
fn a_certificate_with_a_malformed_identity_is_refused_in_the_handshake() {
    let place = Place::new();
    let server = place.server(&place.node("n1"), ClientCertificates::Optional);
    let text = |name: &str| std::fs::read_to_string(place.file(name)).unwrap();
    let key = KeyPair::from_pem(&text("ca.key")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&text("ca.pem"), key).unwrap();
    let connect = |uri: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let (path, key_path) = (place.file("other.pem"), place.file("other.key"));
        std::fs::write(&path, certificate.pem()).unwrap();
        std::fs::write(&key_path, key.serialize_pem()).unwrap();
        let mut files = place.client_files(None);
        files.pair = Some((path, key_path));
        meet(&ClientTls::open(files, ServerCheck::HostName, now()).unwrap(), &server)
    };
    let accepted = connect("stele://prod/node/n1").ok();
    assert_eq!(identity_of_client(&accepted).unwrap().to_string(), "node n1 of cluster prod");
    let error = connect("stele://prod/node/").refused_by_server();
    let failure = HandshakeFailure::of_tls(&error);
    assert_eq!(failure.label(), "wrong_identity", "{error}");
    assert!(failure.remedy().contains("`stele cert`"));
}

#[test]
fn a_bundle_of_two_authorities_accepts_the_certificates_of_both() {
    let (old, new) = (Place::new(), Place::new());
    let (node, client, renewed) = (old.node("n1"), old.client("old"), new.client("new"));
    let before = old.server(&node, ClientCertificates::Required);
    let with_new = new.client_files(Some(&renewed));
    let mut bundle = std::fs::read(old.file("ca.pem")).unwrap();
    let first_bytes = bundle.len();
    bundle.extend(std::fs::read(new.file("ca.pem")).unwrap());
    std::fs::write(old.file("ca.pem"), &bundle).unwrap();
    let mut files = with_new;
    files.authorities = old.file("ca.pem");
    let renewed = ClientTls::open(files, ServerCheck::HostName, now()).unwrap();
    assert!(meet(&renewed, &before).server_error.is_some());
    assert!(before.reload(now()).unwrap());
    meet(&renewed, &before).ok();
    meet(&old.connect(Some(&client)), &before).ok();
    // The directory still signs with the authority of its key, at whatever place in the bundle.
    bundle.rotate_left(first_bytes);
    std::fs::write(old.file("ca.pem"), &bundle).unwrap();
    meet(&old.connect(Some(&old.client("later"))), &before).ok();
}

/// Client as another program may be: it trusts the place, and has what `change` makes of it.
fn other_client(
    place: &Place,
    versions: &[&'static stele_tls::rustls::SupportedProtocolVersion],
) -> ClientConfig {
    use stele_tls::rustls::pki_types::CertificateDer;
    use stele_tls::rustls::pki_types::pem::PemObject;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(place.file("ca.pem")).unwrap()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

#[test]
fn a_client_without_tls_1_3_is_refused() {
    let place = Place::new();
    let server = place.server(&place.node("n1"), ClientCertificates::Optional);
    let old = other_client(&place, &[&version::TLS12]);
    let met = meet_at(Arc::new(old), server.config(), "localhost");
    let seen = HandshakeFailure::of_tls(met.client_error.as_ref().unwrap());
    assert_eq!((seen.cause, seen.by), (Cause::Version, stele_tls::DetectedBy::Peer));
    let error = met.refused_by_server();
    assert_eq!(HandshakeFailure::of_tls(&error).label(), "tls_version", "{error}");
    let both = other_client(&place, &[&version::TLS12, &version::TLS13]);
    meet_at(Arc::new(both), server.config(), "localhost").ok();
}

#[test]
fn no_session_is_resumed() {
    let place = Place::new();
    let node = place.node("n1");
    let server = place.server(&node, ClientCertificates::Optional);
    let mut eager = other_client(&place, &[&version::TLS13]);
    eager.resumption = Resumption::in_memory_sessions(8);
    let eager = Arc::new(eager);
    for _ in 0..3 {
        let met = meet_at(Arc::clone(&eager), server.config(), "localhost").ok();
        assert_eq!(met.server.handshake_kind(), Some(HandshakeKind::Full));
    }
    // The client resumes none either, where a server offers it.
    let mut generous = (*server.config()).clone();
    generous.send_tls13_tickets = 2;
    generous.session_storage = stele_tls::rustls::server::ServerSessionMemoryCache::new(8);
    let generous = Arc::new(generous);
    let client = place.connect(None);
    let config = client.config(Protocol::Http2);
    for _ in 0..3 {
        let met = meet_at(Arc::clone(&config), Arc::clone(&generous), "localhost").ok();
        assert_eq!(met.client.handshake_kind(), Some(HandshakeKind::Full));
    }
    // Such a server resumes the other client's session: the test can tell.
    let kinds = [(); 2].map(|()| {
        let met = meet_at(Arc::clone(&eager), Arc::clone(&generous), "localhost").ok();
        met.server.handshake_kind()
    });
    assert_eq!(kinds, [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)]);
}

#[test]
fn the_protocol_is_the_one_that_both_offer() {
    let place = Place::new();
    let server = place.server(&place.node("n1"), ClientCertificates::Optional);
    let chosen = |offered: &[&[u8]]| {
        let mut client = other_client(&place, &[&version::TLS13]);
        client.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
        meet_at(Arc::new(client), server.config(), "localhost")
    };
    for (offered, expected) in [
        (vec![b"h2".as_slice(), b"http/1.1"], Some(Protocol::Http2)),
        (vec![b"http/1.1", b"h2"], Some(Protocol::Http2)),
        (vec![b"http/1.1"], Some(Protocol::Http1)),
        (vec![b"stele/1"], Some(Protocol::Node)),
        (vec![b"spdy/3", b"http/1.1"], Some(Protocol::Http1)),
        (vec![], None),
    ] {
        let met = chosen(&offered).ok();
        assert_eq!(met.server.alpn_protocol().and_then(Protocol::of), expected, "{offered:?}");
    }
    let refused = chosen(&[b"spdy/3"]).refused_by_server();
    assert_eq!(refused, Error::NoApplicationProtocol);
    for protocol in Protocol::ALL {
        let config = place.connect(None).config(protocol);
        let met = meet_at(config, server.config(), "localhost").ok();
        assert_eq!(met.server.alpn_protocol(), Some(protocol.name()));
    }
}

/// Records the names that a server sends.
#[derive(Debug)]
struct Hints(Mutex<Vec<Vec<u8>>>);

impl ResolvesClientCert for Hints {
    fn resolve(&self, names: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        *self.0.lock().unwrap() = names.iter().map(|name| name.to_vec()).collect();
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[test]
fn a_server_sends_the_names_of_its_authorities() {
    let (place, other) = (Place::new(), Place::new());
    let node = place.node("n1");
    let own = std::fs::read(place.file("ca.pem")).unwrap();
    let both = [own, std::fs::read(other.file("ca.pem")).unwrap()].concat();
    std::fs::write(place.file("ca.pem"), both).unwrap();
    let server = place.server(&node, ClientCertificates::Optional);
    let hints = Arc::new(Hints(Mutex::new(Vec::new())));
    let mut client = other_client(&place, &[&version::TLS13]);
    client.client_auth_cert_resolver = Arc::clone(&hints) as _;
    meet_at(Arc::new(client), server.config(), "localhost").ok();
    let names = hints.0.lock().unwrap().clone();
    assert_eq!(names.len(), 2);
    assert_ne!(names[0], names[1], "two authorities have one name");
}

#[test]
fn an_expired_authority_is_left_out_and_named() {
    let place = Place::new();
    let old = tempfile::tempdir().unwrap();
    let created = Authority::create("old", days(30), now_plus(-60 * DAY)).unwrap();
    created.write(old.path()).unwrap();
    let node = place.node("n1");
    let mut bundle = std::fs::read(old.path().join("ca.pem")).unwrap();
    let mut files = place.server_files(&node);
    files.authorities = old.path().join("ca.pem");
    let refused = stele_tls::ServerTls::open(files, ClientCertificates::Required, now());
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("ca.pem expired on "), "{refused}");
    bundle.extend(std::fs::read(place.file("ca.pem")).unwrap());
    std::fs::write(place.file("ca.pem"), bundle).unwrap();
    let server = place.server(&node, ClientCertificates::Required);
    let warnings: Vec<String> = server.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("an authority in ") && warnings[0].contains("expired on "));
    meet(&place.connect(Some(&place.client("app"))), &server).ok();
    let refused = Authority::open(old.path(), now()).unwrap_err().to_string();
    assert!(refused.contains("expired on "), "{refused}");
}
