//! `docs/configuration.md` is made from the table of settings.

use std::path::Path;
use stele_server::config::reference_page;

#[test]
fn the_reference_page_is_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let page = reference_page();
    if std::env::var_os("STELE_BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let how = "STELE_BLESS=1 cargo test -p stele-server --test reference";
    assert!(written == page, "{} is out of date: {how}", path.display());
}
