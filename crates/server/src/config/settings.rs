//! The table of settings.

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name in the file; `--key` with `-` for `_` on the command line.
    pub key: &'static str,
    /// What the number counts.
    pub unit: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

impl Setting {
    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("STELE_{}", self.key.to_ascii_uppercase())
    }

    /// The flag that sets it.
    pub fn flag(&self) -> String {
        format!("--{}", self.key.replace('_', "-"))
    }
}

const fn setting(key: &'static str, unit: &'static str, meaning: &'static str) -> Setting {
    Setting { key, unit, meaning }
}

/// Every setting, in the order of the reference page.
pub const SETTINGS: [Setting; 18] = [
    setting("listen", "", "Address for clients, placement, peers and HTTP."),
    setting("advertise", "", "Address told to clients and peers; empty for `listen`."),
    setting("join", "", "Nodes of the cluster to join, any of them; none founds a cluster."),
    setting("store", "", "One directory per device; stores share nothing."),
    setting(
        "memtable_bytes_max",
        "bytes",
        "Index changes in memory before a flush, per store; half more for entries.",
    ),
    setting(
        "block_cache_bytes_max",
        "bytes",
        "Memory for index blocks, and as much for values read often, per store.",
    ),
    setting("reserved_bytes", "bytes", "Device space kept for collection; puts are refused below."),
    setting("gc_policy", "", "What collection moves: see ARCHITECTURE.md."),
    setting(
        "space_amp_target",
        "ratio",
        "Device bytes per live byte that are accepted; 1 GiB of dead ones too (or 1/64 of the device).",
    ),
    setting("tick_ms", "ms", "A Raft tick; 10 to 20 of them without a leader begin an election."),
    setting("hibernate_after_ms", "ms", "Quiet after which a region sleeps; 0 for never."),
    setting("pin_bytes_max", "bytes", "Log kept for a lagging follower; then it gets a snapshot."),
    setting("region_bytes_max", "bytes", "Size at which a region is split."),
    setting("region_ops_max", "1/s", "Operations per second that split a region; 0 for never."),
    setting("pending_bytes_max", "bytes", "Requests in work, per store; beyond: server is busy."),
    setting("connections_max", "connections", "Connections at a time; more are closed at once."),
    setting(
        "slow_log_ms",
        "ms",
        "Requests that take longer are logged with their stages; 0: none.",
    ),
    setting("log_level", "", "What is written to standard error."),
];
