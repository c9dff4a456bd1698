//! The reference page, made from the table.

use super::{Config, SETTINGS};
use std::fmt::Write;

/// `docs/configuration.md`: every setting with unit, default, bounds and meaning.
pub fn reference_page() -> String {
    let mut page = String::from(HEAD);
    let mut config = Config::default();
    for setting in SETTINGS {
        let default = config.get(setting.key).unwrap_or_default();
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        let bounds = config.field(setting.key).map(|field| field.bounds()).unwrap_or_default();
        // Writing to a string can't fail.
        let _ = writeln!(
            page,
            "| `{}` | {} | {default} | {bounds} | {} |",
            setting.key, setting.unit, setting.meaning
        );
    }
    page
}

const HEAD: &str = "\
# Configuration

Nothing has to be set. A TOML file (`stele server --config FILE`), then the environment
(`STELE_` and the key in capitals), then flags (`--` and the key with `-`) override the defaults, in
this order. Sizes take units: `64MiB`. The settings in effect are printed at start. This page is
made by `STELE_BLESS=1 cargo test -p stele-server --test reference`.

| key | unit | default | allowed | meaning |
|---|---|---|---|---|
";
