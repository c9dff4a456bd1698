//! A store in memory with requests that tests delay, fail and observe; and objects to store.

mod objects;
mod pruning;
mod requests;

use super::store::Store;
use super::{BegunBase, OpenOptions, Repository};
use crate::format::{
    Base, BaseSeq, Chunk, ChunkRef, Cut, Family, LogObject, LogSeq, Moment, Pair, Part, Record,
    RunId, Write,
};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result as StoreResult,
};
use std::fmt;
use std::sync::Arc;
use stele_types::{ClusterId, KeyRange, LogIndex, MomentId, Prng, RegionId, Term};

pub(super) const CLUSTER: ClusterId = ClusterId(7);

/// A request, before or after it takes effect. For a list one for each object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    BeforePut,
    AfterPut,
    BeforeGet,
    BeforeDelete,
    Listed,
}

type Hook = Arc<dyn Fn(At, &Path) -> BoxFuture<'static, StoreResult<()>> + Send + Sync>;

/// A store in memory that asks a hook about each request.
#[derive(Clone)]
pub(super) struct Hooked {
    pub(super) inner: Arc<InMemory>,
    hook: Hook,
}

impl Hooked {
    pub(super) fn new(
        inner: Arc<InMemory>,
        hook: impl Fn(At, &Path) -> BoxFuture<'static, StoreResult<()>> + Send + Sync + 'static,
    ) -> Self {
        Self { inner, hook: Arc::new(hook) }
    }

    /// Passes requests to a hook that decides at once.
    pub(super) fn at_once(
        inner: Arc<InMemory>,
        hook: impl Fn(At, &Path) -> StoreResult<()> + Send + Sync + 'static,
    ) -> Self {
        Self::new(inner, move |at, path| Box::pin(std::future::ready(hook(at, path))))
    }
}

pub(super) fn failure(detail: &str) -> StoreError {
    StoreError::Generic { store: "test", source: detail.into() }
}

/// The error after which a process makes no other request.
pub(super) fn killed() -> StoreError {
    StoreError::PermissionDenied { path: String::new(), source: "killed".into() }
}

impl fmt::Display for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hooked")
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hooked")
    }
}

#[async_trait]
impl ObjectStore for Hooked {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        (self.hook)(At::BeforePut, path).await?;
        let put = self.inner.put_opts(path, payload, options).await?;
        (self.hook)(At::AfterPut, path).await?;
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> StoreResult<GetResult> {
        (self.hook)(At::BeforeGet, path).await?;
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        let hook = self.hook.clone();
        let admitted = paths.and_then(move |path| {
            let admitted = hook(At::BeforeDelete, &path);
            async move { admitted.await.map(|()| path) }
        });
        self.inner.delete_stream(admitted.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        let hook = self.hook.clone();
        let listed = self.inner.list(prefix).and_then(move |meta| {
            let admitted = hook(At::Listed, &meta.location);
            async move { admitted.await.map(|()| meta) }
        });
        listed.boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Opens the repository in a store.
pub(super) async fn opened(inner: Arc<dyn ObjectStore>) -> Repository {
    opened_with(inner, OpenOptions::default()).await
}

pub(super) async fn opened_with(inner: Arc<dyn ObjectStore>, options: OpenOptions) -> Repository {
    let prefix = Path::from("some/place");
    let url = "s3://bucket/some/place".to_owned();
    let sent_bytes = Default::default();
    let store = Store { inner, prefix, url, is_remote: true, options, sent_bytes };
    Repository::create_or_open_store(store, CLUSTER).await.unwrap()
}

pub(super) fn pair(key: &str, value: &str) -> Pair {
    Pair { key: key.to_owned().into(), value: value.to_owned().into(), expires_at_s: 9 }
}

/// Returns one of few chunks: bases share them.
pub(super) fn chunk(number: u64) -> Chunk {
    let key = |at: u64| format!("{number:02}/{at}");
    Chunk { pairs: (0..3).map(|at| pair(&key(at), "value")).collect() }
}

/// Returns a base of these chunks.
pub(super) fn base(run: u64, seq: u64, log: (u64, u64), chunks: Vec<ChunkRef>) -> Base {
    let part = Part {
        family: Family::Default,
        range: KeyRange::all(),
        region: RegionId(3),
        index: LogIndex(8),
        chunks,
    };
    Base {
        run: RunId(run),
        seq: BaseSeq(seq),
        log_from: LogSeq(log.0),
        log_complete: LogSeq(log.1),
        parts: vec![part],
        settings: vec![("pin_bytes_max".to_owned(), "1GiB".to_owned())],
        access: Some("{}".to_owned()),
    }
}

pub(super) async fn put_chunks(
    repository: &Repository,
    begun: &BegunBase,
    numbers: impl IntoIterator<Item = u64>,
) -> stele_types::Result<Vec<ChunkRef>> {
    let mut chunks = Vec::new();
    for number in numbers {
        chunks.push(repository.put_chunk(begun, &chunk(number)).await?.0);
    }
    Ok(chunks)
}

pub(super) fn log(run: u64, seq: u64, moment: Option<u64>) -> LogObject {
    let record = |write| Record {
        region: RegionId(3),
        index: LogIndex(seq + 10),
        family: Family::Write,
        write,
    };
    let records = vec![
        record(Write::Put(pair("k", "v"))),
        record(Write::Delete("k".into())),
        record(Write::DeleteRange(KeyRange::new("a", ""))),
    ];
    LogObject {
        run: RunId(run),
        seq: LogSeq(seq),
        records,
        token_after: "token".into(),
        moment: moment.map(MomentId),
    }
}

pub(super) fn moment(run: u64, number: u64, last_log: u64) -> Moment {
    let cut = Cut {
        range: KeyRange::all(),
        region: RegionId(3),
        term: Term(6),
        index: LogIndex(last_log + 10),
    };
    Moment {
        number: MomentId(number),
        run: RunId(run),
        last_log: LogSeq(last_log),
        vector: vec![cut],
        clocks_unix_ms: vec![(1, 1_000 * number), (2, 1_000 * number + 3)],
        program: "0.2.0".to_owned(),
        level: 2,
    }
}

/// Runs a test with each seed; a failure names its own.
pub(super) fn for_seeds(seeds: std::ops::Range<u64>, test: impl Fn(&mut Prng)) {
    let replayed = std::env::var("STELE_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in replayed.map_or(seeds, |seed| seed..seed + 1) {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            test(&mut Prng::new(seed));
        }));
        if let Err(panic) = failed {
            eprintln!("seed {seed}: replay with STELE_SEED={seed} cargo test -p stele-backup");
            std::panic::resume_unwind(panic);
        }
    }
}
