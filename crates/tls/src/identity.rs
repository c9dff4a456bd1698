//! The node or client that a certificate names.
//!
//! | certificate | identity |
//! |---|---|
//! | one URI `stele://CLUSTER/node/NAME` among its alternative names | the node NAME of CLUSTER |
//! | no URI of the scheme `stele` | the client of the first DNS name, else of the common name |
//! | any other URI of the scheme `stele`, or two | refused |
//!
//! A certificate is decoded here after a handshake has verified it, or from this node's own files.

use rustls::pki_types::CertificateDer;
use std::fmt;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::FromDer;

const SCHEME: &str = "stele:";
const AUTHORITY: &str = "stele://";
const NODE: &str = "/node/";

/// Name of a cluster in the certificates of its nodes: 1 to 64 letters, digits, `-`, `_` and single `.` between
/// others. It is the host of a URI, and Go refuses a certificate that has a URI with any other host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterName(String);

/// Name of a node in its certificate, with the characters of a [`ClusterName`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(String);

/// Name of a client: 1 to 255 bytes without control characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientName(String);

/// Longest name of a cluster or node, in bytes.
const NODE_BYTES_MAX: usize = 64;
/// Longest name of a client, in bytes: that of a DNS name.
const CLIENT_BYTES_MAX: usize = 255;

fn is_node_or_cluster(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    name.len() <= NODE_BYTES_MAX && name.split('.').all(is_part)
}

fn node_or_cluster(kind: &'static str, name: &str) -> Result<String, IdentityError> {
    if is_node_or_cluster(name) {
        return Ok(name.to_owned());
    }
    let rule = "1 to 64 letters, digits, `-` and `_`, with single dots between them";
    Err(IdentityError::Name { kind, name: shown(name), rule })
}

impl ClusterName {
    /// Takes a name over. Fails with [`IdentityError::Name`] if it has other characters or is too long.
    pub fn new(name: &str) -> Result<Self, IdentityError> {
        node_or_cluster("cluster", name).map(Self)
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl NodeName {
    /// Takes a name over. Fails with [`IdentityError::Name`] if it has other characters or is too long.
    pub fn new(name: &str) -> Result<Self, IdentityError> {
        node_or_cluster("node", name).map(Self)
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ClientName {
    /// Takes a name over. Fails with [`IdentityError::Name`] if it has a control character or is too long.
    pub fn new(name: &str) -> Result<Self, IdentityError> {
        let is_valid = !name.trim().is_empty()
            && name.len() <= CLIENT_BYTES_MAX
            && !name.chars().any(char::is_control);
        if is_valid {
            return Ok(Self(name.to_owned()));
        }
        let rule = "1 to 255 bytes, not only spaces, without control characters";
        Err(IdentityError::Name { kind: "client", name: shown(name), rule })
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The node or client that a verified certificate names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// A node of a cluster.
    Node {
        /// The cluster.
        cluster: ClusterName,
        /// The node.
        node: NodeName,
    },
    /// A client.
    Client(ClientName),
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { cluster, node } => write!(f, "node {node} of cluster {cluster}"),
            Self::Client(name) => write!(f, "client {name}"),
        }
    }
}

/// Reason for which a certificate gives no identity, or not the one that is needed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The certificate, its names or one of them cannot be decoded.
    #[error(
        "the certificate cannot be decoded ({0}); create another one, for example with `stele cert`"
    )]
    Unreadable(&'static str),
    /// It names nothing.
    #[error(
        "the certificate has neither a DNS name nor a common name; create one with `stele cert client NAME`"
    )]
    Nameless,
    /// It has several common names and no DNS name.
    #[error(
        "the certificate has {0} common names and no DNS name; create one with a single name, for example with `stele cert client NAME`"
    )]
    Ambiguous(usize),
    /// A URI of the scheme `stele` is not one of a node.
    #[error(
        "the certificate has the URI `{0}`, which is not `stele://CLUSTER/node/NAME`; create one with `stele cert node`"
    )]
    MalformedUri(String),
    /// It names several nodes.
    #[error("the certificate names several nodes; create one for each with `stele cert node`")]
    SeveralNodes,
    /// A name has characters or a length that are not allowed.
    #[error("`{name}` cannot be the name of a {kind}: use {rule}")]
    Name {
        /// `cluster`, `node` or `client`.
        kind: &'static str,
        /// The name, cut if it is long.
        name: String,
        /// What is allowed.
        rule: &'static str,
    },
    /// A node is needed, and the certificate is a client's.
    #[error(
        "the certificate is that of client {0}, not that of a node of cluster {1}; check the address, and create the node's certificate with `stele cert node`"
    )]
    NotANode(ClientName, ClusterName),
    /// It is a node of another cluster.
    #[error(
        "the certificate is that of node {node} of cluster {found}, not of cluster {expected}; check the address and the name of the cluster"
    )]
    OtherCluster {
        /// The node.
        node: NodeName,
        /// Its cluster.
        found: ClusterName,
        /// The cluster that is needed.
        expected: ClusterName,
    },
}

impl Identity {
    /// Decodes the identity of a certificate in DER form. Fails with [`IdentityError`] if it names none.
    ///
    /// Invariant: a certificate with a URI of the scheme `stele` is that of exactly one node, or it is refused.
    /// Otherwise a damaged or ambiguous certificate of a node would have the permissions of a client.
    /// Tests: `a_malformed_or_second_stele_uri_is_refused_and_never_a_client`
    pub fn of_certificate(der: &[u8]) -> Result<Self, IdentityError> {
        let decoded = X509Certificate::from_der(der);
        let (rest, certificate) = decoded.map_err(|_| IdentityError::Unreadable("not X.509"))?;
        if !rest.is_empty() {
            return Err(IdentityError::Unreadable("bytes after its end"));
        }
        let (mut node, mut dns) = (None, None);
        for name in alternative_names(&certificate)? {
            match name {
                GeneralName::URI(uri) if is_stele(uri) => {
                    let Some(found) = node_of(uri) else {
                        // bug tls.malformed_uri_is_a_client: continue;
                        return Err(IdentityError::MalformedUri(shown(uri)));
                    };
                    if node.replace(found).is_some() {
                        return Err(IdentityError::SeveralNodes);
                    }
                }
                GeneralName::DNSName(name) => dns = dns.or(Some(*name)),
                GeneralName::Invalid(..) => {
                    return Err(IdentityError::Unreadable("an alternative name"));
                }
                _ => {}
            }
        }
        match (node, dns) {
            (Some(node), _) => Ok(node),
            (None, Some(name)) => ClientName::new(name).map(Self::Client),
            (None, None) => {
                common_name(&certificate).and_then(|name| ClientName::new(name).map(Self::Client))
            }
        }
    }

    /// Returns the URI of a node's certificate.
    pub(crate) fn uri(cluster: &ClusterName, node: &NodeName) -> String {
        format!("{AUTHORITY}{cluster}{NODE}{node}")
    }

    /// Fails unless it is a node of `expected`.
    pub fn is_node_of(&self, expected: &ClusterName) -> Result<(), IdentityError> {
        match self {
            Self::Client(name) => Err(IdentityError::NotANode(name.clone(), expected.clone())),
            // Invariant: a node takes only nodes of its own cluster for its peers, also where one authority has
            // signed the certificates of several clusters.
            // Tests: `node_mode_refuses_clients_and_nodes_of_another_cluster`
            // bug tls.any_cluster: never
            Self::Node { cluster, node } if cluster != expected => {
                Err(IdentityError::OtherCluster {
                    node: node.clone(),
                    found: cluster.clone(),
                    expected: expected.clone(),
                })
            }
            Self::Node { .. } => Ok(()),
        }
    }
}

/// Returns the identity of the peer of a connection from its certificates, the leaf first, as
/// `peer_certificates` of a rustls connection returns them after the handshake. `None` is a client without a
/// certificate.
pub fn peer_identity(
    certificates: Option<&[CertificateDer<'_>]>,
) -> Result<Option<Identity>, IdentityError> {
    let leaf = certificates.and_then(<[_]>::first);
    leaf.map(|leaf| Identity::of_certificate(leaf)).transpose()
}

fn alternative_names<'a>(
    certificate: &'a X509Certificate<'_>,
) -> Result<&'a [GeneralName<'a>], IdentityError> {
    let is_names = |oid| oid == &OID_X509_EXT_SUBJECT_ALT_NAME;
    let mut found = certificate.extensions().iter().filter(|it| is_names(&it.oid));
    let (names, second) = (found.next(), found.next());
    if second.is_some() {
        return Err(IdentityError::Unreadable("two lists of alternative names"));
    }
    // An undecodable list must not count as an absent one: it may hold the URI of a node.
    match names.map(|it| it.parsed_extension()) {
        None => Ok(&[]),
        Some(ParsedExtension::SubjectAlternativeName(names)) => Ok(&names.general_names),
        Some(_) => Err(IdentityError::Unreadable("its alternative names")),
    }
}

fn common_name<'a>(certificate: &'a X509Certificate<'_>) -> Result<&'a str, IdentityError> {
    let names: Vec<_> = certificate.subject().iter_common_name().collect();
    match names.as_slice() {
        [] => Err(IdentityError::Nameless),
        [name] => name.as_str().map_err(|_| IdentityError::Unreadable("its common name")),
        _ => Err(IdentityError::Ambiguous(names.len())),
    }
}

/// Whether the URI has the scheme `stele`, in any case: schemes have none.
fn is_stele(uri: &str) -> bool {
    let uri = uri.trim_start();
    uri.get(..SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
}

fn node_of(uri: &str) -> Option<Identity> {
    let (cluster, node) = uri.strip_prefix(AUTHORITY)?.split_once(NODE)?;
    let (cluster, node) = (ClusterName::new(cluster).ok()?, NodeName::new(node).ok()?);
    Some(Identity::Node { cluster, node })
}

/// Returns a text from outside for a message: escaped, and cut to a length that a line can hold.
fn shown(text: &str) -> String {
    const CHARACTERS_MAX: usize = 80;
    let mut shown: String =
        text.chars().take(CHARACTERS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(CHARACTERS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
