//! The program `stele-backup`, which `stele backup` and `stele restore` run.

mod memory;

use std::process::ExitCode;

fn main() -> ExitCode {
    stele_cli::backup_main()
}
