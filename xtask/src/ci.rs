//! Everything a change must pass, in one command, each step timed.

use crate::process::{run_shown, run_shown_limited};
use crate::workspace::{Workspace, cargo};
use crate::{
    cluster, cost, demo, docs, figures, fuzz, histories, measured, mutants, peers, soak, spec, tidy,
};
use anyhow::{Result, bail};
use std::process::Command;
use std::time::{Duration, Instant};

/// Every benchmark, for its smoke run.
const BENCHES: [&str; 6] = ["index", "engine", "log", "restart", "amplification", "memory"];

/// How long all tests may take, from a bare machine: a third of it is usual.
const TESTS_MAX: Duration = Duration::from_secs(40 * 60);

type Step = (&'static str, fn(&Workspace) -> Result<()>);

/// Seconds that each fuzz target gets here; longer runs are made by hand.
const FUZZ_SECONDS: u64 = 2;

const STEPS: [Step; 17] = [
    ("format", |w| run_cargo(w, &["fmt", "--all", "--check"])),
    ("lints", |w| {
        let lint = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
        run_cargo(w, &lint)
    }),
    ("tidy", tidy::run),
    ("tests", tests),
    ("api docs", api_docs),
    ("mutants", |w| mutants::run(w, &mutants::Options::default())),
    ("docs", |w| docs::run(w, false)),
    ("demo", |w| demo::run(w, &demo::Options { short: true, ..demo::Options::default() })),
    ("spec", spec::short),
    ("clusters", cluster::short),
    ("fuzz", |w| fuzz::run(w, &fuzz::Options { seconds: FUZZ_SECONDS, ..Default::default() })),
    ("simulation", simulation),
    ("histories", |w| histories::run(w, 12)),
    ("benches", benches),
    ("figures", |w| figures::run(w, &figures::Options::tiny())),
    ("cost", |w| cost::run(w, &cost::Options::short())),
    ("measured", |w| measured::run(w, &measured::Options::default())),
];

/// Runs all steps, also after one failed; fails if any did.
pub fn run(workspace: &Workspace) -> Result<()> {
    let mut done: Vec<(&str, Option<String>, Duration)> = Vec::new();
    for (name, step) in STEPS {
        println!("== {name}");
        let started = Instant::now();
        let why = step(workspace).err().map(|error| format!("{name} failed: {error:#}"));
        if let Some(why) = &why {
            println!("{why}");
        }
        done.push((name, why, started.elapsed()));
    }
    println!("== summary");
    // Again at the end: who sees only the last lines must learn why.
    done.iter().filter_map(|(_, why, _)| why.as_ref()).for_each(|why| println!("{why}"));
    for (name, why, took) in &done {
        let verdict = if why.is_none() { "ok" } else { "FAILED" };
        println!("{name:10} {:7.1} s  {verdict}", took.as_secs_f64());
    }
    let passed = done.iter().filter(|(_, why, _)| why.is_none()).count();
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
    run_shown_limited(
        test.args(["test", "--workspace", "--no-fail-fast"]).current_dir(&workspace.root),
        TESTS_MAX,
    )
}

fn api_docs(workspace: &Workspace) -> Result<()> {
    let mut build = Command::new(cargo());
    build.args(["doc", "--no-deps", "--quiet"]).current_dir(&workspace.root);
    run_shown(build.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Whole clusters in one thread.
fn simulation(workspace: &Workspace) -> Result<()> {
    let range = format!("{}..{}", soak::CI_SEEDS.start, soak::CI_SEEDS.end);
    let seeds = ["--seeds", &range, "--no-minimise", "--keep-going", "--quiet"];
    let run = ["run", "--quiet", "--package", "stele-sim", "--"];
    run_cargo(workspace, &[&run[..], &seeds].concat())?;
    soak::FOUND_SEEDS.iter().try_for_each(|seed| {
        let seed = seed.to_string();
        run_cargo(workspace, &[&run[..], &["--seed", &seed, "--no-minimise", "--quiet"]].concat())
    })
}

/// Every benchmark runs to its end at its smallest size; the figures say nothing.
fn benches(workspace: &Workspace) -> Result<()> {
    for bench in BENCHES {
        let run = ["run", "--quiet", "--package", "stele-bench", "--", bench, "--quick"];
        run_cargo(workspace, &run)?;
    }
    // Those on RocksDB need its library; these are the product's engine by another policy.
    let group = ["run", "--quiet", "--package", "stele-baselines", "--", "put,get,scan", "--quick"];
    run_cargo(workspace, &group)?;
    let load = ["--workload", "a", "--records", "500", "--operations", "500", "--quiet"];
    let load = load.map(str::to_owned).to_vec();
    peers::run(workspace, &peers::Options { dev: true, load, ..peers::Options::default() })
}
