//! Deliberate bugs, for testing the tests. In a build with debug assertions, as tests are, the environment
//! variable `STELE_MUTANT` names the active one. In any other build every check is `false` at compile time.

/// Whether the deliberate bug `name` is active.
#[cfg(debug_assertions)]
#[inline]
pub fn active(name: &str) -> bool {
    use std::sync::OnceLock;
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("STELE_MUTANT").ok()).as_deref() == Some(name)
}

/// Whether the deliberate bug `name` is active: never in this build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn active(_name: &str) -> bool {
    false
}
