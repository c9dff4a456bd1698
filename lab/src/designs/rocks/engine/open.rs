//! Opening: reads the state of both databases and replays the log.

use super::tables::Tables;
use super::{RockStore, State};
use crate::designs::rocks::key_values::KeyValues;
use crate::designs::rocks::mirror;
use crate::designs::rocks::pairs::Applied;
use crate::designs::rocks::raft_log::{Edit, Entries, RaftLog, StoredEntry};
use crate::designs::rocks::region::Region;
use crate::designs::rocks::tuning::Settings;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use stele_types::{CommittedEntry, Error, LogIndex, RegionId, Result};

impl RockStore {
    /// Opens the store in `dir`, creates it if it does not exist, and applies committed entries.
    pub fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|source| Error::io("create", dir, source))?;
        mirror::remove_leftovers(dir)?;
        let log = RaftLog::open(&dir.join("raft"), &settings.raft_options())?;
        let pairs = KeyValues::open(dir, &settings.pair_options(), settings.persistence)?;
        let known = pairs.all_applied()?;
        let state = State { regions: log.regions()?, head: 0 };
        let store = Self {
            log,
            pairs: RwLock::new(Some(Arc::new(pairs))),
            persist_after_bytes: settings.persist_after_bytes,
            tables: Tables::new(dir, settings),
            appending: Mutex::new(()),
            state: Mutex::new(state),
            user_bytes: AtomicU64::new(0),
        };
        store.finish_installations(known)?;
        store.find_head()?;
        let state = store.state.lock();
        let lacks = state.regions.iter().map(|(id, it)| (*id, (it.applied, it.hard_state.commit)));
        let lacks = lacks.collect();
        drop(state);
        store
            .in_log_order(&lacks, |id, entry| store.apply_here(id, std::slice::from_ref(entry)))?;
        Ok(store)
    }

    /// Completes installations from the applied indexes in the key-values. An installation is
    /// complete when the key-values have it; after a crash between the two writes, the log is
    /// behind.
    fn finish_installations(&self, known: BTreeMap<RegionId, Applied>) -> Result<()> {
        let mut state = self.state.lock();
        for (id, known) in known {
            let region = state.regions.entry(id).or_default();
            if known.incarnation > region.incarnation {
                self.start_log(id, region, known)?;
            }
            if known.incarnation == region.incarnation && !region.destroyed {
                region.applied = known.index.max(region.truncated.0);
                region.checkpointed = region.applied;
            }
        }
        Ok(())
    }

    pub(super) fn start_log(
        &self,
        id: RegionId,
        region: &mut Region,
        incarnation: Applied,
    ) -> Result<()> {
        let mut edit = Edit::default();
        edit.remove(id, region.truncated.0.next(), region.last.next());
        region.start(incarnation.start);
        edit.state(id, region);
        self.log.write(&edit)
    }

    fn find_head(&self) -> Result<()> {
        let mut state = self.state.lock();
        let mut head = 0;
        for (&id, region) in state.regions.iter().filter(|(_, region)| !region.destroyed) {
            if let Some(last) = self.log.entry(id, region.last)? {
                head = head.max(last.0 + 1);
            }
        }
        state.head = head;
        Ok(())
    }

    /// Passes each region's entries after the first index up to the second, in log order over all
    /// regions: keys that moved between regions get their writes in order.
    pub(super) fn in_log_order(
        &self,
        spans: &BTreeMap<RegionId, (LogIndex, LogIndex)>,
        mut f: impl FnMut(RegionId, &CommittedEntry) -> Result<()>,
    ) -> Result<()> {
        let mut sources: Vec<(LogIndex, RegionId, Entries<'_>, StoredEntry)> = Vec::new();
        for (&id, &(after, upto)) in spans {
            let mut entries = self.log.entries_from(id, after.next());
            if let Some(first) = entries.next()?.filter(|(_, first)| first.index <= upto) {
                sources.push((upto, id, entries, first));
            }
        }
        while let Some(at) = (0..sources.len()).min_by_key(|at| sources.get(*at).map(|s| s.3.0)) {
            let Some((upto, id, entries, entry)) = sources.get_mut(at) else { break };
            f(*id, &entry.1)?;
            match entries.next()?.filter(|(_, next)| next.index <= *upto) {
                Some(next) => *entry = next,
                None => drop(sources.swap_remove(at)),
            }
        }
        Ok(())
    }
}
