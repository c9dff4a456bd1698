//! `stele server`: runs one node of a cluster until a signal stops it.

use crate::args::Server;
use crate::terminal::print;
use crate::{Outcome, descriptors, runtime};
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stele_server::access::Reach;
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

pub(crate) fn run(args: &Server) -> Result<Outcome> {
    if let Some(parent) = args.with_parent {
        end_with(parent)?;
    }
    let load = || Config::load(args.config.as_deref(), std::env::vars_os(), &args.settings.0);
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
    let dirs = config.stores.clone();
    let runtime = runtime::large(config.stores.len())?;
    let configuration = || {
        let config = load()?;
        set_log_level(&config.log_level)?;
        Ok(config)
    };
    let ended = runtime.block_on(node::run(config, |ready| announce(ready, &dirs), configuration));
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

/// Whether log lines have colours: on a terminal, unless the variable `NO_COLOR` is set.
fn has_colours(is_terminal: bool, no_colour: Option<&OsStr>) -> bool {
    is_terminal && no_colour.is_none_or(OsStr::is_empty)
}

/// Writes the log to standard error. Returns what changes its level.
fn log_to_stderr(level: &str) -> Result<impl Fn(&str) -> Result<()> + use<>> {
    let filter = |level: &str| EnvFilter::new(format!("warn,stele={level},stele_server={level}"));
    let failed =
        |error: &dyn std::fmt::Display| Error::invalid(format!("cannot set up logging: {error}"));
    let writer = || LogWriter(std::io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter(level)).with_writer(writer);
    let no_colour = std::env::var_os("NO_COLOR");
    let log = log.with_ansi(has_colours(std::io::stderr().is_terminal(), no_colour.as_deref()));
    let log = log.with_filter_reloading();
    let handle = log.reload_handle();
    log.try_init().map_err(|error| failed(&error))?;
    Ok(move |level: &str| handle.reload(filter(level)).map_err(|error| failed(&error)))
}

/// Returns how often the data of this node is stored in the cluster, as its regions say.
///
/// Invariant: the number is that of the cluster's regions, not one that the node was started with.
fn copies_of(ready: &Ready) -> String {
    match ready.copies {
        None => format!(
            "no data here yet; the cluster places it: stele ctl regions --cluster {}",
            ready.address
        ),
        Some((1, 1)) if ready.nodes <= 1 => {
            "1 copy until other nodes join; tolerates 0 node failures → stele playground".to_owned()
        }
        Some((1, 1)) => "1 copy of the data here; tolerates 0 node failures".to_owned(),
        Some((least, most)) if least == most => {
            format!("{most} copies of the data here; {} must respond", most / 2 + 1)
        }
        Some((least, most)) => {
            format!("{least} to {most} copies of the data here; a majority of them must respond")
        }
    }
}

/// Prints the lines of a node that serves. The first begins with `ready`: the playground waits for
/// it.
fn announce(ready: &Ready, dirs: &[PathBuf]) {
    let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    let dirs = dirs.join(", ");
    let safety = copies_of(ready);
    let stores = match ready.stores.len() {
        1 => "1 store".to_owned(),
        count => format!("{count} stores"),
    };
    let Ready { address, cluster, took, .. } = ready;
    let (files, reach) = match &ready.reach {
        Reach::Identified(node) => (" --ca FILE --cert FILE --key FILE", format!("TLS; {node}")),
        Reach::Loopback => ("", "this machine only, without TLS".to_owned()),
        Reach::Insecure => {
            let text = "insecure: each process that reaches the port may read and delete every key";
            ("", text.to_owned())
        }
    };
    let text = format!(
        "ready in {} ms · {stores} · cluster {cluster}\n  \
         tikv/pd    {address}    RawClient::new(vec![\"{address}\"])\n  \
         next       stele put --cluster {address}{files} greeting hello\n  \
         data       {dirs}\n  \
         access     {reach}\n  \
         safety     fsync on; {safety}\n",
        took.as_millis(),
    );
    print(&text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{ClusterId, StoreId};

    #[test]
    fn log_lines_have_colours_on_a_terminal_only() {
        assert!(has_colours(true, None) && has_colours(true, Some(OsStr::new(""))));
        assert!(!has_colours(true, Some(OsStr::new("1"))));
        assert!(!has_colours(false, None));
    }

    #[test]
    fn the_copies_are_those_of_the_regions_here() {
        let text = |copies, nodes| {
            let (address, stores) = ("a:1".to_owned(), vec![StoreId(1)]);
            let (took, reach) = (Duration::ZERO, Reach::Loopback);
            let cluster = ClusterId(1);
            copies_of(&Ready { address, cluster, stores, copies, nodes, reach, took })
        };
        assert!(text(None, 3).starts_with("no data here yet"));
        assert!(text(Some((1, 1)), 1).starts_with("1 copy until other nodes join"));
        assert_eq!(text(Some((1, 1)), 2), "1 copy of the data here; tolerates 0 node failures");
        assert_eq!(text(Some((5, 5)), 5), "5 copies of the data here; 3 must respond");
        let mixed = text(Some((2, 3)), 3);
        assert!(mixed.starts_with("2 to 3 copies of the data here"), "{mixed}");
    }
}
