//! Record of a store's classes, so that the next placement leader knows them at once.
//!
//! ```text
//! speed := version:u8 (1) class:u8 data_class:u8 is_measured:u8 (0 or 1)
//!          since:varint nearest:u8        later versions may append fields
//! ```
//! `since` is the Unix second since which the class differs from that of the data, and `nearest` its
//! nearest value since then; 0 and 0 while they are equal.

use super::SpeedClass;
use super::state::{SpeedState, Streak};
use crate::Millis;
use bytes::Bytes;
use stele_types::varint;

const FORMAT: u8 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpeedRecord {
    pub class: SpeedClass,
    pub data_class: SpeedClass,
    pub is_measured: bool,
    /// Unix second since which the class differs from that of the data, and the nearest since then.
    pub differs: Option<(u64, SpeedClass)>,
}

impl SpeedRecord {
    pub(crate) fn of(state: &SpeedState, now: Millis, unix_seconds: u64) -> Self {
        let differs = state.class_streak.map(|streak| {
            let seconds = (now.since(streak.since).saturating_add(streak.before_millis)) / 1000;
            (unix_seconds.saturating_sub(seconds).max(1), streak.nearest)
        });
        let SpeedState { class, data_class, is_measured, .. } = *state;
        Self { class, data_class, is_measured, differs }
    }

    /// Whether the other record says the same, but perhaps for the second: clocks differ a little.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let without_second = |record: &Self| {
            let nearest = record.differs.map(|(_, nearest)| nearest);
            (record.class, record.data_class, record.is_measured, nearest)
        };
        without_second(self) == without_second(other)
    }

    pub(crate) fn state(&self, loaded: Millis, loaded_s: u64) -> SpeedState {
        let mut state = SpeedState::new(self.class, self.is_measured);
        state.data_class = self.data_class;
        state.is_new_until = self.is_measured.then_some(loaded);
        state.class_streak = self.differs.map(|(since_s, nearest)| Streak {
            since: loaded,
            before_millis: loaded_s.saturating_sub(since_s).saturating_mul(1000),
            nearest,
        });
        state
    }

    pub(crate) fn encode(&self) -> Bytes {
        let (since_s, nearest) = self.differs.unwrap_or_default();
        let mut out = vec![FORMAT, self.class.0, self.data_class.0, u8::from(self.is_measured)];
        varint::put(&mut out, since_s);
        out.push(nearest.0);
        Bytes::from(out)
    }

    /// Decodes a record and skips what later versions append; `None` if it is malformed.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let (&[format, class, data_class, is_measured], tail) = bytes.split_first_chunk::<4>()?;
        bytes = tail;
        let since_s = varint::take(&mut bytes)?;
        let nearest = *bytes.first()?;
        let differs = (since_s > 0).then_some((since_s, SpeedClass(nearest)));
        let (class, data_class) = (SpeedClass(class), SpeedClass(data_class));
        let is_known = format >= FORMAT && is_measured <= 1;
        is_known.then_some(Self { class, data_class, is_measured: is_measured == 1, differs })
    }
}
