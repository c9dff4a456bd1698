//! Operations end when the profile says, on a clock that moves only when a caller sleeps.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_types::{Cause, Clock};
use stele_vfs::{
    AlignedBuf, DeviceProfile, DeviceScale, Open, ProfiledVfs, Sleep, SlowedVfs, Vfs, VfsFile,
};

/// A clock that moves to the time until which a caller sleeps.
#[derive(Debug, Default)]
pub(super) struct Steps(AtomicU64);

impl Clock for Steps {
    fn unix_millis(&self) -> u64 {
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

/// 100 µs for a read, 20 for a write, 50 for a sync; a byte takes 10 ns to read and 20 to write.
const PROFILE: DeviceProfile = DeviceProfile {
    read_latency: Duration::from_micros(100),
    write_latency: Duration::from_micros(20),
    sync_latency: Duration::from_micros(50),
    read_bytes_per_s: 100_000_000,
    write_bytes_per_s: 50_000_000,
    queue_depth: 4,
};

fn file(profile: DeviceProfile) -> (Arc<Steps>, Arc<dyn VfsFile>) {
    let clock = Arc::new(Steps::default());
    let disk = Arc::new(SimVfs::new(SimOptions::default()));
    let device = ProfiledVfs::new(disk, profile, clock.clone()).unwrap();
    device.create_dir_all(Path::new("/d")).unwrap();
    let file = device.open(Path::new("/d/file"), Open::CREATE).unwrap();
    file.write_at(&[IoSlice::new(&[7; 10_000])], 0, Cause::Log).unwrap();
    file.sync_data().unwrap();
    clock.0.store(1_000_000_000, Ordering::SeqCst);
    (clock, file)
}

/// Returns the microseconds that `work` takes.
fn micros(clock: &Steps, work: impl FnOnce()) -> u64 {
    let before = clock.monotonic_nanos();
    work();
    (clock.monotonic_nanos() - before) / 1000
}

fn read(file: &dyn VfsFile, offset: u64) {
    let mut buffer = [0; 1000];
    assert_eq!(file.read_at(&mut buffer, offset).unwrap(), 1000);
    assert_eq!(buffer, [7; 1000]);
}

#[test]
fn reads_one_after_the_other_take_their_latency_and_transfer_each() {
    let (clock, file) = file(PROFILE);
    assert_eq!(micros(&clock, || (0..3).for_each(|n| read(&*file, n * 1000))), 3 * 110);
    assert!(!file.read_cached_at(&mut [0; 10], 0).unwrap());
}

#[test]
fn hinted_reads_overlap_up_to_the_queue_depth_and_share_the_bandwidth() {
    let (clock, file) = file(PROFILE);
    let hinted = |count: u64| {
        micros(&clock, || {
            (0..count).for_each(|n| file.will_read(n * 1000, 1000));
            (0..count).for_each(|n| read(&*file, n * 1000));
        })
    };
    assert_eq!(hinted(4), 4 * 10 + 100);
    // The fifth begins when the first has ended.
    assert_eq!(hinted(5), 110 + 110);
    assert_eq!(hinted(1), 110, "a hint serves one read");
    let wide = DeviceProfile { queue_depth: 100, ..PROFILE };
    let (clock, file) = self::file(wide);
    let all = micros(&clock, || {
        (0..100).for_each(|n| file.will_read(n % 10 * 1000, 1000));
        (0..100).for_each(|n| read(&*file, n % 10 * 1000));
    });
    assert_eq!(all, 100 * 10 + 100, "the transfers do not overlap");
}

#[test]
fn a_sync_ends_after_the_writes_before_it() {
    let (clock, file) = file(PROFILE);
    let write = || file.write_at(&[IoSlice::new(&[1; 1000])], 0, Cause::Log).unwrap();
    assert_eq!(micros(&clock, write), 20 + 20);
    assert_eq!(micros(&clock, || file.sync_data().unwrap()), 50);
    let started = || {
        let mut part = AlignedBuf::zeroed(1000);
        part.as_mut_slice().fill(2);
        drop(file.start_write(part, 0, Cause::Log).unwrap());
        file.finish_writes().unwrap();
        file.sync_data().unwrap();
    };
    assert_eq!(micros(&clock, started), 20 + 20 + 50);
}

#[test]
fn a_stripe_has_the_bandwidth_and_depth_of_its_devices_and_the_latency_of_one() {
    let (clock, file) = file(PROFILE.striped(2));
    let eight = micros(&clock, || {
        (0..8).for_each(|n| file.will_read(n * 1000, 1000));
        (0..8).for_each(|n| read(&*file, n * 1000));
    });
    assert_eq!(eight, 8 * 5 + 100);
    let none = DeviceProfile { read_bytes_per_s: 0, ..PROFILE };
    let disk = Arc::new(SimVfs::new(SimOptions::default()));
    let refused = ProfiledVfs::new(disk, none, Arc::new(Steps::default())).unwrap_err();
    assert!(refused.to_string().contains("bandwidth"), "{refused}");
}

#[test]
fn an_operation_takes_the_factor_of_its_time_and_a_change_counts_at_once() {
    let clock = Arc::new(Steps::default());
    let disk = Arc::new(SimVfs::new(SimOptions::default()));
    let real = Arc::new(ProfiledVfs::new(disk, PROFILE, clock.clone()).unwrap());
    let scale = Arc::new(DeviceScale::new());
    let device = SlowedVfs::new(real, scale.clone(), clock.clone());
    device.create_dir_all(Path::new("/d")).unwrap();
    let file = device.open(Path::new("/d/file"), Open::CREATE).unwrap();
    let write = || file.write_at(&[IoSlice::new(&[7; 1000])], 0, Cause::Log).unwrap();
    let sync = || file.sync_data().unwrap();
    assert_eq!((micros(&clock, write), micros(&clock, sync)), (40, 50));
    scale.set(8).unwrap();
    assert_eq!((micros(&clock, write), micros(&clock, sync)), (8 * 40, 8 * 50));
    assert_eq!(micros(&clock, || read(&*file, 0)), 8 * 110);
    let started = || {
        let mut part = AlignedBuf::zeroed(1000);
        part.as_mut_slice().fill(2);
        drop(file.start_write(part, 0, Cause::Log).unwrap());
        file.finish_writes().unwrap();
    };
    assert_eq!(micros(&clock, started), 8 * 40);
    scale.set(1).unwrap();
    assert_eq!((micros(&clock, started), micros(&clock, sync)), (40, 50));
    assert!(scale.set(0).is_err() && scale.set(1001).is_err());
    assert_eq!(scale.get(), 1, "a refused factor changes nothing");
}
