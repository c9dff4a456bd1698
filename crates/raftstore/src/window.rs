//! Entries that are committed and not applied, as request threads see them: a read lays their effects
//! over a view of the engine instead of waiting for apply (BUC-Raft, read acceleration).
//!
//! A window is {A, R, entries in (A, R]}: A is applied, R is committed. The loop publishes it; a
//! request thread notes A ([`Window::mark`]), takes a view, and then takes the effects
//! ([`Window::effects`]), if A is still the same.
//!
//! Invariants:
//! - A is published after it is applied, so that a view taken after the mark holds all up to A.
//! - R is published before anything above A is applied, so that a view never holds more than R while
//!   effects are laid over it. An old effect would else hide a newer value.
//! - R is published before a write up to R is answered, and before a follower learns that it is
//!   committed.
//! - Therefore the same A before and after the view means A ≤ view ≤ R, and the entries in (A, R]
//!   over the view are exactly the state at R, however many of them the view holds.
//! - The window ends before the first administrative entry that is not applied: that entry may move
//!   keys to another region.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use stele_storage::{Effects, Overlay, Pair};
use stele_types::{LogIndex, Result, mutant};

/// Part of the committed entries that request threads can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Coverage {
    /// All are applied: a view holds them.
    Applied,
    /// A view and the window hold them.
    Window,
    /// Some are in neither. A read asks the core when it may be served.
    Part,
}

/// Window of one region.
#[derive(Debug)]
pub(crate) struct Window {
    coverage: AtomicU8,
    /// A, the last applied entry.
    applied: AtomicU64,
    /// R, the last entry in the window; `applied` if the window is empty.
    visible: AtomicU64,
    entries: Mutex<Entries>,
}

/// State of a window before a view is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    coverage: Coverage,
    applied: u64,
}

impl Mark {
    /// Returns whether a view and the window hold all that was committed at the mark.
    pub fn is_whole(&self) -> bool {
        self.coverage != Coverage::Part
    }
}

#[derive(Debug, Default)]
struct Entries {
    /// Entries that no read has looked at.
    fresh: VecDeque<(LogIndex, Bytes)>,
    overlay: Overlay,
}

/// For the loop. Not for more than one thread at a time.
impl Window {
    /// Returns the window of a replica that has applied entries up to `applied`.
    pub fn new(applied: LogIndex) -> Self {
        Self {
            coverage: AtomicU8::new(Coverage::Part as u8),
            applied: AtomicU64::new(applied.0),
            visible: AtomicU64::new(applied.0),
            entries: Mutex::default(),
        }
    }

    /// Returns the last entry that reads can see.
    pub fn visible(&self) -> LogIndex {
        LogIndex(self.visible.load(Ordering::Relaxed))
    }

    /// Returns whether no entry is in the window.
    pub fn is_empty(&self) -> bool {
        self.visible.load(Ordering::Relaxed) == self.applied.load(Ordering::Relaxed)
    }

    /// Adds the entries that follow the visible ones; earlier ones are skipped.
    pub fn extend(&self, entries: impl Iterator<Item = (LogIndex, Bytes)>) {
        let mut held = self.entries.lock();
        for (index, payload) in entries {
            if index == self.visible().next() {
                self.visible.store(index.0, Ordering::Release);
                held.fresh.push_back((index, payload));
            }
        }
    }

    /// Records that entries up to `applied` are applied, and drops them.
    pub fn note_applied(&self, applied: LogIndex) {
        if self.is_empty() {
            self.visible.store(applied.0, Ordering::Release);
            return self.applied.store(applied.0, Ordering::Release);
        }
        let mut held = self.entries.lock();
        self.applied.store(applied.0, Ordering::Release);
        self.visible.fetch_max(applied.0, Ordering::AcqRel);
        if mutant::active("raftstore.window_keeps_applied") {
            return;
        }
        while held.fresh.front().is_some_and(|(index, _)| *index <= applied) {
            held.fresh.pop_front();
        }
        held.overlay.note_applied(applied);
    }

    /// Returns what the entries in the window do to a key; `None` if they do not change it.
    pub fn effect(&self, key: &[u8]) -> Result<Option<Option<Pair>>> {
        match self.is_empty() {
            true => Ok(None),
            false => Ok(self.entries.lock().overlay()?.get(key)),
        }
    }

    /// Publishes which part of the committed entries is in sight.
    pub fn set_coverage(&self, coverage: Coverage) {
        self.coverage.store(coverage as u8, Ordering::Release);
    }

    /// Returns the part of the committed entries in sight.
    pub fn coverage(&self) -> Coverage {
        match self.coverage.load(Ordering::Acquire) {
            0 => Coverage::Applied,
            1 => Coverage::Window,
            _ => Coverage::Part,
        }
    }
}

/// For request threads.
impl Window {
    /// Returns the state before a view is taken.
    pub fn mark(&self) -> Mark {
        let coverage = self.coverage();
        Mark { coverage, applied: self.applied.load(Ordering::Acquire) }
    }

    /// Returns the effects to lay over a view that was taken since the mark; `None` if entries were
    /// applied meanwhile: the view may lack some of them, and the caller takes another one.
    pub fn effects(&self, mark: Mark) -> Option<Effects> {
        if mark.coverage == Coverage::Applied && self.coverage() == Coverage::Applied {
            // The view holds all that was committed at the mark.
            return Some(Effects::default());
        }
        let mut held = self.entries.lock();
        let applied = self.applied.load(Ordering::Acquire);
        if applied != mark.applied && !mutant::active("raftstore.window_unchecked") {
            return None;
        }
        Some(held.overlay().ok()?.effects())
    }
}

impl Entries {
    /// Returns the overlay with all entries in it. A command that cannot be read stops the store when
    /// it is applied.
    fn overlay(&mut self) -> Result<&Overlay> {
        for (index, payload) in self.fresh.drain(..) {
            self.overlay.push(index, &payload)?;
        }
        Ok(&self.overlay)
    }
}
