//! Checks that a batch long enough for a pipelined write, in blocks of a recycled segment, is
//! durable once it is acknowledged.

use super::DiskCopy;
use std::path::Path;
use stele_storage::LogStore;
use stele_types::{CommandBuilder, EntryRecord, LogBatch, LogIndex, Prng, Record, RegionId, Term};

/// Size of a batch; two fit into a segment.
const BATCH_BYTES: usize = 600 << 10;
const SEGMENT_BYTES: u64 = 1_400 << 10;
/// The first two batches fill the existing segment; the last one is written while it is encoded.
const BATCHES: u64 = 4;
const KEY: &[u8] = b"~long";

pub(super) fn check(copy: &DiskCopy, prng: &mut Prng) -> Option<String> {
    let mut options = copy.options.clone();
    (options.segment_bytes_max, options.recycle_segments_max) = (SEGMENT_BYTES, 1);
    let copy = DiskCopy { options, ..copy.killed() };
    let free = Path::new(crate::world::DIR).join("log/free-00000001");
    copy.disk.write_file(&free, &vec![0; SEGMENT_BYTES as usize]);
    let store = copy.open_store().ok()?;
    let region = store.log().regions().into_iter().find(|id| {
        *id != RegionId(0) && store.progress(*id).is_some_and(|progress| !progress.destroyed)
    })?;
    let mut last = LogIndex(0);
    for byte in 0..BATCHES {
        let here = store.progress(region)?;
        let (term, index) = (here.persisted.1.max(Term(1)), here.persisted.0.next());
        let mut command = CommandBuilder::new();
        command.put(KEY, &vec![byte as u8; BATCH_BYTES], 0).ok()?;
        let payload = command.build().bytes().clone();
        let entry = EntryRecord { region, term, index, is_command: true, payload };
        store.append(&LogBatch { records: vec![Record::Entry(entry)] }).ok()?;
        last = index;
    }
    drop(store);
    let store = match copy.after(prng).open_store() {
        Ok(store) => store,
        Err(error) => return Some(format!("it does not open after long batches: {error}")),
    };
    let found = store.progress(region).unwrap_or_default().persisted.0;
    let reads = store.entries(region, last, last.next(), BATCH_BYTES);
    let is_there = found == last && reads.is_ok_and(|entries| entries.len() == 1);
    (!is_there).then(|| {
        format!(
            "a long batch with entry {last} of region {region} is lost; the last entry is {found}"
        )
    })
}
