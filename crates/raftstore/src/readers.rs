//! Reads that never enter the core: what edge threads may know of a region, and for how long.
//!
//! A read on an edge thread: check the request, take the lease, take a view of the engine, and make
//! sure the lease *still* holds. The view then holds every acknowledged write: a write is
//! acknowledged after it is applied here, and nobody else led while the lease held.

use crate::input::Header;
use crate::output::Refusal;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stele_types::{Peer, PeerId, Region, RegionId, RegionKind};

/// The readable regions of a store, shared with edge threads.
#[derive(Debug, Default)]
pub struct Readers {
    regions: RwLock<BTreeMap<RegionId, Arc<Reader>>>,
}

impl Readers {
    /// A region's reader, if a replica is here.
    pub fn get(&self, region: RegionId) -> Option<Arc<Reader>> {
        self.regions.read().get(&region).cloned()
    }

    /// Every region here, as last published.
    pub fn all(&self) -> Vec<Arc<Region>> {
        self.regions.read().values().map(|reader| reader.region()).collect()
    }

    pub(crate) fn insert(&self, region: RegionId, reader: Arc<Reader>) {
        self.regions.write().insert(region, reader);
    }

    pub(crate) fn remove(&self, region: RegionId) {
        if let Some(reader) = self.regions.write().remove(&region) {
            reader.clear_leadership();
        }
    }
}

/// What edge threads may know of one region.
#[derive(Debug)]
pub struct Reader {
    peer: PeerId,
    kind: RegionKind,
    region: RwLock<Arc<Region>>,
    leader: RwLock<Option<Peer>>,
    version: AtomicU64,
    /// The term in which this peer leads and has applied its first entry, or 0.
    term: AtomicU64,
    /// The last term heard of.
    known_term: AtomicU64,
    /// Monotonic nanoseconds at which the lease of `term` ends.
    lease_until: AtomicU64,
    /// More is committed than is applied here: followers may show what this store does not yet.
    behind: AtomicBool,
    reads: AtomicU64,
}

/// A lease, as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    term: u64,
    version: u64,
}

impl Reader {
    pub(crate) fn new(peer: PeerId, region: Arc<Region>) -> Self {
        Self {
            peer,
            kind: region.kind,
            version: AtomicU64::new(region.epoch.version),
            region: RwLock::new(region),
            leader: RwLock::new(None),
            term: AtomicU64::new(0),
            known_term: AtomicU64::new(0),
            lease_until: AtomicU64::new(0),
            behind: AtomicBool::new(false),
            reads: AtomicU64::new(0),
        }
    }

    /// The region, as of its last applied change.
    pub fn region(&self) -> Arc<Region> {
        self.region.read().clone()
    }

    /// Who leads, as far as this store knows.
    pub fn leader(&self) -> Option<Peer> {
        *self.leader.read()
    }

    /// Refuses a request that does not belong here. Refuses no one for not being the leader: a
    /// missing lease says that.
    pub fn check(&self, header: &Header) -> Result<(), Refusal> {
        if let Some(asked) = header.peer.filter(|asked| *asked != self.peer) {
            return Err(Refusal::MismatchPeer { asked, actual: self.peer });
        }
        let known = self.known_term.load(Ordering::Acquire);
        if is_stale_term(header.term, known, self.kind) {
            return Err(Refusal::StaleCommand);
        }
        let version = self.version.load(Ordering::Acquire);
        if header.version.is_some_and(|asked| asked != version) {
            return Err(Refusal::EpochNotMatch { current: vec![(*self.region()).clone()] });
        }
        Ok(())
    }

    /// The lease at this moment, if this peer leads and holds one.
    pub fn lease(&self, now_nanos: u64) -> Option<Lease> {
        let term = self.term.load(Ordering::Acquire);
        let version = self.version.load(Ordering::Acquire);
        let until = self.lease_until.load(Ordering::Acquire);
        let behind = self.behind.load(Ordering::Acquire);
        (term != 0 && now_nanos < until && !behind).then_some(Lease { term, version })
    }

    /// Whether a lease found before still holds: then a view taken in between is linearizable.
    pub fn is_still_valid(&self, lease: Lease, now_nanos: u64) -> bool {
        self.lease(now_nanos) == Some(lease)
    }

    /// So many reads were served by a lease.
    pub fn note_reads(&self, reads: u64) {
        self.reads.fetch_add(reads, Ordering::Relaxed);
    }

    /// The term in which this peer leads and has applied its first entry.
    pub fn leading_term(&self) -> Option<u64> {
        Some(self.term.load(Ordering::Acquire)).filter(|term| *term != 0)
    }

    /// Whether nobody else can lead now, however much is applied here.
    pub(crate) fn is_leased(&self, now_nanos: u64) -> bool {
        let term = self.term.load(Ordering::Acquire);
        term != 0 && now_nanos < self.lease_until.load(Ordering::Acquire)
    }

    pub(crate) fn take_reads(&self) -> u64 {
        self.reads.swap(0, Ordering::Relaxed)
    }

    /// Called before the change is applied to the engine, so that no view with the new range is
    /// read under the old version.
    pub(crate) fn set_region(&self, region: Arc<Region>) {
        self.version.store(region.epoch.version, Ordering::Release);
        *self.region.write() = region;
    }

    pub(crate) fn set_leader(&self, leader: Option<Peer>, term: u64) {
        self.known_term.store(term, Ordering::Release);
        *self.leader.write() = leader;
    }

    /// This peer leads `term` and has applied its first entry.
    pub(crate) fn set_leading_term(&self, term: u64) {
        self.lease_until.store(0, Ordering::Release);
        self.term.store(term, Ordering::Release);
    }

    /// No lease from here on, until it leads again.
    pub(crate) fn clear_leadership(&self) {
        self.term.store(0, Ordering::Release);
        self.lease_until.store(0, Ordering::Release);
    }

    /// Called before any message leaves that tells a follower of the commit index.
    pub(crate) fn set_behind(&self, behind: bool) {
        let unchecked = stele_types::mutant::active("raftstore.lease_ahead_of_apply");
        self.behind.store(behind && !unchecked, Ordering::Release);
    }

    pub(crate) fn renew(&self, until_nanos: u64) {
        self.lease_until.fetch_max(until_nanos, Ordering::AcqRel);
    }

    pub(crate) fn end_lease(&self) {
        self.lease_until.store(0, Ordering::Release);
    }
}

/// Whether a request's term says that it was meant for an earlier leader. The placement group's
/// requests are decisions made on the state of one term: they name it exactly.
pub(crate) fn is_stale_term(asked: u64, known: u64, kind: RegionKind) -> bool {
    match kind {
        _ if asked == 0 => false,
        RegionKind::Data => known > asked + 1,
        RegionKind::System => known != asked,
    }
}
