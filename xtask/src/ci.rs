//! All checks that a change must pass, in one command, each step timed.

use crate::process::{in_parallel, run_shown, run_shown_limited};
use crate::tools::{self, Tool};
use crate::workspace::{Workspace, cargo};
use crate::{
    cluster, cost, demo, dependencies, docs, figures, fuzz, histories, measured, mutants, peers,
    soak, spec, tidy,
};
use anyhow::{Result, bail};
use std::process::Command;
use std::time::{Duration, Instant};

/// All benchmarks, for their smoke runs.
const BENCHES: [&str; 6] = ["index", "engine", "log", "restart", "amplification", "memory"];

/// Time limit of all tests, including their build on a new machine. They usually take a third of
/// it.
const TESTS_MAX: Duration = Duration::from_secs(40 * 60);

/// Seconds for each fuzz target. Longer runs are started manually.
const FUZZ_SECONDS: u64 = 2;

/// Options of `cargo xtask ci`.
#[derive(Debug, Default)]
pub struct Options {
    /// Runs only these steps; all if empty.
    pub only: Vec<String>,
    /// Leaves out these steps.
    pub without: Vec<String>,
}

/// One check.
#[derive(Clone)]
struct Step {
    name: &'static str,
    /// Programs that the step needs besides Rust.
    tools: &'static [Tool],
    run: fn(&Workspace) -> Result<()>,
}

const fn step(
    name: &'static str,
    tools: &'static [Tool],
    run: fn(&Workspace) -> Result<()>,
) -> Step {
    Step { name, tools, run }
}

const STEPS: [Step; 19] = [
    step("format", &[], |w| run_cargo(w, &["fmt", "--all", "--check"])),
    step("lints", &[], |w| {
        let lint = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
        run_cargo(w, &lint)
    }),
    step("tidy", tools::FOR_GIT, tidy::run),
    step("licenses", tools::FOR_DEPENDENCIES, dependencies::licenses),
    step("advisories", tools::FOR_DEPENDENCIES, dependencies::advisories),
    step("tests", &[], tests),
    step("api docs", &[], api_docs),
    step("mutants", &[], |w| mutants::run(w, &mutants::Options::default())),
    step("docs", &[], |w| docs::run(w, false)),
    step("demo", &[], |w| demo::run(w, &demo::Options { short: true, ..demo::Options::default() })),
    step("spec", tools::FOR_SPEC, spec::short),
    step("clusters", tools::FOR_CLUSTERS, cluster::short),
    step("fuzz", &[], |w| {
        fuzz::run(w, &fuzz::Options { seconds: FUZZ_SECONDS, ..Default::default() })
    }),
    step("simulation", &[], simulation),
    step("histories", tools::FOR_HISTORIES, |w| histories::run(w, 12)),
    step("benches", &[], benches),
    step("figures", tools::FOR_GIT, |w| figures::run(w, &figures::Options::tiny())),
    step("cost", tools::FOR_GIT, |w| cost::run(w, &cost::Options::short())),
    step("measured", tools::FOR_GIT, |w| measured::run(w, &measured::Options::default())),
];

/// Runs the chosen steps, even after a failure; fails if one failed. Names every missing tool before it
/// starts.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let is_chosen = |name: &str| {
        let is_in = |names: &[String]| names.iter().any(|it| it == name);
        (options.only.is_empty() || is_in(&options.only)) && !is_in(&options.without)
    };
    let mut named = options.only.iter().chain(&options.without);
    if let Some(unknown) = named.find(|name| STEPS.iter().all(|it| it.name != **name)) {
        bail!("no step `{unknown}`; there are {}", STEPS.map(|step| step.name).join(", "));
    }
    let steps = STEPS.into_iter().filter(|step| is_chosen(step.name));
    tools::require(steps.clone().flat_map(|step| step.tools))?;
    let mut done: Vec<(&str, Option<String>, Duration)> = Vec::new();
    for Step { name, run, .. } in steps {
        println!("== {name}");
        let started = Instant::now();
        let reason = run(workspace).err().map(|error| format!("{name} failed: {error:#}"));
        if let Some(reason) = &reason {
            println!("{reason}");
        }
        done.push((name, reason, started.elapsed()));
    }
    println!("== summary");
    // Repeats the reasons, so that the last lines alone contain them.
    done.iter().filter_map(|(_, reason, _)| reason.as_ref()).for_each(|it| println!("{it}"));
    for (name, reason, took) in &done {
        let verdict = if reason.is_none() { "ok" } else { "FAILED" };
        println!("{name:10} {:7.1} s  {verdict}", took.as_secs_f64());
    }
    for name in &options.without {
        println!("{name:10}            left out");
    }
    let passed = done.iter().filter(|(_, reason, _)| reason.is_none()).count();
    let failed = done.len() - passed;
    println!("steps: {passed} passed, {failed} failed");
    if failed > 0 {
        bail!("{failed} steps failed");
    }
    Ok(())
}

fn run_cargo(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    run_shown(Command::new(cargo()).args(arguments).current_dir(&workspace.root))
}

fn tests(workspace: &Workspace) -> Result<()> {
    let mut test = Command::new(cargo());
    run_shown_limited(test.args(["test", "--no-fail-fast"]).current_dir(&workspace.root), TESTS_MAX)
}

fn api_docs(workspace: &Workspace) -> Result<()> {
    let mut build = Command::new(cargo());
    build.args(["doc", "--no-deps", "--quiet"]).current_dir(&workspace.root);
    run_shown(build.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Runs whole clusters in one thread, with all seeds of CI.
fn simulation(workspace: &Workspace) -> Result<()> {
    let program = soak::build(workspace, true, false)?;
    let runs = in_parallel(soak::ci_seeds().into_iter(), |seeds| {
        let mut run = Command::new(&program);
        run.args(seeds.arguments()).args(["--no-minimise", "--keep-going", "--quiet"]);
        Ok(run_shown(&mut run))
    })?;
    runs.into_iter().collect()
}

/// Runs every benchmark to its end at its smallest size. The numbers mean nothing.
fn benches(workspace: &Workspace) -> Result<()> {
    for bench in BENCHES {
        let run = ["run", "--quiet", "--package", "stele-bench", "--", bench, "--quick"];
        run_cargo(workspace, &run)?;
    }
    // Only the group without RocksDB, which needs a library: our engine under another policy.
    let group = ["run", "--quiet", "--package", "stele-baselines", "--", "put,get,scan", "--quick"];
    run_cargo(workspace, &group)?;
    let load = ["--workload", "a", "--records", "500", "--operations", "500", "--quiet"];
    let load = load.map(str::to_owned).to_vec();
    peers::run(workspace, &peers::Options { dev: true, load, ..peers::Options::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// `cargo test` needs Rust alone. The line bypasses the capture of the test harness, so that it
    /// always shows which steps are left out.
    #[test]
    fn steps_that_need_other_tools_are_named() {
        let mut tools: Vec<&str> = Vec::new();
        let mut steps = Vec::new();
        for step in STEPS.iter().filter(|step| !step.tools.is_empty()) {
            steps.push(step.name);
            tools.extend(step.tools.iter().map(|tool| tool.program));
        }
        tools.sort_unstable();
        tools.dedup();
        let line = format!(
            "skipped here, run by `cargo xtask ci`: {} (need {})\n",
            steps.join(", "),
            tools.join(", ")
        );
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        assert!(steps.contains(&"clusters") && tools.contains(&"go"), "{line}");
    }
}
