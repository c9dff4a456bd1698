//! TiKV's clients over TLS, with certificates of `stele cert`, and what their users see without the right ones.
//! Each line of the table in `docs/security.md` is provoked; those that take a client more than 10 s, only
//! without `--short`.

use super::super::three;
use crate::args::{Setup, need};
use crate::cluster::control::POLL;
use crate::cluster::{Cluster, Spec, free_address};
use crate::programs::{self, Printed};
use crate::report::Report;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longer than client-go tries to connect.
const LIMIT: Duration = Duration::from_secs(150);
const CTL_LIMIT: Duration = Duration::from_secs(30);
/// First region of user keys.
const REGION: &str = "2";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Go,
    Rust,
    Java,
    Python,
}

impl Program {
    const ALL: [Self; 4] = [Self::Go, Self::Rust, Self::Java, Self::Python];

    fn name(self) -> &'static str {
        match self {
            Self::Go => "client-go of 2026-08",
            Self::Rust => "client-rust 0.4.0",
            Self::Java => "client-java 3.3.5",
            Self::Python => "tikv-python 0.1.1",
        }
    }

    fn command(self, setup: &Setup) -> Result<Command> {
        let programs = &setup.programs;
        Ok(match self {
            Self::Go => Command::new(need(&programs.tikv_go, "--tikv-go")?),
            Self::Rust => Command::new(need(&programs.tikv_rust, "--tikv-rust")?),
            Self::Java => {
                let paths = std::fs::read_to_string(need(&programs.java_paths, "--java-paths")?)?;
                let mut command = Command::new("java");
                command.arg("-cp").arg(paths.trim());
                command.arg(need(&programs.java_source, "--java-source")?);
                command
            }
            Self::Python => {
                let mut command = Command::new(need(&programs.python, "--python")?);
                command.arg(need(&programs.python_round, "--python-round")?);
                command
            }
        })
    }

    /// Returns a part of what its user sees, as the table shows it.
    fn seen(self, cause: Cause) -> &'static str {
        match (self, cause) {
            (Self::Go, _) => "[pd] failed to get cluster id",
            (Self::Rust, Cause::NoCertificate) => "failed to open",
            (Self::Rust, _) => "PD cluster failed to respond",
            (Self::Java, Cause::NoCertificate) => "NullPointerException",
            (Self::Java, _) => "Failed to init client for PD cluster",
            (Self::Python, Cause::NoCertificate) => "Unwrap failed (TSI_DATA_CORRUPTED)",
            (Self::Python, Cause::OtherAuthority) => "CERTIFICATE_VERIFY_FAILED",
            (Self::Python, Cause::OtherName) => "failed to connect to all addresses",
            (Self::Python, Cause::NoTls) => "Socket closed",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    NoCertificate,
    OtherAuthority,
    OtherName,
    NoTls,
}

impl Cause {
    const ALL: [Self; 4] =
        [Self::NoCertificate, Self::OtherAuthority, Self::OtherName, Self::NoTls];

    fn name(self) -> &'static str {
        match self {
            Self::NoCertificate => "no client certificate",
            Self::OtherAuthority => "files of another authority",
            Self::OtherName => "a name that the node's certificate lacks",
            Self::NoTls => "no TLS",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::NoCertificate => {
                "`stele cert client`; set all three files: authority, certificate and key"
            }
            Self::OtherAuthority => "`ca.pem` of the cluster, and a certificate that it signed",
            Self::OtherName => {
                "`stele cert node --host` with each name and address that clients use"
            }
            Self::NoTls => "set the three files in the client",
        }
    }
}

const HEAD: &str = "| cause | client | what its user sees | remedy |\n|---|---|---|---|\n";

fn line(program: Program, cause: Cause) -> String {
    let (seen, remedy) = (program.seen(cause), cause.remedy());
    format!("| {} | {} | `{seen}` | {remedy} |\n", cause.name(), program.name())
}

#[cfg(test)]
fn table() -> String {
    let lines = Cause::ALL.iter().flat_map(|cause| Program::ALL.map(|it| line(it, *cause)));
    lines.fold(HEAD.to_owned(), |text, line| text + &line)
}

/// Files of an authority and of one client.
#[derive(Clone, Debug)]
struct Files(PathBuf);

impl Files {
    /// Creates an authority with the certificates of three nodes and of the client `root`.
    fn create(setup: &Setup, name: &str) -> Result<Self> {
        let files = Self(setup.work().join(name));
        let cert = |words: &[&str]| {
            let mut command = Command::new(&setup.stele);
            command.arg("cert").args(words).arg("--dir").arg(&files.0);
            let done = command.output().context("stele cert")?;
            ensure!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
            Ok(())
        };
        cert(&["ca"])?;
        for node in ["n1", "n2", "n3"] {
            cert(&["node", node, "--cluster-name", "prod", "--host", "127.0.0.1"])?;
        }
        cert(&["client", "root"])?;
        Ok(files)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the names with a prefix and the paths of the files of a client or node.
    fn variables(&self, prefix: &str, name: &str) -> [(String, PathBuf); 3] {
        let (certificate, key) = (format!("{name}.pem"), format!("{name}.key"));
        let all = [("CA", "ca.pem"), ("CERT", &certificate), ("KEY", &key)];
        all.map(|(variable, file)| (format!("{prefix}{variable}"), self.path(file)))
    }
}

pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let started = Instant::now();
    let (files, others) = (Files::create(setup, "certs")?, Files::create(setup, "other-certs")?);
    let cluster = start(setup, &files).await?;
    let address = cluster.nodes.first().context("no node")?.address().to_owned();
    // As without TLS, the Rust client repeats rows where the last region's end is unbounded.
    ctl(&setup.stele, &files, &address, &["split", REGION, "zzz"]).await?;
    for program in Program::ALL {
        let mut command = program.command(setup)?;
        command.arg(&address).envs(files.variables("TLS_", "root"));
        let printed = programs::start(command).await??;
        let what = format!("{} over TLS: {}", program.name(), printed.errors);
        report.require(printed.succeeded, what);
    }
    let mut running = Vec::new();
    for cause in Cause::ALL {
        for program in Program::ALL.into_iter().filter(|it| *it != Program::Go || !setup.short) {
            let mut command = program.command(setup)?;
            match cause {
                Cause::NoCertificate => command.arg(&address).env("TLS_CA", files.path("ca.pem")),
                Cause::OtherAuthority => {
                    command.arg(&address).envs(others.variables("TLS_", "root"))
                }
                Cause::OtherName => {
                    command.arg(address.replace("127.0.0.1", "localhost"));
                    command.envs(files.variables("TLS_", "root"))
                }
                Cause::NoTls => command.arg(&address),
            };
            let began = Instant::now();
            running.push((program, cause, began, programs::start_within(command, LIMIT)));
        }
    }
    let mut seen = HEAD.to_owned();
    for (program, cause, began, ended) in running {
        let printed = ended.await??;
        println!("{}, {}: {:.1} s", cause.name(), program.name(), began.elapsed().as_secs_f64());
        check(program, cause, &printed, report);
        seen += &line(program, cause);
    }
    print!("{seen}");
    report.record("tls_s", started.elapsed().as_secs());
    Ok(())
}

fn check(program: Program, cause: Cause, printed: &Printed, report: &mut Report) {
    let is_seen = !printed.succeeded && printed.errors.contains(program.seen(cause));
    let (name, cause_name, seen) = (program.name(), cause.name(), program.seen(cause));
    let what = format!("{name}, {cause_name}: not {seen}: {}{}", printed.text, printed.errors);
    report.require(is_seen, what);
}

async fn start(setup: &Setup, files: &Files) -> Result<Cluster> {
    let work = setup.work().join("tls");
    std::fs::create_dir_all(&work)?;
    let mut cluster = Cluster::launch(Spec { work, nodes: 0, ..three(setup, &[]) })?;
    for node in ["n1", "n2", "n3"] {
        let mut launch = cluster.next_launch()?;
        launch.health = Some(free_address()?);
        for (name, path) in files.variables("STELE_TLS_", node) {
            launch.settings.push((name, path.display().to_string()));
        }
        launch.settings.push(("STELE_ADMINISTRATORS".to_owned(), "root".to_owned()));
        if let Some(first) = cluster.nodes.first() {
            ctl(&setup.stele, files, first.address(), &["admit", node]).await?;
        }
        cluster.add(launch).await?;
    }
    Ok(cluster)
}

/// Runs a command of an administrator until it succeeds: a region may have another operator, such as that for its
/// further replicas, and a cluster no leader yet.
async fn ctl(stele: &Path, files: &Files, address: &str, words: &[&str]) -> Result<()> {
    let began = Instant::now();
    loop {
        let mut ctl = Command::new(stele);
        ctl.args(["ctl", "--cluster", address]).args(words);
        let done = ctl.envs(files.variables("STELE_", "root")).output()?;
        if done.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&done.stderr);
        ensure!(began.elapsed() < CTL_LIMIT, "{words:?}: {text}");
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_documentation_is_the_one_of_which_every_line_is_provoked() {
        let page = include_str!("../../../../../docs/security.md");
        assert!(page.contains(&table()), "docs/security.md must contain:\n{}", table());
    }
}
