//! Device of a store (KV-SSD section 3.1: device information, capacity and utilisation).

use crate::store::Store;
use stele_types::Result;

/// Device of a store, as its file system reports it. The device may have other users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Number of the device (`st_dev`). Stores on one file system have the same number.
    pub number: u64,
    /// Size of the device in bytes.
    pub capacity_bytes: u64,
    /// Bytes that are free, for all users.
    pub free_bytes: u64,
    /// Bytes that the store takes.
    pub store_bytes: u64,
}

impl Device {
    pub(super) fn of(store: &Store) -> Result<Self> {
        let shared = store.shared();
        Ok(Self {
            number: shared.vfs.device_number(&shared.dir)?,
            capacity_bytes: shared.vfs.total_bytes(&shared.dir)?,
            free_bytes: shared.vfs.free_bytes(&shared.dir)?,
            store_bytes: crate::store::count_disk_bytes(shared)?,
        })
    }

    /// Returns the bytes in use, by all users.
    pub fn used_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.free_bytes)
    }

    /// Returns the part of the device that is in use, from 0 to 1; 0 for a device without a size.
    pub fn utilisation(&self) -> f64 {
        match self.capacity_bytes {
            0 => 0.0,
            capacity => self.used_bytes() as f64 / capacity as f64,
        }
    }
}
