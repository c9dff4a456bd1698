//! Handshake between two nodes. Welcomes and rejections name the stores of the dialling node that
//! are not heard.
//!
//! ```text
//! connection := magic:8 (the dialling side) frame(Hello) … ; answered by Welcome or Refused
//! hello      := oldest:u8 newest:u8 lane:u8 cluster from:stores address wanted:stores
//!               (times (boots lineages?)?)?
//! times      := tick_nanos election_ticks_min   (absent in hellos of earlier versions)
//! boots      := nonce count*                    (a count for each of `from`; absent in earlier ones)
//! lineages   := starts*                         (for each of `from`; absent in earlier ones)
//! starts     := bytes of 16 for the start and each one before it, newest first
//! welcome    := version:u8 (gone:stores (runs refusals)?)?   (the newest version that both support)
//! runs       := count (store boot_count boot_nonce starts)*  (of the answering node's stores)
//! alive      := gone:stores?                  (a keepalive's body, on the urgent lane)
//! refused    := reason:u8 text:bytes refusals?
//! refusals   := count (store reason:u8 starts address text:bytes)*   (dialling stores that are not heard)
//! stores     := count store*                  (numbers are varints, bytes length-prefixed)
//! ```
//!
//! `gone` are the stores of the answering node that do not serve although the node runs. It is absent
//! without such stores. Earlier versions send no `gone`, and do not read it.

use super::Identity;
use super::closed::{CloseReason, RejectReason};
use bytes::Bytes;
use stele_node::succession::Refusal;
use stele_replica::{LeaseTimes, wire};
use stele_types::size::VALUE_BYTES_MAX;
use stele_types::{Boot, ClusterId, Lineage, StartId, StoreId, StoreRun, varint};

/// First bytes that a node sends to another: no HTTP request begins with them.
pub const MAGIC: [u8; 8] = *b"STELEPR1";
/// Versions of the protocol that this build supports. They differ in snapshots
/// ([`super::snapshot_stream`]) and in frames of several messages.
const VERSIONS: (u8, u8) = (1, 4);
/// Version in which a snapshot that broke off goes on.
pub const RESUMABLE: u8 = 2;
/// Version in which the header of a snapshot has the merges that its region committed.
const WITH_MERGES: u8 = 3;
/// Version in which messages share frames.
pub(super) const JOINED: u8 = 4;
/// Longest hello, or reply to it, in bytes.
pub(crate) const HELLO_BYTES_MAX: usize = 16 << 10;
const STORES_MAX: u64 = 256;
const TEXT_BYTES_MAX: usize = 4 << 10;

/// Purpose of a connection. The numbers are the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Heartbeats, votes, reads: small and never delayed.
    Urgent = 0,
    /// Entries and their acknowledgements.
    Data = 1,
    /// One snapshot.
    Bulk = 2,
    /// A question for the runs of the answering node's stores: it answers and ends the connection.
    /// Nodes of earlier versions end it without an answer.
    Probe = 3,
}

impl Lane {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Urgent, Self::Data, Self::Bulk, Self::Probe]
            .into_iter()
            .find(|lane| *lane as u8 == number)
    }

    pub(crate) fn frame_bytes_max(self) -> usize {
        match self {
            Self::Urgent | Self::Probe => 1 << 20,
            Self::Data => 128 << 20,
            // One pair of maximum length, with the header of its chunk.
            Self::Bulk => VALUE_BYTES_MAX + (64 << 10),
        }
    }

    /// Returns the name for the log and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Urgent => "urgent",
            Self::Data => "data",
            Self::Bulk => "bulk",
            Self::Probe => "probe",
        }
    }
}

/// Identity of the dialling side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Oldest and newest supported version of the protocol.
    pub versions: (u8, u8),
    /// Purpose of the connection.
    pub lane: Lane,
    /// Cluster of the node.
    pub cluster: ClusterId,
    /// Stores of the node: messages on the connection come only from these.
    pub from: Vec<StoreId>,
    /// `host:port` where it can be dialled.
    pub address: String,
    /// Stores expected at the other end.
    pub wanted: Vec<StoreId>,
    /// Times of its leases; `None` from a node of an earlier version.
    pub times: Option<LeaseTimes>,
    /// Runs of `from`, in its order; empty from a node of an earlier version, which may have no times.
    pub runs: Vec<StoreRun>,
}

impl Hello {
    /// Creates a hello in this build's version.
    pub fn new(lane: Lane, cluster: ClusterId, address: &str) -> Self {
        let address = address.to_owned();
        Self {
            versions: VERSIONS,
            lane,
            cluster,
            from: Vec::new(),
            address,
            wanted: Vec::new(),
            times: None,
            runs: Vec::new(),
        }
    }

    /// Encodes the frame's body.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.versions.0, self.versions.1, self.lane as u8];
        varint::put(&mut out, self.cluster.0);
        put_stores(&mut out, &self.from);
        varint::put_bytes(&mut out, self.address.as_bytes());
        put_stores(&mut out, &self.wanted);
        if let Some(times) = &self.times {
            varint::put(&mut out, times.tick_nanos);
            varint::put(&mut out, times.election_ticks_min);
            put_runs(&mut out, &self.runs);
        }
        out
    }

    /// Decodes the body; a newer version may have appended fields.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let (&[oldest, newest, lane], mut rest) = body.split_first_chunk()?;
        let rest = &mut rest;
        let mut hello = Self {
            versions: (oldest, newest),
            lane: Lane::from_number(lane)?,
            cluster: ClusterId(varint::take(rest)?),
            from: take_stores(rest)?,
            address: String::from_utf8(varint::take_bytes(rest)?.to_vec()).ok()?,
            wanted: take_stores(rest)?,
            times: None,
            runs: Vec::new(),
        };
        if !rest.is_empty() {
            hello.times = Some(take_times(rest)?);
        }
        if !rest.is_empty() {
            hello.runs = take_runs(rest, hello.from.len())?;
        }
        Some(hello)
    }

    /// Returns the newest version that both sides support, given that there is one.
    pub fn version(&self) -> u8 {
        self.versions.1.min(VERSIONS.1)
    }

    /// Returns the reason to reject the connection, at the node `own` that has `stores`.
    pub fn rejection(
        &self,
        own: &Identity,
        stores: &[StoreId],
        is_removed: impl Fn(StoreId) -> bool,
    ) -> Option<(RejectReason, String)> {
        // Invariant: a node of another cluster, or one that expects only other stores, is rejected
        // before it can send messages.
        let cluster = own.cluster;
        // bug server.hello_any_cluster: never
        if self.cluster != cluster {
            let text = format!("this node belongs to cluster {cluster}, not {}", self.cluster);
            return Some((RejectReason::OtherCluster, text));
        }
        if self.versions.0 > VERSIONS.1 || self.versions.1 < VERSIONS.0 {
            let ((own_oldest, own_newest), (oldest, newest)) = (VERSIONS, self.versions);
            let text = format!(
                "this node supports versions {own_oldest} to {own_newest}, not {oldest} to {newest}"
            );
            return Some((RejectReason::OtherVersion, text));
        }
        // One expected store is enough: where a disk was replaced, the lost store and the new one
        // have the same address until the lost one is removed. Messages for an absent store are
        // dropped.
        let is_here = self.wanted.iter().any(|store| stores.contains(store));
        let missing = self.wanted.first().filter(|_| !is_here);
        // bug server.hello_any_store: `missing` is `None`
        if let Some(store) = missing {
            let text = format!("store {store} is not on this node");
            return Some((RejectReason::StoreElsewhere, text));
        }
        // Invariant: removed stores are not heard, and do not keep the other stores of their node from
        // being heard. Their messages are dropped.
        // Test: `a_removed_store_does_not_keep_the_others_of_its_node_from_being_heard`.
        let all_removed = self.from.iter().all(|store| is_removed(*store));
        // bug server.removed_store_refuses_node: let all_removed = self.from.iter().any(|it| is_removed(*it));
        if let Some(store) = self.from.iter().find(|store| is_removed(**store) && all_removed) {
            return Some((RejectReason::StoreRemoved, format!("store {store} was removed")));
        }
        // A node of an earlier version does not state its times.
        // Invariant: nodes exchange messages only if their leases and vote holds fit.
        // Test: `a_node_with_another_tick_is_refused_and_both_logs_state_the_ticks_and_the_remedy_once`.
        // bug server.hello_any_tick: `self.times` is `None`
        let times = self.times?;
        let text = own.times.mismatch(&times, [&own.address, &self.address])?;
        Some((RejectReason::OtherTick, text))
    }
}

/// Answer to a hello that is accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// Newest version that both sides support.
    pub version: u8,
    /// Stores of the answering node that do not serve.
    pub gone: Vec<StoreId>,
    /// Runs of its stores that serve; empty from a node of an earlier version.
    pub runs: Vec<(StoreId, StoreRun)>,
    /// Stores of the dialling node that are not heard.
    pub refused: Vec<RefusedStore>,
}

impl Welcome {
    /// Encodes the frame's body.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.version];
        if self.runs.is_empty() && self.refused.is_empty() {
            out.extend(alive(&self.gone));
            return out;
        }
        put_stores(&mut out, &self.gone);
        varint::put(&mut out, self.runs.len() as u64);
        let earlier_max = earlier_max(self.runs.len());
        for (store, run) in &self.runs {
            varint::put(&mut out, store.0);
            run.boot.put(&mut out);
            varint::put_bytes(&mut out, &run.lineage.shortened(earlier_max).to_bytes());
        }
        put_refusals(&mut out, &self.refused);
        out
    }

    /// Decodes the body; a newer version may have appended fields.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let (&version, mut rest) = body.split_first()?;
        let gone = match rest.is_empty() {
            true => Vec::new(),
            false => take_stores(&mut rest)?,
        };
        let (mut runs, mut refused) = (Vec::new(), Vec::new());
        if !rest.is_empty() {
            let count = varint::take(&mut rest).filter(|count| *count <= STORES_MAX)?;
            for _ in 0..count {
                let store = StoreId(varint::take(&mut rest)?);
                let boot = Boot::take(&mut rest)?;
                runs.push((store, StoreRun { boot, lineage: take_starts(&mut rest)? }));
            }
            refused = take_refusals(&mut rest)?;
        }
        let is_known = (VERSIONS.0..=VERSIONS.1).contains(&version);
        is_known.then_some(Self { version, gone, runs, refused })
    }
}

/// Encodes a keepalive of a node with these stores that do not serve.
pub fn alive(gone: &[StoreId]) -> Vec<u8> {
    let mut out = Vec::new();
    if !gone.is_empty() {
        put_stores(&mut out, gone);
    }
    out
}

pub(crate) fn read_alive(mut body: &[u8]) -> Option<Vec<StoreId>> {
    match body.is_empty() {
        true => Some(Vec::new()),
        false => take_stores(&mut body),
    }
}

/// Encodes the rejection of a hello or of a snapshot, with the dialling stores that are not heard.
pub fn refused(reason: RejectReason, text: &str, stores: &[RefusedStore]) -> Vec<u8> {
    let mut out = vec![reason as u8];
    varint::put_bytes(&mut out, bounded(text).as_bytes());
    if !stores.is_empty() {
        put_refusals(&mut out, stores);
    }
    out
}

/// Decodes what [`refused`] encoded.
pub fn read_refused(body: &[u8]) -> (CloseReason, Vec<RefusedStore>) {
    let read = || {
        let (&reason, mut rest) = body.split_first()?;
        let text = String::from_utf8_lossy(varint::take_bytes(&mut rest)?).into_owned();
        let stores = match rest.is_empty() {
            true => Vec::new(),
            false => take_refusals(&mut rest)?,
        };
        Some((CloseReason::Refused(RejectReason::from_number(reason)?, text), stores))
    };
    let malformed = CloseReason::Malformed("unknown reason of a refusal");
    read().unwrap_or((malformed, Vec::new()))
}

/// Returns a prefix of a text that fits into a frame.
pub fn bounded(text: &str) -> &str {
    let mut bytes = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(bytes) {
        bytes -= 1;
    }
    &text[..bytes]
}

/// Snapshot that is offered on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Receiving store.
    pub to: StoreId,
    /// Sending store.
    pub from: StoreId,
    /// The sender can go on after what the receiver has. Not sent in version 1.
    pub resumes: bool,
    /// Header, unchanged; before version 3 without the merges that the region committed.
    pub header: Bytes,
}

impl Offer {
    /// Encodes the frame's body.
    pub fn encode(&self, version: u8) -> Vec<u8> {
        let mut out = Vec::new();
        varint::put(&mut out, self.to.0);
        varint::put(&mut out, self.from.0);
        if version >= RESUMABLE {
            out.push(u8::from(self.resumes));
        }
        // bug server.merges_sent_to_earlier_versions: `version >= WITH_MERGES` is `true`
        match version >= WITH_MERGES {
            true => out.extend_from_slice(&self.header),
            false => out.extend_from_slice(&wire::snapshot_without_merges(&self.header)),
        }
        out
    }

    /// Decodes the body.
    pub fn decode(body: &Bytes, version: u8) -> Option<Self> {
        let mut rest = &body[..];
        let to = StoreId(varint::take(&mut rest)?);
        let from = StoreId(varint::take(&mut rest)?);
        let mut resumes = false;
        if version >= RESUMABLE {
            let (flag, left) = rest.split_first()?;
            (resumes, rest) = (*flag != 0, left);
        }
        Some(Self { to, from, resumes, header: body.slice_ref(rest) })
    }
}

fn put_stores(out: &mut Vec<u8>, stores: &[StoreId]) {
    varint::put(out, stores.len() as u64);
    for store in stores {
        varint::put(out, store.0);
    }
}

fn take_stores(rest: &mut &[u8]) -> Option<Vec<StoreId>> {
    let count = varint::take(rest).filter(|count| *count <= STORES_MAX)?;
    (0..count).map(|_| varint::take(rest).map(StoreId)).collect()
}

fn take_times(rest: &mut &[u8]) -> Option<LeaseTimes> {
    let (tick_nanos, election_ticks_min) = (varint::take(rest)?, varint::take(rest)?);
    Some(LeaseTimes { tick_nanos, election_ticks_min })
}

/// Bytes for the starts of all stores of a hello or welcome, which fit into [`HELLO_BYTES_MAX`].
const STARTS_BYTES_MAX: usize = 8 << 10;

/// Returns how many earlier starts of each of `stores` stores fit.
fn earlier_max(stores: usize) -> usize {
    let ids = STARTS_BYTES_MAX / stores.max(1) / StartId::BYTES;
    ids.saturating_sub(1).min(Lineage::EARLIER_MAX)
}

fn put_runs(out: &mut Vec<u8>, runs: &[StoreRun]) {
    let Some(first) = runs.first() else { return };
    // The stores of a node run in one process.
    varint::put(out, first.boot.nonce);
    runs.iter().for_each(|run| varint::put(out, run.boot.count));
    let earlier_max = earlier_max(runs.len());
    for run in runs {
        varint::put_bytes(out, &run.lineage.shortened(earlier_max).to_bytes());
    }
}

fn take_runs(rest: &mut &[u8], stores: usize) -> Option<Vec<StoreRun>> {
    let nonce = varint::take(rest)?;
    let boots = (0..stores).map(|_| Some(Boot { count: varint::take(rest)?, nonce }));
    let mut runs: Vec<StoreRun> =
        boots.map(|boot| boot.map(StoreRun::from)).collect::<Option<_>>()?;
    if !rest.is_empty() {
        for run in &mut runs {
            run.lineage = take_starts(rest)?;
        }
    }
    Some(runs)
}

pub(super) fn take_starts(rest: &mut &[u8]) -> Option<Lineage> {
    Lineage::from_bytes(varint::take_bytes(rest)?)
}

/// Most bytes of the refusals of one answer. Those beyond are not named; the stores are not heard.
const REFUSALS_BYTES_MAX: usize = 4 << 10;
/// Store of a dialling node that is not heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedStore {
    /// The store.
    pub store: StoreId,
    /// Why it is not heard.
    pub refusal: Refusal,
    /// Starts of the other run.
    pub rival: Lineage,
    /// `host:port` of its node.
    pub rival_at: String,
    /// Message for the operator, with the remedy.
    pub text: String,
}

pub(crate) fn put_refusals(out: &mut Vec<u8>, refused: &[RefusedStore]) {
    let (mut encoded, mut count, mut bytes) = (Vec::new(), 0, 0);
    for it in refused {
        let mut one = Vec::new();
        varint::put(&mut one, it.store.0);
        one.push(it.refusal as u8);
        varint::put_bytes(&mut one, &it.rival.to_bytes());
        varint::put_bytes(&mut one, it.rival_at.as_bytes());
        varint::put_bytes(&mut one, bounded(&it.text).as_bytes());
        bytes += one.len();
        if bytes > REFUSALS_BYTES_MAX && count > 0 {
            break;
        }
        count += 1;
        encoded.extend(one);
    }
    varint::put(out, count);
    out.extend(encoded);
}

/// Takes what [`put_refusals`] appended. Skips reasons that only newer versions know.
pub(crate) fn take_refusals(rest: &mut &[u8]) -> Option<Vec<RefusedStore>> {
    let count = varint::take(rest).filter(|count| *count <= STORES_MAX)?;
    let mut refused = Vec::new();
    for _ in 0..count {
        let store = StoreId(varint::take(rest)?);
        let (&reason, after) = rest.split_first()?;
        *rest = after;
        let rival = take_starts(rest)?;
        let rival_at = String::from_utf8_lossy(varint::take_bytes(rest)?).into_owned();
        let text = String::from_utf8_lossy(varint::take_bytes(rest)?).into_owned();
        if let Some(refusal) = Refusal::from_number(reason) {
            refused.push(RefusedStore { store, refusal, rival, rival_at, text });
        }
    }
    Some(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::Boots;
    use std::sync::Arc;
    use stele_node::succession::Refusal;
    use stele_replica::{CommittedMerges, SnapshotHeader};
    use stele_types::{LogIndex, Peer, Region, StartId, Term};

    const TIMES: LeaseTimes = LeaseTimes { tick_nanos: 50_000_000, election_ticks_min: 10 };

    fn identity(address: &str) -> Identity {
        let address = address.to_owned();
        let boots = Arc::new(Boots::new(1));
        Identity { cluster: ClusterId(9), address, stores: Vec::new(), times: TIMES, boots }
    }

    fn sample() -> Hello {
        let mut hello = Hello::new(Lane::Data, ClusterId(9), "host:1");
        hello.times = Some(TIMES);
        hello.from = vec![StoreId(1), StoreId(300)];
        let run = |count| {
            let lineage = Lineage::new([count, count - 1].map(|id| StartId(u128::from(id))));
            StoreRun { boot: Boot { count, nonce: u64::MAX }, lineage }
        };
        hello.runs = [7, 900].map(run).to_vec();
        hello.wanted = vec![StoreId(4)];
        hello
    }

    fn rejection(hello: &Hello) -> Option<RejectReason> {
        let removed = |store| store == StoreId(7);
        let found = hello.rejection(&identity("host:2"), &[StoreId(4), StoreId(5)], removed);
        found.map(|(reason, _)| reason)
    }

    #[test]
    fn a_hello_survives_the_round_trip_and_every_cut_is_refused() {
        let bytes = sample().encode();
        assert_eq!(Hello::decode(&bytes), Some(sample()));
        let without_runs = Hello { runs: Vec::new(), ..sample() };
        let only_boots = sample().runs.iter().map(|run| run.boot.into()).collect();
        let only_boots = Hello { runs: only_boots, ..sample() };
        let earlier = [Hello { times: None, ..without_runs.clone() }, without_runs, only_boots];
        let mut lengths = earlier.each_ref().map(|hello| hello.encode().len());
        // Without starts it ends after the numbers.
        lengths[2] -= 2;
        for cut in 0..bytes.len() {
            let expected = lengths.iter().position(|length| *length == cut).map(|at| &earlier[at]);
            assert_eq!(Hello::decode(&bytes[..cut]).as_ref(), expected, "cut at {cut}");
        }
        let newer = [&bytes[..], b"more"].concat();
        assert_eq!(Hello::decode(&newer), Some(sample()));
    }

    #[test]
    fn a_keepalive_and_a_welcome_carry_the_stores_that_do_not_serve() {
        let gone = [StoreId(3), StoreId(400)];
        let welcome = |version, gone: &[StoreId]| Welcome {
            version,
            gone: gone.to_vec(),
            ..Welcome::default()
        };
        assert_eq!(read_alive(&alive(&gone)), Some(gone.to_vec()));
        assert_eq!(Welcome::decode(&welcome(2, &gone).encode()), Some(welcome(2, &gone)));
        let bytes = welcome(1, &[]).encode();
        assert_eq!((alive(&[]), bytes), (Vec::new(), vec![1]), "as earlier versions do");
        assert_eq!(read_alive(&[]), Some(Vec::new()));
        assert_eq!(Welcome::decode(&[1]), Some(welcome(1, &[])));
        assert_eq!(Welcome::decode(&[5]), None, "a version that was not offered");
        assert_eq!(read_alive(&[9]), None);
        assert_eq!(Welcome::decode(&[]), None);
    }

    #[test]
    fn a_welcome_carries_the_runs_of_its_node_and_earlier_versions_read_the_rest() {
        let runs = [4, 5].map(StoreId).into_iter().zip(sample().runs).collect();
        let (refusal, rival) = (Refusal::Copy, Lineage::new([StartId(9)]));
        let refused = RefusedStore {
            store: StoreId(1),
            refusal,
            rival,
            rival_at: "b:1".to_owned(),
            text: "stop it".to_owned(),
        };
        let welcome = Welcome { version: 2, gone: Vec::new(), runs, refused: vec![refused] };
        let bytes = welcome.encode();
        assert_eq!(Welcome::decode(&bytes), Some(welcome));
        assert_eq!(read_alive(&bytes[1..]), Some(Vec::new()), "as earlier versions read it");
        (3..bytes.len()).for_each(|cut| assert_eq!(Welcome::decode(&bytes[..cut]), None, "{cut}"));
    }

    #[test]
    fn the_starts_of_many_stores_fit_into_a_hello() {
        let lineage = Lineage::new((1..=65).map(StartId));
        let run = StoreRun { boot: Boot { count: 1 << 40, nonce: u64::MAX }, lineage };
        for stores in [1, 8, 9, 256] {
            let from = (0..stores).map(|id| StoreId(1 << 20 | id)).collect();
            let runs = vec![run.clone(); stores as usize];
            let hello = Hello { from, runs, ..sample() };
            let bytes = hello.encode();
            assert!(bytes.len() <= HELLO_BYTES_MAX, "{stores}: {}", bytes.len());
            let read = Hello::decode(&bytes).unwrap().runs;
            let named = if stores <= 8 { 64 } else { 2 };
            assert!(read.iter().all(|it| it.lineage.ids().len() >= named), "{stores}");
        }
    }

    #[test]
    fn unwanted_nodes_are_refused_with_the_reason() {
        assert_eq!(rejection(&sample()), None);
        let other = |change: fn(&mut Hello)| {
            let mut hello = sample();
            change(&mut hello);
            rejection(&hello)
        };
        assert_eq!(other(|it| it.cluster = ClusterId(8)), Some(RejectReason::OtherCluster));
        assert_eq!(other(|it| it.versions = (5, 6)), Some(RejectReason::OtherVersion));
        assert_eq!(other(|it| it.versions = (0, 0)), Some(RejectReason::OtherVersion));
        assert_eq!(other(|it| it.wanted = vec![StoreId(6)]), Some(RejectReason::StoreElsewhere));
        assert_eq!(other(|it| it.wanted.push(StoreId(6))), None, "a lost store beside the new one");
        assert_eq!(other(|it| it.from = vec![StoreId(7)]), Some(RejectReason::StoreRemoved));
        assert_eq!(other(|it| it.from.push(StoreId(7))), None, "its other stores are heard");
        assert_eq!(other(|it| it.versions = (0, 9)), None);
    }

    #[test]
    fn two_nodes_speak_the_newest_version_that_both_support() {
        for (versions, expected) in [((1, 1), 1), ((1, 2), 2), ((2, 5), 4), ((0, 9), 4)] {
            let hello = Hello { versions, ..sample() };
            assert_eq!((rejection(&hello), hello.version()), (None, expected), "{versions:?}");
        }
        let header = Bytes::from_static(b"header");
        let offer = Offer { to: StoreId(300), from: StoreId(1), resumes: true, header };
        for version in 1..=3 {
            let body = Bytes::from(offer.encode(version));
            let expected = Offer { resumes: version >= 2, ..offer.clone() };
            assert_eq!(Offer::decode(&body, version), Some(expected));
        }
        assert_eq!(Offer::decode(&Bytes::from_static(&[3, 1]), 2), None);
    }

    #[test]
    fn a_snapshot_is_offered_to_earlier_versions_without_the_committed_merges() {
        let (at, leader_term) = ((LogIndex(300), Term(4)), Term(5));
        let (region, from, to) = (Region::default(), Peer::default(), Peer::default());
        let mut header =
            SnapshotHeader { region, at, leader_term, from, to, bytes: 7, merges: None };
        let encoded = |header: &SnapshotHeader| {
            let mut out = Vec::new();
            wire::encode_snapshot(header, &mut out);
            Bytes::from(out)
        };
        let earlier = encoded(&header);
        header.merges = Some(CommittedMerges::since(300));
        let newest = encoded(&header);
        let offer =
            Offer { to: StoreId(3), from: StoreId(1), resumes: true, header: newest.clone() };
        for (version, expected) in [(1, &earlier), (2, &earlier), (3, &newest)] {
            let body = Bytes::from(offer.encode(version));
            assert_eq!(Offer::decode(&body, version).unwrap().header, expected, "{version}");
        }
    }

    #[test]
    fn a_node_with_another_tick_is_refused_with_both_values_and_the_remedy() {
        let with = |times| Hello { times, ..sample() };
        let slower = LeaseTimes { tick_nanos: 100_000_000, ..TIMES };
        let refused = with(Some(slower)).rejection(&identity("host:2"), &[StoreId(4)], |_| false);
        let (reason, text) = refused.expect("its leases may outlive this node's vote holds");
        assert_eq!(reason, RejectReason::OtherTick);
        assert!(text.contains("host:2 has tick_ms = 50 and host:1 has tick_ms = 100"), "{text}");
        assert!(text.contains("set tick_ms to the same value on every node"), "{text}");
        let later = LeaseTimes { election_ticks_min: 20, ..TIMES };
        assert_eq!(rejection(&with(Some(later))), Some(RejectReason::OtherTick));
        assert_eq!(rejection(&with(None)), None, "a node of an earlier version cannot tell");
    }

    #[test]
    fn a_refusal_arrives_with_its_reason_and_a_bounded_text() {
        let body = refused(RejectReason::StoreRemoved, &"ä".repeat(5000), &[]);
        assert!(body.len() < HELLO_BYTES_MAX);
        match read_refused(&body).0 {
            CloseReason::Refused(RejectReason::StoreRemoved, text) => {
                assert!(text.starts_with("ää"))
            }
            other => panic!("{other}"),
        }
        assert_eq!(read_refused(&[]).0.label(), "malformed");
        assert_eq!(read_refused(&[99, 0]).0.label(), "malformed");
    }

    fn refused_store(store: u64, text: &str) -> RefusedStore {
        let rival = Lineage::new([StartId(7), StartId(u128::MAX)]);
        RefusedStore {
            store: StoreId(store),
            refusal: Refusal::Conflict,
            rival,
            rival_at: "b:1".to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn refusals_survive_the_round_trip_and_every_cut_is_refused() {
        let all = [refused_store(3, "one"), refused_store(300, "other")];
        let mut bytes = Vec::new();
        put_refusals(&mut bytes, &all);
        assert_eq!(take_refusals(&mut &bytes[..]).as_deref(), Some(&all[..]));
        (0..bytes.len())
            .for_each(|cut| assert_eq!(take_refusals(&mut &bytes[..cut]), None, "{cut}"));
    }

    #[test]
    fn what_does_not_fit_into_an_answer_is_left_out() {
        let all: Vec<_> = (0..200).map(|store| refused_store(store, &"x".repeat(300))).collect();
        let mut bytes = Vec::new();
        put_refusals(&mut bytes, &all);
        assert!(bytes.len() <= REFUSALS_BYTES_MAX + 8, "{}", bytes.len());
        assert!(
            take_refusals(&mut &bytes[..])
                .is_some_and(|some| some.len() > 5 && all.starts_with(&some))
        );
    }
}
