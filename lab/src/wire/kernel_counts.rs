//! What the kernel counts for a process besides its time: calls that write, switches between threads
//! and page faults. It keeps no count of system calls such as `futex`.

use serde_json::{Value, json};
use stele_load::process_io::read;
use stele_types::{Error, Result};

/// Counts since a process started. The switches are those of its present threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelCounts {
    /// Calls that write to a file or with several buffers to a socket.
    pub write_calls: u64,
    pub switches: u64,
    /// Page faults without a read of the device.
    pub page_faults: u64,
}

impl KernelCounts {
    pub(super) fn of(pid: u32) -> Result<Self> {
        let folder = format!("/proc/{pid}/task");
        let failed = |error| Error::io("read", &folder, error);
        let mut switches = 0;
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            // A thread that has ended meanwhile has no file.
            let status = std::fs::read_to_string(entry.map_err(failed)?.path().join("status"));
            switches += status.map_or(0, |text| switches_in(&text));
        }
        let (io, stat) = (read(pid, "io")?, read(pid, "stat")?);
        let unexpected =
            || Error::invalid(format!("the counts of process {pid} have another format"));
        Ok(Self {
            write_calls: field(&io, "syscw:").ok_or_else(unexpected)?,
            switches,
            page_faults: minor_faults_in(&stat).ok_or_else(unexpected)?,
        })
    }

    /// Returns the counts since `before` for each operation.
    pub(super) fn per_operation(&self, before: &Self, operations: u64) -> Value {
        let per = |now: u64, then: u64| now.saturating_sub(then) as f64 / operations.max(1) as f64;
        json!({
            "write_calls": per(self.write_calls, before.write_calls),
            "switches": per(self.switches, before.switches),
            "page_faults": per(self.page_faults, before.page_faults),
        })
    }
}

/// Returns the sum of voluntary and involuntary switches.
fn switches_in(status: &str) -> u64 {
    let names = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
    names.into_iter().filter_map(|name| field(status, name)).sum()
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// Reads field 10 of a `stat` line. The name, in parentheses, may itself contain parentheses: the last
/// one ends it.
fn minor_faults_in(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_the_texts_of_the_kernel() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t45\n";
        assert_eq!((switches_in(status), switches_in("Name:\tx\n")), (195, 0));
        assert_eq!(field("rchar: 9\nsyscw: 6\nread_bytes: 1\n", "syscw:"), Some(6));
        let stat = "25179 (a) S (b) S 1 1 1 0 -1 4194304 102 0 3 0 17 4 0 0 20 0 9";
        assert_eq!((minor_faults_in(stat), minor_faults_in("1 (a")), (Some(102), None));
    }

    #[test]
    fn counts_of_this_process_grow_and_are_for_each_operation() {
        let before = KernelCounts::of(std::process::id()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        let now = KernelCounts::of(std::process::id()).unwrap();
        assert!(now.switches > before.switches, "{now:?} {before:?}");
        let then = KernelCounts { write_calls: 10, switches: 4, page_faults: 9 };
        let now = KernelCounts { write_calls: 30, switches: 5, page_faults: 0 };
        let per = json!({"write_calls": 5.0, "switches": 0.25, "page_faults": 0.0});
        assert_eq!(now.per_operation(&then, 4), per);
    }
}
