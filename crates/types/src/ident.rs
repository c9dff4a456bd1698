//! Identity of a store: its cluster, its number in it, and the Raft tick of the cluster.

use crate::{ClusterId, Error, Result, StoreId, keyspace, varint};
use bytes::Bytes;

/// Raft tick of a cluster, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TickMillis(u64);

impl TickMillis {
    /// Shortest tick.
    pub const MIN: u64 = 5;
    /// Longest tick.
    pub const MAX: u64 = 1_000;
    /// Tick of a new cluster of which the first node states none.
    pub const OF_NEW_CLUSTERS: Self = Self(20);
    /// Tick of a cluster of an earlier version: its stores have recorded none, and this was the default
    /// of each node.
    pub const UNLESS_RECORDED: Self = Self(50);

    /// Tick of [`TickMillis::MAX`].
    pub const LONGEST: Self = Self(Self::MAX);

    /// Returns the tick of so many milliseconds; `None` for a number out of bounds.
    pub fn new(millis: u64) -> Option<Self> {
        (Self::MIN..=Self::MAX).contains(&millis).then_some(Self(millis))
    }

    /// Returns the milliseconds.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Returns the nanoseconds.
    pub fn nanos(self) -> u64 {
        self.0 * 1_000_000
    }
}

/// Cluster and store that a directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreIdent {
    /// The cluster's identifier.
    pub cluster: ClusterId,
    /// The store's number in the cluster, assigned by the placement group; never reused.
    pub store: StoreId,
    /// Tick of the cluster; `None` in a store that joined a cluster of an earlier version.
    pub tick: Option<TickMillis>,
}

impl StoreIdent {
    /// Returns an identity without a tick.
    pub const fn new(cluster: ClusterId, store: StoreId) -> Self {
        Self { cluster, store, tick: None }
    }

    /// Returns the engine pairs of the identity: cluster and store as varints, and the tick as a varint
    /// of its own. Earlier versions read the first and leave the second alone.
    pub fn pairs(&self) -> Vec<(Bytes, Bytes)> {
        let encode = |numbers: &[u64]| {
            let mut out = Vec::new();
            numbers.iter().for_each(|number| varint::put(&mut out, *number));
            Bytes::from(out)
        };
        let own = (keyspace::ident_key(), encode(&[self.cluster.0, self.store.0]));
        let tick = self.tick.map(|tick| (keyspace::tick_key(), encode(&[tick.get()])));
        std::iter::once(own).chain(tick).collect()
    }

    /// Decodes the values of [`StoreIdent::pairs`]. Fails with `Invalid`.
    pub fn decode(own: &[u8], tick: Option<&[u8]>) -> Result<Self> {
        let malformed = || Error::invalid("malformed store identity");
        let [cluster, store] = numbers(own).ok_or_else(malformed)?;
        let ident = Self::new(ClusterId(cluster), StoreId(store));
        let Some(tick) = tick else { return Ok(ident) };
        let [millis] = numbers(tick).ok_or_else(malformed)?;
        let unknown = || {
            Error::invalid(format!(
                "the store records a tick of {millis} ms, which is not one of {} to {}: run the \
                 version that wrote it",
                TickMillis::MIN,
                TickMillis::MAX
            ))
        };
        Ok(Self { tick: Some(TickMillis::new(millis).ok_or_else(unknown)?), ..ident })
    }
}

/// Decodes exactly `N` varints.
fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (mut rest, mut out) = (bytes, [0; N]);
    for number in &mut out {
        *number = varint::take(&mut rest)?;
    }
    rest.is_empty().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(ident: &StoreIdent) -> Result<StoreIdent> {
        let pairs = ident.pairs();
        let tick = pairs.get(1).map(|(_, value)| &value[..]);
        StoreIdent::decode(&pairs[0].1, tick)
    }

    #[test]
    fn an_identity_survives_the_round_trip() {
        for tick in [None, TickMillis::new(5), TickMillis::new(1_000)] {
            let ident = StoreIdent { tick, ..StoreIdent::new(ClusterId(u64::MAX), StoreId(3)) };
            assert_eq!(decoded(&ident).unwrap(), ident);
        }
        let tick = |bytes: &'static [u8]| StoreIdent::decode(&[7, 3], Some(bytes));
        assert!(StoreIdent::decode(b"", None).is_err() && StoreIdent::decode(&[7], None).is_err());
        assert!(StoreIdent::decode(&[7, 3, 20], None).is_err());
        assert!(tick(&[]).is_err() && tick(&[20, 20]).is_err());
        for bytes in [&[4][..], &[0xe9, 7]] {
            let refused = StoreIdent::decode(&[7, 3], Some(bytes)).unwrap_err().to_string();
            assert!(refused.contains("5 to 1000"), "{refused}");
        }
    }

    /// The bytes are those that the versions before the tick was recorded wrote.
    #[test]
    fn an_identity_of_an_earlier_version_has_no_tick_and_is_written_with_the_same_bytes() {
        let bytes = [0xad, 0x95, 0x9a, 0xf5, 0x0a, 0x03];
        let ident = StoreIdent::decode(&bytes, None).unwrap();
        assert_eq!(ident, StoreIdent::new(ClusterId(0xaea6_8aad), StoreId(3)));
        assert_eq!(ident.tick, None);
        assert_eq!(ident.pairs(), [(Bytes::from_static(&[0, b'i']), bytes.to_vec().into())]);
        let with_tick = StoreIdent { tick: TickMillis::new(20), ..ident };
        let tick = (Bytes::from_static(&[0, b'i', b't']), Bytes::from_static(&[20]));
        assert_eq!(with_tick.pairs(), [ident.pairs(), vec![tick]].concat());
    }
}
