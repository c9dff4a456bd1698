//! The suites: where each comes from, and how it is run.

use crate::process::{Ended, run_limited};
use crate::tools::python_environment;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const FETCH_LIMIT: Duration = Duration::from_secs(600);
const RUN_LIMIT: Duration = Duration::from_secs(1800);

/// Form in which a suite states what its tests came to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Format {
    Pytest,
    Tcl,
    Go,
}

/// Tests of another project.
pub(super) struct Suite {
    pub name: &'static str,
    pub version: &'static str,
    pub format: Format,
    /// Port that the server must have; 0 for any.
    pub port: u16,
    /// Whether a short run includes it.
    pub is_in_short: bool,
    /// Runs the tests on a server; returns the outcomes in the suite's form. A short run has a part of them.
    pub run: fn(&Place, &str, bool) -> Result<String>,
}

/// Folders of a run.
pub(super) struct Place<'a> {
    /// Ours, with the plug-in of pytest.
    pub sources: &'a Path,
    /// For what is fetched.
    pub work: &'a Path,
}

pub(super) const SUITES: [Suite; 5] = [
    Suite {
        name: "redis-tcl",
        version: "7.0.15",
        format: Format::Tcl,
        port: 0,
        is_in_short: false,
        run: redis_tcl,
    },
    Suite {
        name: "redis-py",
        version: "8.1.0",
        format: Format::Pytest,
        port: 0,
        is_in_short: true,
        run: redis_py,
    },
    Suite {
        name: "fakeredis",
        version: "2.40.0",
        format: Format::Pytest,
        port: FAKEREDIS_PORT,
        is_in_short: true,
        run: fakeredis,
    },
    Suite {
        name: "fakeredis-random",
        version: "2.40.0",
        format: Format::Pytest,
        port: FAKEREDIS_PORT,
        is_in_short: false,
        run: fakeredis_random,
    },
    Suite {
        name: "miniredis",
        version: "2.40.0",
        format: Format::Go,
        port: 0,
        is_in_short: true,
        run: miniredis,
    },
];

/// Random sequences of each test.
const EXAMPLES: &str = "250";
/// The tests have it in their source.
const FAKEREDIS_PORT: u16 = 6390;

/// Units of the tests of Redis that concern commands which are built.
const UNITS: [&str; 11] = [
    "unit/type/string",
    "unit/type/incr",
    "unit/type/hash",
    "unit/type/set",
    "unit/expire",
    "unit/scan",
    "unit/multi",
    "unit/keyspace",
    "unit/other",
    "unit/introspection",
    "unit/protocol",
];

fn redis_tcl(place: &Place, address: &str, _is_short: bool) -> Result<String> {
    let source = debian_source(place.work)?;
    let (host, port) = host_and_port(address)?;
    let mut outcomes = String::new();
    for unit in UNITS {
        let mut run = Command::new("tclsh");
        run.args(["tests/test_helper.tcl", "--host", host, "--port", port, "--single", unit]);
        run.args([
            "--singledb",
            "--ignore-encoding",
            "--ignore-digest",
            "--no-latency",
            "--durable",
        ]);
        run.args(["--tags", "-needs:debug -needs:repl -needs:save -slow -large-memory"]);
        run.args(["--clients", "1", "--skipfile"]).arg(place.sources.join("slow-tests"));
        // It fails if one test fails.
        let (ended, printed) = run_limited(run.current_dir(&source), RUN_LIMIT)?;
        ensure!(ended != Ended::TimedOut, "{unit} did not end: {printed}");
        outcomes.push_str(&printed);
    }
    Ok(outcomes)
}

/// Returns the folder of the source package of Redis, which apt verifies.
fn debian_source(work: &Path) -> Result<PathBuf> {
    let source = work.join("redis-7.0.15");
    if source.join("tests/support/util.tcl").is_file() {
        return Ok(source);
    }
    println!("fetching the source of Redis from Debian");
    let apt = work.join("apt");
    for folder in ["parts", "lists/partial", "cache/archives/partial"] {
        std::fs::create_dir_all(apt.join(folder))?;
    }
    std::fs::write(
        apt.join("parts/source.sources"),
        "Types: deb-src\nURIs: http://deb.debian.org/debian\nSuites: bookworm\nComponents: main\n\
         Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
    )?;
    let apt_get = |words: &[&str]| {
        let mut run = Command::new("apt-get");
        run.args(["-qq", "-o", "Dir::Etc::sourcelist=/dev/null"]);
        for (name, folder) in [
            ("Dir::Etc::sourceparts", "parts"),
            ("Dir::State::lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            run.arg("-o").arg(format!("{name}={}", apt.join(folder).display()));
        }
        run.args(words).current_dir(work);
        fetched(&mut run)
    };
    apt_get(&["update"])?;
    apt_get(&["source", "--download-only", "redis"])?;
    fetched(Command::new("tar").args(["-xzf", "redis_7.0.15.orig.tar.gz"]).current_dir(work))?;
    for (name, addition) in TCL_ADDITIONS {
        let path = source.join(name);
        let text = std::fs::read_to_string(&path)?;
        std::fs::write(&path, text + addition)?;
    }
    Ok(source)
}

/// Added to the fetched files. MEMORY USAGE is called outside of tests, where an unknown command ends the whole unit. A
/// test that ends early leaves its transaction open, in which all later ones would fail.
const TCL_ADDITIONS: [(&str, &str); 2] = [
    ("tests/support/util.tcl", "\nproc memory_usage {key} { return 1 }\n"),
    (
        "tests/support/test.tcl",
        "\nrename test suite_test\nproc test {name code {okpattern undefined} {tags {}}} {\n\
         uplevel 1 [list suite_test $name $code $okpattern $tags]\n\
         catch {r discard}\ncatch {r unwatch}\n}\n",
    ),
];

fn redis_py(place: &Place, address: &str, is_short: bool) -> Result<String> {
    let source = sdist(place, "redis", "8.1.0")?;
    let url = format!("redis://{address}/0");
    let all = [
        "tests/test_lock.py",
        "tests/test_pipeline.py",
        "tests/test_encoding.py",
        "tests/test_commands.py",
    ];
    let files = if is_short { &all[..2] } else { &all[..] };
    pytest(place, &source, &[files, &["--redis-url", &url]].concat(), &[])
}

fn fakeredis(place: &Place, _address: &str, is_short: bool) -> Result<String> {
    let source = sdist(place, "fakeredis", "2.40.0")?;
    let all = ["hash", "set", "string", "generic", "transactions", "generic_scan"];
    let families = if is_short { &all[..2] } else { &all[..] };
    let files: Vec<String> = families
        .iter()
        .map(|family| format!("test/test_mixins/test_{family}_commands.py"))
        .collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    pytest(place, &source, &files, &[])
}

/// Random sequences: each is executed by the server and by a model in Python.
fn fakeredis_random(place: &Place, _address: &str, _is_short: bool) -> Result<String> {
    let source = sdist(place, "fakeredis", "2.40.0")?;
    let families = ["string", "hash", "set", "transaction"];
    let files: Vec<String> =
        families.iter().map(|family| format!("test/test_hypothesis/test_{family}.py")).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    pytest(place, &source, &files, &[("FAKEREDIS_HYPOTHESIS_EXAMPLES", EXAMPLES)])
}

fn pytest(place: &Place, source: &Path, words: &[&str], env: &[(&str, &str)]) -> Result<String> {
    let python = python(place)?;
    let outcomes = tempfile::NamedTempFile::new_in(place.work)?;
    let mut run = Command::new(python);
    run.args([
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "outcomes",
        "--timeout",
        "120",
    ]);
    run.args(words).current_dir(source).env("OUTCOMES", outcomes.path());
    run.env("PYTHONPATH", place.sources)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(env.iter().copied());
    let (ended, printed) = run_limited(&mut run, RUN_LIMIT)?;
    ensure!(ended != Ended::TimedOut, "{} did not end: {printed}", source.display());
    let outcomes = std::fs::read_to_string(outcomes.path())?;
    ensure!(!outcomes.is_empty(), "no test was run: {printed}");
    Ok(outcomes)
}

/// Returns the interpreter with what the suites in Python need.
fn python(place: &Place) -> Result<PathBuf> {
    let requirements = place.sources.join("requirements.txt");
    python_environment(&place.work.join("python"), Some(&requirements))
}

/// Returns the folder of a source distribution, which has the tests.
fn sdist(place: &Place, name: &str, version: &str) -> Result<PathBuf> {
    let folder = format!("{name}-{version}");
    let source = place.work.join(&folder);
    if !source.is_dir() {
        let mut download = Command::new(python(place)?);
        download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]);
        fetched(download.arg(format!("{name}=={version}")).current_dir(place.work))?;
        let archive = format!("{folder}.tar.gz");
        fetched(Command::new("tar").args(["-xzf", &archive]).current_dir(place.work))?;
    }
    Ok(source)
}

/// Tests of Miniredis compare it with a server, which each of them starts by the name `redis-server`.
fn miniredis(place: &Place, address: &str, is_short: bool) -> Result<String> {
    let module = place.work.join("miniredis");
    std::fs::create_dir_all(&module)?;
    std::fs::write(module.join("go.mod"), "module suites\n\ngo 1.21\n")?;
    let mut download = Command::new("go");
    download.args(["mod", "download", "-json", "github.com/alicebob/miniredis/v2@v2.40.0"]);
    let printed = fetched(download.current_dir(&module))?;
    let start = printed.find('{').context("go printed no module")?;
    let described: serde_json::Value = serde_json::Deserializer::from_str(&printed[start..])
        .into_iter()
        .next()
        .context("go printed no module")??;
    let source = described["Dir"].as_str().context("go named no folder")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut run = Command::new("go");
    run.args(["test", "-json", "-count", "1", "-parallel", "1", "./integration"]);
    if is_short {
        run.args(["-run", "^(TestHash.*|TestString.*|TestTx|TestSet|TestExpire)$"]);
    }
    run.current_dir(source).env("INT", "1").env("NODE", address).env("GOFLAGS", "-mod=mod");
    run.env("PATH", format!("{}:{path}", place.sources.display()));
    let (ended, printed) = run_limited(&mut run, RUN_LIMIT)?;
    ensure!(ended != Ended::TimedOut, "the tests did not end: {printed}");
    Ok(printed)
}

fn fetched(command: &mut Command) -> Result<String> {
    let (ended, printed) = run_limited(command, FETCH_LIMIT)?;
    ensure!(ended == Ended::Exited(true), "{command:?}: {ended:?}: {printed}");
    Ok(printed)
}

fn host_and_port(address: &str) -> Result<(&str, &str)> {
    address.rsplit_once(':').with_context(|| format!("{address} is no host:port"))
}
