//! Throughput of the disk under as many processes as there are nodes: an upper bound for systems
//! that keep a copy on each node.

use anyhow::{Result, ensure};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const WRITES: u64 = 384;
const WRITE_BYTES: u64 = 1 << 20;

/// Measures bytes per second of `processes` processes together. Each repeatedly writes 1 MiB and
/// syncs it, past the page cache where the file system allows it.
pub(crate) fn bytes_per_second(work: &Path, processes: usize) -> Result<f64> {
    write(work, processes, "direct,dsync").or_else(|_| write(work, processes, "dsync"))
}

fn write(work: &Path, processes: usize, how: &str) -> Result<f64> {
    let started = Instant::now();
    let writer = |number: usize| -> Result<Child> {
        let file = work.join(format!("disk-{number}"));
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", &format!("of={}", file.display())]);
        command.args([&format!("bs={WRITE_BYTES}"), &format!("count={WRITES}")]);
        command.arg(format!("oflag={how}"));
        Ok(command.stderr(Stdio::null()).spawn()?)
    };
    let writers = (0..processes).map(writer).collect::<Result<Vec<Child>>>()?;
    let ended = writers.into_iter().map(|mut it| it.wait()).collect::<std::io::Result<Vec<_>>>()?;
    let seconds = started.elapsed().as_secs_f64();
    for number in 0..processes {
        std::fs::remove_file(work.join(format!("disk-{number}")))?;
    }
    let is_written = ended.iter().all(|it| it.success());
    ensure!(is_written, "dd cannot write to {}", work.display());
    Ok(processes as f64 * (WRITES * WRITE_BYTES) as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_takes_something_and_nothing_is_left_of_it() {
        let work = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        assert!(bytes_per_second(work.path(), 2).unwrap() > 0.0);
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0);
    }
}
