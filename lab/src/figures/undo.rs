//! Clean-up at the end, even if this process is killed: a shell waits for the end of a pipe that
//! this process holds. Then it runs the commands that it received, the last one first.

use anyhow::{Context, Result};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Ignores signals: they are meant for this process, and its end ends the pipe.
const SCRIPT: &str = r#"trap '' INT TERM HUP
undo=
while IFS= read -r line; do undo="$line
$undo"; done
eval "$undo""#;

/// Commands that run when this is dropped, or when its process ends in any way.
#[derive(Debug)]
pub(super) struct Undo {
    shell: Child,
}

impl Undo {
    /// Starts the shell in a separate process group, so that signals of a terminal do not reach it.
    pub(super) fn new() -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        Ok(Self { shell: shell.spawn().context("starting sh")? })
    }

    pub(super) fn add(&mut self, line: &str) -> Result<()> {
        let pipe = self.shell.stdin.as_mut().context("the shell has ended")?;
        writeln!(pipe, "{line}").context("sending the shell a command to undo")
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // An error in drop has no receiver.
        let _ = self.shell.wait();
    }
}

pub(super) fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_last_command_runs_first() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("it's a file");
        let mut undo = Undo::new().unwrap();
        undo.add(&format!("echo first >> {}", quoted(&file))).unwrap();
        undo.add(&format!("echo second >> {}", quoted(&file))).unwrap();
        assert!(!file.exists());
        drop(undo);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "second\nfirst\n");
    }

    /// The shell in the middle holds the pipe, as this program would, and is killed.
    #[test]
    fn a_kill_also_runs_the_commands() {
        let dir = tempfile::tempdir().unwrap();
        let (file, fifo) = (dir.path().join("undone"), dir.path().join("fifo"));
        let holder = format!(
            "mkfifo {pipe}; (exec sh -c \"$1\" <{pipe}) & exec 3>{pipe}
             echo 'touch {file}' >&3; exec sleep 100",
            pipe = fifo.display(),
            file = file.display()
        );
        let mut holder = Command::new("sh").args(["-c", &holder, "sh", SCRIPT]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(!file.exists());
        holder.kill().unwrap();
        holder.wait().unwrap();
        let started = Instant::now();
        while !file.exists() && started.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(file.exists());
    }
}
