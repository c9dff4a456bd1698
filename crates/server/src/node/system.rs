//! Access of the placement service to its own region.

use super::listen::Addresses;
use crate::access::Access;
use crate::members::Members;
use crate::placement::{LostQuorum, System, SystemLog};
use crate::store::{Engine, StoreHandle};
use crate::stores::Stores;
use crate::tasks::blocking;
use crate::transport::{BoxFuture, RefusedStore, Transport};
use bytes::Bytes;
use std::sync::Arc;
use stele_engine::History;
use stele_node::placement;
use stele_node::succession::{Refusal, Verdict};
use stele_placement::{PairChange, SYSTEM_REGION};
use stele_replica::LinearizableRead;
use stele_replica::{Done, Header, Read, Reply};
use stele_storage::{EngineView, Pages, StateMachine};
use stele_types::{
    Command, CommittedEntry, Error, LogIndex, Op, Result, StoreId, StoreRun, Term, keyspace,
};

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

    fn read_log(&self, from: Option<LogIndex>) -> BoxFuture<'static, Result<SystemLog>> {
        let store = self.store();
        Box::pin(async move {
            let store = store.ok_or_else(not_here)?;
            let reader = store.readers().get(SYSTEM_REGION).ok_or_else(not_here)?;
            let applied = reader.applied();
            blocking(move || read_log(store.engine(), applied, from)).await
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

/// Entries of the log that are shown to a reader without a place in it.
const LAST_ENTRIES: u64 = 1000;
/// Bytes of entries that are read at once.
const LOG_BYTES: usize = 256 << 10;

fn read_log(engine: &Engine, applied: LogIndex, from: Option<LogIndex>) -> Result<SystemLog> {
    let read = |next| engine.history(SYSTEM_REGION, next).read(applied, LOG_BYTES);
    // The least index that is there lies in here: from the one after the last applied on, all are.
    let (mut gone, mut next) = (applied.0.saturating_sub(LAST_ENTRIES), applied.next().0);
    let has_missed = match from.map(|from| (from, read(from))) {
        Some((_, Ok(History::TooOld))) => true,
        Some((from, _)) => {
            next = from.0;
            gone = next.saturating_sub(1);
            false
        }
        None => false,
    };
    while gone + 1 < next {
        let middle = gone + (next - gone) / 2;
        match read(LogIndex(middle))? {
            History::TooOld => gone = middle,
            History::Entries(_) | History::UpToDate => next = middle,
        }
    }
    let mut log = SystemLog { next: LogIndex(next), has_missed, ..SystemLog::default() };
    if let History::Entries(entries) = read(log.next)? {
        log.next = entries.last().map_or(log.next, |last| last.index.next());
        log.has_more = log.next <= applied;
        entries.iter().for_each(|entry| add_changes(entry, &mut log.changes));
    }
    Ok(log)
}

/// Adds the pairs that an entry changes. Ranges of them are deleted only with the region.
fn add_changes(entry: &CommittedEntry, changes: &mut Vec<(LogIndex, PairChange)>) {
    if !entry.is_command {
        return;
    }
    Command::each_op_of(&entry.payload, |op| {
        let (key, value) = match op {
            Op::Put { key, value, .. } => (key, Some(entry.payload.slice_ref(value))),
            Op::Delete { key } => (key, None),
            Op::DeleteRange { .. } => return,
        };
        if key.first() == Some(&keyspace::SYSTEM) {
            let key = entry.payload.slice_ref(key);
            changes.push((entry.index, PairChange { key, value }));
        }
    });
}
