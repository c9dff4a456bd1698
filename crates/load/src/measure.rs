//! Rounds over several servers, each of which is measured in turn.

use crate::args::{Wire, Workload};
use crate::driver::{self, Part};
use crate::process_io::processor_seconds;
use crate::records::Records;
use crate::report::Round;
use crate::server::Target;
use std::sync::Arc;
use std::time::Duration;
use stele_types::{Error, Result};

/// Measures `targets`, the clients of the servers that `args` names in that order.
pub async fn measure<T: Target>(args: &Wire, targets: &[Arc<T>]) -> Result<Vec<Round>> {
    let records = Arc::new(Records::new(&args.load));
    for (url, target) in args.target.iter().zip(targets) {
        prepare(args, url, target, &records).await?;
    }
    let mut rounds = Vec::new();
    for number in 0..args.rounds {
        for (url, target) in args.target.iter().zip(targets) {
            eprintln!("round {} of {}: {url}", number + 1, args.rounds);
            let part = Part { workload: args.load.workload, round: number, duration: None };
            let (before, own) = (target.used().await?, processor_seconds(std::process::id())?);
            let run = driver::run(args, target, &records, part).await?;
            let generator_seconds = processor_seconds(std::process::id())? - own;
            let used = target.used_since(before, &run).await?;
            rounds.push(Round { url: url.clone(), number, run, used, generator_seconds });
        }
    }
    Ok(rounds)
}

/// Loads the records and runs the warm-up.
async fn prepare<T: Target>(
    args: &Wire,
    url: &str,
    target: &Arc<T>,
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
