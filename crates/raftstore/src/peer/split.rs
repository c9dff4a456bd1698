//! Splitting: the region keeps its first part, each new one begins at a key.

use super::Peer;
use super::membership::Plan;
use crate::admin::{self, Change};
use crate::input::NewRegion;
use crate::output::Refusal;
use crate::store::{Context, Effect};
use bytes::Bytes;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Region, Term};

/// The log of a region that a split makes begins after this entry.
pub(crate) const CHILD_STARTS_AFTER: (LogIndex, Term) = (LogIndex(5), Term(5));

impl<E: StorageEngine> Peer<E> {
    pub(super) fn plan_split(&self, keys: &[Bytes], new_ids: &[NewRegion]) -> Plan {
        self.check_phase()?;
        if self.region.is_joint() {
            return Err(Refusal::Busy { reason: "a change of members is under way" });
        }
        let regions = admin::split(&self.region, keys, new_ids).map_err(Refusal::Invalid)?;
        Ok((Change::Split { count: new_ids.len() }, regions))
    }

    /// The new regions come to be. Where this peer leads, theirs campaign at once: nobody else has
    /// reason to.
    pub(super) fn split_applied(&mut self, ctx: &mut Context<E>, children: Vec<Region>) {
        // A crash from here on must apply the split at open before the children's own entries. It
        // does: commit indexes ride on every batch, so the one that commits the split is on disk
        // with the children's beginning at the latest.
        self.split_children = children.clone();
        let campaign = self.is_leader();
        for region in children {
            ctx.effects.push(Effect::Create { region, after: CHILD_STARTS_AFTER, campaign });
        }
    }
}
