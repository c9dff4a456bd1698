//! Writes that go on while their caller does: the kernel's queue for direct I/O (Linux AIO). It
//! takes a write to blocks that exist without waiting for the device, needs no thread, and is there
//! also where containers may not use `io_uring`.

use crate::AlignedBuf;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use stele_types::Cause;

/// Writes of one file under way at a time; what is more is written by the caller.
const WRITES_MAX: usize = 32;

/// `IOCB_CMD_PWRITE` of `linux/aio_abi.h`.
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

/// A write, and how it ended: the bytes written, or an error number below zero.
#[derive(Debug)]
pub(super) struct Write {
    pub part: AlignedBuf,
    pub offset: u64,
    pub cause: Cause,
    pub result: i64,
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

/// Writes of one file under way. Their memory is the queue's until the kernel is done with it.
#[derive(Debug)]
pub(super) struct Queue {
    context: libc::c_ulong,
    writes: Vec<Write>,
    /// How many of `writes` have no result yet.
    under_way: usize,
}

impl Queue {
    fn new() -> Option<Self> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the one number that `context` has room for.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, WRITES_MAX, &raw mut context) };
        (made == 0).then(|| Self { context, writes: Vec::new(), under_way: 0 })
    }

    /// Gives the write back when it was not begun.
    pub fn start(&mut self, file: &File, write: Write) -> Result<(), Write> {
        if self.writes.len() >= WRITES_MAX {
            return Err(write);
        }
        let mut control = Control {
            data: self.writes.len() as u64,
            operation: PWRITE,
            file: file.as_raw_fd() as u32,
            memory: write.part.as_ptr().addr() as u64,
            bytes: write.part.len() as u64,
            offset: write.offset as i64,
            ..Control::default()
        };
        let one: libc::c_long = 1;
        let mut controls = [&raw mut control];
        // SAFETY: the kernel copies `control` before it returns. The part's memory is initialised,
        // and neither freed, moved nor written before the event: `self.writes` owns it, and lets go
        // of it in `finish` only, which waits for all events.
        let begun =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, one, controls.as_mut_ptr()) };
        if begun != 1 {
            return Err(write);
        }
        self.writes.push(write);
        self.under_way += 1;
        Ok(())
    }

    /// Waits for all writes, and gives them in the order they were begun.
    pub fn finish(&mut self) -> io::Result<Vec<Write>> {
        let mut events = [Event::default(); WRITES_MAX];
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
        Ok(std::mem::take(&mut self.writes))
    }

    fn take(&mut self, events: &[Event]) {
        for event in events {
            if let Some(write) = self.writes.get_mut(event.data as usize) {
                write.result = event.result;
                self.under_way -= 1;
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.finish().is_err() {
            // The device may still read this memory.
            std::mem::forget(std::mem::take(&mut self.writes));
        }
        // SAFETY: the context is this queue's, and is not used again.
        let _freed = unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}
