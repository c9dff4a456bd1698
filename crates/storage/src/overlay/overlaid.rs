//! View of an engine with effects laid over it.

use super::Effects;
use super::merge::merge;
use crate::{Admit, Admitted, Cached, EngineView, Pair, ScanOptions};
use stele_types::Result;

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

    fn get_cached(&self, key: &[u8]) -> Result<Cached<Option<Pair>>> {
        match self.effects.get(key) {
            Some(effect) => Ok(Cached::Ready(effect)),
            None => self.view.get_cached(key),
        }
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        if !self.effects.has_effect_in(&options.range) {
            return self.view.scan(options);
        }
        merge(&self.view, &self.effects, options, &mut |_, _| true)?.read()
    }

    fn get_admitted(&self, key: &[u8], admit: Admit<'_>) -> Result<Admitted<Option<Pair>>> {
        match self.effects.get(key) {
            // Its value is in memory.
            Some(effect) => Ok(Admitted::Read(effect)),
            None => self.view.get_admitted(key, admit),
        }
    }

    fn scan_admitted(
        &self,
        options: &ScanOptions,
        admit: Admit<'_>,
    ) -> Result<Admitted<Vec<Pair>>> {
        if !self.effects.has_effect_in(&options.range) {
            return self.view.scan_admitted(options, admit);
        }
        merge(&self.view, &self.effects, options, admit)
    }

    fn note_scan(&self, pairs: &[Pair]) {
        self.view.note_scan(pairs);
    }
}
