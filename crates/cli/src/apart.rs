//! Commands of a program of their own: `stele-backup` has the clients of object stores, which servers do not
//! need.

use crate::Outcome;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::{env, io};
use stele_types::{Error, Result};

const PROGRAM: &str = "stele-backup";

/// Replaces this process by the program beside this one, with the same command line.
pub(crate) fn run() -> Result<Outcome> {
    let own = env::current_exe().map_err(|error| Error::io("find", "this program", error))?;
    let program = own.with_file_name(PROGRAM);
    // It prints the name of the command that was typed.
    let error = Command::new(&program).arg0("stele").args(env::args_os().skip(1)).exec();
    Err(failed(&program, error))
}

fn failed(program: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::Refused(format!(
            "there is no program {}: install it beside `stele`, in the same version",
            program.display()
        )),
        _ => Error::io("run", program, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_the_remedy() {
        let failed = failed(Path::new("/usr/bin/stele-backup"), io::ErrorKind::NotFound.into());
        let text = failed.to_string();
        assert!(
            text.contains("/usr/bin/stele-backup") && text.contains("beside `stele`"),
            "{text}"
        );
    }
}
