//! `stele bench wire`: one load generator for Stele and other servers, compared in one run.

mod causes;
mod driver;
mod etcd;
mod page;
mod redis;
mod report;
mod servers;
mod stages;
mod target;

use crate::args::{BenchWire, Workload};
use crate::bench::process_io::processor_seconds;
use crate::bench::records::Records;
use crate::output::Output;
use crate::{Outcome, runtime};
use driver::Part;
use report::Round;
use servers::Servers;
use std::sync::Arc;
use std::time::Duration;
use stele_types::{Error, Result};
use target::Target;

pub fn run(args: &BenchWire) -> Result<Outcome> {
    args.load.check()?;
    // The generator uses one thread: one per processor would compete with the servers.
    let rounds = runtime::small()?.block_on(measure(args))?;
    let mut out = Output::new();
    for round in &rounds {
        out.line(&round.to_json(args).to_string())?;
    }
    out.line(&report::summary(args, &rounds).to_string())?;
    out.finish()?;
    if let Some(path) = &args.html {
        let page = page::page(args, &rounds);
        std::fs::write(path, page).map_err(|error| Error::io("write", path, error))?;
    }
    let failed = rounds.iter().any(|round| round.run.errors > 0);
    Ok(if failed { Outcome::Failed } else { Outcome::Done })
}

async fn measure(args: &BenchWire) -> Result<Vec<Round>> {
    let records = Arc::new(Records::new(&args.load));
    let servers = Servers::parse(args.pids.as_deref(), &args.target)?;
    let mut targets = Vec::new();
    for url in &args.target {
        targets.push(Arc::new(Target::connect(url, args).await?));
    }
    for (url, target) in args.target.iter().zip(&targets) {
        prepare(args, url, target, &records).await?;
    }
    let mut rounds = Vec::new();
    for number in 0..args.rounds {
        for ((url, target), servers) in args.target.iter().zip(&targets).zip(&servers) {
            eprintln!("round {} of {}: {url}", number + 1, args.rounds);
            let part = Part { workload: args.load.workload, round: number, duration: None };
            let led = servers.regions_led(url, target).await;
            let (before, own) = (servers.used(url).await?, processor_seconds(std::process::id())?);
            let run = driver::run(args, target, &records, part).await?;
            let own = processor_seconds(std::process::id())? - own;
            let used = servers.used(url).await?;
            // A node that was leader for only part of the round counts as neither leader nor
            // follower.
            let led_after = servers.regions_led(url, target).await;
            let used = used.since(&before, &run, led.filter(|led| led_after.as_ref() == Some(led)));
            rounds.push(Round { url: url.clone(), number, run, used, generator_seconds: own });
        }
    }
    Ok(rounds)
}

/// Loads the records and runs the warm-up.
async fn prepare(
    args: &BenchWire,
    url: &str,
    target: &Arc<Target>,
    records: &Arc<Records>,
) -> Result<()> {
    let load = &args.load;
    if load.workload != Workload::Load && !load.skip_load {
        eprintln!("{url}: loading {} records", load.records);
        let part = Part { workload: Workload::Load, round: 0, duration: None };
        let run = driver::run(args, target, records, part).await?;
        if run.errors > 0 {
            let reason = run.error.unwrap_or_default();
            return Err(Error::Unavailable(format!(
                "{url}: {} inserts failed: {reason}",
                run.errors
            )));
        }
    }
    if args.warm_up > 0 && load.workload != Workload::Load {
        eprintln!("{url}: warming up for {} s", args.warm_up);
        let duration = Some(Duration::from_secs(args.warm_up));
        driver::run(args, target, records, Part { workload: load.workload, round: 0, duration })
            .await?;
    }
    Ok(())
}
