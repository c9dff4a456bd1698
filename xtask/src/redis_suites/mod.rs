//! Test suites of other projects, run on a node's Redis listener. They are fetched, never copied.

mod outcomes;
mod suites;

use crate::local_server::LocalServer;
use crate::programs::{self, STELE};
use crate::tools;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use outcomes::{Outcomes, Skips};
use suites::{Place, SUITES, Suite};
use xtask::flags::Flags;

/// Runs the suites, or those that `--only` names, and prints what each of their tests came to. Fails if a
/// test fails that the list of skips does not name. With `--address` they run on a server that is running.
pub(crate) fn run(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    tools::require(tools::FOR_REDIS_SUITES)?;
    let (only, address) = (flags.value("--only")?, flags.value("--address")?);
    let is_short = flags.switch("--short");
    flags.end()?;
    run_suites(workspace, only.as_deref(), address.as_deref(), is_short)
}

/// Runs the short form of the suites, which needs no package of the system.
pub(crate) fn run_short(workspace: &Workspace) -> Result<()> {
    run_suites(workspace, None, None, true)
}

fn run_suites(
    workspace: &Workspace,
    only: Option<&str>,
    address: Option<&str>,
    is_short: bool,
) -> Result<()> {
    let work = workspace.target.join("redis-suites");
    std::fs::create_dir_all(&work)?;
    let skips = Skips::load(&workspace.root.join("cluster-tests/redis/skips.toml"))?;
    let stele = programs::build(workspace, STELE, false)?;
    let mut all = Vec::new();
    let is_chosen = |suite: &&Suite| match only {
        Some(name) => suite.name == name,
        None => suite.is_in_short || !is_short,
    };
    for suite in SUITES.iter().filter(is_chosen) {
        let place = Place { sources: &workspace.root.join("cluster-tests/redis"), work: &work };
        let text = match address {
            Some(address) => (suite.run)(&place, address, is_short)?,
            None => {
                let server = LocalServer::redis_node(&stele, &work, suite.port)?;
                let run = (suite.run)(&place, &server.address, is_short);
                run.with_context(|| format!("{}: the node printed {}", suite.name, server.log()))?
            }
        };
        let outcomes = Outcomes::of(suite, &text, &skips)?;
        print!("{}", outcomes.row());
        all.push(outcomes);
    }
    ensure!(!all.is_empty(), "no suite has this name; there are {}", names());
    for outcomes in &all {
        print!("{}", outcomes.details());
    }
    match all.iter().map(Outcomes::failed).sum::<usize>() {
        0 => Ok(()),
        failed => bail!(
            "{failed} tests of other projects failed; skips need a line in cluster-tests/redis/skips.toml"
        ),
    }
}

fn names() -> String {
    SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ")
}
