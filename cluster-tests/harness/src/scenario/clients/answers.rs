//! What the users of TiKV's clients see of answers that these clients take differently. Each line of the table
//! in `docs/compatibility.md` is provoked.

use super::three;
use crate::args::{Setup, need};
use crate::client::{AnswerKind, Outcome, Session, SessionOptions};
use crate::cluster::{Cluster, Spec, node};
use crate::programs::{self, Printed};
use crate::report::Report;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// End of the region of all keys that the programs use.
const SPLIT: &[u8] = b"answers/x";
const KEY: &[u8] = b"answers/warm";
const LIMIT: Duration = Duration::from_secs(60);
/// Time in which every node knows a setting of the cluster.
const SETTING_LIMIT: Duration = Duration::from_secs(5);
/// A leader without followers leaves after 10 to 20 ticks: the call must come before.
const SLOW_TICKS: [(&str, &str); 1] = [("tick_ms", "200")];
/// Tries to make a call before the leader leaves.
const TRIES_MAX: usize = 3;
/// Time in which a new leader is reported.
const REPORTED: Duration = Duration::from_secs(2);
/// More than any device has.
const RESERVED: [(&str, &str); 1] = [("reserved_bytes", "1048576GiB")];

#[derive(Clone, Copy, Debug)]
enum Client {
    Go,
    Rust,
    Java,
    Python,
}

impl Client {
    fn name(self) -> &'static str {
        match self {
            Self::Go => "client-go of 2026-08",
            Self::Rust => "client-rust 0.4.0",
            Self::Java => "client-java 3.3.5",
            Self::Python => "Python tikv-client 0.0.4",
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Seen {
    /// An error with this text after one request that the cluster ended.
    ErrorAtOnce(&'static str),
    /// An error with this text.
    Error(&'static str),
    /// Success without a row.
    NoRows,
    /// The end of the process, with this text on the way out.
    End(&'static str),
}

/// Lines of the table with one cause.
struct Case {
    cause: &'static str,
    answer: &'static str,
    call: &'static str,
    clients: &'static [Client],
    seen: Seen,
    text: &'static str,
}

const LONG_KEY: Case = Case {
    cause: "the key is too long, or the request is invalid in another way",
    answer: "`raft_entry_too_large` without a size",
    call: "long-key",
    clients: &[Client::Go, Client::Rust, Client::Java, Client::Python],
    seen: Seen::ErrorAtOnce("max key size exceeded"),
    text: "an error at once, with Stele's text",
};
const SWAP: Case = Case {
    cause: "the outcome of a compare-and-swap is unknown",
    answer: "`raft_entry_too_large` without a size, text `undetermined: …`",
    call: "swap",
    clients: &[Client::Go, Client::Rust, Client::Java],
    seen: Seen::ErrorAtOnce("undetermined"),
    text: "an error at once, with that text, if the time limit of a call (client-java 0.2 s, client-rust 2 s, \
           client-go 30 s) is not over before; then the client sends it again, and its own success is a conflict",
};
const WRITE: Case = Case {
    cause: "the outcome of a put is unknown, with `undetermined_writes_fail`",
    answer: "`raft_entry_too_large` without a size, text `undetermined: …`",
    call: "put",
    clients: &[Client::Go, Client::Rust, Client::Java],
    seen: Seen::ErrorAtOnce("undetermined"),
    text: "an error at once, with that text, if the time limit of a call is not over before; then the client \
           sends it again",
};
const FULL: Case = Case {
    cause: "no device has room, and the leader cannot move",
    answer: "`raft_entry_too_large` without a size, text `disk full …`",
    call: "put",
    clients: &[Client::Go, Client::Rust, Client::Java, Client::Python],
    seen: Seen::ErrorAtOnce("disk full at store"),
    text: "an error at once, with the reason",
};
const REVERSE: Case = Case {
    cause: "a reverse scan crosses regions",
    answer: "`key_not_in_region`: this client sends it to the region of its lower bound",
    call: "reverse-scan",
    clients: &[Client::Rust],
    seen: Seen::Error("KeyNotInRegion"),
    text: "an error after 11 tries",
};
const MOVED: Case = Case {
    cause: "a scan after a leader has moved, a split or a merge",
    answer: "`not_leader` or another region error",
    call: "scan",
    clients: &[Client::Python],
    seen: Seen::NoRows,
    text: "an empty result without an error, until a get refreshes what the client knows",
};
const REBUILT: Case = Case {
    cause: "another cluster serves the address",
    answer: "status `INVALID_ARGUMENT`, `mismatch cluster id`",
    call: "get",
    clients: &[Client::Go],
    seen: Seen::End("mismatch cluster id"),
    text: "the client ends the process with status 1, on purpose",
};

#[cfg(test)]
fn table() -> String {
    let cases = [&LONG_KEY, &SWAP, &WRITE, &FULL, &REVERSE, &MOVED, &REBUILT];
    let lines = cases.into_iter().flat_map(|case| case.clients.iter().map(|it| line(case, *it)));
    lines.fold(HEAD.to_owned(), |text, line| text + &line)
}

const HEAD: &str = "| cause | answer | client | what its user sees |\n|---|---|---|---|\n";

fn line(case: &Case, client: Client) -> String {
    let mut line = String::new();
    let _ =
        writeln!(line, "| {} | {} | {} | {} |", case.cause, case.answer, client.name(), case.text);
    line
}

pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let mut seen = HEAD.to_owned();
    three_nodes(setup, report, &mut seen).await?;
    full(setup, report, &mut seen).await?;
    rebuilt(setup, report, &mut seen).await?;
    print!("{seen}");
    report.record("answers", seen.lines().count() - 2);
    Ok(())
}

struct Waiting<'a> {
    case: &'a Case,
    client: Client,
    place: tempfile::TempDir,
    program: JoinHandle<Result<Printed>>,
}

impl<'a> Waiting<'a> {
    /// Starts a program; a program that does not reach its call is a requirement that is not met.
    async fn start(
        (setup, report): (&Setup, &mut Report),
        case: &'a Case,
        client: Client,
        address: &str,
    ) -> Option<Waiting<'a>> {
        let started = Self::connect(setup, case, client, address).await;
        let failed = |error| {
            report.require(false, format!("{}, {}: {error:#}", case.call, client.name()));
        };
        started.map_err(failed).ok()
    }

    async fn connect(
        setup: &Setup,
        case: &'a Case,
        client: Client,
        address: &str,
    ) -> Result<Waiting<'a>> {
        let place = tempfile::tempdir_in(setup.work())?;
        let mut command = command(setup, client)?;
        command.arg(address).arg(case.call).arg(place.path());
        let mut program = programs::start_within(command, LIMIT);
        let started = Instant::now();
        while !place.path().join("ready").exists() {
            if program.is_finished() {
                bail!("ended before its call; {}", end_of(&(&mut program).await??));
            }
            ensure!(started.elapsed() < LIMIT, "it does not connect");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { case, client, place, program })
    }

    /// Makes the call; returns what the program printed.
    async fn call(self) -> Result<(&'a Case, Client, Printed)> {
        std::fs::write(self.place.path().join("go"), "")?;
        Ok((self.case, self.client, self.program.await??))
    }
}

fn command(setup: &Setup, client: Client) -> Result<Command> {
    let programs = &setup.programs;
    Ok(match client {
        Client::Go => Command::new(need(&programs.tikv_go, "--tikv-go")?),
        Client::Rust => Command::new(need(&programs.tikv_rust, "--tikv-rust")?),
        Client::Java => {
            let mut command = Command::new("java");
            let paths = std::fs::read_to_string(need(&programs.java_paths, "--java-paths")?)?;
            command.arg("-cp").arg(paths.trim());
            command.arg(need(&programs.java_source, "--java-source")?);
            command
        }
        Client::Python => {
            let mut command = Command::new(need(&programs.python, "--python")?);
            command.arg(need(&programs.python_answers, "--python-answers")?);
            command
        }
    })
}

fn check(
    (case, client, printed): (&Case, Client, Printed),
    finals: u64,
    report: &mut Report,
    seen: &mut String,
) {
    let text = printed.object.get("error").and_then(|text| text.as_str());
    let rows = printed.number("rows");
    let is_seen = match case.seen {
        Seen::ErrorAtOnce(part) => text.is_some_and(|it| it.contains(part)) && finals == 1,
        Seen::Error(part) => text.is_some_and(|it| it.contains(part)),
        Seen::NoRows => printed.succeeded && text == Some("") && rows == 0.0,
        Seen::End(part) => !printed.succeeded && printed.text.contains(part),
    };
    let what = format!(
        "{}, {}: {finals} final answers, {:.1} s, {rows} rows, {}",
        case.call,
        client.name(),
        printed.number("seconds"),
        text.map_or_else(|| end_of(&printed), str::to_owned)
    );
    println!("{what}");
    report.require(is_seen, format!("{what}: not {:?}", case.seen));
    if is_seen {
        seen.push_str(&line(case, client));
    }
}

/// Returns the end of what a program printed that gave no result.
fn end_of(printed: &Printed) -> String {
    let all = format!("ended without a result: {}{}", printed.text, printed.errors);
    let last = all.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
    last.get(..300).unwrap_or(last).to_owned()
}

/// Returns the requests that the nodes ended for good.
async fn finals(cluster: &Cluster) -> Result<u64> {
    let mut sum = 0;
    for address in cluster.addresses() {
        let (_, body) = node::get(&address, "/metrics", LIMIT).await?;
        let of_final = |line: &&str| {
            line.starts_with("stele_requests_failed_total{") && line.contains("outcome=\"final\"")
        };
        let counts = body.lines().filter(of_final).filter_map(|line| line.rsplit(' ').next());
        sum += counts.filter_map(|count| count.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(sum)
}

async fn each(
    setup: &Setup,
    cluster: &Cluster,
    case: &Case,
    report: &mut Report,
    seen: &mut String,
) -> Result<()> {
    let address = cluster.nodes[cluster.leader_of(KEY).await?].address();
    for client in case.clients {
        let waiting = Waiting::start((setup, report), case, *client, address).await;
        let Some(waiting) = waiting else { continue };
        let before = finals(cluster).await?;
        let done = waiting.call().await?;
        check(done, finals(cluster).await? - before, report, seen);
    }
    Ok(())
}

async fn three_nodes(setup: &Setup, report: &mut Report, seen: &mut String) -> Result<()> {
    let spec = Spec { work: folder(setup, "three")?, ..three(setup, &SLOW_TICKS) };
    let mut cluster = Cluster::start(spec).await?;
    cluster.set_option("balance", "0").await?;
    let region = cluster.region_of(b"").await?.region.id;
    cluster.split(region, vec![Bytes::from_static(SPLIT)]).await?;
    let mut session = session(&cluster);
    let outcome = session.put(KEY, Bytes::from_static(b"1")).await;
    ensure!(outcome.is_done(), "the first put");
    each(setup, &cluster, &LONG_KEY, report, seen).await?;
    each(setup, &cluster, &REVERSE, report, seen).await?;

    let leader = cluster.leader_of(KEY).await?;
    let address = cluster.nodes[leader].address();
    if let Some(waiting) = Waiting::start((setup, report), &MOVED, Client::Python, address).await {
        let to = cluster.store_of((leader + 1) % 3).await?;
        cluster.transfer(cluster.region_of(KEY).await?.region.id, to).await?;
        check(waiting.call().await?, 0, report, seen);
    }

    without_quorum(setup, &mut cluster, &SWAP, report, seen).await?;
    cluster.set_option("undetermined_writes_fail", "1").await?;
    tokio::time::sleep(SETTING_LIMIT).await;
    without_quorum(setup, &mut cluster, &WRITE, report, seen).await
}

/// Makes the call of each client while the leader has no followers, so that it loses its leadership
/// with the write in its log. A call that came after the leader had left is made again.
async fn without_quorum(
    setup: &Setup,
    cluster: &mut Cluster,
    case: &Case,
    report: &mut Report,
    seen: &mut String,
) -> Result<()> {
    for client in case.clients {
        let mut tries = 1;
        let (done, ended) = loop {
            match call_without_quorum(setup, cluster, case, *client).await {
                Ok((_, 0)) | Err(_) if tries < TRIES_MAX => {
                    println!("{}, {}: the leader was gone, again", case.call, client.name());
                }
                last => break last?,
            }
            tries += 1;
        };
        check(done, ended, report, seen);
    }
    Ok(())
}

/// Makes one call; returns what the program printed and the requests that the nodes ended for good.
async fn call_without_quorum<'a>(
    setup: &Setup,
    cluster: &mut Cluster,
    case: &'a Case,
    client: Client,
) -> Result<((&'a Case, Client, Printed), u64)> {
    cluster.wait_replicated(3, LIMIT).await?;
    let mut session = session(cluster);
    let started = Instant::now();
    while !session.put(KEY, Bytes::from_static(b"1")).await.is_done() {
        ensure!(started.elapsed() < LIMIT, "no leader");
    }
    tokio::time::sleep(REPORTED).await;
    let leader = cluster.leader_of(KEY).await?;
    let address = cluster.nodes[leader].address().to_owned();
    let waiting = Waiting::connect(setup, case, client, &address).await?;
    let before = finals(cluster).await?;
    let others = || (0..cluster.nodes.len()).filter(|node| *node != leader);
    others().try_for_each(|node| cluster.nodes[node].pause())?;
    let done = waiting.call().await;
    others().try_for_each(|node| cluster.nodes[node].resume())?;
    Ok((done?, finals(cluster).await? - before))
}

fn session(cluster: &Cluster) -> Session {
    let options = SessionOptions { nodes: cluster.addresses(), limit: Duration::from_secs(5) };
    Session::new(Arc::clone(&cluster.channels), options)
}

async fn full(setup: &Setup, report: &mut Report, seen: &mut String) -> Result<()> {
    let spec = Spec { work: folder(setup, "full")?, nodes: 1, ..three(setup, &RESERVED) };
    let cluster = Cluster::start(spec).await?;
    let mut session = session(&cluster);
    let started = Instant::now();
    // As long as a leader may move, clients try again.
    loop {
        let outcome = session.put(KEY, Bytes::from_static(b"1")).await;
        match &outcome {
            Outcome::Refused(answer) if answer.kind == AnswerKind::RaftEntryTooLarge => break,
            Outcome::Done(()) => bail!("a full cluster took a put"),
            _ => ensure!(started.elapsed() < LIMIT, "no final answer"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    report.record("disk_full_s", started.elapsed().as_secs());
    each(setup, &cluster, &FULL, report, seen).await
}

async fn rebuilt(setup: &Setup, report: &mut Report, seen: &mut String) -> Result<()> {
    let spec = Spec { work: folder(setup, "rebuilt")?, nodes: 1, ..three(setup, &[]) };
    let mut cluster = Cluster::start(spec).await?;
    let node = cluster.nodes.first_mut().context("no node")?;
    let waiting = Waiting::start((setup, report), &REBUILT, Client::Go, node.address()).await;
    let Some(waiting) = waiting else { return Ok(()) };
    node.kill()?;
    for directory in &node.launch.stores {
        std::fs::remove_dir_all(directory)?;
    }
    node.restart()?;
    node.wait_ready().await?;
    check(waiting.call().await?, 0, report, seen);
    Ok(())
}

fn folder(setup: &Setup, name: &str) -> Result<std::path::PathBuf> {
    let folder = Path::new(setup.work()).join(name);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_documentation_is_the_one_of_which_every_line_is_provoked() {
        let page = include_str!("../../../../../docs/compatibility.md");
        assert!(page.contains(&table()), "docs/compatibility.md must contain:\n{}", table());
    }
}
