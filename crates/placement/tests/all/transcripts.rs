//! Transcripts: a cluster's state as text, commands, and their expected output.
//!
//! ```text
//! ## name
//! state lines (see `support`)
//! > command
//! output
//! ```
//! `STELE_BLESS=1 cargo test -p stele-placement --test all transcripts` writes the present output.

use crate::support::{Draft, START_SECONDS, change_report, order_text, region, seconds};
use std::collections::BTreeMap;
use std::path::Path;
use stele_placement::schedule::{merge, repair, round};
use stele_placement::*;
use stele_types::*;

struct Player {
    cluster: Cluster,
    operators: Operators,
    now: Millis,
}

impl Player {
    fn command(&mut self, line: &str) -> Vec<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |text: &str| text.parse::<u64>().unwrap();
        match words.as_slice() {
            ["round"] => {
                round(&mut self.cluster, &mut self.operators, self.now);
                self.operators_text()
            }
            ["after", s] => {
                self.now = Millis(self.now.0 + number(s) * 1000);
                vec![]
            }
            ["heartbeat", stores @ ..] => {
                stores.iter().for_each(|store| self.record_heartbeat(StoreId(number(store))));
                vec![]
            }
            ["heartbeats", seconds, changes @ ..] => {
                self.heartbeats(number(seconds), changes);
                vec![]
            }
            ["rounds", seconds, changes @ ..] => self.rounds(number(seconds), changes),
            ["report", ..] => match self.cluster.observe(region(line), self.now) {
                Ok(()) => vec![],
                Err(stale) => vec![format!("stale: {stale}")],
            },
            ["orders", stores @ ..] => {
                let stores: Vec<StoreId> = stores.iter().map(|s| StoreId(number(s))).collect();
                let all = self.operators.instructions(&self.cluster, &stores, self.now);
                let text = all.iter().map(|i| {
                    format!(
                        "store {}: region {} {}",
                        i.leader.store,
                        i.region,
                        order_text(&i.order)
                    )
                });
                text.collect()
            }
            ["set", name, value] => {
                let value = Config::setting(name).unwrap().value_of(value).unwrap();
                let changes = self.cluster.plan_setting(name, value);
                self.apply(changes)
            }
            ["drain", store] => self.state(number(store), DrainGoal::Drain),
            ["remove", store] => self.state(number(store), DrainGoal::Remove),
            ["cancel-drain", store] => self.state(number(store), DrainGoal::Cancel),
            ["tombstones"] => {
                let changes = self.cluster.plan_tombstones(self.now);
                self.apply(Ok(changes));
                let all = self.cluster.stores();
                let gone = all.filter(|store| store.state == StoreState::Tombstone);
                gone.map(|store| format!("store {} is a tombstone", store.id)).collect()
            }
            ["progress", store] => self.progress(StoreId(number(store))),
            ["merge", source, target] => self.merge(number(source), number(target)),
            ["take-off", region, stores @ ..] => self.take_off(number(region), stores),
            ["regions", start, end] => self.regions(start, end),
            words => self.inspect(words),
        }
    }

    fn inspect(&mut self, words: &[&str]) -> Vec<String> {
        let number = |text: &str| text.parse::<u64>().unwrap();
        match words {
            ["run", seconds, changes @ ..] => self.run(number(seconds), changes),
            ["held"] => self.held(),
            ["explain", region] => self.explain(RegionId(number(region))),
            ["overview"] => self.overview(),
            ["classes"] => self.classes(),
            ["domains"] => self.domains(),
            ["nearly-full"] => {
                let all = self.cluster.stores().filter(|s| self.cluster.is_nearly_full(s.id));
                all.map(|store| format!("store {}", store.id)).collect()
            }
            ["blocked"] => {
                let view = ClusterView {
                    cluster: &self.cluster,
                    operators: &self.operators,
                    now: self.now,
                };
                let all = repair::blocked(&view).into_iter();
                all.map(|b| format!("region {}: {}", b.region, b.reason)).collect()
            }
            ["ended"] => {
                let text = |f: &Finished| match &f.given_up {
                    None => format!("done: {}", f.operator),
                    Some(reason) => format!("cancelled, {reason}: {}", f.operator),
                };
                self.operators.ended().map(text).collect()
            }
            other => panic!("no such command: {other:?}"),
        }
    }

    fn regions(&self, start: &str, end: &str) -> Vec<String> {
        let key = |text: &str| text.trim_matches('-').as_bytes().to_vec();
        let range = KeyRange::new(key(start), key(end));
        let ids = self.cluster.regions().in_range(&range);
        vec![ids.map(|info| info.region.id.to_string()).collect::<Vec<_>>().join(" ")]
    }

    fn record_heartbeat(&mut self, store: StoreId) {
        let known = self.cluster.store(store).unwrap().clone();
        let node = NodeReport { address: known.address, ..NodeReport::default() };
        self.cluster.record_heartbeat(&node, &[known.report], self.now);
    }

    /// All stores that are live report each second, with lasting changes `STORE:WORD`.
    fn heartbeats(&mut self, seconds: u64, changes: &[&str]) {
        let mut reports: BTreeMap<StoreId, (String, StoreReport)> = BTreeMap::new();
        for store in self.cluster.stores().filter(|store| {
            let is_live = self.cluster.liveness(store.id, self.now) == Liveness::Live;
            is_live && store.state != StoreState::Tombstone
        }) {
            reports.insert(store.id, (store.address.clone(), store.report));
        }
        for change in changes {
            let (store, word) = change.split_once(':').unwrap();
            let (_, report) = reports.get_mut(&StoreId(store.parse().unwrap())).unwrap();
            assert!(change_report(report, word), "{change}");
        }
        for _ in 0..seconds {
            self.now = Millis(self.now.0 + 1000);
            for (address, report) in reports.values() {
                let node = NodeReport { address: address.clone(), ..NodeReport::default() };
                self.cluster.record_heartbeat(&node, &[*report], self.now);
            }
        }
    }

    /// As [`Player::heartbeats`], with a round each second. Returns the operators that it starts.
    fn rounds(&mut self, seconds: u64, changes: &[&str]) -> Vec<String> {
        let mut out = Vec::new();
        for second in 1..=seconds {
            self.heartbeats(1, if second == 1 { changes } else { &[] });
            let before = self.operators_text();
            round(&mut self.cluster, &mut self.operators, self.now);
            let new = self.operators_text().into_iter().filter(|text| !before.contains(text));
            out.extend(new.map(|text| format!("{second} s: {text}")));
        }
        out
    }

    /// As [`Player::rounds`], with every operator carried out within its second. Returns how many
    /// leaders and replicas moved in each second.
    fn run(&mut self, seconds: u64, changes: &[&str]) -> Vec<String> {
        let mut out = Vec::new();
        for second in 1..=seconds {
            self.heartbeats(1, if second == 1 { changes } else { &[] });
            round(&mut self.cluster, &mut self.operators, self.now);
            let (leaders, replicas) = self.carry_out();
            if leaders + replicas > 0 {
                out.push(format!("{second} s: {leaders} leaders and {replicas} replicas move"));
            }
        }
        out
    }

    fn carry_out(&mut self) -> (usize, usize) {
        let (mut leaders, mut replicas) = (0, 0);
        for operator in self.operators.running().cloned().collect::<Vec<_>>() {
            let info = self.cluster.regions().get(operator.region).unwrap().clone();
            let before = info.leader.unwrap();
            let mut region = info.region;
            replicas += operator.receivers().count();
            region.peers = operator.final_peers(&region);
            region.epoch.conf_version += 1;
            let leader = operator.final_leader().unwrap_or(before.store);
            leaders += usize::from(leader != before.store);
            let leader = *region.peer_on(leader).unwrap();
            let (size_bytes, traffic, term) = (info.size_bytes, info.traffic, info.term);
            let report =
                RegionReport { region, leader, term, size_bytes, traffic, ..Default::default() };
            self.cluster.observe(report, self.now).unwrap();
        }
        self.operators.advance(&self.cluster, self.now);
        assert_eq!(self.operators.running().count(), 0);
        (leaders, replicas)
    }

    fn held(&self) -> Vec<String> {
        let replicas = crate::support::replicas_by_store(&self.cluster);
        let led = |store| {
            let leaders = self.cluster.regions().iter().filter_map(|info| info.leader);
            leaders.filter(|leader| leader.store == store).count()
        };
        let members = self.cluster.stores().filter(|store| store.state != StoreState::Tombstone);
        let text = members.map(|store| {
            let replicas = replicas.get(&store.id).copied().unwrap_or(0);
            format!("store {}: {} leaders, {replicas} replicas", store.id, led(store.id))
        });
        text.collect()
    }

    fn explain(&self, region: RegionId) -> Vec<String> {
        let view =
            ClusterView { cluster: &self.cluster, operators: &self.operators, now: self.now };
        let explanation = schedule::explain::explain(&view, region).unwrap();
        let members = explanation.members.iter().flat_map(|member| {
            let moves = member.moves.as_ref().map(|to| format!("  replaced: {to}"));
            [Some(member.leader.to_string()), moves].into_iter().flatten()
        });
        let candidates = explanation.candidates.iter().map(ToString::to_string);
        members.chain(candidates).chain(explanation.operator.clone()).collect()
    }

    fn overview(&self) -> Vec<String> {
        let view =
            ClusterView { cluster: &self.cluster, operators: &self.operators, now: self.now };
        let overview = schedule::explain::overview(&view);
        let stores = overview.stores.iter().map(|store| {
            format!(
                "store {}: {} of {} writes a second, wants {} holds {} permille, {} leaders, {} \
                 operations, {} moving",
                store.load.store,
                store.class.per_second(),
                store.writes_per_second.unwrap_or(0),
                store.wanted_permille,
                store.held_permille,
                store.load.leaders,
                store.load.led_ops,
                store.load.moving,
            )
        });
        let planned = overview.planned.iter().map(|text| format!("next: {text}"));
        stores.chain(planned).collect()
    }

    fn classes(&self) -> Vec<String> {
        let members = self.cluster.stores().filter(|store| store.state != StoreState::Tombstone);
        let text = members.map(|store| {
            let (class, data) =
                (self.cluster.class_of(store.id), self.cluster.data_class_of(store.id));
            let unknown = if self.cluster.speed(store.id).is_none() { " (unknown)" } else { "" };
            format!("store {}: leaders {}, data {}{unknown}", store.id, class.0, data.0)
        });
        text.collect()
    }

    fn domains(&self) -> Vec<String> {
        let mut groups: BTreeMap<Domain, Vec<String>> = BTreeMap::new();
        for store in self.cluster.stores().filter(|store| store.state != StoreState::Tombstone) {
            groups.entry(self.cluster.domain(store.id)).or_default().push(store.id.to_string());
        }
        let groups: Vec<String> = groups.into_values().map(|stores| stores.join(" ")).collect();
        vec![format!(
            "by {}: {}",
            self.cluster.domain_label().unwrap_or("node"),
            groups.join(" | ")
        )]
    }

    fn apply(&mut self, changes: Result<Vec<PairChange>>) -> Vec<String> {
        match changes {
            Ok(changes) => {
                self.cluster.apply(&changes).unwrap();
                vec![]
            }
            Err(error) => vec![format!("refused: {error}")],
        }
    }

    fn state(&mut self, store: u64, goal: DrainGoal) -> Vec<String> {
        let changes = self.cluster.plan_state(StoreId(store), goal, self.now);
        self.apply(changes)
    }

    /// Removes replicas as an administrator.
    fn take_off(&mut self, region: u64, stores: &[&str]) -> Vec<String> {
        let info = self.cluster.regions().get(RegionId(region)).unwrap();
        let peer = |store: &&str| info.region.peer_on(StoreId(store.parse().unwrap())).unwrap().id;
        let peers: Vec<PeerId> = stores.iter().map(peer).collect();
        let steps = operator::plan::change_members(info, &[], &peers, None);
        let operator = operator::plan::operator(info, Kind::Manual, steps, "").unwrap();
        match self.operators.admit(&mut self.cluster, operator, self.now) {
            Ok(_) => self.operators_text(),
            Err(reason) => vec![format!("refused: {reason}")],
        }
    }

    fn merge(&mut self, source: u64, target: u64) -> Vec<String> {
        let view =
            ClusterView { cluster: &self.cluster, operators: &self.operators, now: self.now };
        let get = |id| self.cluster.regions().get(RegionId(id)).unwrap();
        let operator = merge::merge(
            &view,
            get(source),
            get(target),
            Kind::Manual,
            "by an administrator".into(),
        )
        .unwrap();
        match self.operators.admit(&mut self.cluster, operator, self.now) {
            Ok(_) => self.operators_text(),
            Err(reason) => vec![format!("refused: {reason}")],
        }
    }

    fn progress(&mut self, store: StoreId) -> Vec<String> {
        self.cluster.note_drains(self.now);
        match self.cluster.drain_progress(&self.operators, store, self.now) {
            None => vec!["not leaving".into()],
            Some(p) => {
                let eta = p.eta_seconds.map_or("unknown".into(), |eta| format!("{eta} s"));
                let mib = |bytes: u64| bytes >> 20;
                let mut out = vec![format!(
                    "{} of {} replicas left, {} of {} MiB, {} MiB/s, eta {eta}",
                    p.replicas_left,
                    p.replicas_total,
                    mib(p.bytes_left),
                    mib(p.bytes_total),
                    mib(p.bytes_per_second)
                )];
                let blocker = p.blocker;
                out.extend(
                    blocker.map(|b| format!("blocked by region {}: {}", b.region, b.reason)),
                );
                out
            }
        }
    }

    fn operators_text(&self) -> Vec<String> {
        self.operators.running().map(ToString::to_string).collect()
    }
}

fn play(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut draft = Draft::default();
    let mut player: Option<Player> = None;
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            let player = player.get_or_insert_with(|| Player {
                cluster: std::mem::take(&mut draft).build(),
                operators: Operators::default(),
                now: seconds(START_SECONDS),
            });
            out.push(line.to_owned());
            out.extend(player.command(command));
            continue;
        }
        if line.starts_with("## ") {
            if player.take().is_some() {
                out.push(String::new());
            }
            draft = Draft::default();
            out.push(line.to_owned());
        } else if player.is_none() {
            let is_text = line.is_empty() || line.starts_with('#');
            assert!(is_text || draft.line(line), "not a state line: {line}");
            out.push(line.to_owned());
        }
    }
    out.join("\n") + "\n"
}

fn check(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let path = folder.join(name).with_extension("txt");
    let expected = std::fs::read_to_string(&path).unwrap();
    let printed = play(&expected);
    if std::env::var_os("STELE_BLESS").is_some() {
        std::fs::write(&path, &printed).unwrap();
        return;
    }
    for (at, (a, b)) in expected.lines().zip(printed.lines()).enumerate() {
        assert_eq!(a, b, "{name}.txt, line {}", at + 1);
    }
    assert_eq!(expected, printed, "{name}.txt");
}

// Catalogue: 26.
#[test]
fn lost_missing_and_crowded_replicas_are_repaired() {
    check("repair");
}

// Catalogue: 50.
#[test]
fn stores_that_leave_are_emptied_unless_that_breaks_something() {
    check("drain");
}

#[test]
fn replicas_and_leaders_are_spread() {
    check("balance");
}

// Catalogue: 49.
#[test]
fn operators_move_on_by_reports_and_end_on_conflicts() {
    check("operators");
}

#[test]
fn changes_without_an_operator_are_ended() {
    check("leftovers");
}

#[test]
fn regions_are_merged_and_never_told_to_split_by_size() {
    check("shape");
}

#[test]
fn leaders_go_to_fast_stores_within_the_bounds_of_reads_and_moves() {
    check("leaders");
}

#[test]
fn a_replica_that_was_moved_stays_for_a_minute_while_regions_split() {
    check("moved");
}

#[test]
fn data_follows_the_weights_of_the_stores() {
    check("data");
}

#[test]
fn in_mode_quorum_writes_wait_for_fast_stores() {
    check("quorum");
}

#[test]
fn a_slow_store_loses_leaders_at_once_and_data_when_it_stays_slow() {
    check("slow_device");
}

#[test]
fn a_decision_is_explained_by_the_rule_that_made_it() {
    check("explain");
}

#[test]
fn classes_follow_what_stores_measure() {
    check("speed");
}

#[test]
fn replicas_never_share_the_widest_label_that_allows_it() {
    check("labels");
}

#[test]
fn a_store_is_nearly_full_before_it_is_full_and_until_it_has_room() {
    check("nearly_full");
}

// Catalogue: 19.
#[test]
fn a_replica_on_a_full_store_leaves_only_where_it_can_come_back_and_no_other_lacks_entries() {
    check("full");
}

#[test]
fn only_newer_regions_replace_what_is_known() {
    check("reports");
}
