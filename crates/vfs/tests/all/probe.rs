//! A probe measures what a device states, ends in time and leaves nothing behind.

use super::profiled::Steps;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stele_simulated_disk::{Fault, SimOptions, SimVfs};
use stele_types::{Cause, Clock, Error};
use stele_vfs::{DeviceProfile, Open, Probed, ProfiledVfs, Vfs, probe, remove_probe};

fn disk() -> Arc<SimVfs> {
    let disk = Arc::new(SimVfs::new(SimOptions::default()));
    disk.create_dir_all(Path::new("/d")).unwrap();
    disk
}

fn names(disk: &SimVfs) -> Vec<String> {
    disk.list(Path::new("/d")).unwrap().into_iter().map(|entry| entry.name).collect()
}

/// Probes an emulated device; returns the result and the nanoseconds that it took.
fn probed(write_bytes_per_s: u64, write_micros: u64, sync_micros: u64) -> (Probed, u64) {
    let (clock, disk) = (Arc::new(Steps::default()), disk());
    let profile = DeviceProfile {
        write_latency: Duration::from_micros(write_micros),
        sync_latency: Duration::from_micros(sync_micros),
        write_bytes_per_s,
        ..DeviceProfile::FLASH
    };
    let device = ProfiledVfs::new(disk.clone(), profile, clock.clone()).unwrap();
    let probed = probe(&device, &*clock, Path::new("/d"), 7).unwrap();
    assert_eq!(names(&disk), [""; 0]);
    (probed, clock.monotonic_nanos())
}

#[test]
fn a_probe_measures_the_speed_that_the_device_has() {
    for (bytes_per_s, write, sync) in [
        (3_000_000_000, 20, 50),
        (500_000_000, 100, 2_000),
        (40_000_000, 300, 200),
        (10_000_000, 1_000, 2_300),
    ] {
        let (probed, nanos) = probed(bytes_per_s, write, sync);
        let near = |found: u64, wanted: u64| {
            assert!(found.abs_diff(wanted) * 5 <= wanted, "{found} and not {wanted}: {probed:?}");
        };
        near(probed.large_bytes_per_second, bytes_per_s);
        near(probed.small_nanos, (write + sync) * 1000 + 4096 * 1_000_000_000 / bytes_per_s);
        near(probed.cost().fixed_nanos, (write + sync) * 1000);
        near(probed.cost().picos_per_byte, 1_000_000_000_000 / bytes_per_s);
        assert!(nanos <= 2_000_000_000, "it took {nanos} ns");
    }
}

#[test]
fn a_probe_of_a_very_slow_device_ends_after_the_operation_under_way() {
    let (probed, nanos) = probed(1_000_000, 1_000, 300_000);
    assert!(probed.small_nanos > 300_000_000);
    assert!(nanos < 5_000_000_000, "it took {nanos} ns");
}

#[test]
fn a_probe_leaves_nothing_behind_also_if_it_fails_or_was_interrupted() {
    let (disk, clock, dir) = (disk(), Steps::default(), Path::new("/d"));
    disk.inject(Fault::SyncFails { path_contains: "PROBE".to_owned(), nth: 1 }).unwrap();
    probe(&*disk, &clock, dir, 1).unwrap_err();
    assert_eq!(names(&disk), [""; 0]);
    let left = disk.open(&dir.join("PROBE"), Open::CREATE).unwrap();
    left.write_at(&[IoSlice::new(&[1; 100])], 0, Cause::Probe).unwrap();
    // On a disk that takes no time, the speed has no bound and is not zero.
    let probed = probe(&*disk, &clock, dir, 1).unwrap();
    assert!(probed.large_bytes_per_second > 1 << 40);
    assert_eq!(names(&disk), [""; 0]);
    remove_probe(&*disk, dir).unwrap();
}

#[test]
fn a_probe_of_a_full_device_writes_nothing() {
    let disk = SimVfs::new(SimOptions { capacity_bytes: Some(100 << 20), ..SimOptions::default() });
    disk.create_dir_all(Path::new("/d")).unwrap();
    let refused = probe(&disk, &Steps::default(), Path::new("/d"), 1).unwrap_err();
    assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
    assert_eq!(disk.meter().snapshot().total(), 0);
}
