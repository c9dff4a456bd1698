//! Arguments of a load.

use clap::{Args, ValueEnum};
use std::sync::Arc;
use stele_client::{Client, Options};
use stele_tls::{ClientFiles, ClientTls, ServerCheck, UnixTime};
use stele_types::size::check_value_bytes;
use stele_types::{Error, Result};

/// Mix of operations: YCSB A to F, a share of updates (W) or scans (S), or only inserts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Insert every record once
    Load,
    /// 50 % reads, 50 % updates
    A,
    /// 95 % reads, 5 % updates
    B,
    /// Reads only
    C,
    /// 95 % reads of recent records, 5 % inserts
    D,
    /// 95 % short scans, 5 % inserts
    E,
    /// 50 % reads, 50 % read-modify-writes
    F,
    /// Updates only
    Update,
    /// 90 % updates, 10 % reads
    W90,
    /// 70 % updates
    W70,
    /// 50 % updates
    W50,
    /// 30 % updates
    W30,
    /// 10 % updates
    W10,
    /// 90 % scans, 10 % updates
    S90,
    /// 70 % scans
    S70,
    /// 50 % scans
    S50,
    /// 30 % scans
    S30,
    /// 10 % scans
    S10,
}

/// Distribution by which records are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// Each record with the same probability
    Uniform,
    /// A few records much more often (θ 0.99), spread over the key space
    Zipfian,
    /// Recently inserted records more often
    Latest,
    /// A share --hot-operations of the choices among a share --hot-records of the records
    Hotspot,
}

/// Load on the measured engine or server.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Mix of operations
    #[arg(long, value_enum, default_value = "a", ignore_case = true)]
    pub workload: Workload,
    /// Number of records before the measured part
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: u64,
    /// Number of measured operations; the workload `load` measures one insert per record
    #[arg(long, default_value_t = 100_000)]
    pub operations: u64,
    /// Stop the measured part after this time
    #[arg(long, value_name = "SECONDS")]
    pub duration: Option<u64>,
    /// Number of concurrent clients
    #[arg(long, visible_alias = "clients", default_value_t = 16,
          value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub threads: u64,
    /// Target rate in operations per second (open loop): operations start on schedule, and latency
    /// counts from the scheduled start. Without it, each client starts an operation when its last
    /// one ends
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
    /// Length of each value, such as 16KiB
    #[arg(long, default_value = "1KiB", value_name = "SIZE", value_parser = size)]
    pub value_bytes: u64,
    /// Length of each key in bytes
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(8..=8192))]
    pub key_bytes: u64,
    /// Insert records in key order instead of scattered order
    #[arg(long)]
    pub ordered: bool,
    /// Distribution by which records are chosen; the default depends on the workload
    #[arg(long, value_enum)]
    pub distribution: Option<Distribution>,
    /// Share of the records that are hot, from 0 to 1, for --distribution hotspot
    #[arg(long, default_value_t = 0.2)]
    pub hot_records: f64,
    /// Share of the operations on hot records, from 0 to 1, for --distribution hotspot
    #[arg(long, default_value_t = 0.8)]
    pub hot_operations: f64,
    /// Maximum number of pairs in a scan
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub scan_length_max: u64,
    /// Percentage of the updates that delete the record instead
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub deletes: u64,
    /// Seed of the random number generator
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Do not load records; they must exist
    #[arg(long)]
    pub skip_load: bool,
    /// Do not print a line each second
    #[arg(long)]
    pub quiet: bool,
}

impl Load {
    /// Fails if a share is outside 0 to 1 or a value is too long.
    pub fn check(&self) -> Result<()> {
        let share = 0.0..=1.0;
        if !share.contains(&self.hot_records) || !share.contains(&self.hot_operations) {
            let text = "--hot-records and --hot-operations must be shares from 0 to 1";
            return Err(Error::invalid(text));
        }
        check_value_bytes(self.value_bytes)
    }
}

/// Arguments of `stele bench wire`.
#[derive(Args, Debug)]
pub struct Wire {
    /// Servers to measure: stele://HOST:PORT,HOST:PORT or tikv://, redis://. Several
    /// targets are measured in turn, round by round
    #[arg(long, value_name = "URL", required = true)]
    pub target: Vec<String>,
    /// Load on each of them
    #[command(flatten)]
    pub load: Load,
    /// Number of measured rounds per target
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Run the load unmeasured for this time before the first round
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pub warm_up: u64,
    /// Number of connections to each node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub connections: u64,
    /// TLS of `stele://` and `tikv://`
    #[command(flatten)]
    pub tls: TlsFiles,
    /// Replicas that must acknowledge a write to redis before it counts; 0 disables the wait
    #[arg(long, default_value_t = 1)]
    pub redis_replicas: u64,
    /// Write an HTML page with the results and their plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<std::path::PathBuf>,
}

/// Files of TLS for connections to a cluster.
#[derive(Args, Clone, Debug, Default)]
pub struct TlsFiles {
    /// Authorities that nodes are verified by, a PEM file; without it connections are not encrypted
    #[arg(long = "ca", id = "tls_ca", value_name = "FILE", env = "STELE_CA")]
    pub ca: Option<std::path::PathBuf>,
    /// Certificate of this client, a PEM file
    #[arg(long = "cert", id = "tls_cert", value_name = "FILE", env = "STELE_CERT",
          requires_all = ["tls_ca", "tls_key"])]
    pub cert: Option<std::path::PathBuf>,
    /// Key of that certificate, a PEM file
    #[arg(
        long = "key",
        id = "tls_key",
        value_name = "FILE",
        env = "STELE_KEY",
        requires = "tls_cert"
    )]
    pub key: Option<std::path::PathBuf>,
    /// File with a token of `stele ctl access token`, for a client without a certificate
    #[arg(long, value_name = "FILE", env = "STELE_TOKEN_FILE", requires = "tls_ca")]
    pub token_file: Option<std::path::PathBuf>,
}

impl TlsFiles {
    /// Reads the files; `None` without `--ca`. Fails if one cannot be used.
    pub fn open(&self) -> Result<Option<Arc<ClientTls>>> {
        let Some(authorities) = self.ca.clone() else { return Ok(None) };
        let pair = self.cert.clone().zip(self.key.clone());
        let files = ClientFiles { authorities, pair };
        let tls = ClientTls::open(files, ServerCheck::HostName, UnixTime::now())?;
        for warning in tls.warnings() {
            eprintln!("stele: {warning}");
        }
        Ok(Some(Arc::new(tls)))
    }

    /// Reads the token; `None` without a file of one.
    pub fn token(&self) -> Result<Option<String>> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let token =
            std::fs::read_to_string(path).map_err(|error| Error::io("read", path, error))?;
        Ok(Some(token.trim().to_owned()))
    }

    /// Connects to a cluster through any of these addresses, over TLS if there are files for it.
    pub async fn connect(&self, addresses: &[String], options: Options) -> Result<Client> {
        match self.open()? {
            Some(tls) => {
                let token = self.token()?;
                Client::connect_over_tls(addresses, tls, token.as_deref(), options).await
            }
            None => Client::connect_with(addresses, options).await,
        }
    }
}

/// Parses a size such as 16KiB.
pub fn size(text: &str) -> std::result::Result<u64, String> {
    stele_types::size::parse_bytes(text).map_err(|error| error.to_string())
}
