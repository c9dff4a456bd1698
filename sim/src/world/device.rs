//! Speed of a store's device in a run with lasting profiles.

use super::World;
use crate::hardware::{self, Profile, Small};
use stele_types::{DeviceSpeed, LogBatch, Record};
use stele_vfs::DeviceTimes;

/// Bytes of a record besides its payload.
const RECORD_BYTES: u64 = 32;
/// Factor of a write's duration while the store receives a snapshot: it shares the device.
const RECEIVING_TIMES: u64 = 3;

/// Speed of a device, and what its store has measured.
#[derive(Debug)]
pub struct Device {
    profile: Option<Profile>,
    /// Factor by which the device is slower than its profile at present.
    slowdown: u64,
    /// Speed that the probe of the store's first start found.
    probed: DeviceSpeed,
    times: DeviceTimes,
}

impl Device {
    /// Creates a device; without a profile its operations take no time of their own, and its store
    /// reports no speed.
    pub fn new(profile: Option<Profile>) -> Self {
        let Profile { write, read } = profile.unwrap_or_default();
        let probed = DeviceSpeed { write, read, ..DeviceSpeed::default() };
        let times = DeviceTimes::new();
        times.set_prior(probed);
        Self { profile, slowdown: 1, probed, times }
    }

    /// Forgets what a process measured, except the probe.
    pub fn restart(&mut self) {
        self.times = DeviceTimes::new();
        self.times.set_prior(self.probed);
    }

    /// Changes the lasting speed.
    pub fn set_profile(&mut self, profile: Option<Profile>) {
        self.profile = profile;
    }

    /// Makes the device slower than its profile by a factor; 1 ends that.
    pub fn slow_down(&mut self, times: u64) {
        self.slowdown = times;
    }

    /// Returns the present cost of operations; `None` without a profile.
    pub fn cost(&self) -> Option<Profile> {
        self.profile.map(|profile| profile.slower(self.slowdown))
    }

    /// Returns the duration of a write.
    pub fn write_nanos(&self, bytes: u64) -> u64 {
        self.cost().map_or(0, |cost| cost.write.nanos(bytes))
    }

    /// Returns the duration of a read.
    pub fn read_nanos(&self, bytes: u64) -> u64 {
        self.cost().map_or(0, |cost| cost.read.nanos(bytes))
    }

    /// Returns the duration of a write that the probe of the store's first start found.
    pub fn probed_nanos(&self, bytes: u64) -> u64 {
        self.probed.write.nanos(bytes)
    }

    /// Returns what the running store measures; `None` without a profile.
    pub fn times(&self) -> Option<&DeviceTimes> {
        self.profile.is_some().then_some(&self.times)
    }
}

/// Returns the bytes of a batch on the device.
pub(super) fn bytes_of(batch: &LogBatch) -> u64 {
    let bytes = |record: &Record| match record {
        Record::Entry(entry) => entry.payload.len() as u64,
        Record::HardState(..) | Record::Mark(..) => 0,
    };
    batch.records.iter().map(|record| RECORD_BYTES + bytes(record)).sum()
}

impl World {
    pub(super) fn device_nanos(&self, number: u64, batch: &LogBatch) -> u64 {
        let nanos =
            self.slots.get(&number).map_or(0, |slot| slot.device.write_nanos(bytes_of(batch)));
        match self.receiving(number) {
            0 => nanos,
            _ => nanos * RECEIVING_TIMES,
        }
    }

    pub(crate) fn receiving(&self, number: u64) -> u64 {
        self.streams.values().filter(|stream| stream.is_received_by(number)).count() as u64
    }

    /// Returns the capacity of a store's device. Before and after the faults each is large enough.
    pub(crate) fn capacity_bytes(&self, number: u64) -> u64 {
        match self.small(number) {
            Some(Small::Capacity(bytes)) => bytes,
            Some(Small::Usable(_)) | None => self.plan.capacity_bytes,
        }
    }

    /// Returns the part of a device that data may fill, as its store reports it.
    pub(crate) fn usable_bytes(&self, number: u64) -> u64 {
        let reserved_bytes = self.engine_options(number).map_or(0, |it| it.reserved_bytes);
        match self.small(number) {
            Some(Small::Usable(bytes)) => bytes,
            _ => self.capacity_bytes(number).saturating_sub(reserved_bytes),
        }
    }

    fn small(&self, number: u64) -> Option<Small> {
        hardware::small(&self.plan, number).filter(|_| self.nemesis.is_active())
    }

    pub(crate) fn set_profiles(&mut self, flips: u64) {
        for slot in self.slots.values_mut() {
            slot.device.set_profile(hardware::profile(&self.plan, slot.number, flips));
        }
    }
}
