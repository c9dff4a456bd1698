//! `stele server`: runs one node of a cluster until a signal stops it.

use crate::Outcome;
use crate::args::Server;
use crate::descriptors;
use crate::output::print;
use crate::runtime;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stele_server::config::Config;
use stele_server::descriptors::Descriptors;
use stele_server::node::{self, Ready};
use stele_server::observe::LogWriter;
use stele_types::{Error, Result};
use stele_vfs::DeviceScale;
use tracing_subscriber::EnvFilter;

/// Longest wait for threads that read or write files when the server ends.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);
/// Interval in which the factor of the devices is read.
const SCALE_INTERVAL: Duration = Duration::from_millis(200);

pub fn run(args: &Server) -> Result<Outcome> {
    if let Some(parent) = args.with_parent {
        end_with(parent)?;
    }
    let load = || Config::load(args.config.as_deref(), std::env::vars(), &args.settings.0);
    let mut config = load()?;
    config.replaced_disks.clone_from(&args.replaced_disk);
    config.moved_directories.clone_from(&args.moved_directory);
    config.device_scale = args.device_scale.clone().map(follow_scale);
    config.check()?;
    config.descriptors = Descriptors::share(descriptors::raise(), config.stores.len());
    let set_log_level = log_to_stderr(&config.log_level)?;
    for line in config.effective().lines() {
        tracing::debug!("{line}");
    }
    match config.descriptors.describe(config.connections_max) {
        Ok(line) => tracing::info!("{line}"),
        Err(line) => tracing::warn!("{line}"),
    }
    let hint = hint(&config);
    let runtime = runtime::large(config.stores.len())?;
    let configuration = || {
        let config = load()?;
        set_log_level(&config.log_level)?;
        Ok(config)
    };
    let ended = runtime.block_on(node::run(config, |ready| announce(ready, &hint), configuration));
    // A device that hangs must not keep the process.
    runtime.shutdown_timeout(SHUTDOWN_LIMIT);
    ended.map(|()| Outcome::Done)
}

/// Makes the kernel kill this process when its parent process ends, for whatever reason.
fn end_with(parent: u32) -> Result<()> {
    use rustix::process::{Signal, set_parent_process_death_signal};
    let failed = |error: rustix::io::Errno| Error::io("watch", "the parent process", error.into());
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    // The parent may have ended before the call.
    if std::os::unix::process::parent_id() != parent {
        return Err(Error::invalid(format!("parent process {parent} has ended")));
    }
    Ok(())
}

/// Reads the factor of the devices from `path` now, and again in short intervals. A missing file means
/// that they are as fast as they are; a file that holds no factor changes nothing.
fn follow_scale(path: PathBuf) -> Arc<DeviceScale> {
    let scale = Arc::new(DeviceScale::new());
    let read = move |scale: &DeviceScale| match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().is_ok_and(|factor| scale.set(factor).is_ok()),
        Err(_) => scale.set(1).is_ok(),
    };
    read(&scale);
    let followed = Arc::clone(&scale);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(SCALE_INTERVAL);
            read(&followed);
        }
    });
    scale
}

/// Writes the log to standard error. Returns what changes its level.
fn log_to_stderr(level: &str) -> Result<impl Fn(&str) -> Result<()> + use<>> {
    let filter = |level: &str| EnvFilter::new(format!("warn,stele={level},stele_server={level}"));
    let failed =
        |error: &dyn std::fmt::Display| Error::invalid(format!("cannot set up logging: {error}"));
    let writer = || LogWriter(std::io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter(level)).with_writer(writer);
    let log = log.with_filter_reloading();
    let handle = log.reload_handle();
    log.try_init().map_err(|error| failed(&error))?;
    Ok(move |level: &str| handle.reload(filter(level)).map_err(|error| failed(&error)))
}

/// Returns the lines about data and safety that are printed at the start.
fn hint(config: &Config) -> String {
    let copies = match config.join.is_empty() {
        true => {
            "1 copy until other nodes join; tolerates 0 node failures → stele playground".to_owned()
        }
        false => "up to 3 copies, on different nodes".to_owned(),
    };
    let dirs: Vec<String> = config.stores.iter().map(|dir| dir.display().to_string()).collect();
    format!("  data       {}\n  safety     fsync on; {copies}\n", dirs.join(", "))
}

/// Prints the lines of a node that serves. The first begins with `ready`: the playground waits for
/// it.
fn announce(ready: &Ready, hint: &str) {
    let stores = match ready.stores.len() {
        1 => "1 store".to_owned(),
        count => format!("{count} stores"),
    };
    let Ready { address, cluster, took, .. } = ready;
    let text = format!(
        "ready in {} ms · {stores} · cluster {cluster}\n  \
         tikv/pd    {address}    RawClient::new(vec![\"{address}\"])\n  \
         next       stele put --cluster {address} greeting hello\n{hint}",
        took.as_millis(),
    );
    print(&text);
}
