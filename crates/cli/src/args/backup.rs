//! Arguments of `stele backup`.

use super::node_address;
use clap::{Args, Subcommand};
use std::time::Duration;
use stele_load::TlsFiles;
use stele_types::size::parse_bytes;

/// Commands of `stele backup`.
#[derive(Debug, Subcommand)]
pub(crate) enum BackupCommand {
    /// Print the moments of a backup, and from which base each can be restored
    List(ListMoments),
    /// Check that a backup is complete; exit code 1 if an object is missing or damaged
    Verify(VerifyBackup),
    /// Delete what only moments before a kept one need
    Prune(Prune),
}

/// Place of a backup.
#[derive(Args, Debug)]
pub(crate) struct BackupPlace {
    /// A folder, file://FOLDER or s3://BUCKET/PREFIX; address and keys of S3 come from AWS_ENDPOINT_URL, AWS_REGION,
    /// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_ALLOW_HTTP=true allows an address without TLS
    #[arg(long, value_name = "URL")]
    pub to: String,
}

#[derive(Args, Debug)]
pub(crate) struct ListMoments {
    #[command(flatten)]
    pub place: BackupPlace,
    /// Print one JSON object per moment
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct VerifyBackup {
    #[command(flatten)]
    pub place: BackupPlace,
    /// Read all objects, and check their hashes, order and places
    #[arg(long)]
    pub deep: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Prune {
    #[command(flatten)]
    pub place: BackupPlace,
    /// Earliest moment to keep: one that can be restored
    #[arg(long, value_name = "MOMENT")]
    pub keep_from: u64,
    /// Continue a prune that was killed; no other prune may run
    #[arg(long)]
    pub take_over: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// Backs up a cluster: without `--follow` until one moment can be restored.
#[derive(Args, Debug)]
pub(crate) struct Pull {
    /// Addresses of one or more nodes of the cluster, as host:port
    #[arg(long, value_name = "ADDR", value_delimiter = ',', required = true,
          value_parser = node_address)]
    pub cluster: Vec<String>,
    #[command(flatten)]
    pub tls: TlsFiles,
    /// A folder, file://FOLDER or s3://BUCKET/PREFIX, as for `list`; it is made if it does not exist
    #[arg(long, value_name = "URL", required = true)]
    pub to: Option<String>,
    /// Go on with further moments until a signal
    #[arg(long)]
    pub follow: bool,
    /// Time between two moments that can be restored
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub every: Duration,
    /// Age at which the copy of all pairs is replaced, so that a restore need not replay a longer log
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    pub base_every: Duration,
    /// Most bytes to read and send in a second, together, as 50MiB
    #[arg(long, value_name = "BYTES", value_parser = bandwidth)]
    pub bandwidth: Option<u64>,
}

/// Backups of a cluster.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Backup {
    #[command(subcommand)]
    pub command: Option<BackupCommand>,
    #[command(flatten)]
    pub pull: Pull,
}

fn duration(text: &str) -> Result<Duration, String> {
    match super::ctl::seconds(text)? {
        0 => Err("give a time above 0".to_owned()),
        seconds => Ok(Duration::from_secs(seconds)),
    }
}

fn bandwidth(text: &str) -> Result<u64, String> {
    match parse_bytes(text).map_err(|error| error.to_string())? {
        0 => Err("give a number above 0; without the option there is no limit".to_owned()),
        bytes => Ok(bytes),
    }
}
