//! Arguments of `stele restore`.

use super::node_address;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use stele_load::TlsFiles;
use stele_types::{ColumnFamily, Error, LogIndex, RegionId, Result};

/// Restore of a moment of a backup, or of one key.
#[derive(Args, Debug)]
pub(crate) struct Restore {
    /// Backup: a directory, or s3://bucket/prefix with keys from AWS_* variables
    #[arg(long, value_name = "URL")]
    pub from: String,
    /// Addresses of one or more nodes of the cluster to write to, as host:port; without it and
    /// --store nothing is written
    #[arg(long, value_name = "ADDR", value_delimiter = ',', value_parser = node_address,
          conflicts_with = "store")]
    pub cluster: Vec<String>,
    #[command(flatten)]
    pub tls: TlsFiles,
    /// Directory of a new embedded store to write to
    #[arg(long, value_name = "DIR", conflicts_with_all = ["prefix", "redis_prefix", "regions", "with_settings", "with_access"])]
    pub store: Option<PathBuf>,
    /// Number of the moment; by default the newest that can be restored
    #[arg(long, value_name = "N", conflicts_with = "to_time")]
    pub moment: Option<u64>,
    /// Restore the last moment of which the clocks of all nodes were at or before this time: Unix
    /// seconds, or RFC 3339 such as 2026-07-01T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub to_time: Option<String>,
    /// Replace the keys with this prefix in a cluster with data. It is not atomic: first they are
    /// deleted, then written
    #[arg(long, value_name = "KEY", conflicts_with_all = ["regions", "continue"])]
    pub prefix: Option<String>,
    /// Replace the Redis keys of which the name begins so, in every database of a cluster with data.
    /// It is not atomic: first they are deleted, then written
    #[arg(long, value_name = "NAME", conflicts_with_all = ["prefix", "regions", "continue"])]
    pub redis_prefix: Option<String>,
    /// Replace the keys of the prefix, or write the key, without a question; required without a
    /// terminal
    #[arg(long)]
    pub yes: bool,
    /// Go on after an interruption with the same moment: pairs of the base that a cluster has
    /// already are not written again
    #[arg(long, requires = "moment")]
    pub r#continue: bool,
    /// Regions to make in the cluster before, with about as many bytes each; by default those of
    /// the moment
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub regions: Option<u64>,
    /// Add the age of the moment to each time at which a pair expires
    #[arg(long)]
    pub shift_expiry: bool,
    /// Set the settings of the cluster that the backup recorded; without it they are printed
    #[arg(long, requires = "cluster")]
    pub with_settings: bool,
    /// Make the grants of access that the backup recorded; without it they are printed
    #[arg(long, requires = "cluster")]
    pub with_access: bool,
    /// Restore one key to one of its writes
    #[arg(long, value_name = "KEY", conflicts_with_all = ["store", "prefix", "redis_prefix", "regions", "continue"])]
    pub of_key: Option<String>,
    /// List the writes of the key, one JSON object per line
    #[arg(long, requires = "of_key")]
    pub history: bool,
    /// The last write of the key up to this index of a region's log, as `--history` lists it
    #[arg(long, value_name = "REGION:INDEX", requires = "of_key", conflicts_with = "history",
          value_parser = write_place)]
    pub to_index: Option<(RegionId, LogIndex)>,
    /// Column family of the key
    #[arg(long, value_enum, default_value = "default", requires = "of_key")]
    pub family: FamilyName,
    /// Read keys and prefixes, and print keys and values, as hexadecimal
    #[arg(long)]
    pub hex: bool,
}

/// Column family on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FamilyName {
    /// The default family
    Default,
    /// Family `lock`
    Lock,
    /// Family `write`
    Write,
}

impl FamilyName {
    pub(crate) fn family(self) -> ColumnFamily {
        match self {
            Self::Default => ColumnFamily::Default,
            Self::Lock => ColumnFamily::Lock,
            Self::Write => ColumnFamily::Write,
        }
    }
}

fn write_place(text: &str) -> Result<(RegionId, LogIndex)> {
    let (region, index) = text.split_once(':').unwrap_or((text, ""));
    match (region.parse(), index.parse()) {
        (Ok(region), Ok(index)) => Ok((RegionId(region), LogIndex(index))),
        _ => Err(Error::invalid(format!(
            "`{text}` is not a place in a log: write region and index, such as 7:1200"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use crate::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let parse = |line: &str| Cli::try_parse_from(format!("stele restore {line}").split(' '));
        for good in [
            "--from d",
            "--from d --cluster a:1 --moment 7 --continue",
            "--from d --cluster a:1,b:2 --to-time 1000 --regions 12 --with-settings --with-access",
            "--from d --cluster a:1 --prefix p --yes --shift-expiry",
            "--from d --cluster a:1 --redis-prefix user: --yes --shift-expiry",
            "--from d --store s",
            "--from d --of-key k --history --family lock",
            "--from d --of-key k --to-index 7:12 --cluster a:1 --yes",
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in [
            "--cluster a:1",
            "--from d --cluster a:1 --store s",
            "--from d --moment 7 --to-time 1000",
            "--from d --cluster a:1 --continue",
            "--from d --store s --prefix p",
            "--from d --store s --redis-prefix p",
            "--from d --cluster a:1 --prefix p --redis-prefix p",
            "--from d --cluster a:1 --regions 0",
            "--from d --history",
            "--from d --of-key k --to-index 7",
            "--from d --of-key k --to-index 7:x",
            "--from d --with-access",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let Ok(Command::Restore(parsed)) =
            parse("--from d --of-key k --to-index 7:12").map(|cli| cli.command)
        else {
            panic!("not parsed");
        };
        assert_eq!(parsed.to_index.map(|(region, index)| (region.0, index.0)), Some((7, 12)));
    }
}
