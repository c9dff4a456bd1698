//! Blocks that count as written and that no device wrote: `FALLOC_FL_WRITE_ZEROES`.
//!
//! A sync after a write into blocks that are only reserved, or after the end of a file, also writes the
//! metadata of the file system. Linux 6.17 has a flag by which blocks are marked as written if the device
//! returns zeros for what it unmaps. ext4 accepts it on a device that states so
//! (`queue/write_zeroes_unmap_max_bytes` is not 0): NVMe with DEAC, SCSI that unmaps by WRITE SAME. Other file
//! systems, older kernels, and virtio, loop and zram devices refuse it.

use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::collections::BTreeSet;

/// `FALLOC_FL_WRITE_ZEROES` of `linux/falloc.h`.
const WRITE_ZEROES: u32 = 0x80;

/// Devices that refused the flag. They are not asked again: a mount keeps its device and its limits.
#[derive(Debug, Default)]
pub(super) struct Zeroes {
    refused: Mutex<BTreeSet<u64>>,
}

impl Zeroes {
    /// Writes zeros by `fallocate`, which gets the flags, unless the device (`st_dev`) refused them before.
    /// Returns whether it did.
    pub(super) fn write(
        &self,
        device: u64,
        fallocate: impl FnOnce(FallocateFlags) -> Result<(), Errno>,
    ) -> Result<bool, Errno> {
        // bug vfs.zeroes_are_asked_for_again: never
        if self.refused.lock().contains(&device) {
            return Ok(false);
        }
        // Together with `FALLOC_FL_KEEP_SIZE` the kernel refuses it: blocks after the end are never written.
        match fallocate(FallocateFlags::from_bits_retain(WRITE_ZEROES)) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                self.refused.lock().insert(device);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_refuses_zeroes_is_asked_once_and_a_full_one_again() {
        let zeroes = Zeroes::default();
        let mut asked = Vec::new();
        let mut write = |device, result| {
            zeroes.write(device, |flags| {
                asked.push((device, flags.bits()));
                result
            })
        };
        assert_eq!(write(1, Ok(())), Ok(true));
        assert_eq!(write(1, Err(Errno::NOSPC)), Err(Errno::NOSPC));
        assert_eq!(write(1, Ok(())), Ok(true));
        for (device, error) in [(2, Errno::OPNOTSUPP), (3, Errno::INVAL), (4, Errno::NOSYS)] {
            assert_eq!(write(device, Err(error)), Ok(false));
            assert_eq!(write(device, Ok(())), Ok(false), "it is not asked");
        }
        assert_eq!(write(1, Ok(())), Ok(true), "the refusal of another device");
        let devices: Vec<u64> = asked.iter().map(|(device, _)| *device).collect();
        assert_eq!(devices, [1, 1, 1, 2, 3, 4, 1]);
        // Without FALLOC_FL_KEEP_SIZE, with which the kernel refuses it everywhere.
        assert!(asked.iter().all(|(_, flags)| *flags == 0x80));
    }
}
