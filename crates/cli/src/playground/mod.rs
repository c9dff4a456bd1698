//! `stele playground`: a cluster of real processes on this machine, for experiments.

mod actions;
mod cluster;
mod demo;
mod load;
mod nodes;
mod prompt;

use crate::args::Playground;
use crate::terminal::print;
use crate::{Outcome, one_line, runtime};
use cluster::Cluster;
use nodes::Nodes;
use parking_lot::Mutex;
use prompt::PromptLines;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use stele_types::{Error, Result};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a process ended by an interrupt, as shells report it.
const INTERRUPTED: i32 = 130;

pub(crate) fn run(args: &Playground) -> Result<Outcome> {
    let home = Home::new(args.keep.as_deref())?;
    let runtime = runtime::large(0)?;
    let mut nodes = Nodes::new(home.path(), args.nodes, args.stores, args.base_port)?;
    slow_down(&mut nodes, &args.slow)?;
    let nodes = Arc::new(Mutex::new(nodes));
    end_on_signals(&runtime, &nodes, &home);
    let outcome = play(args, &runtime, &nodes, &home);
    nodes.lock().kill_all();
    home.close()?;
    match outcome {
        // The last lines of a node's log keep their line breaks.
        Err(error) if error.to_string().contains('\n') => {
            eprintln!("stele: {error}");
            Ok(Outcome::Failed)
        }
        outcome => outcome,
    }
}

fn slow_down(nodes: &mut Nodes, slow: &[(String, u32)]) -> Result<()> {
    for at in 0..nodes.list().len() {
        nodes.slow(at, 1)?;
    }
    for (name, factor) in slow {
        let at = nodes.find(name)?;
        nodes.slow(at, *factor)?;
    }
    Ok(())
}

/// Runs the cluster. Invariant: only this thread starts processes, because they end with the thread
/// that started them.
fn play(
    args: &Playground,
    runtime: &Runtime,
    nodes: &Arc<Mutex<Nodes>>,
    home: &Home,
) -> Result<Outcome> {
    let started = Instant::now();
    nodes.lock().start_all()?;
    let mut cluster = runtime.block_on(Cluster::connect(Arc::clone(nodes)))?;
    let (regions, copies) = runtime.block_on(cluster.wait_for_copies())?;
    let names: Vec<String> =
        cluster.nodes().list().iter().map(|node| format!("{} ✓", node.name)).collect();
    let stores = args.nodes * args.stores;
    print(&format!(
        "{}   {stores} stores, {regions} regions, {copies} copies · ready in {}\n",
        names.join("  "),
        actions::time(started)
    ));
    print(&runtime.block_on(cluster.table()));
    print(&format!("{} · {}\n", cluster.fault_tolerance_text(), home.describe()));
    if args.demo {
        runtime.block_on(demo::run(&mut cluster))?;
        return Ok(Outcome::Done);
    }
    print(&next_steps(&cluster));
    run_lines(runtime, &mut cluster)
}

fn next_steps(cluster: &Cluster) -> String {
    let addresses: Vec<String> =
        cluster.nodes().list().iter().map(|node| node.address.clone()).collect();
    let all = addresses.join(",");
    let redis = cluster.nodes().list().first().map(|node| node.redis_address.clone());
    let redis = redis.unwrap_or_default();
    let redis = redis.rsplit_once(':').map_or(redis.as_str(), |(_, port)| port);
    let quoted: Vec<String> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        "tikv/pd  RawClient::new(vec![{}])\n\
         redis    redis-cli -p {redis}\n\
         shell    stele get --cluster {all} KEY · stele ctl --cluster {all} stores\n\
         here     put a 1 · get a · kill n1 · slow n3 8x · load 10 · placement · status · help · quit\n",
        quoted.join(", ")
    )
}

/// Runs lines until there are no more. A failure is printed, and the next line follows.
fn run_lines(runtime: &Runtime, cluster: &mut Cluster) -> Result<Outcome> {
    let mut lines = PromptLines::new()?;
    let mut outcome = Outcome::Done;
    while let Some(line) = lines.next()? {
        let outcome_of_line = match prompt::parse(&line) {
            Ok(None) => continue,
            Ok(Some(command)) => runtime.block_on(actions::execute(cluster, command)),
            Err(error) => Err(error),
        };
        match outcome_of_line {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                print(&format!("{}\n", one_line(&error)));
                if !lines.are_interactive() {
                    outcome = Outcome::Failed;
                }
            }
        }
    }
    Ok(outcome)
}

/// Makes signals end the nodes and remove the data, as `quit` does.
fn end_on_signals(runtime: &Runtime, nodes: &Arc<Mutex<Nodes>>, home: &Home) {
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let nodes = Arc::clone(nodes);
        let remove = home.removed_path();
        runtime.spawn(async move {
            let Ok(mut signals) = signal(kind) else { return };
            signals.recv().await;
            nodes.lock().kill_all();
            if let Some(path) = remove {
                // The system removes temporary directories that are left.
                let _ = std::fs::remove_dir_all(path);
            }
            std::process::exit(INTERRUPTED);
        });
    }
}

enum Home {
    Temporary(TempDir),
    Kept(PathBuf),
}

impl Home {
    fn new(keep: Option<&Path>) -> Result<Self> {
        if let Some(path) = keep {
            std::fs::create_dir_all(path).map_err(|error| Error::io("create", path, error))?;
            let path = path.canonicalize().map_err(|error| Error::io("find", path, error))?;
            return Ok(Self::Kept(path));
        }
        let made = tempfile::Builder::new().prefix("stele-playground-").tempdir();
        made.map(Self::Temporary).map_err(|error| {
            Error::io("create", std::env::temp_dir().join("stele-playground-…"), error)
        })
    }

    fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Kept(path) => path,
        }
    }

    fn removed_path(&self) -> Option<PathBuf> {
        match self {
            Self::Temporary(dir) => Some(dir.path().to_path_buf()),
            Self::Kept(_) => None,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Temporary(dir) => {
                format!("data in {} removed on exit (--keep DIR)", dir.path().display())
            }
            Self::Kept(path) => format!("data kept in {}", path.display()),
        }
    }

    fn close(self) -> Result<()> {
        match self {
            Self::Temporary(dir) => {
                let path = dir.path().to_path_buf();
                dir.close().map_err(|error| Error::io("remove", path, error))
            }
            Self::Kept(_) => Ok(()),
        }
    }
}
