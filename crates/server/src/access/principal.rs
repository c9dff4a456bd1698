//! The origin of a request, and the calls that it may make.

use super::audit::{AdminCall, Audit};
use super::calls::{CallClass, change_at, class_of, is_http_data, shown};
use super::listener::Listener;
use super::rules::{LiveRules, Standing, is_unidentified};
use super::usage::{CountedConnection, OverLimit, Usage};
use crate::http::HttpFailure;
use crate::transport::frame::FrameKind;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use stele_proto::Method;
use stele_tls::{ClientName, Identity, NodeName, token_hash};
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
    /// SHA-256 of the token of a request over TLS, which counts instead of the connection's certificate.
    Token([u8; 32]),
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("a connection without TLS"),
            Self::Anonymous => f.write_str("a connection without a certificate"),
            Self::Known(identity) => identity.fmt(f),
            Self::Token(_) => f.write_str("a caller with a token"),
        }
    }
}

/// A call that its caller may not make.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{caller} may not call {path}: {remedy}")]
pub struct Denied {
    caller: String,
    path: String,
    remedy: &'static str,
    /// Another listener of the node serves the call.
    is_elsewhere: bool,
}

/// What a connection of nodes carries.
const MESSAGES: &str = "the messages of nodes";
/// What a connection of the Redis protocol carries.
const REDIS_COMMANDS: &str = "the commands of Redis";

/// Principal of a connection or of a request, with the rules that hold for it.
#[derive(Clone, Debug)]
pub struct Rights {
    holder: Arc<Holder>,
    listener: Listener,
    peer: Option<SocketAddr>,
    audit: Audit,
    /// A node makes the call for a client of which it has checked the rights.
    is_forwarding: bool,
}

#[derive(Debug)]
struct Holder {
    principal: Principal,
    /// `None` without TLS.
    rules: Option<UnderRules>,
}

#[derive(Debug)]
struct UnderRules {
    rules: Arc<LiveRules>,
    /// What the principal may do after so many changes of the rules. Its connection alone uses the lock.
    standing: Mutex<(u64, Arc<Standing>)>,
    /// The last token of its requests.
    token: Mutex<Option<([u8; 32], Rights)>>,
}

impl Rights {
    /// Creates the rights of a connection without TLS.
    pub fn of_plain() -> Self {
        Self::held(Holder { principal: Principal::Plain, rules: None })
    }

    fn held(holder: Holder) -> Self {
        let (peer, audit, is_forwarding) = (None, Audit::default(), false);
        let listener = Listener::ONLY;
        Self { holder: Arc::new(holder), listener, peer, audit, is_forwarding }
    }

    /// Creates the rights of a caller under rules.
    pub fn new(caller: Principal, rules: Arc<LiveRules>) -> Self {
        // Rules that change meanwhile are read again.
        let changes = rules.changes();
        let standing = Mutex::new((changes, Arc::new(rules.standing(&caller))));
        let known = UnderRules { rules, standing, token: Mutex::default() };
        Self::held(Holder { principal: caller, rules: Some(known) })
    }

    /// Sets the listener of the connection.
    pub fn at(self, listener: Listener) -> Self {
        Self { listener, ..self }
    }

    /// Sets the audit log of refusals and administrative calls, and the address that it shows.
    pub fn recorded(self, audit: Audit, peer: Option<SocketAddr>) -> Self {
        Self { audit, peer, ..self }
    }

    /// Begins the record of a call that may be made; `None` if it is none that an audit log has.
    pub fn admin_call(&self, path: &str) -> Option<Arc<AdminCall>> {
        let path = change_at(path)?;
        let (audit, caller) = (self.audit.clone(), self.principal().clone());
        Some(Arc::new(AdminCall::new(audit, caller, self.peer, path)))
    }

    /// Returns the caller.
    pub fn principal(&self) -> &Principal {
        &self.holder.principal
    }

    /// Returns the rights of a request of this class.
    pub(crate) fn for_request(self, class: Option<CallClass>) -> Self {
        Self { is_forwarding: class == Some(CallClass::Forwarded), ..self }
    }

    /// Returns what the caller may do with keys now; `None` if it may do everything, or makes the call for a
    /// client of which it has checked the rights.
    ///
    /// Invariant: a change of the rules holds for connections that are open.
    /// Tests: `a_change_of_the_rules_holds_for_open_connections`.
    pub fn standing(&self) -> Option<Arc<Standing>> {
        if self.is_forwarding { None } else { self.own_standing() }
    }

    fn own_standing(&self) -> Option<Arc<Standing>> {
        let known = self.holder.rules.as_ref()?;
        let changes = known.rules.changes();
        let mut standing = known.standing.lock();
        if standing.0 != changes {
            *standing = (changes, Arc::new(known.rules.standing(&self.holder.principal)));
        }
        Some(standing.1.clone())
    }

    /// Returns the account of the caller; `None` if it has no limits.
    pub fn usage(&self) -> Option<Arc<Usage>> {
        self.standing()?.usage().cloned()
    }

    /// Counts a connection of the caller. Fails if it has as many as its grant allows.
    pub fn connect(&self) -> Result<Option<CountedConnection>, OverLimit> {
        self.usage().map(|usage| usage.connect().ok_or(OverLimit)).transpose()
    }

    /// Takes the token out of the headers of a request; returns the rights of the request. Without TLS a token
    /// is ignored.
    pub fn take_token(&self, headers: &mut HeaderMap) -> Self {
        let (Some(known), Some(header)) = (&self.holder.rules, headers.remove(AUTHORIZATION))
        else {
            return self.clone();
        };
        let Some(token) = bearer(header.as_bytes()) else { return self.clone() };
        let hash = token_hash(token);
        let mut last = known.token.lock();
        if let Some((of, rights)) = &*last
            && *of == hash
        {
            return rights.clone();
        }
        let rights = self.of_token(hash, known);
        *last = Some((hash, rights.clone()));
        rights
    }

    fn of_token(&self, hash: [u8; 32], known: &UnderRules) -> Self {
        let rights = Self::new(Principal::Token(hash), known.rules.clone());
        Self { holder: rights.holder, ..self.clone() }
    }

    /// Returns the rights of a caller with this token on the same connection; `None` without TLS, which knows
    /// no tokens.
    pub(crate) fn with_token(&self, token: &[u8]) -> Option<Self> {
        let known = self.holder.rules.as_ref()?;
        Some(self.of_token(token_hash(token), known))
    }

    /// Fails unless the caller may use the commands of Redis.
    pub(crate) fn check_redis(&self) -> Result<(), Denied> {
        self.check_class(CallClass::Data, REDIS_COMMANDS)
    }

    /// Returns whether the caller may use the commands of Redis; no refusal is recorded.
    pub(crate) fn may_use_redis(&self) -> bool {
        self.standing().is_none_or(|standing| standing.refusal(CallClass::Data).is_none())
    }

    /// Returns whether the caller may make calls of administrators.
    pub(crate) fn may_administer(&self) -> bool {
        self.standing().is_none_or(|standing| standing.refusal(CallClass::Admin).is_none())
    }

    /// Fails unless the caller may call the path now.
    pub fn check(&self, path: &str) -> Result<(), Denied> {
        let class = match class_of(path).unwrap_or(CallClass::Status) {
            CallClass::Data if self.is_forwarding => CallClass::Forwarded,
            class => class,
        };
        self.check_class(class, path)
    }

    /// Returns the name of the node that the caller is; `None` without TLS.
    pub(crate) fn node(&self) -> Option<&NodeName> {
        match self.principal() {
            Principal::Known(Identity::Node { node, .. }) => Some(node),
            _ => None,
        }
    }

    /// Returns the name of the client in the certificate; `None` for any other caller.
    pub(crate) fn client(&self) -> Option<&ClientName> {
        match self.principal() {
            Principal::Known(Identity::Client(name)) => Some(name),
            _ => None,
        }
    }

    /// Returns the rules in force; `None` without TLS.
    pub(super) fn rules(&self) -> Option<&Arc<LiveRules>> {
        self.holder.rules.as_ref().map(|known| &known.rules)
    }

    /// Fails unless the caller may send messages of nodes.
    pub fn check_node(&self) -> Result<(), Denied> {
        self.check_class(FrameKind::Hello.class(), MESSAGES)
    }

    pub(super) fn check_class(&self, class: CallClass, path: &str) -> Result<(), Denied> {
        if let Some(standing) = self.own_standing()
            && let Some(remedy) = standing.refusal(class)
        {
            return Err(self.denied(standing.caller(), path, remedy));
        }
        match self.listener.refusal(self.principal(), class) {
            Some(remedy) => {
                let caller = self.principal().to_string();
                Err(Denied { is_elsewhere: true, ..self.denied(&caller, path, remedy) })
            }
            None => Ok(()),
        }
    }

    /// Records a refusal of a call of `caller`, which this caller made for it.
    pub(super) fn denied(&self, caller: &str, path: &str, remedy: &'static str) -> Denied {
        let is_shown = [MESSAGES, REDIS_COMMANDS].contains(&path);
        let call = if is_shown { path } else { shown(path) };
        self.audit.refused(self.principal(), self.peer, (call, remedy));
        Denied { caller: caller.to_owned(), path: path.to_owned(), remedy, is_elsewhere: false }
    }

    /// Records that the caller named keys that it was not granted. The log has no keys.
    pub(crate) fn note_ungranted(&self) {
        self.audit.refused(self.principal(), self.peer, ("keys", "they are beyond its grant"));
    }
}

/// Returns the token of the header `authorization`; `None` if it is of another scheme.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

impl Denied {
    /// Returns whether another listener of the node serves the call.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// Returns whether the caller has no identity that the node knows.
    pub(crate) fn is_unidentified(&self) -> bool {
        is_unidentified(self.remedy)
    }

    /// Returns the answer to a request at `path`.
    pub fn into_response(self, path: &str) -> Response {
        let page = match self.is_elsewhere {
            true => StatusCode::MISDIRECTED_REQUEST,
            false => StatusCode::FORBIDDEN,
        };
        match Method::at(path) {
            // The caller may try other nodes.
            Some(_) if self.is_elsewhere => Status::unavailable(self.to_string()).into_http(),
            Some(_) => Status::permission_denied(self.to_string()).into_http(),
            None if is_http_data(path) => HttpFailure::denied(&self).into_response(),
            None => (page, format!("{self}\n")).into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Rules;
    use super::*;
    use axum::http::HeaderValue;
    use std::collections::{BTreeMap, BTreeSet};
    use stele_placement::{Grant, Grants, Permissions};
    use stele_tls::ClusterName;

    fn rules() -> Arc<LiveRules> {
        let administrators = BTreeSet::from([ClientName::new("root").unwrap()]);
        let cluster = ClusterName::new("prod").unwrap();
        Arc::new(LiveRules::new(Rules { cluster, administrators, grants: Arc::default() }))
    }

    fn client(name: &str) -> Principal {
        Principal::Known(Identity::Client(ClientName::new(name).unwrap()))
    }

    #[test]
    fn a_refusal_names_the_caller_the_call_and_the_remedy() {
        let rights = Rights::new(client("app"), rules());
        let denied = rights.check("/stele.control.v1.Control/SetStoreState").unwrap_err();
        assert_eq!(
            denied.to_string(),
            "client app may not call /stele.control.v1.Control/SetStoreState: it is for \
             administrators: name the client in `administrators` of each node, or run `stele ctl access grant \
             NAME --role admin`"
        );
        assert_eq!(rights.check("/tikvpb.Tikv/RawPut"), Ok(()));
        assert!(rights.check_node().is_err());
        assert_eq!(Rights::of_plain().check("/stele.control.v1.Control/Join"), Ok(()));
        let anonymous = Rights::new(Principal::Anonymous, rules());
        assert!(
            anonymous.check("/no/such/call").is_err(),
            "without an identity nothing is learned"
        );
    }

    #[test]
    fn a_change_of_the_rules_holds_for_open_connections() {
        let live = rules();
        let rights = Rights::new(client("app"), live.clone());
        assert_eq!(rights.check("/tikvpb.Tikv/RawPut"), Ok(()));
        let grant = Grant { permissions: Permissions::READ, ..Grant::default() };
        let grants = Grants { version: 1, by_name: BTreeMap::from([("other".to_owned(), grant)]) };
        live.change(|rules| rules.grants = Arc::new(grants));
        assert!(rights.check("/tikvpb.Tikv/RawPut").is_err());
        let admin = "/stele.control.v1.Control/SetStoreState";
        assert!(rights.check(admin).is_err());
        live.change(|rules| {
            rules.administrators.insert(ClientName::new("app").unwrap());
        });
        assert_eq!(rights.check(admin), Ok(()));
    }

    #[test]
    fn a_call_of_keys_with_the_mark_of_a_node_is_for_nodes_alone() {
        let live = rules();
        let forwarding =
            |caller| Rights::new(caller, live.clone()).for_request(Some(CallClass::Forwarded));
        let node = Identity::Node {
            cluster: ClusterName::new("prod").unwrap(),
            node: NodeName::new("n1").unwrap(),
        };
        let node = forwarding(Principal::Known(node));
        assert_eq!(node.check("/tikvpb.Tikv/RawGet"), Ok(()));
        assert!(node.standing().is_none(), "it has checked the rights of its client");
        for caller in [client("app"), client("root"), Principal::Anonymous] {
            let rights = forwarding(caller);
            let refused = rights.check("/tikvpb.Tikv/RawGet").unwrap_err().to_string();
            assert!(refused.contains("may not call"), "{refused}");
        }
        assert!(Rights::of_plain().check("/tikvpb.Tikv/RawGet").is_ok());
    }

    #[test]
    fn a_token_counts_instead_of_the_certificate_and_only_over_tls() {
        let live = rules();
        let hash = token_hash(b"secret");
        let grant = Grant {
            name: "token:ci".to_owned(),
            permissions: Permissions::READ,
            token: Some(hash),
            ..Grant::default()
        };
        let by_name = BTreeMap::from([(grant.name.clone(), grant)]);
        live.change(|rules| rules.grants = Arc::new(Grants { version: 1, by_name }));
        let headers = |value: &'static str| {
            HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))])
        };
        let anonymous = Rights::new(Principal::Anonymous, live.clone());
        let root = Rights::new(client("root"), live);
        let of = |rights: &Rights, value| {
            let rights = rights.take_token(&mut headers(value));
            rights.standing().map(|it| it.caller().to_owned()).unwrap_or_default()
        };
        for value in ["Bearer secret", "bearer  secret "] {
            assert_eq!(
                (of(&anonymous, value), of(&root, value)),
                ("token:ci".into(), "token:ci".into())
            );
        }
        assert_eq!(of(&root, "Basic secret"), "client root");
        let unknown = root.take_token(&mut headers("Bearer other"));
        assert!(unknown.check("/status").unwrap_err().to_string().contains("was revoked"));
        let mut sent = headers("Bearer secret");
        let plain = Rights::of_plain().take_token(&mut sent);
        assert_eq!(plain.principal(), &Principal::Plain);
        let mut sent = headers("Bearer secret");
        let granted = anonymous.take_token(&mut sent);
        assert!(sent.is_empty(), "no handler sees it");
        assert!(granted.check("/stele.control.v1.Control/SetStoreState").is_err());
        assert_eq!(granted.check("/tikvpb.Tikv/RawGet"), Ok(()));
    }
}
