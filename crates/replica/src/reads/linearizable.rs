//! A linearizable read outside the loop: a lease or a round of the core permits it; then a view, and
//! the effects of the window over it.

use crate::{Busy, Header, ReadGate, ReadPermit, Reader, Refusal, Reply};
use std::sync::Arc;
use stele_storage::{EngineView, Overlaid};

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
