//! Writes that go on while their caller does, and the parts of a long read at the same time: the
//! kernel's queue for direct I/O (Linux AIO). It takes a write to blocks that exist without waiting
//! for the device, needs no thread, and is there also where containers may not use `io_uring`.

use crate::AlignedBuf;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use stele_types::Cause;

/// What is under way at a time in one queue; what is more its caller does.
const UNDER_WAY_MAX: usize = 32;

/// `IOCB_CMD_PREAD` and `IOCB_CMD_PWRITE` of `linux/aio_abi.h`.
const PREAD: u16 = 0;
const PWRITE: u16 = 1;

/// `struct iocb` of `linux/aio_abi.h`, but for the order of two fields that are zero here.
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

/// A write.
#[derive(Debug)]
pub(super) struct Write {
    pub part: AlignedBuf,
    pub offset: u64,
    pub cause: Cause,
}

/// The queues that no file uses: making and ending one takes the kernel long.
#[derive(Debug, Default)]
pub(super) struct Queues {
    idle: Mutex<Vec<Queue>>,
}

impl Queues {
    /// `None` where the system has none to give.
    pub fn take(&self) -> Option<Queue> {
        let idle = self.idle.lock().pop();
        idle.or_else(Queue::new)
    }

    pub fn put_back(&self, queue: Queue) {
        self.idle.lock().push(queue);
    }
}

/// Writes of one file under way, or a read. The memory of writes is the queue's until the kernel is
/// done with it.
#[derive(Debug)]
pub(super) struct Queue {
    context: libc::c_ulong,
    writes: Vec<Write>,
    /// How each that was begun ended: bytes, or an error number below zero.
    results: Vec<i64>,
    /// How many of them have not.
    under_way: usize,
}

impl Queue {
    fn new() -> Option<Self> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the one number that `context` has room for.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, UNDER_WAY_MAX, &raw mut context) };
        let (writes, results) = (Vec::new(), Vec::new());
        (made == 0).then_some(Self { context, writes, results, under_way: 0 })
    }

    /// Gives the write back when it was not begun.
    pub fn start(&mut self, file: &File, write: Write) -> Result<(), Write> {
        let control = Control {
            operation: PWRITE,
            file: file.as_raw_fd() as u32,
            memory: write.part.as_ptr().addr() as u64,
            bytes: write.part.len() as u64,
            offset: write.offset as i64,
            ..Control::default()
        };
        // SAFETY: the part's memory is initialised, and neither freed, moved nor written before the
        // event: `self.writes` owns it, and lets go of it in `finish` only, which waits for all events.
        if !unsafe { self.begin(control) } {
            return Err(write);
        }
        self.writes.push(write);
        Ok(())
    }

    /// Waits for all writes, and gives them in the order they were begun, with the bytes written, or an
    /// error number below zero.
    pub fn finish(&mut self) -> io::Result<Vec<(Write, i64)>> {
        let results = self.wait()?;
        Ok(std::mem::take(&mut self.writes).into_iter().zip(results).collect())
    }

    /// Reads `memory` in parts, all under way at the same time. Returns the bytes up to the first part
    /// that was not read whole: the caller goes on from there, and meets what went wrong.
    pub fn read(
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
            if !unsafe { self.begin(control) } {
                break;
            }
            wanted.push(part.len());
        }
        // The kernel may still write to memory that is not ours once we return.
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

    /// Whether the kernel took it.
    ///
    /// # Safety
    /// The memory that `control` names must be the kernel's alone (to read, for a write) until
    /// [`Queue::wait`] has returned.
    unsafe fn begin(&mut self, mut control: Control) -> bool {
        if self.results.len() >= UNDER_WAY_MAX {
            return false;
        }
        control.data = self.results.len() as u64;
        let one: libc::c_long = 1;
        let mut controls = [&raw mut control];
        // SAFETY: the kernel copies `control` before it returns; the memory is the caller's promise.
        let begun =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, one, controls.as_mut_ptr()) };
        if begun != 1 {
            return false;
        }
        self.results.push(0);
        self.under_way += 1;
        true
    }

    /// Waits for all that was begun; how each ended.
    fn wait(&mut self) -> io::Result<Vec<i64>> {
        let mut events = [Event::default(); UNDER_WAY_MAX];
        while self.under_way > 0 {
            let (least, most) = (self.under_way, events.len());
            let forever: *mut libc::timespec = std::ptr::null_mut();
            let to = events.as_mut_ptr();
            // SAFETY: the kernel writes at most `most` events, for which there is room.
            let got = unsafe {
                libc::syscall(libc::SYS_io_getevents, self.context, least, most, to, forever)
            };
            match usize::try_from(got) {
                Ok(got) => self.take(events.get(..got).unwrap_or_default()),
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

    fn take(&mut self, events: &[Event]) {
        for event in events {
            if let Some(result) = self.results.get_mut(event.data as usize) {
                *result = event.result;
                self.under_way -= 1;
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
        // SAFETY: the context is this queue's, and is not used again.
        let _freed = unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}
