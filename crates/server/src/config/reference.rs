//! The reference page, made from the table.

use super::{Config, SETTINGS};
use std::fmt::Write;

/// `docs/configuration.md`: every setting of a node, then of the cluster, with unit, default, bounds
/// and meaning.
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
    page.push_str(CLUSTER_HEAD);
    for setting in stele_placement::SETTINGS {
        let stele_placement::Setting { name, meaning, default, min, max } = setting;
        let unit = unit_of(name);
        let _ = writeln!(page, "| `{name}` | {unit} | `{default}` | {min} to {max} | {meaning} |");
    }
    page
}

/// What a setting of the cluster counts, by the end of its name.
pub fn unit_of(name: &str) -> &'static str {
    match name.rsplit('_').find(|part| *part != "max" && *part != "min") {
        Some("seconds") => "s",
        Some("bytes") => "bytes",
        _ => "",
    }
}

const HEAD: &str = "\
# Configuration

Nothing has to be set. A TOML file (`stele server --config FILE`), then the environment
(`STELE_` and the key in capitals), then flags (`--` and the key with `-`) override the defaults, in
this order. Sizes take units: `64MiB`. The settings in effect are printed at start. This page is
made by `STELE_BLESS=1 cargo test -p stele-server --test reference`.

## This node

| key | unit | default | allowed | meaning |
|---|---|---|---|---|
";

const CLUSTER_HEAD: &str = "
## The whole cluster

Kept by the placement group, shown and changed while the cluster runs: `stele ctl --cluster ADDR config
[KEY [VALUE]]`.

| key | unit | default | allowed | meaning |
|---|---|---|---|---|
";
