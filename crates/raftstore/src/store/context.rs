//! What all peers of a store share while one of them works.

use super::batch::Batches;
use super::journal::Journal;
use crate::input::{Now, RequestId};
use crate::options::Options;
use crate::output::{Outputs, Refusal, Reply};
use crate::readers::Readers;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{KeyRange, LogIndex, Region, RegionId, StoreId, Term};

/// What all peers of a store share.
pub(crate) struct Context<E: StorageEngine> {
    pub engine: Arc<E>,
    pub options: Options,
    pub logger: slog::Logger,
    pub now: Now,
    pub out: Outputs<E>,
    pub batches: Batches,
    pub journal: Journal,
    pub readers: Arc<Readers>,
    /// What peers ask of their store; carried out when no peer is at work.
    pub effects: Vec<Effect>,
    /// Bytes of requests that wait in this store.
    pub waiting_bytes: u64,
    /// Regions prepared to be merged whose log all replicas hold up to the preparation.
    pub replicated_sources: BTreeMap<RegionId, (LogIndex, Term)>,
    /// Stores the transport lost, and since when.
    pub unreachable: BTreeMap<StoreId, u64>,
    rounds: u64,
    lives: u64,
}

/// Who has the pairs of a replica that leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pairs {
    /// Another region here.
    Owned,
    /// A region without a replica here has this range of them. It may have been larger before a split
    /// that the one which leaves did not hear of.
    Known(KeyRange),
    /// It is not known which regions.
    Unclear,
}

/// What a peer asks of its store.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// A split made this region; its log begins after the entry.
    Create { region: Region, after: (LogIndex, Term), campaign: bool },
    /// The region leaves this store.
    Destroy { region: Region, pairs: Pairs },
    /// Another region waits for this one.
    Poke(RegionId),
    /// The source's log up to its preparation is committed, and its target waits for it.
    CommitSource { source: RegionId, prepared: (LogIndex, Term) },
}

impl<E: StorageEngine> Context<E> {
    pub fn new(engine: Arc<E>, options: Options, logger: slog::Logger, now: Now) -> Self {
        Self {
            engine,
            options,
            logger,
            now,
            out: Outputs::default(),
            batches: Batches::default(),
            journal: Journal::default(),
            readers: Arc::new(Readers::default()),
            effects: Vec::new(),
            waiting_bytes: 0,
            replicated_sources: BTreeMap::new(),
            unreachable: BTreeMap::new(),
            rounds: 0,
            lives: 0,
        }
    }

    /// The name of a read round. Never the same twice, over all stores and all their lives: a late
    /// answer to an earlier round would else confirm a deposed leader.
    pub fn round_context(&mut self) -> Vec<u8> {
        if !stele_types::mutant::active("raftstore.read_context_reused") {
            self.rounds += 1;
        }
        let parts = [self.options.store.0, self.options.incarnation, self.rounds];
        parts.iter().flat_map(|part| part.to_be_bytes()).collect()
    }

    /// The number of the next peer's life.
    pub fn next_incarnation(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    pub fn reply(&mut self, id: RequestId, reply: Reply) {
        self.out.replies.push((id, reply));
    }

    pub fn refuse(&mut self, id: RequestId, refusal: Refusal) {
        self.reply(id, Reply::Refused(refusal));
    }
}
