//! Stores of the oldest supported version, which every later program opens: `cargo xtask corpus`.

use crate::process::run_shown;
use crate::upgrade;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Folder of the stores, and of what each held when it was written.
const CORPUS: &str = "crates/cli/tests/stores";
/// Addresses that no other cluster on a machine has.
const ADDRESSES: [&str; 2] = ["127.77.0.1:15801", "127.77.0.2:15801"];
/// Program that writes the stores that no command of the former version makes.
const FORMER: &str = include_str!("former/corpus.rs");
const STORES: [&str; 7] =
    ["embedded", "node-1", "node-2", "sealed", "graves", "shard-0", "shard-1"];
/// Stores of that program, with an ending of the files for which each is kept.
const OF_FORMER: [(&str, &str); 4] =
    [("sealed", "side"), ("graves", "graves"), ("shard-0", "seg"), ("shard-1", "val")];
const BYTES_MAX: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
/// A hundred years.
const TTL_S: &str = "3153600000";

/// Writes the stores with the program of the oldest supported version, in place of those that are there, by
/// way of the new folder `work`. The stores record its path.
pub(crate) fn run(workspace: &Workspace, work: &Path) -> Result<()> {
    let former = Former(upgrade::oldest(workspace)?);
    let states = upgrade::example_of_oldest(workspace, FORMER)?;
    let corpus = workspace.root.join(CORPUS);
    fs::create_dir(work).with_context(|| format!("creating {}", work.display()))?;
    if corpus.exists() {
        fs::remove_dir_all(&corpus)?;
    }
    fs::create_dir_all(&corpus)?;
    embedded(&former, work, &corpus)?;
    cluster(&former, work, &corpus)?;
    run_shown(Command::new(states).arg(work))?;
    of_former(&former, work, &corpus)?;
    let mut bytes = 0;
    for store in STORES {
        let of_store = copy(&work.join(store), &corpus.join(store))?;
        println!("{of_store} bytes of {store}");
        bytes += of_store;
    }
    ensure!(bytes <= BYTES_MAX, "the stores have {bytes} bytes; at most {BYTES_MAX} are kept");
    println!("{bytes} bytes in {CORPUS}");
    Ok(fs::remove_dir_all(work)?)
}

/// Program of the oldest supported version.
struct Former(std::path::PathBuf);

impl Former {
    fn command(&self, place: [&str; 2], line: &str) -> Command {
        let mut command = Command::new(&self.0);
        let mut words = line.split(' ');
        // Options follow the command that they belong to.
        command.args(words.next()).args(place).args(words);
        command.env("STELE_RESERVED_BYTES", "0");
        command
    }

    fn run(&self, place: [&str; 2], line: &str) -> Result<String> {
        let output = self.command(place, line).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{line}: {}", said.trim());
        Ok(String::from_utf8(output.stdout)?)
    }

    fn server(&self, dir: &Path, address: &str, join: Option<&str>) -> Result<Server> {
        let mut command = self.command(["--listen", address], "server");
        command.arg("--store").arg(dir).args(join.iter().flat_map(|join| ["--join", join]));
        let log = fs::File::create(dir.with_extension("log"))?;
        Ok(Server(command.stdout(Stdio::null()).stderr(log).spawn()?))
    }
}

struct Server(Child);

impl Server {
    /// Stops the server in order.
    fn stop(mut self) -> Result<()> {
        run_shown(Command::new("kill").arg(self.0.id().to_string()))?;
        ensure!(self.0.wait()?.success(), "a server did not stop in order");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Puts values of all sizes on both sides of the bound for values within the index.
fn put_all(former: &Former, place: [&str; 2], letter: &str) -> Result<()> {
    for number in 1..=30 {
        former.run(place, &format!("put k{number} {}", letter.repeat(number * number)))?;
    }
    former.run(place, &format!("put --ttl {TTL_S} expiring later")).map(drop)
}

/// An embedded store: a run, a sorted value file, and puts, deletes and a modification after both.
fn embedded(former: &Former, work: &Path, corpus: &Path) -> Result<()> {
    let dir = work.join("embedded");
    let place = ["--store", dir.to_str().context("a path that is not UTF-8")?];
    put_all(former, place, "e")?;
    former.run(place, "del k3 k25")?;
    former.run(place, "compact")?;
    for line in ["put after both", "del k4 k26", "incr counter 7", "put k30 shorter"] {
        former.run(place, line)?;
    }
    let pairs = former.run(place, "scan --json")?;
    Ok(fs::write(corpus.join("embedded.jsonl"), pairs)?)
}

/// Records the pairs of the other program's stores, of which each has the files for which it is kept.
fn of_former(former: &Former, work: &Path, corpus: &Path) -> Result<()> {
    for (name, ending) in OF_FORMER {
        let dir = work.join(name);
        let found = fs::read_dir(dir.join("log"))?.filter_map(std::result::Result::ok);
        let has_ending =
            |entry: &fs::DirEntry| entry.path().extension().is_some_and(|it| it == ending);
        ensure!(found.filter(has_ending).count() > 0, "{name} has no file that ends in .{ending}");
        let place = ["--store", dir.to_str().context("a path that is not UTF-8")?];
        let pairs = former.run(place, "scan --json")?;
        fs::write(corpus.join(format!("{name}.jsonl")), pairs)?;
    }
    Ok(())
}

/// Two nodes with two regions: the first one with all its entries in the log, the second one with what
/// snapshots brought, and the log after that.
fn cluster(former: &Former, work: &Path, corpus: &Path) -> Result<()> {
    let [first, second] = ADDRESSES;
    let place = ["--cluster", first];
    let one = former.server(&work.join("node-1"), first, None)?;
    until(|| former.run(place, "put first pair").is_ok())?;
    put_all(former, place, "n")?;
    former.run(place, "ctl split 2 k2")?;
    let two = former.server(&work.join("node-2"), second, Some(first))?;
    until(|| {
        let regions = former.run(place, "ctl regions").unwrap_or_default();
        regions.lines().filter(|line| line.contains("  1 2  ")).count() == 2
    })?;
    for line in ["put after both", "del k3 k25", "incr counter 7", "put k30 shorter"] {
        former.run(place, line)?;
    }
    let pairs = former.run(place, "scan --json")?;
    fs::write(corpus.join("cluster.jsonl"), pairs)?;
    // Followers apply what was written last.
    std::thread::sleep(Duration::from_secs(1));
    two.stop()?;
    one.stop()
}

fn until(mut is_met: impl FnMut() -> bool) -> Result<()> {
    let started = Instant::now();
    while !is_met() {
        if started.elapsed() > LIMIT {
            bail!("the cluster did not come up within {LIMIT:?}");
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Copies a store without what is made again when it opens; returns its bytes.
fn copy(from: &Path, to: &Path) -> Result<u64> {
    fs::create_dir_all(to)?;
    let mut bytes = 0;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            bytes += copy(&path, &to.join(name))?;
        } else if name != "LOCK" && name != "RESERVE" {
            bytes += fs::copy(&path, to.join(name))?;
        }
    }
    Ok(bytes)
}
