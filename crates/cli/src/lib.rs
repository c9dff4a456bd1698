//! `stele`, the command-line program: nodes, clusters and stores. Exit codes: 0 success, 1 failure
//! or damage found, 2 usage error.

mod args;
mod bench;
mod commands;
mod ctl;
mod descriptors;
mod export;
mod import;
mod inspect;
mod node_dir;
mod output;
mod place;
mod playground;
mod progress;
mod reader;
mod runtime;
mod server;
mod store;
mod table;
mod text;

#[doc(hidden)]
pub mod fuzzing {
    //! Parsers of untrusted bytes, for fuzz targets.
    pub use crate::import::fuzzing::*;
}

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;
use stele_types::{Error, Result};

/// Result of a command that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The command succeeded.
    Done,
    /// The command did part of its work, or found a problem; the reasons were printed.
    Failed,
}

/// Runs the command given on the command line.
pub fn main() -> ExitCode {
    // A large store has more files than the usual 1,024 descriptors of a process.
    descriptors::raise();
    match run(&Cli::parse().command) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        // The reader of standard output closed it, as in `stele scan | head`.
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stele: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<Outcome> {
    match command {
        Command::Server(args) => server::run(args),
        Command::Playground(args) => playground::run(args),
        Command::Ctl(args) => ctl::run(args),
        Command::Put(args) => commands::put(args),
        Command::Get(args) => commands::get(args),
        Command::Exist(args) => commands::exist(args),
        Command::Del(args) => commands::del(args),
        Command::Incr(args) => commands::incr(args),
        Command::Append(args) => commands::append(args),
        Command::Scan(args) => commands::scan(args),
        Command::Count(args) => commands::count(args),
        Command::Import(args) => import::run(args),
        Command::Export(args) => export::run(args),
        Command::Verify(args) => commands::verify(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Compact(args) => commands::compact(args),
        Command::Stats(args) => commands::stats(args),
        Command::Bench(args::BenchTarget::Engine(args)) => bench::engine::run(args),
        Command::Bench(args::BenchTarget::Wire(args)) => bench::wire::run(args),
        Command::Bench(args::BenchTarget::Devices(args)) => bench::devices::run(args),
        Command::Bench(args::BenchTarget::Calibrate(args)) => bench::calibrate::run(args),
    }
}

fn one_line(error: &Error) -> String {
    error.to_string().replace(['\n', '\r'], " ")
}
