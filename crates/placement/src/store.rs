//! A store: its address, its state and its last report.
//!
//! ```text
//! store := version:u8 (1) state:u8 address:bytes token:bytes capacity
//!          labels:varint (name:bytes value:bytes)*
//! ```

use crate::Millis;
use crate::config::Config;
use crate::followed::FollowedFrom;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use stele_types::{Boot, DeviceSpeed, Error, Level, Lineage, Result, StoreId, StoreRun, varint};

/// Membership state of a store. Persisted; the numbers belong to the format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StoreState {
    /// Accepts replicas and leaders.
    #[default]
    Up = 0,
    /// Replicas move elsewhere; the empty store stays a member.
    Draining = 1,
    /// Replicas move elsewhere; the empty store becomes a tombstone.
    Removing = 2,
    /// Removed; its number is never reused.
    Tombstone = 3,
}

impl StoreState {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Up, Self::Draining, Self::Removing, Self::Tombstone]
            .into_iter()
            .find(|state| *state as u8 == number)
    }

    /// Whether the store's replicas must move elsewhere.
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

/// State of a store by its heartbeats (PD store state).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Liveness {
    /// A heartbeat came recently.
    Live,
    /// No heartbeat for `silent_after_seconds`: it gets no new replicas and leaders.
    Disconnected,
    /// No heartbeat for `down_after_seconds`: its replicas are rebuilt elsewhere.
    Down,
}

/// Report of a store in a heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// Number of the store.
    pub id: StoreId,
    /// Size of the device.
    pub capacity_bytes: u64,
    /// Free space on the device.
    pub free_bytes: u64,
    /// Space that the store uses.
    pub used_bytes: u64,
    /// The store refuses writes because its device is full.
    pub is_full: bool,
    /// The store stopped after a device failure: its data is lost to the cluster.
    pub has_failed: bool,
    /// 99th percentile of the store's last appends; 0 before the first.
    pub append_p99_nanos: u64,
    /// Age of the append under way; 0 without one. Grows while the device hangs.
    pub append_age_ms: u64,
    /// Bytes of the store that are not garbage.
    pub live_bytes: u64,
    /// Capacity without the reserve of garbage collection; 0 if unknown.
    pub usable_bytes: u64,
    /// Speed of the device.
    pub device: DeviceSpeed,
    /// Snapshots that the store receives, or began to receive since its node's last report.
    pub receiving: u64,
    /// Number of starts of the store's directory; 0 if unknown.
    pub boot_count: u64,
    /// Nanoseconds that writers wait for each KiB because garbage collection lags; 0 for none.
    pub slowdown_nanos_per_kib: u64,
    /// Level that the store's directory records; the oldest from a node of an earlier version.
    pub level: Level,
}

/// Report of a node in a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// `host:port` for other nodes.
    pub address: String,
    /// `host:port` for clients; empty: `address`.
    pub client_address: String,
    /// `host:port` for administrators; empty: that for clients.
    pub admin_address: String,
    /// Version of the software.
    pub version: String,
    /// Newest level that the software supports; the oldest from a node of an earlier version.
    pub level: Level,
    /// Start time, in Unix seconds of the node's clock. For people: clocks jump.
    pub started_at: u64,
    /// Random number of this run of the process; 0 from a node of an earlier version.
    pub boot_nonce: u64,
    /// Starts of its stores, of those that state them.
    pub lineages: Arc<[(StoreId, Lineage)]>,
    /// Size above which the node splits regions; 0 if unknown.
    pub region_bytes_max: u64,
    /// Names and values of the labels of its stores; `None` from a node of an earlier version.
    pub labels: Option<Vec<(String, String)>>,
    /// Time of its clock, in Unix seconds; 0 from a node of an earlier version.
    pub unix_s: u64,
    /// The node hands its leaders over and stops.
    pub is_stopping: bool,
    /// Version of the grants that the node enforces; `None` if it enforces none: without TLS, or in an
    /// earlier version.
    pub access_version: Option<u64>,
    /// First entry of each region that a reader of its log at the node needs.
    pub followed: FollowedFrom,
    /// Name in the certificate of the sender, by which the receiver knows it; `None` without TLS.
    pub name: Option<String>,
}

impl NodeReport {
    /// Returns the run of a store of the node.
    pub fn run_of(&self, store: &StoreReport) -> StoreRun {
        let boot = Boot { count: store.boot_count, nonce: self.boot_nonce };
        let lineage = self.lineages.iter().find(|(id, _)| *id == store.id);
        StoreRun { boot, lineage: lineage.map(|(_, it)| it.clone()).unwrap_or_default() }
    }

    /// Returns the number that the reports of one run of the process share, and those of other runs
    /// do not.
    pub(crate) fn run(&self) -> u64 {
        match self.boot_nonce {
            0 => self.started_at,
            nonce => nonce,
        }
    }
}

/// Known state of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// Number; never reused.
    pub id: StoreId,
    /// `host:port` of the node, for other nodes. Stores of one address fail together.
    pub address: String,
    /// Membership state.
    pub state: StoreState,
    /// Random token of the directory. A repeated join with it gets the same number.
    pub token: Bytes,
    /// Size of the device; 0 until it is known.
    pub capacity_bytes: u64,
    /// Label names and values.
    pub labels: Vec<(String, String)>,
    /// Last heartbeat. Not persisted, except while the store is disconnected: see
    /// `Cluster::plan_disconnections`.
    pub last_heartbeat: LastHeartbeat,
    /// Last report of the store. Not persisted.
    pub report: StoreReport,
    /// Last report of its node. Not persisted.
    pub node: NodeReport,
}

/// Time of a store's last heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastHeartbeat {
    /// This leader has received none.
    NotSince {
        /// Time at which the leader took over.
        loaded: Millis,
        /// Seconds without a heartbeat before `loaded`, as far as an earlier leader persisted them.
        disconnected_s: u64,
    },
    /// Received at this time.
    At(Millis),
}

impl Default for LastHeartbeat {
    fn default() -> Self {
        Self::NotSince { loaded: Millis(0), disconnected_s: 0 }
    }
}

const FORMAT: u8 = 1;
/// Time that a new leader waits for heartbeats, which come every second, before it counts a store
/// as down.
const GRACE_S: u64 = 5;
pub(crate) const TEXT_BYTES_MAX: usize = 1024;
pub(crate) const TOKEN_BYTES_MAX: usize = 64;
pub(crate) const LABELS_MAX: usize = 64;

impl Store {
    /// Records a heartbeat. Returns `false` and changes nothing after a later one.
    pub(crate) fn note_heartbeat(&mut self, at: Millis) -> bool {
        let is_late = matches!(self.last_heartbeat, LastHeartbeat::At(last) if at < last);
        // bug placement.heartbeat_taken_back: always
        if !is_late {
            self.last_heartbeat = LastHeartbeat::At(at);
        }
        !is_late
    }

    /// Returns the state by heartbeats. A store without a heartbeat to this leader is disconnected.
    /// Invariant: a store of which the device hangs is as one without heartbeats since the start of
    /// its append, though its node reports.
    /// It is down once the persisted time and this leader's own time without a heartbeat together
    /// reach `down_after_seconds`. A grace time lets a store report that returned between two
    /// leaders.
    /// Test: `silence_grows_into_being_down_and_a_new_leader_goes_on_counting_after_a_grace`.
    pub fn liveness(&self, config: &Config, now: Millis) -> Liveness {
        self.liveness_after(config, now, self.hanging_s())
    }

    /// Returns whether the store has sent no heartbeat for so long that its node does not run, as far
    /// as this leader can tell. A new leader waits as long as for any store.
    pub(crate) fn is_silent(&self, config: &Config, now: Millis) -> bool {
        let since = match self.last_heartbeat {
            LastHeartbeat::At(at) => at,
            LastHeartbeat::NotSince { loaded, .. } => loaded,
        };
        now.seconds_since(since) >= config.silent_after_seconds || self.report.has_failed
    }

    /// Returns whether the node reports the store, which may hang.
    pub(crate) fn is_heard(&self, config: &Config, now: Millis) -> bool {
        self.liveness_after(config, now, 0) == Liveness::Live
    }

    fn liveness_after(&self, config: &Config, now: Millis, hanging_s: u64) -> Liveness {
        let down_after = config.down_after_seconds;
        let (seconds, has_heartbeat) = match self.last_heartbeat {
            LastHeartbeat::At(moment) => (now.seconds_since(moment) + hanging_s, true),
            LastHeartbeat::NotSince { loaded, disconnected_s } => match now.seconds_since(loaded) {
                waited if waited < GRACE_S.min(down_after) => (0, false),
                waited => (waited.saturating_add(disconnected_s), false),
            },
        };
        match seconds {
            _ if seconds >= down_after => Liveness::Down,
            _ if !has_heartbeat || seconds >= config.silent_after_seconds => Liveness::Disconnected,
            _ => Liveness::Live,
        }
    }

    /// Returns whether the store should lead no longer, because its append does not end.
    pub(crate) fn hangs(&self, config: &Config) -> bool {
        self.report.append_age_ms >= (config.silent_after_seconds * 1000 / 10).max(1000)
    }

    fn hanging_s(&self) -> u64 {
        // bug placement.hanging_store_is_live: `self.report.append_age_ms / 1000` is `0`
        self.report.append_age_ms / 1000
    }

    /// Encodes the record.
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

    /// Decodes the whole of a record. Fails with `Invalid`.
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
        let mut store =
            Store { last_heartbeat: LastHeartbeat::At(Millis(1000)), ..Store::default() };
        let at =
            |store: &Store, seconds: u64| store.liveness(&config, Millis(1000 + seconds * 1000));
        assert_eq!(at(&store, 29), Liveness::Live);
        assert_eq!(at(&store, 30), Liveness::Disconnected);
        assert_eq!(at(&store, 1800), Liveness::Down);
        store.report.append_age_ms = 29_000;
        assert_eq!(at(&store, 0), Liveness::Live);
        assert_eq!(at(&store, 1), Liveness::Disconnected);
        store.report.append_age_ms = 1_800_000;
        assert_eq!(at(&store, 0), Liveness::Down);
        store.report.append_age_ms = 0;
        store.last_heartbeat = LastHeartbeat::NotSince { loaded: Millis(1000), disconnected_s: 0 };
        assert_eq!(at(&store, 0), Liveness::Disconnected);
        assert_eq!(at(&store, 1799), Liveness::Disconnected);
        assert_eq!(at(&store, 1800), Liveness::Down);
        store.last_heartbeat =
            LastHeartbeat::NotSince { loaded: Millis(1000), disconnected_s: 1500 };
        assert_eq!(at(&store, 299), Liveness::Disconnected);
        assert_eq!(at(&store, 300), Liveness::Down);
        store.last_heartbeat =
            LastHeartbeat::NotSince { loaded: Millis(1000), disconnected_s: 9000 };
        assert_eq!(at(&store, 4), Liveness::Disconnected, "it may have come back meanwhile");
        assert_eq!(at(&store, 5), Liveness::Down);
    }
}
