//! Comparison of the replicas of a region by their checksums.
//!
//! Replicas are compared at the same applied index, without the pairs that a store may have removed
//! because they had expired by its own clock. Each round of calls gives the index and the time for the
//! next one.

use super::Control;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stele_proto::stele::control::v1 as messages;
use stele_types::{Error, RegionId, Result, StoreId};

const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// Time that a pair must have left to be compared, in seconds. The calls of one round must not take
/// longer: a pair could expire in between, and one of the stores remove it.
const MARGIN_S: u64 = 600;

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The replicas have the same data.
    Identical,
    /// The replicas have different data at the same index.
    Different,
    /// No round found all replicas at the same index: writes continue.
    Moving,
}

/// Replicas of a region, compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Checksums of the last round, in the order of the region's peers.
    pub replicas: Vec<messages::LocalChecksumResponse>,
    /// What they show.
    pub verdict: Verdict,
}

impl Control {
    /// Compares the replicas of a region, in at most `rounds_max` rounds. Fails with `Refused` if there is
    /// no such region, and with `Unavailable` if a replica does not respond or is of an older version.
    pub async fn compare_replicas(&self, id: RegionId, rounds_max: usize) -> Result<Comparison> {
        let own_clock_s =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut round = Round { applied_index: 0, expires_after_s: own_clock_s + MARGIN_S };
        let mut replicas = Vec::new();
        for _ in 0..rounds_max {
            replicas = self.round(id, &round).await?;
            if let Some(verdict) = round.verdict(&replicas) {
                return Ok(Comparison { replicas, verdict });
            }
            round = round.next(&replicas);
            tokio::time::sleep(ROUND_PAUSE).await;
        }
        Ok(Comparison { replicas, verdict: Verdict::Moving })
    }

    async fn round(
        &self,
        id: RegionId,
        round: &Round,
    ) -> Result<Vec<messages::LocalChecksumResponse>> {
        let region = self.region(id).await?.region;
        let mut replicas = Vec::new();
        for peer in &region.peers {
            let replica = self.local_checksum(id, peer.store, round).await?;
            if replica.clock_s == 0 {
                return Err(Error::Unavailable(format!(
                    "store {} runs a version with other checksums: upgrade its node",
                    peer.store
                )));
            }
            replicas.push(replica);
        }
        Ok(replicas)
    }

    async fn local_checksum(
        &self,
        region: RegionId,
        store: StoreId,
        round: &Round,
    ) -> Result<messages::LocalChecksumResponse> {
        let address = self.store_address(store).await?;
        let request = messages::LocalChecksumRequest {
            region_id: region.0,
            store_id: store.0,
            applied_index: round.applied_index,
            timeout_ms: self.options.attempt_timeout.as_millis() as u32,
            expires_after_s: round.expires_after_s,
            header: None,
        };
        self.call_node(&address, request).await
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Round {
    /// Index that every replica must have applied; 0 for any.
    applied_index: u64,
    /// Expiry up to which pairs are left out, in Unix seconds.
    expires_after_s: u64,
}

impl Round {
    /// Returns what the answers show; `None` if they cannot be compared.
    fn verdict(&self, replicas: &[messages::LocalChecksumResponse]) -> Option<Verdict> {
        let index = same(replicas, |replica| (replica.applied_index, replica.version));
        let last_clock_s = replicas.iter().map(|replica| replica.clock_s).max()?;
        // What has expired by the clock of any store is left out. But not much more: the clock of the
        // caller may be wrong.
        let clock = last_clock_s <= self.expires_after_s
            && self.expires_after_s <= last_clock_s + 2 * MARGIN_S;
        let data = same(replicas, |replica| (replica.checksum, replica.pairs, replica.bytes));
        let verdict = if data { Verdict::Identical } else { Verdict::Different };
        (index && clock).then_some(verdict)
    }

    fn next(self, replicas: &[messages::LocalChecksumResponse]) -> Self {
        let applied_index = replicas.iter().map(|replica| replica.applied_index).max();
        let last_clock_s = replicas.iter().map(|replica| replica.clock_s).max();
        Self {
            applied_index: applied_index.unwrap_or(0),
            expires_after_s: last_clock_s.map_or(self.expires_after_s, |last| last + MARGIN_S),
        }
    }
}

fn same<T: PartialEq>(
    replicas: &[messages::LocalChecksumResponse],
    of: impl Fn(&messages::LocalChecksumResponse) -> T,
) -> bool {
    replicas.windows(2).all(|pair| matches!(pair, [a, b] if of(a) == of(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(applied_index: u64, clock_s: u64, checksum: u64) -> messages::LocalChecksumResponse {
        messages::LocalChecksumResponse { applied_index, clock_s, checksum, ..Default::default() }
    }

    #[test]
    fn replicas_are_compared_at_one_index_without_what_has_expired_by_any_of_their_clocks() {
        let round = Round { applied_index: 5, expires_after_s: 1000 + MARGIN_S };
        // Index, clock and checksum of two replicas, and the verdict.
        let rows = [
            ([(7, 1000, 1), (7, 1001, 1)], Some(Verdict::Identical)),
            ([(7, 1000, 1), (7, 1001, 2)], Some(Verdict::Different)),
            ([(7, 1000, 1), (8, 1001, 2)], None),
            ([(7, 1000, 1), (7, 1001 + MARGIN_S, 2)], None),
            ([(7, 10, 1), (7, 11, 2)], None),
        ];
        for ([a, b], expected) in rows {
            let replicas = [replica(a.0, a.1, a.2), replica(b.0, b.1, b.2)];
            assert_eq!(round.verdict(&replicas), expected, "{replicas:?}");
            let next = round.next(&replicas);
            assert_eq!(next.applied_index, b.0);
            assert_eq!(next.expires_after_s, b.1 + MARGIN_S);
        }
        assert_eq!(round.verdict(&[]), None);
    }
}
