//! `/metrics`: the registry, and figures of the stores read at the moment of the scrape.

use super::Metrics;
use crate::stores::Stores;
use prometheus_client::encoding::text::encode;
use std::fmt::Write;
use stele_storage::StorageEngine;
use stele_types::StoreId;

/// Name, type, help and samples of one metric, in the text format.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: Vec<(String, f64)>,
}

impl Metrics {
    /// The text of a scrape.
    pub fn scrape(&self, stores: &Stores) -> String {
        let mut text = String::new();
        // Writing to a string can't fail.
        let _ = encode(&mut text, &self.registry);
        let end = text.rfind("# EOF").unwrap_or(text.len());
        text.truncate(end);
        for family in families(stores) {
            if family.samples.is_empty() {
                continue;
            }
            let _ = writeln!(text, "# HELP stele_{} {}", family.name, family.help);
            let _ = writeln!(text, "# TYPE stele_{} {}", family.name, family.kind);
            let suffix = if family.kind == "counter" { "_total" } else { "" };
            for (labels, value) in family.samples {
                let _ = writeln!(text, "stele_{}{suffix}{{{labels}}} {value}", family.name);
            }
        }
        text.push_str("# EOF\n");
        text
    }
}

fn families(stores: &Stores) -> Vec<Family> {
    let family = |name, kind, help| Family { name, kind, help, samples: Vec::new() };
    let mut written = family("device_written_bytes", "counter", "Bytes written, by cause");
    let mut user = family("user_bytes", "counter", "Bytes of keys and values applied");
    let mut sizes = family("store_bytes", "gauge", "Bytes on the device, live, and in memory");
    let mut amp = family("amplification", "gauge", "Write and space amplification");
    let mut regions = family("regions", "gauge", "Replicas and leaders");
    let mut work = family("requests_in_work_bytes", "gauge", "Bytes of requests in work");
    let mut phase = family("gc_phase", "gauge", "1 for the phase collection is in");
    for store in stores.all() {
        let id = store.id();
        let stats = store.engine().stats();
        for (cause, bytes) in &stats.written_bytes {
            written.samples.push((label(id, "cause", cause), *bytes as f64));
        }
        user.samples.push((format!("store=\"{id}\""), stats.user_bytes as f64));
        let what = [
            ("disk", stats.disk_bytes),
            ("live", stats.live_bytes),
            ("memory", stats.memory_bytes),
        ];
        for (name, bytes) in what {
            sizes.samples.push((label(id, "what", name), bytes as f64));
        }
        amp.samples.push((label(id, "of", "write"), stats.write_amp()));
        amp.samples.push((label(id, "of", "space"), stats.space_amp()));
        let (replicas, leaders) = counts(stores, id);
        regions.samples.push((label(id, "role", "replica"), replicas as f64));
        regions.samples.push((label(id, "role", "leader"), leaders as f64));
        work.samples.push((format!("store=\"{id}\""), store.request_bytes() as f64));
        let current = format!("{:?}", store.engine().gc_stats().phase).to_lowercase();
        phase.samples.push((label(id, "phase", &current), 1.0));
    }
    vec![written, user, sizes, amp, regions, work, phase]
}

fn label(store: StoreId, name: &str, value: &str) -> String {
    format!("store=\"{store}\",{name}=\"{value}\"")
}

/// Replicas and leaders on a store.
pub fn counts(stores: &Stores, id: StoreId) -> (usize, usize) {
    let Some(store) = stores.get(id) else { return (0, 0) };
    let regions = store.readers().all();
    (regions.len(), regions.iter().filter(|region| store.leads(region.id)).count())
}
