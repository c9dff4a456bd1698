//! Reads that the kernel gets with one call, of one file or many.

use super::queue::{Queue, Queues, Read};
use crate::{AlignedBuf, Meter, VfsFile};
use std::fmt;
use std::fs::File;
use std::sync::Arc;
use stele_types::Result;

/// An open file of the machine that is read past the page cache: see [`VfsFile::kernel_file`].
#[derive(Clone, Copy, Debug)]
pub struct KernelFile<'a> {
    pub(super) file: &'a File,
    pub(super) queues: &'a Arc<Queues>,
    pub(super) meter: &'a Meter,
}

/// One read of a [`ReadBatch`], of whole blocks.
#[derive(Clone, Debug)]
pub struct BatchRead {
    /// File that [`VfsFile::kernel_file`] returns something for.
    pub file: Arc<dyn VfsFile>,
    /// Position in the file, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub bytes: usize,
}

/// Reads under way, into consecutive parts of one buffer. The device works on all of them, or on as many as
/// its queue holds.
pub struct ReadBatch {
    /// `None` after the end.
    queue: Option<Queue>,
    queues: Arc<Queues>,
    reads: Vec<BatchRead>,
    memory: AlignedBuf,
    /// Number of reads that were submitted.
    started: usize,
    /// Bytes of each read that has ended, or a negative error number.
    results: Vec<i64>,
}

impl fmt::Debug for ReadBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadBatch({} reads)", self.reads.len())
    }
}

impl ReadBatch {
    /// Starts reads into `memory`, which is at least as long as all of them. Returns the memory in `Err`
    /// where the system has no queue for them: then each is to be read by itself.
    pub fn start(
        reads: Vec<BatchRead>,
        memory: AlignedBuf,
    ) -> std::result::Result<Self, AlignedBuf> {
        let fits = reads.iter().map(|read| read.bytes).sum::<usize>() <= memory.len();
        let are_known = reads.iter().all(|read| read.file.kernel_file().is_some());
        let first = reads.first().and_then(|read| read.file.kernel_file());
        let queues = first.map(|file| file.queues.clone()).filter(|_| fits && are_known);
        let Some((queues, queue)) = queues.and_then(|of| of.take_long().map(|one| (of, one)))
        else {
            return Err(memory);
        };
        let results = Vec::with_capacity(reads.len());
        let queue = Some(queue);
        let mut batch = Self { queue, queues, reads, memory, started: 0, results };
        batch.submit();
        Ok(batch)
    }

    /// Submits as many of the reads that are left as the queue holds.
    fn submit(&mut self) {
        let Self { queue: Some(queue), reads, memory, started, .. } = self else { return };
        // bug vfs.batch_begins_again: `*started` is `0`
        let before: usize = reads.iter().take(*started).map(|read| read.bytes).sum();
        let mut rest = memory.as_mut_slice().get_mut(before..).unwrap_or_default();
        let reads = reads.get(*started..).unwrap_or_default().iter().map_while(|read| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut_checked(read.bytes)?;
            rest = after;
            let (file, offset) = (read.file.kernel_file()?.file, read.offset);
            Some(Read { file, memory: part.as_mut_ptr(), bytes: part.len(), offset })
        });
        // SAFETY: the memory belongs to this batch, which neither uses nor frees it before `Queue::wait` has
        // returned: `wait` and `drop` call that first. It does not move, because it is on the heap.
        *started += unsafe { queue.start_reads(reads) };
    }

    /// Waits for the reads that were submitted; false if the state of the memory is unknown.
    fn wait(&mut self) -> bool {
        match self.queue.as_mut().map(Queue::wait) {
            Some(Ok(results)) => self.results.extend(results),
            Some(Err(_)) => return false,
            None => {}
        }
        true
    }

    /// Waits for all reads. Returns the memory, and the bytes of each as [`VfsFile::read_at`] returns them.
    pub fn finish(mut self) -> (AlignedBuf, Vec<Result<usize>>) {
        while self.results.len() < self.started {
            // The kernel could still write to the memory.
            if !self.wait() {
                std::process::abort();
            }
            self.submit();
        }
        let (mut begin, mut done) = (0, Vec::with_capacity(self.reads.len()));
        for (n, read) in self.reads.iter().enumerate() {
            let part = begin..begin + read.bytes;
            begin = part.end;
            let got = self.results.get(n).copied().and_then(|got| usize::try_from(got).ok());
            // What was not read, or not whole, is read again, which shows the error or the end of the file.
            done.push(match got.filter(|&got| got == read.bytes) {
                Some(got) => {
                    read.file.kernel_file().inspect(|file| file.meter.count_read(got as u64));
                    Ok(got)
                }
                None => {
                    let memory = self.memory.as_mut_slice().get_mut(part).unwrap_or_default();
                    read.file.read_at(memory, read.offset)
                }
            });
        }
        (std::mem::take(&mut self.memory), done)
    }
}

impl Drop for ReadBatch {
    fn drop(&mut self) {
        if !self.wait() {
            // The device may still write there.
            std::mem::forget(std::mem::take(&mut self.memory));
        } else if let Some(queue) = self.queue.take() {
            self.queues.put_back(queue);
        }
    }
}
