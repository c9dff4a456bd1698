//! A probe measures what a device states, ends in time and leaves nothing behind.

use super::{exp2, log2, *};
use crate::{DeviceProfile, Fault, ProfiledVfs, SimOptions, SimVfs, Sleep};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A clock that moves to the time until which a caller sleeps.
#[derive(Debug, Default)]
struct Steps(AtomicU64);

impl Clock for Steps {
    fn unix_seconds(&self) -> u64 {
        0
    }

    fn monotonic_nanos(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Sleep for Steps {
    fn sleep_until(&self, monotonic_nanos: u64) {
        self.0.fetch_max(monotonic_nanos, Ordering::SeqCst);
    }
}

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
        near(probed.cost().picos_per_byte, PICOS_OF_SECOND / bytes_per_s);
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
    disk.inject(Fault::SyncFails { path_contains: NAME.to_owned(), nth: 1 }).unwrap();
    probe(&*disk, &clock, dir, 1).unwrap_err();
    assert_eq!(names(&disk), [""; 0]);
    let left = disk.open(&dir.join(NAME), Open::CREATE).unwrap();
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

#[test]
fn logarithms_are_those_of_the_mathematics() {
    for number in [1, 2, 3, 10, 983, 65_536, 1 << 40, u64::MAX] {
        let exact = (number as f64).log2() * 65_536.0;
        assert!((log2(number) as f64 - exact).abs() < 2.0, "{number}");
    }
    for number in [1, 2, 7, 100, 1_000, 30_000] {
        assert_eq!(exp2(log2(number)), number);
    }
    assert_eq!((exp2(-5), log2(0)), (1, 0));
}

#[test]
fn the_default_curve_expects_fewer_puts_than_writes_and_more_on_a_faster_device() {
    let mut before = 0;
    for writes in [10, 81, 200, 1_000, 5_390, 20_000, 100_000] {
        let device = OpCost { fixed_nanos: 1_000_000_000 / writes, picos_per_byte: 0 };
        let puts = Curve::DEFAULT.expected(device, 16 << 10).per_second(16 << 10).unwrap();
        assert!(puts > before && puts * 2 > writes && puts <= writes, "{writes}: {puts}");
        before = puts;
    }
}

#[test]
fn a_curve_scales_the_cost_and_keeps_its_distance_outside_of_the_fit() {
    let same = Curve { coefficients: [0, 1 << 16, 0], range: [0, 30 << 16] };
    let device = OpCost { fixed_nanos: 84_000, picos_per_byte: 1_000 };
    assert_eq!(same.expected(device, 16_000), device);
    let half = Curve { coefficients: [-(1 << 16), 1 << 16, 0], ..same };
    let twice = OpCost { fixed_nanos: 168_000, picos_per_byte: 2_000 };
    assert_eq!(half.expected(device, 16_000), twice);
    assert_eq!(half.expected(OpCost::default(), 16_000), OpCost::default());
    // y = 2x - 10 up to x = 10: from there on y = x.
    let bent = Curve { coefficients: [-10 << 16, 2 << 16, 0], range: [8 << 16, 10 << 16] };
    let puts = [6, 8, 9, 10, 14].map(|x| bent.log2_puts(x << 16) >> 16);
    assert_eq!(puts, [4, 6, 8, 10, 14]);
    let squared = Curve { coefficients: [0, 0, 1 << 14], range: [0, 30 << 16] };
    assert_eq!(squared.log2_puts(6 << 16), 9 << 16);
}
