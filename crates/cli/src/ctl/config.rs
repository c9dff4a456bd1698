//! `stele ctl config`: shows and changes settings of a node.

use crate::Outcome;
use crate::table::{self, Cell, words};
use stele_client::Control;
use stele_client::messages::ConfigItem;
use stele_types::{Error, Result};

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
