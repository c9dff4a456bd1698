//! Rules of a node, which change while connections are open, and what each caller may do under them.

use super::calls::CallClass;
use super::principal::Principal;
use super::usage::{Usage, Usages};
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use stele_placement::{Grant, Grants, Permissions};
use stele_tls::{ClientName, ClusterName, Identity};
use stele_types::KeyRange;

/// Rules of a node: which cluster's nodes are its peers, which clients administer it, and what the others
/// may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Cluster in the certificates of its nodes.
    pub cluster: ClusterName,
    /// Clients with the rights of an administrator, besides those with such a grant.
    pub administrators: BTreeSet<ClientName>,
    /// Grants of the cluster; without any, each client may read and write every key.
    pub grants: Arc<Grants>,
}

/// Rules in force, shared by the connections of a node.
#[derive(Debug)]
pub struct LiveRules {
    /// Number of changes; a connection that has seen it knows the rules.
    changes: AtomicU64,
    rules: RwLock<Arc<Rules>>,
    usages: Usages,
}

impl LiveRules {
    /// Puts rules in force.
    pub fn new(rules: Rules) -> Self {
        let (changes, rules) = (AtomicU64::new(0), RwLock::new(Arc::new(rules)));
        Self { changes, rules, usages: Usages::default() }
    }

    /// Returns the rules in force.
    pub fn get(&self) -> Arc<Rules> {
        self.rules.read().clone()
    }

    /// Changes the rules, for open connections too.
    pub fn change(&self, change: impl FnOnce(&mut Rules)) {
        let mut rules = self.rules.write();
        let mut next = Rules::clone(&rules);
        change(&mut next);
        self.usages.retain(&next.grants);
        *rules = Arc::new(next);
        // bug server.open_connections_keep_rights: skip
        self.changes.fetch_add(1, Release);
    }

    /// Puts newer grants in force; returns whether they are newer.
    ///
    /// Invariant: grants are never replaced by older ones: a leader that was replaced may not know a
    /// revocation.
    /// Tests: `older_grants_replace_no_newer_ones`.
    pub(crate) fn take_grants(&self, grants: Grants) -> bool {
        let is_newer = grants.version > self.get().grants.version;
        // bug server.older_grants_taken: always
        if is_newer {
            self.change(|rules| rules.grants = Arc::new(grants));
        }
        is_newer
    }

    /// Returns what a caller may do now.
    pub(super) fn standing(&self, principal: &Principal) -> Standing {
        let standing = Standing::of(&self.get(), principal);
        let usage = match &standing.role {
            Role::Granted(grant) => self.usages.of(grant),
            _ => None,
        };
        Standing { usage, ..standing }
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Acquire)
    }
}

const NO_IDENTITY: &str =
    "connect with a certificate of `stele cert client`, or give a token (--token-file)";
const NO_ADMINISTRATOR: &str = "it is for administrators: name the client in `administrators` of each node, or \
     run `stele ctl access grant NAME --role admin`";
const NO_NODE: &str =
    "it is for nodes of the cluster, which have certificates of `stele cert node`";
const NO_KEYS: &str =
    "a node uses no keys by its own certificate: connect with one of `stele cert client`";
const OTHER_CLUSTER: &str = "the certificate is that of a node of another cluster";
const NO_GRANT: &str =
    "it has no grant: an administrator gives it one with `stele ctl access grant NAME --role ROLE`";
const NO_TOKEN: &str = "the token is unknown or was revoked: an administrator creates one with `stele ctl \
     access token NAME --role ROLE`";

/// Returns whether a refusal for this reason is one of a caller that is not identified.
pub(super) fn is_unidentified(reason: &str) -> bool {
    [NO_IDENTITY, NO_TOKEN].contains(&reason)
}

/// Rights of a caller under the present rules.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    /// Every call.
    Plain,
    /// Every call but those of keys and values.
    Node,
    /// Every call but those of nodes.
    Administrator,
    /// What the grant has.
    Granted(Grant),
    /// Every key: access is off.
    Client,
    /// A client without a grant: for probes.
    Ungranted,
    /// Nothing, for this reason.
    Nothing(&'static str),
}

/// What a caller may do under the rules in force.
#[derive(Clone, Debug)]
pub struct Standing {
    caller: String,
    role: Role,
    /// Account of the caller; `None` without limits.
    usage: Option<Arc<Usage>>,
}

impl Standing {
    /// Determines what the caller may do.
    ///
    /// Invariant: a caller has the rights of its own identity only: the name in a certificate is never that of
    /// a token's grant.
    /// Tests: `a_certificate_with_the_name_of_a_token_has_not_its_rights`.
    fn of(rules: &Rules, principal: &Principal) -> Self {
        let grants = &rules.grants.by_name;
        let granted = |grant: &Grant| match grant.permissions.is_admin() {
            true => Role::Administrator,
            false => Role::Granted(grant.clone()),
        };
        let mut caller = principal.to_string();
        let role = match principal {
            Principal::Plain => Role::Plain,
            Principal::Anonymous => Role::Nothing(NO_IDENTITY),
            // bug server.nodes_of_any_cluster: `*cluster != rules.cluster` is `false`
            Principal::Known(Identity::Node { cluster, .. }) if *cluster != rules.cluster => {
                Role::Nothing(OTHER_CLUSTER)
            }
            Principal::Known(Identity::Node { .. }) => Role::Node,
            Principal::Known(Identity::Client(name)) if rules.administrators.contains(name) => {
                Role::Administrator
            }
            Principal::Known(Identity::Client(name)) => {
                // bug server.token_names_are_certificates: `grant.token.is_none()` is `true`
                let of_certificate = |grant: &&Grant| grant.token.is_none();
                match grants.get(name.as_str()).filter(of_certificate) {
                    Some(grant) => granted(grant),
                    // bug server.access_is_never_on: `rules.grants.are_in_force()` is `false`
                    None if rules.grants.are_in_force() => Role::Ungranted,
                    None => Role::Client,
                }
            }
            Principal::Token(hash) => {
                match grants.values().find(|grant| grant.token.as_ref() == Some(hash)) {
                    Some(grant) => {
                        caller.clone_from(&grant.name);
                        granted(grant)
                    }
                    None => Role::Nothing(NO_TOKEN),
                }
            }
        };
        Self { caller, role, usage: None }
    }

    /// Returns the caller, for people.
    pub fn caller(&self) -> &str {
        &self.caller
    }

    /// Returns the account of the caller; `None` if it has no limits.
    pub fn usage(&self) -> Option<&Arc<Usage>> {
        self.usage.as_ref()
    }

    /// Returns why the caller may not make a call of this class; `None` if it may.
    ///
    /// Invariant: only nodes of this cluster make calls of nodes, and only administrators and nodes make those
    /// of administrators. Nodes use no keys of their own. A client without a grant has none but probes once access is on.
    /// Tests: `each_class_has_its_callers`.
    pub fn refusal(&self, class: CallClass) -> Option<&'static str> {
        use CallClass::{Admin, Data, Forwarded, Health, Lookup, Peer, Status};
        match (&self.role, class) {
            (Role::Plain, _) => None,
            (Role::Nothing(reason), _) => Some(*reason),
            (_, Health) => None,
            // bug server.nodes_use_keys: `Some(NO_KEYS)` is `None`
            (Role::Node, Data) => Some(NO_KEYS),
            (Role::Node, Forwarded | Lookup | Peer | Admin | Status) => None,
            // bug server.clients_call_as_nodes: `Some(NO_NODE)` is `None`
            (_, Peer | Forwarded) => Some(NO_NODE),
            (Role::Administrator, Admin | Data | Lookup | Status) => None,
            // bug server.clients_administer: `Some(NO_ADMINISTRATOR)` is `None`
            (_, Admin) => Some(NO_ADMINISTRATOR),
            (Role::Granted(_) | Role::Client, Data | Lookup | Status) => None,
            // bug server.ungranted_clients_call: `Some(NO_GRANT)` is `None`
            (Role::Ungranted, Data | Lookup | Status) => Some(NO_GRANT),
        }
    }

    /// Fails with the reason unless the caller has these rights for all keys.
    pub fn check_keys<'a>(
        &self,
        wanted: Permissions,
        keys: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), String> {
        self.check(|grant| {
            let outside = keys.into_iter().find(|key| !grant.covers_key(wanted, key));
            outside.map(|key| (wanted, format!("key {}", shown(key))))
        })
    }

    /// Fails with the reason unless the caller has these rights for all keys of a range.
    pub fn check_range(&self, wanted: Permissions, range: &KeyRange) -> Result<(), String> {
        self.check(|grant| {
            if grant.covers(wanted, range) {
                return None;
            }
            let end = match range.end.is_empty() {
                true => "on without an end".to_owned(),
                false => format!("to {}", shown(&range.end)),
            };
            Some((wanted, format!("keys from {} {end}", shown(&range.start))))
        })
    }

    fn check(
        &self,
        outside: impl FnOnce(&Grant) -> Option<(Permissions, String)>,
    ) -> Result<(), String> {
        let caller = &self.caller;
        let grant = match &self.role {
            Role::Plain | Role::Administrator | Role::Client => return Ok(()),
            Role::Node => return Err(format!("{caller} may not use keys: {NO_KEYS}")),
            Role::Granted(grant) => grant,
            Role::Ungranted => return Err(format!("{caller} may not use keys: {NO_GRANT}")),
            Role::Nothing(reason) => return Err(format!("{caller} may not use keys: {reason}")),
        };
        // bug server.grants_unchecked: return Ok(());
        let Some((wanted, what)) = outside(grant) else { return Ok(()) };
        let prefixes: Vec<String> = grant.prefixes.iter().map(|prefix| shown(prefix)).collect();
        let of = match prefixes.is_empty() {
            true => "all keys".to_owned(),
            false => format!("keys that begin with {}", prefixes.join(" or ")),
        };
        Err(format!(
            "{caller} lacks the right {wanted} of {what}: it is granted {} of {of}. A scan needs both bounds \
             within one of them. An administrator changes it with `stele ctl access grant {} --role ROLE`",
            grant.permissions, grant.name
        ))
    }
}

/// Bytes of a key that a refusal shows, at most.
const SHOWN_BYTES_MAX: usize = 32;

fn shown(key: &[u8]) -> String {
    let (start, dots) = match key.get(..SHOWN_BYTES_MAX) {
        Some(start) if key.len() > SHOWN_BYTES_MAX => (start, "…"),
        _ => (key, ""),
    };
    format!("\"{}{dots}\"", start.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use stele_tls::NodeName;

    fn rules(grants: &[Grant]) -> Rules {
        let by_name = grants.iter().map(|grant| (grant.name.clone(), grant.clone())).collect();
        Rules {
            cluster: ClusterName::new("prod").unwrap(),
            administrators: BTreeSet::from([ClientName::new("root").unwrap()]),
            grants: Arc::new(Grants { version: 1, by_name }),
        }
    }

    fn node(cluster: &str) -> Principal {
        let (cluster, node) = (ClusterName::new(cluster).unwrap(), NodeName::new("n1").unwrap());
        Principal::Known(Identity::Node { cluster, node })
    }

    fn client(name: &str) -> Principal {
        Principal::Known(Identity::Client(ClientName::new(name).unwrap()))
    }

    fn grant(name: &str, permissions: Permissions) -> Grant {
        Grant { name: name.to_owned(), permissions, ..Grant::default() }
    }

    #[test]
    fn each_class_has_its_callers() {
        use CallClass::{Admin, Data, Forwarded, Health, Lookup, Peer, Status};
        let all = |rules: &Rules, caller: &Principal| {
            let standing = Standing::of(rules, caller);
            let finds = standing.refusal(Lookup).is_none();
            assert!(finds || standing.refusal(Data).is_some(), "what is used is found");
            assert_eq!(standing.refusal(Forwarded), standing.refusal(Peer));
            [Data, Peer, Admin, Status, Health].map(|class| standing.refusal(class).is_none())
        };
        let off = rules(&[]);
        assert_eq!(all(&off, &Principal::Plain), [true; 5]);
        assert_eq!(all(&off, &Principal::Anonymous), [false; 5]);
        assert_eq!(all(&off, &node("prod")), [false, true, true, true, true]);
        assert_eq!(all(&off, &node("test")), [false; 5]);
        assert_eq!(all(&off, &client("app")), [true, false, false, true, true]);
        assert_eq!(all(&off, &client("root")), [true, false, true, true, true]);
        assert_eq!(all(&off, &Principal::Token([1; 32])), [false; 5]);
        let token = Grant { token: Some([1; 32]), ..grant("token:ci", Permissions::READ) };
        let on = rules(&[grant("app", Permissions::READ), grant("ops", Permissions::ADMIN), token]);
        assert_eq!(all(&on, &client("app")), [true, false, false, true, true]);
        assert_eq!(all(&on, &client("other")), [false, false, false, false, true]);
        assert_eq!(all(&on, &client("ops")), [true, false, true, true, true]);
        assert_eq!(all(&on, &client("root")), [true, false, true, true, true], "of the settings");
        assert_eq!(all(&on, &Principal::Token([1; 32])), [true, false, false, true, true]);
        assert_eq!(all(&on, &Principal::Token([2; 32])), [false; 5]);
        assert_eq!(all(&on, &node("prod")), [false, true, true, true, true]);
        assert_eq!(Standing::of(&on, &node("prod")).refusal(Lookup), None);
        assert!(
            Standing::of(&on, &node("prod")).check_keys(Permissions::READ, [&b"a"[..]]).is_err()
        );
    }

    #[test]
    fn older_grants_replace_no_newer_ones() {
        let live = LiveRules::new(rules(&[]));
        let version = |version| Grants { version, ..Grants::default() };
        assert!(live.take_grants(version(3)));
        assert!(!live.take_grants(version(2)) && !live.take_grants(version(3)));
        assert_eq!(live.get().grants.version, 3);
    }

    #[test]
    fn a_certificate_with_the_name_of_a_token_has_not_its_rights() {
        let token = Grant { token: Some([1; 32]), ..grant("token:ci", Permissions::ADMIN) };
        let standing = Standing::of(&rules(&[token]), &client("token:ci"));
        assert_eq!(standing.refusal(CallClass::Data), Some(NO_GRANT));
    }

    #[test]
    fn a_refusal_of_keys_names_the_caller_what_it_lacks_the_key_and_the_remedy() {
        let prefixes = vec![Bytes::from_static(b"a/")];
        let app = Grant { prefixes, ..grant("app", Permissions::READ) };
        let rules = rules(&[app]);
        let standing = Standing::of(&rules, &client("app"));
        let read = Permissions::READ;
        assert_eq!(standing.check_keys(read, [&b"a/1"[..], b"a/"]), Ok(()));
        let refused = standing.check_keys(read, [&b"a/1"[..], &[0; 40]]).unwrap_err();
        let parts = ["client app", "right read", "\"\\x00", "…\"", "grant app --role ROLE"];
        assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
        assert!(standing.check_keys(Permissions::WRITE, [&b"a/"[..]]).is_err());
        assert_eq!(standing.check_range(read, &KeyRange::new("a/", "a0")), Ok(()));
        let refused = standing.check_range(read, &KeyRange::new("a/", "")).unwrap_err();
        assert!(refused.contains("from \"a/\" on without an end"), "{refused}");
        let other = Standing::of(&rules, &client("other"));
        assert!(other.check_keys(read, [&b"a/"[..]]).unwrap_err().contains("has no grant"));
        let root = Standing::of(&rules, &client("root"));
        assert_eq!(root.check_range(read | Permissions::WRITE, &KeyRange::all()), Ok(()));
    }
}
