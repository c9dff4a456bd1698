//! Places of repositories: a folder, `file://FOLDER` or `s3://BUCKET/PREFIX`.

use super::OpenOptions;
use super::store::Store;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};
use rustls::crypto::CryptoProvider;
use std::fs::{self, File};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use stele_types::{Error, Result};

/// Time for one request: a log object of 16 MiB at 100 KiB a second.
const REQUEST_TIMEOUT: &str = "180 seconds";
/// Limits of the repetitions by the library itself; `store.rs` repeats after that.
const LIBRARY_RETRIES_MAX: usize = 3;
const LIBRARY_RETRY_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether the folder of a repository is made if it does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Folder {
    Create,
    MustExist,
}

/// Makes the cryptography of TLS that of the whole process: the client of object stores takes none other. A program
/// calls it once, before it opens an `s3://` repository.
pub fn install_tls_provider() {
    // Another part of the process may have installed one: it serves too.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Connects the place that `url` names.
pub(super) fn connect(url: &str, folder: Folder, options: &OpenOptions) -> Result<Store> {
    let (inner, prefix, is_remote) = match url.split_once("://") {
        Some(("s3", rest)) => {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            (s3(url, bucket, options)?, parse_prefix(url, prefix)?, true)
        }
        Some(("file", path)) => (local(FilePath::new(path), folder)?, Path::default(), false),
        Some((scheme, _)) => {
            return Err(Error::invalid(format!(
                "{url}: a backup cannot be at `{scheme}://`; name a folder, file://FOLDER or s3://BUCKET/PREFIX"
            )));
        }
        None => (local(FilePath::new(url), folder)?, Path::default(), false),
    };
    let (url, options) = (url.to_owned(), options.clone());
    Ok(Store { inner, prefix, url, is_remote, options, sent_bytes: AtomicU64::new(0) })
}

/// Refuses what stores treat in different ways.
fn parse_prefix(url: &str, prefix: &str) -> Result<Path> {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_part =
        |part: &str| !part.starts_with('.') && !part.is_empty() && part.bytes().all(is_plain);
    if !prefix.is_empty() && !prefix.split('/').all(is_part) {
        return Err(Error::invalid(format!(
            "{url}: each part of the prefix needs at least one of the characters A-Z a-z 0-9 - _ . and none other, and no dot in front"
        )));
    }
    Ok(Path::from(prefix))
}

fn s3(url: &str, bucket: &str, options: &OpenOptions) -> Result<Arc<dyn ObjectStore>> {
    if bucket.is_empty() {
        return Err(Error::invalid(format!("{url}: no bucket is named; write s3://BUCKET/PREFIX")));
    }
    if CryptoProvider::get_default().is_none() {
        let detail = "the process has no cryptography for TLS; call `install_tls_provider` before it opens s3://";
        return Err(Error::invalid(detail));
    }
    let retry = RetryConfig {
        max_retries: LIBRARY_RETRIES_MAX,
        retry_timeout: LIBRARY_RETRY_TIMEOUT,
        ..RetryConfig::default()
    };
    let mut builder = AmazonS3Builder::from_env()
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_bucket_name(bucket)
        .with_retry(retry);
    let timeout = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
    if builder.get_config_value(&timeout).is_none() {
        builder = builder.with_config(timeout, REQUEST_TIMEOUT);
    }
    for (name, value) in &options.settings {
        let key: AmazonS3ConfigKey = name.to_ascii_lowercase().parse().map_err(|error| {
            Error::invalid(format!("{url}: {error}; name a setting of the AWS_* environment"))
        })?;
        builder = builder.with_config(key, value);
    }
    let built = builder.build().map_err(|error| {
        Error::invalid(format!(
            "{url}: {error}; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL"
        ))
    })?;
    Ok(Arc::new(built))
}

fn local(path: &FilePath, folder: Folder) -> Result<Arc<dyn ObjectStore>> {
    if folder == Folder::Create {
        create_folder(path)?;
    }
    if !path.is_dir() {
        return Err(Error::invalid(format!(
            "{} is not a folder; name the place of a backup, which `stele backup` makes",
            path.display()
        )));
    }
    let opened = LocalFileSystem::new_with_prefix(path).map_err(|error| {
        Error::invalid(format!("{}: {error}; name a folder that can be read", path.display()))
    })?;
    // Invariant: an object that was written is on the device. The library syncs nothing otherwise.
    // Test: `an_object_in_a_folder_is_synced_before_it_counts`.
    let opened = opened.with_fsync(true);
    // bug backup.folder_not_synced: let opened = opened.with_fsync(false);
    Ok(Arc::new(opened))
}

/// Creates a folder and those above it, durably.
fn create_folder(path: &FilePath) -> Result<()> {
    let missing: Vec<PathBuf> = path
        .ancestors()
        .take_while(|at| !at.as_os_str().is_empty() && !at.exists())
        .map(FilePath::to_owned)
        .collect();
    fs::create_dir_all(path).map_err(|error| Error::io("create", path, error))?;
    for created in missing {
        let above = created.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(FilePath::new("."));
        let synced = File::open(above).and_then(|dir| dir.sync_all());
        synced.map_err(|error| Error::io("sync", above, error))?;
    }
    Ok(())
}
