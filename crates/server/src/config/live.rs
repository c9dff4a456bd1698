//! Settings in force on a running node.

use super::Config;
use parking_lot::RwLock;
use std::sync::Arc;

/// Settings in force; some change while the node runs.
#[derive(Debug)]
pub struct LiveConfig(RwLock<Arc<Config>>);

impl LiveConfig {
    /// Creates the settings of a node that starts.
    pub fn new(config: Arc<Config>) -> Self {
        Self(RwLock::new(config))
    }

    /// Returns the settings in force.
    pub fn get(&self) -> Arc<Config> {
        self.0.read().clone()
    }

    /// Replaces the settings.
    pub fn set(&self, config: Config) {
        *self.0.write() = Arc::new(config);
    }
}
