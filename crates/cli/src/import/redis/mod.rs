//! Import of Redis data, from a running server or from an RDB file, through the Redis protocol of a node: the
//! layout of its pairs is the affair of the node alone.
//!
//! 1. The source yields values as parts (`part`): `live` reads a server, `file` an RDB file.
//! 2. Parts wait in the queues of lanes (`lanes`), in bounded memory. Each lane is a connection to the target.
//! 3. A lane writes parts (`write`), or compares them with what the target has (`compare`).
//!
//! Running an import again replaces each value by that of the source. Names that only the target has stay.

mod compare;
mod endpoint;
mod file;
mod lanes;
mod live;
mod part;
mod rdb;
mod report;
#[cfg(test)]
mod tests;
mod write;

use crate::args::{Import, RedisImport};
use crate::terminal::Progress;
use crate::{Outcome, runtime};
use bytes::Bytes;
use compare::Comparison;
use endpoint::{Database, Endpoint};
use file::RdbFile;
use lanes::{Lanes, RedisTarget};
use live::{Live, Way};
use report::{Cause, ImportReport};
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use stele_load::resp::RespReply;
use stele_types::{Error, Result};
use tokio::runtime::Handle;
use tokio::task::{JoinSet, spawn_blocking};
use write::Writes;

/// Parsers of untrusted bytes, for fuzz targets.
pub(super) mod fuzzing {
    struct Ignored;

    impl super::rdb::RdbSink for Ignored {}

    /// Reads an RDB file; returns whether it was read to its end.
    pub fn rdb(bytes: &[u8]) -> bool {
        super::rdb::read(bytes, &mut Ignored).is_ok()
    }
}

/// Whether a source has Redis data.
pub(super) fn is_source(from: &Path) -> bool {
    from.to_str().is_some_and(endpoint::is_url) || file::is_rdb_file(from)
}

/// Imports from `args.from` to the server at `to`, or compares them.
pub(super) fn run(to: &str, args: &Import) -> Result<Outcome> {
    let options = &args.redis;
    let endpoint = Endpoint::parse(to, &options.tls)?.or_password(options.tls.token()?);
    let target = RedisTarget { database: endpoint.database, endpoint };
    runtime::small()?.block_on(async {
        let started = Instant::now();
        let mut source = Source::open(&args.from, options).await?;
        check_databases(&source.databases(), &target)?;
        // Before the source is read: most mistakes are in the address.
        drop(target.endpoint.connect().await?);
        let verb = if options.check { "comparing" } else { "importing" };
        let report = Arc::new(ImportReport::new(Progress::keys(source.names(), verb)));
        copy(&mut source, &target, options, &report).await?;
        if let (true, Source::Live(live)) = (options.check, &mut source) {
            only_in_target(live, &target, &report).await?;
        }
        let verb = if options.check { "compared" } else { "imported" };
        let summary = report.summary(verb, started.elapsed().as_secs_f64());
        let is_whole = report.is_whole();
        drop(report);
        eprintln!("{summary}");
        Ok(if is_whole { Outcome::Done } else { Outcome::Failed })
    })
}

enum Source {
    Live(Box<Live>),
    File { file: Arc<RdbFile>, databases: Vec<Database> },
}

impl Source {
    async fn open(from: &Path, options: &RedisImport) -> Result<Self> {
        let selected = options.db.map(Database);
        let url = from.to_str().filter(|from| endpoint::is_url(from));
        let Some(url) = url else {
            if !file::is_rdb_file(from) {
                return Err(Error::invalid(format!(
                    "{} is neither an RDB file nor the URL of a server, redis://HOST; with --store a directory \
                     or JSON lines are imported",
                    from.display()
                )));
            }
            let file = RdbFile::open(from)?;
            let databases = selected.map_or_else(|| file.databases(), |selected| vec![selected]);
            return Ok(Self::File { file: Arc::new(file), databases });
        };
        let endpoint = Endpoint::parse(url, &options.tls)?.or_password(password(options)?);
        let selected = match (endpoint.database, selected) {
            (Some(of_url), Some(selected)) if of_url != selected => {
                return Err(Error::invalid(format!(
                    "--from names database {of_url}, and --db names {selected}: give one of them"
                )));
            }
            (of_url, selected) => of_url.or(selected),
        };
        Ok(Self::Live(Box::new(Live::open(endpoint, selected).await?)))
    }

    fn databases(&self) -> Vec<Database> {
        match self {
            Self::Live(live) => live.databases().to_vec(),
            Self::File { databases, .. } => databases.clone(),
        }
    }

    /// Returns the number of names, if it is known.
    fn names(&self) -> Option<u64> {
        match self {
            Self::Live(live) => live.names(),
            Self::File { file, databases } => Some(file.names(databases)),
        }
    }

    /// Returns by how much its expiries differ from one reading to the next.
    fn tolerance_ms(&self) -> u64 {
        match self {
            Self::Live(live) => live.tolerance_ms(),
            Self::File { .. } => 0,
        }
    }

    async fn read(&mut self, lanes: Arc<Lanes>, report: &Arc<ImportReport>) -> Result<()> {
        match self {
            Self::Live(live) => live.read(Way { report, lanes: &lanes }).await,
            Self::File { file, databases } => {
                let (file, databases, report) = (file.clone(), databases.clone(), report.clone());
                let runtime = Handle::current();
                let read = spawn_blocking(move || {
                    let mut send = |part| runtime.block_on(lanes.send(part));
                    file.read(&databases, unix_ms(), &report, &mut send)
                });
                read.await.unwrap_or_else(|_| Err(Error::Busy("reading stopped".into())))
            }
        }
    }
}

fn password(options: &RedisImport) -> Result<Option<String>> {
    let Some(path) = &options.password_file else { return Ok(None) };
    let text = std::fs::read_to_string(path).map_err(|error| Error::io("read", path, error))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

/// Fails if the databases of the source have no place in the target.
fn check_databases(databases: &[Database], target: &RedisTarget) -> Result<()> {
    if let Some(to) = target.database
        && databases.len() > 1
    {
        return Err(Error::invalid(format!(
            "--to names database {to}, and the source has several: choose one with --db N"
        )));
    }
    let unknown = databases.iter().find(|it| !target.database(**it).is_known());
    unknown.map_or(Ok(()), |database| {
        Err(Error::Refused(format!(
            "the source has keys in database {database}, and Stele has databases 0 to 15; nothing was written: \
             import others with --db N, or this one with --db {database} and --to redis://HOST:PORT/N"
        )))
    })
}

/// Sends everything through the lanes, and waits for them.
async fn copy(
    source: &mut Source,
    target: &RedisTarget,
    options: &RedisImport,
    report: &Arc<ImportReport>,
) -> Result<()> {
    let (mut tasks, count) = (JoinSet::new(), options.connections);
    let lanes = match options.check {
        true => {
            let comparison = Comparison { tolerance_ms: source.tolerance_ms() };
            Lanes::start(count, target, &comparison, report, &mut tasks)
        }
        false => Lanes::start(count, target, &Writes, report, &mut tasks),
    };
    let read = source.read(Arc::new(lanes), report).await;
    let mut written = Ok(());
    while let Some(ended) = tasks.join_next().await {
        let ended =
            ended.unwrap_or_else(|_| Err(Error::Busy("a connection's task stopped".into())));
        written = written.and(ended);
    }
    // A failed lane also stops the source, so its error is the cause.
    written.and(read)
}

/// Reports names that the target has and the source does not.
async fn only_in_target(
    live: &mut Live,
    target: &RedisTarget,
    report: &ImportReport,
) -> Result<()> {
    let mut connection = target.endpoint.connect().await?;
    for database in live.databases().to_vec() {
        target.endpoint.select(&mut connection, target.database(database)).await?;
        let mut cursor = Bytes::from_static(b"0");
        loop {
            let (next, names) = match live::scan(&mut connection, &cursor).await {
                Ok(page) => page,
                Err(Error::Refused(text)) => {
                    report.warn(&format!("names that only the target has are not sought: {text}"));
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let names = names.into_iter().filter_map(|name| match name {
                RespReply::Bulk(name) => name,
                _ => None,
            });
            let names: Vec<Bytes> = names.collect();
            for (name, exists) in names.iter().zip(live.exist(database, &names).await?) {
                // bug cli.compare_one_side: never
                if !exists {
                    let detail = "the source does not have it";
                    report.problem(Cause::OnlyInTarget, database, name, detail);
                }
            }
            if next == "0" {
                break;
            }
            cursor = next;
        }
    }
    Ok(())
}

/// Returns the Unix time in milliseconds.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
