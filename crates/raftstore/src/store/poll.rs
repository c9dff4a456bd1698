//! One iteration: durable batches, ticks, and the work of the regions that need some. An idle
//! region costs nothing.

use super::RaftStore;
use super::journal::JOURNAL;
use crate::input::Now;
use crate::output::{Outputs, Ticket};
use stele_storage::StorageEngine;
use stele_types::{Error, Record, Result};

/// Most passes over the dirty regions in one poll; remaining work makes the next poll due at once.
const PASSES_MAX: usize = 4;

impl<E: StorageEngine> RaftStore<E> {
    /// Does all work that is due. An error is fatal for the store: its outputs are lost, and it
    /// must be opened again.
    pub fn poll(&mut self, now: Now) -> Result<Outputs<E>> {
        self.ctx.now = now;
        self.ctx.space = self.ctx.engine.space();
        if let Some((ticket, result)) = self.appended.take() {
            self.appended(ticket, result)?;
        }
        self.tick();
        self.drop_waiting()?;
        self.replace_stale_peers()?;
        self.run_effects()?;
        self.install_snapshots()?;
        self.settle_orphaned_ranges()?;
        for _ in 0..PASSES_MAX {
            if self.dirty.is_empty() {
                break;
            }
            self.work()?;
            self.run_effects()?;
        }
        self.ctx.received_bytes = 0;
        self.ctx.received_tail_bytes = 0;
        self.request_lost();
        self.probe_hibernating();
        self.truncate_all_if_due();
        // Invariant: a batch that is handed out again contains no tombstone that came later.
        let is_again = self.ctx.batches.is_under_way()
            && !stele_types::mutant::active("raftstore.dropped_before_tombstone");
        self.ctx.out.append = self.ctx.batches.hand_out(now.monotonic_nanos);
        if self.ctx.out.append.is_some() && !is_again {
            self.leaving.handed_out();
        }
        Ok(std::mem::take(&mut self.ctx.out))
    }

    fn work(&mut self) -> Result<()> {
        for region in std::mem::take(&mut self.dirty) {
            let Some(peer) = self.peers.get_mut(&region) else { continue };
            self.report_changes.note(region);
            if peer.work(&mut self.ctx)? {
                self.dirty.insert(region);
            }
        }
        Ok(())
    }

    /// Ticks every region that is awake, once however late the call is: missed ticks must not make
    /// a follower count its leader as unresponsive.
    fn tick(&mut self) {
        let now = self.ctx.now.monotonic_nanos;
        if self.ticking.is_empty() || now < self.next_tick_nanos {
            return;
        }
        self.next_tick_nanos = match stele_types::mutant::active("raftstore.make_up_for_ticks") {
            true => self.next_tick_nanos + self.ctx.options.tick_nanos,
            false => now + self.ctx.options.tick_nanos,
        };
        let ticking = std::mem::take(&mut self.ticking);
        for region in ticking {
            let Some(peer) = self.peers.get_mut(&region) else { continue };
            peer.tick(&mut self.ctx);
            if !peer.is_hibernating() {
                self.ticking.insert(region);
            }
            self.dirty.insert(region);
        }
        self.truncate_logs();
    }

    fn appended(&mut self, ticket: Ticket, result: Result<()>) -> Result<()> {
        match result {
            Ok(()) => {}
            Err(Error::NoSpace(_))
                if !stele_types::mutant::active("raftstore.drop_on_no_space") =>
            {
                return self.retry_without_puts(ticket);
            }
            Err(error) => return Err(error),
        }
        let Some(done) = self.ctx.batches.finish(ticket) else { return Ok(()) };
        let is_of_journal =
            |it: &&Record| matches!(it, Record::Entry(entry) if entry.region == JOURNAL);
        for _ in done.append.batch.records.iter().filter(is_of_journal) {
            self.ctx.journal.apply_durable(&*self.ctx.engine)?;
        }
        for note in done.notes {
            let peer = self
                .peers
                .get_mut(&note.region)
                .filter(|peer| peer.incarnation == note.incarnation);
            if let Some(peer) = peer {
                peer.ready_durable(&mut self.ctx, note.number, done.began_nanos);
                self.dirty.insert(note.region);
            }
        }
        self.drop_left()
    }

    fn replace_stale_peers(&mut self) -> Result<()> {
        for message in std::mem::take(&mut self.stale) {
            if self.replace_stale(&message)? {
                self.receive_for_absent(&message);
            }
        }
        Ok(())
    }
}
