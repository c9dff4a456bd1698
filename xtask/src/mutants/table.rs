//! The table of deliberate bugs, `xtask/mutants.toml`.

use crate::workspace::Workspace;
use anyhow::{Context, Result};
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    #[serde(default, rename = "mutant")]
    pub mutants: Vec<Mutant>,
}

/// One deliberate bug and the test that must catch it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    /// Name in the code: `<crate>.<bug>`.
    pub name: String,
    pub package: String,
    /// Filter for `cargo test`; at least one test must match.
    pub test: String,
    /// Invariant that no longer holds, in one line.
    pub breaks: String,
    /// Reason why the simulation cannot show the bug, if it cannot.
    pub apart: Option<String>,
}

impl Table {
    pub(crate) fn load(workspace: &Workspace) -> Result<Self> {
        let path = workspace.root.join("xtask/mutants.toml");
        let text = std::fs::read_to_string(&path).context("reading xtask/mutants.toml")?;
        Self::parse(&text).context("reading xtask/mutants.toml")
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).context("not a table of deliberate bugs")
    }

    /// Returns the entries with a name that is `only` or starts with it; all without `only`.
    pub(crate) fn chosen(&self, only: Option<&str>) -> Vec<&Mutant> {
        let fits = |mutant: &&Mutant| only.is_none_or(|only| mutant.name.starts_with(only));
        self.mutants.iter().filter(fits).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_and_is_chosen_from() {
        let text = "[[mutant]]\nname = 'log.a'\npackage = 'p'\ntest = 't'\nbreaks = 'b'\n\
                    [[mutant]]\nname = 'gc.b'\npackage = 'p'\ntest = 't'\nbreaks = 'b'\n";
        let table = Table::parse(text).unwrap();
        assert_eq!(table.chosen(None).len(), 2);
        assert_eq!(table.chosen(Some("gc"))[0].name, "gc.b");
        assert!(Table::parse("[[mutant]]\nname = 'log.a'\n").is_err());
        assert!(Table::parse("[[mutants]]\n").is_err());
    }
}
