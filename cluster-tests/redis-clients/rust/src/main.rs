//! Runs Redis clients of Rust, unmodified, against the nodes of a cluster.
//!
//! ```text
//! stele-tests-redis-rust --nodes HOST:PORT,HOST:PORT,HOST:PORT --phase check|kill --seconds S [--only NAME]
//! ```
//!
//! It prints one line of JSON for each result. The exit code is 0 if it ran to its end, whatever the results.

mod fred_client;
mod kill;
mod pools;
mod redis_rs;

use serde_json::json;
use std::fmt::{Debug, Display};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Time that one check may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// Initials of names, so that names are spread over all regions.
const INITIALS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Outcome of a check; the error says what was wrong.
type Outcome = Result<(), String>;

/// What the program was called with.
struct Options {
    nodes: Vec<String>,
    phase: String,
    seconds: f64,
    only: Option<String>,
}

/// Client or library.
#[derive(Clone, Copy)]
struct Subject {
    name: &'static str,
    package: &'static str,
    kind: &'static str,
}

impl Subject {
    const fn client(name: &'static str, package: &'static str) -> Self {
        Self { name, package, kind: "client" }
    }

    fn print(&self, check: &str, outcome: &str, text: &str) {
        let version = version_of(self.package);
        let line = json!({"client": self.name, "version": version, "kind": self.kind, "check": check,
            "outcome": outcome, "text": text});
        println!("{line}");
    }

    /// Runs a check and prints its result.
    async fn check(&self, name: &str, check: impl Future<Output = Outcome>) {
        match tokio::time::timeout(CHECK_TIMEOUT, check).await {
            Ok(Ok(())) => self.print(name, "passed", ""),
            Ok(Err(text)) => self.print(name, "failed", &text),
            Err(_) => self.print(name, "failed", "the check took more than 60 s"),
        }
    }
}

/// Names that no other check uses.
struct Names {
    prefix: String,
}

impl Names {
    fn new(check: &str) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { prefix: format!("{check}-{:x}", now.as_nanos()) }
    }

    /// Consecutive numbers lie in different regions.
    fn name(&self, number: usize) -> String {
        let initial = char::from(INITIALS[number * 7 % INITIALS.len()]);
        format!("{initial}:{}:{number}", self.prefix)
    }

    fn names(&self, count: usize) -> Vec<String> {
        (0..count).map(|number| self.name(number)).collect()
    }

    fn pattern(&self) -> String {
        format!("*:{}:*", self.prefix)
    }
}

/// Fails unless a command returns the expected value.
async fn is<T: PartialEq + Debug, E: Display>(
    what: &str,
    reply: impl Future<Output = Result<T, E>>,
    expected: T,
) -> Outcome {
    same(what, reply.await.map_err(|error| format!("{what}: {error}"))?, expected)
}

fn same<T: PartialEq + Debug>(what: &str, value: T, expected: T) -> Outcome {
    match value == expected {
        true => Ok(()),
        false => Err(format!("{what}: {value:?} in place of {expected:?}")),
    }
}

/// Fails unless a time in seconds is the expected one, of which at most a minute may have passed.
async fn about<E: Display>(
    what: &str,
    reply: impl Future<Output = Result<i64, E>>,
    expected: i64,
) -> Outcome {
    let left = reply.await.map_err(|error| format!("{what}: {error}"))?;
    match (expected - 60..=expected).contains(&left) {
        true => Ok(()),
        false => Err(format!("{what}: {left} in place of {expected}")),
    }
}

/// Fails unless a command fails with a text.
async fn fails<T: Debug, E: Display>(
    what: &str,
    reply: impl Future<Output = Result<T, E>>,
    text: &str,
) -> Outcome {
    match reply.await {
        Err(error) if error.to_string().contains(text) => Ok(()),
        other => Err(format!("{what}: {:?}", other.map_err(|error| error.to_string()))),
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// Returns the version of a package of the lock file.
fn version_of(package: &str) -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let mut lines = lock.lines();
    let name = format!("name = \"{package}\"");
    lines.find(|line| *line == name);
    lines.next().and_then(|line| line.split('"').nth(1)).unwrap_or("unknown")
}

fn options() -> Option<Options> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| {
        let place = arguments.iter().position(|it| it == flag)?;
        arguments.get(place + 1).cloned()
    };
    let nodes = value("--nodes")?.split(',').map(String::from).collect();
    let seconds = value("--seconds").map_or(Some(20.0), |seconds| seconds.parse().ok())?;
    let phase = value("--phase").unwrap_or_else(|| "check".into());
    let known = phase == "check" || phase == "kill";
    known.then_some(Options { nodes, phase, seconds, only: value("--only") })
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("--nodes HOST:PORT,… and --phase check|kill are needed");
        return ExitCode::from(2);
    };
    let node = options.nodes[0].as_str();
    let runs = |subject: &Subject| options.only.as_deref().is_none_or(|only| only == subject.name);
    if options.phase == "kill" {
        let seconds = Duration::from_secs_f64(options.seconds);
        kill::run(node, seconds, &runs).await;
        return ExitCode::SUCCESS;
    }
    if runs(&redis_rs::SUBJECT) {
        redis_rs::check(node).await;
    }
    if runs(&fred_client::SUBJECT) {
        fred_client::check(node).await;
    }
    if runs(&pools::DEADPOOL) {
        pools::check_deadpool(node).await;
    }
    if runs(&pools::BB8) {
        pools::check_bb8(node).await;
    }
    ExitCode::SUCCESS
}
