//! Kept results of `peers`: the rounds of each system under one load.

use crate::figures::{Comparison, rounded};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Minimum, median and maximum of the rounds.
type Spread = [f64; 3];

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub(crate) struct Kept {
    pub commit: String,
    pub date: String,
    /// Throughput of the disk under as many writers as there are nodes, before and after.
    pub disk_bytes_per_second: Vec<f64>,
    pub load: Load,
    pub rounds: u64,
    /// Systems by scheme; `stele` is ours.
    pub systems: BTreeMap<String, System>,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Load {
    pub workload: String,
    pub value_bytes: u64,
    pub clients: u64,
    pub nodes: u64,
    /// Connections of the generator to each node.
    #[serde(default = "one")]
    pub connections: u64,
    /// Records that a load inserts; the other workloads depend less on their number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
}

/// Returns the connections of older lines.
fn one() -> u64 {
    1
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub(crate) struct System {
    pub operations_per_second: Spread,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Bytes to the device for each byte of keys and values put, mean of nodes and rounds.
    pub device_bytes_per_payload_byte: Option<f64>,
    /// Processor time of all nodes for each operation.
    pub servers_us: Option<f64>,
    /// Resident memory of the largest node after the last round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_mib: Option<f64>,
    /// That memory without the pages of files that the process maps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmapped_mib: Option<f64>,
    pub ours_to_it: Option<Spread>,
}

const OURS: &str = "stele";

fn spread(value: &Value) -> Option<Spread> {
    let number = |name: &str| value[name].as_f64().map(rounded);
    Some([number("min")?, number("median")?, number("max")?])
}

pub(crate) fn read(text: &str, commit: &str, date: &str) -> Result<Kept> {
    let lines: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let whole = lines.iter().find(|line| line["summary"].is_object());
    let whole = whole.context("it has no summary of rounds")?;
    let asked = &whole["configuration"];
    let rounds: Vec<&Value> = lines.iter().filter(|line| line["target"].is_string()).collect();
    let nodes = rounds.first().and_then(|line| line["target"].as_str());
    let nodes = nodes.context("it has no round")?.split(',').count() as u64;
    let mut systems = BTreeMap::new();
    for (url, summary) in whole["summary"].as_object().into_iter().flatten() {
        let of = |path: fn(&Value) -> Option<f64>| {
            let found: Vec<f64> = rounds
                .iter()
                .filter(|it| it["target"] == **url)
                .filter_map(|it| path(it))
                .collect();
            (!found.is_empty()).then(|| rounded(found.iter().sum::<f64>() / found.len() as f64))
        };
        let scheme = url.split("://").next().unwrap_or(url).to_owned();
        let median = |name: &str| summary[name]["median"].as_f64().map(rounded);
        let ours_to_it = spread(&whole["first_to_others"][url]).filter(|_| scheme != OURS);
        let last = rounds.iter().rev().find(|it| it["target"] == **url);
        let last_mib = |name: &str| {
            let bytes = greatest(&last?["servers"][name])?;
            Some(rounded(bytes / f64::from(1 << 20)))
        };
        let system = System {
            operations_per_second: spread(&summary["operations_per_second"]).context("speed")?,
            p50_us: median("p50_us").context("p50_us")?,
            p99_us: median("p99_us").context("p99_us")?,
            device_bytes_per_payload_byte: of(|it| {
                mean(&it["servers"]["device_bytes_per_payload_byte"])
            }),
            servers_us: of(|it| sum(&it["servers"]["processor_us_per_operation"])),
            resident_mib: last_mib("resident_bytes"),
            unmapped_mib: last_mib("resident_unmapped_bytes"),
            ours_to_it,
        };
        systems.insert(scheme, system);
    }
    let number = |name: &str| asked[name].as_u64().context(name.to_owned());
    Ok(Kept {
        commit: commit.to_owned(),
        date: date.to_owned(),
        disk_bytes_per_second: (lines.iter())
            .filter_map(|line| line["disk_bytes_per_second"].as_f64().map(rounded))
            .collect(),
        load: Load {
            workload: asked["workload"].as_str().context("workload")?.to_owned(),
            value_bytes: number("value_bytes")?,
            clients: number("clients")?,
            nodes,
            connections: asked["connections"].as_u64().unwrap_or(one()),
            records: asked["records"].as_u64().filter(|_| asked["workload"] == "load"),
        },
        rounds: whole["rounds"].as_u64().context("rounds")?,
        systems,
    })
}

fn sum(list: &Value) -> Option<f64> {
    list.as_array()?.iter().map(Value::as_f64).sum()
}

fn greatest(list: &Value) -> Option<f64> {
    list.as_array()?.iter().filter_map(Value::as_f64).reduce(f64::max)
}

fn mean(list: &Value) -> Option<f64> {
    Some(sum(list)? / list.as_array()?.len().max(1) as f64)
}

/// Returns the newest line of each load, ordered by load.
pub(super) fn newest(lines: Vec<Kept>) -> Vec<Kept> {
    let mut newest: BTreeMap<(Load, Vec<String>), Kept> = BTreeMap::new();
    for line in lines {
        let systems = line.systems.keys().cloned().collect();
        newest.insert((line.load.clone(), systems), line);
    }
    newest.into_values().collect()
}

pub(super) fn comparisons(lines: &[Kept]) -> Vec<Comparison> {
    let mut found: Vec<Comparison> = Vec::new();
    for line in lines {
        for (name, system) in line.systems.iter().filter(|(name, _)| *name != OURS) {
            let Some([min, median, max]) = system.ours_to_it else { continue };
            let workload = format!("{}, {} nodes", what(&line.load), line.load.nodes);
            let is_same = |it: &&mut Comparison| it.workload == workload && it.beside == *name;
            let at = match found.iter_mut().find(is_same) {
                Some(row) => row,
                None => {
                    let beside = name.clone();
                    found.push(Comparison { workload, beside, ..Comparison::default() });
                    let Some(row) = found.last_mut() else { continue };
                    row
                }
            };
            let list = match () {
                () if min > 1.0 => &mut at.ahead,
                () if max < 1.0 => &mut at.behind,
                () => &mut at.even,
            };
            list.push(format!("{} {median:.2}×", clients(&line.load)));
        }
    }
    found
}

/// Lists loads with a higher 99th percentile on our system.
pub(super) fn slower_tails(lines: &[Kept]) -> Vec<String> {
    let mut found = Vec::new();
    for line in lines {
        let Some(ours) = line.systems.get(OURS) else { continue };
        let others = line.systems.iter().filter(|(_, system)| ours.p99_us > system.p99_us);
        found.extend(others.map(|(name, system)| {
            format!(
                "{}: the 99th percentile of {OURS} is {:.1} ms, that of {name} {:.1} ms",
                words(&line.load),
                ours.p99_us / 1e3,
                system.p99_us / 1e3
            )
        }));
    }
    found
}

fn words(load: &Load) -> String {
    let connections = match load.connections {
        1 => String::new(),
        many => format!(", {many} connections to each"),
    };
    format!("{}, {} clients, {} nodes{connections}", what(load), load.clients, load.nodes)
}

fn what(load: &Load) -> String {
    let what = match load.workload.as_str() {
        "update" => "puts".to_owned(),
        "c" => "gets".to_owned(),
        "load" => format!("load of {} records", load.records.unwrap_or_default()),
        other => format!("YCSB {}", other.to_uppercase()),
    };
    let value = match load.value_bytes {
        bytes if bytes % 1024 == 0 => format!("{} KiB", bytes / 1024),
        bytes => format!("{bytes} B"),
    };
    format!("{what}, {value}")
}

fn clients(load: &Load) -> String {
    match load.connections {
        1 => format!("{} clients", load.clients),
        many => format!("{} clients, {many} connections to each", load.clients),
    }
}

fn resident(system: &System) -> String {
    match (system.resident_mib, system.unmapped_mib) {
        (Some(all), Some(own)) if own < all * 0.9 => {
            format!("{all:.0}, {own:.0} without mapped files")
        }
        (Some(all), _) => format!("{all:.0}"),
        (None, _) => String::new(),
    }
}

pub(super) fn table(lines: &[Kept]) -> String {
    let mut text = String::from(
        "| load | system | operations/s | stele to it | p50 ms | p99 ms | bytes to the device a byte | \
         processor µs an operation | resident MiB | disk MB/s | rounds | commit |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for line in lines {
        let disk: Vec<String> =
            line.disk_bytes_per_second.iter().map(|it| format!("{:.0}", it / 1e6)).collect();
        for (name, system) in &line.systems {
            let ratio = system.ours_to_it.map_or(String::new(), |[min, median, max]| {
                format!("{median:.2}× ({min:.2}–{max:.2})")
            });
            let plain = |number: Option<f64>, digits: usize| {
                number.map_or(String::new(), |it| format!("{it:.digits$}"))
            };
            // Reads put no bytes, so the ratio is meaningless for them.
            let written =
                system.device_bytes_per_payload_byte.filter(|_| line.load.workload != "c");
            let _ = writeln!(
                text,
                "| {} | {name} | {:.0} | {ratio} | {:.2} | {:.2} | {} | {} | {} | {} | {} | {} |",
                words(&line.load),
                system.operations_per_second[1],
                system.p50_us / 1e3,
                system.p99_us / 1e3,
                plain(written, 3),
                plain(system.servers_us, 0),
                resident(system),
                disk.join(", "),
                line.rounds,
                line.commit,
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn printed(stele: f64, etcd: f64) -> String {
        let round = |scheme: &str, written: f64| {
            json!({"target": format!("{scheme}://a,b,c"), "round": 1, "servers": {
                "device_bytes_per_payload_byte": [written, written, written],
                "processor_us_per_operation": [10.0, 20.0, 30.0],
                "resident_bytes": [1 << 20, 9 << 20],
                "resident_unmapped_bytes": [1 << 20, 2 << 20]}})
        };
        let spread = |it: f64| json!({"min": it / 2.0, "median": it, "max": it * 2.0});
        let summary = |it: f64| json!({"operations_per_second": spread(it), "p50_us": spread(500.0), "p99_us": spread(1e7 / it)});
        let whole = json!({
            "configuration": {"workload": "update", "value_bytes": 1024, "clients": 64},
            "first_to_others": {"etcd://a,b,c": spread(stele / etcd)},
            "summary": {"stele://a,b,c": summary(stele), "etcd://a,b,c": summary(etcd)}, "rounds": 5});
        let disk = json!({"disk_bytes_per_second": 1e9, "writers": 3});
        format!(
            "{disk}\nround 1\n{}\n{}\n{whole}\n{disk}\n",
            round("stele", 1.01),
            round("etcd", 3.0)
        )
    }

    #[test]
    fn a_load_is_kept_with_what_each_system_did() {
        let kept = read(&printed(4000.0, 1000.0), "abc", "2026-01-01").unwrap();
        assert_eq!((kept.load.nodes, kept.rounds), (3, 5));
        assert_eq!(kept.disk_bytes_per_second, [1e9, 1e9]);
        let etcd = &kept.systems["etcd"];
        assert_eq!(etcd.ours_to_it, Some([2.0, 4.0, 8.0]));
        assert_eq!((etcd.device_bytes_per_payload_byte, etcd.servers_us), (Some(3.0), Some(60.0)));
        let [row] = &comparisons(std::slice::from_ref(&kept))[..] else { panic!("one row") };
        assert_eq!((row.workload.as_str(), row.beside.as_str()), ("puts, 1 KiB, 3 nodes", "etcd"));
        assert_eq!(row.ahead, ["64 clients 4.00×"]);
        assert_eq!(slower_tails(std::slice::from_ref(&kept)), Vec::<String>::new());
        let row = "| puts, 1 KiB, 64 clients, 3 nodes | etcd | 1000 | 4.00× (2.00–8.00) | 0.50 | 10.00 | 3.000 | \
                   60 | 9, 2 without mapped files | 1000, 1000 | 5 | abc |\n";
        assert!(table(&[kept]).contains(row));
        assert!(read("nothing", "", "").is_err());
    }

    #[test]
    fn a_slower_system_is_behind_and_the_newest_line_of_a_load_counts() {
        let old = read(&printed(500.0, 1000.0), "abc", "2026-01-01").unwrap();
        // The rounds give 0.25 to 1: one of them is even.
        assert_eq!(comparisons(std::slice::from_ref(&old))[0].even, ["64 clients 0.50×"]);
        let slow = read(&printed(400.0, 1000.0), "abc", "2026-01-01").unwrap();
        assert_eq!(comparisons(&[slow])[0].behind, ["64 clients 0.40×"]);
        assert_eq!(slower_tails(std::slice::from_ref(&old)).len(), 1);
        let new = read(&printed(2000.0, 1000.0), "def", "2026-01-02").unwrap();
        let four = printed(2000.0, 1000.0).replace("\"clients\"", "\"connections\":4,\"clients\"");
        let four = read(&four, "def", "2026-01-02").unwrap();
        assert!(table(std::slice::from_ref(&four)).contains("3 nodes, 4 connections to each |"));
        assert_eq!(newest(vec![old, four.clone(), new.clone()]), [new, four]);
    }
}
