//! Files and directories that are kept open, to notice that their paths name others.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use stele_types::Result;

/// What the path of a pinned file or directory names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinState {
    /// The file or directory that was pinned.
    InPlace,
    /// Nothing: it was moved away or deleted.
    Missing,
    /// Another one.
    Replaced,
}

/// A file or directory that is kept open.
pub trait Pinned: Send + Sync + Debug {
    /// Returns the path.
    fn path(&self) -> &Path;
    /// Compares device and inode of what is open with those that the path names now.
    fn state(&self) -> Result<PinState>;
}

/// Pin of a copy in memory, which nothing else can move.
#[derive(Debug)]
pub(crate) struct Unmoved(pub PathBuf);

impl Pinned for Unmoved {
    fn path(&self) -> &Path {
        &self.0
    }

    fn state(&self) -> Result<PinState> {
        Ok(PinState::InPlace)
    }
}
