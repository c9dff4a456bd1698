//! An event loop waits for a completion queue: the queue makes a file descriptor readable when its
//! first result is there. An edge: the engine itself calls no kernel.
//!
//! The loop waits for the descriptor with `poll`, `epoll` or its runtime. When it is readable, the
//! loop calls [`EventFd::clear`] and then collects all results.
//!
//! ```
//! use std::sync::Arc;
//! use stele_engine::{CompletionQueue, Db, Options, QueueOptions};
//! use stele_eventfd::EventFd;
//!
//! # fn main() -> stele_engine::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! let db = Db::open(dir.path(), Options::default())?;
//! let event = Arc::new(EventFd::new()?);
//! let bounds = QueueOptions { depth: 64, key_bytes_max: 255, value_bytes_max: 1 << 20 };
//! let queue = CompletionQueue::with_notify(bounds, event.clone())?;
//! queue.try_put(&db, 1, b"key", b"value")?;
//! event.wait()?; // An event loop waits for `event.as_fd()` instead.
//! event.clear()?;
//! let mut done = Vec::new();
//! queue.poll(&mut done);
//! assert_eq!((done[0].tag, done[0].result.is_ok()), (1, true));
//! # Ok(())
//! # }
//! ```

// The guide shows this crate and the engine; here its examples are run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedded.md")]
mod guide {}

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, read, retry_on_intr, write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use stele_engine::Notify;
use stele_types::{Error, Result};

/// A file descriptor that is readable while a notice is not cleared (`eventfd` of Linux).
#[derive(Debug)]
pub struct EventFd {
    descriptor: OwnedFd,
}

impl EventFd {
    /// Creates a descriptor that is not readable.
    pub fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = eventfd(0, flags).map_err(|errno| failed("creation", errno))?;
        Ok(Self { descriptor })
    }

    /// Makes the descriptor unreadable until the next notice. Invariant: a loop clears first and
    /// collects then. A result that arrives in between makes the descriptor readable again.
    pub fn clear(&self) -> Result<()> {
        let mut count = [0; 8];
        match retry_on_intr(|| read(&self.descriptor, &mut count)) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(failed("read", errno)),
        }
    }

    /// Waits until the descriptor is readable.
    pub fn wait(&self) -> Result<()> {
        let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let waited = retry_on_intr(|| poll(&mut descriptors, None));
        waited.map(|_| ()).map_err(|errno| failed("poll", errno))
    }
}

impl Notify for EventFd {
    fn notify(&self) {
        // The counter is full after 2⁶⁴ − 2 notices that were not cleared: it is readable then.
        let _ = retry_on_intr(|| write(&self.descriptor, &1_u64.to_ne_bytes()));
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn failed(op: &'static str, errno: Errno) -> Error {
    Error::io(op, "eventfd", errno.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stele_engine::{CompletionQueue, Db, Options, QueueOptions};

    fn is_readable(event: &EventFd) -> bool {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn a_descriptor_is_readable_from_a_notice_until_it_is_cleared() {
        let event = EventFd::new().unwrap();
        assert!(!is_readable(&event));
        event.clear().unwrap();
        event.notify();
        event.notify();
        assert!(is_readable(&event));
        event.wait().unwrap();
        event.clear().unwrap();
        assert!(!is_readable(&event));
    }

    #[test]
    fn an_event_loop_collects_all_results_and_misses_none() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), Options::default()).unwrap();
        let event = Arc::new(EventFd::new().unwrap());
        let bounds = QueueOptions { depth: 16, key_bytes_max: 64, value_bytes_max: 4096 };
        let queue = CompletionQueue::with_notify(bounds, event.clone()).unwrap();
        let (mut submitted, mut done) = (0_u64, Vec::new());
        while done.len() < 300 {
            while submitted < 300
                && queue.try_put(&db, submitted, &submitted.to_be_bytes(), &[1; 500]).is_ok()
            {
                submitted += 1;
            }
            event.wait().unwrap();
            event.clear().unwrap();
            queue.poll(&mut done);
        }
        assert!(done.iter().all(|done| done.result.is_ok()));
        db.close().unwrap();
    }
}
