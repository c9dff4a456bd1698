//! Region split: the region keeps its first part, each new region starts at a split key.

use super::Peer;
use super::membership::Plan;
use crate::admin::{self, Change};
use crate::input::NewRegion;
use crate::output::{Busy, Refusal};
use crate::store::{Context, Effect};
use bytes::Bytes;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Region, Term};

/// Index and term after which the log of a split child starts.
pub(crate) const CHILD_STARTS_AFTER: (LogIndex, Term) = (LogIndex(5), Term(5));

impl<E: StorageEngine> Peer<E> {
    pub(super) fn plan_split(&self, keys: &[Bytes], new_ids: &[NewRegion]) -> Plan {
        self.check_phase()?;
        if self.region.is_joint() {
            return Err(Busy::Wait { reason: "a membership change is in progress" }.into());
        }
        let regions = admin::split(&self.region, keys, new_ids).map_err(Refusal::Invalid)?;
        Ok((Change::Split { count: new_ids.len() }, regions))
    }

    /// Creates the new regions. Where this peer leads, its replicas of them campaign at once: no
    /// other peer has a reason to.
    pub(super) fn split_applied(&mut self, ctx: &mut Context<E>, children: Vec<Region>) {
        // After a crash, opening must apply the split before the children's own entries. It does:
        // every batch carries the changed commit indexes, so the one that commits the split is
        // durable no later than the start of the children's logs.
        self.split_children = children.clone();
        let campaign = self.is_leader();
        for region in children {
            ctx.effects.push(Effect::Create { region, after: CHILD_STARTS_AFTER, campaign });
        }
    }
}
