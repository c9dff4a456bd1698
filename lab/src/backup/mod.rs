//! What a backup costs the load beside it, and what a second backup of unchanged data transfers.
//!
//! On one machine a backup takes processors from the nodes whatever it does. So each round runs the same load three
//! times: beside `stele backup --follow` into a new place, beside a *burner*, which uses as much processor time at
//! the same times and does nothing else, and alone. What is lost beside the backup and not beside the burner is the
//! work of the nodes and the disk for the backup.

mod again;
mod beside;
pub(crate) mod burner;

use crate::machine::machine_seconds;
use crate::peers;
use anyhow::{Context, Result, anyhow, bail, ensure};
use beside::{Beside, Seen};
use burner::Profile;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;
use xtask::flags::Flags;
use xtask::process::{Ended, run_limited};
use xtask::programs::{self, LAB, STELE};
use xtask::servers::{self, Running, with_servers};
use xtask::workspace::Workspace;

const NODES: usize = 3;
/// More than any load completes: the duration ends it.
const OPERATIONS_MAX: &str = "1000000000";
/// Time limit of a load beyond its measured seconds, and of a backup that is to end.
const LIMIT: Duration = Duration::from_secs(600);
/// Pause between two loads.
const PAUSE: Duration = Duration::from_secs(1);
/// What the backup prints when it has copied all pairs.
const BASE_COMPLETE: &str = "is complete";
/// Least share of the speed beside a burner that a backup may leave.
const SHARE_WANTED: f64 = 0.9;

#[derive(Clone, Debug)]
struct Sizes {
    rounds: u64,
    seconds: u64,
    clients: u64,
    records: u64,
    value_bytes: u64,
    is_release: bool,
}

impl Sizes {
    fn from(mut flags: Flags) -> Result<Self> {
        let sizes = Self {
            rounds: flags.number("--rounds", 3)?,
            seconds: flags.number("--seconds", 10)?,
            clients: flags.number("--clients", 64)?,
            records: flags.number("--records", 100_000)?,
            value_bytes: flags.number("--value-bytes", 1024)?,
            is_release: !flags.switch("--dev"),
        };
        flags.end()?;
        ensure!(sizes.seconds > 0, "--seconds must be at least 1");
        Ok(sizes)
    }

    fn to_json(&self) -> Value {
        json!({
            "build": if self.is_release { "release" } else { "development" },
            "nodes": NODES,
            "workload": "a",
            "clients": self.clients,
            "records": self.records,
            "value_bytes": self.value_bytes,
            "seconds": self.seconds,
        })
    }
}

/// What runs beside the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Backup,
    Burner,
    Alone,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Backup => "backup",
            Self::Burner => "burner",
            Self::Alone => "alone",
        }
    }

    /// Returns the phases of a round, counted from 1. The order changes because later loads have more data. Those that
    /// are compared follow each other: the speed of a machine changes with time.
    fn in_order(round: u64) -> [Self; 3] {
        match round % 2 {
            1 => [Self::Backup, Self::Burner, Self::Alone],
            _ => [Self::Alone, Self::Burner, Self::Backup],
        }
    }
}

/// A cluster with its data, and the programs that use it.
struct Bench<'a> {
    stele: &'a Path,
    lab: &'a Path,
    work: &'a Path,
    servers: &'a Running,
    sizes: Sizes,
}

/// Measures the rounds, then the second backups, and prints a line for each part and a summary.
pub(crate) fn run(workspace: &Workspace, flags: Flags) -> Result<()> {
    let sizes = Sizes::from(flags)?;
    let stele = programs::build(workspace, STELE, sizes.is_release)?;
    let lab = programs::build(workspace, LAB, sizes.is_release)?;
    let work = tempfile::tempdir_in(&workspace.target)?;
    let options = servers::Options { nodes: NODES, ..servers::Options::default() };
    with_servers(&stele, work.path(), &options, |servers| {
        let (stele, lab, work) = (&stele, &lab, work.path());
        let bench = Bench { stele, lab, work, servers, sizes };
        let rounds = bench.rounds()?;
        let again = again::measure(&bench)?;
        println!("{}", summary(&rounds, &again, &bench.sizes));
        Ok(())
    })
}

impl Bench<'_> {
    /// Loads the records, then measures the rounds.
    fn rounds(&self) -> Result<Vec<Value>> {
        let mut load = self.load();
        load.args(["--workload", "load"]);
        let loaded = figures(&mut load)?;
        println!(
            "{}",
            json!({"phase": "load", "operations_per_second": loaded["operations_per_second"]})
        );
        let mut lines = Vec::new();
        // The first burner needs a backup before it. This one warms up the nodes too, and does not count.
        let (warm_up, mut profile) = self.phase(0, Phase::Backup, &Profile::default())?;
        println!("{warm_up}");
        for round in 1..=self.sizes.rounds {
            for phase in Phase::in_order(round) {
                thread::sleep(PAUSE);
                let (line, seen) = self.phase(round, phase, &profile)?;
                if phase == Phase::Backup {
                    profile = seen;
                }
                println!("{line}");
                lines.push(line);
            }
        }
        Ok(lines)
    }

    /// Runs the load once. Returns its line, and the processor time of the process beside it. A burner uses
    /// that of `last_backup`.
    fn phase(&self, round: u64, phase: Phase, last_backup: &Profile) -> Result<(Value, Profile)> {
        let (output, place) = (self.work.join("output"), self.work.join("backup"));
        let mut command = match phase {
            Phase::Backup => {
                let mut command = self.backup(&place);
                command.args(["--follow", "--every", "1s"]);
                Some(command)
            }
            Phase::Burner => {
                let mut command = Command::new(self.lab);
                command.args([burner::COMMAND, &last_backup.to_string()]);
                Some(command)
            }
            Phase::Alone => None,
        };
        let start = |command: &mut Command| Beside::start(command, &output);
        let mut beside = command.as_mut().map(start).transpose()?;
        let before = machine_seconds()?;
        let (load, seen) = self.load_beside(phase, beside.as_mut())?;
        let machine_seconds = machine_seconds()? - before;
        let mut line = json!({
            "phase": phase.name(),
            "round": round,
            "operations_per_second": load["operations_per_second"],
            "operations": load["operations"],
            "seconds": load["seconds"],
            "p50_us": load["latency_all"]["p50_us"],
            "p99_us": load["latency_all"]["p99_us"],
            "slowest_100_ms_operations": load["slowest_100_ms_operations"],
            "servers_processor_seconds_per_1000_operations":
                load["servers"]["processor_seconds_per_1000_operations"],
            "processor_seconds": seen.profile.used_seconds(),
            "other_processor_seconds":
                machine_seconds - seen.profile.used_seconds() - used_by_load(&load),
            "configuration": self.sizes.to_json(),
        });
        match (phase, beside) {
            (Phase::Backup, Some(beside)) => line["backup"] = backed_up(beside, &seen, &place)?,
            (_, Some(beside)) => {
                let done = beside.end(LIMIT)?;
                line["burner"] =
                    serde_json::from_str(&done.output).context("reading the burner")?;
            }
            (_, None) => {}
        }
        Ok((line, seen.profile))
    }

    /// Runs the load, and watches the process beside it meanwhile.
    fn load_beside(&self, phase: Phase, beside: Option<&mut Beside>) -> Result<(Value, Seen)> {
        let mut load = self.load();
        load.args(["--workload", "a", "--skip-load", "--operations", OPERATIONS_MAX]);
        load.args(["--duration", &self.sizes.seconds.to_string()]);
        thread::scope(|scope| {
            let load = scope.spawn(|| figures(&mut load));
            let may_end = phase == Phase::Burner;
            let seen = match beside {
                Some(beside) => beside.watch(Some(BASE_COMPLETE), may_end, || !load.is_finished()),
                None => Ok(Seen::default()),
            };
            let load = load.join().map_err(|_| anyhow!("the load panicked"))?;
            Ok((load?, seen.context("the process beside the load")?))
        })
    }

    /// Returns the command of the load, without its workload.
    fn load(&self) -> Command {
        let mut load = peers::load(self.lab, self.servers);
        let Sizes { clients, records, value_bytes, .. } = self.sizes;
        let numbers = [("clients", clients), ("records", records), ("value-bytes", value_bytes)];
        for (name, number) in numbers {
            load.args([format!("--{name}"), number.to_string()]);
        }
        load.arg("--quiet");
        load
    }

    /// Returns the command of a backup. It replaces itself by the program `stele-backup`, in the same process.
    fn backup(&self, to: &Path) -> Command {
        let mut command = Command::new(self.stele);
        command.args(["backup", "--cluster", &self.servers.addresses.join(","), "--to"]).arg(to);
        command
    }
}

/// Ends the backup of a phase and removes what it wrote. Returns what it did.
fn backed_up(beside: Beside, seen: &Seen, place: &Path) -> Result<Value> {
    let repository_bytes = tree(place)?.bytes;
    beside.terminate()?;
    let done = beside.end(LIMIT)?;
    let moments = tree(&place.join("runs"))?.files_below("moments");
    let printed = again::printed(&done.output)?;
    fs::remove_dir_all(place)?;
    Ok(json!({
        "repository_bytes": repository_bytes,
        "base_complete_after_s": seen.printed_after.map(|after| after.as_secs_f64()),
        "moments": moments,
        "read_bytes": printed.read_bytes,
        "sent_bytes": printed.sent_bytes,
        "processor_ms_until_ms": seen.profile.to_string(),
    }))
}

/// Files of a folder and of those below it.
#[derive(Debug, Default)]
struct Tree {
    files: Vec<PathBuf>,
    bytes: u64,
}

impl Tree {
    fn files_below(&self, folder: &str) -> usize {
        let is_below = |file: &&PathBuf| file.parent().is_some_and(|it| it.ends_with(folder));
        self.files.iter().filter(is_below).count()
    }
}

/// Lists a folder to which a backup may write meanwhile: what is removed before it is read does not count. A folder
/// that does not exist has no files.
fn tree(folder: &Path) -> Result<Tree> {
    let (mut tree, mut folders) = (Tree::default(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries.with_context(|| format!("listing {}", folder.display()))?,
        };
        for entry in entries {
            let path = entry?.path();
            match fs::symlink_metadata(&path) {
                Ok(found) if found.is_dir() => folders.push(path),
                Ok(found) => {
                    tree.bytes += found.len();
                    tree.files.push(path);
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).context(format!("reading {}", path.display())),
            }
        }
    }
    Ok(tree)
}

/// Runs a load. Returns the figures of its round.
fn figures(load: &mut Command) -> Result<Value> {
    let (ended, printed) = run_limited(load, LIMIT)?;
    if ended != Ended::Exited(true) {
        bail!("{load:?}: {ended:?}: {printed}");
    }
    round_of(&printed).with_context(|| format!("no figures: {printed}"))
}

/// Returns the processor time of nodes and load generator, in seconds.
fn used_by_load(round: &Value) -> f64 {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let operations = number(&round["operations"]);
    number(&round["servers"]["processor_seconds_per_1000_operations"]) * operations / 1e3
        + number(&round["generator_processor_us_per_operation"]) * operations / 1e6
}

fn round_of(printed: &str) -> Option<Value> {
    let mut lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find(|line| line["round"] == 1)
}

/// Returns the ratios of the speeds of each round, and the second backups.
fn summary(lines: &[Value], again: &Value, sizes: &Sizes) -> Value {
    let of = |phase: Phase, field: &str| -> Vec<f64> {
        let lines = lines.iter().filter(|line| line["phase"] == phase.name());
        lines.filter_map(|line| line[field].as_f64()).collect()
    };
    let ratio = |one: Phase, other: Phase| {
        let speed = |phase| of(phase, "operations_per_second");
        let pairs = speed(one).into_iter().zip(speed(other));
        spread(pairs.map(|(one, other)| one / other).collect())
    };
    let backup_to_burner = ratio(Phase::Backup, Phase::Burner);
    let is_met = backup_to_burner["median"].as_f64().map(|median| median >= SHARE_WANTED);
    json!({
        "summary": {
            "backup_to_burner": backup_to_burner,
            "backup_to_burner_wanted": SHARE_WANTED,
            "is_met": is_met,
            "backup_to_alone": ratio(Phase::Backup, Phase::Alone),
            "burner_to_alone": ratio(Phase::Burner, Phase::Alone),
            "backup_processor_seconds": of(Phase::Backup, "processor_seconds"),
            "burner_processor_seconds": of(Phase::Burner, "processor_seconds"),
            "p99_us": {
                "backup": of(Phase::Backup, "p99_us"),
                "burner": of(Phase::Burner, "p99_us"),
                "alone": of(Phase::Alone, "p99_us"),
            },
        },
        "second_backup": again,
        "rounds": sizes.rounds,
        "configuration": sizes.to_json(),
    })
}

/// Returns each value, and their median, least and greatest.
fn spread(values: Vec<f64>) -> Value {
    let mut sorted = values.clone();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = match (sorted.len() % 2, sorted.get(middle.wrapping_sub(1)), sorted.get(middle)) {
        (0, Some(below), Some(above)) => Some(f64::midpoint(*below, *above)),
        (_, _, it) => it.copied(),
    };
    json!({"each": values, "median": median, "min": sorted.first(), "max": sorted.last()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(words: &[&str]) -> Result<Sizes> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Sizes::from(Flags::new(&words))
    }

    #[test]
    fn sizes_are_read_and_others_are_refused() {
        let usual = sizes(&[]).unwrap();
        assert_eq!((usual.rounds, usual.seconds, usual.clients), (3, 10, 64));
        assert_eq!((usual.records, usual.value_bytes, usual.is_release), (100_000, 1024, true));
        let given = sizes(&["--rounds", "1", "--dev", "--records", "7"]).unwrap();
        assert_eq!((given.rounds, given.records, given.is_release), (1, 7, false));
        assert_eq!(given.to_json()["build"], "development");
        sizes(&["--seconds", "0"]).unwrap_err();
        sizes(&["--speed", "3"]).unwrap_err();
    }

    #[test]
    fn the_order_changes_and_a_burner_is_beside_a_backup() {
        use Phase::{Alone, Backup, Burner};
        assert_eq!(Phase::in_order(1), [Backup, Burner, Alone]);
        assert_eq!(Phase::in_order(2), [Alone, Burner, Backup]);
        assert_eq!(Phase::in_order(3), Phase::in_order(1));
    }

    #[test]
    fn the_figures_of_a_load_are_those_of_its_round() {
        let printed = "stele: x\n{\"round\":1,\"operations\":5}\n{\"summary\":{}}\n";
        assert_eq!(round_of(printed).unwrap()["operations"], 5);
        assert_eq!(round_of("x\n{}\n"), None);
        let round = json!({"operations": 2000, "generator_processor_us_per_operation": 100.0,
                           "servers": {"processor_seconds_per_1000_operations": 0.5}});
        assert!((used_by_load(&round) - 1.2).abs() < 1e-9);
    }

    #[test]
    fn a_summary_compares_the_phases_of_the_same_round() {
        let line = |phase: Phase, speed: f64, used: f64| {
            json!({"phase": phase.name(), "operations_per_second": speed, "processor_seconds": used,
                   "p99_us": 9.0})
        };
        let lines = [
            line(Phase::Backup, 80.0, 1.5),
            line(Phase::Burner, 100.0, 1.4),
            line(Phase::Alone, 160.0, 0.0),
            line(Phase::Burner, 100.0, 1.5),
            line(Phase::Alone, 200.0, 0.0),
            line(Phase::Backup, 95.0, 1.6),
        ];
        let line = summary(&lines, &json!({"share": 0.5}), &sizes(&[]).unwrap());
        let ratio = &line["summary"]["backup_to_burner"];
        assert_eq!(ratio["each"], json!([0.8, 0.95]));
        assert_eq!((&ratio["min"], &ratio["max"]), (&json!(0.8), &json!(0.95)));
        assert_eq!((&ratio["median"], &line["summary"]["is_met"]), (&json!(0.875), &json!(false)));
        assert_eq!(line["summary"]["backup_to_alone"]["each"], json!([0.5, 0.475]));
        assert_eq!(line["summary"]["burner_processor_seconds"], json!([1.4, 1.5]));
        assert_eq!(line["second_backup"]["share"], 0.5);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_two_and_nothing_has_none() {
        assert_eq!(spread(vec![4.0, 1.0, 2.0, 3.0])["median"], 2.5);
        assert_eq!(spread(vec![3.0, 9.0, 1.0])["median"], 3.0);
        assert_eq!(spread(Vec::new())["median"], Value::Null);
    }

    #[test]
    fn files_of_all_folders_count() {
        let dir = tempfile::tempdir().unwrap();
        let moments = dir.path().join("runs/1/moments");
        fs::create_dir_all(&moments).unwrap();
        fs::write(moments.join("1"), "12345").unwrap();
        fs::write(dir.path().join("repository"), "1").unwrap();
        let tree = super::tree(dir.path()).unwrap();
        assert_eq!((tree.files.len(), tree.files_below("moments"), tree.bytes), (2, 1, 6));
        assert!(super::tree(&dir.path().join("none")).unwrap().files.is_empty());
    }
}
