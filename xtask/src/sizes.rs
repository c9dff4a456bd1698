//! Constants and loops that a large store meets, with the sizes at which they were tried: a table of
//! docs/testing.md.

use crate::edges::link_to;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::fmt::Write;
use std::path::Path;

const FILE: &str = "xtask/sizes.toml";

#[derive(Debug, Deserialize)]
struct Declared {
    size: Vec<Size>,
}

#[derive(Debug, Deserialize)]
struct Size {
    /// Constant or function, as `file: name`.
    code: String,
    what: String,
    large: String,
    tried: String,
}

/// Returns the table. Fails if a constant or a function does not exist.
pub(crate) fn table(root: &Path) -> Result<String> {
    let read = |name: &str| {
        std::fs::read_to_string(root.join(name)).with_context(|| format!("reading {name}"))
    };
    let declared: Declared = toml::from_str(&read(FILE)?)?;
    let mut text = String::from(
        "\n# Sizes that were tried\n\nConstants and loops that a store of 10 TB, or a cluster of 10,000 regions \
         and 100 stores, meets. *Read* means that the code was read and no run reached the size.\n\n\
         | code | what | at that size | tried |\n|---|---|---|---|\n",
    );
    for Size { code, what, large, tried } in &declared.size {
        let link = link_to(code, str::to_owned, &read);
        let link = link.with_context(|| format!("{FILE}: {what}"))?;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {link} | {what} | {large} | {tried} |");
    }
    Ok(text)
}
