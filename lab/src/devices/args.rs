//! Arguments of `lab devices`.

use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use stele_load::size;
use stele_types::size::{check_value_bytes, parse_bytes};
use stele_types::{Error, Result};
use stele_vfs::DeviceProfile;

/// Stores over the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Layout {
    /// A store for each device, each with its own clients
    Instances,
    /// One set of shards over all devices; all clients use all of it
    Shards,
    /// One store on a stripe over all devices (RAID-0); only with --emulated
    OneStore,
}

/// Calls of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// Each client waits for each call
    Sync,
    /// Each client keeps --depth calls in flight
    Async,
}

/// Percentages of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    pub insert: u64,
    pub update: u64,
    pub read: u64,
    pub delete: u64,
}

/// Measure stores on several devices in one process
#[derive(Debug, Parser)]
#[command(name = "lab devices")]
pub(super) struct Args {
    /// Directories, one per device
    #[arg(long, value_name = "DIR,DIR,…", value_delimiter = ',', required = true)]
    pub devices: Vec<PathBuf>,
    /// Number of emulated devices, in new directories below the only one of --devices
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub emulated: Option<u64>,
    /// Times of each emulated device: read-latency-us, write-latency-us, sync-latency-us,
    /// read-bytes (per second), write-bytes (per second), queue-depth. The default is a fast flash
    /// device
    #[arg(long, value_name = "NAME=VALUE,…", default_value = "", value_parser = profile,
          hide_default_value = true)]
    pub profile: DeviceProfile,
    /// Numbers of devices that are measured in turn; the default is all
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub counts: Vec<u64>,
    /// Stores over the devices
    #[arg(long, value_enum, default_value = "instances")]
    pub layout: Layout,
    /// Modes that are measured in turn
    #[arg(long, value_enum, value_delimiter = ',', default_value = "sync")]
    pub mode: Vec<Mode>,
    /// Number of calls that a client in the mode async keeps in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub depth: u64,
    /// Number of clients per device in the mode sync; in the mode async there is one
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub threads: u64,
    /// Bind each device's threads to one processor, in turn
    #[arg(long)]
    pub pin: bool,
    /// Percentages of operations
    #[arg(long, value_name = "NAME=PERCENT,…", default_value = "read=50,update=50",
          value_parser = shares)]
    pub mix: Shares,
    /// Number of records per device before the measured part
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: u64,
    /// Length of each key in bytes
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(8..=8192))]
    pub key_bytes: u64,
    /// Length of each value, such as 4KiB
    #[arg(long, default_value = "4KiB", value_name = "SIZE", value_parser = size)]
    pub value_bytes: u64,
    /// Time of a measured part in seconds
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    pub seconds: f64,
    /// Number of rounds; each measures every mode and number of devices
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Memory of each store for values that were read
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = size)]
    pub value_cache_bytes: u64,
    /// Seed of the random number generator
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Args {
    pub(super) fn device_count(&self) -> u64 {
        self.emulated.unwrap_or(self.devices.len() as u64)
    }

    /// Fails if the arguments contradict each other.
    pub(super) fn check(&self) -> Result<()> {
        if self.emulated.is_some() && self.devices.len() != 1 {
            return Err(Error::invalid("--emulated takes one directory in --devices"));
        }
        let most = self.device_count();
        if let Some(count) = self.counts.iter().find(|&&count| count == 0 || count > most) {
            return Err(Error::invalid(format!("--counts names {count} of {most} devices")));
        }
        if self.layout == Layout::OneStore && self.emulated.is_none() {
            let text = "one store on several devices needs a stripe (RAID-0) below it, which the \
                        system makes: name its directory with --layout instances, or use --emulated";
            return Err(Error::invalid(text));
        }
        let is_timed = self.seconds.is_finite() && self.seconds > 0.0;
        if !is_timed {
            return Err(Error::invalid("--seconds must be above 0"));
        }
        check_value_bytes(self.value_bytes)
    }
}

fn pairs(text: &str) -> impl Iterator<Item = std::result::Result<(&str, &str), String>> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').ok_or_else(|| format!("`{part}` is not NAME=VALUE")))
}

fn shares(text: &str) -> std::result::Result<Shares, String> {
    let mut shares = Shares::default();
    for pair in pairs(text) {
        let (name, percent) = pair?;
        let share = match name {
            "insert" => &mut shares.insert,
            "update" => &mut shares.update,
            "read" => &mut shares.read,
            "delete" => &mut shares.delete,
            _ => return Err(format!("`{name}` is not one of insert, update, read, delete")),
        };
        *share = percent.parse().map_err(|_| format!("`{percent}` is not a percentage"))?;
    }
    let all = [shares.insert, shares.update, shares.read, shares.delete];
    let whole = all.iter().try_fold(0_u64, |sum, share| sum.checked_add(*share));
    if whole == Some(100) { Ok(shares) } else { Err("the percentages must be 100 together".into()) }
}

fn profile(text: &str) -> std::result::Result<DeviceProfile, String> {
    let mut profile = DeviceProfile::FLASH;
    for pair in pairs(text) {
        let (name, value) = pair?;
        let number = || value.parse::<u64>().map_err(|_| format!("`{value}` is not a number"));
        let bytes = || parse_bytes(value).map_err(|error| error.to_string());
        match name {
            "read-latency-us" => profile.read_latency = Duration::from_micros(number()?),
            "write-latency-us" => profile.write_latency = Duration::from_micros(number()?),
            "sync-latency-us" => profile.sync_latency = Duration::from_micros(number()?),
            "read-bytes" => profile.read_bytes_per_s = bytes()?,
            "write-bytes" => profile.write_bytes_per_s = bytes()?,
            "queue-depth" => profile.queue_depth = number()? as usize,
            _ => return Err(format!("`{name}` is not a setting of a device profile")),
        }
    }
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_whole_and_name_known_operations() {
        let mixed = Shares { insert: 10, update: 20, read: 65, delete: 5 };
        assert_eq!(shares("read=65,insert=10,delete=5,update=20"), Ok(mixed));
        for wrong in ["read=99", "read=50,scan=50", "read", "read=x", "", "read=200"] {
            assert!(shares(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_profile_changes_what_it_names() {
        assert_eq!(profile(""), Ok(DeviceProfile::FLASH));
        let set = profile("read-latency-us=7,write-bytes=2MiB,queue-depth=3").unwrap();
        assert_eq!(set.read_latency, Duration::from_micros(7));
        assert_eq!((set.write_bytes_per_s, set.queue_depth), (2 << 20, 3));
        assert_eq!(set.sync_latency, DeviceProfile::FLASH.sync_latency);
        for wrong in ["speed=1", "queue-depth=many", "read-bytes"] {
            assert!(profile(wrong).is_err(), "{wrong}");
        }
    }
}
