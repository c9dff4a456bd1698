//! The search for damage that nobody has met yet: everything the index leads to is read off the
//! device, key by key, within a budget of bytes a second. What nothing leads to is not looked at.

use super::slice::{Extent, SLICE_PAIRS_MAX, Slice};
use super::{Shared, View};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use stele_storage::Order;
use stele_types::{Clock, KeyRange, Result, mutant};

const SECOND_NANOS: u64 = 1_000_000_000;

/// Figures of one store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// Bytes of keys and values looked at.
    pub bytes: u64,
    /// Times that everything was looked at.
    pub passes: u64,
    /// Passes cut short, since a part of the index could not be read.
    pub cut_short: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Scrub {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where to go on; empty at a beginning.
    from: Bytes,
    began_nanos: Option<u64>,
    /// What may be read, as of the last step; below 0 after a large value.
    credit_bytes: i64,
    stepped_nanos: u64,
    stats: ScrubStats,
}

impl Scrub {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State { stepped_nanos: clock.monotonic_nanos(), ..State::default() };
        Self { clock, state: Mutex::new(state) }
    }

    pub fn stats(&self) -> ScrubStats {
        self.state.lock().stats
    }

    /// Looks at about `bytes_max` bytes, if the budget allows.
    pub fn step(&self, shared: &Arc<Shared>, bytes_max: u64) {
        let rate = shared.options.scrub_bytes_per_second_max;
        let Some(mut state) = self.state.try_lock().filter(|_| rate > 0) else { return };
        let now = self.clock.monotonic_nanos();
        state.earn(now, rate);
        let is_due = match state.began_nanos {
            Some(began) if state.from.is_empty() => {
                let interval = shared.options.scrub_interval_s.saturating_mul(SECOND_NANOS);
                now.saturating_sub(began) >= interval
            }
            _ => true,
        };
        let credit = u64::try_from(state.credit_bytes).unwrap_or_default();
        if !is_due || credit == 0 {
            return;
        }
        if state.from.is_empty() {
            state.began_nanos = Some(now);
        }
        let bytes = match look(shared, &state.from, bytes_max.min(credit)) {
            Ok(Some((next, bytes))) => {
                state.from = next;
                bytes
            }
            Ok(None) => {
                state.from = Bytes::new();
                state.stats.passes += 1;
                0
            }
            // Tried again with the next pass.
            Err(_) => {
                state.from = Bytes::new();
                state.stats.cut_short += 1;
                0
            }
        };
        state.credit_bytes -= bytes as i64;
        state.stats.bytes += bytes;
    }
}

impl State {
    /// Earns what time has brought, at most a second's worth.
    fn earn(&mut self, now_nanos: u64, rate: u64) {
        let nanos = now_nanos.saturating_sub(self.stepped_nanos).min(SECOND_NANOS);
        let earned = u128::from(nanos) * u128::from(rate) / u128::from(SECOND_NANOS);
        // Steps that earn less than a byte add up.
        if earned > 0 {
            self.stepped_nanos = now_nanos;
            let most = i64::try_from(rate).unwrap_or(i64::MAX);
            self.credit_bytes = self.credit_bytes.saturating_add(earned as i64).min(most);
        }
    }
}

/// Looks at the next pairs: where to go on, and how many bytes they were. `None` at the end.
fn look(shared: &Arc<Shared>, from: &Bytes, bytes_max: u64) -> Result<Option<(Bytes, u64)>> {
    let view = View::new(shared);
    let range = KeyRange { start: from.clone(), end: Bytes::new() };
    let mut iter = view.references(range, Order::Forward)?;
    let extent = Extent { pairs_max: SLICE_PAIRS_MAX, bytes_max, keys_only: false };
    let slice = Slice::collect(&mut iter, extent)?;
    if slice.is_empty() {
        return Ok(None);
    }
    let bytes = slice.bytes();
    let mut next = match mutant::active("engine.scrub_reads_nothing") {
        true => Bytes::copy_from_slice(slice.last_key()),
        false => slice.check(shared)?,
    }
    .to_vec();
    next.push(0);
    Ok(Some((next.into(), bytes)))
}
