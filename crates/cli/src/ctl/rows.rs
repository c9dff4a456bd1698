//! Rows of the cluster's responses.

use crate::table::{Cell, formatted, maybe, number, words, words_as};
use crate::text::{printable, to_hex};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use stele_client::RegionRow;
use stele_client::messages::{
    Label, MembersResponse, OperatorInfo, OperatorState, RaftRole, RedisGroup, ReplicaDetail,
    StoreInfo, StoreState,
};
use stele_types::size::{counted, format_bytes};
use stele_types::{Peer, PeerRole, RegionKind, RegionPhase};

/// Maximum characters of a key in a table; longer keys are truncated.
const KEY_CHARS_MAX: usize = 32;

pub(crate) fn stores(infos: &[StoreInfo]) -> Vec<Vec<Cell>> {
    infos.iter().map(store).collect()
}

pub(crate) fn known_stores(infos: &[StoreInfo]) -> Vec<Vec<Cell>> {
    let row = |info: &StoreInfo| {
        let age_ms = u64::try_from(info.heartbeat_age_ms).ok();
        let state = match age_ms {
            Some(0) => "reached".to_owned(),
            Some(age_ms) => format!("not heard for {} s", age_ms / 1_000),
            None => "not reached since that node started".to_owned(),
        };
        vec![
            number("store", info.stats.unwrap_or_default().id),
            words("address", info.address.as_str()),
            words("state", state),
            heard(age_ms),
        ]
    };
    infos.iter().map(row).collect()
}

fn heard(age_ms: Option<u64>) -> Cell {
    formatted("heard", age_ms.map_or("never".to_owned(), |age| format!("{age} ms")), age_ms)
}

fn store(info: &StoreInfo) -> Vec<Cell> {
    let stats = info.stats.unwrap_or_default();
    let age_ms = u64::try_from(info.heartbeat_age_ms).ok();
    let p99_ms = (stats.append_p99_nanos > 0).then_some(stats.append_p99_nanos as f64 / 1e6);
    vec![
        number("store", stats.id),
        words("address", info.address.as_str()),
        words("state", state(info)),
        maybe("class", info.class.map(u64::from)),
        number("regions", stats.region_count),
        number("leaders", stats.leader_count),
        bytes("used", stats.used),
        bytes("free", stats.free),
        bytes("capacity", stats.capacity),
        formatted("append p99", p99_ms.map_or("-".to_owned(), |ms| format!("{ms:.1} ms")), p99_ms),
        heard(age_ms),
        words("version", info.version.as_str()),
        number("level", u64::from(stats.level.max(1))),
        labels(&info.labels),
    ]
}

/// Makes the cell of a store's labels, such as `rack=a,zone=1`.
pub(crate) fn labels(labels: &[Label]) -> Cell {
    let labels: BTreeMap<&str, &str> =
        labels.iter().map(|label| (label.key.as_str(), label.value.as_str())).collect();
    let text: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    words_as("labels", text.join(","), json!(labels))
}

pub(crate) fn bytes(name: &'static str, bytes: u64) -> Cell {
    formatted(name, format_bytes(bytes), bytes)
}

/// Time without a report after which a store is named: three reports of a node that has nothing to
/// report.
const HEARD_WITHIN_MS: i64 = 3_000;

/// Formats the state of a store, such as `up, not heard for 16 s`.
pub(crate) fn state(info: &StoreInfo) -> String {
    let stats = info.stats.unwrap_or_default();
    // Invariant: the words do not contradict each other. A store that has failed or is down is not up.
    let is_out = info.down || stats.failed;
    let is_up = StoreState::try_from(info.state) == Ok(StoreState::Up);
    let mut words = Vec::from_iter((!is_out || !is_up).then(|| state_name(info.state).to_owned()));
    let flags = [
        (info.down, "down"),
        (stats.failed, "failed"),
        (stats.disk_full, "disk full"),
        (stats.busy, "busy"),
    ];
    words.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| (*word).to_owned()));
    if info.heartbeat_age_ms > HEARD_WITHIN_MS && info.state != StoreState::Removed as i32 {
        words.push(format!("not heard for {} s", info.heartbeat_age_ms / 1_000));
    }
    words.join(", ")
}

pub(crate) fn state_name(state: i32) -> &'static str {
    match StoreState::try_from(state).unwrap_or_default() {
        StoreState::Unspecified => "unknown",
        StoreState::Preparing => "preparing",
        StoreState::Up => "up",
        StoreState::Draining => "draining",
        StoreState::Removing => "removing",
        StoreState::Removed => "removed",
    }
}

pub(crate) fn members(response: &MembersResponse) -> Vec<Vec<Cell>> {
    let mut all = response.members.iter().flat_map(|member| &member.stores);
    let has_names = all.any(|store| !store.node.is_empty());
    let row = |member: &stele_client::messages::Member| {
        let ids: Vec<u64> = member.stores.iter().map(|store| store.id).collect();
        let states: Vec<String> = member
            .stores
            .iter()
            .map(|store| match StoreState::try_from(store.state).unwrap_or_default() {
                // Only the leader of the placement group knows the states of stores.
                StoreState::Unspecified => store.id.to_string(),
                _ => format!("{} {}", store.id, state_name(store.state)),
            })
            .collect();
        // Names in certificates; a moved store may be bound to another node for a moment.
        let mut names: Vec<&str> = member.stores.iter().map(|store| &store.node[..]).collect();
        names.retain(|name| !name.is_empty());
        names.dedup();
        let leads = if member.leads_placement { "leader" } else { "" };
        let mut cells = vec![
            words("address", member.address.as_str()),
            words_as("stores", states.join(", "), json!(ids)),
            words_as("placement", leads, member.leads_placement),
            formatted("cluster", response.cluster_id.to_string(), response.cluster_id),
        ];
        cells.extend(has_names.then(|| words("node", names.join(", "))));
        cells
    };
    response.members.iter().map(row).collect()
}

pub(crate) fn operators(infos: &[OperatorInfo]) -> Vec<Vec<Cell>> {
    infos.iter().map(operator).collect()
}

pub(crate) fn operator(info: &OperatorInfo) -> Vec<Cell> {
    let steps = format!("{}/{}", info.steps_done, info.steps);
    // An operator without an ID is planned and has not started.
    let id = (info.id != 0).then_some(info.id);
    vec![
        maybe("operator", id),
        number("region", info.region_id),
        words("state", if id.is_some() { operator_state(info.state) } else { "planned" }),
        formatted("steps", steps, json!([info.steps_done, info.steps])),
        formatted("age", format!("{:.1} s", info.age_ms as f64 / 1e3), info.age_ms as f64 / 1e3),
        words("what", info.what.as_str()),
        words("why", info.why.as_str()),
        words("detail", info.detail.as_str()),
    ]
}

pub(crate) fn operator_state(state: i32) -> &'static str {
    match OperatorState::try_from(state).unwrap_or_default() {
        OperatorState::Unspecified => "unknown",
        OperatorState::Running => "running",
        OperatorState::Done => "done",
        OperatorState::Cancelled => "cancelled",
        OperatorState::TimedOut => "timed out",
        OperatorState::Refused => "refused",
    }
}

pub(crate) fn regions(rows: &[RegionRow]) -> Vec<Vec<Cell>> {
    rows.iter().map(region).collect()
}

fn region(row: &RegionRow) -> Vec<Cell> {
    let region = &row.region;
    let stores: Vec<String> = region.peers.iter().map(|peer| peer_text(row, peer)).collect();
    let ids: Vec<u64> = region.peers.iter().map(|peer| peer.store.0).collect();
    let epoch = region.epoch;
    vec![
        number("region", region.id.0),
        key("start", &region.range.start, "-∞"),
        key("end", &region.range.end, "+∞"),
        words_as("stores", stores.join(" "), json!(ids)),
        maybe("leader", row.leader_store.map(|store| store.0)),
        bytes("size", row.approximate_bytes),
        number("keys", row.approximate_keys),
        words_as(
            "epoch",
            format!("{}.{}", epoch.version, epoch.conf_version),
            json!({ "version": epoch.version, "conf_version": epoch.conf_version }),
        ),
        words("state", region_state(row)),
    ]
}

fn peer_text(row: &RegionRow, peer: &Peer) -> String {
    let role = match peer.role {
        PeerRole::Voter => "",
        PeerRole::Learner => "L",
        PeerRole::IncomingVoter => "+",
        PeerRole::DemotingVoter => "-",
    };
    let down = if row.down_peers.contains(&peer.id) { "!" } else { "" };
    let pending = if row.pending_peers.contains(&peer.id) { "…" } else { "" };
    format!("{}{role}{down}{pending}", peer.store)
}

fn region_state(row: &RegionRow) -> String {
    let mut words: Vec<String> = Vec::new();
    if row.region.kind == RegionKind::System {
        words.push("placement".to_owned());
    }
    match row.region.phase {
        RegionPhase::Merging { target, .. } => words.push(format!("merging into {target}")),
        RegionPhase::Tombstone => words.push("tombstone".to_owned()),
        RegionPhase::Normal => {}
    }
    if row.leader_store.is_none() {
        words.push("no leader".to_owned());
    }
    if row.region.is_joint() {
        words.push("changing members".to_owned());
    }
    if row.is_hibernating {
        words.push("hibernating".to_owned());
    }
    if let Some(operator) = row.operator {
        words.push(format!("operator {operator}"));
    }
    if words.is_empty() { "ok".to_owned() } else { words.join(", ") }
}

pub(crate) fn region_line(row: &RegionRow) -> String {
    let region = &row.region;
    let bound = |key: &Bytes, none: &str| {
        if key.is_empty() { none.to_owned() } else { printable(key) }
    };
    format!(
        "region {} [{}, {}) epoch {}.{} · {} in about {} · {}",
        region.id,
        bound(&region.range.start, "-∞"),
        bound(&region.range.end, "+∞"),
        region.epoch.version,
        region.epoch.conf_version,
        format_bytes(row.approximate_bytes),
        counted(row.approximate_keys, "key"),
        region_state(row),
    )
}

/// States that a Redis key or tag is larger than a region may be, and what to do.
pub(crate) fn oversized_line(group: &RedisGroup) -> String {
    let (what, remedy) = match group.is_tag {
        true => ("keys with the tag", "give some of these keys another tag"),
        false => ("key", "divide it into several keys"),
    };
    format!(
        "the pairs of the Redis {what} {} of database {} have about {}, more than region_bytes_max ({}): they stay \
         together in this region; {remedy}, or raise region_bytes_max on all nodes",
        group_name(group),
        group.database,
        format_bytes(group.approximate_bytes),
        format_bytes(group.region_bytes_max),
    )
}

fn group_name(group: &RedisGroup) -> String {
    let text = printable(&group.text);
    if group.is_tag { format!("{{{text}}}") } else { text }
}

pub(super) fn key(name: &'static str, key: &Bytes, none: &str) -> Cell {
    let mut text = if key.is_empty() { none.to_owned() } else { printable(key) };
    if text.chars().count() > KEY_CHARS_MAX {
        text = text.chars().take(KEY_CHARS_MAX - 1).collect::<String>() + "…";
    }
    words_as(name, text, key_value(key))
}

/// Returns text if the key is UTF-8, else hexadecimal digits.
fn key_value(key: &Bytes) -> Value {
    match std::str::from_utf8(key) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": to_hex(key) }),
    }
}

pub(crate) fn replicas(row: &RegionRow, details: &[ReplicaDetail]) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    let has_oversized = details.iter().any(|detail| detail.oversized_group.is_some());
    for peer in &row.region.peers {
        let Some(detail) = details.iter().find(|detail| detail.peer_id == peer.id.0) else {
            continue;
        };
        let mut cells = vec![
            number("store", peer.store.0),
            number("peer", peer.id.0),
            words("role", role_name(detail.role, peer.role)),
            number("term", detail.term),
            number("first", detail.first_index),
            number("last", detail.last_index),
            number("committed", detail.committed_index),
            number("applied", detail.applied_index),
            bytes("size", detail.approximate_bytes),
            number("keys", detail.approximate_keys),
            words_as("asleep", if detail.hibernating { "yes" } else { "no" }, detail.hibernating),
        ];
        let oversized = detail.oversized_group.as_ref().map(group_name).unwrap_or_default();
        cells.extend(has_oversized.then(|| words("oversized", oversized)));
        rows.push(cells);
    }
    rows
}

fn role_name(role: i32, peer: PeerRole) -> &'static str {
    match (RaftRole::try_from(role).unwrap_or_default(), peer) {
        (RaftRole::Leader, _) => "leader",
        (RaftRole::Candidate | RaftRole::PreCandidate, _) => "candidate",
        (_, PeerRole::Learner) => "learner",
        (RaftRole::Follower, _) => "follower",
        (RaftRole::Unspecified, _) => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{PeerId, Region, StoreId};

    #[test]
    fn a_store_is_named_after_three_reports_that_did_not_come() {
        let store = |heartbeat_age_ms, state: StoreState| state_of(heartbeat_age_ms, state, false);
        assert_eq!(store(3_000, StoreState::Up), "up");
        assert_eq!(store(-1, StoreState::Up), "up");
        assert_eq!(store(3_999, StoreState::Up), "up, not heard for 3 s");
        assert_eq!(store(16_400, StoreState::Draining), "draining, not heard for 16 s");
        assert_eq!(store(16_400, StoreState::Removed), "removed");
        let down = state_of(90_000, StoreState::Up, true);
        assert_eq!(down, "down, not heard for 90 s");
    }

    #[test]
    fn a_redis_key_or_tag_that_is_larger_than_a_region_is_named_with_what_to_do() {
        let group = |is_tag| RedisGroup {
            database: 3,
            text: Bytes::from_static(b"user:7"),
            is_tag,
            approximate_bytes: 3 << 30,
            region_bytes_max: 1 << 30,
        };
        let (key, tag) = (oversized_line(&group(false)), oversized_line(&group(true)));
        assert!(key.contains("Redis key user:7 of database 3 have about 3.0 GiB"), "{key}");
        assert!(key.contains("(1.0 GiB)") && key.contains("divide it into several keys"), "{key}");
        assert!(tag.contains("with the tag {user:7} of database 3"), "{tag}");
        assert!(tag.contains("another tag, or raise region_bytes_max"), "{tag}");
        let detail = |peer_id, oversized_group| ReplicaDetail {
            peer_id,
            oversized_group,
            ..ReplicaDetail::default()
        };
        let peer = |id| Peer { id: PeerId(id), store: StoreId(id), role: PeerRole::Voter };
        let region = Region { peers: vec![peer(1), peer(2)], ..Region::default() };
        let row = RegionRow {
            region,
            leader_store: None,
            down_peers: Vec::new(),
            pending_peers: Vec::new(),
            approximate_bytes: 0,
            approximate_keys: 0,
            report_age_ms: None,
            is_hibernating: false,
            operator: None,
        };
        let columns = |details: &[ReplicaDetail]| -> Vec<usize> {
            replicas(&row, details).iter().map(Vec::len).collect()
        };
        let without = columns(&[detail(1, None), detail(2, None)]);
        let with = columns(&[detail(1, None), detail(2, Some(group(true)))]);
        assert_eq!(with, without.iter().map(|columns| columns + 1).collect::<Vec<_>>());
    }

    fn state_of(heartbeat_age_ms: i64, state: StoreState, down: bool) -> String {
        super::state(&StoreInfo {
            heartbeat_age_ms,
            state: state as i32,
            down,
            ..Default::default()
        })
    }
}
