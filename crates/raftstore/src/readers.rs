//! Reads outside the core: the state of a region that request threads may use, and its validity.
//!
//! A read on a request thread: check the request, take the lease, take a view of the engine, and
//! check that the lease is *still* valid. The view then holds every acknowledged write: a write is
//! acknowledged after it is applied here, and no other peer led while the lease was valid. The lease
//! is of the version that the request was checked against.

use crate::input::Header;
use crate::output::Refusal;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stele_types::{Peer, PeerId, Region, RegionId, RegionKind};

/// Readable regions of a store, shared with request threads.
#[derive(Debug, Default)]
pub struct Readers {
    regions: RwLock<BTreeMap<RegionId, Arc<Reader>>>,
}

impl Readers {
    /// Returns a region's reader, if this store has a replica.
    pub fn get(&self, region: RegionId) -> Option<Arc<Reader>> {
        self.regions.read().get(&region).cloned()
    }

    /// Returns every region here, as last published.
    pub fn all(&self) -> Vec<Arc<Region>> {
        self.regions.read().values().map(|reader| reader.region()).collect()
    }

    /// Ends the leadership of every region and drops what is known of other leaders: the loop that
    /// maintains the readers has ended.
    pub fn depose_all(&self) {
        for reader in self.regions.read().values() {
            reader.clear_leadership();
            *reader.leader.write() = None;
        }
    }

    /// Ends all leases of the store.
    pub(crate) fn end_leases(&self) {
        self.regions.read().values().for_each(|reader| reader.end_lease());
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

/// State of one region that request threads may use.
#[derive(Debug)]
pub struct Reader {
    peer: PeerId,
    kind: RegionKind,
    region: RwLock<Arc<Region>>,
    leader: RwLock<Option<Peer>>,
    version: AtomicU64,
    /// Term in which this peer leads and has applied its first entry; 0 for none.
    term: AtomicU64,
    /// Latest known term.
    known_term: AtomicU64,
    /// Monotonic nanoseconds at which the lease of `term` ends.
    lease_until: AtomicU64,
    /// Whether more is committed than applied here: followers may serve entries that this store
    /// does not serve yet.
    behind: AtomicBool,
    reads: AtomicU64,
}

/// Lease as seen by a read.
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

    /// Returns the region, as of its last applied change.
    pub fn region(&self) -> Arc<Region> {
        self.region.read().clone()
    }

    /// Returns the leader, as far as this store knows.
    pub fn leader(&self) -> Option<Peer> {
        *self.leader.read()
    }

    /// Refuses a request for another peer, term or version. Does not check leadership: the missing
    /// lease shows that.
    pub fn check(&self, header: &Header) -> Result<(), Refusal> {
        if let Some(asked) = header.peer.filter(|asked| *asked != self.peer) {
            return Err(Refusal::MismatchPeer { asked, actual: self.peer });
        }
        let known = self.known_term.load(Ordering::Acquire);
        if is_stale_term(header.term, known, self.kind) {
            return Err(Refusal::StaleTerm { leader: self.leader() });
        }
        let version = self.version.load(Ordering::Acquire);
        if header.version.is_some_and(|asked| asked != version) {
            return Err(Refusal::EpochNotMatch { current: vec![(*self.region()).clone()] });
        }
        Ok(())
    }

    /// Returns the lease under which a request may be served now, if this peer leads and has one.
    ///
    /// Invariant: the lease's version is the one that the request was checked against. A split after
    /// the check moves keys to a region that another store may lead, and the lease of the new version
    /// does not cover them.
    pub fn lease(&self, header: &Header, now_nanos: u64) -> Option<Lease> {
        let unchecked = stele_types::mutant::active("raftstore.lease_of_another_version");
        let is_checked = |lease: &Lease| header.version.is_none_or(|it| it == lease.version);
        self.current_lease(now_nanos).filter(|lease| unchecked || is_checked(lease))
    }

    /// Returns the nanoseconds for which reads may be served under a lease; 0 for none.
    pub fn lease_left_nanos(&self, now_nanos: u64) -> u64 {
        let until = self.lease_until.load(Ordering::Acquire);
        self.current_lease(now_nanos).map_or(0, |_| until.saturating_sub(now_nanos))
    }

    fn current_lease(&self, now_nanos: u64) -> Option<Lease> {
        let term = self.term.load(Ordering::Acquire);
        let version = self.version.load(Ordering::Acquire);
        let until = self.lease_until.load(Ordering::Acquire);
        let behind = self.behind.load(Ordering::Acquire);
        (term != 0 && now_nanos < until && !behind).then_some(Lease { term, version })
    }

    /// Returns whether a lease seen earlier is still valid: then a view taken in between is
    /// linearizable.
    pub fn is_still_valid(&self, lease: Lease, now_nanos: u64) -> bool {
        self.current_lease(now_nanos) == Some(lease)
    }

    /// Counts reads served under a lease.
    pub fn note_reads(&self, reads: u64) {
        self.reads.fetch_add(reads, Ordering::Relaxed);
    }

    /// Returns the term in which this peer leads and has applied its first entry.
    pub fn leading_term(&self) -> Option<u64> {
        Some(self.term.load(Ordering::Acquire)).filter(|term| *term != 0)
    }

    /// Returns whether no other peer can lead now, regardless of what is applied here.
    pub(crate) fn is_leased(&self, now_nanos: u64) -> bool {
        let term = self.term.load(Ordering::Acquire);
        term != 0 && now_nanos < self.lease_until.load(Ordering::Acquire)
    }

    pub(crate) fn take_reads(&self) -> u64 {
        self.reads.swap(0, Ordering::Relaxed)
    }

    /// Publishes a changed region. Called before the change is applied to the engine, so that no
    /// view with the new range is read under the old version.
    pub(crate) fn set_region(&self, region: Arc<Region>) {
        self.version.store(region.epoch.version, Ordering::Release);
        *self.region.write() = region;
    }

    pub(crate) fn set_leader(&self, leader: Option<Peer>, term: u64) {
        self.known_term.store(term, Ordering::Release);
        *self.leader.write() = leader;
    }

    /// Records that this peer leads `term` and has applied its first entry.
    pub(crate) fn set_leading_term(&self, term: u64) {
        self.lease_until.store(0, Ordering::Release);
        self.term.store(term, Ordering::Release);
    }

    /// Ends the lease until this peer leads again.
    pub(crate) fn clear_leadership(&self) {
        self.term.store(0, Ordering::Release);
        self.lease_until.store(0, Ordering::Release);
    }

    /// Records whether more is committed than applied. Called before any message with the commit
    /// index is sent to a follower.
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

/// Returns whether a request's term is that of an earlier leader. The placement group's requests
/// are decisions based on the state of one term, so their term must match exactly.
pub(crate) fn is_stale_term(asked: u64, known: u64, kind: RegionKind) -> bool {
    match kind {
        _ if asked == 0 => false,
        RegionKind::Data => known > asked + 1,
        RegionKind::System => known != asked,
    }
}
