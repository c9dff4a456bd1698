//! `peers --table`: the loads by which Stele is compared with other servers, as one table, and for how long
//! each system answers no update after the process that works most is killed.

use crate::measured::peers::{Kept, System, read};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;
use stele_load::process_io::processor_seconds;
use xtask::flags::Flags;
use xtask::process::{Ended, run_limited};
use xtask::servers::{self, Running, with_servers};

/// Loads of new servers, in this order. The first one inserts the records.
struct Part {
    /// Regions of Stele; other systems split their keys themselves or not at all.
    regions: usize,
    value_bytes: u64,
    loads: &'static [Load],
}

/// Workload of `lab wire`, and its clients.
type Load = (&'static str, u64);

const PARTS: [Part; 5] = [
    Part {
        regions: 1,
        value_bytes: 1 << 10,
        loads: &[
            ("load", 64),
            ("update", 64),
            ("update", 8),
            ("update", 1),
            ("c", 64),
            ("c", 8),
            ("a", 64),
            ("e", 64),
        ],
    },
    Part { regions: 1, value_bytes: 16 << 10, loads: &[("load", 64)] },
    Part { regions: 3, value_bytes: 1 << 10, loads: &[("load", 64), ("update", 64)] },
    Part {
        regions: 10,
        value_bytes: 1 << 10,
        loads: &[("load", 64), ("update", 64), ("update", 256)],
    },
    Part {
        regions: 100,
        value_bytes: 1 << 10,
        loads: &[("load", 64), ("update", 64), ("update", 256)],
    },
];

const RECORDS: u64 = 300_000;
const SECONDS: u64 = 10;
const ROUNDS: u64 = 3;
/// More than any load completes: the duration ends it.
const OPERATIONS_MAX: &str = "1000000000";
/// Time limit of one load beyond its measured seconds.
const LIMIT: Duration = Duration::from_secs(900);
/// Clients, and time before the process is killed, after it, and for the choice of it.
const KILL_CLIENTS: u64 = 8;
const KILL_AFTER: Duration = Duration::from_secs(3);
const KILL_SECONDS: u64 = 30;
const CHOICE: Duration = Duration::from_secs(1);

struct Sizes {
    records: u64,
    seconds: u64,
    rounds: u64,
}

/// Measures all loads and prints the table.
pub(super) fn run(
    (stele, lab): (&Path, &Path),
    work: &Path,
    mut servers: servers::Options,
    mut flags: Flags,
) -> Result<()> {
    let sizes = Sizes {
        records: flags.number("--records", RECORDS)?,
        seconds: flags.number("--seconds", SECONDS)?,
        rounds: flags.number("--rounds", ROUNDS)?,
    };
    flags.end()?;
    let mut table = String::from(
        "| load | system | operations/s: least, median, greatest | Stele to it | p50, p99 ms | processor µs an \
         operation, all servers | bytes to the device a payload byte | resident MiB, largest server |\n\
         |---|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for (number, part) in PARTS.iter().enumerate() {
        servers.regions = part.regions;
        let place = work.join(format!("part-{number}"));
        std::fs::create_dir(&place)?;
        with_servers(stele, &place, &servers, |running| {
            for (at, load) in part.loads.iter().enumerate() {
                let printed = measure(lab, running, part, *load, at == 0, &sizes)?;
                table.push_str(&rows(part, &read(&printed, "", "")?));
            }
            if number == 0 {
                table.push_str(&gaps(lab, running, &sizes)?);
            }
            Ok(())
        })?;
        std::fs::remove_dir_all(&place)?;
    }
    print!("{table}");
    Ok(())
}

/// Returns what `lab wire` prints for one load on all systems in turn, round by round.
fn measure(
    lab: &Path,
    servers: &Running,
    part: &Part,
    (workload, clients): Load,
    is_first: bool,
    sizes: &Sizes,
) -> Result<String> {
    println!("{workload}, {clients} clients, {} B, {} regions", part.value_bytes, part.regions);
    // Redis has no scan in the order of keys.
    let able = if workload == "e" { &servers.without("redis") } else { servers };
    let mut load = super::load(lab, able);
    let numbers =
        [("records", sizes.records), ("value-bytes", part.value_bytes), ("clients", clients)];
    for (name, number) in numbers {
        load.args([format!("--{name}"), number.to_string()]);
    }
    load.args(["--quiet", "--workload", workload]);
    if !is_first {
        load.args(["--skip-load", "--operations", OPERATIONS_MAX, "--warm-up", "1"]);
        load.args(["--duration", &sizes.seconds.to_string()]);
        load.args(["--rounds", &sizes.rounds.to_string()]);
    }
    match run_limited(&mut load, LIMIT)? {
        (Ended::Exited(true), printed) => {
            printed
                .lines()
                .filter(|line| line.starts_with('{'))
                .for_each(|line| println!("{line}"));
            Ok(printed)
        }
        (ended, printed) => bail!("{load:?}: {ended:?}: {printed}"),
    }
}

fn rows(part: &Part, kept: &Kept) -> String {
    let name = match kept.load.workload.as_str() {
        "load" => "load".to_owned(),
        "update" => "updates".to_owned(),
        "c" => "gets".to_owned(),
        other => format!("YCSB {}", other.to_uppercase()),
    };
    let regions = match part.regions {
        1 => String::new(),
        many => format!(", {many} regions of Stele"),
    };
    let (kib, clients) = (part.value_bytes >> 10, kept.load.clients);
    let mut text = String::new();
    for (scheme, system) in &kept.systems {
        let System { operations_per_second: [least, median, greatest], p50_us, p99_us, .. } =
            system;
        let ratio =
            system.ours_to_it.map_or(String::new(), |[_, median, _]| format!("{median:.2}×"));
        let plain = |number: Option<f64>, digits: usize| {
            number.map_or(String::new(), |it| format!("{it:.digits$}"))
        };
        // Reads put no bytes, so the ratio is meaningless for them.
        let written = system.device_bytes_per_payload_byte.filter(|_| kept.load.workload != "c");
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {name} of {kib} KiB, {clients} clients{regions} | {scheme} | {least:.0}, {median:.0}, \
             {greatest:.0} | {ratio} | {:.2}, {:.2} | {} | {} | {} |",
            p50_us / 1e3,
            p99_us / 1e3,
            plain(system.servers_us, 1),
            plain(written, 2),
            plain(system.resident_mib, 0),
        );
    }
    text
}

/// Returns a row for each system: the longest time without an answer after its busiest process is killed.
fn gaps(lab: &Path, servers: &Running, sizes: &Sizes) -> Result<String> {
    let mut text = String::new();
    for (url, pids) in servers.urls.iter().zip(servers.processes.split('/')) {
        let pids: Vec<u32> = pids.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let mut load = Command::new(lab);
        load.args(["wire", "--target", url, "--quiet", "--workload", "update", "--skip-load"]);
        load.args(["--records", &sizes.records.to_string(), "--operations", OPERATIONS_MAX]);
        load.args([
            "--clients",
            &KILL_CLIENTS.to_string(),
            "--duration",
            &KILL_SECONDS.to_string(),
        ]);
        let printed = thread::scope(|scope| -> Result<String> {
            let killed = scope.spawn(|| kill_busiest(&pids));
            // Operations may fail meanwhile; then the command fails.
            let (ended, printed) = run_limited(&mut load, LIMIT)?;
            let killed = killed.join().map_err(|_| anyhow::anyhow!("the kill panicked"))?;
            killed.with_context(|| format!("killing a process of {url}: {ended:?}"))?;
            Ok(printed)
        })?;
        let scheme = url.split("://").next().unwrap_or(url);
        let gap = longest_gap(&printed).with_context(|| printed.clone())?;
        let _ = writeln!(
            text,
            "| no answer to {KILL_CLIENTS} clients after a kill | {scheme} | {gap:.1} s | | | | | |"
        );
    }
    Ok(text)
}

/// Kills the process that uses most processor time under the load: the leader does more than its followers.
fn kill_busiest(pids: &[u32]) -> Result<()> {
    let used =
        || -> Result<Vec<f64>> { pids.iter().map(|pid| Ok(processor_seconds(*pid)?)).collect() };
    thread::sleep(KILL_AFTER);
    let before = used()?;
    thread::sleep(CHOICE);
    let grown = used()?.into_iter().zip(before).map(|(after, before)| after - before);
    let busiest = pids.iter().zip(grown).max_by(|(_, one), (_, other)| one.total_cmp(other));
    let (pid, _) = busiest.context("no process")?;
    let status = Command::new("kill").args(["-9", &pid.to_string()]).status()?;
    ensure!(status.success(), "kill -9 {pid}: {status}");
    Ok(())
}

/// Returns the longest run of tenths of a second without an answer, in seconds; `None` without a round.
fn longest_gap(printed: &str) -> Option<f64> {
    let round = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let round = round.into_iter().find(|line| line["per_100_ms"].is_array())?;
    let (mut longest, mut current) = (0_u32, 0_u32);
    for slice in round["per_100_ms"].as_array()? {
        current = if slice.as_u64() == Some(0) { current + 1 } else { 0 };
        longest = longest.max(current);
    }
    Some(f64::from(longest) / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_names_load_system_ratio_and_costs() {
        let spread = |it: f64| json!({"min": it / 2.0, "median": it, "max": it * 2.0});
        let summary = |it: f64| json!({"operations_per_second": spread(it), "p50_us": spread(500.0), "p99_us": spread(2e3)});
        let round = json!({"target": "tikv://a,b,c", "servers": {
            "device_bytes_per_payload_byte": [3.0, 3.0, 3.0], "processor_us_per_operation": [1.0, 2.0, 3.0],
            "resident_bytes": [1 << 20, 9 << 20]}});
        let whole = json!({"configuration": {"workload": "update", "value_bytes": 1024, "clients": 64},
            "first_to_others": {"tikv://a,b,c": spread(2.5)}, "rounds": 3,
            "summary": {"stele://a,b,c": summary(5000.0), "tikv://a,b,c": summary(2000.0)}});
        let kept = read(&format!("{round}\n{whole}\n"), "", "").unwrap();
        let text = rows(&PARTS[3], &kept);
        let row = "| updates of 1 KiB, 64 clients, 10 regions of Stele | tikv | 1000, 2000, 4000 | 2.50× | 0.50, 2.00 | 6.0 \
                   | 3.00 | 9 |\n";
        assert!(text.ends_with(row), "{text}");
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn the_longest_time_without_an_answer_is_found() {
        let printed = |slices: &[u64]| format!("x\n{}\n", json!({"per_100_ms": slices}));
        assert_eq!(longest_gap(&printed(&[5, 0, 4, 0, 0, 0, 7])), Some(0.3));
        assert_eq!(longest_gap(&printed(&[5, 4])), Some(0.0));
        assert_eq!(longest_gap("nothing"), None);
    }
}
