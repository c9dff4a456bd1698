//! The measured cluster: an instrumented build, three processes that count what they enter, and one client.

use super::layout::FOLDER;
use super::trace::{Counters, Each};
use crate::process::{Ended, run_limited, run_shown};
use crate::programs::STELE;
use crate::servers::{self, Running};
use crate::tools;
use crate::workspace::{Workspace, cargo};
use anyhow::{Context, Result, bail, ensure};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

const NODES: usize = 3;
const RECORDS: u64 = 256;
const VALUE_BYTES: u64 = 1 << 10;
/// Operations of the two runs that are compared.
const FEW: u64 = 64;
const MANY: u64 = FEW + 512;
/// Time in which background work is counted.
const IDLE: Duration = Duration::from_secs(3);
const CALL_LIMIT: Duration = Duration::from_secs(120);

/// Environment variable with which this program acts as a wrapper of the compiler.
const WRAPS: &str = "HOUSE_WRAPS_RUSTC";
/// Name or beginning of the names of crates that are instrumented.
const INSTRUMENTED: (&str, &str) = ("stele", "stele_");

/// Operations of a client: name, and workload of `stele bench wire`.
pub(super) const OPERATIONS: [(&str, &str); 2] = [("put", "update"), ("get", "c")];

/// Runs the compiler for cargo, if this program was started as its wrapper. Instruments our own crates; all others
/// are built as ever.
pub(crate) fn as_compiler() -> Option<ExitCode> {
    std::env::var_os(WRAPS)?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (compiler, rest) = arguments.split_first()?;
    let mut command = Command::new(compiler);
    command.args(rest);
    if is_instrumented(rest) {
        // The flag is unstable. The generated code is the compiler's own, of the same version.
        command.env("RUSTC_BOOTSTRAP", "1");
        command.args(["-Z", "instrument-mcount", "-C", "opt-level=0"]);
        // The development profile has no line tables and strips them: without them no address has a file.
        command.args(["-C", "debuginfo=line-tables-only", "-C", "strip=none"]);
        // What ships has no debug assertions: functions that only these enter are no part of an operation.
        command.args(["-C", "debug-assertions=off"]);
    }
    let code = command.status().ok().and_then(|status| status.code());
    Some(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn is_instrumented(arguments: &[OsString]) -> bool {
    let mut names = arguments.iter().skip_while(|it| *it != "--crate-name").skip(1);
    let name = names.next().and_then(|name| name.to_str()).unwrap_or_default();
    name == INSTRUMENTED.0 || name.starts_with(INSTRUMENTED.1)
}

#[derive(Debug)]
pub(super) struct Built {
    pub stele: PathBuf,
    library: PathBuf,
}

pub(super) fn build(workspace: &Workspace) -> Result<Built> {
    tools::require(tools::FOR_HOUSE)?;
    let target = workspace.target.join("house");
    std::fs::create_dir_all(&target)?;
    let mut build = cargo();
    build.args(["build", "--quiet", "--package", STELE.package, "--bin", STELE.name]);
    build.arg("--target-dir").arg(&target).current_dir(&workspace.root);
    // Not incremental: the code is then cut into the same parts every time.
    build.env("CARGO_INCREMENTAL", "0");
    build.env("RUSTC_WRAPPER", std::env::current_exe()?).env(WRAPS, "1");
    run_shown(&mut build)?;
    let library = build_library(workspace, &target)?;
    Ok(Built { stele: target.join("debug").join(STELE.name), library })
}

fn build_library(workspace: &Workspace, target: &Path) -> Result<PathBuf> {
    let library = target.join("libpreload.so");
    let mut build = Command::new("rustc");
    build.args(["--edition", "2024", "-O", "--crate-type", "cdylib", "-D", "warnings", "-o"]);
    build.arg(&library).arg("xtask/src/house/preload.rs").current_dir(&workspace.root);
    run_shown(&mut build)?;
    Ok(library)
}

pub(super) fn measure(workspace: &Workspace, built: &Built) -> Result<Vec<Each>> {
    let work = tempfile::tempdir_in(&workspace.target)?;
    let counters = work.path().join("counters");
    std::fs::create_dir(&counters)?;
    let options = servers::Options {
        nodes: NODES,
        within: within(&built.library, &counters)?,
        ..servers::Options::default()
    };
    servers::with_servers(&built.stele, work.path(), &options, |servers| {
        let files: Vec<PathBuf> = servers.pids.iter().map(|pid| counters.join(pid)).collect();
        let few = FEW.to_string();
        call(&built.stele, servers, &["--workload", "update", "--operations", &few])?;
        let idle = run(&files, || {
            thread::sleep(IDLE);
            Ok(())
        })?;
        let each = |(_, workload): &(_, &str)| {
            let operations = |operations: u64| {
                let count = operations.to_string();
                let words = ["--workload", workload, "--skip-load", "--operations", &count];
                run(&files, || call(&built.stele, servers, &words))
            };
            operation(operations, &idle)
        };
        OPERATIONS.iter().map(each).collect()
    })
}

/// Returns the words before the command of a server that make it count.
fn within(library: &Path, folder: &Path) -> Result<Vec<String>> {
    let set = |name: &str, value: &OsStr| -> Result<String> {
        Ok(format!("{name}={}", value.to_str().context("a path is not UTF-8")?))
    };
    let library = set("LD_PRELOAD", library.as_os_str())?;
    Ok(vec!["env".to_owned(), library, set(FOLDER, folder.as_os_str())?])
}

struct Run {
    nodes: Vec<Counters>,
    seconds: f64,
}

fn run(files: &[PathBuf], work: impl FnOnce() -> Result<()>) -> Result<Run> {
    let (before, started) = (read(files)?, Instant::now());
    work()?;
    let (now, seconds) = (read(files)?, started.elapsed().as_secs_f64());
    let nodes = now.into_iter().zip(&before).map(|(now, before)| now.since(before)).collect();
    Ok(Run { nodes, seconds })
}

/// Returns the mean entries of one operation on its leader, less those of the background work of its time.
fn operation(of: impl Fn(u64) -> Result<Run>, idle: &Run) -> Result<Each> {
    let (few, many) = (of(FEW)?, of(MANY)?);
    let leader = leader(&many.nodes)?;
    ensure!(
        leader == self::leader(&few.nodes)?,
        "another node became the leader meanwhile: measure again"
    );
    let operations = MANY - FEW;
    let share = (many.seconds - few.seconds).max(0.0) / idle.seconds / operations as f64;
    let each = many.nodes[leader].each(&few.nodes[leader], operations);
    Ok(idle.nodes[leader].taken_from(each, share))
}

/// Returns the place of the leader: it also talks to the client, so it enters most.
fn leader(nodes: &[Counters]) -> Result<usize> {
    let most = nodes.iter().enumerate().max_by_key(|(_, counters)| counters.total());
    let (leader, counters) = most.context("no server was measured")?;
    ensure!(counters.total() > 0, "no server counted an entry: is it instrumented?");
    Ok(leader)
}

fn read(files: &[PathBuf]) -> Result<Vec<Counters>> {
    files.iter().map(|file| Counters::read(file)).collect()
}

fn call(stele: &Path, servers: &Running, words: &[&str]) -> Result<()> {
    let mut bench = servers.load(stele, &["bench", "wire"]);
    bench.args(words).args(["--clients", "1", "--quiet"]);
    bench.args(["--distribution", "uniform", "--warm-up", "0"]);
    bench.arg(format!("--records={RECORDS}")).arg(format!("--value-bytes={VALUE_BYTES}"));
    match run_limited(&mut bench, CALL_LIMIT)? {
        (Ended::Exited(true), _) => Ok(()),
        (ended, printed) => bail!("{bench:?}: {ended:?}: {printed}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::trace;

    const PROGRAM: &str = "\
        #[inline(never)]\nfn seven() {}\nfn main() {\n    for _ in 0..7 {\n        seven();\n    }\n    \
        let side = std::thread::Builder::new().name(\"side-1\".into());\n    \
        side.spawn(|| seven()).unwrap().join().unwrap();\n}\n";

    #[test]
    fn only_our_own_crates_are_instrumented() {
        let words = |text: &str| -> Vec<OsString> { text.split(' ').map(Into::into).collect() };
        assert!(is_instrumented(&words("--crate-name stele_log --edition=2024 a.rs")));
        assert!(is_instrumented(&words("--edition=2024 --crate-name stele a.rs")));
        assert!(!is_instrumented(&words("--crate-name steles a.rs")));
        assert!(!is_instrumented(&words("--crate-name libc stele.rs")));
        assert!(!is_instrumented(&words("-vV")));
    }

    /// Compiles the library and a small program, and compares the counted entries with the program's text.
    #[test]
    fn entries_of_an_instrumented_program_are_counted_by_thread() {
        let workspace = Workspace::load().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let library = build_library(&workspace, folder.path()).unwrap();
        let counters = folder.path().join("counters");
        std::fs::create_dir(&counters).unwrap();
        std::fs::write(folder.path().join("program.rs"), PROGRAM).unwrap();
        let mut compile = Command::new("rustc");
        compile.args(["program.rs", "-g", "-Z", "instrument-mcount"]).current_dir(folder.path());
        run_shown(compile.env("RUSTC_BOOTSTRAP", "1")).unwrap();
        let binary = folder.path().join("program");
        let words = within(&library, &counters).unwrap();
        run_shown(&mut crate::process::within(&words, &Command::new(&binary))).unwrap();
        let files: Vec<_> = std::fs::read_dir(&counters).unwrap().flatten().collect();
        assert_eq!(files.len(), 1);
        let found = Counters::read(&files[0].path()).unwrap();
        let addresses = found.0.keys().map(|(_, address)| *address).collect();
        let symbols = trace::resolve(&binary, &addresses).unwrap();
        let mut seven: Vec<(&str, u64)> = Vec::new();
        for ((thread, address), count) in &found.0 {
            if symbols[address].name.ends_with("seven") {
                assert_eq!(symbols[address].line, 2);
                seven.push((thread, *count));
            }
        }
        assert_eq!(seven, [("program", 7), ("side", 1)]);
    }
}
