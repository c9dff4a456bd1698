//! Opening: what the two databases know, and what the log adds.

use super::{RockStore, State};
use crate::rocks::key_values::KeyValues;
use crate::rocks::pairs::Applied;
use crate::rocks::raft_log::{Edit, Entries, RaftLog};
use crate::rocks::region::Region;
use crate::rocks::tuning::Settings;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use stele_storage::StorageEngine;
use stele_types::{CommittedEntry, Error, RegionId, Result};

impl RockStore {
    /// Opens the store in `dir`, creating it when there is none, and applies what is committed.
    pub fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|source| Error::io("create", dir, source))?;
        let log = RaftLog::open(&dir.join("raft"), &settings.raft_options())?;
        let pairs = KeyValues::open(dir, &settings.pair_options(), settings.keeping)?;
        let state = State { regions: log.regions()?, head: 0 };
        let store = Self {
            log,
            pairs,
            keep_after_bytes: settings.keep_after_bytes,
            state: Mutex::new(state),
            user_bytes: AtomicU64::new(0),
        };
        store.finish_installations()?;
        store.replay()?;
        Ok(store)
    }

    /// What the key-values know of their regions. An installation is whole when the key-values have
    /// it: a crash between the two databases left the log behind them.
    fn finish_installations(&self) -> Result<()> {
        let mut state = self.state.lock();
        for (id, known) in self.pairs.all_applied()? {
            let region = state.regions.entry(id).or_default();
            if known.life > region.life {
                self.start_log(id, region, known)?;
            }
            if known.life == region.life && !region.destroyed {
                region.applied = known.index.max(region.truncated.0);
                region.checkpointed = region.applied;
            }
        }
        Ok(())
    }

    pub(super) fn start_log(&self, id: RegionId, region: &mut Region, life: Applied) -> Result<()> {
        let mut edit = Edit::default();
        edit.remove(id, region.truncated.0.next(), region.last.next());
        region.start(life.start);
        edit.state(id, region);
        self.log.write(&edit)
    }

    /// Applies what is committed and not in the key-values, in log order over all regions: keys that
    /// moved between regions meet their writes in their order.
    fn replay(&self) -> Result<()> {
        let regions = self.state.lock().regions.clone();
        let mut sources: Vec<(RegionId, Entries<'_>, CommittedEntry)> = Vec::new();
        let mut head = 0;
        for (&id, region) in regions.iter().filter(|(_, region)| !region.destroyed) {
            if let Some(last) = self.log.entry(id, region.last)? {
                head = head.max(last.at.as_u64() + 1);
            }
            let mut entries = self.log.entries_from(id, region.applied.next());
            if let Some(first) = entries.next()? {
                sources.push((id, entries, first));
            }
        }
        self.state.lock().head = head;
        let due = |id: RegionId, entry: &CommittedEntry| {
            regions.get(&id).is_some_and(|region| entry.index <= region.hard_state.commit)
        };
        sources.retain(|(id, _, first)| due(*id, first));
        while let Some(at) = (0..sources.len()).min_by_key(|at| sources.get(*at).map(|s| s.2.at)) {
            let Some((id, entries, entry)) = sources.get_mut(at) else { break };
            self.apply(*id, std::slice::from_ref(entry))?;
            match entries.next()?.filter(|next| due(*id, next)) {
                Some(next) => *entry = next,
                None => drop(sources.swap_remove(at)),
            }
        }
        Ok(())
    }
}
