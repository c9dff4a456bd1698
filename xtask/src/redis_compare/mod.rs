//! Random sequences of commands on a node and on other servers, and the comparison of their replies.
//!
//! Each thread has two connections to each server and two databases. A sequence is sent to both, and
//! afterwards all of its keys are read and deleted. If replies differ, commands are removed while they still do.

mod differences;
mod driver;
mod generator;
mod reply;
mod sequence;
mod servers;
mod table;
mod values;

use crate::local_server::LocalServer;
use crate::process::in_parallel_by;
use crate::programs::{self, STELE};
use crate::tools;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use differences::{Difference, Met};
use driver::Driver;
use sequence::{Command, Sequence};
use servers::{Against, Features};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use xtask::flags::Flags;

/// Each thread uses two of the 16 databases.
const THREADS_MAX: u64 = 8;
/// Kinds of differences after which no further sequence begins.
const KINDS_MAX: usize = 20;
/// Differences of one kind that are printed.
const SHOWN_OF_KIND_MAX: u64 = 2;
/// Time between two lines about the progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(60);

/// Compares a node with other servers. Fails if replies differ. With `--table` it writes the table of all
/// commands instead.
pub(crate) fn run(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    tools::require(tools::FOR_REDIS_COMPARE)?;
    let writes_table = flags.switch("--table");
    let against = match flags.value("--against")? {
        Some(name) => vec![Against::named(&name)?],
        None => vec![&servers::REDIS, &servers::VALKEY],
    };
    let from = match flags.value("--seed")? {
        Some(seed) => seed.parse().context("--seed takes a number")?,
        None => seed_from_time(),
    };
    let options = Options {
        from,
        sequences: flags.number("--sequences", 300)?,
        threads: flags.number("--threads", THREADS_MAX)?,
        stele: flags.value("--stele")?.map(PathBuf::from),
    };
    flags.end()?;
    ensure!((1..=THREADS_MAX).contains(&options.threads), "--threads takes 1 to {THREADS_MAX}");
    match writes_table {
        true => write_table(workspace, options),
        false => compare(workspace, against, options),
    }
}

fn write_table(workspace: &Workspace, options: Options) -> Result<()> {
    let work = work(workspace)?;
    let redis = servers::REDIS.start(&servers::REDIS.fetch(&work)?, &work)?;
    let node = options.start_node(workspace, &work)?;
    table::write(workspace, &redis.address, &node.address)
}

/// Returns the folder for what is fetched and started.
fn work(workspace: &Workspace) -> Result<PathBuf> {
    let work = workspace.target.join("redis-compare");
    std::fs::create_dir_all(&work)?;
    Ok(work)
}

struct Options {
    /// First seed.
    from: u64,
    sequences: u64,
    threads: u64,
    /// Program to compare, if it is not to be built.
    stele: Option<PathBuf>,
}

impl Options {
    /// Starts the node of the given program, or of one that is built.
    fn start_node(&self, workspace: &Workspace, work: &Path) -> Result<LocalServer> {
        let built = || programs::build(workspace, STELE, false);
        let stele = self.stele.clone().map_or_else(built, Ok)?;
        LocalServer::redis_node(&stele, work, 0)
    }
}

fn seed_from_time() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs() * 1_000_000 % 1_000_000_000_000
}

fn compare(workspace: &Workspace, against: Vec<&'static Against>, options: Options) -> Result<()> {
    let work = work(workspace)?;
    let mut others = Vec::new();
    let mut features = Features { has_ifeq: true, has_delex: true };
    for against in &against {
        let server = against.start(&against.fetch(&work)?, &work)?;
        features = features.and(servers::features(&server.address)?);
        others.push(server);
    }
    let node = options.start_node(workspace, &work)?;
    let Options { from, sequences, threads, .. } = options;
    let comparison = Comparison {
        addresses: [&node].into_iter().chain(&others).map(|it| it.address.clone()).collect(),
        against,
        features,
        is_ended: AtomicBool::new(false),
        totals: Mutex::default(),
        next: AtomicU64::new(from),
        end: from + sequences,
    };
    println!(
        "{sequences} sequences from seed {from} in {threads} threads against {}: IFEQ {}, DELEX {}",
        comparison.names(),
        features.has_ifeq,
        features.has_delex
    );
    let started = Instant::now();
    let run = in_parallel_by(threads as usize, 0..threads, |thread| {
        comparison.run(u8::try_from(thread * 2)?, thread == 0, started)
    });
    run.with_context(|| format!("the node printed {}", node.log()))?;
    comparison.end(from, started)
}

#[derive(Default)]
struct Totals {
    sequences: u64,
    commands: u64,
    /// Sequences by the kind of their difference.
    differences: BTreeMap<String, u64>,
    met: Met,
}

/// What all threads share.
struct Comparison {
    /// Of the node, then of the other servers.
    addresses: Vec<String>,
    against: Vec<&'static Against>,
    features: Features,
    is_ended: AtomicBool,
    totals: Mutex<Totals>,
    next: AtomicU64,
    end: u64,
}

impl Comparison {
    fn names(&self) -> String {
        let names = self.against.iter().map(|it| format!("{} {}", it.name, it.version));
        names.collect::<Vec<_>>().join(" and ")
    }

    fn run(&self, first_database: u8, states_progress: bool, started: Instant) -> Result<()> {
        let open = |address: &String| Driver::open(address, first_database);
        let mut servers = self.addresses.iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut stated = started;
        while !self.is_ended.load(Relaxed) {
            let seed = self.next.fetch_add(1, Relaxed);
            if seed >= self.end {
                break;
            }
            let sequence = generator::sequence(seed, self.features);
            let mut met = Met::new();
            let difference = self.difference(&mut servers, &sequence, &mut met);
            let difference =
                difference.inspect_err(|_| self.is_ended.store(true, Relaxed)).with_context(
                    || format!("seed {seed}:{}", shown(&sequence.commands, first_database)),
                )?;
            if self.note(&sequence, difference.as_ref(), met)
                && let Some(difference) = difference
            {
                self.show(&mut servers, first_database, sequence, difference)?;
            }
            if states_progress && stated.elapsed() > PROGRESS_EVERY {
                stated = Instant::now();
                println!("{} s: seed {seed}", started.elapsed().as_secs());
            }
        }
        Ok(())
    }

    /// Executes a sequence on all servers. Returns the first difference of the node from one of them.
    fn difference(
        &self,
        servers: &mut [Driver],
        sequence: &Sequence,
        met: &mut Met,
    ) -> Result<Option<Difference>> {
        let started = Instant::now();
        let replies = driver::execute(servers, sequence)?;
        let elapsed_ms = u64::try_from(started.elapsed().as_millis())?;
        let Some((node, others)) = replies.split_first() else { bail!("no server answered") };
        let differences = self.against.iter().zip(others).map(|(against, other)| {
            differences::first(sequence, (node, other, elapsed_ms), against, met)
        });
        // All are compared: each counts the differences that are allowed.
        Ok(differences.collect::<Vec<_>>().into_iter().flatten().next())
    }

    /// Prints the result. Fails if there were differences.
    fn end(self, from: u64, started: Instant) -> Result<()> {
        let names = self.names();
        let Totals { sequences, commands, differences, met } =
            self.totals.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        println!("{} s; allowed differences:", started.elapsed().as_secs());
        for (reason, times) in &met {
            println!("  {times:>9} {reason}");
        }
        let differences: u64 = differences.values().sum();
        println!(
            "seeds {from} to {}: {sequences} sequences, {commands} commands, {differences} differences from {names}",
            from + sequences.saturating_sub(1),
        );
        ensure!(differences == 0, "{differences} sequences are answered differently");
        Ok(())
    }

    /// Counts a sequence. Returns whether its difference is one of a kind of which few were printed.
    fn note(&self, sequence: &Sequence, difference: Option<&Difference>, met: Met) -> bool {
        let Ok(mut totals) = self.totals.lock() else { return false };
        totals.sequences += 1;
        totals.commands += sequence.commands.len() as u64;
        for (reason, times) in met {
            *totals.met.entry(reason).or_default() += times;
        }
        let Some(difference) = difference else { return false };
        let of_kind = totals.differences.entry(difference.kind()).or_default();
        *of_kind += 1;
        let is_shown = *of_kind <= SHOWN_OF_KIND_MAX;
        if totals.differences.len() >= KINDS_MAX {
            self.is_ended.store(true, Relaxed);
        }
        is_shown
    }

    /// Prints a difference, without the commands that it does not need.
    fn show(
        &self,
        servers: &mut [Driver],
        first_database: u8,
        sequence: Sequence,
        difference: Difference,
    ) -> Result<()> {
        let (sequence, difference, is_seen_again) = self.shrunk(servers, sequence, difference)?;
        let Sequence { seed, protocol, commands, .. } = sequence;
        let Difference { against, command, queued, stele, other } = difference;
        let mut text = format!("\ndifference with seed {seed}, RESP{protocol}:");
        text +=
            &format!("{}\n  {}", shown(&commands, first_database), command.shown(first_database));
        if let Some(queued) = queued {
            text += &format!("\n  for {}", queued.shown(first_database));
        }
        text += &format!("\n    stele: {stele}\n    {}: {other}", against.name);
        if !is_seen_again {
            text += "\n  the same sequence was answered equally when it was repeated";
        }
        let name = match &self.against[..] {
            [only] => format!(" --against {}", only.name),
            _ => String::new(),
        };
        println!("{text}\n  cargo xtask redis-compare{name} --sequences 1 --seed {seed}");
        Ok(())
    }

    /// Removes commands while replies differ. Returns also whether they differed again.
    fn shrunk(
        &self,
        servers: &mut [Driver],
        mut sequence: Sequence,
        mut difference: Difference,
    ) -> Result<(Sequence, Difference, bool)> {
        match self.difference(servers, &sequence, &mut Met::new())? {
            Some(again) => difference = again,
            None => return Ok((sequence, difference, false)),
        }
        let mut part = sequence.commands.len();
        while part > 0 {
            let mut end = sequence.commands.len();
            while end > 0 {
                let start = end.saturating_sub(part);
                let mut shorter = sequence.clone();
                shorter.commands.drain(start..end);
                let shorter = shorter.without_refused();
                if let Some(found) = self.difference(servers, &shorter, &mut Met::new())? {
                    (sequence, difference) = (shorter, found);
                }
                end = start.min(sequence.commands.len());
            }
            part /= 2;
        }
        Ok((sequence, difference, true))
    }
}

/// Formats commands, each on a line of its own.
fn shown(commands: &[Command], first_database: u8) -> String {
    commands.iter().map(|command| format!("\n    {}", command.shown(first_database))).collect()
}
