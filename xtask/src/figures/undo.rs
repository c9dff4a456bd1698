//! What has to be taken back at the end, also when this process is killed: a shell waits for the end of a
//! pipe that this process holds, and then runs the commands it was given, the last first.

use anyhow::{Context, Result};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Signals are for this process, whose end it is that counts.
const SCRIPT: &str = r#"trap '' INT TERM HUP
undo=
while IFS= read -r line; do undo="$line
$undo"; done
eval "$undo""#;

/// Commands for the end. They run when this is dropped, or its process ends in any way.
#[derive(Debug)]
pub struct Undo {
    shell: Child,
}

impl Undo {
    /// Starts the shell, in a process group of its own: a terminal's signals pass it by.
    pub fn new() -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        Ok(Self { shell: shell.spawn().context("starting sh")? })
    }

    /// Adds a command, of one line.
    pub fn add(&mut self, line: &str) -> Result<()> {
        let pipe = self.shell.stdin.as_mut().context("the shell has ended")?;
        writeln!(pipe, "{line}").context("telling the shell what to undo")
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Nobody is left to be told.
        let _ = self.shell.wait();
    }
}

/// A path as one word of a shell.
pub fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn what_was_done_last_is_undone_first() {
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
    fn it_is_undone_after_a_kill_too() {
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
