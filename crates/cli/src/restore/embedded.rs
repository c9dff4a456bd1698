//! An embedded store as the target of a restore. It has the default column family only.

use crate::store::{Store, Tuning};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stele_backup::restore::{RestoredKeys, Target};
use stele_client::KeyWrite;
use stele_types::{ColumnFamily, Error, KeyRange, Result};

pub(super) struct Embedded {
    store: Arc<Store>,
    /// Pairs of other column families.
    left_out: AtomicU64,
}

impl Embedded {
    /// Makes a store. Fails with `Refused` if there is one, unless the restore goes on.
    pub(super) fn create(dir: &Path, continues: bool) -> Result<Self> {
        if !continues && Store::check_exists(dir).is_ok() {
            return Err(Error::Refused(format!(
                "{} holds a store already; name a new directory, or go on with an interrupted restore of the same \
                 moment with --moment N --continue",
                dir.display()
            )));
        }
        let tuning = Tuning { background: true, ..Tuning::default() };
        let store = Arc::new(Store::open_or_create(dir, &tuning)?);
        Ok(Self { store, left_out: AtomicU64::new(0) })
    }

    /// Closes the store. Returns the number of pairs that were left out.
    pub(super) fn close(self) -> Result<u64> {
        match Arc::try_unwrap(self.store) {
            Ok(store) => store.close()?,
            Err(_) => return Err(Error::Busy("a write of the restore has not ended".to_owned())),
        }
        Ok(self.left_out.into_inner())
    }

    async fn run(&self, work: impl FnOnce(&Store) -> Result<()> + Send + 'static) -> Result<()> {
        let store = Arc::clone(&self.store);
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        done.unwrap_or_else(|error| Err(Error::Panicked(format!("a write failed: {error}"))))
    }
}

impl Target for Embedded {
    async fn write(&self, family: ColumnFamily, writes: Vec<KeyWrite>) -> Result<()> {
        if family != ColumnFamily::Default {
            let puts = writes.iter().filter(|write| write.put.is_some()).count();
            self.left_out.fetch_add(puts as u64, Relaxed);
            return Ok(());
        }
        self.run(move |store| store.write_all(&writes)).await
    }

    async fn delete_range(
        &self,
        family: ColumnFamily,
        range: KeyRange,
        _: &RestoredKeys,
    ) -> Result<()> {
        if family != ColumnFamily::Default {
            return Ok(());
        }
        self.run(move |store| store.delete_range(&range)).await
    }
}
