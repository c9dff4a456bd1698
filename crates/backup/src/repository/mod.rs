//! Repositories: objects of backups of one cluster, in a folder or an object store.
//!
//! What may run at once: one backup, any number of readers, and one prune. Objects are created and deleted, never
//! replaced. Each rule of order stands beside the code that keeps it.

mod catalogue;
mod place;
mod prune;
mod store;
#[cfg(test)]
mod tests;
mod verify;

pub use catalogue::{BaseName, BaseSummary, Restorable};
pub use place::install_tls_provider;
pub use prune::Pruned;
pub use verify::Report;

use crate::format::{
    Base, BaseSeq, Chunk, ChunkName, ChunkRef, LogObject, LogSeq, Moment, Name, RepositoryObject,
    RunId,
};
use place::Folder;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stele_types::{ClusterId, Error, MomentId, Result};
use store::{Created, Store};

/// How a repository is opened.
#[derive(Clone)]
pub struct OpenOptions {
    /// Time in which a request is repeated that fails and may succeed later.
    pub retry_for: Duration,
    /// Receives a line about each request that is repeated after a second or more.
    pub notice: Option<Notice>,
    /// Settings of the store in place of those of the environment: names as `AWS_ENDPOINT_URL`, and values.
    pub settings: Vec<(String, String)>,
}

/// Receiver of lines about the progress of requests.
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

impl Default for OpenOptions {
    fn default() -> Self {
        Self { retry_for: Duration::from_secs(600), notice: None, settings: Vec::new() }
    }
}

impl OpenOptions {
    fn report(&self, line: &str) {
        if let Some(notice) = &self.notice {
            notice(line);
        }
    }
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Settings may contain keys.
        f.debug_struct("OpenOptions").field("retry_for", &self.retry_for).finish_non_exhaustive()
    }
}

/// A base that is being made: while it is, no prune deletes chunks.
#[derive(Debug)]
pub struct BegunBase {
    run: RunId,
    seq: BaseSeq,
}

impl BegunBase {
    /// Returns the run of the base.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Returns its place among the bases of the run.
    pub fn seq(&self) -> BaseSeq {
        self.seq
    }
}

/// Backups of one cluster. Calls may overlap.
pub struct Repository {
    store: Store,
    cluster: ClusterId,
    /// The last log object that was written here.
    last_put: Mutex<Option<(RunId, LogSeq)>>,
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").field("url", &self.store.url).finish_non_exhaustive()
    }
}

impl Repository {
    /// Opens the repository at a folder, `file://FOLDER` or `s3://BUCKET/PREFIX`. Keys and address of an object store
    /// come from the AWS_* environment.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none, [`Error::NewerFormat`] if this program cannot read it.
    pub async fn open(url: &str, options: &OpenOptions) -> Result<Self> {
        Self::open_store(place::connect(url, Folder::MustExist, options)?).await
    }

    async fn open_store(store: Store) -> Result<Self> {
        let mut opened = Self { store, cluster: ClusterId(0), last_put: Mutex::default() };
        if !opened.store.has(Name::Repository).await? {
            return Err(Error::invalid(format!(
                "{} holds no backup; name the place of one, which `stele backup` makes",
                opened.store.url
            )));
        }
        let object = opened.read(Name::Repository, RepositoryObject::decode).await?;
        opened.cluster = object.cluster;
        Ok(opened)
    }

    /// Opens the repository of a cluster, and makes it if there is none.
    ///
    /// # Errors
    /// [`Error::WrongStore`] if it has backups of another cluster.
    pub async fn create_or_open(
        url: &str,
        options: &OpenOptions,
        cluster: ClusterId,
    ) -> Result<Self> {
        Self::create_or_open_store(place::connect(url, Folder::Create, options)?, cluster).await
    }

    async fn create_or_open_store(store: Store, cluster: ClusterId) -> Result<Self> {
        let object = RepositoryObject { cluster }.encode()?;
        store.create(Name::Repository, object).await?;
        let opened = Self::open_store(store).await?;
        if opened.cluster != cluster {
            let detail = format!(
                "it has backups of cluster {}, not of cluster {cluster}; name another place",
                opened.cluster
            );
            return Err(Error::WrongStore { path: opened.store.url.into(), detail });
        }
        Ok(opened)
    }

    /// Returns the cluster of the backups.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Returns the place as it was named.
    pub fn url(&self) -> &str {
        &self.store.url
    }

    /// Returns the bytes of all objects that were sent, repetitions included.
    pub fn sent_bytes(&self) -> u64 {
        self.store.sent_bytes.load(Ordering::Relaxed)
    }

    /// Reads and decodes an object. What seems damaged is read once more: the network may have changed it.
    async fn read<T>(&self, name: Name, decode: impl Fn(&[u8]) -> Result<T>) -> Result<T> {
        let read = async || {
            let found = self.store.get(name).await?;
            let found = found.ok_or_else(|| Error::damaged_backup(name.path(), "it is missing"))?;
            decode(&found)
        };
        match read().await {
            // bug backup.damage_read_once: never
            Err(Error::DamagedBackup { .. }) if self.store.is_remote => read().await,
            done => done,
        }
    }

    /// Creates an object that only one backup writes.
    async fn create_own(&self, name: Name, object: Vec<u8>) -> Result<()> {
        match self.store.create(name, object).await? {
            Created::Written => Ok(()),
            Created::Other => Err(Error::Refused(format!(
                "{} in {} was written by another backup; let one backup write there",
                name.path(),
                self.store.url
            ))),
        }
    }

    /// Begins a base: from now on no prune deletes chunks. Marks of bases that ended without being complete are
    /// removed.
    ///
    /// # Errors
    /// [`Error::Busy`] while a prune deletes chunks.
    pub async fn begin_base(&self, run: RunId, seq: BaseSeq) -> Result<BegunBase> {
        let marks = self.store.list("runs").await?.found;
        let marks: Vec<Name> = marks.into_iter().map(|found| found.name).collect();
        let is_other =
            |name: &&Name| matches!(name, Name::Making(..)) && **name != Name::Making(run, seq);
        let marks: Vec<Name> = marks.iter().filter(is_other).copied().collect();
        self.store.delete(&marks).await?;
        // Invariant: a base writes its mark before it reads that of a prune, and a prune its own before it reads
        // those of bases. So at least one of both finds the other, and ends.
        // Tests: `a_base_and_a_prune_never_both_begin`.
        let mark = RepositoryObject { cluster: self.cluster }.encode()?;
        self.create_own(Name::Making(run, seq), mark).await?;
        // bug backup.base_begins_beside_a_prune: return Ok(BegunBase { run, seq });
        if self.store.has(Name::Prune).await? {
            self.store.delete(&[Name::Making(run, seq)]).await?;
            return Err(Error::Busy(
                "a prune deletes chunks of the backup; if none runs, one was killed: run `stele backup prune --take-over`"
                    .into(),
            ));
        }
        Ok(BegunBase { run, seq })
    }

    /// Writes a chunk unless the repository has it. Returns its reference, and whether it was sent.
    pub async fn put_chunk(&self, _base: &BegunBase, chunk: &Chunk) -> Result<(ChunkRef, bool)> {
        let encoded = chunk.encoded();
        let name = encoded.name;
        let first_key = chunk.pairs.first().map(|pair| pair.key.clone()).unwrap_or_default();
        let (pairs, bytes) = (chunk.pairs.len() as u64, encoded.bytes);
        let reference = ChunkRef { name, first_key, pairs, bytes };
        if self.store.has(Name::Chunk(name)).await? {
            return Ok((reference, false));
        }
        // Other bytes under this name have the same content: another version compressed them.
        let created = self.store.create(Name::Chunk(name), encoded.object()?).await?;
        Ok((reference, created == Created::Written))
    }

    /// Reads a chunk, and checks it.
    ///
    /// # Errors
    /// [`Error::DamagedBackup`] if it is missing or damaged.
    pub async fn chunk(&self, name: &ChunkName) -> Result<Chunk> {
        self.read(Name::Chunk(*name), |object| Chunk::decode(name, object)).await
    }

    /// Writes a base. Its chunks must have been written.
    ///
    /// # Errors
    /// [`Error::Refused`] if another backup began a base meanwhile.
    pub async fn put_base(&self, begun: BegunBase, base: &Base) -> Result<()> {
        let BegunBase { run, seq } = begun;
        if (base.run, base.seq) != (run, seq) {
            return Err(Error::invalid("a base has another place than that at which it was begun"));
        }
        // A log object that was open when the base was begun is one that a restore reads.
        if base.log_from > base.log_complete {
            return Err(Error::invalid("the log of a base begins after the base was complete"));
        }
        if !self.store.has(Name::Making(run, seq)).await? {
            return Err(Error::Refused(
                "another backup began a base meanwhile; let one backup write at a place".into(),
            ));
        }
        // Invariant: the mark goes after the base is there. Otherwise a prune between both would find neither, and
        // delete the base's chunks.
        // Test: `a_base_keeps_its_mark_until_it_is_there`.
        // bug backup.mark_removed_first: self.store.delete(&[Name::Making(run, seq)]).await?;
        self.create_own(Name::Base(run, seq), base.encode()?).await?;
        self.store.delete(&[Name::Making(run, seq)]).await
    }

    /// Reads a base.
    ///
    /// # Errors
    /// [`Error::DamagedBackup`] if it is missing or damaged.
    pub async fn base(&self, name: BaseName) -> Result<Base> {
        let BaseName { run, seq } = name;
        self.read(Name::Base(run, seq), |object| Base::decode(run, seq, object)).await
    }

    /// Writes the next log object of a run.
    ///
    /// # Errors
    /// [`Error::Refused`] if another backup wrote that place, or if the log object before it is missing.
    pub async fn put_log(&self, log: &LogObject) -> Result<()> {
        // Invariant: a log object is written after the one before it, so that a run has no gap whatever is killed.
        // Test: `a_log_object_needs_the_one_before_it`.
        if let Some(before) = log.seq.0.checked_sub(1).map(LogSeq) {
            let is_there = *self.last_put() == Some((log.run, before));
            let is_there = is_there || self.store.has(Name::Log(log.run, before)).await?;
            // bug backup.log_with_a_gap: let is_there = true;
            if !is_there {
                let missing = Name::Log(log.run, before).path();
                return Err(Error::Refused(format!("{missing} is missing; begin a new run")));
            }
        }
        self.create_own(Name::Log(log.run, log.seq), log.encode()?).await?;
        *self.last_put() = Some((log.run, log.seq));
        Ok(())
    }

    fn last_put(&self) -> std::sync::MutexGuard<'_, Option<(RunId, LogSeq)>> {
        self.last_put.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a log object.
    ///
    /// # Errors
    /// [`Error::DamagedBackup`] if it is missing or damaged.
    pub async fn log(&self, run: RunId, seq: LogSeq) -> Result<LogObject> {
        self.read(Name::Log(run, seq), |object| LogObject::decode(run, seq, object)).await
    }

    /// Writes a moment. Its last log object must have been written.
    ///
    /// # Errors
    /// [`Error::Refused`] if that log object is missing.
    pub async fn put_moment(&self, moment: &Moment) -> Result<()> {
        // Invariant: a moment is written after the log object that ends at it.
        // Test: `a_moment_needs_the_log_object_that_ends_at_it`.
        let is_last_put = *self.last_put() == Some((moment.run, moment.last_log));
        // bug backup.moment_before_its_log: let is_last_put = true;
        if !is_last_put && !self.store.has(Name::Log(moment.run, moment.last_log)).await? {
            let missing = Name::Log(moment.run, moment.last_log).path();
            return Err(Error::Refused(format!(
                "{missing} is missing; write the log object that ends at a moment before the moment"
            )));
        }
        self.create_own(Name::Moment(moment.run, moment.number), moment.encode()?).await
    }

    /// Reads a moment.
    ///
    /// # Errors
    /// [`Error::DamagedBackup`] if it is missing or damaged.
    pub async fn moment(&self, run: RunId, number: MomentId) -> Result<Moment> {
        self.read(Name::Moment(run, number), |object| Moment::decode(run, number, object)).await
    }
}
