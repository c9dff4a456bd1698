//! Simulated network between nodes.

use std::collections::{BTreeMap, BTreeSet};
use stele_types::Prng;

/// Direction from one node to another.
pub type Way = (u64, u64);

/// State of the network. Times are in nanoseconds, probabilities in 1/1000.
#[derive(Clone, Debug)]
pub struct Network {
    /// Directions in which all messages are lost.
    pub cut: BTreeSet<Way>,
    /// Messages to and from the placement group are lost.
    pub is_group_cut: bool,
    /// Probability that a message is lost.
    pub lost_permille: u64,
    /// Probability that a message arrives twice.
    pub doubled_permille: u64,
    /// Probability that a message arrives with a wrong bit.
    pub corrupt_permille: u64,
    /// Fastest and slowest delay.
    pub way_nanos: (u64, u64),
    /// Bandwidth of each direction; `None` for no limit.
    pub bytes_per_second: Option<u64>,
    free_at: BTreeMap<Way, u64>,
    sound_way_nanos: (u64, u64),
}

/// Longest wait for bandwidth; messages that would wait longer are dropped.
const QUEUE_NANOS_MAX: u64 = 2_000_000_000;
/// Frames up to this size bypass the queue: they have their own connection.
const URGENT_BYTES_MAX: u64 = 256;

impl Network {
    /// Creates a network without faults.
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

    /// Ends all faults.
    pub fn heal(&mut self) {
        *self = Self::new(self.sound_way_nanos);
    }

    /// Returns true unless all messages of the direction are lost.
    pub fn is_open(&self, way: Way) -> bool {
        !self.cut.contains(&way)
    }

    /// Returns the delay of each copy, and whether it is damaged; a message has at most two copies.
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

    /// Returns how long a frame waits for bandwidth; `None` if it is dropped.
    fn queue(&mut self, way: Way, now: u64, bytes: u64, rate: u64) -> Option<u64> {
        let free_at = self.free_at.entry(way).or_insert(now);
        let ends = (*free_at).max(now) + bytes * 1_000_000_000 / rate.max(1);
        if ends - now > QUEUE_NANOS_MAX {
            return None;
        }
        *free_at = ends;
        Some(ends - now)
    }

    /// Returns true if delays are longer than without faults.
    pub fn is_slow(&self) -> bool {
        self.way_nanos.1 > self.sound_way_nanos.1
    }

    /// Draws the delay of one message.
    pub fn delay(&self, prng: &mut Prng) -> u64 {
        let (least, most) = self.way_nanos;
        least + prng.below(most - least + 1)
    }

    /// Blocks all messages between two groups.
    pub fn partition(&mut self, one: &[u64], other: &[u64]) {
        for a in one {
            for b in other {
                self.cut.insert((*a, *b));
                self.cut.insert((*b, *a));
            }
        }
    }
}
