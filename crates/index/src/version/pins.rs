//! Versions pinned by readers.

use super::{Version, VersionId};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use stele_types::lock::{Mutex, rank};

/// Versions that readers may still hold, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    versions: Mutex<VecDeque<(VersionId, Weak<Version>)>, { rank::PINS }>,
}

impl Pins {
    /// Adds a version; called before it is published.
    pub fn add(&self, version: &Arc<Version>) {
        self.versions.lock().push_back((version.id(), Arc::downgrade(version)));
    }

    /// Returns the oldest version that a reader holds, or else the current one.
    pub fn oldest(&self) -> VersionId {
        let mut versions = self.versions.lock();
        while let Some((id, version)) = versions.front() {
            if version.strong_count() > 0 {
                return *id;
            }
            versions.pop_front();
        }
        VersionId::default()
    }

    /// Returns the versions that readers hold, and the current one, in ascending order.
    pub fn all(&self) -> Vec<VersionId> {
        let mut versions = self.versions.lock();
        versions.retain(|(_, version)| version.strong_count() > 0);
        versions.iter().map(|(id, _)| *id).collect()
    }
}
