//! Clients of Redis and frameworks, unmodified, on a cluster of many regions, also while a leader is killed.

mod cluster;
mod folders;
mod regions;
mod results;

use crate::process::{Ended, run_limited};
use crate::programs::{self, STELE};
use crate::tools;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use cluster::Cluster;
use folders::{FOLDERS, Folder};
use results::CheckResult;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use xtask::flags::Flags;

/// Time in which a program checks all its libraries, and in which it starts and reads everything back.
const CHECK_LIMIT: Duration = Duration::from_secs(900);
/// Raft tick of the nodes on which libraries are checked: on a busy machine leaders then stay, and no write has an
/// unknown outcome. Nodes that are killed have the default.
const SLOW_TICK_MS: u64 = 200;
/// Libraries of a short run, with their folders.
const SHORT: [(&str, &str); 3] =
    [("python", "redis-py"), ("python", "Django"), ("node", "ioredis")];

struct Options {
    /// Folder, or folder and library as `FOLDER/LIBRARY`.
    only: Option<String>,
    is_short: bool,
    kill_seconds: u64,
    stele: Option<PathBuf>,
}

/// Runs the programs of all languages on three nodes, and prints tables of the results. Fails if a check fails.
pub(crate) fn run(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    let is_short = flags.switch("--short");
    let options = Options {
        only: flags.value("--only")?,
        is_short,
        kill_seconds: flags.number("--seconds", if is_short { 8 } else { 20 })?,
        stele: flags.value("--stele")?.map(Into::into),
    };
    flags.end()?;
    let runs = chosen(&options)?;
    let work = workspace.target.join("redis-clients");
    std::fs::create_dir_all(&work)?;
    let sources = workspace.root.join("cluster-tests/redis-clients");
    let stele = match &options.stele {
        Some(stele) => stele.clone(),
        None => programs::build(workspace, STELE, false)?,
    };
    let mut built: Vec<(&Folder, Vec<OsString>)> = Vec::new();
    for (folder, _) in &runs {
        if built.iter().all(|(it, _)| it.name != folder.name) {
            tools::require(folder.tools)?;
            let command = (folder.build)(&sources.join(folder.name), &work);
            built.push((folder, command.with_context(|| format!("building {}", folder.name))?));
        }
    }
    let borders = regions::borders();
    println!("three nodes, {} regions", borders.len() + 1);
    let programs: Vec<Program<'_>> = runs
        .iter()
        .filter_map(|(folder, library)| {
            let command = built.iter().find(|(it, _)| it.name == folder.name).map(|(_, it)| it)?;
            Some(Program { folder, library: library.as_deref(), command })
        })
        .collect();
    let mut results = Vec::new();
    let cluster = Cluster::start(&stele, &work, &borders, Some(SLOW_TICK_MS))?;
    for program in &programs {
        results.extend(program.check(&cluster)?);
    }
    drop(cluster);
    let mut cluster = Cluster::start(&stele, &work, &borders, None)?;
    for program in &programs {
        results.extend(program.kill(&mut cluster, options.kill_seconds)?);
    }
    print!("\n{}", results::tables(&results));
    let failed: Vec<String> =
        results.iter().filter(|it| it.is_failed()).map(CheckResult::described).collect();
    ensure!(failed.is_empty(), "{} checks failed:\n{}", failed.len(), failed.join("\n"));
    Ok(())
}

/// Returns the programs to run, each with the library to which it is limited.
fn chosen(options: &Options) -> Result<Vec<(&'static Folder, Option<String>)>> {
    let folder = |name: &str| FOLDERS.iter().find(|folder| folder.name == name);
    let names = || FOLDERS.iter().map(|folder| folder.name).collect::<Vec<_>>().join(", ");
    match &options.only {
        None if options.is_short => {
            let short = SHORT.iter().map(|(name, library)| {
                Ok((folder(name).context("a folder is missing")?, Some((*library).to_owned())))
            });
            short.collect()
        }
        None => Ok(FOLDERS.iter().map(|folder| (folder, None)).collect()),
        Some(only) => {
            let (name, library) = match only.split_once('/') {
                Some((name, library)) => (name, Some(library.to_owned())),
                None => (only.as_str(), None),
            };
            match folder(name) {
                Some(folder) => Ok(vec![(folder, library)]),
                None => bail!("no folder `{name}`; there are {}", names()),
            }
        }
    }
}

/// Program of a folder, run with one library or with all.
struct Program<'a> {
    folder: &'a Folder,
    library: Option<&'a str>,
    command: &'a [OsString],
}

impl Program<'_> {
    fn check(&self, cluster: &Cluster) -> Result<Vec<CheckResult>> {
        println!("{}: checks", self.name());
        self.results(&cluster.addresses(), "check", 0)
            .with_context(|| format!("the nodes printed {}", cluster.logs()))
    }

    /// Runs the program while the node that leads most regions is killed after a quarter of the time, and started again after
    /// the half.
    fn kill(&self, cluster: &mut Cluster, seconds: u64) -> Result<Vec<CheckResult>> {
        cluster.spread_leaders()?;
        let addresses = cluster.addresses();
        let started = Instant::now();
        let until = |part: f64| {
            let at = Duration::from_secs_f64(seconds as f64 * part);
            thread::sleep(at.saturating_sub(started.elapsed()));
        };
        thread::scope(|scope| {
            let program = scope.spawn(|| self.results(&addresses, "kill", seconds));
            until(0.25);
            let killed = cluster.kill_leader()?;
            println!(
                "{}: killed the leader of {} of {} regions",
                self.name(),
                killed.led,
                killed.regions
            );
            until(0.5);
            cluster.restart(&killed)?;
            match program.join() {
                Ok(results) => results,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    fn results(&self, addresses: &str, phase: &str, seconds: u64) -> Result<Vec<CheckResult>> {
        let (first, words) = self.command.split_first().context("an empty command")?;
        let mut command = Command::new(first);
        command.args(words).args(["--nodes", addresses, "--phase", phase]);
        command.args(["--seconds", &seconds.to_string()]);
        if let Some(library) = self.library {
            command.args(["--only", library]);
        }
        let (ended, printed) = run_limited(&mut command, CHECK_LIMIT)?;
        let (results, others) = results::parse(&printed)?;
        ensure!(ended == Ended::Exited(true), "{command:?}: {ended:?}: {printed}");
        ensure!(!results.is_empty(), "{command:?} printed no result: {others}");
        if results.iter().any(CheckResult::is_failed) {
            println!("{others}");
        }
        Ok(results)
    }

    fn name(&self) -> String {
        match self.library {
            Some(library) => format!("{}/{library}", self.folder.name),
            None => self.folder.name.to_owned(),
        }
    }
}
