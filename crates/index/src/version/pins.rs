//! Which versions are still looked at.

use super::{Version, VersionId};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Every version that may still be held, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    versions: Mutex<VecDeque<(VersionId, Weak<Version>)>>,
}

impl Pins {
    /// Called before `version` is published.
    pub fn add(&self, version: &Arc<Version>) {
        self.versions.lock().push_back((version.id(), Arc::downgrade(version)));
    }

    /// The oldest version anyone holds; the current one if no other.
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
}
