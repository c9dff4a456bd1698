//! Allowed directions between crates, from `cargo metadata`.

use super::Finding;
use crate::workspace::Package;

const RULE: &str = "layers";
const LICENCE: &str = "Apache-2.0";

/// Crates on which each product crate may depend. Its tests may depend on any product crate.
const ALLOWED: [(&str, &[&str]); 19] = [
    ("stele-types", &[]),
    ("stele-vfs", &["stele-types"]),
    ("stele-log", &["stele-vfs", "stele-types"]),
    ("stele-index", &["stele-vfs", "stele-types"]),
    ("stele-gc", &["stele-log", "stele-index", "stele-vfs", "stele-types"]),
    ("stele-storage", &["stele-types"]),
    (
        "stele-engine",
        &["stele-gc", "stele-index", "stele-log", "stele-storage", "stele-vfs", "stele-types"],
    ),
    ("stele-eventfd", &["stele-engine", "stele-types"]),
    ("stele-replica", &["stele-storage", "stele-types"]),
    ("stele-placement", &["stele-types"]),
    ("stele-node", &["stele-placement", "stele-replica", "stele-storage", "stele-types"]),
    ("stele-proto", &["stele-types"]),
    ("stele-redis", &["stele-storage", "stele-types"]),
    ("stele-tls", &["stele-types"]),
    (
        "stele-server",
        &[
            "stele-client",
            "stele-engine",
            "stele-node",
            "stele-placement",
            "stele-proto",
            "stele-redis",
            "stele-replica",
            "stele-storage",
            "stele-tls",
            "stele-vfs",
            "stele-types",
        ],
    ),
    ("stele-client", &["stele-proto", "stele-tls", "stele-types"]),
    ("stele-load", &["stele-client", "stele-tls", "stele-types"]),
    (
        "stele-backup",
        &["stele-client", "stele-engine", "stele-proto", "stele-redis", "stele-tls", "stele-types"],
    ),
    (
        "stele-cli",
        &[
            "stele-backup",
            "stele-client",
            "stele-engine",
            "stele-index",
            "stele-load",
            "stele-log",
            "stele-proto",
            "stele-server",
            "stele-tls",
            "stele-types",
            "stele-vfs",
        ],
    ),
];

/// Crates that run async code, draw random numbers or read clocks; only the edges may use them.
const EDGE_ONLY: [&str; 8] =
    ["tokio", "async-std", "smol", "rand", "fastrand", "getrandom", "chrono", "time"];
const EDGES: [&str; 7] = [
    "stele-backup",
    "stele-cli",
    "stele-client",
    "stele-eventfd",
    "stele-load",
    "stele-server",
    "stele-tls",
];

/// Crates for tests, with what each may depend on. No product crate depends on them but for its tests.
const TESTING: [(&str, &[&str]); 3] = [
    ("stele-conformance", &["stele-storage", "stele-types"]),
    ("stele-redis-region", &["stele-redis", "stele-storage", "stele-types"]),
    ("stele-simulated-disk", &["stele-vfs", "stele-types"]),
];

/// Tools on which no product crate may depend, not even for tests.
const TOOLS: [&str; 5] = ["stele-cluster-tests", "stele-fuzz", "stele-lab", "stele-sim", "xtask"];

pub(super) fn check(packages: &[Package]) -> Vec<Finding> {
    packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Package) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |detail: String| findings.push(Finding::new(RULE, &package.name, detail));
    if package.license.as_deref() != Some(LICENCE) {
        found(format!("its licence must be {LICENCE}"));
    }
    if TOOLS.contains(&package.name.as_str()) {
        return findings;
    }
    let mut stated = ALLOWED.iter().chain(&TESTING);
    let Some((_, allowed)) = stated.find(|(name, _)| *name == package.name) else {
        found("no allowed directions are stated for it".to_owned());
        return findings;
    };
    for dependency in &package.dependencies {
        let name = dependency.name.as_str();
        let for_tests = dependency.kind.as_deref() == Some("dev");
        let ours = ALLOWED.iter().chain(&TESTING).any(|(known, _)| *known == name);
        if TOOLS.contains(&name) {
            found(format!("a product crate depends on the tool {name}"));
        } else if ours && !for_tests && !allowed.contains(&name) {
            found(format!("it may not depend on {name}"));
        } else if EDGE_ONLY.contains(&name) && !for_tests && !EDGES.contains(&package.name.as_str())
        {
            found(format!("{name} is for the edges only"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        let dependencies = dependencies
            .iter()
            .map(|(name, kind)| Dependency {
                name: (*name).to_owned(),
                kind: kind.map(str::to_owned),
            })
            .collect();
        let license = Some(LICENCE.to_owned());
        Package { name: name.to_owned(), license, dependencies, ..Package::default() }
    }

    fn details(package: &Package) -> Vec<String> {
        check_package(package).into_iter().map(|finding| finding.detail).collect()
    }

    #[test]
    fn allowed_directions_pass() {
        let dev = Some("dev");
        let log = package(
            "stele-log",
            &[("stele-vfs", None), ("bytes", None), ("rand", dev), ("stele-engine", dev)],
        );
        assert_eq!(details(&log), Vec::<String>::new());
        assert_eq!(details(&package("stele-cli", &[("rand", None)])), Vec::<String>::new());
        assert_eq!(details(&package("xtask", &[("stele-cli", None)])), Vec::<String>::new());
    }

    #[test]
    fn every_wrong_direction_is_found() {
        let up = package("stele-log", &[("stele-index", None)]);
        assert_eq!(details(&up), ["it may not depend on stele-index"]);
        let build = package("stele-types", &[("stele-vfs", Some("build"))]);
        assert_eq!(details(&build), ["it may not depend on stele-vfs"]);
        let tool = package("stele-gc", &[("stele-lab", Some("dev"))]);
        assert_eq!(details(&tool), ["a product crate depends on the tool stele-lab"]);
        let tokio = package("stele-engine", &[("tokio", None)]);
        assert_eq!(details(&tokio), ["tokio is for the edges only"]);
        let unknown = package("stele-surprise", &[]);
        assert_eq!(details(&unknown), ["no allowed directions are stated for it"]);
    }

    #[test]
    fn another_licence_is_found() {
        let mut other = package("stele-types", &[]);
        other.license = None;
        assert_eq!(details(&other), ["its licence must be Apache-2.0"]);
    }
}
