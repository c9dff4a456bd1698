//! `stele ctl config`: shows and changes settings of a node, and the tick of stores.

use crate::Outcome;
use crate::store::Store;
use crate::table::{self, Cell, words};
use crate::terminal::print;
use std::path::PathBuf;
use stele_client::Control;
use stele_client::messages::ConfigItem;
use stele_types::{Error, Result, TickMillis};

/// Shows all settings, shows one, or changes one, on the first node of `addresses` that responds.
pub(super) async fn run(
    control: &Control,
    addresses: &[String],
    key: Option<&str>,
    value: Option<&str>,
    json: bool,
) -> Result<Outcome> {
    let mut last = Error::invalid("name a node");
    for address in addresses {
        match fetch(control, address, key, value).await {
            Ok(items) => {
                let rows: Vec<Vec<Cell>> = items.iter().map(row).collect();
                table::print(&rows, json, "no settings")?;
                return Ok(Outcome::Done);
            }
            Err(error @ Error::Unavailable(_)) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Records the tick of the cluster in the directories of a node that does not run.
pub(super) fn offline(dirs: &[PathBuf], key: Option<&str>, value: Option<&str>) -> Result<Outcome> {
    let (Some("tick_ms"), Some(value)) = (key, value) else {
        return Err(Error::invalid(
            "only tick_ms is recorded in a directory, and a value for it is needed: others are settings of a \
             node, for which give --cluster",
        ));
    };
    let tick = value.parse().ok().and_then(TickMillis::new);
    let tick = tick.ok_or_else(|| {
        let (min, max) = (TickMillis::MIN, TickMillis::MAX);
        Error::invalid(format!("tick_ms is `{value}`: it is a number from {min} to {max}"))
    })?;
    dirs.iter().try_for_each(|dir| Store::check_exists(dir))?;
    stele_server::recover::set_tick(dirs, tick, std::thread::sleep)?;
    print(&format!(
        "the tick of {} stores is {} ms. A node serves again once a majority of the stores of its regions \
         has the same tick; `tick_ms` of a configuration must be this one or 0\n",
        dirs.len(),
        tick.get()
    ));
    Ok(Outcome::Done)
}

async fn fetch(
    control: &Control,
    address: &str,
    key: Option<&str>,
    value: Option<&str>,
) -> Result<Vec<ConfigItem>> {
    let keys: Vec<String> = key.map(str::to_owned).into_iter().collect();
    match (key, value) {
        (Some(key), Some(value)) => {
            Ok(control.set_config(address, key, value).await?.into_iter().collect())
        }
        _ => control.config(address, &keys).await,
    }
}

fn row(item: &ConfigItem) -> Vec<Cell> {
    let allowed = match (item.minimum.as_str(), item.maximum.as_str()) {
        ("", "") => item.names.join(", "),
        (low, high) => format!("{low} to {high}"),
    };
    let online = if item.live { "yes" } else { "restart" };
    vec![
        words("key", item.key.as_str()),
        words("value", item.value.as_str()),
        words("default", item.default_value.as_str()),
        words("unit", item.unit.as_str()),
        words("allowed", allowed),
        table::words_as("online", online, item.live),
        words("from", item.source.as_str()),
        words("meaning", item.meaning.as_str()),
    ]
}
