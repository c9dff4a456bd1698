//! First caller of a control call. A node that does not lead forwards calls to the leader of the placement
//! group, with the identity of the first caller in a header. The leader answers reads so. A change it decides only
//! for a caller that calls it: the header proves nothing.
//!
//! ```text
//! stele-first-caller := 'client "' NAME '"' | 'node "' CLUSTER '/' NAME '"' | 'token "' SHA256 '"'
//! ```

use super::calls::{CallClass, changes_cluster, may_be_forwarded, needs_caller, reads_values};
use super::principal::{Denied, Principal, Rights};
use axum::http::{HeaderMap, HeaderValue};
use std::fmt;
use std::future::Future;
use stele_tls::{ClientName, ClusterName, Identity, NodeName};
use tonic::metadata::MetadataMap;

const HEADER: &str = "stele-first-caller";
const NO_NAME: &str = "the forwarding node names no first caller";
const NO_CHANGE: &str =
    "a node changes nothing by itself; call it with the certificate of an administrator";
const NO_VALUES: &str =
    "a node reads no values by itself; call it with the certificate of an administrator";
const NOT_FORWARDED: &str = "it concerns the node that is called, which no other node forwards";

tokio::task_local! {
    static CALLER: Origin;
}

/// Origin of a call of the control service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Origin that did not forward the call for another one.
    pub first: Principal,
    /// Node that forwarded it; `None` if the first caller called this node.
    pub via: Option<NodeName>,
    /// The call is decided only for a caller that calls the leader itself.
    pub must_call_itself: bool,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        self.via.as_ref().map_or(Ok(()), |via| write!(f, " through node {via}"))
    }
}

impl Origin {
    /// Returns whether the first caller is known to be no node.
    pub(crate) fn is_client(&self) -> bool {
        !matches!(self.first, Principal::Plain | Principal::Known(Identity::Node { .. }))
    }
}

/// Returns the caller of the control call that this task answers; `None` for what the node does for
/// itself, and in tasks that the answer spawns.
pub fn first_caller() -> Option<Origin> {
    CALLER.try_with(Clone::clone).ok()
}

/// Answers a call as one of this caller.
pub(crate) async fn answer_to<T>(caller: Option<Origin>, answer: impl Future<Output = T>) -> T {
    match caller {
        Some(caller) => CALLER.scope(caller, answer).await,
        None => answer.await,
    }
}

/// Returns the request that forwards a message to another node, with the first caller of this task.
pub(crate) fn forwarded<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(first) = first_caller().and_then(|caller| encode(&caller.first)) {
        let mut headers = HeaderMap::new();
        // Names have no control characters.
        if let Ok(value) = HeaderValue::from_bytes(first.as_bytes()) {
            headers.insert(HEADER, value);
        }
        *request.metadata_mut() = MetadataMap::from_headers(headers);
    }
    request
}

fn encode(caller: &Principal) -> Option<String> {
    Some(match caller {
        Principal::Plain | Principal::Anonymous => return None,
        Principal::Known(Identity::Client(name)) => format!("client \"{}\"", name.as_str()),
        Principal::Known(Identity::Node { cluster, node }) => {
            format!("node \"{}/{}\"", cluster.as_str(), node.as_str())
        }
        Principal::Token(hash) => {
            let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("token \"{digits}\"")
        }
    })
}

fn decode(value: &HeaderValue) -> Option<Principal> {
    let (kind, name) = std::str::from_utf8(value.as_bytes()).ok()?.split_once(" \"")?;
    let name = name.strip_suffix('"')?;
    match kind {
        "client" => ClientName::new(name).ok().map(Identity::Client).map(Principal::Known),
        "node" => {
            let (cluster, node) = name.split_once('/')?;
            let (cluster, node) = (ClusterName::new(cluster).ok()?, NodeName::new(node).ok()?);
            Some(Principal::Known(Identity::Node { cluster, node }))
        }
        "token" if name.len() == 64 => {
            let byte = |at: usize| u8::from_str_radix(name.get(2 * at..2 * at + 2)?, 16).ok();
            let hash = (0..32).map(byte).collect::<Option<Vec<u8>>>()?;
            Some(Principal::Token(hash.try_into().ok()?))
        }
        _ => None,
    }
}

impl Rights {
    /// Returns the caller of a control call at a path of this class; `None` for other calls. Fails if the first
    /// caller may not make the call. A path that does not exist is for those that may read the node's status.
    ///
    /// Invariant: a node forwards a call only with the rights of its first caller, and changes nothing by
    /// its own certificate. It names no other caller where none is forwarded: it would report for another node.
    /// Tests: `a_node_forwards_with_the_rights_of_the_first_caller`, `a_node_alone_administers_nothing`,
    /// `a_node_names_no_other_caller_of_what_is_not_forwarded`.
    pub(crate) fn caller(
        &self,
        (path, class): (&str, Option<CallClass>),
        headers: &HeaderMap,
    ) -> Result<Option<Origin>, Denied> {
        self.check_class(class.unwrap_or(CallClass::Status), path)?;
        let class = class.filter(|class| [CallClass::Admin, CallClass::Peer].contains(class));
        let Some(class) = class else { return Ok(None) };
        let must_call_itself = needs_caller(path);
        let mut caller = Origin { first: self.principal().clone(), via: None, must_call_itself };
        let Some(rules) = self.rules() else { return Ok(Some(caller)) };
        // Only a node forwards: the header of a client says nothing.
        if let Principal::Known(Identity::Node { node, .. }) = self.principal()
            && let Some(stated) = headers.get(HEADER)
        {
            let denied = |remedy| self.denied(&self.principal().to_string(), path, remedy);
            // bug server.nodes_report_for_others: never
            if !may_be_forwarded(path) {
                return Err(denied(NOT_FORWARDED));
            }
            caller.first = decode(stated).ok_or_else(|| denied(NO_NAME))?;
            caller.via = Some(node.clone());
        }
        let standing = rules.standing(&caller.first);
        // bug server.first_caller_unchecked: `standing.refusal(class)` is `None`
        if let Some(remedy) = standing.refusal(class) {
            return Err(self.denied(standing.caller(), path, remedy));
        }
        let is_node = matches!(caller.first, Principal::Known(Identity::Node { .. }));
        // bug server.nodes_administer: never
        if is_node && changes_cluster(path) {
            return Err(self.denied(standing.caller(), path, NO_CHANGE));
        }
        // bug server.nodes_read_values: never
        if is_node && reads_values(path) {
            return Err(self.denied(standing.caller(), path, NO_VALUES));
        }
        Ok(Some(caller))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{LiveRules, Rules, class_of};
    use std::collections::BTreeSet;
    use std::sync::Arc;

    const DRAIN: &str = "/stele.control.v1.Control/SetStoreState";
    const LIST: &str = "/stele.control.v1.Control/ListStores";
    const JOIN: &str = "/stele.control.v1.Control/Join";

    fn at(path: &str) -> (&str, Option<CallClass>) {
        (path, class_of(path))
    }

    fn client(name: &str) -> Identity {
        Identity::Client(ClientName::new(name).unwrap())
    }

    fn node(name: &str) -> Identity {
        let (cluster, node) = (ClusterName::new("prod").unwrap(), NodeName::new(name).unwrap());
        Identity::Node { cluster, node }
    }

    fn rights(identity: Identity) -> Rights {
        let administrators = BTreeSet::from([ClientName::new("root").unwrap()]);
        let cluster = ClusterName::new("prod").unwrap();
        let rules = Rules { cluster, administrators, grants: Arc::default() };
        Rights::new(Principal::Known(identity), Arc::new(LiveRules::new(rules)))
    }

    /// Returns the headers with which the node of these rights forwards a call.
    async fn headers_for(first: Identity) -> HeaderMap {
        let first = Principal::Known(first);
        let caller = Origin { first, via: None, must_call_itself: false };
        let request = answer_to(Some(caller), async { forwarded(()) }).await;
        request.into_parts().0.into_headers()
    }

    #[tokio::test]
    async fn a_node_forwards_with_the_rights_of_the_first_caller() {
        let of_root = headers_for(client("root")).await;
        let found = rights(node("n1")).caller(at(DRAIN), &of_root).unwrap().unwrap();
        let via = Some(NodeName::new("n1").unwrap());
        let first = Principal::Known(client("root"));
        assert_eq!(found, Origin { first, via, must_call_itself: true });
        let listed = rights(node("n1")).caller(at(LIST), &of_root).unwrap().unwrap();
        assert!(!listed.must_call_itself, "a read is answered");
        assert_eq!(found.to_string(), "client root through node n1");
        let refused = rights(node("n1")).caller(at(DRAIN), &headers_for(client("app")).await);
        assert!(refused.unwrap_err().to_string().contains("client app may not call"));
        let joins = rights(node("n1")).caller(at(JOIN), &headers_for(node("n2")).await).unwrap();
        assert_eq!(joins.unwrap().first, Principal::Known(node("n2")));
        assert!(rights(node("n1")).caller(at(JOIN), &of_root).is_err(), "no client joins");
        // A client is what its certificate says.
        assert!(rights(client("app")).caller(at(DRAIN), &of_root).is_err());
        let own = rights(client("root")).caller(at(DRAIN), &headers_for(client("app")).await);
        assert_eq!(own.unwrap().unwrap().first, Principal::Known(client("root")));
        let odd = "\u{e9}\u{20ac} \"x\" /";
        let found = rights(node("n1")).caller(at(DRAIN), &headers_for(client(odd)).await);
        assert!(found.unwrap_err().to_string().contains(odd), "a name survives as it is");
        for value in ["", "client root", "client \"\"", "node \"n2\"", "user \"root\""] {
            let headers = HeaderMap::from_iter([(
                axum::http::HeaderName::from_static(HEADER),
                HeaderValue::from_static(value),
            )]);
            assert!(rights(node("n1")).caller(at(LIST), &headers).is_err(), "{value}");
        }
    }

    #[tokio::test]
    async fn a_node_names_no_other_caller_of_what_is_not_forwarded() {
        let (of_root, of_node) = (headers_for(client("root")).await, headers_for(node("n2")).await);
        for (call, headers) in [
            ("Heartbeat", &of_node),
            ("AllocIds", &of_node),
            ("KeepRun", &of_root),
            ("RecoverReplica", &of_root),
            ("LocalChecksum", &of_root),
            ("Members", &of_root),
        ] {
            let path = format!("/stele.control.v1.Control/{call}");
            let refused = rights(node("n1")).caller(at(&path), headers).unwrap_err().to_string();
            assert!(refused.contains("which no other node forwards"), "{refused}");
        }
        for call in ["Heartbeat", "AllocIds", "Members"] {
            let path = format!("/stele.control.v1.Control/{call}");
            assert!(rights(node("n1")).caller(at(&path), &HeaderMap::new()).is_ok(), "{call}");
        }
    }

    #[tokio::test]
    async fn a_node_alone_administers_nothing() {
        let none = HeaderMap::new();
        for call in ["SetStoreState", "RecoverReplica", "SetConfig", "KeepRun", "Admit", "Merge"] {
            let path = format!("/stele.control.v1.Control/{call}");
            let refused = rights(node("n1")).caller(at(&path), &none).unwrap_err().to_string();
            assert!(refused.contains("a node changes nothing by itself"), "{refused}");
            assert!(rights(client("root")).caller(at(&path), &none).is_ok());
            let for_itself = headers_for(node("n1")).await;
            assert!(rights(node("n2")).caller(at(&path), &for_itself).is_err());
        }
        assert!(rights(node("n1")).caller(at(LIST), &none).is_ok(), "it reads for its clients");
        let checksum = "/stele.control.v1.Control/LocalChecksum";
        let refused = rights(node("n1")).caller(at(checksum), &none).unwrap_err().to_string();
        assert!(refused.contains("a node reads no values by itself"), "{refused}");
        assert!(rights(client("root")).caller(at(checksum), &none).is_ok());
        let get = at("/tikvpb.Tikv/RawGet");
        assert!(rights(node("n1")).caller(get, &none).is_err());
        assert_eq!(rights(client("app")).caller(get, &none), Ok(None));
        let plain = Rights::of_plain().caller(at(DRAIN), &none).unwrap().unwrap();
        assert_eq!((plain.first, plain.via), (Principal::Plain, None));
        let by = |first| Origin { first, via: None, must_call_itself: false }.is_client();
        assert!(by(Principal::Known(client("root"))) && by(Principal::Token([7; 32])));
        assert!(!by(Principal::Known(node("n1"))) && !by(Principal::Plain));
    }
}
