//! Settings of the command line.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use stele_types::size::parse_bytes;

const SWITCHES: [&str; 1] = ["quick"];
const VALUES: [&str; 16] = [
    "systems",
    "value",
    "bytes",
    "clients",
    "load-clients",
    "delay-ms",
    "ops",
    "scans",
    "scan-length",
    "rounds",
    "stores",
    "sort-threshold",
    "buffers",
    "cgroup",
    "page-cache",
    "dir",
];

/// Parsed `--name value` pairs and `--switch`es.
#[derive(Clone, Debug, Default)]
pub struct Args {
    values: BTreeMap<String, String>,
}

impl Args {
    /// Parses `arguments`. Fails for an unknown name.
    pub fn parse(arguments: &[String]) -> Result<Self> {
        let mut values = BTreeMap::new();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let name = argument.strip_prefix("--").unwrap_or_default();
            if SWITCHES.contains(&name) {
                values.insert(name.to_owned(), String::new());
            } else if VALUES.contains(&name) {
                let value = rest.next().with_context(|| format!("{argument} needs a value"))?;
                values.insert(name.to_owned(), value.clone());
            } else {
                bail!("unexpected `{argument}`");
            }
        }
        Ok(Self { values })
    }

    /// Returns the text of a setting, if given.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Returns true if only the smallest run is wanted, as a test.
    pub fn quick(&self) -> bool {
        self.values.contains_key("quick")
    }

    /// Returns a size or number: the given one, or `quick` in a quick run, or `usual`.
    pub fn number(&self, name: &str, usual: u64, quick: u64) -> Result<u64> {
        let fallback = if self.quick() { quick } else { usual };
        let stated = self.text(name).map(parse_bytes).transpose();
        Ok(stated.with_context(|| format!("--{name}"))?.unwrap_or(fallback))
    }

    /// Returns the settings for a child process, except those named in `without`.
    pub fn again(&self, without: &[&str]) -> Vec<String> {
        let kept = self.values.iter().filter(|(name, _)| !without.contains(&name.as_str()));
        kept.flat_map(|(name, value)| {
            let is_switch = SWITCHES.contains(&name.as_str());
            [Some(format!("--{name}")), (!is_switch).then(|| value.clone())]
        })
        .flatten()
        .collect()
    }
}
