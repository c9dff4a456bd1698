//! The table of settings.

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Name in the file; `--key` with `-` for `_` on the command line.
    pub key: &'static str,
    /// Unit of the value; may be empty.
    pub unit: &'static str,
    /// Effect, as on the reference page.
    pub meaning: &'static str,
}

impl Setting {
    /// Returns the environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("STELE_{}", self.key.to_ascii_uppercase())
    }

    /// Returns the flag that sets it.
    pub fn flag(&self) -> String {
        format!("--{}", self.key.replace('_', "-"))
    }
}

/// Settings that a running node takes over from its configuration at SIGHUP.
pub const RELOADED: [&str; 5] =
    ["gc_policy", "space_amp_target", "connections_max", "slow_log_ms", "log_level"];

const fn setting(key: &'static str, unit: &'static str, meaning: &'static str) -> Setting {
    Setting { key, unit, meaning }
}

/// Every setting, in the order of the reference page.
pub const SETTINGS: [Setting; 25] = [
    setting("listen", "", "Address for clients, placement, peers and HTTP."),
    setting("advertise", "", "Address advertised to clients and peers; empty: `listen`."),
    setting(
        "join",
        "",
        "Nodes of the cluster, any of them, to join it or to find it again; empty bootstraps a new one.",
    ),
    setting("store", "", "One directory per device; stores share nothing."),
    setting(
        "label",
        "",
        "Failure domains of the node, such as `rack=a`: copies are kept in different ones.",
    ),
    setting(
        "memtable_bytes_max",
        "bytes",
        "Index changes in memory before a flush, per store; half as much again for entries.",
    ),
    setting(
        "block_cache_bytes_max",
        "bytes",
        "Memory for index blocks, as much for filters, and as much for values, per store.",
    ),
    setting(
        "reserved_bytes",
        "bytes",
        "Device space kept for garbage collection; below it, puts are refused. The default grows with the data.",
    ),
    setting("gc_policy", "", "Garbage collection policy; see ARCHITECTURE.md."),
    setting(
        "space_amp_target",
        "ratio",
        "Accepted device bytes per live byte; 1 GiB of garbage (or 1/64 of the device) too.",
    ),
    setting(
        "sort_threshold_bytes",
        "bytes",
        "Policy `nezha`: unsorted live bytes at which a store sorts everything.",
    ),
    setting(
        "sort_interval_s",
        "s",
        "Time between sorts of everything, for every policy but `wisckey`; 0 disables them.",
    ),
    setting(
        "scan_load_ratio",
        "ratio",
        "Bytes scanned for each byte sorted, before a range is sorted; 0 disables such sorts.",
    ),
    setting(
        "tick_ms",
        "ms",
        "Raft tick, the same on all nodes; an election begins after 10 to 20 ticks without a leader.",
    ),
    setting(
        "commit_return",
        "",
        "Answer a write when any quorum has it; `false`: once its leader has applied it.",
    ),
    setting(
        "read_acceleration",
        "",
        "Reads see entries that are committed and not applied; `false`: they wait for them.",
    ),
    setting(
        "hibernate_after_ms",
        "ms",
        "Idle time before a region hibernates; 0 disables hibernation.",
    ),
    setting(
        "pin_bytes_max",
        "bytes",
        "Log kept for a lagging follower; beyond it, the follower gets a snapshot.",
    ),
    setting("region_bytes_max", "bytes", "Size at which a region is split."),
    setting(
        "region_ops_max",
        "1/s",
        "Operations per second above which a region is split; 0 disables.",
    ),
    setting(
        "pending_bytes_max",
        "bytes",
        "Requests in progress, per store; above: server is busy.",
    ),
    setting(
        "request_memory_bytes_max",
        "bytes",
        "Requests and answers in memory, of the node; one request at most 9/16: above, it is refused.",
    ),
    setting(
        "connections_max",
        "connections",
        "Open connections at most, each of up to 80 KiB besides its requests; further ones are closed.",
    ),
    setting(
        "slow_log_ms",
        "ms",
        "Requests that take longer are logged with their stages; 0 disables.",
    ),
    setting("log_level", "", "Lowest level of log lines written to standard error."),
];
