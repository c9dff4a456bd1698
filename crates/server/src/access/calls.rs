//! Table of calls: each path and each kind of frame with the class of its callers. What is not in the
//! table is not served.

use crate::transport::frame::FrameKind;
use axum::http::HeaderMap;
use stele_proto::Method;

/// Senders that a call is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallClass {
    /// Clients: keys and values.
    Data,
    /// Nodes, for their clients, which they have checked: keys and values.
    Forwarded,
    /// Clients, to find keys, and nodes: regions, stores and addresses.
    Lookup,
    /// Nodes of the cluster.
    Peer,
    /// Operators.
    Admin,
    /// Whatever watches a node: it changes nothing and shows no key.
    Status,
    /// Probes: they show whether a node serves.
    Health,
}

/// Services of which all calls have one class.
const SERVICES: [(&str, CallClass); 7] = [
    ("/tikvpb.Tikv/", CallClass::Data),
    ("/stele.kv.v1.Kv/", CallClass::Data),
    ("/stele.redis.v1.Redis/", CallClass::Forwarded),
    ("/pdpb.PD/", CallClass::Lookup),
    ("/meta_storagepb.MetaStorage/", CallClass::Lookup),
    ("/keyspacepb.Keyspace/", CallClass::Lookup),
    ("/grpc.health.v1.Health/", CallClass::Health),
];

const CONTROL: &str = "/stele.control.v1.Control/";

/// Calls of [`CONTROL`], each with its class: a new one has none until it stands here.
const CONTROL_CALLS: [(&str, CallClass); 32] = [
    ("Join", CallClass::Peer),
    ("Heartbeat", CallClass::Peer),
    ("AllocIds", CallClass::Peer),
    ("Members", CallClass::Admin),
    ("ListStores", CallClass::Admin),
    ("ListRegions", CallClass::Admin),
    ("ListOperators", CallClass::Admin),
    ("CancelOperator", CallClass::Admin),
    ("Transfer", CallClass::Admin),
    ("Move", CallClass::Admin),
    ("Split", CallClass::Admin),
    ("Merge", CallClass::Admin),
    ("SetStoreState", CallClass::Admin),
    ("GetStoreProgress", CallClass::Admin),
    ("Explain", CallClass::Admin),
    ("Placement", CallClass::Admin),
    ("AccessList", CallClass::Admin),
    ("AccessGrant", CallClass::Admin),
    ("AccessRevoke", CallClass::Admin),
    ("Finalize", CallClass::Admin),
    ("RegionDetail", CallClass::Admin),
    ("RecoverReplica", CallClass::Admin),
    ("LocalChecksum", CallClass::Admin),
    ("GetConfig", CallClass::Admin),
    ("SetConfig", CallClass::Admin),
    ("KeepRun", CallClass::Admin),
    ("DescribeRun", CallClass::Peer),
    ("Admit", CallClass::Admin),
    ("TakeMoment", CallClass::Admin),
    ("ListEvents", CallClass::Admin),
    ("Pause", CallClass::Peer),
    ("Seal", CallClass::Peer),
];

/// Calls of administrators that only read. Nodes make them for their clients.
const READS: [&str; 13] = [
    "Members",
    "ListStores",
    "ListRegions",
    "ListOperators",
    "GetStoreProgress",
    "Explain",
    "Placement",
    "RegionDetail",
    "LocalChecksum",
    "GetConfig",
    "AccessList",
    "TakeMoment",
    "ListEvents",
];

/// Calls that concern the node that is called: no node forwards them.
const OF_ONE_NODE: [&str; 10] = [
    "Heartbeat",
    "AllocIds",
    "DescribeRun",
    "Members",
    "RegionDetail",
    "RecoverReplica",
    "LocalChecksum",
    "KeepRun",
    "Pause",
    "Seal",
];

/// Paths of HTTP, and those of probes.
const PAGES: [&str; 4] = ["/", "/metrics", "/status", "/v1/openapi.json"];
const PROBES: [&str; 3] = ["/healthz", "/health", "/readyz"];
/// Paths of keys and values over HTTP. That of a pair is the first one, `/`, and the key.
const HTTP_PAIRS: &str = "/v1/kv";
const HTTP_DATA: [&str; 2] = ["/v1/batch", "/v1/watch"];

/// Header of a call of keys that a node makes for one of its clients, of which it has checked the rights.
pub(crate) const FOR_CLIENT: &str = "stele-for-client";

/// Returns the class of a path; `None` if there is no such call.
///
/// Invariant: a path without a class reaches no service.
/// Tests: `every_call_has_a_class_and_the_table_has_no_other`, `a_route_without_a_class_is_not_reached`.
pub fn class_of(path: &str) -> Option<CallClass> {
    if let Some(name) = path.strip_prefix(CONTROL) {
        return CONTROL_CALLS.iter().find(|(call, _)| *call == name).map(|(_, class)| *class);
    }
    if PAGES.contains(&path) {
        return Some(CallClass::Status);
    }
    if PROBES.contains(&path) {
        return Some(CallClass::Health);
    }
    if is_http_data(path) {
        return Some(CallClass::Data);
    }
    // Calls of TiKV's services that Stele lacks are refused in their terms.
    SERVICES.iter().find(|(service, _)| path.starts_with(service)).map(|(_, class)| *class)
}

/// Returns the class of a request. A call of keys with the mark of a node is one that nodes alone make.
///
/// Invariant: the mark makes no caller but a node a caller of more. A client that sends it is refused.
/// Test: `a_call_of_keys_with_the_mark_of_a_node_is_for_nodes_alone`.
pub(crate) fn class_of_request(path: &str, headers: &HeaderMap) -> Option<CallClass> {
    let is_marked = headers.contains_key(FOR_CLIENT) && Method::at(path).is_some();
    match class_of(path) {
        // bug server.mark_is_for_clients: never
        Some(CallClass::Data) if is_marked => Some(CallClass::Forwarded),
        class => class,
    }
}

/// Returns whether a path of HTTP has keys and values.
pub(crate) fn is_http_data(path: &str) -> bool {
    let of_pairs = |rest: &str| rest.is_empty() || rest.starts_with('/');
    HTTP_DATA.contains(&path) || path.strip_prefix(HTTP_PAIRS).is_some_and(of_pairs)
}

/// Returns whether a call is an administrator's and changes something.
pub(super) fn changes_cluster(path: &str) -> bool {
    let is_read = path.strip_prefix(CONTROL).is_some_and(|name| READS.contains(&name));
    // bug server.changes_unrecorded: `!is_read` is `is_read`
    class_of(path) == Some(CallClass::Admin) && !is_read
}

/// Returns whether a node may name another caller for which it makes the call.
pub(super) fn may_be_forwarded(path: &str) -> bool {
    path.strip_prefix(CONTROL).is_some_and(|name| !OF_ONE_NODE.contains(&name))
}

/// Returns whether the leader decides the call only for a caller that calls it.
pub(super) fn needs_caller(path: &str) -> bool {
    changes_cluster(path) || path.strip_prefix(CONTROL) == Some("Join")
}

/// Returns whether the call reads values of all keys of a region.
pub(super) fn reads_values(path: &str) -> bool {
    path.strip_prefix(CONTROL) == Some("LocalChecksum")
}

/// Returns the path of a call that changes something for an administrator; `None` for any other.
///
/// Invariant: a call of administrators is recorded unless it is known to change nothing.
/// Tests: `an_administrative_call_is_recorded_with_its_outcome_and_without_values`.
pub(super) fn change_at(path: &str) -> Option<&'static str> {
    Method::at(path).filter(|_| changes_cluster(path)).map(Method::path)
}

/// Returns a path that exists, or a text in place of what a caller sent.
///
/// Invariant: the audit log has no text that a refused caller chose.
/// Tests: `what_a_caller_sends_as_a_path_is_not_in_a_line`.
pub(super) fn shown(path: &str) -> &str {
    if is_http_data(path) && !HTTP_DATA.contains(&path) {
        return HTTP_PAIRS;
    }
    // bug server.audit_shows_paths: `Method::at(path).is_some()` is `true`
    match Method::at(path).is_some()
        || [&PAGES[..], &PROBES, &HTTP_DATA].iter().any(|paths| paths.contains(&path))
    {
        true => path,
        false => "a path that is not served",
    }
}

impl FrameKind {
    /// Returns the class of its senders.
    pub const fn class(self) -> CallClass {
        match self {
            Self::Hello
            | Self::Welcome
            | Self::Refused
            | Self::Alive
            | Self::Message
            | Self::Messages
            | Self::Offer
            | Self::Accepted
            | Self::Declined
            | Self::Chunk
            | Self::End
            | Self::Done => CallClass::Peer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_class_and_the_table_has_no_other() {
        let paths: Vec<&str> = Method::all().iter().map(Method::path).collect();
        for path in &paths {
            assert!(class_of(path).is_some(), "{path} has no class");
        }
        for (call, _) in CONTROL_CALLS {
            assert!(paths.contains(&&*format!("{CONTROL}{call}")), "{call} does not exist");
        }
        for read in READS {
            assert!(CONTROL_CALLS.contains(&(read, CallClass::Admin)), "{read}");
        }
        for call in OF_ONE_NODE {
            assert!(CONTROL_CALLS.iter().any(|(known, _)| *known == call), "{call}");
        }
        assert_eq!(class_of("/stele.control.v1.Control/NoSuchCall"), None);
        assert_eq!(class_of("/stele.control.v2.Control/Join"), None);
        assert_eq!(class_of("/debug"), None);
        assert_eq!(class_of("/metrics/"), None);
        for path in ["/v1/kv", "/v1/kv/", "/v1/kv/a/b", "/v1/batch", "/v1/watch"] {
            assert_eq!(class_of(path), Some(CallClass::Data), "{path}");
        }
        for path in ["/v1", "/v1/", "/v1/kvs", "/v1/batch/", "/v1/other", "/v2/kv/a"] {
            assert_eq!(class_of(path), None, "{path}");
        }
        assert_eq!(shown("/v1/kv/secret"), "/v1/kv", "the audit log has no keys");
    }

    #[test]
    fn the_mark_of_a_node_changes_the_class_of_calls_of_keys_alone() {
        let marked = HeaderMap::from_iter([(
            axum::http::HeaderName::from_static(FOR_CLIENT),
            axum::http::HeaderValue::from_static("1"),
        )]);
        let of = |path, headers: &HeaderMap| class_of_request(path, headers);
        let none = HeaderMap::new();
        for (path, class) in [
            ("/tikvpb.Tikv/RawPut", Some(CallClass::Forwarded)),
            ("/stele.kv.v1.Kv/Follow", Some(CallClass::Forwarded)),
            ("/v1/kv/a", Some(CallClass::Data)),
            ("/status", Some(CallClass::Status)),
            ("/pdpb.PD/GetRegion", Some(CallClass::Lookup)),
            ("/stele.control.v1.Control/Split", Some(CallClass::Admin)),
            ("/debug", None),
        ] {
            assert_eq!(of(path, &marked), class, "{path}");
            assert_eq!(of(path, &none), class_of(path), "{path}");
        }
    }

    #[test]
    fn calls_of_nodes_and_operators_are_not_for_clients() {
        for (call, class) in CONTROL_CALLS {
            assert!([CallClass::Peer, CallClass::Admin].contains(&class), "{call}");
        }
        assert_eq!(FrameKind::Hello.class(), CallClass::Peer);
    }
}
