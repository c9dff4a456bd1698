//! Execution on a store that no node runs: the core without a network.

use super::Replica;
use crate::pages::Pages;
use std::sync::Arc;
use stele_placement::pairs;
use stele_raftstore::{
    Admin, AdminCall, Busy, Done, Header, Input, Now, Options, RaftStore, Recovery, Refusal, Reply,
    RequestId,
};
use stele_storage::StorageEngine;
use stele_types::{Error, LogIndex, Region, RegionId, Result, StoreIdent};

/// Limit for the polls of one region's recovery: far above what its entries need.
const POLLS_MAX: usize = 100_000;

/// A store that no node runs.
pub struct Offline<E: StorageEngine> {
    engine: Arc<E>,
    core: RaftStore<E>,
    ident: StoreIdent,
    now: Now,
    requests: u64,
}

impl<E: StorageEngine> Offline<E> {
    /// Opens a store. `seed` must be random. Fails with `Invalid` if it never joined a cluster.
    pub fn open(engine: Arc<E>, now: Now, seed: u64) -> Result<Self> {
        let Some(ident) = RaftStore::ident(&*engine)? else {
            return Err(Error::invalid("the store is no member of a cluster"));
        };
        let options = Options::new(ident.store, ident.cluster, seed, seed);
        let core = RaftStore::open(engine.clone(), options, now)?;
        Ok(Self { engine, core, ident, now, requests: 0 })
    }

    /// Returns the store and its cluster.
    pub fn ident(&self) -> StoreIdent {
        self.ident
    }

    /// Returns the replicas of the store.
    pub fn replicas(&mut self) -> Vec<Replica> {
        let store = self.ident.store;
        let replica = |report: stele_raftstore::RegionReport| {
            let last_term = self.engine.term(report.region.id, report.last).unwrap_or_default();
            let (term, last) = (report.term, (report.last, last_term));
            Replica { store, region: report.region, term, last, committed: report.committed }
        };
        self.core.regions().into_iter().map(replica).collect()
    }

    /// Returns the regions that the placement group has recorded, if it has a replica here.
    pub fn recorded_regions(&self) -> Result<Vec<Region>> {
        let view = self.engine.view()?;
        let mut pages = Pages::of_range(&view, pairs::state_range());
        let mut regions = Vec::new();
        while let Some(page) = pages.next_page()? {
            for pair in page {
                regions.extend(pairs::recorded_region(&pair.key, &pair.value)?);
            }
        }
        Ok(regions)
    }

    /// Makes the replica on this store the region's; durable and applied on return. Fails with
    /// `Refused` and changes nothing if it is not the replica that was compared.
    pub fn recover(&mut self, region: RegionId, recovery: &Recovery) -> Result<Region> {
        self.requests += 1;
        let id = RequestId(self.requests);
        let header = Header { region, ..Header::default() };
        let call = Admin::Recover(recovery.clone());
        self.core.step(Input::Admin(AdminCall { id, header, call }));
        let end = recovery.last.0.next();
        let mut accepted = None;
        for _ in 0..POLLS_MAX {
            if let Some(reply) = self.poll(id)? {
                accepted = Some(accepted_region(region, reply)?);
            }
            let applied = self.core.region(region).map(|report| report.applied);
            if let Some(region) = accepted.take_if(|_| applied.is_some_and(|it| it >= end)) {
                return Ok(region);
            }
        }
        let applied = self.core.region(region).map_or(LogIndex(0), |report| report.applied);
        Err(Error::Refused(format!(
            "region {region} is applied up to entry {applied} only, because an entry waits for \
             another region; recover that one first"
        )))
    }

    /// Does all work that is due. Returns the reply to a request, if it came.
    fn poll(&mut self, id: RequestId) -> Result<Option<Reply>> {
        let outputs = self.core.poll(self.now)?;
        if let Some(append) = outputs.append {
            let result = self.engine.append(&append.batch);
            self.core.step(Input::Appended { ticket: append.ticket, result });
        }
        Ok(outputs.replies.into_iter().find(|(of, _)| *of == id).map(|(_, reply)| reply))
    }
}

fn accepted_region(region: RegionId, reply: Reply) -> Result<Region> {
    let refused = |reason: String| Err(Error::Refused(format!("region {region}: {reason}")));
    match reply {
        Reply::Done(Done::Admin { region }) => Ok(region),
        Reply::Refused(Refusal::Invalid(reason)) => refused(reason),
        Reply::Busy(Busy::Wait { reason }) => refused(reason.to_owned()),
        other => refused(format!("{other:?}")),
    }
}
