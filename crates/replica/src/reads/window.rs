//! Entries that are committed and not applied, as request threads see them: a read lays their effects
//! over a view of the engine instead of waiting for apply (BUC-Raft, read acceleration).
//!
//! A window is {A, R, entries in (A, R]}: A is applied, R is committed. The loop publishes it; a
//! request thread notes A ([`Window::mark`]), takes a view, and then takes the effects
//! ([`Window::effects`]), if A is still the same.
//!
//! Invariant: effects are laid over a view only if A ≤ view ≤ R. It follows from these rules:
//! - A is published after it is applied, so that a view taken after the mark holds all up to A.
//! - R is published before anything above A is applied, so that a view never holds more than R while
//!   effects are laid over it. An old effect would else hide a newer value.
//! - R is published before a write up to R is answered, and before a follower learns that it is
//!   committed.
//! - Therefore the same A before and after the view means A ≤ view ≤ R, and the entries in (A, R]
//!   over the view are exactly the state at R, however many of them the view holds.
//! - The window ends before the first administrative entry that is not applied: that entry may move
//!   keys to another region.
//!
//! Tests: `a_view_that_misses_what_was_applied_meanwhile_is_not_read`,
//! `an_old_effect_never_hides_what_was_applied_after_it`.
//!
//! The loop only adds payloads and drops what is applied. Readers build the effects from the payloads
//! in pieces of whole entries, one reader at a time. Operations are read, sorted and merged while
//! `entries` is not locked, so that the loop never waits for it.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use stele_storage::{DueMerge, Effects, Layer, Overlay, Pair, Pairs};
use stele_types::{Command, LogIndex, Op, Result};

/// Bytes of payloads from which effects are built at a time; one entry always fits for a reader.
const PIECE_BYTES: usize = 64 << 10;

/// Part of the committed entries that request threads can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Coverage {
    /// All are applied: a view holds them.
    Applied,
    /// A view and the window hold them.
    Window,
    /// Some are in neither. A read asks the core when it may be served.
    Part,
}

#[derive(Debug)]
pub(crate) struct Window {
    coverage: AtomicU8,
    /// A, the last applied entry.
    applied: AtomicU64,
    /// R, the last entry in the window; `applied` if the window is empty.
    visible: AtomicU64,
    /// Held while the effects of a piece are built, before `entries`. The loop never waits for it.
    building: Mutex<()>,
    entries: Mutex<Entries>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowMark {
    coverage: Coverage,
    applied: u64,
}

impl WindowMark {
    /// Returns whether a view and the window hold all that was committed at the mark.
    pub(crate) fn is_whole(&self) -> bool {
        self.coverage != Coverage::Part
    }
}

#[derive(Debug, Default)]
struct Entries {
    /// Entries that are not in the overlay. Invariant: they follow those in the overlay, without a gap.
    fresh: VecDeque<(LogIndex, Bytes)>,
    overlay: Overlay,
}

/// For the loop. Not for more than one thread at a time.
impl Window {
    pub(crate) fn new(applied: LogIndex) -> Self {
        Self {
            coverage: AtomicU8::new(Coverage::Part as u8),
            applied: AtomicU64::new(applied.0),
            visible: AtomicU64::new(applied.0),
            building: Mutex::default(),
            entries: Mutex::default(),
        }
    }

    pub(crate) fn visible(&self) -> LogIndex {
        LogIndex(self.visible.load(Ordering::Relaxed))
    }

    /// Returns the last applied entry. The engine holds the effects of all up to it.
    pub(crate) fn applied(&self) -> LogIndex {
        // bug replica.visible_counts_as_applied: return self.visible();
        LogIndex(self.applied.load(Ordering::Acquire))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.visible.load(Ordering::Relaxed) == self.applied.load(Ordering::Relaxed)
    }

    /// Adds the entries that follow the visible ones; earlier ones are skipped.
    pub(crate) fn extend(&self, entries: impl Iterator<Item = (LogIndex, Bytes)>) {
        let mut held = self.entries.lock();
        for (index, payload) in entries {
            if index == self.visible().next() {
                self.visible.store(index.0, Ordering::Release);
                held.fresh.push_back((index, payload));
            }
        }
    }

    pub(crate) fn note_applied(&self, applied: LogIndex) {
        if self.is_empty() {
            self.visible.store(applied.0, Ordering::Release);
            return self.applied.store(applied.0, Ordering::Release);
        }
        let mut held = self.entries.lock();
        self.applied.store(applied.0, Ordering::Release);
        self.visible.fetch_max(applied.0, Ordering::AcqRel);
        // bug replica.window_keeps_applied: return;
        let count = held.fresh.iter().take_while(|(index, _)| *index <= applied).count();
        let fresh: Vec<_> = held.fresh.drain(..count).collect();
        let layers = held.overlay.note_applied(applied);
        // Their memory is freed while readers go on.
        drop(held);
        drop((fresh, layers));
    }

    /// Returns what the entries in the window do to a key; `None` if they do not change it. What no
    /// reader has built is searched, which counts in `search`; one small piece of it is built.
    pub(crate) fn effect(
        &self,
        key: &[u8],
        search: &mut KeySearch,
    ) -> Result<Option<Option<Pair>>> {
        if self.is_empty() {
            return Ok(None);
        }
        if let Some(_building) = self.building.try_lock() {
            self.build(self.visible(), false)?;
        }
        let held = self.entries.lock();
        for (_, payload) in held.fresh.iter().rev() {
            if let Some(effect) = search.last_effect(payload, key) {
                return Ok(Some(effect));
            }
        }
        Ok(held.overlay.get(key))
    }

    /// Like [`Window::effect`], for several keys: moves those that the window changes from `wanted` to
    /// `pairs`.
    pub(crate) fn take_effects(
        &self,
        wanted: &mut BTreeSet<Bytes>,
        pairs: &mut Pairs,
        search: &mut KeySearch,
    ) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        if let Some(_building) = self.building.try_lock() {
            self.build(self.visible(), false)?;
        }
        let held = self.entries.lock();
        for (_, payload) in held.fresh.iter().rev() {
            search.take_effects(payload, wanted, pairs);
        }
        wanted.retain(|key| {
            let effect = held.overlay.get(key);
            let is_unchanged = effect.is_none();
            pairs.extend(effect.map(|pair| (key.clone(), pair)));
            is_unchanged
        });
        Ok(())
    }

    pub(crate) fn set_coverage(&self, coverage: Coverage) {
        self.coverage.store(coverage as u8, Ordering::Release);
    }

    pub(crate) fn coverage(&self) -> Coverage {
        match self.coverage.load(Ordering::Acquire) {
            0 => Coverage::Applied,
            1 => Coverage::Window,
            _ => Coverage::Part,
        }
    }
}

/// For request threads.
impl Window {
    pub(crate) fn mark(&self) -> WindowMark {
        let coverage = self.coverage();
        WindowMark { coverage, applied: self.applied.load(Ordering::Acquire) }
    }

    /// Returns the effects to lay over a view that was taken since the mark; `None` if entries were
    /// applied meanwhile: the view may lack some of them, and the caller takes another one.
    pub(crate) fn effects(&self, mark: WindowMark) -> Option<Effects> {
        if mark.coverage == Coverage::Applied && self.coverage() == Coverage::Applied {
            // The view holds all that was committed at the mark.
            return Some(Effects::default());
        }
        // The view was taken before, and holds no later entry.
        let wanted = LogIndex(self.visible.load(Ordering::Acquire));
        loop {
            {
                let held = self.entries.lock();
                let applied = self.applied.load(Ordering::Acquire);
                // bug replica.window_unchecked: never
                if applied != mark.applied {
                    return None;
                }
                // bug replica.window_read_in_part: always
                if held.has_built(wanted) {
                    return Some(held.overlay.effects());
                }
            }
            let _building = self.building.lock();
            // A command that cannot be read stops the store when it is applied.
            self.build(wanted, true).ok()?;
        }
    }

    /// Builds the effects of the next entries that are not built, up to `wanted`. Called by one thread
    /// at a time.
    fn build(&self, wanted: LogIndex, may_be_large: bool) -> Result<()> {
        let next = self.entries.lock().piece(wanted, may_be_large);
        let Some((last, _)) = next.last().cloned() else { return Ok(()) };
        // bug replica.window_built_under_lock: `Layer::of(next)` is `(self.entries.lock(), Layer::of(next)).1`
        let layer = Layer::of(next)?;
        let mut due = self.add(last, layer)?;
        while let Some(merge) = due {
            let merged = merge.merge();
            let mut held = self.entries.lock();
            held.overlay.replace(merged);
            due = held.overlay.due_merge();
        }
        Ok(())
    }

    /// Adds the effects of the next entries up to `last`. Returns the layers to merge next.
    ///
    /// Invariant: what was applied meanwhile is not added. Its effects would hide what is applied
    /// after it.
    fn add(&self, last: LogIndex, layer: Layer) -> Result<Option<DueMerge>> {
        let mut held = self.entries.lock();
        let count = held.fresh.iter().take_while(|(index, _)| *index <= last).count();
        held.fresh.drain(..count);
        let is_applied = last.0 <= self.applied.load(Ordering::Acquire);
        // bug replica.window_adds_applied: always
        if !is_applied {
            held.overlay.add(layer)?;
        }
        Ok(held.overlay.due_merge())
    }
}

impl Entries {
    /// Returns whether the overlay holds all entries up to `wanted` that are not applied.
    fn has_built(&self, wanted: LogIndex) -> bool {
        self.fresh.front().is_none_or(|(index, _)| *index > wanted)
    }

    /// Returns the first entries up to `wanted` that are not in the overlay.
    fn piece(&self, wanted: LogIndex, may_be_large: bool) -> Vec<(LogIndex, Bytes)> {
        let mut bytes = 0;
        let fits = |(index, payload): &&(LogIndex, Bytes)| {
            let is_first = bytes == 0 && may_be_large;
            bytes += payload.len() + size_of::<(LogIndex, Bytes)>();
            *index <= wanted && (is_first || bytes <= PIECE_BYTES)
        };
        self.fresh.iter().take_while(fits).cloned().collect()
    }
}

/// Operations that searches may read before others wait.
const OPS_MAX: u64 = 100_000;

/// Search of payloads for their last effect on one key, for the modifications of one iteration.
#[derive(Debug, Default)]
pub(crate) struct KeySearch {
    ops: u64,
}

impl KeySearch {
    /// Returns whether so many operations were read that other work comes first.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.ops >= OPS_MAX
    }

    /// Returns a payload's effect on a key; `None` if it does not change the key. What is not a command
    /// has no effect: it changes the region, or stops the store when it is applied.
    pub(crate) fn last_effect(&mut self, payload: &Bytes, key: &[u8]) -> Option<Option<Pair>> {
        let mut effect = None;
        Command::each_op_of(payload, |op| {
            self.ops += 1;
            match op {
                Op::Put { key: put, value, expires_at_s, .. } if put == key => {
                    let (key, value) = (payload.slice_ref(put), payload.slice_ref(value));
                    effect = Some(Some(Pair { key, value, expires_at_s }));
                }
                Op::Delete { key: deleted } if deleted == key => effect = Some(None),
                Op::DeleteRange { start, end } => {
                    let is_below_end = end.is_empty() || key < end;
                    if start <= key && is_below_end {
                        effect = Some(None);
                    }
                }
                _ => {}
            }
        });
        effect
    }

    /// Like [`KeySearch::last_effect`], for several keys: moves those that the payload changes from `wanted`
    /// to `pairs`.
    pub(crate) fn take_effects(
        &mut self,
        payload: &Bytes,
        wanted: &mut BTreeSet<Bytes>,
        pairs: &mut Pairs,
    ) {
        let mut effects = Pairs::new();
        Command::each_op_of(payload, |op| {
            self.ops += 1;
            match op {
                Op::Put { key, value, expires_at_s, .. } if wanted.contains(key) => {
                    let (key, value) = (payload.slice_ref(key), payload.slice_ref(value));
                    effects.insert(key.clone(), Some(Pair { key, value, expires_at_s }));
                }
                Op::Delete { key } if wanted.contains(key) => {
                    effects.insert(payload.slice_ref(key), None);
                }
                Op::DeleteRange { start, end } => {
                    let from = (Bound::Included(start), Bound::Unbounded);
                    let keys = wanted.range::<[u8], _>(from);
                    let inside = keys.take_while(|key| end.is_empty() || key[..] < *end);
                    effects.extend(inside.map(|key| (key.clone(), None)));
                }
                Op::Put { .. } | Op::Delete { .. } => {}
            }
        });
        for key in effects.keys() {
            wanted.remove(key);
        }
        pairs.append(&mut effects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use stele_types::CommandBuilder;

    fn deletes(keys: std::ops::Range<u64>) -> Bytes {
        let mut builder = CommandBuilder::new();
        for key in keys {
            builder.delete(&key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()).unwrap();
        }
        builder.build().bytes().clone()
    }

    fn put(key: &str, value: &str) -> Bytes {
        let mut builder = CommandBuilder::new();
        builder.put(key.as_bytes(), value.as_bytes(), 0).unwrap();
        builder.build().bytes().clone()
    }

    fn window(entries: impl IntoIterator<Item = Bytes>) -> Window {
        let window = Window::new(LogIndex(0));
        window.extend((1..).map(LogIndex).zip(entries));
        window.set_coverage(Coverage::Window);
        window
    }

    fn value(effect: Option<Option<Pair>>) -> Option<String> {
        effect.flatten().map(|pair| String::from_utf8(pair.value.to_vec()).unwrap())
    }

    /// Builds the effects of one large entry beside the loop. Returns the time that the build took,
    /// and the longest wait of the loop meanwhile.
    fn build_beside_the_loop() -> (Duration, Duration) {
        let window = window([deletes(0..60_000)]);
        let mark = window.mark();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let began = Instant::now();
                assert!(window.effects(mark).is_some());
                began.elapsed()
            });
            while window.building.try_lock().is_some() && !reader.is_finished() {}
            let (mut index, mut longest) = (1, Duration::ZERO);
            while !reader.is_finished() {
                index += 1;
                let began = Instant::now();
                window.extend([(LogIndex(index), put("a", "1"))].into_iter());
                window.note_applied(LogIndex(0));
                window.effect(b"b", &mut KeySearch::default()).unwrap();
                longest = longest.max(began.elapsed());
                std::thread::sleep(Duration::from_micros(200));
            }
            (reader.join().unwrap(), longest)
        })
    }

    #[test]
    fn the_loop_does_not_wait_while_a_reader_builds_many_effects() {
        // A loaded machine may stop the thread of the loop.
        let mut tries = Vec::new();
        while tries.len() < 5 {
            let (build, longest) = build_beside_the_loop();
            if longest < build / 3 {
                return;
            }
            tries.push((build, longest));
        }
        panic!("build, longest wait: {tries:?}");
    }

    #[test]
    fn a_million_small_deletes_leave_without_being_built() {
        let window = window((0..20).map(|n| deletes(n * 50_000..(n + 1) * 50_000)));
        window.note_applied(LogIndex(10));
        let held = window.entries.lock();
        assert_eq!((held.fresh.len(), held.overlay.is_empty()), (10, true));
    }

    #[test]
    fn what_reads_see_before_it_is_applied_does_not_count_as_applied() {
        let window = window([put("a", "1"), put("b", "2")]);
        window.note_applied(LogIndex(1));
        assert_eq!((window.applied(), window.visible()), (LogIndex(1), LogIndex(2)));
        window.note_applied(LogIndex(2));
        assert_eq!((window.applied(), window.visible()), (LogIndex(2), LogIndex(2)));
    }

    #[test]
    fn effects_hold_every_entry_that_a_view_may_hold() {
        let entries = (0..300).map(|n| put(&format!("{n:03}"), &"v".repeat(1_000)));
        let window = window(entries);
        let effects = window.effects(window.mark()).unwrap();
        for n in 0..300 {
            assert!(effects.get(format!("{n:03}").as_bytes()).is_some(), "entry {n}");
        }
        // Later ones are added, and earlier ones leave with their layer.
        window.extend([(LogIndex(301), put("000", "new"))].into_iter());
        let effects = window.effects(window.mark()).unwrap();
        assert_eq!(value(effects.get(b"000")).as_deref(), Some("new"));
    }

    #[test]
    fn what_was_applied_while_it_was_built_hides_nothing_later() {
        let window = window([put("a", "1"), put("a", "2"), put("b", "3")]);
        let piece = window.entries.lock().piece(LogIndex(2), true);
        assert_eq!(piece.len(), 2);
        window.note_applied(LogIndex(2));
        window.add(LogIndex(2), Layer::of(piece).unwrap()).unwrap();
        let effects = window.effects(window.mark()).unwrap();
        assert_eq!(value(effects.get(b"a")), None);
        assert_eq!(value(effects.get(b"b")).as_deref(), Some("3"));
        window.note_applied(LogIndex(3));
        assert!(window.effects(window.mark()).unwrap().is_empty());
    }

    #[test]
    fn a_modification_finds_what_is_built_and_what_is_not() {
        let window = window([put("a", "1"), put("b", "1")]);
        window.effects(window.mark()).unwrap();
        window.extend([(LogIndex(3), put("a", "2")), (LogIndex(4), deletes(0..9_000))].into_iter());
        let mut search = KeySearch::default();
        let _building = window.building.lock();
        let mut effect = |key: &str| value(window.effect(key.as_bytes(), &mut search).unwrap());
        assert_eq!(effect("a").as_deref(), Some("2"));
        assert_eq!(effect("b").as_deref(), Some("1"));
        assert_eq!(effect("c"), None);
    }

    #[test]
    fn a_modification_builds_only_small_pieces() {
        let window = window((0..10).map(|_| deletes(0..5_000)).chain([deletes(0..50_000)]));
        let mut search = KeySearch::default();
        for left in (0..10).rev() {
            window.effect(b"a", &mut search).unwrap();
            assert_eq!(window.entries.lock().fresh.len(), left + 1);
        }
        window.effect(b"a", &mut search).unwrap();
        assert_eq!(window.entries.lock().fresh.len(), 1, "the large entry is searched");
        assert!(window.effects(window.mark()).is_some());
        assert_eq!(window.entries.lock().fresh.len(), 0);
    }

    #[test]
    fn the_last_operation_on_a_key_counts() {
        let mut builder = CommandBuilder::new();
        builder.put(b"a", b"1", 0).unwrap();
        builder.put(b"a", b"2", 9).unwrap();
        builder.put(b"b", b"3", 0).unwrap();
        builder.delete_range(b"b", b"c").unwrap();
        let command = builder.build().bytes().clone();
        let at = |key: &'static [u8]| KeySearch::default().last_effect(&command, key);
        let pair = at(b"a").unwrap().unwrap();
        assert_eq!((&pair.value[..], pair.expires_at_s), (&b"2"[..], 9));
        assert_eq!(at(b"b"), Some(None));
        assert_eq!(at(b"c"), None);
    }

    #[test]
    fn searches_are_exhausted_by_the_operations_that_they_read() {
        let mut builder = CommandBuilder::new();
        (0..1_000).for_each(|_| drop(builder.delete(b"a")));
        let command = builder.build().bytes().clone();
        let mut search = KeySearch::default();
        for _ in 0..OPS_MAX / 1_000 {
            assert!(!search.is_exhausted());
            assert_eq!(search.last_effect(&command, b"b"), None);
        }
        assert!(search.is_exhausted());
    }
}
