//! `stele ctl add-store`: a directory becomes a store when a server is started with it. The command
//! checks the directory, prints the server's command line, and can follow the store that joins.

use crate::Outcome;
use crate::args::AddStore;
use crate::table::{self, Cell, number, words};
use crate::terminal::print;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use stele_client::Control;
use stele_client::messages::{OperatorInfo, StoreInfo};
use stele_types::size::{counted, format_bytes};
use stele_types::{Error, Result, StoreId};

const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time without replica moves after which the new store counts as balanced.
const BALANCED_AFTER: Duration = Duration::from_secs(3);
const FREE_BYTES_MIN: u64 = 1 << 30;

pub(super) async fn run(
    control: &Control,
    cluster: &[String],
    wanted: &AddStore,
    json: bool,
) -> Result<Outcome> {
    let known = ids(&control.stores(&[]).await?);
    let free_bytes = check(&wanted.dir)?;
    let listen = wanted.listen.as_deref().unwrap_or("HOST:PORT");
    let dir = wanted.dir.display();
    let join = cluster.join(",");
    let command = format!("stele server --listen {listen} --join {join} --store {dir}");
    if json {
        let row = vec![
            words("command", command.as_str()),
            words("directory", dir.to_string()),
            number("free_bytes", free_bytes),
        ];
        table::print(&[row], true, "")?;
    } else {
        print(&format!(
            "{dir} can become a store: {} free. Nothing was changed. The store joins when a server \
             is started:\n  {command}\nor when a node on this machine is restarted with an \
             additional `--store {dir}`\n",
            format_bytes(free_bytes)
        ));
    }
    match wanted.wait {
        true => follow(control, known, json).await,
        false => Ok(Outcome::Done),
    }
}

/// Returns the free bytes below `dir`. Fails with `Refused` if no store can be created there.
fn check(dir: &Path) -> Result<u64> {
    let refuse = |reason: String| Err(Error::Refused(format!("{}: {reason}", dir.display())));
    if dir.join("STORE").exists() {
        return refuse(
            "it is already a store: start its server, or name an empty directory".into(),
        );
    }
    if dir.exists() {
        let mut entries = std::fs::read_dir(dir).map_err(|error| Error::io("read", dir, error))?;
        if entries.next().is_some() {
            return refuse("it is not empty".into());
        }
    }
    // The server creates missing directories.
    let Some(exists) = dir.ancestors().find(|ancestor| ancestor.exists()) else {
        return refuse("no directory above it exists".into());
    };
    let exists = if exists.as_os_str().is_empty() { Path::new(".") } else { exists };
    let space =
        rustix::fs::statvfs(exists).map_err(|error| Error::io("query", exists, error.into()))?;
    let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
    match free_bytes < FREE_BYTES_MIN {
        true => refuse(format!("{} free; at least 1 GiB is needed", format_bytes(free_bytes))),
        false => Ok(free_bytes),
    }
}

fn ids(stores: &[StoreInfo]) -> BTreeSet<u64> {
    stores.iter().filter_map(|info| Some(info.stats?.id)).collect()
}

async fn follow(control: &Control, known: BTreeSet<u64>, json: bool) -> Result<Outcome> {
    let mut joined: Option<u64> = None;
    let mut last = String::new();
    let mut idle_since = Instant::now();
    loop {
        let stores = control.stores(&[]).await?;
        joined = joined.or(ids(&stores).difference(&known).next().copied());
        let info = joined.and_then(|id| {
            stores.iter().find(|info| info.stats.is_some_and(|stats| stats.id == id))
        });
        let Some(info) = info else {
            let waiting = "waiting for a new store".to_owned();
            if !json && last != waiting {
                print(&format!("{waiting}\n"));
                last = waiting;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            continue;
        };
        let moving = moving(&control.operators(false).await?);
        let line = line(info, moving);
        if line != last {
            match json {
                true => table::print(&[cells(info, moving)], true, "")?,
                false => print(&format!("{line}\n")),
            }
            (last, idle_since) = (line, Instant::now());
        }
        if moving == 0 && idle_since.elapsed() >= BALANCED_AFTER {
            return Ok(Outcome::Done);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn moving(operators: &[OperatorInfo]) -> usize {
    operators.iter().filter(|operator| operator.what.contains("learner on")).count()
}

fn cells(info: &StoreInfo, moving: usize) -> Vec<Cell> {
    let stats = info.stats.unwrap_or_default();
    vec![
        number("store", stats.id),
        words("address", info.address.as_str()),
        number("regions", stats.region_count),
        number("used", stats.used),
        number("moving", moving as u64),
    ]
}

/// Formats `store 4 at host:port has joined: 3 replicas, 1.0 GiB; 2 moving`.
fn line(info: &StoreInfo, moving: usize) -> String {
    let stats = info.stats.unwrap_or_default();
    let moving_text = match moving {
        0 => String::new(),
        count => format!("; {count} moving"),
    };
    format!(
        "store {} at {} has joined: {}, {}{moving_text}",
        StoreId(stats.id),
        info.address,
        counted(stats.region_count, "replica"),
        format_bytes(stats.used),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_directory_or_none_can_become_a_store() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(dir.path()).unwrap() > 0);
        assert!(check(&dir.path().join("not/there/yet")).unwrap() > 0);
        std::fs::write(dir.path().join("x"), b"").unwrap();
        assert!(check(dir.path()).unwrap_err().to_string().contains("not empty"));
        std::fs::write(dir.path().join("STORE"), b"").unwrap();
        assert!(check(dir.path()).unwrap_err().to_string().contains("already a store"));
    }
}
