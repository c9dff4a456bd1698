//! What happens to bytes between two nodes.

use std::collections::{BTreeMap, BTreeSet};
use stele_types::Prng;

/// From one node to another.
pub type Way = (u64, u64);

/// See the module. Times are nanoseconds, chances are in 1000.
#[derive(Clone, Debug)]
pub struct Network {
    /// Ways on which nothing arrives.
    pub cut: BTreeSet<Way>,
    /// What is said to the placement group, or by it, does not arrive.
    pub is_group_cut: bool,
    /// Lost.
    pub lost_permille: u64,
    /// Arriving twice.
    pub doubled_permille: u64,
    /// Arriving with a wrong bit.
    pub corrupt_permille: u64,
    /// Fastest and slowest way.
    pub way_nanos: (u64, u64),
    /// Bytes in a second on each way; `None` without a bound.
    pub bytes_per_second: Option<u64>,
    free_at: BTreeMap<Way, u64>,
    sound_way_nanos: (u64, u64),
}

/// What waits longer than this for a narrow way is dropped.
const QUEUE_NANOS_MAX: u64 = 2_000_000_000;
/// Frames up to this size pass by the queue: they have a connection of their own.
const URGENT_BYTES_MAX: u64 = 256;

impl Network {
    /// A sound one.
    pub fn new(way_nanos: (u64, u64)) -> Self {
        Self {
            cut: BTreeSet::new(),
            is_group_cut: false,
            lost_permille: 0,
            doubled_permille: 0,
            corrupt_permille: 0,
            way_nanos,
            bytes_per_second: None,
            free_at: BTreeMap::new(),
            sound_way_nanos: way_nanos,
        }
    }

    /// Sound again.
    pub fn heal(&mut self) {
        *self = Self::new(self.sound_way_nanos);
    }

    /// Whether anything passes.
    pub fn is_open(&self, way: Way) -> bool {
        !self.cut.contains(&way)
    }

    /// How long each copy takes, and whether it is damaged; none, one or two of them arrive.
    pub fn deliveries(
        &mut self,
        prng: &mut Prng,
        way: Way,
        now: u64,
        bytes: u64,
    ) -> Vec<(u64, bool)> {
        if !self.is_open(way) || self.hits(prng, self.lost_permille) {
            return Vec::new();
        }
        let queued = match self.bytes_per_second.filter(|_| bytes > URGENT_BYTES_MAX) {
            Some(rate) => match self.queue(way, now, bytes, rate) {
                Some(queued) => queued,
                None => return Vec::new(),
            },
            None => 0,
        };
        let copies = 1 + usize::from(self.hits(prng, self.doubled_permille));
        (0..copies)
            .map(|_| (queued + self.delay(prng), self.hits(prng, self.corrupt_permille)))
            .collect()
    }

    fn hits(&self, prng: &mut Prng, permille: u64) -> bool {
        permille > 0 && prng.below(1000) < permille
    }

    /// How long a frame waits for its way; `None` when it is dropped.
    fn queue(&mut self, way: Way, now: u64, bytes: u64, rate: u64) -> Option<u64> {
        let free_at = self.free_at.entry(way).or_insert(now);
        let ends = (*free_at).max(now) + bytes * 1_000_000_000 / rate.max(1);
        if ends - now > QUEUE_NANOS_MAX {
            return None;
        }
        *free_at = ends;
        Some(ends - now)
    }

    /// Whether messages take longer than usual.
    pub fn is_slow(&self) -> bool {
        self.way_nanos.1 > self.sound_way_nanos.1
    }

    /// How long one way takes.
    pub fn delay(&self, prng: &mut Prng) -> u64 {
        let (least, most) = self.way_nanos;
        least + prng.below(most - least + 1)
    }

    /// Nothing passes between the two groups.
    pub fn partition(&mut self, one: &[u64], other: &[u64]) {
        for a in one {
            for b in other {
                self.cut.insert((*a, *b));
                self.cut.insert((*b, *a));
            }
        }
    }
}
