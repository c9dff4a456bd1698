//! A cluster as text: the state lines of a transcript.

use std::collections::BTreeMap;
use stele_placement::*;
use stele_types::*;

/// Start time of every transcript, in seconds.
pub(crate) const START_SECONDS: u64 = 1_000_000;

/// Time over which the operations of a state line are counted.
const RATE_SECONDS: u64 = 10;

pub(crate) fn seconds(seconds: u64) -> Millis {
    Millis(seconds * 1000)
}

#[derive(Default)]
pub(crate) struct Draft {
    pairs: Vec<PairChange>,
    heartbeats: Vec<(String, StoreReport, Option<u64>)>,
    region_bytes_max: u64,
    reports: Vec<RegionReport>,
    uninformed: bool,
}

impl Draft {
    /// Adds one line. Returns false if it is not a state line.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["set", name, value] => {
                let value = Config::setting(name).unwrap().value_of(value).unwrap();
                self.pairs.push(pairs::setting(name, value));
            }
            ["store", rest @ ..] => self.store(rest),
            ["region", ..] => self.reports.push(region(line)),
            ["split", mib] => self.region_bytes_max = mib.parse::<u64>().unwrap() << 20,
            ["uninformed"] => self.uninformed = true,
            _ => return false,
        }
        true
    }

    /// `store ID NODE live|disconnected|down|never [draining|removing|tombstone] [full|failed]
    /// [label=NAME:VALUE]… [WORD]…` with the words of [`change_report`].
    fn store(&mut self, words: &[&str]) {
        let [id, address, liveness, rest @ ..] = words else { panic!("store {words:?}") };
        let mut store = Store { id: StoreId(id.parse().unwrap()), ..Store::default() };
        store.address = (*address).to_owned();
        store.capacity_bytes = 1000 << 30;
        let mut report = StoreReport { id: store.id, free_bytes: 900 << 30, ..Default::default() };
        report.capacity_bytes = 1000 << 30;
        for word in rest {
            match word.split_once('=') {
                Some(("label", label)) => {
                    let (name, value) = label.split_once(':').unwrap();
                    store.labels.push((name.to_owned(), value.to_owned()));
                }
                _ if change_report(&mut report, word) => {}
                _ => store.state = state(word),
            }
        }
        store.capacity_bytes = report.capacity_bytes;
        let age_seconds = match *liveness {
            "live" => Some(0),
            "disconnected" => Some(60),
            "down" => Some(7200),
            "never" => None,
            other => panic!("liveness {other}"),
        };
        if store.state != StoreState::Tombstone {
            self.heartbeats.push((store.address.clone(), report, age_seconds));
        }
        self.pairs.push(pairs::store(&store));
    }

    pub(crate) fn build(self) -> Cluster {
        let mut all = vec![pairs::cluster(ClusterId(7)), pairs::ids(1000)];
        all.extend(self.pairs);
        let pairs = all.into_iter().filter_map(|change| Some((change.key, change.value?)));
        let loaded = seconds(START_SECONDS - 10_000);
        let mut cluster = Cluster::load(pairs, loaded, 0).unwrap().unwrap();
        let ids = cluster.plan_ids(1000).unwrap();
        cluster.apply(&ids).unwrap();
        for (address, report, age) in self.heartbeats {
            let Some(age) = age else { continue };
            let region_bytes_max = self.region_bytes_max;
            let node = NodeReport { address, region_bytes_max, ..NodeReport::default() };
            assert_eq!(cluster.plan_heartbeat(&node, &[report]).unwrap(), []);
            cluster.record_heartbeat(&node, &[report], seconds(START_SECONDS - age));
            if !self.uninformed {
                cluster.note_full_report(&node.address);
            }
        }
        for mut report in self.reports {
            if report.traffic.reads + report.traffic.writes > 0 {
                // The first report of a counter is what later ones are compared with.
                let rates = report.traffic;
                report.traffic = Traffic { counted_since: 1, ..Traffic::default() };
                cluster.observe(report.clone(), seconds(START_SECONDS - RATE_SECONDS)).unwrap();
                report.traffic.writes = rates.writes * RATE_SECONDS;
                report.traffic.reads = rates.reads * RATE_SECONDS;
            }
            cluster.observe(report, seconds(START_SECONDS)).unwrap();
        }
        cluster
    }
}

/// Changes a report by one word. Returns false if it is none of `full failed free=GiB of=GiB
/// used=GiB live=GiB usable=GiB hangs=SECONDS speed=OPERATIONS mib=MIB reads=OPERATIONS
/// receiving=SNAPSHOTS estimate`. `mib` after `speed` adds the time of so many MiB a second. Without `usable`, a store with `live` can use its capacity.
pub(crate) fn change_report(report: &mut StoreReport, word: &str) -> bool {
    let (name, value) = word.split_once('=').unwrap_or((word, "1"));
    let number = || value.parse::<u64>().unwrap_or_else(|_| panic!("{word}"));
    let cost =
        |per_second: u64| OpCost { fixed_nanos: 1_000_000_000 / per_second, picos_per_byte: 0 };
    match name {
        "full" => report.is_full = number() != 0,
        "failed" => report.has_failed = number() != 0,
        "free" => report.free_bytes = number() << 30,
        "of" => report.capacity_bytes = number() << 30,
        "used" => report.used_bytes = number() << 30,
        "usable" => report.usable_bytes = number() << 30,
        "live" => {
            report.live_bytes = number() << 30;
            if report.usable_bytes == 0 {
                report.usable_bytes = report.capacity_bytes;
            }
        }
        "hangs" => report.append_age_ms = number() * 1000,
        "receiving" => report.receiving = number(),
        "speed" => (report.device.write, report.device.writes) = (cost(number()), 100),
        "mib" => report.device.write.picos_per_byte = (1_000_000_000_000 / number()) >> 20,
        "reads" => (report.device.read, report.device.reads) = (cost(number()), 100),
        "estimate" => (report.device.writes, report.device.reads) = (0, 0),
        _ => return false,
    }
    true
}

fn state(word: &str) -> StoreState {
    use StoreState::*;
    let all = [Up, Draining, Removing, Tombstone];
    all.into_iter().find(|state| state.to_string() == word).unwrap_or_else(|| panic!("{word}"))
}

/// `region ID START..END PEER… [vN] [cN] [tN] [size=MiB] [down=STORE:SECONDS] [pending=STORE]
/// [merging=ID] [writes=TOTAL] [reads=TOTAL]`, with operations a second instead of totals in a state
/// line, where PEER is a store with `l` for a learner, `i` for incoming, `d` for demoting, and `*`
/// for the leader. Region 1 is the placement group's. The peer on store S of region R has
/// number R * 10 + S, unless it is written as `S#NUMBER`.
pub(crate) fn region(line: &str) -> RegionReport {
    let mut words = line.split_whitespace().skip(1);
    let id: u64 = words.next().unwrap().parse().unwrap();
    let (start, end) = words.next().unwrap().split_once("..").unwrap();
    let mut report = RegionReport { term: Term(5), ..RegionReport::default() };
    let region = &mut report.region;
    region.id = RegionId(id);
    region.kind = if id == 1 { RegionKind::System } else { RegionKind::Data };
    region.range = KeyRange::new(start.as_bytes().to_vec(), end.as_bytes().to_vec());
    region.epoch = RegionEpoch { conf_version: 1, version: 1 };
    report.size_bytes = 10 << 20;
    report.traffic.counted_since = 1;
    let peer_id = |store: &str| PeerId(id * 10 + store.parse::<u64>().unwrap());
    for word in words {
        let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{word}"));
        match (word.split_once('='), word.split_at(1)) {
            (Some(("size", mib)), _) => report.size_bytes = number(mib) << 20,
            (Some(("writes", total)), _) => report.traffic.writes = number(total),
            (Some(("reads", total)), _) => report.traffic.reads = number(total),
            (Some(("pending", store)), _) => report.pending.push(peer_id(store)),
            (Some(("down", down)), _) => {
                let (store, seconds) = down.split_once(':').unwrap();
                report.down.push(DownPeer { peer: peer_id(store), seconds: number(seconds) });
            }
            (Some(("merging", target)), _) => {
                let (target, prepared) = (RegionId(number(target)), LogIndex(99));
                let target_epoch = RegionEpoch { conf_version: 1, version: 1 };
                report.region.phase =
                    RegionPhase::Merging { target, prepared, term: Term(5), target_epoch };
            }
            (None, ("v", version)) => report.region.epoch.version = number(version),
            (None, ("c", version)) => report.region.epoch.conf_version = number(version),
            (None, ("t", term)) => report.term = Term(number(term)),
            (None, _) => {
                let name = word.trim_end_matches(['*', 'l', 'i', 'd']);
                let (store, peer) = match name.split_once('#') {
                    Some((store, peer)) => (store, PeerId(number(peer))),
                    None => (name, peer_id(name)),
                };
                let role = match &word[name.len()..] {
                    marks if marks.contains('l') => PeerRole::Learner,
                    marks if marks.contains('i') => PeerRole::IncomingVoter,
                    marks if marks.contains('d') => PeerRole::DemotingVoter,
                    _ => PeerRole::Voter,
                };
                let peer = Peer { id: peer, store: StoreId(number(store)), role };
                report.region.peers.push(peer);
                if word.ends_with('*') {
                    report.leader = peer;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    report
}

pub(crate) fn order_text(order: &operator::Order) -> String {
    use operator::Order::*;
    match order {
        ChangePeers(changes) if changes.is_empty() => "leave joint".into(),
        ChangePeers(changes) => {
            let text = changes.iter().map(|change| match change {
                Change::Add(peer) => format!("{:?} on {}", peer.role, peer.store),
                Change::Remove(peer) => format!("nothing on {}", peer.store),
            });
            text.collect::<Vec<_>>().join(", ").to_lowercase()
        }
        TransferLeader(to) => format!("leader to {}", to.store),
        Split { keys, new } => {
            let new: Vec<u64> = new.iter().map(|new| new.region.0).collect();
            format!("split at {keys:?}, making {new:?}")
        }
        PrepareMerge(target) => format!("prepare merge into {}", target.id),
        CommitMerge { source, prepared } => format!("take region {} at {prepared}", source.id),
        RollbackMerge(_) => "roll merge back".into(),
        AbandonMerge(_) => "abandon merge".into(),
    }
}

#[allow(dead_code)]
pub(crate) fn replicas_by_store(cluster: &Cluster) -> BTreeMap<StoreId, usize> {
    let mut out = BTreeMap::new();
    for peer in cluster.regions().iter().flat_map(|info| &info.region.peers) {
        *out.entry(peer.store).or_default() += 1;
    }
    out
}
