//! Values that one replica can't read and another one can.

use super::Peer;
use super::snapshot::snapshot_ranges;
use crate::messages::Body;
use crate::store::Context;
use bytes::Bytes;
use stele_storage::{EngineView, LostValue, StorageEngine};
use stele_types::{Peer as PeerName, mutant};

/// Bytes of values in one answer, save that one value always fits.
const FOUND_BYTES_MAX: usize = 1 << 20;
/// Values read for one question, whether they are there or not.
const LOOKS_MAX: usize = 256;

impl<E: StorageEngine> Peer<E> {
    /// Whether an engine's key is this region's.
    pub fn owns(&self, key: &Bytes) -> bool {
        snapshot_ranges(&self.region).iter().any(|range| range.contains(key))
    }

    /// Asks another replica; with each round the next one.
    pub fn ask_for(&self, ctx: &mut Context<E>, round: usize, lost: Vec<LostValue>) {
        let others = self.region.peers.iter().filter(|peer| peer.id != self.name.id);
        let others: Vec<PeerName> = others.copied().collect();
        if let Some(to) = round.checked_rem(others.len()).and_then(|at| others.get(at)) {
            self.send(ctx, *to, Body::Lost(lost));
        }
    }

    /// Sends what is here of what another replica lost.
    pub(super) fn look_for(&self, ctx: &mut Context<E>, to: PeerName, lost: &[LostValue]) {
        let Ok(view) = ctx.engine.view() else { return };
        let (mut found, mut bytes) = (Vec::new(), 0);
        for lost in lost.iter().take(LOOKS_MAX).filter(|lost| self.owns(&lost.key)) {
            // What can't be read here either is noted by the engine, and asked for in turn.
            let Ok(Some(pair)) = view.get(&lost.key) else { continue };
            // Rule: only the very value. This replica may be ahead, or behind.
            if !lost.is(&pair.value) && !mutant::active("raftstore.finds_another_version") {
                continue;
            }
            bytes += pair.value.len();
            found.push((pair.key, pair.value));
            if bytes >= FOUND_BYTES_MAX {
                break;
            }
        }
        if !found.is_empty() {
            self.send(ctx, to, Body::Found(found));
        }
    }

    /// Hands the engine what another replica found.
    pub(super) fn take_found(&self, ctx: &mut Context<E>, pairs: Vec<(Bytes, Bytes)>) {
        for (key, value) in pairs.into_iter().filter(|(key, _)| self.owns(key)) {
            ctx.engine.mend(&key, value);
        }
    }
}
