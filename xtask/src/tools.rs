//! Programs that checks need besides Rust, and what installs each.

use crate::process::run_shown;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Version of Python for which the wheel of TiKV's client is built.
pub(crate) const PYTHON: &str = "python3.11";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    pub program: &'static str,
    probe: &'static str,
    /// Command that installs the program on Debian.
    remedy: &'static str,
}

const fn tool(program: &'static str, probe: &'static str, remedy: &'static str) -> Tool {
    Tool { program, probe, remedy }
}

const GIT: Tool = tool("git", "--version", "apt-get install git");
const GO: Tool = tool("go", "version", "apt-get install golang-go (1.25 or newer)");

/// Tools of checks that read the list of tracked files or a commit.
pub(crate) const FOR_GIT: &[Tool] = &[GIT];
pub(crate) const FOR_DEPENDENCIES: &[Tool] =
    &[tool("cargo-deny", "--version", "cargo install --locked cargo-deny --version 0.20.2")];
/// Tools of a Porcupine build.
pub(crate) const FOR_HISTORIES: &[Tool] = &[GO];
pub(crate) const FOR_SPEC: &[Tool] = &[
    tool("java", "-version", "apt-get install default-jre-headless"),
    tool("mvn", "--version", "apt-get install maven"),
    tool("sha256sum", "--version", "apt-get install coreutils"),
];
/// Tools that download, build and run servers of S3.
pub(crate) const FOR_S3: &[Tool] = &[
    GO,
    tool("java", "-version", "apt-get install default-jre-headless"),
    tool("mvn", "--version", "apt-get install maven"),
    tool("sha256sum", "--version", "apt-get install coreutils"),
];
/// Returns the interpreter of an environment of Python in a folder, with the packages of a file of requirements.
pub(crate) fn python_environment(folder: &Path, requirements: Option<&Path>) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    if !python.is_file() {
        run_shown(Command::new(PYTHON).args(["-m", "venv"]).arg(folder))?;
    }
    if let Some(requirements) = requirements {
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        run_shown(install.arg("--requirement").arg(requirements))?;
    }
    Ok(python)
}

const INTERPRETER: Tool = tool(PYTHON, "--version", "apt-get install python3.11 python3.11-venv");
/// Tools of the short form of the tests of other projects for Redis.
pub(crate) const FOR_SHORT_SUITES: &[Tool] = &[GO, INTERPRETER];
/// Tools that download and run all of them.
pub(crate) const FOR_REDIS_SUITES: &[Tool] = &[
    GO,
    INTERPRETER,
    // It executes a file.
    tool("tclsh", "/dev/null", "apt-get install tcl"),
    tool("apt-get", "--version", "a Debian: the source of Redis is its package"),
];
/// Tools that download servers of Redis and Valkey.
pub(crate) const FOR_REDIS_COMPARE: &[Tool] = &[INTERPRETER];
/// Tools that fetch and run clients of Redis, by the language of the clients.
pub(crate) const FOR_REDIS_CLIENTS_PYTHON: &[Tool] = &[
    INTERPRETER,
    tool("redis-cli", "--version", "apt-get install redis-tools"),
    tool("redis-benchmark", "--version", "apt-get install redis-tools"),
];
pub(crate) const FOR_REDIS_CLIENTS_NODE: &[Tool] = &[
    tool("node", "--version", "apt-get install nodejs (20 or newer)"),
    tool("npm", "--version", "apt-get install npm"),
];
pub(crate) const FOR_REDIS_CLIENTS_GO: &[Tool] = &[GO];
pub(crate) const FOR_REDIS_CLIENTS_JAVA: &[Tool] = &[
    tool("javac", "-version", "apt-get install default-jdk-headless (17 or newer)"),
    tool("mvn", "--version", "apt-get install maven"),
];
/// Tools that download and run schemathesis.
pub(crate) const FOR_HTTP_SCHEMA: &[Tool] = &[INTERPRETER];
/// Tools that split a binary from its symbols.
pub(crate) const FOR_DIST: &[Tool] = &[tool("objcopy", "--version", "apt-get install binutils")];
/// Tools that count instructions.
pub(crate) const FOR_GUARD: &[Tool] = &[tool("valgrind", "--version", "apt-get install valgrind")];
/// Tools that name measured functions.
pub(crate) const FOR_HOUSE: &[Tool] = &[tool("addr2line", "--version", "apt-get install binutils")];
/// Tools of scenarios on real clusters.
pub(crate) const FOR_CLUSTERS: &[Tool] = &[
    GO,
    tool("javac", "-version", "apt-get install default-jdk-headless (17 or newer)"),
    tool("mvn", "--version", "apt-get install maven"),
    INTERPRETER,
    tool("ip", "-V", "apt-get install iproute2"),
    tool("tc", "-V", "apt-get install iproute2"),
    tool("setpriv", "--version", "apt-get install util-linux"),
    tool("mkfs.ext4", "-V", "apt-get install e2fsprogs"),
    tool("mkfs.xfs", "-V", "apt-get install xfsprogs"),
    tool("mount", "--version", "apt-get install mount"),
    tool("strace", "--version", "apt-get install strace"),
    tool("faketime", "--version", "apt-get install faketime"),
];

pub(crate) fn require<'a>(tools: impl IntoIterator<Item = &'a Tool>) -> Result<()> {
    let mut missing: Vec<String> = Vec::new();
    for tool in tools {
        let line = format!("{}: {}", tool.program, tool.remedy);
        if !is_present(tool) && !missing.contains(&line) {
            missing.push(line);
        }
    }
    if !missing.is_empty() {
        bail!("these tools are missing:\n  {}", missing.join("\n  "));
    }
    Ok(())
}

fn is_present(tool: &Tool) -> bool {
    let mut command = Command::new(tool.program);
    command.arg(tool.probe).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_tool_is_named_once_with_its_remedy() {
        let missing = tool("no-such-program", "--version", "apt-get install nothing");
        let other = tool("nor-this-one", "--version", "apt-get install little");
        let present = tool("sh", "-c", "");
        let error = require([&missing, &present, &other, &missing]).unwrap_err().to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(
            lines[1..],
            [
                "  no-such-program: apt-get install nothing",
                "  nor-this-one: apt-get install little"
            ]
        );
        require([&present]).unwrap();
    }
}
