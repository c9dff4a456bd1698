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
use crate::{Admit, Admitted, EngineView, Order, Pair, ScanOptions};
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
) -> Result<Admitted<Vec<Pair>>> {
    let order = options.order;
    let mut points = Points { points: effects.points(&options.range, order).peekable(), order };
    let mut output = Output::new(options);
    // Keys that are not merged yet.
    let mut rest = Some(options.range.clone());
    // Doubles while reads return only hidden pairs, so that many deletes cost few reads.
    let mut pairs_min = 1;
    while !output.is_full
        && let Some(range) = rest
    {
        if let Some(interval) = effects.range_delete_at_edge(&range, order) {
            rest = after_interval(range, interval, order);
        } else {
            let limit = output.pairs_missing().max(pairs_min);
            let bytes_max = output.bytes_missing();
            let part = ScanOptions { range, limit, bytes_max, ..*options };
            let Admitted::Read(pairs) = view.scan_admitted(&part, &mut *admit)? else {
                return Ok(Admitted::Refused);
            };
            rest = pairs.last().and_then(|last| after_key(part.range, &last.key, order));
            // bug overlay.scan_without_refill: rest = None;
            let is_any_visible = output.push_visible(pairs, &mut points, effects);
            pairs_min = if is_any_visible { 1 } else { (2 * pairs_min).min(HIDDEN_MAX) };
        }
        points.emit_outside(rest.as_ref(), &mut output);
    }
    Ok(Admitted::Read(output.pairs))
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
            output.push(placed.pair());
        }
    }

    fn emit_before(&mut self, key: &Bytes, output: &mut Output<'_>) {
        let order = self.order;
        let is_before = |point: &[u8]| match order {
            Order::Forward => point < &key[..],
            Order::Reverse => point > &key[..],
        };
        while !output.is_full
            && let Some(placed) = self.points.next_if(|it| is_before(it.key()))
        {
            output.push(placed.pair());
        }
    }

    fn take(&mut self, key: &[u8]) -> Option<Placed<'a>> {
        self.points.next_if(|next| next.key() == key)
    }
}

/// Pairs of the scan so far, within the limits of its options.
struct Output<'a> {
    options: &'a ScanOptions,
    pairs: Vec<Pair>,
    bytes: usize,
    is_full: bool,
}

impl<'a> Output<'a> {
    fn new(options: &'a ScanOptions) -> Self {
        Self { options, pairs: Vec::new(), bytes: 0, is_full: options.limit == 0 }
    }

    fn pairs_missing(&self) -> usize {
        self.options.limit - self.pairs.len()
    }

    fn bytes_missing(&self) -> usize {
        self.options.bytes_max.saturating_sub(self.bytes)
    }

    /// Adds pairs of the view, with the effects on them and before them. Returns whether any pair
    /// of the view is visible.
    fn push_visible(
        &mut self,
        pairs: Vec<Pair>,
        points: &mut Points<'_>,
        effects: &Effects,
    ) -> bool {
        let mut is_any_visible = false;
        for pair in pairs {
            points.emit_before(&pair.key, self);
            match points.take(&pair.key) {
                Some(placed) => self.push(placed.pair()),
                None if effects.is_range_deleted(&pair.key) => {}
                None => {
                    is_any_visible = true;
                    self.push(Some(pair));
                }
            }
        }
        is_any_visible
    }

    /// Adds a pair, unless the output is full or becomes so by it.
    fn push(&mut self, pair: Option<Pair>) {
        let Some(mut pair) = pair.filter(|_| !self.is_full) else { return };
        if self.options.keys_only {
            pair.value = Bytes::new();
        }
        let bytes = self.bytes + pair.key.len() + pair.value.len();
        if bytes > self.options.bytes_max && !self.pairs.is_empty() {
            self.is_full = true;
            return;
        }
        self.bytes = bytes;
        self.pairs.push(pair);
        self.is_full = self.pairs.len() == self.options.limit;
    }
}
