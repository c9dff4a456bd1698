//! The file `members.json`: the members of the cluster, and the stores of this node. Every open
//! directory of the node has a copy. It is a cache: a damaged copy is skipped if another is readable.

use super::{Known, Member};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use stele_node::succession::KnownRun;
use stele_types::{Boot, ClusterId, Error, Lineage, Result, StartId, StoreId, StoreRun};

const FILE: &str = "members.json";

/// Returns the store that was last in this directory.
pub fn store_in(known: &Known, dir: &Path) -> Option<StoreId> {
    known.store_at(&absolute(dir))
}

/// Returns a directory as it is kept: the working directory of a later process may be another one.
pub(super) fn absolute(dir: &Path) -> PathBuf {
    std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf())
}

/// Reads the copy in `dir`; `None` without one. Fails with `Corrupt` or `Io`.
pub fn read(dir: &Path) -> Result<Option<Known>> {
    let path = dir.join(FILE);
    match std::fs::read(&path) {
        Ok(bytes) => decode(&bytes)
            .map(Some)
            .ok_or_else(|| Error::corrupt(&path, 0, "not a list of members: remove it")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", &path, error)),
    }
}

/// Replaces the copy in `dir` as a whole.
pub fn write(dir: &Path, known: &Known) -> Result<()> {
    replace_file(&dir.join(FILE), encode(known).as_bytes())
}

/// Replaces a file as a whole.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let next = path.with_extension("json.new");
    let failed = |error| Error::io("write", path, error);
    let mut file = std::fs::File::create(&next).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&next, path).map_err(failed)
}

fn encode(known: &Known) -> String {
    let store = |(id, member): (&StoreId, &Member)| {
        json!({
            "store": id.0,
            "address": member.known.address,
            "removed": member.is_removed,
            "state": member.state,
            "client_address": member.client_address,
            "node": member.owner,
            "stated": member.is_stated,
            "boot": [member.known.run.boot.count, member.known.run.boot.nonce],
            "starts": member.known.run.lineage.ids().iter().map(StartId::to_string).collect::<Vec<_>>(),
        })
    };
    let own = |(id, dir): (&StoreId, &Option<PathBuf>)| {
        (id.to_string(), json!(dir.as_ref().and_then(|dir| dir.to_str())))
    };
    json!({
        "write": known.write,
        "cluster": known.cluster.0,
        "version": known.version,
        "stores": known.stores.iter().map(store).collect::<Vec<_>>(),
        "own": known.own.iter().map(own).collect::<Map<_, _>>(),
    })
    .to_string()
}

fn decode(bytes: &[u8]) -> Option<Known> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let mut stores = BTreeMap::new();
    for store in value.get("stores")?.as_array()? {
        let address = store.get("address")?.as_str()?.to_owned();
        let is_removed = store.get("removed")?.as_bool()?;
        // Files of earlier builds have no state: it is received with the next change.
        let state = store.get("state").and_then(Value::as_i64).unwrap_or_default();
        let state = i32::try_from(state).ok()?;
        // Nor have they the run.
        let of_boot = |at: usize| store.get("boot").and_then(|it| it.get(at)?.as_u64());
        let boot = of_boot(0).zip(of_boot(1)).map(|(count, nonce)| Boot { count, nonce });
        let boot = boot.unwrap_or_default();
        let starts = store.get("starts").and_then(Value::as_array).into_iter().flatten();
        let starts = starts.filter_map(|id| StartId::from_hex(id.as_str()?));
        let run = StoreRun { boot, lineage: Lineage::new(starts) };
        let known = KnownRun { run, address, ..KnownRun::default() };
        let client_address = store.get("client_address").and_then(Value::as_str);
        let client_address = client_address.unwrap_or_default().to_owned();
        // Nor have they the name of the node, and all stores are listed ones.
        let owner = store.get("node").and_then(Value::as_str).map(str::to_owned);
        let is_stated = store.get("stated").and_then(Value::as_bool).unwrap_or_default();
        let member = Member { known, is_removed, state, client_address, owner, is_stated };
        stores.insert(StoreId(store.get("store")?.as_u64()?), member);
    }
    // They have no number of the write, no cluster and no stores of the node.
    let number = |key: &str| value.get(key).and_then(Value::as_u64).unwrap_or_default();
    let mut own = BTreeMap::new();
    for (id, dir) in value.get("own").and_then(Value::as_object).into_iter().flatten() {
        own.insert(StoreId(id.parse().ok()?), dir.as_str().map(PathBuf::from));
    }
    let version = value.get("version")?.as_u64()?;
    let (write, cluster) = (number("write"), ClusterId(number("cluster")));
    Some(Known { write, cluster, version, stores, own })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_survives_the_round_trip_and_one_of_an_earlier_build_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let boot = Boot { count: 3, nonce: u64::MAX };
        let lineage = Lineage::new([StartId(5), StartId(u128::MAX)]);
        let run = StoreRun { boot, lineage };
        let own = KnownRun { run, address: "a:1".to_owned(), ..KnownRun::default() };
        let (client_address, owner) = ("c:1".to_owned(), Some("n1".to_owned()));
        let member = Member {
            known: own,
            is_removed: true,
            state: 2,
            client_address,
            owner,
            is_stated: true,
        };
        let known = Known {
            write: 7,
            cluster: ClusterId(9),
            version: 3,
            stores: BTreeMap::from([(StoreId(1), member)]),
            own: BTreeMap::from([(StoreId(1), Some("/data/1".into())), (StoreId(2), None)]),
        };
        write(dir.path(), &known).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(known));
        let earlier = r#"{"version":4,"stores":[{"store":1,"address":"a:1","removed":false}]}"#;
        std::fs::write(dir.path().join(FILE), earlier).unwrap();
        let known = read(dir.path()).unwrap().unwrap();
        assert_eq!((known.write, known.version, known.stores.len(), known.own.len()), (0, 4, 1, 0));
    }

    #[test]
    fn a_damaged_copy_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), b"{").unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains(FILE));
    }
}
