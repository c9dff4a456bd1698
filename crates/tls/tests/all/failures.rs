//! Causes of failed handshakes, from the errors that the library gives.

use crate::common::{Met, Place, meet, meet_at};
use std::collections::BTreeSet;
use std::io;
use stele_tls::rustls::pki_types::ServerName;
use stele_tls::rustls::{
    AlertDescription, CertificateError, ClientConnection, Error, ServerConnection,
};
use stele_tls::{Cause, ClientCertificates, DetectedBy, HandshakeFailure, Protocol};

fn both(met: &Met) -> (HandshakeFailure, HandshakeFailure) {
    let of = |error: &Option<Error>| HandshakeFailure::of_tls(error.as_ref().unwrap());
    (of(&met.client_error), of(&met.server_error))
}

#[test]
fn plaintext_at_a_tls_port_is_named_at_both_ends() {
    let place = Place::new();
    let server = place.server(&place.node("n1"), ClientCertificates::Required);
    for sent in [
        b"GET /metrics HTTP/1.1\r\n\r\n".as_slice(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"STELEPR1\0\0\0\0\0\0",
        b"SSH-2.0-x\r\n",
    ] {
        let mut connection = ServerConnection::new(server.config()).unwrap();
        connection.read_tls(&mut &*sent).unwrap();
        let error = connection.process_new_packets().unwrap_err();
        let failure = HandshakeFailure::of(&io::Error::new(io::ErrorKind::InvalidData, error));
        assert_eq!((failure.label(), failure.by), ("plaintext", DetectedBy::Here));
        assert!(failure.remedy().contains("speaks no TLS"));
    }
    let config = place.connect(None).config(Protocol::Http2);
    let name = ServerName::try_from("localhost").unwrap();
    for sent in [b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(), b"\0\0\x12\x04\0\0\0\0\0\0\0"] {
        let mut connection = ClientConnection::new(config.clone(), name.clone()).unwrap();
        connection.read_tls(&mut &*sent).unwrap();
        let error = connection.process_new_packets().unwrap_err();
        assert_eq!(HandshakeFailure::of_tls(&error).label(), "plaintext", "{error}");
    }
}

#[test]
fn each_end_names_its_part_of_a_refusal() {
    let (place, other) = (Place::new(), Place::new());
    let (node, client) = (place.node("n1"), place.client("app"));
    let server = place.server(&node, ClientCertificates::Required);
    let (at_client, at_server) = both(&meet(&place.connect(None), &server));
    assert_eq!((at_server.label(), at_server.by), ("no_certificate", DetectedBy::Here));
    assert_eq!((at_client.label(), at_client.by), ("no_certificate", DetectedBy::Peer));
    assert!(at_server.remedy().contains("the client sent no certificate"));
    assert!(at_client.remedy().contains("the peer requires a certificate"));
    let foreign = other.server(&other.node("n1"), ClientCertificates::Required);
    let (at_client, at_server) = both(&meet(&place.connect(Some(&client)), &foreign));
    assert_eq!((at_client.label(), at_client.by), ("unknown_issuer", DetectedBy::Here));
    assert_eq!((at_server.label(), at_server.by), ("unknown_issuer", DetectedBy::Peer));
    let config = place.connect(Some(&client)).config(Protocol::Http2);
    let (at_client, at_server) = both(&meet_at(config, server.config(), "example.com"));
    assert_eq!((at_client.label(), at_server.label()), ("wrong_name", "refused_certificate"));
}

#[test]
fn errors_of_the_connection_are_no_errors_of_tls() {
    for (kind, label) in [
        (io::ErrorKind::UnexpectedEof, "closed"),
        (io::ErrorKind::ConnectionReset, "closed"),
        (io::ErrorKind::TimedOut, "timeout"),
        (io::ErrorKind::PermissionDenied, "other"),
    ] {
        let failure = HandshakeFailure::of(&io::Error::new(kind, "tls handshake eof"));
        assert_eq!((failure.label(), failure.by), (label, DetectedBy::Here));
    }
}

#[test]
fn every_cause_has_a_label_and_a_remedy() {
    let causes = [
        Cause::Plaintext,
        Cause::NoCertificate,
        Cause::UnknownIssuer,
        Cause::Expired,
        Cause::NotYetValid,
        Cause::WrongName,
        Cause::WrongUse,
        Cause::WrongIdentity,
        Cause::RefusedCertificate,
        Cause::NoProtocol,
        Cause::Version,
        Cause::NoAlgorithm,
        Cause::Closed,
        Cause::Timeout,
        Cause::Other,
    ];
    let failure = |cause, by| HandshakeFailure { cause, by };
    let labels: BTreeSet<_> =
        causes.iter().map(|&cause| failure(cause, DetectedBy::Here).label()).collect();
    assert_eq!(labels.len(), causes.len());
    for cause in causes {
        for by in [DetectedBy::Here, DetectedBy::Peer] {
            assert!(!failure(cause, by).remedy().is_empty());
        }
    }
    for (error, cause) in [
        (Error::NoApplicationProtocol, Cause::NoProtocol),
        (Error::AlertReceived(AlertDescription::CertificateExpired), Cause::Expired),
        (Error::AlertReceived(AlertDescription::UnknownCA), Cause::UnknownIssuer),
        (Error::AlertReceived(AlertDescription::BadCertificate), Cause::RefusedCertificate),
        (Error::AlertReceived(AlertDescription::NoApplicationProtocol), Cause::NoProtocol),
        (CertificateError::NotValidYet.into(), Cause::NotYetValid),
        (CertificateError::BadSignature.into(), Cause::RefusedCertificate),
        (Error::DecryptError, Cause::Other),
    ] {
        assert_eq!(HandshakeFailure::of_tls(&error).cause, cause, "{error}");
    }
}
