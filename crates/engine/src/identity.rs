//! The file `STORE`: the directory's store, kind, format and level. Written first and checked first.
//!
//! ```text
//! STORE := "stele store\n" "format " n "\n" "kind " ("embedded" | "node") "\n" "store " id "\n"
//!          levels? "crc32c " hex "\n"
//! levels := "level " n "\n" "version " text "\n"    the version that first supported the level
//! ```
//!
//! A directory of level 1 has format 2 and no levels, as the versions before levels wrote it. From level 2
//! on it has format 3, which those versions refuse to open.
//!
//! Invariant: only consensus changes the pairs of a node's directory: an embedded store and a node refuse
//! each other's.
//! Test: `a_directory_of_a_node_is_no_embedded_store_and_the_other_way_round`.

use crate::checked_text::{self, CheckedText};
use crate::shards::MAP_NAME;
use crate::store::Replay;
use std::path::Path;
use std::sync::Arc;
use stele_types::size::FORMAT_VERSION;
use stele_types::{Error, Level, Result, StoreId};
use stele_vfs::Vfs;

const NAME: &str = "STORE";
const MAGIC: &str = "stele store";
const FILE_BYTES_MAX: u64 = 4096;
/// Format of the file with a level above the oldest one.
const WITH_LEVEL: u32 = 3;

pub(crate) const PARTS: [&str; 3] = [NAME, "log", "index"];

/// Identity of all embedded stores in directories of which the kind is not marked.
const FORMER_EMBEDDED: StoreId = StoreId(1);

/// What a directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryKind {
    /// An embedded store, or a shard of a set: all pairs are those of the user.
    Embedded,
    /// A node of a cluster: pairs belong to regions, and change by consensus only.
    Node,
}

impl DirectoryKind {
    fn of(replay: Replay) -> Self {
        match replay {
            Replay::All => Self::Embedded,
            Replay::Committed => Self::Node,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Node => "node",
        }
    }

    /// Returns the error of opening a directory of this kind as one of the other.
    fn refusal(self, dir: &Path) -> Error {
        let detail = match self {
            Self::Embedded => {
                "it holds an embedded store, which a node cannot serve: give the node another \
                 directory; `stele export` reads the pairs of this one"
            }
            Self::Node => {
                "it belongs to a node of a cluster, and only consensus may change its pairs: start \
                 the node and use `--cluster ADDRESS` or a client; for an embedded store give \
                 another directory"
            }
        };
        Error::WrongStore { path: dir.to_path_buf(), detail: detail.into() }
    }
}

/// Content of the file. Directories of earlier versions state no kind.
struct Identity {
    store: StoreId,
    kind: Option<DirectoryKind>,
    level: Level,
}

/// Reads the kind of a directory; `None` for one without a store. Fails as opening would, having
/// changed nothing.
pub fn directory_kind(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Option<DirectoryKind>> {
    let Some(identity) = read(vfs, dir)? else { return Ok(None) };
    identity.kind.map_or_else(|| unmarked_kind(vfs, dir, identity.store), Ok).map(Some)
}

/// Reads the identity of `dir` and the level that it records, or creates it, at random without `wanted` and
/// with the oldest level. Fails with [`Error::NewerFormat`], [`Error::NewerLevel`], [`Error::WrongStore`] or
/// [`Error::Corrupt`], having changed nothing.
pub(crate) fn open(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    wanted: Option<StoreId>,
    replay: Replay,
) -> Result<(StoreId, Level)> {
    let opened_as = DirectoryKind::of(replay);
    let Some(Identity { store: found, kind, level }) = read(vfs, dir)? else {
        // Part of every checksum: no client can make a value that counts as part of the log.
        let id = match wanted {
            Some(wanted) => wanted,
            // bug engine.known_identity: `StoreId(vfs.random()? | 1)` is `FORMER_EMBEDDED`
            None => StoreId(vfs.random()? | 1),
        };
        create(vfs, dir, id, opened_as)?;
        return Ok((id, Level::OLDEST));
    };
    if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
        return Err(Error::WrongStore {
            path: dir.to_path_buf(),
            detail: format!("it belongs to store {found}, not to store {wanted}"),
        });
    }
    let kind = match (kind, wanted) {
        (Some(kind), _) => kind,
        // A caller that states the identity of an unmarked directory knows its kind too.
        (None, Some(_)) => opened_as,
        (None, None) => unmarked_kind(vfs, dir, found)?,
    };
    // bug engine.kind_unchecked: `kind == opened_as` is `true`
    match kind == opened_as {
        true => Ok((found, level)),
        false => Err(kind.refusal(dir)),
    }
}

/// Returns the kind of a directory that does not state it. Nodes drew their identities at random;
/// the other ones that are not 1 are those of shards.
fn unmarked_kind(vfs: &Arc<dyn Vfs>, dir: &Path, store: StoreId) -> Result<DirectoryKind> {
    let is_embedded = store == FORMER_EMBEDDED || vfs.exists(&dir.join(MAP_NAME))?;
    Ok(if is_embedded { DirectoryKind::Embedded } else { DirectoryKind::Node })
}

fn read(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Option<Identity>> {
    let path = dir.join(NAME);
    if !vfs.exists(&path)? {
        return Ok(None);
    }
    parse(&path, &CheckedText::read(vfs, &path, MAGIC, FILE_BYTES_MAX)?).map(Some)
}

fn create(vfs: &Arc<dyn Vfs>, dir: &Path, id: StoreId, kind: DirectoryKind) -> Result<()> {
    let others =
        vfs.list(dir)?.into_iter().find(|entry| entry.name == "index" || entry.name == "log");
    if let Some(other) = others {
        return Err(Error::Missing {
            path: dir.join(NAME),
            detail: format!("the directory holds `{}` but no identity", other.name),
        });
    }
    // bug engine.identity_unsynced: `true` is `false`
    checked_text::write(vfs, dir, NAME, &body(id, kind, Level::OLDEST), true)
}

/// Records the level of a node's directory, of which the caller holds the lock; durable on return. An
/// interruption leaves the former record.
pub(crate) fn record_level(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    id: StoreId,
    level: Level,
) -> Result<()> {
    // bug engine.level_unsynced: `true` is `false`
    checked_text::write(vfs, dir, NAME, &body(id, DirectoryKind::Node, level), true)
}

fn body(id: StoreId, kind: DirectoryKind, level: Level) -> String {
    let kind = kind.name();
    let of_format = |format| format!("{MAGIC}\nformat {format}\nkind {kind}\nstore {id}\n");
    // bug engine.level_in_the_former_format: `WITH_LEVEL` is `FORMAT_VERSION`
    match level == Level::OLDEST {
        true => of_format(FORMAT_VERSION),
        false => {
            let version = level.version().unwrap_or(env!("CARGO_PKG_VERSION"));
            format!("{}level {level}\nversion {version}\n", of_format(WITH_LEVEL))
        }
    }
}

fn parse(path: &Path, text: &CheckedText) -> Result<Identity> {
    let format: u32 = text.number("format")?;
    if format > WITH_LEVEL {
        let path = path.to_path_buf();
        return Err(Error::NewerFormat { path, found: format, supported: WITH_LEVEL });
    }
    text.check()?;
    let level = match format == WITH_LEVEL {
        true => Level::new(text.number("level")?),
        false => Level::OLDEST,
    };
    // Invariant: a program writes to no directory of which it may not understand everything.
    // Test: `a_directory_of_a_higher_level_is_refused_with_the_version_that_it_needs`.
    // bug engine.any_level_opens: never
    if level > Level::NEWEST {
        let version = text.field("version").unwrap_or("that supports it").to_owned();
        let (path, supported) = (path.to_path_buf(), Level::NEWEST);
        return Err(Error::NewerLevel { path, found: level, supported, version });
    }
    let kinds = [DirectoryKind::Embedded, DirectoryKind::Node];
    let kind = match text.field("kind") {
        None => None,
        Some(name) => {
            let kind = kinds.into_iter().find(|kind| kind.name() == name);
            Some(kind.ok_or_else(|| text.bad(&format!("unknown kind `{name}`")))?)
        }
    };
    Ok(Identity { store: text.number("store").map(StoreId)?, kind, level })
}
