//! Configuration: no setting is required. A TOML file, then the environment, then flags override
//! the defaults; a variable that looks like a setting must be one. One table names every setting;
//! the reference page is generated from it. A running node changes some settings that are in force.

mod reference;
mod settings;

pub use reference::reference_page;
pub(crate) use reference::unit_of;
pub use settings::{RELOADED, SETTINGS, Setting};

use crate::descriptors::Descriptors;
use crate::memory::BYTES_MIN;
use parking_lot::RwLock;
use settings::{Field, wrong_address};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Error, Result, TickMillis, address};
use stele_vfs::DeviceScale;

/// Settings of a server. Sizes are in bytes unless a name says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Address for clients, placement, peers and HTTP. Port 0 stands for any free one.
    pub listen: String,
    /// Address advertised to clients and peers; empty: `listen`. Its host also stands for another listener
    /// on every interface.
    pub advertise: String,
    /// Addresses of any nodes of the cluster to join; empty bootstraps a new cluster.
    pub join: Vec<String>,
    /// One directory per device.
    pub stores: Vec<PathBuf>,
    /// Directories with a new disk for a store that was there. Not a setting: an argument of one
    /// start.
    pub replaced_disks: Vec<PathBuf>,
    /// Directories that were moved or restored, and of which no copy is started. Not a setting: an
    /// argument of one start.
    pub moved_directories: Vec<PathBuf>,
    /// Factor by which the devices are slower, for experiments. Not a setting: an argument of one
    /// start.
    pub device_scale: Option<Arc<DeviceScale>>,
    /// Shares of the process's descriptors. Not a setting: they follow from the limit of the process.
    pub descriptors: Descriptors,
    /// Labels of the stores, each `name=value`.
    pub labels: Vec<String>,
    /// Memory for index changes before they are flushed, per store; half as much again holds recent
    /// log entries.
    pub memtable_bytes_max: u64,
    /// Memory for index blocks, per store; a cache of the same size holds values read often.
    pub block_cache_bytes_max: u64,
    /// Device space kept for garbage collection, per store.
    pub reserved_bytes: u64,
    /// Garbage collection policy.
    pub gc_policy: String,
    /// Accepted device bytes per live byte.
    pub space_amp_target: f64,
    /// Policy `nezha`: unsorted live bytes at which everything is sorted, per store.
    pub sort_threshold_bytes: u64,
    /// Seconds between sorts of everything; 0 disables them.
    pub sort_interval_s: u64,
    /// Bytes scanned for each byte sorted; 0 disables sorts because of scans.
    pub scan_load_ratio: f64,
    /// Milliseconds of a Raft tick, the same on all nodes of a cluster; an election begins after 10 to
    /// 20 ticks without a leader. 0: that of the cluster. In a node that has started, it is that of the
    /// cluster.
    pub tick_ms: u64,
    /// Whether a write is answered when any quorum has it; otherwise once the leader has applied it.
    pub commit_return: bool,
    /// Whether reads see entries that are committed and not applied; otherwise they wait for them.
    pub read_acceleration: bool,
    /// Idle milliseconds before a region hibernates; 0 disables hibernation.
    pub hibernate_after_ms: u64,
    /// Log bytes kept for a lagging follower; beyond them it receives a snapshot.
    pub pin_bytes_max: u64,
    /// Size at which a region is split.
    pub region_bytes_max: u64,
    /// Operations per second above which a region is split; 0 disables.
    pub region_ops_max: u64,
    /// Bytes of requests in progress, per store; above, requests are refused as busy.
    pub pending_bytes_max: u64,
    /// Memory of requests and their answers; above, requests are refused.
    pub request_memory_bytes_max: u64,
    /// Open connections at most.
    pub connections_max: u64,
    /// Milliseconds from which a request is written to the slow log; 0 disables the log.
    pub slow_log_ms: u64,
    /// Lowest level of log lines that are written.
    pub log_level: String,
    /// Authorities of nodes and clients, as a PEM file; empty: no TLS.
    pub tls_ca: String,
    /// The node's certificate with those of intermediate authorities, as a PEM file.
    pub tls_cert: String,
    /// Key of the certificate, as a PEM file.
    pub tls_key: String,
    /// `required`: a client without a certificate is refused. `optional`: it is connected without an
    /// identity.
    pub client_certificates: String,
    /// Names of clients with the rights of an administrator.
    pub administrators: Vec<String>,
    /// Address for other nodes, which `listen` then serves no longer; empty: `listen` serves them.
    pub peer_listen: String,
    /// Address for administrators, which `listen` then serves no longer; empty: `listen` serves them.
    pub admin_listen: String,
    /// File of the audit log; empty: none.
    pub audit_log: String,
    /// Address of probes, which are answered without TLS by a status code alone; empty: none.
    pub health_listen: String,
    /// Address of the Redis protocol; empty: none.
    pub redis_listen: String,
    /// Whether clients of Redis may delete whole databases: FLUSHDB and FLUSHALL.
    pub redis_flush: bool,
    /// Whether a node without TLS may be reached from other machines.
    pub insecure: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:2379".to_owned(),
            advertise: String::new(),
            join: Vec::new(),
            stores: vec![PathBuf::from("data")],
            replaced_disks: Vec::new(),
            moved_directories: Vec::new(),
            device_scale: None,
            descriptors: Descriptors::default(),
            labels: Vec::new(),
            memtable_bytes_max: 64 << 20,
            block_cache_bytes_max: 64 << 20,
            reserved_bytes: 256 << 20,
            gc_policy: "adaptive".to_owned(),
            space_amp_target: 2.0,
            sort_threshold_bytes: 4 << 30,
            sort_interval_s: 0,
            scan_load_ratio: 2.0,
            tick_ms: 0,
            commit_return: true,
            read_acceleration: true,
            hibernate_after_ms: 5_000,
            pin_bytes_max: 1 << 30,
            region_bytes_max: 1 << 30,
            region_ops_max: 0,
            pending_bytes_max: 256 << 20,
            request_memory_bytes_max: 256 << 20,
            connections_max: 4_000,
            slow_log_ms: 1_000,
            log_level: "info".to_owned(),
            tls_ca: String::new(),
            tls_cert: String::new(),
            tls_key: String::new(),
            client_certificates: "required".to_owned(),
            administrators: Vec::new(),
            peer_listen: String::new(),
            admin_listen: String::new(),
            audit_log: String::new(),
            health_listen: String::new(),
            redis_listen: String::new(),
            redis_flush: false,
            insecure: false,
        }
    }
}

impl Config {
    /// Loads the defaults, then the file if one is named, then `environment` (names `STELE_…`),
    /// then `flags` (pairs of key and text). Fails with `Invalid` naming the source, the key and
    /// the allowed values.
    ///
    /// Invariant: what looks like a setting and is none is an error in every source. A misspelt limit
    /// would otherwise not hold, and no line would say so.
    pub fn load(
        file: Option<&Path>,
        environment: impl Iterator<Item = (OsString, OsString)>,
        flags: &[(String, String)],
    ) -> Result<Self> {
        let mut config = Self::default();
        if let Some(path) = file {
            config.read_file(path)?;
        }
        for (name, text) in environment {
            let name = name.to_string_lossy();
            if !is_setting(&name) {
                continue;
            }
            let Some(setting) = SETTINGS.iter().find(|setting| setting.variable() == name) else {
                return Err(unknown_variable(&name));
            };
            let text = text.to_str().ok_or_else(|| not_text(&name))?;
            config.set_given(setting.key, text).map_err(|error| named(&name, &error))?;
        }
        for (key, text) in flags {
            config.set_given(key, text).map_err(|error| named(&format!("--{key}"), &error))?;
        }
        config.check()?;
        Ok(config)
    }

    /// Sets one key from text. Fails with `Invalid` naming the key and the allowed values.
    pub fn set(&mut self, key: &str, text: &str) -> Result<()> {
        match self.field(key) {
            Some(field) => field.set(key, text),
            None => Err(Error::invalid(unknown(key))),
        }
    }

    /// Sets a key from a flag or a variable.
    ///
    /// Invariant: an empty `join` is an error there. A script with an empty variable would bootstrap a second
    /// cluster.
    fn set_given(&mut self, key: &str, text: &str) -> Result<()> {
        self.set(key, text)?;
        if key == "join" && self.join.is_empty() {
            return Err(Error::invalid(
                "join: names no node; name one, or leave the setting out to bootstrap a new cluster",
            ));
        }
        Ok(())
    }

    /// Returns the value of a key as [`Config::set`] reads it; `None` for an unknown key.
    pub fn get(&self, key: &str) -> Option<String> {
        Some(self.clone().field(key)?.text())
    }

    pub(crate) fn label_pairs(&self) -> Vec<(String, String)> {
        let pair =
            |label: &String| label.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned()));
        self.labels.iter().filter_map(pair).collect()
    }

    pub(crate) fn advertised(&self) -> &str {
        if self.advertise.is_empty() { &self.listen } else { &self.advertise }
    }

    /// Returns the tick that the configuration states; `None`: that of the cluster.
    pub(crate) fn tick(&self) -> Option<TickMillis> {
        TickMillis::new(self.tick_ms)
    }

    /// Formats all settings with their values, one line each: printed at start.
    pub fn effective(&self) -> String {
        let line = |setting: &Setting| {
            format!("{} = {}\n", setting.key, self.get(setting.key).unwrap_or_default())
        };
        SETTINGS.iter().map(line).collect()
    }

    fn read_file(&mut self, path: &Path) -> Result<()> {
        let source = |error: String| Error::invalid(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| source(error.to_string()))?;
        let table: toml::Table = text.parse().map_err(|error| source(format!("{error}")))?;
        for (key, value) in &table {
            let text = match value {
                toml::Value::String(text) => text.clone(),
                toml::Value::Array(items) => {
                    let texts: Option<Vec<&str>> = items.iter().map(|item| item.as_str()).collect();
                    let list = || source(format!("`{key}` takes a list of strings"));
                    texts.ok_or_else(list)?.join(",")
                }
                toml::Value::Table(_) => {
                    return Err(source(format!(
                        "`{key}` is a table; settings must be at the top level"
                    )));
                }
                other => other.to_string(),
            };
            self.set(key, &text).map_err(|error| source(detail(&error)))?;
        }
        Ok(())
    }

    /// Checks what no single setting shows.
    pub fn check(&self) -> Result<()> {
        for (at, store) in self.stores.iter().enumerate() {
            if self.stores.iter().skip(at + 1).any(|other| other == store) {
                let text = format!("store {} is named twice", store.display());
                return Err(Error::invalid(text));
            }
        }
        if let Some(dir) = self.replaced_disks.iter().find(|dir| !self.stores.contains(dir)) {
            let text = format!("--replaced-disk {}: it is not a store directory", dir.display());
            return Err(Error::invalid(text));
        }
        if let Some(dir) = self.moved_directories.iter().find(|dir| !self.stores.contains(dir)) {
            let text = format!("--moved-directory {}: it is not a store directory", dir.display());
            return Err(Error::invalid(text));
        }
        self.check_addresses()?;
        if self.gc_policy == "wisckey" && self.sort_interval_s > 0 {
            return Err(Error::invalid(
                "gc_policy is `wisckey`, which never sorts: set sort_interval_s to 0, or choose \
                 `adaptive` or `nezha`",
            ));
        }
        let without = self.advertise.is_empty();
        // No node or client is given the address of the Redis protocol.
        let others = self.listeners().filter(|(key, _)| without && *key != REDIS_LISTEN);
        let mut named = others.map(|(_, listen)| listen);
        if named.any(is_everywhere) || is_everywhere(&self.advertise) {
            return Err(Error::invalid(
                "listening on every interface: set `advertise` to the address others reach",
            ));
        }
        Ok(())
    }

    /// Returns the listeners for calls that there are, each with the setting that names it.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [
            ("listen", &self.listen),
            ("peer_listen", &self.peer_listen),
            ("admin_listen", &self.admin_listen),
            (REDIS_LISTEN, &self.redis_listen),
        ];
        all.into_iter().map(|(key, at)| (key, at.as_str())).filter(|(_, at)| !at.is_empty())
    }

    /// Checks the addresses of this node, and of others also if they were not read from text.
    fn check_addresses(&self) -> Result<()> {
        let health = Some(("health_listen", self.health_listen.as_str()));
        let health = health.filter(|(_, at)| !at.is_empty());
        let mut known: Vec<(&str, &str)> = Vec::new();
        for (key, at) in self.listeners().chain(health) {
            let (_, port) = address::split(at).map_err(|error| wrong_address(key, &error))?;
            if let Some((other, _)) = known.iter().find(|(_, it)| *it == at && port != 0) {
                return Err(Error::invalid(format!(
                    "{key} and {other} are both {at}: each listener needs an address of its own"
                )));
            }
            known.push((key, at));
        }
        if !self.advertise.is_empty() {
            address::check(&self.advertise).map_err(|error| wrong_address("advertise", &error))?;
        }
        let joined = self.join.iter().try_for_each(|seed| address::check(seed));
        joined.map_err(|error| wrong_address("join", &error))
    }

    fn field(&mut self, key: &str) -> Option<Field<'_>> {
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        Some(match key {
            "listen" => Field::Text(&mut self.listen),
            "advertise" => Field::Text(&mut self.advertise),
            "join" => Field::Addresses(&mut self.join),
            "store" => Field::Paths(&mut self.stores),
            "label" => Field::Labels(&mut self.labels),
            "memtable_bytes_max" => Field::bytes(&mut self.memtable_bytes_max, MIB, 4 * GIB),
            "block_cache_bytes_max" => Field::bytes(&mut self.block_cache_bytes_max, MIB, 1 << 40),
            "reserved_bytes" => Field::bytes(&mut self.reserved_bytes, 0, 1 << 60),
            "gc_policy" => Field::Word(&mut self.gc_policy, &["adaptive", "nezha", "wisckey"]),
            "space_amp_target" => Field::Ratio(&mut self.space_amp_target, 1.05, 100.0),
            "sort_threshold_bytes" => Field::bytes(&mut self.sort_threshold_bytes, MIB, 1 << 44),
            "sort_interval_s" => Field::count(&mut self.sort_interval_s, 0, 366 * 86_400),
            "scan_load_ratio" => Field::Ratio(&mut self.scan_load_ratio, 0.0, 1_000_000.0),
            "tick_ms" => Field::count_or_0(&mut self.tick_ms, TickMillis::MIN, TickMillis::MAX),
            "commit_return" => Field::Switch(&mut self.commit_return),
            "read_acceleration" => Field::Switch(&mut self.read_acceleration),
            "hibernate_after_ms" => Field::count(&mut self.hibernate_after_ms, 0, 86_400_000),
            "pin_bytes_max" => Field::bytes(&mut self.pin_bytes_max, MIB, 1 << 44),
            "region_bytes_max" => Field::bytes(&mut self.region_bytes_max, MIB, 1 << 44),
            "region_ops_max" => Field::count(&mut self.region_ops_max, 0, 1 << 32),
            "pending_bytes_max" => Field::bytes(&mut self.pending_bytes_max, MIB, 1 << 40),
            "request_memory_bytes_max" => {
                Field::bytes(&mut self.request_memory_bytes_max, BYTES_MIN, 1 << 40)
            }
            "connections_max" => Field::count(&mut self.connections_max, 1, 1_000_000),
            "slow_log_ms" => Field::count(&mut self.slow_log_ms, 0, 86_400_000),
            "log_level" => {
                Field::Word(&mut self.log_level, &["error", "warn", "info", "debug", "trace"])
            }
            "tls_ca" => Field::File(&mut self.tls_ca),
            "tls_cert" => Field::File(&mut self.tls_cert),
            "tls_key" => Field::File(&mut self.tls_key),
            "client_certificates" => {
                Field::Word(&mut self.client_certificates, &["required", "optional", "transition"])
            }
            "administrators" => Field::Names(&mut self.administrators),
            "peer_listen" => Field::Text(&mut self.peer_listen),
            "admin_listen" => Field::Text(&mut self.admin_listen),
            "audit_log" => Field::File(&mut self.audit_log),
            "health_listen" => Field::Text(&mut self.health_listen),
            REDIS_LISTEN => Field::Text(&mut self.redis_listen),
            "redis_flush" => Field::Switch(&mut self.redis_flush),
            "insecure" => Field::Switch(&mut self.insecure),
            _ => return None,
        })
    }
}

const REDIS_LISTEN: &str = "redis_listen";

fn is_everywhere(listen: &str) -> bool {
    listen.starts_with("0.0.0.0") || listen.starts_with("[::]")
}

fn named(source: &str, error: &Error) -> Error {
    Error::invalid(format!("{source}: {}", detail(error)))
}

fn detail(error: &Error) -> String {
    match error {
        Error::Invalid(detail) => detail.clone(),
        other => other.to_string(),
    }
}

fn unknown(key: &str) -> String {
    if stele_placement::SETTINGS.iter().any(|setting| setting.name == key) {
        return format!(
            "`{key}` is a setting of the cluster: set it with `stele ctl config {key} VALUE`"
        );
    }
    let keys: Vec<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
    format!("unknown setting `{key}`; known settings: {}", keys.join(", "))
}

const PREFIX: &str = "STELE_";
/// Variables of the repository's tests, without the prefix. Nodes that tests start inherit them.
const OF_TESTS: [&str; 7] =
    ["MUTANT", "SEED", "SEEDS", "BLESS", "CASES", "HISTORIES", "CRASH_STRIDE"];

/// Variables of commands that connect to a cluster.
const OF_CLIENTS: [&str; 3] = ["CA", "CERT", "KEY"];

/// Whether a variable must be a setting: its name begins as theirs do, and no other program sets it.
fn is_setting(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    !OF_TESTS.contains(&rest) && !OF_CLIENTS.contains(&rest) && !is_of_service(rest)
}

/// Whether a container platform sets the variable for a service named `stele` or `stele-…`:
/// `STELE_SERVICE_PORT`, `STELE_PORT`, `STELE_PORT_2379_TCP_ADDR`.
fn is_of_service(rest: &str) -> bool {
    let rest = format!("_{rest}");
    let is_number_next = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
    rest.contains("_SERVICE_HOST")
        || rest.contains("_SERVICE_PORT")
        || rest.ends_with("_PORT")
        || rest.split("_PORT_").skip(1).any(is_number_next)
}

fn unknown_variable(name: &str) -> Error {
    let names: Vec<String> = SETTINGS.iter().map(|setting| setting.variable()).collect();
    Error::invalid(format!(
        "environment: unknown setting `{name}`; known variables: {}",
        names.join(", ")
    ))
}

fn not_text(name: &str) -> Error {
    Error::invalid(format!("environment: {name} is not text: its value must be UTF-8"))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> std::iter::Empty<(OsString, OsString)> {
        std::iter::empty()
    }

    #[test]
    fn every_setting_of_the_table_can_be_read_and_set_to_its_default() {
        // Commit return and read acceleration came with the answers at commit; labels, modes, speeds
        // and bytes in motion with the placement by measured speed; the memory of requests because
        // machines have from 1 GiB to 1 TiB; Nezha's three triggers because they depend on the load. 17 more
        // are for security, Redis, HTTP and speed.
        assert!(SETTINGS.len() + stele_placement::SETTINGS.len() <= 54);
        let mut config = Config::default();
        for setting in SETTINGS {
            let text = config.get(setting.key).unwrap_or_else(|| panic!("{}", setting.key));
            config.set(setting.key, &text).unwrap();
        }
        assert_eq!(config, Config::default());
        let is_known = |key: &str| SETTINGS.iter().any(|setting| setting.key == key);
        assert!(RELOADED.iter().all(|key| is_known(key)));
    }

    #[test]
    fn later_sources_win() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("stele.toml");
        std::fs::write(&file, "tick_ms = 70\nstore = [\"a\", \"b\"]\nslow_log_ms = 7\n").unwrap();
        let environment = vec![("STELE_TICK_MS".into(), "60".into())];
        let flags = vec![("slow_log_ms".to_owned(), "9".to_owned())];
        let config = Config::load(Some(&file), environment.into_iter(), &flags).unwrap();
        assert_eq!((config.tick_ms, config.slow_log_ms, config.stores.len()), (60, 9, 2));
    }

    #[test]
    fn an_unknown_setting_is_an_error_in_the_file_the_environment_and_the_flags() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("stele.toml");
        std::fs::write(&file, "memtable_bytes = 1\n").unwrap();
        let refused = |file: Option<&Path>, name: &str, flags: &[(String, String)]| {
            let environment = [(OsString::from(name), OsString::from("1"))];
            Config::load(file, environment.into_iter(), flags).unwrap_err().to_string()
        };
        let text = refused(Some(&file), "HOME", &[]);
        assert!(text.contains("stele.toml: unknown setting `memtable_bytes`"), "{text}");
        let text = refused(None, "HOME", &[("tick".to_owned(), "1".to_owned())]);
        assert!(text.contains("--tick: unknown setting `tick`"), "{text}");
        for name in ["STELE_TICK", "STELE_tick_ms", "STELE_", "STELE_PORTS"] {
            let text = refused(None, name, &[]);
            assert!(text.contains(&format!("unknown setting `{name}`")), "{text}");
            assert!(text.contains("STELE_TICK_MS"), "{text}");
        }
        std::fs::write(&file, "replicas = 5\n").unwrap();
        let text = refused(Some(&file), "HOME", &[]);
        assert!(text.contains("stele ctl config replicas"), "{text}");
        // Others set these: a container platform beside a service of that name, and tests.
        let foreign = ["STELE_SERVICE_HOST", "STELE_PORT_2379_TCP_ADDR", "STELE_SEED", "STELEX"];
        let foreign = foreign.into_iter().map(|name| (name.into(), "1".into()));
        assert_eq!(Config::load(None, foreign, &[]).unwrap(), Config::default());
    }

    #[test]
    #[cfg(unix)]
    fn a_variable_that_is_not_text_is_refused_by_name() {
        use std::os::unix::ffi::OsStringExt;
        let bytes = || OsString::from_vec(vec![0xff]);
        let of = |name: &str| Config::load(None, [(name.into(), bytes())].into_iter(), &[]);
        let refused = of("STELE_JOIN").unwrap_err().to_string();
        assert!(refused.contains("STELE_JOIN is not text"), "{refused}");
        of("LS_COLORS").unwrap();
    }

    #[test]
    fn labels_are_names_with_values_and_each_name_is_given_once() {
        let mut config = Config::default();
        let long = "a".repeat(65);
        for bad in ["rack", "rack=", "=a", "rack=a b", "rack=a,rack=b", "ra\"ck=a", "räck=a"] {
            let refused = config.set("label", bad).unwrap_err().to_string();
            assert!(refused.contains("name=value"), "{bad}: {refused}");
        }
        config.set("label", &format!("rack={long}")).unwrap_err();
        config.set("label", &format!("{long}=a")).unwrap_err();
        let many: Vec<String> = (0..65).map(|n| format!("label{n}=a")).collect();
        config.set("label", &many.join(",")).unwrap_err();
        assert_eq!(config, Config::default(), "what is refused changes nothing");
        config.set("label", "rack=a-1, zone=eu/w_2.x").unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(config.label_pairs(), [pair("rack", "a-1"), pair("zone", "eu/w_2.x")]);
        config.set("label", "").unwrap();
        assert_eq!(config.label_pairs(), []);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_allowed() {
        let flags = |key: &str, text: &str| vec![(key.to_owned(), text.to_owned())];
        let message = |key: &str, text: &str| {
            Config::load(None, none(), &flags(key, text)).unwrap_err().to_string()
        };
        for bad in ["4", "9999"] {
            assert!(message("tick_ms", bad).contains("0, or 5 to 1000"));
        }
        assert!(message("memtable_bytes_max", "many").contains("memtable_bytes_max"));
        assert!(message("gc_policy", "x").contains("wisckey"));
        assert!(message("colour", "x").contains("tick_ms"));
        assert!(message("store", "a,a").contains("twice"));
        assert!(message("listen", "0.0.0.0:1").contains("advertise"));
        assert!(message("peer_listen", "[::]:1").contains("advertise"));
        assert!(Config::load(None, none(), &flags("redis_listen", "[::]:1")).is_ok());
        assert!(message("redis_listen", "127.0.0.1:2379").contains("redis_listen and listen are"));
        let taken = message("admin_listen", "127.0.0.1:2379");
        assert!(taken.contains("admin_listen and listen are both 127.0.0.1:2379"), "{taken}");
        let any_port = [flags("listen", "a:0"), flags("peer_listen", "a:0")].concat();
        assert!(Config::load(None, none(), &any_port).is_ok());
        for bad in ["node-1", "node-1:0", ":2379", "http://localhost:2379", "node-1:23790000"] {
            let refused = message("advertise", bad);
            assert!(refused.contains("advertise: `") && refused.contains("host:port"), "{refused}");
        }
        assert!(
            message("listen", "2379")
                .contains("listen: `2379` is not an address: the port is missing")
        );
        assert!(Config::load(None, none(), &flags("listen", "127.0.0.1:0")).is_ok(), "any port");
        for bad in ["a:1,node-2", "a:1,b:0", "a:1,tcp://b:2"] {
            assert!(message("join", bad).contains("join: `"), "{bad}");
        }
        assert!(message("join", "a:1,https://localhost:2").contains("files turn TLS on"));
        for empty in ["", " , "] {
            assert!(message("join", empty).contains("join: names no node"), "{empty:?}");
        }
        let joined =
            Config::load(None, none(), &flags("join", "a:1, http://localhost:2/")).unwrap();
        assert_eq!(joined.join, ["a:1", "localhost:2"]);
        for good in ["node-1:2379", "[fd00::1]:2379", "10.0.0.7:1"] {
            assert!(Config::load(None, none(), &flags("advertise", good)).is_ok(), "{good}");
        }
        assert!(message("sort_threshold_bytes", "1KiB").contains("1MiB to 16TiB"));
        assert!(message("sort_interval_s", "-1").contains("0 to 31622400"));
        assert!(message("scan_load_ratio", "NaN").contains("0 to 1000000"));
        let never = [flags("gc_policy", "wisckey"), flags("sort_interval_s", "60")].concat();
        let refused = Config::load(None, none(), &never).unwrap_err().to_string();
        assert!(refused.contains("never sorts") && refused.contains("adaptive"), "{refused}");
    }
}
