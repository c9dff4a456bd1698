//! Checks that a reopened store refuses a snapshot of entries that its log holds.

use super::DiskCopy;
use crate::world::World;
use std::sync::Arc;
use stele_replica::{Done, Input, RaftStore, Reply, Request, RequestId, SnapshotHeader};
use stele_storage::LogStore;
use stele_types::Prng;

impl World {
    pub(super) fn check_snapshot_offers(
        &self,
        number: u64,
        copy: &DiskCopy,
        prng: &mut Prng,
    ) -> Option<String> {
        let slot = self.slots.get(&number)?;
        let id = slot.id?;
        let now = self.nodes.get(&slot.node)?.now(self.now);
        let store = Arc::new(copy.after(prng).open_store().ok()?);
        let mut options = self.plan.raft.clone();
        options.store = id;
        options.process_incarnation = u64::MAX;
        options.seed = prng.draw();
        let mut core = match RaftStore::open(store.clone(), options, now) {
            Ok(core) => core,
            Err(error) => return Some(format!("its consensus does not open: {error}")),
        };
        let regions = slot.readers()?.all();
        for (number, region) in regions.iter().enumerate() {
            let here = store.progress(region.id).unwrap_or_default();
            let from = region.peers.iter().find(|peer| peer.store != id);
            let (Some(to), Some(from)) = (region.peer_on(id), from) else { continue };
            if here.destroyed || here.persisted.0 <= here.hard_state.commit.max(here.truncated.0) {
                continue;
            }
            let header = SnapshotHeader {
                region: (**region).clone(),
                at: here.persisted,
                leader_term: here.hard_state.term.max(here.persisted.1),
                from: *from,
                to: *to,
                bytes: 0,
                merges: None,
            };
            let offer = Request::SnapshotOffered(header);
            core.step(Input::request(RequestId(number as u64), offer));
        }
        let outputs = core.poll(now).ok()?;
        let accepts = |reply: &Reply| matches!(reply, Reply::Done(Done::SnapshotAccepted { .. }));
        let accepted = outputs.replies.iter().find(|(_, reply)| accepts(reply));
        let region = accepted.and_then(|(id, _)| regions.get(id.0 as usize));
        region.map(|region| format!("a snapshot of entries in the log of {region:?} is accepted"))
    }
}
