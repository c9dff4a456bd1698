//! `stele`, the command-line program: nodes, clusters and stores.
//!
//! Exit codes, which `--help` prints too (`args::EXIT_CODES`):
//!
//! | code | meaning |
//! |---|---|
//! | 0 | yes: done, found, unharmed |
//! | 1 | failure: not done, refused, left out in part, or damage found |
//! | 2 | usage: the command line, a value or a setting can never be accepted; nothing was changed |
//! | 3 | no such key: `get`, `del --get`, `put --if-present`, and `exist` if any key is missing |
//! | 4 | unknown outcome: a write may or may not have taken effect |

mod apart;
mod args;
mod attributes;
mod backup;
mod bench;
mod cert;
mod commands;
mod ctl;
mod descriptors;
mod export;
mod import;
mod inspect;
mod node_dir;
mod place;
mod playground;
mod reader;
mod restore;
mod runtime;
mod server;
mod store;
mod table;
mod terminal;
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The command did part of its work, or found a problem; the reasons were printed.
    Failed,
    /// A key that the command needs does not exist; its name was printed.
    NoSuchKey,
}

impl Outcome {
    fn exit_code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => FAILURE,
            Self::NoSuchKey => 3,
        }
    }
}

const FAILURE: u8 = 1;

fn exit_code(error: &Error) -> u8 {
    let error = error.of_one_store();
    match error {
        // The call can never succeed in this form, and nothing was changed.
        Error::Invalid(_) => 2,
        // bug cli.unknown_outcome_is_a_failure: never
        _ if error.is_undetermined() => 4,
        _ => FAILURE,
    }
}

/// Runs the command given on the command line.
pub fn main() -> ExitCode {
    main_with(run)
}

/// Runs the command given on the command line, if it is one of backups.
pub fn backup_main() -> ExitCode {
    main_with(|command| match command {
        Command::Backup(args) => backup::run(args),
        Command::Restore(args) => restore::run(args),
        _ => Err(Error::invalid(
            "this program backs up and restores: run `stele` for other commands",
        )),
    })
}

fn main_with(run: impl Fn(&Command) -> Result<Outcome>) -> ExitCode {
    // A large store has more files than the usual 1,024 descriptors of a process.
    descriptors::raise();
    match run(&Cli::parse().command) {
        Ok(outcome) => ExitCode::from(outcome.exit_code()),
        // The reader of standard output closed it, as in `stele scan | head`.
        Err(error) if terminal::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stele: {}", one_line(&error));
            ExitCode::from(exit_code(&error))
        }
    }
}

fn run(command: &Command) -> Result<Outcome> {
    match command {
        Command::Server(args) => server::run(args),
        Command::Playground(args) => playground::run(args),
        Command::Ctl(args) => ctl::run(args),
        Command::Cert(args) => cert::run(args),
        Command::Put(args) => commands::put(args),
        Command::Get(args) => commands::get(args),
        Command::Exist(args) => commands::exist(args),
        Command::Del(args) => commands::del(args),
        Command::Incr(args) => commands::incr(args),
        Command::Append(args) => commands::append(args),
        Command::Scan(args) => commands::scan(args),
        Command::Count(args) => commands::count(args),
        Command::Watch(args) => commands::watch(args),
        Command::Import(args) => import::run(args),
        Command::Export(args) => export::run(args),
        Command::Backup(_) | Command::Restore(_) => apart::run(),
        Command::Verify(args) => commands::verify(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Compact(args) => commands::compact(args),
        Command::Stats(args) => commands::stats(args),
        Command::Bench(args::BenchTarget::Engine(args)) => bench::engine::run(args),
        Command::Bench(args::BenchTarget::Wire(args)) => bench::wire(args),
    }
}

fn one_line(error: &Error) -> String {
    error.to_string().replace(['\n', '\r'], " ")
}
