//! Repositories of backups on two servers of S3, downloaded once: versitygw, which keeps objects as files of a POSIX
//! file system, and S3Proxy, which translates to a library of its own.

use crate::process::{Ended, run_limited, run_shown};
use crate::programs::{self, STELE};
use crate::workspace::{Workspace, cargo};
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const VERSITYGW: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";
const S3PROXY: &str = "org.gaul:s3proxy:4.1.0:jar:jar-with-dependencies";
const S3PROXY_JAR: &str = "s3proxy-4.1.0-jar-with-dependencies.jar";
const S3PROXY_SHA256: &str = "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d";
/// Plug-in of Maven that downloads, pinned to one version.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy";
const FETCH_LIMIT: Duration = Duration::from_secs(1200);
const STARTED_WITHIN: Duration = Duration::from_secs(60);
const EXERCISE_LIMIT: Duration = Duration::from_secs(300);
const KEY: &str = "access-key-of-the-test";
const SECRET: &str = "secret-key-of-the-test";
const REGION: &str = "us-east-1";
const BUCKET: &str = "backups";

/// A cluster is backed up twice and pruned, and both of its moments are restored.
const BACKUP: &str = r#"
stele server --listen $NODE --store source > node.log 2>&1 & node=$!
trap 'kill $node' EXIT
until stele put --cluster $NODE user/7 first; do sleep 1; done
stele backup --cluster $NODE --to $URL
stele put --cluster $NODE user/7 second
stele backup --cluster $NODE --to $URL
stele backup verify --to $URL --deep
moment() { stele backup list --to $URL --json | grep '"yes"' | sed 's/.*"moment":\([0-9]*\).*/\1/' | $1 -n 1; }
first=$(moment head) last=$(moment tail)
stele restore --from $URL --moment $first --store of-first
test "$(stele get --store of-first user/7)" = first
stele backup prune --to $URL --keep-from $last
stele backup verify --to $URL --deep
stele restore --from $URL --store of-last
test "$(stele get --store of-last user/7)" = second
"#;

/// Builds the exercise of repositories and the server, and runs both with each server of S3.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let work = workspace.target.join("s3");
    std::fs::create_dir_all(&work)?;
    let (versitygw, s3proxy) = (versitygw(&work)?, s3proxy(&work)?);
    let exercise = exercise(workspace)?;
    let stele = programs::build(workspace, STELE, false)?;
    for name in ["versitygw", "s3proxy"] {
        let place = tempfile::tempdir_in(&work)?;
        std::fs::create_dir_all(place.path().join("objects").join(BUCKET))?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let command = match name {
            "versitygw" => versitygw_command(&versitygw, place.path(), &address),
            _ => s3proxy_command(&s3proxy, place.path(), &address)?,
        };
        let server = Server::start(name, command, &work, &address)?;
        let mut command = Command::new(&exercise);
        command.arg(format!("s3://{BUCKET}/of/a/cluster"));
        let with_log = || format!("{name}: {}", server.log());
        run_at(&mut command, &address).with_context(with_log)?;
        run_at(&mut backup(&stele, place.path())?, &address).with_context(with_log)?;
        println!("s3: {name} ok");
    }
    Ok(())
}

fn versitygw(work: &Path) -> Result<PathBuf> {
    let binary = work.join("versitygw");
    if !binary.is_file() {
        println!("building {VERSITYGW}");
        let mut go = Command::new("go");
        run_shown(go.args(["install", VERSITYGW]).env("GOBIN", work))?;
    }
    Ok(binary)
}

fn s3proxy(work: &Path) -> Result<PathBuf> {
    let jar = work.join(S3PROXY_JAR);
    if !jar.is_file() {
        println!("fetching {S3PROXY}");
        let mut maven = Command::new("mvn");
        maven
            .args(["-q", "-B", COPY])
            .arg(format!("-Dartifact={S3PROXY}"))
            .arg(format!("-DoutputDirectory={}", work.display()))
            .current_dir(work);
        let (ended, printed) = run_limited(&mut maven, FETCH_LIMIT)?;
        ensure!(ended == Ended::Exited(true), "{S3PROXY}: {ended:?}\n{printed}");
    }
    let checksum = Command::new("sha256sum").arg(&jar).output().context("starting sha256sum")?;
    let is_intact = String::from_utf8_lossy(&checksum.stdout).starts_with(S3PROXY_SHA256);
    ensure!(is_intact, "{} does not have the SHA-256 {S3PROXY_SHA256}", jar.display());
    Ok(jar)
}

fn exercise(workspace: &Workspace) -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--quiet", "-p", "stele-backup", "--example", "exercise"]);
    run_shown(build.current_dir(&workspace.root))?;
    Ok(workspace.target.join("debug/examples/exercise"))
}

fn versitygw_command(binary: &Path, place: &Path, address: &str) -> Command {
    let mut command = Command::new(binary);
    command.args(["--port", address, "--access", KEY, "--secret", SECRET, "--region", REGION]);
    command.arg("posix").arg(place.join("objects"));
    command
}

fn s3proxy_command(jar: &Path, place: &Path, address: &str) -> Result<Command> {
    let properties = place.join("s3proxy.properties");
    let objects = place.join("objects");
    let lines = [
        format!("s3proxy.endpoint=http://{address}"),
        "s3proxy.authorization=aws-v2-or-v4".to_owned(),
        format!("s3proxy.identity={KEY}"),
        format!("s3proxy.credential={SECRET}"),
        "jclouds.provider=filesystem-nio2".to_owned(),
        "jclouds.identity=unused".to_owned(),
        "jclouds.credential=unused".to_owned(),
        format!("jclouds.filesystem.basedir={}", objects.display()),
    ];
    std::fs::write(&properties, lines.join("\n"))?;
    let mut command = Command::new("java");
    command.args(["-Xmx512m", "-jar"]).arg(jar).arg("--properties").arg(properties);
    Ok(command)
}

fn backup(stele: &Path, place: &Path) -> Result<Command> {
    let folder = stele.parent().context("the binary has no parent folder")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell
        .args(["-e", "-u", "-c", BACKUP])
        .current_dir(place)
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("URL", format!("s3://{BUCKET}/of/another"))
        .env("NODE", TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string());
    Ok(shell)
}

fn run_at(command: &mut Command, address: &str) -> Result<()> {
    command
        .env("AWS_ENDPOINT_URL", format!("http://{address}"))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", REGION)
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET);
    let (ended, printed) = run_limited(command, EXERCISE_LIMIT)?;
    ensure!(ended == Ended::Exited(true), "{ended:?}\n{printed}");
    Ok(())
}

/// A server, killed on drop.
struct Server {
    process: Child,
    log: PathBuf,
}

impl Server {
    fn start(name: &str, mut command: Command, work: &Path, address: &str) -> Result<Self> {
        let log = work.join(format!("{name}.log"));
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let process = command.spawn().with_context(|| format!("starting {command:?}"))?;
        let mut server = Self { process, log };
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            ensure!(server.process.try_wait()?.is_none(), "{name} has ended: {}", server.log());
            if started.elapsed() > STARTED_WITHIN {
                bail!("{name} does not listen on {address}: {}", server.log());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// Returns the end of what the server printed.
    fn log(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
