//! Settings of the command line.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stele_types::size::parse_bytes;

#[derive(Clone, Debug, Default)]
pub(crate) struct Args {
    switches: &'static [&'static str],
    values: BTreeMap<String, String>,
}

impl Args {
    /// Parses `arguments`. Fails for a name that is in neither list.
    pub(crate) fn parse(
        arguments: &[String],
        switches: &'static [&'static str],
        names: &[&str],
    ) -> Result<Self> {
        let mut values = BTreeMap::new();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let name = argument.strip_prefix("--").unwrap_or_default();
            if switches.contains(&name) {
                values.insert(name.to_owned(), String::new());
            } else if names.contains(&name) {
                let value = rest.next().with_context(|| format!("{argument} needs a value"))?;
                values.insert(name.to_owned(), value.clone());
            } else {
                bail!("unexpected `{argument}`");
            }
        }
        Ok(Self { switches, values })
    }

    /// Returns the text of a setting, if given.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Returns the settings for a child process, except those named in `without`.
    pub(crate) fn again(&self, without: &[&str]) -> Vec<String> {
        let kept = self.values.iter().filter(|(name, _)| !without.contains(&name.as_str()));
        kept.flat_map(|(name, value)| {
            let is_switch = self.switches.contains(&name.as_str());
            [Some(format!("--{name}")), (!is_switch).then(|| value.clone())]
        })
        .flatten()
        .collect()
    }

    /// Returns true if only the smallest run is wanted, as a test.
    pub(crate) fn quick(&self) -> bool {
        self.values.contains_key("quick")
    }

    /// Returns true if results are appended to those of the repository.
    pub(crate) fn save(&self) -> bool {
        self.values.contains_key("save")
    }

    /// Returns the number of rounds: the given one, or one in a quick run, or `usual`.
    pub(crate) fn rounds(&self, usual: usize) -> Result<usize> {
        let fallback = if self.quick() { 1 } else { usual };
        self.values.get("rounds").map_or(Ok(fallback), |n| n.parse().context("--rounds"))
    }

    /// Returns the directory of the stores: the given one, or one below cargo's `target`.
    pub(crate) fn dir(&self) -> PathBuf {
        if let Some(dir) = self.values.get("dir") {
            return PathBuf::from(dir);
        }
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let root = manifest.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
        root.join("target")
    }

    /// Returns a size or number: the given one, or `quick` in a quick run, or `usual`.
    pub(crate) fn size(&self, name: &str, usual: u64, quick: u64) -> Result<u64> {
        let fallback = if self.quick() { quick } else { usual };
        let stated = self.text(name).map(parse_bytes).transpose();
        Ok(stated.with_context(|| format!("--{name}"))?.unwrap_or(fallback))
    }

    /// Returns sizes or numbers separated by commas.
    pub(crate) fn sizes(&self, name: &str, usual: &[u64], quick: &[u64]) -> Result<Vec<u64>> {
        let fallback = if self.quick() { quick } else { usual };
        let Some(text) = self.values.get(name) else { return Ok(fallback.to_vec()) };
        text.split(',').map(|part| Ok(parse_bytes(part)?)).collect()
    }

    /// Returns names separated by commas, or those of `usual`. Fails for a name that is not in
    /// `known`.
    pub(crate) fn names(
        &self,
        name: &str,
        known: &[&'static str],
        usual: &[&'static str],
    ) -> Result<Vec<&'static str>> {
        let Some(text) = self.values.get(name) else { return Ok(usual.to_vec()) };
        let find = |part: &str| known.iter().find(|known| **known == part).copied();
        text.split(',')
            .map(|part| {
                find(part)
                    .with_context(|| format!("--{name}: unknown value `{part}`; known: {known:?}"))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(text: &str) -> Result<Args> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Args::parse(&words, &["quick", "save"], &["bytes", "values", "stores"])
    }

    #[test]
    fn settings_are_read() {
        let given = args("--quick --bytes 2MiB --values 1KiB,3 --stores b").unwrap();
        assert!(given.quick() && !given.save());
        assert_eq!(given.size("bytes", 9, 1).unwrap(), 2 << 20);
        assert_eq!(given.size("value", 9, 1).unwrap(), 1);
        assert_eq!(given.sizes("values", &[], &[]).unwrap(), [1024, 3]);
        assert_eq!(given.names("stores", &["a", "b"], &["a"]).unwrap(), ["b"]);
        assert_eq!(given.names("policies", &["a", "b"], &["a"]).unwrap(), ["a"]);
        assert!(given.names("stores", &["a"], &["a"]).is_err());
        assert_eq!(given.again(&["values"]), ["--bytes", "2MiB", "--quick", "--stores", "b"]);
        assert!(args("--speed 3").is_err());
        assert!(args("--bytes").is_err());
    }
}
