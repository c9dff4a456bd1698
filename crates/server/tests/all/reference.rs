//! `docs/configuration.md` is generated from the table of settings.

use std::path::Path;
use stele_server::config::{self, reference_page};

#[test]
fn the_reference_page_is_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let page = reference_page();
    if std::env::var_os("STELE_BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let how = "STELE_BLESS=1 cargo test -p stele-server --test all reference";
    assert!(written == page, "{} is out of date: {how}", path.display());
}

#[test]
fn the_page_lists_every_setting_of_the_node_and_of_the_cluster_54_at_most() {
    let page = reference_page();
    let (node, cluster) = page.split_once("## The whole cluster").unwrap();
    for setting in config::SETTINGS {
        assert_eq!(node.matches(&format!("\n| `{}` |", setting.key)).count(), 1, "{}", setting.key);
    }
    for setting in stele_placement::SETTINGS {
        let row = format!("\n| `{}` |", setting.name);
        assert_eq!(cluster.matches(&row).count(), 1, "{}", setting.name);
    }
    let rows = page.matches("\n| `").count();
    assert_eq!(rows, config::SETTINGS.len() + stele_placement::SETTINGS.len());
    assert!(rows <= 54, "{rows} settings");
}
