//! Status report of a peer.

use super::Peer;
use super::parts::is_caught_up;
use super::raft_group::Follower;
use crate::output::{RegionReport, Traffic};
use crate::store::Context;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Peer as PeerName, mutant};

impl<E: StorageEngine> Peer<E> {
    /// Returns the peer's status.
    pub fn report(&mut self, ctx: &Context<E>) -> RegionReport {
        let (read_ops, read_bytes) = self.reader.returned();
        let traffic = Traffic { read_ops, read_bytes, ..self.traffic };
        if mutant::active("raftstore.report_resets_traffic") {
            self.traffic = Traffic::default();
        }
        let now = ctx.now.monotonic_nanos;
        let leads = self.is_leader();
        let leaderless = self.contacts.leaderless_nanos(now).unwrap_or_default();
        RegionReport {
            region: (*self.region).clone(),
            peer: self.name,
            role: self.group.role(),
            is_leading: self.leadership.is_serving(),
            leader: self.leader(),
            term: self.term(),
            last: self.group.last(),
            committed: self.committed(),
            applied: self.applied(),
            truncated: LogIndex(self.log().truncated().0),
            pending_peers: if leads { self.pending_peers() } else { Vec::new() },
            down_peers: if leads { self.down_peers(ctx) } else { Vec::new() },
            leaderless_seconds: leaderless / 1_000_000_000,
            lacks_room: self.room.refused_bytes() > 0,
            hibernating: self.is_hibernating(),
            traffic,
        }
    }

    /// Returns whether the report of this replica may change without an input, a tick or work.
    pub fn changes_with_time(&self, ctx: &Context<E>) -> bool {
        let is_unreachable = |peer: &PeerName| ctx.unreachable.contains_key(&peer.store);
        let now = ctx.now.monotonic_nanos;
        self.contacts.leaderless_nanos(now).is_some()
            || (self.is_leader() && self.others().any(is_unreachable))
            || (self.is_leader() && !self.down_peers(ctx).is_empty())
    }

    fn followers(&self) -> impl Iterator<Item = (&PeerName, Follower)> {
        self.others().filter_map(|peer| Some((peer, self.group.follower(peer.id)?)))
    }

    fn pending_peers(&self) -> Vec<PeerName> {
        // What a follower without room lacks, it does not get from the log.
        let lacks_room = |it: &Follower| self.room.is_full(it.id) && it.matched < self.committed();
        let lagging = self.followers().filter(|(_, progress)| {
            !is_caught_up(progress, self.committed()) || lacks_room(progress)
        });
        lagging.map(|(peer, _)| *peer).collect()
    }

    /// Returns the peers unresponsive for longer than an election takes. A hibernating leader
    /// receives no messages, so it counts only peers on unreachable stores.
    pub(super) fn down_peers(&self, ctx: &Context<E>) -> Vec<(PeerName, u64)> {
        let now = ctx.now.monotonic_nanos;
        let timeout_nanos = ctx.options.election_ticks_max * ctx.options.tick_nanos;
        let unresponsive = |peer: &PeerName| {
            let since = match self.is_hibernating() {
                true => *ctx.unreachable.get(&peer.store)?,
                false => self.contacts.last(peer.id)?,
            };
            let elapsed = now.saturating_sub(since);
            (elapsed >= timeout_nanos).then_some((*peer, elapsed / 1_000_000_000))
        };
        self.followers().filter_map(|(peer, _)| unresponsive(peer)).collect()
    }
}
