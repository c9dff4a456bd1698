//! Grants: what each client of the cluster may do. While there is none, access is off and each client may
//! read and write every key.
//!
//! ```text
//! grant := version:u8 (1) permissions:u8 token:bytes prefixes:varint (prefix:bytes)*
//!          operations:varint bytes:varint connections:varint
//! ```
//! `token` has 32 bytes, or none for a client with a certificate. Later versions append to it.

use crate::cluster::Cluster;
use crate::pairs::{self, PairChange};
use crate::store::StoreState;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::BitOr;
use stele_types::{Error, KeyRange, Result, varint};

/// Rights of an identity: a set of read, write and administer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions(u8);

impl Permissions {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Values of keys, and whether they exist.
    pub const READ: Self = Self(1);
    /// Changes of keys that return nothing of what was there.
    pub const WRITE: Self = Self(2);
    /// Both of them.
    pub const READ_WRITE: Self = Self(3);
    /// Everything, and the calls of administrators.
    pub const ADMIN: Self = Self(4);
    const NAMES: [(Self, &'static str); 3] =
        [(Self::READ, "read"), (Self::WRITE, "write"), (Self::ADMIN, "admin")];

    /// Returns whether these include all of `others`.
    pub fn contain(self, others: Self) -> bool {
        self.0 & others.0 == others.0 || self.is_admin()
    }

    /// Returns whether they include everything.
    pub fn is_admin(self) -> bool {
        self.0 & Self::ADMIN.0 != 0
    }

    /// Returns the set with this number; bits of later versions are dropped.
    pub fn of_bits(bits: u32) -> Self {
        Self((bits & 7) as u8)
    }

    /// Returns the number of the set.
    pub fn bits(self) -> u32 {
        u32::from(self.0)
    }
}

impl BitOr for Permissions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().filter(|(part, _)| self.0 & part.0 != 0);
        f.write_str(&names.map(|(_, name)| *name).collect::<Vec<_>>().join(","))
    }
}

/// Bounds of what an identity uses of each node; 0 sets none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantLimits {
    /// Commands a second.
    pub operations_per_second: u64,
    /// Bytes of requests and answers a second.
    pub bytes_per_second: u64,
    /// Connections at the same time.
    pub connections: u64,
}

/// Rights of one identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Name of a client's certificate, or `token:ID`.
    pub name: String,
    /// Rights, within the prefixes.
    pub permissions: Permissions,
    /// Beginnings of the keys that they hold for; empty for all keys.
    pub prefixes: Vec<Bytes>,
    /// SHA-256 of the token; `None` for the name of a certificate.
    pub token: Option<[u8; 32]>,
    /// Bounds of its use.
    pub limits: GrantLimits,
}

/// Grants of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Number that grows with each change; 0 before the first.
    pub version: u64,
    /// Grants by name.
    pub by_name: BTreeMap<String, Grant>,
}

/// Beginning of the name of a grant for a token.
pub const TOKEN_NAME: &str = "token:";
/// Grants of a cluster, at most.
pub const GRANTS_MAX: usize = 4096;
/// Bytes of all grants of a cluster, at most: a node gets them in one message.
const GRANTS_BYTES_MAX: usize = 4 << 20;
/// Prefixes of a grant, at most.
pub const PREFIXES_MAX: usize = 16;
/// Bytes of a prefix, at most.
pub const PREFIX_BYTES_MAX: usize = 1 << 10;
/// Bytes of a name, at most: those of a certificate's, with the beginning of a token's.
const NAME_BYTES_MAX: usize = 255 + TOKEN_NAME.len();
const FORMAT: u8 = 1;

impl Grant {
    /// Returns whether the rights include `permissions` for all keys of `range`.
    ///
    /// Invariant: a range is within a grant only if all its keys are within one prefix.
    /// Tests: `a_range_is_granted_only_within_one_prefix`.
    pub fn covers(&self, permissions: Permissions, range: &KeyRange) -> bool {
        let is_within = |prefix: &Bytes| {
            let granted = KeyRange::prefix(prefix);
            let is_below = !range.end.is_empty() && range.end <= granted.end;
            // bug placement.range_end_ungranted: `granted.end.is_empty() || is_below` is `true`
            range.start >= granted.start && (granted.end.is_empty() || is_below)
        };
        let has_all = self.prefixes.is_empty() || self.permissions.is_admin();
        self.permissions.contain(permissions) && (has_all || self.prefixes.iter().any(is_within))
    }

    /// Returns whether the rights include `permissions` for a key.
    pub fn covers_key(&self, permissions: Permissions, key: &[u8]) -> bool {
        let has_all = self.prefixes.is_empty() || self.permissions.is_admin();
        // bug placement.keys_of_any_prefix: `has_all || self.prefixes.iter().any(|prefix| key.starts_with(prefix))` is `true`
        let is_within = has_all || self.prefixes.iter().any(|prefix| key.starts_with(prefix));
        self.permissions.contain(permissions) && is_within
    }

    /// Fails with `Invalid` if the grant is not one.
    pub fn check(&self) -> Result<()> {
        let name = self.name.strip_prefix(TOKEN_NAME).unwrap_or(&self.name);
        let is_name = !name.trim().is_empty()
            && self.name.len() <= NAME_BYTES_MAX
            && !name.chars().any(char::is_control);
        let is_of_token = self.name.starts_with(TOKEN_NAME);
        let is_prefix = |prefix: &Bytes| (1..=PREFIX_BYTES_MAX).contains(&prefix.len());
        let problem = if !is_name {
            "a name has 1 to 255 bytes without control characters"
        } else if is_of_token != self.token.is_some() {
            "the name of a token begins with `token:`, and no other does: create one with `stele ctl access token`"
        } else if self.permissions == Permissions::NONE {
            "name a role: read, write or admin"
        } else if self.prefixes.len() > PREFIXES_MAX || !self.prefixes.iter().all(is_prefix) {
            "a grant has at most 16 prefixes of 1 to 1024 bytes"
        } else if self.permissions.is_admin() && !self.prefixes.is_empty() {
            "the role admin has all keys: leave the prefixes out"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!("grant `{}`: {problem}", self.name.escape_debug())))
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = vec![FORMAT, self.permissions.0];
        varint::put_bytes(&mut out, self.token.as_ref().map_or(&[], |hash| &hash[..]));
        varint::put(&mut out, self.prefixes.len() as u64);
        self.prefixes.iter().for_each(|prefix| varint::put_bytes(&mut out, prefix));
        let GrantLimits { operations_per_second, bytes_per_second, connections } = self.limits;
        [operations_per_second, bytes_per_second, connections]
            .iter()
            .for_each(|limit| varint::put(&mut out, *limit));
        Bytes::from(out)
    }

    pub(crate) fn decode(name: &[u8], value: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok().filter(|it| it.len() <= NAME_BYTES_MAX)?;
        let (&[format, permissions], mut rest) = value.split_first_chunk::<2>()?;
        let token = match varint::take_bytes(&mut rest)? {
            [] => None,
            hash => Some(hash.try_into().ok()?),
        };
        let count = varint::take(&mut rest).filter(|count| *count <= PREFIXES_MAX as u64)?;
        let mut prefix = |_| {
            let bytes = varint::take_bytes(&mut rest).filter(|it| it.len() <= PREFIX_BYTES_MAX)?;
            Some(Bytes::copy_from_slice(bytes))
        };
        let prefixes = (0..count).map(&mut prefix).collect::<Option<Vec<_>>>()?;
        let limits = GrantLimits {
            operations_per_second: varint::take(&mut rest)?,
            bytes_per_second: varint::take(&mut rest)?,
            connections: varint::take(&mut rest)?,
        };
        let permissions = Permissions::of_bits(permissions.into());
        (format == FORMAT).then(|| Self {
            name: name.to_owned(),
            permissions,
            prefixes,
            token,
            limits,
        })
    }
}

impl Grants {
    /// Returns whether clients have only what is granted.
    pub fn are_in_force(&self) -> bool {
        !self.by_name.is_empty()
    }

    pub(crate) fn fold(&mut self, name: String, grant: Option<Grant>) {
        match grant {
            Some(grant) => self.by_name.insert(name, grant),
            None => self.by_name.remove(&name),
        };
    }

    fn bytes(&self) -> usize {
        self.by_name.values().map(|grant| grant.name.len() + grant.encode().len()).sum()
    }
}

impl Cluster {
    /// Plans a new or changed grant. Fails with `Invalid` if it is not one, if there are too many, or while
    /// a node of the cluster does not enforce grants.
    pub fn plan_grant(&self, grant: Grant) -> Result<Vec<PairChange>> {
        grant.check()?;
        let grants = self.grants();
        if grants.by_name.get(&grant.name) == Some(&grant) {
            return Ok(Vec::new());
        }
        let same = |other: &&Grant| other.token == grant.token && other.name != grant.name;
        if grant.token.is_some()
            && let Some(other) = grants.by_name.values().find(same)
        {
            return Err(Error::invalid(format!("`{}` has the same token", other.name)));
        }
        let without = self.nodes_without_access();
        // bug placement.access_on_old_nodes: never
        if !without.is_empty() {
            return Err(Error::invalid(format!(
                "these nodes do not enforce grants: {}; start them with TLS and in this version first",
                Vec::from_iter(without).join(", ")
            )));
        }
        let is_new = !grants.by_name.contains_key(&grant.name);
        let bytes = grants.bytes() + grant.name.len() + grant.encode().len();
        if (is_new && grants.by_name.len() >= GRANTS_MAX) || bytes > GRANTS_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a cluster has at most {GRANTS_MAX} grants of {GRANTS_BYTES_MAX} bytes: revoke some first"
            )));
        }
        Ok(vec![pairs::grant(&grant), self.next_access()])
    }

    /// Plans the end of a grant. Fails with `Invalid` if there is none, or if it is the last one and
    /// `turns_off` is not set.
    ///
    /// Invariant: access is not turned off by the revocation of a right.
    /// Tests: `the_last_grant_ends_only_with_access`.
    pub fn plan_revocation(&self, name: &str, turns_off: bool) -> Result<Vec<PairChange>> {
        let grants = self.grants();
        if !grants.by_name.contains_key(name) {
            let name = name.escape_debug();
            return Err(Error::invalid(format!("there is no grant `{name}`")));
        }
        // bug placement.revocation_opens_all: never
        if grants.by_name.len() == 1 && !turns_off {
            return Err(Error::invalid(format!(
                "`{name}` is the last grant: without one, each client may read and write every key. Grant \
                 another identity its rights first, or turn access off with --turn-off"
            )));
        }
        Ok(vec![pairs::no_grant(name), self.next_access()])
    }

    /// Returns the record of the next version. A node that has a greater one keeps its grants: it may be of
    /// a leader of which the decisions were lost with a majority.
    fn next_access(&self) -> PairChange {
        let reported = self.stores().filter_map(|store| store.node.access_version).max();
        pairs::access(self.grants().version.max(reported.unwrap_or_default()) + 1)
    }

    /// Returns the addresses of nodes that do not enforce grants. Of one that has not reported to this
    /// leader it is not known; once access is on, only those that report so count.
    ///
    /// Invariant: access is turned on only when all nodes enforce it.
    /// Tests: `access_begins_only_when_all_nodes_enforce_it`.
    fn nodes_without_access(&self) -> BTreeSet<String> {
        let is_on = self.grants().are_in_force();
        let members = self.stores().filter(|store| store.state != StoreState::Tombstone);
        let without = members.filter(|store| {
            let is_heard = !store.node.address.is_empty();
            store.node.access_version.is_none() && (is_heard || !is_on)
        });
        without.map(|store| store.address.clone()).collect()
    }

    /// Returns the addresses of nodes on which the present grants are not in force, as far as they reported.
    pub fn nodes_behind_access(&self) -> BTreeSet<String> {
        let version = self.grants().version;
        let members = self.stores().filter(|store| store.state != StoreState::Tombstone);
        let behind =
            members.filter(|store| store.node.access_version.unwrap_or_default() < version);
        behind.map(|store| store.address.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bootstrap, DrainGoal, Millis, NodeReport, StoreReport};
    use stele_types::{ClusterId, StoreId};

    fn grant(name: &str, prefixes: &[&'static str]) -> Grant {
        Grant {
            name: name.to_owned(),
            permissions: Permissions::READ,
            prefixes: prefixes.iter().map(|prefix| Bytes::from_static(prefix.as_bytes())).collect(),
            ..Grant::default()
        }
    }

    #[test]
    fn a_grant_survives_the_round_trip_every_cut_is_refused_and_later_fields_are_skipped() {
        let limits =
            GrantLimits { operations_per_second: 7, bytes_per_second: 1 << 40, connections: 3 };
        let (name, token) = ("token:ci".to_owned(), Some([9; 32]));
        let whole = Grant { name, token, limits, ..grant("", &["a/", "b/"]) };
        for grant in [whole, grant("app", &[])] {
            let bytes = grant.encode();
            assert_eq!(Grant::decode(grant.name.as_bytes(), &bytes), Some(grant.clone()));
            for cut in 0..bytes.len() {
                assert_eq!(Grant::decode(b"app", &bytes[..cut]), None, "cut at {cut}");
            }
            let longer = [&bytes[..], b"more"].concat();
            assert_eq!(Grant::decode(grant.name.as_bytes(), &longer), Some(grant));
        }
        assert_eq!(Grant::decode(b"app", &[2; 40]), None);
    }

    #[test]
    fn a_range_is_granted_only_within_one_prefix() {
        let grant = grant("app", &["a/", "b/"]);
        let covers = |start: &'static str, end: &'static str| {
            grant.covers(Permissions::READ, &KeyRange::new(start, end))
        };
        assert!(covers("a/", "a0") && covers("a/x", "a/y") && covers("b/7", "b0"));
        assert!(!covers("a/", "b0"), "from one prefix to another");
        assert!(!covers("a/", "a00") && !covers("a/", "") && !covers("", "a0") && !covers("", ""));
        assert!(!covers("a", "a0"));
        assert!(!grant.covers(Permissions::WRITE, &KeyRange::new("a/", "a0")));
        assert!(
            grant.covers_key(Permissions::READ, b"a/")
                && grant.covers_key(Permissions::READ, b"b/x")
        );
        assert!(
            !grant.covers_key(Permissions::READ, b"a")
                && !grant.covers_key(Permissions::READ, b"c/")
        );
        assert!(!grant.covers_key(Permissions::READ | Permissions::WRITE, b"a/"));
        let last = Grant { prefixes: vec![Bytes::from_static(b"\xff")], ..grant.clone() };
        assert!(last.covers(Permissions::READ, &KeyRange::new(&b"\xff\xff"[..], "")));
        let all = Grant { prefixes: Vec::new(), ..grant };
        assert!(all.covers(Permissions::READ, &KeyRange::all()));
        let admin = Grant { permissions: Permissions::ADMIN, ..all };
        assert!(admin.covers(Permissions::READ | Permissions::WRITE, &KeyRange::all()));
    }

    fn founded() -> Cluster {
        let capacities_bytes = vec![1 << 30, 1 << 30];
        let first = Bootstrap { cluster: ClusterId(7), address: "n1:1".into(), capacities_bytes };
        let pairs = first.pairs().into_iter().filter_map(|it| Some((it.key, it.value?)));
        Cluster::load(pairs, Millis(0), 0).unwrap().unwrap()
    }

    fn report(cluster: &mut Cluster, store: u64, access_version: Option<u64>) {
        let node = NodeReport { address: "n1:1".into(), access_version, ..NodeReport::default() };
        let report = StoreReport { id: StoreId(store), ..StoreReport::default() };
        cluster.record_heartbeat(&node, &[report], Millis(1));
    }

    #[test]
    fn access_begins_only_when_all_nodes_enforce_it() {
        let mut cluster = founded();
        let plan = |cluster: &Cluster| cluster.plan_grant(grant("app", &[]));
        report(&mut cluster, 1, Some(0));
        let refused = plan(&cluster).unwrap_err().to_string();
        assert!(refused.contains("n1:1"), "store 2 has not reported: {refused}");
        report(&mut cluster, 2, None);
        assert!(plan(&cluster).is_err(), "an earlier version");
        report(&mut cluster, 2, Some(40));
        let changes = plan(&cluster).unwrap();
        cluster.apply(&changes).unwrap();
        assert_eq!(cluster.grants().version, 41, "after what a node knows");
        assert_eq!(plan(&cluster).unwrap(), [], "once");
        assert_eq!(Vec::from_iter(cluster.nodes_behind_access()), ["n1:1"]);
        (1..=2).for_each(|store| report(&mut cluster, store, Some(41)));
        assert!(cluster.nodes_behind_access().is_empty());
        report(&mut cluster, 2, None);
        assert!(cluster.plan_grant(grant("other", &[])).is_err(), "it was replaced");
        let lost = cluster.plan_state(StoreId(2), DrainGoal::Lost, Millis(99_000)).unwrap();
        cluster.apply(&lost).unwrap();
        assert!(cluster.plan_grant(grant("other", &[])).is_ok());
    }

    #[test]
    fn the_last_grant_ends_only_with_access() {
        let mut cluster = founded();
        (1..=2).for_each(|store| report(&mut cluster, store, Some(0)));
        for name in ["app", "other"] {
            let changes = cluster.plan_grant(grant(name, &[])).unwrap();
            cluster.apply(&changes).unwrap();
        }
        assert!(cluster.plan_revocation("none", true).is_err());
        let changes = cluster.plan_revocation("other", false).unwrap();
        cluster.apply(&changes).unwrap();
        let refused = cluster.plan_revocation("app", false).unwrap_err().to_string();
        assert!(refused.contains("--turn-off"), "{refused}");
        let changes = cluster.plan_revocation("app", true).unwrap();
        cluster.apply(&changes).unwrap();
        assert!(!cluster.grants().are_in_force());
        assert_eq!(cluster.grants().version, 4);
    }

    #[test]
    fn what_is_no_grant_is_refused_with_the_reason() {
        let admin = Grant { permissions: Permissions::ADMIN, ..grant("app", &["a/"]) };
        let many = Grant { prefixes: vec![Bytes::from_static(b"a"); 17], ..grant("app", &[]) };
        let long = Grant { prefixes: vec![vec![7; 1025].into()], ..grant("app", &[]) };
        let none = Grant { permissions: Permissions::NONE, ..grant("app", &[]) };
        let hash = Some([1; 32]);
        for (grant, text) in [
            (grant("", &[]), "a name has"),
            (grant("a\nb", &[]), "a name has"),
            (grant("token:", &[]), "a name has"),
            (grant("token:ci", &[]), "begins with `token:`"),
            (Grant { token: hash, ..grant("app", &[]) }, "begins with `token:`"),
            (none, "name a role"),
            (many, "at most 16 prefixes"),
            (long, "at most 16 prefixes"),
            (grant("app", &[""]), "at most 16 prefixes"),
            (admin, "all keys"),
        ] {
            let refused = grant.check().unwrap_err().to_string();
            assert!(refused.contains(text), "{grant:?}: {refused}");
        }
        let token = |name: &str| Grant { token: hash, ..grant(name, &[]) };
        let mut cluster = founded();
        (1..=2).for_each(|store| report(&mut cluster, store, Some(0)));
        let changes = cluster.plan_grant(token("token:a")).unwrap();
        cluster.apply(&changes).unwrap();
        assert!(cluster.plan_grant(token("token:b")).unwrap_err().to_string().contains("token:a"));
    }

    #[test]
    fn there_are_at_most_4096_grants() {
        let mut cluster = founded();
        (1..=2).for_each(|store| report(&mut cluster, store, Some(0)));
        for number in 0..GRANTS_MAX {
            let changes = vec![pairs::grant(&grant(&format!("c{number}"), &[]))];
            cluster.apply(&changes).unwrap();
        }
        assert!(cluster.plan_grant(grant("one more", &[])).is_err());
        assert!(cluster.plan_grant(grant("c7", &["a/"])).is_ok(), "a change of one");
    }
}
