//! `stele ctl finalize`: from now on the cluster writes what only its present versions read.

use crate::Outcome;
use crate::table::{self, number};
use crate::terminal::print;
use std::time::{Duration, Instant};
use stele_client::Control;
use stele_client::messages::FinalizeResponse;
use stele_types::{Error, Level, Result};

/// Time in which all stores should record the level.
const RECORDED_WITHIN: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);

/// Raises the level, and waits until it is in use.
pub(super) async fn run(control: &Control, json: bool) -> Result<Outcome> {
    let started = Instant::now();
    let first = control.finalize().await?;
    let is_new = first.raised || first.level_in_use < first.level;
    let mut now = first;
    while now.level_in_use < now.level {
        if started.elapsed() >= RECORDED_WITHIN {
            return Err(Error::Unavailable(format!(
                "level {} is decided, no earlier version can start any more, and these stores have not recorded \
                 it: {}. It comes into use once they have; start their nodes, or remove the stores",
                now.level,
                now.behind.join(", ")
            )));
        }
        tokio::time::sleep(PAUSE).await;
        now = match control.finalize().await {
            // The level is decided: a node that stopped meanwhile is only waited for.
            Err(Error::Refused(_) | Error::Unavailable(_)) => now,
            answered => answered?,
        };
    }
    show(&now, is_new, json)
}

fn show(now: &FinalizeResponse, is_new: bool, json: bool) -> Result<Outcome> {
    if json {
        let row = vec![
            number("level", u64::from(now.level)),
            number("level_in_use", u64::from(now.level_in_use)),
        ];
        table::print(&[row], json, "")?;
        return Ok(Outcome::Done);
    }
    let level = Level::new(now.level);
    let since =
        level.version().map(|version| format!(": only version {version} and later read it"));
    let done = match is_new {
        true => "the cluster writes",
        false => "there is nothing to raise: the cluster already writes",
    };
    print(&format!("{done} level {level}{}\n", since.unwrap_or_default()));
    Ok(Outcome::Done)
}
