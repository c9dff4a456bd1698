//! A store: where it is, what state its life is in, and what it last said about itself.
//!
//! ```text
//! store := version:u8 (1) state:u8 address:bytes token:bytes capacity
//!          labels:varint (name:bytes value:bytes)*
//! ```

use crate::Millis;
use crate::config::Config;
use bytes::Bytes;
use std::fmt;
use stele_types::{Error, Result, StoreId, varint};

/// Where a store is in its life. Persisted; the numbers are the format's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StoreState {
    /// Takes replicas and leaders.
    #[default]
    Up = 0,
    /// Its replicas move elsewhere; it stays a member, empty.
    Draining = 1,
    /// Its replicas move elsewhere; then it becomes a tombstone.
    Removing = 2,
    /// Removed. Its number never comes back.
    Tombstone = 3,
}

impl StoreState {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Up, Self::Draining, Self::Removing, Self::Tombstone]
            .into_iter()
            .find(|state| *state as u8 == number)
    }

    /// Whether its replicas have to go elsewhere.
    pub fn is_leaving(self) -> bool {
        matches!(self, Self::Draining | Self::Removing)
    }
}

impl fmt::Display for StoreState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Removing => "removing",
            Self::Tombstone => "tombstone",
        })
    }
}

/// What its heartbeats say about a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Liveness {
    /// Heard of lately.
    Live,
    /// Not heard of for a while: nothing new goes there.
    Disconnected,
    /// Not heard of for so long that its replicas are rebuilt elsewhere.
    Down,
}

/// What a store says about itself in a heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// Which store.
    pub id: StoreId,
    /// Size of its device.
    pub capacity_bytes: u64,
    /// What is free on it.
    pub free_bytes: u64,
    /// What the store itself takes.
    pub used_bytes: u64,
    /// It refuses writes for want of space.
    pub is_full: bool,
    /// It stopped after a failure of its device: what it held is lost to the cluster.
    pub has_failed: bool,
    /// The time that 99 of 100 of its last appends stayed below; 0 before the first.
    pub append_p99_nanos: u64,
}

/// What a node says about itself in a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// `host:port` for clients and peers.
    pub address: String,
    /// The version it runs.
    pub version: String,
    /// Unix seconds of its start.
    pub started_at: u64,
}

/// A store as the placement group knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// Its number; never reused.
    pub id: StoreId,
    /// `host:port` of its node, for clients and peers alike. Stores of one address fail together.
    pub address: String,
    /// Where it is in its life.
    pub state: StoreState,
    /// Drawn when its directory was made: who asks again with it gets the same number.
    pub token: Bytes,
    /// Size of its device; 0 until it is known.
    pub capacity_bytes: u64,
    /// Names and values that describe it.
    pub labels: Vec<(String, String)>,
    /// Last heartbeat. Not persisted, but for the silence of one that is not heard of: see
    /// [`Cluster::plan_disconnections`](crate::Cluster::plan_disconnections).
    pub heard: Heard,
    /// What it said last. Not persisted.
    pub report: StoreReport,
    /// What its node said last. Not persisted.
    pub node: NodeReport,
}

/// When a store was last heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Never by this leader.
    NotSince {
        /// It took over at that moment.
        loaded: Millis,
        /// For so long nobody had heard of the store by then, as far as an earlier leader wrote it
        /// down.
        silent_s: u64,
    },
    /// At that moment.
    At(Millis),
}

impl Default for Heard {
    fn default() -> Self {
        Self::NotSince { loaded: Millis(0), silent_s: 0 }
    }
}

const FORMAT: u8 = 1;
/// What a new leader waits for heartbeats, which come every second, before it takes a store for down.
const GRACE_S: u64 = 5;
/// Longest address, label name or label value.
pub(crate) const TEXT_BYTES_MAX: usize = 1024;
/// Longest token.
pub(crate) const TOKEN_BYTES_MAX: usize = 64;
/// Most labels of a store.
pub(crate) const LABELS_MAX: usize = 64;

impl Store {
    /// What its heartbeats say. A store that this leader never heard of is silent at once. It is
    /// down once the silence that earlier leaders wrote down and this leader's own are long enough
    /// together; but a store that came back while nobody led has some heartbeats' time to say so.
    pub fn liveness(&self, config: &Config, now: Millis) -> Liveness {
        let down_after = config.down_after_seconds;
        let (seconds, heard) = match self.heard {
            Heard::At(moment) => (now.seconds_since(moment), true),
            Heard::NotSince { loaded, silent_s } => match now.seconds_since(loaded) {
                waited if waited < GRACE_S.min(down_after) => (0, false),
                waited => (waited.saturating_add(silent_s), false),
            },
        };
        match seconds {
            _ if seconds >= down_after => Liveness::Down,
            _ if !heard || seconds >= config.silent_after_seconds => Liveness::Disconnected,
            _ => Liveness::Live,
        }
    }

    /// The record's bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![FORMAT, self.state as u8];
        varint::put_bytes(&mut out, self.address.as_bytes());
        varint::put_bytes(&mut out, &self.token);
        varint::put(&mut out, self.capacity_bytes);
        varint::put(&mut out, self.labels.len() as u64);
        for (name, value) in &self.labels {
            varint::put_bytes(&mut out, name.as_bytes());
            varint::put_bytes(&mut out, value.as_bytes());
        }
        Bytes::from(out)
    }

    /// Reads what [`Store::encode`] wrote, to the last byte. Fails with `Invalid`.
    pub fn decode(id: StoreId, bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        match Self::take(id, &mut rest) {
            Some(store) if rest.is_empty() => Ok(store),
            _ => Err(Error::invalid(format!("malformed record of store {id}"))),
        }
    }

    fn take(id: StoreId, rest: &mut &[u8]) -> Option<Self> {
        let (&[format, state], tail) = rest.split_first_chunk::<2>()?;
        *rest = tail;
        let state = StoreState::from_number(state).filter(|_| format == FORMAT)?;
        let address = take_text(rest)?;
        let token = varint::take_bytes(rest).filter(|token| token.len() <= TOKEN_BYTES_MAX)?;
        let token = Bytes::copy_from_slice(token);
        let capacity_bytes = varint::take(rest)?;
        let count = varint::take(rest).filter(|count| *count <= LABELS_MAX as u64)?;
        let labels = (0..count)
            .map(|_| Some((take_text(rest)?, take_text(rest)?)))
            .collect::<Option<Vec<_>>>()?;
        Some(Self { id, address, state, token, capacity_bytes, labels, ..Self::default() })
    }
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    let bytes = varint::take_bytes(rest).filter(|bytes| bytes.len() <= TEXT_BYTES_MAX)?;
    String::from_utf8(bytes.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_round_trip_and_every_cut_is_refused() {
        let store = Store {
            id: StoreId(7),
            address: "host:20160".into(),
            state: StoreState::Removing,
            token: Bytes::from_static(b"drawn"),
            capacity_bytes: 1 << 40,
            labels: vec![("zone".into(), "a".into())],
            ..Store::default()
        };
        let bytes = store.encode();
        assert_eq!(Store::decode(StoreId(7), &bytes).unwrap(), store);
        for cut in 0..bytes.len() {
            assert!(Store::decode(StoreId(7), &bytes[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn silence_grows_into_being_down_and_a_new_leader_goes_on_counting_after_a_grace() {
        let config = Config::default();
        let mut store = Store { heard: Heard::At(Millis(1000)), ..Store::default() };
        let at =
            |store: &Store, seconds: u64| store.liveness(&config, Millis(1000 + seconds * 1000));
        assert_eq!(at(&store, 29), Liveness::Live);
        assert_eq!(at(&store, 30), Liveness::Disconnected);
        assert_eq!(at(&store, 1800), Liveness::Down);
        store.heard = Heard::NotSince { loaded: Millis(1000), silent_s: 0 };
        assert_eq!(at(&store, 0), Liveness::Disconnected);
        assert_eq!(at(&store, 1799), Liveness::Disconnected);
        assert_eq!(at(&store, 1800), Liveness::Down);
        store.heard = Heard::NotSince { loaded: Millis(1000), silent_s: 1500 };
        assert_eq!(at(&store, 299), Liveness::Disconnected);
        assert_eq!(at(&store, 300), Liveness::Down);
        store.heard = Heard::NotSince { loaded: Millis(1000), silent_s: 9000 };
        assert_eq!(at(&store, 4), Liveness::Disconnected, "it may have come back meanwhile");
        assert_eq!(at(&store, 5), Liveness::Down);
    }
}
