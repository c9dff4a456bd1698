//! Variables of the environment: those that must be settings.

use super::SETTINGS;
use stele_types::Error;

/// Begin of the name of each variable that is a setting.
const PREFIX: &str = "STELE_";
/// Variables of the repository's tests, without the prefix. Nodes that tests start inherit them.
const OF_TESTS: [&str; 7] =
    ["MUTANT", "SEED", "SEEDS", "BLESS", "CASES", "HISTORIES", "CRASH_STRIDE"];

/// Whether a variable must be a setting: its name begins as theirs do, and no other program sets it.
pub(super) fn is_setting(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    !OF_TESTS.contains(&rest) && !is_of_service(rest)
}

/// Whether a container platform sets the variable for a service named `stele` or `stele-…`:
/// `STELE_SERVICE_PORT`, `STELE_PORT`, `STELE_PORT_2379_TCP_ADDR`.
fn is_of_service(rest: &str) -> bool {
    let rest = format!("_{rest}");
    let is_number_next = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
    rest.contains("_SERVICE_HOST")
        || rest.contains("_SERVICE_PORT")
        || rest.ends_with("_PORT")
        || rest.split("_PORT_").skip(1).any(is_number_next)
}

pub(super) fn unknown(name: &str) -> Error {
    let names: Vec<String> = SETTINGS.iter().map(|setting| setting.variable()).collect();
    Error::invalid(format!(
        "environment: unknown setting `{name}`; known variables: {}",
        names.join(", ")
    ))
}

pub(super) fn not_text(name: &str) -> Error {
    Error::invalid(format!("environment: {name} is not text: its value must be UTF-8"))
}
