//! Scans of a view and of effects, merged.
//!
//! A delete hides a pair of the view, so a scan of n pairs may need more than n pairs of the view.
//! BUC-Raft reads n + k pairs if the unapplied entries contain k deletes, or waits until they are
//! applied, by estimated cost. The scan here needs neither k nor a wait: it reads the missing number
//! of pairs after the last key that it has, until it has n. A range delete is skipped without a
//! read once the scan reaches it.
//!
//! Memory is bounded by the options: each read of the view has at most their bytes and
//! [`HIDDEN_MAX`] pairs beyond their limit.

use super::effects::Effects;
use super::layer::Placed;
use crate::{
    Admit, Admitted, EngineView, FoundPair, Order, Pair, PairSink, Passed, ScanOptions, SharedSlice,
};
use bytes::Bytes;
use std::iter::Peekable;
use stele_types::{KeyRange, Result, key_after};

/// Most pairs that are read at once although fewer are missing.
const HIDDEN_MAX: usize = 256;

/// Scans `effects` over `view`, of which `admit` allows the reads. The range of the options must not
/// be empty.
pub(super) fn merge<V: EngineView>(
    view: &V,
    effects: &Effects,
    options: &ScanOptions,
    admit: Admit<'_>,
    sink: &mut dyn PairSink,
) -> Result<Admitted<Passed>> {
    let order = options.order;
    let points = Points { points: effects.points(&options.range, order).peekable(), order };
    let output = Output::new(options, sink);
    let mut merged = Merged { points, effects, output, is_any_visible: false };
    // Keys that are not merged yet.
    let mut rest = Some(options.range.clone());
    // Doubles while reads return only hidden pairs, so that many deletes cost few reads.
    let mut pairs_min = 1;
    while !merged.output.is_full
        && let Some(range) = rest
    {
        if let Some(interval) = effects.range_delete_at_edge(&range, order) {
            rest = after_interval(range, interval, order);
        } else {
            let limit = merged.output.pairs_missing().max(pairs_min);
            let bytes_max = merged.output.bytes_missing();
            let part = ScanOptions { range, limit, bytes_max, ..*options };
            merged.is_any_visible = false;
            let Admitted::Read(read) = view.scan_into(&part, &mut *admit, &mut merged)? else {
                return Ok(Admitted::Refused);
            };
            rest = read.last_key().and_then(|last| after_key(part.range, last, order));
            // bug overlay.scan_without_refill: rest = None;
            let is_any_visible = merged.is_any_visible;
            pairs_min = if is_any_visible { 1 } else { (2 * pairs_min).min(HIDDEN_MAX) };
        }
        merged.points.emit_outside(rest.as_ref(), &mut merged.output);
    }
    Ok(Admitted::Read(merged.output.passed()))
}

fn after_interval(range: KeyRange, interval: KeyRange, order: Order) -> Option<KeyRange> {
    match order {
        Order::Forward => from(range, interval.end),
        Order::Reverse => upto(range, interval.start),
    }
}

fn after_key(range: KeyRange, key: &[u8], order: Order) -> Option<KeyRange> {
    match order {
        Order::Forward => from(range, key_after(key)),
        Order::Reverse => upto(range, Bytes::copy_from_slice(key)),
    }
}

/// Returns the keys of `range` from `start` on; none if `start` is empty, which is no upper bound
/// of an interval.
fn from(range: KeyRange, start: Bytes) -> Option<KeyRange> {
    let rest = KeyRange { start, end: range.end };
    (!rest.start.is_empty() && !rest.is_empty()).then_some(rest)
}

/// Returns the keys of `range` below `end`; none if `end` is the empty key, the first of all.
fn upto(range: KeyRange, end: Bytes) -> Option<KeyRange> {
    let rest = KeyRange { start: range.start, end };
    (!rest.end.is_empty() && !rest.is_empty()).then_some(rest)
}

/// Points that are not merged yet, in the order of the scan.
struct Points<'a> {
    points: Peekable<super::effects::Points<'a>>,
    order: Order,
}

impl<'a> Points<'a> {
    /// Moves the points outside of `rest` to the output: they come before it.
    fn emit_outside(&mut self, rest: Option<&KeyRange>, output: &mut Output<'_>) {
        while !output.is_full
            && let Some(placed) =
                self.points.next_if(|it| rest.is_none_or(|rest| !rest.contains(it.key())))
        {
            output.push_effect(placed.pair());
        }
    }

    fn emit_before(&mut self, key: &[u8], output: &mut Output<'_>) {
        let order = self.order;
        let is_before = |point: &[u8]| match order {
            Order::Forward => point < key,
            Order::Reverse => point > key,
        };
        while !output.is_full
            && let Some(placed) = self.points.next_if(|it| is_before(it.key()))
        {
            output.push_effect(placed.pair());
        }
    }

    fn take(&mut self, key: &[u8]) -> Option<Placed<'a>> {
        self.points.next_if(|next| next.key() == key)
    }
}

/// Takes the pairs of the view and passes them on with the effects on them and before them.
struct Merged<'a> {
    points: Points<'a>,
    effects: &'a Effects,
    output: Output<'a>,
    /// Whether a pair of the view is visible.
    is_any_visible: bool,
}

impl PairSink for Merged<'_> {
    fn expect(&mut self, pairs: usize, bytes: u64) {
        self.output.sink.expect(pairs, bytes);
    }

    fn take(&mut self, pair: FoundPair<'_>) {
        self.points.emit_before(&pair.key, &mut self.output);
        match self.points.take(&pair.key) {
            Some(placed) => self.output.push_effect(placed.pair()),
            None if self.effects.is_range_deleted(&pair.key) => {}
            None => {
                self.is_any_visible = true;
                self.output.push(pair);
            }
        }
    }
}

/// Passes the pairs of the scan on, within the limits of its options.
struct Output<'a> {
    options: &'a ScanOptions,
    sink: &'a mut dyn PairSink,
    pairs: usize,
    bytes: usize,
    value_bytes: u64,
    first_key: Vec<u8>,
    last_key: Vec<u8>,
    is_full: bool,
}

impl<'a> Output<'a> {
    fn new(options: &'a ScanOptions, sink: &'a mut dyn PairSink) -> Self {
        Self {
            options,
            sink,
            pairs: 0,
            bytes: 0,
            value_bytes: 0,
            first_key: Vec::new(),
            last_key: Vec::new(),
            is_full: options.limit == 0,
        }
    }

    fn pairs_missing(&self) -> usize {
        self.options.limit - self.pairs
    }

    fn bytes_missing(&self) -> usize {
        self.options.bytes_max.saturating_sub(self.bytes)
    }

    fn passed(&self) -> Passed {
        Passed::new(self.pairs, self.value_bytes, &self.first_key, &self.last_key)
    }

    fn push_effect(&mut self, pair: Option<Pair>) {
        if let Some(pair) = &pair {
            self.push(pair.into());
        }
    }

    /// Passes a pair on, unless the output is full or becomes so by it.
    ///
    /// Invariant: the answer has no pair beyond its limits. It ends with the last pair that fits.
    /// Test: `a_scan_over_effects_passes_on_what_fits_and_ends_there`.
    fn push(&mut self, mut pair: FoundPair<'_>) {
        // bug overlay.scan_passes_on_more: never
        if self.is_full {
            return;
        }
        if self.options.keys_only {
            pair.value = SharedSlice::empty();
        }
        let bytes = self.bytes + pair.key.len() + pair.value.len();
        if bytes > self.options.bytes_max && self.pairs > 0 {
            self.is_full = true;
            return;
        }
        if self.pairs == 0 {
            self.first_key.extend_from_slice(&pair.key);
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(&pair.key);
        (self.bytes, self.pairs) = (bytes, self.pairs + 1);
        self.value_bytes += pair.value.len() as u64;
        self.sink.take(pair);
        self.is_full = self.pairs == self.options.limit;
    }
}
