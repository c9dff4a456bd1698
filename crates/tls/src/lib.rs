//! TLS of Stele: certificates and the identities that they prove, configurations that follow their files, and
//! reasons of failed handshakes. No socket is opened here.
//!
//! - [`ServerTls`] and [`ClientTls`] read files and hold what rustls needs. [`ServerTls::reload`] and
//!   [`ClientTls::reload`] take new files over, or refuse them and keep what is in force.
//! - [`Identity`] is the node or client that a verified certificate names.
//! - [`Authority`] creates certificates for `stele cert`.
//! - [`new_token`] and [`token_hash`] are for clients without a certificate, and for nodes that join.
//! - [`HandshakeFailure`] gives the cause of a failed handshake, and its remedy.
//!
//! Every configuration has TLS 1.3 only, the provider `ring`, and no resumption: a resumed session would keep
//! a certificate in force that the authorities no longer verify.

mod client;
mod create;
mod error;
mod failure;
mod files;
mod identity;
mod server;
mod token;

pub use client::{ClientFiles, ClientTls, ServerCheck};
pub use create::{Authority, Created, Days, NodeRequest, Written};
pub use error::{TlsError, Warning, utc};
pub use failure::{Cause, DetectedBy, HandshakeFailure};
pub use files::{AUTHORITIES_MAX, CHAIN_MAX, FILE_BYTES_MAX, is_pem};
pub use identity::{ClientName, ClusterName, Identity, IdentityError, NodeName, peer_identity};
pub use rustls;
pub use rustls::pki_types::UnixTime;
pub use server::{ClientCertificates, ServerFiles, ServerTls};
pub use token::{new_token, token_hash};

use rustls::crypto::CryptoProvider;
use std::sync::Arc;

/// Application protocol of a connection, as ALPN names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Messages between nodes.
    Node,
    /// gRPC, and HTTP/2 of browsers and monitoring.
    Http2,
    /// HTTP/1.1 of browsers and monitoring.
    Http1,
}

impl Protocol {
    /// All protocols, the one that a server prefers first.
    pub const ALL: [Self; 3] = [Self::Node, Self::Http2, Self::Http1];

    /// Returns the name on the wire.
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::Node => b"stele/1",
            Self::Http2 => b"h2",
            Self::Http1 => b"http/1.1",
        }
    }

    /// Returns the protocol that a handshake chose; `None` for a name of no protocol.
    pub fn of(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }
}

/// Returns the cryptography of all configurations. It is passed explicitly: a default of the process would
/// depend on which crate sets it first.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
