//! Records of the placement region.
//!
//! ```text
//! 04 'a' id:u64be    cancelled := nothing               an administrator cancelled the region's merge
//! 04 'b' id:u64be    boot    := count:varint nonce:varint  last run of a store
//! 04 'c'             cluster := version:u8 (1) cluster_id:varint
//! 04 'd' id:u64be    disconnected := seconds:varint     without heartbeats, of a disconnected store
//! 04 'f'             levels  := recorded:varint in_use:varint   absent: the oldest level
//! 04 'i'             ids     := watermark:varint        no id above it was ever allocated
//! 04 'j' permit      until   := version:u8 (1) unix_s:varint   permission to join: 'h' sha256:32 or 'n' name
//! 04 'l' id:u64be    starts  := id:16 id:16*            start of the last run, then those before it
//! 04 'm'             members := version:varint          grows with each change of a store's record
//! 04 'n' name        setting := value:varint            absent: the default
//! 04 'o' id:u64be    owner   := version:u8 (1) name       node of a store, by its certificate
//! 04 'p' id:u64be    public  := address                 for clients; absent: that in the store's record
//! 04 'q' id:u64be    silence := unix_seconds:varint    of earlier versions; deleted, never written
//! 04 'r' id:u64be    region  := types::Region
//! 04 's' id:u64be    store   := store::Store            tombstones stay
//! 04 't' id:u64be    term    := varint                  no leader of an earlier term is accepted
//! 04 'v' id:u64be    speed   := speed::record           classes of a store's speed
//! 04 'w'             access  := version:varint          grows with each change of a grant
//! 04 'x' name        grant   := access::Grant
//! ```

use bytes::Bytes;
use stele_types::{
    Boot, ClusterId, Error, Level, Lineage, Region, RegionId, Result, StoreId, Term, keyspace,
    varint,
};

use crate::access::Grant;
use crate::cluster::owners::JoinPermit;
use crate::levels::Levels;
use crate::speed::record::SpeedRecord;
use crate::store::{Store, TEXT_BYTES_MAX};

/// A put into the placement region, or (`value: None`) a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairChange {
    /// Key as the engine stores it.
    pub key: Bytes,
    /// New value; `None` deletes.
    pub value: Option<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlacementRecord {
    Cluster(ClusterId),
    Ids {
        watermark: u64,
    },
    Levels(Levels),
    Members {
        version: u64,
    },
    Setting {
        name: String,
        value: Option<u64>,
    },
    Region(RegionId, Option<Region>),
    /// Term of a region's leader; `None` deletes the record.
    Term(RegionId, Option<Term>),
    Store(Box<Store>),
    /// Whether there is a record that the merge of a region was cancelled.
    CancelledMerge(RegionId, bool),
    Boot(StoreId, Boot),
    Starts(StoreId, Lineage),
    /// Address of a store's node for clients; `None` deletes the record.
    ClientAddress(StoreId, Option<String>),
    /// Seconds without heartbeats of a disconnected store; `None` deletes the record.
    Disconnected(StoreId, Option<u64>),
    /// Whether there is a record of an earlier version for a disconnected store.
    FormerSilence(StoreId, bool),
    /// Name of a store's node.
    Owner(StoreId, String),
    /// Unix seconds at which a permission to join ends; `None` deletes the record.
    Permit(JoinPermit, Option<u64>),
    /// Classes of a store; `None` deletes the record.
    Speed(StoreId, Option<SpeedRecord>),
    Access {
        version: u64,
    },
    /// Rights of the identity with this name; `None` deletes the record.
    Grant(String, Option<Box<Grant>>),
}

const FORMAT: u8 = 1;
const NAME_BYTES_MAX: usize = 64;
const OF_TOKEN: u8 = b'h';
const OF_NODE: u8 = b'n';

/// Returns the range of the placement group's keys.
pub fn state_range() -> stele_types::KeyRange {
    keyspace::range_in_space(keyspace::SYSTEM, &stele_types::KeyRange::all())
}

/// Encodes the record of the cluster's identity.
pub fn cluster(id: ClusterId) -> PairChange {
    let mut out = vec![FORMAT];
    varint::put(&mut out, id.0);
    put(b"c", out)
}

/// Encodes the record that no number above `watermark` was allocated.
pub fn ids(watermark: u64) -> PairChange {
    let mut out = Vec::new();
    varint::put(&mut out, watermark);
    put(b"i", out)
}

/// Encodes the record of the members' version.
pub fn members(version: u64) -> PairChange {
    let mut out = Vec::new();
    varint::put(&mut out, version);
    put(b"m", out)
}

/// Encodes the record of the levels.
pub fn levels(levels: Levels) -> PairChange {
    let mut out = Vec::new();
    varint::put(&mut out, levels.recorded.get().into());
    varint::put(&mut out, levels.in_use.get().into());
    put(b"f", out)
}

/// Encodes the record of the version of all grants.
pub(crate) fn access(version: u64) -> PairChange {
    let mut out = Vec::new();
    varint::put(&mut out, version);
    put(b"w", out)
}

/// Encodes the record of a grant.
pub(crate) fn grant(grant: &Grant) -> PairChange {
    put(&[b"x", grant.name.as_bytes()].concat(), grant.encode())
}

pub(crate) fn no_grant(name: &str) -> PairChange {
    let key = keyspace::in_space(keyspace::SYSTEM, &[b"x", name.as_bytes()].concat());
    PairChange { key, value: None }
}

/// Encodes the record of a setting's value.
pub fn setting(name: &str, value: u64) -> PairChange {
    let mut out = Vec::new();
    varint::put(&mut out, value);
    put(&[b"n", name.as_bytes()].concat(), out)
}

/// Encodes the record of a store.
pub fn store(store: &Store) -> PairChange {
    put(&numbered(b's', store.id.0), store.encode())
}

/// Encodes the record of a store's last run.
pub fn boot(store: StoreId, boot: Boot) -> PairChange {
    let mut out = Vec::new();
    boot.put(&mut out);
    put(&numbered(b'b', store.0), out)
}

/// Encodes the record of the starts of a store's last run.
pub fn starts(store: StoreId, lineage: &Lineage) -> PairChange {
    put(&numbered(b'l', store.0), lineage.to_bytes())
}

/// Encodes the record of the address of a store's node for clients; an empty one deletes the record.
pub fn client_address(store: StoreId, address: &str) -> PairChange {
    let key = keyspace::in_space(keyspace::SYSTEM, &numbered(b'p', store.0));
    let value = (!address.is_empty()).then(|| Bytes::copy_from_slice(address.as_bytes()));
    PairChange { key, value }
}

/// Encodes the record of a disconnected store's seconds without heartbeats; `None` deletes it.
pub fn disconnected(store: StoreId, seconds: Option<u64>) -> PairChange {
    let key = keyspace::in_space(keyspace::SYSTEM, &numbered(b'd', store.0));
    let value = seconds.map(|seconds| {
        let mut out = Vec::new();
        varint::put(&mut out, seconds);
        Bytes::from(out)
    });
    PairChange { key, value }
}

/// Encodes the record of the name of a store's node.
pub fn owner(store: StoreId, name: &str) -> PairChange {
    put(&numbered(b'o', store.0), [&[FORMAT], name.as_bytes()].concat())
}

/// Encodes the record of a permission to join that ends at `until`, in Unix seconds; `None` deletes it.
pub fn permit(permit: &JoinPermit, until: Option<u64>) -> PairChange {
    let (kind, name) = match permit {
        JoinPermit::Token(hash) => (OF_TOKEN, &hash[..]),
        JoinPermit::Node(name) => (OF_NODE, name.as_bytes()),
    };
    let key = keyspace::in_space(keyspace::SYSTEM, &[&[b'j', kind], name].concat());
    let value = until.map(|until| {
        let mut out = vec![FORMAT];
        varint::put(&mut out, until);
        Bytes::from(out)
    });
    PairChange { key, value }
}

/// Whether a text can be the name of a node.
pub(crate) fn is_node_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
}

pub(crate) fn no_former_silence(store: StoreId) -> PairChange {
    let key = keyspace::in_space(keyspace::SYSTEM, &numbered(b'q', store.0));
    PairChange { key, value: None }
}

/// Encodes the record of a store's classes; `None` deletes it.
pub(crate) fn speed(store: StoreId, record: Option<&SpeedRecord>) -> PairChange {
    let key = keyspace::in_space(keyspace::SYSTEM, &numbered(b'v', store.0));
    PairChange { key, value: record.map(SpeedRecord::encode) }
}

pub(crate) fn cancelled_merge(region: RegionId, is_cancelled: bool) -> PairChange {
    let key = keyspace::in_space(keyspace::SYSTEM, &numbered(b'a', region.0));
    PairChange { key, value: is_cancelled.then(Bytes::new) }
}

/// Encodes the record of a region.
pub fn region(region: &Region) -> PairChange {
    put(&numbered(b'r', region.id.0), region.encode())
}

/// Returns the region that a pair records; `None` for a pair of another kind. Fails with `Invalid`.
pub fn recorded_region(key: &[u8], value: &[u8]) -> Result<Option<Region>> {
    match decode(key, Some(value))? {
        Some(PlacementRecord::Region(_, region)) => Ok(region),
        _ => Ok(None),
    }
}

pub(crate) fn no_region(id: RegionId) -> PairChange {
    let key = keyspace::in_space(keyspace::SYSTEM, &numbered(b'r', id.0));
    PairChange { key, value: None }
}

/// Encodes the record of the term of a region's leader; `None` deletes it.
pub fn term(id: RegionId, term: Option<Term>) -> PairChange {
    let key = keyspace::in_space(keyspace::SYSTEM, &numbered(b't', id.0));
    let value = term.map(|term| {
        let mut out = Vec::new();
        varint::put(&mut out, term.0);
        Bytes::from(out)
    });
    PairChange { key, value }
}

fn put(key: &[u8], value: impl Into<Bytes>) -> PairChange {
    let key = keyspace::in_space(keyspace::SYSTEM, key);
    PairChange { key, value: Some(value.into()) }
}

fn numbered(kind: u8, number: u64) -> [u8; 9] {
    let mut out = [kind; 9];
    out[1..].copy_from_slice(&number.to_be_bytes());
    out
}

/// Decodes a pair. Returns `None` for a kind of record that only newer versions know. Fails with
/// `Invalid`.
pub(crate) fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Option<PlacementRecord>> {
    let malformed = || Error::invalid(format!("malformed placement record {key:02x?}"));
    let Some((&kind, name)) = key.strip_prefix(&[keyspace::SYSTEM]).and_then(<[u8]>::split_first)
    else {
        return Err(malformed());
    };
    let record = match (kind, value) {
        (b'b', Some(value)) => {
            number(name).and_then(|id| Some(PlacementRecord::Boot(StoreId(id), take_boot(value)?)))
        }
        // Later versions may append to it.
        (b'a', value) => {
            number(name).map(|id| PlacementRecord::CancelledMerge(RegionId(id), value.is_some()))
        }
        (b'c', Some(value)) => take_cluster(value).map(PlacementRecord::Cluster),
        (b'f', Some(value)) => take_levels(value).map(PlacementRecord::Levels),
        (b'i', Some(value)) => {
            one_number(value).map(|watermark| PlacementRecord::Ids { watermark })
        }
        (b'j', value) => take_permit(name, value),
        (b'l', Some(value)) => number(name)
            .and_then(|id| Some(PlacementRecord::Starts(StoreId(id), Lineage::from_bytes(value)?))),
        (b'm', Some(value)) => {
            one_number(value).map(|version| PlacementRecord::Members { version })
        }
        (b'n', value) => take_setting(name, value),
        (b'p', value) => number(name)
            .zip(take_address(value))
            .map(|(id, address)| PlacementRecord::ClientAddress(StoreId(id), address)),
        (b'r', None) => number(name).map(|id| PlacementRecord::Region(RegionId(id), None)),
        (b'r', Some(value)) => {
            let region = Region::decode(value)?;
            number(name)
                .filter(|id| *id == region.id.0)
                .map(|id| PlacementRecord::Region(RegionId(id), Some(region)))
        }
        (b'd', None) => number(name).map(|id| PlacementRecord::Disconnected(StoreId(id), None)),
        (b'd', Some(value)) => number(name).and_then(|id| {
            Some(PlacementRecord::Disconnected(StoreId(id), Some(one_number(value)?)))
        }),
        (b'o', Some(value)) => number(name)
            .and_then(|id| Some(PlacementRecord::Owner(StoreId(id), take_owner(value)?))),
        (b'q', value) => {
            number(name).map(|id| PlacementRecord::FormerSilence(StoreId(id), value.is_some()))
        }
        (b's', Some(value)) => match number(name) {
            Some(id) => Some(PlacementRecord::Store(Box::new(Store::decode(StoreId(id), value)?))),
            None => None,
        },
        (b't', None) => number(name).map(|id| PlacementRecord::Term(RegionId(id), None)),
        (b't', Some(value)) => number(name).and_then(|id| {
            Some(PlacementRecord::Term(RegionId(id), Some(Term(one_number(value)?))))
        }),
        (b'v', None) => number(name).map(|id| PlacementRecord::Speed(StoreId(id), None)),
        (b'v', Some(value)) => number(name).and_then(|id| {
            Some(PlacementRecord::Speed(StoreId(id), Some(SpeedRecord::decode(value)?)))
        }),
        (b'w', Some(value)) => one_number(value).map(|version| PlacementRecord::Access { version }),
        (b'x', None) => {
            std::str::from_utf8(name).ok().map(|name| PlacementRecord::Grant(name.to_owned(), None))
        }
        (b'x', Some(value)) => Grant::decode(name, value)
            .map(|grant| PlacementRecord::Grant(grant.name.clone(), Some(Box::new(grant)))),
        (b'b' | b'c' | b'f' | b'i' | b'l' | b'm' | b'o' | b's' | b'w', None) => None,
        _ => return Ok(None),
    };
    record.map(Some).ok_or_else(malformed)
}

fn take_cluster(value: &[u8]) -> Option<ClusterId> {
    let number = one_number(value.strip_prefix(&[FORMAT])?)?;
    Some(ClusterId(number))
}

/// Later versions may append to the record.
fn take_levels(mut value: &[u8]) -> Option<Levels> {
    let mut level = || Some(Level::new(u32::try_from(varint::take(&mut value)?).ok()?));
    Some(Levels { recorded: level()?, in_use: level()? })
}

fn take_owner(value: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(value.strip_prefix(&[FORMAT])?).ok()?;
    is_node_name(name).then(|| name.to_owned())
}

fn take_permit(key: &[u8], value: Option<&[u8]>) -> Option<PlacementRecord> {
    let permit = match key.split_first()? {
        (&OF_TOKEN, hash) => JoinPermit::Token(hash.try_into().ok()?),
        (&OF_NODE, name) => {
            let name = std::str::from_utf8(name).ok().filter(|name| is_node_name(name))?;
            JoinPermit::Node(name.to_owned())
        }
        _ => return None,
    };
    let until = match value {
        None => None,
        Some(value) => Some(one_number(value.strip_prefix(&[FORMAT])?)?),
    };
    Some(PlacementRecord::Permit(permit, until))
}

fn take_boot(mut value: &[u8]) -> Option<Boot> {
    Boot::take(&mut value).filter(|_| value.is_empty())
}

fn take_setting(name: &[u8], value: Option<&[u8]>) -> Option<PlacementRecord> {
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= NAME_BYTES_MAX)?;
    let value = match value {
        None => None,
        Some(value) => Some(one_number(value)?),
    };
    Some(PlacementRecord::Setting { name: name.to_owned(), value })
}

fn take_address(value: Option<&[u8]>) -> Option<Option<String>> {
    let Some(value) = value else { return Some(None) };
    let value = Some(value).filter(|value| value.len() <= TEXT_BYTES_MAX)?;
    Some(Some(std::str::from_utf8(value).ok()?.to_owned()))
}

fn number(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.try_into().ok()?))
}

fn one_number(mut value: &[u8]) -> Option<u64> {
    varint::take(&mut value).filter(|_| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speed::SpeedClass;
    use stele_types::StartId;

    fn decoded(change: &PairChange) -> PlacementRecord {
        decode(&change.key, change.value.as_deref()).unwrap().unwrap()
    }

    #[test]
    fn every_record_survives_the_round_trip() {
        assert_eq!(
            decoded(&cluster(ClusterId(u64::MAX))),
            PlacementRecord::Cluster(ClusterId(u64::MAX))
        );
        assert_eq!(decoded(&ids(1000)), PlacementRecord::Ids { watermark: 1000 });
        assert_eq!(decoded(&members(8)), PlacementRecord::Members { version: 8 });
        let name = "replicas".to_owned();
        assert_eq!(
            decoded(&setting("replicas", 5)),
            PlacementRecord::Setting { name, value: Some(5) }
        );
        let sample = Region { id: RegionId(9), ..Region::default() };
        assert_eq!(decoded(&region(&sample)), PlacementRecord::Region(RegionId(9), Some(sample)));
        assert_eq!(decoded(&no_region(RegionId(9))), PlacementRecord::Region(RegionId(9), None));
        assert_eq!(
            decoded(&term(RegionId(9), Some(Term(6)))),
            PlacementRecord::Term(RegionId(9), Some(Term(6)))
        );
        for is_cancelled in [true, false] {
            let record = PlacementRecord::CancelledMerge(RegionId(9), is_cancelled);
            assert_eq!(decoded(&cancelled_merge(RegionId(9), is_cancelled)), record);
        }
        assert_eq!(decoded(&term(RegionId(9), None)), PlacementRecord::Term(RegionId(9), None));
        let sample = Store { id: StoreId(3), address: "a:1".into(), ..Store::default() };
        assert_eq!(decoded(&store(&sample)), PlacementRecord::Store(Box::new(sample)));
        let id = StoreId(3);
        let sample = Boot { count: 300, nonce: u64::MAX };
        assert_eq!(decoded(&boot(id, sample)), PlacementRecord::Boot(id, sample));
        let sample = Lineage::new([StartId(7), StartId(u128::MAX)]);
        assert_eq!(decoded(&starts(id, &sample)), PlacementRecord::Starts(id, sample));
        assert_eq!(
            decoded(&disconnected(id, Some(99))),
            PlacementRecord::Disconnected(id, Some(99))
        );
        assert_eq!(decoded(&disconnected(id, None)), PlacementRecord::Disconnected(id, None));
        let address = Some("a:2".to_owned());
        assert_eq!(
            decoded(&client_address(id, "a:2")),
            PlacementRecord::ClientAddress(id, address)
        );
        assert_eq!(decoded(&client_address(id, "")), PlacementRecord::ClientAddress(id, None));
        let former = no_former_silence(id);
        assert_eq!(decoded(&former), PlacementRecord::FormerSilence(id, false));
        let former = PairChange { value: Some(Bytes::from_static(b"\x63")), ..former };
        assert_eq!(decoded(&former), PlacementRecord::FormerSilence(id, true));
        let sample = SpeedRecord {
            class: SpeedClass(20),
            data_class: SpeedClass(24),
            is_measured: true,
            differs: Some((1 << 40, SpeedClass(21))),
        };
        for sample in [sample, SpeedRecord { differs: None, ..sample }, SpeedRecord::default()] {
            assert_eq!(
                decoded(&speed(id, Some(&sample))),
                PlacementRecord::Speed(id, Some(sample))
            );
        }
        assert_eq!(decoded(&speed(id, None)), PlacementRecord::Speed(id, None));
    }

    #[test]
    fn records_of_access_survive_the_round_trip() {
        let id = StoreId(3);
        assert_eq!(decoded(&owner(id, "n1")), PlacementRecord::Owner(id, "n1".to_owned()));
        for sample in [JoinPermit::Token([7; 32]), JoinPermit::Node("n1".to_owned())] {
            for until in [Some(1 << 40), None] {
                let record = PlacementRecord::Permit(sample.clone(), until);
                assert_eq!(decoded(&permit(&sample, until)), record);
            }
        }
        assert_eq!(decoded(&access(5)), PlacementRecord::Access { version: 5 });
        let sample = Grant { name: "app".to_owned(), ..Grant::default() };
        let record = PlacementRecord::Grant("app".to_owned(), Some(Box::new(sample.clone())));
        assert_eq!(decoded(&grant(&sample)), record);
        assert_eq!(decoded(&no_grant("app")), PlacementRecord::Grant("app".to_owned(), None));
    }

    #[test]
    fn what_later_versions_append_to_the_record_of_a_speed_is_skipped() {
        let change = speed(StoreId(3), Some(&SpeedRecord::default()));
        let value = change.value.clone().unwrap();
        let longer = [&value[..], b"more"].concat();
        let expected = PlacementRecord::Speed(StoreId(3), Some(SpeedRecord::default()));
        assert_eq!(decode(&change.key, Some(&longer)).unwrap(), Some(expected));
        for cut in 0..value.len() {
            assert!(decode(&change.key, Some(&value[..cut])).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn damage_is_refused_and_kinds_of_the_future_are_skipped() {
        assert!(decode(b"\x04c", Some(b"\x02\x01")).is_err());
        assert!(decode(b"\x04r\0\0", Some(b"")).is_err());
        assert!(decode(b"\x04i", Some(b"\x01\x01")).is_err());
        assert!(decode(b"\x01c", Some(b"")).is_err());
        let (long, name) = ([&[1], &[b'n'; 65][..]].concat(), no_region(RegionId(9)).key);
        let of_owner = [b"\x04o", &name[2..]].concat();
        for value in [&b""[..], b"\x01", b"\x02n1", b"\x01\xff", &long] {
            assert!(decode(&of_owner, Some(value)).is_err(), "{value:02x?}");
        }
        for key in [&b"\x04j"[..], b"\x04jh", b"\x04jn", b"\x04jx1"] {
            assert!(decode(key, Some(b"\x01\x01")).is_err(), "{key:02x?}");
        }
        assert!(decode(b"\x04jnn1", Some(b"\x01")).is_err());
        let mut other = region(&Region { id: RegionId(9), ..Region::default() });
        other.key = no_region(RegionId(8)).key;
        assert!(decode(&other.key, other.value.as_deref()).is_err());
        assert_eq!(decode(b"\x04z1", Some(b"?")).unwrap(), None);
    }
}
