//! Requests to the store of a repository, each with its repetitions.
//!
//! The library repeats a request for seconds. A store that slows down for minutes, or restarts, must not end a backup:
//! a request is repeated until [`OpenOptions::retry_for`] has passed. A folder's errors are those of its device and
//! are not repeated.

use super::OpenOptions;
use crate::format::{Name, OBJECT_BYTES_MAX};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stele_types::{Error, Result};
use tokio::time::{Instant, sleep};

/// First pause before a repetition; each later one is twice as long.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// Least pause that is reported.
const PAUSE_REPORTED: Duration = Duration::from_secs(1);
/// Repetitions of a request that the store answers with a contradiction.
const CONTRADICTIONS_MAX: u32 = 8;

/// An object of a listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) name: Name,
    /// Bytes of the object as stored.
    pub(super) bytes: u64,
}

/// Objects with names that begin in the same way.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) found: Vec<Found>,
    /// Number of objects that are none of a backup.
    pub(super) unknown: u64,
}

/// Outcome of a request that creates an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Created {
    /// The object was written, now or by a repetition of the request.
    Written,
    /// The store has other bytes under this name.
    Other,
}

/// The place of a repository in a store.
pub(super) struct Store {
    pub(super) inner: Arc<dyn ObjectStore>,
    /// Place of the repository; empty for the whole store.
    pub(super) prefix: Path,
    /// The place as users name it.
    pub(super) url: String,
    pub(super) is_remote: bool,
    pub(super) options: OpenOptions,
    /// Bytes of bodies that were sent.
    pub(super) sent_bytes: AtomicU64,
}

impl Store {
    fn path(&self, path: &str) -> Path {
        // No part of a name is one that the library encodes.
        path.split('/').fold(self.prefix.clone(), |at, part| at.join(part))
    }

    /// Whether another request may succeed.
    fn may_repeat(&self, error: &StoreError) -> bool {
        self.is_remote && matches!(error, StoreError::Generic { .. } | StoreError::JoinError { .. })
    }

    /// Makes requests until one succeeds, fails permanently, or the time for repetitions has passed.
    async fn repeat<T, F>(
        &self,
        op: &'static str,
        path: &Path,
        request: impl Fn() -> F,
    ) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>>,
    {
        let deadline = Instant::now() + self.options.retry_for;
        let mut pause = PAUSE;
        loop {
            let error = match request().await {
                Err(error) if self.may_repeat(&error) && Instant::now() + pause < deadline => error,
                done => return done,
            };
            if pause >= PAUSE_REPORTED {
                let wait_s = pause.as_secs_f64();
                self.options
                    .report(&format!("{op} of {path} failed, next try in {wait_s:.0} s: {error}"));
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Reads an object; `None` if there is none of this name.
    pub(super) async fn get(&self, name: Name) -> Result<Option<Bytes>> {
        let path = self.path(&name.path());
        let read = self.repeat("read", &path, || async {
            let found = self.inner.get(&path).await?;
            if found.meta.size > OBJECT_BYTES_MAX as u64 {
                return Ok(None);
            }
            found.bytes().await.map(Some)
        });
        match read.await {
            Ok(Some(bytes)) => Ok(Some(bytes)),
            Ok(None) => {
                Err(Error::damaged_backup(name.path(), "it is larger than an object can be"))
            }
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("read", &path, error)),
        }
    }

    /// Whether there is an object of this name.
    pub(super) async fn has(&self, name: Name) -> Result<bool> {
        let path = self.path(&name.path());
        match self.repeat("read", &path, || self.inner.head(&path)).await {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.failed("read", &path, error)),
        }
    }

    /// Writes an object unless there is one of this name.
    ///
    /// Invariant: a name keeps its first content. If the answer to a request was lost, its repetition finds the object
    /// that the request made: an existing object is compared before it counts as another one.
    /// Tests: `a_create_of_which_the_answer_was_lost_succeeds`, `an_object_is_never_replaced`.
    pub(super) async fn create(&self, name: Name, object: Vec<u8>) -> Result<Created> {
        let path = self.path(&name.path());
        let payload = PutPayload::from(object);
        let bytes = payload.content_length() as u64;
        let mut pause = PAUSE;
        for _ in 0..CONTRADICTIONS_MAX {
            let put = || async {
                self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
                self.inner.put_opts(&path, payload.clone(), PutMode::Create.into()).await
            };
            match self.repeat("write", &path, put).await {
                Ok(_) => return Ok(Created::Written),
                Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {}
                Err(error) => return Err(self.failed("write", &path, error)),
            }
            // bug backup.create_not_compared: return Ok(Created::Other);
            // A store may answer two writers at once that each is too late: then there is no object.
            match self.holds(name, &payload).await? {
                Some(true) => return Ok(Created::Written),
                // The network may have changed what was read.
                Some(false) if self.holds(name, &payload).await? != Some(true) => {
                    return Ok(Created::Other);
                }
                Some(false) => return Ok(Created::Written),
                None => sleep(pause).await,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        let source = io::Error::other("the store reports an object that it does not have");
        Err(Error::io("write", path.to_string(), source))
    }

    /// Whether an object has these bytes; `None` if there is none of this name.
    async fn holds(&self, name: Name, payload: &PutPayload) -> Result<Option<bool>> {
        let found = self.get(name).await?;
        Ok(found.map(|found| payload.iter().flatten().eq(found.iter())))
    }

    /// Lists the objects with names that begin with all parts of a path, in no order. An error is never the end of a
    /// list: the list begins again, or fails.
    pub(super) async fn list(&self, below: &str) -> Result<Listing> {
        let path = self.path(below);
        let listed = self.repeat("list", &path, || async {
            let mut listing = Listing::default();
            let mut objects = self.inner.list(Some(&path));
            while let Some(meta) = objects.try_next().await? {
                match self.name_of(&meta.location) {
                    Some(name) => listing.found.push(Found { name, bytes: meta.size }),
                    None => listing.unknown += 1,
                }
            }
            Ok(listing)
        });
        listed.await.map_err(|error| self.failed("list", &path, error))
    }

    fn name_of(&self, location: &Path) -> Option<Name> {
        let parts = location.prefix_match(&self.prefix)?;
        let parts: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
        Name::parse(&parts.join("/"))
    }

    /// Deletes objects. Those that do not exist count as deleted.
    pub(super) async fn delete(&self, names: &[Name]) -> Result<()> {
        // Some stores take many names in a request, others one.
        let deletions = names.iter().copied().map(|name| self.delete_one(name));
        stream::iter(deletions).buffered(DELETIONS_AT_ONCE).try_collect().await
    }

    async fn delete_one(&self, name: Name) -> Result<()> {
        let path = self.path(&name.path());
        match self.repeat("delete", &path, || self.inner.delete(&path)).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("delete", &path, error)),
        }
    }

    fn failed(&self, op: &'static str, path: &Path, error: StoreError) -> Error {
        let place = format!("{path} in the backup {}", self.url);
        let remedy = match &error {
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                "check the keys, and what they may do"
            }
            _ if self.is_remote => "check the store and its address, then run the command again",
            _ => "check the folder and its device, then run the command again",
        };
        let kind = io_error(&error).map_or(io::ErrorKind::Other, io::Error::kind);
        Error::io(op, place, io::Error::new(kind, format!("{error}; {remedy}")))
    }
}

const DELETIONS_AT_ONCE: usize = 8;

type StoreResult<T> = std::result::Result<T, StoreError>;

/// Returns the error of the operating system below an error of the library.
fn io_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
