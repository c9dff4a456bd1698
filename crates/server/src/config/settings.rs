//! The table of settings, and how one is read and written as text.

use std::collections::BTreeSet;
use std::path::PathBuf;
use stele_types::size::parse_bytes;
use stele_types::{Error, Result, address};

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
pub const RELOADED: [&str; 6] = [
    "gc_policy",
    "space_amp_target",
    "connections_max",
    "slow_log_ms",
    "log_level",
    "administrators",
];

const fn setting(key: &'static str, unit: &'static str, meaning: &'static str) -> Setting {
    Setting { key, unit, meaning }
}

/// Every setting, in the order of the reference page.
pub const SETTINGS: [Setting; 37] = [
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
        "Raft tick; an election begins after 10 to 20 ticks without a leader. 0: that of the cluster, which \
         its first node decides: 20 unless it states one.",
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
        "Log kept for a lagging follower, which gets a snapshot beyond it; and log segments of a store kept for readers of its regions' logs.",
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
    setting(
        "tls_ca",
        "",
        "Authorities that verify nodes and clients, a PEM file of `stele cert ca`; empty: no TLS.",
    ),
    setting("tls_cert", "", "Certificate of the node, a PEM file of `stele cert node`."),
    setting("tls_key", "", "Key of that certificate, a PEM file that only this process may read."),
    setting(
        "client_certificates",
        "",
        "Whether clients need a certificate; `optional` connects them without an identity; `transition` serves \
         clients and nodes without TLS too, as long as nodes have no certificates.",
    ),
    setting(
        "administrators",
        "",
        "Clients, by the names in their certificates, that may administer the cluster.",
    ),
    setting(
        "peer_listen",
        "",
        "Address for the other nodes alone, also in their `join`; empty: `listen` serves them.",
    ),
    setting(
        "admin_listen",
        "",
        "Address to which administrators connect, and no other serves them; empty: `listen` does.",
    ),
    setting(
        "audit_log",
        "",
        "File of refusals and administrative calls, a line of JSON each (docs/security.md); empty: none.",
    ),
    setting(
        "health_listen",
        "",
        "Address of probes: `/healthz` and `/readyz`, a status code alone, without TLS; empty: none.",
    ),
    setting(
        "redis_listen",
        "",
        "Address of the Redis protocol (docs/redis.md), with the TLS settings of the node; empty: none.",
    ),
    setting(
        "redis_flush",
        "",
        "Whether FLUSHDB and FLUSHALL of Redis clients of this node delete whole databases; `false`: refused.",
    ),
    setting(
        "insecure",
        "",
        "Serve without TLS beyond loopback: each process that reaches the port may do everything.",
    ),
];

pub(super) enum Field<'a> {
    Number {
        at: &'a mut u64,
        low: u64,
        high: u64,
        bytes: bool,
        /// Whether 0 is allowed besides.
        or_0: bool,
    },
    Ratio(&'a mut f64, f64, f64),
    Switch(&'a mut bool),
    /// Address of this node: not checked here, because an empty one may be allowed.
    Text(&'a mut String),
    File(&'a mut String),
    Names(&'a mut Vec<String>),
    Word(&'a mut String, &'static [&'static str]),
    Addresses(&'a mut Vec<String>),
    Paths(&'a mut Vec<PathBuf>),
    Labels(&'a mut Vec<String>),
}

const LABEL_BYTES_MAX: usize = 64;
const LABELS_MAX: usize = 64;

impl<'a> Field<'a> {
    pub(super) fn count(at: &'a mut u64, low: u64, high: u64) -> Self {
        Self::Number { at, low, high, bytes: false, or_0: false }
    }

    pub(super) fn count_or_0(at: &'a mut u64, low: u64, high: u64) -> Self {
        Self::Number { at, low, high, bytes: false, or_0: true }
    }

    pub(super) fn bytes(at: &'a mut u64, low: u64, high: u64) -> Self {
        Self::Number { at, low, high, bytes: true, or_0: false }
    }

    pub(super) fn set(self, key: &str, text: &str) -> Result<()> {
        let bounds = self.bounds();
        let refuse = || Err(Error::invalid(format!("{key} is `{text}`; allowed: {bounds}")));
        match self {
            Self::Number { at, low, high, bytes, or_0 } => {
                let number = if bytes { parse_bytes(text).ok() } else { text.trim().parse().ok() };
                let is_allowed =
                    |number: &u64| (low..=high).contains(number) || (or_0 && *number == 0);
                match number.filter(is_allowed) {
                    Some(number) => *at = number,
                    None => return refuse(),
                }
            }
            Self::Ratio(at, low, high) => match text.trim().parse() {
                Ok(number) if (low..=high).contains(&number) => *at = number,
                _ => return refuse(),
            },
            Self::Switch(at) => match text.trim().parse() {
                Ok(is_on) => *at = is_on,
                Err(_) => return refuse(),
            },
            Self::Word(at, words) if words.contains(&text) => text.clone_into(at),
            Self::Word(..) => return refuse(),
            // Invariant: a setting holds the path of a file with a secret, never the secret, and no error repeats it.
            // Tests: `a_key_in_place_of_its_path_is_refused_and_not_repeated`.
            // bug server.key_repeated: `stele_tls::is_pem(text)` is `false`
            Self::File(_) if stele_tls::is_pem(text) => {
                return Err(Error::invalid(format!(
                    "{key} is the content of a file; allowed: {bounds}"
                )));
            }
            Self::Text(at) | Self::File(at) => text.trim().clone_into(at),
            Self::Names(at) => *at = items(text).map(str::to_owned).collect(),
            Self::Addresses(at) => match addresses(text) {
                Ok(addresses) => *at = addresses,
                Err(error) => return Err(wrong_address(key, &error)),
            },
            Self::Paths(at) => *at = items(text).map(PathBuf::from).collect(),
            Self::Labels(at) => match labels(text) {
                Some(labels) => *at = labels,
                None => return refuse(),
            },
        }
        Ok(())
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Number { at, bytes: true, .. } => whole_units(**at),
            Self::Number { at, .. } => at.to_string(),
            Self::Ratio(at, ..) => at.to_string(),
            Self::Switch(at) => at.to_string(),
            Self::Text(at) | Self::File(at) | Self::Word(at, _) => (*at).clone(),
            Self::Addresses(at) | Self::Labels(at) | Self::Names(at) => at.join(","),
            Self::Paths(at) => {
                let texts: Vec<String> = at.iter().map(|path| path.display().to_string()).collect();
                texts.join(",")
            }
        }
    }

    pub(super) fn bounds(&self) -> String {
        match self {
            Self::Number { low, high, bytes: true, .. } => {
                format!("{} to {}", whole_units(*low), whole_units(*high))
            }
            Self::Number { low, high, or_0: true, .. } => format!("0, or {low} to {high}"),
            Self::Number { low, high, .. } => format!("{low} to {high}"),
            Self::Ratio(_, low, high) => format!("{low} to {high}"),
            Self::Switch(_) => "true, false".to_owned(),
            Self::Word(_, words) => words.join(", "),
            Self::Text(_) => "host:port".to_owned(),
            Self::File(_) => "a path".to_owned(),
            Self::Names(_) => "names, separated by commas".to_owned(),
            Self::Addresses(_) => "host:port, several separated by commas".to_owned(),
            Self::Paths(_) => "directories, separated by commas".to_owned(),
            Self::Labels(_) => "name=value, several separated by commas; of letters, digits, `_`, \
                                `.`, `-`, `/`, at most 64 of them; each name once"
                .to_owned(),
        }
    }
}

fn addresses(text: &str) -> Result<Vec<String>> {
    items(text).map(|item| address::to_connect(item).map(str::to_owned)).collect()
}

pub(super) fn wrong_address(key: &str, error: &Error) -> Error {
    let reason = match error {
        Error::Invalid(reason) => reason.clone(),
        other => other.to_string(),
    };
    Error::invalid(format!("{key}: {reason}"))
}

/// Reads labels; `None` unless all of them are well formed and their names differ.
fn labels(text: &str) -> Option<Vec<String>> {
    let is_word = |word: &str| {
        let is_allowed = |c: u8| c.is_ascii_alphanumeric() || b"_.-/".contains(&c);
        (1..=LABEL_BYTES_MAX).contains(&word.len()) && word.bytes().all(is_allowed)
    };
    let mut names = BTreeSet::new();
    let mut labels = Vec::new();
    for label in items(text) {
        let (name, value) = label.split_once('=')?;
        if !is_word(name) || !is_word(value) || !names.insert(name) {
            return None;
        }
        labels.push(label.to_owned());
    }
    (labels.len() <= LABELS_MAX).then_some(labels)
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Formats `bytes` in the largest unit that divides it.
fn whole_units(bytes: u64) -> String {
    let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units.iter().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor));
    unit.map_or(bytes.to_string(), |(name, factor)| format!("{}{name}", bytes / factor))
}
