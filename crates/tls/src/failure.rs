//! Causes of failed handshakes. Most clients hide the cause, so a server logs it with a remedy.

use crate::IdentityError;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};
use std::io;

/// Cause of a failed handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// One end sent no TLS.
    Plaintext,
    /// The client sent no certificate, and the server requires one.
    NoCertificate,
    /// No authority of the verifying end signed the certificate.
    UnknownIssuer,
    /// The certificate is past its end.
    Expired,
    /// The certificate is before its begin.
    NotYetValid,
    /// The certificate of the server does not have the name or address that was dialled. Clients with OpenSSL find
    /// it after the handshake, of which the server then sees no failure.
    WrongName,
    /// The certificate is not made for this end of a connection.
    WrongUse,
    /// The certificate names no node or client, or not the node that is needed.
    WrongIdentity,
    /// The certificate was refused for another reason, or one that the peer does not state.
    RefusedCertificate,
    /// No protocol is in both lists of ALPN.
    NoProtocol,
    /// The peer has no TLS 1.3.
    Version,
    /// No cipher, group or signature is supported by both ends.
    NoAlgorithm,
    /// The peer closed the connection without a reason.
    Closed,
    /// The handshake took too long.
    Timeout,
    /// Any other cause; the error's text states it.
    Other,
}

/// End of the connection that found the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DetectedBy {
    /// This end.
    Here,
    /// The peer, which sent an alert.
    Peer,
}

/// A failed handshake for a log line and a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandshakeFailure {
    /// The cause.
    pub cause: Cause,
    /// The end that found it.
    pub by: DetectedBy,
}

impl HandshakeFailure {
    /// Classifies the error of a stream, which holds that of rustls if TLS failed.
    pub fn of(error: &io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        if let Some(inner) = inner {
            return Self::of_tls(inner);
        }
        let cause = match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Cause::Closed,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Cause::Timeout,
            _ => Cause::Other,
        };
        Self { cause, by: DetectedBy::Here }
    }

    /// Classifies an error of rustls.
    pub fn of_tls(error: &Error) -> Self {
        let here = |cause| Self { cause, by: DetectedBy::Here };
        match error {
            Error::AlertReceived(alert) => Self { cause: of_alert(*alert), by: DetectedBy::Peer },
            Error::InvalidMessage(
                InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
            ) => here(Cause::Plaintext),
            Error::NoCertificatesPresented => here(Cause::NoCertificate),
            Error::InvalidCertificate(error) => here(of_certificate(error)),
            Error::NoApplicationProtocol => here(Cause::NoProtocol),
            Error::PeerIncompatible(error) => here(of_incompatible(error)),
            _ => here(Cause::Other),
        }
    }

    /// Returns the label of the cause for metrics and logs. It never changes.
    pub fn label(self) -> &'static str {
        match self.cause {
            Cause::Plaintext => "plaintext",
            Cause::NoCertificate => "no_certificate",
            Cause::UnknownIssuer => "unknown_issuer",
            Cause::Expired => "expired",
            Cause::NotYetValid => "not_yet_valid",
            Cause::WrongName => "wrong_name",
            Cause::WrongUse => "wrong_use",
            Cause::WrongIdentity => "wrong_identity",
            Cause::RefusedCertificate => "refused_certificate",
            Cause::NoProtocol => "no_protocol",
            Cause::Version => "tls_version",
            Cause::NoAlgorithm => "no_algorithm",
            Cause::Closed => "closed",
            Cause::Timeout => "timeout",
            Cause::Other => "other",
        }
    }

    /// Returns what an operator can do, as the end of a log line.
    pub fn remedy(self) -> &'static str {
        match self.by {
            DetectedBy::Here => remedy_here(self.cause),
            DetectedBy::Peer => remedy_of_peer(self.cause),
        }
    }
}

fn remedy_here(cause: Cause) -> &'static str {
    match cause {
        Cause::Plaintext => {
            "the peer speaks no TLS: turn TLS on at both ends, or check the address and port"
        }
        Cause::NoCertificate => {
            "the client sent no certificate: give it one of an authority that this server names, with `stele cert client`"
        }
        Cause::UnknownIssuer => {
            "no authority in force signed the peer's certificate: add its authority to the file, or create the certificate again"
        }
        Cause::Expired => {
            "the peer's certificate expired: create another one, and check both clocks"
        }
        Cause::NotYetValid => "the peer's certificate is not valid yet: check both clocks",
        Cause::WrongName => {
            "the server's certificate does not have the dialled name: create it again with that name or address"
        }
        Cause::WrongUse => {
            "the peer's certificate is not for this end: nodes need one of `stele cert node`, clients one of `stele cert client`"
        }
        Cause::WrongIdentity => {
            "the peer's certificate names no accepted node or client: create it again with `stele cert`"
        }
        Cause::RefusedCertificate => "the peer's certificate cannot be used: create it again",
        Cause::NoProtocol => {
            "the peer offers neither `h2`, `http/1.1` nor `stele/1`: check what it is"
        }
        Cause::Version => "the peer does not offer TLS 1.3: upgrade its TLS library",
        Cause::NoAlgorithm => {
            "the ends share no cipher or signature: use keys of ECDSA P-256, which all clients know"
        }
        Cause::Closed => {
            "the peer closed the connection without an alert: its own log may state the reason; a check of the port does so too"
        }
        Cause::Timeout => {
            "the peer did not answer in time: check the network, and that it speaks TLS"
        }
        Cause::Other => "check the peer's TLS library, and the network between both",
    }
}

fn remedy_of_peer(cause: Cause) -> &'static str {
    match cause {
        Cause::NoCertificate => {
            "the peer requires a certificate: name one of an authority that it trusts, created with `stele cert client`"
        }
        Cause::UnknownIssuer => {
            "the peer does not trust the authority of this end's certificate: add it to the peer's authorities"
        }
        Cause::Expired => {
            "the peer finds this end's certificate expired or not valid yet: renew it, and check both clocks"
        }
        Cause::RefusedCertificate => {
            "the peer refuses this end's certificate: check that it trusts the authority, and that the certificate has the dialled name"
        }
        Cause::NoProtocol => {
            "the peer accepts none of the offered protocols: check the address and port"
        }
        Cause::Version => "the peer does not accept TLS 1.3: upgrade its TLS library",
        Cause::NoAlgorithm => {
            "the peer accepts no cipher or signature of this end: use keys of ECDSA P-256"
        }
        Cause::WrongUse => {
            "the peer refuses the use of this end's certificate: create it again with `stele cert`"
        }
        _ => "the peer ended the handshake: its own log states the reason",
    }
}

fn of_alert(alert: AlertDescription) -> Cause {
    match alert {
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
            Cause::NoCertificate
        }
        AlertDescription::UnknownCA => Cause::UnknownIssuer,
        AlertDescription::CertificateExpired => Cause::Expired,
        AlertDescription::UnsupportedCertificate => Cause::WrongUse,
        // Go sends the first and Java the second for every reason.
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRevoked
        | AlertDescription::AccessDenied => Cause::RefusedCertificate,
        AlertDescription::NoApplicationProtocol => Cause::NoProtocol,
        AlertDescription::ProtocolVersion => Cause::Version,
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            Cause::NoAlgorithm
        }
        AlertDescription::CloseNotify | AlertDescription::UserCanceled => Cause::Closed,
        _ => Cause::Other,
    }
}

fn of_certificate(error: &CertificateError) -> Cause {
    match error {
        CertificateError::UnknownIssuer => Cause::UnknownIssuer,
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Cause::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            Cause::NotYetValid
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Cause::WrongName
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            Cause::WrongUse
        }
        CertificateError::Other(other) if other.0.downcast_ref::<IdentityError>().is_some() => {
            Cause::WrongIdentity
        }
        _ => Cause::RefusedCertificate,
    }
}

fn of_incompatible(error: &PeerIncompatible) -> Cause {
    match error {
        PeerIncompatible::ServerDoesNotSupportTls12Or13
        | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
        | PeerIncompatible::SupportedVersionsExtensionRequired
        | PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled
        | PeerIncompatible::Tls13RequiredForQuic => Cause::Version,
        _ => Cause::NoAlgorithm,
    }
}
