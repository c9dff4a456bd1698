//! Records of the placement group as events: what each one changes, for people.

use crate::access::Grant;
use crate::cluster::owners::JoinPermit;
use crate::config::Config;
use crate::pairs::{PlacementRecord, decode};
use crate::store::Store;
use stele_types::{PeerRole, Region, RegionPhase, Result};

/// What a record concerns, and what is true from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    /// Kind of what it concerns.
    pub subject: Subject,
    /// Its id or name.
    pub name: String,
    /// What is true from then on.
    pub what: String,
}

/// Kind of what a record concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A region.
    Region,
    /// A store.
    Store,
    /// A node, by its name.
    Node,
    /// A setting of the cluster.
    Setting,
    /// An identity with rights.
    Identity,
    /// The cluster as a whole.
    Cluster,
}

impl Subject {
    /// Returns its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Region => "region",
            Self::Store => "store",
            Self::Node => "node",
            Self::Setting => "setting",
            Self::Identity => "identity",
            Self::Cluster => "cluster",
        }
    }
}

/// Returns the event of a pair; `None` for a counter, and for a record of a later version. Fails with
/// `Invalid` for a malformed pair.
pub fn recorded(key: &[u8], value: Option<&[u8]>) -> Result<Option<RecordedEvent>> {
    Ok(decode(key, value)?.and_then(event))
}

fn event(record: PlacementRecord) -> Option<RecordedEvent> {
    use PlacementRecord as Record;
    let of = |subject, name: String, what: String| Some(RecordedEvent { subject, name, what });
    let of_region = |id: stele_types::RegionId, what| of(Subject::Region, id.to_string(), what);
    let of_store = |id: stele_types::StoreId, what| of(Subject::Store, id.to_string(), what);
    match record {
        // Counters, and a record that is only deleted.
        Record::Ids { .. }
        | Record::Members { .. }
        | Record::Access { .. }
        | Record::FormerSilence(..) => None,
        Record::Cluster(id) => of(Subject::Cluster, id.to_string(), "bootstrapped".into()),
        Record::Levels(levels) => {
            let what = format!("level {} recorded, {} in use", levels.recorded, levels.in_use);
            of(Subject::Cluster, "levels".into(), what)
        }
        Record::Setting { name, value } => {
            let what = setting(&name, value);
            of(Subject::Setting, name, what)
        }
        Record::Region(id, region) => {
            of_region(id, region.as_ref().map_or("removed".into(), described_region))
        }
        Record::Term(id, Some(term)) => of_region(id, format!("a leader of term {term}")),
        Record::Term(_, None) => None,
        Record::CancelledMerge(id, true) => of_region(id, "its merge is cancelled".into()),
        Record::CancelledMerge(_, false) => None,
        Record::Store(store) => of_store(store.id, described_store(&store)),
        Record::Boot(id, boot) => of_store(id, format!("run {}", boot.count)),
        // The record of the run is written beside it.
        Record::Starts(..) => None,
        Record::ClientAddress(id, Some(address)) => of_store(id, format!("{address} for clients")),
        Record::ClientAddress(id, None) => of_store(id, "its address for all".into()),
        Record::Disconnected(id, Some(s)) => of_store(id, format!("silent for {s} s")),
        Record::Disconnected(id, None) => of_store(id, "reports again".into()),
        Record::Owner(id, name) => of_store(id, format!("bound to the node {name}")),
        Record::Speed(id, Some(speed)) => {
            of_store(id, format!("speed class {}, data for {}", speed.class.0, speed.data_class.0))
        }
        Record::Speed(id, None) => of_store(id, "no speed class".into()),
        Record::Permit(permit, until) => {
            let name = match permit {
                JoinPermit::Node(name) => name,
                JoinPermit::Token(_) => "by a token".to_owned(),
            };
            of(Subject::Node, name, may_join(until))
        }
        Record::Grant(name, grant) => of(
            Subject::Identity,
            name,
            grant.as_deref().map_or("no rights".into(), described_grant),
        ),
    }
}

fn may_join(until: Option<u64>) -> String {
    match until {
        Some(until) => format!("may join until Unix second {until}"),
        None => "may no longer join".into(),
    }
}

fn setting(name: &str, value: Option<u64>) -> String {
    let Some(value) = value else { return "the default".into() };
    // A later version may know settings that this one does not.
    Config::check(name, value).map_or(value.to_string(), |setting| setting.text_of(value))
}

fn described_region(region: &Region) -> String {
    let key = |key: &[u8], none: &str| match key.is_empty() {
        true => none.to_owned(),
        false => key.escape_ascii().to_string(),
    };
    let range = (key(&region.range.start, "-∞"), key(&region.range.end, "+∞"));
    let peers = region.peers.iter().map(|peer| match peer.role {
        PeerRole::Voter => peer.store.to_string(),
        PeerRole::Learner => format!("{} (learner)", peer.store),
        PeerRole::IncomingVoter => format!("{} (joins)", peer.store),
        PeerRole::DemotingVoter => format!("{} (leaves)", peer.store),
    });
    let (peers, epoch) = (peers.collect::<Vec<_>>().join(", "), region.epoch);
    let phase = match region.phase {
        RegionPhase::Normal => String::new(),
        RegionPhase::Merging { target, .. } => format!(", merges into region {target}"),
        RegionPhase::Tombstone => ", ended".into(),
    };
    let (version, conf_version) = (epoch.version, epoch.conf_version);
    format!("{} to {}, on stores {peers}, epoch {version}/{conf_version}{phase}", range.0, range.1)
}

fn described_store(store: &Store) -> String {
    let labels: Vec<String> =
        store.labels.iter().map(|(name, value)| format!(", {name}={value}")).collect();
    format!("{}, {}{}", store.state, store.address, labels.concat())
}

/// The hash of a token is no part of it.
fn described_grant(grant: &Grant) -> String {
    let prefixes: Vec<String> =
        grant.prefixes.iter().map(|prefix| prefix.escape_ascii().to_string()).collect();
    let keys = match prefixes.is_empty() {
        true => "all keys".to_owned(),
        false => format!("keys that begin with {}", prefixes.join(", ")),
    };
    format!("{} {keys}", grant.permissions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::{self, PairChange};
    use bytes::Bytes;
    use stele_types::{KeyRange, Peer, PeerId, RegionEpoch, RegionId, StoreId, Term};

    fn text(change: &PairChange) -> Option<String> {
        let event = recorded(&change.key, change.value.as_deref()).unwrap()?;
        Some(format!("{} {}: {}", event.subject.as_str(), event.name, event.what))
    }

    #[test]
    fn each_record_says_what_is_true_from_then_on() {
        let peer = |id, role| Peer { id: PeerId(id), store: StoreId(id), role };
        let region = Region {
            id: RegionId(7),
            range: KeyRange { start: Bytes::new(), end: "m\n".into() },
            epoch: RegionEpoch { conf_version: 3, version: 2 },
            peers: vec![peer(1, PeerRole::Voter), peer(4, PeerRole::Learner)],
            ..Region::default()
        };
        let store = Store {
            id: StoreId(4),
            address: "a:1".into(),
            labels: vec![("zone".into(), "z1".into())],
            ..Store::default()
        };
        let found = [
            pairs::region(&region),
            pairs::term(RegionId(7), Some(Term(9))),
            pairs::store(&store),
            pairs::disconnected(StoreId(4), Some(30)),
            pairs::setting("replicas", 5),
            pairs::setting("of_a_later_version", 5),
            pairs::client_address(StoreId(4), "p:2"),
            pairs::permit(&JoinPermit::Token([3; 32]), Some(1_700_000_000)),
        ]
        .map(|change| text(&change).unwrap());
        let wanted = [
            "region 7: -∞ to m\\n, on stores 1, 4 (learner), epoch 2/3",
            "region 7: a leader of term 9",
            "store 4: up, a:1, zone=z1",
            "store 4: silent for 30 s",
            "setting replicas: 5",
            "setting of_a_later_version: 5",
            "store 4: p:2 for clients",
            "node by a token: may join until Unix second 1700000000",
        ];
        assert_eq!(found, wanted.map(str::to_owned));
    }

    #[test]
    fn a_grant_is_shown_without_the_hash_of_its_token() {
        let grant = Grant {
            name: "token:ab".into(),
            prefixes: vec!["app/".into()],
            token: Some([7; 32]),
            ..Grant::default()
        };
        let found = text(&pairs::grant(&grant)).unwrap();
        assert!(found.starts_with("identity token:ab: ") && found.ends_with("app/"), "{found}");
        assert!(!found.contains("07"), "{found}");
        assert_eq!(text(&pairs::no_grant("x")).unwrap(), "identity x: no rights");
    }

    #[test]
    fn counters_are_no_events_and_a_malformed_record_is_an_error() {
        assert_eq!(text(&pairs::ids(40)), None);
        assert_eq!(text(&pairs::members(4)), None);
        let change = pairs::setting("replicas", 5);
        assert!(recorded(&change.key, Some(&[])).is_err());
        assert!(recorded(b"user key", Some(b"1")).is_err());
    }
}
