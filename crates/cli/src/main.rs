//! The program `stele`.

use std::process::ExitCode;

fn main() -> ExitCode {
    stele_cli::main()
}
