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

struct Load {
    clients: u64,
    /// Puts of a round.
    puts: u64,
    /// Short rounds, of which the least count is taken: another process adds switches and never takes one
    /// away, and with many clients the sizes of batches vary from round to round.
    rounds: u64,
}

const LOADS: [Load; 2] =
    [Load { clients: 1, puts: 250, rounds: 8 }, Load { clients: 64, puts: 1500, rounds: 15 }];
/// Names in the results of `lab wire`, and of the rows.
const COUNTS: [(&str, &str); 3] = [
    ("write_calls", "calls that write"),
    ("switches", "switches between threads"),
    ("page_faults", "page faults"),
];
const RECORDS: u64 = 1000;
const LIMIT: Duration = Duration::from_secs(60);

/// Counts a put under each load, over all nodes.
pub(super) fn count(workspace: &Workspace, stele: &Path, lab: &Path) -> Result<Vec<Count>> {
    let work = tempfile::tempdir_in(&workspace.target)?;
    let options = servers::Options::default();
    with_servers(stele, work.path(), &options, |servers| {
        let mut all = Vec::new();
        for load in &LOADS {
            all.extend(load.least(&load.run(lab, servers)?)?);
        }
        Ok(all)
    })
}

/// Returns the names of all rows.
#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = String> {
    LOADS.iter().flat_map(|load| COUNTS.map(|(_, name)| load.row(name)))
}

impl Load {
    fn row(&self, name: &str) -> String {
        format!("{name}: a put, {} at a time", self.clients)
    }

    fn run(&self, lab: &Path, servers: &Running) -> Result<String> {
        let Self { clients, puts, rounds } = self;
        let mut load = servers.load(lab, &["wire"]);
        load.args(["--pids", &servers.processes, "--workload", "update", "--quiet"]);
        let numbers =
            [("records", &RECORDS), ("operations", puts), ("clients", clients), ("rounds", rounds)];
        for (name, value) in numbers {
            load.args([format!("--{name}"), value.to_string()]);
        }
        match run_limited(&mut load, LIMIT)? {
            (Ended::Exited(true), printed) => Ok(printed),
            (ended, printed) => bail!("{load:?}: {ended:?}: {printed}"),
        }
    }

    /// Returns the least of each count over the rounds, as the sum over the nodes.
    fn least(&self, printed: &str) -> Result<Vec<Count>> {
        let lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let rounds: Vec<Value> = lines.filter(|line| line["round"].is_u64()).collect();
        let (found, wanted) = (rounds.len() as u64, self.rounds);
        ensure!(found == wanted, "{found} of {wanted} rounds: {printed}");
        let of = |(key, name): (&str, &str)| -> Result<Count> {
            let sums = rounds.iter().map(|round| sum_over_nodes(round, key));
            let sums: Option<Vec<f64>> = sums.collect();
            let sums = sums.with_context(|| format!("no {key}: {printed}"))?;
            let count = sums.into_iter().fold(f64::INFINITY, f64::min);
            Ok(Count { name: self.row(name), count })
        };
        COUNTS.into_iter().map(of).collect()
    }
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

    const LOAD: Load = Load { clients: 64, puts: 1, rounds: 3 };

    #[test]
    fn the_least_round_counts_and_nodes_are_added() {
        let node =
            |switches: f64| json!({"write_calls": 2, "switches": switches, "page_faults": 0});
        let mut text = printed(2, &json!([node(8.0), node(4.0)]));
        text.push_str(&printed(1, &json!([node(7.0), node(4.5)])));
        text.push_str("{\"summary\": []}\n");
        let count =
            |name: &str, count| Count { name: format!("{name}: a put, 64 at a time"), count };
        let expected = [
            count("calls that write", 4.0),
            count("switches between threads", 11.5),
            count("page faults", 0.0),
        ];
        assert_eq!(LOAD.least(&text).unwrap(), expected);
    }

    #[test]
    fn rounds_without_counts_are_refused() {
        let texts = [printed(2, &json!([])), printed(3, &json!(null)), printed(3, &json!([{}]))];
        for text in texts {
            LOAD.least(&text).unwrap_err();
        }
    }
}
