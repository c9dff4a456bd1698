//! Replicas and regions of Stele before the measurement.

use super::Stele;
use crate::process::{Ended, run_limited};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Keys of one request, at most.
const SPLIT_KEYS_MAX: usize = 64;
const ARRANGED_WITHIN: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(200);
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// Time without a running operator after which a cluster is at rest: longer than the placement group
/// takes to plan the next one.
const REST: Duration = Duration::from_secs(3);
/// Share of the mean by which a store may lead more regions than the mean, besides one region.
const UNEVEN_SHARE_MAX: f64 = 0.2;

/// Sets the replicas of every region, splits the user data into `regions` regions, and waits until all
/// exist and their leaders are spread.
pub(super) fn arrange(
    stele: &Path,
    addresses: &[String],
    regions: usize,
    options: &Stele,
) -> Result<()> {
    let ctl = |arguments: &[String]| ctl(stele, &addresses[0], arguments);
    let replicas = options.replicas.unwrap_or(addresses.len());
    let number = [("replicas".to_owned(), replicas.to_string())];
    for (key, value) in number.iter().filter(|_| replicas != 3).chain(&options.settings) {
        let change = ["config".to_owned(), key.clone(), value.clone()];
        // A change is refused before the placement group has a leader.
        wait_for("a setting", ARRANGED_WITHIN, || ctl(&change).map(Some))?;
    }
    let list = || ctl(&["regions".to_owned()]);
    let first = wait_for("the first region", ARRANGED_WITHIN, || {
        let first = list()?.first().and_then(|region| region["region"].as_u64());
        Ok(first)
    })?;
    // The first region keeps the lowest keys, so splits start with the highest keys.
    for keys in keys(regions).collect::<Vec<_>>().rchunks(SPLIT_KEYS_MAX) {
        let mut split = vec!["split".to_owned(), "--hex".to_owned(), first.to_string()];
        split.extend(keys.iter().cloned());
        // A split is refused while members change or another split is in progress.
        wait_for("a split", ARRANGED_WITHIN, || ctl(&split).map(Some))?;
    }
    let is_ready = |list: &[Value]| match options.has_uneven_leaders {
        true => is_whole(list, replicas, regions),
        false => is_arranged(list, replicas, regions),
    };
    let what = "the expected regions, replicas and leaders";
    wait_for(what, ARRANGED_WITHIN, || Ok(is_ready(&list()?).then_some(())))
}

/// Waits until no operator has run for a while. Returns false if that does not happen within `limit`.
/// Fails if the last call failed then; a failed call counts as an operator that runs.
pub fn wait_for_rest(stele: &Path, address: &str, limit: Duration) -> Result<bool> {
    is_at_rest_within(limit, REST, || ctl(stele, address, &["operators".to_owned()]))
}

fn is_at_rest_within(
    limit: Duration,
    rest: Duration,
    operators: impl Fn() -> Result<Vec<Value>>,
) -> Result<bool> {
    let started = Instant::now();
    let mut last_seen = started;
    loop {
        let found = operators();
        match found.as_ref().is_ok_and(Vec::is_empty) {
            true if last_seen.elapsed() >= rest => return Ok(true),
            true => {}
            false => last_seen = Instant::now(),
        }
        if started.elapsed() > limit {
            return found.map(|_| false);
        }
        thread::sleep(POLL);
    }
}

/// Returns the first keys of all regions but the first. Keys of the generator begin with eight
/// bytes that are uniformly distributed.
fn keys(regions: usize) -> impl Iterator<Item = String> {
    let part = u64::MAX / regions as u64;
    (1..regions as u64).map(move |at| format!("{:016x}", at * part))
}

/// Returns whether all regions have a leader and all their replicas.
fn is_whole(list: &[Value], replicas: usize, regions: usize) -> bool {
    let has_all = |region: &Value| {
        let stores = region["stores"].as_array().map_or(0, Vec::len);
        stores == replicas && region["leader"].is_u64()
    };
    list.len() == regions && list.iter().all(has_all)
}

/// Returns whether also the leaders are spread over as many nodes as a region has replicas.
fn is_arranged(list: &[Value], nodes: usize, regions: usize) -> bool {
    let mut leads: BTreeMap<u64, usize> = BTreeMap::new();
    for leader in list.iter().filter_map(|region| region["leader"].as_u64()) {
        *leads.entry(leader).or_default() += 1;
    }
    let mean = regions as f64 / nodes as f64;
    let most = leads.values().copied().max().unwrap_or(0);
    is_whole(list, nodes, regions) && most as f64 <= mean * (1.0 + UNEVEN_SHARE_MAX) + 1.0
}

/// Runs `stele ctl`, again while it fails within `limit`. Returns its output, an object a line.
pub fn ctl_within(
    stele: &Path,
    address: &str,
    arguments: &[String],
    limit: Duration,
) -> Result<Vec<Value>> {
    wait_for(&arguments.join(" "), limit, || ctl(stele, address, arguments).map(Some))
}

fn ctl(stele: &Path, address: &str, arguments: &[String]) -> Result<Vec<Value>> {
    let mut command = Command::new(stele);
    command.args(["ctl", "--cluster", address, "--json"]).args(arguments);
    let (ended, printed) = run_limited(&mut command, CALL_LIMIT)?;
    if ended != Ended::Exited(true) {
        bail!("{command:?}: {ended:?}: {printed}");
    }
    let parse = |line: &str| serde_json::from_str(line).with_context(|| line.to_owned());
    printed.lines().map(parse).collect()
}

fn wait_for<T>(what: &str, limit: Duration, read: impl Fn() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    loop {
        let seen = read();
        if let Ok(Some(found)) = seen {
            return Ok(found);
        }
        if started.elapsed() > limit {
            let reason = seen.err().map(|error| format!(": {error:#}")).unwrap_or_default();
            bail!("waited {limit:?} for {what}{reason}");
        }
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::cell::Cell;

    #[test]
    fn a_call_that_fails_for_a_while_neither_ends_a_wait_nor_counts_as_rest() {
        let calls = Cell::new(0);
        let after_failures = |failures: u32| {
            let call = calls.replace(calls.get() + 1);
            if call < failures { bail!("no leader") } else { Ok(Vec::new()) }
        };
        let (limit, rest) = (Duration::from_secs(60), Duration::from_millis(1));
        assert!(is_at_rest_within(limit, rest, || after_failures(2)).unwrap());
        assert!(calls.get() >= 3);
        let forever = is_at_rest_within(Duration::ZERO, rest, || after_failures(u32::MAX));
        assert_eq!(forever.unwrap_err().to_string(), "no leader");
        calls.set(0);
        assert!(wait_for("rows", limit, || after_failures(2).map(Some)).unwrap().is_empty());
        let forever = wait_for("rows", Duration::ZERO, || after_failures(u32::MAX).map(Some));
        assert_eq!(forever.unwrap_err().to_string(), "waited 0ns for rows: no leader");
    }

    #[test]
    fn keys_cut_all_eight_byte_keys_into_equal_parts() {
        assert_eq!(keys(1).count(), 0);
        let quarters: Vec<String> = keys(4).collect();
        assert_eq!(quarters, ["3fffffffffffffff", "7ffffffffffffffe", "bffffffffffffffd"]);
    }

    #[test]
    fn regions_are_waited_for_with_all_their_replicas_and_leaders_spread() {
        let region = |leader: u64, stores: &[u64]| json!({"leader": leader, "stores": stores});
        let spread: Vec<Value> = (0..9).map(|at| region(at % 3 + 1, &[1, 2, 3])).collect();
        assert!(is_arranged(&spread, 3, 9));
        assert!(!is_arranged(&spread, 3, 10));
        assert!(!is_arranged(&spread, 5, 9));
        let mut heaped = spread.clone();
        heaped[1] = region(1, &[1, 2, 3]);
        assert!(is_arranged(&heaped, 3, 9));
        heaped[2] = region(1, &[1, 2, 3]);
        assert!(!is_arranged(&heaped, 3, 9));
        assert!(is_whole(&heaped, 3, 9) && !is_whole(&heaped, 2, 9));
        let without_leader = [json!({"stores": [1, 2, 3]})];
        assert!(!is_arranged(&without_leader, 3, 1) && !is_whole(&without_leader, 3, 1));
    }
}
