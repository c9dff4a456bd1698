//! Copies of all pairs, region after region, into chunks.

use super::{RETRY_PAUSE, Shared};
use crate::BegunBase;
use crate::format::{Base, BaseSeq, Chunk, ChunkRef, Chunker, Family, Pair, Part, RunId};
use crate::restore::access_text;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use stele_client::messages::ConfigItem;
use stele_client::{Client, Copied, CopiedPair};
use stele_types::{Error, KeyRange, LogIndex, RegionId, Result};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Chunks that are sent at once.
const CHUNKS_AT_ONCE: usize = 4;

/// Copy of the cluster into a base.
pub(super) struct Copier {
    shared: Arc<Shared>,
    run: RunId,
    seq: BaseSeq,
}

/// A base that is written as soon as its log objects are known.
pub(super) struct Made {
    pub begun: BegunBase,
    pub base: Base,
    /// Bytes of the chunks, before compression.
    pub bytes: u64,
    /// Of these, bytes of chunks that the repository did not have.
    pub sent_bytes: u64,
}

/// Part that is being copied.
struct Open {
    start: Bytes,
    region: RegionId,
    index: LogIndex,
}

impl Copier {
    pub(super) fn new(shared: Arc<Shared>, run: RunId, seq: BaseSeq) -> Self {
        Self { shared, run, seq }
    }

    pub(super) async fn make(self) -> Result<Made> {
        let Self { shared, run, seq } = &self;
        let begun = loop {
            match shared.repository.begin_base(*run, *seq).await {
                Err(Error::Busy(reason)) => {
                    shared.report(&reason);
                    sleep(10 * RETRY_PAUSE).await;
                }
                begun => break Arc::new(begun?),
            }
        };
        let mut base = Base { run: *run, seq: *seq, ..Base::default() };
        let (mut bytes, mut sent_bytes) = (0, 0);
        for family in Family::ALL {
            let mut chunks = Chunks::new(shared.clone(), begun.clone());
            self.copy(family, &mut chunks, &mut base.parts).await?;
            (bytes, sent_bytes) = (bytes + chunks.bytes, sent_bytes + chunks.sent_bytes);
        }
        let Some(begun) = Arc::into_inner(begun) else {
            return Err(Error::Unavailable("a chunk is still being sent".to_owned()));
        };
        (base.settings, base.access) =
            (settings(&shared.copier).await?, access(&shared.copier).await?);
        Ok(Made { begun, base, bytes, sent_bytes })
    }

    /// Copies a column family. A part that is interrupted ends with its last pair, and the rest is another part.
    async fn copy(&self, family: Family, chunks: &mut Chunks, parts: &mut Vec<Part>) -> Result<()> {
        let mut copy = self.shared.copier.family(family).copy(KeyRange::all());
        let (mut chunker, mut open, mut failing_since) = (Chunker::default(), None, None);
        loop {
            let copied = match copy.next().await {
                Err(error @ (Error::Unavailable(_) | Error::Busy(_))) => {
                    self.shared.wait(&mut failing_since, error).await?;
                    continue;
                }
                copied => copied?,
            };
            failing_since = None;
            match copied {
                None => return Ok(()),
                Some(Copied::Begin { start, region, index }) => {
                    open = Some(Open { start, region, index: LogIndex(index) });
                }
                Some(Copied::Pairs(pairs)) => {
                    let mut read_bytes = 0;
                    for CopiedPair { key, value, expires_at_s } in pairs {
                        read_bytes += (key.len() + value.len()) as u64;
                        if let Some(chunk) = chunker.push(Pair { key, value, expires_at_s }) {
                            chunks.put(chunk).await?;
                        }
                    }
                    self.shared.pace(read_bytes).await;
                }
                Some(Copied::End { end }) => {
                    if let Some(chunk) = chunker.finish() {
                        chunks.put(chunk).await?;
                    }
                    let chunks = chunks.finish().await?;
                    if let (Some(Open { start, region, index }), Some(end)) = (open.take(), end) {
                        let range = KeyRange { start, end };
                        parts.push(Part { family, range, region, index, chunks });
                    }
                }
            }
        }
    }
}

/// Chunks of a part on their way into the repository, some at once.
struct Chunks {
    shared: Arc<Shared>,
    begun: Arc<BegunBase>,
    sending: VecDeque<JoinHandle<Result<(ChunkRef, bool)>>>,
    sent: Vec<ChunkRef>,
    bytes: u64,
    sent_bytes: u64,
}

impl Chunks {
    fn new(shared: Arc<Shared>, begun: Arc<BegunBase>) -> Self {
        let (sending, sent) = (VecDeque::new(), Vec::new());
        Self { shared, begun, sending, sent, bytes: 0, sent_bytes: 0 }
    }

    async fn put(&mut self, chunk: Chunk) -> Result<()> {
        let (shared, begun) = (self.shared.clone(), self.begun.clone());
        let put = async move { shared.repository.put_chunk(&begun, &chunk).await };
        self.sending.push_back(tokio::spawn(put));
        match self.sending.len() >= CHUNKS_AT_ONCE {
            true => self.wait().await,
            false => Ok(()),
        }
    }

    /// Waits for the first chunk.
    async fn wait(&mut self) -> Result<()> {
        let Some(put) = self.sending.pop_front() else { return Ok(()) };
        let stopped = |_| Error::Unavailable("the sending of a chunk was stopped".to_owned());
        let (reference, is_sent) = put.await.map_err(stopped)??;
        self.bytes += reference.bytes;
        self.sent_bytes += if is_sent { reference.bytes } else { 0 };
        self.sent.push(reference);
        self.shared.pace(0).await;
        Ok(())
    }

    /// Returns the chunks of the part.
    async fn finish(&mut self) -> Result<Vec<ChunkRef>> {
        while !self.sending.is_empty() {
            self.wait().await?;
        }
        Ok(std::mem::take(&mut self.sent))
    }
}

/// Returns the settings of the first node that answers, as far as they can be set while it runs and are not the
/// defaults.
async fn settings(client: &Client) -> Result<Vec<(String, String)>> {
    let control = client.control();
    let mut last = Error::Unavailable("the cluster has no nodes".to_owned());
    for member in control.members().await?.members {
        let address = match member.client_address.is_empty() {
            true => member.address,
            false => member.client_address,
        };
        match control.config(&address, &[]).await {
            Ok(items) => {
                let is_set = |item: &ConfigItem| item.live && item.value != item.default_value;
                let set = items.into_iter().filter(is_set);
                return Ok(set.map(|item| (item.key, item.value)).collect());
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns the access rules without the hashes of tokens; `None` while access is off.
async fn access(client: &Client) -> Result<Option<String>> {
    let grants = client.control().access().await?.access.unwrap_or_default().grants;
    (!grants.is_empty()).then(|| access_text(&grants)).transpose()
}
