//! What the kernel counts for a put on three nodes: calls that write, switches between threads and page
//! faults, with one client and with 64.

use super::table::Count;
use crate::process::{Ended, run_limited};
use crate::servers::{self, Running, with_servers};
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Clients, and the puts of a round.
const LOADS: [(u64, u64); 2] = [(1, 500), (64, 5000)];
/// Names in the results of `lab wire`, and of the rows.
const COUNTS: [(&str, &str); 3] = [
    ("write_calls", "calls that write"),
    ("switches", "switches between threads"),
    ("page_faults", "page faults"),
];
const RECORDS: u64 = 1000;
/// The least count of several short rounds: another process adds switches and never takes one away.
const ROUNDS: u64 = 5;
const LIMIT: Duration = Duration::from_secs(60);

/// Counts a put under each load, over all nodes.
pub(super) fn count(workspace: &Workspace, stele: &Path, lab: &Path) -> Result<Vec<Count>> {
    let work = tempfile::tempdir_in(&workspace.target)?;
    let options = servers::Options::default();
    with_servers(stele, work.path(), &options, |servers| {
        let mut all = Vec::new();
        for (clients, puts) in LOADS {
            all.extend(least(clients, &load(lab, servers, clients, puts)?)?);
        }
        Ok(all)
    })
}

fn load(lab: &Path, servers: &Running, clients: u64, puts: u64) -> Result<String> {
    let mut load = servers.load(lab, &["wire"]);
    load.args(["--pids", &servers.processes, "--workload", "update", "--quiet"]);
    for (name, value) in
        [("records", RECORDS), ("operations", puts), ("clients", clients), ("rounds", ROUNDS)]
    {
        load.args([format!("--{name}"), value.to_string()]);
    }
    match run_limited(&mut load, LIMIT)? {
        (Ended::Exited(true), printed) => Ok(printed),
        (ended, printed) => bail!("{load:?}: {ended:?}: {printed}"),
    }
}

/// Returns the least of each count over the rounds, as the sum over the nodes.
fn least(clients: u64, printed: &str) -> Result<Vec<Count>> {
    let lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let rounds: Vec<Value> = lines.filter(|line| line["round"].is_u64()).collect();
    ensure!(rounds.len() as u64 == ROUNDS, "{} of {ROUNDS} rounds: {printed}", rounds.len());
    let of = |(key, name): (&str, &str)| -> Result<Count> {
        let sums = rounds.iter().map(|round| sum_over_nodes(round, key));
        let sums: Vec<f64> =
            sums.collect::<Option<_>>().with_context(|| format!("no {key}: {printed}"))?;
        let count = sums.into_iter().fold(f64::INFINITY, f64::min);
        let clients =
            if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
        Ok(Count { name: format!("{name}: a put of {clients}"), count })
    };
    COUNTS.into_iter().map(of).collect()
}

fn sum_over_nodes(round: &Value, key: &str) -> Option<f64> {
    let nodes = round["servers"]["kernel_counts_per_operation"].as_array()?;
    nodes.iter().map(|node| node[key].as_f64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn printed(rounds: u64, nodes: &Value) -> String {
        let line =
            |round| json!({"round": round, "servers": {"kernel_counts_per_operation": nodes}});
        (1..=rounds).map(|round| format!("{}\n", line(round))).collect()
    }

    #[test]
    fn the_least_round_counts_and_nodes_are_added() {
        let node =
            |switches: f64| json!({"write_calls": 2, "switches": switches, "page_faults": 0});
        let mut text = printed(ROUNDS - 1, &json!([node(8.0), node(4.0)]));
        text.push_str(&printed(1, &json!([node(7.0), node(4.5)])));
        text.push_str("{\"summary\": []}\n");
        let counts = least(64, &text).unwrap();
        let count =
            |name: &str, count| Count { name: format!("{name}: a put of 64 clients"), count };
        assert_eq!(
            counts,
            [
                count("calls that write", 4.0),
                count("switches between threads", 11.5),
                count("page faults", 0.0)
            ]
        );
    }

    #[test]
    fn rounds_without_counts_are_refused() {
        for text in [
            printed(ROUNDS - 1, &json!([])),
            printed(ROUNDS, &json!(null)),
            printed(ROUNDS, &json!([{}])),
        ] {
            least(1, &text).unwrap_err();
        }
    }
}
