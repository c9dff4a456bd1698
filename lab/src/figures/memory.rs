//! A memory cgroup around each measured program (version 1; the kernel's `cgroup-v1/memory.rst`).

use super::undo::{Undo, quoted};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use xtask::process::kill;

/// Beginning of the names of all groups and folders of this command; the process id follows it.
pub(super) const PREFIX: &str = "stele-figures-";
const LIMIT: &str = "memory.limit_in_bytes";
const PROCESSES: &str = "cgroup.procs";
/// Attempts to remove a group: its memory is released a moment after its last process ends.
const TRIES: u32 = 50;

/// Finds the mount of a controller of version 1 and this process's group below it, from the texts
/// of `/proc/mounts` and `/proc/self/cgroup`.
pub(super) fn find(controller: &str, mounts: &str, own: &str) -> Option<(PathBuf, PathBuf)> {
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (place, kind, options) = (fields.nth(1)?, fields.next()?, fields.next()?);
        let is_match = kind == "cgroup" && options.split(',').any(|option| option == controller);
        is_match.then(|| PathBuf::from(place))
    })?;
    let group = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_match = controllers.split(',').any(|it| it == controller);
        is_match.then(|| path.trim_start_matches('/').to_owned())
    })?;
    Some((mount.clone(), mount.join(group)))
}

pub(super) fn folders(controller: &str) -> Option<(PathBuf, PathBuf)> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let (mount, own) = find(controller, &read("/proc/mounts")?, &read("/proc/self/cgroup")?)?;
    // In a container the path may be one of the host.
    let own = if own.is_dir() { own } else { mount.clone() };
    Some((mount, own))
}

/// Group for one measured program at a time.
#[derive(Debug)]
pub(super) struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// Creates a group; an error states why this is not possible. At its end `undo` removes the
    /// group and kills the processes in it.
    pub(super) fn make(undo: &mut Undo) -> Result<Self> {
        let (_, own) =
            folders("memory").context("this machine has no memory cgroup of version 1")?;
        remove_leftovers(&own);
        let cgroup = Self { folder: own.join(format!("{PREFIX}{}", std::process::id())) };
        cgroup.create()?;
        let (folder, processes) = (&cgroup.folder, cgroup.folder.join(PROCESSES));
        undo.add(&format!(
            "[ -d {0} ] && {{ kill -9 $(cat {1}) 2>/dev/null; \
             for i in 1 2 3 4 5 6 7 8 9; do rmdir {0} 2>/dev/null && break; sleep 0.2; done; }}",
            quoted(folder),
            quoted(&processes)
        ))?;
        Ok(cgroup)
    }

    fn create(&self) -> Result<()> {
        fs::create_dir(&self.folder)
            .with_context(|| format!("creating {}", self.folder.display()))?;
        let has_limit = self.folder.join(LIMIT).is_file();
        ensure!(has_limit, "{} has no {LIMIT}", self.folder.display());
        Ok(())
    }

    /// Returns the group's folder, for a program inside that sets its limit.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Creates the group again, without the page cache of the last program.
    pub(super) fn renew(&self) -> Result<()> {
        remove(&self.folder)?;
        self.create()
    }

    /// Returns the words to put before a command that must run inside the group.
    pub(super) fn words(&self) -> Vec<String> {
        let script = format!("echo $$ > {} && exec \"$@\"", quoted(&self.folder.join(PROCESSES)));
        vec!["sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()]
    }

    pub(super) fn used(&self) -> Value {
        let number = |file: &str| {
            let text = fs::read_to_string(self.folder.join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let kills = fs::read_to_string(self.folder.join("memory.oom_control")).ok();
        let kills = kills.as_deref().unwrap_or_default().lines().find_map(|line| {
            line.strip_prefix("oom_kill ").and_then(|count| count.parse::<u64>().ok())
        });
        json!({
            "most_bytes": number("memory.max_usage_in_bytes"),
            "times_at_the_limit": number("memory.failcnt"),
            "killed": kills,
        })
    }
}

/// Kills the processes of the group and removes it.
fn remove(folder: &Path) -> Result<()> {
    for attempt in 0..TRIES {
        if !folder.is_dir() || fs::remove_dir(folder).is_ok() {
            return Ok(());
        }
        let pids = fs::read_to_string(folder.join(PROCESSES)).unwrap_or_default();
        let pids: Vec<String> = pids.split_whitespace().map(str::to_owned).collect();
        kill(&pids)?;
        thread::sleep(Duration::from_millis(10) * attempt.min(10));
    }
    anyhow::bail!("{} cannot be removed", folder.display())
}

fn remove_leftovers(own: &Path) {
    let Ok(entries) = fs::read_dir(own) else { return };
    for entry in entries.flatten() {
        if is_leftover(&entry.file_name().to_string_lossy(), "") && remove(&entry.path()).is_ok() {
            println!("removed {}, left by an earlier run", entry.path().display());
        }
    }
}

/// Returns whether a process that has ended made something of this name.
pub(super) fn is_leftover(name: &str, suffix: &str) -> bool {
    let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(suffix));
    let Some(Ok(pid)) = pid.map(str::parse::<u32>) else { return false };
    !Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_controller_is_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let own = "4:memory:/user/one\n3:blkio,pids:/\n0::/\n";
        let memory = find("memory", mounts, own).unwrap();
        assert_eq!(memory.0, Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(memory.1, Path::new("/sys/fs/cgroup/memory/user/one"));
        let blkio = find("blkio", mounts, own).unwrap();
        assert_eq!(blkio.1, Path::new("/sys/fs/cgroup/blkio"));
        assert_eq!(find("cpu", mounts, own), None);
        assert_eq!(find("memory", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "0::/\n"), None);
    }

    #[test]
    fn only_what_ended_processes_made_is_left_over() {
        assert!(is_leftover(&format!("{PREFIX}{}", u32::MAX), ""));
        assert!(is_leftover(&format!("{PREFIX}{}.img", u32::MAX), ".img"));
        assert!(!is_leftover(&format!("{PREFIX}1"), ""));
        assert!(!is_leftover("memory.stat", ""));
        assert!(!is_leftover(&format!("{PREFIX}x"), ""));
    }

    /// Returns early where the machine does not let this process make a group.
    #[test]
    fn a_program_runs_inside_and_the_group_goes_with_it() {
        let mut undo = Undo::new().unwrap();
        let cgroup = match Cgroup::make(&mut undo) {
            Ok(cgroup) => cgroup,
            Err(error) => return println!("not possible here: {error:#}"),
        };
        cgroup.renew().unwrap();
        let words = cgroup.words();
        let inside = std::process::Command::new(&words[0])
            .args(&words[1..])
            .args(["cat", "/proc/self/cgroup"])
            .output()
            .unwrap();
        let name = format!("{PREFIX}{}", std::process::id());
        assert!(String::from_utf8_lossy(&inside.stdout).contains(&name), "{inside:?}");
        assert!(cgroup.used()["most_bytes"].as_u64().is_some());
        drop(undo);
        assert!(!cgroup.folder().exists());
    }
}
