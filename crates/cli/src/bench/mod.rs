//! `stele bench`: the same workloads on an embedded store and over the wire.
//! `stele bench wire` is one load generator for Stele and other servers, compared in one run.

pub(crate) mod engine;

use crate::terminal::Output;
use crate::{Outcome, runtime};
use std::sync::Arc;
use stele_load::{Round, Server, Wire};
use stele_types::Result;

pub(crate) fn wire(args: &Wire) -> Result<Outcome> {
    args.load.check()?;
    // The generator uses one thread: one per processor would compete with the servers.
    let rounds = runtime::small()?.block_on(measure(args))?;
    let mut out = Output::new();
    stele_load::print(args, &rounds, |line| out.line(line))?;
    out.finish()?;
    Ok(if stele_load::failed(&rounds) { Outcome::Failed } else { Outcome::Done })
}

async fn measure(args: &Wire) -> Result<Vec<Round>> {
    let mut targets = Vec::new();
    for url in &args.target {
        targets.push(Arc::new(Server::connect(url, args).await?));
    }
    stele_load::measure(args, &targets).await
}
