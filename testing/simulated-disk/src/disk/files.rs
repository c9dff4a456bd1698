//! Operations of open files. Invariant: an open file has an inode.

use super::{Disk, Stalled, Step, crash_error, injected, not_found, refused};
use crate::fault::{Event, Fault, Operation, Trigger};
use crate::inode::Inode;
use crate::names::InodeId;
use bytes::Bytes;
use std::path::Path;
use stele_types::{Cause, Error, Result};

impl Disk {
    fn inode(&mut self, op: &'static str, id: InodeId, path: &Path) -> Result<&mut Inode> {
        self.inodes.get_mut(&id).ok_or_else(|| not_found(op, path))
    }

    pub(crate) fn close(&mut self, id: InodeId) {
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.open = inode.open.saturating_sub(1);
            if inode.open == 0 && !inode.linked {
                self.drop_unreachable();
            }
        }
    }

    pub(crate) fn len(&mut self, id: InodeId, path: &Path) -> Result<u64> {
        self.check_power("stat", path)?;
        Ok(self.inode("stat", id, path)?.visible.len)
    }

    pub(crate) fn read(
        &mut self,
        id: InodeId,
        path: &Path,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<(usize, Stalled)> {
        self.check_power("read", path)?;
        let faults = self.faults.take_due(Trigger::Read, path);
        if faults.iter().any(|fault| matches!(fault, Fault::ReadFails { .. })) {
            return Err(injected("read", path));
        }
        let inode = self.inode("read", id, path)?;
        if let Some(at) = inode.refused(offset..offset + buffer.len() as u64) {
            return Err(refused(path, at));
        }
        let got = inode.visible.read(buffer, offset);
        let flips = faults.iter().filter(|fault| matches!(fault, Fault::ReadFlipsOnce { .. }));
        for _flip in flips {
            let at = self.prng.below(got as u64) as usize;
            let bit = self.prng.below(8);
            if let Some(byte) = buffer.get_mut(at..got).and_then(<[u8]>::first_mut) {
                *byte ^= 1 << bit;
            }
        }
        Ok((got, self.stalled(&faults)))
    }

    pub(crate) fn write(
        &mut self,
        id: InodeId,
        path: &Path,
        data: Bytes,
        offset: u64,
        cause: Cause,
    ) -> Result<Stalled> {
        let bytes = data.len() as u64;
        let kept = self.record_writes.then(|| data.clone());
        let event = Event::new(Operation::Write, path);
        let event = Event { offset, bytes, cause: Some(cause), data: kept, ..event };
        let step = self.begin("write", event)?;
        let faults = self.faults.take_due(Trigger::Write, path);
        let fails = faults.iter().any(|fault| matches!(fault, Fault::WriteFails { .. }));
        if faults.iter().any(|fault| matches!(fault, Fault::NoRoomOnce { .. })) {
            return Err(Error::NoSpace(path.to_path_buf()));
        }
        let room = self.room_now().unwrap_or(u64::MAX);
        let inode = self.inodes.get_mut(&id).ok_or_else(|| not_found("write", path))?;
        if step == Step::Part || fails {
            inode.write_torn(offset, &data, &mut self.prng);
            return Err(if fails { injected("write", path) } else { crash_error("write", path) });
        }
        if faults.iter().any(|fault| matches!(fault, Fault::LoseWrite { .. })) {
            inode.grow(offset + bytes);
        } else if faults.iter().any(|fault| matches!(fault, Fault::MisdirectWrite { .. })) {
            inode.grow(offset + bytes);
            self.misdirect(id, offset, data);
        } else {
            let fitting = inode.visible.fitting(offset, data.len(), inode.reserved, room);
            inode.write(offset, data.slice(..fitting));
            if fitting < data.len() {
                return Err(Error::NoSpace(path.to_path_buf()));
            }
        }
        Ok(self.stalled(&faults))
    }

    fn stalled(&mut self, faults: &[Fault]) -> Stalled {
        let is_stall =
            |fault: &&Fault| matches!(fault, Fault::Stall { .. } | Fault::ReadStalls { .. });
        let stalled = faults.iter().filter(is_stall).count();
        self.stalls += stalled as u64;
        stalled > 0
    }

    fn misdirect(&mut self, id: InodeId, offset: u64, data: Bytes) {
        const STEP_BYTES: u64 = 512;
        let Some(inode) = self.inodes.get_mut(&id) else { return };
        // Whole steps at which the write still ends within the file.
        let places = inode.visible.len.saturating_sub(data.len() as u64) / STEP_BYTES + 1;
        let place = self.prng.below(places) * STEP_BYTES;
        if place != offset {
            return inode.write(place, data);
        }
        if places > 1 {
            return inode.write((place + STEP_BYTES) % (places * STEP_BYTES), data);
        }
        let other =
            |(other, inode): &(&InodeId, &mut Inode)| **other != id && inode.visible.len > 0;
        if let Some((_, inode)) = self.inodes.iter_mut().find(other) {
            inode.write(0, data);
        }
    }

    pub(crate) fn sync(&mut self, id: InodeId, path: &Path) -> Result<Stalled> {
        let step = self.begin("sync", Event::new(Operation::Sync, path))?;
        let faults = self.faults.take_due(Trigger::Sync, path);
        // bug vfs.skip_data_sync: return Ok(false);
        let fails = faults.iter().any(|fault| matches!(fault, Fault::SyncFails { .. }));
        let inode = self.inodes.get_mut(&id).ok_or_else(|| not_found("sync", path))?;
        if step == Step::Part || fails {
            inode.sync_partly(&mut self.prng);
            return Err(if fails { injected("sync", path) } else { crash_error("sync", path) });
        }
        inode.sync();
        Ok(self.stalled(&faults))
    }

    pub(crate) fn set_len(&mut self, id: InodeId, path: &Path, bytes: u64) -> Result<()> {
        let event = Event { bytes, ..Event::new(Operation::SetLen, path) };
        let fails = self.begin_atomic("set length", event)?;
        self.inode("set length", id, path)?.set_len(bytes);
        fails.map_or(Ok(()), Err)
    }

    pub(crate) fn allocate(&mut self, id: InodeId, path: &Path, bytes: u64) -> Result<()> {
        let event = Event { bytes, ..Event::new(Operation::Allocate, path) };
        let fails = self.begin_atomic("allocate", event)?;
        if self.options.is_without_reservations {
            return fails.map_or(Ok(()), Err);
        }
        let room = self.room_now();
        let inode = self.inode("allocate", id, path)?;
        let before = inode.allocated_bytes();
        let reserved = inode.reserved;
        inode.reserved = reserved.max(bytes);
        if room.is_some_and(|room| inode.allocated_bytes() - before > room) {
            inode.reserved = reserved;
            return Err(Error::NoSpace(path.to_path_buf()));
        }
        fails.map_or(Ok(()), Err)
    }
}
