//! A linearizable read outside the loop: lease, view, lease; or a round of the core, view, replica.

use std::sync::Arc;
use stele_raftstore::{Header, Lease, Reader, Readers, Refusal};

/// Read of a region on a request thread, from its permission to the check of its view.
///
/// 1. The request is checked against the reader ([`Reader::check`]).
/// 2. [`LinearizableRead::by_lease`] takes the lease. Without one, the core confirms the read, and
///    [`LinearizableRead::by_round`] goes on.
/// 3. The caller takes a view of the engine.
/// 4. [`LinearizableRead::may_answer`] checks that the view may be used. The thread may pause
///    between any two steps.
#[derive(Clone, Debug)]
pub struct LinearizableRead {
    reader: Arc<Reader>,
    header: Header,
    lease: Option<Lease>,
}

impl LinearizableRead {
    /// Permits a read by the lease of the version that the request was checked against; `None` if
    /// there is none.
    pub fn by_lease(reader: &Arc<Reader>, header: &Header, now_nanos: u64) -> Option<Self> {
        let lease = reader.lease(header, now_nanos)?;
        Some(Self { reader: reader.clone(), header: *header, lease: Some(lease) })
    }

    /// Permits a read that the core has confirmed.
    pub fn by_round(reader: &Arc<Reader>, header: &Header) -> Self {
        Self { reader: reader.clone(), header: *header, lease: None }
    }

    /// Returns whether a view taken since the permission holds all that was acknowledged before the
    /// read, for every key of the request. `false`: the lease ended meanwhile, and the core must
    /// confirm the read.
    ///
    /// Invariant: the lease of the view is the lease of the permission, or, after a round, the replica
    /// is the same and has the version of the request. A split in between moved keys away, and the
    /// view may lack what their new owner wrote; a replica destroyed in between took its pairs with
    /// it.
    pub fn may_answer(&self, readers: &Readers, now_nanos: u64) -> Result<bool, Refusal> {
        if let Some(lease) = self.lease {
            return Ok(self.reader.is_still_valid(lease, now_nanos));
        }
        let current = readers.get(self.header.region);
        if !current.is_some_and(|current| Arc::ptr_eq(&current, &self.reader)) {
            return Err(Refusal::RegionNotFound);
        }
        self.reader.check(&self.header).map(|()| true)
    }

    /// Returns whether a lease permits it.
    pub fn is_by_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// Takes a view under a lease, all steps at once: `None` if no lease allowed the request before
    /// and after it.
    pub fn leased_view<V, E>(
        reader: &Arc<Reader>,
        header: &Header,
        now_nanos: impl Fn() -> u64,
        view: impl FnOnce() -> Result<V, E>,
    ) -> Result<Option<V>, E> {
        let Some(lease) = reader.lease(header, now_nanos()) else { return Ok(None) };
        let view = view()?;
        Ok(reader.is_still_valid(lease, now_nanos()).then_some(view))
    }
}
