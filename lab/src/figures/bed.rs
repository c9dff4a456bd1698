//! The test-bed of unequal devices: loop devices over files in memory, of a few kinds of speed.
//! The limits of the devices are the bottleneck, not a disk that all of them share.

use super::device::NEEDS;
use super::loop_device::{self, Backing};
use super::throttle::{Limit, Throttle, prove, run};
use super::undo::{Undo, quoted};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

/// Capacity of each device; the devices of a cluster have equal capacities, as in the paper.
const DEVICE_BYTES: u64 = 4 << 30;
/// Memory that all devices take together, at most.
const MEMORY_BYTES_MAX: u64 = 10 << 30;
const NODES_MAX: usize = 16;

pub(super) type Kinds = BTreeMap<char, Limit>;

pub(super) fn kinds(declared: &BTreeMap<String, String>) -> Result<Kinds> {
    let kind = |(name, limit): (&String, &String)| {
        let mut letters = name.chars();
        match (letters.next(), letters.next()) {
            (Some(letter), None) if letter.is_ascii_uppercase() => {
                Ok((letter, Limit::parse(limit).with_context(|| format!("device {name}"))?))
            }
            _ => Err(anyhow!("device `{name}` needs one capital letter as its name")),
        }
    };
    declared.iter().map(kind).collect()
}

/// Returns the kind of each node of a cluster such as `1N2H3P`: one N, two H and three P.
pub(super) fn nodes(kinds: &Kinds, cluster: &str) -> Result<Vec<char>> {
    let refusal = || {
        let known: String = kinds.keys().collect();
        format!(
            "`{cluster}` is not a cluster: numbers and kinds such as 1N2H3P; the kinds are {known}"
        )
    };
    let (mut nodes, mut digits) = (Vec::new(), String::new());
    for letter in cluster.chars() {
        if letter.is_ascii_digit() {
            digits.push(letter);
            continue;
        }
        ensure!(kinds.contains_key(&letter), refusal());
        let count: usize = digits.parse().with_context(refusal)?;
        digits.clear();
        ensure!(count > 0 && nodes.len() + count <= NODES_MAX, refusal());
        nodes.extend(std::iter::repeat_n(letter, count));
    }
    ensure!(digits.is_empty() && !nodes.is_empty(), refusal());
    Ok(nodes)
}

#[derive(Debug)]
struct Device {
    kind: char,
    folder: PathBuf,
    throttle: Throttle,
}

#[derive(Debug)]
pub(super) struct Bed {
    kinds: Kinds,
    devices: Vec<Device>,
    /// Measured speeds of a device of each kind, for the page.
    pub tried: Vec<String>,
}

impl Bed {
    /// Creates devices for each of these clusters below `work`, and proves the limit of each device.
    pub(super) fn make(
        kinds: &Kinds,
        clusters: &[Vec<char>],
        work: &Path,
        undo: &mut Undo,
    ) -> Result<Self> {
        let folder = work.join("test-bed");
        fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
        undo.add(&format!("rmdir {}", quoted(&folder)))?;
        let place = folder.display().to_string();
        let size = format!("size={MEMORY_BYTES_MAX}");
        run("mount", &["-t", "tmpfs", "-o", &size, "stele-test-bed", &place]).context(NEEDS)?;
        undo.add(&loop_device::unmounting(&folder))?;
        let mut devices = Vec::new();
        for (kind, limit) in kinds {
            let count = |nodes: &Vec<char>| nodes.iter().filter(|it| *it == kind).count();
            for number in 1..=clusters.iter().map(count).max().unwrap_or(0) {
                let (image, at) = (
                    folder.join(format!("{kind}{number}.img")),
                    folder.join(format!("{kind}{number}")),
                );
                fs::create_dir(&at)?;
                let throttle =
                    loop_device::mount(&image, &at, DEVICE_BYTES, Backing::Memory, *limit, undo)
                        .context(NEEDS)?;
                devices.push(Device { kind: *kind, folder: at, throttle });
            }
        }
        let bed = Self { kinds: kinds.clone(), devices, tried: Vec::new() };
        let tried = bed.prove()?;
        Ok(Self { tried, ..bed })
    }

    /// Tries all devices at the same time, as a cluster uses them.
    fn prove(&self) -> Result<Vec<String>> {
        let found: Vec<Result<String>> = thread::scope(|scope| {
            let trials: Vec<_> = (self.devices.iter())
                .map(|device| scope.spawn(move || prove(&device.folder, self.limit(device.kind))))
                .collect();
            let failed = |_| Err(anyhow!("a trial has panicked"));
            trials.into_iter().map(|trial| trial.join().unwrap_or_else(failed)).collect()
        });
        let words = |(device, found): (&Device, Result<String>)| {
            let found = found.with_context(|| format!("trying {}", device.folder.display()))?;
            let name = device.folder.file_name().unwrap_or_default().to_string_lossy();
            let limit = self.limit(device.kind).words();
            Ok(format!("device {name}: {limit}; tried before: {found}"))
        };
        self.devices.iter().zip(found).map(words).collect()
    }

    fn limit(&self, kind: char) -> Limit {
        self.kinds.get(&kind).copied().unwrap_or_default()
    }

    pub(super) fn description(&self) -> String {
        let words = |(kind, limit): (&char, &Limit)| format!("{kind} {}", limit.words());
        let kinds: Vec<String> = self.kinds.iter().map(words).collect();
        format!("unequal devices in memory: {}", kinds.join(", "))
    }

    /// Empties devices for these nodes and returns a folder on each.
    pub(super) fn stores(&self, nodes: &[char]) -> Result<Vec<PathBuf>> {
        let mut free: Vec<&Device> = self.devices.iter().collect();
        let mut stores = Vec::new();
        for node in nodes {
            let at = free.iter().position(|device| device.kind == *node);
            let device = free.remove(at.with_context(|| format!("no device {node} is left"))?);
            loop_device::clear(&device.folder)?;
            device.throttle.change(self.limit(*node))?;
            stores.push(device.folder.join("store"));
        }
        Ok(stores)
    }

    /// Divides the limit of the device that holds `store` by `factor`; 1 restores it.
    pub(super) fn slow_down(&self, store: &Path, factor: u64) -> Result<()> {
        let device = self.devices.iter().find(|device| store.starts_with(&device.folder));
        let device = device.with_context(|| format!("no device holds {}", store.display()))?;
        let limit = self.limit(device.kind);
        ensure!(limit != Limit::default(), "device {} has no limit to divide", device.kind);
        device.throttle.change(limit.divided_by(factor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(text: &[(&str, &str)]) -> Result<Kinds> {
        let own = |(name, limit): &(&str, &str)| ((*name).to_owned(), (*limit).to_owned());
        kinds(&text.iter().map(own).collect())
    }

    #[test]
    fn clusters_are_numbers_and_kinds() {
        let kinds = declared(&[("N", "unlimited"), ("P", "10MBps,300ops")]).unwrap();
        assert_eq!(nodes(&kinds, "1N2P").unwrap(), ['N', 'P', 'P']);
        for wrong in ["", "1", "N", "0N", "1N2", "2X", "99N", "-1N"] {
            assert!(nodes(&kinds, wrong).is_err(), "{wrong}");
        }
        for wrong in [("NN", "unlimited"), ("n", "unlimited"), ("", "unlimited"), ("N", "fast")] {
            assert!(declared(&[wrong]).is_err(), "{wrong:?}");
        }
    }

    /// Returns early where the machine lacks loop devices, the cgroup or the permission to use
    /// them.
    #[test]
    fn devices_are_emptied_between_clusters_and_nothing_is_left_behind() {
        let (work, mut undo) = (tempfile::tempdir().unwrap(), Undo::new().unwrap());
        let kinds = declared(&[("N", "unlimited"), ("P", "10MBps,300ops")]).unwrap();
        let clusters = [vec!['P'], vec!['N', 'P']];
        match Bed::make(&kinds, &clusters, work.path(), &mut undo) {
            Ok(bed) => {
                assert_eq!(bed.tried.len(), 2, "{:?}", bed.tried);
                let stores = bed.stores(&clusters[1]).unwrap();
                fs::create_dir(&stores[1]).unwrap();
                fs::write(stores[1].join("file"), [7; 5000]).unwrap();
                assert!(bed.stores(&['P', 'P']).is_err());
                let again = bed.stores(&clusters[0]).unwrap();
                assert!(again[0] == stores[1] && !stores[1].exists());
                assert!(bed.description().ends_with("N no limit, P 10 MB/s and 300 operations/s"));
            }
            Err(error) => println!("not possible here: {error:#}"),
        }
        drop(undo);
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0);
    }
}
