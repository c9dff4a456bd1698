//! Import of files below a directory: the key is the relative path, with `/` between its parts, in
//! the bytes of the file system.

use super::{Item, Sink};
use crate::attributes::{self, Attribute, Attributes, FILE_MODE, FOLDER_MODE, MODE_BITS};
use crate::store::unix_seconds;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use stele_types::command::check_user_key;
use stele_types::size::{VALUE_BYTES_MAX, check_value_bytes};
use stele_types::{Error, Result, is_expired};

enum Found {
    File { path: PathBuf, bytes: u64, mode: u32 },
    Folder { path: PathBuf, mode: u32, is_empty: bool },
    Special(PathBuf, &'static str),
    Unreadable(Error),
}

/// Yields every file, directory by directory, in the order of names. Returns `kept` with the modes and
/// empty folders of this directory.
pub(super) fn read(from: &Path, mut kept: Attributes, sink: &mut Sink) -> Result<Attributes> {
    let expiries = expiries(from)?;
    let now_s = unix_seconds();
    let own = from.join(attributes::NAME);
    walk(from, &mut |found| match found {
        Found::File { path, .. } if path == own => Ok(()),
        Found::File { path, bytes, mode } => {
            let key = key(from, &path);
            let expires_at_s = expiries.get(&key).expires_at_s.unwrap_or(0);
            kept.set(key.clone(), attribute(mode, FILE_MODE, false));
            if is_expired(expires_at_s, now_s) {
                return sink.push(Item::Expired { source_bytes: bytes });
            }
            sink.push(item(key, &path, bytes, expires_at_s))
        }
        Found::Folder { path, mode, is_empty } => {
            let mut key = key(from, &path);
            key.push(b'/');
            kept.set(key, attribute(mode, FOLDER_MODE, is_empty));
            Ok(())
        }
        Found::Special(path, kind) => sink.push(Item::Skipped { path, kind }),
        Found::Unreadable(error) => {
            sink.push(Item::Refused { what: String::new(), error, source_bytes: 0 })
        }
    })?;
    Ok(kept)
}

fn expiries(from: &Path) -> Result<Attributes> {
    let path = from.join(attributes::NAME);
    match fs::read(&path) {
        Ok(text) => Attributes::parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Attributes::default()),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

/// Returns the attribute of a mode; none for the usual one, unless the path would be lost without.
fn attribute(mode: u32, usual: u32, is_needed: bool) -> Attribute {
    let mode = mode & MODE_BITS;
    Attribute { mode: (mode != usual || is_needed).then_some(mode), expires_at_s: None }
}

pub(super) fn total_bytes(from: &Path) -> u64 {
    let mut total = 0;
    let walked = walk(from, &mut |found| {
        if let Found::File { bytes, .. } = found {
            total += bytes;
        }
        Ok(())
    });
    debug_assert!(walked.is_ok());
    total
}

/// Calls `f` for each entry. Memory: the names of one directory per level of the tree.
fn walk(folder: &Path, f: &mut dyn FnMut(Found) -> Result<()>) -> Result<()> {
    let mut entries = match fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
        Ok(entries) => entries,
        Err(error) => return f(Found::Unreadable(Error::io("list", folder, error))),
    };
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // The metadata of the entry itself: symbolic links are not followed.
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => {
                let is_empty = fs::read_dir(&path).is_ok_and(|mut below| below.next().is_none());
                walk(&path, f)?;
                f(Found::Folder { path, mode: meta.mode(), is_empty })?;
            }
            Ok(meta) if meta.is_file() => {
                f(Found::File { path, bytes: meta.len(), mode: meta.mode() })?;
            }
            Ok(meta) => f(Found::Special(path, kind(meta.file_type())))?,
            Err(error) => f(Found::Unreadable(Error::io("read", &path, error)))?,
        }
    }
    Ok(())
}

fn kind(of: fs::FileType) -> &'static str {
    match of {
        of if of.is_symlink() => "a symbolic link",
        of if of.is_fifo() => "a named pipe",
        of if of.is_socket() => "a socket",
        of if of.is_block_device() || of.is_char_device() => "a device",
        _ => "a special file",
    }
}

fn item(key: Vec<u8>, path: &Path, source_bytes: u64, expires_at_s: u64) -> Item {
    match check_user_key(&key).and_then(|()| load(path, source_bytes)) {
        Ok(value) => Item::Pair { key, value, expires_at_s, source_bytes },
        Err(error) => Item::Refused { what: path.display().to_string(), error, source_bytes },
    }
}

fn key(from: &Path, path: &Path) -> Vec<u8> {
    let relative = path.strip_prefix(from).unwrap_or(path);
    let parts: Vec<&[u8]> = relative.iter().map(OsStrExt::as_bytes).collect();
    parts.join(&b'/')
}

/// Reads the content; never more than a value's limit, also if the file grows meanwhile.
fn load(path: &Path, bytes: u64) -> Result<Vec<u8>> {
    check_value_bytes(bytes)?;
    let failed = |error| Error::io("read", path, error);
    let file = File::open(path).map_err(failed)?;
    let mut value = Vec::with_capacity(bytes as usize + 1);
    file.take(VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut value).map_err(failed)?;
    check_value_bytes(value.len() as u64)?;
    Ok(value)
}
