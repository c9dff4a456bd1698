//! Linearizable reads outside the core: the state of a region that request threads may use, and its
//! validity. A lease or a round of the core permits a read; then it takes a view, and the effects
//! of the window over it.
//!
//! A leader serves a read without the loop, by a *lease*: the time in which no other peer can lead.
//!
//! | step | function | on |
//! |---|---|---|
//! | 1 a round of heartbeats leaves; its time is the start of the lease | `Replica::join_heartbeat`, `Replica::start_round` | loop |
//! | 2 each peer that answers starts its vote hold | `ElectionTimer::start_vote_hold` | loops of the followers |
//! | 3 a quorum has answered: the lease is renewed, if this peer serves | `Replica::renew_lease`, [`Reader::renew`] | loop |
//! | 4 a request is checked against peer, term and version | [`Reader::check`] | request thread |
//! | 5 it takes the lease and a mark of the window | [`Reader::permit`] | request thread |
//! | 6 it takes a view of the engine | `StateMachine::view` | request thread |
//! | 7 it takes the effects to lay over the view, if the lease is *still* valid | [`Reader::effects`] | request thread |
//!
//! The thread may pause between any two steps: step 7 decides. Without a lease the core confirms the read by a round
//! of its own, and steps 5 to 7 follow the confirmation.
//!
//! Why view and effects hold every acknowledged write: this peer led until step 7, so no other store acknowledged one,
//! and what it acknowledged itself was in the window or applied before the answer left.
//!
//! What each step keeps:
//! - 1: the lease counts from the sending, the vote hold from the answer, which is later. The lease is shorter by a
//!   tick and by the drift of clocks. So it ends before the first peer of the quorum may vote for another.
//! - 3: no lease before an entry of this term is visible here, none while a merge is prepared or a leadership is handed
//!   over.
//! - 5 and 7: the lease is of the version that was checked. [`Reader::set_region`] publishes a new version before its
//!   change is applied: no view with the new range is read under the old version.
//! - 7: entries applied since the mark are in no effects, so such a view is not read.

use crate::input::Header;
use crate::output::Refusal;
use crate::reads::{Window, WindowMark};
use crate::{Busy, Reply};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stele_storage::{Effects, EngineView, Overlaid};
use stele_types::{LogIndex, Peer, PeerId, Region, RegionId, RegionKind};

/// Readable regions of a store, shared with request threads.
#[derive(Debug, Default)]
pub struct ReadGate {
    regions: RwLock<BTreeMap<RegionId, Arc<Reader>>>,
    counts: [AtomicU64; ReadPath::ALL.len()],
    /// Regions of which reads returned something since they were last taken.
    read: Arc<Mutex<Vec<RegionId>>>,
}

/// What made a read linearizable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPath {
    /// A lease, and a view that held all that was committed.
    Lease,
    /// A lease, and the effects of entries that were not applied over a view.
    Window,
    /// The core, without waiting for entries.
    Round,
    /// The core, after waiting until entries were visible.
    Wait,
}

impl ReadPath {
    /// All paths, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Lease, Self::Window, Self::Round, Self::Wait];

    /// Returns the name, for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Window => "window",
            Self::Round => "round",
            Self::Wait => "wait",
        }
    }
}

impl ReadGate {
    /// Returns a region's reader, if this store has a replica.
    pub fn get(&self, region: RegionId) -> Option<Arc<Reader>> {
        self.regions.read().get(&region).cloned()
    }

    /// Returns every region here, as last published.
    pub fn all(&self) -> Vec<Arc<Region>> {
        self.regions.read().values().map(|reader| reader.region()).collect()
    }

    /// Returns the number of reads by path. Reads under a lease are counted at the next tick of their
    /// region.
    pub fn counts(&self) -> [(ReadPath, u64); ReadPath::ALL.len()] {
        ReadPath::ALL.map(|path| (path, self.count(path).load(Ordering::Relaxed)))
    }

    pub(crate) fn add(&self, path: ReadPath, reads: u64) {
        if reads > 0 {
            self.count(path).fetch_add(reads, Ordering::Relaxed);
        }
    }

    fn count(&self, path: ReadPath) -> &AtomicU64 {
        let [lease, window, round, wait] = &self.counts;
        match path {
            ReadPath::Lease => lease,
            ReadPath::Window => window,
            ReadPath::Round => round,
            ReadPath::Wait => wait,
        }
    }

    /// Ends the leadership of every region and drops what is known of other leaders: the loop that
    /// maintains the readers has ended.
    pub(crate) fn depose_all(&self) {
        for reader in self.regions.read().values() {
            reader.clear_leadership();
            *reader.leader.write() = None;
        }
    }

    /// Returns the regions of which reads returned something since the last call.
    pub(crate) fn take_read(&self) -> Vec<RegionId> {
        let read = std::mem::take(&mut *self.read.lock());
        let regions = self.regions.read();
        for reader in read.iter().filter_map(|region| regions.get(region)) {
            reader.is_noted.swap(false, Ordering::AcqRel);
        }
        read
    }

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
    /// Term in which this peer leads and serves; 0 for none.
    term: AtomicU64,
    known_term: AtomicU64,
    /// Monotonic nanoseconds at which the lease of `term` ends.
    lease_until: AtomicU64,
    window: Window,
    lease_reads: AtomicU64,
    window_reads: AtomicU64,
    /// Pairs that reads of a leader returned, and their bytes. Only grow.
    returned_pairs: AtomicU64,
    returned_bytes: AtomicU64,
    /// Regions of the store of which reads returned something, and whether this one is noted there.
    read: Arc<Mutex<Vec<RegionId>>>,
    is_noted: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    term: u64,
    version: u64,
}

/// Permission to read a view that is taken from now on.
#[derive(Clone, Copy, Debug)]
pub struct ReadPermit {
    /// `None`: the core confirmed the read.
    lease: Option<Lease>,
    mark: WindowMark,
}

impl ReadPermit {
    /// Returns whether a lease permits the read.
    pub fn is_by_lease(&self) -> bool {
        self.lease.is_some()
    }
}

impl Reader {
    pub(crate) fn new(
        readers: &ReadGate,
        peer: PeerId,
        region: Arc<Region>,
        applied: LogIndex,
    ) -> Self {
        Self {
            peer,
            kind: region.kind,
            version: AtomicU64::new(region.epoch.version),
            region: RwLock::new(region),
            leader: RwLock::new(None),
            term: AtomicU64::new(0),
            known_term: AtomicU64::new(0),
            lease_until: AtomicU64::new(0),
            window: Window::new(applied),
            lease_reads: AtomicU64::new(0),
            window_reads: AtomicU64::new(0),
            returned_pairs: AtomicU64::new(0),
            returned_bytes: AtomicU64::new(0),
            read: readers.read.clone(),
            is_noted: AtomicBool::new(false),
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

    /// Permits a request that may be served under a lease now, if this peer leads and has one.
    ///
    /// Invariant: the lease's version is the one that the request was checked against. A split after
    /// the check moves keys to a region that another store may lead, and the lease of the new version
    /// does not cover them.
    /// Test: `a_lease_of_a_later_version_serves_no_request_that_was_checked_before_a_split`.
    pub fn permit(&self, header: &Header, now_nanos: u64) -> Option<ReadPermit> {
        let mark = self.window.mark();
        // bug replica.lease_of_another_version: `header.version.is_none_or(|it| it == lease.version)` is `true`
        let is_checked = |lease: &Lease| header.version.is_none_or(|it| it == lease.version);
        let lease = self.lease(now_nanos).filter(is_checked)?;
        let is_whole = mark.is_whole();
        // bug replica.lease_ahead_of_apply: let is_whole = true;
        is_whole.then_some(ReadPermit { lease: Some(lease), mark })
    }

    /// Permits a read that the core confirmed. Invariant: called after the confirmation. What it waited
    /// for is visible then, and may have been in no view and in no window before.
    pub fn permit_confirmed(&self) -> ReadPermit {
        ReadPermit { lease: None, mark: self.window.mark() }
    }

    /// Returns the effects to lay over a view that was taken since the permit: both are then a
    /// linearizable state. `None` if the lease is no longer valid, or entries were applied meanwhile;
    /// the caller asks for another permit.
    pub fn effects(&self, permit: &ReadPermit, now_nanos: u64) -> Option<Effects> {
        let effects = self.window.effects(permit.mark)?;
        let is_valid = permit.lease.is_none() || permit.lease == self.lease(now_nanos);
        is_valid.then_some(effects)
    }

    /// Returns the nanoseconds for which reads may be served under a lease; 0 for none.
    pub fn lease_left_nanos(&self, now_nanos: u64) -> u64 {
        let until = self.lease_until.load(Ordering::Acquire);
        self.lease(now_nanos).map_or(0, |_| until.saturating_sub(now_nanos))
    }

    fn lease(&self, now_nanos: u64) -> Option<Lease> {
        let term = self.term.load(Ordering::Acquire);
        let version = self.version.load(Ordering::Acquire);
        let until = self.lease_until.load(Ordering::Acquire);
        (term != 0 && now_nanos < until).then_some(Lease { term, version })
    }

    /// Counts reads served under a lease, from a view alone or with effects over it.
    pub fn note_reads(&self, reads: u64, with_effects: bool) {
        let count = if with_effects { &self.window_reads } else { &self.lease_reads };
        count.fetch_add(reads, Ordering::Relaxed);
    }

    /// Counts what a read returned: pairs, at least one, and the bytes of their keys and values. What
    /// a follower serves is not counted: only leaders report traffic.
    pub fn note_returned(&self, pairs: u64, bytes: u64) {
        if self.leading_term().is_some() {
            self.returned_pairs.fetch_add(pairs.max(1), Ordering::Relaxed);
            self.returned_bytes.fetch_add(bytes, Ordering::Relaxed);
            // Invariant: a region is noted after its counts have grown, and they are collected after the
            // note is taken.
            if !self.is_noted.swap(true, Ordering::AcqRel) {
                // bug replica.reads_unreported: skip
                self.read.lock().push(self.region().id);
            }
        }
    }

    pub(crate) fn returned(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.returned_pairs), load(&self.returned_bytes))
    }

    /// Returns the term in which this peer leads and serves.
    pub fn leading_term(&self) -> Option<u64> {
        Some(self.term.load(Ordering::Acquire)).filter(|term| *term != 0)
    }

    /// Returns whether no other peer can lead now, regardless of what is applied here.
    pub(crate) fn is_leased(&self, now_nanos: u64) -> bool {
        self.lease(now_nanos).is_some()
    }

    /// Returns the last entry that reads can see.
    pub fn visible(&self) -> LogIndex {
        self.window.visible()
    }

    /// Returns the last applied entry: what is measured of the region now holds all up to it. Reads see
    /// more.
    pub fn applied(&self) -> LogIndex {
        self.window.applied()
    }

    /// Returns whether reads can see all that is committed.
    pub fn sees_all_committed(&self) -> bool {
        self.window.mark().is_whole()
    }

    /// Returns the entries that are committed and not applied, to publish them.
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// Moves the counts of reads under a lease to those of the store. Returns their number.
    pub(crate) fn take_reads(&self, readers: &ReadGate) -> u64 {
        let take = |count: &AtomicU64| match count.load(Ordering::Relaxed) {
            0 => 0,
            _ => count.swap(0, Ordering::Relaxed),
        };
        let (lease, window) = (take(&self.lease_reads), take(&self.window_reads));
        readers.add(ReadPath::Lease, lease);
        readers.add(ReadPath::Window, window);
        lease + window
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

    pub(crate) fn set_leading_term(&self, term: u64) {
        self.lease_until.store(0, Ordering::Release);
        self.term.store(term, Ordering::Release);
    }

    /// Ends the lease until this peer leads again.
    pub(crate) fn clear_leadership(&self) {
        self.term.store(0, Ordering::Release);
        self.lease_until.store(0, Ordering::Release);
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

/// Most views that a confirmed read takes: each time entries may be applied meanwhile.
const VIEWS_MAX: usize = 100;

/// Read of a region on a request thread, from its permission to the state that it may answer from.
///
/// 1. The request is checked against the reader ([`Reader::check`]).
/// 2. [`LinearizableRead::by_lease`] takes the lease. Without one, the core confirms the read, and
///    [`LinearizableRead::by_round`] goes on.
/// 3. The caller takes a view of the engine.
/// 4. [`LinearizableRead::finish`] checks the view, and lays over it what is committed and not
///    applied. The thread may pause between any two steps.
#[derive(Clone, Debug)]
pub struct LinearizableRead {
    reader: Arc<Reader>,
    header: Header,
    permit: ReadPermit,
}

impl LinearizableRead {
    /// Permits a read by the lease of the version that the request was checked against; `None` if
    /// there is none.
    pub fn by_lease(reader: &Arc<Reader>, header: &Header, now_nanos: u64) -> Option<Self> {
        let permit = reader.permit(header, now_nanos)?;
        Some(Self { reader: reader.clone(), header: *header, permit })
    }

    /// Permits a read that the core has confirmed: called after its confirmation.
    pub fn by_round(reader: &Arc<Reader>, header: &Header) -> Self {
        let permit = reader.permit_confirmed();
        Self { reader: reader.clone(), header: *header, permit }
    }

    /// Returns the state that holds all that was acknowledged before the read, for every key of the
    /// request, from a view taken since the permission. `None`: the view cannot be used. A read by
    /// lease asks the core; a confirmed one takes another permission and another view.
    ///
    /// Invariant: the lease of the view is the lease of the permission, or, after a round, the replica
    /// is the same and has the version of the request. A split in between moved keys away, and the
    /// view may lack what their new owner wrote; a replica destroyed in between took its pairs with
    /// it.
    pub fn finish<V: EngineView>(
        &self,
        view: V,
        readers: &ReadGate,
        now_nanos: u64,
    ) -> Result<Option<Overlaid<V>>, Refusal> {
        let Some(effects) = self.reader.effects(&self.permit, now_nanos) else { return Ok(None) };
        let state = Overlaid::new(view, effects);
        if self.is_by_lease() {
            return Ok(Some(state));
        }
        let current = readers.get(self.header.region);
        if !current.is_some_and(|current| Arc::ptr_eq(&current, &self.reader)) {
            return Err(Refusal::RegionNotFound);
        }
        self.reader.check(&self.header).map(|()| Some(state))
    }

    /// Returns whether a lease permits it.
    pub fn is_by_lease(&self) -> bool {
        self.permit.is_by_lease()
    }

    /// Reads what the core has confirmed, all steps at once. The inner result is the reply if the
    /// replica changed.
    pub fn confirmed_state<V: EngineView, E>(
        reader: &Arc<Reader>,
        header: &Header,
        readers: &ReadGate,
        view: impl Fn() -> Result<V, E>,
    ) -> Result<Result<Overlaid<V>, Reply>, E> {
        for _ in 0..VIEWS_MAX {
            match Self::by_round(reader, header).finish(view()?, readers, 0) {
                Ok(Some(state)) => return Ok(Ok(state)),
                Ok(None) => {}
                Err(refusal) => return Ok(Err(Reply::Refused(refusal))),
            }
        }
        Ok(Err(Reply::Busy(Busy::ReadIndexNotReady)))
    }
}
