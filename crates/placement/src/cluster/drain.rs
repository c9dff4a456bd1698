//! Progress of a leaving store, and what blocks it.

use super::Cluster;
use crate::Millis;
use crate::operator::tracker::Operators;
use crate::schedule::{ClusterView, drain, place};
use stele_types::{RegionId, StoreId};

#[derive(Clone, Copy, Debug)]
pub(super) struct DrainStart {
    since: Millis,
    held: Held,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    replicas: u64,
    bytes: u64,
    /// Bytes plus a constant for each replica: the cost of moving them.
    weight: u64,
}

/// Progress of a leaving store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainProgress {
    /// Replicas at the start: when the drain began or this leader took over.
    pub replicas_total: u64,
    /// Replicas left.
    pub replicas_left: u64,
    /// Bytes of the regions on the store at the start.
    pub bytes_total: u64,
    /// Bytes of the regions left.
    pub bytes_left: u64,
    /// Milliseconds since the start.
    pub age_millis: u64,
    /// Average speed since the start.
    pub bytes_per_second: u64,
    /// Seconds until the store is empty at this speed; `None` before anything moved.
    pub eta_seconds: Option<u64>,
    /// Region that blocks the drain.
    pub blocker: Option<Blocker>,
}

/// A region that cannot change at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Number of the region.
    pub region: RegionId,
    /// Reason, for people.
    pub reason: String,
}

impl Cluster {
    fn held_by(&self, store: StoreId) -> Held {
        let here = self.regions.iter().filter(|info| info.region.peer_on(store).is_some());
        here.fold(Held::default(), |held, info| Held {
            replicas: held.replicas + 1,
            bytes: held.bytes + info.size_bytes,
            weight: held.weight + place::weight(info),
        })
    }

    /// Records the start of new drains. Called periodically.
    pub fn note_drains(&mut self, now: Millis) {
        let leaving: Vec<StoreId> = self
            .stores
            .values()
            .filter(|store| store.state.is_leaving() && !self.drains.contains_key(&store.id))
            .map(|store| store.id)
            .collect();
        if !leaving.is_empty() && self.is_informed(now) {
            for id in leaving {
                self.drains.insert(id, DrainStart { since: now, held: self.held_by(id) });
            }
        }
    }

    /// Returns the progress of a leaving store; `None` for any other.
    pub fn drain_progress(
        &self,
        operators: &Operators,
        store: StoreId,
        now: Millis,
    ) -> Option<DrainProgress> {
        self.stores.get(&store).filter(|known| known.state.is_leaving())?;
        let left = self.held_by(store);
        let start = self.drains.get(&store).copied();
        let start = start.unwrap_or(DrainStart { since: now, held: left });
        let moved_weight = start.held.weight.saturating_sub(left.weight);
        let moved_bytes = start.held.bytes.saturating_sub(left.bytes);
        let millis = now.since(start.since).max(1);
        let eta_millis = u128::from(left.weight) * u128::from(millis);
        let eta = eta_millis.checked_div(u128::from(moved_weight)).map(|eta| eta.div_ceil(1000));
        let view = ClusterView { cluster: self, operators, now };
        Some(DrainProgress {
            replicas_total: start.held.replicas.max(left.replicas),
            replicas_left: left.replicas,
            bytes_total: start.held.bytes.max(left.bytes),
            bytes_left: left.bytes,
            age_millis: now.since(start.since),
            bytes_per_second: moved_bytes.saturating_mul(1000) / millis,
            eta_seconds: match left.replicas {
                0 => Some(0),
                _ => eta.and_then(|eta| u64::try_from(eta).ok()),
            },
            blocker: drain::blocker(&view, store),
        })
    }
}
