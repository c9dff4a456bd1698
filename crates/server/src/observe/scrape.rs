//! `/metrics`: the registry, and statistics of the stores read at the moment of the scrape.

use super::{Health, Metrics, log_lines_lost};
use crate::access::Access;
use crate::memory::NodeMemory;
use crate::node::SPEED_OP_BYTES;
use crate::port;
use crate::store::{Sample, StoreHandle};
use crate::stores::Stores;
use crate::tasks::Tasks;
use crate::transport::Transport;
use prometheus_client::encoding::text::encode;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use stele_tls::UnixTime;
use stele_types::StoreId;
use stele_vfs::warnings;

pub(super) type Samples = BTreeMap<StoreId, Arc<Sample>>;

struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: Vec<(String, f64)>,
}

impl Metrics {
    pub(crate) async fn scrape(&self, health: &Health) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        let end = text.rfind("# EOF").unwrap_or(text.len());
        text.truncate(end);
        let network = [
            transport(&health.transport),
            port(&health.port),
            edges(&health.port),
            tls(&health.access),
            audit(&health.access),
            memory(&health.memory),
        ];
        let network = network.into_iter().flatten();
        let samples = samples(&health.stores).await;
        let stores = &health.stores;
        let stores = [
            families(stores, &samples),
            devices(stores),
            file_systems(stores),
            reads(stores),
            slowdowns(stores),
            space(stores),
            repairs(stores, &samples),
            followers(stores),
            sweeps(stores),
        ];
        let stores = stores.into_iter().flatten().chain([times(&samples)]);
        for family in stores.chain(network).chain(tasks(&health.tasks)) {
            if family.samples.is_empty() {
                continue;
            }
            let _ = writeln!(text, "# HELP stele_{} {}", family.name, family.help);
            let _ = writeln!(text, "# TYPE stele_{} {}", family.name, family.kind);
            let suffix = if family.kind == "counter" { "_total" } else { "" };
            for (labels, value) in family.samples {
                let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
                let _ = writeln!(text, "stele_{}{suffix}{labels} {value}", family.name);
            }
        }
        text.push_str("# EOF\n");
        text
    }
}

fn family(name: &'static str, kind: &'static str, help: &'static str) -> Family {
    Family { name, kind, help, samples: Vec::new() }
}

fn transport(transport: &Transport) -> Vec<Family> {
    let stats = transport.stats();
    let mut frames = family("transport_frames", "counter", "Frames between nodes, by lane");
    let mut bytes = family("transport_bytes", "counter", "Bytes between nodes, by lane");
    let mut events = family("transport_events", "counter", "Events of the transport between nodes");
    let mut closed =
        family("transport_closed", "counter", "Closed connections between nodes, by reason");
    let mut queued = family("transport_queued_bytes", "gauge", "Bytes that wait for other nodes");
    for (lane, directions) in stats.lanes() {
        for (direction, frame_count, byte_count) in directions {
            let labels = format!("lane=\"{lane}\",direction=\"{direction}\"");
            frames.samples.push((labels.clone(), frame_count as f64));
            bytes.samples.push((labels, byte_count as f64));
        }
    }
    // Bytes and messages of all lanes are the sums of the above.
    let own = |name: &str| !name.starts_with("bytes_") && !name.starts_with("messages_");
    for (name, count) in stats.each().into_iter().filter(|(name, _)| own(name)) {
        events.samples.push((format!("event=\"{name}\""), count as f64));
    }
    for (reason, count) in stats.closed() {
        closed.samples.push((format!("reason=\"{reason}\""), count as f64));
    }
    queued.samples.push((String::new(), transport.queued_bytes() as f64));
    vec![frames, bytes, events, closed, queued]
}

fn port(stats: &port::Stats) -> Vec<Family> {
    let mut open = family("connections_open", "gauge", "Connections of all kinds");
    open.samples.push((String::new(), stats.open.load(Relaxed) as f64));
    let mut all = family("connections", "counter", "Incoming connections, by outcome");
    let outcomes = [
        ("accepted", &stats.accepted),
        ("refused", &stats.refused),
        ("silent", &stats.silent),
        ("failed", &stats.failed),
    ];
    for (outcome, count) in outcomes {
        all.samples.push((format!("outcome=\"{outcome}\""), count.load(Relaxed) as f64));
    }
    vec![open, all]
}

fn edges(stats: &port::Stats) -> Vec<Family> {
    let counts = &stats.edges;
    let mut open = family("redis_connections_open", "gauge", "Connections of clients of Redis");
    open.samples.push((String::new(), counts.redis_open() as f64));
    let mut commands = family("redis_commands", "counter", "Requests of Redis, by command");
    for (name, count) in counts.commands() {
        commands.samples.push((format!("command=\"{name}\""), count as f64));
    }
    let mut errors = family("redis_errors", "counter", "Error replies of Redis, by first word");
    for (word, count) in counts.errors() {
        errors.samples.push((format!("error=\"{word}\""), count as f64));
    }
    let mut http = family("http_requests", "counter", "Answers over HTTP, by route and status");
    for ((route, status), count) in counts.http() {
        http.samples.push((format!("route=\"{route}\",status=\"{status}\""), count as f64));
    }
    vec![open, commands, errors, http]
}

fn followers(stores: &Stores) -> Vec<Family> {
    let mut streams = family("follow_streams", "gauge", "Streams that follow logs of regions");
    streams.samples.push((String::new(), stores.followers().streams() as f64));
    let mut too_old = family(
        "follow_streams_too_old",
        "counter",
        "Streams that ended because their next entry was gone",
    );
    too_old.samples.push((String::new(), stores.followers().too_old() as f64));
    let mut pinned =
        family("follow_pinned_bytes", "gauge", "Bytes of segments that stay for readers of logs");
    for store in stores.all() {
        let bytes = store.engine().pinned_history().bytes;
        pinned.samples.push((format!("store=\"{}\"", store.id()), bytes as f64));
    }
    vec![streams, too_old, pinned]
}

fn sweeps(stores: &Stores) -> Vec<Family> {
    let mut keys = family("redis_swept_keys", "counter", "Expired Redis keys that were deleted");
    let help = "Deleted, replaced and expired collections of which members were deleted";
    let mut stamps = family("redis_swept_stamps", "counter", help);
    let help = "Records of transactions over regions that were not decided within an hour, and were deleted";
    let mut records = family("redis_swept_records", "counter", help);
    let help = "Seconds of a processor that the search for them took";
    let mut seconds = family("redis_sweep_seconds", "counter", help);
    for store in stores.all() {
        let (own, swept) = (format!("store=\"{}\"", store.id()), store.swept());
        keys.samples.push((own.clone(), swept.keys.load(Relaxed) as f64));
        stamps.samples.push((own.clone(), swept.stamps.load(Relaxed) as f64));
        records.samples.push((own.clone(), swept.records.load(Relaxed) as f64));
        seconds.samples.push((own, swept.nanos.load(Relaxed) as f64 / 1e9));
    }
    vec![keys, stamps, records, seconds]
}

fn tls(access: &Access) -> Vec<Family> {
    let Some(tls) = access.tls() else { return Vec::new() };
    let days_left = tls.server().days_left(UnixTime::now());
    let mut left =
        family("tls_certificate_days_left", "gauge", "Days until the node's certificate expires");
    left.samples.push((String::new(), days_left as f64));
    let mut failed = family("tls_handshakes_failed", "counter", "Failed handshakes, by cause");
    for (cause, count) in tls.failed_handshakes() {
        failed.samples.push((format!("cause=\"{cause}\""), count as f64));
    }
    let mut refused =
        family("nodes_refused", "counter", "Refusals of nodes that act for others, by cause");
    for (cause, count) in tls.refused_nodes() {
        refused.samples.push((format!("cause=\"{cause}\""), count as f64));
    }
    vec![left, failed, refused]
}

fn audit(access: &Access) -> Vec<Family> {
    let mut lost = family("audit_lines_lost", "counter", "Lines missing in the audit log");
    lost.samples.extend(access.audit().lost().map(|lost| (String::new(), lost as f64)));
    vec![lost]
}

fn memory(memory: &NodeMemory) -> Vec<Family> {
    let stats = memory.stats();
    let mut used = family("request_memory_bytes", "gauge", "Memory of requests, by use");
    used.samples.push(("use=\"requests\"".to_owned(), stats.used_bytes as f64));
    used.samples.push(("use=\"windows\"".to_owned(), stats.window_bytes as f64));
    let mut refused =
        family("requests_without_memory", "counter", "Requests refused for want of memory");
    refused.samples.push((String::new(), stats.refused as f64));
    vec![used, refused]
}

fn tasks(tasks: &Tasks) -> [Family; 3] {
    let mut running = family("tasks_running", "gauge", "Background tasks that run now");
    let mut failures =
        family("task_failures", "counter", "Panics, errors and early ends of background tasks");
    let mut lost = family("log_lines_lost", "counter", "Log lines that could not be written");
    for (name, report) in tasks.reports() {
        let label = format!("task=\"{name}\"");
        running.samples.push((label.clone(), report.running as f64));
        failures.samples.push((label, report.failures as f64));
    }
    lost.samples.push((String::new(), log_lines_lost() as f64));
    [running, failures, lost]
}

fn families(stores: &Stores, samples: &Samples) -> Vec<Family> {
    let mut written = family("device_written_bytes", "counter", "Bytes written, by cause");
    let mut user = family("user_bytes", "counter", "Bytes of keys and values applied");
    let mut sizes = family("store_bytes", "gauge", "Bytes on the device, live, and in memory");
    let mut amp = family("amplification", "gauge", "Write and space amplification");
    let mut regions = family("regions", "gauge", "Replicas and leaders");
    let mut work = family("requests_in_work_bytes", "gauge", "Bytes of requests in progress");
    let mut gc_bytes =
        family("gc_bytes", "counter", "Bytes read and written by garbage collection, by stage");
    let mut slices = family("gc_slices", "counter", "Slices of garbage collection, by stage");
    let mut p99 = family("append_p99_seconds", "gauge", "p99 of the log's writes in the last 10 s");
    let mut values = family("value_cache_gets", "counter", "Gets of the value cache, by hit");
    let mut cold =
        family("index_cold_reads", "counter", "Reads of filters and fences not in memory");
    let mut phase = family("gc_phase", "gauge", "1 for the current phase of garbage collection");
    for store in stores.all() {
        let id = store.id();
        let Some(Sample { stats, value_cache, gc_phase, .. }) = samples.get(&id).map(|it| &**it)
        else {
            continue;
        };
        for (cause, bytes) in &stats.written_bytes {
            written.samples.push((label(id, "cause", cause), *bytes as f64));
        }
        user.samples.push((format!("store=\"{id}\""), stats.user_bytes as f64));
        let what = [
            ("disk", stats.disk_bytes),
            ("live_estimate", stats.live_bytes_estimate),
            ("memory", stats.memory_bytes),
            ("index_memory", stats.index_memory_bytes),
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
        for (stage, done) in store.maintained() {
            slices.samples.push((label(id, "stage", stage), done.slices as f64));
            gc_bytes.samples.push((label(id, "stage", stage), done.bytes as f64));
        }
        p99.samples
            .push((format!("store=\"{id}\""), store.engine().append_p99_nanos() as f64 / 1e9));
        let (hits, misses) = *value_cache;
        values.samples.push((label(id, "found", "yes"), hits as f64));
        values.samples.push((label(id, "found", "no"), misses as f64));
        cold.samples.push((format!("store=\"{id}\""), stats.index_cold_reads as f64));
        phase.samples.push((label(id, "phase", gc_phase), 1.0));
    }
    vec![written, user, sizes, amp, regions, work, gc_bytes, slices, p99, values, cold, phase]
}

fn times(samples: &Samples) -> Family {
    let help = "Time by which expired pairs are dropped, in Unix seconds; 0 if it is unknown";
    let mut times = family("cluster_time_seconds", "gauge", help);
    for (id, sample) in samples {
        times.samples.push((format!("store=\"{id}\""), sample.cluster_time_s as f64));
    }
    times
}

fn repairs(stores: &Stores, samples: &Samples) -> Vec<Family> {
    let mut repair = family("repair_values", "counter", "Values found unreadable, and repaired");
    let mut lost = family("lost_values", "gauge", "Values known to be unreadable now");
    let mut scrubbed = family("scrubbed_bytes", "counter", "Bytes read by scrubbing");
    let mut passes = family("scrub_passes", "counter", "Completed scrub passes");
    let mut progress = family(
        "scrub_progress_ratio",
        "gauge",
        "Part of the current or last scrub pass that is done",
    );
    let age = "Seconds since the last completed scrub pass began, or since the store was opened";
    let mut age = family("scrub_age_seconds", "gauge", age);
    for (&id, sample) in samples {
        let own = format!("store=\"{id}\"");
        let (repaired, scrub) = (&sample.repairs, &sample.scrub);
        repair.samples.push((label(id, "what", "found"), repaired.found as f64));
        repair.samples.push((label(id, "what", "repaired"), repaired.repaired as f64));
        lost.samples.push((own.clone(), repaired.lost as f64));
        scrubbed.samples.push((own.clone(), scrub.bytes as f64));
        passes.samples.push((own.clone(), scrub.passes as f64));
        let ratio = scrub.pass_checked_bytes as f64 / scrub.pass_bytes.max(1) as f64;
        progress.samples.push((own.clone(), ratio));
        age.samples.push((own, scrub.age_s as f64));
    }
    let mut entries =
        family("lost_entries", "gauge", "Lost log entries of stores that are recovering");
    for store in stores.recovering() {
        entries.samples.push((format!("store=\"{}\"", store.id), store.lost() as f64));
    }
    vec![repair, lost, scrubbed, passes, progress, age, entries]
}

fn devices(stores: &Stores) -> Vec<Family> {
    let mut fixed = family("device_operation_seconds", "gauge", "Seconds without bytes");
    let mut bytes = family("device_byte_seconds", "gauge", "Seconds of a byte in addition");
    let mut speeds =
        family("device_operations_per_second", "gauge", "Operations of 16 KiB, one by one");
    for store in stores.all() {
        let speed = store.engine().device_speed();
        for (of, cost, count) in
            [("write", speed.write, speed.writes), ("read", speed.read, speed.reads)]
        {
            let Some(per_second) = cost.per_second(SPEED_OP_BYTES) else { continue };
            fixed.samples.push((label(store.id(), "of", of), cost.fixed_nanos as f64 / 1e9));
            bytes.samples.push((label(store.id(), "of", of), cost.picos_per_byte as f64 / 1e12));
            let source = format!("{},source=\"{}\"", label(store.id(), "of", of), source(count));
            speeds.samples.push((source, per_second as f64));
        }
    }
    vec![fixed, bytes, speeds]
}

fn file_systems(stores: &Stores) -> Vec<Family> {
    let mut held = family("file_system", "gauge", "1, with what holds the store as labels");
    let mut warned =
        family("file_system_warnings", "gauge", "Warnings about what holds the store; see /status");
    for store in stores.all() {
        let (id, of) = (store.id(), store.engine().file_system());
        let (name, mode, unit) = (of.kind.to_string(), of.mode(), of.unit_bytes());
        let can_reserve = of.kind.can_reserve();
        let labels = format!(
            "{},mode=\"{mode}\",block_bytes=\"{unit}\",can_reserve_space=\"{can_reserve}\"",
            label(id, "name", &name)
        );
        held.samples.push((labels, 1.0));
        warned.samples.push((format!("store=\"{id}\""), warnings(&of).len() as f64));
    }
    vec![held, warned]
}

/// Returns the name of the source of a cost that was measured with `count` operations.
pub(super) fn source(count: u64) -> &'static str {
    if count > 0 { "measured" } else { "estimate" }
}

fn reads(stores: &Stores) -> Vec<Family> {
    let mut reads =
        family("linearizable_reads", "counter", "Reads, by what made them linearizable");
    for store in stores.all() {
        for (path, count) in store.readers().counts() {
            reads.samples.push((label(store.id(), "by", path.name()), count as f64));
        }
    }
    vec![reads]
}

fn space(stores: &Stores) -> Vec<Family> {
    let mut full = family("store_full", "gauge", "1 while the store refuses puts");
    let mut short =
        family("store_short_of_space", "gauge", "1 while garbage collection frees space first");
    for store in stores.all() {
        let (own, space) = (format!("store=\"{}\"", store.id()), store.space());
        full.samples.push((own.clone(), f64::from(u8::from(space.is_full))));
        short.samples.push((own, f64::from(u8::from(space.is_short))));
    }
    vec![full, short]
}

fn slowdowns(stores: &Stores) -> Vec<Family> {
    let mut waits = family(
        "writer_wait_seconds_per_mib",
        "gauge",
        "Time that writers wait for each MiB, because garbage collection lags",
    );
    for store in stores.all() {
        let seconds = store.slowdown() as f64 * 1024.0 / 1e9;
        waits.samples.push((format!("store=\"{}\"", store.id()), seconds));
    }
    vec![waits]
}

fn label(store: StoreId, name: &str, value: &str) -> String {
    format!("store=\"{store}\",{name}=\"{value}\"")
}

pub(super) async fn samples(stores: &Stores) -> Samples {
    let ask = |store: Arc<StoreHandle>| async move { Some((store.id(), store.sample().await?)) };
    let asked: Vec<_> = stores.all().into_iter().map(|store| tokio::spawn(ask(store))).collect();
    let mut samples = Samples::new();
    for asked in asked {
        samples.extend(asked.await.ok().flatten());
    }
    samples
}

/// Returns the number of replicas and of leaders on a store.
pub fn counts(stores: &Stores, id: StoreId) -> (usize, usize) {
    let Some(store) = stores.get(id) else { return (0, 0) };
    let regions = store.readers().all();
    (regions.len(), regions.iter().filter(|region| store.leads(region.id)).count())
}
