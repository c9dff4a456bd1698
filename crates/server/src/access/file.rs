//! The file `access.json`: the grants in force. Every open directory of the node has a copy, so that a node
//! that restarts enforces them before the placement group answers.

use crate::members::replace_file;
use bytes::Bytes;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use stele_placement::{Grant, GrantLimits, Grants, Permissions};
use stele_types::{ClusterId, Error, Result};

const FILE: &str = "access.json";

/// Returns the newest grants of the cluster in `dirs`; none if no directory has any. A directory that cannot be
/// read is that of a store that does not serve: it counts only if none can be read.
///
/// Invariant: a node of which all copies are damaged does not start without grants.
/// Tests: `grants_survive_the_round_trip_and_damaged_ones_are_never_taken_for_none`.
pub(super) fn newest(dirs: &[PathBuf], cluster: ClusterId) -> Result<Option<Grants>> {
    let (mut newest, mut damaged, mut is_read) = (None::<Grants>, None, false);
    for dir in dirs {
        match read(dir) {
            Ok(found) => {
                is_read = true;
                let found = found.filter(|(of, _)| *of == cluster).map(|(_, grants)| grants);
                newest = newest.into_iter().chain(found).max_by_key(|grants| grants.version);
            }
            Err(error) => {
                tracing::warn!("a copy of the grants is skipped: {error}");
                if damaged.is_none() || error.is_damage() {
                    damaged = Some(error);
                }
            }
        }
    }
    match (newest, damaged) {
        // bug server.damaged_grants_are_none: `error.is_damage()` is `false`
        (None, Some(error)) if error.is_damage() || !is_read => Err(error),
        (newest, _) => Ok(newest),
    }
}

/// Replaces the copy in `dir` as a whole.
pub(crate) fn write(dir: &Path, cluster: ClusterId, grants: &Grants) -> Result<()> {
    let grant = |grant: &Grant| {
        let GrantLimits { operations_per_second, bytes_per_second, connections } = grant.limits;
        json!({
            "name": grant.name,
            "permissions": grant.permissions.bits(),
            "prefixes": grant.prefixes.iter().map(|prefix| prefix.to_vec()).collect::<Vec<_>>(),
            "token_hash": grant.token.map(|hash| hash.to_vec()),
            "limits": [operations_per_second, bytes_per_second, connections],
        })
    };
    let grants = json!({
        "cluster": cluster.0,
        "version": grants.version,
        "grants": grants.by_name.values().map(grant).collect::<Vec<_>>(),
    });
    replace_file(&dir.join(FILE), grants.to_string().as_bytes())
}

fn read(dir: &Path) -> Result<Option<(ClusterId, Grants)>> {
    let path = dir.join(FILE);
    let text = "not a list of grants: remove it to start with the grants that the other nodes have";
    match std::fs::read(&path) {
        Ok(bytes) => decode(&bytes).map(Some).ok_or_else(|| Error::corrupt(&path, 0, text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", &path, error)),
    }
}

fn decode(bytes: &[u8]) -> Option<(ClusterId, Grants)> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let mut grants = Grants { version: value.get("version")?.as_u64()?, ..Grants::default() };
    for grant in value.get("grants")?.as_array()? {
        let prefixes = grant.get("prefixes")?.as_array()?.iter();
        let token = match grant.get("token_hash")? {
            Value::Null => None,
            hash => Some(bytes_of(hash)?.try_into().ok()?),
        };
        let limit = |at: usize| grant.get("limits")?.get(at)?.as_u64();
        let grant = Grant {
            name: grant.get("name")?.as_str()?.to_owned(),
            permissions: Permissions::of_bits(grant.get("permissions")?.as_u64()?.try_into().ok()?),
            prefixes: prefixes.map(|it| bytes_of(it).map(Bytes::from)).collect::<Option<_>>()?,
            token,
            limits: GrantLimits {
                operations_per_second: limit(0)?,
                bytes_per_second: limit(1)?,
                connections: limit(2)?,
            },
        };
        grants.by_name.insert(grant.name.clone(), grant);
    }
    Some((ClusterId(value.get("cluster")?.as_u64()?), grants))
}

fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    value.as_array()?.iter().map(|byte| byte.as_u64()?.try_into().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_survive_the_round_trip_and_damaged_ones_are_never_taken_for_none() {
        let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
        let paths: Vec<PathBuf> = dirs.iter().map(|dir| dir.path().to_path_buf()).collect();
        let cluster = ClusterId(7);
        assert_eq!(newest(&paths, cluster).unwrap(), None);
        let app = Grant {
            name: "app".to_owned(),
            permissions: Permissions::READ_WRITE,
            prefixes: vec![Bytes::from_static(b"\xff\"")],
            limits: GrantLimits { operations_per_second: u64::MAX, ..GrantLimits::default() },
            ..Grant::default()
        };
        let token = Grant { name: "token:ci".to_owned(), token: Some([9; 32]), ..app.clone() };
        let by_name = [app, token].map(|grant| (grant.name.clone(), grant)).into();
        let grants = Grants { version: 3, by_name };
        write(&paths[0], cluster, &Grants { version: 2, ..Grants::default() }).unwrap();
        write(&paths[1], cluster, &grants).unwrap();
        assert_eq!(newest(&paths, cluster).unwrap(), Some(grants.clone()), "the newest");
        assert_eq!(newest(&paths, ClusterId(8)).unwrap(), None, "of another cluster");
        std::fs::write(paths[0].join(FILE), b"{").unwrap();
        assert_eq!(newest(&paths, cluster).unwrap(), Some(grants));
        std::fs::write(paths[1].join(FILE), b"{\"version\":3}").unwrap();
        assert!(newest(&paths, cluster).unwrap_err().to_string().contains(FILE));
        // The disk of one store is gone, and the other store has never had grants.
        let none = tempfile::tempdir().unwrap();
        std::fs::write(none.path().join("file"), b"").unwrap();
        let gone = none.path().join("file");
        assert_eq!(newest(&[gone.clone(), none.path().to_path_buf()], cluster).unwrap(), None);
        assert!(newest(&[gone], cluster).is_err());
        assert!(newest(&[none.path().to_path_buf(), paths[1].clone()], cluster).is_err());
    }
}
