//! All checks that a change must pass, in one command, each step timed.

use crate::process::{Ended, in_parallel, run_buffered, run_limited, run_shown, run_shown_limited};
use crate::programs::{self, LAB, SIMULATION};
use crate::soak::Seeds;
use crate::tools::{self, Tool};
use crate::workspace::{Workspace, cargo};
use crate::{
    cluster, demo, dependencies, docs, fuzz, guard, histories, mutants, redis_suites, soak, spec,
    tidy,
};
use anyhow::{Result, bail};
use std::process::Command;
use std::time::{Duration, Instant};

const BENCHES: [&str; 6] = ["index", "engine", "log", "restart", "amplification", "memory"];

/// Time limit of all tests, including their build on a new machine. They usually take a third of
/// it.
const TESTS_MAX: Duration = Duration::from_secs(40 * 60);
/// Time limit of a step that runs beside another.
const BESIDE_MAX: Duration = Duration::from_secs(20 * 60);

/// Seconds for each fuzz target. Longer runs are started manually.
const FUZZ_SECONDS: u64 = 2;

#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Runs only these steps; all if empty.
    pub only: Vec<String>,
    /// Leaves out these steps.
    pub without: Vec<String>,
    /// `cargo test` has just passed in so many seconds: the step is left out, and deliberate bugs need no
    /// run of their tests without them.
    pub tested: Option<u64>,
}

#[derive(Clone)]
struct Step {
    name: &'static str,
    tools: &'static [Tool],
    /// Whether another such step may run at the same time: it uses one processor or little time, and what it
    /// measures means nothing.
    is_beside: bool,
    run: Run,
}

#[derive(Debug, Default)]
struct Before {
    tested: bool,
}

#[derive(Debug)]
struct Done {
    name: &'static str,
    /// `None` if it passed.
    reason: Option<String>,
    took: Duration,
}

type Run = fn(&Workspace, &Before) -> Result<()>;

const fn step(name: &'static str, tools: &'static [Tool], run: Run) -> Step {
    Step { name, tools, is_beside: false, run }
}

const fn beside(name: &'static str, tools: &'static [Tool], run: Run) -> Step {
    Step { name, tools, is_beside: true, run }
}

const TESTS: &str = "tests";

/// Those that run beside each other and follow each other start in this order, the longest first.
const STEPS: [Step; 23] = [
    beside("lints", &[], |w, _| {
        let lint = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
        run_cargo(w, &lint)
    }),
    beside("format", &[], |w, _| run_cargo(w, &["fmt", "--all", "--check"])),
    beside("tidy", tools::FOR_GIT, |w, _| tidy::run(w)),
    beside("foreign clients", tools::FOR_CLUSTERS, |w, _| cluster::foreign(w)),
    beside("licenses", tools::FOR_DEPENDENCIES, |w, _| dependencies::licenses(w)),
    beside("advisories", tools::FOR_DEPENDENCIES, |w, _| dependencies::advisories(w)),
    beside("api docs", &[], |w, _| api_docs(w)),
    step(TESTS, &[], |w, _| tests(w)),
    step("mutants", &[], |w, before| {
        let Before { tested } = *before;
        mutants::run(w, &mutants::Options { recent: true, tested, ..Default::default() })
    }),
    step("simulation", &[], |w, _| simulation(w)),
    beside("clusters in pairs", tools::FOR_CLUSTERS, |w, _| cluster::in_pairs(w)),
    beside("figures", tools::FOR_GIT, |w, _| lab(w, "figures --tiny")),
    beside("spec", tools::FOR_SPEC, |w, _| {
        spec::run(w, &spec::Options { recent: true, ..spec::Options::default() })
    }),
    step("guard", tools::FOR_GUARD, |w, _| guard::run(w, false)),
    step("redis suites", tools::FOR_SHORT_SUITES, |w, _| redis_suites::run_short(w)),
    step("clusters", tools::FOR_CLUSTERS, |w, _| cluster::alone(w)),
    beside("benches", &[], |w, _| benches(w)),
    beside("fuzz", &[], |w, _| {
        fuzz::run(w, &fuzz::Options { seconds: FUZZ_SECONDS, ..Default::default() })
    }),
    beside("histories", tools::FOR_HISTORIES, |w, _| histories::run(w, 12)),
    beside("demo", &[], |w, _| {
        demo::run(w, &demo::Options { short: true, ..demo::Options::default() })
    }),
    beside("docs", &[], |w, _| docs::run(w, false)),
    beside("cost", tools::FOR_GIT, |w, _| lab(w, "cost --dev --seconds 2")),
    beside("measured", tools::FOR_GIT, |w, _| lab(w, "measured")),
];

/// Runs the chosen steps, even after a failure; fails if one failed. Names every missing tool before it
/// starts.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let steps = chosen(options)?;
    tools::require(steps.iter().flat_map(|step| step.tools))?;
    let mut before = Before { tested: options.tested.is_some() };
    let mut done: Vec<Done> = Vec::new();
    if let Some(seconds) = options.tested {
        done.push(Done { name: TESTS, reason: None, took: Duration::from_secs(seconds) });
    }
    for steps in steps.chunk_by(|one, next| one.is_beside && next.is_beside) {
        match steps {
            [step] => done.push(alone(workspace, step, &before)),
            together => done.extend(in_parallel(together.iter(), beside_others)?),
        }
        before.tested |= done.iter().any(|it| it.name == TESTS && it.reason.is_none());
    }
    summarise(&done, options)
}

pub(crate) fn run_step(workspace: &Workspace, name: &str) -> Result<()> {
    match STEPS.iter().find(|step| step.name == name) {
        Some(step) => (step.run)(workspace, &Before::default()),
        None => bail!("no step `{name}`"),
    }
}

fn chosen(options: &Options) -> Result<Vec<Step>> {
    let is_in = |names: &[String], name: &str| names.iter().any(|it| it == name);
    let mut named = options.only.iter().chain(&options.without);
    if let Some(unknown) = named.find(|name| STEPS.iter().all(|it| it.name != **name)) {
        bail!("no step `{unknown}`; there are {}", STEPS.map(|step| step.name).join(", "));
    }
    let is_chosen = |step: &Step| {
        let is_done = step.name == TESTS && options.tested.is_some();
        let is_wanted = options.only.is_empty() || is_in(&options.only, step.name);
        is_wanted && !is_done && !is_in(&options.without, step.name)
    };
    Ok(STEPS.into_iter().filter(is_chosen).collect())
}

fn alone(workspace: &Workspace, step: &Step, before: &Before) -> Done {
    let name = step.name;
    println!("== {name}");
    let started = Instant::now();
    let reason =
        (step.run)(workspace, before).err().map(|error| format!("{name} failed: {error:#}"));
    if let Some(reason) = &reason {
        println!("{reason}");
    }
    Done { name, reason, took: started.elapsed() }
}

/// Runs a step as a process of its own and shows its output at its end, in one piece.
fn beside_others(step: &Step) -> Result<Done> {
    let name = step.name;
    let started = Instant::now();
    let mut command = Command::new(std::env::current_exe()?);
    let (ended, printed) = run_limited(command.args(["ci-step", name]), BESIDE_MAX)?;
    let reason = match ended {
        Ended::Exited(true) => None,
        Ended::Exited(false) => Some(format!("{name} failed: {}", reason(&printed))),
        Ended::TimedOut => Some(format!("{name} failed: no end in {} s", BESIDE_MAX.as_secs())),
    };
    println!("== {name}\n{}", printed.trim_end());
    Ok(Done { name, reason, took: started.elapsed() })
}

fn reason(printed: &str) -> &str {
    let after = |start| printed.rsplit_once(start).map(|(_, reason)| reason);
    after("\nlab: ").or(after("xtask: ")).unwrap_or(printed).trim()
}

fn summarise(done: &[Done], options: &Options) -> Result<()> {
    println!("== summary");
    // Repeats the reasons, so that the last lines alone contain them.
    done.iter().filter_map(|it| it.reason.as_ref()).for_each(|reason| println!("{reason}"));
    for Done { name, reason, took } in done {
        let verdict = if reason.is_none() { "ok" } else { "FAILED" };
        println!("{name:17} {:7.1} s  {verdict}", took.as_secs_f64());
    }
    for name in &options.without {
        println!("{name:17}            left out");
    }
    let passed = done.iter().filter(|it| it.reason.is_none()).count();
    let failed = done.len() - passed;
    println!("steps: {passed} passed, {failed} failed");
    if failed > 0 {
        bail!("{failed} steps failed");
    }
    Ok(())
}

fn run_cargo(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    run_shown(cargo().args(arguments).current_dir(&workspace.root))
}

fn tests(workspace: &Workspace) -> Result<()> {
    let mut test = cargo();
    run_shown_limited(test.args(["test", "--no-fail-fast"]).current_dir(&workspace.root), TESTS_MAX)
}

fn api_docs(workspace: &Workspace) -> Result<()> {
    let mut build = cargo();
    build.args(["doc", "--no-deps", "--quiet"]).current_dir(&workspace.root);
    run_shown(build.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Runs whole clusters in one thread, with all seeds of CI.
fn simulation(workspace: &Workspace) -> Result<()> {
    let program = programs::build(workspace, SIMULATION, false)?;
    // Single seeds last: no processor then waits long for the other.
    let mut parts: Vec<Seeds> = soak::ci_seeds().iter().flat_map(Seeds::parts).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.range.end - part.range.start));
    let runs = in_parallel(parts.into_iter(), |seeds| {
        let mut run = Command::new(&program);
        run.args(seeds.arguments()).args(["--no-minimise", "--keep-going", "--quiet"]);
        Ok(run_buffered(&mut run))
    })?;
    runs.into_iter().collect()
}

/// Runs every benchmark to its end at its smallest size. The numbers mean nothing.
fn benches(workspace: &Workspace) -> Result<()> {
    for bench in BENCHES {
        lab(workspace, &format!("{bench} --quick"))?;
    }
    // Only the group without RocksDB, which needs a library: our engine under another policy.
    lab(workspace, "designs put,get,scan --quick")?;
    lab(workspace, "peers --dev --workload a --records 500 --operations 500 --quiet")
}

fn lab(workspace: &Workspace, words: &str) -> Result<()> {
    let program = programs::build(workspace, LAB, false)?;
    run_shown(Command::new(program).args(words.split(' ')).current_dir(&workspace.root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn tests_that_have_just_passed_are_left_out() {
        let names = |options: &Options| -> Vec<&str> {
            chosen(options).unwrap().iter().map(|step| step.name).collect()
        };
        let tested = Options { tested: Some(5), ..Options::default() };
        assert_eq!(names(&tested).len(), STEPS.len() - 1);
        assert!(!names(&tested).contains(&TESTS));
        let only = Options { only: vec!["spec".into(), TESTS.into()], ..Options::default() };
        assert_eq!(names(&only), [TESTS, "spec"]);
        let unknown = Options { without: vec!["specs".into()], ..Options::default() };
        assert!(chosen(&unknown).is_err());
    }

    #[test]
    fn the_reason_of_a_failed_step_is_what_its_process_says_last() {
        assert_eq!(reason("xtask: x\nrunning\nxtask: bad: a\nb\n"), "bad: a\nb");
        assert_eq!(reason("lab: x\nrunning\nlab: bad\nxtask: ended\n"), "bad\nxtask: ended");
        assert_eq!(reason("killed\n"), "killed");
    }

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
