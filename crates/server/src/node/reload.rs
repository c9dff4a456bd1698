//! Settings that a running node takes over from its configuration when it is read again.

use super::open;
use crate::access::Access;
use crate::config::{Config, LiveConfig, RELOADED, SETTINGS};
use crate::observe::Metrics;
use crate::stores::Stores;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::Result;

pub(super) struct Reload {
    pub config: Arc<LiveConfig>,
    pub access: Access,
    pub stores: Arc<Stores>,
    pub metrics: Arc<Metrics>,
    pub connections_max: Arc<AtomicU64>,
}

impl Reload {
    /// Takes over the settings that need no restart, and logs every setting that differs. Fails with
    /// `Invalid` if garbage collection refuses its settings; then nothing changes.
    pub(super) fn apply(&self, wanted: &Config) -> Result<()> {
        let current = self.config.get();
        // Left out, it is that of the cluster.
        let tick_ms = if wanted.tick_ms == 0 { current.tick_ms } else { wanted.tick_ms };
        let wanted = Config { tick_ms, ..wanted.clone() };
        let mut next = Config::clone(&current);
        let mut lines = Vec::new();
        for key in SETTINGS.map(|setting| setting.key) {
            let texts = (current.get(key).unwrap_or_default(), wanted.get(key).unwrap_or_default());
            let (old, new) = texts;
            if old == new {
                continue;
            }
            let is_reloaded = RELOADED.contains(&key);
            // bug server.reloads_anything: let is_reloaded = true;
            if is_reloaded {
                next.set(key, &new)?;
            }
            lines.push((key, old, new, is_reloaded));
        }
        self.access.reload(&next)?;
        self.stores.set_gc_options(&open::gc_options(&next))?;
        self.metrics.slow_log().set_threshold_ms(next.slow_log_ms);
        let connections_max = next.descriptors.connections_max(next.connections_max);
        self.connections_max.store(connections_max, Ordering::Relaxed);
        self.config.set(next);
        for (key, old, new, is_reloaded) in lines {
            match is_reloaded {
                true => tracing::info!("{key} is `{new}` now; it was `{old}`"),
                false if key == "tick_ms" => tracing::warn!(
                    "tick_ms = `{new}` is not the tick of the cluster; it stays `{old}`: leave it out, or \
                     the node does not start again"
                ),
                false => tracing::warn!("{key} = `{new}` needs a restart; it stays `{old}`"),
            }
        }
        Ok(())
    }
}
