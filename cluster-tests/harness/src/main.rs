//! Runs one scenario against a cluster of real `stele server` processes. `cargo xtask cluster`
//! builds the programs that it needs and runs it.

mod args;
mod client;
mod cluster;
mod history;
mod hostile;
mod nemesis;
mod programs;
mod report;
mod scenario;
mod verify;

use anyhow::Result;
use report::Report;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cluster-tests: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let (scenario, setup) = args::read(std::env::args().skip(1).collect())?;
    println!("{}: {}", scenario.name, scenario.what);
    println!("{}; replay: cargo xtask cluster {}{}", setup.text(), scenario.name, setup.replay());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let started = Instant::now();
    let mut report = Report::default();
    let result = runtime.block_on((scenario.run)(&setup, &mut report));
    if let Err(error) = &result {
        report.require(false, format!("{error:#}"));
    }
    report.print(scenario.name, setup.seed, started.elapsed().as_secs_f64());
    if !report.is_met() {
        setup.keep_work();
    }
    Ok(report.is_met())
}
