//! Access of the placement service to its own region.

use super::listen::Addresses;
use crate::access::Access;
use crate::members::Members;
use crate::placement::{LostQuorum, System};
use crate::store::StoreHandle;
use crate::stores::Stores;
use crate::tasks::blocking;
use crate::transport::{BoxFuture, RefusedStore, Transport};
use bytes::Bytes;
use std::sync::Arc;
use stele_node::placement;
use stele_node::succession::{Refusal, Verdict};
use stele_placement::{PairChange, SYSTEM_REGION};
use stele_replica::LinearizableRead;
use stele_replica::{Done, Header, Read, Reply};
use stele_storage::{EngineView, Pages, StateMachine};
use stele_types::{Error, Result, StoreId, StoreRun, Term};

/// Time a read may take, in nanoseconds.
const REQUEST_TIMEOUT_NANOS: u64 = 5_000_000_000;

pub(super) struct SystemRegion {
    stores: Arc<Stores>,
    members: Arc<Members>,
    transport: Transport,
    addresses: Addresses,
}

impl SystemRegion {
    pub(super) fn new(
        stores: Arc<Stores>,
        members: Arc<Members>,
        transport: Transport,
        addresses: Addresses,
    ) -> Self {
        Self { stores, members, transport, addresses }
    }

    fn store(&self) -> Option<Arc<StoreHandle>> {
        self.stores.holding(SYSTEM_REGION)
    }

    fn header(store: &StoreHandle, term: Term) -> Header {
        let deadline_nanos = store.clock().monotonic_nanos() + REQUEST_TIMEOUT_NANOS;
        Header { region: SYSTEM_REGION, term: term.0, deadline_nanos, ..Header::default() }
    }
}

fn not_here() -> Error {
    Error::Busy("the placement group is not on this node".to_owned())
}

/// Converts the answer to a request that was not executed, or may not have been.
fn not_done(reply: Reply) -> Error {
    match reply {
        Reply::Refused(refusal) => {
            Error::Busy(format!("the placement group refused the request: {refusal:?}"))
        }
        Reply::Busy(busy) => Error::Busy(format!("the placement group is busy: {busy:?}")),
        Reply::Unknown(reason) => {
            Error::Undetermined(format!("a decision of the placement group: {reason:?}"))
        }
        Reply::Done(done) => Error::invalid(format!("unexpected answer: {done:?}")),
    }
}

impl System for SystemRegion {
    fn access(&self) -> Access {
        self.transport.access().clone()
    }

    fn leader_term(&self) -> Option<Term> {
        let reader = self.store()?.readers().get(SYSTEM_REGION)?;
        reader.leading_term().map(Term)
    }

    fn leader_address(&self) -> Option<String> {
        let reader = self.store()?.readers().get(SYSTEM_REGION)?;
        let leader = reader.leader()?;
        self.members.get(leader.store).map(|member| member.known.address)
    }

    fn propose(&self, term: Term, changes: Vec<PairChange>) -> BoxFuture<'static, Result<()>> {
        let store = self.store();
        Box::pin(async move {
            let store = store.ok_or_else(not_here)?;
            let write = placement::proposal(term, &changes)?;
            match store.submit(write, None).await {
                Reply::Done(Done::Written { .. }) => Ok(()),
                other => Err(not_done(other)),
            }
        })
    }

    fn confirm(&self, term: Term) -> BoxFuture<'static, Result<()>> {
        let store = self.store();
        Box::pin(async move {
            let store = store.ok_or_else(not_here)?;
            let reader = store.readers().get(SYSTEM_REGION).ok_or_else(not_here)?;
            let leads = || reader.leading_term() == Some(term.0);
            if leads() && reader.lease_left_nanos(store.clock().monotonic_nanos()) > 0 {
                return Ok(());
            }
            let header = Self::header(&store, term);
            let read = Read { header, replica: false };
            match store.submit(read, None).await {
                Reply::Done(Done::ReadReady { .. }) if leads() => Ok(()),
                Reply::Done(Done::ReadReady { .. }) => Err(not_here()),
                other => Err(not_done(other)),
            }
        })
    }

    fn own_address(&self) -> String {
        self.addresses.nodes.clone()
    }

    fn placement_stores(&self) -> Vec<StoreId> {
        let reader = self.store().and_then(|store| store.readers().get(SYSTEM_REGION));
        let region = reader.map(|reader| reader.region());
        region.map(|it| it.peers.iter().map(|peer| peer.store).collect()).unwrap_or_default()
    }

    fn owner(&self, store: StoreId) -> Option<String> {
        self.members.get(store)?.owner
    }

    fn own_admin_address(&self) -> String {
        self.addresses.for_administrators().to_owned()
    }

    fn client_address_of(&self, address: &str) -> String {
        self.members.client_address_of(address)
    }

    fn nodes(&self) -> Vec<String> {
        self.members.addresses()
    }

    fn judge(
        &self,
        address: String,
        runs: Vec<(StoreId, StoreRun)>,
    ) -> BoxFuture<'static, Vec<RefusedStore>> {
        let transport = self.transport.clone();
        // Its own stores report to this node directly.
        let is_own = address == self.addresses.nodes;
        Box::pin(async move {
            let mut refused = Vec::new();
            for (store, run) in runs.into_iter().filter(|_| !is_own) {
                let refusal = match transport.admit(store, &run, &address).await {
                    Verdict::Same | Verdict::Successor => continue,
                    Verdict::Undecided | Verdict::Unverified => Refusal::Copy,
                    Verdict::Refused(refusal) => refusal,
                };
                refused.push(transport.refused_store(store, &run, &address, refusal));
            }
            refused
        })
    }

    fn lost_quorum(&self) -> Option<LostQuorum> {
        let region = self.store()?.readers().get(SYSTEM_REGION)?.region();
        let is_own = |store| self.stores.get(store).is_some_and(|store| store.is_running());
        let is_up = |store| is_own(store) || self.transport.is_reachable(store);
        LostQuorum::of(&region, is_up)
    }

    fn load(&self, term: Term) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>>> {
        let store = self.store();
        Box::pin(async move {
            let store = store.ok_or_else(not_here)?;
            let header = Self::header(&store, term);
            let read = Read { header, replica: false };
            match store.submit(read, None).await {
                Reply::Done(Done::ReadReady { .. }) => {}
                other => return Err(not_done(other)),
            }
            let reader = store.readers().get(header.region).ok_or_else(not_here)?;
            let view = || store.engine().view();
            let confirmed =
                LinearizableRead::confirmed_state(&reader, &header, store.readers(), view)?;
            let view = confirmed.map_err(not_done)?;
            blocking(move || pairs(&view)).await
        })
    }
}

fn pairs(view: &impl EngineView) -> Result<Vec<(Bytes, Bytes)>> {
    let mut pages = Pages::of_range(view, stele_placement::pairs::state_range());
    let mut all = Vec::new();
    while let Some(page) = pages.next_page()? {
        all.extend(page.into_iter().map(|pair| (pair.key, pair.value)));
    }
    Ok(all)
}
