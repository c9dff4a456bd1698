//! The directory of a node, read without the node: the pairs of its regions, as far as they are
//! known to be committed.

use crate::store::{Order, Pair};
use std::path::Path;
use std::sync::Arc;
use std::vec::IntoIter;
use stele_engine::{
    EngineView, LogStore, Options, Pages, Replay, ScanOptions, StateMachine, Store, View,
    read_ident, read_regions,
};
use stele_types::{
    Clock, ColumnFamily, Command, CommittedEntry, Error, KeyRange, Op, PeerRole, Region,
    RegionKind, RegionPhase, Result, StoreIdent, is_expired, keyspace,
};
use stele_vfs::{SystemClock, Vfs};

/// Pairs read in one scan.
const PAGE: usize = 1024;
const PAGE_BYTES_MAX: usize = 8 << 20;
const APPLY_BYTES_MAX: usize = 8 << 20;

pub(crate) struct NodeDir {
    store: Store,
    view: Arc<View>,
    /// Keys of the regions that have a replica here, ascending, without overlap.
    ranges: Vec<KeyRange>,
    /// Number of entries that are in the log and may not be committed.
    uncertain_entries: u64,
    now_s: u64,
}

impl NodeDir {
    /// Opens a directory on files that opening may change.
    pub(crate) fn open(vfs: Arc<dyn Vfs>, dir: &Path, options: Options) -> Result<Self> {
        let clock = Arc::new(SystemClock::new());
        let now_s = clock.unix_seconds();
        let (store, _) = Store::open(vfs, clock, dir, options, Replay::Committed)?;
        let (regions, uncertain_entries) = match read_ident(&store.view()?)? {
            Some(ident) => {
                apply_where_alone(&store, ident)?;
                let regions = regions_here(&store, ident)?;
                let uncertain = regions.iter().map(|region| uncertain_entries(&store, region));
                let uncertain = uncertain.sum();
                (regions, uncertain)
            }
            // The node never joined a cluster.
            None => (Vec::new(), 0),
        };
        let view = Arc::new(store.view()?);
        Ok(Self { store, view, ranges: joined(&regions), uncertain_entries, now_s })
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Describes why the pairs may not be those that the cluster serves; `None` if they are.
    pub(crate) fn note(&self) -> Option<String> {
        (self.uncertain_entries > 0).then(|| {
            format!(
                "{} entries in the log may not be committed; their effects are left out, and the \
                 cluster decides about them when the node runs",
                self.uncertain_entries
            )
        })
    }

    /// Returns the pair of a key. Fails if no region of this store holds the key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        if !self.ranges.iter().any(|range| range.contains(key)) {
            return Err(Error::Refused(
                "this store has no replica of the key's region; read the directory of another \
                 store, or start the node and use `--cluster ADDRESS`"
                    .to_owned(),
            ));
        }
        let pair = self.view.get(&ColumnFamily::Default.engine_key(key))?;
        Ok(pair.filter(|pair| is_live(pair, self.now_s)))
    }

    pub(crate) fn has_all(&self, range: &KeyRange) -> bool {
        let mut rest = vec![range.clone()];
        for own in &self.ranges {
            rest = rest.iter().flat_map(|part| part.without(own)).collect();
        }
        rest.iter().all(KeyRange::is_empty)
    }

    pub(crate) fn pairs(&self, range: &KeyRange, order: Order, keys_only: bool) -> NodePairs {
        let mut ranges: Vec<KeyRange> = self
            .ranges
            .iter()
            .filter_map(|own| own.common(range))
            .map(|range| ColumnFamily::Default.engine_range(&range))
            .collect();
        // The last one is read first.
        if order == Order::Forward {
            ranges.reverse();
        }
        let (view, page, now_s) = (self.view.clone(), Vec::new().into_iter(), self.now_s);
        NodePairs { view, ranges, page, order, keys_only, now_s }
    }
}

pub(crate) struct NodePairs {
    view: Arc<View>,
    /// Ranges that are not read yet; the next one is the last.
    ranges: Vec<KeyRange>,
    page: IntoIter<Pair>,
    order: Order,
    keys_only: bool,
    now_s: u64,
}

impl NodePairs {
    /// Reads the next page; false at the end.
    fn fill(&mut self) -> Result<bool> {
        let Some(range) = self.ranges.pop() else { return Ok(false) };
        let options = ScanOptions {
            order: self.order,
            bytes_max: PAGE_BYTES_MAX,
            keys_only: self.keys_only,
            ..ScanOptions::new(range, PAGE)
        };
        let mut pages = Pages::new(&*self.view, options);
        if let Some(page) = pages.next_page()? {
            self.page = page.into_iter();
            self.ranges.push(pages.rest());
        }
        Ok(true)
    }

    fn step(&mut self) -> Result<Option<Pair>> {
        loop {
            for pair in self.page.by_ref() {
                if is_live(&pair, self.now_s) {
                    let key = keyspace::user_key(&pair.key).unwrap_or_default();
                    return Ok(Some(Pair { key, ..pair }));
                }
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }
}

impl Iterator for NodePairs {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.step();
        if next.is_err() {
            // After an error nothing more is yielded: a gap must not look like the end.
            self.ranges.clear();
            self.page = Vec::new().into_iter();
        }
        next.transpose()
    }
}

fn is_live(pair: &Pair, now_s: u64) -> bool {
    !is_expired(pair.expires_at_s, now_s)
}

/// Returns the regions that have a replica on this store, also that of the placement group.
fn regions_here(store: &Store, ident: StoreIdent) -> Result<Vec<Region>> {
    let mut regions = read_regions(&store.view()?)?;
    regions.retain(|region| {
        region.phase != RegionPhase::Tombstone && region.peer_on(ident.store).is_some()
    });
    Ok(regions)
}

/// Returns the keys of data regions, ascending. Those of a region that is being merged into another
/// may be in both.
fn joined(regions: &[Region]) -> Vec<KeyRange> {
    let data = regions.iter().filter(|region| region.kind == RegionKind::Data);
    let mut ranges: Vec<KeyRange> = data.map(|region| region.range.clone()).collect();
    ranges.sort_by(|a, b| a.start.cmp(&b.start));
    let mut joined: Vec<KeyRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end.is_empty() => {}
            Some(last) if last.end >= range.start => {
                let is_longer = range.end.is_empty() || range.end > last.end;
                if is_longer {
                    last.end = range.end;
                }
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// Applies the entries of regions of which this store has the only vote: durable means committed
/// there. An entry that changes the region is left to the node, and all after it.
fn apply_where_alone(store: &Store, ident: StoreIdent) -> Result<()> {
    for region in regions_here(store, ident)? {
        let is_voter = |role| role != PeerRole::Learner;
        let mut voters = region.peers.iter().filter(|peer| is_voter(peer.role));
        let is_alone = voters.all(|peer| peer.store == ident.store)
            && region.peer_on(ident.store).is_some_and(|peer| is_voter(peer.role));
        // bug cli.uncommitted_read: always
        if is_alone {
            apply_all(store, &region)?;
        }
    }
    Ok(())
}

fn apply_all(store: &Store, region: &Region) -> Result<()> {
    while let Some(progress) = store.progress(region.id).filter(|it| !it.destroyed) {
        let (from, to) = (progress.applied.next(), progress.persisted.0.next());
        if from >= to {
            break;
        }
        let entries = store.entries(region.id, from, to, APPLY_BYTES_MAX)?;
        let plain = entries.iter().take_while(|entry| !is_admin(entry)).count();
        let Some(entries) = entries.get(..plain).filter(|entries| !entries.is_empty()) else {
            break;
        };
        store.apply(region.id, entries)?;
    }
    Ok(())
}

fn is_admin(entry: &CommittedEntry) -> bool {
    let first = Command::ops_of(&entry.payload).and_then(|mut ops| ops.next());
    entry.is_command
        && first.is_some_and(|op| matches!(op, Op::Put { key, .. } if keyspace::is_admin_key(key)))
}

fn uncertain_entries(store: &Store, region: &Region) -> u64 {
    let progress = store.progress(region.id).filter(|progress| !progress.destroyed);
    progress.map_or(0, |it| it.persisted.0.0.saturating_sub(it.applied.0))
}

#[cfg(test)]
mod tests;
