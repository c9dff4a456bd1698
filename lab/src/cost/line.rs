//! A line of the file: the measurements of one commit.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    pub commit: String,
    /// Day of the commit.
    pub date: String,
    pub machine: Machine,
    pub configuration: Configuration,
    pub sizes: Vec<Size>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Machine {
    pub processor: String,
    pub cores: u64,
    /// File system of the data: in memory a sync is free.
    pub file_system: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Configuration {
    pub build: String,
    pub nodes: u64,
    pub clients: u64,
    pub records_bytes: u64,
    pub warm_up_s: u64,
    pub seconds: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Size {
    pub value_bytes: u64,
    pub puts: u64,
    pub puts_per_s: f64,
    /// Cost of a put on one replica, mean of all replicas.
    pub replica: Stages,
    /// Cost on the node that led all regions; `None` if none did. `follower` is the mean of the
    /// others.
    pub leader: Option<Stages>,
    pub follower: Option<Stages>,
    /// Threads of all nodes that ended while it was measured: their time is in stage `other`.
    pub threads_ended: u64,
    /// Bytes that a node wrote for each byte of keys and values, by cause, mean of all nodes. Empty
    /// in older lines.
    #[serde(default)]
    pub written: BTreeMap<String, f64>,
}

/// Microseconds of processor time for each put, by stage.
pub(super) type Stages = BTreeMap<String, Us>;

/// Microseconds of processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Us {
    pub user: f64,
    pub system: f64,
}

impl Us {
    pub(super) fn all(self) -> f64 {
        self.user + self.system
    }
}

pub(super) fn total(stages: &Stages) -> f64 {
    stages.values().map(|us| us.all()).sum()
}

/// Parses the text of the file. An error names the number of the malformed line.
pub(super) fn lines(text: &str, file: &str) -> Result<Vec<Line>> {
    let parse = |(at, line): (usize, &str)| -> Result<Line> {
        let place = || format!("{file}:{}", at + 1);
        let line: Line = serde_json::from_str(line).with_context(place)?;
        line.check().with_context(place)?;
        Ok(line)
    };
    text.lines().enumerate().map(parse).collect()
}

impl Line {
    /// Checks what the types do not express.
    fn check(&self) -> Result<()> {
        ensure!(!self.sizes.is_empty(), "no size was measured");
        for size in &self.sizes {
            let all = [Some(&size.replica), size.leader.as_ref(), size.follower.as_ref()];
            for us in all.into_iter().flatten().flat_map(Stages::values) {
                ensure!(us.user >= 0.0 && us.system >= 0.0, "a time must not be negative");
            }
            ensure!(!size.replica.is_empty(), "no stages of {} B", size.value_bytes);
        }
        let machine = [&self.machine.processor, &self.machine.file_system];
        let words =
            [&self.commit, &self.date, &self.configuration.build].into_iter().chain(machine);
        for word in words {
            let is_cell = !word.is_empty() && !word.contains(['|', '\n']);
            ensure!(is_cell, "`{word}` cannot be a cell of a table");
        }
        Ok(())
    }
}

impl Size {
    pub(super) fn of(round: &Value, value_bytes: u64, nodes: usize) -> Result<Self> {
        let servers = &round["servers"];
        let stages = servers["processor_us_per_operation_by_stage"].clone();
        let stages: Vec<Stages> = serde_json::from_value(stages).context("no stages")?;
        ensure!(stages.len() == nodes, "{} nodes instead of {nodes}", stages.len());
        ensure!(round["errors"] == 0, "puts failed: {}", round["error"]);
        let puts = round["operations"].as_u64().filter(|puts| *puts > 0).context("no puts")?;
        let regions_led: Option<Vec<u64>> = serde_json::from_value(servers["regions_led"].clone())?;
        let ended: Vec<u64> = serde_json::from_value(servers["threads_ended"].clone())?;
        let written: Vec<BTreeMap<String, f64>> =
            serde_json::from_value(servers["written_bytes_per_payload_byte_by_cause"].clone())
                .context("the nodes did not report their writes")?;
        ensure!(written.len() == nodes, "{} of {nodes} nodes reported their writes", written.len());
        let leader = regions_led.and_then(|regions_led| only_leader(&regions_led));
        let others = |leader| (0..nodes).filter(move |node| *node != leader);
        let of = |nodes: &mut dyn Iterator<Item = usize>| {
            mean(&nodes.filter_map(|node| stages.get(node)).collect::<Vec<_>>())
        };
        Ok(Self {
            value_bytes,
            puts,
            puts_per_s: rounded(round["operations_per_second"].as_f64().context("no speed")?),
            replica: of(&mut (0..nodes)),
            leader: leader.map(|leader| of(&mut std::iter::once(leader))),
            follower: leader.map(|leader| of(&mut others(leader))),
            threads_ended: ended.iter().sum(),
            written: mean_written(&written),
        })
    }
}

/// Returns the node that leads every region, if one does.
fn only_leader(regions_led: &[u64]) -> Option<usize> {
    let mut leaders = regions_led.iter().enumerate().filter(|(_, regions)| **regions > 0);
    let (leader, _) = leaders.next()?;
    leaders.next().is_none().then_some(leader)
}

fn mean(nodes: &[&Stages]) -> Stages {
    let mut totals = Stages::new();
    for (stage, us) in nodes.iter().flat_map(|stages| stages.iter()) {
        let total = totals.entry(stage.clone()).or_default();
        *total = Us { user: total.user + us.user, system: total.system + us.system };
    }
    let count = nodes.len().max(1) as f64;
    for us in totals.values_mut() {
        *us = Us { user: rounded(us.user / count), system: rounded(us.system / count) };
    }
    totals
}

fn mean_written(nodes: &[BTreeMap<String, f64>]) -> BTreeMap<String, f64> {
    let mut means = BTreeMap::new();
    for (cause, bytes) in nodes.iter().flatten() {
        *means.entry(cause.clone()).or_insert(0.0) += bytes / nodes.len() as f64;
    }
    means.values_mut().for_each(|bytes| *bytes = (*bytes * 1000.0).round() / 1000.0);
    means
}

/// Rounds to two decimals: more is noise.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
pub(crate) fn sample(commit: &str) -> Line {
    let stages = |factor: f64| -> Stages {
        let us = |name: &str, user: f64, system: f64| {
            (name.to_owned(), Us { user: user * factor, system: system * factor })
        };
        [us("network", 8.0, 4.0), us("store", 5.5, 2.5), us("maintenance", 1.0, 0.0)].into()
    };
    let size = |value_bytes| Size {
        value_bytes,
        puts: 1000,
        puts_per_s: 500.0,
        replica: stages(1.0),
        leader: Some(stages(2.0)),
        follower: Some(stages(0.5)),
        threads_ended: 0,
        written: [("log".to_owned(), 1.02), ("sidecar".to_owned(), 0.026)].into(),
    };
    Line {
        commit: commit.to_owned(),
        date: "2026-01-02".to_owned(),
        machine: Machine { processor: "P".to_owned(), cores: 2, file_system: "ext4".to_owned() },
        configuration: Configuration {
            build: "release".to_owned(),
            nodes: 3,
            clients: 64,
            records_bytes: 1 << 20,
            warm_up_s: 2,
            seconds: 10,
        },
        sizes: vec![size(1024), size(16384)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn round() -> Value {
        let node = |us: f64| json!({"store": {"user": us, "system": 1.0}, "other": {"user": 0, "system": 0}});
        json!({
            "round": 1, "operations": 10, "operations_per_second": 5.0, "errors": 0,
            "servers": {
                "processor_us_per_operation_by_stage": [node(1.0), node(6.0), node(2.0)],
                "regions_led": [0, 2, 0], "threads_ended": [0, 1, 2],
                "written_bytes_per_payload_byte_by_cause": [
                    {"log": 1.02}, {"log": 1.02, "flush": 0.3}, {"log": 1.023},
                ],
            },
        })
    }

    #[test]
    fn replicas_are_the_mean_and_the_leader_is_separate() {
        let size = Size::of(&round(), 1024, 3).unwrap();
        assert_eq!(size.replica["store"], Us { user: 3.0, system: 1.0 });
        assert_eq!(size.leader.as_ref().unwrap()["store"].user, 6.0);
        assert_eq!(size.follower.as_ref().unwrap()["store"].user, 1.5);
        assert_eq!((size.puts, size.threads_ended, total(&size.replica)), (10, 3, 4.0));
        let written = [("flush".to_owned(), 0.1), ("log".to_owned(), 1.021)];
        assert_eq!(size.written, written.into());
    }

    #[test]
    fn the_leader_is_left_out_if_no_node_leads_all_regions() {
        for regions_led in [json!(null), json!([1, 1, 0]), json!([0, 0, 0])] {
            let mut round = round();
            round["servers"]["regions_led"] = regions_led;
            let size = Size::of(&round, 1024, 3).unwrap();
            assert_eq!((size.leader, size.follower), (None, None));
        }
    }

    #[test]
    fn a_round_without_figures_is_refused() {
        let mut failed = round();
        failed["errors"] = json!(1);
        let mut nothing = round();
        nothing["operations"] = json!(0);
        let mut others = round();
        others["servers"] = json!({});
        let mut silent = round();
        silent["servers"]["written_bytes_per_payload_byte_by_cause"] = json!(null);
        for round in [failed, nothing, others, silent] {
            Size::of(&round, 1024, 3).unwrap_err();
        }
        Size::of(&round(), 1024, 4).unwrap_err();
    }

    #[test]
    fn a_malformed_line_is_refused_with_its_place() {
        let good = serde_json::to_string(&sample("abc")).unwrap();
        assert_eq!(
            lines(&format!("{good}\n{good}\n"), "f").unwrap(),
            [sample("abc"), sample("abc")]
        );
        let negative = good.replacen("8.0", "-8.0", 1);
        let bad = [
            "{",
            "",
            "{\"commit\":\"abc\"}",
            &good.replace("\"commit\"", "\"comit\""),
            &good.replace("\"P\"", "\"a|b\""),
            &negative,
            &good.replacen(good.split_once("\"sizes\":").unwrap().1, "[]}", 1),
        ];
        for bad in bad {
            assert_ne!(bad, good);
            let error = format!("{:#}", lines(&format!("{good}\n{bad}\n{good}"), "f").unwrap_err());
            assert!(error.starts_with("f:2: "), "{bad}: {error}");
        }
    }
}
