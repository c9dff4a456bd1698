//! Phases of a measurement, one after the other on the same data.

use super::drive::{Class, Outcome, closed_loops};
use super::page_cache::PageCache;
use crate::args::Args;
use crate::designs::buc::{Costs, Counts};
use crate::designs::harness::{Cluster, Mode, Setup};
use crate::machine::{forget_cached, wait_until_idle, written_bytes};
use crate::workload::{KEY_BYTES, Values, key};
use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stele_storage::StorageEngine;
use stele_types::Prng;

/// Election timeout in ticks of 50 ms: a leader that waits for its disk stays leader for as long.
/// After its start, a store grants no vote for as long.
const ELECTION_TICKS: u64 = 40;
const QUICK_ELECTION_TICKS: u64 = 10;
const IDLE: Duration = Duration::from_secs(1);
const QUICK_IDLE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Put,
    Get,
    Scan,
    /// Scan of this many pairs.
    ScanOf(u64),
    /// Percentage of gets; the others are puts.
    Mix(u64),
    /// Percentage of scans, and of deletes among the others, which are puts or deletes.
    ScanMix {
        scans: u64,
        deletes: u64,
    },
    Ycsb(char),
}

impl Phase {
    /// Parses phases separated by commas, in the order of execution. A load comes first. YCSB's
    /// workloads follow their authors' order, with D and E last because they insert.
    pub(super) fn parse(text: &str) -> Result<Vec<Self>> {
        const YCSB: [char; 6] = ['a', 'b', 'c', 'f', 'd', 'e'];
        let mut phases = Vec::new();
        for part in text.split(',') {
            match part {
                "put" => phases.push(Self::Put),
                "get" => phases.push(Self::Get),
                "scan" => phases.push(Self::Scan),
                "ycsb" => phases.extend(YCSB.map(Self::Ycsb)),
                other => phases.push(Self::with_a_number(other, &YCSB)?),
            }
        }
        Ok(phases)
    }

    fn with_a_number(text: &str, ycsb: &[char]) -> Result<Self> {
        let after = |start| text.strip_prefix(start);
        let number = |start| after(start).and_then(|it| it.parse::<u64>().ok());
        if number("scan-").is_some_and(|which| which > 1) {
            return Ok(Self::Scan);
        }
        if let Some(mix) = after("scan-mix-") {
            let (scans, deletes) = mix.split_once("-deletes-").unwrap_or((mix, "0"));
            if let (Ok(scans @ ..=100), Ok(deletes @ ..=100)) = (scans.parse(), deletes.parse()) {
                return Ok(Self::ScanMix { scans, deletes });
            }
        }
        match (number("scan-of-"), number("mix-"), after("ycsb-").and_then(|it| it.chars().next()))
        {
            (Some(length), ..) if length > 0 => Ok(Self::ScanOf(length)),
            (_, Some(percent), _) if percent <= 100 => Ok(Self::Mix(percent)),
            (.., Some(workload)) if ycsb.contains(&workload) => Ok(Self::Ycsb(workload)),
            _ => bail!("unknown phase `{text}`\n\n{}", super::USAGE),
        }
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::ScanOf(length) => format!("scan-of-{length}"),
            Self::Mix(percent) => format!("mix-{percent}"),
            Self::ScanMix { scans, deletes: 0 } => format!("scan-mix-{scans}"),
            Self::ScanMix { scans, deletes } => format!("scan-mix-{scans}-deletes-{deletes}"),
            Self::Put => "put".into(),
            Self::Get => "get".into(),
            Self::Scan => "scan".into(),
            Self::Ycsb(workload) => format!("ycsb-{workload}"),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub stores: u64,
    pub value_bytes: u64,
    pub keys: u64,
    pub clients: usize,
    pub load_clients: usize,
    pub ops: u64,
    pub scans: u64,
    pub scan_length: u64,
    pub rounds: usize,
    pub sort_threshold_bytes: u64,
    pub buffers_bytes: u64,
    /// Ticks without a leader before an election.
    pub election_ticks: u64,
    pub delay: Duration,
    /// Time without writes after which a group counts as idle.
    pub idle: Duration,
    /// Folder of the memory cgroup, and bytes of page cache for each replica.
    pub page_cache: Option<(PathBuf, u64)>,
    pub dir: PathBuf,
    pub args: Args,
}

impl Plan {
    pub(super) fn from(args: &Args) -> Result<Self> {
        let value_bytes = args.size("value", 16 << 10, 4 << 10)?;
        let bytes = args.size("bytes", 256 << 20, 2 << 20)?;
        let keys = bytes / value_bytes.max(1);
        ensure!(keys >= 100, "--bytes is too small: it holds fewer than 100 values");
        let scan_length = args.size("scan-length", 100, 20)?;
        let dir = args.text("dir").map_or_else(std::env::temp_dir, PathBuf::from);
        let page_cache = match (args.text("cgroup"), args.text("page-cache")) {
            (Some(cgroup), Some(_)) => Some((cgroup.into(), args.size("page-cache", 0, 0)?)),
            (None, None) => None,
            _ => bail!("--cgroup and --page-cache must be given together"),
        };
        let clients = args.size("clients", 64, 16)?.max(1);
        std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        Ok(Self {
            stores: args.size("stores", 3, 3)?,
            value_bytes,
            keys,
            clients: clients as usize,
            load_clients: args.size("load-clients", clients, clients)?.max(1) as usize,
            ops: args.size("ops", keys, keys)?,
            scans: args.size("scans", (keys / scan_length).max(64), 32)?,
            scan_length,
            rounds: args.size("rounds", 3, 1)?.max(1) as usize,
            sort_threshold_bytes: args.size("sort-threshold", bytes / 5 * 2, bytes / 5 * 2)?,
            buffers_bytes: args.size("buffers", 64 << 20, 64 << 20)?,
            election_ticks: if args.quick() { QUICK_ELECTION_TICKS } else { ELECTION_TICKS },
            delay: Duration::from_millis(args.size("delay-ms", 0, 0)?),
            idle: if args.quick() { QUICK_IDLE } else { IDLE },
            page_cache,
            dir,
            args: args.clone(),
        })
    }

    pub(super) fn setup(&self, mode: Mode) -> Setup {
        Setup { election_ticks: self.election_ticks, mode, delay: self.delay }
    }

    /// Limits the page cache to that of `replicas` replicas, if requested.
    pub(super) fn limit_page_cache(&self, replicas: u64) -> Result<Option<PageCache>> {
        let Some((cgroup, bytes)) = &self.page_cache else { return Ok(None) };
        PageCache::limit(cgroup.clone(), replicas * bytes).map(Some)
    }

    pub(super) fn payload(&self, pairs: u64) -> f64 {
        (pairs * (self.value_bytes + KEY_BYTES as u64)) as f64
    }
}

pub(super) struct Measured<'a, E: StorageEngine> {
    pub cluster: &'a Cluster<E>,
    pub plan: &'a Plan,
    pub dir: &'a Path,
    values: Values,
    pub keys: AtomicU64,
    /// Number of the next key to insert.
    pub inserting: AtomicU64,
}

impl<'a, E: StorageEngine + 'static> Measured<'a, E> {
    pub(super) fn new(cluster: &'a Cluster<E>, plan: &'a Plan, dir: &'a Path) -> Self {
        let values = Values::new(plan.value_bytes, plan.value_bytes as usize);
        let (keys, inserting) = (AtomicU64::new(0), AtomicU64::new(plan.keys));
        Self { cluster, plan, dir, values, keys, inserting }
    }

    pub(super) fn value(&self, random: &mut Prng) -> &[u8] {
        self.values.any(random, self.plan.value_bytes as usize)
    }

    /// Puts every key once, in random order.
    pub(super) fn load(&self) -> Result<Outcome> {
        let Plan { load_clients, keys, .. } = *self.plan;
        let outcome = closed_loops(self.cluster, load_clients, keys, |client, op, random| {
            client.put(&key(op), self.value(random))?;
            Ok(Class::Write)
        })?;
        self.keys.store(keys, Ordering::Relaxed);
        Ok(outcome)
    }

    /// Loads, then measures each phase with a cold page cache.
    pub(super) fn phases(&self, phases: &[Phase]) -> Result<Vec<Value>> {
        let before = written_bytes()?;
        let cache = self.plan.limit_page_cache(self.plan.stores)?;
        let load = self.load()?;
        wait_until_idle(self.plan.idle)?;
        let mut lines = Vec::new();
        if phases.contains(&Phase::Put) {
            let mut line = self.line("put", &load)?;
            let per_replica = self.plan.payload(self.plan.keys) * self.plan.stores as f64;
            let written = (written_bytes()? - before) as f64;
            line["written_per_payload"] = json!(load.written_bytes as f64 / per_replica);
            line["written_per_payload_settled"] = json!(written / per_replica);
            lines.push(line);
        }
        if let (Some(cache), Some((_, bytes))) = (&cache, &self.plan.page_cache) {
            // Followers read nothing: the leader would get their share of the page cache.
            cache.resize(*bytes);
        }
        for (at, phase) in phases.iter().enumerate().filter(|(_, phase)| **phase != Phase::Put) {
            let earlier = phases.iter().take(at).filter(|it| *it == phase).count();
            let again = if earlier == 0 { String::new() } else { format!("-{}", earlier + 1) };
            forget_cached(self.dir)?;
            let outcome = match phase {
                Phase::Put => continue,
                Phase::Get => self.gets()?,
                Phase::Scan => self.scans(self.plan.scans, self.plan.scan_length)?,
                Phase::ScanOf(length) => {
                    self.scans((self.plan.keys / length).max(self.plan.clients as u64), *length)?
                }
                Phase::Mix(reads) => self.mix(*reads)?,
                Phase::ScanMix { scans, deletes } => self.scan_mix(*scans, *deletes)?,
                Phase::Ycsb(workload) => self.ycsb(*workload)?,
            };
            lines.push(self.line(&format!("{}{again}", phase.name()), &outcome)?);
            wait_until_idle(self.plan.idle)?;
        }
        cache.map_or(Ok(()), PageCache::end)?;
        Ok(lines)
    }

    fn line(&self, phase: &str, outcome: &Outcome) -> Result<Value> {
        let Outcome { ops, seconds, times, .. } = outcome;
        let mut line = json!({
            "phase": phase,
            "ops": ops,
            "per_100_ms": outcome.per_100_ms,
            "seconds": seconds,
            "cpu_us_per_op": outcome.cpu_seconds * 1e6 / *ops as f64,
            "stages": outcome.stages.line(&outcome.core),
        });
        if let (Some(line), Value::Object(all)) =
            (line.as_object_mut(), latencies(&times.all()?, *seconds))
        {
            line.extend(all);
        }
        for (name, class) in [("read", &times.reads), ("write", &times.writes)] {
            if !class.is_empty() {
                line[name] = latencies(class, *seconds);
            }
        }
        if self.cluster.mode().costed_scans {
            line["scan_decisions"] = decisions(self.cluster.costs());
        }
        Ok(line)
    }
}

/// Returns rate and latencies of operations in this many seconds.
fn latencies(nanos: &Histogram<u64>, seconds: f64) -> Value {
    let micros = |quantile| nanos.value_at_quantile(quantile) as f64 / 1e3;
    json!({
        "ops_per_s": nanos.len() as f64 / seconds,
        "mean_us": nanos.mean() / 1e3,
        "p50_us": micros(0.5),
        "p99_us": micros(0.99),
    })
}

/// Returns the decisions of scans since the start of the group, and the costs on which they rest.
fn decisions(costs: &Costs) -> Value {
    let Counts { immediate, read_more, waited, range_deletes } = costs.counts();
    let (read_nanos, apply_nanos) = costs.nanos();
    json!({
        "immediate": immediate,
        "read_more": read_more,
        "waited": waited,
        "range_deletes": range_deletes,
        "pair_nanos": read_nanos,
        "entry_nanos": apply_nanos,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_read_back_from_their_names() {
        let text = "put,get,scan,scan-of-1000,mix-90,scan-mix-50,scan-mix-50-deletes-30,ycsb-e";
        let phases = Phase::parse(text).unwrap();
        let names: Vec<String> = phases.iter().map(|phase| phase.name()).collect();
        assert_eq!(names.join(","), text);
        assert_eq!(Phase::parse("scan,scan-2").unwrap(), [Phase::Scan, Phase::Scan]);
        for wrong in [
            "scan-1",
            "scan-of-0",
            "scan-of-",
            "mix-101",
            "scan-mix-101",
            "scan-mix-1-deletes-",
            "ycsb-g",
            "puts",
            "",
        ] {
            assert!(Phase::parse(wrong).is_err(), "{wrong}");
        }
    }
}
