//! The origin of a request, and the calls that it may make.

use super::calls::{CallClass, class_of};
use crate::transport::frame::FrameKind;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use stele_proto::Method;
use stele_tls::{ClientName, ClusterName, Identity};
use tonic::Status;

/// Origin of the requests of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// A connection without TLS: on loopback, or with `insecure`. It has every right.
    Plain,
    /// A connection over TLS without a certificate.
    Anonymous,
    /// The node or client that a verified certificate names.
    Known(Identity),
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("a connection without TLS"),
            Self::Anonymous => f.write_str("a connection without a certificate"),
            Self::Known(identity) => identity.fmt(f),
        }
    }
}

/// Rules of a node: which cluster's nodes are its peers, and which clients administer it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Cluster in the certificates of its nodes.
    pub cluster: ClusterName,
    /// Clients with the rights of an administrator.
    pub administrators: BTreeSet<ClientName>,
}

/// A call that its caller may not make.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{caller} may not call {path}: {remedy}")]
pub struct Denied {
    caller: String,
    path: String,
    remedy: &'static str,
}

const NO_IDENTITY: &str = "connect with a certificate of `stele cert client`";
const NO_ADMINISTRATOR: &str =
    "it is for administrators; name the client in `administrators` of each node";
const NO_NODE: &str =
    "it is for nodes of the cluster, which have certificates of `stele cert node`";
const OTHER_CLUSTER: &str = "the certificate is that of a node of another cluster";

impl Rules {
    /// Returns why the caller may not make a call of this class; `None` if it may.
    ///
    /// Invariant: only nodes of this cluster make calls of nodes, and only administrators and nodes make those
    /// of administrators.
    /// Tests: `each_class_has_its_callers`.
    fn refusal(&self, caller: &Principal, class: CallClass) -> Option<&'static str> {
        use CallClass::{Admin, Data, Peer, Status};
        match (caller, class) {
            (Principal::Plain, _) => None,
            (Principal::Anonymous, _) => Some(NO_IDENTITY),
            (Principal::Known(Identity::Node { cluster, .. }), _) => {
                // bug server.nodes_of_any_cluster: `*cluster != self.cluster` is `false`
                (*cluster != self.cluster).then_some(OTHER_CLUSTER)
            }
            (Principal::Known(Identity::Client(_)), Data | Status) => None,
            // bug server.clients_call_as_nodes: `Some(NO_NODE)` is `None`
            (Principal::Known(Identity::Client(_)), Peer) => Some(NO_NODE),
            (Principal::Known(Identity::Client(name)), Admin) => {
                let is_administrator = self.administrators.contains(name);
                // bug server.clients_administer: `!is_administrator` is `false`
                (!is_administrator).then_some(NO_ADMINISTRATOR)
            }
        }
    }
}

/// Principal of a connection with the rules that hold for it.
#[derive(Clone, Debug)]
pub struct Rights {
    caller: Arc<Principal>,
    rules: Option<Arc<Rules>>,
}

impl Rights {
    /// Creates the rights of a connection without TLS.
    pub fn of_plain() -> Self {
        Self { caller: Arc::new(Principal::Plain), rules: None }
    }

    /// Creates the rights of a caller under rules.
    pub fn new(caller: Principal, rules: Arc<Rules>) -> Self {
        Self { caller: Arc::new(caller), rules: Some(rules) }
    }

    /// Fails unless the caller may call the path. A path that does not exist is for those that may read the
    /// node's status.
    pub fn check(&self, path: &str) -> Result<(), Denied> {
        let Some(rules) = &self.rules else { return Ok(()) };
        let class = class_of(path).unwrap_or(CallClass::Status);
        self.checked(rules.refusal(&self.caller, class), path)
    }

    /// Fails unless the caller may send messages of nodes.
    pub fn check_node(&self) -> Result<(), Denied> {
        let Some(rules) = &self.rules else { return Ok(()) };
        self.checked(rules.refusal(&self.caller, FrameKind::Hello.class()), "the messages of nodes")
    }

    fn checked(&self, remedy: Option<&'static str>, path: &str) -> Result<(), Denied> {
        let denied =
            |remedy| Denied { caller: self.caller.to_string(), path: path.to_owned(), remedy };
        remedy.map_or(Ok(()), |remedy| Err(denied(remedy)))
    }
}

impl Denied {
    /// Returns the answer to a request at `path`.
    pub fn into_response(self, path: &str) -> Response {
        match Method::at(path) {
            Some(_) => Status::permission_denied(self.to_string()).into_http(),
            None => (StatusCode::FORBIDDEN, format!("{self}\n")).into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_tls::NodeName;

    fn rules() -> Rules {
        let administrators = BTreeSet::from([ClientName::new("root").unwrap()]);
        Rules { cluster: ClusterName::new("prod").unwrap(), administrators }
    }

    fn node(cluster: &str) -> Principal {
        let (cluster, node) = (ClusterName::new(cluster).unwrap(), NodeName::new("n1").unwrap());
        Principal::Known(Identity::Node { cluster, node })
    }

    fn client(name: &str) -> Principal {
        Principal::Known(Identity::Client(ClientName::new(name).unwrap()))
    }

    #[test]
    fn each_class_has_its_callers() {
        use CallClass::{Admin, Data, Peer, Status};
        let may = |caller: &Principal, class| rules().refusal(caller, class).is_none();
        let all = |caller: &Principal| [Data, Peer, Admin, Status].map(|class| may(caller, class));
        assert_eq!(all(&Principal::Plain), [true; 4]);
        assert_eq!(all(&Principal::Anonymous), [false; 4]);
        assert_eq!(all(&node("prod")), [true; 4]);
        assert_eq!(all(&node("test")), [false; 4]);
        assert_eq!(all(&client("app")), [true, false, false, true]);
        assert_eq!(all(&client("root")), [true, false, true, true]);
    }

    #[test]
    fn a_refusal_names_the_caller_the_call_and_the_remedy() {
        let rights = Rights::new(client("app"), Arc::new(rules()));
        let denied = rights.check("/stele.control.v1.Control/SetStoreState").unwrap_err();
        assert_eq!(
            denied.to_string(),
            "client app may not call /stele.control.v1.Control/SetStoreState: it is for \
             administrators; name the client in `administrators` of each node"
        );
        assert_eq!(rights.check("/tikvpb.Tikv/RawPut"), Ok(()));
        assert!(rights.check_node().is_err());
        assert_eq!(Rights::of_plain().check("/stele.control.v1.Control/Join"), Ok(()));
        let anonymous = Rights::new(Principal::Anonymous, Arc::new(rules()));
        assert!(
            anonymous.check("/no/such/call").is_err(),
            "without an identity nothing is learned"
        );
    }
}
