//! Asynchronous writes, and concurrent parts of a long read: the kernel's queue for direct I/O
//! (Linux AIO). It accepts a write to existing blocks without waiting for the device, needs no
//! thread, and is available also where containers may not use `io_uring`.

use crate::AlignedBuf;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use stele_types::Cause;

/// Maximum operations in flight per queue; the caller does any further ones itself.
const IN_FLIGHT_MAX: usize = 32;

/// `IOCB_CMD_PREAD` and `IOCB_CMD_PWRITE` of `linux/aio_abi.h`.
const PREAD: u16 = 0;
const PWRITE: u16 = 1;

/// `struct iocb` of `linux/aio_abi.h`, except for the order of two fields that are zero here.
#[repr(C)]
#[derive(Default)]
struct Control {
    data: u64,
    key_and_flags: u64,
    operation: u16,
    priority: i16,
    file: u32,
    memory: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_file: u32,
}

/// `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    control: u64,
    result: i64,
    result2: i64,
}

#[derive(Debug)]
pub(super) struct Write {
    pub part: AlignedBuf,
    pub offset: u64,
    pub cause: Cause,
}

/// Queues that no file uses. They are kept because the kernel takes long to create and destroy one.
#[derive(Debug, Default)]
pub(super) struct Queues {
    idle: Mutex<Vec<Queue>>,
}

impl Queues {
    /// Takes an idle queue or creates one. Returns `None` when the system provides none.
    pub(super) fn take(&self) -> Option<Queue> {
        let idle = self.idle.lock().pop();
        idle.or_else(Queue::new)
    }

    pub(super) fn put_back(&self, queue: Queue) {
        self.idle.lock().push(queue);
    }
}

/// Writes of one file in flight, or a read. The queue owns the memory of writes until the kernel is
/// done with it.
#[derive(Debug)]
pub(super) struct Queue {
    context: libc::c_ulong,
    writes: Vec<Write>,
    /// Result of each submitted operation: bytes, or a negative error number.
    results: Vec<i64>,
    in_flight: usize,
}

impl Queue {
    fn new() -> Option<Self> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the one number that `context` has room for.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, IN_FLIGHT_MAX, &raw mut context) };
        let (writes, results) = (Vec::new(), Vec::new());
        (made == 0).then_some(Self { context, writes, results, in_flight: 0 })
    }

    /// Starts a write. Returns it in `Err` when it was not submitted.
    pub(super) fn start(&mut self, file: &File, write: Write) -> Result<(), Write> {
        let control = Control {
            operation: PWRITE,
            file: file.as_raw_fd() as u32,
            memory: write.part.as_ptr().addr() as u64,
            bytes: write.part.len() as u64,
            offset: write.offset as i64,
            ..Control::default()
        };
        // SAFETY: the part's memory is initialised, and neither freed, moved nor written before the
        // event: `self.writes` owns it and releases it only in `finish`, which waits for all
        // events.
        if !unsafe { self.submit(control) } {
            return Err(write);
        }
        self.writes.push(write);
        Ok(())
    }

    /// Waits for all writes. Returns them in the order of submission, each with the bytes written
    /// or a negative error number.
    pub(super) fn finish(&mut self) -> io::Result<Vec<(Write, i64)>> {
        let results = self.wait()?;
        Ok(std::mem::take(&mut self.writes).into_iter().zip(results).collect())
    }

    /// Reads `memory` in concurrent parts. Returns the bytes up to the first incomplete part: the
    /// caller continues from there and gets the error, if any.
    pub(super) fn read(
        &mut self,
        file: &File,
        memory: &mut [u8],
        offset: u64,
        part_bytes: usize,
    ) -> usize {
        let mut wanted = Vec::new();
        for part in memory.chunks_mut(part_bytes) {
            let control = Control {
                operation: PREAD,
                file: file.as_raw_fd() as u32,
                memory: part.as_mut_ptr().addr() as u64,
                bytes: part.len() as u64,
                offset: (offset + (wanted.len() * part_bytes) as u64) as i64,
                ..Control::default()
            };
            // SAFETY: the part is borrowed mutably until this function returns, which is after all
            // events, or never.
            if !unsafe { self.submit(control) } {
                break;
            }
            wanted.push(part.len());
        }
        // On return the kernel could still write to memory that is no longer borrowed.
        let Ok(results) = self.wait() else { std::process::abort() };
        let mut got = 0;
        for (wanted, result) in wanted.into_iter().zip(results) {
            let bytes = usize::try_from(result).unwrap_or(0);
            got += bytes;
            if bytes < wanted {
                break;
            }
        }
        got
    }

    /// Submits an operation. Returns `false` when the kernel did not accept it.
    ///
    /// # Safety
    /// Only the kernel may use the memory that `control` names (for a write, others may read it)
    /// until [`Queue::wait`] has returned.
    unsafe fn submit(&mut self, mut control: Control) -> bool {
        if self.results.len() >= IN_FLIGHT_MAX {
            return false;
        }
        control.data = self.results.len() as u64;
        let one: libc::c_long = 1;
        let mut controls = [&raw mut control];
        // SAFETY: the kernel copies `control` before it returns; the caller guarantees the memory.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, one, controls.as_mut_ptr()) };
        if submitted != 1 {
            return false;
        }
        self.results.push(0);
        self.in_flight += 1;
        true
    }

    /// Waits for all submitted operations. Returns their results.
    fn wait(&mut self) -> io::Result<Vec<i64>> {
        let mut events = [Event::default(); IN_FLIGHT_MAX];
        while self.in_flight > 0 {
            let (least, most) = (self.in_flight, events.len());
            let forever: *mut libc::timespec = std::ptr::null_mut();
            let to = events.as_mut_ptr();
            // SAFETY: the kernel writes at most `most` events, and `events` has space for them.
            let got = unsafe {
                libc::syscall(libc::SYS_io_getevents, self.context, least, most, to, forever)
            };
            match usize::try_from(got) {
                Ok(got) => self.record_results(events.get(..got).unwrap_or_default()),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(std::mem::take(&mut self.results))
    }

    fn record_results(&mut self, events: &[Event]) {
        for event in events {
            if let Some(result) = self.results.get_mut(event.data as usize) {
                *result = event.result;
                self.in_flight -= 1;
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.wait().is_err() {
            // The device may still read this memory.
            std::mem::forget(std::mem::take(&mut self.writes));
        }
        // SAFETY: the context belongs to this queue, and is not used again.
        let _freed = unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}
