//! Arguments of `stele import`.

use super::Encoding;
use clap::Args;
use std::path::PathBuf;
use stele_load::TlsFiles;

#[derive(Args, Debug)]
pub(crate) struct Import {
    /// Directory of the store that the pairs are written to
    #[arg(long, value_name = "DIR", required_unless_present = "to", conflicts_with = "to")]
    pub store: Option<PathBuf>,
    /// Address at which a node serves the Redis protocol, as `redis://HOST:PORT[/DB]`: Redis data is written to
    /// it. With rediss:// over TLS
    #[arg(long, value_name = "URL")]
    pub to: Option<String>,
    /// With --store: directory (each file below it becomes a pair), file of JSON lines, or `-` for standard
    /// input. With --to: RDB file, or a server as `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`
    #[arg(long, value_name = "PATH or URL")]
    pub from: PathBuf,
    /// Encoding of `key` and `value` in JSON lines
    #[arg(long, value_enum, default_value = "text", conflicts_with = "to")]
    pub encoding: Encoding,
    #[command(flatten)]
    pub redis: RedisImport,
}

/// Arguments of an import of Redis data.
#[derive(Args, Debug)]
pub(crate) struct RedisImport {
    /// Import one database only; by default all of them, each into the database with the same number
    #[arg(long, value_name = "N", requires = "to")]
    pub db: Option<u64>,
    /// Write nothing: compare the source with what the target has; exit code 1 if they differ
    #[arg(long, requires = "to")]
    pub check: bool,
    /// Number of connections to the target
    #[arg(long, value_name = "N", default_value_t = 8, requires = "to",
          value_parser = clap::value_parser!(u64).range(1..=64))]
    pub connections: u64,
    /// File with the password of the source, instead of one in its URL
    #[arg(long, value_name = "FILE", requires = "to")]
    pub password_file: Option<PathBuf>,
    #[command(flatten)]
    pub tls: TlsFiles,
}
