//! The program `stele`.

mod memory;

use std::process::ExitCode;

fn main() -> ExitCode {
    stele_cli::main()
}
