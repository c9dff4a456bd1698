//! Asynchronous writes, concurrent parts of a long read, and many reads at once: the kernel's queue for
//! direct I/O (Linux AIO). It accepts a write to existing blocks without waiting for the device, takes
//! many operations with one call, needs no thread, and is available also where containers may not use
//! `io_uring`.

use crate::AlignedBuf;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use stele_types::Cause;

/// Maximum operations in flight of a queue for writes or a long read; the caller does any further ones
/// itself.
const IN_FLIGHT_MAX: usize = 32;
/// The same of a queue for many reads: as many as the queue of a device holds (`nr_requests`).
pub(super) const MANY_IN_FLIGHT_MAX: usize = 256;

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
    idle_long: Mutex<Vec<Queue>>,
}

impl Queues {
    /// Takes an idle queue or creates one. Returns `None` when the system provides none.
    pub(super) fn take(&self) -> Option<Queue> {
        let idle = self.idle.lock().pop();
        idle.or_else(|| Queue::new(IN_FLIGHT_MAX))
    }

    /// [`Queues::take`] of a queue for many reads.
    pub(super) fn take_long(&self) -> Option<Queue> {
        let idle = self.idle_long.lock().pop();
        idle.or_else(|| Queue::new(MANY_IN_FLIGHT_MAX))
    }

    pub(super) fn put_back(&self, queue: Queue) {
        let idle = if queue.in_flight_max == IN_FLIGHT_MAX { &self.idle } else { &self.idle_long };
        idle.lock().push(queue);
    }
}

/// Writes of one file in flight, or reads. The queue owns the memory of writes until the kernel is
/// done with it.
#[derive(Debug)]
pub(super) struct Queue {
    context: libc::c_ulong,
    in_flight_max: usize,
    writes: Vec<Write>,
    /// Result of each submitted operation: bytes, or a negative error number.
    results: Vec<i64>,
    in_flight: usize,
}

/// Read of a part of a file into memory.
#[derive(Debug)]
pub(super) struct Read<'a> {
    pub file: &'a File,
    pub memory: *mut u8,
    pub bytes: usize,
    pub offset: u64,
}

impl Read<'_> {
    fn control(&self) -> Control {
        Control {
            operation: PREAD,
            file: self.file.as_raw_fd() as u32,
            memory: self.memory.addr() as u64,
            bytes: self.bytes as u64,
            offset: self.offset as i64,
            ..Control::default()
        }
    }
}

impl Queue {
    fn new(in_flight_max: usize) -> Option<Self> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the one number that `context` has room for.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, in_flight_max, &raw mut context) };
        let (writes, results) = (Vec::new(), Vec::new());
        (made == 0).then_some(Self { context, in_flight_max, writes, results, in_flight: 0 })
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
        if unsafe { self.submit(&mut [control]) } == 0 {
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
        let (mut controls, mut wanted) = (Vec::new(), Vec::new());
        let mut at = offset;
        for part in memory.chunks_mut(part_bytes) {
            let (memory, bytes) = (part.as_mut_ptr(), part.len());
            controls.push(Read { file, memory, bytes, offset: at }.control());
            wanted.push(bytes);
            at += bytes as u64;
        }
        // SAFETY: the parts are borrowed mutably until this function returns, which is after all events,
        // or never.
        unsafe { self.submit(&mut controls) };
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

    /// Submits the first of some reads, as many as the queue has room for, with one call. Returns their
    /// number.
    ///
    /// # Safety
    /// Only the kernel may use the memory of the reads until [`Queue::wait`] has returned.
    pub(super) unsafe fn start_reads<'a>(
        &mut self,
        reads: impl Iterator<Item = Read<'a>>,
    ) -> usize {
        let mut controls: Vec<Control> =
            reads.take(self.in_flight_max).map(|read| read.control()).collect();
        // SAFETY: the caller guarantees the memory.
        unsafe { self.submit(&mut controls) }
    }

    /// Submits the first of some operations, as many as the kernel accepts. Returns their number.
    ///
    /// # Safety
    /// Only the kernel may use the memory that `controls` name (for a write, others may read it)
    /// until [`Queue::wait`] has returned.
    unsafe fn submit(&mut self, controls: &mut [Control]) -> usize {
        let room = self.in_flight_max.saturating_sub(self.results.len());
        let first = self.results.len();
        let number = |(n, control): (usize, &mut Control)| {
            control.data = (first + n) as u64;
            &raw mut *control
        };
        let mut controls: Vec<*mut Control> =
            controls.iter_mut().take(room).enumerate().map(number).collect();
        if controls.is_empty() {
            return 0;
        }
        let (count, from) = (controls.len(), controls.as_mut_ptr());
        // SAFETY: the kernel copies the controls before it returns; the caller guarantees the memory.
        let submitted = unsafe { libc::syscall(libc::SYS_io_submit, self.context, count, from) };
        let submitted = usize::try_from(submitted).unwrap_or(0);
        self.results.resize(first + submitted, 0);
        self.in_flight += submitted;
        submitted
    }

    /// Waits for all submitted operations. Returns their results, in the order of submission.
    pub(super) fn wait(&mut self) -> io::Result<Vec<i64>> {
        let mut events = [Event::default(); MANY_IN_FLIGHT_MAX];
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
