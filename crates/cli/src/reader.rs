//! Directories as reading commands open them: nothing in them is changed. What opening repairs or
//! removes stays in memory.

use crate::node_dir::NodeDir;
use crate::store::{
    CHANGES_BYTES_MAX, Order, Pair, Statistics, Store, Tuning, Verified, verify_with,
};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{DirectoryKind, StateMachine, directory_kind, shard_of};
use stele_types::{KeyRange, Result};
use stele_vfs::{CopyOnWriteVfs, RealVfs, Vfs};

pub(crate) struct Reader {
    files: Arc<CopyOnWriteVfs>,
    store: ByKind,
}

enum ByKind {
    Embedded(Store),
    Node(Box<NodeDir>),
}

impl Reader {
    /// Opens the directory of an embedded store, of a shard or of a node. Prints what is left out.
    pub(crate) fn open(dir: &Path, tuning: &Tuning) -> Result<Self> {
        Store::check_exists(dir)?;
        let files = CopyOnWriteVfs::new(Arc::new(RealVfs::new()), CHANGES_BYTES_MAX);
        let files = Arc::new(files);
        let vfs: Arc<dyn Vfs> = files.clone();
        if let Some(shard) = shard_of(&vfs, dir)? {
            let dir = dir.display();
            eprintln!("stele: {dir} is {shard}; the other shards hold other keys");
        }
        let store = match directory_kind(&vfs, dir)? {
            Some(DirectoryKind::Node) => {
                let node = NodeDir::open(vfs, dir, tuning.options())?;
                node.note().into_iter().for_each(|note| eprintln!("stele: {note}"));
                ByKind::Node(Box::new(node))
            }
            Some(DirectoryKind::Embedded) | None => {
                ByKind::Embedded(Store::open_on(vfs, dir, tuning)?)
            }
        };
        Ok(Self { files, store })
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match &self.store {
            ByKind::Embedded(store) => Ok(store.get(key)?.map(|(value, _)| value)),
            ByKind::Node(node) => Ok(node.get(key)?.map(|pair| pair.value)),
        }
    }

    pub(crate) fn exist(&self, keys: &[Vec<u8>]) -> Result<Vec<bool>> {
        match &self.store {
            ByKind::Embedded(store) => store.exist(keys),
            ByKind::Node(node) => keys.iter().map(|key| Ok(node.get(key)?.is_some())).collect(),
        }
    }

    /// Iterates over the pairs of a range. Says so if a node's directory does not hold all of them.
    pub(crate) fn pairs(
        &self,
        range: KeyRange,
        order: Order,
        keys_only: bool,
    ) -> Result<Box<dyn Iterator<Item = Result<Pair>> + '_>> {
        match &self.store {
            ByKind::Embedded(store) => Ok(Box::new(store.pairs(range, order, keys_only)?)),
            ByKind::Node(node) => {
                if !node.has_all(&range) {
                    eprintln!("stele: other stores hold a part of these keys; it is left out");
                }
                Ok(Box::new(node.pairs(&range, order, keys_only)))
            }
        }
    }

    pub(crate) fn statistics(&self) -> Statistics {
        match &self.store {
            ByKind::Embedded(store) => store.statistics(),
            ByKind::Node(node) => {
                Statistics::of(node.store().stats(), node.store().gc_stats().phase)
            }
        }
    }

    /// Verifies everything. The reported bytes are those that the files take on the device.
    pub(crate) fn verify(
        &self,
        damage: &mut dyn FnMut(PathBuf, String),
        checked: &dyn Fn(u64),
    ) -> Result<Verified> {
        let mut verified = match &self.store {
            ByKind::Embedded(store) => store.verify(damage, checked)?,
            ByKind::Node(node) => verify_with(damage, checked, |sink| node.store().verify(sink))?,
        };
        verified.reported_bytes += self.files.removed_bytes();
        Ok(verified)
    }
}
