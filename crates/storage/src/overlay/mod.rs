//! Effects of the committed entries of one region that are not applied, laid over a view of the
//! engine, so that reads do not wait for apply (BUC-Raft, section 5: Read Acceleration).
//!
//! Invariant: let an overlay hold the effects of all entries in (A, R]. Over a view that contains
//! exactly the entries up to some v with A ≤ v ≤ R, [`Overlaid`] reads the state after entry R.
//! If an entry in (A, R] writes a key, the overlay answers with the last such write. Otherwise the
//! states after A, v and R agree about the key, and the view answers. Therefore an effect that the
//! view already contains does no harm, but neither a gap in (A, R] nor a view outside of A to R is
//! allowed.
//!
//! The caller keeps these bounds: it pushes every entry with effects in order, it names an entry as
//! applied only when the views of later readers contain it, and a reader takes effects that reach
//! up to the applied index of its view.
//!
//! The effects are in immutable layers of consecutive entries ([`Layer`]), which readers share. A
//! layer is built and two are merged by any thread, beside the overlay; the overlay itself only adds,
//! replaces and drops whole layers.

mod effects;
mod layer;
mod merge;
#[cfg(test)]
mod tests;

pub use effects::{Effects, KeyChange};
pub use layer::Layer;

use crate::{
    Admit, Admitted, Cached, CachedGet, EngineView, GotAdmitted, Pair, PairMeta, PairSink, Passed,
    PendingGet, ScanOptions,
};
use bytes::Bytes;
use layer::Point;
use merge::merge;
use std::mem::size_of;
use std::sync::Arc;
use stele_types::{Command, Error, LogIndex, Op, Result};

const POINT_BYTES: usize = size_of::<Point>();
/// Nodes of the intervals may be filled to a third only.
const INTERVAL_BYTES: usize = 3 * size_of::<(Bytes, Bytes)>() + 64;
/// Smallest tree of intervals: one node, for up to 11 of them.
const INTERVALS_BYTES: usize = 11 * size_of::<(Bytes, Bytes)>() + 64;
/// Reference counts of the payload, and the allocator's rounding, with it.
const PAYLOAD_BYTES: usize = size_of::<(LogIndex, Bytes)>() + 64;
/// Layer without its content, and its place in the overlay, which doubles.
const LAYER_BYTES: usize = size_of::<Layer>() + 128;

/// Returns the bytes of memory that the effects of an entry need in an overlay beside its payload.
/// A merge holds each key twice. An upper estimate; 0 for a payload that is not a command.
pub fn effect_bytes(payload: &[u8]) -> u64 {
    let mut bytes = 0;
    Command::each_op_of(payload, |op| {
        bytes += match op {
            Op::Put { .. } | Op::Delete { .. } => 2 * POINT_BYTES,
            Op::DeleteRange { .. } => 2 * INTERVAL_BYTES,
        };
    });
    bytes as u64
}

/// Effects of the committed entries of one region that are not applied. Owned by the loop.
///
/// Keys and values share the memory of the pushed payloads.
#[derive(Default, Debug)]
pub struct Overlay {
    effects: Effects,
}

/// Two neighbouring layers that are due to be merged.
#[derive(Debug)]
pub struct DueMerge {
    older: Arc<Layer>,
    newer: Arc<Layer>,
}

/// Layer that replaces the two that were merged.
#[derive(Debug)]
pub struct MergedLayers {
    layer: Layer,
    from: DueMerge,
}

impl DueMerge {
    /// Merges the layers.
    pub fn merge(self) -> MergedLayers {
        MergedLayers { layer: Layer::merged(&self.older, &self.newer), from: self }
    }
}

impl Overlay {
    /// Adds the effects of the next committed entry, and merges what is due. `payload` is an encoded
    /// [`Command`]; an empty one has no effects. Fails with [`Error::Invalid`] and changes nothing if
    /// `payload` is not a readable command, or if `index` is not above the last entry.
    pub fn push(&mut self, index: LogIndex, payload: &Bytes) -> Result<()> {
        self.add(Layer::of([(index, payload.clone())])?)?;
        while let Some(due) = self.due_merge() {
            self.replace(due.merge());
        }
        Ok(())
    }

    /// Adds the effects of the next committed entries, in O(1). Fails with [`Error::Invalid`] and
    /// changes nothing if an entry is not above the last one.
    pub fn add(&mut self, layer: Layer) -> Result<()> {
        let Some((first, _)) = layer.entries() else { return Ok(()) };
        let last = self.layers().last().and_then(|layer| layer.entries());
        if let Some((_, last)) = last
            && first <= last
        {
            return Err(Error::invalid(format!("overlay: entry {first} after entry {last}")));
        }
        self.effects.layers.push(Arc::new(layer));
        Ok(())
    }

    /// Returns the layers to merge next, if there are any. A key is merged once each time the layer
    /// that holds it doubles, and the number of layers stays logarithmic up to the size from which
    /// on they are not merged: their keys would stay until the newest entry is applied.
    pub fn due_merge(&self) -> Option<DueMerge> {
        let [.., older, newer] = self.layers() else { return None };
        let is_due = !older.is_large() && older.size() <= 2 * newer.size();
        is_due.then(|| DueMerge { older: older.clone(), newer: newer.clone() })
    }

    /// Replaces layers with what they were merged to, unless one of them is gone.
    pub fn replace(&mut self, merged: MergedLayers) {
        let MergedLayers { layer, from } = merged;
        let place = self.layers().iter().position(|it| Arc::ptr_eq(it, &from.older));
        let Some(place) = place else { return };
        if self.layers().get(place + 1).is_some_and(|it| Arc::ptr_eq(it, &from.newer)) {
            self.effects.layers.splice(place..place + 2, [Arc::new(layer)]);
        }
    }

    /// Removes the layers of which all entries are up to and including `applied`, and returns them:
    /// to free them takes longer than to remove them.
    ///
    /// Invariant: a layer stays whole until its last entry is applied. What its earlier entries put
    /// would else be missing, and what they deleted by range would hide it.
    pub fn note_applied(&mut self, applied: LogIndex) -> Vec<Arc<Layer>> {
        // bug overlay.pruned_too_far: let applied = applied.next();
        let is_applied =
            |layer: &Arc<Layer>| layer.entries().is_none_or(|(_, last)| last <= applied);
        let count = self.layers().iter().take_while(|layer| is_applied(layer)).count();
        match count == self.layers().len() {
            true => std::mem::take(&mut self.effects.layers),
            false => self.effects.layers.drain(..count).collect(),
        }
    }

    /// Removes all effects and frees their memory.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether the overlay has no effects.
    pub fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }

    /// Returns the bytes of memory that the overlay holds: payloads with their keys and values, and
    /// its own structure. An upper estimate; memory that only snapshots of readers still hold does
    /// not count.
    pub fn bytes(&self) -> u64 {
        self.layers().iter().map(|layer| layer.bytes()).sum()
    }

    /// Returns the effect on a key: `None` without one, `Some(None)` for a deleted key.
    pub fn get(&self, key: &[u8]) -> Option<Option<Pair>> {
        self.effects.get(key)
    }

    /// Returns a snapshot for readers. Its cost is that of the number of layers. Later changes of the
    /// overlay do not change it.
    pub fn effects(&self) -> Effects {
        self.effects.clone()
    }

    fn layers(&self) -> &[Arc<Layer>] {
        &self.effects.layers
    }
}

/// View of an engine with effects laid over it: the state after the last entry of the effects.
///
/// Invariant: the view contains every entry before the first one of the effects, and none after the
/// last one.
#[derive(Clone, Debug)]
pub struct Overlaid<V> {
    view: V,
    effects: Effects,
}

impl<V: EngineView> Overlaid<V> {
    /// Lays `effects` over `view`.
    pub fn new(view: V, effects: Effects) -> Self {
        Self { view, effects }
    }

    /// Returns the view below the effects.
    pub fn view(&self) -> &V {
        &self.view
    }

    /// Returns the effects over the view.
    pub fn effects(&self) -> &Effects {
        &self.effects
    }

    /// Returns whether there are effects.
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }
}

impl<V: EngineView> EngineView for Overlaid<V> {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        match self.effects.get(key) {
            Some(effect) => Ok(effect),
            None => self.view.get(key),
        }
    }

    fn get_cached(&self, key: &[u8]) -> Result<CachedGet> {
        match self.effects.get(key) {
            Some(effect) => Ok(CachedGet::Ready(effect)),
            None => self.view.get_cached(key),
        }
    }

    fn prefetch(&self, keys: &[Bytes]) {
        self.view.prefetch(keys);
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        if !self.effects.has_effect_in(&options.range) {
            return self.view.scan(options);
        }
        let mut pairs = Vec::new();
        self.scan_into(options, &mut |_, _| true, &mut pairs)?.read()?;
        Ok(pairs)
    }

    fn get_many(&self, gets: Vec<PendingGet>, admit: Admit<'_>) -> Vec<Result<GotAdmitted>> {
        // The values of effects are in memory.
        let effect = |get: &PendingGet| {
            // bug overlay.many_gets_without_effects: return None;
            self.effects.get(&get.key)
        };
        let effects: Vec<Option<Option<Pair>>> = gets.iter().map(effect).collect();
        let without = gets.into_iter().zip(&effects).filter(|(_, effect)| effect.is_none());
        let below = without.map(|(get, _)| get).collect();
        let mut read = self.view.get_many(below, admit).into_iter();
        let of = |effect| match effect {
            Some(effect) => Some(Ok(Admitted::Read(effect))),
            None => read.next(),
        };
        effects.into_iter().map_while(of).collect()
    }

    fn get_meta(&self, key: &[u8]) -> Result<Option<PairMeta>> {
        match self.effects.get(key) {
            Some(effect) => Ok(effect.as_ref().map(Pair::meta)),
            None => self.view.get_meta(key),
        }
    }

    fn get_meta_cached(&self, key: &[u8]) -> Result<Cached<Option<PairMeta>>> {
        match self.effects.get(key) {
            Some(effect) => Ok(Cached::Ready(effect.as_ref().map(Pair::meta))),
            None => self.view.get_meta_cached(key),
        }
    }

    fn scan_into(
        &self,
        options: &ScanOptions,
        admit: Admit<'_>,
        sink: &mut dyn PairSink,
    ) -> Result<Admitted<Passed>> {
        if !self.effects.has_effect_in(&options.range) {
            return self.view.scan_into(options, admit, sink);
        }
        merge(&self.view, &self.effects, options, admit, sink)
    }

    fn scan_cached(
        &self,
        options: &ScanOptions,
        admit: Admit<'_>,
        sink: &mut dyn PairSink,
    ) -> Result<Cached<Admitted<Passed>>> {
        // Few scans meet effects, and a merge with deletes may read the view many times.
        // bug overlay.cached_scan_without_effects: never
        if self.effects.has_effect_in(&options.range) {
            return Ok(Cached::NeedsIo);
        }
        self.view.scan_cached(options, admit, sink)
    }

    fn note_scan(&self, scanned: &Passed) {
        self.view.note_scan(scanned);
    }
}
